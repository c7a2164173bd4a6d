"""Calls of a client that survive bad links: retries, chunks and deadlines.

Rule 1: every call is repeated until it is answered, refused, or its deadline has
        passed; waits grow and carry jitter.
Rule 2: whatever the server says about sizes is checked against what the session
        allows before it is believed.
Rule 3: while a session is under way, only its own aggregator is asked and believed
        (R5.0-6): names are compared before each call, after each answer, and before and
        after each piece of a stream.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from secagg.client.retry_policy import Backoff
from secagg.crypto.entropy import Entropy
from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
)
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import NO_VIEW, Envelope, Message, Round
from secagg.protocol.packing import MAX_CHUNK_BYTES
from secagg.runtime.clock import Clock, finish_before
from secagg.runtime.workers import Workers
from secagg.transport.connection import AggregatorConnection
from secagg.transport.handshake import UnexpectedPeerError
from secagg.wire.calls import (
    LEAST_QUIET_SECONDS,
    MAX_HELD_MS,
    MAX_QUIET_SECONDS,
    Blob,
    FetchChunk,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    MessageSizes,
    Reference,
    Request,
    UploadChunk,
    UploadStatus,
    Wait,
    WatchSession,
    check_update_size,
)

RETRYABLE: Final = frozenset(
    {
        ErrorCode.UNREACHABLE,
        ErrorCode.OVERLOADED,
        ErrorCode.STORAGE_FAILED,  # the server's disk: it may be freed
        ErrorCode.SHUTTING_DOWN,  # it may come back and resume
    }
)
# What may mean that the aggregator's process has ended.
_LOST: Final = frozenset({ErrorCode.UNREACHABLE, ErrorCode.SHUTTING_DOWN})
# A link that corrupts every upload will not get better.
_MAX_UPLOAD_RESTARTS: Final = 5
# How often the log of a client without progress says so; the log of a client that
# waits without a limit stays readable after a night.
TELL_SECONDS: Final = 5.0
UNLIMITED_TELL_SECONDS: Final = 600.0
_MILLISECONDS: Final = 1000

_Answer = TypeVar("_Answer")


class AnotherAggregatorError(ServiceError):
    """Another aggregator answers than the one whose session is under way (R5.0-6).

    It may pass, as every way that is blocked: the session stays as it is.

    Args:
        bound: The aggregator of the session.
        who: Answers.
        named: The aggregator that the client's settings name; None for none.
    """

    def __init__(self, bound: str, who: str, *, named: str | None = None) -> None:
        next_step = (
            f"Check where client.server leads; the session resumes when {bound!r} "
            "answers, and is left when its time is over."
        )
        if named is not None and named != bound:
            next_step = (
                f"Check where client.server leads; client.aggregator names {named!r}, "
                f"and the session of {bound!r} is left when {named!r} answers, or when "
                "its time is over."
            )
        super().__init__(
            f"the session under way is one of {bound!r}, and {who} answers",
            code=ErrorCode.UNREACHABLE,
            next_step=next_step,
        )


@dataclass(slots=True)
class _OpenStream:
    """A stream that resumes after the last update that it returned.

    Attributes:
        session_id: The session that it is about.
        after: The round that its last update has opened.
        updates: What it returns.
        idle_timeout: How long it may say nothing from now on.
    """

    session_id: bytes
    after: Round
    updates: AsyncIterator[Envelope | Reference | Wait]
    idle_timeout: float = LEAST_QUIET_SECONDS

    async def next(self) -> Envelope | Reference | Wait | None:
        """Wait for what it says next; None at its end."""
        answer = await anext(self.updates, None)
        if isinstance(answer, Wait):
            told = answer.retry_after_seconds
            self.idle_timeout = max(LEAST_QUIET_SECONDS, min(told, MAX_QUIET_SECONDS))
        elif answer is not None:
            self.after, self.idle_timeout = answer.kind.ROUND, LEAST_QUIET_SECONDS
        return answer

    async def close(self) -> None:
        """Close it."""
        close = getattr(self.updates, "aclose", None)
        if close is not None:
            await close()


class ClientCalls:
    """Calls one aggregator on behalf of one client.

    Args:
        connection: The way to the aggregator.
        clock: Time.
        entropy: Source of jitter.
        workers: Threads that hash what was fetched.
        watch: Wait on a stream; poll where that fails.  False always polls.
        named: The aggregator that the client's settings name; None for none.
        on_unreachable: Told why calls do not get through; must not block.
        tell_seconds: How often at most.

    Attributes:
        has_been_answered: Whether any call was.
        failure: Why the last call was not; None when it was, or when time passed
            without an answer.
    """

    def __init__(  # noqa: PLR0913 - every part can be exchanged
        self,
        connection: AggregatorConnection,
        clock: Clock,
        entropy: Entropy,
        workers: Workers,
        *,
        watch: bool,
        named: str | None = None,
        on_unreachable: Callable[[ServiceError], None] = lambda _: None,
        tell_seconds: float = TELL_SECONDS,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._entropy = entropy
        self._workers = workers
        self._watch = watch
        self._named = named
        self._on_unreachable = on_unreachable
        self._report_seconds = tell_seconds
        self._open_stream: _OpenStream | None = None
        self._reported_at = float("-inf")
        self._breaks = 0
        self.has_been_answered = False
        self.failure: ServiceError | None = None
        self._bound: str | None = None

    def bind(self, aggregator: str | None) -> None:
        """Ask and believe this aggregator only, until told otherwise (R5.0-6).

        Args:
            aggregator: The one that the session's offer names; None between sessions.
        """
        self._bound = aggregator

    def check_transport(self, offered: SessionDescriptor) -> None:
        """Refuse a session whose inputs a proxy on the way could read (R10.3-4).

        For every session that is begun or resumed: the way may be another one by then.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION.
        """
        profile = offered.parameters.profile
        if not self._connection.is_direct and not profile.has_identities:
            raise ErrorCode.POLICY_VIOLATION.error(
                "a session of profile 1 over HTTPS, where TLS may end in a proxy that "
                "reads and changes what passes",
                fix="Use a profile with signatures, or say direct=True if TLS "
                "ends in the aggregator.",
            )

    async def probe(self, deadline: float) -> str:
        """Return who answers there now; nothing of a session is said.

        Raises:
            ServiceError: Trying again will not help.
            SessionAbortedError: DEADLINE.
        """
        return await self._call_with_retries(self._connection.probe, deadline)

    async def send(self, request: Request[_Answer], deadline: float) -> _Answer:
        """Make a call until it is answered.

        Without an end of its own it waits longer and longer, up to five minutes.

        Raises:
            RemoteProtocolError: The server refuses it.
            ServiceError: Trying again will not help.
            SessionAbortedError: DEADLINE.
        """

        async def call_checked() -> _Answer:
            await self._check_peer()
            answer = await self._connection.call(request)
            await self._check_peer()
            return answer

        answer = await self._call_with_retries(call_checked, deadline)
        self.has_been_answered = True
        return answer

    async def _check_peer(self) -> None:
        """Refuse a connection that leads to another aggregator than before."""
        if self._bound is None:
            return
        try:
            found = self._connection.aggregator
        except LocalProtocolError:  # it has turned to one that it has not met yet
            found = await self._connection.probe()
        if found != self._bound:
            raise AnotherAggregatorError(self._bound, repr(found), named=self._named)

    def _bound_error(self, error: ServiceError) -> ServiceError:
        """Return what an error means while a session is under way."""
        if self._bound is not None and isinstance(error, UnexpectedPeerError):
            return AnotherAggregatorError(
                self._bound, f"another peer ({error})", named=self._named
            )
        return error

    async def _call_with_retries(
        self, attempt: Callable[[], Coroutine[Any, Any, _Answer]], deadline: float
    ) -> _Answer:
        """Repeat a call after failures that another attempt may mend."""
        backoff = Backoff(self._entropy, is_patient=math.isinf(deadline))
        reason = "it did not answer"
        while True:
            try:
                answer = await finish_before(self._clock, deadline, attempt())
            except TimeoutError:
                raise self._too_late(reason) from None
            except ServiceError as caught:
                self.failure = error = self._bound_error(caught)
                if error.code not in RETRYABLE:
                    raise error from None
                reason = str(error)
                self._breaks += error.code in _LOST
                self._report_unreachable(error)
                await self._sleep(
                    backoff.next_wait(error.retry_after_seconds), deadline, reason
                )
            else:
                self.failure = None
                return answer

    async def next_offer(
        self, task_id: str, *, after_session: int, deadline: float
    ) -> SessionDescriptor:
        """Wait for a session that this client may join.

        The question waits at the aggregator; a client that polls asks now and then.
        """
        pace = Backoff(self._entropy)
        while True:
            left = max(0.0, deadline - self._clock.now()) if self._watch else 0.0
            wait_ms = int(min(MAX_HELD_MS, left * _MILLISECONDS))
            answer = await self.send(
                GetOffer(task_id, after_session, wait_ms), deadline
            )
            if not isinstance(answer, Wait):
                return answer
            await self._sleep(
                pace.poll_wait(answer.retry_after_seconds),
                deadline,
                "it has offered no session",
            )

    async def next_update(  # noqa: PLR0913 - what a caller knows of its session
        self,
        session_id: bytes,
        *,
        after: Round,
        sizes: MessageSizes,
        deadline: float,
        on_wait: Callable[[Wait], float],
        on_return: Callable[[], Awaitable[None]] | None = None,
    ) -> Envelope:
        """Wait for the message that opens the next round for this client.

        A server that lies may show one of the past: the caller compares it with what
        it has accepted.

        Args:
            session_id: The session.
            after: The round that the client is in.
            sizes: What the messages of the session may have; a larger one is refused,
                before any of it is fetched if it is announced, else before it is
                decoded.
            deadline: Until when to try.
            on_wait: Told of every answer that there is nothing yet; returns the
                deadline from then on.
            on_return: Awaited when the aggregator answers again after a stream broke or
                a call did not reach it.  It may be another process, which has lost
                something.

        Raises:
            RemoteProtocolError: UNEXPECTED_MESSAGE for a large update of the past
                (R10-1); BAD_ENCODING for one too large for the session (R10-2);
                PAYLOAD_MISMATCH for one that is not what was announced (R10-3).
            ServiceError: Trying again will not help.
            SessionAbortedError: DEADLINE.
        """
        pace, broken = Backoff(self._entropy), Backoff(self._entropy)
        breaks = self._breaks
        while True:
            try:
                answer = await self._streamed(session_id, after, deadline)
            except ServiceError as caught:
                error = self._record_break(caught)
                # If the aggregator is the cause, those of all others broke with it.
                await self._sleep(
                    broken.next_wait(error.retry_after_seconds), deadline, str(error)
                )
                answer = None
            is_polled = answer is None
            if answer is not None:
                self.failure = None
            else:
                answer = await self.send(GetUpdate(session_id, after), deadline)
            if isinstance(answer, Wait):
                deadline = on_wait(answer)
                if breaks != self._breaks and on_return is not None:
                    await on_return()
                    breaks = self._breaks
                if is_polled:
                    await self._sleep(
                        pace.poll_wait(answer.retry_after_seconds),
                        deadline,
                        "the round was not closed",
                    )
                continue
            return await self.whole_update(
                session_id, answer, after=after, sizes=sizes, deadline=deadline
            )

    def _record_break(self, caught: ServiceError) -> ServiceError:
        """Record that a stream broke, and return why.

        Raises:
            ServiceError: Trying again will not help.
        """
        error = self._bound_error(caught)
        if error.code not in RETRYABLE:
            raise error from None
        self._breaks += error.code in _LOST
        if isinstance(error, AnotherAggregatorError):
            self.failure = error
        return error

    async def whole_update(
        self,
        session_id: bytes,
        answer: Envelope | Reference,
        *,
        after: Round,
        sizes: MessageSizes,
        deadline: float,
    ) -> Envelope:
        """Return an update, fetched where the answer only refers to it.

        `answer` is what was received; the other arguments and the errors are those of
        `next_update`.
        """
        if after >= answer.kind.ROUND:
            if isinstance(answer, Reference):
                raise repeated(answer.kind)
            return answer  # compared with what was accepted, and never decoded (R5-8)
        check_update_size(answer, sizes)
        if isinstance(answer, Envelope):
            return answer
        data = await self.fetch(
            session_id,
            answer.blob,
            max_bytes=answer.size,
            digest=answer.digest,
            deadline=deadline,
        )
        return Envelope(answer.kind, data)

    async def _streamed(
        self, session_id: bytes, after: Round, deadline: float
    ) -> Envelope | Reference | Wait | None:
        """Return what the stream says next; None where no stream says anything.

        One stream serves a whole session.

        Raises:
            ServiceError: It broke.
        """
        if not self._watch:
            return None
        stream = self._open_stream
        # What opens a round may bear the name of one that the profile leaves out.
        if (
            stream is None
            or stream.session_id != session_id
            or not stream.after <= after
        ):
            await self.close_stream()
            await self._check_peer()
            said = self._connection.watch(WatchSession(session_id, after))
            stream = self._open_stream = _OpenStream(session_id, after, said)
        silent_at = self._clock.now() + stream.idle_timeout
        answer = None
        try:
            answer = await finish_before(
                self._clock, min(deadline, silent_at), stream.next()
            )
            self._breaks += answer is None
            await self._check_peer()
        except TimeoutError:
            self._breaks += 1
        except ServiceError:
            answer = None
            raise
        finally:
            is_last = isinstance(answer, Envelope | Reference) and (
                answer.kind.ROUND is Round.FINISHED
            )
            if answer is None or is_last:
                await self.close_stream()
        return answer

    async def close_stream(self) -> None:
        """Close the stream that is open, when the client leaves a session."""
        stream, self._open_stream = self._open_stream, None
        if stream is not None:
            await stream.close()

    async def fetch(
        self,
        session_id: bytes,
        blob: Blob,
        *,
        max_bytes: int,
        digest: bytes | None,
        deadline: float,
    ) -> bytes:
        """Fetch a blob in chunks and check its hash (R10-3), unless `digest` is None.

        The caller that gives no digest checks the blob by itself.

        Raises:
            RemoteProtocolError: PAYLOAD_MISMATCH; it is too large or not what the
                session was bound to.
        """
        collected = bytearray()
        while True:
            chunk = await self.send(
                FetchChunk(session_id, blob, offset=len(collected)), deadline
            )
            collected += chunk.data
            if chunk.total_size > max_bytes or len(collected) > max_bytes:
                raise ErrorCode.PAYLOAD_MISMATCH.error(
                    f"the {blob.name.lower()} has {chunk.total_size} bytes, at most "
                    f"{max_bytes} are accepted"
                )
            if len(collected) >= chunk.total_size or not chunk.data:
                break
        if digest is not None and await self._workers.sha256(collected) != digest:
            raise ErrorCode.PAYLOAD_MISMATCH.error(
                f"the {blob.name.lower()} is not the one that was announced",
                fix="Tell the operator; do not use what was received.",
            )
        return bytes(collected)

    async def upload(  # noqa: PLR0913 - what is sent, to where, until when
        self,
        session_id: bytes,
        packed: bytes | memoryview,
        *,
        digest: bytes,
        view: bytes = NO_VIEW,
        offset: int | None = None,
        deadline: float,
        on_chunk: Callable[[int], None],
    ) -> None:
        """Upload a packed vector, resuming where the server is.

        Args:
            session_id: The session.
            packed: The vector.
            digest: SHA-256 of it.
            view: This client's, 32 bytes (R5.3-14).
            offset: Where an earlier attempt stopped, as the server has said; 0 without
                one; None asks the server.
            deadline: When to stop retrying.
            on_chunk: Told how many bytes have arrived.

        Raises:
            RemoteProtocolError: The server refuses it.
            ServiceError: UPLOAD_CORRUPT, again and again.
            SessionAbortedError: DEADLINE.
        """
        restarts, asking = 0, GetUploadStatus(session_id, view)
        if offset is None:
            status = await self.send(asking, deadline)
        else:
            status = UploadStatus(offset)
        while not status.complete:
            offset = status.next_offset
            if not 0 <= offset < len(packed):
                raise ErrorCode.UPLOAD_CORRUPT.error(
                    f"the server asks for byte {offset} of {len(packed)}"
                )
            on_chunk(offset)
            data = bytes(packed[offset : offset + MAX_CHUNK_BYTES])
            chunk = UploadChunk(session_id, offset, len(packed), digest, data, view)
            try:
                status = await self.send(chunk, deadline)
            except ServiceError as error:
                if error.code is not ErrorCode.UPLOAD_CORRUPT:
                    raise
                restarts += 1
                if restarts > _MAX_UPLOAD_RESTARTS:
                    raise
                status = await self.send(asking, deadline)
            else:
                if not status.complete and status.next_offset <= offset:
                    restarts += 1
                    if restarts > _MAX_UPLOAD_RESTARTS:
                        raise ErrorCode.UPLOAD_CORRUPT.error(
                            "the server takes chunks but never moves on"
                        )
        on_chunk(len(packed))

    def _report_unreachable(self, error: ServiceError) -> None:
        """Report that the aggregator cannot be reached, now and then."""
        now, again = self._clock.now(), self._reported_at + self._report_seconds
        if error.code is ErrorCode.UNREACHABLE and now >= again:
            self._reported_at = now
            self._on_unreachable(error)

    async def _sleep(self, seconds: float, deadline: float, reason: str) -> None:
        """Wait between attempts, but not beyond the deadline."""
        if self._clock.now() + seconds >= deadline:
            await self._clock.sleep_until(deadline)
            raise self._too_late(reason)
        await self._clock.sleep_until(self._clock.now() + seconds)

    def _too_late(self, reason: str) -> SecAggError:
        """Return the error of a call that was not answered before its deadline."""
        if isinstance(self.failure, AnotherAggregatorError):
            return self.failure  # its own aggregator was never asked: nothing is over
        return ErrorCode.DEADLINE.error(
            f"the aggregator kept this client waiting beyond the deadline: {reason}",
            fix="Check the network and the aggregator; the next session may succeed.",
        )


def repeated(kind: type[Message]) -> RemoteProtocolError:
    """Return the complaint about an update of the past (R10-1)."""
    return ErrorCode.UNEXPECTED_MESSAGE.error(
        f"the server repeats the opening of round {kind.ROUND.name} instead of waiting",
        kind=RemoteProtocolError,
    )
