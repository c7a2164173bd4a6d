"""Processes that die at a chosen instant, between two effects that persist.

A process does two kinds of things that a restart cannot undo: it writes to a disk, and
it sends to a peer.  Each is a *crash point*: the process can die right before it and
right after it.  A `CrashSwitch` counts the points of one process and kills it at the
chosen one; from then on nothing that belongs to that process has any effect.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.messages import Envelope
from secagg.storage.change import Change, Command, Query
from secagg.storage.changes import (
    PurgeReceipts,
    PutClaim,
    PutFacts,
    PutTask,
    RecordRevocations,
)
from secagg.storage.spool import UploadSpool
from secagg.storage.store import Store
from secagg.testbed.connections import ConnectionAround
from secagg.transport.connection import AggregatorConnection
from secagg.wire.calls import CALLS, Reference, Request, Wait, WatchSession

_Answer = TypeVar("_Answer")


class SimulatedCrashError(BaseException):
    """The process is gone.  No handler of errors may catch it: the process has none."""


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
        """Call a function at the instant of death, or at once if that is past."""
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
        """Surround a persistent effect by two crash points, before and after it."""
        self._point(f"before {what}")
        yield
        self._point(f"after {what}")

    def check(self) -> None:
        """Raise if the process is dead, so that the caller has no effect."""
        if self.is_dead:
            raise SimulatedCrashError

    def _point(self, name: str) -> None:
        self.check()
        if len(self.points) == self._at:
            self.points.append(name)
            self.kill()
            raise SimulatedCrashError
        self.points.append(name)


# Names of the commands that are crash points.
_POINTS: Final[dict[type[Command[Any]], str]] = {
    PutTask: "put task",
    PutFacts: "put facts",
    PutClaim: "put claim",
    RecordRevocations: "see revocations",
    PurgeReceipts: "purge",
}


class CrashingStore:
    """A `Store`, or a `ClientStore`, whose writes are crash points."""

    def __init__(self, inner: Any, switch: CrashSwitch) -> None:
        self._inner: Store = inner
        self._switch = switch

    async def commit(self, command: Command[_Answer]) -> _Answer:
        """See `Store.commit`."""
        self._switch.check()
        name = _name_of(command)
        if not name:
            return await self._inner.commit(command)
        with self._switch.around(name):
            return await self._inner.commit(command)

    async def read(self, query: Query[_Answer]) -> _Answer:
        """See `Store.read`."""
        self._switch.check()
        return await self._inner.read(query)

    async def close(self) -> None:
        """Leave the inner store open: it stands for the disk."""

    def __getattr__(self, name: str) -> Any:
        """Return other attributes of the inner store, such as a client's uploads."""
        return getattr(self._inner, name)


def _name_of(command: Command[Any]) -> str | None:
    if not isinstance(command, Change):
        return _POINTS.get(type(command))
    if command.create is not None:
        return "create"
    if command.end is not None:
        return "end"
    if command.reseal is not None:
        return "reseal"
    return "append" if command.records else "deadline"


class CrashingSpool:
    """A `UploadSpool` whose writes are crash points."""

    def __init__(self, inner: UploadSpool, switch: CrashSwitch) -> None:
        self._inner = inner
        self._switch = switch

    def append(self, *chunk: Any, **more: Any) -> int:
        """See `UploadSpool.append`."""
        with self._switch.around("chunk"):
            return self._inner.append(*chunk, **more)

    def commit(self, session_id: bytes, sender: str, digest: bytes) -> None:
        """See `UploadSpool.commit`."""
        with self._switch.around("commit"):
            self._inner.commit(session_id, sender, digest)

    def discard(self, session_id: bytes, sender: str, digest: bytes) -> None:
        """See `UploadSpool.discard`."""
        with self._switch.around("discard"):
            self._inner.discard(session_id, sender, digest)

    def put(self, session_id: bytes, name: str, data: bytes) -> None:
        """See `UploadSpool.put`."""
        with self._switch.around(f"put {name}"):
            self._inner.put(session_id, name, data)

    def drop_uploads(self, session_id: bytes) -> None:
        """See `UploadSpool.drop_uploads`."""
        with self._switch.around("drop uploads"):
            self._inner.drop_uploads(session_id)

    def remove(self, session_id: bytes) -> None:
        """See `UploadSpool.remove`."""
        with self._switch.around("remove"):
            self._inner.remove(session_id)

    def __getattr__(self, name: str) -> Any:
        """Return a read-only attribute, while the process is alive."""
        self._switch.check()
        return getattr(self._inner, name)


class CrashingConnection(ConnectionAround):
    """A client's connection whose calls are crash points of that client.

    The point after a call lies behind what the server did: its answer is lost.
    """

    def __init__(self, inner: AggregatorConnection, switch: CrashSwitch) -> None:
        super().__init__(inner)
        self._switch = switch

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


class MortalConnection(ConnectionAround):
    """A connection to a process that can die: calls in flight then break."""

    def __init__(self, inner: AggregatorConnection, switch: CrashSwitch) -> None:
        super().__init__(inner)
        self._died = asyncio.Event()
        switch.on_death(self._died.set)

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
