"""Loss distributions of rounded coordinates with Skellam noise, over many releases.

The contour bound (`integral`) gives the whole curve of one release as the least
of K(c)·e^(−cε) over a few dozen contours, in both directions. A dominating pair is
connected through that curve, sampled and composed like any other.

* Moduli of moments are multiplied within one release only. Across releases the pair
  is composed, which holds for inputs that depend on earlier outputs.
* The curve for ε < 0 is that of the other direction: H(ε) = 1 − e^ε + e^ε·H'(−ε).
* Noise that is too small for the tables is a release of everything.
* A search asks for many curves and states none of them: its curves are bounded on a
  few contours and guessed between them (`guessed_curve`).

It has no theorem for replace-one adjacency.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar, Final, TypeAlias

import numpy as np

from dpnoise.accounting.contour.forecast import ContourCost
from dpnoise.accounting.contour.integral import (
    COARSE,
    ContourBound,
    Direction,
    steepest_contour,
)
from dpnoise.accounting.contour.mixture_contour import (
    ARITHMETIC_ASSUMPTION,
    contour_bound,
)
from dpnoise.accounting.loss.composed_loss import TRANSFORM_ASSUMPTION
from dpnoise.accounting.loss.dominating_pair import DominatingPair
from dpnoise.accounting.loss.gaussian_pld import ComposedLossAccountant
from dpnoise.accounting.statement import MIXTURE_ASSUMPTIONS, Proof, Status
from dpnoise.events import (
    Adjacency,
    NoiseEvent,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)
from dpnoise.floats import FloatArray

_CONTOUR_SPACING: Final = (
    0.5  # in deviations of the tilted loss; costs 3 % of δ at most
)
_FAR: Final = 6.0
_FAR_SPACING: Final = 2.0
_STEEPEST: Final = 9.0  # δ below 10^-18
_POINTS: Final = 3000
_LARGEST_LOSS: Final = 600.0
_LOG_NEXT_TO_NOTHING: Final = -38.0  # 10^-16.5; a Gaussian has less at nine deviations
_NEXT: Final = 1.25
_GUESSED_FROM: Final = 1.0  # grid steps²
_KNOTS: Final = 4  # contours from one that a guess bounds to the next
_LIKE: Final = 0.1  # what two knots may differ by, if nothing is bounded between them
_ONCE: Final = 1.5e8  # cells: composition, and all else that does not grow
_FIRST: Final = 1.19  # the best contour at epsilon 0, in main lobes of a Gaussian
_LEAST_FIRST: Final = 0.05
_BEYOND_ALL_LIMITS: Final = 1e12  # cells, where counting stops

_Curve: TypeAlias = Callable[[ContourBound, Direction], tuple[FloatArray, FloatArray]]


def contour_curve(
    bound: ContourBound, direction: Direction
) -> tuple[FloatArray, FloatArray]:
    """Bound log K on contours that serve every epsilon from 0 to the far tail.

    Args:
        bound: The release.
        direction: Which direction.

    Returns:
        Contours c > 0, increasing, and upper bounds on log K(c), both of shape (n,).
    """
    contours = _chosen_contours(bound, direction)
    constants = [bound.log_constant(c, direction) for c in contours]
    return np.array(contours), np.array(constants)


def guessed_curve(
    bound: ContourBound, direction: Direction
) -> tuple[FloatArray, FloatArray]:
    """Guess what `contour_curve` returns, at a third of its cost.

    The ratio of bounds to a saddle-point estimate changes slowly from one contour to
    the next. It is measured on some of them, and on all where it changes fast.

    Args:
        bound: The release.
        direction: Which direction.

    Returns:
        As `contour_curve`; some constants are estimates, not bounds. If noise is less
        than a grid step the ratio changes fast, windows are short, and all are bounds.
    """
    if bound.noise_variance < _GUESSED_FROM:
        return contour_curve(bound, direction)
    contours = _chosen_contours(bound, direction)
    constants = np.array([bound.guess_log_constant(c, direction) for c in contours])
    bounded: dict[int, float] = {}
    last = len(contours) - 1
    marks = [*range(0, last, _KNOTS), last]
    spans = list(itertools.pairwise(marks))
    with np.errstate(invalid="ignore"):  # where all is infinite, nothing is alike
        while spans:
            start, stop = spans.pop()
            for at in {start, stop} - bounded.keys():
                bounded[at] = bound.log_constant(contours[at], direction)
            excess = [bounded[at] - constants[at] for at in (start, stop)]
            between = np.arange(start + 1, stop)
            if abs(excess[1] - excess[0]) <= _LIKE:
                constants[between] += np.interp(between, (start, stop), excess)
            elif between.size:
                middle = (start + stop) // 2
                spans += [(start, middle), (middle, stop)]
    constants[list(bounded)] = list(bounded.values())
    return np.array(contours), constants


def _chosen_contours(bound: ContourBound, direction: Direction) -> list[float]:
    """Begin where no epsilon has a better contour nearer to zero."""
    estimated = first = bound.best_contour(direction, epsilon=0.0)
    # That estimate is too small near zero, where one release may show nearly all.
    here = bound.guess_log_constant(first, direction)
    while (beyond := bound.guess_log_constant(_NEXT * first, direction)) < here:
        first, here = _NEXT * first, beyond
    if first > estimated:
        gains = bound.log_constant(first, direction)
        if gains > bound.log_constant(estimated, direction):
            first = estimated
    return _contours_from(first, bound.lobe)


def _contours_from(first: float, lobe: float) -> list[float]:
    """Choose contours of which one is nearly the best for every epsilon.

    Args:
        first: The best one at epsilon 0.
        lobe: Width of the main lobe, as `ContourBound.lobe`.

    Returns:
        Real parts, increasing from the first one.
    """
    last = max(_STEEPEST * lobe, 2.0 * first)
    contours = [first]
    while contours[-1] < last:
        c = contours[-1]
        curvature = lobe**-2 + c**-2 + (c + 1.0) ** -2
        # Where δ is below 10^-8, a relative error of a tenth has no consequence.
        factor = _FAR_SPACING if c > _FAR * lobe else 1.0
        contours.append(c + factor * _CONTOUR_SPACING / math.sqrt(curvature))
    return contours


def mixture_pair(bound: ContourBound, curve: _Curve = contour_curve) -> DominatingPair:
    """Build a pair that dominates one release, in both directions.

    Args:
        bound: The release.
        curve: What bounds a direction; `guessed_curve` for a pair that nearly does.

    Returns:
        The pair.

    Raises:
        CertificateError: No bound was found on any contour.
    """
    curves = [curve(bound, direction) for direction in Direction]
    last = min(_farthest_loss(bound, curves), _LARGEST_LOSS)
    epsilons = np.linspace(0.0, last, _POINTS)
    values = []
    for contours, constants in curves:
        exponents = constants[:, None] - contours[:, None] * epsilons[None, :]
        values.append(np.exp(np.minimum(0.0, exponents.min(axis=0))))
    return DominatingPair.from_curves(epsilons, values[0], values[1])


def _farthest_loss(
    bound: ContourBound, curves: list[tuple[FloatArray, FloatArray]]
) -> float:
    """Return a loss whose tail is negligible; the tail itself counts as lost.

    A Gaussian's, or farther where the tail of one coordinate's noise is longer.
    """
    shift = 1.0 / bound.lobe
    last = 0.5 * shift * shift + _STEEPEST * shift
    farthest = [
        np.min((constants - _LOG_NEXT_TO_NOTHING) / contours)
        for contours, constants in curves
    ]
    return max(last, *(float(each) for each in farthest if np.isfinite(each)))


@lru_cache(maxsize=32)
def _pair_of(release: NoiseEvent, *, guesses: bool) -> DominatingPair | None:
    """Return the pair that dominates a release; None without a bound."""
    bound = contour_bound(release, whole_curve=True)
    if bound is None or bound.is_constant:
        return None
    return mixture_pair(bound, guessed_curve if guesses else contour_curve)


class MixturePLDAccountant(ComposedLossAccountant):
    """Composes Skellam mixtures and integer Skellam releases, sampled or not.

    Source:
        This project for the curve of one release; [ZDW22] Theorems 10 and 11 for
        composition and sampling, with the arguments in `dominating_pair`.
    """

    name = "mixture-pld"
    adjacencies = frozenset({Adjacency.ZERO_OUT})
    status_of_theorem = Status.CERTIFIED
    proof_of_theorem: ClassVar[Proof] = Proof.OWN
    # A curve takes up to half a second; its last digits need not even fall steadily.
    tolerance: ClassVar[float] = 4.5e-4
    estimates_from: ClassVar[float] = _GUESSED_FROM
    _relative_variance = 5e-5

    @classmethod
    def cost(
        cls,
        release: NoiseEvent,
        *,
        times: int,  # noqa: ARG003 - one table serves all
        delta: float,  # noqa: ARG003 - one table serves all
        rate: float,  # noqa: ARG003 - one table serves all
    ) -> float:
        """Count the contours of a whole curve, up to far beyond all limits."""
        counted = ContourCost.of(release)
        if not counted:
            return 0.0
        lobe = counted.lobe
        first = min(max(_FIRST * lobe, _LEAST_FIRST), steepest_contour(lobe))
        total = _ONCE
        for c in _contours_from(first, lobe):
            total += counted.contour(c, COARSE)
            if total > _BEYOND_ALL_LIMITS:
                break
        return total

    def _pair_of(self, release: NoiseEvent) -> DominatingPair | None:
        """Return the dominating pair of a release; None where none is needed."""
        if not isinstance(
            release, SkellamMixtureEvent | SkellamMixtureClippedEvent | SkellamEvent
        ):
            raise self._refuse(release)
        # The samplers' distance is charged elsewhere and changes no pair.
        return _pair_of(
            replace(release, sampler_distance=0.0), guesses=self._estimating
        )

    def _assumptions(self) -> tuple[str, ...]:
        return (*MIXTURE_ASSUMPTIONS, ARITHMETIC_ASSUMPTION, TRANSFORM_ASSUMPTION)
