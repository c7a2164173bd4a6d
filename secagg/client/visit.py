"""One visit of a client that sleeps most of the time: a question and an answer.

For phones and other programs that a scheduler wakes for some seconds, and may end at
any point.

Rule 1: a visit asks once, gives the answer to `StepClient`, and sends what that says.
        Between two visits there is nothing but the client's state directory.
Rule 2: what leaves was stored before.  A visit that was cut off is done again by the
        next one, with the same bytes.
Rule 3: a message is sent again until the aggregator says until when its round lasts,
        which it tells those alone whose answer is stored (`Wait.closes_in_seconds`).
Rule 4: a client comes back before the round after this one can have ended, whenever
        this one ends: rounds close early.
"""

from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, TypeVar

import numpy.typing as npt

from secagg.client.application import Application
from secagg.client.calls import RETRYABLE, ClientCalls, repeated
from secagg.client.contribution import Contribution, check_size_of_sum
from secagg.client.gate import Need, SessionInfo
from secagg.client.open_client import ClientStep
from secagg.client.session_driver import DEFAULT_MAX_PAYLOAD_BYTES, TOO_LATE
from secagg.client.step_client import StepClient, check_peer, state_of
from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.distributed_dp import Unusable
from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol.arguments import as_vector, check_real, check_whole
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import MAX_REVOCATION_BYTES
from secagg.protocol.messages import KINDS, Envelope, Released, Round, Upload
from secagg.protocol.rounds import DUE_PART, ROUNDS, rounds_of
from secagg.runtime.clock import Clock, SystemClock
from secagg.runtime.workers import Workers
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.transport.connection import AggregatorConnection
from secagg.wire.calls import (
    MAX_HELD_MS,
    Blob,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    Wait,
    carrier_of,
    message_sizes,
)

_Answer = TypeVar("_Answer")

VISIT_SECONDS: Final = 25.0
"""How long a visit lasts by default: phones give a program about 30 s."""

# Clients of one round that come back at its end do not all come in the same second.
_SPREAD_PART: Final = 0.05
# The part of the next round's time that may have passed when a client comes back.
_NEXT_ROUND_PART: Final = 0.9
# After an answer that came too late: what opens the next round is there.
_LATE_SECONDS: Final = 1.0
_MILLISECONDS: Final = 1000
# The session cannot continue for this client.
_FATAL: Final = frozenset({ErrorCode.UNKNOWN_SESSION, ErrorCode.UPLOAD_CORRUPT})
_NAME_BYTES: Final = len(Upload(0, bytes(32), bytes(32)).encode())

MakeVector = Callable[[SessionInfo, bytes], npt.ArrayLike]
"""Makes the vector from the session and its payload, which is empty for none."""


@dataclass(frozen=True, slots=True)
class Visit:
    """What one visit has come to.

    Attributes:
        come_back_seconds: When the next visit makes sense.  Come earlier if the owner's
            schedule or a push says so.
        session_number: Of the session that it was about; 0 for none.
        has_sent: Whether a message was sent.
        contribution: When the session is over with a sum; None before.
    """

    come_back_seconds: float
    session_number: int = 0
    has_sent: bool = False
    contribution: Contribution | None = field(default=None, repr=False)


async def visit(  # noqa: PLR0913 - one argument per decision of the client's owner
    client: StepClient,
    connection: AggregatorConnection,
    *,
    task: str,
    vector: MakeVector,
    held_seconds: float = 0.0,
    visit_seconds: float = VISIT_SECONDS,
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
    threads: Executor | None = None,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> Visit:
    """Ask the aggregator once, do what there is to do, and say when to come back.

    Args:
        client: Open; made with the aggregator that `connection` leads to.
        connection: The way to the aggregator, over any transport.
        task: Name of the task.
        vector: Makes the vector, shape (d,), caller's units.  In a task with noise one
            that it cannot make, or not within 0.7 of the round from now, is replaced
            by zeros, which its owner is not charged less for.
        held_seconds: How long the aggregator may keep the question while there is no
            answer; 30 at most.  For programs that stay awake.
        visit_seconds: How long its calls may take, beside a held question and the
            making of the vector.
        max_payload_bytes: Largest payload that is fetched.
        threads: Where `vector` runs in a task with noise; a daemon thread by default.
        clock: Time; the machine's by default.
        entropy: Of the moment to come back; the operating system's by default.

    Raises:
        ServiceError: UNREACHABLE when the visit was cut off: come again.  Others as
            `StepClient.step`.
        SessionAbortedError: The session is over without a sum: the next visit asks for
            another one.
        RemoteProtocolError: The aggregator broke the protocol or a limit of this
            client, or refuses it.
        LocalProtocolError: An argument is out of range, the connection is of another
            client or trust domain than the state, or another carrier has the task.
    """
    held = check_real("held_seconds", held_seconds, least=0.0)
    held = min(held, MAX_HELD_MS / _MILLISECONDS)
    check_whole("max_payload_bytes", max_payload_bytes, least=0)
    check_peer(client, connection.identity, connection.trust_domain)
    clock = clock or SystemClock()
    found = _Visitor(
        client,
        connection,
        task=task,
        vector=vector,
        held_ms=int(held * _MILLISECONDS),
        deadline=clock.now()
        + held
        + check_real("visit_seconds", visit_seconds, least=0.0),
        max_payload_bytes=max_payload_bytes,
        application=Application(threads),
        clock=clock,
        entropy=entropy or SystemEntropy(),
    )
    with state_of(client).carried(task):
        return await found.visit()


class _Visitor:
    """One visit, with what its parts share."""

    def __init__(  # noqa: PLR0913 - see `visit`
        self,
        client: StepClient,
        connection: AggregatorConnection,
        *,
        task: str,
        vector: MakeVector,
        held_ms: int,
        deadline: float,
        max_payload_bytes: int,
        application: Application,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._client = client
        self._application = application
        self._clock = clock
        self._task = task
        self._vector = vector
        self._held_ms = held_ms
        self._deadline = deadline
        self._max_payload_bytes = max_payload_bytes
        self._entropy = entropy
        # A visit is a program of its own, whose only work this is.
        workers = Workers(general=InlineExecutor())
        self._calls = ClientCalls(connection, clock, entropy, workers, watch=False)
        self._calls.bind(client.aggregator)
        self._has_sent = False
        self._is_late = False

    async def visit(self) -> Visit:
        """Join a session, or continue the one that is open."""
        place = self._client.place(self._task)
        if not place.offer:
            return await self._join_session(place.highest_number)
        with self._ending_on_error(place.offer):
            offered = SessionDescriptor.decode(place.offer)
            self._calls.check_transport(offered)
            return await self._continue(place.offer, offered)

    @contextmanager
    def _ending_on_error(self, offer: bytes) -> Iterator[None]:
        """Leave the session on an error after which it cannot continue."""
        try:
            yield
        except (RemoteProtocolError, SessionAbortedError, ServiceError) as error:
            # Where the client itself has ended it, this does nothing.
            if not isinstance(error, ServiceError) or error.code in _FATAL:
                self._client.leave(offer, str(error))
            raise

    # --- the two questions ------------------------------------------------------------

    async def _join_session(self, highest_number: int) -> Visit:
        """Ask for a session, and advertise in the one that is offered."""
        asked = GetOffer(self._task, highest_number, self._held_ms)
        answer = await self._in_time(self._calls.send(asked, self._deadline))
        if isinstance(answer, Wait):
            return Visit(answer.retry_after_seconds)
        offer = answer.encode()
        if answer.task_id != self._task:
            raise ErrorCode.BAD_CONFIG.error(
                f"the server offers a session of task {answer.task_id!r} instead of "
                f"{self._task!r}"
            )
        self._calls.check_transport(answer)
        done = self._client.step(offer)
        if Need.REVOCATIONS in done.needs:
            trust = answer.parameters.trust
            if trust is None:
                raise ErrorCode.INTERNAL.error(
                    "a list is needed where the offer names one"
                )
            listed = await self._fetch(
                answer, Blob.REVOCATIONS, MAX_REVOCATION_BYTES, trust.revocation_hash
            )
            done = self._client.step(offer, revocations=listed)
        with self._ending_on_error(offer):
            await self._send_step(answer, done)
        return self._visit_until(answer, done.round)

    async def _continue(self, offer: bytes, offered: SessionDescriptor) -> Visit:
        """Ask what is new in the open session, and answer."""
        known = self._client.step(offer)
        if known.round is None:
            raise ErrorCode.INTERNAL.error("a session that is open was joined")
        asked = GetUpdate(offered.session_id, known.round, self._held_ms)
        answer = await self._in_time(self._calls.send(asked, self._deadline))
        if isinstance(answer, Wait) and answer.closes_in_seconds is not None:
            return self._visit_until(offered, known.round, answer)
        done = known
        if not isinstance(answer, Wait):
            envelope = await self._in_time(
                self._calls.whole_update(
                    offered.session_id,
                    answer,
                    after=known.round,
                    sizes=message_sizes(offered.parameters),
                    deadline=self._deadline,
                )
            )
            packed = await self._fetch_sum(offered, envelope)
            done = self._client.step(offer, envelope.tagged())
            if done.is_over:
                found = done.contribution
                if packed is not None:
                    found = self._client.read_sum(offer, packed)
                return Visit(0.0, offered.session_number, contribution=found)
            if known.round >= envelope.kind.ROUND:
                raise repeated(envelope.kind)
        if Need.VECTOR in done.needs:
            # The aggregator sees the view before anything is bound (R5.3-14), and may
            # have the whole upload of an earlier visit.
            if await self._is_uploaded(offered, done.view):
                return self._visit_until(offered, done.round)
            await self._send_step(offered, done)
            done = await self._with_vector(offer, offered, done)
        await self._send_step(offered, done)
        return self._visit_until(offered, done.round)

    def _visit_until(
        self, offered: SessionDescriptor, which: Round | None, wait: Wait | None = None
    ) -> Visit:
        """Return a visit whose client may sleep while a round lasts."""
        if which is None:
            raise ErrorCode.INTERNAL.error("a session that was joined is in a round")
        if self._is_late:
            return Visit(_LATE_SECONDS, offered.session_number, self._has_sent)
        parameters = offered.parameters
        least, lasts = 0.0, float(ROUNDS[which].seconds(parameters.deadlines))
        if wait is not None:
            least = wait.retry_after_seconds
            lasts = lasts if wait.closes_in_seconds is None else wait.closes_in_seconds
        fraction = int.from_bytes(self._entropy.token(2), "big") / 65536
        sleep = lasts * (1 + _SPREAD_PART * fraction)
        following = next(
            (each for each in rounds_of(parameters.profile) if each > which), None
        )
        if following is not None:
            seconds = ROUNDS[following].seconds(parameters.deadlines)
            sleep = min(sleep, _NEXT_ROUND_PART * seconds)
        return Visit(max(least, sleep), offered.session_number, self._has_sent)

    # --- what leaves ------------------------------------------------------------------

    async def _with_vector(
        self, offer: bytes, offered: SessionDescriptor, done: ClientStep
    ) -> ClientStep:
        """Return the step that binds the vector."""
        payload, info = b"", done.session
        if info is None:
            raise ErrorCode.INTERNAL.error(
                "a session that needs its vector was admitted"
            )
        if offered.payload_hash:
            payload = await self._fetch(
                offered, Blob.PAYLOAD, self._max_payload_bytes, offered.payload_hash
            )
        hashed = sha256(payload).digest() if offered.payload_hash else b""
        if not offered.parameters.noise_block:
            exact = self._vector(info, payload)
            return self._client.step(offer, vector=exact, payload_hash=hashed)
        # The session waits for no vector (R3.5-5); what was wrong is the owner's.
        begun = self._clock.now()
        due = begun + DUE_PART * offered.parameters.deadlines.masked_input
        vector = await self._application.vector(
            lambda: as_vector(self._vector(info, payload), info.dimension, noisy=True),
            clock=self._clock,
            due=due,
        )
        # Else how long it took would decide whether its upload is cut off.
        self._deadline += self._clock.now() - begun
        if isinstance(vector, Unusable):
            return self._client.step(offer, unusable=vector.reason)
        return self._client.step(offer, vector=vector, payload_hash=hashed)

    async def _send_step(self, offered: SessionDescriptor, done: ClientStep) -> None:
        """Send what a step has returned; a round that is over takes no answer."""
        for message in done.messages:
            try:
                await self._send_message(offered, message)
            except RemoteProtocolError as error:
                if error.code is ErrorCode.ROSTER_TOO_LARGE:
                    raise error.code.error(  # others were faster
                        str(error), kind=SessionAbortedError, fix=error.next_step
                    ) from None
                is_odd = error.code is ErrorCode.VIEW_DIFFERS
                if error.code not in TOO_LATE and not is_odd:
                    raise
                self._is_late = error.code in TOO_LATE
            else:
                self._has_sent = True

    async def _send_message(self, offered: SessionDescriptor, message: bytes) -> None:
        """Send a message; a masked vector goes in chunks."""
        kind = KINDS[message[0]]
        if kind is not Upload:
            request = carrier_of(offered.session_id, Envelope(kind, message[1:]))
            await self._in_time(self._calls.send(request, self._deadline))
            return
        named = Upload.decode(message[1 : 1 + _NAME_BYTES])
        await self._in_time(
            self._calls.upload(
                offered.session_id,
                message[1 + _NAME_BYTES :],
                digest=named.digest,
                view=named.view,
                deadline=self._deadline,
                on_chunk=lambda _: None,
            )
        )

    async def _is_uploaded(self, offered: SessionDescriptor, view: bytes) -> bool:
        """Whether the upload is stored, or none is taken any more."""
        asked = GetUploadStatus(offered.session_id, view)
        try:
            status = await self._in_time(self._calls.send(asked, self._deadline))
        except RemoteProtocolError as error:
            if error.code not in TOO_LATE:
                raise
            self._is_late = True
            return True
        return status.complete

    # --- what comes -------------------------------------------------------------------

    async def _fetch_sum(
        self, offered: SessionDescriptor, update: Envelope
    ) -> bytes | None:
        """Fetch a released sum before the session ends here: a visit may be cut off.

        Returns:
            The sum; None without one, or where the aggregator has it no more.
        """
        if update.kind is not Released:
            return None
        released = Released.decode(update.data)
        size = check_size_of_sum(released, offered.parameters)
        try:
            return await self._fetch(offered, Blob.SUM, size, released.sum_hash)
        except (RemoteProtocolError, ServiceError) as error:
            if error.code in RETRYABLE:
                raise
            return None

    async def _fetch(
        self, offered: SessionDescriptor, blob: Blob, max_bytes: int, digest: bytes
    ) -> bytes:
        """Fetch an object of the session in the time of the visit."""
        return await self._in_time(
            self._calls.fetch(
                offered.session_id,
                blob,
                max_bytes=max_bytes,
                digest=digest,
                deadline=self._deadline,
            )
        )

    async def _in_time(self, call: Awaitable[_Answer]) -> _Answer:
        """Await calls; a visit whose time is over is cut off, and nothing else ends."""
        try:
            return await call
        except SessionAbortedError as error:
            if error.code is not ErrorCode.DEADLINE:
                raise
            raise ErrorCode.UNREACHABLE.error(
                f"the visit was cut off: {error}",
                fix="Visit again when the network is back.",
            ) from None
