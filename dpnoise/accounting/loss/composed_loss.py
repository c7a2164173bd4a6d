"""The sum of many privacy losses, by one Fourier transform under an exponential tilt.

The loss of a composition is a sum of independent losses. The tail of its law that
determines delta is too small for a plain transform: rounding errors of 10^-16 exceed
it. Tilting every summand by e^(θ·loss), with θ chosen by Chernoff's bound for the
wanted delta, moves that tail to the middle of the transform.

* Mass beyond the window wraps around. What wraps from above is bounded by Chernoff
  and added to delta; what wraps from below lands on larger losses, which is safe.
* The transform's error is bounded in the 2-norm and added to delta. It assumes IEEE 754
  and an error of at most 8·log2(length)·2^-52 relative to the 2-norm per transform.
  Mixed-radix transforms with exact twiddles have a fraction of that.
* Losses on the grid err by rounding; epsilon is raised by 2^-46 per release.
* Below `DELTA_FLOOR` nothing is claimed.

It depends on no mechanism and no sampling; callers supply the pairs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dpnoise.accounting.loss.dominating_pair import LOSS_ERROR, DominatingPair
from dpnoise.floats import FloatArray
from dpnoise.searches import golden_section

TRANSFORM_ASSUMPTION: Final = (
    "Floating point follows IEEE 754, and Fourier transforms err by at most "
    "8·log2(length)·2^-52 relative to the 2-norm."
)

DELTA_FLOOR: Final = 1e-15
"""No delta below this is quoted: the curves that go in end not far beneath it."""

_RAREST: Final = 0.1 * DELTA_FLOOR
_TRANSFORM_ERROR: Final = 8.0 * 2.0**-52
_LONGEST: Final = 1 << 17  # a coarser grid stays sound, and costs 0.002 % of variance
_ABOVE: Final = math.log(1e-6)  # of delta, left to Chernoff's bound above the window
_FAR_BELOW: Final = 1e-5  # the rest above is then a tenth of delta at most
_TILTED: Final = math.log(1e-7)  # of the tilted law, on either side of the window
_TILT_SHARE: Final = 0.75
"""Of Chernoff's tilt. Sampled losses have rare large values that take over the tilted
law just before the optimum. A flatter tilt keeps the window short and costs little."""

_LARGEST_EXPONENT: Final = 600.0  # times a transform error of 10^-14: far above 1
_INVERSE_ERROR: Final = 2.0**-40  # of the logarithm inside one cell
_SEARCH_STEPS: Final = 60
_SEARCH_WIDTH: Final = 1e-2  # any tilt is sound
_SHIFTS: Final = 16
_LARGEST_SHIFT: Final = 50.0  # per nat: a single loss of a few nats is then resolved


@dataclass(frozen=True, slots=True)
class _Window:
    """The window of the transform, and its tilt."""

    tilt: float
    first: int
    length: int
    step: float


class ComposedLoss:
    """The loss of several releases, some of them repeated, in one direction.

    Args:
        parts: Pairs and how often each is released; counts are at least 1.
        relative_variance: The grid may add this share to the variance of the loss.
    """

    def __init__(
        self, parts: Sequence[tuple[DominatingPair, int]], *, relative_variance: float
    ) -> None:
        self._releases = sum(count for _, count in parts)
        given = [(_drop_rarest(pair, self._releases), count) for pair, count in parts]
        self._parts = [(pair, count) for pair, count in given if pair.upper.any()]
        self._infinite = sum(count * pair.upper_infinite for pair, count in given)
        variance = sum(count * pair.mean_and_variance[1] for pair, count in self._parts)
        # Tilts at which Chernoff's bound is tried, around the one that is used.
        deviation = max(math.sqrt(variance), 1e-12)
        self._shifts = np.geomspace(
            0.3 / deviation, max(60.0 / deviation, _LARGEST_SHIFT), _SHIFTS
        )
        self._deviation = deviation
        # Splitting an atom between neighbours adds at most step²/4 of variance.
        self._step = max(
            math.sqrt(4.0 * relative_variance * variance / max(1, self._releases)),
            1e-12,
        )

    def delta(self, epsilon: float) -> float:
        """Bound delta.

        Args:
            epsilon: Privacy loss in nats, at least 0.

        Returns:
            The bound, at least `DELTA_FLOOR` and at most 1.
        """
        loss = max(0.0, epsilon - self._releases * LOSS_ERROR)
        if not self._parts:
            return min(1.0, max(self._infinite, DELTA_FLOOR))
        tilt = self._chernoff_tilt(lambda theta: self._log_moment(theta) - theta * loss)
        log_delta = min(0.0, self._log_moment(tilt) - tilt * loss)
        found = self._curve(self._window(tilt, loss, log_delta)).delta(loss)
        # Under a selection Chernoff's bound may be 10^7 times the curve's value. Its
        # part above the window then outweighs the curve: use a longer window.
        if 0.0 < found < _FAR_BELOW * math.exp(log_delta):
            longer = self._window(tilt, loss, math.log(found))
            found = min(found, self._curve(longer).delta(loss))
        # Near the end of a bounded sum the tilt is so steep that the transform's error
        # drowns the curve. Chernoff's bound, which chose the tilt, is tiny there.
        found = min(found, math.exp(log_delta)) + self._infinite
        return min(1.0, max(found, DELTA_FLOOR))

    def epsilon(self, delta: float) -> float:
        """Bound epsilon.

        Args:
            delta: Failure probability, at least `DELTA_FLOOR`.

        Returns:
            The bound in nats, at least 0; infinite if delta cannot be reached.
        """
        remaining = delta - self._infinite
        if remaining <= 0.0:
            return math.inf
        if not self._parts:
            return 0.0
        log_delta = math.log(remaining)

        def chernoff(theta: float) -> float:
            return (self._log_moment(theta) - log_delta) / theta

        tilt = self._chernoff_tilt(chernoff)
        window = self._window(tilt, max(0.0, chernoff(tilt)), log_delta)
        found = self._curve(window).epsilon(remaining)
        return found + self._releases * LOSS_ERROR if found > 0.0 else 0.0

    def _log_moment(self, theta: float) -> float:
        """Return log E[e^(θ·loss)] of the finite part, from the atoms."""
        total = 0.0
        for pair, count in self._parts:
            total += count * _log_moment(pair.upper, pair.losses, theta)
        return total

    def _chernoff_tilt(self, objective: Callable[[float], float]) -> float:
        """Return a tilt somewhat below the minimiser of a quasi-convex function."""
        low, high = math.log(1e-3 / self._deviation), math.log(1e4)
        found = golden_section(
            lambda log_tilt: objective(math.exp(log_tilt)),
            low,
            max(high, low + 20.0),
            steps=_SEARCH_STEPS,
            width=_SEARCH_WIDTH,
        )
        return _TILT_SHARE * math.exp(found)

    def _window(self, tilt: float, epsilon: float, log_delta: float) -> _Window:
        """Choose the window by Chernoff's bound on both sides."""
        at_tilt = self._log_moment(tilt)
        bounds: list[tuple[float, float]] = []
        below = -math.inf
        for shift in self._shifts:
            beyond = self._log_moment(tilt + shift)
            plain = (beyond - log_delta - _ABOVE) / (tilt + shift)
            tilted = (beyond - at_tilt - _TILTED) / shift
            bounds.append((plain, tilted))
            bound = (at_tilt - self._log_moment(tilt - shift) + _TILTED) / shift
            below = max(below, bound)
        bottom = min(below, epsilon) - 8.0 * self._step
        # What wraps around from above first lands below epsilon, which is not read.
        above = min(max(plain, tilted + bottom - epsilon) for plain, tilted in bounds)
        top = max(above, epsilon) + 8.0 * self._step
        step = max(self._step, (top - bottom) / (_LONGEST - 2))
        cells = (top - bottom) / step + 2.0
        length = 1 << max(6, math.ceil(math.log2(cells)))
        return _Window(
            tilt=tilt,
            first=math.floor(bottom / step),
            length=length,
            step=float(step),
        )

    def _curve(self, window: _Window) -> "_TiltedCurve":
        """Transform, multiply, transform back."""
        length, step, tilt = window.length, window.step, window.tilt
        product = np.ones(length // 2 + 1, dtype=np.complex128)
        log_moment = 0.0
        grids: list[tuple[FloatArray, FloatArray, int]] = []
        for pair, count in self._parts:
            index, mass = pair.on_grid(step)
            losses = step * index.astype(np.float64)
            log_total = _log_moment(mass, losses, tilt)
            with np.errstate(divide="ignore"):  # atoms of no mass
                weights = np.exp(np.log(mass) + tilt * losses - log_total)
            tilted = np.bincount(index % length, weights=weights, minlength=length)
            log_moment += count * log_total
            product *= np.fft.rfft(tilted) ** count
            grids.append((losses, mass, count))
        masses = np.fft.irfft(product, n=length)
        masses = np.roll(masses, -(window.first % length))
        # Chernoff on the grid itself, for what has wrapped around from above.
        end = (window.first + length) * step
        wrapped = math.inf
        for shift in self._shifts[::2]:
            steeper = tilt + float(shift)
            log_steeper = 0.0
            for losses, mass, count in grids:
                log_steeper += count * _log_moment(mass, losses, steeper)
            wrapped = min(wrapped, log_steeper - steeper * end)
        error = (
            (self._releases + 2.0 * len(grids) + 2.0)
            * _TRANSFORM_ERROR
            * math.log2(length)
        )
        return _TiltedCurve(
            masses=np.maximum(masses, 0.0),
            window=window,
            log_moment=log_moment,
            error=error,
            wrapped=math.exp(min(0.0, wrapped)),
        )


def _drop_rarest(pair: DominatingPair, releases: int) -> DominatingPair:
    """Move the largest losses, too rare to matter, to infinity.

    A chance of 10^-21 of a loss far above all others takes over the moments at the
    tilts that a small epsilon needs, and the window with them.
    """
    beyond = np.cumsum(pair.upper[::-1])[::-1]
    kept = int(np.count_nonzero(beyond > _RAREST / releases))
    if kept == pair.losses.size:
        return pair
    moved = float(beyond[kept]) * (1.0 + pair.losses.size * 2.0**-52)
    return replace(
        pair,
        losses=pair.losses[:kept],
        upper=pair.upper[:kept],
        lower=pair.lower[:kept],
        upper_infinite=pair.upper_infinite + moved,
    )


def _log_moment(mass: FloatArray, losses: FloatArray, theta: float) -> float:
    """Return log Σ mass·e^(θ·loss) over atoms that have mass."""
    present = mass > 0.0
    terms = theta * losses[present] + np.log(mass[present])
    top = float(terms.max())
    return top + math.log(float(np.exp(terms - top).sum()))


class _TiltedCurve:
    """Delta as a function of epsilon, from tilted masses on a grid."""

    def __init__(
        self,
        *,
        masses: FloatArray,
        window: _Window,
        log_moment: float,
        error: float,
        wrapped: float,
    ) -> None:
        step, tilt = window.step, window.tilt
        self._offset = step * np.arange(masses.size, dtype=np.float64)
        self._start = float(window.first * step)
        self._step = step
        # Where the factor is cut off, the error below alone exceeds 1 by far.
        factors = np.exp(
            np.minimum(
                log_moment - tilt * (self._start + self._offset), _LARGEST_EXPONENT
            )
        )
        self._plain = masses * factors
        # Cauchy and Schwarz over the errors of all larger losses.
        self._error = factors * (error / math.sqrt(-math.expm1(-2.0 * tilt * step)))
        self._wrapped = wrapped

    def delta(self, epsilon: float) -> float:
        """Bound delta at one epsilon."""
        position = math.floor((epsilon - self._start) / self._step)
        # Beyond the window only what wrapped around is left, and the error.
        position = min(max(position, 0), self._plain.size - 1)
        return self._at(position, epsilon - self._start)

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon at which the bound on delta is small enough."""
        offset = self._offset
        low, high = -1, offset.size - 1  # grid points that fail, that suffice
        if self._at(high, float(offset[high])) > delta:
            return math.inf
        while high - low > 1:
            middle = (low + high) // 2
            if self._at(middle, float(offset[middle])) <= delta:
                high = middle
            else:
                low = middle
        if low < 0:
            return max(0.0, self._start)
        # Within the cell the bound is U − e^(x)·V + error, x the distance from `low`.
        upper, lower = self._sum_larger_losses(low)
        allowed = delta - float(self._error[low]) - self._wrapped
        end = float(offset[high])
        if lower > 0.0 and allowed >= 0.0 and upper > allowed:
            inside = math.log((upper - allowed) / lower) * (1.0 + _INVERSE_ERROR)
            end = min(end, float(offset[low]) + inside + _INVERSE_ERROR * self._step)
        return max(0.0, self._start + end)

    def _sum_larger_losses(self, position: int) -> tuple[float, float]:
        """Sum the larger losses' masses, plainly and times e^(position − loss)."""
        larger = self._plain[position + 1 :]
        distances = self._offset[position + 1 :] - self._offset[position]
        return float(larger.sum()), float((larger * np.exp(-distances)).sum())

    def _at(self, position: int, offset: float) -> float:
        """Bound delta between two grid points, given the distance from the start."""
        gain = -np.expm1(np.minimum(offset - self._offset[position + 1 :], 0.0))
        inside = float((self._plain[position + 1 :] * gain).sum())
        return inside + float(self._error[position]) + self._wrapped
