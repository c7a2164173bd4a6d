"""A small HTTP/1.1 listener for programs and people that only read.

Rule 1: it answers GET and HEAD of its known paths, and nothing else. It reads no body,
        keeps no connection and sets no cookie.
Rule 2: a request has a limited time and a few KiB; the number of callers is limited.
Rule 3: where only this machine may read, a request must also *name* this machine. Else
        a page of another site could have a local browser read for it, by a host name
        that resolves to 127.0.0.1.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.parse import urlsplit

from secagg.runtime import log_events as telemetry
from secagg.transport.address import Address

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

_CALLERS_AT_MOST: Final = 32
_REQUEST_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 30.0
_HEAD_BYTES: Final = 8192
_HEADERS: Final = (
    "Cache-Control: no-store\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'\r\n"
    "Connection: close\r\n"
)


@dataclass(frozen=True, slots=True)
class HTTPAnswer:
    """Holds the response to a request.

    Attributes:
        body: The bytes.
        content_type: The type of the body.
        status: The status of HTTP.
    """

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


Page = Callable[[], Awaitable[HTTPAnswer]]


def text(words: str, status: HTTPStatus = HTTPStatus.OK) -> HTTPAnswer:
    """Return a response of plain text."""
    return HTTPAnswer(f"{words}\n".encode(), status=status)


class HTTPListener:
    """Answers HTTP; use it as an asynchronous context manager.

    Args:
        address: Where to listen; port 0 lets the system choose.
        pages: The handlers, by path.
        is_local: Whether only this machine may read (rule 3).

    Attributes:
        address: Where it listens, with the real port.
    """

    def __init__(
        self, address: Address, pages: Mapping[str, Page], *, is_local: bool
    ) -> None:
        self.address = address
        self._pages = pages
        self._is_local = is_local
        self._callers = ConnectionTasks()
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ServiceError: PORT_IN_USE or BAD_SETTINGS; the address is not available.
        """
        try:
            self._listener = await asyncio.start_server(
                self._begin_connection,
                self.address.host,
                self.address.port,
                limit=_HEAD_BYTES,
            )
        except OSError:
            raise self.address.bind_error() from None
        port: int = self._listener.sockets[0].getsockname()[1]
        self.address = Address(self.address.host, port)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening, and close all connections."""
        if self._listener is not None:
            self._listener.close()
        await self._callers.cancel_all()

    def _begin_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve a connection beside the others, up to a limit."""
        if len(self._callers) >= _CALLERS_AT_MOST:
            writer.transport.abort()
            return
        self._callers.begin(self._serve_connection(reader, writer))

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the one request of a connection, and close it."""
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(_ANSWER_SECONDS):
                method, answer = await self._answer_head(head)
                writer.write(_encode_response(method, answer))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the caller has gone, or sends nothing
        except asyncio.LimitOverrunError:
            writer.write(
                _encode_response("GET", text("too long", HTTPStatus.BAD_REQUEST))
            )
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer_head(self, head: bytes) -> tuple[str, HTTPAnswer]:
        """Return the method of a request, and its response."""
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004 - a request line has three
            return "GET", text("not a request of HTTP/1.1", HTTPStatus.BAD_REQUEST)
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return method, text("GET and HEAD only", HTTPStatus.METHOD_NOT_ALLOWED)
        if self._is_local and not _asks_for_this_machine(lines[1:]):
            return method, text(
                "ask for localhost or its address", HTTPStatus.MISDIRECTED_REQUEST
            )
        page = self._pages.get(target.partition("?")[0])
        if page is None:
            return method, text("no such page", HTTPStatus.NOT_FOUND)
        try:
            return method, await page()
        except Exception:  # noqa: BLE001 - a defect of the page ends no session
            telemetry.log_defect(_LOG, telemetry.CALL_FAILED, method=target)
            return method, text(
                "internal error; see the log", HTTPStatus.INTERNAL_SERVER_ERROR
            )


def _asks_for_this_machine(headers: list[str]) -> bool:
    """Whether the one Host header names the loopback: the end of a tunnel does, too."""
    hosts = [
        value.strip()
        for name, _, value in (line.partition(":") for line in headers)
        if name.lower() == "host"
    ]
    if len(hosts) != 1:
        return False
    try:
        host = urlsplit(f"//{hosts[0]}").hostname
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def _encode_response(method: str, answer: HTTPAnswer) -> bytes:
    """Return the bytes of a response; no body for HEAD."""
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n{_HEADERS}\r\n"
    )
    return head.encode("ascii") + (b"" if method == "HEAD" else answer.body)


class ConnectionTasks:
    """Tracks the connections of one listener."""

    def __init__(self) -> None:
        self._open: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, conversation: Coroutine[Any, Any, None]) -> None:
        """Serve a connection until it is done, or `cancel_all` ends it."""
        caller = asyncio.create_task(conversation)
        self._open.add(caller)
        caller.add_done_callback(self._open.discard)

    async def cancel_all(self) -> None:
        """End all connections; none is open when this returns."""
        for caller in self._open:
            caller.cancel()
        if self._open:
            await asyncio.wait(self._open)
