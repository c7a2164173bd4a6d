"""The ASGI application of the HTTP edge: it turns requests into calls of the service.

Rule 1: a request is checked in the order of R10.3-5 to R10.3-16; the first rule that
        fails decides.  No byte of a body is read before its caller is known.
Rule 2: a refusal before the body closes the connection; else the whole body would be
        received and discarded.
Rule 3: no response sets a cookie, names a caller or an address in a header, or can be
        cached.
Rule 4: a held answer ends with its client's connection, and with the process.
"""

import asyncio
import base64
import json
import logging
import math
import re
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    MutableMapping,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Final, TypeAlias

import grpc

from secagg.errors import (
    ErrorCode,
    InternalError,
    LocalProtocolError,
    SecAggError,
    ServiceError,
)
from secagg.runtime.log_events import (
    CALL_FAILED,
    EDGE_REQUEST_REFUSED,
    EDGE_REQUESTS_REFUSED,
    TRANSPORT_LOGGER,
    log_defect,
    log_event,
)
from secagg.server.call_guards import Caller, CallGuards, OpenCalls, set_caller
from secagg.server.http_edge.proof import RequestProof
from secagg.transport.connection import AggregatorService
from secagg.transport.relay import LimitedLog
from secagg.transport.request_proof import CONTENT_TYPE, content_digest, path_of
from secagg.transport.status import DETAIL_KEY, status_of
from secagg.wire.calls import CALLS, MAX_MESSAGE_BYTES, Call, UploadChunk

_LOG: Final = logging.getLogger(TRANSPORT_LOGGER)

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
_Headers: TypeAlias = list[tuple[bytes, bytes]]

_CALL_AT: Final[Mapping[bytes, Call]] = {
    path_of(call.name).encode(): call for call in CALLS.values() if not call.is_stream
}
_SIGNED: Final = (
    "secagg-credential",
    "content-type",
    "content-digest",
    "signature-input",
    "signature",
)
_DISCONNECT: Final = "http.disconnect"
_BODY_HEADERS: Final = (b"content-length", b"transfer-encoding")
_LENGTH: Final = re.compile(rb"[0-9]{1,10}\Z")
_PREFLIGHT: Final[_Headers] = [
    (b"access-control-allow-methods", b"POST"),
    (
        b"access-control-allow-headers",
        ", ".join((*_SIGNED, "connect-protocol-version")).encode(),
    ),
    (b"access-control-max-age", b"7200"),
]

_S: Final = grpc.StatusCode
_HTTP: Final[Mapping[grpc.StatusCode, int]] = {
    _S.INVALID_ARGUMENT: 400,
    _S.FAILED_PRECONDITION: 400,
    _S.UNAUTHENTICATED: 401,
    _S.PERMISSION_DENIED: 403,
    _S.NOT_FOUND: 404,
    _S.ALREADY_EXISTS: 409,
    _S.ABORTED: 409,
    _S.RESOURCE_EXHAUSTED: 429,
    _S.CANCELLED: 499,
    _S.UNAVAILABLE: 503,
}
"""Status of HTTP by the status of the error over gRPC; 500 for all others."""


class _GoneError(Exception):
    """Reports that the client has closed its connection."""


class _Refusal(Exception):  # noqa: N818 - it carries an error
    """Reports that a request is refused with a status of its own."""

    def __init__(self, status: int, error: SecAggError) -> None:
        super().__init__(status)
        self.status = status
        self.error = error


@dataclass(slots=True)
class _Request:
    """Holds what is known of one request so far.

    Attributes:
        call: Its row of the table, once the path is known.
        who: Its caller, once proven.
        address: The address of its sender.
        closes: Whether an answer closes the connection.
        cors: Headers for every response to a listed origin.
    """

    address: str
    call: Call | None = None
    who: Caller | None = None
    closes: bool = True
    cors: tuple[tuple[bytes, bytes], ...] = ()


class EdgeApplication:
    """Answers requests that an HTTP server passes on.

    Args:
        service: Answers the calls.
        proof: Establishes callers.
        guards: Counts calls and bodies, over gRPC and here.
        origins: Origins of web pages that may call.
        address_of: Returns the sender's address of a connection, by its peer's host.
        on_known: Called with the peer's host and port of a request, and its caller.
    """

    def __init__(  # noqa: PLR0913 - it connects clients with all that answers them
        self,
        service: AggregatorService,
        proof: RequestProof,
        guards: CallGuards,
        *,
        origins: Iterable[str],
        address_of: Callable[[str], str],
        on_known: Callable[[str, Caller], None],
    ) -> None:
        self._service = service
        self._proof = proof
        self._guards = guards
        self._origins = frozenset(each.encode() for each in origins)
        self._address_of = address_of
        self._on_caller = on_known
        self._held = OpenCalls()
        self._is_stopping = False
        self._log = LimitedLog(
            asyncio.get_running_loop(),
            lambda n: log_event(_LOG, logging.INFO, EDGE_REQUESTS_REFUSED, count=n),
        )

    def end_held(self) -> None:
        """End held answers, and hold none from now on."""
        self._is_stopping = True
        self._held.end(lambda _: True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["client"] is None:
            return  # the client has gone before its address was known
        host, port = scope["client"]
        request = _Request(self._address_of(host))
        try:
            status, headers, body = await self._answer(
                request, scope, receive, f"{host}:{port}"
            )
        except _GoneError:
            return
        except _Refusal as refusal:
            status, headers, body = self._refused(request, refusal.error)
            status = refusal.status
        except (InternalError, LocalProtocolError) as error:
            status, headers, body = self._failed(request, error)
        except SecAggError as error:
            status, headers, body = self._refused(request, error)
        except Exception:  # noqa: BLE001 - the edge of the process, as in gRPC's guard
            status, headers, body = self._failed(
                request, ErrorCode.INTERNAL.error("unexpected exception")
            )
        if request.closes:
            headers.append((b"connection", b"close"))
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-length", b"%d" % len(body)),
                    (b"date", _date(int(time.time()))),
                    (b"cache-control", b"no-store"),
                    (b"vary", b"origin"),
                    (b"x-content-type-options", b"nosniff"),
                    *request.cors,
                    *headers,
                ],
            }
        )
        await send({"type": "http.response.body", "body": body})

    async def _answer(
        self, request: _Request, scope: Scope, receive: Receive, peer: str
    ) -> tuple[int, _Headers, bytes]:
        """Check a request step by step, and answer its call."""
        headers = _Fields(scope["headers"])
        if self._check_origin(request, headers) and scope["method"] == "OPTIONS":
            # A preflight has no body; a body that is sent is not received.
            request.closes = any(map(headers.all, _BODY_HEADERS))
            return 204, list(_PREFLIGHT), b""
        path, call = scope["raw_path"], _CALL_AT.get(scope["raw_path"])
        if scope["method"] != "POST" or call is None or scope["query_string"]:
            raise _Refusal(404, _NO_SUCH_CALL)  # R10.3-6
        # No request is remembered: a repeated one is answered again (R10.3-17).
        request.call = call
        signed = _check_form(headers)
        size = _check_length(headers)
        who = self._proof.caller(path.decode("ascii"), signed, request.address)
        request.who = who
        set_caller(who.name)
        self._on_caller(peer, who)
        admission = self._guards.admission.admitted(who.name, is_stream=False)
        async with self._guards.open_calls.open(who), admission:
            async with self._body(request, receive, size, signed) as body:
                asked = call.request.decode(body)  # R10.3-16
                del body
                if getattr(asked, "wait_ms", 0):
                    answer = await self._held_answer(who, asked, receive)
                else:
                    answer = await self._service.answer(who.name, asked)
            return 200, [_CONTENT_TYPE], call.encode(answer)

    def _check_origin(self, request: _Request, headers: "_Fields") -> bool:
        """Check R10.3-5; return whether a page of a listed origin asks."""
        origins = headers.all(b"origin")
        if not origins:
            return False
        if len(origins) > 1 or origins[0] not in self._origins:
            raise _Refusal(403, _NO_SUCH_ORIGIN)
        request.cors = (
            (b"access-control-allow-origin", origins[0]),
            (b"access-control-expose-headers", b"retry-after"),
        )
        return True

    @asynccontextmanager
    async def _body(
        self,
        request: _Request,
        receive: Receive,
        size: int,
        signed: Mapping[str, str],
    ) -> AsyncIterator[bytes]:
        """Receive the body when it is its turn; a chunk keeps its turn (R10.3-15)."""
        assert request.call is not None  # noqa: S101 - checked before
        assert request.who is not None  # noqa: S101 - proven before
        caller, parts = request.who.name, _whole(receive, size)
        if request.call.request is UploadChunk:
            async with self._guards.uploads.held(caller, parts) as body:
                request.closes = False
                _check_digest(body, signed)
                yield body
            return
        body = await self._guards.messages.read(parts, caller=caller)
        request.closes = False
        _check_digest(body, signed)
        yield body

    async def _held_answer(self, who: Caller, asked: Any, receive: Receive) -> Any:  # noqa: ANN401 - of any call
        """Answer a request that may be held, while its client is connected (rule 4)."""
        if self._is_stopping:
            raise ErrorCode.SHUTTING_DOWN.error(
                "the aggregator is stopping",
                fix="Come back in a moment; nothing is lost.",
                retry_after_seconds=1.0,
            )
        async with self._held.open(who):
            answering = asyncio.ensure_future(self._service.answer(who.name, asked))
            gone = asyncio.ensure_future(receive())  # only its end follows
            try:
                await asyncio.wait(
                    {answering, gone}, return_when=asyncio.FIRST_COMPLETED
                )
                if not answering.done() and gone.result()["type"] == _DISCONNECT:
                    raise _GoneError
                return await answering
            finally:
                gone.cancel()
                answering.cancel()
                await asyncio.wait({answering})

    def _refused(
        self, request: _Request, error: SecAggError
    ) -> tuple[int, _Headers, bytes]:
        """Count and log a refusal, and return its response."""
        self._service.record_refusal(error.code)
        method = request.call.name if request.call is not None else "-"
        if request.who is None:
            self._log.write(
                lambda: log_event(
                    _LOG,
                    logging.INFO,
                    EDGE_REQUEST_REFUSED,
                    method=method,
                    address=request.address,
                    code=error.code.name,
                )
            )
        else:
            self._guards.refusals.write(method, request.who.name, error.code)
        return _error_answer(error)

    def _failed(
        self, request: _Request, error: SecAggError
    ) -> tuple[int, _Headers, bytes]:
        """Count and log a defect of the aggregator, and return its response."""
        self._service.record_refusal(error.code)
        method = request.call.name if request.call is not None else "-"
        log_defect(_LOG, CALL_FAILED, method=method)
        return _error_answer(error)


class _Fields:
    """Holds the headers of a request, of which each may occur more than once."""

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            self._values.setdefault(name, []).append(value)

    def all(self, name: bytes) -> list[bytes]:
        """Return every value of a name, which is in lower case."""
        return self._values.get(name, [])


def _check_form(headers: _Fields) -> dict[str, str]:
    """Check R10.3-7 and return the five headers."""
    found: dict[str, str] = {}
    for name in _SIGNED:
        values = headers.all(name.encode())
        if len(values) != 1:
            raise _Refusal(400, _malformed(f"{name} must come exactly once"))
        # No byte is lost, and none beyond ASCII fits a permitted form.
        found[name] = values[0].decode("latin-1")
    if found["content-type"] != CONTENT_TYPE or headers.all(b"content-encoding"):
        raise _Refusal(415, _malformed(f"a body must be plain {CONTENT_TYPE}"))
    return found


def _check_length(headers: _Fields) -> int:
    """Check R10.3-8 and return the length of the body."""
    values = headers.all(b"content-length")
    if len(values) != 1 or _LENGTH.match(values[0]) is None:
        raise _Refusal(411, _malformed("Content-Length must come once, in digits"))
    size = int(values[0])
    if size > MAX_MESSAGE_BYTES:
        raise _Refusal(
            413, _malformed(f"a body has at most {MAX_MESSAGE_BYTES} bytes, not {size}")
        )
    return size


def _check_digest(body: bytes, signed: Mapping[str, str]) -> None:
    if content_digest(body) != signed["content-digest"]:
        raise _malformed("the signature is of another body")


async def _whole(receive: Receive, size: int) -> AsyncIterator[bytes]:
    """Yield the whole body once it has arrived."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == _DISCONNECT:
            raise _GoneError
        body += message.get("body", b"")
        if len(body) > size:
            raise _malformed("the body is longer than announced")
        if not message.get("more_body", False):
            break
    if len(body) != size:
        raise _malformed("the body is shorter than announced")
    yield bytes(body)


def _error_answer(error: SecAggError) -> tuple[int, _Headers, bytes]:
    """Return status, headers and body of a failed call."""
    status, text, metadata = status_of(error)
    detail = dict(metadata)[DETAIL_KEY]
    assert isinstance(detail, bytes)  # noqa: S101 - the suffix of its key says so
    body = {
        "code": _CONNECT_NAMES.get(status, status.name.lower()),
        "message": text,
        "details": [
            {
                "type": "secagg.v1.ErrorDetail",
                "value": base64.b64encode(detail).rstrip(b"=").decode(),
            }
        ],
    }
    headers: _Headers = [(b"content-type", b"application/json")]
    retry = getattr(error, "retry_after_seconds", None)
    if retry is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(retry))))
    http = _HTTP.get(status, 500)
    if status is _S.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Secagg"))
    return http, headers, json.dumps(body).encode()


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    """Return a moment as HTTP writes it."""
    return formatdate(second, usegmt=True).encode()


def _malformed(complaint: str) -> ServiceError:
    return ErrorCode.BAD_ENCODING.error(
        complaint, kind=ServiceError, fix="Send the request as PROTOCOL §10.3 gives it."
    )


_CONTENT_TYPE: Final = (b"content-type", CONTENT_TYPE.encode())
# Connect spells this one differently.
_CONNECT_NAMES: Final = {_S.CANCELLED: "canceled"}
_NO_SUCH_CALL: Final = ErrorCode.BAD_VERSION.error(
    "no call of the HTTP edge has this method and path",
    kind=ServiceError,
    fix="POST to /secagg.v1.SecAggService/ and the name of a unary call.",
)
_NO_SUCH_ORIGIN: Final = ErrorCode.NOT_INVITED.error(
    "web pages of this origin may not call",
    kind=ServiceError,
    fix="Ask the operator to list the origin in edge.origins.",
)
