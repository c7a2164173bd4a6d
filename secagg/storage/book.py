"""The durable book of one party: its interface, its words and its pure rules.

Rule 1: a `Change` is everything that one step does.  It is applied whole or not at all,
        and `Book.commit` answers when it is on the disk and, where there is one, in the
        rollback mark.  After any exception nothing is known: load, and judge again.
Rule 2: a change names the position that its writer knows, by count *and* chain value.
        Whoever is behind is told what it missed, and nothing is written.
Rule 3: a session number that was claimed stays claimed, a spent session stays spent,
        a charge stays where it is and a task keeps its facts, whatever happens to the
        session.
Rule 4: every record is chained to those before it and to the header, every other row
        carries a checksum.  What does not fit is this machine's fault, never a peer's.
Rule 5: a session that has ended is scrubbed: header and records, which hold seeds and
        shares, are overwritten; its receipt stays.

A book does not look into headers, bodies and receipts.  Vectors do not belong here but
into `secagg.storage.spool`.  Books are opened by `secagg.storage.open_book`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum, unique
from hashlib import sha256
from typing import Final, Protocol

from secagg.errors import (
    ErrorCode,
    InternalError,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
)
from secagg.primitives.canonical import Writer

__all__ = [
    "Behind",
    "Book",
    "Budget",
    "BudgetSpentError",
    "Change",
    "Charge",
    "ChargeRow",
    "ChargeState",
    "Committed",
    "Ended",
    "Finding",
    "NewSession",
    "NoiseChangedError",
    "NumberTakenError",
    "Purged",
    "Record",
    "Resealed",
    "Retention",
    "Role",
    "SecondRecordError",
    "SessionRow",
    "SessionState",
    "SessionsSpentError",
    "Settlement",
    "StateDamagedError",
    "StoredSession",
    "Tally",
    "Task",
    "TaskRow",
    "TaskState",
    "budget_of",
    "chain_next",
    "chain_start",
    "is_new_charge",
    "settled",
    "unknown_session",
]

CHAIN_BYTES: Final = 16
"""Bytes of a chain value: enough against a disk; it is no defence against a forger."""

MAX_KIND: Final = (1 << 16) - 1
"""Kinds are written as u16."""

_CHAIN_LABEL: Final = "secagg book v1"


@unique
class Role(StrEnum):
    """Whose side of a session is kept."""

    SERVER = "server"
    CLIENT = "client"


@unique
class SessionState(StrEnum):
    """Which sessions are asked for."""

    RUNNING = "running"
    ENDED = "ended"
    ALL = "all"


@unique
class TaskState(StrEnum):
    """What an operator has said about a task."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@unique
class ChargeState(IntEnum):
    """What became of an input that was charged."""

    BOUND = 1
    """It may leave or has left; the session goes on."""
    KEPT = 2
    """A sum with it was released, or nothing is known.  Final."""
    VOID = 3
    """Given back: no sum with it exists or can exist.  Final, and not counted."""


# --- what a step does ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a session's journal.

    Attributes:
        kind: What it is, in [0, 2^16).
        sender: Whose message it is, not empty; None for what the owner decided itself.
            A session holds at most one record of a kind from each sender.
        body: Its bytes.
    """

    kind: int
    sender: str | None
    body: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse what a chain could not tell apart.

        Raises:
            LocalProtocolError: The calling program is at fault.
        """
        if not 0 <= self.kind <= MAX_KIND or self.sender == "":
            raise LocalProtocolError(
                f"a record has a kind up to {MAX_KIND}, and its sender a name"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """The session that a change creates.

    Attributes:
        role: Whose side.
        task: Name of the task.
        number: Its number; exceeds every number claimed before by the same role for
            this task and peer.
        header: What the session starts with.
        peer: At a client, the aggregator that numbers the sessions; else empty.
        allowed: Sessions of the task that may ever be spent, these included that still
            run; None for a task without a budget.
    """

    role: Role
    task: str
    number: int
    header: bytes = field(repr=False)
    peer: str = ""
    allowed: int | None = None


@dataclass(frozen=True, slots=True)
class Resealed:
    """What replaces header and records of a session; the old ones are overwritten.

    A client that has answered needs neither its seed nor the bundles any more, only
    its answer.

    Attributes:
        header: The new header.
        records: The new records, numbered from 0.
    """

    header: bytes = field(repr=False)
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A session of a task with noise takes its input into the client's budget.

    Attributes:
        task: Name of the task.
        session_id: Of the session, the name of the charge.
        noise_digest: SHA-256 of the task's description of its noise.
        allowed: Sessions that the budget covers, spare ones included.
    """

    task: str
    session_id: bytes
    noise_digest: bytes
    allowed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What became of a charge.

    Attributes:
        task: Name of the task.
        session_id: Of the session.
        state: KEPT or VOID.
    """

    task: str
    session_id: bytes
    state: ChargeState


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Everything that one step does, applied whole or not at all.

    Attributes:
        key: Name of the session.
        expect: How many records it holds as the writer knows it; 0 with `create`.
        previous: Chain value at that position; empty with `create`.
        due: A timer closes the round: refused while the deadline lies ahead.
        spend: Server: the session uses one of the task's.  Counts once per session.
        records: Appended.
        create: The session begins.
        reseal: Header and records are replaced, and the chain starts afresh.
        round: The round that this step opens, if it opens one.
        deadline_seconds: Time that the open round has left, from now on; None leaves
            the deadline alone.
        charge: Client: its input is charged.
        settle: Client: it is known what became of the input.
        end: Receipt of a session that is over; header and records are overwritten.
        facts: What the task knows from its sessions from now on, in place of what it
            knew.
    """

    key: str
    expect: int = 0
    previous: bytes = b""
    due: bool = False
    spend: bool = False
    records: tuple[Record, ...] = ()
    create: NewSession | None = None
    reseal: Resealed | None = None
    round: int | None = None
    deadline_seconds: float | None = None
    charge: Charge | None = None
    settle: Settlement | None = None
    end: bytes | None = field(default=None, repr=False)
    facts: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            LocalProtocolError: The calling program is at fault.
        """
        if self.create is not None and (self.expect or self.previous):
            raise LocalProtocolError("a session that begins has no position yet")
        if self.reseal is not None and (self.records or self.create is not None):
            raise LocalProtocolError("a session is either replaced or goes on")
        if self.end is not None and (
            self.records or self.create is not None or self.reseal is not None
        ):
            raise LocalProtocolError("a session that ends keeps nothing but a receipt")
        if self.settle is not None and self.settle.state is ChargeState.BOUND:
            raise LocalProtocolError("a charge is settled as kept or as void")


# --- what a book answers --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Committed:
    """The change is on the disk.

    Attributes:
        sequence: How many records the session holds now.
        chain: Chain value at this position; `Change.previous` of the next step.
        seconds_left: Until the open round's deadline, negative when it has passed;
            None without a deadline.
    """

    sequence: int
    chain: bytes
    seconds_left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """Nothing was written: the session stands elsewhere than the writer believed.

    An answer, not an error: apply the records and judge afresh.  Without records, and
    when `whole` is false, a timer came too early: wait for `seconds_left` seconds.

    Attributes:
        records: What the writer missed.
        whole: The writer's own history is not this session's: these are all records.
            Load the session; its header may have changed too.
        sequence: How many records the session holds.
        chain: Chain value at this position.
        round: The open round.
        seconds_left: Until its deadline; None without one.
    """

    records: tuple[Record, ...] = field(repr=False)
    whole: bool
    sequence: int
    chain: bytes
    round: int
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing was written: the session is over.

    Attributes:
        receipt: What its end left behind.
    """

    receipt: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A session as the book holds it; sequence and chain have been verified.

    Attributes:
        key: Its name.
        role: Whose side.
        task: Name of the task.
        peer: Who numbers its sessions; empty at a server.
        number: Its number.
        header: What it was created with, or resealed; empty when it has ended.
        records: From the position that was asked for; empty when it has ended.
        sequence: How many records there are in all.
        chain: Chain value at this position.
        round: The round that was opened last; 0 when none was named.
        opened: When, in Unix seconds of the book; None when none was named.
        deadline: Of that round, in Unix seconds of the book, or None.
        seconds_left: Until the deadline as of this call, or None.
        receipt: What the end left behind; None while the session runs.
        spent: It uses one of its task's sessions.
        restored: It was open in a book that was put back from an older state: every
            input of it counts as summed.
        timeline: Of the database that wrote it; empty on SQLite.
    """

    key: str
    role: Role
    task: str
    peer: str
    number: int
    header: bytes = field(repr=False)
    records: tuple[Record, ...] = field(repr=False)
    sequence: int
    chain: bytes
    round: int
    opened: float | None
    deadline: float | None
    seconds_left: float | None
    receipt: bytes | None = field(repr=False)
    spent: bool
    restored: bool
    timeline: str

    @property
    def ended(self) -> bool:
        """Whether only the receipt is left."""
        return self.receipt is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """One line of a list of sessions.

    Attributes:
        position: Grows with every session of the book.
        key: Its name.
        role: Whose side.
        task: Name of the task.
        number: Its number.
        round: The round that was opened last.
        sequence: How many records there are.
        born: When it was created, in Unix seconds.
        ended: When it ended; None while it runs.
        restored: See `StoredSession`.
    """

    position: int
    key: str
    role: Role
    task: str
    number: int
    round: int
    sequence: int
    born: float
    ended: float | None
    restored: bool


@dataclass(frozen=True, slots=True)
class Task:
    """A task as its operator settled it.

    Attributes:
        task_id: Its name.
        state: What the operator has said.
        settings: The settings it was made from, as text.
        plan: What was worked out from them, once and for all.
    """

    task_id: str
    state: TaskState
    settings: str
    plan: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tally:
    """What sessions leave behind for good, for one role, task and peer.

    Attributes:
        highest_number: The highest session number ever claimed; 0 before the first.
        spent: Sessions that used one of the task's.
        facts: What the last `Change.facts` said; empty before the first.
    """

    highest_number: int = 0
    spent: int = 0
    facts: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A stored task.

    Attributes:
        task: As it was put.
        version: Counts how often it was put, from 1.
        tally: Of the server's sessions.
    """

    task: Task
    version: int
    tally: Tally


@dataclass(frozen=True, slots=True)
class ChargeRow:
    """One line of a client's ledger.

    Attributes:
        session_id: Of the session.
        noise_digest: SHA-256 of the task's description of its noise.
        state: What became of the input.
        at: When the state was set, in Unix seconds.
    """

    session_id: bytes
    noise_digest: bytes
    state: ChargeState
    at: float


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of a task's budget is used.

    Attributes:
        given: Sessions that count: bound or kept.
        void: Sessions that were given back.
        left: Sessions that may still be charged.
    """

    given: int
    void: int
    left: int


@dataclass(frozen=True, slots=True)
class Retention:
    """How long receipts stay.  Nothing else is ever removed.

    Attributes:
        keep_receipts_days: Older receipts go.
        keep_receipts: Of each role and task, as many stay at most.
    """

    keep_receipts_days: float = 400.0
    keep_receipts: int = 10_000


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge removed.

    Attributes:
        keys: Sessions whose receipts are gone.
    """

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault that `Book.check` found.

    Attributes:
        key: The session, or "" for the book as a whole.
        complaint: What does not fit.
    """

    key: str
    complaint: str


class Book(Protocol):
    """The durable book of one party."""

    async def commit(self, change: Change) -> Committed | Behind | Ended:
        """Apply a change, or say why the session stands elsewhere.

        Raises:
            NumberTakenError: The number of a new session was claimed before.
            SessionsSpentError: A new session would exceed the task's budget.
            BudgetSpentError: The charge exceeds the client's budget for the task.
            NoiseChangedError: The task was charged with other noise before.
            SecondRecordError: A second record of one kind from one sender: the caller
                should have noticed.  Commit the others without it.
            StateDamagedError: What is stored does not fit together.
            ServiceError: STORAGE_FAILED; also for a session that does not exist.
                Nothing is known of the change: load, and judge again.
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

    async def charges(self, task: str) -> tuple[ChargeRow, ...]:
        """Return the charges of a task, in the order in which they were made."""
        ...

    async def settle(self, settlement: Settlement) -> None:
        """Settle the charge of a session that has ended without an answer.

        A session that is still open is settled by the change that ends it.  What is
        settled stays as it is, and a session that was never charged has no charge.
        """
        ...

    async def purge(self, policy: Retention) -> Purged:
        """Remove receipts that nobody needs any more."""
        ...

    async def check(self) -> tuple[Finding, ...]:
        """Verify everything; return what does not fit."""
        ...

    async def close(self) -> None:
        """Finish what is under way and release the book."""
        ...


# --- what can be refused --------------------------------------------------------------


class NumberTakenError(ServiceError):
    """A session number was claimed before.

    Attributes:
        highest: The highest number claimed so far.
    """

    def __init__(self, new: NewSession, *, highest: int) -> None:
        super().__init__(
            f"session number {new.number} of task {new.task!r} cannot be used: numbers "
            f"up to {highest} are taken",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Wait for the next session.",
        )
        self.highest: Final = highest


class SessionsSpentError(ServiceError):
    """All sessions that a task's budget covers are used or running."""

    def __init__(self, new: NewSession, *, used: int) -> None:
        super().__init__(
            f"task {new.task!r} has used {used} sessions, its budget covers "
            f"{new.allowed}",
            code=ErrorCode.POLICY_VIOLATION,
            next_step="A new task id is a new budget, to be agreed on.",
        )


class BudgetSpentError(RemoteProtocolError):
    """A server asks a client for more sessions than the task's budget covers."""

    def __init__(self, charge: Charge, *, given: int) -> None:
        super().__init__(
            f"this client has given {given} sessions to task {charge.task!r}, whose "
            f"budget covers {charge.allowed}",
            code=ErrorCode.POLICY_VIOLATION,
            next_step="The budget is spent. A new task id is a new budget, to be "
            "agreed on.",
        )


class NoiseChangedError(RemoteProtocolError):
    """A server would begin a second budget under the name of the first."""

    def __init__(self, charge: Charge) -> None:
        super().__init__(
            f"task {charge.task!r} has changed its noise since this client first took "
            "part",
            code=ErrorCode.POLICY_VIOLATION,
            next_step="Ask the operator to run the new parameters under a new task id.",
        )


class SecondRecordError(InternalError):
    """A second record of one kind from one sender reached the book.

    Attributes:
        record: The one that was refused.
    """

    def __init__(self, key: str, record: Record) -> None:
        super().__init__(
            f"session {key} holds a record of kind {record.kind} from "
            f"{record.sender!r} already",
            next_step="Report it: the state machine should have refused it.",
        )
        self.record: Final = record


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


def unknown_session(key: str) -> ServiceError:
    """Build the error for a change of a session that was never created."""
    return ServiceError(
        f"session {key} does not exist here",
        code=ErrorCode.STORAGE_FAILED,
        next_step="Do not delete or exchange the state of a running session.",
    )


# --- the chain ------------------------------------------------------------------------


def chain_start(key: str, new: NewSession) -> bytes:
    """Return the chain value before the first record: it binds name and header."""
    writer = Writer().text(_CHAIN_LABEL).text(key).text(new.role).text(new.task)
    writer.text(new.peer).u64(new.number).blob(new.header)
    return sha256(writer.getvalue()).digest()[:CHAIN_BYTES]


def chain_next(chain: bytes, sequence: int, record: Record) -> bytes:
    """Return the chain value behind a record.

    Args:
        chain: Value before it.
        sequence: Its number.
        record: The record.
    """
    writer = Writer().fixed(chain).u64(sequence).u16(record.kind)
    writer.blob((record.sender or "").encode(errors="surrogateescape"))
    writer.blob(record.body)
    return sha256(writer.getvalue()).digest()[:CHAIN_BYTES]


# --- the budget -----------------------------------------------------------------------


def is_new_charge(charges: Iterable[ChargeRow], charge: Charge) -> bool:
    """Judge a charge against those made before.

    Args:
        charges: All charges of this task.
        charge: The one to be made.

    Returns:
        Whether it must be written; False when this session is charged already.

    Raises:
        NoiseChangedError: The task was charged with other noise before.
        BudgetSpentError: The budget is spent.
        InternalError: The session was given back and would be used again.
    """
    given = 0
    known: ChargeState | None = None
    for row in charges:
        if row.noise_digest != charge.noise_digest:
            raise NoiseChangedError(charge)
        if row.session_id == charge.session_id:
            known = row.state
        given += row.state is not ChargeState.VOID
    if known is ChargeState.VOID:
        raise InternalError(
            f"a session of task {charge.task!r} was given back and is charged again"
        )
    if known is None and given >= charge.allowed:
        raise BudgetSpentError(charge, given=given)
    return known is None


def settled(state: ChargeState, wanted: ChargeState) -> ChargeState:
    """Return what becomes of a charge: what is settled stays as it is."""
    return wanted if state is ChargeState.BOUND else state


def budget_of(charges: Iterable[ChargeRow], *, allowed: int) -> Budget:
    """Return how much of a task's budget is used.

    Args:
        charges: All charges of the task.
        allowed: Sessions that the budget covers.
    """
    states = [row.state for row in charges]
    void = states.count(ChargeState.VOID)
    given = len(states) - void
    return Budget(given=given, void=void, left=max(0, allowed - given))
