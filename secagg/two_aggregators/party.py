"""The common base of leader and helper: one task, and one session of it at a time.

Rule 1: after a restart the newest session is resumed. Other open sessions, and all that
        were restored from a backup, are aborted: nothing shows what was sent in them.
Rule 2: an offer is returned while its session accepts shares, and not after its end.
Rule 3: a failed commit may or may not have been applied. The store is read again before
        the next commit.

Beside it stand the log of one session, through which all its writes go, and the errors
of calls that are refused.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Final,
    Generic,
    Protocol,
    Required,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
)

from secagg.config.two_aggregators import refuse_database
from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.crypto.signature import IdentityKey
from secagg.distributed_dp import AggregatorNoise
from secagg.errors import ErrorCode, SecAggError, SessionAbortedError, printable
from secagg.pki.key_files import read_key, write_key
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import MAX_REASON_BYTES, Envelope, Round
from secagg.runtime import metrics
from secagg.runtime.clock import Clock, SystemClock
from secagg.runtime.log_events import (
    SERVER_LOGGER,
    SESSION_ABORTED,
    SESSION_COMPLETED,
    SESSION_RESUMED,
    TASK_CHANGED,
    log_event,
)
from secagg.runtime.metrics import Meter, SilentMeter
from secagg.runtime.workers import Workers
from secagg.server.session.events import LiveSession, SessionPhase, SessionProgress
from secagg.server.storage import ServerStorage
from secagg.server.task.stored import (
    ChangedMeanwhileError,
    refuse_other_version,
    row_of,
)
from secagg.server.telemetry.measures import GaugeSample, Measures, measured_call
from secagg.storage.change import Change, Committed, NewSession, Record, Side
from secagg.storage.changes import PutTask, purge_once
from secagg.storage.leases import refuse_sessions_of_another
from secagg.storage.queries import ListSessions, LoadSession, ReadTally
from secagg.storage.rows import Retention, StoredSession, Task, TaskState
from secagg.storage.spool import SUM
from secagg.storage.store import Store
from secagg.two_aggregators.offers import check_terms
from secagg.wire.calls import (
    BlobChunk,
    FetchChunk,
    GetOffer,
    Reference,
    Request,
    UploadChunk,
    Wait,
    WatchSession,
)

UNAVAILABLE_CODES: Final = frozenset(
    {
        ErrorCode.UNREACHABLE,
        ErrorCode.DEADLINE,
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.OVERLOADED,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.STORAGE_FAILED,
    }
)
"""Codes that show no answer of the helper: it is unreachable or refuses all calls."""

FINAL_REFUSALS: Final = frozenset({ErrorCode.TASK_OVER, ErrorCode.POLICY_VIOLATION})
"""Codes with which a helper refuses every further session of a task."""


def budget_spent_error(task: str) -> SecAggError:
    """Return the error for a task whose budget is spent."""
    return ErrorCode.TASK_OVER.error(
        f"task {task!r} has released all its sums",
        fix="Agree on a new task id, which has a budget of its own.",
    )


def no_offer_error(helper: str) -> SessionAbortedError:
    """Return the error for a helper that answered, but offered no session in time."""
    return ErrorCode.DEADLINE.error(
        f"{helper!r} answers, but offers no session",
        kind=SessionAbortedError,
        fix="Ask the helper's operator whether it drains, or pauses the task.",
    )


def participations_given(identity: str, *, given: int, most: int) -> SecAggError:
    """Return the error for a client that has used all its participations."""
    return ErrorCode.TASK_OVER.error(
        f"the task is over for {identity!r}: it has used {given} of {most} "
        "participations",
        fix="Do nothing; other clients contribute to the remaining sums.",
    )


def unsupported(identity: str, request: Request[Any]) -> SecAggError:
    """Return the error for a call that has no meaning between two aggregators."""
    return ErrorCode.UNEXPECTED_MESSAGE.error(
        f"{identity!r} may not call {type(request).__name__} in a session between two "
        "aggregators",
        sender=identity,
        fix="Take part with secagg.two_aggregators.TwoAggregatorClient.",
    )


def no_such_session() -> SecAggError:
    """Return the error for a session that is over, or never existed."""
    return ErrorCode.UNKNOWN_SESSION.error(
        "the session is over, or does not belong to this aggregator",
        fix="Ask for the next offer.",
    )


def no_such_task(task: str) -> SecAggError:
    """Return the error for a task that this aggregator does not run."""
    return ErrorCode.TASK_OVER.error(
        f"this aggregator has no task {task!r}",
        fix="Compare the name of the task with the aggregators' settings.",
    )


def refused_by_helper(error: SecAggError) -> SessionAbortedError:
    """Return the error of a session that the helper refuses to continue."""
    return error.code.error(
        f"the helper refuses: {error}", kind=SessionAbortedError, fix=error.next_step
    )


def second_upload(identity: str) -> SecAggError:
    """Return the error for an upload that differs from an earlier one."""
    return ErrorCode.EQUIVOCATION.error(
        f"{identity!r} has sent a different upload in this session before",
        sender=identity,
        fix="Wait for the next session.",
    )


_LOG: Final = logging.getLogger(SERVER_LOGGER)
_RECEIPT_KEY_FILE: Final = "receipt.key"

KEPT: Final = Retention(keep_receipts=1000)
"""Default retention of ended sessions."""

# Often enough that a leader cannot fill the disk, and rarely enough to cost little.
_PURGED_EVERY: Final = 250

POLL_SECONDS: Final = 1.0
"""Seconds after which a caller asks again."""

_Answer = TypeVar("_Answer")


class _LiveSession(Protocol):
    """The open session of a party."""

    offer: SessionDescriptor

    @property
    def accepts_shares(self) -> bool: ...

    @property
    def shares_held(self) -> int: ...


_Session = TypeVar("_Session", bound=_LiveSession)


class PartyOptions(TypedDict, total=False):
    """Options that a leader and a helper share.

    Attributes:
        steps: Number of sums of the task; by default the participations of one client.
        name: The party's own name, as its certificate has it.
        storage: SQLite store and spool, for this task and this process alone.
        receipt_key: Signing key for receipts; see `receipt_key_in`.
        retention: Retention of ended sessions; `KEPT` by default.
        clock: Source of time; the system clock by default.
        entropy: Source of nonces and seeds; the system's by default.
        workers: Threads for blocking work; by default it starts some.
        meter: Receives measurements; by default they are discarded.
    """

    steps: int | None
    name: Required[str]
    storage: Required[ServerStorage]
    receipt_key: Required[IdentityKey]
    retention: Retention
    clock: Clock | None
    entropy: Entropy | None
    workers: Workers | None
    meter: Meter | None


class Party(ABC, Generic[_Session]):
    """One of two aggregators: the service of one task.

    Args:
        task: Name of the task.
        noise: The task, with the noise of one aggregator.
        options: See `PartyOptions`.

    Attributes:
        task: Name of the task.
        noise: The task, with the noise of one aggregator.
        steps: Number of sums of the task.

    Raises:
        LocalProtocolError: There are fewer sums than participations.
        RemoteProtocolError: BAD_CONFIG; not a task between two aggregators.
        ServiceError: BAD_SETTINGS; the store is not SQLite.
    """

    is_leader: ClassVar[bool]

    def __init__(
        self, task: str, noise: AggregatorNoise, **options: Unpack[PartyOptions]
    ) -> None:
        check_terms(noise.parameters)
        self._task = self.task = task
        self._noise = self.noise = noise
        budget, steps = noise.budget, options.get("steps")
        self._steps = self.steps = budget.participations if steps is None else steps
        if self._steps < budget.participations:
            raise ErrorCode.LOCAL_MISUSE.error(
                f"the task has {self._steps} sums, but its noise covers "
                f"{budget.participations} participations of one client",
                fix="At both, lower task.participations to at most task.steps.",
            )
        self._max_sessions = budget.max_sessions(self._steps)
        self._name = options["name"]
        self._storage = options["storage"]
        refuse_database(self._storage.store.retains_erased_data)
        self._receipt_key = options["receipt_key"]
        self._retention = options.get("retention") or KEPT
        self._clock = options.get("clock") or SystemClock()
        self._entropy = options.get("entropy") or SystemEntropy()
        self._workers = options.get("workers") or Workers()
        self._owns_workers = options.get("workers") is None
        self._measures = Measures(options.get("meter") or SilentMeter(), self._clock)
        self._lock = asyncio.Lock()
        self._live: _Session | None = None
        self._must_reload = False  # the store, after a failed commit
        self._openings = count()
        self._state = TaskState.RUNNING
        self._is_draining = False
        self._may_open = asyncio.Event()
        self._set_gate()

    async def recover(self) -> None:
        """Load the state from the store; call it before the transport opens.

        Raises:
            ServiceError: STORAGE_FAILED, or STATE_DAMAGED; BAD_SETTINGS if an
                open session has another aggregator's name.
        """
        store = self._storage.store
        row = await row_of(store, self._task)
        self._state = TaskState.RUNNING if row is None else row.task.state
        self._set_gate()
        rows = await store.read(ListSessions(role=Side.SERVER, task=self._task))
        loaded = [await store.read(LoadSession(row.key)) for row in rows]
        interrupted = [(each, self._load_session(each)) for each in loaded if each]
        refuse_sessions_of_another(
            self._name, (session.offer for _, session in interrupted)
        )
        newest: _Session | None = None
        for place, (stored, session) in enumerate(interrupted):
            if place or stored.restored:
                await self._abort_stale(session)
            else:
                newest = session
        self._live, self._must_reload = newest, False
        if newest is not None:
            self._log_session(SESSION_RESUMED, newest.offer)
            await self._resume(newest)

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        """Hold the right to write to the store, reloading it if necessary (rule 3)."""
        async with self._lock:
            if self._must_reload:
                await self.recover()
            self._must_reload = True
            try:
                yield
            except SecAggError as error:
                self._must_reload = error.code is ErrorCode.STORAGE_FAILED
                raise
            self._must_reload = False

    async def _purge(self) -> None:
        """Delete old receipts, at some of the calls; call it for each session.

        The calls are counted, because the other aggregator can skip session numbers.
        """
        if next(self._openings) % _PURGED_EVERY == 0:
            await purge_once(self._storage.store, self._retention, _LOG)

    def close(self) -> None:
        """Stop the threads that this party started; the caller closes the rest."""
        if self._owns_workers:
            self._workers.close()

    # --- its operator -----------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The store of the task."""
        return self._storage.store

    @property
    def may_open(self) -> bool:
        """Whether a further session may be opened: not paused, and not draining."""
        return self._state is TaskState.RUNNING and not self._is_draining

    def _set_gate(self) -> None:
        (self._may_open.set if self.may_open else self._may_open.clear)()

    def drain(self) -> None:
        """Open no further session in this process; the open one continues."""
        self._is_draining = True
        self._set_gate()

    async def set_state(
        self, state: TaskState, reason: str = "", *, expect_version: int | None = None
    ) -> None:
        """Pause the task, or resume it; the open session continues.

        Args:
            state: PAUSED or RUNNING.
            reason: Why, in words for operators.
            expect_version: Refuse the change if the task has another version; 0 before
                the first change.

        Raises:
            ServiceError: BAD_SETTINGS for another version; STORAGE_FAILED.
        """
        reason = printable(reason, max_bytes=MAX_REASON_BYTES)
        async with self._lock:
            row = await row_of(self.store, self._task)
            version = 0 if row is None else row.version
            refuse_other_version(self._task, version, expect_version)
            # Settings and noise are in the files of both aggregators.
            task = Task(self._task, state, settings="", plan=b"", reason=reason)
            if not await self.store.commit(PutTask(task, version)):
                raise ChangedMeanwhileError(self._task)
            self._state = state
            self._set_gate()
        facts = {"task": self._task, "state": state.value, "reason": reason}
        log_event(_LOG, logging.INFO, TASK_CHANGED, **facts)

    def live(self) -> tuple[LiveSession, ...]:
        """Return the open session, if it can still release a sum."""
        live = self._live
        if live is None:
            return ()
        offer, parameters = live.offer, live.offer.parameters
        left = offer.session_end - self._clock.date()
        round_ = Round.UNMASKING
        if live.accepts_shares:
            if left <= 0:
                return ()  # an expired offer, which no aggregator answers
            left = max(0.0, left - parameters.deadlines.unmasking)
            is_empty = live.shares_held == 0
            round_ = Round.ADVERTISE_KEYS if is_empty else Round.MASKED_INPUT_COLLECTION
        progress = SessionProgress(
            session_id=offer.session_id,
            task_id=self._task,
            session_number=offer.session_number,
            phase=SessionPhase.COLLECTING
            if live.accepts_shares
            else SessionPhase.SUMMING,
            round=round_,
            joined=live.shares_held,
            answered=live.shares_held,
            expected=parameters.max_clients,
            needed=parameters.min_survivors,
        )
        return (LiveSession(progress, max(0.0, left)),)

    async def has_session(self, session_id: bytes) -> bool:
        """Whether a session belongs to this task."""
        if self._live is not None and self._live.offer.session_id == session_id:
            return True
        stored = await self.store.read(LoadSession(session_id.hex()))
        return stored is not None and stored.task == self._task

    # --- calls ------------------------------------------------------------------------

    async def answer(self, identity: str, request: Request[_Answer]) -> _Answer:
        """Answer one call, and measure it."""
        meter = self._measures.meter
        with measured_call(meter, self._clock, request):
            given = await self._answer_call(identity, request)
        if isinstance(request, UploadChunk):
            meter.add(metrics.UPLOAD_BYTES, len(request.data), task=self._task)
        elif isinstance(given, BlobChunk):
            meter.add(metrics.DOWNLOAD_BYTES, len(given.data), task=self._task)
        return cast("_Answer", given)

    def record_refusal(self, code: ErrorCode) -> None:
        """Count a call that was refused before it reached the service."""
        self._measures.meter.add(metrics.REFUSALS, code=code.name)

    async def readings(self) -> list[GaugeSample]:
        """Return the current gauges of the task.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        task = {"task": self._task}
        tally = await self._storage.store.read(ReadTally(Side.SERVER, self._task))
        covered = max(0, self._max_sessions - tally.spent)
        left = covered if self.may_serve else 0
        live, report = self._live, self._noise.report()
        found: list[GaugeSample] = [
            (metrics.TASK_SLOT, float(left > 0 and self.may_open), task),
            (metrics.TASK_SUMS_LEFT, float(await self._sums_left(left)), task),
            (metrics.TASK_SESSIONS_LEFT, float(left), task),
            (metrics.SESSIONS_OPEN, float(live is not None), task),
        ]
        for against, stated in (
            ("server", report.aggregator),
            ("model_reader", report.reader),
        ):
            labels = {**task, "against": against}
            found.append((metrics.TASK_EPSILON, stated.epsilon, labels))
        if live is not None:
            most = live.offer.parameters.max_clients
            found.append((metrics.ROUND_ANSWERED, float(live.shares_held), task))
            found.append((metrics.ROUND_EXPECTED, float(most), task))
        return found

    async def _sums_left(self, sessions: int) -> int:
        """Return how many sums may still be released, as far as this party knows.

        Args:
            sessions: How many sessions may still be opened.
        """
        return min(sessions, self._steps)

    @property
    def may_serve(self) -> bool:
        """Whether there may be another session, as far as this party knows."""
        return True

    def watch(
        self, identity: str, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Refuse streams: between two aggregators all clients poll."""
        raise unsupported(identity, request)

    @abstractmethod
    async def _answer_call(self, identity: str, request: Request[Any]) -> object:
        """Answer a call."""

    @abstractmethod
    def _load_session(self, stored: StoredSession) -> _Session:
        """Return a stored session."""

    @abstractmethod
    async def _abort_stale(self, session: _Session) -> None:
        """End a session that no process can resume."""

    @abstractmethod
    async def _resume(self, session: _Session) -> None:
        """Resume a session from its last record."""

    def _log_session(
        self,
        event: str,
        offer: SessionDescriptor,
        *,
        level: int = logging.INFO,
        **facts: object,
    ) -> None:
        """Log one event of a session, and count its end."""
        outcome = facts.get("code", "released")
        if event in {SESSION_COMPLETED, SESSION_ABORTED}:
            meter = self._measures.meter
            meter.add(metrics.SESSIONS, task=self._task, outcome=str(outcome))
        log_event(
            _LOG,
            level,
            event,
            task=self._task,
            number=offer.session_number,
            session=offer.session_id.hex()[:16],
            **facts,
        )

    # --- answers of both parties ------------------------------------------------------

    def _check_task(self, request: GetOffer) -> None:
        if request.task_id != self._task:
            raise no_such_task(request.task_id)

    def _usable_offer(self, after_session: int) -> SessionDescriptor | Wait:
        """Return the offer of the open session, if the caller may use it."""
        live = self._live
        if (
            live is None
            or not live.accepts_shares
            or live.offer.session_number <= after_session
            or live.offer.session_end <= self._clock.date()
        ):
            return Wait(POLL_SECONDS)
        return live.offer

    def _collecting(self, session_id: bytes) -> _Session:
        """Return the open session of an identifier."""
        live = self._live
        if live is None or live.offer.session_id != session_id:
            raise no_such_session()
        return live

    async def _receipt_of(self, session_id: bytes) -> bytes:
        """Return what is stored of a session that ended with an outcome.

        Raises:
            ServiceError: UNKNOWN_SESSION; it is open, ended without an answer, or never
                existed.
        """
        stored = await self._storage.store.read(LoadSession(session_id.hex()))
        if stored is None or not stored.receipt or stored.task != self._task:
            raise no_such_session()
        return stored.receipt

    async def _piece_of_sum(self, request: FetchChunk) -> BlobChunk:
        """Return a piece of a sum in the spool."""
        found = await self._workers.run(
            self._storage.spool.read,
            request.session_id,
            SUM,
            request.offset,
            request.max_bytes,
        )
        if found is None:
            raise no_such_session()
        return BlobChunk(*found)


def receipt_key_in(directory: Path, *, entropy: Entropy | None = None) -> IdentityKey:
    """Return the receipt key of an aggregator; the first call generates it.

    Args:
        directory: Directory of ``receipt.key``, for this aggregator alone.
        entropy: Source of a new key; the system's by default.

    Raises:
        ServiceError: STORAGE_FAILED or BAD_CREDENTIAL; the file cannot be written or
            read.
    """
    path = directory / _RECEIPT_KEY_FILE
    if not path.exists():
        write_key(path, IdentityKey.generate(entropy or SystemEntropy()))
    return read_key(
        path,
        remedy="Restore the file from a copy. Or move it away: the next start "
        "generates another key, which every client, auditor and peer needs.",
    )


class SessionLog:
    """Appends records, one commit at a time; make it with `create` or `resume`.

    Args:
        store: Store of the task.
        key: Name of the session.
        sequence: Number of records.
        chain: Hash chain value after the last record.
        measures: Measures the duration of commits.
    """

    def __init__(
        self, store: Store, key: str, sequence: int, chain: bytes, measures: Measures
    ) -> None:
        self.key: Final = key
        self._store = store
        self._sequence = sequence
        self._chain = chain
        self._measures = measures
        self._lock = asyncio.Lock()

    @classmethod
    async def create(
        cls,
        store: Store,
        key: str,
        new: NewSession,
        measures: Measures,
        *,
        facts: bytes | None = None,
    ) -> Self:
        """Begin a session.

        Raises:
            SessionsSpentError: The task has used all sessions of its budget.
            ServiceError: STORAGE_FAILED.
        """
        with measures.commit():
            begun = await store.commit(Change(key=key, create=new, facts=facts))
        if not isinstance(begun, Committed):
            raise _foreign_writer_error(key)
        return cls(store, key, begun.sequence, begun.chain, measures)

    @classmethod
    def resume(cls, store: Store, stored: StoredSession, measures: Measures) -> Self:
        """Resume a session of an earlier process."""
        return cls(store, stored.key, stored.sequence, stored.chain, measures)

    async def append(self, record: Record, *, spend: bool = False) -> None:
        """Append one record; returns when it is durable.

        Args:
            record: The record.
            spend: Count the session against the task's budget.

        Raises:
            ServiceError: STORAGE_FAILED; the commit may or may not be durable.
        """
        await self._commit(records=(record,), spend=spend)

    async def end(self, receipt: bytes, *, facts: bytes | None = None) -> None:
        """End the session: overwrite its header and records, and keep a receipt.

        Args:
            receipt: What is kept of the session.
            facts: New facts of the task; None keeps the old ones.

        Raises:
            ServiceError: STORAGE_FAILED; the commit may or may not be durable.
        """
        await self._commit(end=receipt, facts=facts)

    async def _commit(
        self,
        *,
        records: tuple[Record, ...] = (),
        spend: bool = False,
        end: bytes | None = None,
        facts: bytes | None = None,
    ) -> None:
        """Store one step, and refuse a session that another process has written."""
        async with self._lock:
            change = Change(
                key=self.key,
                expect=self._sequence,
                previous=self._chain,
                records=records,
                spend=spend,
                end=end,
                facts=facts,
            )
            with self._measures.commit():
                done = await self._store.commit(change)
            if not isinstance(done, Committed):
                raise _foreign_writer_error(self.key)
            self._sequence, self._chain = done.sequence, done.chain


def _foreign_writer_error(key: str) -> SecAggError:
    """Return the error of a session that another process wrote."""
    return ErrorCode.STORAGE_FAILED.error(
        f"session {key} was written by another process",
        fix="Run one process for each store, then start this one again.",
    )
