"""Leases: the right of one process to do some work, for a while.

A lease only saves double work: what is written is compared in any case.  A process
that has its store to itself keeps its leases in memory, and they end with it; replicas
keep them in the database (`secagg.storage.postgres.notifications`).

Aggregators of one store must have the name in their certificates in common.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from secagg.errors import ErrorCode
from secagg.protocol.descriptor import SessionDescriptor
from secagg.storage.change import Lease, LeaseLostError, StoreUpdate
from secagg.storage.rows import Replica, ReplicaRow
from secagg.storage.tables import Connection


@dataclass(frozen=True, slots=True)
class AcquireLease(StoreUpdate[Lease | None]):
    """Acquire a lease that is free, has expired, or is the holder's already.

    It is free, too, when its holder is seen to have ended.  The answer is the lease,
    under a new token; None while another process holds it.

    Attributes:
        name: Of the work.
        holder: The process.
        seconds: How long it is held.
    """

    is_counted = False
    name: str
    holder: str
    seconds: float

    async def run(self, connection: Connection) -> Lease | None:
        """Acquire it."""
        return await connection.sharing.acquire(
            self.name, holder=self.holder, seconds=self.seconds
        )


@dataclass(frozen=True, slots=True)
class RenewLease(StoreUpdate[bool]):
    """Hold a lease for some seconds from now on; False when it is another's by now.

    Attributes:
        lease: The lease.
        seconds: How long it is held.
    """

    is_counted = False
    lease: Lease
    seconds: float

    async def run(self, connection: Connection) -> bool:
        """Renew it."""
        return await connection.sharing.renew(self.lease, seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class ReleaseLease(StoreUpdate[None]):
    """Release a lease; without effect when it is another's by now.

    Attributes:
        lease: The lease.
    """

    is_counted = False
    lease: Lease

    async def run(self, connection: Connection) -> None:
        """Release it."""
        await connection.sharing.release(self.lease)


@dataclass(frozen=True, slots=True)
class Heartbeat(StoreUpdate[None]):
    """State that a replica is alive.

    Deadlines do not advance while no replica is.  A store that is not shared has none.
    It is refused with BAD_SETTINGS while replicas are alive under another name of the
    aggregator; of two that come at once one is refused.

    Attributes:
        replica: The replica.
    """

    is_counted = False
    replica: Replica

    async def run(self, connection: Connection) -> None:
        """Write it."""
        await connection.sharing.heartbeat(self.replica)


@dataclass(frozen=True, slots=True)
class BindBlobs(StoreUpdate[bytes | None]):
    """Return the name of the object store that keeps this store's blobs, or None.

    Attributes:
        name: The name from now on, if none is stored yet; None to ask only.
    """

    name: bytes | None

    async def run(self, connection: Connection) -> bytes | None:
        """Return the name."""
        return await connection.sharing.bind_blobs(self.name)


class Leases:
    """Implements `secagg.storage.tables.Sharing` for a store that is not shared.

    Args:
        now: The store's clock, in seconds.
        has_ended: Whether a holder is seen to have ended.
    """

    def __init__(
        self,
        now: Callable[[], float],
        has_ended: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._now = now
        self._has_ended = has_ended
        self._held: dict[str, tuple[Lease, float]] = {}

    async def acquire(self, name: str, *, holder: str, seconds: float) -> Lease | None:
        """Acquire a lease; see `AcquireLease`."""
        lease, expires = self._held.get(name, (Lease(name, holder, 0), 0.0))
        is_anothers = lease.holder != holder and not self._has_ended(lease.holder)
        if is_anothers and expires > self._now():
            return None
        lease = Lease(name, holder, lease.token + 1)
        self._held[name] = (lease, self._now() + seconds)
        return lease

    async def renew(self, lease: Lease, *, seconds: float) -> bool:
        """Renew a lease; see `RenewLease`."""
        if not self._holds(lease):
            return False
        self._held[lease.name] = (lease, self._now() + seconds)
        return True

    async def release(self, lease: Lease) -> None:
        """Release a lease; see `ReleaseLease`."""
        if self._holds(lease):
            self._held[lease.name] = (lease, 0.0)

    async def heartbeat(self, replica: Replica) -> None:
        """Do nothing: no other process asks."""

    async def bind_blobs(self, name: bytes | None) -> bytes | None:
        """Return any name: the process that locks the file states where blobs are."""
        return name

    async def replicas(self) -> tuple[ReplicaRow, ...]:
        """Return nothing: the store is not shared."""
        return ()

    def check(self, lease: Lease | None) -> None:
        """Refuse a change whose lease is no longer held.

        Raises:
            LeaseLostError: It has expired, or has passed on.
        """
        if lease is not None and not self._holds(lease):
            raise LeaseLostError(lease)

    def _holds(self, lease: Lease) -> bool:
        held, expires = self._held.get(lease.name, (None, 0.0))
        return held == lease and expires > self._now()


# Three heartbeats: a replica that was silent for longer has ended, or is about to.
_PRESENT_SECONDS: Final = 15.0


def refuse_sessions_of_another(own: str, opened: Iterable[SessionDescriptor]) -> None:
    """Refuse to continue open sessions under another name (R5.0-6).

    Their clients trust the name in their offer alone: they would never learn how their
    sessions ended.

    Args:
        own: Name in this aggregator's certificate.
        opened: The sessions of its store that are not over.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    for each in opened:
        if each.aggregator != own:
            raise ErrorCode.BAD_SETTINGS.error(
                f"session {each.session_number} of task {each.task_id!r} is open and "
                f"one of {each.aggregator!r}; the certificate here names {own!r}",
                fix="Start under the old name; to change it, drain the "
                "aggregator first, so that no session is open.",
            )


def refuse_other_names(own: Replica, rows: Iterable[ReplicaRow]) -> None:
    """Refuse to serve beside aggregators whose certificates have another name.

    Clients that were told one name refuse the other, and so would a session that goes
    from one aggregator to another.

    Args:
        own: This aggregator; its own row is not compared.
        rows: All replicas that the store knows.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    for row in rows:
        other = row.replica
        if (
            row.silent_seconds <= _PRESENT_SECONDS
            and other.name != own.name
            and other.aggregator != own.aggregator
        ):
            raise ErrorCode.BAD_SETTINGS.error(
                f"the certificate here names {own.aggregator!r}, that of the "
                f"aggregator at {other.address or 'no address yet'}, which shares the "
                f"store, {other.aggregator!r}",
                fix="Give all of them certificates of one name; keys may differ. "
                "For another name stop all of them first.",
            )
