"""What an accountant's answer will cost, before it is asked.

A client computes the privacy of a task that a server describes. Some accountants
tabulate moments over every coordinate that a vector may have and every integer that
noise may reach, so a few digits in a description can cost hours. Costs are counted in
table cells, of which a processor core fills about 10^9 in a second; they are rough,
within a factor of five, and grow with what the time grows with.

It computes no privacy loss.
"""

import math
from typing import Final

from dpnoise.events import (
    NoiseEvent,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)

__all__ = ["MAX_ACCOUNTING_COST", "accounting_cost"]

MAX_ACCOUNTING_COST: Final = 2e9
"""What a client spends on a description before it says no: about two seconds."""

_PREFIX: Final = "hypothetical-"
# A table has a cell for each integer of its window, each coordinate cell and each
# contour cell. One release needs eight tables of 380 contour cells, a curve of many
# releases 66 tables of 140, so small that a cell takes five times as long.
_CURVE: Final = "mixture-pld"
_CONTOUR_CELLS: Final = {"mixture-contour": 8 * 380.0, "mixture-pld": 5 * 66 * 140.0}
# Where one coordinate may hold the whole norm, its phase turns as fast as the integrand
# falls, and the series along the contour have eight times the blocks.
_BLOCKS: Final = 7.0
# Where it may hold a third of the norm or more and one release is faint, a curve's
# contours are so steep that every block takes four times as long.
_WHOLE: Final = 3.0
_WHOLE_FROM: Final = float(1 << 22)  # variance over squared norm
_WHOLE_AND_STEEP: Final = 4.0
_CELLS_PER_FOLD: Final = {"mixture-contour": 40.0, "mixture-pld": 24.0}
_STEEPEST: Final = {"mixture-contour": 2.0, "mixture-pld": 9.0}  # in √(v/C)
_STEEP_FROM: Final = float(1 << 14)
_STEEP_UP_TO: Final = float(1 << 14)
# Steps so many, or an epsilon so small, that one release is next to nothing: a curve
# reaches its depth on six times the contours.
_FAINT_FROM: Final = float(1 << 25)  # variance over squared norm
_FAINT: Final = 6.0
_CELLS_PER_WIDE_FOLD: Final = 16.0  # where windows are wide, cells are, too
_WIDE_FROM: Final = float(1 << 18)
_DEVIATIONS: Final = 14.0
_LARGEST_TABLED: Final = float(1 << 26)  # variances beyond are counted as this one
# Measured: the supremum over coordinates, cell by cell, at every order; beyond 32 a
# closed form.
_CELLS_PER_COORDINATE: Final = {"mixture-rdp": 2e6}
_CELLS_PER_EXACT_COORDINATE: Final = 1e7
_EXACT_COORDINATES: Final = 32.0
# Noise of less than a grid step: every cell is cut into 64 parts at every order, and
# the search passes all orders, since long coordinates have a bound at none.
_LITTLE_NOISE: Final = 1.0
_CUT_FINELY: Final = 8.0
# Beyond the lattice sums, a term for every order below the best one at 200 coordinates,
# and where a coordinate exceeds one, for each of 312 ways to split the noise. The best
# order is that of a Gaussian, which is largest for one release at a small δ.
_CLOSED_FROM: Final = float(1 << 14)
_CELLS_PER_ORDER: Final = 12 * 20 * 200.0
_SPLITS: Final = 312.0
_LARGEST_ORDERS: Final = (float(1 << 13), float(1 << 7))  # without splits, and with
_LARGEST_SAMPLED_ORDER: Final = 1024.0
_SMALLEST_DELTA: Final = 1e-12


def accounting_cost(
    event: NoiseEvent,
    accountant: str,
    *,
    times: int = 1,
    delta: float = _SMALLEST_DELTA,
    rate: float = 1.0,
) -> float:
    """Estimate what one epsilon of a release costs.

    Args:
        event: One release.
        accountant: Its name.
        times: How often it is repeated, at least 1; what sums over orders need falls
            with it, and all other costs stay.
        delta: Probability that the epsilon is asked for, in (0, 1); as `times`.
        rate: Of the coin before each release, in (0, 1]; below 1 a sum over orders
            needs all orders up to the best one.

    Returns:
        Table cells; 0.0 where nothing in a release makes it dear.
    """
    name = accountant.removeprefix(_PREFIX)
    if name not in _CONTOUR_CELLS.keys() | _CELLS_PER_COORDINATE.keys():
        return 0.0
    match event:
        case SkellamMixtureEvent() | SkellamMixtureClippedEvent():
            norm, largest = event.largest_squared_norm, float(event.linf_bound)
        case SkellamEvent():
            norm = event.l2_sensitivity**2
            largest = float(event.linf_sensitivity or event.l2_sensitivity)
        case _:
            return 0.0
    if norm <= 0.0:
        return 0.0
    largest = min(largest, math.sqrt(norm))
    variance = float(event.aggregate_noise_variance)
    if name in _CELLS_PER_COORDINATE:
        cost = (1.0 + largest) * _CELLS_PER_COORDINATE[name]
        if rate < 1.0:
            tail = -2.0 * math.log(delta) * variance
            order = math.sqrt(tail / (norm * times)) / rate
            cost *= 1.0 + min(order, _LARGEST_SAMPLED_ORDER)
        if variance <= _CLOSED_FROM:
            exact = min(largest, _EXACT_COORDINATES) * (largest > 1.0)
            exact *= _CUT_FINELY if variance < _LITTLE_NOISE else 1.0
            return cost + exact * _CELLS_PER_EXACT_COORDINATE
        order = 1.0 + math.sqrt(-2.0 * math.log(delta) * variance / (norm * times))
        order = min(order, _LARGEST_ORDERS[largest > 1.0])
        splits = 1.0 + _SPLITS * (largest > 1.0)
        return cost + order * splits * _CELLS_PER_ORDER
    variance = min(variance, _LARGEST_TABLED)
    deviation = math.sqrt(variance)
    # As `ContourBound` cuts coordinates: in proportion to themselves from the first
    # cell on, and at every integer.
    steep = math.sqrt(variance / norm) + 4.0
    if variance > _STEEP_FROM:
        # A curve also needs contours nine times as steep, and wide windows make their
        # small first cells dear.
        steep = max(steep, min(_STEEPEST[name] * steep, _STEEP_UP_TO))
    first = min(0.5, largest, 0.06 * deviation / steep)
    folds = _CELLS_PER_FOLD[name] if variance < _WIDE_FROM else _CELLS_PER_WIDE_FOLD
    cells = 1.0 + largest + folds * math.log(largest / first)
    window = 2.0 * (_DEVIATIONS * deviation + 8.0 * (1.0 + largest))
    # Vectors far shorter than the noise are judged on steep contours, whose tails are
    # long: as many integers more as the contour is steep, for each step of a shift, or
    # for the part of a step that coordinates reach.
    window += (
        (largest if largest < 1.0 else math.ceil(largest))
        * _STEEPEST[name]
        * math.sqrt(variance / norm)
    )
    blocks = 1.0 + _BLOCKS * largest * largest / norm
    if name == _CURVE and blocks > _WHOLE and variance > _WHOLE_FROM * norm:
        blocks *= _WHOLE_AND_STEEP
    faint = name == _CURVE and variance > _FAINT_FROM * norm
    contours = _CONTOUR_CELLS[name] * (_FAINT if faint else 1.0)
    return window * cells * blocks * contours
