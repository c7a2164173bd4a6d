"""A meter that records its measurements, for tests of instrumented code."""

from collections import Counter

from secagg.runtime.metrics import Metric


class CountingMeter:
    """Implements `secagg.runtime.metrics.Meter`.

    Attributes:
        total: Sums of what was added or observed, by name of the metric and the values
            of its labels in their order.
    """

    def __init__(self) -> None:
        self.total: Counter[tuple[str, ...]] = Counter()

    def add(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        words = (labels[name] for name in metric.labels)
        self.total[metric.name, *words] += int(amount)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Put a value into a histogram."""
        self.add(metric, value, **labels)
