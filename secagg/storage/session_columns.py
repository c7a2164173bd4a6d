"""A session's row and journal as every engine stores them, and what is read from them.

Rule 1: a time is a whole number of milliseconds since 1970.
Rule 2: nothing here touches a database: what an engine has read is verified and turned
        into what a book tells, in the same way whatever keeps it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from secagg.errors import LocalProtocolError
from secagg.storage.change import MissedRecords, NewSession, Record, Role
from secagg.storage.hash_chain import chain_next, chain_start
from secagg.storage.rows import SessionRow, StoredSession
from secagg.storage.store import StateDamagedError

MILLISECONDS: Final = 1000

# A receipt is rarely removed; a pause of the writer this long is not noticed.
PURGE_ROWS: Final = 500

RecordColumns: TypeAlias = tuple[object, object, object, object, object]
"""Sequence, kind, sender, chain and body, as an engine returns them."""


@dataclass(frozen=True, slots=True)
class SessionColumns:
    """A session without its header, which is read and written alone."""

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
    spent: int
    restored: int


def stored_session(
    session: SessionColumns, header: bytes, records: tuple[Record, ...], instant: int
) -> StoredSession:
    """Return what a book tells of a session.

    Args:
        session: Its row.
        header: Verified; empty when the session has ended.
        records: Verified; empty when the session has ended.
        instant: The book's time, in milliseconds.
    """
    return StoredSession(
        key=session.key,
        role=Role(session.role),
        task=session.task,
        peer=session.peer,
        number=session.number,
        header=header,
        records=records,
        sequence=session.sequence,
        chain=session.chain,
        round=session.round,
        opened=_seconds(session.opened),
        deadline=_seconds(session.deadline),
        seconds_left=seconds_left(session, instant),
        receipt=session.receipt,
        spent=bool(session.spent),
        restored=bool(session.restored),
        timeline=session.timeline,
    )


def session_row(session: SessionColumns) -> SessionRow:
    """Return one line of a list of sessions."""
    return SessionRow(
        position=session.position,
        key=session.key,
        role=Role(session.role),
        task=session.task,
        number=session.number,
        round=session.round,
        sequence=session.sequence,
        born=session.born / MILLISECONDS,
        ended=_seconds(session.ended),
        spent=bool(session.spent),
        restored=bool(session.restored),
    )


def behind(
    session: SessionColumns, missed: tuple[Record, ...], *, whole: bool, instant: int
) -> MissedRecords:
    """Return the answer to a writer that believes the session elsewhere."""
    return MissedRecords(
        records=missed,
        whole=whole,
        sequence=session.sequence,
        chain=session.chain,
        round=session.round,
        seconds_left=seconds_left(session, instant),
    )


def verified_header(session: SessionColumns, stored: object) -> bytes:
    """Return a header that the start of the chain binds.

    Raises:
        StateDamagedError: It is another.
    """
    if not isinstance(stored, bytes) or session.start != chain_start_of(
        session, stored
    ):
        raise StateDamagedError(
            "its header does not have its checksum", key=session.key
        )
    return stored


def verified_records(
    session: SessionColumns,
    rows: Sequence[RecordColumns],
    *,
    after: int,
    chain: bytes | None,
) -> tuple[Record, ...]:
    """Return records, verified against the chain to the session's last one.

    Args:
        session: Whose they are.
        rows: From number `after` on, in their order.
        after: Number of the first.
        chain: Chain value before it; None if it could not be read.

    Raises:
        StateDamagedError: A record is missing, changed or too many.
        LocalProtocolError: The session has fewer than `after` records.
    """
    if after > session.sequence:
        raise LocalProtocolError(
            f"session {session.key} has {session.sequence} records, none after {after}"
        )
    records = []
    for sequence, (stored, kind, sender, stored_chain, body) in enumerate(rows, after):
        record = _record(kind, sender, body)
        if stored != sequence or sequence >= session.sequence or chain is None:
            raise _broken(session, sequence, "missing, or stands where none belongs")
        if record is not None:
            chain = chain_next(chain, sequence, record)
        if record is None or chain != stored_chain:
            raise _broken(session, sequence, "changed: its checksum does not fit")
        records.append(record)
    if after + len(records) != session.sequence or chain != session.chain:
        raise _broken(session, after + len(records), "missing")
    return tuple(records)


def refuse_beyond(key: str, sequence: int) -> StateDamagedError:
    """Build the error for a place in the journal that should be free."""
    return StateDamagedError(
        f"there is a record {sequence} beyond the last", key=key, record=sequence
    )


def chain_start_of(session: SessionColumns, header: bytes) -> bytes:
    """Return the chain value before a session's first record."""
    return chain_start(
        session.key,
        NewSession(
            role=Role(session.role),
            task=session.task,
            number=session.number,
            header=header,
            peer=session.peer,
        ),
    )


def seconds_left(session: SessionColumns, instant: int) -> float | None:
    """Return the seconds from an instant, in milliseconds, to the deadline."""
    if session.deadline is None:
        return None
    return (session.deadline - instant) / MILLISECONDS


def _record(kind: object, sender: object, body: object) -> Record | None:
    """Return a record as it was stored, or None for what nobody can have stored."""
    if (
        isinstance(kind, int)
        and isinstance(sender, str | None)
        and isinstance(body, bytes)
    ):
        try:
            return Record(kind, sender, body)
        except LocalProtocolError:
            return None
    return None


def _broken(
    session: SessionColumns, sequence: int, complaint: str
) -> StateDamagedError:
    return StateDamagedError(
        f"record {sequence} is {complaint}", key=session.key, record=sequence
    )


def _seconds(instant: int | None) -> float | None:
    return None if instant is None else instant / MILLISECONDS
