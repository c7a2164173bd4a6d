"""What a store returns of sessions, tasks and replicas."""

from dataclasses import dataclass, field
from enum import StrEnum, unique

from secagg.storage.change import Record, Side


@unique
class SessionState(StrEnum):
    """Selects sessions by their state."""

    RUNNING = "running"
    ENDED = "ended"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """Holds a session as it is stored; sequence and hash chain have been verified.

    Attributes:
        key: Its name.
        role: The side.
        task: Name of the task.
        peer: The aggregator that numbers its sessions; empty at a server.
        number: Its number.
        header: The header at its creation or last rewriting; empty when it has ended.
        records: The records from the requested position; empty when it has ended.
        sequence: Number of records in all.
        chain: Value of the hash chain at this position.
        round: The round that was opened last; 0 when none was named.
        opened: When that round was opened, in Unix seconds of the store; None without
            one.
        deadline: Deadline of that round, in Unix seconds of the store, or None.
        seconds_left: Until the deadline as of this call, or None.
        receipt: The receipt of its end; None while the session runs.
        spent: Whether it uses one of its task's sessions.
        restored: Whether it was open in a store that was restored from a backup: each
            of its inputs counts as summed.
        timeline: Timeline of the database that wrote it; empty on SQLite.
    """

    key: str
    role: Side
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
        """Whether only the receipt remains."""
        return self.receipt is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """Holds one line of a list of sessions.

    Attributes:
        position: Grows with every session of the store.
        key: Its name.
        role: The side.
        task: Name of the task.
        number: Its number.
        round: The round that was opened last.
        sequence: Number of records.
        born: When it was created, in Unix seconds.
        ended: When it ended; None while it runs.
        spent: See `StoredSession`.
        restored: See `StoredSession`.
    """

    position: int
    key: str
    role: Side
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
    """Names the state of a task that its operator chose."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Task:
    """Holds a task with its settings and its plan.

    Attributes:
        task_id: Its name.
        state: The state that the operator chose.
        settings: The settings of the task, as text.
        plan: The parameters that were computed from them, once.
        reason: Why it is paused or stopped, in words; "" while it runs.
    """

    task_id: str
    state: TaskState
    settings: str
    plan: bytes = field(repr=False)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SessionTally:
    """Holds what sessions of one role, task and peer leave behind for good.

    Attributes:
        highest_number: The highest session number ever claimed; 0 before the first.
        spent: Sessions that used one of the task's.
        facts: The last `Change.facts`; empty before the first.
    """

    highest_number: int = 0
    spent: int = 0
    facts: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class TaskRow:
    """Holds a stored task.

    Attributes:
        task: The task.
        version: Number of times it was stored, from 1.
        tally: SessionTally of the server's sessions.
    """

    task: Task
    version: int
    tally: SessionTally


@dataclass(frozen=True, slots=True)
class Retention:
    """States how long receipts are kept.  Nothing else is ever deleted.

    Attributes:
        keep_receipts_days: Older receipts are deleted.
        keep_receipts: Largest number of receipts of each role and task.
    """

    keep_receipts_days: float = 400.0
    keep_receipts: int = 10_000


@dataclass(frozen=True, slots=True)
class Replica:
    """Describes one of the aggregators that share a store.

    Attributes:
        name: Unique among all that ever existed.
        address: Where it listens, for operators.
        version: Its release.
        aggregator: The name in its certificate, which clients demand.
    """

    name: str
    address: str
    version: str
    aggregator: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """Holds what a store knows of a replica.

    Attributes:
        replica: The replica's own statement.
        started: When it was first seen, in Unix seconds of the store.
        silent_seconds: Time since its last heartbeat.
    """

    replica: Replica
    started: float
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class IntegrityFault:
    """Describes one fault that `secagg.storage.queries.FindFaults` found.

    Attributes:
        key: The session, or "" for the store as a whole.
        complaint: What is wrong.
    """

    key: str
    complaint: str
