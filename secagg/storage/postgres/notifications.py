"""How aggregators that share a store notify one another through its tables.

Rule 1: a replica that opens or closes a round, or changes a task, notifies the others.
        It is a hint: they refresh every two seconds in any case.
Rule 2: a lease is a row that stays as long as its session; its token only grows.  It is
        free when it has expired, and as soon as its holder has disconnected. A killed
        process disconnects from the database at once.
Rule 3: while no replica is alive, no client can be answered: the downtime is added to
        every deadline before a timer may close a round.
Rule 4: heartbeats come one at a time, so of two replicas that begin under different
        names one sees the other.
"""

from typing import Final

from secagg.storage.change import Lease
from secagg.storage.leases import refuse_other_names
from secagg.storage.postgres.migrations import Database
from secagg.storage.rows import Replica, ReplicaRow
from secagg.storage.tables import MILLISECONDS

CHANNEL: Final = "secagg"
"""Wakes the replicas that share a store, in its own database."""

INSTANT: Final = (
    "coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)"
)
"""The store's time in milliseconds: the database's, unless argument 1 is a time."""

# Three heartbeats.
_DOWNTIME_MILLISECONDS: Final = 15_000
_FORGOTTEN_MILLISECONDS: Final = 86_400_000

# "here": the holder of a lease holds a session-level advisory lock under its own name.
_HERE: Final = 0x68657265
_LOCK_HOLDER: Final = f"pg_advisory_lock_shared({_HERE}, hashtext($3))"
# Names that share a hash only wait for the expiry of one another's leases.
_HOLDER_IS_HERE: Final = (
    "EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted "  # noqa: S608 - our own words
    f"AND objsubid = 2 AND classid = {_HERE} AND objid = hashtext(lease.holder)::oid "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
)
# A database that has just started has no connections yet: holders have the time of a
# lease to come back.
_STARTED_LONG_AGO: Final = (
    f"(extract(epoch FROM pg_postmaster_start_time()) * 1000 + $4::bigint <= {INSTANT})"
)


def downtime_between(alive: int | None, now: int) -> int:
    """Return how long no replica was alive, in milliseconds; 0 if one was.

    Args:
        alive: The last heartbeat, in milliseconds; None for none.
        now: This moment.
    """
    silent = 0 if alive is None else now - alive
    return silent if silent > _DOWNTIME_MILLISECONDS else 0


def attended_sql(instant: str) -> str:
    """Return the condition that no downtime is pending for the deadlines.

    Args:
        instant: The SQL expression of the time.
    """
    return (
        f"(SELECT alive IS NULL OR {instant} - alive "  # noqa: S608 - our own words
        f"<= {_DOWNTIME_MILLISECONDS} FROM store)"
    )


def held_lease(first: int) -> str:
    """Return the condition that a lease is held, or that none is named.

    Args:
        first: Place of its name among the arguments; holder and token follow.
    """
    name, holder, token = (f"${first + place}" for place in range(3))
    return (
        f"({name}::text IS NULL OR EXISTS (SELECT 1 FROM lease WHERE name = {name} "  # noqa: S608 - our own words
        f"AND holder = {holder}::text AND token = {token}::bigint "
        f"AND expires > {INSTANT}))"
    )


def lease_arguments(lease: Lease | None) -> tuple[str | None, str | None, int | None]:
    """Return the arguments of `held_lease`."""
    return (None,) * 3 if lease is None else (lease.name, lease.holder, lease.token)


class PostgresSharing:
    """Implements `secagg.storage.tables.Sharing` in the tables of the database.

    Args:
        database: Of asyncpg.
        instant: A test's clock in milliseconds, or None for the database's.
    """

    def __init__(self, database: Database, instant: int | None) -> None:
        self._database = database
        self._instant = instant

    async def acquire(self, name: str, *, holder: str, seconds: float) -> Lease | None:
        """Acquire a lease; an expired row stays, and its token grows from there."""
        token: int | None = await self._database.fetchval(
            "WITH taken AS (INSERT INTO lease (name, holder, token, expires) "  # noqa: S608 - our own words
            f"SELECT $2, $3, 1, {INSTANT} + $4::bigint ON CONFLICT (name) DO UPDATE "
            "SET holder = excluded.holder, token = lease.token + 1, "
            "expires = excluded.expires "
            f"WHERE lease.holder = $3 OR lease.expires <= {INSTANT} "
            f"OR ({_STARTED_LONG_AGO} AND NOT {_HOLDER_IS_HERE}) RETURNING token) "
            f"SELECT token, {_LOCK_HOLDER} FROM taken",
            self._instant,
            name,
            holder,
            int(seconds * MILLISECONDS),
        )
        return None if token is None else Lease(name, holder, token)

    async def renew(self, lease: Lease, *, seconds: float) -> bool:
        """Extend a lease."""
        renewed = await self._database.fetchrow(
            f"WITH renewed AS (UPDATE lease SET expires = {INSTANT} + $5::bigint "  # noqa: S608 - our own words
            "WHERE name = $2 AND holder = $3 AND token = $4 "
            f"AND expires > {INSTANT} RETURNING 1) SELECT {_LOCK_HOLDER} FROM renewed",
            self._instant,
            *lease_arguments(lease),
            int(seconds * MILLISECONDS),
        )
        return renewed is not None

    async def release(self, lease: Lease) -> None:
        """Release a lease."""
        await self._database.execute(
            "UPDATE lease SET expires = 0 "
            "WHERE name = $1 AND holder = $2 AND token = $3",
            *lease_arguments(lease),
        )

    async def delete_leases(self, key: str) -> None:
        """Delete the leases of a session that ends: their names end with its own."""
        await self._database.execute(
            "DELETE FROM lease WHERE right(name, length($1)) = $1", f"/{key}"
        )

    async def heartbeat(self, replica: Replica) -> None:
        """Write a heartbeat, in a transaction of its own."""
        async with self._database.transaction():
            # It locks the store's only row: a replica that comes at the same time waits
            # here, and then finds this one.
            now = await self.add_downtime()
            self._instant = now
            refuse_other_names(replica, await self.replicas())
            await self._database.execute(
                "INSERT INTO replica (name, address, version, aggregator, started, "
                "seen) VALUES ($1, $2, $3, $4, $5, $5) ON CONFLICT (name) DO UPDATE "
                "SET address = excluded.address, seen = excluded.seen",
                replica.name,
                replica.address,
                replica.version,
                replica.aggregator,
                now,
            )
            await self._database.execute(
                "DELETE FROM replica WHERE seen < $1", now - _FORGOTTEN_MILLISECONDS
            )

    async def bind_blobs(self, name: bytes | None) -> bytes | None:
        """Return the name of the object store that keeps the blobs."""
        found: bytes | None = await self._database.fetchval(
            "UPDATE store SET blobs = coalesce(blobs, $1::bytea) RETURNING blobs", name
        )
        return found

    async def replicas(self) -> tuple[ReplicaRow, ...]:
        """List the replicas."""
        rows = await self._database.fetch(
            f"SELECT name, address, version, aggregator, started, {INSTANT} - seen "  # noqa: S608 - our own words
            "FROM replica ORDER BY started, name",
            self._instant,
        )
        return tuple(
            ReplicaRow(
                Replica(name, address, version, aggregator),
                started / MILLISECONDS,
                max(0.0, silent / MILLISECONDS),
            )
            for name, address, version, aggregator, started, silent in rows
        )

    async def add_downtime(self) -> int:
        """Record that a replica is alive; add the downtime before it to all deadlines.

        Returns:
            The store's time in milliseconds.
        """
        now, alive = await self._database.fetchrow(
            f"SELECT {INSTANT}, alive FROM store FOR UPDATE",  # noqa: S608 - our own words
            self._instant,
        )
        if downtime := downtime_between(alive, now):
            await self._database.execute(
                "UPDATE session SET deadline = deadline + $1, opened = opened + $1 "
                "WHERE ended IS NULL",
                downtime,
            )
        await self._database.execute("UPDATE store SET alive = $1", now)
        return int(now)

    async def free_leases(self, *, is_shared: bool) -> None:
        """Release the leases of earlier processes: no other process uses the store."""
        await self._database.execute("DELETE FROM lease")
        if not is_shared:
            await self._database.execute("UPDATE store SET alive = NULL")

    async def was_attended(self) -> bool:
        """Whether another aggregator was alive recently."""
        row = await self._database.fetchrow(
            f"SELECT 1 FROM store WHERE {INSTANT} - alive <= $2",  # noqa: S608 - our own words
            self._instant,
            _DOWNTIME_MILLISECONDS,
        )
        return row is not None
