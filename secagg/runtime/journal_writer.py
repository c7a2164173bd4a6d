"""Appends records in order and lets many callers share one disk write.

Rule 1: records reach the store in the order in which they were queued.
Rule 2: `durable` returns when everything queued before the call is on the disk.  While
        one write runs, later records gather and go out together: a thousand adverts
        cost a few writes, not a thousand.
Rule 3: a failed write loses nothing.  Its records stay queued, its callers get the
        error, and the next call tries again.
"""

import asyncio

from secagg.runtime.workers import Workers
from secagg.storage.base import SessionStore

__all__ = ["JournalWriter"]


class JournalWriter:
    """The only writer of one session's records.

    Args:
        store: Where the records go.
        workers: Runs the blocking calls.
        session_key: The session.
        next_sequence: How many records the store holds already.
    """

    def __init__(
        self,
        store: SessionStore,
        workers: Workers,
        session_key: str,
        *,
        next_sequence: int = 0,
    ) -> None:
        self._store = store
        self._workers = workers
        self._session_key = session_key
        self._written = next_sequence
        self._pending: list[bytes] = []
        self._write: asyncio.Task[None] | None = None

    def append(self, record: bytes) -> None:
        """Queue a record; call `durable` before telling anybody."""
        self._pending.append(record)

    async def durable(self) -> None:
        """Wait until everything queued so far has reached the disk.

        Raises:
            ServiceError: STORAGE_FAILED; the records stay queued.
        """
        target = self._written + len(self._pending)
        while self._written < target:
            if self._write is None:
                self._write = asyncio.create_task(self._write_pending())
            # A caller that goes away must not take the write with it.
            await asyncio.shield(self._write)

    async def _write_pending(self) -> None:
        batch = tuple(self._pending)
        try:
            await self._workers.store(
                self._store.append, self._session_key, self._written, batch
            )
            self._written += len(batch)
            del self._pending[: len(batch)]
        finally:
            self._write = None
