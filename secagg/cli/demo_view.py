"""What people see while the demo runs: one line per event."""

import time

from secagg.cli.output import Output
from secagg.demo.settings_file import DemoPlan
from secagg.demo.sum_check import SessionCheck

__all__ = ["DemoLines"]


class DemoLines:
    """Prints a demo line by line; a `secagg.demo.director.DemoView`."""

    def __init__(self, output: Output, planned: DemoPlan) -> None:
        self._output = output
        self._planned = planned
        self._started = time.monotonic()
        self._steps = 0
        self._nonprivate: list[float] = []
        self._baseline: list[float] = []

    def tell(self, line: str) -> None:
        """Show one line."""
        self._output.line(self._stamped(line))

    def references(self, nonprivate: list[float], baseline: list[float]) -> None:
        """Take note of the accuracies to compare with."""
        self._nonprivate, self._baseline = nonprivate, baseline
        self.tell(
            f"starting {self._planned.clients} clients and one aggregator, each a "
            "process of its own"
        )

    def step(self, check: SessionCheck) -> None:
        """Show one training step."""
        self._steps += 1
        exact = "exact" if check.is_exact else "NOT EXACT"
        line = (
            f"step {self._steps}: {check.survivors} inputs, sum {exact}, accuracy "
            f"{check.accuracy:.1%} (central noise "
            f"{self._baseline[self._steps - 1]:.1%}, no privacy "
            f"{self._nonprivate[self._steps - 1]:.1%})"
        )
        self._output.line(
            self._stamped(line), style="bold" if check.is_exact else "bold red"
        )

    def _stamped(self, line: str) -> str:
        return f"{time.monotonic() - self._started:5.1f} s  {line}"
