"""Drives the server's side of one session: the shell around its state machine.

Rule 1: persist, then speak.  An accepted event is durable before its sender hears so,
        and a closed round is durable before any client sees what it opened: what is
        shown of the state is `secagg.server.session.state`'s.
Rule 2: a round is closed when its time has come (`secagg.server.session.timer`).
Rule 3: after a restart the journal is replayed.  Where several aggregators share the
        book, any of them takes messages and closes rounds.
Rule 4: a refused message changes nothing and ends nothing; it is logged by code.
Rule 5: the session ends by its sum.  Of those who share the book one computes it, by
        the session's lease; any other can, and would get the same bytes
        (`secagg.server.session.lease`).
Rule 6: a session ends at the date that its offer names.  One that has no cohort when
        the time left is only just enough for its later rounds ends, and another one
        takes its place.
Rule 7: the packed sum is in the spool before the session ends by it: another process
        may be asked for it.
Rule 8: a sum is stored as begun before it is.  One whose aggregators ended by it three
        times ends the session: else it would take down one after the other, for ever.
        Who is asked to end takes its beginning back.
Rule 9: what is away for a moment is waited for.  An upload that is gone, or a sum that
        cannot be computed, ends the session, whose inputs count as used.

Which sessions exist, and who may ask for which, is decided by
`secagg.server.aggregator`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Final

from secagg.distributed_dp import table_hashes
from secagg.errors import (
    ErrorCode,
    InternalError,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
)
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
from secagg.protocol.server import handlers as server_rounds
from secagg.protocol.server import machine as server
from secagg.protocol.server.states import RosterFixed, ServerStep
from secagg.runtime import log_events as telemetry
from secagg.server.dependencies import ServerDependencies
from secagg.server.notifier import Notifier
from secagg.server.session.events import SessionEvents, SessionProgress
from secagg.server.session.lease import SessionLease
from secagg.server.session.record import SessionRecord
from secagg.server.session.report import SessionFacts, SessionReceipt
from secagg.server.session.state import (
    DurableState,
    JournalPosition,
    MakeEvent,
    patiently,
)
from secagg.server.session.timer import (
    RoundTimer,
    expiry_of,
    idle_timeout,
    is_below_min_clients,
    keepalive_interval,
    missing_in,
    wait_of,
)
from secagg.server.session.updates import EndedSession, ReadableUpdates, piece_of
from secagg.server.session.uploads import UploadReceiver
from secagg.server.telemetry.measures import Measures
from secagg.storage.change import Change, LeaseLostError
from secagg.storage.journal import RefusalNoted, SumAttempt
from secagg.storage.queries import ReadClock
from secagg.storage.spool import SUM
from secagg.storage.store import StoreFailoverError
from secagg.wire.calls import (
    Blob,
    BlobChunk,
    FetchChunk,
    UploadChunk,
    UploadStatus,
    Wait,
)
from secagg.wire.limits import LEAST_QUIET_SECONDS

# How often a sum may take its aggregator down.  Once may be another program's fault,
# twice too little memory beside it; the third time it is the sum's.
MOST_ATTEMPTS: Final = 3
# How much longer than its rounds a session may last: until then it waits for clients.
# Half of what clients grant for clocks that differ (R5.0-2).
WAITING_SECONDS: Final = CLOCK_TOLERANCE_SECONDS // 2


class SumRelease:
    """Computes the sum of one session and ends the session by it.

    Args:
        session_id: The session.
        context: What it shares with other sessions.
        durable: Its state.
        lease: The right to take its last steps.
        desk: Where its uploads came in.
        log: What the operator is told of it.
        is_resumed: Another process may have taken uploads: they are compared with
            their digests before they are summed.
    """

    def __init__(  # noqa: PLR0913 - the last step needs what the others have left
        self,
        session_id: bytes,
        context: ServerDependencies,
        *,
        durable: DurableState,
        lease: SessionLease,
        desk: UploadReceiver,
        log: SessionEvents,
        is_resumed: bool,
    ) -> None:
        self._session_id = session_id
        self._context = context
        self._durable = durable
        self._lease = lease
        self._desk = desk
        self._log = log
        self._is_resumed = is_resumed
        self._has_begun = False

    async def release(self, job: ComputeSum) -> None:
        """Have the session end by its sum, unless somebody else does it.

        Raises:
            ServiceError: STORAGE_FAILED, again and again; a restart resumes it.
        """
        if not await self._lease.hold():
            return
        try:
            if await self._begin():
                await self._compute(job)
        except LeaseLostError:
            await self._lease.let_go()
        except asyncio.CancelledError:
            await self._leave()
            raise

    async def _begin(self) -> bool:
        """Store that the sum is begun, once; False when it was too often.

        Raises:
            LeaseLostError: Somebody else does the work.
        """
        if self._has_begun:  # a book that was away is no end of this process
            return True
        begun = self._durable.sums_begun
        if begun >= MOST_ATTEMPTS:
            failed = AbortRequested(
                ErrorCode.INTERNAL,
                f"the sum was begun {begun} times, and each time the aggregator that "
                "computed it ended before it was done",
                discard_unmasked=True,
            )
            await self._end(lambda _: failed)
            return False
        if begun:
            self._log.write(
                telemetry.SUM_RETRIED,
                level=logging.WARNING,
                attempt=begun + 1,
                of=MOST_ATTEMPTS,
            )
        await self._durable.note_attempt(
            SumAttempt(is_begun=True), lease=self._lease.held
        )
        self._has_begun = True
        return True

    async def _leave(self) -> None:
        """Take back that the sum was begun: this process is asked to end."""
        if self._has_begun:
            self._has_begun = False
            with suppress(SecAggError):  # then it counts
                await self._durable.note_attempt(SumAttempt(is_begun=False))

    async def _compute(self, job: ComputeSum) -> None:
        context = self._context
        try:
            packed = await self._computed(job)
        except ServiceError as error:
            # Gone for good, or for longer than clients wait: the budget is spent.
            reason = f"the sum could not be computed: {error}"
            failed = AbortRequested(error.code, reason, discard_unmasked=True)
            await self._end(lambda _: failed)
            return
        await patiently(
            context.clock,
            lambda: context.workers.run(
                context.spool.put, self._session_id, SUM, packed
            ),
        )
        digest = await context.workers.sha256(packed)
        await self._end(lambda kept: SumComputed(digest, len(packed), kept))

    async def _end(
        self, event_of: Callable[[int], SumComputed | AbortRequested]
    ) -> None:
        """End the session by its sum or without; nothing happens if somebody has.

        A process that was stopped, or too busy to renew its lease, takes it again and
        not its work: computed anew on the same machine, it would take as long.

        Args:
            event_of: Makes the last event, given until when a sum is kept.
        """
        while await self._lease.hold():
            event = event_of(await self._kept_until())
            try:
                await self._durable.advance(_last(event), lease=self._lease.held)
            except LeaseLostError:
                await self._lease.let_go()
            else:
                return

    async def _computed(self, job: ComputeSum) -> bytes:
        """Remove the masks, also where the store of uploads is away for a moment."""
        packed, lost = b"", None

        async def compute() -> None:
            nonlocal packed, lost
            try:
                if self._is_resumed:
                    await self._desk.check_stored(digest for _, digest in job.uploads)
                packed = await self._context.masks.compute_sum(job, self._context.spool)
            except ServiceError as error:
                if error.retry_after_seconds is not None:
                    raise
                lost = error  # no use in asking again

        await patiently(self._context.clock, compute)
        if lost is not None:
            raise lost
        return packed

    async def _kept_until(self) -> int:
        """Return until when the sum can be fetched at least, in Unix seconds."""
        kept = self._context.keep_seconds
        if not kept:
            return 0
        store = self._context.store
        now = await patiently(self._context.clock, lambda: store.read(ReadClock()))
        return int(now + kept)


def _last(event: SumComputed | AbortRequested) -> MakeEvent:
    """Return what makes an event, unless the session stands elsewhere by now."""
    return lambda state: event if isinstance(state, server.Summing) else None


class SessionRunner:
    """One session on the server.

    Args:
        record: The session's facts and everything journalled so far.
        position: Where that leaves the session in the book.
        context: What it shares with other sessions.
        is_restored: The book was put back from an older state, so that nobody knows
            what was sent: the session is ended, and its inputs count as summed.
        date: This moment, in Unix seconds of the book; by default of this machine.
        open_seconds: How long the open round has been open.

    Attributes:
        session_id: The session.
        record: Its facts, without what was journalled.
        log: What the operator is told of it.
        lease: The right to take its last steps.
        ended_before_start: It had ended before this process took it up.
        is_delivered: Its sum was given to whoever takes the task's sums.
    """

    def __init__(  # noqa: PLR0913 - what a session is continued from
        self,
        record: SessionRecord,
        position: JournalPosition,
        context: ServerDependencies,
        *,
        is_restored: bool = False,
        date: float | None = None,
        open_seconds: float = 0.0,
    ) -> None:
        self.session_id = record.descriptor.session_id  # three hashes; used often
        self._descriptor = record.descriptor
        self._context = context
        self._is_restored = is_restored
        self._notifier = Notifier(context.clock)
        self._facts = SessionFacts(record.descriptor, record.left_out)
        self.log = SessionEvents(
            record.descriptor, Measures(context.meter, context.clock)
        )
        self._readable = ReadableUpdates()
        # Set whenever whoever drives the session should look at it again.
        self._woken = asyncio.Event()
        self._is_live = False
        self._ended_by_other: EndedSession | None = None
        self.lease = SessionLease(
            record.session_key,
            context.replica,
            store=context.store,
            clock=context.clock,
            place=self._place,
            look=self.look,
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
            on_messages=self._note_messages,
            on_round=self._enter,
            on_refusal=self._facts.note_refusal,
            on_end=self._note_end,
            on_failover=self._note_put_back,
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
        self._desk = UploadReceiver(
            self.session_id,
            record.descriptor.parameters,
            spool=context.spool,
            workers=context.workers,
            slots=context.slots,
            arrived=self._timer.ask_for_time,
            accept=self.submit,
            returned=self._timer.note_message,
        )
        # Another process may have accepted uploads that are gone by now.
        self._must_search = self._is_resumed
        self._sum = SumRelease(
            self.session_id,
            context,
            durable=self._durable,
            lease=self.lease,
            desk=self._desk,
            log=self.log,
            is_resumed=self._is_resumed,
        )
        self._durable.replay(record.events)
        self._timer.opened_at = context.clock.now() - open_seconds
        self._is_live = True
        # An earlier process may have told the clients; nobody knows whom.
        self.ended_before_start = self.is_over
        # Whoever ends the session may have to try again, and gives its sum once.
        self.is_delivered = False
        # The state holds what is still needed of them; share bundles are large.
        self.record = replace(record, events=())

    @property
    def _state(self) -> server.ServerState:
        return self._durable.state

    # --- what clients do --------------------------------------------------------------

    @property
    def descriptor(self) -> SessionDescriptor:
        """The session as it is offered."""
        return self._descriptor

    @property
    def is_over(self) -> bool:
        """Whether the session has ended, and durably so."""
        return self._durable.is_over

    @property
    def opened(self) -> float:
        """When the session was opened, in Unix seconds of who did."""
        offered = self._descriptor
        rounds = offered.parameters.deadlines.longest_session
        return float(offered.session_end - rounds - WAITING_SECONDS)

    @property
    def ended_by_other(self) -> EndedSession | None:
        """What is left of the session if another aggregator has ended it."""
        return self._ended_by_other

    def _place(self) -> int | None:
        """Return how many rounds were entered; None once somebody else has ended it."""
        return None if self._ended_by_other is not None else self._timer.rounds_entered

    @property
    def has_failed_over(self) -> bool:
        """Whether the book has failed over: the session goes on in another runner."""
        return self._durable.has_failed_over

    @property
    def sequence(self) -> int:
        """How many records it holds, as far as is known here."""
        return self._durable.sequence

    async def look(self) -> None:
        """Learn what others have stored.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        await self._durable.look()

    def count_sessions(self, *, allowed: int | None, spent: int) -> None:
        """Learn where the session stands in its task's budget, for those who watch.

        Args:
            allowed: Sessions that the budget covers; None without one.
            spent: Those that are used, this one included if it is.
        """
        if allowed is not None:
            self._facts.sessions_before = allowed - spent + self._facts.is_spent

    def goes_on_under(self, parameters: ProtocolParameters) -> bool:
        """Whether the session may go on in a task that has these parameters now.

        A newer revocation list ends a session that still waits for clients, since it
        costs nobody anything; one that has its cohort ends under its own list.
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
        """Refuse whoever may not read what the session hands its clients.

        Raises:
            RemoteProtocolError: NOT_INVITED.
        """
        invited, left_out = self.record.invited, self.record.left_out
        if identity in left_out or (invited is not None and identity not in invited):
            raise ErrorCode.NOT_INVITED.error(
                f"{identity!r} is not invited to this session",
                sender=identity,
            )

    async def submit(self, sender: str, envelope: Envelope) -> None:
        """Take a client's message; returns when it is durable.

        Raises:
            RemoteProtocolError: It is refused.
            ServiceError: STORAGE_FAILED; sending it again may help.
        """
        try:
            is_new = await self._submitted(Received(envelope, sender))
        except RemoteProtocolError as error:
            self.log.refused(sender, envelope, error)
            if envelope.kind is Consistency and error.code is ErrorCode.BAD_SIGNATURE:
                # Before it is said: the report states it, whoever ends the session.
                await self._durable.note_refusal(RefusalNoted(sender, error.code))
            raise
        if is_new:
            self.log.accepted(sender, envelope)

    async def _submitted(self, event: Received) -> bool:
        try:
            return await self._durable.submit(event)
        except RemoteProtocolError:
            if not self._context.store.is_shared:
                raise
        # Judged by what was known here: somebody else may have opened another round.
        await self.look()
        return await self._durable.submit(event)

    async def upload_status(self, identity: str, view: bytes) -> UploadStatus:
        """Return where a client's upload goes on.

        Args:
            identity: The client.
            view: What it has sent of its view (R5.3-14).

        Raises:
            RemoteProtocolError: VIEW_DIFFERS, or it cannot upload now.
        """
        if self._context.store.is_shared and not self._has_uploaded(identity):
            await self.look()  # another aggregator may have taken it
        if self._has_uploaded(identity) and not await self._is_missing(identity):
            return self._desk.finished()
        await self._check_uploader(identity, view)
        return await self._desk.status(identity)

    async def upload_chunk(self, identity: str, chunk: UploadChunk) -> UploadStatus:
        """Take one chunk of a client's masked input."""
        upload = Envelope.of(Upload(chunk.total_size, chunk.digest, chunk.view))
        if self._state.session.has_accepted(
            identity, upload
        ) and not await self._is_missing(identity):
            return self._desk.finished()
        await self._check_uploader(identity, chunk.view)
        status = await self._desk.take(identity, chunk)
        if not status.complete:
            self._publish()
        return status

    def _has_uploaded(self, identity: str) -> bool:
        accepted = self._state.session.accepted
        return identity in accepted.get(Round.MASKED_INPUT_COLLECTION, ())

    async def _is_missing(self, identity: str) -> bool:
        """Whether the accepted upload of a client is gone and may come again."""
        if self._must_search:
            await self._search_uploads()
        is_open = isinstance(self._state, server.MaskedInputCollection)
        return is_open and identity in self._desk.missing

    async def _search_uploads(self) -> None:
        """Look for the bytes of every upload that was accepted and is still needed.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        state = self._state
        if isinstance(
            state,
            server.MaskedInputCollection | server.ConsistencyCheck | server.Unmasking,
        ):
            lost = await self._desk.search(
                {state.cohort.name_of(i): each for i, each in state.uploads.items()}
            )
            self._timer.note_missing()
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
        is_whole = not (is_open and self._desk.missing)
        return is_whole and server.is_round_full(self._state)

    async def _check_uploader(self, identity: str, view: bytes) -> None:
        """Refuse a client that cannot upload now, before any byte is touched."""
        state = self._state
        if isinstance(state, server.MaskedInputCollection):
            index = state.cohort.index_of.get(identity)
            if index is not None and index in state.sharers:
                try:
                    server_rounds.check_view(state, identity, view)
                except RemoteProtocolError as error:
                    # Before it is said: the report states it, whoever ends the session.
                    note = RefusalNoted(identity, error.code)
                    if await self._durable.note_refusal(note):
                        self._log_view(state, identity)
                    raise
                return
        over = state.ROUND > Round.MASKED_INPUT_COLLECTION
        raise RemoteProtocolError(
            f"{identity!r} cannot upload to this session now",
            code=ErrorCode.DEADLINE if over else ErrorCode.UNEXPECTED_MESSAGE,
            sender=identity,
            next_step="Fetch the session's current update first.",
        )

    def _log_view(self, state: server.MaskedInputCollection, identity: str) -> None:
        """Log that a client's view differs; and if this server may be the odd one."""
        self.log.view_differs(identity)
        parameters, sharers = self.record.descriptor.parameters, len(state.sharers)
        differing, few = len(self._facts.differing), parameters.max_dropouts
        if differing == min(few, sharers // 2) + 1:
            hashes = table_hashes(parameters, sharers)
            self.log.tables_differ(differing, sharers, hashes)

    def update_for(self, identity: str, after: Round | None) -> Envelope | None:
        """Return the update that opens a round after `after`, if there is one."""
        if self._ended_by_other is not None:
            return self._ended_by_other.update_for(identity, after)
        update = self._update_for(identity, after)
        if update is None or (after is not None and after >= update.kind.ROUND):
            return None
        if update.kind.ROUND is Round.FINISHED:
            self._facts.tell(self._state, identity)
        return update

    def wait_of(self, identity: str, retry_after_seconds: float) -> Wait:
        """Return what a client is told for which there is no update yet."""
        if identity in self._lost():
            return Wait(retry_after_seconds)  # its upload was lost: it sends it again
        return wait_of(
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
            ServiceError: UNKNOWN_SESSION; the session goes by no revocation list.
        """
        if self._ended_by_other is not None:
            return self._ended_by_other.read(identity, request)
        if request.blob is Blob.REVOCATIONS and not self.is_over:
            return self._piece_of_list(request)
        return self._readable.piece(self._state, identity, request)

    def _piece_of_list(self, request: FetchChunk) -> BlobChunk:
        """Return a piece of the revocation list, which those read who may join."""
        if not self.record.revocations:
            raise ErrorCode.UNKNOWN_SESSION.error(
                "the session goes by no revocation list",
                fix="Read the offer: it names the list, if there is one.",
            )
        return piece_of(self.record.revocations, request)

    def _update_for(self, identity: str, after: Round | None) -> Envelope | None:
        state = self._state
        if self._is_restored and isinstance(state, server.Failed):
            # R5-6: nobody knows whose input was summed; all count as if they were.
            return Envelope.of(replace(state.outcome, fate=Fate.INCLUDED))
        return self._readable.update_for(state, identity, after)

    async def watch(
        self, identity: str, after: Round | None
    ) -> AsyncIterator[Envelope | Wait]:
        """Yield updates as rounds open, until the session is over for this client.

        In between, and at first, that no update exists.

        Raises:
            ServiceError: STORAGE_FAILED; the session is about to be ended, ask again.
        """
        parameters = self.descriptor.parameters
        while after is not Round.FINISHED:
            if self.has_failed_over:
                raise StoreFailoverError(self.record.session_key)
            ringing = self._notifier.listen()
            update = self.update_for(identity, after)
            if update is not None:
                after, quiet = update.kind.ROUND, LEAST_QUIET_SECONDS
                yield update
            else:
                quiet = idle_timeout(self._state.ROUND, parameters)
                yield self.wait_of(identity, quiet)
            if after is not Round.FINISHED:
                await self._notifier.heard(ringing, keepalive_interval(quiet))

    async def next_update(
        self, identity: str, after: Round | None, ends: float, look_seconds: float
    ) -> Envelope | None:
        """Wait for the update that opens a round after `after`.

        Args:
            identity: Of the client.
            after: The round that it is in.
            ends: Instant of the clock after which the answer is that none exists.
            look_seconds: How often all who wait are woken in any case.

        Raises:
            ServiceError: STORAGE_FAILED; the session is about to be ended, ask again.
        """
        while True:
            if self.has_failed_over:
                raise StoreFailoverError(self.record.session_key)
            ringing = self._notifier.listen()
            update = self.update_for(identity, after)
            if update is not None or self._context.clock.now() > ends:
                return update
            await self._notifier.heard(ringing, look_seconds)

    def tell(self, identity: str) -> None:
        """Note that a client knows how the session ended."""
        if self._ended_by_other is not None:
            self._ended_by_other.tell(identity)
            return
        self._facts.tell(self._state, identity)

    def untold(self) -> frozenset[str]:
        """Return who took part to the end and does not know yet how it ended."""
        if self._ended_by_other is not None:
            return self._ended_by_other.untold()
        return self._facts.untold(self._state)

    # --- what the aggregator does -----------------------------------------------------

    async def run(self) -> Released | Aborted:
        """Drive the session to its end.

        Returns:
            How it ended.

        Raises:
            ServiceError: STORAGE_FAILED, again and again.  The session is not over: a
                restart resumes it.
        """
        self.log.write(
            telemetry.SESSION_RESUMED if self._is_resumed else telemetry.SESSION_OPENED,
            round=self._state.ROUND.name,
        )
        self._publish()
        async with AsyncExitStack() as failing:
            failing.push_async_callback(
                self.lease.let_go
            )  # somebody else may go on at once
            await self._drive()
            failing.pop_all()
        return self.outcome()

    async def _drive(self) -> None:
        if self._is_resumed:
            await patiently(self._context.clock, self._search_uploads)
            await self._refuse_lost_inputs()
        await self._timer.begin()
        while not self.is_over:
            job = next(iter(server.pending_outputs(self._state)), None)
            if isinstance(job, ComputeSum):
                await self._sum.release(job)
            elif await self._timer.is_ripe():
                ripe = self._state.ROUND
                if await self._may_close():
                    await self._durable.advance(self._closing(ripe))

    async def _refuse_lost_inputs(self) -> None:
        """End a session whose U3 is fixed and whose sum cannot be computed any more.

        Unmasking would use up inputs for nothing.
        """
        is_fixed = isinstance(self._state, server.ConsistencyCheck | server.Unmasking)
        if is_fixed and self._desk.missing:
            gone = ", ".join(sorted(self._desk.missing))
            await self.abort(
                ErrorCode.STORAGE_FAILED, f"the stored uploads of {gone} are gone"
            )

    async def _may_close(self) -> bool:
        """Whether the open round is to be closed now.

        U3 holds clients whose upload is in the spool.  What is missing may come again
        until the deadline.
        """
        if isinstance(self._state, server.MaskedInputCollection):
            await patiently(self._context.clock, self._search_uploads)
            return self._timer.closes_in() <= 0 or not self._desk.missing
        return True

    def _missing_in(self, state: server.ServerState) -> tuple[int, ...]:
        """Return the roster indices of clients whose accepted upload is missing."""
        if not isinstance(state, server.MaskedInputCollection):
            return ()
        missing, name_of = self._desk.missing, state.cohort.name_of
        return tuple(i for i in sorted(state.uploads) if name_of(i) in missing)

    async def stop_waiting(self, reason: str) -> None:
        """End the session if it still waits for clients; else it goes on."""
        if is_below_min_clients(self._state):
            await self.abort(ErrorCode.ROSTER_TOO_SMALL, reason)

    async def abort(
        self, code: ErrorCode, reason: str, *, discard_unmasked: bool = False
    ) -> None:
        """End the session without a sum; nothing happens if it is over.

        Raises:
            LocalProtocolError: The sum is being computed, and `discard_unmasked` does
                not say to throw it away (R5-5).
        """
        await self._durable.advance(
            lambda _: AbortRequested(code, reason, discard_unmasked)
        )

    async def finish(self, facts: bytes) -> None:
        """Scrub the session, which is over, and leave its receipt.

        Args:
            facts: What its task knows from now on.

        Raises:
            ServiceError: STORAGE_FAILED; a restart finishes it.
        """
        receipt = self.receipt().encode()
        # Nobody knows what was sent of a restored session: it has used its inputs.
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
        return self._ended().outcome

    def receipt(self) -> SessionReceipt:
        """Return what is left of the session; only after its end."""
        if self._ended_by_other is not None:
            return self._ended_by_other.receipt
        return self._facts.receipt(self._ended(), was_restored=self._is_restored)

    def audit(self) -> AuditReceipt:
        """Return what anybody can judge of the session; only after its end."""
        return self._facts.audit(self._ended())

    def _ended(self) -> server.Completed | server.Failed:
        if isinstance(self._state, server.Completed | server.Failed):
            return self._state
        raise InternalError("the session is not over")

    def progress(self) -> SessionProgress:
        """Return where the session stands."""
        return self._facts.progress(self._state, upload_bytes=self._desk.received_bytes)

    def seconds_left(self) -> float | None:
        """Return the time until the open round's deadline; None before any advert."""
        return self._timer.seconds_left()

    def missing(self) -> tuple[str, ...]:
        """Return who may still answer in the open round, by name, as far as known."""
        return tuple(sorted({*missing_in(self._state), *self._lost()}))

    def _lost(self) -> AbstractSet[str]:
        """Return whose stored upload is missing while the round for it is open."""
        is_open = isinstance(self._state, server.MaskedInputCollection)
        return self._desk.missing if is_open else frozenset()

    # --- events -----------------------------------------------------------------------

    def _note_messages(self, _: Sequence[Received]) -> None:
        """Tell the session's other parts, and who watches, that messages were taken."""
        self._timer.note_message()
        if self._is_live:
            self._publish()

    def _note_end(self) -> None:
        """Note that somebody else has ended the session, and left its receipt."""
        receipt = SessionReceipt.decode(self._durable.receipt or b"")
        self._ended_by_other = EndedSession(receipt)
        self._timer.note_end()
        self._wake()
        self.log.write(telemetry.SESSION_ENDED_BY_REPLICA, reason=receipt.outcome_name)

    def _note_put_back(self) -> None:
        """Have whoever drives the session, or watches it, leave it."""
        self._timer.note_end()
        self._wake()

    def _wake(self) -> None:
        """Wake those who watch the session, and whoever drives it."""
        self._notifier.ring()
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
        """Note what a closed round leaves behind."""
        seconds = self._context.clock.now() - self._timer.opened_at
        lost = self._facts.enter(before, step.state, step.outputs, seconds=seconds)
        self.log.lost(lost)
        self._readable.enter(step.state)
        self._timer.rounds_entered += 1
        if self._is_live:
            self._timer.open_round()
            self._announce(before, seconds)

    def _announce(self, before: server.ServerState, seconds: float) -> None:
        """Wake watchers and tell the operator.

        Args:
            before: The state that was left.
            seconds: How long it was open.
        """
        self._wake()
        if not self._durable.is_catching_up:  # whoever closed it has measured it
            self.log.measure(before, seconds)
        self.log.entered(before, self._state, self.progress(), seconds=seconds)
        self._publish()

    def _publish(self) -> None:
        self._context.publish(self.progress())
