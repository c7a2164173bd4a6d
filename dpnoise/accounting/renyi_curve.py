"""The Rényi curve of one release: what a Rényi accountant adds up.

Numbered rules:

1. A curve bounds the Rényi divergence in *both* directions between the two worlds.
2. A curve answers infinity at an order that its theorem does not cover; it never
   substitutes another theorem.
3. A curve says whether the two worlds are mirror images of each other, because only
   then one subsampling bound serves both directions (`subsampling`).

This module deliberately holds no theorem.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Protocol

import numpy as np

from dpnoise.accounting.conversion import FloatArray

__all__ = ["ROUNDING_MARGIN", "RenyiCurve", "float_above", "float_below"]

ROUNDING_MARGIN: Final = 1.0 + 2.0**-40
"""Factor that covers the rounding errors of a closed form of fewer than 2^10 steps."""


class RenyiCurve(Protocol):
    """Bounds on the Rényi divergence of one release, as a function of the order."""

    @property
    def integer_orders(self) -> bool:
        """Whether only integer orders are covered."""
        ...

    @property
    def mirrored(self) -> bool:
        """Whether an involution of the outputs swaps the two worlds."""
        ...

    @property
    def closed_form(self) -> bool:
        """Whether a value costs microseconds, so that a dense grid is affordable."""
        ...

    @property
    def largest_order(self) -> float:
        """An order at or just below which the theorem ends; infinite if it does not."""
        ...

    def divergences(self, orders: FloatArray) -> FloatArray:
        """Bound the divergence in both directions.

        Args:
            orders: Rényi orders above 1, shape (n,).

        Returns:
            Bounds in nats, shape (n,), at least 0; infinite where nothing is known.
        """
        ...


def float_below(number: Fraction) -> float:
    """Return a float that is at most the given rational."""
    nearest = float(number)
    if nearest > number:
        return float(np.nextafter(nearest, -np.inf))
    return nearest


def float_above(number: Fraction) -> float:
    """Return a float that is at least the given rational."""
    nearest = float(number)
    if nearest < number:
        return float(np.nextafter(nearest, np.inf))
    return nearest
