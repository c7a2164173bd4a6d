"""`secagg.plan`: the planner of `dpnoise`, with the errors of this package.

Commands and settings call the planner directly, and name the wrong option or setting.
Programs have neither.
"""

import functools
from typing import Final, ParamSpec, cast

from dpnoise import planning
from dpnoise.errors import DPNoiseError, ParameterError
from dpnoise.planning import Plan, Planner
from secagg.errors import ErrorCode, LocalProtocolError

_P = ParamSpec("_P")

_DOC: Final = """Choose scale, modulus and noise for a privacy budget.

Call it with the fields of `dpnoise.planning.PlanRequest`, which documents them, as
keywords. A question such as `dpnoise.Histogram`, given first, sets the fields for the
bounds of its vectors.

Returns:
    The plan, for `PreparedTask.from_plan`.

Raises:
    LocalProtocolError: BAD_SETTINGS; a value cannot work.  The message names the
        parameter, `next_step` the nearest value that works, where there is one.
    ServiceError: INFEASIBLE; no amount of noise keeps the budget, or no theorem covers
        mechanism and accountant.

Example:
    plan(clients=100, dimension=65536, l2_clip=1.0, epsilon=1.0, delta=1e-5)
    plan(dpnoise.Mean(lowest=0, highest=120), clients=100, epsilon=1.0, delta=1e-6)
"""


def _with_our_errors(planner: Planner[_P]) -> Planner[_P]:
    """Return the planner with the errors of this package."""

    @functools.wraps(planner)
    def plan(*question: object, **fields: object) -> Plan:
        try:
            return cast("Planner[...]", planner)(*question, **fields)
        except ParameterError as error:
            raise ErrorCode.BAD_SETTINGS.error(
                str(error.args[0]),  # without the nearest value
                kind=LocalProtocolError,
                fix=_remedy(error),
            ) from error
        except DPNoiseError as error:
            raise ErrorCode.INFEASIBLE.error(
                str(error),
                fix="Allow a larger epsilon or delta, ask for more clients, or "
                "choose another mechanism or accountant.",
            ) from error

    plan.__doc__, plan.__module__ = _DOC, __name__
    return cast("Planner[_P]", plan)


def _remedy(error: ParameterError) -> str:
    """Return one sentence that names a value that works."""
    name, nearest = error.parameter, error.nearest
    if nearest is None:
        return (
            f"Give {name} a value that works."
            if name
            else "Give the arguments by name."
        )
    if " " not in nearest and (isinstance(error.value, str) or error.value is None):
        return f"Did you mean {nearest}?"
    return f"Give {name} a value that works: {nearest}."


plan = _with_our_errors(planning.plan)
