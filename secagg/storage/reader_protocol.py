"""What every book and every reader of a book tells, whatever engine has the tables.

An engine brings a module of queries with the same names; here they are asked, so that
the words of a book are written once.
"""

from abc import ABC, abstractmethod
from typing import Any

from secagg.errors import ErrorCode, ServiceError
from secagg.storage.budget_ledger import ChargeRow
from secagg.storage.change import Role
from secagg.storage.data_claims import ClaimRow
from secagg.storage.rollback_mark import Mark
from secagg.storage.rows import (
    Finding,
    ReplicaRow,
    SessionRow,
    SessionState,
    StoredSession,
    Tally,
    TaskRow,
)


class StoreNotFoundError(ServiceError):
    """There is no book where one was looked for."""

    def __init__(self, where: str, *, setting: str) -> None:
        super().__init__(
            f"there is no state {where}",
            code=ErrorCode.STORAGE_FAILED,
            next_step=f"Check {setting} in the settings; a program that has never run "
            "has no state yet.",
        )


class StoreQueries(ABC):
    """Implements `secagg.storage.reader.StoreReader` over an engine's queries."""

    @abstractmethod
    async def _ask(self, query: str, *words: object, **more: object) -> Any:  # noqa: ANN401 - as the query says
        """Return what a query of the engine says, all of one moment."""

    @abstractmethod
    def _instant(self) -> int | None:
        """Return the book's time in milliseconds; None for the engine's own clock."""

    async def load(self, key: str, *, after: int = 0) -> StoredSession | None:
        """Return a session."""
        found: StoredSession | None = await self._ask(
            "load_session", key, after=after, instant=self._instant()
        )
        return found

    async def sessions(
        self,
        *,
        role: Role,
        task: str | None = None,
        state: SessionState = SessionState.RUNNING,
        before: int | None = None,
        limit: int | None = None,
    ) -> tuple[SessionRow, ...]:
        """Return sessions, the newest first."""
        found: tuple[SessionRow, ...] = await self._ask(
            "list_sessions",
            role=role,
            task=task,
            state=state,
            before=before,
            limit=limit,
        )
        return found

    async def tally(self, role: Role, task: str, *, peer: str = "") -> Tally:
        """Return what the sessions of a task leave behind for good."""
        found: Tally = await self._ask("read_tally", role, task, peer=peer)
        return found

    async def tasks(self) -> tuple[TaskRow, ...]:
        """Return the tasks."""
        found: tuple[TaskRow, ...] = await self._ask("read_tasks")
        return found

    async def charges(self, task: str) -> tuple[ChargeRow, ...]:
        """Return the charges of a task."""
        found: tuple[ChargeRow, ...] = await self._ask("read_charges", task)
        return found

    async def claims(self, data: str | None = None) -> tuple[ClaimRow, ...]:
        """Return the claims on data."""
        found: tuple[ClaimRow, ...] = await self._ask("read_claims", data)
        return found

    async def replicas(self) -> tuple[ReplicaRow, ...]:
        """Return who shares the book, or has of late."""
        found: tuple[ReplicaRow, ...] = await self._ask(
            "list_replicas", instant=self._instant()
        )
        return found

    async def mark(self) -> Mark | None:
        """Return how far the book has come, to hold against its rollback mark."""
        found: Mark | None = await self._ask("read_mark")
        return found

    async def check(self) -> tuple[Finding, ...]:
        """Verify everything that has a checksum of ours."""
        found: tuple[Finding, ...] = await self._ask("find_faults")
        return found
