"""What happens around every call, in this order: errors, authentication, admission.

Rule 1: `ACCESS` says for every method who may call it: the table of calls, and health.
        A method that is not in it does not exist.
Rule 2: the caller's identity comes from the verified certificate, over TLS 1.3, and
        from nothing that the caller may choose.
Rule 3: whatever fails becomes a status with a numbered detail.  What was not meant
        to fail becomes INTERNAL without its text, and goes to the log.
Rule 4: a certificate that was taken back, or has ended, opens no call and keeps none:
        those that are open end when the list, or the clock, says so.
Rule 5: one identity's calls are limited in number at once and over time, so that no
        client can keep the others out; those that need none, by certificate.

What a call means is none of its business.
"""

# gRPC's classes are generic to the type checker and not at run time.
from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol, TypeAlias, cast

import grpc
import grpc.aio

from secagg.errors import (
    ErrorCode,
    InternalError,
    LocalProtocolError,
    SecAggError,
    ServiceError,
)
from secagg.runtime.log_events import (
    CALL_FAILED,
    CALL_REFUSED,
    CALLS_REFUSED,
    TRANSPORT_LOGGER,
    log_defect,
    log_event,
)
from secagg.transport.channel_options import (
    HEALTH_SERVICE,
    SERVICE,
    TEST_IDENTITY_KEY,
)
from secagg.transport.peer_identity import PeerIdentity, Role
from secagg.transport.status import status_of
from secagg.transport.tls import CertificateNumber, identity_in_pem, number_in_pem
from secagg.wire.calls import CALLS, Access

_LOG: Final = logging.getLogger(TRANSPORT_LOGGER)
_CALLER: Final[ContextVar[str]] = ContextVar("secagg_caller")
# Before what is no identity; no name of a client has it.
_ANYBODY: Final = "/"

# A caller has this many seconds of refusals in one line of the log.
_LINE_SECONDS: Final = 60.0
# Remembered callers beyond those with open calls; one record takes about 300 bytes.
_MAX_REMEMBERED: Final = 65_536

CallContext = grpc.aio.ServicerContext[Any, Any]  # gRPC's own classes are generic

Answer: TypeAlias = Callable[[AsyncIterator[Any], CallContext], Awaitable[bytes]]
Stream: TypeAlias = Callable[[AsyncIterator[Any], CallContext], AsyncIterator[Any]]


ACCESS: Final[Mapping[str, Access]] = {
    **{f"/{SERVICE}/{call.name}": call.access for call in CALLS.values()},
    f"/{HEALTH_SERVICE}/Check": Access.ANYBODY,
    # Health's Watch is left out: it keeps a record for every name a caller invents.
}


def caller() -> str:
    """Return who made the call that is being served.

    Raises:
        InternalError: The call did not pass `AuthenticationGuard`.
    """
    try:
        return _CALLER.get()
    except LookupError:
        raise InternalError("a call was served without authentication") from None


class Guard(ABC):
    """Runs every call inside an asynchronous context manager.

    Handlers read their request themselves, as a stream of one, so that nothing of it is
    read before this admits the call.
    """

    def guarded(self, method: str, answer: Answer) -> Answer:
        """Return what answers a method's calls, each of them guarded."""

        async def guarded(requests: AsyncIterator[Any], context: CallContext) -> bytes:
            async with self.around(method, context, is_stream=False):
                return await answer(requests, context)

        return guarded

    def guarded_stream(self, method: str, stream: Stream) -> Stream:
        """Return what answers a method's calls with streams, each of them guarded."""

        async def guarded(
            requests: AsyncIterator[Any], context: CallContext
        ) -> AsyncIterator[Any]:
            async with self.around(method, context, is_stream=True):
                async for response in stream(requests, context):
                    yield response

        return guarded

    @abstractmethod
    def around(
        self, method: str, context: CallContext, *, is_stream: bool
    ) -> AbstractAsyncContextManager[None]:
        """Return what surrounds one call."""


def guarded_service(
    service: str,
    *guards: Guard,
    answers: Mapping[str, Answer],
    streams: Mapping[str, Stream] | None = None,
) -> grpc.GenericRpcHandler:
    """Return what gRPC dispatches the calls of a service to.

    The guards are put around the handlers here, once, and not by gRPC's interceptors,
    which look for a handler and wrap it with every call.

    Args:
        service: Its full name.
        guards: The outermost first.
        answers: By name of the method, which is in `ACCESS`.
        streams: Likewise, of methods that have many answers.
    """
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for name, answer in answers.items():
        for guard in reversed(guards):
            answer = guard.guarded(_known(service, name), answer)  # noqa: PLW2901 - layers
        handlers[name] = grpc.stream_unary_rpc_method_handler(answer)
    for name, stream in (streams or {}).items():
        for guard in reversed(guards):
            stream = guard.guarded_stream(_known(service, name), stream)  # noqa: PLW2901 - layers
        handlers[name] = grpc.stream_stream_rpc_method_handler(stream)
    return grpc.method_handlers_generic_handler(service, handlers)


def _known(service: str, name: str) -> str:
    """Return the full name of a method."""
    method = f"/{service}/{name}"
    if method not in ACCESS:
        raise InternalError(f"nothing says who may call {method}")
    return method


# --- errors -------------------------------------------------------------------------


class RefusalLog:
    """Writes refused calls to the log, at most one line a minute for each caller.

    The first refusal of a caller is written at once.  Those of the minute behind it
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


class ErrorGuard(Guard):
    """Turns exceptions into statuses; the outermost guard.

    It sees every refusal: of the other guards, of the decoder, and of the service.

    Args:
        on_refusal: Told the code of each call that is refused.
        refusals: Writes them to the log; several guards may share it.
    """

    def __init__(
        self,
        on_refusal: Callable[[ErrorCode], None] = lambda _: None,
        refusals: RefusalLog | None = None,
    ) -> None:
        self._on_refusal = on_refusal
        self._refusals = refusals or RefusalLog()

    @asynccontextmanager
    async def around(
        self,
        method: str,
        context: CallContext,
        *,
        is_stream: bool,  # noqa: ARG002 - the same for both
    ) -> AsyncIterator[None]:
        """See `Guard.around`."""
        try:
            refuse_expired(context)
            yield
        except (InternalError, LocalProtocolError) as error:
            self._on_refusal(error.code)
            log_defect(_LOG, CALL_FAILED, method=method)
            await _abort(context, error)
        except SecAggError as error:
            self._on_refusal(error.code)
            self._refusals.write(method, _CALLER.get("-"), error.code)
            await _abort(context, error)
        except (grpc.aio.AbortError, grpc.RpcError):
            raise  # somebody has given the status already, or the peer is gone
        except Exception:  # noqa: BLE001 - the next comment says why
            # The edge of the process: a defect must end one call, not tell a peer
            # about itself, and be found in the log.
            self._on_refusal(ErrorCode.INTERNAL)
            log_defect(_LOG, CALL_FAILED, method=method)
            await _abort(context, InternalError("unexpected exception"))


def refuse_expired(context: CallContext) -> None:
    """Refuse a call whose caller has stopped waiting for its answer.

    Work for it would delay calls that are waited for, and it comes again.

    Raises:
        ServiceError: OVERLOADED.
    """
    # The stubs do not know of calls without an end.
    left = cast("float | None", context.time_remaining())
    if left is not None and left <= 0.0:
        raise ServiceError(
            "the time of the call was over before its turn came",
            code=ErrorCode.OVERLOADED,
            next_step="Call again a little later.",
            retry_after_seconds=1.0,
        )


async def _abort(context: CallContext, error: SecAggError) -> NoReturn:
    status, text, metadata = status_of(error)
    await context.abort(status, text, metadata)


# --- authentication -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call.

    Attributes:
        name: The client's; of a call that needs none, as whom it is counted, which is
            no client's name.
        certificate: The one that was shown; None in plaintext.
    """

    name: str
    certificate: CertificateNumber | None = None

    def has_ended(self, date: float) -> bool:
        """Whether the certificate has, at a date in Unix seconds."""
        return self.certificate is not None and self.certificate.ends <= date


class Authenticator(Protocol):
    """Says who makes a call."""

    def identity_of(self, context: CallContext) -> Caller:
        """Return the client, or raise ServiceError UNAUTHENTICATED."""
        ...

    def holder_of(self, context: CallContext) -> Caller:
        """Return as whom a call is counted that needs no identity."""
        ...


@dataclass(frozen=True, slots=True)
class TLSAuthenticator:
    """Takes the identity from the peer's verified certificate.

    Attributes:
        trust_domain: The only one whose clients are known here.
        revoked: Certificates that were taken back; asked with every call.
        date: The present in Unix seconds; the machine's by default.
    """

    trust_domain: str
    revoked: Container[CertificateNumber] = frozenset()
    date: Callable[[], float] = time.time

    def identity_of(self, context: CallContext) -> Caller:
        """Return the name in the certificate itself (R10.1-4).

        Raises:
            ServiceError: UNAUTHENTICATED; the peer needs another certificate.
                UNREACHABLE for one that was good when the connection was made.
        """
        properties = context.auth_context()
        # Absent in old gRPC releases, which negotiate TLS 1.3 all the same.
        versions = list(properties.get("ssl_tls_version", [b"TLSv1.3"]))
        if b"ssl" not in properties.get("transport_security_type", []):
            raise _unauthenticated("the connection is not TLS")
        if versions != [b"TLSv1.3"]:
            raise _unauthenticated("the connection is older than TLS 1.3")
        certificates = list(properties.get("x509_pem_cert", []))
        if len(certificates) != 1:
            raise _unauthenticated("the connection shows no certificate")
        try:
            peer = identity_in_pem(certificates[0])
            number = number_in_pem(certificates[0])
        except ServiceError as error:
            raise _unauthenticated(str(error)) from None
        if peer.role is not Role.CLIENT:
            raise _unauthenticated(f"the certificate is a {peer.role}'s")
        if peer.trust_domain != self.trust_domain:
            raise _unauthenticated(
                f"the certificate belongs to trust domain {peer.trust_domain}, "
                f"this aggregator serves {self.trust_domain}"
            )
        self._refuse_over(number)
        return Caller(peer.name, number)

    def holder_of(self, context: CallContext) -> Caller:
        """Name the certificate: its holder may be anybody whom the authority knows.

        Raises:
            ServiceError: UNAUTHENTICATED or UNREACHABLE, as `identity_of`.
        """
        certificates = list(context.auth_context().get("x509_pem_cert", []))
        name = _ANYBODY + hashlib.sha256(b"".join(certificates)).hexdigest()
        if len(certificates) != 1:
            return Caller(name)
        number = number_in_pem(certificates[0])
        self._refuse_over(number)
        return Caller(name, number)

    def _refuse_over(self, number: CertificateNumber) -> None:
        if number.ends <= self.date():
            # As TLS will say of the next connection; the client looks at its own files
            # then, where a new one may lie.
            raise ServiceError(
                "the certificate of this connection has ended",
                code=ErrorCode.UNREACHABLE,
                next_step="Connect again, with a certificate that is valid.",
            )
        if number in self.revoked:
            raise ServiceError(
                "this certificate was revoked",
                code=ErrorCode.UNAUTHENTICATED,
                next_step="Ask the operator; a client that is welcome again needs a "
                "new key.",
            )


@dataclass(frozen=True, slots=True)
class MetadataAuthenticator:
    """Believes whatever name the caller gives.  For tests on loopback only."""

    def identity_of(self, context: CallContext) -> Caller:
        """Return the name in the call's metadata.

        Raises:
            ServiceError: UNAUTHENTICATED when there is none.
        """
        for key, value in context.invocation_metadata() or ():
            if key == TEST_IDENTITY_KEY and isinstance(value, str):
                return Caller(PeerIdentity("tests", Role.CLIENT, value).name)
        raise _unauthenticated(f"the call has no {TEST_IDENTITY_KEY}")

    def holder_of(self, context: CallContext) -> Caller:  # noqa: ARG002 - no certificates
        """Return the same for everybody."""
        return Caller(_ANYBODY)


def _unauthenticated(complaint: str) -> ServiceError:
    return ServiceError(
        complaint,
        code=ErrorCode.UNAUTHENTICATED,
        next_step="Present a client certificate of this deployment's authority.",
    )


class AuthenticationGuard(Guard):
    """Establishes who calls, before anything is done for the call.

    Args:
        authenticator: Says who it is.
        on_known: Told gRPC's name of the connection and whose it is, with every call.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        on_known: Callable[[str, Caller], None] | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._on_known = on_known
        self._open: dict[asyncio.Timeout, Caller] = {}

    def end_calls(self, is_unwelcome: Callable[[Caller], bool]) -> None:
        """End open calls, streams above all, of callers who were welcome before."""
        now = asyncio.get_running_loop().time()
        for scope, who in self._open.items():
            if is_unwelcome(who) and not scope.expired():
                scope.reschedule(now)

    @asynccontextmanager
    async def around(
        self,
        method: str,
        context: CallContext,
        *,
        is_stream: bool,  # noqa: ARG002 - the same for both
    ) -> AsyncIterator[None]:
        """See `Guard.around`."""
        whose = (
            self._authenticator.identity_of
            if ACCESS[method] is Access.CLIENT
            else self._authenticator.holder_of
        )
        who = whose(context)
        # Never reset: a call has a context of its own, which ends with it.
        _CALLER.set(who.name)
        if self._on_known is not None:
            self._on_known(context.peer(), who)
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._open[scope] = who
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            # Why is for the next call to say: that of a certificate, or of a task.
            raise ServiceError(
                "the operator has ended this call",
                code=ErrorCode.SHUTTING_DOWN,
                next_step="Call again.",
                retry_after_seconds=1.0,
            ) from None
        finally:
            self._open.pop(scope, None)


# --- admission ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What one identity, and all together, may use of the aggregator.

    Attributes:
        calls_at_once: Unary calls in flight; a client needs one, a second after a
            broken connection, and a few for parallel fetches.
        watches_at_once: Open streams; a second one after a broken connection.
        calls_per_second: Long-run rate.  At about 0.3 ms a call, one identity takes
            at most a few percent of a core; uploads at this rate are 200 MiB/s.
        burst: Calls that may come at once after a pause.
        unary_seconds: Longest duration of a unary call, whatever the caller says.
        watch_seconds: Longest duration of a stream.
        bodies_at_once: Messages of all callers that are being received, in all 256 MiB
            at most.  The others wait at their senders.
        body_seconds: How long receiving one may take, so that whoever stalls makes
            room: a full chunk takes 35 KiB/s.
        uploads_at_once: Chunks of uploads that are being received or in work, each of
            1 MiB at most: twice what is written at once, so that one is always there.
        uploads_waiting: Calls with a chunk that wait for this at their senders; beyond
            them a call is refused before its chunk is received.
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
    """What one identity is using now: the only mutable record of this module."""

    tokens: float
    refilled_at: float
    calls: int = 0
    watches: int = 0


class AdmissionGuard(Guard):
    """Limits how many calls one identity may have open, and how fast.

    Args:
        limits: The limits, the same for everybody.
        now: Monotonic seconds.
    """

    def __init__(self, limits: CallLimits, now: Callable[[], float]) -> None:
        self._limits = limits
        self._now = now
        self._usage: OrderedDict[str, _Usage] = OrderedDict()

    @asynccontextmanager
    async def around(
        self, method: str, context: CallContext, *, is_stream: bool
    ) -> AsyncIterator[None]:
        """See `Guard.around`."""
        del method, context
        usage = self._usage_of(caller())
        self._admit(usage, is_stream=is_stream)
        if is_stream:
            usage.watches += 1
        else:
            usage.calls += 1
        limits = self._limits
        seconds = limits.watch_seconds if is_stream else limits.unary_seconds
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise ServiceError(
                f"the call took longer than {seconds:g} s",
                code=ErrorCode.OVERLOADED,
                next_step="Call again.",
                retry_after_seconds=1.0,
            ) from None
        finally:
            if is_stream:
                usage.watches -= 1
            else:
                usage.calls -= 1

    def _usage_of(self, identity: str) -> _Usage:
        """Return the record of an identity, forgetting idle ones when there are many.

        Forgetting gives an identity a full burst again; whoever has open calls is
        not forgotten.
        """
        usage = self._usage.get(identity)
        if usage is None:
            if len(self._usage) >= _MAX_REMEMBERED:
                oldest, record = self._usage.popitem(last=False)
                if record.calls or record.watches:
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
        open_now, most = (
            (usage.watches, limits.watches_at_once)
            if is_stream
            else (usage.calls, limits.calls_at_once)
        )
        if open_now >= most:
            raise _overloaded(f"{open_now} calls of this client are open", 1.0)
        if usage.tokens < 1:
            missing = (1 - usage.tokens) / limits.calls_per_second
            raise _overloaded("this client calls too often", missing)
        usage.tokens -= 1


def _overloaded(complaint: str, retry_after_seconds: float) -> ServiceError:
    return ServiceError(
        complaint,
        code=ErrorCode.OVERLOADED,
        next_step="Wait and call again.",
        retry_after_seconds=retry_after_seconds,
    )
