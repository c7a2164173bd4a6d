"""One client's part in one session, from the first message to the outcome.

Rule 1: a message that comes too late is not an error of its own: the server's next
        update says what became of the session.
Rule 2: the payload is compared with the hash that the session is bound to before the
        client joins and before the application sees it.
Rule 3: every round has a deadline of the client's own, twice the session's and some
        slack, because a restarted aggregator gives a round its whole time again.  Round
        0 lasts until enough clients have joined.  There every answer restarts the
        client's deadline, which is as long as the one for an offer: only a silent
        aggregator ends the wait.  The client then keeps its place: a session in round 0
        counts on those who have joined, and a client that calls again resumes it.
        The end of the session is the last deadline of all rounds.  After it nothing is
        said in the session but an answer that is durable already (R5-7), and the slack
        is for hearing how the session has ended.
Rule 4: in a task with noise the input leaves whatever becomes of the vector (R3.5-5).
        With `answer_at` the vector is due then, and encoding, masks and upload begin
        then, for a vector as for zeros.  Without it an input leaves when it is ready,
        and zeros take its place before the round is over.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from math import inf
from typing import Any, Final, TypeVar

import numpy as np

from secagg.client.calls import ClientCalls, repeated
from secagg.client.contribution import SessionOutcome, check_size_of_sum
from secagg.client.durable_client import DurableClient, ReportNeededError
from secagg.client.gate import Need, SessionInfo
from secagg.client.open_client import (
    HEARING_SECONDS,
    ClientStep,
    GivenVector,
    OpenClient,
    StoredPart,
)
from secagg.client.retry_policy import ErrorStage
from secagg.errors import ErrorCode, RemoteProtocolError, SessionAbortedError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import (
    KINDS,
    Bundles,
    Consistency,
    Edges,
    Envelope,
    Message,
    Released,
    Roster,
    Round,
    Shares,
    Upload,
    is_neighbourhood,
)
from secagg.protocol.rounds import DUE_PART, seconds_until_next
from secagg.runtime.clock import Clock
from secagg.runtime.workers import Workers
from secagg.wire.calls import Blob, GetUploadStatus, Wait, carrier_of, message_sizes

# The client holds a payload in memory: a model of 2^28 float32, and no more unless its
# owner says so.
DEFAULT_MAX_PAYLOAD_BYTES: Final = 1 << 30

# The server says that a message came too late; its next update says what that means.
TOO_LATE: Final = frozenset(
    {ErrorCode.DEADLINE, ErrorCode.SESSION_OVER, ErrorCode.UNEXPECTED_MESSAGE}
)

_Answer = TypeVar("_Answer")
# A message with an upload: its kind, the name of the upload, the packed vector.
_NAME_BYTES: Final = 1 + len(Upload(0, bytes(32), bytes(32)).encode())


@dataclass(frozen=True, slots=True)
class Preparation:
    """What the application's vector is made of, and until when.

    Attributes:
        session: The session, with its payload.
        clock: Time.
        due: Instant of the clock at which the vector is due; infinite in a task
            without noise.
    """

    session: SessionInfo
    clock: Clock
    due: float


# Returns the vector of a session, or why it is missing.
Prepare = Callable[[Preparation], Awaitable[object]]


@unique
class ClientPhase(StrEnum):
    """What a client is doing."""

    WAITING = "waiting for a session"
    UNREACHABLE = "cannot reach the aggregator"
    JOINING = "joining"
    CHOOSING = "choosing neighbours"
    SHARING = "sharing keys"
    PREPARING = "preparing the input"
    UPLOADING = "uploading"
    UPLOADED = "waiting for the others"
    AGREEING = "agreeing on who is in the sum"
    UNMASKING = "helping to unmask"
    COMPLETED = "completed"
    ABORTED = "aborted"


_PHASE_OF: Final[Mapping[type[Message], ClientPhase]] = {
    Edges: ClientPhase.CHOOSING,
    Bundles: ClientPhase.SHARING,
    Consistency: ClientPhase.AGREEING,
    Shares: ClientPhase.UNMASKING,
}


@dataclass(frozen=True, slots=True)
class ClientProgress:
    """A client at one moment.

    Attributes:
        phase: What it is doing.
        session_number: Number of the session; 0 while waiting for one.
        sent_bytes: Bytes of the upload that have arrived.
        total_bytes: Bytes of the whole upload.
        reason: Why the session was aborted, or the aggregator is out of reach, in
            words.
        joined: While joining, how many clients have joined; 0 before that is known.
        needed: How many the session needs before it can continue; 0 with `joined`.
    """

    phase: ClientPhase
    session_number: int = 0
    sent_bytes: int = 0
    total_bytes: int = 0
    reason: str = ""
    joined: int = 0
    needed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How a client behaves; its limits are in `secagg.protocol.policy`.

    Attributes:
        fetch_sum: Fetch the released sum at the end.
        watch: Wait on streams where possible; False polls.
        offer_seconds: How long to wait for a session to be offered, and then at least
            for one that has not begun and whose aggregator is silent; None for ever.
        max_payload_bytes: Largest payload that is fetched.
        slack_seconds: What the client adds to every deadline of the session, for
            links, clocks and a restart of the aggregator.
        answer_at: In tasks with noise, when the input is encoded and leaves: as part of
            the duration of MaskedInputCollection, in (0, 1), counted from its
            beginning.  None as soon as it is ready, or when the vector is due.
        skips_unselected: Whether the application is asked only where a secret selection
            takes the vector.
    """

    fetch_sum: bool = True
    watch: bool = True
    offer_seconds: float | None = None
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES
    slack_seconds: float = HEARING_SECONDS
    answer_at: float | None = None
    skips_unselected: bool = False


@dataclass(frozen=True, slots=True)
class ClientParts:
    """What all sessions of one client share."""

    state: DurableClient
    calls: ClientCalls
    clock: Clock
    workers: Workers
    prepare: Prepare
    settings: SessionSettings
    on_progress: Callable[[ClientProgress], None]

    async def call(
        self, work: Callable[[OpenClient], Coroutine[Any, Any, _Answer]]
    ) -> _Answer:
        """Make one call of the client's state, on a thread."""
        return await call_state(self.state, work, self.workers)


async def call_state(
    state: DurableClient,
    work: Callable[[OpenClient], Coroutine[Any, Any, _Answer]],
    workers: Workers,
) -> _Answer:
    """Make one call of a client's state, on a thread.

    It comes to its end also where the caller goes away.

    Raises:
        SecAggError: As `DurableClient.call`.
    """
    while isinstance(
        found := await workers.run(state.attempt, work), ReportNeededError
    ):
        await workers.compute(found.compute)
    return found


class SessionDriver:
    """Conducts one session; make one object per session and process.

    Args:
        parts: What all sessions of the client share.
        offered: The session.
        stored: What the store says of it; None for one that is not joined yet.

    Attributes:
        reach: How far the session has come.
        round: The last round that this client has entered.
    """

    def __init__(
        self,
        parts: ClientParts,
        offered: SessionDescriptor,
        stored: StoredPart | None = None,
    ) -> None:
        self._parts = parts
        self._offered = offered
        self._payload: bytes | None = None
        self._stored_bytes = 0  # of the upload, as the server has said
        # What was uploaded, until the set of survivors is known: a server that has
        # lost it asks for the same bytes.
        self._sent: bytes | None = None
        self._view = b""
        self._entered = self._deadline = 0.0
        self._refusal: RemoteProtocolError | None = None
        self._sizes = message_sizes(offered.parameters)
        self._wait = Wait(0.0)
        self._has_bound = stored is not None and stored.has_bound
        self.round = Round.ADVERTISE_KEYS if stored is None else stored.round
        self.reach = ErrorStage.NO_SESSION
        if stored is not None:
            self._joined()
        self._enter_round()

    @property
    def deadline(self) -> float:
        """Until when the aggregator may be silent, on the client's clock."""
        return self._deadline

    async def run(self, revocations: bytes | None = None) -> SessionOutcome:
        """Take the session to its end.

        Args:
            revocations: Bytes of the revocation list that the offer names.

        Returns:
            Its outcome, if it released a sum.

        Raises:
            SecAggError: Whatever ended it; the caller leaves the session.
        """
        done = await self._take_step(revocations=revocations)
        self._joined()
        if self.round is Round.ADVERTISE_KEYS:
            self._report_progress(ClientPhase.JOINING)
            await self._load_payload()
        await self._execute_step(done)
        while True:
            update = await self._parts.calls.next_update(
                self._offered.session_id,
                after=self.round,
                sizes=self._sizes,
                deadline=self._deadline,
                on_wait=self._wait_on,
                on_return=self._upload_again,
            )
            if is_neighbourhood(update) and self._parts.state.cohort.whole_roster:
                update = await self._whole_roster()
            done = await self._apply_update(update)
            self._enter_round()
            if done.is_over:
                return await self._conclude(update)
            await self._execute_step(done)

    def _joined(self) -> None:
        self.reach = ErrorStage.INPUT_LEFT if self._has_bound else ErrorStage.JOINED

    async def _take_step(
        self,
        update: Envelope | None = None,
        given: GivenVector | None = None,
        revocations: bytes | None = None,
    ) -> ClientStep:
        """Take one step of the session."""
        done = await self._parts.call(
            lambda client: client.step(
                self._offered, update, given, revocations=revocations, concludes=False
            )
        )
        if done.round is not None:
            self.round = done.round
        return done

    async def _whole_roster(self) -> Envelope:
        """Read the adverts of all clients in place of the neighbours'.

        Whether it is the roster of the others shows as with any: by its context.
        """
        data = await self._parts.calls.fetch(
            self._offered.session_id,
            Blob.ROSTER,
            max_bytes=self._sizes.roster,
            digest=None,
            deadline=self._deadline,
        )
        return Envelope(Roster, data)

    async def _apply_update(self, update: Envelope) -> ClientStep:
        """Apply an update; one of an earlier round must change nothing."""
        is_old = self.round >= update.kind.ROUND
        try:
            done = await self._take_step(update)
        except (RemoteProtocolError, SessionAbortedError):
            if self._refusal is not None:
                raise self._refusal from None
            raise
        if self.round > Round.MASKED_INPUT_COLLECTION:
            self._sent = None
        if is_old and not done.is_over:
            # The same as before.  Another one is worse, and named so (R5.4-5).
            raise repeated(update.kind)
        return done

    async def _execute_step(self, done: ClientStep) -> None:
        """Send what a step says, and give it the vector that it needs."""
        for message in done.messages:
            kind = KINDS[message[0]]
            if kind is Upload:
                await self._resume_upload(message)
            else:
                await self._send_unless_late(
                    self._send_message(Envelope(kind, message[1:]))
                )
        if Need.VECTOR in done.needs:
            self._view = done.view
            await self._supply_input(done)

    async def _send_unless_late(self, saying: Awaitable[object]) -> None:
        """Say something that may be too late."""
        try:
            await saying
        except RemoteProtocolError as error:
            if error.code is ErrorCode.ROSTER_TOO_LARGE:
                # Other clients were faster.  No party is at fault.
                raise error.code.error(
                    str(error),
                    kind=SessionAbortedError,
                    fix=error.next_step,
                    at_command=error.at_command,
                ) from None
            if error.code not in TOO_LATE:
                self._hold_refusal(error)

    async def _send_message(self, envelope: Envelope) -> None:
        """Send a message of the session, and report its phase."""
        phase = _PHASE_OF.get(envelope.kind)
        if phase is not None:
            self._report_progress(phase)
        request = carrier_of(self._offered.session_id, envelope)
        await self._send_live(lambda until: self._parts.calls.send(request, until))

    @property
    def _is_past(self) -> bool:
        """Whether the session has ended for this client by its own end (R5-7)."""
        has_answered = self.round >= Round.UNMASKING
        return (
            not has_answered and self._parts.clock.date() >= self._offered.session_end
        )

    async def _send_live(
        self, saying: Callable[[float], Awaitable[_Answer]]
    ) -> _Answer | None:
        """Say something while the session lasts; then only its ending is awaited.

        Returns:
            The answer; None when the session has ended before there was one.
        """
        clock, until = self._parts.clock, self._deadline
        if self.round < Round.UNMASKING:
            left = self._offered.session_end - clock.date()
            if left <= 0:
                return None
            until = min(until, clock.now() + left)
        try:
            return await saying(until)
        except SessionAbortedError as error:
            if error.code is not ErrorCode.DEADLINE or not self._is_past:
                raise
            return None

    async def _supply_input(self, done: ClientStep) -> None:
        """Ask the application for its input and upload it, unless that is done."""
        # Before anything is bound: a client that is odd is told so, and not charged.
        if await self._is_uploaded():
            return
        self._report_progress(ClientPhase.PREPARING)
        settings, due = self._parts.settings, self._vector_due_at()
        given = await self._request_vector(done, due)
        if settings.answer_at is not None and due != inf:
            await self._parts.clock.sleep_until(due)
        if self._is_past:
            return
        masked = await self._take_step(given=given)
        if not masked.messages:  # its end came while it waited for a thread (R5-7)
            return
        self._has_bound = True
        await self._upload_vector(masked.messages[-1])

    async def _request_vector(self, done: ClientStep, due: float) -> GivenVector:
        """Return the vector that the application makes, or what stands for it."""
        payload, info = await self._load_payload(), done.session
        if info is None:
            raise ErrorCode.INTERNAL.error("a session that needs a vector was admitted")
        offered, skips = self._offered, self._parts.settings.skips_unselected
        is_spared = skips and bool(offered.parameters.noise_block)
        if is_spared and not await self._parts.call(lambda c: c.is_selected(offered)):
            vector: object = np.zeros(info.dimension)
        else:
            session = replace(info, payload=payload)
            vector = await self._parts.prepare(
                Preparation(session, self._parts.clock, due)
            )
        # Fetched by its hash, which was compared.
        return GivenVector(vector, offered.payload_hash, reveals_selection=is_spared)

    def _vector_due_at(self) -> float:
        """Return the instant at which the vector is due (R3.5-5)."""
        parameters = self._offered.parameters
        if not parameters.noise_block:
            return inf
        part = self._parts.settings.answer_at
        seconds = parameters.deadlines.masked_input
        return self._entered + (DUE_PART if part is None else part) * seconds

    async def _is_uploaded(self) -> bool:
        """Whether the upload is finished, or none is taken any more.

        Raises:
            RemoteProtocolError: VIEW_DIFFERS, and no input is bound.
        """
        asking = GetUploadStatus(self._offered.session_id, self._view)
        try:
            status = await self._send_live(
                lambda until: self._parts.calls.send(asking, until)
            )
        except RemoteProtocolError as error:
            if error.code not in TOO_LATE:
                self._hold_refusal(error)
            return True
        if status is None:  # R5-7
            return True
        self._stored_bytes = status.next_offset
        return status.complete

    async def _upload_again(self) -> None:
        """Upload once more what a server that was out of reach has lost."""
        is_collecting = self.round is Round.MASKED_INPUT_COLLECTION
        if not (is_collecting and self._has_bound) or await self._is_uploaded():
            return
        if self._sent is not None:
            await self._send_unless_late(self._send_upload(self._sent))
            return
        # An earlier process has uploaded it.  The server gives the round its whole
        # time again: late by the time of before, the vector would be replaced and the
        # zeros refused.
        self._entered = self._parts.clock.now()
        await self._execute_step(await self._take_step())

    def _hold_refusal(self, error: RemoteProtocolError) -> None:
        """Hold the refusal of a bound input until its session ends.

        The refusal settles no charge (R5.6-3): what the ending says does.

        Raises:
            RemoteProtocolError: No input is bound, or it is another refusal.
        """
        if error.code is not ErrorCode.VIEW_DIFFERS or not self._has_bound:
            raise error
        self._refusal = error

    async def _resume_upload(self, message: bytes) -> None:
        """Upload what was masked before, unless that is done."""
        self._view = Upload.decode(message[1:_NAME_BYTES]).view
        if not await self._is_uploaded():
            await self._upload_vector(message)

    async def _upload_vector(self, message: bytes) -> None:
        """Send a masked vector, unless the session is over."""
        self._sent, self.reach = message, ErrorStage.INPUT_LEFT
        await self._send_unless_late(self._send_upload(message))

    async def _send_upload(self, message: bytes) -> None:
        """Upload the masked vector from where the server has it."""
        named = Upload.decode(message[1:_NAME_BYTES])
        await self._send_live(
            lambda until: self._parts.calls.upload(
                self._offered.session_id,
                memoryview(message)[_NAME_BYTES:],
                digest=named.digest,
                view=named.view,
                offset=self._stored_bytes,
                deadline=until,
                on_chunk=lambda sent: self._report_progress(
                    ClientPhase.UPLOADING, sent_bytes=sent, total_bytes=named.size
                ),
            )
        )
        self._report_progress(
            ClientPhase.UPLOADED, sent_bytes=named.size, total_bytes=named.size
        )

    async def _load_payload(self) -> bytes:
        """Return the payload of the session, fetched once."""
        if self._payload is None:
            digest = self._offered.payload_hash
            self._payload = b""
            if digest:
                self._payload = await self._parts.calls.fetch(
                    self._offered.session_id,
                    Blob.PAYLOAD,
                    max_bytes=self._parts.settings.max_payload_bytes,
                    digest=digest,
                    deadline=self._deadline,
                )
        return self._payload

    async def _conclude(self, update: Envelope) -> SessionOutcome:
        """Fetch the sum where it is wanted, and conclude the session."""
        offered, packed = self._offered, None
        if self._parts.settings.fetch_sum:
            released = Released.decode(update.data)
            packed = await self._parts.calls.fetch(
                offered.session_id,
                Blob.SUM,
                max_bytes=check_size_of_sum(released, offered.parameters),
                digest=released.sum_hash,
                deadline=self._deadline,
            )
        return await self._parts.call(lambda client: client.conclude(offered, packed))

    def _enter_round(self) -> None:
        """Set the deadline of the round that has begun."""
        parameters = self._offered.parameters
        seconds = 2.0 * seconds_until_next(self.round, parameters.deadlines)
        settings, clock = self._parts.settings, self._parts.clock
        if self.round is Round.ADVERTISE_KEYS:
            offer_seconds = settings.offer_seconds
            seconds = max(seconds, inf if offer_seconds is None else offer_seconds)
        if self.round < Round.UNMASKING:  # else a sum may be under way
            # Nothing that this client still has to say is taken later.
            seconds = min(seconds, self._offered.session_end - clock.date())
        self._entered = clock.now()
        self._deadline = clock.now() + seconds + settings.slack_seconds

    def _wait_on(self, wait: Wait) -> float:
        """Note that the round continues; return the deadline of its update."""
        if self.round is Round.ADVERTISE_KEYS:
            self._enter_round()
            if (wait.joined, wait.needed) != (self._wait.joined, self._wait.needed):
                self._parts.on_progress(
                    ClientProgress(
                        ClientPhase.JOINING,
                        self._offered.session_number,
                        joined=wait.joined,
                        needed=wait.needed,
                    )
                )
            self._wait = wait
        return self._deadline

    def _report_progress(
        self, phase: ClientPhase, *, sent_bytes: int = 0, total_bytes: int = 0
    ) -> None:
        """Report the phase of the session."""
        number = self._offered.session_number
        self._parts.on_progress(ClientProgress(phase, number, sent_bytes, total_bytes))
