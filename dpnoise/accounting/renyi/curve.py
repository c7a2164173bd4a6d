"""The Rényi curve of one release: what a Rényi accountant adds up.

* A curve bounds the Rényi divergence in *both* directions between the two worlds.
* A curve answers infinity at an order that its theorem does not cover; it never
  substitutes another theorem.
"""

import abc
import math

from dpnoise.floats import FloatArray


class RenyiCurve(abc.ABC):
    """Bounds on the Rényi divergence of one release, as a function of the order.

    A subclass implements `divergences` and replaces what its theorem says otherwise.
    """

    __slots__ = ()

    @property
    def integer_orders(self) -> bool:
        """Whether only integer orders are covered."""
        return False

    @property
    def mirrored(self) -> bool:
        """Whether an involution of the outputs swaps the two worlds.

        Only then one subsampling bound serves both directions (`subsampling`).
        """
        return False

    @property
    def closed_form(self) -> bool:
        """Whether a value costs microseconds, so that a dense grid is affordable."""
        return True

    @property
    def largest_order(self) -> float:
        """An order at or just below which the theorem ends; infinite if it does not."""
        return math.inf

    @abc.abstractmethod
    def divergences(self, orders: FloatArray) -> FloatArray:
        """Bound the divergence in both directions.

        Args:
            orders: Rényi orders above 1, shape (n,).

        Returns:
            Bounds in nats, shape (n,), at least 0; infinite where nothing is known.
        """
