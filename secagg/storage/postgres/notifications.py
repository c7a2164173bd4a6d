"""What several aggregators that share a book tell one another through its tables.

Rule 1: whoever opens or closes a round, or changes a task, wakes the others with a
        notification.  It is a hint: they look again every two seconds in any case.
Rule 2: a lease is a row that stays as long as its session; its token only grows.  It
        is free when its time is up, and as soon as nobody is connected who holds it: a
        process that is killed is gone from the database at once.
Rule 3: while nobody was there, nobody could answer: such time is given back to every
        round before a timer may close one.
Rule 4: signs of life come one at a time, so that of two that begin under different
        names one sees the other.
"""

from typing import Final

from secagg.storage.change import Lease
from secagg.storage.postgres.database import Database
from secagg.storage.postgres.downtimes import SILENCE_MILLISECONDS, silence_between
from secagg.storage.postgres.queries import INSTANT, lease_words, list_replicas
from secagg.storage.rows import Replica
from secagg.storage.session_columns import MILLISECONDS
from secagg.storage.store_identity import refuse_other_names

CHANNEL: Final = "secagg"
"""Wakes the replicas that share a book, in its own database."""

_FORGOTTEN_MILLISECONDS: Final = 86_400_000

# "here": whoever holds a lease holds a session-level advisory lock under its own name.
_HERE: Final = 0x68657265
_SAY_HERE: Final = f"pg_advisory_lock_shared({_HERE}, hashtext($3))"
# Names that share a hash only wait for one another's leases to end.
_HOLDER_IS_HERE: Final = (
    "EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted "  # noqa: S608 - our own words
    f"AND objsubid = 2 AND classid = {_HERE} AND objid = hashtext(lease.holder)::oid "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
)
# A database that has just started knows nobody yet: holders have the time of a lease to
# come back.
_STARTED_LONG_AGO: Final = (
    f"(extract(epoch FROM pg_postmaster_start_time()) * 1000 + $4::bigint <= {INSTANT})"
)

# No timer closes a round before somebody has given back the time of a silence.
SOMEBODY_WAS_THERE: Final = (
    "(SELECT alive IS NULL OR instant - alive "  # noqa: S608 - our own words
    f"<= {SILENCE_MILLISECONDS} FROM book)"
)
"""Says so in a statement that knows the `instant`."""


async def notify(database: Database) -> None:
    """Wake those who share the book, when the transaction commits."""
    await database.execute(f"SELECT pg_notify('{CHANNEL}', '')")


async def take_lease(
    database: Database,
    name: str,
    *,
    holder: str,
    seconds: float,
    instant: int | None,
) -> Lease | None:
    """See `Book.take`; an expired row stays, and its token goes on from there."""
    row = await database.fetchrow(
        "WITH taken AS (INSERT INTO lease (name, holder, token, expires) "  # noqa: S608 - our own words
        f"SELECT $2, $3, 1, {INSTANT} + $4::bigint ON CONFLICT (name) DO UPDATE "
        "SET holder = excluded.holder, token = lease.token + 1, "
        "expires = excluded.expires "
        f"WHERE lease.holder = $3 OR lease.expires <= {INSTANT} "
        f"OR ({_STARTED_LONG_AGO} AND NOT {_HOLDER_IS_HERE}) RETURNING token) "
        f"SELECT token, {_SAY_HERE} FROM taken",
        instant,
        name,
        holder,
        int(seconds * MILLISECONDS),
    )
    return None if row is None else Lease(name, holder, int(row[0]))


async def renew_lease(
    database: Database, lease: Lease, *, seconds: float, instant: int | None
) -> bool:
    """See `Book.renew`."""
    renewed = await database.fetchrow(
        f"WITH renewed AS (UPDATE lease SET expires = {INSTANT} + $5::bigint "  # noqa: S608 - our own words
        "WHERE name = $2 AND holder = $3 AND token = $4 "
        f"AND expires > {INSTANT} RETURNING 1) SELECT {_SAY_HERE} FROM renewed",
        instant,
        *lease_words(lease),
        int(seconds * MILLISECONDS),
    )
    return renewed is not None


async def give_lease_back(database: Database, lease: Lease) -> None:
    """See `Book.give_back`."""
    await database.execute(
        "UPDATE lease SET expires = 0 WHERE name = $1 AND holder = $2 AND token = $3",
        *lease_words(lease),
    )


async def note_presence(database: Database, *, instant: int | None) -> int:
    """Say that somebody is there; give back the time in which nobody was.

    Returns:
        The book's time in milliseconds.
    """
    row = await database.fetchrow(
        f"SELECT {INSTANT}, alive FROM book FOR UPDATE",  # noqa: S608 - our own words
        instant,
    )
    now, alive = (0, 0) if row is None else row
    if silence := silence_between(alive, now):
        await database.execute(
            "UPDATE session SET deadline = deadline + $1, opened = opened + $1 "
            "WHERE ended IS NULL",
            silence,
        )
    await database.execute("UPDATE book SET alive = $1", now)
    return int(now)


async def forget_leases(database: Database, key: str) -> None:
    """Remove the leases of a session that ends: their names end with its own."""
    await database.execute(
        "DELETE FROM lease WHERE right(name, length($1)) = $1", f"/{key}"
    )


async def heartbeat(
    database: Database, replica: Replica, *, instant: int | None
) -> None:
    """See `Book.heartbeat`; inside a transaction, which is rolled back by a refusal."""
    # It locks the book's only row: whoever comes at the same time waits here, and then
    # finds this one.
    now = await note_presence(database, instant=instant)
    refuse_other_names(replica, await list_replicas(database, instant=now))
    await database.execute(
        "INSERT INTO replica (name, address, version, aggregator, started, seen) "
        "VALUES ($1, $2, $3, $4, $5, $5) ON CONFLICT (name) DO UPDATE "
        "SET address = excluded.address, seen = excluded.seen",
        replica.name,
        replica.address,
        replica.version,
        replica.aggregator,
        now,
    )
    await database.execute(
        "DELETE FROM replica WHERE seen < $1", now - _FORGOTTEN_MILLISECONDS
    )


async def name_blobs(database: Database, proposed: bytes | None) -> bytes | None:
    """See `Book.blobs_name`."""
    row = await database.fetchrow(
        "UPDATE book SET blobs = coalesce(blobs, $1::bytea) RETURNING blobs", proposed
    )
    return None if row is None else row[0]


async def begin_alone(database: Database, *, is_shared: bool) -> None:
    """Have what earlier processes held end with them; nobody else is there."""
    await database.execute("DELETE FROM lease")
    if not is_shared:
        await database.execute("UPDATE book SET alive = NULL")


async def was_somebody_there(database: Database, *, instant: int | None) -> bool:
    """Whether another aggregator has been at work of late."""
    row = await database.fetchrow(
        f"SELECT 1 FROM book WHERE {INSTANT} - alive <= $2",  # noqa: S608 - our own words
        instant,
        SILENCE_MILLISECONDS,
    )
    return row is not None
