"""Everything that one step does to a store, and what the store answers.

A `Change` is applied whole or not at all (`secagg.storage.store`).
"""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum, unique
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar

from secagg.errors import ErrorCode, InternalError, ServiceError
from secagg.storage.budget_ledger import Charge, ChargeState, Settlement

_Answer_co = TypeVar("_Answer_co", covariant=True)

_MAX_KIND: Final = (1 << 16) - 1
"""Kinds are written as u16."""


def first_number_after_restore() -> int:
    """Return the session number to continue from after a restore from a backup.

    Clients refuse a number that they have seen, and every lower one.  They would wait
    until the server has used all numbers that the backup lacks; and files of sums have
    numbers in their names.  The Unix seconds exceed every number in use, also when the
    same backup is restored twice: no task has a session every second.
    """
    return int(time.time())


class Query(ABC, Generic[_Answer_co]):
    """Asks a store a question and changes nothing; see `secagg.storage.queries`."""

    __slots__ = ()

    @abstractmethod
    async def run(self, connection: Any) -> _Answer_co:  # noqa: ANN401 - its type is above this module
        """Return the answer.

        Args:
            connection: A `secagg.storage.tables.Connection`; all that is read from it
                is of one moment.
        """


class Command(Generic[_Answer_co]):
    """Writes something, whole or not at all; the answer has one type."""

    __slots__ = ()


class StoreUpdate(Command[_Answer_co], ABC):
    """Writes between the steps of sessions; see `secagg.storage.changes`.

    Attributes:
        is_counted: Whether the commit raises the store's generation.
    """

    __slots__ = ()
    is_counted: ClassVar[bool] = True

    @abstractmethod
    async def run(self, connection: Any) -> _Answer_co:  # noqa: ANN401 - see above
        """Write, and return the answer.

        Args:
            connection: A `secagg.storage.tables.Connection`, in a transaction that an
                exception rolls back.
        """


@unique
class Side(StrEnum):
    """Names the side whose session is stored."""

    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Record:
    """Holds one line of a session's journal.

    Attributes:
        kind: What it is, in [0, 2^16).
        sender: Name of the message's sender, not empty; None for the owner's own
            decisions. A session holds at most one record of a kind from each sender.
        body: Its bytes.
    """

    kind: int
    sender: str | None
    body: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a record that the hash chain could not distinguish from another.

        Raises:
            LocalProtocolError: The calling program is at fault.
        """
        if not 0 <= self.kind <= _MAX_KIND or self.sender == "":
            raise ErrorCode.LOCAL_MISUSE.error(
                f"a record has a kind up to {_MAX_KIND}, and its sender a name"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """Describes the session that a change creates.

    Attributes:
        role: The side.
        task: Name of the task.
        number: Its number; exceeds every number claimed before by the same role for
            this task and peer.
        header: The parameters of the session.
        peer: At a client, the aggregator that numbers the sessions, with its trust
            domain; else empty.
        allowed: Sessions of task and peer that may ever be spent, with those that still
            run; None for a task without such a limit.
        alone: No other session of the task may be open.
        task_version: The task's row must still have this version; None for a task that
            has no row.
    """

    role: Side
    task: str
    number: int
    header: bytes = field(repr=False)
    peer: str = ""
    allowed: int | None = None
    alone: bool = False
    task_version: int | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Grants the right to do some work, among several processes, for a while.

    It only saves double work: what is written is compared in any case.

    Attributes:
        name: Name of the work.
        holder: The process.
        token: Counts the holders; it only grows.
    """

    name: str
    holder: str
    token: int


@dataclass(frozen=True, slots=True)
class RewrittenSession:
    """Replaces header and records of a session; the old ones are overwritten.

    A client that has answered needs neither its seed nor the bundles any more, only its
    answer.

    Attributes:
        header: The new header.
        records: The new records, numbered from 0.
    """

    header: bytes = field(repr=False)
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Command["Outcome"]):
    """Describes all that one step does, applied whole or not at all.

    Attributes:
        key: Name of the session.
        expect: How many records it holds as the writer knows it; 0 with `create`.
        previous: Value of the hash chain at that position; empty with `create`.
        due: A timer closes the round: the change is refused before the deadline.
        spend: The session uses one of the task's: at a server when U3 is fixed, at a
            client when the roster of a ring is accepted.  Counts once per session.
        records: Appended.
        create: The session begins.
        reseal: Header and records are replaced, and the hash chain starts again.
        round: The round that this step opens, if it opens one.
        deadline_seconds: Time that the open round has left, from now on; None leaves
            the deadline alone.
        extend: The deadline is only ever extended: a later one stays.
        lease: The lease that must still be held.
        restored: The writer knows that the session was open in a store that was
            restored from a backup. A writer that does not know it writes nothing.
        charge: Client: its input is charged.
        settle: Client: it is known what became of the input.
        end: Receipt of a session that is over; header and records are overwritten.
        facts: The history of the task from now on, in place of the stored one.
    """

    key: str
    expect: int = 0
    previous: bytes = b""
    due: bool = False
    spend: bool = False
    records: tuple[Record, ...] = ()
    create: NewSession | None = None
    reseal: RewrittenSession | None = None
    round: int | None = None
    deadline_seconds: float | None = None
    extend: bool = False
    lease: Lease | None = None
    restored: bool = False
    charge: Charge | None = None
    settle: Settlement | None = None
    end: bytes | None = field(default=None, repr=False)
    facts: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse a change that contradicts itself.

        Raises:
            LocalProtocolError: The calling program is at fault.
        """
        if self.create is not None and (self.expect or self.previous):
            raise ErrorCode.LOCAL_MISUSE.error(
                "a session that begins has no position yet"
            )
        if self.reseal is not None and (self.records or self.create is not None):
            raise ErrorCode.LOCAL_MISUSE.error(
                "a session is either replaced or continued"
            )
        if self.end is not None and (
            self.records or self.create is not None or self.reseal is not None
        ):
            raise ErrorCode.LOCAL_MISUSE.error(
                "a session that ends keeps nothing but a receipt"
            )
        if self.settle is not None and self.settle.state is ChargeState.BOUND:
            raise ErrorCode.LOCAL_MISUSE.error("a charge is settled as kept or as void")


@dataclass(frozen=True, slots=True)
class Committed:
    """Reports that the change is on the disk.

    Attributes:
        sequence: Number of records of the session.
        chain: Value of the hash chain at this position; `Change.previous` of the next
            step.
        seconds_left: Until the open round's deadline, negative when it has passed;
            None without a deadline.
    """

    sequence: int
    chain: bytes
    seconds_left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedRecords:
    """Reports that nothing was written: the writer has missed records of the session.

    This is an answer, not an error: apply the records and decide again.  Without
    records, and when `whole` is false, a timer came too early: wait for `seconds_left`
    seconds.

    Attributes:
        records: The records that the writer missed.
        whole: The writer's own history is not this session's: these are all records.
            Load the session; its header may have changed too.
        sequence: Number of records of the session.
        chain: Value of the hash chain at this position.
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
    """Reports that nothing was written: the session is over.

    Attributes:
        receipt: The receipt of its end.
    """

    receipt: bytes = field(repr=False)


Outcome: TypeAlias = Committed | MissedRecords | Ended


class NumberTakenError(ServiceError):
    """Reports that a session number was claimed before.

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


class SessionConflictError(ServiceError):
    """Reports that another process was faster: the caller must read the task again."""

    def __init__(self, new: NewSession, *, complaint: str) -> None:
        super().__init__(
            f"session {new.number} of task {new.task!r} is not opened: {complaint}",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Wait for the next session.",
        )


class LeaseLostError(ServiceError):
    """Reports that a lease has passed to another holder, or has expired."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(
            f"the lease {lease.name!r} is no longer held by {lease.holder}",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Do nothing: another aggregator resumes the work.",
        )


class SessionsSpentError(ServiceError):
    """Reports that all sessions that a task's budget covers are used or running."""

    def __init__(self, new: NewSession, *, used: int) -> None:
        super().__init__(
            f"task {new.task!r} has used {used} sessions, its budget covers "
            f"{new.allowed}",
            code=ErrorCode.POLICY_VIOLATION,
            next_step="A new task id is a new budget, to be agreed on.",
        )


class DuplicateRecordError(InternalError):
    """Reports that a second record of one kind from one sender reached the store.

    Attributes:
        record: The refused record.
    """

    def __init__(self, key: str, record: Record) -> None:
        super().__init__(
            f"session {key} holds a record of kind {record.kind} from "
            f"{record.sender!r} already",
            next_step="Report it: the state machine should have refused it.",
        )
        self.record: Final = record
