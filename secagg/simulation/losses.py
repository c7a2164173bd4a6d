"""Which clients disappear from a simulated session, and when.

Rule 1: losses are spread evenly over the four points at which a client can vanish,
        so that every round has to cope with some.
Rule 2: a plan is data: the same entropy gives the same plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, unique

from secagg.primitives.entropy import Entropy

__all__ = ["LossPlan", "LossPoint", "plan_losses"]


@unique
class LossPoint(StrEnum):
    """When a client vanishes.  Later points cost the server more."""

    BEFORE_ADVERT = "before it advertised keys"
    BEFORE_SHARES = "before it shared keys"
    BEFORE_INPUT = "before its masked input"
    BEFORE_ANSWER = "before it answered the unmask request"


@dataclass(frozen=True, slots=True)
class LossPlan:
    """Client number -> when it vanishes; clients that are absent stay to the end."""

    losses: Mapping[int, LossPoint]

    def is_alive(self, client: int, point: LossPoint) -> bool:
        """Whether the client still does what `point` says it might not."""
        order = list(LossPoint)
        loss = self.losses.get(client)
        return loss is None or order.index(loss) > order.index(point)

    def count(self, point: LossPoint) -> int:
        """How many clients vanish at one point."""
        return sum(1 for each in self.losses.values() if each is point)


def plan_losses(clients: int, dropout_rate: float, entropy: Entropy) -> LossPlan:
    """Choose who is lost.

    Args:
        clients: Size of the cohort.
        dropout_rate: Fraction that vanishes, 0 to 1; rounded down to whole clients.
        entropy: Source of the choice.

    Returns:
        A plan with floor(clients * dropout_rate) losses, dealt out in turn over the
        four points.

    Raises:
        ValueError: The rate lies outside [0, 1].
    """
    if not 0.0 <= dropout_rate <= 1.0:
        raise ValueError(f"dropout_rate must be between 0 and 1, not {dropout_rate}")
    # Sorting by 128-bit keys is a uniform order: no bias, no rejection loop.
    keys = [entropy.token(16) for _ in range(clients)]
    order = sorted(range(clients), key=keys.__getitem__)
    lost = order[: int(clients * dropout_rate)]
    points = list(LossPoint)
    return LossPlan({client: points[i % 4] for i, client in enumerate(lost)})
