"""The aggregator: it runs sessions and answers clients of any transport.

Rule 1: a call is answered for the identity that the transport authenticated. It touches
        only what that client may see.
Rule 2: the sessions of a task run one after another; different tasks run side by side.
Rule 3: session numbers of a task only grow, also across restarts (PROTOCOL §5.0).
Rule 4: a session that has ended leaves its receipt and, for a while, its sum; records,
        uploads and seeds are gone (PROTOCOL §12).
Rule 5: several aggregators may share a store.  Before one refuses a call, it refreshes
        its sessions from the store: another one may have opened the round that the
        client means.  What one aggregator leaves undone, another completes.
Rule 6: a message of one client never ends another client's session. The exception is
        sealed bundles, which only their readers can verify (PROTOCOL §13).
Rule 7: the number of calls that wait is limited (`ConcurrencyLimit`).
Rule 8: a task that was interrupted is not over. Its clients are told to come back,
        because a restart resumes it.

It opens no socket and reads no settings.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.graphs.bounds import server_demand
from secagg.protocol.messages import MAX_IDENTITY_BYTES, Envelope, Released, Round
from secagg.protocol.profiles import Profile
from secagg.runtime import log_events as telemetry
from secagg.runtime import metrics
from secagg.runtime.clock import Clock, SystemClock
from secagg.runtime.metrics import Meter, SilentMeter
from secagg.runtime.workers import Workers
from secagg.server.dependencies import ServerDependencies
from secagg.server.engine.mask_removal import MaskExecutor
from secagg.server.notifier import Notifier, SingleFlight
from secagg.server.rpc.limits import AggregatorLimits, ConcurrencyLimit, UploadSlots
from secagg.server.session.events import LiveSession, ProgressFeed, SessionProgress
from secagg.server.session.registry import SessionRegistry
from secagg.server.session.runner import SessionRunner
from secagg.server.session.state import late_message_error, log_refused
from secagg.server.session.updates import EndedSession, session_is_over
from secagg.server.task.definition import (
    NextPayload,
    OnAborted,
    OnEnded,
    OnSum,
    TaskDefinition,
)
from secagg.server.task.runner import TaskRunner
from secagg.server.telemetry.measures import RefusalCounts, measured_call
from secagg.storage.changes import Touch
from secagg.storage.leases import Heartbeat
from secagg.storage.rows import Replica
from secagg.storage.spool import PAYLOAD, SUM, UploadSpool
from secagg.storage.store import STORE_RETRY_SECONDS, Store, StoreUnavailableError
from secagg.transport.connection import UNCERTIFIED_AGGREGATOR
from secagg.wire.calls import (
    MAX_INLINE_BYTES,
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
    refuse,
)

_Answer = TypeVar("_Answer")
_MILLISECONDS: Final = 1000

# A held question for a session is checked again at this interval, for changes that send
# no notification, such as an invitation.  Changes of a shared store do not trigger it:
# the replica that runs the task notifies when another one has opened a session.
HELD_REFRESH_SECONDS: Final = 5.0
# A client whose wait is over may ask again at once.
_AGAIN_SECONDS: Final = 0.05

# Objects in the spool; all others are part of a session's state.
_SPOOLED: Final[Mapping[Blob, str]] = {
    Blob.PAYLOAD: PAYLOAD,
    Blob.SUM: SUM,
}
_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)


# Interval of the heartbeats of an aggregator that shares its store.
_HEARTBEAT_SECONDS: Final = 5.0
# How long a client waits that asks for a task which this aggregator does not know.
HEARING_SECONDS: Final = 2.0


class _KnownTasks:
    """Knows which tasks of one aggregator run, and which are over."""

    def __init__(self) -> None:
        self._running: dict[str, TaskRunner] = {}
        # For each task that does not run: whether it is over, or only interrupted.
        self._is_over: dict[str, bool] = {}

    def begin(self, run: TaskRunner) -> None:
        """Record that a task runs.

        Raises:
            LocalProtocolError: The task runs already.
        """
        task_id = run.task.task_id
        if task_id in self._running:
            raise ErrorCode.LOCAL_MISUSE.error(f"task {task_id!r} runs already")
        self._running[task_id] = run
        self._is_over.pop(task_id, None)

    def end(self, task_id: str, *, is_over: bool) -> None:
        """Record that a task does not run.

        Args:
            task_id: The task.
            is_over: Whether it never runs again; otherwise its clients are told to come
                back.
        """
        self._running.pop(task_id, None)
        self._is_over[task_id] = is_over

    def get(self, task_id: str) -> TaskRunner | None:
        """Return a task that runs; None for any other."""
        return self._running.get(task_id)

    def find(self, task_id: str, *, back_in_seconds: float) -> TaskRunner:
        """Return a running task, for a client that asks for its sessions.

        Args:
            task_id: The task.
            back_in_seconds: When the client of an interrupted task asks again.

        Raises:
            ServiceError: SHUTTING_DOWN, TASK_OVER or UNKNOWN_SESSION.
        """
        run, is_over = self._running.get(task_id), self._is_over.get(task_id)
        if run is not None:
            return run
        if is_over is False:
            raise _shutting_down_error(back_in_seconds)
        raise (ErrorCode.TASK_OVER if is_over else ErrorCode.UNKNOWN_SESSION).error(
            "the task has ended" if is_over else "there is no such task here",
            kind=ServiceError,
            fix="Ask the operator which tasks run and what their names are.",
        )

    def wake(self) -> None:
        """Have every task check again whether it may open a session."""
        for run in self._running.values():
            run.task.gate.wake()


def _shutting_down_error(retry_after_seconds: float) -> SecAggError:
    """Build the error for clients that ask while the aggregator shuts down."""
    return ErrorCode.SHUTTING_DOWN.error(
        "the aggregator is shutting down",
        fix="Ask again when it is back.",
        retry_after_seconds=retry_after_seconds,
    )


class _RecentClients:
    """Records when clients called, and what they are expected to come back for.

    Args:
        clock: Time.
        limits: How long clients take to come back.

    Attributes:
        last_call: When a client last called or was known to listen.
    """

    def __init__(self, clock: Clock, limits: AggregatorLimits) -> None:
        self._clock: Final = clock
        self._limits: Final = limits
        self.last_call = clock.now()
        # When each client that waits for a session last asked for one.
        self._waiting: dict[str, float] = {}
        # When each client was told of a sum, until it calls to fetch it.
        self._fetching: dict[str, float] = {}

    @property
    def idle_at(self) -> float:
        """When the last call is one idle time ago, unless another client calls."""
        return self.last_call + self._limits.idle_timeout

    def record_client_call(self, identity: str | None = None) -> None:
        """Record a call of a client, or that it still listens to a stream."""
        self.last_call = self._clock.now()
        if identity is not None:
            self._fetching.pop(identity, None)

    def record_waiting(self, identity: str) -> None:
        """Record that a client was told to ask for a session again."""
        self._waiting[identity] = self._clock.now()

    def record_call(self, identity: str) -> None:
        """Record that a client asks for a session."""
        self._waiting.pop(identity, None)

    def record_update(self, identity: str, update: Envelope) -> None:
        """Record what a client was told; a client that is told of a sum fetches it."""
        if update.kind is Released:
            self._fetching[identity] = self._clock.now()

    def has_expected(self) -> bool:
        """Whether a client may still come, for a session or for a sum."""
        now = self._clock.now()
        # Clients spread their polls by a quarter; the rest is for the network.
        asked_after = now - 2 * self._limits.join_poll_seconds
        told_after = now - self._limits.fetch_seconds
        return any(asked > asked_after for asked in self._waiting.values()) or any(
            told > told_after for told in self._fetching.values()
        )


def _as_answer(update: Envelope) -> Envelope | Reference:
    """Return an update, or a reference where a large one is read in chunks."""
    if len(update.data) > MAX_INLINE_BYTES:
        return Reference.for_message(update)
    return update


class Aggregator:
    """Runs tasks and answers clients.

    Args:
        store: The durable store; its opener closes it.
        spool: Uploads, payloads and sums.
        name: The name in its offers: that of its certificate.
        clock: Time; the machine's by default.
        entropy: Nonces and graph seeds; the operating system's by default.
        workers: Threads for blocking calls.
        masks: Removes masks; on `workers` by default.
        limits: What clients may use.
        on_aborted: Receives the audit receipt of each session that released no sum.
        on_ended: Receives the report of each session when it is over.
        meter: Receives measurements; discarded by default.
        replica: This process among the replicas of one store.
        check_profile: Raises for a profile that is not served here; all are by default.
    """

    def __init__(  # noqa: PLR0913 - every part can be exchanged
        self,
        store: Store,
        spool: UploadSpool,
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
        check_profile: Callable[[Profile], None] = lambda _: None,
    ) -> None:
        self._replica = replace(replica or Replica("alone", "", ""), aggregator=name)
        self._following: tuple[asyncio.Task[None], ...] = ()
        self._on_change: Callable[[], Awaitable[None]] | None = None
        clock, limits = clock or SystemClock(), limits or AggregatorLimits()
        self._task_refresh = SingleFlight(self._refresh_from_store, clock)
        self._store_wait = SingleFlight(self._wait_for_store, clock)
        self._limits = limits
        self._workers = workers or Workers()
        self._feed = ProgressFeed()
        self._context = ServerDependencies(
            store=store,
            spool=spool,
            workers=self._workers,
            masks=masks or MaskExecutor(self._workers),
            clock=clock,
            entropy=entropy or SystemEntropy(),
            slots=UploadSlots(
                limits.concurrent_chunks, waiting_bytes=limits.waiting_bytes
            ),
            publish=self._feed.publish,
            keep_seconds=limits.keep_seconds,
            meter=meter or SilentMeter(),
            replica=self._replica.name,
        )
        self._sessions = SessionRegistry(
            name,
            self._context,
            kept_sessions=limits.kept_sums,
            on_aborted=on_aborted,
            on_ended=on_ended,
            check_profile=check_profile,
        )
        self._tasks = _KnownTasks()
        # Set when no session is offered any more.
        self._stopping = asyncio.Event()
        # Notified whenever another session may be offered.
        self._offers = Notifier(clock)
        self._recent = _RecentClients(clock, limits)
        self._refusals = RefusalCounts(clock)
        self._watches = ConcurrencyLimit(limits.watches_per_identity, limits.watches)
        # The last piece of a payload or sum that was read, at most 1 MiB; neither
        # changes.
        self._last_read: tuple[FetchChunk, tuple[bytes, int]] | None = None
        self._held = ConcurrencyLimit(limits.held_per_identity, limits.held)
        # Each handler takes the identity and a request of its class; `answer` ensures
        # that.
        self._answers: Mapping[
            type[Request[Any]], Callable[[str, Any], Awaitable[object]]
        ] = {
            GetOffer: self._offer_in_time,
            AdvertiseKeys: self._submit_message,
            ChooseEdges: self._submit_message,
            ShareKeys: self._submit_message,
            SignConsistency: self._submit_message,
            RevealShares: self._submit_message,
            ReportViolation: self._submit_message,
            GetUploadStatus: self._upload_status,
            UploadChunk: self._upload_chunk,
            GetUpdate: self._update,
            FetchChunk: self._chunk,
        }

    # --- for clients ------------------------------------------------------------------

    async def answer(self, identity: str, request: Request[_Answer]) -> _Answer:
        """Answer a call of a client.

        Raises:
            RemoteProtocolError: The client may not make this call, or not now.
            ServiceError: STORAGE_FAILED, OVERLOADED, UNKNOWN_SESSION, SHUTTING_DOWN or
                UPLOAD_CORRUPT; the message says whether to come back.
        """
        with measured_call(self._context.meter, self._context.clock, request):
            self._check_caller(identity)
            request.check()  # for every transport and every caller
            return cast("_Answer", await self._answer_call(identity, request))

    async def _answer_call(self, identity: str, request: Request[Any]) -> object:
        """Answer a call; refresh the session first where this replica is behind."""
        answer = self._answers[type(request)]
        try:
            return await answer(identity, request)
        except RemoteProtocolError:
            # The session validates a message itself.
            session_id = getattr(request, "session_id", None)
            if (
                not self._context.store.is_shared
                or isinstance(request, SendMessage)
                or session_id is None
            ):
                raise
        # Another aggregator may have opened the round that this one does not know.
        session = await self._sessions.find_session(session_id)
        if isinstance(session, SessionRunner):
            await session.refresh()
        return await answer(identity, request)

    async def watch(
        self, identity: str, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Yield updates as they come, with keepalives between; end with the session.

        Raises:
            ServiceError: OVERLOADED when too many streams are open; poll instead.
        """
        self._check_caller(identity)
        request.check()
        session = await self._sessions.find_session(request.session_id)
        if not self._watches.is_free_for(identity):
            raise ErrorCode.OVERLOADED.error(
                "too many streams are open",
                fix="Close other streams, or poll.",
                retry_after_seconds=self._limits.poll_seconds,
            )
        with self._watches.acquire(identity):
            if isinstance(session, SessionRunner):
                async for update in session.watch(identity, request.after):
                    if isinstance(update, Wait):
                        yield update
                        continue
                    self._recent.record_client_call()
                    self._recent.record_update(identity, update)
                    yield _as_answer(update)
            else:
                update_of_ended = session.update_for(identity, request.after)
                if update_of_ended is not None:
                    yield update_of_ended

    async def _offer_in_time(
        self, identity: str, request: GetOffer
    ) -> SessionDescriptor | Wait:
        """Answer a request for a session, when one is open or its time is up."""
        clock = self._context.clock
        ends = self._held_until(request.wait_ms)
        notified = self._offers.subscribe()
        answer = await self._offer(identity, request)
        if (
            not isinstance(answer, Wait)
            or clock.now() > ends
            or not self._held.is_free_for(identity)
        ):
            return answer
        with self._held.acquire(identity):
            while isinstance(answer, Wait) and clock.now() <= ends:
                await self._offers.wait(notified, HELD_REFRESH_SECONDS)
                notified = self._offers.subscribe()
                answer = await self._offer(identity, request)
        return Wait(_AGAIN_SECONDS) if isinstance(answer, Wait) else answer

    def _held_until(self, wait_ms: int) -> float:
        """Return the time after which a held request is answered at its next check."""
        waiting = wait_ms / _MILLISECONDS - HELD_REFRESH_SECONDS
        return self._context.clock.now() + waiting

    async def _offer(
        self, identity: str, request: GetOffer
    ) -> SessionDescriptor | Wait:
        """Return the offer of a task's open session, or tell the client to wait."""
        self._recent.record_call(identity)
        self._sessions.record_call(identity, request.task_id)
        if self._tasks.get(request.task_id) is None:
            await self._refresh_tasks()
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
        if identity in facts.excluded:
            raise ErrorCode.NOT_INVITED.error(
                f"{identity!r} is excluded from the rest of this task: it and another "
                "client accuse each other, or its secret could not be rebuilt",
                sender=identity,
                fix="Ask the operator, who has the receipts, which client is at fault.",
            )
        given = facts.given.get(identity, 0)
        if task.participations is not None and given >= task.participations:
            # This only saves work: the client itself sends no more than its budget
            # covers.
            raise ErrorCode.TASK_OVER.error(
                f"the task is over for {identity!r}: it has used {given} of its "
                f"{task.participations} participations",
                fix="Do nothing: other clients contribute to the remaining sums.",
            )
        if self._stopping.is_set():
            raise _shutting_down_error(self._limits.join_poll_seconds)
        for runner in self._sessions.running(task.task_id):
            descriptor = runner.descriptor
            if task.gate.is_paused:
                break
            if descriptor.session_number > request.after_session and runner.can_join(
                identity
            ):
                return descriptor
        self._recent.record_waiting(identity)
        return Wait(self._limits.join_poll_seconds)

    async def _submit_message(self, identity: str, request: SendMessage) -> None:
        runner = await self._runner(identity, request.session_id)
        await runner.submit(identity, Envelope(request.KIND, request.message))

    async def _upload_status(
        self, identity: str, request: GetUploadStatus
    ) -> UploadStatus:
        runner = await self._runner(identity, request.session_id)
        return await runner.upload_status(identity, request.view)

    async def _upload_chunk(self, identity: str, request: UploadChunk) -> UploadStatus:
        """Store a chunk of an upload, and count it."""
        runner = await self._runner(identity, request.session_id)
        status = await runner.upload_chunk(identity, request)
        task_id, size = runner.descriptor.task_id, len(request.data)
        self._context.meter.add(metrics.UPLOAD_BYTES, size, task=task_id)
        return status

    async def _update(
        self, identity: str, request: GetUpdate
    ) -> Envelope | Reference | Wait:
        """Return the client's next update, held back while its call may wait."""
        session = await self._sessions.find_session(request.session_id)
        update, retry = session.update_for(identity, request.after), None
        ends = self._held_until(request.wait_ms)
        is_held = ends >= self._context.clock.now() and self._held.is_free_for(identity)
        if update is None and is_held and isinstance(session, SessionRunner):
            with self._held.acquire(identity):
                update = await session.next_update(
                    identity, request.after, ends, HELD_REFRESH_SECONDS
                )
            retry = _AGAIN_SECONDS
        if update is None:
            return session.wait_answer(identity, retry or self._limits.poll_seconds)
        self._recent.record_update(identity, update)
        return _as_answer(update)

    async def _chunk(self, identity: str, request: FetchChunk) -> BlobChunk:
        """Return a piece of an object that the client may read, and count its bytes."""
        session = await self._sessions.find_session(request.session_id)
        piece = await self._fetch_piece(session, identity, request)
        task_id, size = session.descriptor.task_id, len(piece.data)
        self._context.meter.add(metrics.DOWNLOAD_BYTES, size, task=task_id)
        return piece

    async def _fetch_piece(
        self, session: SessionRunner | EndedSession, identity: str, request: FetchChunk
    ) -> BlobChunk:
        """Return a piece of an object that the client may read.

        Every invited client may read the payload, and after the end the clients of the
        roster. The clients of the roster may read the sum. Each may read its own piece
        of a large update.
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
                fix="Continue without it: the session never had one, or ended too "
                "long ago.",
            )
        data, size = found
        if request.offset > size:
            raise refuse(f"byte {request.offset} exceeds the object's {size} bytes")
        return BlobChunk(data, size)

    async def _read_spooled(
        self, request: FetchChunk, name: str
    ) -> tuple[bytes, int] | None:
        """Return a piece of an object in the spool, and the size of the whole.

        Clients ask for the same pieces one after the other, so the last one is kept.
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
        """Record a caller, and refuse a name that is too long."""
        self._recent.record_client_call(identity)
        if not 0 < len(identity.encode()) <= MAX_IDENTITY_BYTES or "\0" in identity:
            raise ErrorCode.UNAUTHENTICATED.error(
                f"an identity has 1 to {MAX_IDENTITY_BYTES} bytes, none of them zero"
            )

    async def _runner(self, identity: str, session_id: bytes) -> SessionRunner:
        """Return a session that accepts messages."""
        self._check_caller(identity)
        session = await self._sessions.find_session(session_id)
        if isinstance(session, SessionRunner):
            return session
        raise late_message_error(identity)

    def record_refusal(self, code: ErrorCode) -> None:
        """Count a call that was refused before it reached the service."""
        self._context.meter.add(metrics.REFUSALS, code=code.name)
        self._refusals.count(code)

    # --- for the operator -------------------------------------------------------------

    async def recover(self) -> None:
        """Load what an earlier process left; call this before the transport opens.

        Open sessions answer their clients at once and continue with `run_task`.

        Raises:
            ServiceError: STORAGE_FAILED.  BAD_SETTINGS if the aggregators of the store
                serve under another name, or `check_profile` refuses an open session.
        """
        store = self._context.store
        # This comes first: the downtime counts for no deadline.
        await store.commit(Heartbeat(self._replica))
        await self._sessions.recover()
        if store.is_shared:
            self._following = (
                asyncio.create_task(self._follow_replicas()),
                asyncio.create_task(self._send_heartbeats()),
            )

    def when_changed(self, then: Callable[[], Awaitable[None]]) -> None:
        """Set what runs when another aggregator may have changed a task."""
        self._on_change = then

    def set_address(self, address: str) -> None:
        """Set the address that the other aggregators of the store see."""
        self._replica = replace(self._replica, address=address)

    async def _follow_replicas(self) -> None:
        """Follow what other aggregators do, until cancelled."""
        async for _ in self._context.store.changes():
            try:
                await self._sessions.refresh()
                await self._task_refresh.run()
            except SecAggError as error:  # the next round of the loop tries again
                log_refused(error)
            except Exception:  # noqa: BLE001 - a defect must not end this loop unseen
                telemetry.log_defect(_LOG, telemetry.MONITORING_FAILED)
            self._tasks.wake()

    async def _refresh_tasks(self) -> None:
        """Have the supervisor refresh: another aggregator may have added a task."""
        if not self._context.store.is_shared or self._on_change is None:
            return
        # Planning a new task may take long or fail; the client is answered from what is
        # known.
        with suppress(TimeoutError, SecAggError):
            async with asyncio.timeout(HEARING_SECONDS):
                await self._task_refresh.run()

    async def _refresh_from_store(self) -> None:
        if self._on_change is not None:
            await self._on_change()

    async def _send_heartbeats(self) -> None:
        """Tell the store again and again that this replica is alive."""
        clock = self._context.clock
        while True:
            try:
                await self._context.store.commit(Heartbeat(self._replica))
            except SecAggError as error:
                log_refused(error)
            except Exception:  # noqa: BLE001 - a defect must not end this loop unseen
                telemetry.log_defect(_LOG, telemetry.MONITORING_FAILED)
            await clock.sleep_until(clock.now() + _HEARTBEAT_SECONDS)

    async def run_task(
        self, task: TaskDefinition, *, next_payload: NextPayload, on_sum: OnSum
    ) -> None:
        """Run the sessions of a task, resuming one that was interrupted.

        Args:
            task: The task.
            next_payload: Returns the payload of the next session; b"" for none.
            on_sum: Receives each sum.

        Raises:
            LocalProtocolError: The task runs already.
            RemoteProtocolError: BAD_CONFIG; the task's parameters are impossible.
            SessionAbortedError: `max_attempts` consecutive sessions were aborted after
                their roster was fixed; sessions that excluded a client do not count.
                DISPUTED if too few invited clients remain. If the task was ended before
                its last sum: ROSTER_TOO_SMALL while a session waited for clients, else
                TASK_OVER.
            SessionsSpentError: The task has used all sessions that its budget covers.
            ServiceError: STORAGE_FAILED; remove the cause and restart to resume the
                task.
        """
        task.parameters.validate(demanded_bits=server_demand)
        run = TaskRunner(
            task,
            self._sessions,
            self._context,
            stopping=self._stopping,
            wait_for_store=self.wait_for_store,
            offering=self._offers.notify_all,
            next_payload=next_payload,
            on_sum=on_sum,
        )
        self._tasks.begin(run)
        # Until it is known how the task ended, clients are told to come back.
        is_over = False
        try:
            await run.run()
            is_over = not self._stopping.is_set()
        except SessionAbortedError:
            is_over = True
            raise
        finally:
            self._tasks.end(task.task_id, is_over=is_over)
            self._offers.notify_all()

    async def end_task(self, task_id: str, reason: str) -> None:
        """End a task, by its operator or at its end date.

        A session that still waits for clients ends without a sum; one whose cohort is
        complete continues to its own end.  Clients of a task that does not run are told
        that it is over.

        Args:
            task_id: The task.
            reason: Why, in words for the clients.
        """
        run = self._tasks.get(task_id)
        if run is not None:
            await run.end(reason)
        else:
            self._tasks.end(task_id, is_over=True)

    async def pause_task(self, task_id: str, reason: str) -> None:
        """Offer no session of a task until `resume_task`.

        A session that still waits for clients ends without a sum; one whose cohort is
        complete continues to its own end.  A task that does not run is not affected.

        Args:
            task_id: The task.
            reason: Why, in words for the clients.
        """
        run = self._tasks.get(task_id)
        if run is not None:
            run.task.gate.pause()
            await run.stop_waiting(reason)

    def resume_task(self, task_id: str) -> None:
        """Offer sessions of a task again; a task that does not run is not affected."""
        run = self._tasks.get(task_id)
        if run is not None:
            run.task.gate.resume()
            self._offers.notify_all()

    def defer_task(self, task_id: str) -> None:
        """Tell clients of a task that is not running here at the moment to come back.

        Args:
            task_id: The task.
        """
        self._tasks.end(task_id, is_over=False)

    def live(self) -> tuple[LiveSession, ...]:
        """Return the progress of all sessions that are not over."""
        return tuple(
            LiveSession(runner.progress(), self._closes_in(runner), runner.missing())
            for runner in self._sessions.all_running()
        )

    def _closes_in(self, runner: SessionRunner) -> float | None:
        """Return the seconds in which clients may still answer or join a session."""
        progress, left = runner.progress(), runner.seconds_left()
        if progress.round is not Round.ADVERTISE_KEYS:
            return left
        run = self._tasks.get(progress.task_id)
        date = self._context.clock.date()
        door = None if run is None else run.task.gate.closes_in(date)
        if progress.joined < progress.needed:  # its deadline then begins again
            left = None
        ends = [each for each in (left, door) if each is not None]
        return max(0.0, min(ends)) if ends else None

    async def abort(self, session_id: bytes, reason: str) -> None:
        """End a session without a sum; do nothing if it is over.

        Raises:
            ServiceError: UNKNOWN_SESSION; it does not run here.
        """
        session = await self._sessions.find_session(session_id)
        if isinstance(session, SessionRunner):
            await session.abort(ErrorCode.CANCELLED, reason)

    def refused(self) -> dict[str, int]:
        """Return how many calls were refused in the last hour, by error code."""
        return self._refusals.of_last_hour()

    def progress(
        self, at_first: Iterable[SessionProgress] = ()
    ) -> AsyncIterator[SessionProgress]:
        """Watch all sessions; ends with `close`.

        Args:
            at_first: As for `ProgressFeed.watch`.
        """
        return self._feed.watch(at_first)

    def drain(self) -> None:
        """Stop offering sessions; those that run continue."""
        self._stopping.set()
        self._offers.notify_all()
        self._tasks.wake()

    def ended_before(self) -> bool:
        """Whether an earlier process ended the latest session."""
        return self._sessions.ended_before()

    async def settle(
        self, *, at_most_seconds: float, silent_seconds: float = math.inf
    ) -> None:
        """Wait until clients know how their sessions, or the tasks, have ended.

        Returns when these hold, or when the time is up. Each participant of the last
        round knows the end, or asks for the next session. Each client that was told of
        a sum has fetched it, or had time to. Each client that waits for a session was
        told that none follows. No client has called for the idle time. The next process
        does not wait again for clients that know the end.

        Args:
            at_most_seconds: The longest wait.
            silent_seconds: The longest wait without a call of any client.
        """
        clock, recent = self._context.clock, self._recent
        began = clock.now()
        while (now := clock.now()) < (
            deadline := min(
                began + at_most_seconds,
                max(began, recent.last_call) + silent_seconds,
            )
        ):
            quiet_at = recent.idle_at
            if now >= quiet_at and not (
                self._sessions.has_unacknowledged() or recent.has_expected()
            ):
                try:
                    await self._sessions.record_settled()
                except ServiceError as error:  # the next process waits once more
                    log_refused(error)
                return
            await clock.sleep_until(
                min(deadline, max(quiet_at, now + self._limits.idle_timeout))
            )

    async def wait_for_store(self) -> None:
        """Wait until the store accepts writes, which may take minutes.

        Raises:
            ServiceError: The store has come back with another identity or older data.
        """
        await self._store_wait.run()

    async def _wait_for_store(self) -> None:
        """Try to write until the store is available again."""
        clock = self._context.clock
        began = clock.now()
        while True:
            try:
                await self._context.store.commit(Touch())
            except StoreUnavailableError:
                await clock.sleep_until(clock.now() + STORE_RETRY_SECONDS)
            else:
                telemetry.log_event(
                    _LOG,
                    logging.WARNING,
                    telemetry.STORE_RECONNECTED,
                    seconds=round(clock.now() - began, 1),
                )
                return

    async def close(self) -> None:
        """Release threads and end progress streams; sessions resume after a restart."""
        self._stopping.set()
        self._offers.notify_all()
        for following in self._following:
            following.cancel()
        if self._following:
            await asyncio.wait(self._following)
        self._feed.close()
        self._workers.close()
