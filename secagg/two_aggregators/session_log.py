"""The log of one session in an aggregator's store; all its writes go through here."""

import asyncio
from typing import Final, Self

from secagg.errors import ErrorCode, SecAggError
from secagg.server.telemetry.measures import Measures
from secagg.storage.change import Change, Committed, NewSession, Record
from secagg.storage.rows import StoredSession
from secagg.storage.store import Store


class SessionLog:
    """Appends records, one commit at a time; make it with `create` or `resume`.

    Args:
        store: Store of the task.
        key: Name of the session.
        sequence: Number of records.
        chain: Hash chain value after the last record.
        measures: Measures the duration of commits.
    """

    def __init__(
        self, store: Store, key: str, sequence: int, chain: bytes, measures: Measures
    ) -> None:
        self.key: Final = key
        self._store = store
        self._sequence = sequence
        self._chain = chain
        self._measures = measures
        self._lock = asyncio.Lock()

    @classmethod
    async def create(
        cls,
        store: Store,
        key: str,
        new: NewSession,
        measures: Measures,
        *,
        facts: bytes | None = None,
    ) -> Self:
        """Begin a session.

        Raises:
            SessionsSpentError: The task has used all sessions of its budget.
            ServiceError: STORAGE_FAILED.
        """
        with measures.commit():
            begun = await store.commit(Change(key=key, create=new, facts=facts))
        if not isinstance(begun, Committed):
            raise _written_by_another(key)
        return cls(store, key, begun.sequence, begun.chain, measures)

    @classmethod
    def resume(cls, store: Store, stored: StoredSession, measures: Measures) -> Self:
        """Resume a session of an earlier process."""
        return cls(store, stored.key, stored.sequence, stored.chain, measures)

    async def append(self, record: Record, *, spend: bool = False) -> None:
        """Append one record; returns when it is durable.

        Args:
            record: The record.
            spend: Count the session against the task's budget.

        Raises:
            ServiceError: STORAGE_FAILED; the commit may or may not be durable.
        """
        await self._commit(records=(record,), spend=spend)

    async def end(self, receipt: bytes, *, facts: bytes | None = None) -> None:
        """End the session: overwrite its header and records, and keep a receipt.

        Args:
            receipt: What is kept of the session.
            facts: New facts of the task; None keeps the old ones.

        Raises:
            ServiceError: STORAGE_FAILED; the commit may or may not be durable.
        """
        await self._commit(end=receipt, facts=facts)

    async def _commit(
        self,
        *,
        records: tuple[Record, ...] = (),
        spend: bool = False,
        end: bytes | None = None,
        facts: bytes | None = None,
    ) -> None:
        """Store one step, and refuse a session that another process has written."""
        async with self._lock:
            change = Change(
                key=self.key,
                expect=self._sequence,
                previous=self._chain,
                records=records,
                spend=spend,
                end=end,
                facts=facts,
            )
            with self._measures.commit():
                done = await self._store.commit(change)
            if not isinstance(done, Committed):
                raise _written_by_another(self.key)
            self._sequence, self._chain = done.sequence, done.chain


def _written_by_another(key: str) -> SecAggError:
    return ErrorCode.STORAGE_FAILED.error(
        f"session {key} was written by another process",
        fix="Run one process for each store, then start this one again.",
    )
