"""A session's state on the server, its stored form, and the only ways to change it.

Rule 1: persist, then send.  Events are applied to a fork of the state. The fork becomes
        the state when the store has committed them; only then does any client see it
        (PROTOCOL §12).
Rule 2: a session has one commit in flight.  Messages that arrive meanwhile, and shortly
        after, share the next one.  Heavy steps run on workers.
Rule 3: after a failed commit the position in the store is unknown.  The next commit
        reveals it, and every waiting event is checked again from there.
Rule 4: other replicas may write to the same session.  Their records are applied in
        order before later messages are checked. A timer's close is valid only if the
        store's clock agrees.
Rule 5: a stored header holds the parameters of the session; the records after it are
        accepted events.  Both together rebuild the state.
Rule 6: the payload lies in the spool, not here.  The revocation list lies here: a
        session ends under the list that it began with, whatever is published later.

The module uses time only to retry a disk that refuses; `secagg.server.session.runner`
decides when a round is closed.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Self, TypeAlias, TypeVar

from secagg.crypto.canonical import Reader, Writer
from secagg.distributed_dp import read_noise_terms
from secagg.errors import (
    ErrorCode,
    InternalError,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
)
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import (
    MAX_REVOCATION_BYTES,
    VerifiedCredentials,
    read_revocations,
)
from secagg.protocol.events import Received, RoundClosed, ServerEvent
from secagg.protocol.messages import MAX_IDENTITY_BYTES, Round
from secagg.protocol.packing import packed_size
from secagg.protocol.rounds import ROUNDS
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.protocol.server.states import ServerStep
from secagg.runtime import log_events as telemetry
from secagg.runtime.clock import Clock, wait_set
from secagg.runtime.metrics import STORE_BATCH_RECORDS, STORE_CONFLICTS, Meter
from secagg.runtime.workers import Workers
from secagg.server.notifier import SingleFlight
from secagg.server.task.definition import DeliveryDeferredError
from secagg.server.telemetry.measures import Measures
from secagg.storage.change import (
    Change,
    Committed,
    DuplicateRecordError,
    Ended,
    Lease,
    LeaseLostError,
    MissedRecords,
    Record,
)
from secagg.storage.journal import (
    RefusalNoted,
    StoredEvent,
    SumAttempt,
    decode_server_event,
    record_of,
    sums_begun,
)
from secagg.storage.queries import ReadMissed
from secagg.storage.rows import StoredSession
from secagg.storage.store import (
    StateDamagedError,
    Store,
    StoreFailoverError,
    StoreUnavailableError,
)
from secagg.wire.calls import MAX_DESCRIPTOR_BYTES

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

_Result = TypeVar("_Result")

# A full disk is often freed within a minute; after that the session aborts.
_STORAGE_ATTEMPTS: Final = 12
_STORAGE_RETRY_SECONDS: Final = 5.0
# Errors that need an operator.
_LASTING: Final = frozenset({ErrorCode.RESTORED_STATE, ErrorCode.STATE_DAMAGED})

# Returns the next event for the state, or None when another replica has applied it.
MakeEvent: TypeAlias = Callable[[server.ServerState], ServerEvent | None]
# Returns the write that fits the state, or None when it does not apply any more.
MakeChange: TypeAlias = Callable[[server.ServerState], Change | None]

# A commit costs about the same for one message as for thirty.  So commits of messages
# take a twentieth of the time, and messages that arrive meanwhile share the next one. A
# message waits no longer than this for others, and never for clients that cannot come.
_BATCHING_PER_COMMIT: Final = 20.0
_MAX_BATCHING_SECONDS: Final = 0.05

# A deadline that the store does not confirm is read again, after this pause.
_NOT_DUE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """Holds a session's position in the store.

    Attributes:
        sequence: How many records it holds.
        chain: Value of the hash chain after them.
        seconds_left: Until the open round's deadline, by the store's clock; None
            without a deadline.
    """

    sequence: int
    chain: bytes
    seconds_left: float | None = None


@dataclass(eq=False, slots=True)
class _Waiting:
    """Holds a client's message that waits for its result.

    Attributes:
        event: The message.
        answer: Set when the result is durable: whether the message was new.
        is_new: Whether it is not a repetition.
        refusal: Why the message is refused; None while it is not.
    """

    event: Received
    answer: "asyncio.Future[bool]"
    is_new: bool = False
    refusal: SecAggError | None = None

    def settle(self, refusal: Exception | None) -> None:
        """Answer the sender, if it has not hung up."""
        if self.answer.done():
            return
        if refusal is None:
            self.answer.set_result(self.is_new)
        else:
            self.answer.set_exception(refusal)


class DurableState:
    """Holds the state of one session as the store has it.

    Args:
        state: The state before any event.
        session_key: The session's name in the store.
        position: The session's position in the store.
        store: Stores the session.
        workers: Threads for heavy steps.
        clock: Time between attempts to write.
        meter: Receives how long commits take.
        is_restored: Whether the session was open in a store that was restored.
        on_messages: Called with the messages that the state now holds, those of one
            commit together.
        on_round: Called with every other step: the former state, and the event.
        on_refusal: Called with every refusal that the session has a record of.
        on_end: Called when another replica has ended the session.
        on_failover: Called when the store has failed over.

    Attributes:
        has_failed_over: Whether the store has failed over and may have lost records of
            the session. The session must then be loaded again and ended.
        deadline: Deadline of the open round by the store's last answer, on the runner's
            clock; None without one.
        receipt: The receipt that another replica has stored; None while the session
            runs.
    """

    def __init__(  # noqa: PLR0913 - every part can be exchanged
        self,
        state: server.ServerState,
        session_key: str,
        position: JournalPosition,
        *,
        store: Store,
        workers: Workers,
        clock: Clock,
        meter: Meter,
        is_restored: bool = False,
        on_messages: Callable[[Sequence[Received]], None],
        on_round: Callable[[server.ServerState, ServerStep], None],
        on_refusal: Callable[[RefusalNoted], None] = lambda _: None,
        on_end: Callable[[], None] = lambda: None,
        on_failover: Callable[[], None] = lambda: None,
    ) -> None:
        self._state = state
        self._key = session_key
        self._position = JournalPosition(position.sequence, position.chain)
        self._store = store
        self._workers = workers
        self._clock = clock
        self._meter = meter
        self._measures = Measures(meter, clock)
        self._is_restored = is_restored
        self._on_messages = on_messages
        self._on_round = on_round
        self._on_refusal = on_refusal
        self._on_end = on_end
        self._on_failover = on_failover
        self.has_failed_over = False
        self._is_closed = False
        self._is_catching_up = False
        self._shared_refresh = SingleFlight(self._refresh, clock)
        self.receipt: bytes | None = None
        self._attempts: Counter[SumAttempt] = Counter()
        self._refusals: set[RefusalNoted] = set()
        self.deadline: float | None = None
        self._set_deadline(position.seconds_left)
        self._waiting: list[_Waiting] = []
        self._batch: list[_Waiting] = []
        self._committing: asyncio.Task[None] | None = None
        self._batching_ends = clock.now()
        self._expected = 0
        self._all_here = asyncio.Event()
        self._lock = asyncio.Lock()

    @property
    def state(self) -> server.ServerState:
        """The state after the last commit."""
        return self._state

    @property
    def is_catching_up(self) -> bool:
        """Whether another replica made the change that is being applied now."""
        return self._is_catching_up

    @property
    def sequence(self) -> int:
        """How many records the session holds, as far as this process knows."""
        return self._position.sequence

    @property
    def sums_begun(self) -> int:
        """How often its sum was begun, without the starts that were taken back."""
        return sums_begun(self._attempts.elements())

    @property
    def is_over(self) -> bool:
        """Whether the session has ended."""
        return self.receipt is not None or server_machine.is_over(self._state)

    def replay(self, events: Iterable[StoredEvent]) -> None:
        """Apply what the store holds already."""
        for event in events:
            if isinstance(event, SumAttempt | RefusalNoted):
                self._enter_note(event)
            else:
                self._enter(event, server_machine.step(self._state, event))

    async def submit(self, event: Received) -> bool:
        """Accept a client's message; return when it is durable.

        Returns:
            Whether it is new; False if it repeats an accepted one.

        Raises:
            RemoteProtocolError: The message is refused.
            ServiceError: STORAGE_FAILED; sending it again may help.
        """
        message = _Waiting(event, asyncio.get_running_loop().create_future())
        self._waiting.append(message)
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_waiting())
            self._committing.add_done_callback(self._answer_all)
        if len(self._waiting) >= self._expected:
            self._all_here.set()
        # A sender that hangs up does not cancel the messages of others.
        return await message.answer

    async def advance(
        self, make_event: MakeEvent, *, lease: Lease | None = None
    ) -> None:
        """Apply an event of the server: close a round, end the session.

        Args:
            make_event: Makes the event from the state that it changes.
            lease: The lease that must still be held.

        Raises:
            LeaseLostError: It is not held; another replica does the work.
            ServiceError: STORAGE_FAILED, after repeated attempts.
        """
        self._all_here.set()  # waiting messages come first, without further delay
        async with self._lock:
            await retrying(self._clock, lambda: self._apply_own(make_event, lease))

    async def write(self, make_change: MakeChange) -> None:
        """Commit a record that changes no state: a deadline, a receipt.

        Args:
            make_change: Makes the record from the state that it fits.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        async with self._lock:
            while (change := make_change(self._state)) is not None:
                if await self._commit(change):
                    return
                if self.receipt is not None:
                    return

    async def record_attempt(
        self, attempt: SumAttempt, *, lease: Lease | None = None
    ) -> None:
        """Store that the sum is begun, or taken back; do nothing after the end.

        Args:
            attempt: Which of the two.
            lease: The lease that must still be held.

        Raises:
            LeaseLostError: It is not held; another replica does the work.
            ServiceError: STORAGE_FAILED, after repeated attempts.
        """
        before = self._attempts[attempt]

        async def commit_attempt() -> None:
            # The record may exist although the store has refused: then it counts by
            # now.
            while self._attempts[attempt] == before and not self.is_over:
                change = Change(
                    key=self._key, records=(record_of(attempt),), lease=lease
                )
                if await self._commit(change):
                    self._enter_note(attempt)

        async with self._lock:
            await retrying(self._clock, commit_attempt)

    async def record_refusal(self, refusal: RefusalNoted) -> bool:
        """Store that a client was refused; do nothing when the session is over.

        Every replica of the store then knows it, also after a restart.

        Args:
            refusal: The client and the reason.

        Returns:
            Whether this call has stored it; False if it was stored before.

        Raises:
            ServiceError: STORAGE_FAILED; the refusal must not be sent yet.
        """
        if refusal in self._refusals:  # a client that asks repeatedly takes no lock
            return False
        change = Change(key=self._key, records=(record_of(refusal),))
        async with self._lock:
            while refusal not in self._refusals and not self.is_over:
                if await self._commit(change):
                    self._enter_note(refusal)
                    return True
        return False

    async def refresh(self) -> None:
        """Apply what other replicas have stored; callers share the next refresh.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        await self._shared_refresh.run()

    async def _refresh(self) -> None:
        """Read and apply what other replicas have stored since."""
        async with self._lock:
            if self.receipt is None and not self._is_closed:
                at = self._position
                with self._detecting_failover():
                    missed = await self._store.read(
                        ReadMissed(
                            self._key,
                            expect=at.sequence,
                            previous=at.chain,
                            restored=self._is_restored,
                        )
                    )
                await self._apply_missed(missed)

    # --- messages of clients ----------------------------------------------------------

    async def _commit_waiting(self) -> None:
        """Process waiting messages in batches until none is left."""
        try:
            while self._waiting:
                async with self._lock:
                    await self._gather()
                    self._batch, self._waiting = self._waiting, []
                    try:
                        await self._commit_batch(self._batch)
                    except Exception as error:  # noqa: BLE001 - belongs to the senders
                        for message in self._batch:
                            message.settle(error)
        finally:
            self._committing = None

    async def _gather(self) -> None:
        """Wait for messages that come soon, if the last commit has just ended."""
        if self._batching_ends <= self._clock.now():
            return
        counts = server_machine.progress(self._state)
        self._expected = counts.expected - counts.answered
        if len(self._waiting) < self._expected:
            self._all_here.clear()
            await wait_set(self._clock, self._batching_ends, self._all_here)

    def _answer_all(self, committing: "asyncio.Task[None]") -> None:
        """Answer all waiting senders when the task was cancelled: its loop ends."""
        if not committing.cancelled():
            return
        self._committing = None  # it may not have begun
        unanswered = [*self._batch, *self._waiting]
        self._batch, self._waiting = [], []
        for message in unanswered:
            message.settle(
                ErrorCode.STORAGE_FAILED.error(
                    "whether the message was stored is not known",
                    fix="Send it again: a stored message is acknowledged.",
                )
            )

    async def _commit_batch(self, batch: list[_Waiting]) -> None:
        """Commit the valid messages of a batch, and answer all senders."""
        while True:
            state, accepted = self._validated(batch)
            try:
                if not accepted or await self._commit(self._change_of(accepted)):
                    break
            except DuplicateRecordError as error:
                # This is a defect of the server: only this sender is told, the others
                # continue.
                telemetry.log_event(
                    _LOG, logging.CRITICAL, telemetry.DUPLICATE_RECORD, reason=error
                )
                _refuse_message(batch, error)
        self._state = state
        if accepted:
            self._on_messages(accepted)
        for message in batch:
            message.settle(message.refusal)

    def _validated(
        self, batch: list[_Waiting]
    ) -> tuple[server.ServerState, list[Received]]:
        """Return the state after a batch, and the messages that lead there."""
        state = server_machine.fork(self._state)
        accepted: list[Received] = []
        if self.receipt is not None:
            for message in batch:
                message.refusal = late_message_error(message.event.sender)
            return self._state, accepted
        for message in batch:
            if isinstance(message.refusal, InternalError):
                continue
            message.refusal = None
            try:
                step = server_machine.step(state, message.event)
            except RemoteProtocolError as error:
                message.refusal = error
                continue
            state = step.state
            message.is_new = not step.is_repeat
            if message.is_new:
                accepted.append(message.event)
        return state, accepted

    def _change_of(self, accepted: list[Received]) -> Change:
        """Return the change that stores accepted messages."""
        state, seconds = self._state, None
        if isinstance(state, server.AdvertiseKeys) and not state.adverts:
            seconds = self._seconds_of(state.ROUND)  # the first advert
        return Change(
            key=self._key,
            records=tuple(map(record_of, accepted)),
            deadline_seconds=seconds,
        )

    # --- events of the server ---------------------------------------------------------

    async def _apply_own(self, make_event: MakeEvent, lease: Lease | None) -> None:
        """Compute the event from the newest state and store it, until it is stored."""
        while not self.is_over:
            event = make_event(self._state)
            if event is None:
                return
            # A full round needs no timer.
            due = (
                self._store.is_shared
                and isinstance(event, RoundClosed)
                and (
                    bool(event.missing) or not server_machine.is_round_full(self._state)
                )
            )
            known = self._position
            step = await self._workers.run(
                server_machine.step, server_machine.fork(self._state), event
            )
            opened = step.state
            seconds = (
                None
                if server_machine.is_over(opened)
                else self._seconds_of(opened.ROUND)
            )
            done = await self._commit(
                Change(
                    key=self._key,
                    records=(record_of(event),),
                    round=opened.ROUND,
                    deadline_seconds=seconds,
                    spend=server_machine.spends_session(opened),
                    due=due,
                    lease=lease,
                )
            )
            if done:
                self._enter(event, step)
                return
            if due and self._position == known:
                # The round is not due; the deadline is known now.
                soon = self._clock.now() + _NOT_DUE_SECONDS
                self.deadline = max(self.deadline or soon, soon)
                return

    def _seconds_of(self, opened: Round) -> float:
        parameters = self._state.session.descriptor.parameters
        return float(ROUNDS[opened].seconds(parameters.deadlines))

    # --- the store --------------------------------------------------------------------

    async def _commit(self, change: Change) -> bool:
        """Commit a change at the present position; the lock is held.

        Returns:
            False when the session stood elsewhere: the state has caught up, and the
            change must be made again.

        Raises:
            ServiceError: STORAGE_FAILED; the position is unknown, see rule 3.
        """
        position, began = self._position, self._clock.now()
        with self._measures.commit(), self._detecting_failover():
            answer = await self._store.commit(
                replace(
                    change,
                    expect=position.sequence,
                    previous=position.chain,
                    restored=self._is_restored,
                )
            )
        lasted = self._clock.now() - began
        batching = min(_BATCHING_PER_COMMIT * lasted, _MAX_BATCHING_SECONDS)
        self._batching_ends = began + batching
        if isinstance(answer, Committed):
            self._position = JournalPosition(answer.sequence, answer.chain)
            self._set_deadline(answer.seconds_left)
            self._is_closed = change.end is not None
            if change.records:
                self._meter.observe(STORE_BATCH_RECORDS, len(change.records))
            return True
        self._meter.add(STORE_CONFLICTS)
        # This happened in an own commit that seemed to fail, or at another replica.
        if isinstance(answer, Ended) and change.end is not None:
            return True
        await self._apply_missed(answer)
        return False

    @contextmanager
    def _detecting_failover(self) -> Iterator[None]:
        """Record a fail-over of the store, and raise it."""
        try:
            yield
        except StoreFailoverError:
            self.has_failed_over = True
            self._on_failover()
            raise

    async def _apply_missed(self, answer: MissedRecords | Ended) -> None:
        """Apply what other replicas, or an own uncertain commit, have stored."""
        match answer:
            case MissedRecords():
                await self._load_missed(answer)
            case Ended():
                self.receipt = answer.receipt
                self._on_end()

    async def _load_missed(self, behind: MissedRecords) -> None:
        """Continue from the records that this process had missed."""
        if behind.whole:
            raise StateDamagedError(
                "the store holds another history than this process has written",
                key=self._key,
            )
        self._set_deadline(behind.seconds_left)
        self._is_catching_up = True
        try:
            await self._apply(behind)
        finally:
            self._is_catching_up = False
        self._position = JournalPosition(behind.sequence, behind.chain)

    async def _apply(self, behind: MissedRecords) -> None:
        """Apply the records of another replica to the state."""
        self._state = server_machine.fork(self._state)
        for event in map(decode_server_event, behind.records):
            if isinstance(event, SumAttempt | RefusalNoted):
                self._enter_note(event)
            elif isinstance(event, Received):
                self._enter(event, server_machine.step(self._state, event))
            else:  # heavy; clients see the old state meanwhile
                fork = server_machine.fork(self._state)
                step = await self._workers.run(server_machine.step, fork, event)
                self._enter(event, step)

    def _enter_note(self, note: SumAttempt | RefusalNoted) -> None:
        """Apply a record that changes no state."""
        if isinstance(note, SumAttempt):
            self._attempts[note] += 1
        elif note not in self._refusals:
            self._refusals.add(note)
            self._on_refusal(note)

    def _set_deadline(self, seconds: float | None) -> None:
        self.deadline = None if seconds is None else self._clock.now() + seconds

    def _enter(self, event: ServerEvent, step: ServerStep) -> None:
        """Enter the state of a step, and report what it followed from."""
        before, self._state = self._state, step.state
        if isinstance(event, Received):
            self._on_messages((event,))
        else:
            self._on_round(before, step)


async def retrying(clock: Clock, write: Callable[[], Awaitable[_Result]]) -> _Result:
    """Read or write, and retry for a while when the disk refuses.

    Args:
        clock: Time.
        write: The call; repeating it must be harmless.

    Raises:
        StoreUnavailableError: At once.  The downtime is not bounded, and rounds need
            their time again afterwards: `Aggregator.run_task` waits.
        DeliveryDeferredError: At once.  Another replica may deliver.
        ServiceError: STORAGE_FAILED, a dozen times within a minute.
    """
    for _ in range(_STORAGE_ATTEMPTS - 1):
        try:
            return await write()
        except (
            StoreFailoverError,
            LeaseLostError,
            StoreUnavailableError,
            DeliveryDeferredError,
        ):
            raise  # waiting here is useless
        except ServiceError as error:
            if error.code in _LASTING:
                raise
            log_refused(error)
            await clock.sleep_until(clock.now() + _STORAGE_RETRY_SECONDS)
    return await write()


def log_refused(error: BaseException | None) -> None:
    """Log that the storage refused a call."""
    telemetry.log_event(
        _LOG, logging.ERROR, telemetry.STORAGE_WRITE_FAILED, reason=error
    )


def late_message_error(sender: str) -> SecAggError:
    """Build the refusal of a message to a session that is over."""
    return ErrorCode.SESSION_OVER.error(
        "the session is over", sender=sender, fix="Fetch the session's last update."
    )


def _refuse_message(batch: list[_Waiting], error: DuplicateRecordError) -> None:
    """Refuse the message that a record contradicts."""
    for message in batch:
        record: Record = record_of(message.event)
        if (record.kind, record.sender) == (error.record.kind, error.record.sender):
            message.refusal = error


_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """Holds a session's parameters and what has happened since it was opened.

    Attributes:
        descriptor: The session as it is offered.
        invited: Clients that may take part; None for every authenticated client.
        excluded: Clients excluded because of earlier sessions of the task.
        finished: Invited clients that have used all their participations.
        attempt: Number of this attempt of the task at the same payload, from 1.
        revocations: The list that the offer names, in the issuer's bytes; b"" for none.
        events: Accepted events, from the journal.
    """

    descriptor: SessionDescriptor
    invited: frozenset[str] | None
    excluded: frozenset[str] = frozenset()
    finished: frozenset[str] = frozenset()
    attempt: int = 1
    revocations: bytes = field(default=b"", repr=False)
    events: tuple[StoredEvent, ...] = ()

    @property
    def session_key(self) -> str:
        """The session's name in the store."""
        return f"server/{self.descriptor.session_id.hex()}"

    def start(self, verified: VerifiedCredentials | None = None) -> server.ServerState:
        """Return the state before any event.

        Args:
            verified: Credentials that earlier sessions verified.

        Raises:
            RemoteProtocolError: BAD_CONFIG, or BAD_CREDENTIAL for a list that the offer
                does not name; no such session can exist.
        """
        parameters = self.descriptor.parameters
        return server_machine.start(
            self.descriptor,
            packed_bytes=packed_size(parameters.dimension, parameters.bits),
            invited=self.invited,
            # The session waits for no advert of these clients.
            excluded=self.excluded | self.finished,
            revoked=self._revoked(),
            verified=verified,
            read_noise=read_noise_terms,
        )

    def _revoked(self) -> frozenset[int]:
        trust = self.descriptor.parameters.trust
        found = None if trust is None else read_revocations(self.revocations, trust)
        return frozenset() if found is None else frozenset(found.serials)

    def encode_header(self) -> bytes:
        """Return the header to store."""
        writer = Writer().u16(_VERSION).blob(self.descriptor.encode())
        writer.u32(self.attempt).flag(self.invited is not None)
        for names in (self.invited or frozenset(), self.excluded, self.finished):
            writer.u32(len(names))
            for identity in sorted(names):
                writer.text(identity)
        return writer.blob(self.revocations).getvalue()

    @classmethod
    def decode(cls, stored: StoredSession) -> Self:
        """Decode a stored session that has not ended.

        Raises:
            ServiceError: STORAGE_FAILED; the bytes are damaged or of another release.
        """
        reader = Reader(stored.header, "session header")
        try:
            version = reader.u16()
            if version != _VERSION:
                raise _unreadable_error(f"version {version} is unknown")
            descriptor = SessionDescriptor.decode(
                reader.blob(max_bytes=MAX_DESCRIPTOR_BYTES)
            )
            attempt, restricted = reader.u32(), reader.flag()
            names, excluded = _read_names(reader), _read_names(reader)
            finished = _read_names(reader)
            revocations = reader.blob(max_bytes=MAX_REVOCATION_BYTES)
            reader.end()
        except (ValueError, RemoteProtocolError) as error:
            raise _unreadable_error(str(error)) from None
        events = tuple(decode_server_event(record) for record in stored.records)
        invited = names if restricted else None
        return cls(
            descriptor, invited, excluded, finished, attempt, revocations, events
        )


def _read_names(reader: Reader) -> frozenset[str]:
    """Read a set of names."""
    return frozenset(
        reader.text(max_bytes=MAX_IDENTITY_BYTES) for _ in range(reader.u32())
    )


def _unreadable_error(complaint: str) -> SecAggError:
    """Return the error of a stored session that cannot be read."""
    return ErrorCode.STORAGE_FAILED.error(
        f"a stored session cannot be read: {complaint}",
        fix="Use the release that wrote it, or delete the session's state.",
    )
