"""What Gaussian noise would need: where a calibration begins, and how far it misses.

* Gaussian noise without a selection, however often released, has a closed form.
* One release under a selection has one, too (`conversion`). For several releases
  the loss distribution is evaluated, once for each target. Every grid, every accountant
  and the central mechanism are compared with the same answer.
* A reference sets where a search begins and ends, and the printed cost of having no
  trusted party. It never sets how much noise is added.

It holds no theorem.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from dpnoise.accounting.conversion import epsilon_behind
from dpnoise.accounting.gaussian import analytic_gaussian_stddev
from dpnoise.accounting.loss.composed_loss import DELTA_FLOOR
from dpnoise.accounting.loss.gaussian_pld import GaussianPLDAccountant
from dpnoise.accounting.root_search import least_root
from dpnoise.errors import TheoremNotApplicableError
from dpnoise.events import (
    Adversary,
    GaussianEvent,
    NoiseEvent,
    PrivacyEvent,
    Repeated,
    SecretlySelected,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
    flatten,
)

_ANY_VARIANCE: Final = Fraction(16)
_TOLERANCE: Final = 1e-5
_NEXT: Final = 1.01  # how much more noise shows how steeply δ falls
_NEGLIGIBLE: Final = 2.0**-40  # of the variance without a selection
_NO_NEED: Final = 1.0 - 1e-9  # of the rate, from where on no noise is needed
_KEPT: Final = 64  # a sweep over bits or scales asks for the same one each time


@dataclass(frozen=True, slots=True)
class GaussianReference:
    """A Gaussian's answer to one target.

    Args:
        epsilon: Target, nats.
        delta: Target.
        variance: The noise variance that reaches it.
        steepness: −d log δ/d log variance there; None where the closed form says more.
    """

    epsilon: float
    delta: float
    variance: Fraction
    steepness: float | None

    def shortfall(self, reached: float) -> float:
        """Return the logarithm of the factor that a variance misses.

        Args:
            reached: The δ at that variance, in (0, 1).
        """
        if self.steepness is not None:
            return math.log(reached / self.delta) / self.steepness
        wanted = analytic_gaussian_stddev(self.epsilon, self.delta, 1.0)
        found = analytic_gaussian_stddev(self.epsilon, reached, 1.0)
        return 2.0 * math.log(wanted / found)


def event_gaussian_reference(
    build_event: Callable[[Fraction], PrivacyEvent], epsilon: float, delta: float
) -> GaussianReference:
    """Measure a target as if every release were a Gaussian.

    Args:
        build_event: Maps a noise variance to everything that is released.
        epsilon: Target in nats, above 0.
        delta: Failure probability in (0, 1).

    Returns:
        The reference, in the unit of `build_event`.
    """
    try:
        releases = list(flatten(build_event(_ANY_VARIANCE)))
    except TheoremNotApplicableError:
        return GaussianReference(epsilon, delta, _ANY_VARIANCE, None)
    if len(releases) == 1 and releases[0][1] < 1.0:
        release, rate, count, _ = releases[0]
        per_unit, steepness = _selected(epsilon, delta, _twelve_digits(rate), count)
        needed = per_unit * _squared_norm(release)
    else:
        total = sum(
            count * rate**2 * _squared_norm(release)
            for release, rate, count, _ in releases
        )
        needed = analytic_gaussian_stddev(epsilon, delta, 1.0) ** 2 * total
        steepness = None
    if not 0.0 < needed < math.inf:
        return GaussianReference(epsilon, delta, _ANY_VARIANCE, None)
    return GaussianReference(epsilon, delta, Fraction(needed), steepness)


def gaussian_variance(
    epsilon: float, delta: float, *, rate: float = 1.0, count: int = 1
) -> float:
    """Return the variance that Gaussian releases of sensitivity 1 need.

    Args:
        epsilon: Target in nats, above 0.
        delta: Failure probability in (0, 1).
        rate: Probability that a release shows the user, in (0, 1].
        count: Number of releases, at least 1, each with a selection of its own.

    Returns:
        The variance of each release, σ²/D².

    Source:
        [BW18] Theorem 8 without a selection.
    """
    if rate >= 1.0:
        return count * analytic_gaussian_stddev(epsilon, delta, 1.0) ** 2
    return _selected(epsilon, delta, _twelve_digits(rate), count)[0]


def _twelve_digits(rate: float) -> float:
    """Make one question of rates that differ by how they were rounded to a float."""
    return float(f"{rate:.12g}")


def _squared_norm(release: NoiseEvent) -> float:
    if isinstance(release, SkellamMixtureEvent | SkellamMixtureClippedEvent):
        return release.largest_squared_norm
    return release.l2_sensitivity**2


@lru_cache(maxsize=_KEPT)
def _selected(
    epsilon: float, delta: float, rate: float, count: int
) -> tuple[float, float | None]:
    """Return variance and steepness of releases under a selection."""
    unsampled = count * analytic_gaussian_stddev(epsilon, delta, 1.0) ** 2
    # A selection never raises the noise that is needed, and needs none where its rate
    # is below δ. At the least δ that loss distributions resolve they may disagree.
    least = unsampled * _NEGLIGIBLE
    if count == 1:
        if delta >= rate * _NO_NEED:
            return least, None
        behind, left = epsilon_behind(epsilon, rate), delta / rate
        needed = max(least, analytic_gaussian_stddev(behind, left, 1.0) ** 2)
        more = GaussianEvent(1, _NEXT * needed, 1.0)
        return needed, _steepness(more, epsilon, delta, rate, count)
    if delta <= DELTA_FLOOR:
        return unsampled, None
    limit = _Limit(epsilon, rate, count)

    def shortfall(variance: Fraction) -> float:
        one = GaussianEvent(1, float(variance), 1.0)
        return limit.shortfall(_delta(one, epsilon, rate, count), delta)

    found = least_root(
        shortfall,
        low=Fraction(least),
        high=Fraction(unsampled),
        start=Fraction(limit.variance(delta)),
        tolerance=_TOLERANCE,
    )
    if found is None:
        return unsampled, None
    more = GaussianEvent(1, _NEXT * float(found), 1.0)
    return float(found), _steepness(more, epsilon, delta, rate, count)


def _steepness(
    more: GaussianEvent, epsilon: float, delta: float, rate: float, count: int
) -> float | None:
    fallen = math.log(delta / _delta(more, epsilon, rate, count))
    return fallen / math.log(_NEXT) if fallen > 0.0 else None


def _delta(one: GaussianEvent, epsilon: float, rate: float, count: int) -> float:
    """Return delta of a Gaussian under selection, composed."""
    account = GaussianPLDAccountant(adversary=Adversary.SERVER)
    return account.compose(
        Repeated(SecretlySelected(one, Fraction(rate)), count)
    ).delta(epsilon)


@dataclass(frozen=True, slots=True)
class _Limit:
    """Many releases under selections as one Gaussian, by the central limit theorem.

    Its shift is rate·√(count·(e^(1/v) − 1)).

    Source:
        [BDL20] section 3, recalled: a place to begin, no statement rests on it.
    """

    epsilon: float
    rate: float
    count: int

    def variance(self, delta: float) -> float:
        """Return the variance of a release at which the limit reaches a δ."""
        stddev = analytic_gaussian_stddev(self.epsilon, delta, 1.0)
        return 1.0 / math.log1p(1.0 / (self.count * (self.rate * stddev) ** 2))

    def shortfall(self, reached: float, delta: float) -> float:
        """Return the logarithm of the factor of variance between two δ."""
        return math.log(self.variance(delta) / self.variance(reached))
