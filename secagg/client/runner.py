"""Takes one client through sessions: from an offer to one outcome or one typed error.

Rule 1: whatever happens in between (lost answers, restarts on either side), a session
        ends in exactly one way for this client, and it never sends two different
        messages for the same round.
Rule 2: the payload is fetched and compared with the hash that the session is bound to
        before the client joins and before the application sees it.
Rule 3: the client keeps its own deadlines.  An aggregator that goes silent costs time,
        nothing else.
Rule 4: a session is resumed with the aggregator of its offer only (R5.0-6): who answers
        is asked by a handshake before anything of it is said.
Rule 5: the application's code runs on a thread and gets the descriptor, the payload
        and a seed for its noise; the same three after a restart.
Rule 6: the application is asked before a session is joined, and never again: what has
        seen the payload cannot keep a client away.

The application decides what to sum; `secagg.distributed_dp` makes vectors with noise.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from secagg.client.admission import Admission
from secagg.client.budget import peer_of
from secagg.client.calls import (
    PATIENT_TELL_SECONDS,
    TELL_SECONDS,
    AnotherAggregatorError,
    ClientCalls,
)
from secagg.client.enrolment import EnrolledClient
from secagg.client.gate import (
    AdmittedSession,
    Need,
    OwnRules,
    SessionInfo,
)
from secagg.client.retry_policy import ErrorStage
from secagg.client.session import ClientSession
from secagg.client.session_driver import (
    ClientParts,
    ClientPhase,
    ClientProgress,
    ClientSettings,
    Conductor,
    MakeInput,
    Preparation,
    SessionOutcome,
)
from secagg.client.total_budget import TotalBudgetLedger
from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.errors import (
    ErrorCode,
    InternalError,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol.client import machine as client
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment.revocation_list import MAX_REVOCATION_BYTES
from secagg.protocol.membership import Membership
from secagg.protocol.messages import Round
from secagg.protocol.profiles import Trust
from secagg.runtime import log_events as telemetry
from secagg.runtime.clock import Clock, SystemClock
from secagg.runtime.workers import Workers
from secagg.storage.change import Role
from secagg.storage.client_store import ClientRecords
from secagg.storage.queries import ReadTally
from secagg.transport.connection import AggregatorConnection
from secagg.wire.calls import Blob

_LOG: Final = logging.getLogger(telemetry.CLIENT_LOGGER)

# Errors of a call after which this client's session cannot go on.
_FATAL: Final = frozenset({ErrorCode.UNKNOWN_SESSION, ErrorCode.UPLOAD_CORRUPT})


class ClientRunner:
    """One client of one aggregator.

    Args:
        identity: The client's name, as in its certificate.
        connection: The way to the aggregator.
        book: The durable book; closed by whoever opened it.
        rules: What the client's owner has settled, but for enrolment and total.
        make_input: Encodes the input; called on a thread, once per session and again
            after a restart, when it must return the same one.
        prepare: The application: awaited before `make_input`; None where that does all.
        on_admitted: Told of each session that the gate has admitted, a stored one too.
        accept: The application: awaited with a session that the gate has admitted,
            before it is joined, and never when it is resumed; None accepts all.
        enrolment: Who the client is among the enrolled; None takes part in no session
            of a profile with credentials.
        total: Of the client's data over all tasks; None for no limit but each task's.
        aggregator: The one aggregator that the settings name; None where they name
            none, and the connection says who is there.
        settings: How the client behaves.
        clock: Time; the machine's by default.
        entropy: Seeds and jitter; the operating system's by default.
        workers: Threads for blocking calls.
        on_progress: Told what the client is doing; must not block.

    Attributes:
        reach: How far the last session has come; with an error of `run_session` it
            says what to do (`secagg.client.retry_policy`).
        session_id: The session that this client was in last; b"" before and while it
            waits for one.
    """

    def __init__(  # noqa: PLR0913 - every part can be exchanged
        self,
        identity: str,
        connection: AggregatorConnection,
        store: ClientRecords,
        *,
        rules: OwnRules,
        make_input: MakeInput,
        prepare: Callable[[Preparation], Awaitable[None]] | None = None,
        on_admitted: Callable[[SessionInfo], None] = lambda _: None,
        accept: Callable[[SessionInfo], Awaitable[object]] | None = None,
        enrolment: EnrolledClient | None = None,
        total: TotalBudgetLedger | None = None,
        aggregator: str | None = None,
        settings: ClientSettings | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        workers: Workers | None = None,
        on_progress: Callable[[ClientProgress], None] | None = None,
    ) -> None:
        self._identity = identity
        self._connection = connection
        self._store = store
        self._rules = rules
        self._on_admitted = on_admitted
        self._accept = accept
        self._enrolment = enrolment
        self._total = total
        self._aggregator = aggregator
        self._settings = settings or ClientSettings()
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._workers = workers or Workers()
        self._on_progress = on_progress or (lambda _: None)
        self.reach = ErrorStage.NO_SESSION
        self._calls = ClientCalls(
            connection,
            self._clock,
            self._entropy,
            self._workers,
            watch=self._settings.watch,
            named=aggregator,
            on_unreachable=self._say_unreachable,
            tell_seconds=PATIENT_TELL_SECONDS
            if self._settings.offer_seconds is None
            else TELL_SECONDS,
        )
        self._admission = Admission(
            store=store,
            rules=rules,
            enrolment=enrolment,
            total=total,
            workers=self._workers,
            date=self._clock.date,
        )
        self._parts = ClientParts(
            calls=self._calls,
            clock=self._clock,
            workers=self._workers,
            make_input=make_input,
            settings=self._settings,
            on_progress=self._on_progress,
            prepare=prepare,
        )
        self.session_id = b""

    @property
    def trust_domain(self) -> str | None:
        """Of the aggregator, as the connection has proven it; None where it has not."""
        return self._connection.trust_domain

    @property
    def has_been_answered(self) -> bool:
        """Whether the aggregator has answered any call."""
        return self._calls.has_been_answered

    @property
    def failure(self) -> ServiceError | None:
        """Why the last call was not answered; None when it was."""
        return self._calls.failure

    async def is_in_session(self, task_id: str) -> bool:
        """Return whether a session of the task was joined and is not over.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        records = await ClientSession.open_records(
            task_id, self._identity, store=self._store
        )
        return any(not each.restored for each in records)

    async def run_session(self, task_id: str) -> SessionOutcome:
        """Take part in one session: one that was interrupted, or the next one.

        Returns:
            The session's outcome, if it released a sum.

        Raises:
            SessionAbortedError: The session ended without a sum, or without this
                client; try the next one.
            RemoteProtocolError: The server broke the protocol or this client's
                policy, or refused a message; the session is over for this client.
            LocalProtocolError: The application's input cannot be used, in a task
                without noise, or is not the one of before a restart.  The session
                goes on: call again with a good input while it lasts.
            ServiceError: Storage, certificates, or no such task; the message says
                what to do.  UNREACHABLE also when the aggregator fell silent before
                the session began, or another one answers than the session's: call
                again, and it goes on.
        """
        self.reach = ErrorStage.NO_SESSION
        self.session_id = b""
        try:
            return await self._run_session(task_id)
        finally:
            self._calls.bind(None)

    async def _run_session(self, task_id: str) -> SessionOutcome:
        session = await self._resumed(task_id)
        is_resumed = session is not None
        if session is None:
            session = await self._join(task_id)
        else:
            self._log(telemetry.SESSION_RESUMED, session, round=session.round.name)
        self.session_id = session.session_id
        conductor = Conductor(self._parts, session)
        async with self._ended(session, conductor):
            if is_resumed:
                await self._readmit(session)
            outcome = await conductor.run()
        audit = await session.scrub()
        self._log(telemetry.SESSION_COMPLETED, session)
        self._on_progress(
            ClientProgress(ClientPhase.COMPLETED, session.descriptor.session_number)
        )
        return replace(outcome, audit=audit)

    @asynccontextmanager
    async def _ended(
        self, session: ClientSession, conductor: Conductor
    ) -> AsyncIterator[None]:
        """Leave the session on an error after which it cannot go on."""
        try:
            yield
        except (RemoteProtocolError, SessionAbortedError, ServiceError) as error:
            if self._may_yet_begin(session, error):
                raise self._silent(session) from None
            if not isinstance(error, ServiceError) or error.code in _FATAL:
                await self._leave(session, error)
            raise
        finally:
            self.reach = conductor.reach
            await self._calls.hang_up()

    async def _resumed(self, task_id: str) -> ClientSession | None:
        """Return the interrupted session of the aggregator that answers (R5.0-6).

        One of another aggregator is left where no input is bound, and at its end.
        Until then it is kept: its aggregator may come back.  A client whose settings
        name the one that answers, or that was moved to another trust domain by its own
        certificate, goes on with that; any other waits, since else who can turn its
        address could end its sessions.
        """
        stored = await ClientSession.resume(
            task_id,
            self._identity,
            store=self._store,
            workers=self._workers,
            policy=self._rules.policy,
            now=self._clock.date(),
            trust_domain=self._connection.trust_domain,
            enrolment=self._enrolment,
        )
        if not stored or client.is_over(stored[0].state):
            return next(iter(stored), None)
        first, waiting = stored[0], []
        self._calls.bind(first.aggregator)
        conductor = Conductor(self._parts, first)
        met, who = "", "another peer"
        try:
            async with self._ended(first, conductor):
                met = await self._calls.meet(conductor.deadline)
            who = repr(met)
        except AnotherAggregatorError:  # than the one that the settings name
            if not all(self._is_past(session) for session in stored):
                raise
        for session in stored:
            if session.peer == self._peer_of(met):
                self._calls.bind(met)
                return session
            error = AnotherAggregatorError(session.aggregator, who)
            is_moved = session.peer != self._peer_of(session.aggregator)
            if is_moved:
                domain = self._connection.trust_domain
                error = AnotherAggregatorError(
                    session.peer, f"{who} of trust domain {domain!r}"
                )
            is_over = client.is_over(session.state) or self._is_past(session)
            if is_over or not session.has_bound:
                await self._leave(session, error)
            elif self._aggregator is None and not is_moved:
                waiting.append((session, error))
        if waiting:
            session, error = waiting[0]
            self.session_id, self.reach = session.session_id, ErrorStage.INPUT_LEFT
            raise error
        self.reach = ErrorStage.NO_SESSION
        self._calls.bind(None)
        return None

    def _peer_of(self, aggregator: str) -> str:
        return peer_of(aggregator, trust_domain=self._connection.trust_domain)

    async def _join(self, task_id: str) -> ClientSession:
        self._on_progress(ClientProgress(ClientPhase.WAITING))
        seconds = self._settings.offer_seconds
        deadline = float("inf") if seconds is None else self._clock.now() + seconds
        descriptor = await self._calls.next_offer(
            task_id, after_session=0, deadline=deadline
        )
        # Only now it is proven who numbers these sessions; no other is asked or
        # believed from here to the end of the session.
        aggregator = self._connection.aggregator
        self._calls.bind(aggregator)
        tally = await self._store.read(
            ReadTally(Role.CLIENT, task_id, peer=self._peer_of(aggregator))
        )
        if descriptor.session_number <= tally.highest_number:
            descriptor = await self._calls.next_offer(
                task_id, after_session=tally.highest_number, deadline=deadline
            )
        if descriptor.task_id != task_id:
            raise ErrorCode.BAD_CONFIG.error(
                f"the server offers a session of task {descriptor.task_id!r} "
                f"instead of {task_id!r}",
            )
        membership = await self._admitted(
            descriptor, highest_number=tally.highest_number, deadline=deadline
        )
        session = await ClientSession.begin(
            descriptor,
            self._identity,
            aggregator=aggregator,
            trust_domain=self._connection.trust_domain,
            store=self._store,
            workers=self._workers,
            policy=self._rules.policy,
            entropy=self._entropy,
            now=int(self._clock.date()),
            membership=membership,
            total=self._total,
        )
        self._log(telemetry.SESSION_OPENED, session)
        return session

    async def _admitted(
        self, offered: SessionDescriptor, *, highest_number: int, deadline: float
    ) -> Membership | None:
        """Have the gate judge an offer, with the list that it names.

        Returns:
            The client's place among the enrolled, where the profile has any.
        """
        check = partial(
            self._admission.check,
            offered,
            aggregator=self._connection.aggregator,
            trust_domain=self._connection.trust_domain,
            highest_number=highest_number,
        )
        admitted, revocations = await check(), None
        trust = offered.parameters.trust
        if admitted is Need.REVOCATIONS and trust is not None:
            # The session may end meanwhile: the next one may do.
            self.reach = ErrorStage.JOINED
            revocations = await self._fetched_list(offered, trust, deadline)
            self.reach = ErrorStage.NO_SESSION
            admitted = await check(revocations=revocations)
        if not isinstance(admitted, AdmittedSession):
            raise InternalError("the gate needs what it was given")
        self._on_admitted(admitted.info)
        if self._accept is not None:
            await self._accept(admitted.info)
        await self._admission.remember(offered, revocations)
        return admitted.membership

    async def _readmit(self, session: ClientSession) -> None:
        """Judge a session of the store again: limits may have become stricter."""
        if client.is_over(session.state):
            return  # what ended it is said where it is concluded
        admitted = await self._admission.check_again(
            session,
            aggregator=self._connection.aggregator,
            trust_domain=self._connection.trust_domain,
        )
        self._on_admitted(admitted.info)

    async def _fetched_list(
        self, offered: SessionDescriptor, trust: Trust, deadline: float
    ) -> bytes:
        # A client without an end of its own patience gives up, too: it has not joined,
        # and a list that comes after round 0 is of no use.
        patience = offered.parameters.deadlines.advertise_keys
        limit = self._clock.now() + patience + self._settings.slack_seconds
        try:
            return await self._calls.fetch(
                offered.session_id,
                Blob.REVOCATIONS,
                max_bytes=MAX_REVOCATION_BYTES,
                digest=trust.revocation_hash,
                deadline=min(deadline, limit),
            )
        except SessionAbortedError as error:
            raise ErrorCode.BAD_CREDENTIAL.error(
                f"revocation list {trust.revocation_number}, which the session goes "
                f"by, was not to be had: {error}",
                # Not DEADLINE: a server that never gives it would cost no attempt.
                kind=SessionAbortedError,
                fix="Ask the operator whether the aggregator hands out the list "
                "that it names.",
            ) from None
        except RemoteProtocolError as error:
            if error.code is not ErrorCode.PAYLOAD_MISMATCH:
                raise
            return b""  # R2.1-0: another list is as good as none

    def _may_yet_begin(self, session: ClientSession, error: SecAggError) -> bool:
        """Whether a session may yet begin whose aggregator was silent for too long.

        It counts on this client, and nothing of an input has left.
        """
        return (
            isinstance(error, SessionAbortedError)
            and error.code is ErrorCode.DEADLINE
            and session.round is Round.ADVERTISE_KEYS
            and not self._is_past(session)
        )

    def _is_past(self, session: ClientSession) -> bool:
        return self._clock.date() >= session.descriptor.session_end

    def _silent(self, session: ClientSession) -> SecAggError:
        number, why = session.descriptor.session_number, self._calls.failure
        because = "it says nothing that helps" if why is None else str(why)
        return ErrorCode.UNREACHABLE.error(
            f"the aggregator fell silent before session {number} began: {because}",
            fix="Start again when it can be reached: this client's place in the "
            "session is kept as long as that may begin.",
        )

    async def _leave(self, session: ClientSession, error: SecAggError) -> None:
        """End the session for this client and scrub it, whatever state it is in."""
        if session.round is not Round.FINISHED:
            await session.give_up(error.code, str(error))
        await session.scrub()
        self._log(telemetry.SESSION_ABORTED, session, code=error.code.name)
        self._on_progress(
            ClientProgress(
                ClientPhase.ABORTED,
                session.descriptor.session_number,
                reason=str(error),
            )
        )

    def _say_unreachable(self, error: ServiceError) -> None:
        reason = f"{error}. {error.next_step}"
        telemetry.log_event(
            _LOG, logging.INFO, telemetry.AGGREGATOR_UNREACHABLE, reason=reason
        )
        self._on_progress(ClientProgress(ClientPhase.UNREACHABLE, reason=reason))

    def _log(self, name: str, session: ClientSession, **facts: str) -> None:
        telemetry.log_event(
            _LOG, logging.INFO, name, session=session.session_id.hex()[:16], **facts
        )
