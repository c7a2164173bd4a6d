"""Rules around every call that gRPC and the HTTP edge share.

Rule 1: the calls of one identity are limited in number at once and over time, over both
        entries together. So no client can block the others.
Rule 2: calls of callers that are no longer welcome end at both entries.
Rule 3: few messages are received at once, of all callers together.  A message is
        requested when its turn comes; until then HTTP/2's flow control holds it at its
        sender.  So memory is bounded, whatever callers do.
Rule 4: a caller that stalls loses its turn.  One caller has few turns, so a few stalled
        callers do not hold all of them, and one takes little memory.
Rule 5: a chunk of an upload keeps its turn until it is answered. So no chunk is
        received before it can be written, and none twice.

It is independent of the transport.  What gRPC needs besides is in
`secagg.server.rpc.guards`, what the edge needs in `secagg.server.http_edge`.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, cast

from secagg.errors import ErrorCode, SecAggError
from secagg.runtime.log_events import (
    CALL_REFUSED,
    CALLS_REFUSED,
    TRANSPORT_LOGGER,
    log_event,
)
from secagg.transport.tls import CertificateNumber
from secagg.wire.calls import refuse

# A caller that is refused comes back when many of the earlier ones are done.
_LONG_SECONDS: Final = 5.0
# Turns that one caller may hold or wait for. A client sends its chunks one after the
# other, and may have left a call behind on a broken connection.
UPLOADS_OF_ONE_CALLER: Final = 2
# The same for other messages, which a client of several tasks may send concurrently: 16
# MiB at most.
MESSAGES_OF_ONE_CALLER: Final = 4
_LOG: Final = logging.getLogger(TRANSPORT_LOGGER)
_CALLER: Final[ContextVar[str]] = ContextVar("secagg_caller")

# The refusals of a caller in this many seconds share one line of the log.
_LINE_SECONDS: Final = 60.0
# Remembered callers beyond those with open calls; one record takes about 300 bytes.
_MAX_REMEMBERED: Final = 65_536


class BodyReader:
    """Receives the messages of admitted calls.

    Args:
        at_once: Messages that are received at once.
        seconds: How long receiving one may take.
        waiting: Calls that may wait for their turn; a further one is told to come back.
    """

    def __init__(
        self, at_once: int, seconds: float, *, waiting: int | None = None
    ) -> None:
        # First come, first served.
        self._slots = asyncio.Semaphore(at_once)
        self._seconds = seconds
        self._room = waiting
        self._calls_of: Counter[str] = Counter()

    async def read(self, bodies: AsyncIterator[bytes], *, caller: str = "") -> bytes:
        """Return the one message of a call; its turn then ends.

        Args:
            bodies: Its message.
            caller: Identity of the caller; empty where callers have no names.

        Raises:
            RemoteProtocolError: BAD_ENCODING; the call has no message.
            ServiceError: OVERLOADED; the message did not arrive in time, too many calls
                wait, or too many of them are this caller's.
        """
        async with self.held(caller, bodies, most=MESSAGES_OF_ONE_CALLER) as body:
            return body

    @asynccontextmanager
    async def held(
        self,
        caller: str,
        bodies: AsyncIterator[bytes],
        *,
        most: int = UPLOADS_OF_ONE_CALLER,
    ) -> AsyncIterator[bytes]:
        """Yield the one message of a call; its turn lasts as long as the block.

        Args:
            caller: Identity of the caller; empty where callers have no names.
            bodies: Its message.
            most: Turns that one caller may hold or wait for.

        Raises:
            RemoteProtocolError: BAD_ENCODING; the call has no message.
            ServiceError: OVERLOADED; the message did not arrive in time, too many calls
                wait, or too many of them are this caller's.
        """
        with self._count_message(caller, most):
            await self._acquire_slot()
            try:
                yield await self._received(bodies)
            finally:
                self._slots.release()

    @contextmanager
    def _count_message(self, caller: str, most: int) -> Iterator[None]:
        """Refuse a caller that has too many messages in transfer."""
        if caller and self._calls_of[caller] >= most:
            raise _overloaded_error("this caller has other messages in transfer", 1.0)
        self._calls_of[caller] += 1
        try:
            yield
        finally:
            self._calls_of[caller] -= 1
            if not self._calls_of[caller]:
                del self._calls_of[caller]

    async def _acquire_slot(self) -> None:
        """Wait for a free slot, unless too many calls wait already."""
        if self._room is None or not self._slots.locked():
            await self._slots.acquire()
            return
        if not self._room:
            raise _overloaded_error(
                "too many messages wait for their turn", _LONG_SECONDS
            )
        self._room -= 1
        try:
            await self._slots.acquire()
        finally:
            self._room += 1

    async def _received(self, bodies: AsyncIterator[bytes]) -> bytes:
        """Return the one message of a call, if it arrives in time."""
        # The generator is closed at once.  Suspended behind its message, gRPC's
        # generator would keep the message and the call alive, in a cycle, until the
        # garbage collector runs.
        messages = cast("AsyncGenerator[bytes]", aiter(bodies))
        try:
            async with asyncio.timeout(self._seconds), aclosing(messages):
                async for body in messages:
                    return body
        except TimeoutError:
            raise ErrorCode.OVERLOADED.error(
                f"the message did not arrive within {self._seconds:g} s",
                fix="Call again, over a faster link.",
                retry_after_seconds=1.0,
            ) from None
        raise refuse("the call has no message")


def _overloaded_error(complaint: str, seconds: float) -> SecAggError:
    """Return the error of a call that there is no room for yet."""
    return ErrorCode.OVERLOADED.error(
        complaint, fix="Wait and call again.", retry_after_seconds=seconds
    )


@dataclass(frozen=True, slots=True)
class Caller:
    """Identifies the caller of a call.

    Attributes:
        name: Name of the client; for a call without identity the name under which it is
            counted, which is never a client's name.
        certificate: The caller's certificate; None in plaintext and at the HTTP edge.
        serial: Serial of the caller's credential; None over gRPC.
    """

    name: str
    certificate: CertificateNumber | None = None
    serial: int | None = None

    def has_ended(self, date: float) -> bool:
        """Whether the certificate has expired, at a date in Unix seconds."""
        return self.certificate is not None and self.certificate.ends <= date


def set_caller(name: str) -> None:
    """Record the caller of the call that is being served.

    The record is never reset: a call has a context of its own, which ends with it.
    """
    _CALLER.set(name)


def caller() -> str:
    """Return the caller of the call that is being served.

    Raises:
        InternalError: The call was served before its caller was known.
    """
    try:
        return _CALLER.get()
    except LookupError:
        raise ErrorCode.INTERNAL.error(
            "a call was served without authentication"
        ) from None


def caller_or_dash() -> str:
    """Return the caller of the call that is being served, or "-" while unknown."""
    return _CALLER.get("-")


class RefusalLog:
    """Writes refused calls to the log, at most one line a minute for each caller.

    The first refusal of a caller is written at once.  Those of the following minute
    share a line that counts them by code.

    Args:
        later: Calls a function after some seconds; by default the running loop does.
    """

    def __init__(
        self, later: Callable[[float, Callable[[], None]], object] | None = None
    ) -> None:
        self._later = later
        self._unwritten: dict[str, Counter[str]] = {}

    def write(self, method: str, identity: str, code: ErrorCode) -> None:
        """Write a line, or count the refusal for the next one."""
        counted = self._unwritten.get(identity)
        if counted is not None:
            counted[code.name] += 1
            return
        log_event(
            _LOG,
            logging.INFO,
            CALL_REFUSED,
            method=method,
            identity=identity,
            code=code.name,
        )
        self._begin_minute(identity)

    def _begin_minute(self, identity: str) -> None:
        self._unwritten[identity] = Counter()
        later = self._later or asyncio.get_running_loop().call_later
        later(_LINE_SECONDS, lambda: self._end_minute(identity))

    def _end_minute(self, identity: str) -> None:
        """Log the refusals of a caller that were not logged one by one."""
        counted = self._unwritten.pop(identity)
        if counted:
            log_event(
                _LOG,
                logging.INFO,
                CALLS_REFUSED,
                identity=identity,
                count=counted.total(),
                codes=", ".join(f"{name} {n}" for name, n in counted.most_common()),
            )
            self._begin_minute(identity)


class OpenCalls:
    """Tracks calls that are being served, with streams and held answers."""

    def __init__(self) -> None:
        self._open: dict[asyncio.Timeout, Caller] = {}

    def end(self, is_unwelcome: Callable[[Caller], bool]) -> None:
        """End the calls of callers that are not welcome any more."""
        now = asyncio.get_running_loop().time()
        for scope, who in self._open.items():
            if is_unwelcome(who) and not scope.expired():
                scope.reschedule(now)

    @asynccontextmanager
    async def open(self, who: Caller) -> AsyncIterator[None]:
        """Count a call as open until the block is left.

        Args:
            who: The caller.

        Raises:
            ServiceError: SHUTTING_DOWN; `end` has ended the caller's calls.
        """
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._open[scope] = who
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            # The next call states the reason: that of a certificate, or of a task.
            raise ErrorCode.SHUTTING_DOWN.error(
                "the operator has ended this call",
                fix="Call again.",
                retry_after_seconds=1.0,
            ) from None
        finally:
            self._open.pop(scope, None)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits what one identity, and all together, may use of the aggregator.

    Attributes:
        calls_at_once: Unary calls in flight; a client needs one, a second after a
            broken connection, and a few for parallel fetches.
        watches_at_once: Open streams; a second one after a broken connection.
        calls_per_second: Long-run rate.  At about 0.3 ms a call, one identity takes
            at most a few percent of a core; uploads at this rate are 200 MiB/s.
        burst: Calls that may come at once after a pause.
        unary_seconds: Longest duration of a unary call, whatever deadline the caller
            sets.
        watch_seconds: Longest duration of a stream.
        bodies_at_once: Messages of all callers that are received at once, 256 MiB at
            most.  The others wait at their senders.
        body_seconds: Longest time to receive one, so a stalled caller frees its turn: a
            full chunk takes 35 KiB/s.
        uploads_at_once: Chunks of uploads that are being received or written, each of 1
            MiB at most. It is twice the number that is written at once, so one is
            always ready.
        uploads_waiting: Calls with a chunk that wait at their senders; a further call
            is refused before its chunk is received.
    """

    calls_at_once: int = 8
    watches_at_once: int = 2
    calls_per_second: float = 200.0
    burst: int = 400
    unary_seconds: float = 120.0
    watch_seconds: float = 3600.0
    bodies_at_once: int = 64
    body_seconds: float = 30.0
    uploads_at_once: int = 32
    uploads_waiting: int = 2048


@dataclass(slots=True)
class _Usage:
    """Counts what one identity uses now: the only mutable record of this module."""

    tokens: float
    refilled_at: float
    open: Counter[bool] = field(default_factory=Counter)  # by `is_stream`


class CallAdmission:
    """Limits how many calls one identity may have open, and how fast.

    Args:
        limits: The limits, the same for every caller.
        now: Monotonic seconds.
    """

    def __init__(self, limits: CallLimits, now: Callable[[], float]) -> None:
        self._limits = limits
        self._now = now
        self._usage: OrderedDict[str, _Usage] = OrderedDict()

    @asynccontextmanager
    async def admitted(self, identity: str, *, is_stream: bool) -> AsyncIterator[None]:
        """Count one call, until the block is left.

        Args:
            identity: The caller.
            is_stream: Whether the call has many answers.

        Raises:
            ServiceError: OVERLOADED; too many calls, too often, or the call took too
                long.
        """
        usage = self._usage_of(identity)
        self._admit(usage, is_stream=is_stream)
        usage.open[is_stream] += 1
        limits = self._limits
        seconds = limits.watch_seconds if is_stream else limits.unary_seconds
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise ErrorCode.OVERLOADED.error(
                f"the call took longer than {seconds:g} s",
                fix="Call again.",
                retry_after_seconds=1.0,
            ) from None
        finally:
            usage.open[is_stream] -= 1

    def _usage_of(self, identity: str) -> _Usage:
        """Return the record of an identity; delete idle ones when there are many.

        Deletion gives an identity a full burst again; one with open calls is kept.
        """
        usage = self._usage.get(identity)
        if usage is None:
            if len(self._usage) >= _MAX_REMEMBERED:
                oldest, record = self._usage.popitem(last=False)
                if record.open.total():
                    self._usage[oldest] = record
            usage = _Usage(tokens=self._limits.burst, refilled_at=self._now())
            self._usage[identity] = usage
        self._usage.move_to_end(identity)
        return usage

    def _admit(self, usage: _Usage, *, is_stream: bool) -> None:
        """Take one token and check what is open; raise ServiceError OVERLOADED."""
        limits = self._limits
        now = self._now()
        usage.tokens = min(
            limits.burst,
            usage.tokens + (now - usage.refilled_at) * limits.calls_per_second,
        )
        usage.refilled_at = now
        open_now = usage.open[is_stream]
        if open_now >= (limits.watches_at_once if is_stream else limits.calls_at_once):
            raise _overloaded_error(f"{open_now} calls of this client are open", 1.0)
        if usage.tokens < 1:
            missing = (1 - usage.tokens) / limits.calls_per_second
            raise _overloaded_error("this client calls too often", missing)
        usage.tokens -= 1


class CallGuards:
    """Counts calls and bodies of all entries of one aggregator.

    Args:
        limits: The limits, the same for every caller.
        now: Monotonic seconds.

    Attributes:
        admission: Calls, by identity.
        open_calls: Calls that are being served.
        messages: Receives small messages.
        uploads: Receives chunks of uploads.
        refusals: Writes refused calls to the log.
    """

    def __init__(self, limits: CallLimits, now: Callable[[], float]) -> None:
        self.admission: Final = CallAdmission(limits, now)
        self.open_calls: Final = OpenCalls()
        self.messages: Final = BodyReader(limits.bodies_at_once, limits.body_seconds)
        self.uploads: Final = BodyReader(
            limits.uploads_at_once, limits.body_seconds, waiting=limits.uploads_waiting
        )
        self.refusals: Final = RefusalLog()
