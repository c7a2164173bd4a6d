"""Keywords of a plan, from arguments of their own and from further settings.

It plans nothing.
"""

from collections.abc import Mapping
from inspect import signature
from types import MappingProxyType
from typing import Any, Final

from dpnoise.errors import ParameterError
from dpnoise.mechanisms.parameter_checks import check_choice
from dpnoise.planning import PlanRequest

NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})
"""Nothing beside the arguments."""


def plan_keywords(
    settings: Mapping[str, Any], *reserved: str, **arguments: object
) -> dict[str, Any]:
    """Join arguments and settings; neither may contradict the other.

    Args:
        settings: Further keywords of `dpnoise.plan`.
        reserved: Keywords that are decided elsewhere.
        arguments: Keywords that have an argument of their own.

    Raises:
        ParameterError: A setting has an argument of its own, or a plan has none such.
    """
    for name in settings:
        if name in arguments or name in reserved:
            raise ParameterError(
                f"{name} is an argument of its own here, not one of the settings",
                parameter="settings",
                value=name,
            )
        check_choice("settings", name, tuple(signature(PlanRequest).parameters))
    return arguments | dict(settings)
