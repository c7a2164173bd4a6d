"""The aggregator: many sessions, whose clients call on any transport.

Rule 1: a call is answered for the identity that the transport has authenticated, and
        touches only what that client may see.
Rule 2: the sessions of a task run one after another; different tasks run side by side.
Rule 3: session numbers of a task only grow, also across restarts (PROTOCOL §5.0).
Rule 4: a session that has ended leaves its receipt and, for a while, its sum; records,
        uploads and seeds are gone (PROTOCOL §12).
Rule 5: several aggregators may share a book.  What one of them refuses, it refuses
        after it has looked at the book; what one does not do, another one does.
Rule 6: whatever one client sends, no other client's session ends by it, but for sealed
        bundles, which only their readers can judge (PROTOCOL §13).

It opens no socket and reads no settings.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

from secagg import metrics, telemetry
from secagg.descriptor import SessionDescriptor
from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.messages import MAX_IDENTITY_BYTES, Envelope, Released
from secagg.metrics import Meter, SilentMeter
from secagg.primitives.entropy import Entropy, SystemEntropy
from secagg.ring_odds import server_demand
from secagg.runtime.clock import Clock, SystemClock
from secagg.runtime.connection import UNCERTIFIED_AGGREGATOR
from secagg.runtime.workers import Workers
from secagg.server.attendance import Attendance
from secagg.server.bell import Bell
from secagg.server.durable_state import came_too_late, say_refused
from secagg.server.ended_session import EndedSession
from secagg.server.limits import AggregatorLimits
from secagg.server.mask_executor import MaskExecutor
from secagg.server.places import Places
from secagg.server.progress import LiveSession, ProgressFeed, SessionProgress
from secagg.server.readable import session_is_over
from secagg.server.receipt import SessionReceipt
from secagg.server.refusals import RefusalCounts
from secagg.server.runner_context import RunnerContext
from secagg.server.session_book import SessionBook
from secagg.server.session_runner import SessionRunner
from secagg.server.shared_look import SharedLook
from secagg.server.sharing import refuse_other_names
from secagg.server.task import NextPayload, OnAborted, OnEnded, OnSum, TaskDefinition
from secagg.server.task_run import TaskRun
from secagg.server.upload_desk import UploadSlots
from secagg.storage.book import AWAY_SECONDS, Book, BookAwayError
from secagg.storage.spool import PAYLOAD, SUM, Spool
from secagg.storage.stored import Replica
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

__all__ = ["Aggregator"]

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

_Answer = TypeVar("_Answer")
_MILLISECONDS: Final = 1000

# How often an aggregator says that it is there, where others share its book.
BEAT_SECONDS: Final = 5.0
# How long a client waits that asks for a task which nobody here has heard of.
HEARING_SECONDS: Final = 2.0

# Questions for a session that wait here are looked at again this often, for what nobody
# has rung for, as that somebody is invited now.  Not with every change of a book that
# is shared: whoever runs the task rings for a session that another one has opened.
HELD_LOOK_SECONDS: Final = 5.0
# Whoever has waited as long as it wanted may ask again at once.
AGAIN_SECONDS: Final = 0.05

# What lies in the spool; all else is part of a session's state.
_SPOOLED: Final[Mapping[Blob, str]] = {
    Blob.PAYLOAD: PAYLOAD,
    Blob.SUM: SUM,
}


class Aggregator:
    """Runs tasks and answers clients.

    Args:
        book: The durable book; closed by whoever opened it.
        spool: Uploads, payloads and sums.
        name: Under which it offers sessions: that of its certificate.
        clock: Time; the machine's by default.
        entropy: Nonces and graph seeds; the operating system's by default.
        workers: Threads for blocking calls.
        masks: Removes masks; on `workers` by default.
        limits: How much clients may use.
        on_aborted: Takes the audit receipt of each session that released no sum.
        on_ended: Takes what is known of each session when it is over.
        meter: Takes measurements; nobody by default.
        replica: Who this is among those that share the book.
    """

    def __init__(  # noqa: PLR0913 - every part can be exchanged
        self,
        book: Book,
        spool: Spool,
        *,
        name: str = UNCERTIFIED_AGGREGATOR,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        workers: Workers | None = None,
        masks: MaskExecutor | None = None,
        limits: AggregatorLimits | None = None,
        on_aborted: OnAborted | None = None,
        on_ended: OnEnded | None = None,
        meter: Meter | None = None,
        replica: Replica | None = None,
    ) -> None:
        self._replica = replace(replica or Replica("alone", "", ""), aggregator=name)
        self._following: tuple[asyncio.Task[None], ...] = ()
        self._on_change: Callable[[], Awaitable[None]] | None = None
        self._task_look = SharedLook(self._look_at_tasks, clock or SystemClock())
        self._waiting_for_book = SharedLook(self._wait_for_book, clock or SystemClock())
        self._limits = limits or AggregatorLimits()
        self._workers = workers or Workers()
        self._feed = ProgressFeed()
        self._context = RunnerContext(
            book=book,
            spool=spool,
            workers=self._workers,
            masks=masks or MaskExecutor(self._workers),
            clock=clock or SystemClock(),
            entropy=entropy or SystemEntropy(),
            slots=UploadSlots(
                self._limits.concurrent_chunks, waiting_bytes=self._limits.waiting_bytes
            ),
            publish=self._feed.publish,
            keep_seconds=self._limits.keep_seconds,
            meter=meter or SilentMeter(),
            replica=self._replica.name,
        )
        self._sessions = SessionBook(
            name,
            self._context,
            kept_sessions=self._limits.kept_sums,
            on_aborted=on_aborted,
            on_ended=on_ended,
        )
        self._runs: dict[str, TaskRun] = {}
        self._finished_tasks: set[str] = set()
        self._interrupted_tasks: set[str] = set()
        self._watches = Places(self._limits.watches_per_identity, self._limits.watches)
        self._held = Places(self._limits.held_per_identity, self._limits.held)
        self._offers = Bell(self._context.clock)
        self._refusals = RefusalCounts(self._context.clock)
        self._stopping = asyncio.Event()
        self._attendance = Attendance(self._context.clock, self._limits)
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

    # --- for clients ------------------------------------------------------------------

    async def answer(self, identity: str, request: Request[_Answer]) -> _Answer:
        """Answer a call of a client.

        Raises:
            RemoteProtocolError: The client may not ask this, or not now.
            ServiceError: STORAGE_FAILED, OVERLOADED, UNKNOWN_SESSION, SHUTTING_DOWN
                or UPLOAD_CORRUPT; the message says whether to come back.
        """
        meter, began = self._context.meter, self._context.clock.now()
        method = type(request).__name__
        meter.add(metrics.CALLS, method=method)
        try:
            self._check_caller(identity)
            request.check()  # whatever carried it, and whoever made it
            return cast("_Answer", await self._answered(identity, request))
        except SecAggError as error:
            self._refusals.note(error.code)
            meter.add(metrics.REFUSALS, code=error.code.name)
            raise
        finally:
            # A question that waits says nothing of how fast answers are.
            if not (isinstance(request, GetOffer) and request.wait_ms):
                lasted = self._context.clock.now() - began
                meter.observe(metrics.CALL_SECONDS, lasted, method=method)

    async def _answered(self, identity: str, request: Request[Any]) -> object:
        answer = self._answers[type(request)]
        try:
            return await answer(identity, request)
        except RemoteProtocolError:
            # A message is judged again by its session.
            session_id = getattr(request, "session_id", None)
            if (
                not self._context.book.is_shared
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
            raise ServiceError(
                "too many streams are open",
                code=ErrorCode.OVERLOADED,
                next_step="Close other streams, or poll.",
                retry_after_seconds=self._limits.poll_seconds,
            )
        with self._watches.taken_by(identity):
            if isinstance(session, SessionRunner):
                async for update in session.watch(identity, request.after):
                    if isinstance(update, Wait):
                        yield update
                        continue
                    self._attendance.note_call()
                    self._attendance.note_told(identity, update)
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
        ends = clock.now() + request.wait_ms / _MILLISECONDS - HELD_LOOK_SECONDS
        ringing = self._offers.listen()
        answer = await self._offer(identity, request)
        if (
            not isinstance(answer, Wait)
            or clock.now() > ends
            or not self._held.is_free_for(identity)
        ):
            return answer
        with self._held.taken_by(identity):
            while isinstance(answer, Wait) and clock.now() <= ends:
                await self._offers.heard(ringing, HELD_LOOK_SECONDS)
                ringing = self._offers.listen()
                answer = await self._offer(identity, request)
        return Wait(AGAIN_SECONDS) if isinstance(answer, Wait) else answer

    async def _offer(
        self, identity: str, request: GetOffer
    ) -> SessionDescriptor | Wait:
        self._attendance.note_back(identity)
        self._sessions.note_back(identity, request.task_id)
        if request.task_id not in self._runs:
            await self._hear_of_tasks()
        run = self._runs.get(request.task_id)
        if run is None and request.task_id in self._interrupted_tasks:
            raise _shutting_down(self._limits.join_poll_seconds)
        if run is None:
            over = request.task_id in self._finished_tasks
            raise ServiceError(
                "the task has ended" if over else "there is no such task here",
                code=ErrorCode.TASK_OVER if over else ErrorCode.UNKNOWN_SESSION,
                next_step="Ask the operator which tasks run and what their names are.",
            )
        task = run.task
        if task.invited is not None and identity not in task.invited:
            raise RemoteProtocolError(
                f"{identity!r} is not invited to this task",
                code=ErrorCode.NOT_INVITED,
                sender=identity,
                next_step="Ask the operator to invite this client.",
            )
        if identity in (await self._sessions.facts(task.task_id)).left_out:
            raise RemoteProtocolError(
                f"{identity!r} takes no part in the rest of this task: it and another "
                "client accuse each other, or its secret could not be rebuilt",
                code=ErrorCode.NOT_INVITED,
                sender=identity,
                next_step="Ask the operator, who has the receipts: nobody else can "
                "tell who is right.",
            )
        if self._stopping.is_set():
            raise _shutting_down(self._limits.join_poll_seconds)
        for runner in self._sessions.running(task.task_id):
            descriptor = runner.descriptor
            if task.gate.is_paused:
                break
            if descriptor.session_number > request.after_session and runner.can_join(
                identity
            ):
                return descriptor
        self._attendance.note_waiting(identity)
        return Wait(self._limits.join_poll_seconds)

    async def _take(self, identity: str, request: SendMessage) -> None:
        runner = await self._runner(identity, request.session_id)
        await runner.submit(identity, Envelope(request.KIND, request.message))

    async def _upload_status(
        self, identity: str, request: GetUploadStatus
    ) -> UploadStatus:
        runner = await self._runner(identity, request.session_id)
        return await runner.upload_status(identity)

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
        update = session.update_for(identity, request.after)
        if update is None:
            return session.wait_of(identity, self._limits.poll_seconds)
        self._attendance.note_told(identity, update)
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
                raise RemoteProtocolError(
                    "the session has not released its sum yet",
                    code=ErrorCode.UNEXPECTED_MESSAGE,
                    sender=identity,
                    next_step="Ask for the session's update.",
                )
        name = _SPOOLED[request.blob]
        found = await self._workers.run(
            self._context.spool.read,
            request.session_id,
            name,
            request.offset,
            request.max_bytes,
        )
        if found is None:
            raise ServiceError(
                f"the session has no {name} here",
                code=ErrorCode.UNKNOWN_SESSION,
                next_step="It has none, or has ended too long ago.",
            )
        data, size = found
        if request.offset > size:
            raise refuse(f"byte {request.offset} is beyond the object's {size}")
        return BlobChunk(data, size)

    # --- for the operator -------------------------------------------------------------

    async def recover(self) -> None:
        """Load what an earlier process left; call it before the transport opens.

        Live sessions answer their clients at once and go on with `run_task`.

        Raises:
            ServiceError: STORAGE_FAILED.  BAD_SETTINGS where others share the book and
                serve under another name.
        """
        book = self._context.book
        refuse_other_names(self._replica, await book.replicas())
        # First of all, so that time without anybody counts for no deadline.
        await book.beat(self._replica)
        await self._sessions.recover()
        if book.is_shared:
            self._following = (
                asyncio.create_task(self._follow()),
                asyncio.create_task(self._beat()),
            )

    def when_changed(self, then: Callable[[], Awaitable[None]]) -> None:
        """Have somebody told whenever another aggregator may have changed a task."""
        self._on_change = then

    def listens_at(self, address: str) -> None:
        """Say where this aggregator listens, for those who look at all of them."""
        self._replica = replace(self._replica, address=address)

    async def _follow(self) -> None:
        """Learn what other aggregators do, until cancelled."""
        async for _ in self._context.book.changes():
            try:
                await self._sessions.look()
                await self._task_look.take()
            except SecAggError as error:  # the next turn looks again
                say_refused(error)
            for run in self._runs.values():
                run.task.gate.wake()

    async def _hear_of_tasks(self) -> None:
        """Have the keeper look: another aggregator may have been told of a new task."""
        if not self._context.book.is_shared or self._on_change is None:
            return
        # It may begin to plan one, or fail; whoever asks then is told what is known.
        with suppress(TimeoutError, SecAggError):
            async with asyncio.timeout(HEARING_SECONDS):
                await self._task_look.take()

    async def _look_at_tasks(self) -> None:
        if self._on_change is not None:
            await self._on_change()

    async def _beat(self) -> None:
        clock = self._context.clock
        while True:
            try:
                await self._context.book.beat(self._replica)
            except SecAggError as error:
                say_refused(error)
            await clock.sleep_until(clock.now() + BEAT_SECONDS)

    async def run_task(
        self, task: TaskDefinition, *, next_payload: NextPayload, on_sum: OnSum
    ) -> tuple[SessionReceipt, ...]:
        """Run the sessions of a task, resuming one that was interrupted.

        Args:
            task: The task.
            next_payload: Supplies each session's payload; b"" for none.
            on_sum: Takes each sum.

        Returns:
            The receipts of the sessions that released a sum.

        Raises:
            LocalProtocolError: The task runs already.
            RemoteProtocolError: BAD_CONFIG; its parameters are impossible.
            SessionAbortedError: `max_attempts` sessions in a row were aborted after
                their roster was fixed, those apart after which somebody was left out;
                or DISPUTED, if too few of the invited clients are not; or the task was
                ended before its last sum, with ROSTER_TOO_SMALL if a session was
                waiting for clients, else TASK_OVER.
            SessionsSpentError: The task has used all sessions that its budget covers.
            ServiceError: STORAGE_FAILED; fix the cause, restart, and it is resumed.
                A book that is away is waited for.
        """
        task.parameters.validate(demanded_bits=server_demand)
        if task.task_id in self._runs:
            raise LocalProtocolError(f"task {task.task_id!r} runs already")
        run = self._runs[task.task_id] = TaskRun(
            task,
            self._sessions,
            self._context,
            stopping=self._stopping,
            wait_for_book=self.wait_for_book,
            offering=self._offers.ring,
            next_payload=next_payload,
            on_sum=on_sum,
        )
        self._finished_tasks.discard(task.task_id)
        self._interrupted_tasks.discard(task.task_id)
        # Until its end is known, clients are told to come back, not to go home.
        afterwards = self._interrupted_tasks
        try:
            receipts = await run.run()
            if not self._stopping.is_set():
                afterwards = self._finished_tasks
        except SessionAbortedError:
            afterwards = self._finished_tasks
            raise
        finally:
            del self._runs[task.task_id]
            afterwards.add(task.task_id)
            self._offers.ring()
        return receipts

    async def end_task(self, task_id: str, reason: str) -> None:
        """End a task: its operator wants no more sums, or its date has come.

        A session that still waits for clients ends without a sum; one whose cohort is
        complete goes on to its own end.  Clients of one that does not run are told that
        it is over.

        Args:
            task_id: Which.
            reason: Why, in words for the clients.
        """
        if task_id in self._runs:
            await self._runs[task_id].end(reason)
        else:
            self._interrupted_tasks.discard(task_id)
            self._finished_tasks.add(task_id)

    async def pause_task(self, task_id: str, reason: str) -> None:
        """Offer no session of a task until `resume_task`.

        A session that still waits for clients ends without a sum; one whose cohort is
        complete goes on to its own end.  Nothing happens if the task does not run.

        Args:
            task_id: Which.
            reason: Why, in words for the clients.
        """
        if task_id in self._runs:
            self._runs[task_id].task.gate.pause()
            await self._runs[task_id].stop_waiting(reason)

    def resume_task(self, task_id: str) -> None:
        """Offer sessions of a task again; nothing happens if it does not run."""
        if task_id in self._runs:
            self._runs[task_id].task.gate.resume()
            self._offers.ring()

    def hold_task(self, task_id: str) -> None:
        """Tell clients of a task that does not run here, and may again, to come back.

        Args:
            task_id: Which.
        """
        self._interrupted_tasks.add(task_id)

    def live(self) -> tuple[LiveSession, ...]:
        """Return the sessions that are not over, as they stand now."""
        return tuple(
            LiveSession(runner.progress(), runner.seconds_left(), runner.missing())
            for runner in self._sessions.all_running()
        )

    async def abort(self, session_id: bytes, reason: str) -> None:
        """End a session without a sum; nothing happens if it is over.

        Raises:
            ServiceError: UNKNOWN_SESSION; it does not run here.
        """
        session = await self._sessions.look_for(session_id)
        if isinstance(session, SessionRunner):
            await session.abort(ErrorCode.CANCELLED, reason)

    def refused(self) -> dict[str, int]:
        """Return how many calls were refused in the last hour, by name of the code."""
        return self._refusals.of_last_hour()

    def progress(self) -> AsyncIterator[SessionProgress]:
        """Watch all sessions; ends with `close`."""
        return self._feed.watch()

    def drain(self) -> None:
        """Offer no further sessions; those that run go on."""
        self._stopping.set()
        self._offers.ring()
        for run in self._runs.values():
            run.task.gate.wake()

    def ended_before(self) -> bool:
        """Whether the latest session ended in an earlier process, which told some."""
        return self._sessions.ended_before()

    async def settle(
        self, *, at_most_seconds: float, silent_seconds: float = math.inf
    ) -> None:
        """Wait until clients know how their sessions, or the tasks, have ended.

        Returns when everybody who took part to the end has been told, or is back for
        the next session, when whoever was told of a sum has come for it or had the time
        to, when nobody has called for a moment, and when whoever waits for a session
        has come back to hear that there is none; or when the time is up.  The next
        process does not wait again for those that all know.

        Args:
            at_most_seconds: How long to wait.
            silent_seconds: How long to wait while nobody calls.
        """
        clock = self._context.clock
        began = clock.now()
        while (now := clock.now()) < (
            deadline := min(
                began + at_most_seconds,
                max(began, self._attendance.last_call) + silent_seconds,
            )
        ):
            quiet_at = self._attendance.quiet_at
            if now >= quiet_at and not (
                self._sessions.has_untold() or self._attendance.has_expected()
            ):
                try:
                    await self._sessions.note_settled()
                except ServiceError as error:  # the next process waits in vain
                    say_refused(error)
                return
            await clock.sleep_until(
                min(deadline, max(quiet_at, now + self._limits.quiet_seconds))
            )

    async def wait_for_book(self) -> None:
        """Wait until the book can be written, which may take minutes.

        Raises:
            ServiceError: It has come back otherwise than it went.
        """
        await self._waiting_for_book.take()

    async def _wait_for_book(self) -> None:
        clock = self._context.clock
        began = clock.now()
        while True:
            try:
                await self._context.book.touch()
            except BookAwayError:
                await clock.sleep_until(clock.now() + AWAY_SECONDS)
            else:
                telemetry.log_event(
                    _LOG,
                    logging.WARNING,
                    telemetry.BOOK_IS_BACK,
                    seconds=round(clock.now() - began, 1),
                )
                return

    async def close(self) -> None:
        """Release threads and end progress streams; sessions resume after a restart."""
        self._stopping.set()
        self._offers.ring()
        for following in self._following:
            following.cancel()
        if self._following:
            await asyncio.wait(self._following)
        self._feed.close()
        self._workers.close()

    # --- callers ----------------------------------------------------------------------

    def _check_caller(self, identity: str) -> None:
        self._attendance.note_call(identity)
        if not 0 < len(identity.encode()) <= MAX_IDENTITY_BYTES or "\0" in identity:
            raise RemoteProtocolError(
                f"an identity has 1 to {MAX_IDENTITY_BYTES} bytes, none of them zero",
                code=ErrorCode.UNAUTHENTICATED,
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


def _shutting_down(retry_after_seconds: float) -> ServiceError:
    return ServiceError(
        "the aggregator is shutting down",
        code=ErrorCode.SHUTTING_DOWN,
        next_step="Ask again when it is back.",
        retry_after_seconds=retry_after_seconds,
    )
