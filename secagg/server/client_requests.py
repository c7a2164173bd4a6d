"""What clients are told: the answer to every call, whatever carries it.

Rule 1: a call is answered for the identity that the transport has authenticated, and
        touches only what that client may see.
Rule 2: what is refused by what is known here is judged once more by what the book
        says: another aggregator may have opened the round that a client speaks of.
Rule 3: whoever waits holds a place, and there are not many:
`secagg.server.rpc.concurrency_limit`.

Which sessions and tasks there are is said elsewhere (`secagg.server.session.registry`,
`secagg.server.known_tasks`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar, cast

from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
)
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import MAX_IDENTITY_BYTES, Envelope, Released
from secagg.runtime import metrics
from secagg.server.dependencies import ServerDependencies
from secagg.server.known_tasks import KnownTasks, shutting_down
from secagg.server.notifier import Notifier
from secagg.server.recent_clients import RecentClients
from secagg.server.rpc.call_metrics import measured_call
from secagg.server.rpc.concurrency_limit import ConcurrencyLimit
from secagg.server.rpc.limits import AggregatorLimits
from secagg.server.rpc.refusals import RefusalCounts
from secagg.server.session.ended import EndedSession
from secagg.server.session.registry import SessionRegistry
from secagg.server.session.runner import SessionRunner
from secagg.server.session.state import came_too_late
from secagg.server.session.updates import session_is_over
from secagg.storage.spool import PAYLOAD, SUM
from secagg.wire.calls import (
    AdvertiseKeys,
    Blob,
    BlobChunk,
    ChooseEdges,
    FetchChunk,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    Reference,
    ReportViolation,
    Request,
    RevealShares,
    SendMessage,
    ShareKeys,
    SignConsistency,
    UploadChunk,
    UploadStatus,
    Wait,
    WatchSession,
)
from secagg.wire.codec import refuse
from secagg.wire.limits import MAX_INLINE_BYTES

_Answer = TypeVar("_Answer")
_MILLISECONDS: Final = 1000

# Questions for a session that wait here are looked at again this often, for what nobody
# has rung for, as that somebody is invited now.  Not with every change of a book that
# is shared: whoever runs the task rings for a session that another one has opened.
HELD_LOOK_SECONDS: Final = 5.0
# Whoever has waited as long as it wanted may ask again at once.
_AGAIN_SECONDS: Final = 0.05

# What lies in the spool; all else is part of a session's state.
_SPOOLED: Final[Mapping[Blob, str]] = {
    Blob.PAYLOAD: PAYLOAD,
    Blob.SUM: SUM,
}


class ClientRequestHandler:
    """Answers the calls of clients.

    Args:
        sessions: Those that run, and those that clients still ask about.
        tasks: Those that run, and what became of others.
        context: What all sessions share.
        limits: How much clients may use.
        stopping: Set when no session is offered any more.
        hear_of_tasks: Has the keeper look for a task that nobody here has heard of.

    Attributes:
        offers: Rung whenever there may be another session to offer.
        attendance: Who has called, and who is still expected.
        refusals: How many calls were refused of late, and why.
    """

    def __init__(  # noqa: PLR0913 - it stands between clients and all that runs
        self,
        sessions: SessionRegistry,
        tasks: KnownTasks,
        context: ServerDependencies,
        limits: AggregatorLimits,
        *,
        stopping: asyncio.Event,
        hear_of_tasks: Callable[[], Awaitable[None]],
    ) -> None:
        self._sessions = sessions
        self._tasks = tasks
        self._context = context
        self._limits = limits
        self._stopping = stopping
        self._hear_of_tasks = hear_of_tasks
        self.offers = Notifier(context.clock)
        self.attendance = RecentClients(context.clock, limits)
        self.refusals = RefusalCounts(context.clock)
        self._watches = ConcurrencyLimit(limits.watches_per_identity, limits.watches)
        # A piece of a payload or sum, of 1 MiB at most; neither ever changes.
        self._last_read: tuple[FetchChunk, tuple[bytes, int]] | None = None
        self._held = ConcurrencyLimit(limits.held_per_identity, limits.held)
        # Each takes the identity and a request of its class: `answer` says so.
        self._answers: Mapping[
            type[Request[Any]], Callable[[str, Any], Awaitable[object]]
        ] = {
            GetOffer: self._offer_in_time,
            AdvertiseKeys: self._take,
            ChooseEdges: self._take,
            ShareKeys: self._take,
            SignConsistency: self._take,
            RevealShares: self._take,
            ReportViolation: self._take,
            GetUploadStatus: self._upload_status,
            UploadChunk: self._upload_chunk,
            GetUpdate: self._update,
            FetchChunk: self._chunk,
        }

    async def answer(self, identity: str, request: Request[_Answer]) -> _Answer:
        """Answer a call of a client.

        Raises:
            RemoteProtocolError: The client may not ask this, or not now.
            ServiceError: STORAGE_FAILED, OVERLOADED, UNKNOWN_SESSION, SHUTTING_DOWN
                or UPLOAD_CORRUPT; the message says whether to come back.
        """
        with measured_call(self._context.meter, self._context.clock, request):
            self._check_caller(identity)
            request.check()  # whatever carried it, and whoever made it
            return cast("_Answer", await self._answered(identity, request))

    def note_refusal(self, code: ErrorCode) -> None:
        """Count a refused call, by its code."""
        self._context.meter.add(metrics.REFUSALS, code=code.name)
        self.refusals.note(code)

    async def _answered(self, identity: str, request: Request[Any]) -> object:
        answer = self._answers[type(request)]
        try:
            return await answer(identity, request)
        except RemoteProtocolError:
            # A message is judged again by its session.
            session_id = getattr(request, "session_id", None)
            if (
                not self._context.store.is_shared
                or isinstance(request, SendMessage)
                or session_id is None
            ):
                raise
        # Another aggregator may have opened the round that this one does not know.
        session = await self._sessions.look_for(session_id)
        if isinstance(session, SessionRunner):
            await session.look()
        return await answer(identity, request)

    async def watch(
        self, identity: str, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Yield updates as they come, and that there is none; ends with the session.

        Raises:
            ServiceError: OVERLOADED when too many streams are open; poll instead.
        """
        self._check_caller(identity)
        request.check()
        session = await self._sessions.look_for(request.session_id)
        if not self._watches.is_free_for(identity):
            raise ErrorCode.OVERLOADED.error(
                "too many streams are open",
                fix="Close other streams, or poll.",
                retry_after_seconds=self._limits.poll_seconds,
            )
        with self._watches.taken_by(identity):
            if isinstance(session, SessionRunner):
                async for update in session.watch(identity, request.after):
                    if isinstance(update, Wait):
                        yield update
                        continue
                    self.attendance.note_call()
                    self.attendance.note_told(identity, update)
                    yield _as_answer(update)
            else:
                update_of_ended = session.update_for(identity, request.after)
                if update_of_ended is not None:
                    yield update_of_ended

    async def _offer_in_time(
        self, identity: str, request: GetOffer
    ) -> SessionDescriptor | Wait:
        """Answer a question for a session, when there is one or its time is up."""
        clock = self._context.clock
        ends = self._held_until(request.wait_ms)
        ringing = self.offers.listen()
        answer = await self._offer(identity, request)
        if (
            not isinstance(answer, Wait)
            or clock.now() > ends
            or not self._held.is_free_for(identity)
        ):
            return answer
        with self._held.taken_by(identity):
            while isinstance(answer, Wait) and clock.now() <= ends:
                await self.offers.heard(ringing, HELD_LOOK_SECONDS)
                ringing = self.offers.listen()
                answer = await self._offer(identity, request)
        return Wait(_AGAIN_SECONDS) if isinstance(answer, Wait) else answer

    def _held_until(self, wait_ms: int) -> float:
        """Return after which instant a held question is answered at its next look."""
        waiting = wait_ms / _MILLISECONDS - HELD_LOOK_SECONDS
        return self._context.clock.now() + waiting

    async def _offer(
        self, identity: str, request: GetOffer
    ) -> SessionDescriptor | Wait:
        self.attendance.note_back(identity)
        self._sessions.note_back(identity, request.task_id)
        if self._tasks.get(request.task_id) is None:
            await self._hear_of_tasks()
        run = self._tasks.find(
            request.task_id, back_in_seconds=self._limits.join_poll_seconds
        )
        task = run.task
        if task.invited is not None and identity not in task.invited:
            raise ErrorCode.NOT_INVITED.error(
                f"{identity!r} is not invited to this task",
                sender=identity,
                fix="Ask the operator to invite this client.",
            )
        facts = await self._sessions.facts(task.task_id)
        if identity in facts.left_out:
            raise ErrorCode.NOT_INVITED.error(
                f"{identity!r} takes no part in the rest of this task: it and another "
                "client accuse each other, or its secret could not be rebuilt",
                sender=identity,
                fix="Ask the operator, who has the receipts: nobody else can "
                "tell who is right.",
            )
        given = facts.given.get(identity, 0)
        if task.participations is not None and given >= task.participations:
            # A courtesy: the client itself gives no more than its budget covers.
            raise ErrorCode.TASK_OVER.error(
                f"the task is over for {identity!r}: it has given its participations, "
                f"{given} of {task.participations}",
                fix="Nothing is to be done; other clients give to the further sums.",
            )
        if self._stopping.is_set():
            raise shutting_down(self._limits.join_poll_seconds)
        for runner in self._sessions.running(task.task_id):
            descriptor = runner.descriptor
            if task.gate.is_paused:
                break
            if descriptor.session_number > request.after_session and runner.can_join(
                identity
            ):
                return descriptor
        self.attendance.note_waiting(identity)
        return Wait(self._limits.join_poll_seconds)

    async def _take(self, identity: str, request: SendMessage) -> None:
        runner = await self._runner(identity, request.session_id)
        await runner.submit(identity, Envelope(request.KIND, request.message))

    async def _upload_status(
        self, identity: str, request: GetUploadStatus
    ) -> UploadStatus:
        runner = await self._runner(identity, request.session_id)
        return await runner.upload_status(identity, request.view)

    async def _upload_chunk(self, identity: str, request: UploadChunk) -> UploadStatus:
        runner = await self._runner(identity, request.session_id)
        status = await runner.upload_chunk(identity, request)
        task_id, size = runner.descriptor.task_id, len(request.data)
        self._context.meter.add(metrics.UPLOAD_BYTES, size, task=task_id)
        return status

    async def _update(
        self, identity: str, request: GetUpdate
    ) -> Envelope | Reference | Wait:
        session = await self._sessions.look_for(request.session_id)
        update, retry = session.update_for(identity, request.after), None
        ends = self._held_until(request.wait_ms)
        is_held = ends >= self._context.clock.now() and self._held.is_free_for(identity)
        if update is None and is_held and isinstance(session, SessionRunner):
            with self._held.taken_by(identity):
                update = await session.next_update(
                    identity, request.after, ends, HELD_LOOK_SECONDS
                )
            retry = _AGAIN_SECONDS
        if update is None:
            return session.wait_of(identity, retry or self._limits.poll_seconds)
        self.attendance.note_told(identity, update)
        return _as_answer(update)

    async def _chunk(self, identity: str, request: FetchChunk) -> BlobChunk:
        """Return a piece of what the client may read, and count its bytes."""
        session = await self._sessions.look_for(request.session_id)
        piece = await self._piece(session, identity, request)
        task_id, size = session.descriptor.task_id, len(piece.data)
        self._context.meter.add(metrics.DOWNLOAD_BYTES, size, task=task_id)
        return piece

    async def _piece(
        self, session: SessionRunner | EndedSession, identity: str, request: FetchChunk
    ) -> BlobChunk:
        """Return a piece of what the client may read.

        Everybody who is invited reads the payload, after the end those of the roster;
        they read the sum, and of a large update each reads its own.
        """
        is_over = isinstance(session, EndedSession) or session.is_over
        if isinstance(session, SessionRunner):
            session.check_invited(identity)
        if request.blob not in _SPOOLED:
            return session.read(identity, request)
        if is_over and not session.is_member(identity):
            raise session_is_over(identity)
        if request.blob is Blob.SUM:
            update = session.update_for(identity, None)
            if update is None or update.kind is not Released:
                if is_over:
                    raise session_is_over(identity)
                raise ErrorCode.UNEXPECTED_MESSAGE.error(
                    "the session has not released its sum yet",
                    sender=identity,
                    fix="Ask for the session's update.",
                )
        name = _SPOOLED[request.blob]
        found = await self._read_spooled(request, name)
        if found is None:
            raise ErrorCode.UNKNOWN_SESSION.error(
                f"the session has no {name} here",
                fix="It has none, or has ended too long ago.",
            )
        data, size = found
        if request.offset > size:
            raise refuse(f"byte {request.offset} is beyond the object's {size}")
        return BlobChunk(data, size)

    async def _read_spooled(
        self, request: FetchChunk, name: str
    ) -> tuple[bytes, int] | None:
        """Return a piece of what lies in the spool, and the size of the whole.

        Everybody asks for the same, one after the other: the last piece is kept.
        """
        if self._last_read is not None and self._last_read[0] == request:
            return self._last_read[1]
        found = await self._context.workers.run(
            self._context.spool.read,
            request.session_id,
            name,
            request.offset,
            request.max_bytes,
        )
        if found is not None:
            self._last_read = request, found
        return found

    def _check_caller(self, identity: str) -> None:
        self.attendance.note_call(identity)
        if not 0 < len(identity.encode()) <= MAX_IDENTITY_BYTES or "\0" in identity:
            raise ErrorCode.UNAUTHENTICATED.error(
                f"an identity has 1 to {MAX_IDENTITY_BYTES} bytes, none of them zero",
            )

    async def _runner(self, identity: str, session_id: bytes) -> SessionRunner:
        """Return a session that takes messages."""
        self._check_caller(identity)
        session = await self._sessions.look_for(session_id)
        if isinstance(session, SessionRunner):
            return session
        raise came_too_late(identity)


def _as_answer(update: Envelope) -> Envelope | Reference:
    """Return an update, or where to read it: links break, and a chunk is resumed."""
    if len(update.data) > MAX_INLINE_BYTES:
        return Reference.instead_of(update)
    return update
