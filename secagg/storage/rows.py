"""What a store returns of sessions, tasks and replicas."""

from dataclasses import dataclass, field
from enum import StrEnum, unique

from secagg.storage.change import Record, Role


@unique
class SessionState(StrEnum):
    """Which sessions are asked for."""

    RUNNING = "running"
    ENDED = "ended"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A session as it is stored; sequence and chain have been verified.

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
        opened: When, in Unix seconds of the store; None when none was named.
        deadline: Of that round, in Unix seconds of the store, or None.
        seconds_left: Until the deadline as of this call, or None.
        receipt: What the end left behind; None while the session runs.
        spent: It uses one of its task's sessions.
        restored: It was open in a store that was restored from a backup: every input
            of it counts as summed.
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
        position: Grows with every session of the store.
        key: Its name.
        role: Whose side.
        task: Name of the task.
        number: Its number.
        round: The round that was opened last.
        sequence: How many records there are.
        born: When it was created, in Unix seconds.
        ended: When it ended; None while it runs.
        spent: See `StoredSession`.
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
    spent: bool
    restored: bool


@unique
class TaskState(StrEnum):
    """What an operator has ordered for a task."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Task:
    """A task as its operator settled it.

    Attributes:
        task_id: Its name.
        state: What the operator has ordered.
        settings: The settings it was made from, as text.
        plan: What was worked out from them, once and for all.
        reason: Why it is paused or stopped, in words; "" while it runs.
    """

    task_id: str
    state: TaskState
    settings: str
    plan: bytes = field(repr=False)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tally:
    """What sessions of one role, task and peer leave behind for good.

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
class Retention:
    """How long receipts stay.  Nothing else is ever removed.

    Attributes:
        keep_receipts_days: Older receipts go.
        keep_receipts: Of each role and task, as many stay at most.
    """

    keep_receipts_days: float = 400.0
    keep_receipts: int = 10_000


@dataclass(frozen=True, slots=True)
class Replica:
    """One of the aggregators that share a store.

    Attributes:
        name: Unique among all that ever were.
        address: Where it listens, to be shown to operators.
        version: Its release.
        aggregator: The name in its certificate, which clients demand.
    """

    name: str
    address: str
    version: str
    aggregator: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """What a store knows of a replica.

    Attributes:
        replica: As it states itself.
        started: When it was seen first, in Unix seconds of the store.
        silent_seconds: How long it has not been seen.
    """

    replica: Replica
    started: float
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault that `secagg.storage.queries.FindFaults` found.

    Attributes:
        key: The session, or "" for the store as a whole.
        complaint: What does not fit.
    """

    key: str
    complaint: str
