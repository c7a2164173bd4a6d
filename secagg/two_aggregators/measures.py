"""What leader and helper measure beside calls: commits, rounds, sums."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from secagg.errors import ServiceError
from secagg.protocol.messages import Round
from secagg.runtime import metrics
from secagg.runtime.clock import Clock
from secagg.runtime.metrics import Meter


@dataclass(frozen=True, slots=True)
class Measures:
    """Tells a meter how long things took.

    Attributes:
        meter: Who takes the measurements.
        clock: Time.
    """

    meter: Meter
    clock: Clock

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Time a change of the book, and count it if the book refuses."""
        began = self.clock.now()
        try:
            yield
        except ServiceError:
            self.meter.add(metrics.STORE_ERRORS)
            raise
        self.meter.observe(metrics.STORE_COMMIT_SECONDS, self.clock.now() - began)

    @contextmanager
    def sum(self) -> Iterator[None]:
        """Time how long it takes to add up, noise included."""
        began = self.clock.now()
        yield
        self.meter.observe(metrics.SUM_SECONDS, self.clock.now() - began)

    def closed(self, round_: Round, began: float, *, is_full: bool) -> None:
        """Say that a round is over.

        Args:
            round_: Which.
            began: When, on the clock.
            is_full: Everybody who could answer has.
        """
        self.meter.observe(
            metrics.ROUND_SECONDS,
            self.clock.now() - began,
            round=round_.name,
            closed_by="full" if is_full else "deadline",
        )
