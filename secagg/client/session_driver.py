"""One client's part in one session, from the first message to the outcome.

Rule 1: a message that comes too late is not an error of its own: the server's next
        update says what became of the session.
Rule 2: the payload is compared with the hash that the session is bound to before the
        client joins and before the application sees it.
Rule 3: every round has a deadline of the client's own, twice the session's and some
        slack, because a restarted aggregator gives a round its whole time again.  Round
        0 lasts until enough clients have come: there every answer begins the client's
        deadline anew, so that only a silent aggregator ends its patience, and that is
        as long as the one for an offer.  It ends the client's wait and not its place: a
        session in round 0 counts on those who have joined, and whoever calls again goes
        on with it.  The end of the session is the last deadline of all rounds: from
        then on nothing is said in it but an answer that is durable already (R5-7), and
        the slack behind it is for hearing what became of the session.
Rule 4: in a task with noise the input leaves whatever becomes of the vector (R3.5-5).
        With `answer_at` the vector is due then, and encoding, masks and upload begin
        then, for a vector as for zeros.  Without it an input leaves when it is ready,
        and zeros take its place before the round is over.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, unique
from hashlib import sha256
from math import inf
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from secagg.client.calls import ClientCalls, repeated
from secagg.client.contribution import check_size_of_sum, read_residues
from secagg.client.retry_policy import ErrorStage
from secagg.client.session import ClientSession
from secagg.crypto.transcript import ClientBitmap
from secagg.errors import (
    ErrorCode,
    InternalError,
    RemoteProtocolError,
    SessionAbortedError,
)
from secagg.protocol.client import machine as client
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import (
    ClientOutput,
    Finish,
    InputReady,
    MaskAndUpload,
    NoisyVector,
    PlainVector,
    Received,
    Send,
)
from secagg.protocol.graphs.ring_safety import is_worst_case_safe
from secagg.protocol.masking import mask_input
from secagg.protocol.messages import (
    Aborted,
    Bundles,
    Consistency,
    Edges,
    Envelope,
    Message,
    Released,
    Roster,
    Round,
    Shares,
    is_neighbourhood,
)
from secagg.protocol.noise_terms import NoiseSecrets
from secagg.protocol.packing import pack
from secagg.protocol.profiles import RoundDeadlines
from secagg.protocol.rounds import ROUNDS
from secagg.runtime.clock import Clock
from secagg.runtime.workers import Workers
from secagg.wire.calls import Blob, GetUploadStatus, Wait, carrier_of
from secagg.wire.limits import message_sizes

# As part of the round, when a vector is due where the owner has set no time.  Uploads
# that have begun move the end of the round, so that the rest need not hold all of one.
_DUE_AT: Final = 0.7
# The client holds a payload in memory: a model of 2^28 float32, and no more unless its
# owner says so.
DEFAULT_MAX_PAYLOAD_BYTES: Final = 1 << 30

# The server says that a message came too late; its next update says what that means.
TOO_LATE: Final = frozenset(
    {ErrorCode.DEADLINE, ErrorCode.SESSION_OVER, ErrorCode.UNEXPECTED_MESSAGE}
)

_Answer = TypeVar("_Answer")

# (descriptor, payload, what to draw noise from) -> input of the session
MakeInput = Callable[
    [SessionDescriptor, bytes, NoiseSecrets], PlainVector | NoisyVector
]


@dataclass(frozen=True, slots=True)
class Preparation:
    """What the application's vector is made of, and until when.

    Attributes:
        descriptor: The session.
        payload: What it hands out.
        secrets: What the noise is drawn from.
        bound: Digest of the input that was bound before a restart, or b"".
        clock: Time.
        due: Instant of the clock at which the vector is due; infinite in a task
            without noise.
    """

    descriptor: SessionDescriptor
    payload: bytes = field(repr=False)
    secrets: NoiseSecrets = field(repr=False)
    bound: bytes
    clock: Clock
    due: float


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
        needed: How many the session needs before it can go on; 0 with `joined`.
    """

    phase: ClientPhase
    session_number: int = 0
    sent_bytes: int = 0
    total_bytes: int = 0
    reason: str = ""
    joined: int = 0
    needed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How a client behaves; its floors are in `secagg.protocol.policy`.

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
    """

    fetch_sum: bool = True
    watch: bool = True
    offer_seconds: float | None = None
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES
    slack_seconds: float = 30.0
    answer_at: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SessionOutcome:
    """A session that released a sum.

    Attributes:
        descriptor: The session.
        released: Hash and size of the sum, number of survivors.
        is_certain: No choice of colluders could have had more than this one sum
            unmasked.  Always so on the complete graph; on a ring it is judged by this
            process when it answers, and not known after a restart.
        residues: The sum modulo m, words of the modulus, shape (d,), entries in
            [0, m); None when it was not wanted.
        audit: This client's receipt (`secagg.protocol.receipts`); empty before the
            session is scrubbed.
    """

    descriptor: SessionDescriptor
    released: Released
    is_certain: bool
    residues: npt.NDArray[np.unsignedinteger[Any]] | None = field(repr=False)
    audit: bytes = field(default=b"", repr=False)

    @property
    def survivors(self) -> int:
        """How many inputs the sum adds up."""
        return self.released.survivors


@dataclass(frozen=True, slots=True)
class ClientParts:
    """What all sessions of one client share."""

    calls: ClientCalls
    clock: Clock
    workers: Workers
    make_input: MakeInput
    settings: ClientSettings
    on_progress: Callable[[ClientProgress], None]
    prepare: Callable[[Preparation], Awaitable[None]] | None = None


class Conductor:
    """Conducts one session; make one object per session and process.

    Args:
        parts: What all sessions of the client share.
        session: The session, fresh or resumed.

    Attributes:
        reach: How far the session has come.
    """

    def __init__(self, parts: ClientParts, session: ClientSession) -> None:
        self._parts = parts
        self._session = session
        self._payload: bytes | None = None
        self._uploaded = False
        self._stored_bytes = 0  # of the upload, as the server has said
        # What was uploaded and its digest, until the set of survivors is known: a
        # server that has lost it asks for the same bytes.
        self._sent: tuple[bytes, bytes] | None = None
        self._entered = self._deadline = 0.0
        self._ended_by_server = False
        self._refusal: RemoteProtocolError | None = None
        self._sizes = message_sizes(session.descriptor.parameters)
        self._is_certain = session.descriptor.parameters.is_complete_graph
        self._heard = Wait(0.0)
        self.reach = ErrorStage.INPUT_LEFT if session.has_bound else ErrorStage.JOINED
        self._enter_round()

    @property
    def deadline(self) -> float:
        """Until when the aggregator may be silent, on the client's clock."""
        return self._deadline

    async def run(self) -> SessionOutcome:
        """Take the session to its end.

        Returns:
            Its outcome, if it released a sum.

        Raises:
            SecAggError: Whatever ended it; the caller leaves the session and scrubs.
        """
        session = self._session
        if isinstance(session.state, client.Advertised):
            self._report(ClientPhase.JOINING)
            await self._load_payload()
        await self._send_all(session.pending_outputs())
        while not client.is_over(session.state):
            if session.needs_input and not self._uploaded:
                await self._supply_input()
            update = await self._parts.calls.next_update(
                session.session_id,
                after=session.round,
                sizes=self._sizes,
                deadline=self._deadline,
                on_wait=self._wait_on,
                on_return=self._upload_again,
            )
            if is_neighbourhood(update) and session.wants_whole_roster:
                update = await self._whole_roster()
            await self._take(update)
        return await self._conclude()

    async def _whole_roster(self) -> Envelope:
        """Read everybody's advert in place of the neighbours'.

        Whether it is the roster of the others shows as with any: by its context.
        """
        data = await self._parts.calls.fetch(
            self._session.session_id,
            Blob.ROSTER,
            max_bytes=self._sizes.roster,
            digest=None,
            deadline=self._deadline,
        )
        return Envelope(Roster, data)

    async def _take(self, update: Envelope) -> None:
        self._ended_by_server = update.kind is Aborted
        if self._is_past and update.kind not in (Aborted, Released):
            raise ErrorCode.DEADLINE.error(
                "the server goes on with a session after its own end",
                fix="Check that the clocks of client and aggregator are right.",
            )
        before = self._session.state
        is_old = self._session.round >= update.kind.ROUND
        outputs = await self._session.apply(Received(update))
        if not isinstance(self._session.state, client.Masked):
            self._sent = None
        if is_old and not client.is_over(self._session.state):
            # The same as before.  Another one is worse, and named so (R5.4-5).
            raise repeated(update.kind)
        if isinstance(before, client.Masked):
            await self._judge_graph(before)
        self._enter_round()
        await self._send_all(outputs)

    async def _judge_graph(self, masked: client.Masked) -> None:
        """Judge what an answer may have shown to colluders, whoever they are."""
        state = self._session.state
        if not isinstance(state, client.Answered):
            return
        delivered = masked.delivered
        judged = await self._parts.workers.run(
            is_worst_case_safe,
            state.facts.parameters,
            delivered.graph,
            ClientBitmap(state.survivors, delivered.roster_size),
        )
        if judged is not None:
            self._is_certain = judged

    async def _send_all(self, outputs: tuple[ClientOutput, ...]) -> None:
        for output in outputs:
            try:
                match output:
                    case Send():
                        await self._send(output.envelope)
                    case MaskAndUpload():
                        await self._upload(output)
                    case Finish():
                        pass  # the state says so, too
            except RemoteProtocolError as error:
                if error.code is ErrorCode.ROSTER_TOO_LARGE:
                    # Others were faster.  Nobody is at fault.
                    raise SessionAbortedError(
                        str(error),
                        code=error.code,
                        next_step=error.next_step,
                        at_command=error.at_command,
                    ) from None
                if error.code not in TOO_LATE:
                    self._bear(error)

    async def _send(self, envelope: Envelope) -> None:
        phase = _PHASE_OF.get(envelope.kind)
        if phase is not None:
            self._report(phase)
        request = carrier_of(self._session.session_id, envelope)
        await self._say(lambda until: self._parts.calls.send(request, until))

    @property
    def _is_past(self) -> bool:
        """Whether the session has ended for this client by its own end (R5-7)."""
        end = self._session.descriptor.session_end
        has_answered = isinstance(self._session.state, client.Answered)
        return not has_answered and self._parts.clock.date() >= end

    async def _say(
        self, saying: Callable[[float], Awaitable[_Answer]]
    ) -> _Answer | None:
        """Say something while the session lasts; then only its ending is awaited.

        Returns:
            The answer; None when the session has ended before there was one.
        """
        clock, until = self._parts.clock, self._deadline
        if not isinstance(self._session.state, client.Answered):
            left = self._session.descriptor.session_end - clock.date()
            if left <= 0:
                return None
            until = min(until, clock.now() + left)
        try:
            return await saying(until)
        except SessionAbortedError as error:
            if error.code is not ErrorCode.DEADLINE or not self._is_past:
                raise
            return None

    async def _supply_input(self) -> None:
        """Ask the application for its input and upload it, unless that is done."""
        session = self._session
        # Before anything is bound: a client that is odd is told so, and not charged.
        if await self._is_uploaded():
            self._uploaded = True
            return
        self._report(ClientPhase.PREPARING)
        payload = await self._load_payload()
        due = self._due()
        if self._parts.prepare is not None:
            await self._parts.prepare(
                Preparation(
                    session.descriptor,
                    payload,
                    session.noise_secrets,
                    _bound_input(session.state),
                    self._parts.clock,
                    due,
                )
            )
        if self._parts.settings.answer_at is not None and due != inf:
            await self._parts.clock.sleep_until(due)
        vector = await self._parts.workers.run(
            self._parts.make_input,
            session.descriptor,
            payload,
            session.noise_secrets,
        )
        if not self._is_past:
            await self._send_all(await session.apply(InputReady(vector)))
        self._uploaded = True

    def _due(self) -> float:
        """Return the instant at which the vector is due (R3.5-5)."""
        parameters = self._session.descriptor.parameters
        if not parameters.noise_block:
            return inf
        part = self._parts.settings.answer_at
        seconds = parameters.deadlines.masked_input
        return self._entered + (_DUE_AT if part is None else part) * seconds

    async def _is_uploaded(self) -> bool:
        """Whether the upload is finished, or none is taken any more.

        Raises:
            RemoteProtocolError: VIEW_DIFFERS, and no input is bound.
        """
        asking = GetUploadStatus(self._session.session_id, self._session.view)
        try:
            status = await self._say(
                lambda until: self._parts.calls.send(asking, until)
            )
        except RemoteProtocolError as error:
            if error.code not in TOO_LATE:
                self._bear(error)
            return True
        if status is None:  # R5-7
            return True
        self._stored_bytes = status.next_offset
        return status.complete

    async def _upload_again(self) -> None:
        """Upload once more what a server that was out of reach has lost."""
        if not isinstance(self._session.state, client.Masked):
            return
        if await self._is_uploaded():
            return
        try:
            if self._sent is None:  # an earlier process has uploaded it
                # The server gives the round its whole time again.  Late by the time
                # of before, the vector would be replaced and the zeros refused.
                self._entered = self._parts.clock.now()
                await self._supply_input()
            else:
                await self._send_upload(*self._sent)
        except RemoteProtocolError as error:
            if error.code not in TOO_LATE:
                self._bear(error)

    def _bear(self, error: RemoteProtocolError) -> None:
        """Wait for the end of a session in which an input is bound that is refused.

        The refusal settles no charge (R5.6-3): what the ending says does.

        Raises:
            RemoteProtocolError: No input is bound, or it is another refusal.
        """
        if error.code is not ErrorCode.VIEW_DIFFERS or not self._session.has_bound:
            raise error
        self._refusal = error

    async def _upload(self, output: MaskAndUpload) -> None:
        bits = self._session.descriptor.parameters.bits
        self._sent = await self._parts.workers.run(_mask_and_pack, output, bits)
        self.reach = ErrorStage.INPUT_LEFT
        await self._send_upload(*self._sent)

    async def _send_upload(self, packed: bytes, digest: bytes) -> None:
        await self._say(
            lambda until: self._parts.calls.upload(
                self._session.session_id,
                packed,
                digest=digest,
                view=self._session.view,
                offset=self._stored_bytes,
                deadline=until,
                on_chunk=lambda sent: self._report(
                    ClientPhase.UPLOADING, sent_bytes=sent, total_bytes=len(packed)
                ),
            )
        )
        self._report(
            ClientPhase.UPLOADED, sent_bytes=len(packed), total_bytes=len(packed)
        )

    async def _load_payload(self) -> bytes:
        if self._payload is None:
            digest = self._session.descriptor.payload_hash
            self._payload = b""
            if digest:
                self._payload = await self._parts.calls.fetch(
                    self._session.session_id,
                    Blob.PAYLOAD,
                    max_bytes=self._parts.settings.max_payload_bytes,
                    digest=digest,
                    deadline=self._deadline,
                )
        return self._payload

    async def _conclude(self) -> SessionOutcome:
        state = self._session.state
        if isinstance(state, client.Completed):
            residues = None
            if self._parts.settings.fetch_sum:
                residues = await self._fetch_sum(state.outcome)
            return SessionOutcome(
                self._session.descriptor,
                state.outcome,
                is_certain=self._is_certain,
                residues=residues,
            )
        if not isinstance(state, client.Failed):
            raise InternalError("a session that is not over has no outcome")
        if self._refusal is not None:
            raise self._refusal
        code, reason = state.code, state.reason
        if self._ended_by_server or code is ErrorCode.SESSION_OVER:  # R5.6-4
            raise SessionAbortedError(
                reason,
                code=code,
                next_step="Take part in the next session of the task.",
            )
        raise RemoteProtocolError(reason, code=code, next_step=state.next_step)

    async def _fetch_sum(
        self, released: Released
    ) -> npt.NDArray[np.unsignedinteger[Any]]:
        parameters = self._session.descriptor.parameters
        packed = await self._parts.calls.fetch(
            self._session.session_id,
            Blob.SUM,
            max_bytes=check_size_of_sum(released, parameters),
            digest=released.sum_hash,
            deadline=self._deadline,
        )
        return await self._parts.workers.run(read_residues, packed, parameters)

    def _enter_round(self) -> None:
        parameters = self._session.descriptor.parameters
        seconds = 2.0 * _patience(self._session.round, parameters.deadlines)
        settings, clock = self._parts.settings, self._parts.clock
        if self._session.round is Round.ADVERTISE_KEYS:
            offer_seconds = settings.offer_seconds
            seconds = max(seconds, inf if offer_seconds is None else offer_seconds)
        if self._session.round < Round.UNMASKING:  # else a sum may be under way
            # Nothing that this client still has to say is taken later.
            seconds = min(seconds, self._session.descriptor.session_end - clock.date())
        self._entered = clock.now()
        self._deadline = clock.now() + seconds + settings.slack_seconds

    def _wait_on(self, wait: Wait) -> float:
        """Hear that the round goes on; return until when to be patient."""
        if self._session.round is Round.ADVERTISE_KEYS:
            self._enter_round()
            if (wait.joined, wait.needed) != (self._heard.joined, self._heard.needed):
                self._parts.on_progress(
                    ClientProgress(
                        ClientPhase.JOINING,
                        self._session.descriptor.session_number,
                        joined=wait.joined,
                        needed=wait.needed,
                    )
                )
            self._heard = wait
        return self._deadline

    def _report(
        self, phase: ClientPhase, *, sent_bytes: int = 0, total_bytes: int = 0
    ) -> None:
        number = self._session.descriptor.session_number
        self._parts.on_progress(ClientProgress(phase, number, sent_bytes, total_bytes))


def _bound_input(state: client.ClientState) -> bytes:
    return state.bound_input if isinstance(state, client.Masked) else b""


def _mask_and_pack(output: MaskAndUpload, bits: int) -> tuple[bytes, bytes]:
    """Return the packed masked input and its SHA-256."""
    packed = pack(mask_input(output.vector.residues, output.job), bits)
    return packed, sha256(packed).digest()


def _patience(entered: Round, deadlines: RoundDeadlines) -> int:
    """Return how long the round that follows may take to open, in seconds."""
    seconds = ROUNDS[entered].seconds(deadlines)
    if entered >= Round.UNMASKING:
        # Removing the masks takes about as long as making them.
        seconds += ROUNDS[Round.MASKED_INPUT_COLLECTION].seconds(deadlines)
    return seconds
