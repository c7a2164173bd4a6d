"""Which accountants are asked when nobody names one, and which of them answers.

* Every valid bound is an upper bound on the same loss, so the least of them holds.
* Only proven or certified accountants are asked, and only those whose theorem covers
  every part of an event: a numerical, recalled or hypothetical figure has to be named.
* They are ordered by what they cost, so that ties and early stops favour the cheap.
* The choice is made once, where a task is planned. What is written down names one
  accountant, which is the only one that a client evaluates.

It holds no theorem.
"""

import math
from collections.abc import Sequence
from typing import Final

from dpnoise.accounting.registry import accountant_class, make_accountant
from dpnoise.accounting.statement import Status
from dpnoise.errors import TheoremNotApplicableError, UnknownEventError
from dpnoise.events import (
    Adjacency,
    Adversary,
    BinomialEvent,
    DiscreteGaussianEvent,
    DistributedDiscreteGaussianEvent,
    GaussianEvent,
    NoiseEvent,
    PrivacyEvent,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
    flatten,
)

_TRUSTED: Final = frozenset({Status.PROVEN, Status.CERTIFIED})
_FEW_SHIFTS: Final = 128.0
"""Above this sum of squared norms a Gaussian loses less than a tenth of a percent."""

_Kinds = frozenset[type[NoiseEvent]]
_GAUSSIANS: Final[_Kinds] = frozenset({GaussianEvent, DiscreteGaussianEvent})
_MIXTURES: Final[_Kinds] = frozenset({SkellamMixtureEvent, SkellamMixtureClippedEvent})
# The kinds of release in an event, and the accountants that cover them, cheapest
# first. The first row that holds all kinds of an event decides.
_COVERED: Final[tuple[tuple[_Kinds, tuple[str, ...]], ...]] = (
    (frozenset({GaussianEvent}), ("skellam-gdp", "zcdp", "gaussian-pld")),
    (frozenset({DiscreteGaussianEvent}), ("skellam-gdp", "zcdp", "lattice-pld")),
    (_GAUSSIANS, ("skellam-gdp", "zcdp")),
    (
        frozenset({SkellamEvent, DiscreteGaussianEvent}),
        ("skellam-gdp", "lattice-pld", "skellam-rdp"),
    ),
    (frozenset({SkellamEvent, *_GAUSSIANS}), ("skellam-gdp", "skellam-rdp")),
    (
        frozenset({SkellamMixtureEvent}),
        ("mixture-gdp", "mixture-contour", "mixture-pld", "mixture-rdp"),
    ),
    (
        frozenset({SkellamMixtureClippedEvent}),
        ("mixture-gdp", "smm-paper", "mixture-contour", "mixture-pld", "mixture-rdp"),
    ),
    (
        frozenset({SkellamEvent, *_MIXTURES}),
        ("mixture-gdp", "mixture-pld", "mixture-rdp"),
    ),
    (
        frozenset({SkellamEvent, *_MIXTURES, *_GAUSSIANS}),
        ("mixture-gdp", "mixture-rdp"),
    ),
    (
        frozenset({DistributedDiscreteGaussianEvent, *_GAUSSIANS}),
        ("log-concave-gdp", "ddgauss-paper"),
    ),
    (frozenset({BinomialEvent}), ("log-concave-gdp", "lattice-pld")),
    (frozenset({BinomialEvent, *_GAUSSIANS}), ("log-concave-gdp",)),
)


def default_accountants(
    event: PrivacyEvent, *, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> tuple[str, ...]:
    """Name the proven or certified accountants that cover an event, cheapest first.

    Args:
        event: What is to be released.
        adjacency: Which two worlds must look alike.

    Returns:
        Names of accountants that have a theorem for every part of the event. For some
        parameters a theorem may still refuse, or state an infinite loss.

    Raises:
        UnknownEventError: No single one covers every part. Name an accountant yourself.
    """
    parts = list(flatten(event))
    kinds = {type(release) for release, *_ in parts}
    one_release = len(parts) == 1 and parts[0][2] == 1
    names = next((names for covered, names in _COVERED if kinds <= covered), ())
    passed_over = {"mixture-pld"} if one_release else {"mixture-contour"}
    if _squared_shifts(event) > _FEW_SHIFTS:
        passed_over.add("lattice-pld")
    found = tuple(
        name
        for name in names
        if name not in passed_over
        and accountant_class(name).status_of_theorem in _TRUSTED
        and adjacency in accountant_class(name).adjacencies
    )
    if found:
        return found
    raise UnknownEventError(
        "no proven or certified accountant covers "
        + " with ".join(sorted(kind.__name__ for kind in kinds))
        + f" under {adjacency.value} adjacency; name an accountant, or choose another "
        "mechanism or adjacency"
    )


def default_accountant(
    event: PrivacyEvent,
    *,
    delta: float,
    adversary: Adversary,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
) -> str:
    """Name the accountant that states the least epsilon for an event.

    Args:
        event: What is to be released.
        delta: Failure probability in (0, 1).
        adversary: Whom the statement must hold against.
        adjacency: Which two worlds must look alike.

    Returns:
        One of `default_accountants(event)`; of several equal ones the cheapest.

    Raises:
        ParameterError: Delta is not in (0, 1).
        UnknownEventError: No proven or certified accountant covers every part.
    """
    names: Sequence[str] = default_accountants(event, adjacency=adjacency)
    best, least = names[0], math.inf
    for name in names:
        account = make_accountant(name, adversary=adversary, adjacency=adjacency)
        try:
            stated = account.compose(event).epsilon(delta)
        except TheoremNotApplicableError:
            continue
        if stated < least:
            best, least = name, stated
    return best


def _squared_shifts(event: PrivacyEvent) -> float:
    """Sum the squared norms of all releases of integer vectors."""
    total = 0.0
    for release, _, count, _ in flatten(event):
        if isinstance(release, SkellamEvent | DiscreteGaussianEvent | BinomialEvent):
            total += count * release.l2_sensitivity**2
    return total
