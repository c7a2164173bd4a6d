"""The sessions of an aggregator: running ones, and ended ones that are still read.

Rule 1: a session is stored before it is offered, and erased before it is forgotten.
Rule 2: session numbers of a task only grow, also across restarts (PROTOCOL §5.0).
Rule 3: payload and sum of an ended session stay as long as it is among the latest, and
        at least for `keep_seconds`.
Rule 4: other replicas may open and end sessions in the same store.  The aggregator asks
        the store before it tells a client that a session does not exist.
Rule 5: the sum of a session that is over is delivered first.  A step that a refusal
        interrupted is repeated, and this process delivers no sum twice.
Rule 6: the commit that stores a session's receipt also stores what its task learns from
        it (`TaskHistory`).
Rule 7: each of these steps is idempotent: repeated, it writes the same again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from secagg.distributed_dp import following_terms, offered_terms
from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
)
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.graphs.bounds import server_demand
from secagg.protocol.messages import Released, Round
from secagg.protocol.packing import unpack
from secagg.protocol.profiles import Profile
from secagg.runtime import log_events as telemetry
from secagg.runtime import metrics
from secagg.server.dependencies import ServerDependencies
from secagg.server.notifier import REFRESH_SECONDS, SingleFlight
from secagg.server.session.report import SessionReceipt
from secagg.server.session.runner import WAITING_SECONDS, SessionRunner
from secagg.server.session.state import JournalPosition, SessionRecord, retrying
from secagg.server.session.updates import EndedSession
from secagg.server.task.definition import (
    DeliveryDeferredError,
    OnAborted,
    OnEnded,
    OnSum,
    SessionSum,
    TaskDefinition,
)
from secagg.server.task.history import TaskHistory
from secagg.storage.change import (
    Change,
    Committed,
    NewSession,
    NumberTakenError,
    SessionConflictError,
    SessionsSpentError,
    Side,
)
from secagg.storage.changes import PutFacts
from secagg.storage.leases import refuse_sessions_of_another
from secagg.storage.queries import (
    ListSessions,
    ListTasks,
    LoadSession,
    ReadClock,
    ReadTally,
)
from secagg.storage.rows import SessionState, StoredSession
from secagg.storage.spool import PAYLOAD, SUM

_NONCE_BYTES: Final = 32
# Payloads are stored before their sessions: a younger one may belong to a session that
# another replica opens now.
_ORPHAN_SECONDS: Final = 86400.0


class SessionCloser:
    """Completes sessions that are over, for the process that holds the lease.

    Args:
        context: What all sessions share.
        facts: Returns the history of a task from the store.
        learn: Receives the new history of a task.
        on_aborted: Receives the audit receipts of sessions without a sum; None drops
            them.
        on_ended: Receives the report of every session at its end; None drops it.
    """

    def __init__(
        self,
        context: ServerDependencies,
        *,
        facts: Callable[[str], Awaitable[TaskHistory]],
        learn: Callable[[str, TaskHistory], None],
        on_aborted: OnAborted | None,
        on_ended: OnEnded | None,
    ) -> None:
        self._context = context
        self._workers = context.workers
        self._facts = facts
        self._record_history = learn
        self._on_aborted = on_aborted
        self._on_ended = on_ended

    async def complete(self, runner: SessionRunner, give: OnSum | None) -> None:
        """Complete a session; retry while a disk or the store refuses for a moment.

        Args:
            runner: The session.
            give: Receives its sum, if it has one; None delivers it to no consumer.

        Raises:
            DeliveryDeferredError: Its sum or receipt cannot be delivered here
                for now.
            ServiceError: STORAGE_FAILED.
        """
        clock, outcome = self._context.clock, runner.outcome()
        if isinstance(outcome, Released) and give is not None:
            await self._deliver_once(runner, outcome, give)
        await retrying(clock, lambda: self._report_end(runner))
        known, facts = await retrying(clock, lambda: self._erase(runner))
        self._record_end(runner, known, facts)
        spool = self._context.spool
        await retrying(
            clock, lambda: self._workers.run(spool.drop_uploads, runner.session_id)
        )

    async def _deliver_once(
        self, runner: SessionRunner, outcome: Released, give: OnSum
    ) -> None:
        """Deliver a sum, unless this process already has."""
        if not runner.is_delivered:
            total = await retrying(
                self._context.clock, lambda: self._load_sum(runner, outcome)
            )
            await give(total)
            runner.is_delivered = True

    async def _report_end(self, runner: SessionRunner) -> None:
        """Report how a session ended."""
        if self._on_aborted is not None and not isinstance(runner.outcome(), Released):
            await self._on_aborted(runner.descriptor, runner.audit().encode())
        if self._on_ended is not None:
            await self._on_ended(runner.receipt(), runner.progress())

    async def _erase(self, runner: SessionRunner) -> tuple[TaskHistory, TaskHistory]:
        """Erase a session that is over, and leave its receipt and its task's history.

        Returns:
            The task's history before, and after.
        """
        known = await self._facts(runner.descriptor.task_id)
        facts = await self._workers.run(known.after_session, runner.receipt())
        facts = replace(facts, noise_terms=await self._terms_after(runner, known))
        await runner.finish(facts.encode())
        return known, facts

    def _record_end(
        self, runner: SessionRunner, known: TaskHistory, facts: TaskHistory
    ) -> None:
        self._measure(runner)
        self._record_history(runner.descriptor.task_id, facts)
        for identity in sorted(facts.excluded - known.excluded):
            runner.log.write(telemetry.CLIENT_EXCLUDED, sender=identity)

    def _measure(self, runner: SessionRunner) -> None:
        """Count the session by its outcome, and the clients that it lost."""
        meter, task_id = self._context.meter, runner.descriptor.task_id
        outcome = runner.receipt().outcome_name
        meter.add(metrics.SESSIONS, task=task_id, outcome=outcome)
        for lost in runner.progress().dropped:
            meter.add(
                metrics.CLIENTS_LOST, round=lost.round.name, reason=str(lost.reason)
            )

    async def _terms_after(self, runner: SessionRunner, known: TaskHistory) -> bytes:
        """Return the noise terms of the next offer, updated by a released sum."""
        outcome, descriptor = runner.outcome(), runner.descriptor
        if not isinstance(outcome, Released) or not descriptor.noise_terms:
            return known.noise_terms
        released = await self._load_sum(runner, outcome)
        return await self._workers.run(
            following_terms, descriptor, released.residues, inputs=outcome.survivors
        )

    async def _load_sum(self, runner: SessionRunner, outcome: Released) -> SessionSum:
        """Return the sum of a session, if it released one."""
        descriptor = runner.descriptor
        parameters = descriptor.parameters
        packed = await self._load_blob(descriptor.session_id, SUM, outcome.sum_hash)
        residues = await self._workers.run(
            unpack, packed, parameters.dimension, parameters.bits, parameters.modulus
        )
        return SessionSum(
            descriptor,
            residues,
            outcome.survivors,
            runner.receipt(),
            runner.audit().encode(),
        )

    async def _load_blob(self, session_id: bytes, name: str, digest: bytes) -> bytes:
        """Return a blob of a session, if it has its digest."""
        found = await self._workers.run(self._context.spool.read, session_id, name, 0)
        data = b"" if found is None else found[0]
        if await self._workers.sha256(data) != digest:
            raise ErrorCode.STORAGE_FAILED.error(
                f"the {name} of a session is missing or damaged in the spool",
                fix="Leave the spool directory alone while sessions run.",
            )
        return data


class SessionRegistry:
    """Opens, finds, resumes and closes sessions.

    Args:
        context: What all sessions share.
        kept_sessions: Ended sessions whose sum and receipt stay available.
        on_aborted: Receives the audit receipts of sessions without a sum; None drops
            them.
        on_ended: Receives the report of every session at its end; None drops it.
        check_profile: Raises for a profile that is not served here (R10.3-4).
    """

    def __init__(  # noqa: PLR0913 - what all sessions of an aggregator share
        self,
        aggregator: str,
        context: ServerDependencies,
        *,
        kept_sessions: int,
        on_aborted: OnAborted | None,
        on_ended: OnEnded | None,
        check_profile: Callable[[Profile], None],
    ) -> None:
        self._aggregator = aggregator
        self._check_profile = check_profile
        self._store = context.store
        self._context = context
        self._workers = context.workers
        self._kept_sessions = kept_sessions
        self._last_steps = SessionCloser(
            context,
            facts=partial(self.facts, newest=True),
            learn=self._record_history,
            on_aborted=on_aborted,
            on_ended=on_ended,
        )
        self._ended_at: dict[bytes, float] = {}
        self._running: dict[bytes, SessionRunner] = {}
        self._ended: OrderedDict[bytes, SessionRunner | EndedSession] = OrderedDict()
        self._facts: dict[str, TaskHistory] = {}
        self._load_lock = asyncio.Lock()
        self._shared_refresh = SingleFlight(self._refresh, context.clock)

    async def find_session(self, session_id: bytes) -> SessionRunner | EndedSession:
        """Return a session, also one that another aggregator has opened.

        Raises:
            ServiceError: UNKNOWN_SESSION, STORAGE_FAILED.
        """
        if self._store.is_shared and not self._is_known(session_id):
            await self.refresh()
            if not self._is_known(session_id):
                passed = await self._load_ended(session_id)
                if passed is not None:
                    return passed
        return self.find(session_id)

    async def _load_ended(self, session_id: bytes) -> EndedSession | None:
        """Load a session that ended before this process knew it.

        The lookups run one at a time and seldom, so invented names cost the store
        little.
        """
        clock = self._context.clock
        async with self._load_lock:
            passed = await self._load_session(f"server/{session_id.hex()}")
            await clock.sleep_until(clock.now() + REFRESH_SECONDS)
        return passed

    def _is_known(self, session_id: bytes) -> bool:
        return session_id in self._running or session_id in self._ended

    async def refresh(self) -> None:
        """Apply what other replicas did; concurrent callers share the next refresh.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        await self._shared_refresh.run()

    async def _refresh(self) -> None:
        """Refresh all sessions from the store, and retire those that are over."""
        rows = await self._store.read(ListSessions(role=Side.SERVER))
        for row in rows:
            runner = self._running.get(_id_of(row.key))
            if runner is None:
                await self._load_session(row.key)
            elif runner.sequence != row.sequence:
                await _refresh_session(runner)
        running = {_id_of(row.key) for row in rows}
        for session_id, runner in tuple(self._running.items()):
            if session_id not in running:
                await _refresh_session(runner)
                await self.retire(runner)

    async def _load_session(self, key: str) -> EndedSession | None:
        """Load a session that another aggregator has opened.

        Returns:
            The session, if it ended too long ago to be kept. A caller that asks for
                many such sessions evicts none of the kept ones.
        """
        stored = (
            None
            if self._is_known(_id_of(key))
            else await self._store.read(LoadSession(key))
        )
        if stored is None or self._is_known(_id_of(key)):
            return None
        if stored.receipt is None:
            profile = _profile_of(stored)  # raises for what this release cannot read
            try:
                self._check_profile(profile)
            except ServiceError:
                return None  # only other aggregators serve it
            await self._resume(stored)
            return None
        ended = EndedSession(SessionReceipt.decode(stored.receipt))
        last = ended.descriptor.session_end + self._context.keep_seconds
        if await self._store_date() > last:
            return ended
        await self._cache(ended)
        return None

    async def retire(self, runner: SessionRunner) -> None:
        """Keep the receipt of a session that another aggregator has ended."""
        ended = runner.ended_by_other
        if ended is not None and runner.session_id in self._running:
            del self._running[runner.session_id]
            self._facts.pop(runner.descriptor.task_id, None)
            await runner.lease.release()
            await self._cache(ended)

    def find(self, session_id: bytes) -> SessionRunner | EndedSession:
        """Return a session.

        Raises:
            ServiceError: UNKNOWN_SESSION.
        """
        session = self._running.get(session_id) or self._ended.get(session_id)
        if session is None:
            raise ErrorCode.UNKNOWN_SESSION.error(
                "no such session exists here",
                fix="Ask for an offer; the session is over or belongs to another "
                "aggregator.",
            )
        return session

    async def facts(self, task_id: str, *, newest: bool = False) -> TaskHistory:
        """Return the history of a task.

        Args:
            task_id: The task.
            newest: Whether to read a shared store again; else the last known history is
                used.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        if task_id not in self._facts or (newest and self._store.is_shared):
            tally = await self._store.read(ReadTally(Side.SERVER, task_id))
            self._facts[task_id] = TaskHistory.decode(tally.facts)
        return self._facts[task_id]

    def all_running(self) -> tuple[SessionRunner, ...]:
        """Return the sessions that are not over."""
        return tuple(self._running.values())

    def running(self, task_id: str) -> Iterator[SessionRunner]:
        """Yield the sessions of a task that are not over."""
        for runner in tuple(self._running.values()):
            if runner.descriptor.task_id == task_id:
                yield runner

    def ended_before(self) -> bool:
        """Whether an earlier process ended the latest session and told some clients."""
        latest = self._latest()
        return isinstance(latest, EndedSession) or (
            latest is not None and latest.ended_before_start
        )

    def has_unacknowledged(self) -> bool:
        """Whether a participant of the latest session does not know its end yet.

        Clients of earlier sessions had the time of a whole session to ask.
        """
        latest = self._latest()
        if latest is None:
            return False
        descriptor = latest.descriptor
        facts = self._facts.get(descriptor.task_id, TaskHistory())
        return facts.told < descriptor.session_number and bool(latest.unacknowledged())

    def record_call(self, identity: str, task_id: str) -> None:
        """Record that a client asks for the next session and knows the last end."""
        latest = self._latest()
        if latest is not None and latest.descriptor.task_id == task_id:
            latest.record_notified(identity)

    async def record_settled(self) -> None:
        """Record that all clients know the latest end, also after a restart.

        Raises:
            ServiceError: STORAGE_FAILED; a restart waits once more.
        """
        latest = self._latest()
        if latest is None:
            return
        task_id, number = latest.descriptor.task_id, latest.descriptor.session_number
        known = (await self._store.read(ReadTally(Side.SERVER, task_id))).facts
        facts = TaskHistory.decode(known)
        if facts.told >= number:
            return
        facts = replace(facts, told=number)
        # A replica that ends another session meanwhile has its own clients to inform.
        if await self._store.commit(
            PutFacts(task_id, facts.encode(), instead_of=known)
        ):
            self._facts[task_id] = facts

    def _latest(self) -> SessionRunner | EndedSession | None:
        return next(reversed(self._ended.values()), None)

    async def recover(self) -> None:
        """Load what an earlier process left; call it before the transport opens.

        Open sessions answer their clients at once and continue with `run_task`.

        Raises:
            ServiceError: STORAGE_FAILED; BAD_SETTINGS if an open session has another
                aggregator's name, or a profile that is not served here.
        """
        # This precedes the first query, so sessions that others end meanwhile are
        # known.
        stored_ids = await self._workers.run(self._context.spool.session_ids)
        running = await self._store.read(ListSessions(role=Side.SERVER))
        loaded = [
            await self._store.read(LoadSession(row.key)) for row in reversed(running)
        ]
        # A session that another replica has ended meanwhile has a receipt.
        interrupted = [each for each in loaded if each and each.receipt is None]
        refuse_sessions_of_another(
            self._aggregator,
            (SessionRecord.decode(each).descriptor for each in interrupted),
        )
        for each in interrupted:
            self._check_profile(_profile_of(each))
            await self._resume(each)
        ended = await self._store.read(
            ListSessions(
                role=Side.SERVER, state=SessionState.ENDED, limit=self._kept_sessions
            )
        )
        for row in reversed(ended):
            stored = await self._store.read(LoadSession(row.key))
            if stored is not None and stored.receipt is not None:
                await self._cache(EndedSession(SessionReceipt.decode(stored.receipt)))
                await self.facts(row.task)
        known = {*self._running, *self._ended}
        spool = self._context.spool
        for session_id in stored_ids:
            # A process wrote it and died before it created the session.
            if session_id not in known and not await self._is_foreign(session_id):
                await self._workers.run(spool.remove, session_id)

    async def _is_foreign(self, session_id: bytes) -> bool:
        """Whether bytes may belong to a session that another aggregator opens."""
        if not self._store.is_shared:
            return False
        stored = await self._store.read(LoadSession(f"server/{session_id.hex()}"))
        if stored is not None:
            return not stored.ended
        age = await self._workers.run(self._context.spool.age_seconds, session_id)
        return age < _ORPHAN_SECONDS

    async def _resume(
        self, stored: StoredSession, *, instead_of: SessionRunner | None = None
    ) -> SessionRunner:
        """Resume a session from its records.

        Args:
            stored: The session.
            instead_of: The runner that answers its clients until the new one does.
        """
        record = SessionRecord.decode(stored)
        try:
            runner = await self._adopt(record, stored, instead_of=instead_of)
        except (RemoteProtocolError, LocalProtocolError) as error:
            # Only accepted events are stored, so the storage is at fault.
            raise ErrorCode.STORAGE_FAILED.error(
                f"the records of {record.session_key} contradict each other: {error}",
                fix="Restore the state as this process left it; do not edit or merge "
                "it.",
            ) from None
        if stored.restored:
            try:
                await runner.abort(
                    ErrorCode.STORAGE_FAILED,
                    "the aggregator's state was restored: what it had sent is unknown",
                    discard_unmasked=True,
                )
            except ServiceError:
                # The next refresh ends it: it must not continue as it is.
                if self._running.get(runner.session_id) is runner:
                    del self._running[runner.session_id]
                    if instead_of is not None:
                        self._running[runner.session_id] = instead_of
                raise
        return runner

    async def open(
        self, task: TaskDefinition, payload: bytes, *, attempt: int
    ) -> SessionRunner | None:
        """Store a new session, then offer it.

        Returns:
            The session; None when another aggregator was faster, or the task has
            changed since it was last read here.

        Raises:
            SessionAbortedError: DISPUTED; too few invited clients remain.
            SessionsSpentError: The task has used all sessions that its budget covers.
            ServiceError: STORAGE_FAILED.
        """
        facts = await self.facts(task.task_id, newest=True)
        excluded = facts.absent_from_next(
            task.invited, min_clients=task.parameters.min_clients
        )
        tally = await self._store.read(ReadTally(Side.SERVER, task.task_id))
        number = tally.highest_number + 1
        while True:
            try:
                runner = await self._create(
                    task, number, payload, facts, excluded=excluded, attempt=attempt
                )
            except SessionConflictError:
                return None
            except NumberTakenError as error:
                if self._store.is_shared:
                    return None
                number = error.highest + 1
            else:
                runner.count_sessions(allowed=task.allowed, spent=tally.spent)
                return runner

    async def _create(  # noqa: PLR0913 - the parameters of a session
        self,
        task: TaskDefinition,
        number: int,
        payload: bytes,
        facts: TaskHistory,
        *,
        excluded: frozenset[str],
        attempt: int,
    ) -> SessionRunner:
        """Create a session under its number, and store it."""
        descriptor = SessionDescriptor(
            aggregator=self._aggregator,
            task_id=task.task_id,
            session_number=number,
            server_nonce=self._context.entropy.token(_NONCE_BYTES),
            session_end=await self._latest_session_end(task),
            payload_hash=await self._workers.sha256(payload) if payload else b"",
            parameters=task.parameters,
            noise_terms=offered_terms(task.parameters, facts.noise_terms),
        )
        # A session that no offer can describe must not be stored: no later start could
        # read it.
        descriptor.validate(demanded_bits=server_demand)
        record = SessionRecord(
            descriptor,
            task.invited,
            excluded,
            # Other replicas receive this when they ask; no session waits for them.
            facts.finished(task.participations) & (task.invited or frozenset()),
            attempt,
            task.revocations,
        )
        if payload:
            await self._workers.run(
                self._context.spool.put, descriptor.session_id, PAYLOAD, payload
            )
        new = NewSession(
            role=Side.SERVER,
            task=task.task_id,
            number=number,
            header=record.encode_header(),
            allowed=task.allowed,
            alone=self._store.is_shared,
            task_version=task.gate.opened_under,
        )
        try:
            answer = await self._store.commit(
                Change(key=record.session_key, create=new, round=Round.ADVERTISE_KEYS)
            )
        except (NumberTakenError, SessionConflictError, SessionsSpentError):
            # The session does not exist, and no other part would remove its payload.
            await self._workers.run(self._context.spool.remove, descriptor.session_id)
            raise
        if not isinstance(answer, Committed):
            raise ErrorCode.INTERNAL.error("a session that begins stands nowhere else")
        return await self._adopt(record, answer)

    async def _latest_session_end(self, task: TaskDefinition) -> int:
        rounds = task.parameters.deadlines.longest_session
        return int(await self._store_date()) + rounds + WAITING_SECONDS

    async def _store_date(self) -> float:
        """Return this moment in Unix seconds, by the clock of a shared store."""
        if self._store.is_shared:
            return await self._store.read(ReadClock())
        return self._context.clock.date()

    async def _adopt(
        self,
        record: SessionRecord,
        stands: StoredSession | Committed,
        *,
        instead_of: SessionRunner | None = None,
    ) -> SessionRunner:
        """Create the runner of a session, which answers its clients.

        Args:
            record: The session.
            stands: The session's position in the store.
            instead_of: The runner that answered them before.
        """
        date, session_id = await self._store_date(), record.descriptor.session_id
        known = self._running.get(session_id)
        if known is not None and known is not instead_of:
            return known  # another call has loaded it meanwhile
        is_restored, open_seconds = False, 0.0
        if isinstance(stands, StoredSession):
            is_restored = stands.restored
            if self._store.is_shared and stands.opened is not None:
                open_seconds = max(0.0, date - stands.opened)
        runner = SessionRunner(
            record,
            JournalPosition(stands.sequence, stands.chain, stands.seconds_left),
            self._context,
            is_restored=is_restored,
            date=date,
            open_seconds=open_seconds,
        )
        self._running[session_id] = runner
        return runner

    async def resume_sessions(self, task_id: str) -> bool:
        """Take over the sessions of a task after a fail-over of the store.

        They end. After a fail-over the store may have lost what was sent. What this
        process remembers may differ from what others have stored since.

        Returns:
            Whether any session was affected.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        failed_over = [each for each in self.running(task_id) if each.has_failed_over]
        for runner in failed_over:
            stored = await self._store.read(LoadSession(runner.record.session_key))
            if stored is None:
                del self._running[runner.session_id]
            elif stored.receipt is None:
                again = await self._resume(stored, instead_of=runner)
                again.is_delivered = runner.is_delivered
            else:
                del self._running[runner.session_id]
                await self._cache(EndedSession(SessionReceipt.decode(stored.receipt)))
                self._facts.pop(task_id, None)
        return bool(failed_over)

    async def load_sessions(self, task_id: str) -> None:
        """Load sessions of a task that are stored and that this process does not know.

        Such as one of its own, created although the store's answer was lost.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        for row in await self._store.read(ListSessions(role=Side.SERVER, task=task_id)):
            await self._load_session(row.key)

    async def resumable(self, task: TaskDefinition) -> SessionRunner | None:
        """Return the interrupted session of a task; end sessions that no longer fit."""
        await self.load_sessions(task.task_id)
        if self._store.is_shared:
            # Sessions that others have ended are closed before those that they opened
            # since.
            await self.refresh()
        fitting = None
        for runner in tuple(self._running.values()):
            if runner.descriptor.task_id != task.task_id:
                continue
            same = (
                runner.can_continue_under(task.parameters)
                and runner.descriptor.aggregator == self._aggregator
                and runner.record.invited == task.invited
            )
            tally = await self._store.read(ReadTally(Side.SERVER, task.task_id))
            runner.count_sessions(allowed=task.allowed, spent=tally.spent)
            if same and fitting is None:
                fitting = runner
                continue
            if not await self._is_current(task):
                continue  # its supervisor is about to load another definition
            await runner.abort(
                ErrorCode.CANCELLED,
                "the configuration of the task has changed",
                discard_unmasked=True,
            )
            await self.close(runner)
        return fitting

    async def _is_current(self, task: TaskDefinition) -> bool:
        """Whether a task is the one that its row states."""
        if not self._store.is_shared or task.gate.version is None:
            return True
        versions = {
            row.task.task_id: row.version for row in await self._store.read(ListTasks())
        }
        return versions.get(task.task_id) == task.gate.version

    async def close(
        self, runner: SessionRunner, give: OnSum | None = None
    ) -> SessionReceipt:
        """Complete a session that is over, here or at another replica.

        Args:
            runner: The session.
            give: Receives its sum, if it has one and no replica has delivered it.

        Returns:
            The receipt of the session.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        clock, put_off = self._context.clock, None
        try:
            while await runner.lease.hold():
                try:
                    await self._complete_session(runner, give)
                except DeliveryDeferredError as error:
                    put_off = error
                    # Another replica may be able to, and takes the lease.
                    await runner.lease.release()
                    again = clock.now() + (error.retry_after_seconds or 0.0)
                    await clock.sleep_until(again)
                else:
                    break
            await self.retire(runner)
            return runner.receipt()
        finally:
            if put_off is not None:
                put_off.settle()
            await runner.lease.release()

    async def _complete_session(
        self, runner: SessionRunner, give: OnSum | None
    ) -> None:
        """Complete a session that is over; see `close`.

        Raises:
            DeliveryDeferredError: Its sum or receipt cannot be delivered here
                for now.
        """
        await self._last_steps.complete(runner, give)
        await self._cache(runner)
        self._running.pop(runner.session_id, None)

    def _record_history(self, task_id: str, facts: TaskHistory) -> None:
        """Keep a task's history as its latest commit has it."""
        self._facts[task_id] = facts

    async def _cache(self, session: SessionRunner | EndedSession) -> None:
        """Keep an ended session for late clients, and delete the oldest one."""
        now = self._context.clock.now()
        self._ended[session.descriptor.session_id] = session
        self._ended_at[session.descriptor.session_id] = now
        while len(self._ended) > self._kept_sessions:
            session_id = next(iter(self._ended))
            if now < self._ended_at[session_id] + self._context.keep_seconds:
                return
            del self._ended[session_id], self._ended_at[session_id]
            await self._workers.run(self._context.spool.remove, session_id)


def _id_of(key: str) -> bytes:
    """Return the id of a server's session from its name in the store."""
    return bytes.fromhex(key.rpartition("/")[2])


def _profile_of(stored: StoredSession) -> Profile:
    """Return the profile of a stored session.

    Raises:
        ServiceError: STORAGE_FAILED; its header is damaged or of another release.
    """
    return SessionRecord.decode(stored).descriptor.parameters.profile


async def _refresh_session(runner: SessionRunner) -> None:
    """Apply what others have stored of a session; a failure delays no other session."""
    try:
        await runner.refresh()
    except ServiceError as error:  # the runner of the session gets the same error
        runner.log.write(telemetry.STORAGE_WRITE_FAILED, reason=error)
