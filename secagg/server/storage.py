"""Where an aggregator keeps its sessions and what clients have uploaded."""

from dataclasses import dataclass
from pathlib import Path

from secagg.errors import ErrorCode, ServiceError
from secagg.messages import Released
from secagg.server.receipt import SessionReceipt
from secagg.storage.base import Role, SessionStore
from secagg.storage.memory import MemorySessionStore
from secagg.storage.spool import MemorySpool, Spool, UploadSpool
from secagg.storage.sqlite import SQLiteSessionStore

__all__ = ["ServerStorage", "open_storage"]


@dataclass(frozen=True, slots=True)
class ServerStorage:
    """The storage of one aggregator; make it with `open_storage`.

    Attributes:
        sessions: Durable records of sessions.
        spool: Uploads, payloads and sums.
    """

    sessions: SessionStore
    spool: Spool

    def close(self) -> None:
        """Release the directory."""
        self.sessions.close()

    def sums_released(self, task_id: str) -> int:
        """Count the sums of a task that earlier processes released."""
        count = 0
        for key in self.sessions.sessions(Role.SERVER, include_ended=True):
            stored = self.sessions.load(key)
            if stored is not None and stored.summary is not None:
                receipt = SessionReceipt.decode(stored.summary)
                count += receipt.descriptor.task_id == task_id and isinstance(
                    receipt.outcome, Released
                )
        return count


def open_storage(directory: Path | None) -> ServerStorage:
    """Open the storage of one aggregator, for this process alone.

    Args:
        directory: Where it is kept; None keeps it in memory and forgets it.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    if directory is None:
        return ServerStorage(MemorySessionStore(), MemorySpool())
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
        return ServerStorage(store, UploadSpool(directory / "spool"))
    except ServiceError:
        store.close()
        raise
