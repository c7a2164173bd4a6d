"""What people see while the demo runs: a line per event, and on a terminal a live one.

Rule 1: a pipe gets no live line: it would be one line per message of every client.
"""

import time
from collections.abc import Mapping
from typing import Any, Self

from rich.status import Status

from secagg.cli.output import Output
from secagg.distributed_dp import error_text
from secagg.protocol.messages import Round
from secagg.protocol.rounds import ROUNDS
from secagg.testbed.demo.layout import DemoPlan
from secagg.testbed.demo.sum_check import SessionCheck


class DemoLines:
    """Prints a demo line by line; a `secagg.testbed.demo.director.DemoView`.

    Use it as a context manager.
    """

    def __init__(self, output: Output, planned: DemoPlan) -> None:
        self._output = output
        self._planned = planned
        self._started = time.monotonic()
        self._steps = 0
        self._nonprivate: list[float] = []
        self._baseline: list[float] = []
        self._live: Status | None = (
            output.console.status("preparing") if output.is_terminal else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

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

    def progress(self, session: Mapping[str, Any]) -> None:
        """Show where a session stands, in place."""
        if self._live is not None:
            self._live.update(
                f"session {session['session']}: "
                f"{ROUNDS[Round[session['round']]].title}, "
                f"{session['answered']} of {session['expected']} clients, "
                f"{session['joined']} joined, {len(session['dropped'])} lost, "
                f"{session['upload_bytes']:,} bytes uploaded"
            )

    def step(self, check: SessionCheck) -> None:
        """Show one training step."""
        self._steps += 1
        exact = "exact" if check.is_exact else "NOT EXACT"
        line = (
            f"step {self._steps}: {check.survivors} inputs, sum {exact}, noise "
            f"± {error_text(check.standard_error)}, accuracy "
            f"{check.accuracy:.1%} (central noise "
            f"{self._baseline[self._steps - 1]:.1%}, no privacy "
            f"{self._nonprivate[self._steps - 1]:.1%})"
        )
        if check.fitted is not None:
            line += f", clip {check.l2_clip:.3g} fitted {check.fitted:.0%}"
        self._output.line(
            self._stamped(line), style="bold" if check.is_exact else "bold red"
        )

    def _stamped(self, line: str) -> str:
        return f"{time.monotonic() - self._started:5.1f} s  {line}"
