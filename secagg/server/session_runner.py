"""Drives the server's side of one session: the shell around `secagg.protocol.server`.

Rule 1: persist, then speak.  An accepted event is durable before its sender hears so,
        and a closed round is durable before anybody sees what it opened
        (PROTOCOL §12).  So events are judged on a fork of the state; the fork becomes
        the state when the book has committed them, and only then is anybody answered.
Rule 2: a round closes as soon as everybody who can answer has, else at its deadline.
        The clock of round 1 starts with its first advert, and again at its deadline
        while too few have joined.  Bytes that arrive extend round 4, in all by one more
        deadline at most.
Rule 3: after a restart the journal is replayed and the open round gets its whole time
        again.
Rule 4: a refused message changes nothing and ends nothing; it is logged by code.
Rule 5: one commit of a session is under way at a time.  Messages that arrive meanwhile
        are judged together in the next one.  Heavy steps run on workers.
Rule 6: after a commit that failed nothing is known.  The next one says what the book
        holds, and everything is judged again from there.

Which sessions there are, and who may ask for which, is said by
`secagg.server.aggregator`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, TypeAlias

from secagg import telemetry
from secagg.errors import (
    ErrorCode,
    InternalError,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
)
from secagg.messages import Aborted, Envelope, Fate, Released, Round, Upload
from secagg.parameters import SessionDescriptor
from secagg.primitives.entropy import Entropy
from secagg.protocol import server
from secagg.protocol.events import (
    AbortRequested,
    Received,
    RoundClosed,
    ServerEvent,
    SumComputed,
)
from secagg.protocol.outputs import ComputeSum, ServerOutput
from secagg.protocol.rounds import ROUNDS
from secagg.protocol.server_states import Rostered
from secagg.runtime.clock import Clock, is_set_before
from secagg.runtime.workers import Workers
from secagg.server.mask_executor import MaskExecutor
from secagg.server.patience import is_short_of_clients, wait_of
from secagg.server.progress import SessionProgress
from secagg.server.readable import Readable
from secagg.server.receipt import SessionReceipt
from secagg.server.session_facts import SessionFacts
from secagg.server.session_record import SessionRecord
from secagg.server.upload_desk import UploadDesk, UploadSlots
from secagg.storage.book import (
    Behind,
    Book,
    Change,
    Committed,
    Record,
    SecondRecordError,
    StateDamagedError,
)
from secagg.storage.journal import decode_server_event, record_of
from secagg.storage.spool import SUM, Spool
from secagg.wire.calls import BlobChunk, FetchChunk, UploadChunk, UploadStatus, Wait

__all__ = ["Position", "RunnerContext", "SessionRunner"]

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

# Bytes that arrived within this share of the deadline keep round 4 open.
UPLOAD_GRACE: Final = 0.25
# A full disk is often freed by somebody else within a minute; then the session aborts.
STORAGE_ATTEMPTS: Final = 12
STORAGE_RETRY_SECONDS: Final = 5.0
# A log line stays readable when a thousand clients are lost at once.
NAMED_AT_MOST: Final = 20


@dataclass(frozen=True, slots=True)
class RunnerContext:
    """What all sessions of one aggregator share."""

    book: Book
    spool: Spool
    workers: Workers
    masks: MaskExecutor
    clock: Clock
    entropy: Entropy
    slots: UploadSlots
    publish: Callable[[SessionProgress], None]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a session stands in the book.

    Attributes:
        sequence: How many records it holds.
        chain: Chain value behind them.
    """

    sequence: int
    chain: bytes


@dataclass(eq=False, slots=True)
class _Waiting:
    """A client's message that waits for its verdict.

    Attributes:
        event: The message.
        answer: Set when the verdict is durable.
        refusal: Why it cannot be taken; None as long as it can.
    """

    event: Received
    answer: "asyncio.Future[None]"
    refusal: SecAggError | None = None

    def settle(self, refusal: Exception | None) -> None:
        """Tell the sender, if it has not hung up."""
        if self.answer.done():
            return
        if refusal is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(refusal)


# What the state asks for next, or None when somebody else has done it.
_MakeEvent: TypeAlias = Callable[[server.ServerState], ServerEvent | None]


class SessionRunner:
    """One session on the server.

    Args:
        record: The session's facts and everything journalled so far.
        position: Where that leaves the session in the book.
        context: What it shares with other sessions.
        is_restored: The book was put back from an older state, so that nobody knows
            what was sent: the session is ended, and its inputs count as summed.
    """

    def __init__(
        self,
        record: SessionRecord,
        position: Position,
        context: RunnerContext,
        *,
        is_restored: bool = False,
    ) -> None:
        self.session_id = record.descriptor.session_id  # three hashes; used often
        self._descriptor = record.descriptor
        self._position = position
        self._context = context
        self._is_restored = is_restored
        self._state = record.start()
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._attention = asyncio.Event()
        self._facts = SessionFacts(record.descriptor)
        self._readable = Readable()
        self._joined = asyncio.Event()
        self._opened_at = context.clock.now()
        self._deadline = 0.0
        self._wanted_until = 0.0
        self._desk = UploadDesk(
            self.session_id,
            record.descriptor.parameters,
            spool=context.spool,
            workers=context.workers,
            slots=context.slots,
            arrived=self._ask_for_time,
            accept=self.submit,
        )
        self._is_resumed = bool(record.events)
        for event in record.events:
            self._replay(event)
        # An earlier process may have told the clients; nobody knows whom.
        self.was_over = self.is_over
        # The state holds what is still needed of them; share bundles are large.
        self.record = replace(record, events=())

    # --- what clients do --------------------------------------------------------------

    @property
    def descriptor(self) -> SessionDescriptor:
        """The session as it is offered."""
        return self._descriptor

    @property
    def is_over(self) -> bool:
        """Whether the session has ended, and durably so."""
        return server.is_over(self._state)

    def can_join(self, identity: str) -> bool:
        """Whether an offer of this session makes sense for a client."""
        state = self._state
        if not isinstance(state, server.AdvertiseKeys):
            return False
        if identity in state.adverts:
            return True
        full = len(state.adverts) >= self.descriptor.parameters.max_clients
        invited = state.invited is None or identity in state.invited
        return invited and not full

    def check_invited(self, identity: str) -> None:
        """Refuse whoever may not read what the session hands its clients.

        Raises:
            RemoteProtocolError: NOT_INVITED.
        """
        if self.record.invited is not None and identity not in self.record.invited:
            raise RemoteProtocolError(
                f"{identity!r} is not invited to this session",
                code=ErrorCode.NOT_INVITED,
                sender=identity,
            )

    async def submit(self, sender: str, envelope: Envelope) -> None:
        """Take a client's message; returns when it is durable.

        Raises:
            RemoteProtocolError: It is refused.
            ServiceError: STORAGE_FAILED; sending it again may help.
        """
        message = _Waiting(
            Received(envelope, sender), asyncio.get_running_loop().create_future()
        )
        self._waiting.append(message)
        if self._writing is None:
            self._writing = asyncio.create_task(self._judge_waiting())
        try:
            # A sender that hangs up takes nobody else's message with it.
            await message.answer
        except RemoteProtocolError as error:
            self._log(
                telemetry.MESSAGE_REFUSED,
                message=envelope.kind.__name__,
                sender=sender,
                code=error.code.name,
            )
            raise
        self._publish()

    async def upload_status(self, identity: str) -> UploadStatus:
        """Return where a client's upload goes on."""
        if self._has_uploaded(identity):
            return self._desk.finished()
        self._check_uploader(identity)
        return await self._desk.status(identity)

    async def upload_chunk(self, identity: str, chunk: UploadChunk) -> UploadStatus:
        """Take one chunk of a client's masked input."""
        upload = Envelope.of(Upload(chunk.total_size, chunk.digest))
        if self._state.session.has_accepted(identity, upload):
            return self._desk.finished()
        self._check_uploader(identity)
        status = await self._desk.take(identity, chunk)
        self._publish()
        return status

    def update_for(self, identity: str, after: Round | None) -> Envelope | None:
        """Return the update that opens a round after `after`, if there is one."""
        update = self._update_for(identity)
        if update is None or (after is not None and after >= update.kind.ROUND):
            return None
        if update.kind.ROUND is Round.FINISHED:
            self._facts.tell(self._state, identity)
        return update

    def wait_of(self, identity: str, retry_after_seconds: float) -> Wait:
        """Return what a client is told for which there is no update yet."""
        return wait_of(
            self._state,
            identity,
            retry_after_seconds=retry_after_seconds,
            closes_in_seconds=self._deadline - self._context.clock.now(),
        )

    def is_member(self, identity: str) -> bool:
        """Whether a client is in the roster."""
        state = self._state
        return isinstance(state, Rostered) and identity in state.cohort.index_of

    def read(self, identity: str, request: FetchChunk) -> BlobChunk:
        """Return a piece of the roster, or of the client's own delivery.

        Raises:
            RemoteProtocolError: See `Readable.piece`.
        """
        return self._readable.piece(self._state, identity, request)

    def _update_for(self, identity: str) -> Envelope | None:
        state = self._state
        if self._is_restored and isinstance(state, server.Failed):
            # Nobody knows whose input was summed: everybody's counts as if it was.
            return Envelope.of(replace(state.outcome, fate=Fate.INCLUDED))
        return server.update_for(state, identity)

    async def watch(
        self, identity: str, after: Round | None
    ) -> AsyncIterator[Envelope]:
        """Yield updates as rounds open, until the session is over for this client."""
        while after is not Round.FINISHED:
            changed = self._changed
            update = self.update_for(identity, after)
            if update is None:
                await changed.wait()
                continue
            after = update.kind.ROUND
            yield update

    def untold(self) -> frozenset[str]:
        """Return who took part to the end and does not know yet how it ended."""
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
        self._log(
            telemetry.SESSION_RESUMED if self._is_resumed else telemetry.SESSION_OPENED,
            round=self._state.ROUND.name,
        )
        self._publish()
        await self._give_time()
        while not self.is_over:
            job = next(iter(server.pending_outputs(self._state)), None)
            if isinstance(job, ComputeSum):
                await self._sum(job)
            else:
                await self._round_answered()
                await self._advance(self._closing(self._state.ROUND))
        return self.outcome()

    async def stop_waiting(self, reason: str) -> None:
        """End the session if it still waits for clients; else it goes on."""
        if is_short_of_clients(self._state):
            await self.abort(ErrorCode.ROSTER_TOO_SMALL, reason)

    async def abort(
        self, code: ErrorCode, reason: str, *, discard_unmasked: bool = False
    ) -> None:
        """End the session without a sum; nothing happens if it is over.

        Raises:
            LocalProtocolError: The sum is being computed, and `discard_unmasked` does
                not say to throw it away (PROTOCOL §5.6).
        """
        await self._advance(lambda _: AbortRequested(code, reason, discard_unmasked))

    async def finish(self) -> None:
        """Scrub the session, which is over, and leave its receipt.

        Raises:
            ServiceError: STORAGE_FAILED; a restart finishes it.
        """
        receipt = self.receipt().encode()
        # Nobody knows what was sent of a restored session: it has used its inputs.
        change = Change(
            key=self.record.session_key, end=receipt, spend=self._is_restored
        )
        async with self._lock:
            while not await self._commit(change):
                pass  # it has caught up

    def outcome(self) -> Released | Aborted:
        """Return how the session ended; only after its end."""
        return self._ended().outcome

    def receipt(self) -> SessionReceipt:
        """Return what is left of the session; only after its end."""
        return self._facts.receipt(self._ended(), was_restored=self._is_restored)

    def _ended(self) -> server.Completed | server.Failed:
        if isinstance(self._state, server.Completed | server.Failed):
            return self._state
        raise InternalError("the session is not over")

    def progress(self) -> SessionProgress:
        """Return where the session stands."""
        return self._facts.progress(self._state, upload_bytes=self._desk.received_bytes)

    # --- events -----------------------------------------------------------------------

    async def _judge_waiting(self) -> None:
        """Judge in batches until nobody waits."""
        try:
            while self._waiting:
                async with self._lock:
                    batch, self._waiting = self._waiting, []
                    try:
                        await self._judge(batch)
                    except Exception as error:  # noqa: BLE001 - belongs to the senders
                        for message in batch:
                            message.settle(error)
        finally:
            self._writing = None

    async def _judge(self, batch: list[_Waiting]) -> None:
        """Commit what can be taken of a batch, and tell everybody."""
        while True:
            state, accepted = self._judged(batch)
            try:
                if not accepted or await self._commit(self._change_of(accepted)):
                    break
            except SecondRecordError as error:
                # Our own defect: its sender is told so, nobody else is held up.
                _LOG.critical("%s", error)
                _refuse(batch, error)
        self._state = state
        for event in accepted:
            self._note(event)
            self._log(
                telemetry.MESSAGE_ACCEPTED,
                message=event.envelope.kind.__name__,
                sender=event.sender,
            )
        if server.is_round_full(self._state):
            self._attention.set()
        for message in batch:
            message.settle(message.refusal)

    def _judged(
        self, batch: list[_Waiting]
    ) -> tuple[server.ServerState, list[Received]]:
        """Return the state behind a batch, and the messages that lead there."""
        state, accepted = server.fork(self._state), []
        for message in batch:
            if isinstance(message.refusal, InternalError):
                continue
            message.refusal = None
            try:
                step = server.step(state, message.event)
            except RemoteProtocolError as error:
                message.refusal = error
                continue
            state = step.state
            if not step.is_repeat:
                accepted.append(message.event)
        return state, accepted

    def _change_of(self, accepted: list[Received]) -> Change:
        state, seconds = self._state, None
        if isinstance(state, server.AdvertiseKeys) and not state.adverts:
            seconds = float(self._seconds_of(state.ROUND))  # the first advert
        return Change(
            key=self.record.session_key,
            records=tuple(map(record_of, accepted)),
            deadline_seconds=seconds,
        )

    async def _commit(self, change: Change) -> bool:
        """Commit a change at the present position; the lock is held.

        Returns:
            False when the session stood elsewhere: the state has caught up, and
            whatever the change was made of must be judged again.

        Raises:
            ServiceError: STORAGE_FAILED; nothing is known, see rule 6.
        """
        position = self._position
        answer = await self._context.book.commit(
            replace(change, expect=position.sequence, previous=position.chain)
        )
        match answer:
            case Committed():
                self._position = Position(answer.sequence, answer.chain)
                return True
            case Behind():
                self._catch_up(answer)
                return False
        if change.end is None:
            raise InternalError("the session was ended by somebody else")
        return True  # by ourselves, in a commit that seemed to fail

    def _catch_up(self, behind: Behind) -> None:
        """Apply what a commit has stored that seemed to fail."""
        if behind.whole:
            raise StateDamagedError(
                "another history stands where this process has written its own",
                key=self.record.session_key,
            )
        self._state = server.fork(self._state)
        for record in behind.records:
            self._replay(decode_server_event(record))
        self._position = Position(behind.sequence, behind.chain)

    def _note(self, event: Received) -> None:
        """Tell the session's other parts about an accepted message."""
        self._joined.set()
        if event.envelope.kind is Upload:
            self._desk.remember(event.sender, Upload.decode(event.envelope.data))

    def _replay(self, event: ServerEvent) -> None:
        step = server.step(self._state, event)
        if isinstance(event, Received):
            self._note(event)
        self._enter(step.state, step.outputs)

    async def _advance(self, make_event: _MakeEvent) -> None:
        """Apply an event of our own: close a round, end the session."""
        async with self._lock:
            before = self._state
            await self._patiently(lambda: self._apply_own(make_event))
            is_changed = type(self._state) is not type(before)
        if is_changed:
            lasted = self._context.clock.now() - self._opened_at
            self._open_round()
            self._announce(before, lasted)

    async def _apply_own(self, make_event: _MakeEvent) -> None:
        while not server.is_over(self._state):
            event = make_event(self._state)
            if event is None:
                return
            step = await self._context.workers.run(
                server.step, server.fork(self._state), event
            )
            opened = step.state
            done = await self._commit(
                Change(
                    key=self.record.session_key,
                    records=(record_of(event),),
                    round=opened.ROUND,
                    deadline_seconds=None
                    if server.is_over(opened)
                    else float(self._seconds_of(opened.ROUND)),
                    # U3 is fixed: from here on a sum can come out.
                    spend=isinstance(opened, server.Unmasking),
                )
            )
            if done:
                self._enter(step.state, step.outputs)
                return

    async def _patiently(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write, and try again for a while when the disk refuses."""
        clock = self._context.clock
        for _ in range(STORAGE_ATTEMPTS - 1):
            try:
                return await write()
            except ServiceError as error:
                _LOG.warning("%s: %s", telemetry.STORAGE_REFUSED, error)
                await clock.sleep_until(clock.now() + STORAGE_RETRY_SECONDS)
        return await write()

    def _closing(self, closed: Round) -> _MakeEvent:
        """Return what closes a round, unless it is closed."""

        def make(state: server.ServerState) -> RoundClosed | None:
            if closed is not state.ROUND or isinstance(state, server.Summing):
                return None
            opening = closed is Round.ADVERTISE_KEYS
            return RoundClosed(
                closed, self._context.entropy.token(32) if opening else b""
            )

        return make

    def _enter(
        self, state: server.ServerState, outputs: tuple[ServerOutput, ...]
    ) -> None:
        """Move on, and note what the closed round leaves behind."""
        if type(self._state) is not type(state):
            seconds = self._context.clock.now() - self._opened_at
            for lost in self._facts.enter(self._state, state, outputs, seconds=seconds):
                self._log(
                    telemetry.CLIENT_DROPPED,
                    sender=lost.identity,
                    round=lost.round.name,
                    reason=lost.reason,
                )
            self._readable.enter(state)
        self._state = state

    # --- rounds -----------------------------------------------------------------------

    async def _give_time(self) -> None:
        """Give the open round its whole time, in the book too (rule 3)."""
        self._open_round()
        if server.is_over(self._state) or not self._joined.is_set():
            return
        await self._put_deadline(float(self._seconds_of(self._state.ROUND)))

    async def _put_deadline(self, seconds: float) -> None:
        change = Change(key=self.record.session_key, deadline_seconds=seconds)

        async def put() -> None:
            while not await self._commit(change):
                pass  # it has caught up

        async with self._lock:
            await self._patiently(put)

    def _open_round(self) -> None:
        now = self._context.clock.now()
        self._opened_at = now
        self._deadline = now + self._seconds_of(self._state.ROUND)
        self._attention.clear()
        if server.is_over(self._state) or server.is_round_full(self._state):
            self._attention.set()

    def _seconds_of(self, opened: Round) -> int:
        return ROUNDS[opened].seconds(self.descriptor.parameters.deadlines)

    async def _round_answered(self) -> None:
        """Wait until the round is full, its deadline has passed or it was aborted."""
        clock = self._context.clock
        if isinstance(self._state, server.AdvertiseKeys):
            waiting = asyncio.ensure_future(self._joined.wait())
            attention = asyncio.ensure_future(self._attention.wait())
            try:
                await asyncio.wait(
                    {waiting, attention}, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                waiting.cancel()
                attention.cancel()
            self._open_round()
        while not await is_set_before(clock, self._deadline, self._attention):
            if is_short_of_clients(self._state):
                await self._give_time()  # waiting is not failing
                continue
            # Bytes that have arrived meanwhile ask for more time.
            if self._wanted_until <= self._deadline:
                return
            self._deadline = self._wanted_until
            await self._put_deadline(self._deadline - clock.now())

    def _ask_for_time(self) -> None:
        """Note that bytes of an upload have arrived."""
        if isinstance(self._state, server.MaskedInputCollection):
            seconds = self._seconds_of(Round.MASKED_INPUT_COLLECTION)
            wanted = self._context.clock.now() + UPLOAD_GRACE * seconds
            self._wanted_until = min(wanted, self._opened_at + 2 * seconds)

    def _announce(self, before: server.ServerState, seconds: float) -> None:
        """Wake watchers and tell the operator.

        Args:
            before: The state that was left.
            seconds: How long it was open.
        """
        closed, self._changed = self._changed, asyncio.Event()
        closed.set()
        counts, progress = server.progress(before), self.progress()
        match self._state:
            case server.Completed():
                self._log(telemetry.SESSION_COMPLETED, reason=progress.reason)
            case server.Failed(outcome=outcome):
                self._log(
                    telemetry.SESSION_ABORTED,
                    level=logging.WARNING,
                    round=counts.round.name,
                    code=outcome.code.name,
                    reason=outcome.reason,
                    lost=named([lost.identity for lost in progress.dropped]),
                )
            case _:
                self._log(
                    telemetry.ROUND_CLOSED,
                    round=counts.round.name,
                    answered=counts.answered,
                    expected=counts.expected,
                    seconds=round(seconds, 3),
                )
        self._publish()

    async def _sum(self, job: ComputeSum) -> None:
        """Remove the masks and release the sum."""
        context, session_id = self._context, self.session_id
        try:
            if self._is_resumed:  # an earlier process has taken uploads
                await self._desk.check_stored(digest for _, digest in job.uploads)
            packed = await context.masks.compute_sum(job, context.spool)
        except ServiceError as error:
            # An upload is gone for good: trying again would not bring it back.
            reason = f"the sum could not be computed: {error}"
            await self.abort(error.code, reason, discard_unmasked=True)
            return
        await self._patiently(
            lambda: context.workers.run(context.spool.put, session_id, SUM, packed)
        )
        digest = await context.workers.run(_digest, packed)
        computed = SumComputed(digest, len(packed))
        await self._advance(
            lambda state: computed if isinstance(state, server.Summing) else None
        )

    def _has_uploaded(self, identity: str) -> bool:
        accepted = self._state.session.accepted
        return identity in accepted.get(Round.MASKED_INPUT_COLLECTION, ())

    def _check_uploader(self, identity: str) -> None:
        """Refuse whoever cannot upload now, before any byte is touched."""
        state = self._state
        if isinstance(state, server.MaskedInputCollection):
            index = state.cohort.index_of.get(identity)
            if index is not None and index in state.sharers:
                return
        over = state.ROUND > Round.MASKED_INPUT_COLLECTION
        raise RemoteProtocolError(
            f"{identity!r} cannot upload to this session now",
            code=ErrorCode.DEADLINE if over else ErrorCode.UNEXPECTED_MESSAGE,
            sender=identity,
            next_step="Fetch the session's current update first.",
        )

    def _publish(self) -> None:
        self._context.publish(self.progress())

    def _log(self, name: str, *, level: int = logging.INFO, **facts: object) -> None:
        _LOG.log(
            level,
            "%s session=%s %s",
            name,
            self.session_id.hex()[:16],
            " ".join(f"{key}={value!r}" for key, value in facts.items()),
        )


def named(identities: Sequence[str]) -> str:
    """Return names for a log line, the first few and how many more there are."""
    shown = ", ".join(identities[:NAMED_AT_MOST])
    more = len(identities) - NAMED_AT_MOST
    return f"{shown} and {more} more" if more > 0 else shown


def _refuse(batch: list[_Waiting], error: SecondRecordError) -> None:
    for message in batch:
        record: Record = record_of(message.event)
        if (record.kind, record.sender) == (error.record.kind, error.record.sender):
            message.refusal = error


def _digest(data: bytes) -> bytes:
    return sha256(data).digest()
