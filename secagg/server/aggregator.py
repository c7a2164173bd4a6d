"""The aggregator: many sessions, whose clients call on any transport.

Rule 1: calls of clients are answered at one desk (`secagg.server.client_requests`).
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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.errors import (
    ErrorCode,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol.graphs.ring_bounds import server_demand
from secagg.protocol.messages import Envelope, Round
from secagg.protocol.profiles import Profile
from secagg.runtime import log_events as telemetry
from secagg.runtime.clock import Clock, SystemClock
from secagg.runtime.connection import UNCERTIFIED_AGGREGATOR
from secagg.runtime.metrics import Meter, SilentMeter
from secagg.runtime.workers import Workers
from secagg.server.client_requests import ClientRequestHandler
from secagg.server.dependencies import ServerDependencies
from secagg.server.engine.mask_removal import MaskExecutor
from secagg.server.known_tasks import KnownTasks
from secagg.server.rpc.limits import AggregatorLimits
from secagg.server.session.progress import LiveSession, ProgressFeed, SessionProgress
from secagg.server.session.registry import SessionRegistry
from secagg.server.session.runner import SessionRunner
from secagg.server.session.state import say_refused
from secagg.server.session.uploads import UploadSlots
from secagg.server.single_flight import SingleFlight
from secagg.server.task.definition import (
    NextPayload,
    OnAborted,
    OnEnded,
    OnSum,
    TaskDefinition,
)
from secagg.server.task.runner import TaskRunner
from secagg.storage.changes import Touch
from secagg.storage.leases import Heartbeat
from secagg.storage.rows import Replica
from secagg.storage.spool import Spool
from secagg.storage.store import AWAY_SECONDS, Store, StoreUnavailableError
from secagg.wire.calls import (
    Reference,
    Request,
    Wait,
    WatchSession,
)

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

_Answer = TypeVar("_Answer")

# How often an aggregator says that it is there, where others share its book.
_BEAT_SECONDS: Final = 5.0
# How long a client waits that asks for a task which nobody here has heard of.
HEARING_SECONDS: Final = 2.0


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
        store: Store,
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
        self._task_look = SingleFlight(self._look_at_tasks, clock or SystemClock())
        self._waiting_for_store = SingleFlight(
            self._wait_for_store, clock or SystemClock()
        )
        self._limits = limits or AggregatorLimits()
        self._workers = workers or Workers()
        self._feed = ProgressFeed()
        self._context = ServerDependencies(
            store=store,
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
        self._sessions = SessionRegistry(
            name,
            self._context,
            kept_sessions=self._limits.kept_sums,
            on_aborted=on_aborted,
            on_ended=on_ended,
        )
        self._tasks = KnownTasks()
        self._stopping = asyncio.Event()
        self._desk = ClientRequestHandler(
            self._sessions,
            self._tasks,
            self._context,
            self._limits,
            stopping=self._stopping,
            hear_of_tasks=self._hear_of_tasks,
        )

    # --- for clients ------------------------------------------------------------------

    async def answer(self, identity: str, request: Request[_Answer]) -> _Answer:
        """Answer a call of a client.

        Raises:
            RemoteProtocolError: The client may not ask this, or not now.
            ServiceError: STORAGE_FAILED, OVERLOADED, UNKNOWN_SESSION, SHUTTING_DOWN
                or UPLOAD_CORRUPT; the message says whether to come back.
        """
        return await self._desk.answer(identity, request)

    def watch(
        self, identity: str, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Yield updates as they come, and that there is none; ends with the session.

        Raises:
            ServiceError: OVERLOADED when too many streams are open; poll instead.
        """
        return self._desk.watch(identity, request)

    # --- for the operator -------------------------------------------------------------

    async def recover(self) -> None:
        """Load what an earlier process left; call it before the transport opens.

        Live sessions answer their clients at once and go on with `run_task`.

        Raises:
            ServiceError: STORAGE_FAILED.  BAD_SETTINGS where others share the book and
                serve under another name.
        """
        store = self._context.store
        # First of all, so that time without anybody counts for no deadline.
        await store.commit(Heartbeat(self._replica))
        await self._sessions.recover()
        if store.is_shared:
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
        async for _ in self._context.store.changes():
            try:
                await self._sessions.look()
                await self._task_look.take()
            except SecAggError as error:  # the next turn looks again
                say_refused(error)
            except Exception:  # noqa: BLE001 - a defect must not end this unseen
                telemetry.log_defect(_LOG, telemetry.MONITORING_FAILED)
            self._tasks.wake()

    async def _hear_of_tasks(self) -> None:
        """Have the keeper look: another aggregator may have been told of a new task."""
        if not self._context.store.is_shared or self._on_change is None:
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
                await self._context.store.commit(Heartbeat(self._replica))
            except SecAggError as error:
                say_refused(error)
            except Exception:  # noqa: BLE001 - a defect must not end this unseen
                telemetry.log_defect(_LOG, telemetry.MONITORING_FAILED)
            await clock.sleep_until(clock.now() + _BEAT_SECONDS)

    async def run_task(
        self, task: TaskDefinition, *, next_payload: NextPayload, on_sum: OnSum
    ) -> None:
        """Run the sessions of a task, resuming one that was interrupted.

        Args:
            task: The task.
            next_payload: Supplies each session's payload; b"" for none.
            on_sum: Takes each sum.

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
        run = TaskRunner(
            task,
            self._sessions,
            self._context,
            stopping=self._stopping,
            wait_for_store=self.wait_for_store,
            offering=self._desk.offers.ring,
            next_payload=next_payload,
            on_sum=on_sum,
        )
        self._tasks.begin(run)
        # Until its end is known, clients are told to come back, not to go home.
        is_over = False
        try:
            await run.run()
            is_over = not self._stopping.is_set()
        except SessionAbortedError:
            is_over = True
            raise
        finally:
            self._tasks.end(task.task_id, is_over=is_over)
            self._desk.offers.ring()

    async def end_task(self, task_id: str, reason: str) -> None:
        """End a task: its operator wants no more sums, or its date has come.

        A session that still waits for clients ends without a sum; one whose cohort is
        complete goes on to its own end.  Clients of one that does not run are told that
        it is over.

        Args:
            task_id: Which.
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
        complete goes on to its own end.  Nothing happens if the task does not run.

        Args:
            task_id: Which.
            reason: Why, in words for the clients.
        """
        run = self._tasks.get(task_id)
        if run is not None:
            run.task.gate.pause()
            await run.stop_waiting(reason)

    def resume_task(self, task_id: str) -> None:
        """Offer sessions of a task again; nothing happens if it does not run."""
        run = self._tasks.get(task_id)
        if run is not None:
            run.task.gate.resume()
            self._desk.offers.ring()

    def hold_task(self, task_id: str) -> None:
        """Tell clients of a task that does not run here, and may again, to come back.

        Args:
            task_id: Which.
        """
        self._tasks.end(task_id, is_over=False)

    def live(self) -> tuple[LiveSession, ...]:
        """Return the sessions that are not over, as they stand now."""
        return tuple(
            LiveSession(runner.progress(), self._closes_in(runner), runner.missing())
            for runner in self._sessions.all_running()
        )

    def open_profiles(self) -> frozenset[Profile]:
        """Return the profiles of the sessions that are not over."""
        return frozenset(
            runner.descriptor.parameters.profile
            for runner in self._sessions.all_running()
        )

    def _closes_in(self, runner: SessionRunner) -> float | None:
        """Return until when a session's round lasts; who joins has other times."""
        progress, left = runner.progress(), runner.seconds_left()
        if progress.round is not Round.ADVERTISE_KEYS:
            return left
        run = self._tasks.get(progress.task_id)
        date = self._context.clock.date()
        door = None if run is None else run.task.gate.closes_in(date)
        if progress.joined < progress.needed:  # then its deadline begins again
            left = None
        ends = [each for each in (left, door) if each is not None]
        return max(0.0, min(ends)) if ends else None

    async def abort(self, session_id: bytes, reason: str) -> None:
        """End a session without a sum; nothing happens if it is over.

        Raises:
            ServiceError: UNKNOWN_SESSION; it does not run here.
        """
        session = await self._sessions.look_for(session_id)
        if isinstance(session, SessionRunner):
            await session.abort(ErrorCode.CANCELLED, reason)

    def note_refusal(self, code: ErrorCode) -> None:
        """See `AggregatorService.note_refusal`."""
        self._desk.note_refusal(code)

    def refused(self) -> dict[str, int]:
        """Return how many calls were refused in the last hour, by name of the code."""
        return self._desk.refusals.of_last_hour()

    def progress(
        self, at_first: Iterable[SessionProgress] = ()
    ) -> AsyncIterator[SessionProgress]:
        """Watch all sessions; ends with `close`.

        Args:
            at_first: As for `ProgressFeed.watch`.
        """
        return self._feed.watch(at_first)

    def drain(self) -> None:
        """Offer no further sessions; those that run go on."""
        self._stopping.set()
        self._desk.offers.ring()
        self._tasks.wake()

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
        clock, attendance = self._context.clock, self._desk.attendance
        began = clock.now()
        while (now := clock.now()) < (
            deadline := min(
                began + at_most_seconds,
                max(began, attendance.last_call) + silent_seconds,
            )
        ):
            quiet_at = attendance.quiet_at
            if now >= quiet_at and not (
                self._sessions.has_untold() or attendance.has_expected()
            ):
                try:
                    await self._sessions.note_settled()
                except ServiceError as error:  # the next process waits in vain
                    say_refused(error)
                return
            await clock.sleep_until(
                min(deadline, max(quiet_at, now + self._limits.idle_timeout))
            )

    async def wait_for_store(self) -> None:
        """Wait until the book can be written, which may take minutes.

        Raises:
            ServiceError: It has come back otherwise than it went.
        """
        await self._waiting_for_store.take()

    async def _wait_for_store(self) -> None:
        clock = self._context.clock
        began = clock.now()
        while True:
            try:
                await self._context.store.commit(Touch())
            except StoreUnavailableError:
                await clock.sleep_until(clock.now() + AWAY_SECONDS)
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
        self._desk.offers.ring()
        for following in self._following:
            following.cancel()
        if self._following:
            await asyncio.wait(self._following)
        self._feed.close()
        self._workers.close()
