"""The time to make a plan, and the time a client takes to check it, at the extremes.

The baseline of each line is two seconds of one processor core, the longest acceptable
wait.
"""

import sys
import time
from fractions import Fraction
from typing import Any

from measurement import emit

from dpnoise.accounting import make_accountant
from dpnoise.events import Adversary
from dpnoise.mechanisms import make_mechanism
from dpnoise.planning import Plan, plan

_PROMISED_SECONDS = 2.0
_USUAL = {
    "clients": 100,
    "dimension": 65536,
    "l2_clip": 1.0,
    "epsilon": 1.0,
    "delta": 1e-5,
}
_CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"dimension": 1},
    {"dimension": 32, "bits": 16},
    {"dimension": 1000},
    {"dimension": 1000, "rotation": "none"},
    {"dimension": 1 << 28},
    {"clients": 2},
    {"clients": 1000, "min_survivors": 700},
    {"clients": 1 << 20},
    {"clients": 1 << 24},
    {"dimension": 20, "epsilon": 50.0},
    {"epsilon": 0.01},
    {"epsilon": 0.1},
    {"epsilon": 5.0},
    {"epsilon": 40.0},
    {"delta": 1e-12},
    {"steps": 10},
    {"steps": 1000},
    {"steps": 10_000},
    {"scale_factor": 4096.0},
    {"mechanism": "skellam"},
    {"selection_rate": Fraction(1, 10)},
    {"selection_rate": Fraction(1, 100)},
    {"selection_rate": Fraction(1, 100), "steps": 10},
    {"selection_rate": Fraction(1, 10), "steps": 1000},
    {"selection_rate": Fraction(1, 1000), "steps": 10_000},
    {"selection_rate": Fraction(1, 10), "steps": 10, "delta": 1e-12},
    {"selection_rate": Fraction(1, 10), "steps": 10, "epsilon": 40.0},
    {"selection_rate": Fraction(1, 10), "steps": 2, "dimension": 2, "clients": 10},
)


def _check(made: Plan) -> None:
    """Compute epsilon as a client does, from the parameters alone."""
    account = make_accountant(made.accountant, adversary=Adversary.SERVER)
    mechanism = make_mechanism(made.parameters)
    # A little more noise is another release, so caches of planning do not help.
    variance = mechanism.counted_noise_variance * (1 + Fraction(1, 1 << 10))
    event = mechanism.event_with_noise(variance)
    released = made.request.releases(event)
    account.compose(released).epsilon(made.request.delta)


def main(*, tiny: bool = False) -> None:
    """Print two lines per plan: making it, and checking it."""
    for changes in _CHANGES[:3] if tiny else _CHANGES:
        begin = time.process_time()
        made = plan(**(_USUAL | changes))
        planned = time.process_time()
        _check(made)
        checked = time.process_time()
        shown = {
            **changes,
            "planned_bits": made.parameters.bits,
            "noise_overhead": round(made.noise_overhead, 4),
            "accountant": made.accountant,
        }
        for name, seconds in (
            ("plans/plan", planned - begin),
            ("plans/check", checked - planned),
        ):
            emit(
                name,
                parameters={
                    key: str(value) if isinstance(value, Fraction) else value
                    for key, value in shown.items()
                },
                value=seconds,
                unit="s",
                baseline="two seconds of one core",
                ratio=_PROMISED_SECONDS / max(seconds, 1e-9),
                target_met=seconds <= _PROMISED_SECONDS,
            )


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv)
