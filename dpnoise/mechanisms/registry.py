"""The mechanisms by name.

* A name always means the same mechanism; nothing here falls back to another one.
* The default mechanism comes first.

It holds no mathematics.
"""

from types import MappingProxyType
from typing import Final

from dpnoise.mechanisms.base import Mechanism
from dpnoise.mechanisms.binomial import BinomialMechanism
from dpnoise.mechanisms.ddgauss import DDGaussMechanism
from dpnoise.mechanisms.discrete_gaussian import DiscreteGaussianMechanism
from dpnoise.mechanisms.gaussian import GaussianMechanism
from dpnoise.mechanisms.parameters import MECHANISM_NAMES, MechanismParameters
from dpnoise.mechanisms.skellam import SkellamMechanism
from dpnoise.mechanisms.skellam_counts import SkellamCountsMechanism
from dpnoise.mechanisms.skellam_mixture import SkellamMixtureMechanism
from dpnoise.mechanisms.smm import SMMechanism

_CLASSES: Final = MappingProxyType(
    {
        chosen.name: chosen
        for chosen in (
            SkellamMixtureMechanism,
            SkellamMechanism,
            SkellamCountsMechanism,
            SMMechanism,
            DDGaussMechanism,
            BinomialMechanism,
            DiscreteGaussianMechanism,
            GaussianMechanism,
        )
    }
)


def mechanism_names() -> tuple[str, ...]:
    """Return the names of all mechanisms, the default one first."""
    return MECHANISM_NAMES


def mechanism_class(name: str) -> type[Mechanism]:
    """Return the class behind a name that `MechanismParameters` has accepted."""
    return _CLASSES[name]


def make_mechanism(parameters: MechanismParameters) -> Mechanism:
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
