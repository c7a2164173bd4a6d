"""The durable book of one party: its interface, its words and its pure rules.

Rule 1: a `Change` is everything that one step does.  It is applied whole or not at all,
        and `Store.commit` answers when it is on the disk and, where there is one, in
        the rollback mark.  After any exception nothing is known: load, and judge again.
Rule 2: a change names the position that its writer knows, by count *and* chain value.
        Whoever is behind is told what it missed, and nothing is written.
Rule 3: a session number that was claimed stays claimed, a spent session stays spent,
        a charge stays where it is and a task keeps its facts, whatever happens to the
        session.
Rule 4: every record is chained to those before it and to the header, every other row
        carries a checksum.  What does not fit is this machine's fault, never a peer's.
Rule 5: a session that has ended is scrubbed: header and records, which hold seeds and
        shares, are overwritten; its receipt stays.
Rule 6: of several that share a book nobody owns a session.  Rule 2 keeps their steps in
        one order; a lease only keeps them from doing the same work twice.

A book does not look into headers, bodies and receipts.  Vectors do not belong here but
into `secagg.storage.spool`.  Books are opened by `secagg.storage.open_store`.
"""

from collections.abc import AsyncIterator
from typing import Final, Protocol

from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.profiles import Trust
from secagg.storage.budget_ledger import ChargeRow, Settlement
from secagg.storage.change import Change, Committed, Ended, Lease, MissedRecords, Role
from secagg.storage.data_claims import Claim, ClaimRow
from secagg.storage.rollback_mark import Mark
from secagg.storage.rows import (
    Finding,
    PurgeResult,
    Replica,
    ReplicaRow,
    Retention,
    SessionRow,
    SessionState,
    StoredSession,
    Tally,
    Task,
    TaskRow,
)

AWAY_SECONDS: Final = 2.0
"""When to try again to reach a book that is away."""


class Store(Protocol):
    """The durable book of one party."""

    @property
    def is_shared(self) -> bool:
        """Whether others may write to it at the same time."""
        ...

    async def commit(self, change: Change) -> Committed | MissedRecords | Ended:
        """Apply a change, or say why the session stands elsewhere.

        Raises:
            NumberTakenError: The number of a new session was claimed before.
            SessionConflictError: A new session stands beside another one of its task,
                or the task was changed.
            SessionsSpentError: A new session would exceed the task's budget.
            LeaseLostError: The change's lease is no longer held.
            BudgetSpentError: The charge exceeds the client's budget for the task.
            NoiseChangedError: The task was charged with other noise before.
            DuplicateRecordError: A second record of one kind from one sender: the
                caller should have noticed.  Commit the others without it.
            StateDamagedError: What is stored does not fit together.
            ServiceError: STORAGE_FAILED; also for a session that does not exist.
                Nothing is known of the change: load, and judge again.
        """
        ...

    async def touch(self) -> None:
        """Write, as a change does, and change nothing: to know that it can be done.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        ...

    async def now(self) -> float:
        """Return the book's time in Unix seconds."""
        ...

    async def load(self, key: str, *, after: int = 0) -> StoredSession | None:
        """Return a session with its records from number `after` on, or None.

        Raises:
            StateDamagedError: Sequence or chain do not fit.
            ServiceError: STORAGE_FAILED.
        """
        ...

    async def missed(
        self, key: str, *, expect: int, previous: bytes, restored: bool = False
    ) -> MissedRecords | Ended:
        """Return what a writer does not know of a session, as `commit` would.

        Args:
            key: The session.
            expect: How many records the writer knows.
            previous: Chain value at that position.
            restored: As `Change.restored`.

        Returns:
            `MissedRecords`, without records where the writer knows all.

        Raises:
            StateDamagedError: Sequence or chain do not fit.
            ServiceError: STORAGE_FAILED; also for a session that does not exist, or is
                of an older timeline.
        """
        ...

    async def sessions(
        self,
        *,
        role: Role,
        task: str | None = None,
        state: SessionState = SessionState.RUNNING,
        before: int | None = None,
        limit: int | None = None,
    ) -> tuple[SessionRow, ...]:
        """Return sessions, the newest first.

        Args:
            role: Whose side.
            task: Only of this task.
            state: Which ones.
            before: Only those older than this `SessionRow.position`.
            limit: At most so many.
        """
        ...

    async def tally(self, role: Role, task: str, *, peer: str = "") -> Tally:
        """Return what the sessions of a task leave behind for good."""
        ...

    async def tasks(self) -> tuple[TaskRow, ...]:
        """Return the tasks in the order of their names."""
        ...

    async def put_task(self, task: Task, *, expect_version: int) -> bool:
        """Store a task, if it still has this version; 0 for a new one.

        Returns:
            False, and nothing has changed, when somebody else was faster.
        """
        ...

    async def put_facts(self, task: str, facts: bytes, *, instead_of: bytes) -> bool:
        """Store what a task knows from its sessions, as `Change.facts` does.

        For what becomes known between sessions.

        Returns:
            False, and nothing has changed, when the task knew something else.
        """
        ...

    async def take(self, name: str, *, holder: str, seconds: float) -> Lease | None:
        """Take a lease that is free, has expired, or is the holder's already.

        It is free, too, when whoever holds it is seen to have ended.

        Returns:
            The lease, under a new token; None while somebody else holds it.
        """
        ...

    async def renew(self, lease: Lease, *, seconds: float) -> bool:
        """Hold a lease for some seconds from now on; False when it has passed on."""
        ...

    async def give_back(self, lease: Lease) -> None:
        """Let others have a lease; nothing happens when it has passed on."""
        ...

    def changes(self) -> AsyncIterator[None]:
        """Yield whenever others may have written; ends with the book.

        A hint: several changes may come as one, and nothing may have changed.
        """
        ...

    async def blobs_name(self, proposed: bytes | None) -> bytes | None:
        """Return the name of the store that keeps this book's blobs, or None.

        Args:
            proposed: Its name from now on, if it has none yet; None to ask only.
        """
        ...

    async def heartbeat(self, replica: Replica) -> None:
        """Say that a replica is at work.

        Time in which none was counts for no deadline.

        Raises:
            ServiceError: BAD_SETTINGS; others are at work under another name.  Of two
                that come at once one is refused.
        """
        ...

    async def replicas(self) -> tuple[ReplicaRow, ...]:
        """Return who shares the book, or has of late; nobody where it is not shared."""
        ...

    async def charges(self, task: str) -> tuple[ChargeRow, ...]:
        """Return the charges of a task, in the order in which they were made."""
        ...

    async def claims(self, data: str | None = None) -> tuple[ClaimRow, ...]:
        """Return the claims on data, in the order in which they were made.

        Args:
            data: Name of the data; None for all.
        """
        ...

    async def put_claim(self, claim: Claim, *, after: int) -> bool:
        """Add a claim, if its data have as many as the caller has judged.

        Returns:
            False, and nothing has changed, when somebody else was faster.
        """
        ...

    async def mark(self) -> Mark | None:
        """Return name and generation of the book."""
        ...

    async def settle(self, settlement: Settlement) -> None:
        """Settle the charge of a session that has ended without an answer.

        A session that is still open is settled by the change that ends it.  What is
        settled stays as it is, and a session that was never charged has no charge.
        """
        ...

    async def seen_revocations(
        self, enrolment_key: bytes, trust_domain: str
    ) -> Trust | None:
        """Return what names the newest revocation list that was read, or None."""
        ...

    async def see_revocations(self, trust: Trust) -> None:
        """Remember a revocation list that was read whole; it is never forgotten.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION; a newer one, or another one of the
                same number, was seen before.
        """
        ...

    async def purge(self, policy: Retention) -> PurgeResult:
        """Remove receipts that nobody needs any more."""
        ...

    async def check(self) -> tuple[Finding, ...]:
        """Verify everything; return what does not fit."""
        ...

    async def close(self) -> None:
        """Finish what is under way and release the book."""
        ...


class StoreUnavailableError(ServiceError):
    """The book cannot be reached: its database is down, or on another machine by now.

    Whether the last change was written is not known.  It may be back at any moment, and
    a process that waits for it needs no restart.
    """

    def __init__(self, complaint: str, *, next_step: str) -> None:
        super().__init__(
            complaint,
            code=ErrorCode.STORAGE_FAILED,
            next_step=next_step,
            retry_after_seconds=AWAY_SECONDS,
        )


class StateDamagedError(ServiceError):
    """What is stored does not fit together.

    Attributes:
        key: The session, or "" for the book as a whole.
        record: Number of the first record that does not fit, or None.
    """

    def __init__(
        self, complaint: str, *, key: str = "", record: int | None = None
    ) -> None:
        where = f"session {key}: " if key else ""
        super().__init__(
            f"the state is damaged: {where}{complaint}",
            code=ErrorCode.STATE_DAMAGED,
            next_step="This machine's disk or a foreign program changed it; no peer "
            "can. Check the disk, then move the state away: a client needs a new "
            "enrolment, a server a new task id.",
        )
        self.key: Final = key
        self.record: Final = record


class StoreFailoverError(ServiceError):
    """A session was begun before the database's fail-over.

    The new primary may have forgotten a step that clients were told of: whatever was
    to be written would then begin a second history.
    """

    def __init__(self, key: str) -> None:
        super().__init__(
            f"session {key} was begun before the database failed over: what was sent "
            "for it may be forgotten",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Wait: the aggregator ends the session, and its inputs count as "
            "summed.",
        )


def unknown_session(key: str) -> ServiceError:
    """Build the error for a change of a session that was never created."""
    return ServiceError(
        f"session {key} does not exist here",
        code=ErrorCode.STORAGE_FAILED,
        next_step="Do not delete or exchange the state of a running session.",
    )
