"""The contour accountant: one release of rounded coordinates with Skellam noise.

Stochastic rounding makes every coordinate a mixture of two shifted Skellam laws. The
exact moments of that mixture, off the real axis, give (ε, δ) almost as tightly as the
analytic formula does for a Gaussian (`integral`).

* One release only. The phase of an adaptive second release may depend on the first
  one, so moduli must not be multiplied across releases; `mixture-pld` composes.
* All slack terms are part of the figure. They come from cells along both axes, the
  contour beyond the table, integers outside the window, and rounding of the arithmetic.
* The noise variance is rounded down to a float, every bound on a vector up.
* A secret selection of that one release has a closed form (`conversion`).

It has no theorem for replace-one adjacency: the analysis compares a rounded vector with
no vector at all.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, Final

from dpnoise.accounting.accountant import Accountant
from dpnoise.accounting.contour.forecast import ContourCost
from dpnoise.accounting.contour.integral import (
    COARSE,
    FINE,
    ContourBound,
    ContourResolution,
    laplace_log_constant,
    least_contour,
)
from dpnoise.accounting.contour.moment_table import CoordinateNorm
from dpnoise.accounting.conversion import epsilon_before, epsilon_behind
from dpnoise.accounting.statement import MIXTURE_ASSUMPTIONS, Proof, Status
from dpnoise.errors import TheoremNotApplicableError
from dpnoise.events import (
    Adjacency,
    NoiseEvent,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)
from dpnoise.floats import float_below

_SEARCH: Final = 1e7  # cells: the search for contours
_CONTOURS: Final = 2.0  # if those for epsilon and for delta do not agree
_LARGEST_DELTA: Final = 0.5  # that a contour is looked for; beyond, none is cheaper

ARITHMETIC_ASSUMPTION = (
    "Floating point follows IEEE 754, and numpy's exp, expm1, log, log1p, sin and cos "
    "err by at most 4 units in the last place."
)


@lru_cache(maxsize=8)  # a calibration ends with what is then stated
def contour_bound(release: NoiseEvent, *, whole_curve: bool) -> ContourBound | None:
    """Build the contour bound of a release.

    Args:
        release: One release.
        whole_curve: Whether many epsilons will be asked for; the cells are then wider
            and the figures a little looser.

    Returns:
        The bound, or None if the analysis does not cover this kind of release.

    Raises:
        TheoremNotApplicableError: The noise variance is below the range of the tables.
    """
    resolution: ContourResolution = COARSE if whole_curve else FINE
    if isinstance(release, SkellamMixtureEvent):
        return ContourBound(
            noise_variance=float_below(release.aggregate_noise_variance),
            norm=CoordinateNorm.SQUARE,
            norm_bound=release.l2_clip_squared_steps,
            largest_coordinate=release.linf_bound,
            dim=release.dim,
            resolution=resolution,
        )
    if isinstance(release, SkellamMixtureClippedEvent):
        return ContourBound(
            noise_variance=float_below(release.aggregate_noise_variance),
            norm=CoordinateNorm.MIXTURE,
            norm_bound=release.mixture_norm_bound,
            largest_coordinate=float(release.linf_bound),
            dim=release.dim,
            resolution=resolution,
        )
    if isinstance(release, SkellamEvent):
        largest = math.floor(release.l2_sensitivity)
        if release.linf_sensitivity is not None:
            largest = min(largest, release.linf_sensitivity)
        return ContourBound(
            noise_variance=float_below(release.aggregate_noise_variance),
            norm=CoordinateNorm.INTEGER,
            norm_bound=math.nextafter(release.l2_sensitivity**2, math.inf),
            largest_coordinate=float(largest),
            dim=release.dim,
            resolution=resolution,
        )
    return None


class MixtureContourAccountant(Accountant):
    """Bounds the loss of one release by an integral over its exact moments.

    It covers three kinds of vectors, all with Skellam noise: rounded stochastically
    under an L2 bound, under the clip of [Bao22] Algorithm 5, and integer vectors.

    Source:
        This project; elementary proof in `integral` and `moment_table`. The
        publications of the mixture bound its Rényi divergence instead ([Bao22]
        Theorem 5).
    """

    name = "mixture-contour"
    adjacencies = frozenset({Adjacency.ZERO_OUT})
    status_of_theorem = Status.CERTIFIED
    proof_of_theorem: ClassVar[Proof] = Proof.OWN
    tolerance: ClassVar[float] = 5e-5  # an answer takes up to half a second
    has_close_estimate: ClassVar[bool] = True  # one direction mostly decides

    _bound: ContourBound | None = None
    _rate: float = 1.0

    @classmethod
    def cost(
        cls,
        release: NoiseEvent,
        *,
        times: int,  # noqa: ARG003 - it refuses a second release
        delta: float,
        rate: float,
    ) -> float:
        """Count the two contours that one epsilon takes."""
        counted = ContourCost.of(release)
        if not counted:
            return 0.0
        lobe = counted.lobe
        log_delta = math.log(min(delta / rate, _LARGEST_DELTA))

        def epsilon(c: float) -> float:  # a Gaussian's
            growth = 0.5 * c * (c + 1.0) / lobe**2
            return (laplace_log_constant(c, growth, lobe) - log_delta) / c

        c = least_contour(epsilon, lobe)
        return _SEARCH + counted.lattice(c) + _CONTOURS * counted.contour(c, FINE)

    def _add(self, release: NoiseEvent, sampling_rate: float, count: int) -> None:
        # The samplers' distance is charged elsewhere and changes no bound.
        bound = contour_bound(replace(release, sampler_distance=0.0), whole_curve=False)
        if bound is None:
            raise self._refuse(release)
        if bound.is_constant:
            return
        if self._bound is not None or count > 1:
            raise TheoremNotApplicableError(
                f"{self.name} covers a single release",
                theorem="contour bound of one product law",
                parameter="count",
                value=count if self._bound is None else count + 1,
                nearest="1",
            )
        self._bound, self._rate = bound, sampling_rate

    def _delta_of_exact_noise(self, epsilon: float) -> float:
        if self._bound is None:
            return 0.0
        likely = self._bound.likely_delta if self._estimating else self._bound.delta
        found = likely(epsilon_behind(epsilon, self._rate))
        return found if self._rate == 1.0 else math.nextafter(self._rate * found, 1.0)

    def _epsilon_of_exact_noise(self, delta: float) -> float:
        # An unselected release hides everything: a delta of the rate covers all losses.
        if self._bound is None or delta >= self._rate:
            return 0.0
        found = self._bound.epsilon(delta / self._rate)
        return epsilon_before(found, self._rate)

    def _assumptions(self) -> tuple[str, ...]:
        return (*MIXTURE_ASSUMPTIONS, ARITHMETIC_ASSUMPTION)

    def _details(self) -> Mapping[str, str]:
        if self._bound is None:
            return MappingProxyType({})
        return MappingProxyType(self._bound.details())
