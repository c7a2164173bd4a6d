"""The observed state of one task, for the checks of servers and clients."""

from dataclasses import dataclass, field

from secagg.protocol.messages import Round
from secagg.storage.rows import TaskState
from secagg_testing.observed_connection import TaskObserver
from secagg_testing.world.tasks import WorldTask


@dataclass(slots=True)
class Watched:
    """The observed state of one task.

    Attributes:
        task: The task.
        observer: Records in the knowledge ledger.
        rounds: Of every session.
        highest: The highest session number on the disk.
        words: Operator commands that were on the disk.
        spent: Sessions for which U3 was fixed.
    """

    task: WorldTask
    observer: TaskObserver
    rounds: tuple[Round, ...]
    highest: int = 0
    words: list[TaskState] = field(default_factory=list)
    spent: set[bytes] = field(default_factory=set)

    @property
    def state(self) -> TaskState | None:
        """The stored operator command; None before any."""
        return self.words[-1] if self.words else None
