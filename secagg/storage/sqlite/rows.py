"""The book's tables in SQLite, and rows that notice when somebody has changed them.

Rule 1: every row carries a checksum over its types and values, so that a flipped bit
        is an error that says so and never another value.  Records are chained instead,
        headers are bound by the start of the chain.
Rule 2: a time is an INTEGER of milliseconds since 1970.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from operator import attrgetter
from typing import Final, Generic, TypeAlias, TypeVar

from secagg.storage.session_columns import SessionColumns
from secagg.storage.store import StateDamagedError

_Value: TypeAlias = int | float | str | bytes | None
_Row = TypeVar("_Row")

_SEAL_BYTES: Final = 16

_SCHEMA: Final = """
CREATE TABLE book (
    book_id BLOB NOT NULL,
    generation INTEGER NOT NULL
) STRICT;
CREATE TABLE session (
    position INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL,
    task TEXT NOT NULL,
    peer TEXT NOT NULL,
    number INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    round INTEGER NOT NULL,
    opened INTEGER,
    deadline INTEGER,
    born INTEGER NOT NULL,
    start BLOB NOT NULL,
    chain BLOB NOT NULL,
    ended INTEGER,
    receipt BLOB,
    timeline TEXT NOT NULL,
    spent INTEGER NOT NULL,
    restored INTEGER NOT NULL,
    seal BLOB NOT NULL,
    header BLOB NOT NULL DEFAULT x'',
    UNIQUE (role, task, peer, number)
) STRICT;
CREATE INDEX session_open ON session (role, task) WHERE ended IS NULL;
CREATE TABLE record (
    session INTEGER NOT NULL REFERENCES session (position),
    sequence INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    sender TEXT,
    chain BLOB NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (session, sequence)
) STRICT;
CREATE UNIQUE INDEX record_once ON record (session, kind, sender)
    WHERE sender IS NOT NULL;
CREATE TABLE tally (
    role TEXT NOT NULL,
    task TEXT NOT NULL,
    peer TEXT NOT NULL,
    highest_number INTEGER NOT NULL,
    spent INTEGER NOT NULL,
    facts BLOB NOT NULL,
    seal BLOB NOT NULL,
    UNIQUE (role, task, peer)
) STRICT;
CREATE TABLE task (
    task_id TEXT NOT NULL UNIQUE,
    version INTEGER NOT NULL,
    state TEXT NOT NULL,
    settings TEXT NOT NULL,
    plan BLOB NOT NULL,
    reason TEXT NOT NULL,
    seal BLOB NOT NULL
) STRICT;
CREATE TABLE charge (
    trust_domain TEXT NOT NULL,
    aggregator TEXT NOT NULL,
    task TEXT NOT NULL,
    session_id BLOB NOT NULL,
    noise_digest BLOB NOT NULL,
    state INTEGER NOT NULL,
    allowed INTEGER NOT NULL,
    refunds INTEGER NOT NULL,
    at INTEGER NOT NULL,
    seal BLOB NOT NULL,
    UNIQUE (trust_domain, aggregator, task, session_id)
) STRICT;
CREATE TABLE claim (
    data TEXT NOT NULL,
    holder BLOB NOT NULL,
    trust_domain TEXT NOT NULL,
    aggregator TEXT NOT NULL,
    task TEXT NOT NULL,
    noise_digest BLOB NOT NULL,
    against TEXT NOT NULL,
    epsilon REAL NOT NULL,
    delta REAL NOT NULL,
    shift REAL,
    distance REAL NOT NULL,
    added_delta REAL NOT NULL,
    at INTEGER NOT NULL,
    seal BLOB NOT NULL,
    UNIQUE (data, holder, trust_domain, aggregator, task, noise_digest)
) STRICT;
CREATE TABLE revocation (
    enrolment_key BLOB NOT NULL,
    trust_domain TEXT NOT NULL,
    number INTEGER NOT NULL,
    digest BLOB NOT NULL,
    seal BLOB NOT NULL,
    UNIQUE (enrolment_key, trust_domain)
) STRICT;
"""
SCHEMA: Final = tuple(part.strip() for part in _SCHEMA.split(";")[:-1])
"""The statements that make the tables, one by one."""


@dataclass(frozen=True, slots=True)
class TallyColumns:
    """What sessions leave behind for good."""

    role: str
    task: str
    peer: str
    highest_number: int
    spent: int
    facts: bytes


@dataclass(frozen=True, slots=True)
class TaskColumns:
    """A task."""

    task_id: str
    version: int
    state: str
    settings: str
    plan: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class ChargeColumns:
    """A charge."""

    trust_domain: str
    aggregator: str
    task: str
    session_id: bytes
    noise_digest: bytes
    state: int
    allowed: int
    refunds: int
    at: int


@dataclass(frozen=True, slots=True)
class ClaimColumns:
    """A claim on data."""

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


@dataclass(frozen=True, slots=True)
class RevocationColumns:
    """The newest revocation list of one issuer."""

    enrolment_key: bytes
    trust_domain: str
    number: int
    digest: bytes


class ChecksummedTable(Generic[_Row]):
    """A table whose rows are sealed: written and read whole."""

    def __init__(self, name: str, kind: type[_Row], *unique: str) -> None:
        columns = tuple(kind.__annotations__)
        self._name = name
        self._columns = columns
        self._unique = unique
        self._updates: dict[tuple[str, ...], str] = {}
        self._kind = kind
        self._values = attrgetter(*columns)
        names, marks = ", ".join((*columns, "seal")), ", ".join("?" * len(columns))
        self._select = f"SELECT {names} FROM {name} WHERE "  # noqa: S608 - our names
        self._put = (
            f"INSERT INTO {name} ({names}) VALUES ({marks}, ?) "  # noqa: S608 - ditto
            f"ON CONFLICT ({', '.join(unique)}) DO UPDATE SET "
            + ", ".join(
                f"{column} = excluded.{column}" for column in (*columns, "seal")
            )
        )

    def put(self, database: sqlite3.Connection, row: _Row) -> None:
        """Insert a row, or replace the one with the same key."""
        values = self._values(row)
        database.execute(self._put, (*values, self._seal(values)))

    def update(self, database: sqlite3.Connection, old: _Row, new: _Row) -> None:
        """Write what has changed of a row that was found, and no index without need."""
        values = self._values(new)
        pairs = zip(self._columns, self._values(old), values, strict=True)
        changed = {name: now for name, before, now in pairs if now != before}
        if not changed:
            return
        names = tuple(changed)
        if names not in self._updates:
            self._updates[names] = (
                f"UPDATE {self._name} SET "  # noqa: S608 - our names
                + ", ".join(f"{name} = ?" for name in (*names, "seal"))
                + " WHERE "
                + " AND ".join(f"{name} = ?" for name in self._unique)
            )
        where = (getattr(old, name) for name in self._unique)
        seal = self._seal(values)
        database.execute(self._updates[names], (*changed.values(), seal, *where))

    def find(
        self, database: sqlite3.Connection, where: str, *arguments: _Value
    ) -> Iterator[_Row]:
        """Yield the rows that fulfil a condition.

        Raises:
            StateDamagedError: A row does not have its checksum.
        """
        for found in database.execute(self._select + where, arguments).fetchall():
            if found[-1] != self._seal(found[:-1]):
                named = found[1] if self._kind is SessionColumns else ""
                raise StateDamagedError(
                    f"a row of the table {self._name!r} does not have its checksum",
                    key=named if isinstance(named, str) else repr(named),
                )
            yield self._kind(*found[:-1])

    def _seal(self, values: tuple[object, ...]) -> bytes:
        # Literals tell all types and values apart, and `True` from 1, which comes back.
        plain = [int(each) if isinstance(each, int) else each for each in values]
        data = f"secagg book row v1 {self._name} {plain!a}"
        return sha256(data.encode("ascii")).digest()[:_SEAL_BYTES]


SESSIONS: Final = ChecksummedTable("session", SessionColumns, "position")
TALLIES: Final = ChecksummedTable("tally", TallyColumns, "role", "task", "peer")
TASKS: Final = ChecksummedTable("task", TaskColumns, "task_id")
CHARGES: Final = ChecksummedTable(
    "charge", ChargeColumns, "trust_domain", "aggregator", "task", "session_id"
)
CLAIMS: Final = ChecksummedTable(
    "claim",
    ClaimColumns,
    "data",
    "holder",
    "trust_domain",
    "aggregator",
    "task",
    "noise_digest",
)
REVOCATIONS: Final = ChecksummedTable(
    "revocation", RevocationColumns, "enrolment_key", "trust_domain"
)
