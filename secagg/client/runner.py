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
from typing import Final

from secagg.client.budget import peer_of
from secagg.client.calls import (
    TELL_SECONDS,
    UNLIMITED_TELL_SECONDS,
    AnotherAggregatorError,
    ClientCalls,
)
from secagg.client.contribution import SessionOutcome
from secagg.client.durable_client import DurableClient
from secagg.client.gate import Need, SessionInfo
from secagg.client.open_client import OpenClient, StoredPart
from secagg.client.retry_policy import ErrorStage
from secagg.client.session_driver import (
    ClientParts,
    ClientPhase,
    ClientProgress,
    Prepare,
    SessionDriver,
    SessionSettings,
)
from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import MAX_REVOCATION_BYTES
from secagg.protocol.messages import Round
from secagg.protocol.profiles import Trust
from secagg.runtime import log_events as telemetry
from secagg.runtime.clock import Clock, SystemClock
from secagg.runtime.workers import Workers, guarded_callback
from secagg.transport.connection import AggregatorConnection
from secagg.wire.calls import Blob

_LOG: Final = logging.getLogger(telemetry.CLIENT_LOGGER)

# Errors of a call after which this client's session cannot continue.
_FATAL: Final = frozenset({ErrorCode.UNKNOWN_SESSION, ErrorCode.UPLOAD_CORRUPT})


class ClientRunner:
    """Carries the sessions of one client between its state and one aggregator.

    Args:
        state: Of the client, open; closed by its owner.
        connection: The way to the aggregator.
        prepare: The application: awaited for the vector of a session, which has to be
            the same one after a restart.
        accept: The application: awaited with a session that the gate has admitted,
            before it is joined, and never when it is resumed; None accepts all.
        aggregator: The one aggregator that the settings name; None where they name
            none, and the connection says who is there.
        settings: How the client behaves.
        clock: Time; the machine's by default.
        entropy: Jitter; the operating system's by default.
        workers: Threads for blocking calls.
        on_progress: Told what the client is doing; must not block.  What it raises is
            reported, and ends nothing.

    Attributes:
        reach: How far the last session has come; with an error of `run_session` it
            says what to do (`secagg.client.retry_policy`).
        session_id: The session that this client was in last; b"" before and while it
            waits for one.
    """

    def __init__(  # noqa: PLR0913 - every part can be exchanged
        self,
        state: DurableClient,
        connection: AggregatorConnection,
        *,
        prepare: Prepare,
        accept: Callable[[SessionInfo], Awaitable[object]] | None = None,
        aggregator: str | None = None,
        settings: SessionSettings | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        workers: Workers | None = None,
        on_progress: Callable[[ClientProgress], None] | None = None,
    ) -> None:
        self._connection = connection
        self._accept = accept
        self._aggregator = aggregator
        self._settings = settings or SessionSettings()
        self._clock = clock or SystemClock()
        self._on_progress = guarded_callback(on_progress)
        self.reach = ErrorStage.NO_SESSION
        workers = workers or Workers()
        self._calls = ClientCalls(
            connection,
            self._clock,
            entropy or SystemEntropy(),
            workers,
            watch=self._settings.watch,
            named=aggregator,
            on_unreachable=self._report_unreachable,
            tell_seconds=UNLIMITED_TELL_SECONDS
            if self._settings.offer_seconds is None
            else TELL_SECONDS,
        )
        self._parts = ClientParts(
            state=state,
            calls=self._calls,
            clock=self._clock,
            workers=workers,
            prepare=prepare,
            settings=self._settings,
            on_progress=self._on_progress,
        )
        self._ask = self._parts.call
        self.session_id = b""

    @property
    def has_been_answered(self) -> bool:
        """Whether the aggregator has answered any call."""
        return self._calls.has_been_answered

    @property
    def failure(self) -> ServiceError | None:
        """Why the last call was not answered; None when it was."""
        return self._calls.failure

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
                continues: call again with a good input while it lasts.
            ServiceError: Storage, certificates, or no such task; the message says
                what to do.  UNREACHABLE also when the aggregator fell silent before
                the session began, or another one answers than the session's: call
                again, and it resumes.
        """
        self.reach = ErrorStage.NO_SESSION
        self.session_id = b""
        try:
            return await self._run_session(task_id)
        finally:
            self._calls.bind(None)

    async def _run_session(self, task_id: str) -> SessionOutcome:
        """Resume a session or begin one, and drive it to its end."""
        revocations, stored = None, await self._find_interrupted(task_id)
        if stored is not None:
            offered = stored.offer
            self._log_session(
                telemetry.SESSION_RESUMED, offered, round=stored.round.name
            )
        else:
            offered, revocations = await self._wait_for_offer(task_id)
        self.session_id = offered.session_id
        conductor = SessionDriver(self._parts, offered, stored)
        async with self._ending_on_error(offered, conductor):
            self._calls.check_transport(offered)
            outcome = await conductor.run(revocations)
        self._on_progress(ClientProgress(ClientPhase.COMPLETED, offered.session_number))
        return outcome

    @asynccontextmanager
    async def _ending_on_error(
        self, offered: SessionDescriptor, conductor: SessionDriver
    ) -> AsyncIterator[None]:
        """Leave the session on an error after which it cannot continue."""
        try:
            yield
        except (RemoteProtocolError, SessionAbortedError, ServiceError) as error:
            if self._may_still_start(offered, conductor, error):
                raise self._silent_error(offered) from None
            if not isinstance(error, ServiceError) or error.code in _FATAL:
                await self._end_session(offered, error)
            raise
        finally:
            self.reach = conductor.reach
            await self._calls.close_stream()

    async def _find_interrupted(self, task_id: str) -> StoredPart | None:
        """Return the interrupted session of the aggregator that answers (R5.0-6).

        One of another aggregator is left where no input is bound, and at its end.
        Until then it is kept: its aggregator may come back.  A client whose settings
        name the one that answers, or that was moved to another trust domain by its own
        certificate, continues with that; any other waits, since else who can turn its
        address could end its sessions.
        """
        self.reach = ErrorStage.JOINED
        stored = await self._ask(lambda client: client.unfinished_sessions(task_id))
        self.reach = ErrorStage.NO_SESSION
        if not stored:
            return None
        first, waiting = stored[0].offer, []
        self._calls.bind(first.aggregator)
        conductor = SessionDriver(self._parts, first, stored[0])
        met, who = "", "another peer"
        try:
            async with self._ending_on_error(first, conductor):
                met = await self._calls.probe(conductor.deadline)
            who = repr(met)
        except AnotherAggregatorError:  # than the one that the settings name
            if not all(self._is_past(part.offer) for part in stored):
                raise
        for part in stored:
            if part.peer == self._peer_of(met):
                await self._bind(met)
                return part
            bound = part.offer.aggregator
            error = AnotherAggregatorError(bound, who)
            is_moved = part.peer != self._peer_of(bound)
            if is_moved:
                domain = self._connection.trust_domain
                error = AnotherAggregatorError(
                    part.peer, f"{who} of trust domain {domain!r}"
                )
            if self._is_past(part.offer) or not part.has_bound:
                await self._end_session(part.offer, error)
            elif self._aggregator is None and not is_moved:
                waiting.append((part, error))
        if waiting:
            part, error = waiting[0]
            self.session_id, self.reach = part.offer.session_id, ErrorStage.INPUT_LEFT
            raise error
        self.reach = ErrorStage.NO_SESSION
        self._calls.bind(None)
        return None

    def _peer_of(self, aggregator: str) -> str:
        return peer_of(aggregator, trust_domain=self._connection.trust_domain)

    async def _bind(self, aggregator: str) -> None:
        """Ask and believe one aggregator from here to the end of the session."""
        self._calls.bind(aggregator)
        domain = self._connection.trust_domain

        async def bind(client: OpenClient) -> None:
            client.bind_to(aggregator, domain)

        await self._ask(bind)

    async def _wait_for_offer(
        self, task_id: str
    ) -> tuple[SessionDescriptor, bytes | None]:
        """Wait for a session that gate and application admit.

        Returns:
            The session, and the revocation list that it names where it was fetched.
        """
        self._on_progress(ClientProgress(ClientPhase.WAITING))
        seconds = self._settings.offer_seconds
        deadline = float("inf") if seconds is None else self._clock.now() + seconds
        offered = await self._calls.next_offer(
            task_id, after_session=0, deadline=deadline
        )
        # Only now it is proven who numbers these sessions; no other is asked or
        # believed from here to the end of the session.
        await self._bind(self._connection.aggregator)
        highest = await self._ask(lambda client: client.highest_number(task_id))
        if offered.session_number <= highest:
            offered = await self._calls.next_offer(
                task_id, after_session=highest, deadline=deadline
            )
        if offered.task_id != task_id:
            raise ErrorCode.BAD_CONFIG.error(
                f"the server offers a session of task {offered.task_id!r} "
                f"instead of {task_id!r}"
            )
        return offered, await self._admitted(offered, deadline)

    async def _admitted(
        self, offered: SessionDescriptor, deadline: float
    ) -> bytes | None:
        """Have gate and application check an offer; return the list that it names."""
        revocations = None
        found = await self._ask(lambda client: client.check(offered))
        trust = offered.parameters.trust
        if found is Need.REVOCATIONS and trust is not None:
            # The session may end meanwhile: the next one may do.
            self.reach = ErrorStage.JOINED
            revocations = await self._fetched_list(offered, trust, deadline)
            self.reach = ErrorStage.NO_SESSION
            found = await self._ask(lambda client: client.check(offered, revocations))
        if isinstance(found, Need):
            raise ErrorCode.INTERNAL.error("the gate needs what it was given")
        if self._accept is not None:
            await self._accept(found)
        return revocations

    async def _fetched_list(
        self, offered: SessionDescriptor, trust: Trust, deadline: float
    ) -> bytes:
        """Fetch the revocation list that an offer names."""
        # A client that waits without a limit stops waiting, too: it has not joined,
        # and a list that comes after round 0 is of no use.
        seconds = offered.parameters.deadlines.advertise_keys
        limit = self._clock.now() + seconds + self._settings.slack_seconds
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

    def _may_still_start(
        self, offered: SessionDescriptor, conductor: SessionDriver, error: SecAggError
    ) -> bool:
        """Whether a session may yet begin whose aggregator was silent for too long.

        It counts on this client, and nothing of an input has left.
        """
        return (
            isinstance(error, SessionAbortedError)
            and error.code is ErrorCode.DEADLINE
            and conductor.round is Round.ADVERTISE_KEYS
            and not self._is_past(offered)
        )

    def _is_past(self, offered: SessionDescriptor) -> bool:
        return self._clock.date() >= offered.session_end

    def _silent_error(self, offered: SessionDescriptor) -> SecAggError:
        """Return the error for an aggregator that stopped answering."""
        number, why = offered.session_number, self._calls.failure
        because = "it says nothing that helps" if why is None else str(why)
        return ErrorCode.UNREACHABLE.error(
            f"the aggregator fell silent before session {number} began: {because}",
            fix="Start again when it can be reached: this client's place in the "
            "session is kept as long as that may begin.",
        )

    async def _end_session(
        self,
        offered: SessionDescriptor,
        error: RemoteProtocolError | SessionAbortedError | ServiceError,
    ) -> None:
        """End the session for this client, and erase it, wherever it stands."""
        if not await self._ask(lambda client: client.leave(offered, error)):
            return  # it was never joined
        self._on_progress(
            ClientProgress(
                ClientPhase.ABORTED, offered.session_number, reason=str(error)
            )
        )

    def _report_unreachable(self, error: ServiceError) -> None:
        """Report and log that the aggregator cannot be reached."""
        reason = f"{error}. {error.next_step}"
        telemetry.log_event(
            _LOG, logging.INFO, telemetry.AGGREGATOR_UNREACHABLE, reason=reason
        )
        self._on_progress(ClientProgress(ClientPhase.UNREACHABLE, reason=reason))

    def _log_session(self, name: str, offered: SessionDescriptor, **facts: str) -> None:
        """Log one event of a session."""
        telemetry.log_event(
            _LOG, logging.INFO, name, session=offered.session_id.hex()[:16], **facts
        )
