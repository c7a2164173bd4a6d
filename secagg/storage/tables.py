"""Tables of a store, in the SQL that both engines understand.

Rule 1: a statement names its arguments `$1`, `$2`, and holds no word that only one
        engine knows.  What differs is a method of `Connection`.
Rule 2: on SQLite every row carries a checksum over its types and values. A flipped bit
        is then an error and never another value.  PostgreSQL has checksums of its pages
        instead.  Records are chained, headers are bound by the start of the chain, on
        both.
Rule 3: a time is an INTEGER of milliseconds since 1970.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from secagg.crypto.canonical import Writer
from secagg.storage.change import Lease, NewSession, Record
from secagg.storage.rows import Replica, ReplicaRow
from secagg.storage.store import StateDamagedError

Row: TypeAlias = Sequence[Any]
"""The columns of one row, in the order of the statement."""

_Row = TypeVar("_Row", bound=tuple[Any, ...])

MILLISECONDS: Final = 1000
_CHECKSUM_BYTES: Final = 16
_CHAIN_BYTES: Final = 16
"""Bytes of a chain value: enough against a disk; it is no defence against a forger."""
_CHAIN_LABEL: Final = "secagg store v1"


class Sharing(Protocol):
    """What replicas that share a store know of one another."""

    async def acquire(self, name: str, *, holder: str, seconds: float) -> Lease | None:
        """Acquire a lease under a new token; None while another process holds it."""

    async def renew(self, lease: Lease, *, seconds: float) -> bool:
        """Extend a lease; False if its holder has lost it."""

    async def release(self, lease: Lease) -> None:
        """Release a lease that this holder still has."""

    async def heartbeat(self, replica: Replica) -> None:
        """Record that a replica runs."""

    async def bind_blobs(self, name: bytes | None) -> bytes | None:
        """Return the name of the object store; store `name` if none is."""

    async def replicas(self) -> tuple[ReplicaRow, ...]:
        """List the replicas that share the store."""


class Connection(Protocol):
    """Runs one transaction of an engine, a call at a time.

    Attributes:
        is_checksummed: Whether rows carry checksums of their own.
        is_attended: Whether a replica was alive within the last seconds.  While none
            was, no timer closes a round: deadlines are moved first.
        duplicate_error: The exception of `executemany` for a second row under a unique
            key.
        sharing: Leases and replicas.
    """

    is_checksummed: bool
    is_attended: bool
    duplicate_error: type[Exception]
    sharing: Sharing

    async def execute(self, sql: str, *arguments: object) -> object:
        """Run a statement."""

    async def executemany(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement once for each sequence of arguments."""

    async def fetch(self, sql: str, *arguments: object) -> Sequence[Row]:
        """Return the rows of a query."""

    async def fetchrow(self, sql: str, *arguments: object) -> Row | None:
        """Return the first row of a query, or None."""

    async def now(self) -> int:
        """Return the store's time in milliseconds."""

    async def lock(self, name: str) -> None:
        """Keep other transactions that lock this name waiting until this one ends."""

    async def next_position(self) -> int:
        """Return the position of a new session."""

    async def timeline(self) -> str:
        """Return the history that the database is on; another after each fail-over."""

    async def notify(self) -> None:
        """Notify the other replicas when the transaction commits."""

    async def faults(self) -> list[str]:
        """Return the faults of the engine's own structures."""


class SessionColumns(NamedTuple):
    """Names the columns of a session, without its header."""

    position: int
    key: str
    role: str
    task: str
    peer: str
    number: int
    sequence: int
    round: int
    opened: int | None
    deadline: int | None
    born: int
    start: bytes
    chain: bytes
    ended: int | None
    receipt: bytes | None
    timeline: str
    spent: bool
    restored: bool


class TallyColumns(NamedTuple):
    """Names the columns of what sessions leave behind for good."""

    role: str
    task: str
    peer: str
    highest_number: int
    spent: int
    facts: bytes


class TaskColumns(NamedTuple):
    """Names the columns of a task."""

    task_id: str
    version: int
    state: str
    settings: str
    plan: bytes
    reason: str


class ChargeColumns(NamedTuple):
    """Names the columns of a charge."""

    trust_domain: str
    aggregator: str
    task: str
    session_id: bytes
    noise_digest: bytes
    state: int
    allowed: int
    refunds: int
    at: int


class ClaimColumns(NamedTuple):
    """Names the columns of a claim on data."""

    data: str
    holder: bytes
    trust_domain: str
    aggregator: str
    task: str
    noise_digest: bytes
    against: str
    epsilon: float
    delta: float
    shift: float | None
    distance: float
    added_delta: float
    at: int


class RevocationColumns(NamedTuple):
    """Names the columns of the newest revocation list of one issuer."""

    enrolment_key: bytes
    trust_domain: str
    number: int
    digest: bytes


class ChecksummedTable(Generic[_Row]):
    """Reads and writes the whole rows of a table, with checksums where it has them.

    Args:
        name: Name of the table.
        kind: Names the columns and their types; the text of a table has further ones.
        unique: Columns that name a row.

    Attributes:
        types: The type of each column of `kind`, by its name.
    """

    def __init__(self, name: str, kind: Callable[..., _Row], *unique: str) -> None:
        self._name = name
        self._kind = kind
        self.types: Final[Mapping[str, Any]] = kind.__annotations__
        self._columns = tuple(self.types)
        self._unique = unique
        self._key = [self._columns.index(column) for column in unique]
        self._put = cache(self._put_text)
        self._update = cache(self._update_text)
        self._select = cache(self._select_text)

    async def put(self, connection: Connection, row: _Row, **uncovered: object) -> None:
        """Insert a row, or replace the one with the same key.

        Args:
            connection: A connection in a transaction.
            row: The row.
            uncovered: Further columns, which the checksum does not cover.
        """
        names, values = (*self._columns, *uncovered), (*row, *uncovered.values())
        if connection.is_checksummed:
            names, values = (*names, "seal"), (*values, self._checksum(row))
        await connection.execute(self._put(names), *values)

    async def update(self, connection: Connection, old: _Row, new: _Row) -> None:
        """Write the changed columns of a row that was found, and no unneeded index."""
        names, values = [], []
        for name, before, now in zip(self._columns, old, new, strict=True):
            if now != before:
                names.append(name)
                values.append(now)
        if not names:
            return
        if connection.is_checksummed:
            names.append("seal")
            values.append(self._checksum(new))
        text = self._update(tuple(names))
        await connection.execute(text, *values, *[old[place] for place in self._key])

    async def find(
        self, connection: Connection, where: str, *arguments: object
    ) -> list[_Row]:
        """Return the rows that fulfil a condition.

        Raises:
            StateDamagedError: The checksum of a row is wrong.
        """
        text = self._select(where, is_checksummed=connection.is_checksummed)
        found = await connection.fetch(text, *arguments)
        if not connection.is_checksummed:
            return [self._kind(*row) for row in found]
        return [self._verified(row) for row in found]

    async def one(
        self, connection: Connection, where: str, *arguments: object
    ) -> _Row | None:
        """Return the row that fulfils a condition, or None.

        Raises:
            StateDamagedError: The checksum of the row is wrong.
        """
        text = self._select(where, is_checksummed=connection.is_checksummed)
        row = await connection.fetchrow(text, *arguments)
        if row is None:
            return None
        return self._verified(row) if connection.is_checksummed else self._kind(*row)

    def _verified(self, row: Row) -> _Row:
        """Return a row without its checksum, which must be right."""
        values = row[:-1]
        if row[-1] != self._checksum(values):
            named = row[1] if self._kind is SessionColumns else ""
            raise StateDamagedError(
                f"a row of the table {self._name!r} does not have its checksum",
                key=named if isinstance(named, str) else repr(named),
            )
        return self._kind(*values)

    def _select_text(self, where: str, *, is_checksummed: bool) -> str:
        names = (*self._columns, "seal") if is_checksummed else self._columns
        return f"SELECT {', '.join(names)} FROM {self._name} WHERE {where}"  # noqa: S608 - our names

    def _put_text(self, names: tuple[str, ...]) -> str:
        """Return the statement that writes a row, or replaces it."""
        places = ", ".join(f"${place}" for place in range(1, len(names) + 1))
        return (
            f"INSERT INTO {self._name} ({', '.join(names)}) VALUES ({places}) "  # noqa: S608 - our names
            f"ON CONFLICT ({', '.join(self._unique)}) DO UPDATE SET "
            + ", ".join(f"{name} = excluded.{name}" for name in names)
        )

    def _update_text(self, names: tuple[str, ...]) -> str:
        """Return the statement that writes these columns of one row."""
        numbered = [f"{name} = ${place}" for place, name in enumerate(names, 1)]
        where = [
            f"{name} = ${place}"
            for place, name in enumerate(self._unique, len(names) + 1)
        ]
        return (
            f"UPDATE {self._name} SET {', '.join(numbered)} "  # noqa: S608 - our names
            f"WHERE {' AND '.join(where)}"
        )

    def _checksum(self, values: Sequence[object]) -> bytes:
        # Literals tell all types and values apart.  What comes back for `True`, or for
        # the member of an enumeration, is a plain number.
        plain = [int(each) if isinstance(each, int) else each for each in values]
        data = f"secagg store row v1 {self._name} {plain!a}"
        return sha256(data.encode("ascii")).digest()[:_CHECKSUM_BYTES]


SESSIONS: Final = ChecksummedTable("session", SessionColumns, "position")
TALLIES: Final = ChecksummedTable("tally", TallyColumns, "role", "task", "peer")
TASKS: Final = ChecksummedTable("task", TaskColumns, "task_id")
CHARGES: Final = ChecksummedTable(
    "charge", ChargeColumns, "trust_domain", "aggregator", "task", "session_id"
)
CLAIMS: Final = ChecksummedTable(
    "claim",
    ClaimColumns,
    *("data", "holder", "trust_domain", "aggregator", "task", "noise_digest"),
)
REVOCATIONS: Final = ChecksummedTable(
    "revocation", RevocationColumns, "enrolment_key", "trust_domain"
)


def chain_start(key: str, new: NewSession) -> bytes:
    """Return the chain value before the first record: it binds name and header."""
    writer = Writer().text(_CHAIN_LABEL).text(key).text(new.role).text(new.task)
    writer.text(new.peer).u64(new.number).blob(new.header)
    return sha256(writer.getvalue()).digest()[:_CHAIN_BYTES]


def chain_next(chain: bytes, sequence: int, record: Record) -> bytes:
    """Return the chain value after a record, which binds the one before it.

    Args:
        chain: Value before it.
        sequence: Its number.
        record: The record.
    """
    writer = Writer().fixed(chain).u64(sequence).u16(record.kind)
    writer.blob((record.sender or "").encode(errors="surrogateescape"))
    writer.blob(record.body)
    return sha256(writer.getvalue()).digest()[:_CHAIN_BYTES]


def chains_after(chain: bytes, sequence: int, records: Iterable[Record]) -> list[bytes]:
    """Return the chain value after each of several records.

    Args:
        chain: Value before the first.
        sequence: Number of the first.
        records: The records.
    """
    chains = []
    for number, record in enumerate(records, sequence):
        chain = chain_next(chain, number, record)
        chains.append(chain)
    return chains
