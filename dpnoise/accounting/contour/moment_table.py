"""Upper bounds on the moments of one rounded coordinate, off the real axis.

One coordinate x = k + p (k integer, 0 ≤ p < 1) is rounded at random and noised. Its
likelihood ratio against pure noise is R(y) = (1−p)·ρ_k(y) + p·ρ_{k+1}(y), ρ_j(y) =
q(y−j)/q(y), and its moments are N_x(z) = E_{y~q} R(y)^z. This module bounds

    log |N_x(z)| / norm(x)    over all x of a grid's range and all z on a segment.

Cells and the interval near zero together cover every coordinate that a client may send.
No cell straddles an integer, because the law of a rounded coordinate is analytic only
between integers. By reflection, only coordinates of one sign are needed.

Rule 1: The range of x and the contour are cut into cells. Within a cell N is expanded
        to first order around the centre; the rest is bounded by second derivatives,
        which are sums of positive terms. Every bound holds for the whole cell, not at
        its centre.
Rule 2: log|1 + ζ| ≤ Re ζ + (Im ζ)²/(2(1 − |Re ζ|)²) turns that into a bound that is
        linear along the contour. Where N almost vanishes, |N| itself is bounded
        instead.
Rule 3: Coordinates nearer to zero than the first cell are covered by a Taylor expansion
        in p with an explicit remainder.
Rule 4: Floating point: every sum carries an a-priori error of (number of terms +
        condition) times 2^-52 times the sum of absolute values. It assumes IEEE 754
        doubles. NumPy's exp, expm1, log, log1p, sin and cos may err by at most 4 units
        in the last place.

It does not know epsilon, delta or the integral the bounds are for.
"""

import enum
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from dpnoise.accounting.contour.lattice import ContourLattice
from dpnoise.floats import FloatArray


class CoordinateNorm(enum.Enum):
    """What the sum over coordinates bounds; the moments are measured against it."""

    SQUARE = "x^2"
    """Real coordinates under a bound on the squared L2 norm before rounding."""

    MIXTURE = "x^2 + f - f^2"
    """Real coordinates under a bound on the expected squared norm after rounding."""

    INTEGER = "x^2 of integers"
    """Integer coordinates under a bound on the squared L2 norm."""


@dataclass(frozen=True, slots=True, eq=False)
class CoordinateGrid:
    """Cells that cover the admissible coordinates.

    Args:
        norm: What a coordinate counts for.
        centres: Cell centres, shape (n,), increasing, grid steps.
        half_widths: Half widths, shape (n,); zero for integer coordinates.
        near_zero: The cells begin here; smaller coordinates have their own bound. At
            most 1/2, and 0 for integer coordinates.
        largest: The largest admissible coordinate.
    """

    norm: CoordinateNorm
    centres: FloatArray
    half_widths: FloatArray
    near_zero: float
    largest: float

    @classmethod
    def build(
        cls,
        norm: CoordinateNorm,
        *,
        largest: float,
        near_zero: float,
        relative_width: float,
        largest_width: float,
    ) -> "CoordinateGrid":
        """Cut (near_zero, largest] into cells that never straddle an integer.

        Args:
            norm: What a coordinate counts for.
            largest: The largest admissible coordinate, greater than 0.
            near_zero: Where the cells begin; clamped to at most 1/2 and `largest`.
            relative_width: Width of a cell in units of its position.
            largest_width: Absolute bound on the width, grid steps.

        Returns:
            The grid.
        """
        if norm is CoordinateNorm.INTEGER:
            points = np.arange(1.0, math.floor(largest) + 1.0)
            return cls(norm, points, np.zeros_like(points), 0.0, largest)
        start = min(near_zero, 0.5, largest)
        edges = [start]
        while edges[-1] < largest:
            edge = edges[-1]
            width = min(relative_width * edge, largest_width)
            stop = min(math.floor(edge) + 1.0, largest)
            # No sliver before the boundary, and no wider cell either: what is largest
            # there would be largest by the width of its cell.
            left = stop - edge
            if left > width:
                stop = edge + (0.5 * left if left - width < width else width)
            edges.append(stop)
        lower, upper = np.array(edges[:-1]), np.array(edges[1:])
        return cls(norm, 0.5 * (lower + upper), 0.5 * (upper - lower), start, largest)

    def norms(self, whole: FloatArray, x: FloatArray) -> FloatArray:
        """Return what coordinates count for, given the integer part of their cell."""
        if self.norm is CoordinateNorm.MIXTURE:
            found: FloatArray = whole * whole + (2.0 * whole + 1.0) * (x - whole)
            return found
        return np.asarray(x * x)


_ComplexArray: TypeAlias = npt.NDArray[np.complex128]

_ULP: Final = 2.0**-52
LOG_NEGLIGIBLE_TAIL: Final = -55.0
"""Log of what a sum may miss outside its window; the moments themselves exceed one."""

ROWS_BLOCK: Final = 1 << 16
"""Elements of an (x, y) block: half a megabyte, fits a cache."""

FEW_ENTRIES: Final = 1 << 12
"""So few elements are one block: a call costs more than a series that is too long."""

_REACH: Final = 1.0  # Taylor radius along the contour, in deviations of log R
_LARGEST_REAL_PART: Final = 0.9  # of ζ in rule 2; beyond it |N| is bounded instead
_VANISHING: Final = 1e-300
_MOST_TERMS: Final = 40
_NEAR_ZERO_MARGIN: Final = 2.0**-32  # relative, covers 2^18 terms and √v · 2^-49


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some cells of a grid against all integers of the window; shapes (n, y)."""

    centres: FloatArray
    half_widths: FloatArray
    whole: FloatArray
    log_ratio: FloatArray
    log_low: FloatArray
    log_high: FloatArray
    inverse: FloatArray  # 1/R at the centre, and at both ends of the cell
    inverse_low: FloatArray
    inverse_high: FloatArray
    step: FloatArray  # ρ_{k+1} − ρ_k, the derivative of R in p


@dataclass(frozen=True, slots=True)
class _Series:
    """Ingredients of the Taylor series along the contour."""

    weight: FloatArray  # q·R^exponent, shape (n, y)
    weight_p: FloatArray  # q·R^(exponent−1)·Δ, shape (n, y)
    mean: FloatArray  # of log R under `weight`, shape (n,)
    radius: float
    powers: FloatArray  # (radius·λ)^m / m!, shape (n, terms, y)


@dataclass(frozen=True, slots=True)
class _Expansion:
    """N, its derivatives and error bounds at (cell, contour cell) centres."""

    value: _ComplexArray
    in_p: _ComplexArray
    in_w: _ComplexArray
    error: FloatArray  # of N anywhere in the cell, beyond first order


class MomentTable:
    """Bounds on log|N_x(exponent + i·w)| / norm(x) for one real part.

    Args:
        lattice: The noise; its reach is used as far as the tails require.
        grid: The admissible coordinates.
        exponent: Real part of z: above 1, or below 0.
    """

    def __init__(
        self, lattice: ContourLattice, grid: CoordinateGrid, *, exponent: float
    ) -> None:
        self._lattice = lattice
        self._grid = grid
        self._exponent = exponent
        shift = max(1, math.ceil(grid.largest))
        right, left = lattice.log_tails(exponent=exponent, largest=grid.largest)
        end_right, end_left = _first_below(right), _first_below(left)
        self._tail = math.exp(right[end_right]) + math.exp(left[end_left])
        self._y = np.arange(-float(end_left), end_right + 1.0)
        self._log_weight = lattice.log_weight(self._y)
        self._shift = shift
        self._ratios = lattice.shift_ratios(self._y, shift)

    @property
    def window(self) -> int:
        """Number of integers that the sums run over."""
        return self._y.size

    def bounds(
        self, edges: FloatArray, *, precision: float
    ) -> tuple[FloatArray, FloatArray]:
        """Bound the quotient on every cell of the contour.

        Args:
            edges: Increasing imaginary parts w ≥ 0, shape (n + 1,).
            precision: Aim for the truncation error of N along the contour. It only
                decides the cost; whatever error remains is part of the bound.

        Returns:
            Two arrays of shape (n,). On cell j the quotient, as a function of w, lies
            below a convex function with these values at the cell's two ends.
        """
        lowest = np.full(edges.size - 1, -np.inf)
        left, right = lowest, lowest
        for rows in self._rows():
            new_left, new_right = self._bound_rows(rows, edges, precision)
            left, right = np.maximum(left, new_left), np.maximum(right, new_right)
        if self._grid.near_zero > 0.0:
            new_left, new_right = self._bound_near_zero(edges)
            left, right = np.maximum(left, new_left), np.maximum(right, new_right)
        return left, right

    def _rows(self) -> Iterator[_Rows]:
        """Cut the grid into octaves and cache-sized blocks, unless it is small."""
        grid = self._grid
        at_most = max(1, ROWS_BLOCK // self._y.size)
        start = 0
        while start < grid.centres.size:
            octave = np.searchsorted(grid.centres, 2.0 * grid.centres[start])
            if grid.centres.size * self._y.size <= FEW_ENTRIES:
                octave = grid.centres.size
            stop = min(start + at_most, max(int(octave), start + 1))
            chosen = slice(start, stop)
            centres, halves = grid.centres[chosen], grid.half_widths[chosen]
            integer = grid.norm is CoordinateNorm.INTEGER
            whole = centres - 1.0 if integer else np.floor(centres)
            base = np.stack([self._ratios[int(k)] for k in whole])
            step = np.stack([self._ratios[int(k) + 1] for k in whole]) - base
            fraction = (centres - whole)[:, None]
            ratio = base + fraction * step
            low = base + (fraction - halves[:, None]) * step
            high = base + (fraction + halves[:, None]) * step
            yield _Rows(
                centres=centres,
                half_widths=halves,
                whole=whole,
                log_ratio=np.log(ratio),
                log_low=np.log(low),
                log_high=np.log(high),
                inverse=1.0 / ratio,
                inverse_low=1.0 / low,
                inverse_high=1.0 / high,
                step=step,
            )
            start = stop

    def _bound_rows(
        self, rows: _Rows, edges: FloatArray, precision: float
    ) -> tuple[FloatArray, FloatArray]:
        """Bound the quotient for some cells of the grid, largest over them."""
        half = 0.5 * (edges[1:] - edges[:-1])
        found = self._expand(rows, edges, precision)
        size = np.abs(found.value)
        tiny = size < _VANISHING
        safe = np.where(tiny, 1.0, found.value)
        slope_p, slope_w = found.in_p / safe, found.in_w / safe
        relative = found.error / np.abs(safe)
        t, u = rows.half_widths[:, None], half[None, :]
        real = np.abs(slope_p.real) * t + np.abs(slope_w.real) * u + relative
        imag = np.abs(slope_p.imag) * t + np.abs(slope_w.imag) * u + relative
        usable = ~tiny & (real < _LARGEST_REAL_PART)
        curvature = imag**2 / (2.0 * (1.0 - np.minimum(real, 0.95)) ** 2)
        level = np.log(np.abs(safe)) + relative + curvature
        fallback = np.log(
            size + np.abs(found.in_p) * t + np.abs(found.in_w) * u + found.error
        )
        low = self._grid.norms(rows.whole, rows.centres - rows.half_widths)[:, None]
        high = self._grid.norms(rows.whole, rows.centres + rows.half_widths)[:, None]
        plain = np.where(fallback > 0.0, fallback / low, fallback / high)
        linear = [
            self._largest_quotient(rows, level + sign * slope_w.real * u, slope_p.real)
            for sign in (-1.0, 1.0)
        ]
        # One bound serves a whole cell: the smaller of two convex functions need not
        # be convex, so they must not be mixed between the ends.
        take_linear = usable & (np.maximum(linear[0], linear[1]) <= plain)
        left = np.where(take_linear, linear[0], plain)
        right = np.where(take_linear, linear[1], plain)
        return np.max(left, axis=0), np.max(right, axis=0)

    def _largest_quotient(
        self, rows: _Rows, level: FloatArray, slope: FloatArray
    ) -> FloatArray:
        """Maximise (level + slope·t) / norm(x + t) over a cell."""
        x, t = rows.centres[:, None], rows.half_widths[:, None]
        whole = rows.whole[:, None]
        candidates = [-t, t]
        if self._grid.norm is CoordinateNorm.SQUARE:
            # The one stationary point; with the other norm the quotient is monotone.
            with np.errstate(divide="ignore", invalid="ignore"):
                stationary = np.where(slope != 0.0, x - 2.0 * level / slope, 0.0)
            candidates.append(np.clip(stationary, -t, t))
        values = [
            (level + slope * at) / self._grid.norms(whole, x + at) for at in candidates
        ]
        best: FloatArray = np.max(np.stack(values), axis=0)
        return best

    def _expand(self, rows: _Rows, edges: FloatArray, precision: float) -> _Expansion:
        """Evaluate N and its first derivatives, and bound everything else."""
        exponent = self._exponent
        log_ratio = rows.log_ratio
        weight = np.exp(self._log_weight + exponent * log_ratio)
        total = weight.sum(axis=1)
        mean = (weight * log_ratio).sum(axis=1) / total
        # N is multiplied by exp(−i·w·mean): the modulus stays, the phase slows down.
        centred = log_ratio - mean[:, None]
        deviation = math.sqrt(float(np.max((weight * centred**2).sum(axis=1) / total)))
        if not math.isfinite(deviation):  # overflow: nothing is known of these cells
            shape = (rows.centres.size, edges.size - 1)
            nothing = np.zeros(shape, dtype=np.complex128)
            return _Expansion(nothing, nothing, nothing, np.full(shape, np.inf))
        weight_p = weight * rows.inverse * rows.step
        radius, blocks, terms = _blocks(edges, deviation, precision)
        powers = _scaled_powers(centred * radius, terms)
        middle = 0.5 * (edges[1:] + edges[:-1])
        value = np.empty((rows.centres.size, middle.size), dtype=np.complex128)
        in_p, in_w = np.empty_like(value), np.empty_like(value)
        turned = np.empty((weight.shape[0], 4, weight.shape[1]))
        for block in blocks:
            w = middle[block]
            origin = 0.5 * (w[0] + w[-1])
            angle = origin * centred
            cosine, sine = np.cos(angle), np.sin(angle)
            np.multiply(weight, cosine, out=turned[:, 0])
            np.multiply(weight, sine, out=turned[:, 1])
            np.multiply(weight_p, cosine, out=turned[:, 2])
            np.multiply(weight_p, sine, out=turned[:, 3])
            moments = (powers @ turned.transpose(0, 2, 1)).view(np.complex128)
            order = np.arange(terms)[:, None]
            offset = ((w - origin) / radius)[None, :]
            phases = (1j ** (order % 4)) * offset**order
            lowered = np.maximum(order - 1, 0)
            slopes = (1j ** (order % 4)) * order * offset**lowered / radius
            value[:, block] = moments[:, :, 0] @ phases
            in_p[:, block] = moments[:, :, 1] @ phases
            in_w[:, block] = moments[:, :, 0] @ slopes
        z = exponent + 1j * middle
        error = self._errors(
            rows, edges, _Series(weight, weight_p, mean, radius, powers)
        )
        return _Expansion(value=value, in_p=z * in_p, in_w=in_w, error=error)

    def _errors(
        self,
        rows: _Rows,
        edges: FloatArray,
        series: _Series,
    ) -> FloatArray:
        """Bound what the first-order expansion of N misses anywhere in a cell."""
        exponent = self._exponent
        t = rows.half_widths[:, None]
        u = (0.5 * (edges[1:] - edges[:-1]))[None, :]
        modulus = np.hypot(exponent, edges[1:])[None, :]  # the largest |z| of a cell
        modulus_less_1 = np.hypot(exponent - 1.0, edges[1:])[None, :]
        weight, weight_p, mean = series.weight, series.weight_p, series.mean
        radius, powers = series.radius, series.powers
        centred = np.abs(rows.log_ratio - mean[:, None])

        # Truncation of the Taylor series along the contour.
        terms = powers.shape[1]
        last = np.abs(powers[:, -1]) * centred * (radius / terms)
        cut = (weight * last).sum(axis=1)[:, None]
        cut_p = (np.abs(weight_p) * last).sum(axis=1)[:, None]
        truncation = cut * (1.0 + u * terms / radius) + modulus * t * cut_p

        # Rounding. The condition of a term: its exponentials and its phase.
        condition = (
            self._y.size
            + terms
            + 64.0
            + 2.0 * np.abs(self._log_weight)
            + (8.0 * np.abs(rows.log_ratio) + 2.0 * self._shift + 8.0)
            * float(modulus[0, -1])
        )
        # Even powers are positive, and all odd ones have one sign.
        sizes = powers[:, 0::2].sum(axis=1) + np.abs(powers[:, 1::2].sum(axis=1))
        spread = sizes * condition * _ULP
        rounding = (weight * spread).sum(axis=1)[:, None]
        rounding_p = (np.abs(weight_p) * spread).sum(axis=1)[:, None]
        rounded = rounding * (1.0 + u * terms / radius) + modulus * t * rounding_p

        # Second derivatives, largest over the cell: R is monotone in p for every y.
        low = np.exp(self._log_weight + exponent * rows.log_low)
        high = np.exp(self._log_weight + exponent * rows.log_high)
        low_1, high_1 = low * rows.inverse_low, high * rows.inverse_high
        low_2, high_2 = low_1 * rows.inverse_low, high_1 * rows.inverse_high
        step = np.abs(rows.step)
        largest = np.maximum(np.abs(rows.log_low), np.abs(rows.log_high))
        farthest = np.maximum(
            np.abs(rows.log_low - mean[:, None]), np.abs(rows.log_high - mean[:, None])
        )
        less_1 = np.maximum(low_1, high_1)
        in_ww = (np.maximum(low, high) * farthest**2).sum(axis=1)[:, None]
        in_pp = (np.maximum(low_2, high_2) * step**2).sum(axis=1)[:, None]
        # ∂²N/∂p∂w = E[R^(z−1)·Δ·(z·λ + 1)]; E[Δ] = 0 makes the last term small, by
        # |R^(z−1) − 1| ≤ |z − 1|·|log R|·max(1, R^(exponent−1)).
        cross = (less_1 * step * farthest).sum(axis=1)[:, None]
        at_least_one = np.maximum(less_1, np.exp(self._log_weight))
        correction = (at_least_one * step * largest).sum(axis=1)[:, None]
        # E[Δ] is zero over all integers, not over the window.
        outside = self._tail * 2.0
        in_pw = modulus * cross + modulus_less_1 * correction + outside
        second = (
            0.5 * modulus * modulus_less_1 * in_pp * t**2
            + in_pw * t * u
            + 0.5 * in_ww * u**2
        )
        return np.asarray(truncation + rounded + second * (1.0 + 2.0**-20) + self._tail)

    def _bound_near_zero(self, edges: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bound the quotient for coordinates between zero and the first cell.

        N = 1 + A·p² + B·p³ + e·p⁴ with A = z(z−1)·E[D²]/2, B = z(z−1)(z−2)·E[D³]/6,
        D = ρ_1 − 1 and |e| at most |z(z−1)(z−2)(z−3)|/24 times the largest
        E[D⁴·(1 + p·D)^(exponent−4)].
        """
        exponent, top = self._exponent, self._grid.near_zero
        weight = np.exp(self._log_weight)
        change = self._ratios[1] - 1.0
        ends = np.maximum(1.0, np.exp((exponent - 4.0) * np.log1p(top * change)))
        second = float((weight * change**2).sum())
        third = float((weight * change**3).sum())
        third_abs = float((weight * np.abs(change) ** 3).sum())
        fourth = float((weight * change**4 * ends).sum())
        outside = self._tail
        # The tails enter every moment; the margin covers the rounding of the sums.
        second_error = second * _NEAR_ZERO_MARGIN + outside
        third_error = third_abs * _NEAR_ZERO_MARGIN + outside
        fourth = fourth * (1.0 + _NEAR_ZERO_MARGIN) + outside

        middle = 0.5 * (edges[1:] + edges[:-1])
        half = 0.5 * (edges[1:] - edges[:-1])
        z = exponent + 1j * middle
        reach = np.hypot(exponent, edges[1:])  # the largest |z| of a cell
        a_abs = reach * (reach + 1.0) * (second + second_error) / 2.0
        b_abs = a_abs * (reach + 2.0) / 3.0 * (third_abs + third_error) / second
        e_abs = reach * (reach + 1.0) * (reach + 2.0) * (reach + 3.0) / 24.0 * fourth
        a_imag = np.abs(2.0 * exponent - 1.0) * edges[1:] * second / 2.0
        a_imag = a_imag + a_abs * second_error / second
        imag = a_imag * top + b_abs * top**2 + e_abs * top**3
        real = a_abs * top**2 + b_abs * top**3 + e_abs * top**4
        curvature = np.where(
            real < _LARGEST_REAL_PART,
            imag**2 / (2.0 * (1.0 - np.minimum(real, 0.95)) ** 2),
            np.inf,
        )
        shared = (
            e_abs * top**2
            + curvature
            + reach * (reach + 1.0) * second_error / 2.0
            + (reach + 2.0) ** 3 * third_error / 6.0 * top
            + 3.0 * (reach + 1.0) * half**2 * abs(third) / 6.0 * top
        )
        cubic = (z * (z - 1.0) * (z - 2.0)).real * third / 6.0
        cubic_slope = (1j * (3.0 * z * z - 6.0 * z + 2.0)).real * third / 6.0
        found = []
        for sign in (-1.0, 1.0):
            # −w² is concave along the contour; its tangent at the centre is above it.
            square = (
                (exponent * (exponent - 1.0) - middle**2 - sign * 2.0 * middle * half)
                * second
                / 2.0
            )
            along = np.maximum(0.0, cubic + sign * half * cubic_slope) * top
            quotient = square + along + shared
            if self._grid.norm is CoordinateNorm.MIXTURE:
                # Here a small coordinate counts x, not x²: the quotient is p·ψ(p).
                quotient = top * np.maximum(0.0, quotient)
            found.append(quotient)
        return found[0], found[1]


def _first_below(log_tails: FloatArray) -> int:
    """Return the first index whose tail is negligible; the last one if none is."""
    below = np.flatnonzero(log_tails < LOG_NEGLIGIBLE_TAIL)
    return int(below[0]) if below.size else log_tails.size - 1


def _blocks(
    edges: FloatArray, deviation: float, precision: float
) -> tuple[float, list[slice], int]:
    """Cut the contour into blocks of one Taylor expansion each."""
    middle = 0.5 * (edges[1:] + edges[:-1])
    span = float(middle[-1] - middle[0])
    count = max(1, math.ceil(span * deviation / (2.0 * _REACH)))
    marks = np.linspace(middle[0], middle[-1], count + 1)[1:-1]
    cuts = [0, *np.searchsorted(middle, marks).tolist(), middle.size]
    blocks = [slice(a, b) for a, b in itertools.pairwise(cuts) if b > a]
    radius = max(
        (0.5 * float(middle[b][-1] - middle[b][0]) for b in blocks), default=0.0
    )
    radius = max(radius, 1e-3 / max(deviation, 1e-300))
    # Gaussian moments: E|λ·radius|^n / n! = (radius·deviation)^n / (2^(n/2)·(n/2)!).
    scaled, terms = radius * deviation, 4
    while terms < _MOST_TERMS and (
        terms * math.log(scaled)
        - 0.5 * terms * math.log(2.0)
        - math.lgamma(0.5 * terms + 1.0)
        > math.log(precision)
    ):
        terms += 2
    return radius, blocks, terms


def _scaled_powers(scaled: FloatArray, terms: int) -> FloatArray:
    """Return scaled^n / n! for n = 0 … terms − 1; shape (n, terms, y)."""
    powers = np.empty((scaled.shape[0], terms, scaled.shape[1]))
    powers[:, 0] = 1.0
    for n in range(1, terms):
        np.multiply(powers[:, n - 1], scaled / n, out=powers[:, n])
    return powers
