"""What an accountant's answer will cost, before it is asked.

A client computes the privacy of a task that a server describes. Some accountants
tabulate moments over every coordinate that a vector may have and every integer that
noise may reach, so a few digits in a description can cost hours. Costs are counted in
table cells, of which a processor core fills about 10^9 in a second; they are rough,
within a factor of five, and grow with what the time grows with.

It computes no privacy loss.
"""

import math
from dataclasses import dataclass
from typing import Final

from dpnoise.accounting.contour.forecast import bound_cost, curve_cost
from dpnoise.events import (
    BinomialEvent,
    DiscreteGaussianEvent,
    NoiseEvent,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)

__all__ = ["MAX_ACCOUNTING_COST", "accounting_cost"]

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
    cost = (1.0 + largest) * _CELLS_PER_COORDINATE
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
