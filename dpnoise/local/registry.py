"""The local randomisers by name; a name always means the same one."""

from functools import lru_cache
from types import MappingProxyType
from typing import Final

from dpnoise.local.magnitude import ScalarDP
from dpnoise.local.parameters import RANDOMISER_NAMES, LocalParameters
from dpnoise.local.randomiser import LocalRandomiser
from dpnoise.local.separated import Separated
from dpnoise.local.unit_vector import PrivUnit2, PrivUnitInf

_CLASSES: Final = MappingProxyType(
    {each.name: each for each in (Separated, PrivUnit2, PrivUnitInf, ScalarDP)}
)


def randomiser_names() -> tuple[str, ...]:
    """Return the names of all local randomisers, the one for everyday vectors first."""
    return RANDOMISER_NAMES


@lru_cache(maxsize=16)  # every client of a simulated session asks for the same
def make_randomiser(parameters: LocalParameters) -> LocalRandomiser:
    """Build, or fetch, the randomiser that the parameters name.

    Args:
        parameters: They have been checked when built.
    """
    chosen: type[LocalRandomiser] = _CLASSES[parameters.randomiser]
    return chosen(parameters)
