"""Runs the server's side of one session: timers, storage and calls around its core.

Rule 1: persist, then send.  An accepted event is durable before its sender is told. A
        closed round is durable before any client sees what it opened.
        `secagg.server.session.state` enforces this.
Rule 2: a round is closed when its time has come (`secagg.server.session.timer`).
Rule 3: after a restart the journal is replayed.  Where several aggregators share the
        store, any of them accepts messages and closes rounds.
Rule 4: a refused message changes nothing and ends nothing; its code is logged.
Rule 5: the session ends by its sum.  Of the replicas of a store, the holder of the
        session's lease computes it; any other could, and would get the same bytes
        (`secagg.server.session.lease`).
Rule 6: a session ends at the date that its offer names.  If too little time is left for
        the later rounds and the cohort is not fixed, the session ends and another one
        follows.
Rule 7: the packed sum is in the spool before the session ends by it: clients may ask
        another process for it.
Rule 8: the start of a sum is stored before the computation.  A sum whose aggregators
        ended three times during it ends the session; else it would end one aggregator
        after the other. A process that is asked to stop takes its start back.
Rule 9: a step waits for what is unavailable for a moment.  A missing upload, or a sum
        that cannot be computed, ends the session; its inputs count as used.

`secagg.server.aggregator` decides which sessions exist, and which clients may ask for
which.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Final

from secagg.distributed_dp import table_hashes
from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError, ServiceError
from secagg.protocol.descriptor import CLOCK_TOLERANCE_SECONDS, SessionDescriptor
from secagg.protocol.events import (
    AbortRequested,
    ComputeSum,
    Received,
    RoundClosed,
    SumComputed,
)
from secagg.protocol.messages import (
    Aborted,
    Consistency,
    Envelope,
    Fate,
    Released,
    Round,
    Upload,
)
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.receipts.receipt import AuditReceipt
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.protocol.server.states import RosterFixed, ServerStep
from secagg.runtime import log_events as telemetry
from secagg.server.dependencies import ServerDependencies
from secagg.server.notifier import Notifier
from secagg.server.session.events import SessionEvents, SessionProgress
from secagg.server.session.lease import SessionLease
from secagg.server.session.report import SessionFacts, SessionReceipt
from secagg.server.session.state import (
    DurableState,
    JournalPosition,
    MakeEvent,
    SessionRecord,
    retrying,
)
from secagg.server.session.timer import (
    RoundTimer,
    expiry_of,
    idle_timeout,
    is_below_min_clients,
    keepalive_interval,
    missing_in,
    wait_answer,
)
from secagg.server.session.updates import (
    EndedSession,
    ReadableUpdates,
    check_uploader,
    piece_of,
)
from secagg.server.session.uploads import UploadReceiver
from secagg.server.telemetry.measures import Measures
from secagg.storage.change import Change, LeaseLostError
from secagg.storage.journal import RefusalNoted, SumAttempt
from secagg.storage.queries import ReadClock
from secagg.storage.spool import SUM
from secagg.storage.store import StoreFailoverError
from secagg.wire.calls import (
    LEAST_QUIET_SECONDS,
    Blob,
    BlobChunk,
    FetchChunk,
    UploadChunk,
    UploadStatus,
    Wait,
)

# How often a sum may end its aggregator.  Once may be another program's fault, twice a
# lack of memory; the third time it is the sum's fault.
MOST_ATTEMPTS: Final = 3
# How much longer than its rounds a session may last while it waits for clients. This is
# half of what clients grant for clocks that differ (R5.0-2).
WAITING_SECONDS: Final = CLOCK_TOLERANCE_SECONDS // 2


class SumRelease:
    """Computes the sum of one session and ends the session by it.

    Args:
        session_id: The session.
        context: What all sessions share.
        durable: The session's state.
        lease: The right to complete the session.
        receiver: Receives its uploads.
        log: The session's log and measurements.
        is_resumed: Whether another process may have received uploads: they are compared
            with their digests before they are summed.
    """

    def __init__(  # noqa: PLR0913 - the last step needs all earlier parts
        self,
        session_id: bytes,
        context: ServerDependencies,
        *,
        durable: DurableState,
        lease: SessionLease,
        receiver: UploadReceiver,
        log: SessionEvents,
        is_resumed: bool,
    ) -> None:
        self._session_id = session_id
        self._context = context
        self._durable = durable
        self._lease = lease
        self._uploads = receiver
        self._log = log
        self._is_resumed = is_resumed
        self._has_begun = False

    async def release(self, job: ComputeSum) -> None:
        """End the session by its sum, unless another replica does.

        Raises:
            ServiceError: STORAGE_FAILED, after repeated attempts; a restart resumes it.
        """
        if not await self._lease.hold():
            return
        try:
            if await self._begin_sum():
                await self._compute(job)
        except LeaseLostError:
            await self._lease.release()
        except asyncio.CancelledError:
            await self._withdraw_start()
            raise

    async def _begin_sum(self) -> bool:
        """Store that the sum is begun; return False if it was begun too often.

        Raises:
            LeaseLostError: Another replica does the work.
        """
        if self._has_begun:  # an unavailable store does not end this process
            return True
        begun = self._durable.sums_begun
        if begun >= MOST_ATTEMPTS:
            failed = AbortRequested(
                ErrorCode.INTERNAL,
                f"the sum was begun {begun} times, and each time the aggregator that "
                "computed it ended before it was done",
                discard_unmasked=True,
            )
            await self._end_session(lambda _: failed)
            return False
        if begun:
            self._log.write(
                telemetry.SUM_RETRIED,
                level=logging.WARNING,
                attempt=begun + 1,
                of=MOST_ATTEMPTS,
            )
        await self._durable.record_attempt(
            SumAttempt(is_begun=True), lease=self._lease.held
        )
        self._has_begun = True
        return True

    async def _withdraw_start(self) -> None:
        """Take back that the sum was begun: this process is asked to stop."""
        if self._has_begun:
            self._has_begun = False
            with suppress(SecAggError):  # then it counts
                await self._durable.record_attempt(SumAttempt(is_begun=False))

    async def _compute(self, job: ComputeSum) -> None:
        """Compute the sum, put it into the spool, and end the session by it."""
        context = self._context
        try:
            packed = await self._computed(job)
        except ServiceError as error:
            # It is gone for good, or for longer than clients wait: the budget is spent.
            reason = f"the sum could not be computed: {error}"
            failed = AbortRequested(error.code, reason, discard_unmasked=True)
            await self._end_session(lambda _: failed)
            return
        await retrying(
            context.clock,
            lambda: context.workers.run(
                context.spool.put, self._session_id, SUM, packed
            ),
        )
        digest = await context.workers.sha256(packed)
        await self._end_session(lambda kept: SumComputed(digest, len(packed), kept))

    async def _end_session(
        self, event_of: Callable[[int], SumComputed | AbortRequested]
    ) -> None:
        """End the session by its sum or without; do nothing if it has ended.

        A process that was suspended, or too busy to renew its lease, acquires it again
        and keeps its result. Repeated on the same machine, the work would take as long.

        Args:
            event_of: Makes the last event from the time until which the sum is kept.
        """
        while await self._lease.hold():
            event = event_of(await self._kept_until())
            try:
                await self._durable.advance(
                    _closing_event(event), lease=self._lease.held
                )
            except LeaseLostError:
                await self._lease.release()
            else:
                return

    async def _computed(self, job: ComputeSum) -> bytes:
        """Remove the masks; wait while the store of uploads is unavailable."""
        packed, lost = b"", None

        async def compute() -> None:
            nonlocal packed, lost
            try:
                if self._is_resumed:
                    await self._uploads.check_stored(
                        digest for _, digest in job.uploads
                    )
                packed = await self._context.masks.compute_sum(job, self._context.spool)
            except ServiceError as error:
                if error.retry_after_seconds is not None:
                    raise
                lost = error  # another attempt is useless

        await retrying(self._context.clock, compute)
        if lost is not None:
            raise lost
        return packed

    async def _kept_until(self) -> int:
        """Return until when the sum can at least be fetched, in Unix seconds."""
        kept = self._context.keep_seconds
        if not kept:
            return 0
        store = self._context.store
        now = await retrying(self._context.clock, lambda: store.read(ReadClock()))
        return int(now + kept)


def _closing_event(event: SumComputed | AbortRequested) -> MakeEvent:
    """Return a function that makes an event, unless the session has changed."""
    return lambda state: event if isinstance(state, server.Summing) else None


class SessionRunner:
    """Runs one session on the server.

    Args:
        record: The session's parameters and its journal.
        position: The session's position in the store after that journal.
        context: What all sessions share.
        is_restored: Whether the store was restored from an older state. Then what was
            sent is unknown: the session is ended, and its inputs count as summed.
        date: This moment, in Unix seconds of the store; by default of this machine.
        open_seconds: How long the open round has been open.

    Attributes:
        session_id: The session.
        record: Its parameters, without the journal.
        log: The session's log and measurements.
        lease: The right to complete the session.
        ended_before_start: Whether it had ended before this process loaded it.
        is_delivered: Whether its sum was delivered to the task's consumer.
    """

    def __init__(  # noqa: PLR0913 - what a session is resumed from
        self,
        record: SessionRecord,
        position: JournalPosition,
        context: ServerDependencies,
        *,
        is_restored: bool = False,
        date: float | None = None,
        open_seconds: float = 0.0,
    ) -> None:
        self.session_id = record.descriptor.session_id  # three hashes, used often
        self._descriptor = record.descriptor
        self._context = context
        self._is_restored = is_restored
        self._notifier = Notifier(context.clock)
        self._facts = SessionFacts(record.descriptor, record.excluded)
        self.log = SessionEvents(
            record.descriptor, Measures(context.meter, context.clock)
        )
        self._readable = ReadableUpdates()
        # Set whenever the task that runs the session should check it again.
        self._woken = asyncio.Event()
        self._is_live = False
        self._ended_by_other: EndedSession | None = None
        self.lease = SessionLease(
            record.session_key,
            context.replica,
            store=context.store,
            clock=context.clock,
            place=self._entered_rounds,
            refresh=self.refresh,
            woken=self._woken,
            meter=context.meter,
        )
        self._is_resumed = bool(record.events)
        self._durable = DurableState(
            record.start(context.verified),
            record.session_key,
            position,
            store=context.store,
            workers=context.workers,
            clock=context.clock,
            meter=context.meter,
            is_restored=is_restored,
            on_messages=self._notify_messages,
            on_round=self._enter,
            on_refusal=self._facts.record_refusal,
            on_end=self._record_end,
            on_failover=self._stop_after_failover,
        )
        self._timer = RoundTimer(
            record.descriptor,
            record.session_key,
            self._durable,
            is_shared=context.store.is_shared,
            clock=context.clock,
            date=context.clock.date() if date is None else date,
            woken=self._woken,
            is_full=self._is_full,
        )
        self._uploads = UploadReceiver(
            self.session_id,
            record.descriptor.parameters,
            spool=context.spool,
            workers=context.workers,
            slots=context.slots,
            arrived=self._timer.record_upload_bytes,
            accept=self.submit,
            returned=self._timer.record_message,
        )
        # Another process may have accepted uploads that are gone by now.
        self._must_search = self._is_resumed
        self._sum = SumRelease(
            self.session_id,
            context,
            durable=self._durable,
            lease=self.lease,
            receiver=self._uploads,
            log=self.log,
            is_resumed=self._is_resumed,
        )
        self._durable.replay(record.events)
        self._timer.opened_at = context.clock.now() - open_seconds
        self._is_live = True
        # An earlier process may have told some clients; which ones is unknown.
        self.ended_before_start = self.is_over
        # The process that ends the session may repeat the step; it delivers the sum
        # once.
        self.is_delivered = False
        # The state holds what is still needed of them; share bundles are large.
        self.record = replace(record, events=())

    @property
    def _state(self) -> server.ServerState:
        return self._durable.state

    # --- calls of clients -------------------------------------------------------------

    @property
    def descriptor(self) -> SessionDescriptor:
        """The session as it is offered."""
        return self._descriptor

    @property
    def is_over(self) -> bool:
        """Whether the session has ended, durably."""
        return self._durable.is_over

    @property
    def opened(self) -> float:
        """When the session was opened, in Unix seconds of the process that did."""
        offered = self._descriptor
        rounds = offered.parameters.deadlines.longest_session
        return float(offered.session_end - rounds - WAITING_SECONDS)

    @property
    def ended_by_other(self) -> EndedSession | None:
        """The receipt of the session, if another aggregator has ended it."""
        return self._ended_by_other

    def _entered_rounds(self) -> int | None:
        """Return how many rounds were entered; None if another replica has ended it."""
        return None if self._ended_by_other is not None else self._timer.rounds_entered

    @property
    def has_failed_over(self) -> bool:
        """Whether the store has failed over: another runner continues the session."""
        return self._durable.has_failed_over

    @property
    def sequence(self) -> int:
        """How many records it holds, as far as this process knows."""
        return self._durable.sequence

    async def refresh(self) -> None:
        """Apply what other replicas have stored.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        await self._durable.refresh()

    def count_sessions(self, *, allowed: int | None, spent: int) -> None:
        """Set the session's position in its task's budget, for its progress.

        Args:
            allowed: Sessions that the budget covers; None without a budget.
            spent: Sessions that are used, this one included if it is.
        """
        if allowed is not None:
            self._facts.sessions_before = allowed - spent + self._facts.is_spent

    def can_continue_under(self, parameters: ProtocolParameters) -> bool:
        """Whether the session may continue in a task that has these parameters now.

        A newer revocation list ends a session that still waits for clients, at no cost
        to them. One that has its cohort ends under its own list.
        """
        known, published = self.descriptor.parameters, parameters.trust
        if (
            isinstance(self._state, RosterFixed)
            and known.trust is not None
            and published is not None
            and known.trust.issuer == published.issuer
        ):
            parameters = parameters.under(known.trust)
        return known == parameters

    def can_join(self, identity: str) -> bool:
        """Whether an offer of this session makes sense for a client."""
        state = self._state
        if not isinstance(state, server.AdvertiseKeys) or self.is_over:
            return False
        if identity in state.adverts:
            return True
        full = len(state.adverts) >= self.descriptor.parameters.max_clients
        return state.is_invited(identity) and not full

    def check_invited(self, identity: str) -> None:
        """Refuse a client that may not read what the session offers.

        Raises:
            RemoteProtocolError: NOT_INVITED.
        """
        invited, excluded = self.record.invited, self.record.excluded
        if identity in excluded or (invited is not None and identity not in invited):
            raise ErrorCode.NOT_INVITED.error(
                f"{identity!r} is not invited to this session", sender=identity
            )

    async def submit(self, sender: str, envelope: Envelope) -> None:
        """Accept a client's message; return when it is durable.

        Raises:
            RemoteProtocolError: The message is refused.
            ServiceError: STORAGE_FAILED; sending it again may help.
        """
        try:
            is_new = await self._submitted(Received(envelope, sender))
        except RemoteProtocolError as error:
            self.log.refused(sender, envelope, error)
            if envelope.kind is Consistency and error.code is ErrorCode.BAD_SIGNATURE:
                # This is stored before the answer: the report states it, whichever
                # replica ends the session.
                await self._durable.record_refusal(RefusalNoted(sender, error.code))
            raise
        if is_new:
            self.log.accepted(sender, envelope)

    async def _submitted(self, event: Received) -> bool:
        """Submit a message; refresh first where this replica is behind."""
        try:
            return await self._durable.submit(event)
        except RemoteProtocolError:
            if not self._context.store.is_shared:
                raise
        # The message was checked against an older state: another replica may have
        # opened another round.
        await self.refresh()
        return await self._durable.submit(event)

    async def upload_status(self, identity: str, view: bytes) -> UploadStatus:
        """Return where a client resumes its upload.

        Args:
            identity: The client.
            view: The client's statement of its view (R5.3-14).

        Raises:
            RemoteProtocolError: VIEW_DIFFERS, or it cannot upload now.
        """
        if self._context.store.is_shared and not self._has_uploaded(identity):
            await self.refresh()  # another aggregator may have received it
        if self._has_uploaded(identity) and not await self._is_missing(identity):
            return self._uploads.finished()
        await self._check_uploader(identity, view)
        return await self._uploads.status(identity)

    async def upload_chunk(self, identity: str, chunk: UploadChunk) -> UploadStatus:
        """Accept one chunk of a client's masked input."""
        upload = Envelope.of(Upload(chunk.total_size, chunk.digest, chunk.view))
        if self._state.session.has_accepted(
            identity, upload
        ) and not await self._is_missing(identity):
            return self._uploads.finished()
        await self._check_uploader(identity, chunk.view)
        status = await self._uploads.receive(identity, chunk)
        if not status.complete:
            self._publish()
        return status

    def _has_uploaded(self, identity: str) -> bool:
        accepted = self._state.session.accepted
        return identity in accepted.get(Round.MASKED_INPUT_COLLECTION, ())

    async def _is_missing(self, identity: str) -> bool:
        """Whether the accepted upload of a client is gone and may be sent again."""
        if self._must_search:
            await self._search_uploads()
        is_open = isinstance(self._state, server.MaskedInputCollection)
        return is_open and identity in self._uploads.missing

    async def _search_uploads(self) -> None:
        """Search the bytes of every accepted upload that is still needed.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        state = self._state
        if isinstance(
            state,
            server.MaskedInputCollection | server.ConsistencyCheck | server.Unmasking,
        ):
            lost = await self._uploads.search(
                {state.cohort.name_of(i): each for i, each in state.uploads.items()}
            )
            self._timer.record_missing()
            if lost:
                self.log.write(
                    telemetry.UPLOADS_LOST,
                    level=logging.WARNING,
                    round=state.ROUND.name,
                    clients=", ".join(sorted(lost)),
                )
        self._must_search = False

    def _is_full(self) -> bool:
        """Whether every client that can answer has, and no upload is missing."""
        is_open = isinstance(self._state, server.MaskedInputCollection)
        is_whole = not (is_open and self._uploads.missing)
        return is_whole and server_machine.is_round_full(self._state)

    async def _check_uploader(self, identity: str, view: bytes) -> None:
        """Refuse a client that cannot upload now, before any byte is read."""
        state = self._state
        try:
            check_uploader(state, identity, view)
        except RemoteProtocolError as error:
            if isinstance(state, server.MaskedInputCollection) and (
                error.code is ErrorCode.VIEW_DIFFERS
            ):
                # This is stored before the answer: the report states it, whichever
                # replica ends the session.
                note = RefusalNoted(identity, error.code)
                if await self._durable.record_refusal(note):
                    self._log_view(state, identity)
            raise

    def _log_view(self, state: server.MaskedInputCollection, identity: str) -> None:
        """Log that a client's view differs, and whether this server may be at fault."""
        self.log.view_differs(identity)
        parameters, shared = self.record.descriptor.parameters, len(state.share_holders)
        differing, few = len(self._facts.differing), parameters.max_dropouts
        if differing == min(few, shared // 2) + 1:
            hashes = table_hashes(parameters, shared)
            self.log.tables_differ(differing, shared, hashes)

    def update_for(self, identity: str, after: Round | None) -> Envelope | None:
        """Return the update that opens a round after `after`, if there is one."""
        if self._ended_by_other is not None:
            return self._ended_by_other.update_for(identity, after)
        update = self._update_for(identity, after)
        if update is None or (after is not None and after >= update.kind.ROUND):
            return None
        if update.kind.ROUND is Round.FINISHED:
            self._facts.record_notified(self._state, identity)
        return update

    def wait_answer(self, identity: str, retry_after_seconds: float) -> Wait:
        """Return the answer for a client that no update exists for yet."""
        if identity in self._lost_uploads():
            return Wait(retry_after_seconds)  # its upload was lost: it sends it again
        return wait_answer(
            self._state,
            identity,
            retry_after_seconds=retry_after_seconds,
            closes_in_seconds=self._timer.closes_in(),
        )

    def is_member(self, identity: str) -> bool:
        """Whether a client is in the roster."""
        if self._ended_by_other is not None:
            return self._ended_by_other.is_member(identity)
        state = self._state
        return isinstance(state, RosterFixed) and identity in state.cohort.index_of

    def read(self, identity: str, request: FetchChunk) -> BlobChunk:
        """Return a piece of the roster, of the client's own delivery, or of the list.

        Raises:
            RemoteProtocolError: See `ReadableUpdates.piece`.
            ServiceError: UNKNOWN_SESSION; the session has no revocation list.
        """
        if self._ended_by_other is not None:
            return self._ended_by_other.read(identity, request)
        if request.blob is Blob.REVOCATIONS and not self.is_over:
            return self._piece_of_list(request)
        return self._readable.piece(self._state, identity, request)

    def _piece_of_list(self, request: FetchChunk) -> BlobChunk:
        """Return a piece of the revocation list, for clients that may join."""
        if not self.record.revocations:
            raise ErrorCode.UNKNOWN_SESSION.error(
                "the session has no revocation list",
                fix="Read the offer: it names the list, if one exists.",
            )
        return piece_of(self.record.revocations, request)

    def _update_for(self, identity: str, after: Round | None) -> Envelope | None:
        state = self._state
        if self._is_restored and isinstance(state, server.Failed):
            # R5-6: it is unknown whose inputs were summed; all count as if they were.
            return Envelope.of(replace(state.outcome, fate=Fate.INCLUDED))
        return self._readable.update_for(state, identity, after)

    async def watch(
        self, identity: str, after: Round | None
    ) -> AsyncIterator[Envelope | Wait]:
        """Yield updates as rounds open, until the session is over for this client.

        First and between updates, it yields that none exists yet.

        Raises:
            ServiceError: STORAGE_FAILED; the session is about to be ended, ask again.
        """
        parameters = self.descriptor.parameters
        while after is not Round.FINISHED:
            if self.has_failed_over:
                raise StoreFailoverError(self.record.session_key)
            notified = self._notifier.subscribe()
            update = self.update_for(identity, after)
            if update is not None:
                after, quiet = update.kind.ROUND, LEAST_QUIET_SECONDS
                yield update
            else:
                quiet = idle_timeout(self._state.ROUND, parameters)
                yield self.wait_answer(identity, quiet)
            if after is not Round.FINISHED:
                await self._notifier.wait(notified, keepalive_interval(quiet))

    async def next_update(
        self, identity: str, after: Round | None, ends: float, refresh_seconds: float
    ) -> Envelope | None:
        """Wait for the update that opens a round after `after`.

        Args:
            identity: The client.
            after: The round that it is in.
            ends: Instant of the clock after which the answer is that none exists.
            refresh_seconds: Longest time between two checks.

        Raises:
            ServiceError: STORAGE_FAILED; the session is about to be ended, ask again.
        """
        while True:
            if self.has_failed_over:
                raise StoreFailoverError(self.record.session_key)
            notified = self._notifier.subscribe()
            update = self.update_for(identity, after)
            if update is not None or self._context.clock.now() > ends:
                return update
            await self._notifier.wait(notified, refresh_seconds)

    def record_notified(self, identity: str) -> None:
        """Record that a client knows how the session ended."""
        if self._ended_by_other is not None:
            self._ended_by_other.record_notified(identity)
            return
        self._facts.record_notified(self._state, identity)

    def unacknowledged(self) -> frozenset[str]:
        """Return the participants of the last round that do not know its end yet."""
        if self._ended_by_other is not None:
            return self._ended_by_other.unacknowledged()
        return self._facts.unacknowledged(self._state)

    # --- calls of the aggregator ------------------------------------------------------

    async def run(self) -> Released | Aborted:
        """Run the session to its end.

        Returns:
            How it ended.

        Raises:
            ServiceError: STORAGE_FAILED, after repeated attempts.  The session is not
                over: a restart resumes it.
        """
        self.log.write(
            telemetry.SESSION_RESUMED if self._is_resumed else telemetry.SESSION_OPENED,
            round=self._state.ROUND.name,
        )
        self._publish()
        async with AsyncExitStack() as failing:
            failing.push_async_callback(
                self.lease.release
            )  # another replica may continue at once
            await self._drive()
            failing.pop_all()
        return self.outcome()

    async def _drive(self) -> None:
        """Sum when the sum is due, and close each round whose time has come."""
        if self._is_resumed:
            await retrying(self._context.clock, self._search_uploads)
            await self._refuse_lost_inputs()
        await self._timer.begin()
        while not self.is_over:
            job = next(iter(server_machine.pending_outputs(self._state)), None)
            if isinstance(job, ComputeSum):
                await self._sum.release(job)
            elif await self._timer.wait_to_close():
                ripe = self._state.ROUND
                if await self._may_close():
                    await self._durable.advance(self._closing(ripe))

    async def _refuse_lost_inputs(self) -> None:
        """End a session whose U3 is fixed and whose sum cannot be computed any more.

        Unmasking would use up inputs without a result.
        """
        is_fixed = isinstance(self._state, server.ConsistencyCheck | server.Unmasking)
        if is_fixed and self._uploads.missing:
            gone = ", ".join(sorted(self._uploads.missing))
            await self.abort(
                ErrorCode.STORAGE_FAILED, f"the stored uploads of {gone} are gone"
            )

    async def _may_close(self) -> bool:
        """Whether the open round is to be closed now.

        U3 holds clients whose upload is in the spool.  A missing upload may be sent
        again until the deadline.
        """
        if isinstance(self._state, server.MaskedInputCollection):
            await retrying(self._context.clock, self._search_uploads)
            return self._timer.closes_in() <= 0 or not self._uploads.missing
        return True

    def _missing_in(self, state: server.ServerState) -> tuple[int, ...]:
        """Return the roster indices of clients whose accepted upload is missing."""
        if not isinstance(state, server.MaskedInputCollection):
            return ()
        missing, name_of = self._uploads.missing, state.cohort.name_of
        return tuple(i for i in sorted(state.uploads) if name_of(i) in missing)

    async def stop_waiting(self, reason: str) -> None:
        """End the session if it still waits for clients; else let it continue."""
        if is_below_min_clients(self._state):
            await self.abort(ErrorCode.ROSTER_TOO_SMALL, reason)

    async def abort(
        self, code: ErrorCode, reason: str, *, discard_unmasked: bool = False
    ) -> None:
        """End the session without a sum; do nothing if it is over.

        Raises:
            LocalProtocolError: The sum is being computed, and `discard_unmasked` is not
                set (R5-5).
        """
        await self._durable.advance(
            lambda _: AbortRequested(code, reason, discard_unmasked)
        )

    async def finish(self, facts: bytes) -> None:
        """Erase the session, which is over, and leave its receipt.

        Args:
            facts: The history of its task from now on.

        Raises:
            ServiceError: STORAGE_FAILED; a restart repeats it.
        """
        receipt = self.receipt().encode()
        # What a restored session has sent is unknown: it has used its inputs.
        change = Change(
            key=self.record.session_key,
            end=receipt,
            facts=facts,
            spend=self._is_restored,
        )
        await self._durable.write(lambda _: change)

    def outcome(self) -> Released | Aborted:
        """Return how the session ended; only after its end."""
        if self._ended_by_other is not None:
            return self._ended_by_other.receipt.outcome
        return self._ended_state().outcome

    def receipt(self) -> SessionReceipt:
        """Return the receipt of the session; only after its end."""
        if self._ended_by_other is not None:
            return self._ended_by_other.receipt
        return self._facts.receipt(self._ended_state(), was_restored=self._is_restored)

    def audit(self) -> AuditReceipt:
        """Return what any party can verify of the session; only after its end."""
        return self._facts.audit(self._ended_state())

    def _ended_state(self) -> server.Completed | server.Failed:
        """Return the state of the session, which is over."""
        if isinstance(self._state, server.Completed | server.Failed):
            return self._state
        raise ErrorCode.INTERNAL.error("the session is not over")

    def progress(self) -> SessionProgress:
        """Return the session's progress."""
        return self._facts.progress(
            self._state, upload_bytes=self._uploads.received_bytes
        )

    def seconds_left(self) -> float | None:
        """Return the time until the open round's deadline; None before any advert."""
        return self._timer.seconds_left()

    def missing(self) -> tuple[str, ...]:
        """Names of clients that may still answer in the open round, if known."""
        return tuple(sorted({*missing_in(self._state), *self._lost_uploads()}))

    def _lost_uploads(self) -> AbstractSet[str]:
        """Return whose stored upload is missing while the round for it is open."""
        is_open = isinstance(self._state, server.MaskedInputCollection)
        return self._uploads.missing if is_open else frozenset()

    # --- events -----------------------------------------------------------------------

    def _notify_messages(self, _: Sequence[Received]) -> None:
        """Notify the session's other parts and its watchers of accepted messages."""
        self._timer.record_message()
        if self._is_live:
            self._publish()

    def _record_end(self) -> None:
        """Record that another replica has ended the session, and left its receipt."""
        receipt = SessionReceipt.decode(self._durable.receipt or b"")
        self._ended_by_other = EndedSession(receipt)
        self._timer.record_end()
        self._wake()
        self.log.write(telemetry.SESSION_ENDED_BY_REPLICA, reason=receipt.outcome_name)

    def _stop_after_failover(self) -> None:
        """Stop the runner and the watchers of the session after a fail-over."""
        self._timer.record_end()
        self._wake()

    def _wake(self) -> None:
        """Wake the runner and the watchers of the session."""
        self._notifier.notify_all()
        self._woken.set()

    def _closing(self, closed: Round) -> MakeEvent:
        """Return what closes a round, unless it is closed."""

        def make(state: server.ServerState) -> RoundClosed | AbortRequested | None:
            if closed is not state.ROUND or isinstance(state, server.Summing):
                return None
            if self._timer.is_too_late(state):
                return AbortRequested(*expiry_of(state))
            opening = closed is Round.ADVERTISE_KEYS
            return RoundClosed(
                closed,
                self._context.entropy.token(32) if opening else b"",
                self._missing_in(state),
            )

        return make

    def _enter(self, before: server.ServerState, step: ServerStep) -> None:
        """Record what a closed round leaves behind."""
        seconds = self._context.clock.now() - self._timer.opened_at
        lost = self._facts.enter(before, step.state, step.outputs, seconds=seconds)
        self.log.lost(lost)
        self._readable.enter(step.state)
        self._timer.rounds_entered += 1
        if self._is_live:
            self._timer.open_round()
            self._announce(before, seconds)

    def _announce(self, before: server.ServerState, seconds: float) -> None:
        """Wake watchers and log the change for the operator.

        Args:
            before: The former state.
            seconds: How long it was open.
        """
        self._wake()
        if not self._durable.is_catching_up:  # measured where it was closed
            self.log.measure(before, seconds)
        self.log.entered(before, self._state, self.progress(), seconds=seconds)
        self._publish()

    def _publish(self) -> None:
        self._context.publish(self.progress())
