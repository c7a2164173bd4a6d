"""Where a client keeps its sessions and what it has spent.

Rule 1: what this module is told to charge is on the disk when it returns.
Rule 2: a session is charged once, however often a restart asks for it.
"""

from dataclasses import dataclass
from pathlib import Path

from secagg.client.spent_sessions import SpentSessions
from secagg.distributed_dp import NoisedTask, PrivacyReport
from secagg.errors import ErrorCode, ServiceError
from secagg.parameters import SessionDescriptor
from secagg.report_cache import privacy_report
from secagg.storage.base import SessionStore
from secagg.storage.memory import MemorySessionStore
from secagg.storage.sqlite import SQLiteSessionStore

__all__ = ["ClientStorage", "open_storage"]


@dataclass(frozen=True, slots=True)
class ClientStorage:
    """The storage of one client; make it with `open_storage`.

    Attributes:
        sessions: Durable records of sessions.
        spent: What this client has given to each task.
        directory: Where both are kept; None for memory.
    """

    sessions: SessionStore
    spent: SpentSessions
    directory: Path | None

    def close(self) -> None:
        """Release the directory."""
        self.sessions.close()

    def report_of(self, task: NoisedTask) -> PrivacyReport:
        """Return what a task costs, as this client has computed it itself."""
        if self.directory is None:
            return task.report()
        return privacy_report(task, self.directory)

    def check_budget(self, offered: SessionDescriptor, task: NoisedTask) -> None:
        """Refuse a session that the budget of its task does not cover.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION; the budget is spent, or the task has
                changed its noise.
        """
        self.spent.check(
            offered.task_id,
            offered.parameters.noise_block,
            offered.session_id,
            allowed=task.budget.sessions,
        )

    def charge(self, descriptor: SessionDescriptor, task: NoisedTask) -> None:
        """Charge one session; returns when it is on the disk.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION; see `check_budget`.
            ServiceError: STORAGE_FAILED; nothing may be sent.
        """
        self.spent.charge(
            descriptor.task_id,
            descriptor.parameters.noise_block,
            descriptor.session_id,
            allowed=task.budget.sessions,
        )

    def sessions_left(self, task_id: str, task: NoisedTask) -> int:
        """Return how many more sessions the budget of a task covers."""
        return max(0, task.budget.sessions - self.spent.count(task_id))


def open_storage(directory: Path | None) -> ClientStorage:
    """Open the storage of one client, for this process alone.

    Args:
        directory: Where it is kept; None keeps it in memory and forgets it.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    if directory is None:
        return ClientStorage(MemorySessionStore(), SpentSessions(None), None)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ServiceError(
            f"the state directory {directory} cannot be made: {error.strerror}",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Check the path and its owner, or choose another state "
            "directory.",
        ) from None
    store = SQLiteSessionStore(directory / "sessions.sqlite3")
    try:
        # The store has locked the directory for this process.
        spent = SpentSessions(directory / "spent.jsonl")
    except ServiceError:
        store.close()
        raise
    return ClientStorage(store, spent, directory)
