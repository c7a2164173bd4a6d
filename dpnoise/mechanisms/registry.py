"""The mechanisms by name.

* A name always means the same mechanism; nothing here falls back to another one.
* The default mechanism comes first.
* A module is imported when its mechanism is first asked for.
* A program may register mechanisms of its own. Their names begin with "own-", so that
  they hide none of these, now or later. No name of a peer selects one that this
  program has not registered.

It holds no mathematics.
"""

from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from dpnoise.errors import ParameterError
from dpnoise.own_parts import load_class, register_own

if TYPE_CHECKING:
    from dpnoise.mechanisms.base import Mechanism
    from dpnoise.mechanisms.parameters import MechanismParameters

_PLACES: Final = MappingProxyType(
    {
        "skellam-mixture": "skellam_mixture:SkellamMixtureMechanism",
        "skellam": "skellam:SkellamMechanism",
        "skellam-counts": "skellam_counts:SkellamCountsMechanism",
        "smm": "smm:SMMechanism",
        "ddgauss": "conditional_rounding:DDGaussMechanism",
        "binomial": "conditional_rounding:BinomialMechanism",
        "discrete-gaussian": "discrete_gaussian:DiscreteGaussianMechanism",
        "gaussian": "gaussian:GaussianMechanism",
    }
)


_OWN: Final[dict[str, "type[Mechanism]"]] = {}


def register_mechanism(mechanism: "type[Mechanism]") -> "type[Mechanism]":
    """Let plans, tasks and offers name a mechanism of this program.

    Every process that plans, encodes or adds up with it registers it first, clients and
    aggregator alike: call this in a module that all of them import. The status of its
    privacy is `numerical` with an own proof at most, whatever accountant computes it.
    Clients accept that only where their limits say so.

    Args:
        mechanism: A subclass of `Mechanism` whose `name` begins with "own-".

    Returns:
        The class, so that this serves as a decorator.

    Raises:
        ParameterError: It is no such class, or another one has the name.
    """
    from dpnoise.mechanisms.base import Mechanism  # noqa: PLC0415 - imports this

    given: object = mechanism
    if not (isinstance(given, type) and issubclass(given, Mechanism)):
        raise ParameterError(
            "a mechanism is a class that derives from dpnoise.Mechanism",
            parameter="mechanism",
        )
    return register_own(_OWN, mechanism.name, mechanism)


def mechanism_names() -> tuple[str, ...]:
    """Return the names of all mechanisms: the default first, registered ones last."""
    return (*_PLACES, *_OWN)


def mechanism_class(name: str) -> "type[Mechanism]":
    """Return the class behind a name.

    Args:
        name: One of `mechanism_names()`.
    """
    return _OWN[name] if name in _OWN else _built_in(name)


@cache  # a plan asks ten thousand times
def _built_in(name: str) -> "type[Mechanism]":
    """Return the class behind a name of this package."""
    found: type[Mechanism] = load_class("dpnoise.mechanisms", _PLACES[name])
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
