"""The mechanisms by name.

* A name always means the same mechanism; nothing here falls back to another one.
* The default mechanism comes first.
* A module is imported when its mechanism is first asked for.

It holds no mathematics.
"""

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dpnoise.mechanisms.base import Mechanism
    from dpnoise.mechanisms.parameters import MechanismParameters

_PLACES: Final = MappingProxyType(
    {
        "skellam-mixture": "skellam_mixture:SkellamMixtureMechanism",
        "skellam": "skellam:SkellamMechanism",
        "skellam-counts": "skellam_counts:SkellamCountsMechanism",
        "smm": "smm:SMMechanism",
        "ddgauss": "ddgauss:DDGaussMechanism",
        "binomial": "binomial:BinomialMechanism",
        "discrete-gaussian": "discrete_gaussian:DiscreteGaussianMechanism",
        "gaussian": "gaussian:GaussianMechanism",
    }
)


def mechanism_names() -> tuple[str, ...]:
    """Return the names of all mechanisms, the default one first."""
    return tuple(_PLACES)


def mechanism_class(name: str) -> "type[Mechanism]":
    """Return the class behind a name that `MechanismParameters` has accepted."""
    module, _, class_name = _PLACES[name].partition(":")
    imported = importlib.import_module(f"dpnoise.mechanisms.{module}")
    found: type[Mechanism] = getattr(imported, class_name)
    return found


def make_mechanism(parameters: "MechanismParameters") -> "Mechanism":
    """Build the mechanism that the parameters name.

    Args:
        parameters: What to encode and how; they have been validated when built.

    Returns:
        The mechanism.

    Raises:
        ParameterError: The mechanism cannot work with these parameters.
        TheoremNotApplicableError: Its theorem does not cover them; the error names
            the parameter to change and the nearest value that works.
    """
    return mechanism_class(parameters.mechanism)(parameters)
