"""View of a running demo: a line per event, and on a terminal a live one.

Rule 1: a pipe gets no live line: it would be one line per message of every client.
Rule 2: a pipe gets the current state when no line was printed for long.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from secagg.cli.output import Output

if TYPE_CHECKING:
    from rich.status import Status

    from secagg.testbed.demo.sum_check import SessionCheck

# Longer than that without a line looks like a fault.
_QUIET_SECONDS: Final = 3.0


class DemoLines:
    """Prints a demo line by line; a `secagg.testbed.demo.run.DemoView`.

    Use it as a context manager: a thread of it repeats the state in the meantime,
    because planning keeps the event loop busy. It imports nothing heavy, to print
    while the libraries of the demo are loaded.

    Args:
        output: Receives the lines.
        clients: Client processes.
        clock: Seconds since any moment.
    """

    def __init__(
        self,
        output: Output,
        *,
        clients: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._output = output
        self._clients = clients
        self._clock = clock
        self._started = self._told = clock()
        self._state = "loading libraries"
        self._has_ended = threading.Event()
        self._pulse = threading.Thread(target=self._repeat_states, daemon=True)
        self._steps = 0
        self._nonprivate: list[float] = []
        self._baseline: list[float] = []
        self._live: Status | None = (
            output.console.status(self._state) if output.is_terminal else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        self._pulse.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._pulse.join()
        if self._live is not None:
            self._live.stop()

    def stage(self, state: str) -> None:
        """Show what is being done, in place."""
        self._state = state
        if self._live is not None:
            self._live.update(state)

    def repeat_state(self) -> None:
        """Print the state to a pipe, if nothing was printed for long."""
        if self._live is None and self._clock() - self._told >= _QUIET_SECONDS:
            self.tell(self._state)

    def _repeat_states(self) -> None:
        while not self._has_ended.wait(_QUIET_SECONDS / 4):
            self.repeat_state()

    def references(self, nonprivate: list[float], baseline: list[float]) -> None:
        """Record the accuracies to compare with, and print the start."""
        self._nonprivate, self._baseline = nonprivate, baseline
        self.tell(
            f"starting {self._clients} clients and one aggregator, each a "
            "process of its own"
        )

    def progress(self, session: Mapping[str, Any]) -> None:
        """Show the round of a session, in place."""
        from secagg.protocol.messages import Round
        from secagg.protocol.rounds import ROUNDS

        self.stage(
            f"session {session['session']}: {ROUNDS[Round[session['round']]].title}, "
            f"{session['answered']} of {session['expected']} clients, "
            f"{session['joined']} joined, {len(session['dropped'])} lost, "
            f"{session['upload_bytes']:,} bytes uploaded"
        )

    def step(self, check: "SessionCheck") -> None:
        """Show one training step."""
        from secagg.distributed_dp import error_text

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
        self.tell(line, style="bold" if check.is_exact else "bold red")

    def tell(self, line: str, *, style: str | None = None) -> None:
        """Show one line."""
        self._told = self._clock()
        self._output.line(f"{self._told - self._started:5.1f} s  {line}", style=style)
