"""The choice of the scale: the least total error that the bits allow.

* Candidates are compared by their whole forecast error: noise, rounding, clipping and
  wrapping, with the shares of all clients.
* Between calibrations the required noise is modelled as a multiple of the central
  Gaussian's at the encoded sensitivity, plus a constant. The cost of rounding hardly
  depends on the grid. Two calibrations fix both numbers. The model guides the search;
  it never determines how much noise is added.
* Of all scales within half a percent of the best of any modulus, the smallest is
  taken: finer grids cost bits, larger tables and slower accounting, and gain nothing.
* Only scales at which the sum wraps rarely are candidates, even if a sum that always
  wraps has a small squared error.
* More bits never forecast a larger error: they admit more scales and remove wrapping.

It calls no accountant.
"""

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Final, Self

import numpy as np

from dpnoise.accounting.gaussian import analytic_gaussian_stddev
from dpnoise.encoding.rotation import encoded_dim, flatness
from dpnoise.encoding.scaling import conditional_squared_bound, natural_coordinate_cap
from dpnoise.floats import FloatArray
from dpnoise.mechanisms.error_forecast import ErrorForecast, Rounding, forecast_error
from dpnoise.mechanisms.smm import largest_linf_bound, smallest_noise_variance
from dpnoise.planning import tuning
from dpnoise.planning.request import PlanRequest
from dpnoise.searches import halve

_GOLDEN: Final = (math.sqrt(5.0) - 1.0) / 2.0
# Small ε is reached at orders near 2·log(1/δ)/ε; a coarse grid is enough for a model.
_ORDERS: Final = tuple(
    sorted({*range(2, 40), *(math.floor(40 * 1.1**power) for power in range(90))})
)


@dataclass(frozen=True, slots=True)
class NoiseFit:
    """The two numbers of the model.

    Args:
        factor: Multiple of the central Gaussian's variance.
        extra: Variance that rounding costs at any scale, grid steps².
    """

    factor: float
    extra: float


@dataclass(frozen=True, slots=True, eq=False)  # hashed by identity
class NoiseModel:
    """How much noise a scale is expected to need.

    Args:
        request: What is planned.
        gaussian_variance: Variance the central Gaussian needs per squared
            sensitivity.
        counted_shares: The fewest noise shares that privacy counts.
        expected_surplus: Variance that a full session keeps, over what counts.
        most_surplus: The largest variance that any session can keep, over that.
        least_variance: The least variance that is counted, for any budget, grid steps².
        fit: The model's two numbers.
        known: Calibrated variance by scale. Finer grids never need less, whatever the
            fit says, unless a bound on coordinates follows from the noise.
        capped_at: Where the published mixture theorem ties the bound on coordinates to
            the noise: the bound that noise is raised for, as a part of the clip.
    """

    request: PlanRequest
    gaussian_variance: float
    counted_shares: int
    expected_surplus: float
    most_surplus: float
    least_variance: float
    fit: NoiseFit
    known: tuple[tuple[float, float], ...] = ()
    capped_at: float = 0.0
    # Searches for several moduli look at the same scales.
    _points: dict[float, tuple[float, float]] = field(default_factory=dict, init=False)

    @classmethod
    def of(
        cls,
        request: PlanRequest,
        gaussian_variance: float,
        *,
        fit: NoiseFit | None = None,
    ) -> Self:
        """Build the model of a request.

        Args:
            request: What is planned.
            gaussian_variance: Variance the central Gaussian needs per squared
                sensitivity.
            fit: From calibrations, or an estimate before the first one.
        """
        # Integer noise costs one step of rounding in 12 places, in proof and in fact.
        # If a coordinate is rounded at random, about one step² is common.
        kind = request.mechanism_class
        guess = 1.0 / 3.0 if kind.rounding is Rounding.CONDITIONAL else 1.0
        made = cls(
            request=request,
            gaussian_variance=gaussian_variance,
            counted_shares=request.counted_shares,
            expected_surplus=request.expected_surplus,
            most_surplus=request.surplus_factor,
            least_variance=float(request.least_counted_variance),
            fit=fit or NoiseFit(1.0, 0.0 if request.is_central else guess),
        )
        if request.is_published_mixture and request.linf_bound is None:
            return replace(made, capped_at=_best_cap(made))
        return made

    def through(self, calibrated: Mapping[float, float]) -> Self:
        """Return the model that passes through calibrated points.

        Args:
            calibrated: Required variance by scale. One point scales the estimate; the
                two nearest to the largest scale fix both numbers. Points at the least
                possible noise are not informative.
        """
        known = tuple((dict(self.known) | dict(calibrated)).items())
        return replace(self, fit=self._fitted(calibrated), known=known)

    def _fitted(self, calibrated: Mapping[float, float]) -> NoiseFit:
        """Fit the needed noise by a line through the last calibrated scales."""
        scales = [
            scale
            for scale in sorted(calibrated)
            if calibrated[scale] > self.least_variance
        ][-2:]
        if not scales:
            return self.fit
        needs = [self.gaussian_need(scale) for scale in scales]
        wanted = [calibrated[scale] for scale in scales]
        # On the coarsest grids rounding alone counts, and both need the same noise.
        if needs[-1] > needs[0]:
            factor = (wanted[1] - wanted[0]) / (needs[1] - needs[0])
            if factor <= 0.0:
                # The finer one does not need more yet; the limit is a Gaussian.
                factor = min(1.0, wanted[0] / needs[0])
            extra = wanted[0] - factor * needs[0]
            if extra >= 0.0:
                return NoiseFit(factor, extra)
        ratio = wanted[0] / (self.fit.factor * needs[0] + self.fit.extra)
        return NoiseFit(ratio * self.fit.factor, ratio * self.fit.extra)

    @property
    def length(self) -> int:
        """Coordinates of a rotated vector; those of a clip flag are negligible."""
        return encoded_dim(self.request.rotation, self.request.dimension)

    @property
    def flatness(self) -> float | None:
        """The rotation's ρ, or None without a rotation."""
        rotation = self.request.rotation
        return (
            None if rotation == "none" else flatness(rotation, self.request.dimension)
        )

    def counted_variance(self, scale_factor: float) -> float:
        """Return the variance that must be counted, grid steps²."""
        wanted = self.fit.factor * self.gaussian_need(scale_factor) + self.fit.extra
        if self.request.is_published_mixture:
            cap = self.least_cap(scale_factor)
            wanted = max(wanted, self._published_point(scale_factor, cap)[1])
            return max(wanted, self.least_variance)
        coarser = (need for scale, need in self.known if scale <= scale_factor)
        return max(wanted, self.least_variance, *coarser)

    def at(self, scale_factor: float) -> tuple[float, float]:
        """Return `counted_variance` and `coordinate_cap` as a float, computed once."""
        if scale_factor not in self._points:
            cap = float(self.coordinate_cap(scale_factor))
            self._points[scale_factor] = self.counted_variance(scale_factor), cap
        return self._points[scale_factor]

    def gaussian_need(self, scale_factor: float) -> float:
        """Return the variance of the central Gaussian for the encoded sensitivity."""
        request = self.request
        norm = scale_factor * math.hypot(request.l2_clip, request.clip_flag_amplitude)
        squared = norm * norm
        if request.mechanism_class.rounding is Rounding.CONDITIONAL:
            squared = float(
                conditional_squared_bound(norm, self.length, request.rounding_bias)
            )
        return self.gaussian_variance * squared

    def natural_cap(self, scale_factor: float) -> Fraction:
        """Return a coordinate bound that practically never acts, grid steps."""
        norm = scale_factor * self.request.l2_clip
        return natural_coordinate_cap(norm, dim=self.length, flatness=self.flatness)

    def coordinate_cap(self, scale_factor: float) -> Fraction:
        """Return the bound on coordinates that the scale will get, grid steps."""
        request, natural = self.request, self.natural_cap(scale_factor)
        if request.linf_bound is not None:
            return Fraction(request.linf_bound)
        if not request.is_published_mixture:
            return natural
        least = self.least_cap(scale_factor)
        order, _ = self._published_point(scale_factor, least)
        counted = Fraction(self.counted_variance(scale_factor))
        admitted = max(least, largest_linf_bound(order, counted))
        return Fraction(min(math.ceil(natural), admitted))

    def least_cap(self, scale_factor: float) -> int:
        """Return the bound on coordinates that noise is raised for, grid steps.

        The published theorem admits a bound in proportion to the noise's deviation, on
        every grid. On short vectors the bound that needs no further noise is a part of
        the clip itself. It then cuts off far more of many clients' vectors than noise
        adds.
        """
        if self.request.linf_bound is not None:
            return math.ceil(self.request.linf_bound)
        wanted = round(self.capped_at * scale_factor * self.request.l2_clip)
        return max(1, min(wanted, math.ceil(self.natural_cap(scale_factor))))

    def published_excess(self, scale_factor: float) -> float:
        """Return the factor by which the theorem raises the noise of fine grids here.

        It is 1 if the theorem covers the orders that the budget needs. It is larger if
        Eq. (3) of [Bao22] excludes them on a grid whose step is too large a part of the
        clip.
        """
        fine = tuning.FINE_STEPS / float(self.request.l2_clip)
        _, least = self._published_point(fine, self.least_cap(fine))
        needed = self._published_point(scale_factor, 1)[1]
        return needed / least * (fine / scale_factor) ** 2

    def _published_point(self, scale_factor: float, cap: int) -> tuple[int, float]:
        """Return order and variance of [Bao22] Corollary 1.

        Args:
            scale_factor: Grid steps per unit.
            cap: The Δ∞ for which Eq. (3) must hold. For 0 the equation is skipped, and
                no theorem covers the figure.
        """
        request = self.request
        squared = (scale_factor * request.l2_clip) ** 2
        # Steps and sampling act as they do on the Gaussian; a model needs no more.
        one = _single_release_variance(float(request.epsilon), float(request.delta))
        weight = squared * self.gaussian_variance / one
        orders = _published_orders(float(request.epsilon), float(request.delta))
        needed = np.maximum(orders.slopes * weight / orders.allowed, orders.least(cap))
        if not needed.size:
            return 2, float(smallest_noise_variance(2, max(1, cap)))
        best = int(np.argmin(needed))
        return int(orders.orders[best]), float(needed[best])

    def fits_sampler(self, scale_factor: float) -> bool:
        """Whether the sampler tables hold one share's variance."""
        share = self.counted_variance(scale_factor) / self.counted_shares
        # Half of what the sampler holds: the calibrated noise may be above the model's.
        return share <= tuning.HELD * float(
            self.request.mechanism_class.largest_variance
        )


@dataclass(frozen=True, slots=True)
class Scale:
    """A scale factor with its forecast."""

    scale_factor: float
    bits: int
    forecast: ErrorForecast


@dataclass(frozen=True, slots=True)
class _PublishedOrders:
    """The orders at which [Bao22] Corollary 1 can reach a budget, each of shape (n,).

    Attributes:
        orders: The orders, rising.
        allowed: The part of epsilon that remains for the divergence, nats.
        slopes: Divergence per squared clip over variance.
        by_square: Least variance over Δ∞² that Eq. (3) admits, by its second part.
    """

    orders: FloatArray
    allowed: FloatArray
    slopes: FloatArray
    by_square: FloatArray

    def least(self, cap: int) -> FloatArray:
        """Return the least variance that Eq. (3) admits at Δ∞ = `cap`."""
        return np.maximum((self.orders - 1.0) * cap, self.by_square * cap * cap)


@lru_cache(maxsize=64)
def _published_orders(epsilon: float, delta: float) -> _PublishedOrders:
    """Return the orders of the published formula that leave room for noise."""
    orders = np.array(_ORDERS, dtype=np.float64)
    conversion = math.log(1.0 / delta) - np.log(orders)
    conversion += (orders - 1) * np.log1p(-1.0 / orders)
    allowed = epsilon - conversion / (orders - 1)
    kept = allowed > 0.0
    return _PublishedOrders(
        orders=orders[kept],
        allowed=allowed[kept],
        slopes=0.5 * (1.2 * orders[kept] + 1.0),
        by_square=(10.9 * orders[kept] ** 2 - 1.8 * orders[kept] - 9.1) / 2.0,
    )


@lru_cache(maxsize=64)
def _single_release_variance(epsilon: float, delta: float) -> float:
    return analytic_gaussian_stddev(epsilon, delta, 1.0) ** 2


def _best_cap(model: NoiseModel) -> float:
    """Return the bound on coordinates with the least error, as a part of the clip.

    The grid is so fine that rounding does not count; on coarser ones error and noise
    keep their proportion.
    """
    fine = tuning.FINE_STEPS / float(model.request.l2_clip)
    # From the narrowest on, so that of equals the one that raises no noise is chosen.
    parts = [
        math.exp2(-power / tuning.CAPS_PER_OCTAVE)
        for power in reversed(range(tuning.CAPS))
    ]

    def error(part: float) -> float:
        there = replace(model, capped_at=part)
        return forecast_at(there, fine, tuning.UNBOUNDED_BITS).planning_mse

    return min(parts, key=error)


@lru_cache(maxsize=4096)  # several searches for one modulus look at the same scales
def forecast_at(model: NoiseModel, scale_factor: float, bits: int) -> ErrorForecast:
    """Forecast the error at a scale, with modelled noise.

    Args:
        model: How much noise the scale needs.
        scale_factor: Grid steps per unit.
        bits: Bits of the modulus.

    Returns:
        The forecast for a sum in which every client arrives.
    """
    request = model.request
    kind = request.mechanism_class
    norm = scale_factor * request.l2_clip
    counted, cap = model.at(scale_factor)
    planned = request.planned_sum_norm
    sum_norm = request.clients * request.l2_clip if planned is None else planned
    length = model.length
    made = forecast_error(
        encoded_dim=length,
        l2_clip_steps=norm,
        scale_factor=scale_factor,
        modulus=1 << bits,
        num_clients=request.clients,
        noise_variance=counted * model.expected_surplus,
        most_noise_variance=counted * model.most_surplus,
        sum_norm_steps=scale_factor * sum_norm,
        flatness=model.flatness,
        rounding=kind.rounding,
        coordinate_cap=cap,
        mixture_norm_bound=kind.mixture_norm_bound(norm * norm),
    )
    return request.with_longer_sums(made, length)


def best_scale(model: NoiseModel, bits: int) -> Scale | None:
    """Find the smallest scale with (nearly) the least forecast error.

    Args:
        model: How much noise each scale needs.
        bits: Bits of the modulus.

    Returns:
        The scale and its forecast, or None if the sum wraps too often at any scale.
    """
    free = _minimise(model, tuning.UNBOUNDED_BITS)
    found = _minimise(model, bits)
    if found is None or free is None:
        return None
    target = max(
        found.forecast.planning_mse, tuning.INDIFFERENCE * free.forecast.planning_mse
    )
    # Left of its minimum the error falls: rounding and the constant part of the noise
    # decrease.
    _, high = halve(
        lambda exponent: forecast_at(model, 2.0**exponent, bits).planning_mse <= target,
        math.log2(smallest_scale(model)),
        math.log2(found.scale_factor),
        steps=tuning.REFINEMENTS,
    )
    chosen = 2.0**high
    return Scale(chosen, bits, forecast_at(model, chosen, bits))


def accepted_error(model: NoiseModel, best: ErrorForecast) -> float:
    """Return the error down to which bits are saved, caller's units².

    Args:
        model: How much noise each scale needs.
        best: The least error of any modulus.

    Returns:
        1.05 times the central Gaussian's with the noise that shares leave over, or 1.02
        times the mechanism's own best where that is more. Where all entries of a vector
        are rounded together, 1.01 and 1.006 times.
    """
    request = model.request
    over_gaussian, over_best = tuning.OVER_GAUSSIAN, tuning.OVER_BEST
    if request.mechanism_class.rounding is Rounding.CONDITIONAL:
        over_gaussian = tuning.TOGETHER_OVER_GAUSSIAN
        over_best = tuning.TOGETHER_OVER_BEST
    central = model.gaussian_variance * request.l2_clip**2
    return max(
        over_gaussian * model.expected_surplus * central, over_best * best.planning_mse
    )


def least_forecast(model: NoiseModel) -> ErrorForecast | None:
    """Return the least error of any scale and any modulus; None where none works.

    Args:
        model: How much noise each scale needs.
    """
    found = _minimise(model, tuning.UNBOUNDED_BITS)
    return None if found is None else found.forecast


def least_grid(
    models: Mapping[float, NoiseModel], scale_factor: float, bits: int
) -> tuple[float, int]:
    """Return a grid with an accepted error and the fewest bits, or the given one.

    Args:
        models: The model of each grid, by scale.
        scale_factor: Of the grid that was chosen, one of those scales.
        bits: Chosen for it.

    Returns:
        Scale and bits. The given ones are returned if their error is accepted beside
        the least of all the grids. Otherwise it is the accepted grid with the fewest
        bits, or with the given bits if the request states them.
    """
    request = models[scale_factor].request
    widest = tuning.UNBOUNDED_BITS if request.bits is None else request.bits

    def error(scale: float, width: int) -> float:
        there = forecast_at(models[scale], scale, width)
        held = there.wrap_probability <= request.max_wrap_probability
        return there.planning_mse if held else math.inf

    def least(width: int) -> float:
        return min(models, key=lambda scale: error(scale, width))

    best = least(widest)
    limit = accepted_error(models[best], forecast_at(models[best], best, widest))
    if error(scale_factor, bits) <= tuning.INDIFFERENCE * limit:
        return scale_factor, bits
    for width in range(1 if request.bits is None else widest, widest + 1):
        if error(least(width), width) <= limit:
            return least(width), width
    return scale_factor, bits


def smallest_bits(model: NoiseModel, *, holds_the_sum: bool = False) -> int:
    """Find the smallest modulus whose error is accepted.

    Args:
        model: How much noise each scale needs.
        holds_the_sum: Accept any error, as long as the modulus holds the sum.

    Returns:
        Bits in 1 … 62.
    """
    free = least_forecast(model)
    if free is None:
        return tuning.UNBOUNDED_BITS
    limit = math.inf if holds_the_sum else accepted_error(model, free)

    def suffices(bits: int) -> bool:
        found = _minimise(model, bits, limit)
        return found is not None and found.forecast.planning_mse <= limit

    # One more bit wraps less at every scale, so the sufficient bits are an interval.
    return bisect.bisect_left(range(tuning.UNBOUNDED_BITS), 1, lo=1, key=suffices)


def smallest_scale(model: NoiseModel) -> float:
    """Return the smallest scale worth considering.

    Args:
        model: How much noise each scale needs.

    Returns:
        Grid steps per unit.
    """
    request = model.request
    steps = tuning.LOWEST_STEPS
    if request.mechanism_class.rounding is Rounding.TOWARD_ZERO:
        # Truncation removes half a step from every coordinate. If that is most of it,
        # the estimate of zero may have a small error and is useless.
        steps = tuning.STEPS_TO_TRUNCATE * math.sqrt(model.length)
    if request.mechanism_class.rounding is Rounding.CONDITIONAL:
        # Below, only the zero vector is within the bound, so the estimate is useless.
        while not conditional_squared_bound(steps, model.length, request.rounding_bias):
            steps *= 2.0
    return min(steps / request.l2_clip, request.scaled_bound)


def _minimise(model: NoiseModel, bits: int, enough: float = 0.0) -> Scale | None:
    """Minimise the forecast over the candidates: a grid, then a golden section.

    Args:
        model: How much noise each scale needs.
        bits: Bits of the modulus.
        enough: An error at most this is not improved, caller's units².
    """
    limit = tuning.MARGIN * model.request.max_wrap_probability
    first = math.log2(smallest_scale(model))
    last = math.log2(model.request.scaled_bound)

    def is_candidate(exponent: float) -> bool:
        return (
            model.fits_sampler(2.0**exponent)
            and forecast_at(model, 2.0**exponent, bits).wrap_probability <= limit
        )

    def error(exponent: float) -> float:
        return forecast_at(model, 2.0**exponent, bits).planning_mse

    if not is_candidate(first):
        return None
    if not is_candidate(last):
        # The sum widens with the scale, so the candidates are an interval.
        last, _ = halve(
            lambda exponent: not is_candidate(exponent),
            first,
            last,
            steps=tuning.REFINEMENTS,
        )
    points = math.floor((last - first) * tuning.POINTS_PER_OCTAVE) + 1
    grid = [first + index / tuning.POINTS_PER_OCTAVE for index in range(points)]
    grid.append(last)
    start = min(grid, key=error)
    if error(start) <= enough:
        return Scale(2.0**start, bits, forecast_at(model, 2.0**start, bits))
    low = max(first, start - 1.0 / tuning.POINTS_PER_OCTAVE)
    high = min(last, start + 1.0 / tuning.POINTS_PER_OCTAVE)
    for _ in range(tuning.REFINEMENTS):
        inner, outer = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if error(inner) <= error(outer):
            high = outer
        else:
            low = inner
    found = min((0.5 * (low + high), start), key=error)
    return Scale(2.0**found, bits, forecast_at(model, 2.0**found, bits))
