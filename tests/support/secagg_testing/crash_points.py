"""Processes that die at a chosen instant: between any two things that outlive them.

A process does two kinds of things that a restart cannot undo: it writes to a disk, and
it sends to a peer.  Each is a *crash point*: the process can die right before it and
right after it.  A `CrashSwitch` counts the points of one process and kills it at the
chosen one; from then on nothing that belongs to that process has any effect.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeVar

from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.messages import Envelope
from secagg.protocol.profiles import Trust
from secagg.runtime.connection import AggregatorConnection
from secagg.storage.budget_ledger import ChargeRow, Settlement
from secagg.storage.change import Change, Committed, Ended, Lease, MissedRecords, Role
from secagg.storage.data_claims import Claim, ClaimRow
from secagg.storage.rollback_mark import Mark
from secagg.storage.rows import (
    Finding,
    PurgeResult,
    Replica,
    ReplicaRow,
    Retention,
    SessionRow,
    SessionState,
    StoredSession,
    Tally,
    Task,
    TaskRow,
)
from secagg.storage.spool import Spool
from secagg.storage.store import Store
from secagg.wire.calls import CALLS, Reference, Request, Wait, WatchSession

_Answer = TypeVar("_Answer")


class SimulatedCrashError(BaseException):
    """The process is gone.  No handler of errors may catch it: there is none left."""


class CrashSwitch:
    """Kills one process at one of its crash points.

    Args:
        at: Number of the point, from 0; None never kills.
    """

    def __init__(self, at: int | None = None) -> None:
        self._at = at
        self._callbacks: list[Callable[[], None]] = []
        self.points: list[str] = []
        self.is_dead = False

    def on_death(self, callback: Callable[[], None]) -> None:
        """Have somebody told at the instant of death, or at once if that is past."""
        self._callbacks.append(callback)
        if self.is_dead:
            callback()

    def kill(self) -> None:
        """Kill the process now."""
        if not self.is_dead:
            self.is_dead = True
            for callback in self._callbacks:
                callback()

    @contextlib.contextmanager
    def around(self, what: str) -> Iterator[None]:
        """Mark something that outlives the process: one point before, one after."""
        self._point(f"before {what}")
        yield
        self._point(f"after {what}")

    def check(self) -> None:
        """Have no effect if the process is dead."""
        if self.is_dead:
            raise SimulatedCrashError

    def _point(self, name: str) -> None:
        self.check()
        if len(self.points) == self._at:
            self.points.append(name)
            self.kill()
            raise SimulatedCrashError
        self.points.append(name)


class CrashingStore:
    """A `Store` whose writes are crash points."""

    def __init__(self, inner: Store, switch: CrashSwitch) -> None:
        self._inner = inner
        self._switch = switch

    @property
    def is_shared(self) -> bool:
        """See `Store.is_shared`."""
        return self._inner.is_shared

    async def commit(self, change: Change) -> Committed | MissedRecords | Ended:
        """See `Store.commit`."""
        with self._switch.around(_name_of(change)):
            return await self._inner.commit(change)

    async def settle(self, settlement: Settlement) -> None:
        """See `Store.settle`."""
        with self._switch.around("settle"):
            await self._inner.settle(settlement)

    async def put_task(self, task: Task, *, expect_version: int) -> bool:
        """See `Store.put_task`."""
        with self._switch.around("put task"):
            return await self._inner.put_task(task, expect_version=expect_version)

    async def see_revocations(self, trust: Trust) -> None:
        """See `Store.see_revocations`."""
        with self._switch.around("see revocations"):
            await self._inner.see_revocations(trust)

    async def seen_revocations(
        self, enrolment_key: bytes, trust_domain: str
    ) -> Trust | None:
        """See `Store.seen_revocations`."""
        self._switch.check()
        return await self._inner.seen_revocations(enrolment_key, trust_domain)

    async def touch(self) -> None:
        """See `Store.touch`."""
        await self._inner.touch()

    async def put_facts(self, task: str, facts: bytes, *, instead_of: bytes) -> bool:
        """See `Store.put_facts`."""
        with self._switch.around("put facts"):
            return await self._inner.put_facts(task, facts, instead_of=instead_of)

    async def take(self, name: str, *, holder: str, seconds: float) -> Lease | None:
        """See `Store.take`."""
        self._switch.check()
        return await self._inner.take(name, holder=holder, seconds=seconds)

    async def renew(self, lease: Lease, *, seconds: float) -> bool:
        """See `Store.renew`."""
        self._switch.check()
        return await self._inner.renew(lease, seconds=seconds)

    async def give_back(self, lease: Lease) -> None:
        """See `Store.give_back`."""
        self._switch.check()
        await self._inner.give_back(lease)

    def changes(self) -> AsyncIterator[None]:
        """See `Store.changes`."""
        return self._inner.changes()

    async def blobs_name(self, proposed: bytes | None) -> bytes | None:
        """See `Store.blobs_name`."""
        return await self._inner.blobs_name(proposed)

    async def heartbeat(self, replica: Replica) -> None:
        """See `Store.heartbeat`."""
        await self._inner.heartbeat(replica)

    async def replicas(self) -> tuple[ReplicaRow, ...]:
        """See `Store.replicas`."""
        return await self._inner.replicas()

    async def purge(self, policy: Retention) -> PurgeResult:
        """See `Store.purge`."""
        with self._switch.around("purge"):
            return await self._inner.purge(policy)

    async def now(self) -> float:
        """See `Store.now`."""
        self._switch.check()
        return await self._inner.now()

    async def load(self, key: str, *, after: int = 0) -> StoredSession | None:
        """See `Store.load`."""
        self._switch.check()
        return await self._inner.load(key, after=after)

    async def missed(
        self, key: str, *, expect: int, previous: bytes, restored: bool = False
    ) -> MissedRecords | Ended:
        """See `Store.missed`."""
        self._switch.check()
        return await self._inner.missed(
            key, expect=expect, previous=previous, restored=restored
        )

    async def sessions(
        self,
        *,
        role: Role,
        task: str | None = None,
        state: SessionState = SessionState.RUNNING,
        before: int | None = None,
        limit: int | None = None,
    ) -> tuple[SessionRow, ...]:
        """See `Store.sessions`."""
        self._switch.check()
        return await self._inner.sessions(
            role=role, task=task, state=state, before=before, limit=limit
        )

    async def tally(self, role: Role, task: str, *, peer: str = "") -> Tally:
        """See `Store.tally`."""
        self._switch.check()
        return await self._inner.tally(role, task, peer=peer)

    async def tasks(self) -> tuple[TaskRow, ...]:
        """See `Store.tasks`."""
        self._switch.check()
        return await self._inner.tasks()

    async def charges(self, task: str) -> tuple[ChargeRow, ...]:
        """See `Store.charges`."""
        self._switch.check()
        return await self._inner.charges(task)

    async def claims(self, data: str | None = None) -> tuple[ClaimRow, ...]:
        """See `Store.claims`."""
        self._switch.check()
        return await self._inner.claims(data)

    async def put_claim(self, claim: Claim, *, after: int) -> bool:
        """See `Store.put_claim`."""
        with self._switch.around("put claim"):
            return await self._inner.put_claim(claim, after=after)

    async def mark(self) -> Mark | None:
        """See `Store.mark`."""
        self._switch.check()
        return await self._inner.mark()

    async def check(self) -> tuple[Finding, ...]:
        """See `Store.check`."""
        self._switch.check()
        return await self._inner.check()

    async def close(self) -> None:
        """Leave the inner book open: it stands for the disk."""


def _name_of(change: Change) -> str:
    if change.create is not None:
        return "create"
    if change.end is not None:
        return "end"
    if change.reseal is not None:
        return "reseal"
    return "append" if change.records else "deadline"


class CrashingSpool:
    """A `Spool` whose writes are crash points."""

    def __init__(self, inner: Spool, switch: CrashSwitch) -> None:
        self._inner = inner
        self._switch = switch

    def received(self, session_id: bytes, sender: str) -> int:
        """See `Spool.received`."""
        self._switch.check()
        return self._inner.received(session_id, sender)

    def append(  # noqa: PLR0913 - one chunk of one upload
        self,
        session_id: bytes,
        sender: str,
        digest: bytes,
        *,
        offset: int,
        total_size: int,
        data: bytes,
    ) -> int:
        """See `Spool.append`."""
        with self._switch.around("chunk"):
            return self._inner.append(
                session_id,
                sender,
                digest,
                offset=offset,
                total_size=total_size,
                data=data,
            )

    def commit(self, session_id: bytes, sender: str, digest: bytes) -> None:
        """See `Spool.commit`."""
        with self._switch.around("commit"):
            self._inner.commit(session_id, sender, digest)

    def discard(self, session_id: bytes, sender: str, digest: bytes) -> None:
        """See `Spool.discard`."""
        with self._switch.around("discard"):
            self._inner.discard(session_id, sender, digest)

    def missing_uploads(
        self, session_id: bytes, digests: AbstractSet[bytes], size: int
    ) -> frozenset[bytes]:
        """See `Spool.missing_uploads`."""
        self._switch.check()
        return self._inner.missing_uploads(session_id, digests, size)

    def read_upload(
        self, session_id: bytes, digest: bytes, offset: int, size: int
    ) -> bytes:
        """See `Spool.read_upload`."""
        self._switch.check()
        return self._inner.read_upload(session_id, digest, offset, size)

    def put(self, session_id: bytes, name: str, data: bytes) -> None:
        """See `Spool.put`."""
        with self._switch.around(f"put {name}"):
            self._inner.put(session_id, name, data)

    def read(
        self, session_id: bytes, name: str, offset: int, max_bytes: int | None = None
    ) -> tuple[bytes, int] | None:
        """See `Spool.read`."""
        self._switch.check()
        return self._inner.read(session_id, name, offset, max_bytes)

    def drop_uploads(self, session_id: bytes) -> None:
        """See `Spool.drop_uploads`."""
        with self._switch.around("drop uploads"):
            self._inner.drop_uploads(session_id)

    def remove(self, session_id: bytes) -> None:
        """See `Spool.remove`."""
        with self._switch.around("remove"):
            self._inner.remove(session_id)

    def session_ids(self) -> tuple[bytes, ...]:
        """See `Spool.session_ids`."""
        self._switch.check()
        return self._inner.session_ids()

    def age_seconds(self, session_id: bytes) -> float:
        """See `Spool.age_seconds`."""
        self._switch.check()
        return self._inner.age_seconds(session_id)


class CrashingConnection:
    """A client's connection whose calls are crash points of that client.

    The point after a call lies behind what the server did: its answer is lost.
    """

    def __init__(self, inner: AggregatorConnection, switch: CrashSwitch) -> None:
        self._inner = inner
        self._switch = switch
        self.identity: Final = inner.identity

    @property
    def aggregator(self) -> str:
        """See `AggregatorConnection.aggregator`."""
        return self._inner.aggregator

    async def meet(self) -> str:
        """See `AggregatorConnection.meet`."""
        return await self._inner.meet()

    @property
    def trust_domain(self) -> str | None:
        """See `AggregatorConnection.trust_domain`."""
        return self._inner.trust_domain

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Die before or after the call."""
        with self._switch.around(CALLS[type(request)].name):
            return await self._inner.call(request)

    async def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Die before or after the stream is opened."""
        with self._switch.around(CALLS[type(request)].name):
            stream = self._inner.watch(request)
        async for update in stream:
            self._switch.check()
            yield update


class MortalConnection:
    """A connection to a process that can die: calls in flight then break."""

    def __init__(self, inner: AggregatorConnection, switch: CrashSwitch) -> None:
        self._inner = inner
        self._died = asyncio.Event()
        switch.on_death(self._died.set)
        self.identity: Final = inner.identity

    @property
    def aggregator(self) -> str:
        """See `AggregatorConnection.aggregator`."""
        return self._inner.aggregator

    async def meet(self) -> str:
        """See `AggregatorConnection.meet`."""
        return await self._inner.meet()

    @property
    def trust_domain(self) -> str | None:
        """See `AggregatorConnection.trust_domain`."""
        return self._inner.trust_domain

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Make the call; it breaks when the process at the other end dies."""
        return await self._while_alive(self._inner.call(request))

    async def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Open the stream; it breaks when the process at the other end dies."""
        stream = self._inner.watch(request)
        while True:
            update = await self._while_alive(_next(stream))
            if update is None:
                return
            yield update

    async def _while_alive(self, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        answer = asyncio.ensure_future(work)
        dying = asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({answer, dying}, return_when=asyncio.FIRST_COMPLETED)
            if self._died.is_set():
                raise _broken()
            return answer.result()
        finally:
            for task in (answer, dying):
                task.cancel()
            await asyncio.wait({answer, dying})
            if not answer.cancelled():
                answer.exception()  # noted: the caller has its own error


async def _next(
    stream: AsyncIterator[Envelope | Reference | Wait],
) -> Envelope | Reference | Wait | None:
    return await anext(stream, None)


def _broken() -> ServiceError:
    return ServiceError(
        "the connection to the aggregator broke",
        code=ErrorCode.UNREACHABLE,
        next_step="Try again; it may come back.",
    )
