"""A client's connection to an aggregator's HTTP edge, signed with its identity key.

Rule 1: every request is signed for the authority of the settings; no redirect is
        followed, and no header of an answer is believed but its length.
Rule 2: it says whether TLS is known to end in the aggregator: the carriers of a client
        take part in no session of profile 1 where it is not (R10.3-4).
Rule 3: every failure arrives as an error of `secagg.errors`; all calls are idempotent,
        so that a kept connection that the server has closed is replaced once.

It is the reference for clients in other languages, and what tests call the edge with.
"""

import asyncio
import base64
import binascii
import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast

from secagg.client.enrolment import EnrolledClient, EnrolledIdentity
from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.protocol.arguments import says_how_to_open
from secagg.protocol.enrolment import ClientIdentity
from secagg.protocol.messages import Envelope, Round
from secagg.transport.address import Address
from secagg.transport.connection import CallDeadlines
from secagg.transport.request_proof import (
    MAX_CLOCK_CORRECTION_SECONDS,
    RequestSigner,
    path_of,
)
from secagg.wire.calls import (
    CALLS,
    LEAST_QUIET_SECONDS,
    MAX_MESSAGE_BYTES,
    GetUpdate,
    Reference,
    Request,
    Wait,
    WatchSession,
)
from secagg.wire.errors import decode_error

_Answer = TypeVar("_Answer")

HELD_MS: Final = 25_000
"""How long a question for an update may be held: most proxies allow 30 s."""

_HTTPS_PORT: Final = 443
_MAX_HEAD_BYTES: Final = 16 << 10
# What an answer may have: a message, or an error in JSON.
_MAX_BODY_BYTES: Final = MAX_MESSAGE_BYTES
# Status or length: of more digits than Python reads, it would be a defect of ours.
_NUMBER: Final = re.compile(r"[0-9]{1,10}")
_OK: Final = 200
_TOO_MANY: Final = 429
_HANDSHAKE_SECONDS: Final = 15.0
_KEPT_CONNECTIONS: Final = 2


@dataclass(frozen=True, slots=True)
class _Link:
    """One open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        self.writer.close()


@dataclass(frozen=True, slots=True)
class _HTTPAnswer:
    status: int
    body: bytes


@says_how_to_open
class EdgeConnection:
    """An `AggregatorConnection` to an HTTP edge.  Open it inside a running event loop.

    In programs it is made by `connect_edge`.  Use it as an asynchronous context
    manager, or call `close`.

    Args:
        authority: Of the edge, as its operator says: a host name, and its port unless
            that is 443.
        identity: The client's key and credential.
        aggregator: Name of the aggregator, as its operator says (R10.3-1).
        authorities: PEM of the authorities that the edge's certificate must be of; the
            system's by default.
        direct: TLS is known to end in the aggregator, so that profile 1 may be offered.
        address: Where to connect; by default what `authority` says.
        deadlines: Per call; sensible values by default.
        date: The present in Unix seconds.

    Attributes:
        is_direct: As `direct`.
    """

    def __init__(  # noqa: PLR0913 - one argument per decision of the owner
        self,
        authority: str,
        *,
        identity: ClientIdentity,
        aggregator: str,
        authorities: Path | None = None,
        direct: bool = False,
        address: Address | None = None,
        deadlines: CallDeadlines | None = None,
        date: Callable[[], float] = time.time,
    ) -> None:
        self._authority = authority
        self._signer = RequestSigner(authority, identity.issued, identity.key)
        self._trust_domain = identity.issued.trust_domain
        self.is_direct: Final = direct
        self._deadlines = deadlines or CallDeadlines()
        self._date = date
        self._correction: int | None = None
        has_port = not authority.endswith("]") and ":" in authority
        named = Address.parse(
            authority if has_port else f"{authority}:{_HTTPS_PORT}", name="authority"
        )
        self._host = named.host
        self._address = address or named
        self._tls = ssl.create_default_context(cafile=authorities)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_3
        self._tls.set_alpn_protocols(["http/1.1"])
        self._idle: list[_Link] = []
        self._is_closed = False
        self.identity: Final = identity.issued.credential.name
        self.aggregator: Final = aggregator

    @property
    def trust_domain(self) -> str | None:
        """Of the client's credential, which the edge must share."""
        return self._trust_domain

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the connections; harmless when repeated."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    async def probe(self) -> str:
        """Identify the aggregator by a TLS handshake, without a call."""
        if not self._idle:
            self._return_to_pool(await self._connect())
        return self.aggregator

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Send a request and return the aggregator's answer."""
        try:
            return await self._send_request(request)
        except ServiceError as error:
            if not self._accepts_correction(error):
                raise
        return await self._send_request(request)

    async def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Yield the updates of a session: one held request after the other."""
        after, wait_ms = request.after, 0
        while after is not Round.FINISHED:
            update = await self.call(GetUpdate(request.session_id, after, wait_ms))
            wait_ms = HELD_MS
            if isinstance(update, Wait):
                # Until when the next answer comes, and not when to ask.
                quiet = HELD_MS / 1000 + LEAST_QUIET_SECONDS
                yield replace(update, retry_after_seconds=quiet)
            else:
                after = update.kind.ROUND
                yield update

    async def _send_request(self, request: Request[_Answer]) -> _Answer:
        """Sign a request, send it in time, and decode its answer."""
        row, body = CALLS[type(request)], request.encode()
        path = path_of(row.name)
        created = int(self._date()) + (self._correction or 0)
        headers = self._signer.headers(path, body, created=created)
        seconds = self._deadlines.of(cast("type[Request[object]]", type(request)))
        try:
            async with asyncio.timeout(seconds):
                answer = await self._exchange(path, headers, body)
        except TimeoutError:
            raise self._unreachable(f"no answer came within {seconds:g} s") from None
        if answer.status != _OK:
            raise self._error_of(answer)
        return cast("_Answer", row.decode(answer.body))

    def _accepts_correction(self, error: ServiceError) -> bool:
        """Whether the clock of proofs was corrected, once, as the edge says (R10.3-3).

        Raises:
            ServiceError: BAD_CLOCK; the clocks differ too much for that.
        """
        if (
            error.code is not ErrorCode.UNAUTHENTICATED
            or error.server_time is None
            or self._correction is not None
        ):
            return False
        correction = error.server_time - int(self._date())
        if abs(correction) > MAX_CLOCK_CORRECTION_SECONDS:
            raise ErrorCode.BAD_CLOCK.error(
                f"this machine's clock differs from the aggregator's by {correction} s",
                fix="Correct the clock that is wrong.",
            )
        self._correction = correction
        return True

    # --- HTTP -------------------------------------------------------------------------

    async def _exchange(
        self, path: str, headers: dict[str, str], body: bytes
    ) -> _HTTPAnswer:
        """Send a request and return its answer."""
        lines = [f"POST {path} HTTP/1.1", f"Host: {self._authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        message = "\r\n".join(lines).encode("ascii") + body
        if self._idle:
            link = self._idle.pop()
            # The server may have closed it meanwhile.
            with suppress(OSError, asyncio.IncompleteReadError):
                return await self._send_once(link, message)
        link = await self._connect()
        try:
            return await self._send_once(link, message)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise self._unreachable(f"the connection broke: {error}") from None

    async def _send_once(self, link: _Link, message: bytes) -> _HTTPAnswer:
        """Send a request over a connection once, and keep it if it lasts."""
        lasts = False  # until a whole answer was read
        try:
            # An answer may come, and the connection end, before all was sent.
            with suppress(OSError):
                link.writer.write(message)
                await link.writer.drain()
            answer, lasts = await self._read_answer(link.reader)
        finally:
            if lasts:
                self._return_to_pool(link)
            else:
                link.close()
        return answer

    async def _read_answer(
        self, reader: asyncio.StreamReader
    ) -> tuple[_HTTPAnswer, bool]:
        """Read one answer, and whether its connection stays open."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.LimitOverrunError:
            raise self._unreachable("the answer's headers are too long") from None
        first, *lines = head.split("\r\n")
        words = first.split(" ", 2)
        fields = {}
        for line in lines:
            name, _, value = line.partition(":")
            fields[name.lower()] = value.strip()
        length = fields.get("content-length", "")
        if (
            len(words) < 2  # noqa: PLR2004 - version and status
            or not _NUMBER.fullmatch(words[1])
            or not _NUMBER.fullmatch(length)
            or int(length) > _MAX_BODY_BYTES
        ):
            raise self._unreachable("the answer is not one of an aggregator")
        body = await reader.readexactly(int(length))
        lasts = fields.get("connection", "").lower() != "close"
        return _HTTPAnswer(int(words[1]), body), lasts

    async def _connect(self) -> _Link:
        """Open a connection to the aggregator's address over TLS."""
        if self._is_closed:
            raise ErrorCode.CANCELLED.error(
                f"the connection to {self._authority} is closed",
                fix="Open a new connection.",
            )
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                reader, writer = await asyncio.open_connection(
                    self._address.host,
                    self._address.port,
                    ssl=self._tls,
                    server_hostname=self._host,
                    limit=_MAX_HEAD_BYTES,
                )
        except ssl.SSLCertVerificationError as error:
            raise ErrorCode.BAD_CERTIFICATE.error(
                f"the certificate of {self._authority} is invalid: "
                f"{error.verify_message}",
                fix="Check the host name, and which authorities are trusted.",
            ) from None
        except (OSError, TimeoutError) as error:
            reason = str(error) or "no connection within the time of a handshake"
            raise self._unreachable(reason) from None
        return _Link(reader, writer)

    def _return_to_pool(self, link: _Link) -> None:
        """Keep a connection for the next call, or close it."""
        if self._is_closed or len(self._idle) >= _KEPT_CONNECTIONS:
            link.close()
        else:
            self._idle.append(link)

    def _error_of(self, answer: _HTTPAnswer) -> SecAggError:
        """Return what a failed call means; a detail decides, not the status."""
        error = _error_detail(answer.body)
        if error is not None:
            return error
        if answer.status == _TOO_MANY:
            return ErrorCode.OVERLOADED.error(
                "something between client and aggregator limits calls",
                fix="Try again later.",
                retry_after_seconds=1.0,
            )
        return self._unreachable(
            f"something on the way answered with status {answer.status}"
        )

    def _unreachable(self, reason: str) -> SecAggError:
        """Return the error of an edge that cannot be reached."""
        return ErrorCode.UNREACHABLE.error(
            f"{self._authority} cannot be reached: {reason}",
            fix="Check the address, the network and that the aggregator runs; "
            "try again.",
            retry_after_seconds=1.0,
        )


def connect_edge(  # noqa: PLR0913 - one argument per decision of the owner
    authority: str,
    enrolled: EnrolledIdentity,
    *,
    aggregator: str,
    authorities: Path | None = None,
    direct: bool = False,
    address: Address | None = None,
) -> EdgeConnection:
    """Return a connection to an HTTP edge, for a client that is enrolled.

    Args:
        authority: Of the edge, as its operator says: a host name, and its port unless
            that is 443.
        enrolled: From `load_enrolled`, for profile 1 too: it signs every request.
        aggregator: Name of the aggregator, as its operator says (R10.3-1).
        authorities: PEM of the authorities that the edge's certificate must be of; the
            system's by default.
        direct: TLS is known to end in the aggregator, so that profile 1 may be offered.
        address: Where to connect; by default what `authority` says.

    Raises:
        LocalProtocolError: `enrolled` is something else.
    """
    if not isinstance(enrolled, EnrolledClient):
        raise ErrorCode.LOCAL_MISUSE.error(
            "the client's place among the enrolled is not loaded",
            fix="Give load_enrolled(ClientEnrolment(...), name=...).",
        )
    return EdgeConnection(
        authority,
        identity=enrolled.identity,
        aggregator=aggregator,
        authorities=authorities,
        direct=direct,
        address=address,
    )


def _error_detail(body: bytes) -> SecAggError | None:
    """Return the error in the body of a failed call; None if it has no detail."""
    try:
        document: Any = json.loads(body)
        value = str(document["details"][0]["value"])
        detail = base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        RecursionError,
        binascii.Error,
    ):
        return None
    return decode_error(detail)
