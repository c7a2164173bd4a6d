"""The trace of one run, what did not hold in it, and how many steps it took."""

from collections.abc import Callable
from hashlib import sha256
from typing import Final


class Notes:
    """The records of one run.

    Args:
        now: The time, in seconds since the world began.
        on_step: Called with the number of every step of the run.
        keep_trace: Whether the lines of the trace are kept.

    Attributes:
        faults: What did not hold.
        trace: One line for each thing that happened.
        steps: How many steps there were.
        now: As above.
        on_fault: Called when a check fails.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float],
        on_step: Callable[[int], None],
        keep_trace: bool,
    ) -> None:
        self.faults: list[str] = []
        self.trace: list[str] = []
        self.steps = 0
        self.now: Final = now
        self.on_fault: Callable[[], object] = lambda: None
        self._on_step = on_step
        self._keep_trace = keep_trace
        self._digest = sha256()

    @property
    def digest(self) -> str:
        """Names the whole run: two runs with one digest were the same."""
        return self._digest.hexdigest()

    def step(self) -> None:
        """Count a step before which a crash may occur."""
        self.steps += 1
        self._on_step(self.steps)

    def write(self, who: str, what: str) -> None:
        """Write a line of the trace."""
        line = f"{self.now():12.6f}  {who:12}  {what}"
        self._digest.update(line.encode())
        if self._keep_trace:
            self.trace.append(line)

    def fault(self, complaint: str) -> None:
        """Record a failed check; it ends the run."""
        self.write("FAULT", complaint)
        self.faults.append(complaint)
        self.on_fault()

    def must(self, holds: bool, complaint: str) -> None:  # noqa: FBT001 - reads as a sentence
        """Record a fault unless a condition holds."""
        if not holds:
            self.fault(complaint)


def short(session_id: bytes) -> str:
    """Name a session in a line of the trace."""
    return session_id[:3].hex()
