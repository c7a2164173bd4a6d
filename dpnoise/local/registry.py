"""The local randomisers by name; a name always means the same one.

A module is imported when its randomiser is first asked for.
"""

import importlib
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from dpnoise.local.parameters import RANDOMISER_NAMES, LocalParameters
from dpnoise.local.randomiser import LocalRandomiser

_PLACES: Final = MappingProxyType(
    {
        "separated": "separated:Separated",
        "privunit2": "unit_vector:PrivUnit2",
        "privunit-inf": "unit_vector:PrivUnitInf",
        "scalar-dp": "magnitude:ScalarDP",
    }
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
    module, _, class_name = _PLACES[parameters.randomiser].partition(":")
    imported = importlib.import_module(f"dpnoise.local.{module}")
    chosen: type[LocalRandomiser] = getattr(imported, class_name)
    return chosen(parameters)
