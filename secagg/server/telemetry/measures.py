"""What an aggregator of any kind measures beside calls: commits, rounds, sums."""

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
    """Reports durations to a meter.

    Attributes:
        meter: Receives the measurements.
        clock: Time.
    """

    meter: Meter
    clock: Clock

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Measure a commit of the store, and count a refusal."""
        began = self.clock.now()
        try:
            yield
        except ServiceError:
            self.meter.add(metrics.STORE_ERRORS)
            raise
        self.meter.observe(metrics.STORE_COMMIT_SECONDS, self.clock.now() - began)

    @contextmanager
    def sum(self) -> Iterator[None]:
        """Measure how long the sum takes, with its noise."""
        began = self.clock.now()
        yield
        self.summed(self.clock.now() - began)

    def summed(self, seconds: float) -> None:
        """Record how long the sum took."""
        self.meter.observe(metrics.SUM_SECONDS, seconds)

    def closed(self, round_: Round, seconds: float, *, is_full: bool) -> None:
        """Record that a round is over.

        Args:
            round_: The round.
            seconds: How long it was open.
            is_full: Whether each client that could answer has.
        """
        self.meter.observe(
            metrics.ROUND_SECONDS,
            seconds,
            round=round_.name,
            closed_by="full" if is_full else "deadline",
        )
