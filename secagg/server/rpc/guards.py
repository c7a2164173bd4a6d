"""What surrounds every call, in this order: errors, authentication, admission.

Rule 1: `ACCESS` states for every method which callers may use it: the table of calls,
        and health. A method without an entry does not exist.
Rule 2: the caller's identity comes from the verified certificate, over TLS 1.3, and
        from nothing that the caller may choose.
Rule 3: every failure becomes a status with a numbered detail.  An unexpected exception
        becomes INTERNAL without its text, and is logged.
Rule 4: a revoked or expired certificate opens no call and keeps none: open calls end
        when the list, or the clock, says so.
Rule 5: one identity's calls are limited in number at once and over time, so no client
        can block the others. Calls without identity are counted by certificate.

The guards do not know the meaning of a call.
"""

# gRPC's classes are generic to the type checker and not at run time.
from __future__ import annotations

import hashlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
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
from secagg.pki.certificate_revocations import CertificateRevocations
from secagg.runtime.log_events import CALL_FAILED, TRANSPORT_LOGGER, log_defect
from secagg.server.call_guards import (
    CallAdmission,
    Caller,
    OpenCalls,
    RefusalLog,
    caller,
    caller_or_dash,
    set_caller,
)
from secagg.transport.channel_options import HEALTH_SERVICE, SERVICE, TEST_IDENTITY_KEY
from secagg.transport.peer_identity import PeerIdentity, Role
from secagg.transport.status import status_of
from secagg.transport.tls import CertificateNumber, identity_in_pem, number_in_pem
from secagg.wire.calls import CALLS, Access

_LOG: Final = logging.getLogger(TRANSPORT_LOGGER)
# This prefix marks a key that is not an identity; no name of a client has it.
_ANY_CERTIFIED: Final = "/"

CallContext = grpc.aio.ServicerContext[Any, Any]  # gRPC's own classes are generic

Answer: TypeAlias = Callable[[AsyncIterator[Any], CallContext], Awaitable[bytes]]
Stream: TypeAlias = Callable[[AsyncIterator[Any], CallContext], AsyncIterator[Any]]


ACCESS: Final[Mapping[str, Access]] = {
    **{f"/{SERVICE}/{call.name}": call.access for call in CALLS.values()},
    f"/{HEALTH_SERVICE}/Check": Access.ANY_CERTIFIED,
    # Health's Watch is not offered: it keeps a record for every name a caller invents.
}


class Guard(ABC):
    """Runs every call inside an asynchronous context manager.

    Handlers read their request themselves, as a stream of one, so nothing of it is read
    before this admits the call.
    """

    def guarded(self, method: str, answer: Answer) -> Answer:
        """Return a handler of a method's calls, each of them guarded."""

        async def guarded(requests: AsyncIterator[Any], context: CallContext) -> bytes:
            async with self.around(method, context, is_stream=False):
                return await answer(requests, context)

        return guarded

    def guarded_stream(self, method: str, stream: Stream) -> Stream:
        """Return a handler of a method's calls with streams, each of them guarded."""

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
        """Return the context manager of one call."""


def guarded_service(
    service: str,
    *guards: Guard,
    answers: Mapping[str, Answer],
    streams: Mapping[str, Stream] | None = None,
) -> grpc.GenericRpcHandler:
    """Return the guarded handlers of a service, for gRPC.

    The guards wrap the handlers here, once. gRPC's interceptors would look up a handler
    and wrap it with every call.

    Args:
        service: Its full name.
        guards: The outermost first.
        answers: By name of the method, which is in `ACCESS`.
        streams: Handlers of methods with many answers, likewise.
    """
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for name, answer in answers.items():
        for guard in reversed(guards):
            answer = guard.guarded(_full_method_name(service, name), answer)  # noqa: PLW2901 - layers
        handlers[name] = grpc.stream_unary_rpc_method_handler(answer)
    for name, stream in (streams or {}).items():
        for guard in reversed(guards):
            stream = guard.guarded_stream(_full_method_name(service, name), stream)  # noqa: PLW2901 - layers
        handlers[name] = grpc.stream_stream_rpc_method_handler(stream)
    return grpc.method_handlers_generic_handler(service, handlers)


def _full_method_name(service: str, name: str) -> str:
    """Return the full name of a method."""
    method = f"/{service}/{name}"
    if method not in ACCESS:
        raise ErrorCode.INTERNAL.error(f"nothing says who may call {method}")
    return method


# --- errors -------------------------------------------------------------------------


class ErrorGuard(Guard):
    """Turns exceptions into statuses; the outermost guard.

    It handles every refusal: of the other guards, of the decoder, and of the service.

    Args:
        on_refusal: Called with the code of each call that is refused.
        refusals: Writes refusals to the log; several guards may share it.
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
        """Return the context manager of one call; see `Guard.around`."""
        try:
            refuse_expired(context)
            yield
        except (InternalError, LocalProtocolError) as error:
            self._on_refusal(error.code)
            log_defect(_LOG, CALL_FAILED, method=method)
            await _abort(context, error)
        except SecAggError as error:
            self._on_refusal(error.code)
            self._refusals.write(method, caller_or_dash(), error.code)
            await _abort(context, error)
        except (grpc.aio.AbortError, grpc.RpcError):
            raise  # the status was sent already, or the peer is gone
        except Exception:  # noqa: BLE001 - the next comment says why
            # This is the edge of the process: a defect must end one call, reveal
            # nothing to a peer, and be logged.
            self._on_refusal(ErrorCode.INTERNAL)
            log_defect(_LOG, CALL_FAILED, method=method)
            await _abort(context, ErrorCode.INTERNAL.error("unexpected exception"))


def refuse_expired(context: CallContext) -> None:
    """Refuse a call whose caller has stopped waiting for its answer.

    Work for it would delay other calls, and the caller retries.

    Raises:
        ServiceError: OVERLOADED.
    """
    # The stubs do not know of calls without a deadline.
    left = cast("float | None", context.time_remaining())
    if left is not None and left <= 0.0:
        raise ErrorCode.OVERLOADED.error(
            "the time of the call was over before its turn came",
            fix="Call again a little later.",
            retry_after_seconds=1.0,
        )


async def _abort(context: CallContext, error: SecAggError) -> NoReturn:
    status, text, metadata = status_of(error)
    await context.abort(status, text, metadata)


# --- authentication -----------------------------------------------------------------


class Authenticator(Protocol):
    """Establishes the caller of a call."""

    def identity_of(self, context: CallContext) -> Caller:
        """Return the client, or raise ServiceError UNAUTHENTICATED."""

    def holder_of(self, context: CallContext) -> Caller:
        """Return the name under which a call without identity is counted."""


@dataclass(frozen=True, slots=True)
class TLSAuthenticator:
    """Takes the identity from the peer's verified certificate.

    Attributes:
        trust_domain: The trust domain whose clients are served.
        revoked: The revocation lists in force; asked with every call.
        date: The present in Unix seconds; the machine's by default.
    """

    trust_domain: str
    revoked: CertificateRevocations = field(
        default_factory=lambda: CertificateRevocations(None)
    )
    date: Callable[[], float] = time.time

    def identity_of(self, context: CallContext) -> Caller:
        """Return the name in the certificate itself (R10.1-4).

        Raises:
            ServiceError: UNAUTHENTICATED; the peer needs another certificate.
                UNREACHABLE for one that was valid when the connection was made, and
                while the aggregator's revocation list has expired.
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
        """Return a name for the certificate, whose holder may be of any role.

        Raises:
            ServiceError: UNAUTHENTICATED or UNREACHABLE, as `identity_of`.
        """
        certificates = list(context.auth_context().get("x509_pem_cert", []))
        name = _ANY_CERTIFIED + hashlib.sha256(b"".join(certificates)).hexdigest()
        if len(certificates) != 1:
            return Caller(name)
        number = number_in_pem(certificates[0])
        self._refuse_over(number)
        return Caller(name, number)

    def _refuse_over(self, number: CertificateNumber) -> None:
        """Refuse an expired or revoked certificate, and an expired list."""
        if number.ends <= self.date():
            # TLS will report the same for the next connection; the client then reads
            # its own files, which may hold a new one.
            raise ErrorCode.UNREACHABLE.error(
                "the certificate of this connection has expired",
                fix="Connect again, with a certificate that is valid.",
            )
        if number in self.revoked:
            raise ErrorCode.UNAUTHENTICATED.error(
                "this certificate was revoked",
                kind=ServiceError,
                fix="Ask the operator; a client that is welcome again needs a new key.",
            )
        if not self.revoked.is_current():
            # The operator's fault, and over with the next list: clients try again.
            raise ErrorCode.UNREACHABLE.error(
                "the aggregator's list of revoked certificates has expired",
                fix="Ask the operator to install the authority's newest list.",
            )


@dataclass(frozen=True, slots=True)
class MetadataAuthenticator:
    """Trusts the name that the caller states.  For tests on loopback only."""

    def identity_of(self, context: CallContext) -> Caller:
        """Return the name in the call's metadata.

        Raises:
            ServiceError: UNAUTHENTICATED when the call states no name.
        """
        for key, value in context.invocation_metadata() or ():
            if key == TEST_IDENTITY_KEY and isinstance(value, str):
                return Caller(PeerIdentity("tests", Role.CLIENT, value).name)
        raise _unauthenticated(f"the call has no {TEST_IDENTITY_KEY}")

    def holder_of(self, context: CallContext) -> Caller:  # noqa: ARG002 - no certificates
        """Return the same for every caller."""
        return Caller(_ANY_CERTIFIED)


def _unauthenticated(complaint: str) -> ServiceError:
    """Return the error of a caller without a valid certificate."""
    return ErrorCode.UNAUTHENTICATED.error(
        complaint,
        kind=ServiceError,
        fix="Present a client certificate of this deployment's authority.",
    )


class AuthenticationGuard(Guard):
    """Establishes the caller before any work is done for the call.

    Args:
        authenticator: Establishes the caller.
        open_calls: Ends calls of callers that are not welcome any more.
        on_known: Called with gRPC's name of the connection and its caller, with every
            call.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        open_calls: OpenCalls,
        on_known: Callable[[str, Caller], None] | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._open_calls = open_calls
        self._on_caller = on_known

    @asynccontextmanager
    async def around(
        self,
        method: str,
        context: CallContext,
        *,
        is_stream: bool,  # noqa: ARG002 - the same for both
    ) -> AsyncIterator[None]:
        """Return the context manager of one call; see `Guard.around`."""
        whose = (
            self._authenticator.identity_of
            if ACCESS[method] is Access.CLIENT
            else self._authenticator.holder_of
        )
        who = whose(context)
        set_caller(who.name)
        if self._on_caller is not None:
            self._on_caller(context.peer(), who)
        async with self._open_calls.open(who):
            yield


# --- admission ----------------------------------------------------------------------


class AdmissionGuard(Guard):
    """Limits how many calls one identity may have open, and how fast.

    Args:
        admission: Counts the calls, over gRPC and the HTTP edge.
    """

    def __init__(self, admission: CallAdmission) -> None:
        self._admission = admission

    def around(
        self, method: str, context: CallContext, *, is_stream: bool
    ) -> AbstractAsyncContextManager[None]:
        """Return the context manager of one call; see `Guard.around`."""
        del method, context
        return self._admission.admitted(caller(), is_stream=is_stream)
