"""What an accountant's answer will cost, before it is asked.

A client computes the privacy of a task that a server describes. Some accountants
tabulate moments over every coordinate that a vector may have and every integer that
noise may reach, so a few digits in a description can cost hours. Costs are counted in
table cells, of which a processor core fills about 10^9 in a second; they are rough,
within a factor of five, and grow with what the time grows with.

A plan is judged by the same estimate before it is made, and in the same words
(`check_accounting_cost`): what is planned is never what a client refuses.

It computes no privacy loss.
"""

import math
from dataclasses import dataclass
from typing import Final

from dpnoise.accounting.contour.forecast import bound_cost, curve_cost
from dpnoise.errors import ParameterError
from dpnoise.events import (
    BinomialEvent,
    DiscreteGaussianEvent,
    NoiseEvent,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)

MAX_ACCOUNTING_COST: Final = 2e9
"""What a client spends on a description before it says no: about two seconds."""

_BEYOND_ALL_LIMITS: Final = 1e12  # where counting stops
_PREFIX: Final = "hypothetical-"
_CURVE: Final = "mixture-pld"
_LATTICE: Final = "lattice-pld"
_CONTOUR: Final = "mixture-contour"
_LARGEST_DELTA: Final = 0.5  # that a contour is looked for; beyond, none is cheaper
# Measured: the supremum over coordinates, cell by cell, at every order; beyond 32 a
# closed form.
_ORDERS: Final = "mixture-rdp"
_DEVIATIONS: Final = 14.0
_CELLS_PER_COORDINATE: Final = 3e6
_CELLS_PER_EXACT_COORDINATE: Final = 1.5e7
_EXACT_COORDINATES: Final = 32.0
# Noise of less than a grid step: every cell is cut into 64 parts at every order, and
# the search passes all orders, since long coordinates have a bound at none.
_LITTLE_NOISE: Final = 1.0
_CUT_FINELY: Final = 8.0
# Beyond the lattice sums, a term for every order below the best one at 200 coordinates,
# and where a coordinate exceeds one, for each of 312 ways to split the noise. The best
# order is that of a Gaussian, which is largest for one release at a small δ.
_CLOSED_FROM: Final = float(1 << 14)
_CELLS_PER_ORDER: Final = 12 * 30 * 200.0
_SPLITS: Final = 312.0
_LARGEST_ORDERS: Final = (float(1 << 13), float(1 << 7))  # without splits, and with
_LARGEST_SAMPLED_ORDER: Final = 1024.0
# What the search for the best order behind a coin looks at beyond it, and what each
# takes: calls, an integer of the window at each point of a cell, or a term of the
# closed form. Points are those of `mixture_divergence`.
_SAMPLED_SEARCH: Final = (1.5, 16.0)
_PER_SAMPLED_ORDER: Final = 1e5
_PER_SAMPLED_POINT: Final = 40.0
_PER_SAMPLED_TERM: Final = 900.0
_POINTS_PER_FOLD: Final = 1.0 / math.log(1.05)
_FIRST_POINTS: Final = (32.0, 256.0)  # one over them: of usual noise, and of little
_SMALL_VARIANCE: Final = 4.0
_LATER_CURVATURE: Final = 0.25 / 6e-4
_MOST_LATER_POINTS: Final = 64.0
_SMALLEST_DELTA: Final = 1e-12
# Measured: a product of equal pairs and its transforms; where entries may exceed one,
# a product for each of up to 31 multisets. Both have grids of bounded length.
_LATTICE_PRODUCT: Final = 2e8
_LATTICE_ENVELOPE: Final = 8e8
_NEXT_ENTRY: Final = 2.0


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
    if name == _LATTICE:
        return _lattice_cost(event)
    sizes = _Sizes.of(event)
    if sizes is None:
        return 0.0
    if name == _CURVE:
        return curve_cost(
            variance=sizes.variance,
            norm_bound=sizes.norm,
            largest=sizes.largest,
            integers=isinstance(event, SkellamEvent),
            most=_BEYOND_ALL_LIMITS,
        )
    if name == _CONTOUR:
        return bound_cost(
            variance=sizes.variance,
            norm_bound=sizes.norm,
            largest=sizes.largest,
            integers=isinstance(event, SkellamEvent),
            delta=min(delta / rate, _LARGEST_DELTA),
        )
    return _orders_cost(sizes, times, delta, rate) if name == _ORDERS else 0.0


def check_accounting_cost(
    event: NoiseEvent, accountant: str, *, times: int, delta: float, rate: float
) -> None:
    """Refuse an accountant that would keep everybody busy who judges a release.

    Args:
        event: One release.
        accountant: Its name.
        times: How often it is repeated, at least 1.
        delta: Probability that the epsilon is asked for, in (0, 1).
        rate: Of the coin before each release, in (0, 1].

    Raises:
        ParameterError: Its answer costs more than `MAX_ACCOUNTING_COST`; where nobody
            names an accountant, the planner takes one whose answer does not.
    """
    cost = accounting_cost(event, accountant, times=times, delta=delta, rate=rate)
    if cost <= MAX_ACCOUNTING_COST:
        return
    raise ParameterError(
        f"{accountant} would fill {cost:.2g} table cells to judge it, at most "
        f"{MAX_ACCOUNTING_COST:.2g} are accepted: plan on a coarser grid, or name no "
        "accountant",
        parameter="accountant",
        value=accountant,
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What the cost of a release depends on: squared norm, coordinate, variance."""

    norm: float
    largest: float
    variance: float

    @classmethod
    def of(cls, event: NoiseEvent) -> "_Sizes | None":
        """Read them off a release; None where a vector has no length or no tables."""
        match event:
            case SkellamMixtureEvent() | SkellamMixtureClippedEvent():
                norm, largest = event.largest_squared_norm, float(event.linf_bound)
            case SkellamEvent():
                norm = event.l2_sensitivity**2
                largest = float(event.linf_sensitivity or event.l2_sensitivity)
            case _:
                return None
        if norm <= 0.0:
            return None
        variance = float(event.aggregate_noise_variance)
        return cls(norm, min(largest, math.sqrt(norm)), variance)


def _orders_cost(sizes: _Sizes, times: int, delta: float, rate: float) -> float:
    """Estimate the sums over orders of `mixture-rdp`."""
    norm, largest, variance = sizes.norm, sizes.largest, sizes.variance
    if rate < 1.0:
        orders = _sampled_orders(variance / norm, times, delta, rate)
        return _sampled_cost(largest, variance, orders)
    cost = (1.0 + largest) * _CELLS_PER_COORDINATE
    if variance <= _CLOSED_FROM:
        exact = min(largest, _EXACT_COORDINATES) * (largest > 1.0)
        exact *= _CUT_FINELY if variance < _LITTLE_NOISE else 1.0
        return cost + exact * _CELLS_PER_EXACT_COORDINATE
    order = 1.0 + math.sqrt(-2.0 * math.log(delta) * variance / (norm * times))
    order = min(order, _LARGEST_ORDERS[largest > 1.0])
    splits = 1.0 + _SPLITS * (largest > 1.0)
    return cost + order * splits * _CELLS_PER_ORDER


def _sampled_orders(noise: float, times: int, delta: float, rate: float) -> float:
    """Estimate how many orders behind a coin are looked at; each needs a moment.

    The best order is that of a Gaussian whose shift the coin has shortened, but not
    beyond that at which the moment of a release that is surely seen outweighs the
    chance α·log(1/rate) of as many coins; nor below that of such releases alone.

    Args:
        noise: Variance over squared norm.
        times: Releases.
        delta: Of the whole.
        rate: Of the coin.
    """
    certain = math.sqrt(-2.0 * math.log(delta) * noise / times)
    steepest = 1.0 - 2.0 * noise * math.log(rate)
    factor, more = _SAMPLED_SEARCH
    best = max(certain, min(certain / rate, steepest))
    return min(more + factor * best, _LARGEST_SAMPLED_ORDER)


def _sampled_cost(largest: float, variance: float, orders: float) -> float:
    """Estimate moments of all orders up to one; arguments as in `_Sizes`."""
    exceeds_one = largest > 1.0
    each = _PER_SAMPLED_ORDER + _CELLS_PER_COORDINATE * largest * exceeds_one
    if variance > _CLOSED_FROM:
        orders = min(orders, _LARGEST_ORDERS[exceeds_one])
        terms = orders * (1.0 + _SPLITS * exceeds_one)
        return orders * (each + terms * _PER_SAMPLED_TERM)
    reach = _FIRST_POINTS[variance < _SMALL_VARIANCE] * min(largest, 1.0)
    points = 1.0 + _POINTS_PER_FOLD * math.log(max(1.0, reach))
    if exceeds_one:
        curvature = _LATER_CURVATURE * (1.0 + orders * orders / variance)
        later = min(math.sqrt(curvature), _MOST_LATER_POINTS)
        points += 2.0 * min(largest, _EXACT_COORDINATES) * later
    window = 2.0 * (_DEVIATIONS * math.sqrt(variance) + 8.0 * (1.0 + largest))
    return orders * (each + _PER_SAMPLED_POINT * window * points)


def _lattice_cost(event: NoiseEvent) -> float:
    """Say what the atoms of an integer release cost; a larger release is refused."""
    match event:
        case SkellamEvent() | BinomialEvent():
            largest = event.linf_sensitivity or event.l2_sensitivity
        case DiscreteGaussianEvent():
            largest = event.l2_sensitivity
        case _:
            return 0.0
    longest = min(largest, event.l2_sensitivity)
    return _LATTICE_PRODUCT if longest < _NEXT_ENTRY else _LATTICE_ENVELOPE
