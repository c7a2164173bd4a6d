"""A small HTTP/1.1 listener for programs and people that only look.

Rule 1: it answers GET and HEAD of the paths that it was given, and nothing else; it
        reads no body, keeps no connection and no cookie.
Rule 2: a caller has a moment and a few KiB to say what it wants; there are few at once.
Rule 3: where only this machine may look, a caller must also *ask* for this machine:
        else a web page from anywhere could have a browser here read for it (a name that
        is made to point to 127.0.0.1).
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
class Answer:
    """What a caller gets.

    Attributes:
        body: The bytes.
        content_type: What they are.
        status: How it went.
    """

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


Page = Callable[[], Awaitable[Answer]]


def text(words: str, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """Return an answer in words."""
    return Answer(f"{words}\n".encode(), status=status)


class HTTPListener:
    """Answers HTTP; use it as an asynchronous context manager.

    Args:
        address: Where to listen; port 0 lets the system choose.
        pages: What is answered, by path.
        is_local: Only this machine may look (rule 3).

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
            ServiceError: PORT_IN_USE or BAD_SETTINGS; the address cannot be had.
        """
        try:
            self._listener = await asyncio.start_server(
                self._meet, self.address.host, self.address.port, limit=_HEAD_BYTES
            )
        except OSError:
            raise self.address.why_not() from None
        port: int = self._listener.sockets[0].getsockname()[1]
        self.address = Address(self.address.host, port)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Listen no more, and let callers go."""
        if self._listener is not None:
            self._listener.close()
        await self._callers.let_go()

    def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._callers) >= _CALLERS_AT_MOST:
            writer.transport.abort()
            return
        self._callers.begin(self._serve(reader, writer))

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(_ANSWER_SECONDS):
                method, answer = await self._answer(head)
                writer.write(_written(method, answer))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the caller has gone, or says nothing
        except asyncio.LimitOverrunError:
            writer.write(_written("GET", text("too long", HTTPStatus.BAD_REQUEST)))
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, head: bytes) -> tuple[str, Answer]:
        """Return the method that was asked for, and what it is answered."""
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004 - a request line has three
            return "GET", text("no request of HTTP/1.1", HTTPStatus.BAD_REQUEST)
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return method, text("this only shows", HTTPStatus.METHOD_NOT_ALLOWED)
        if self._is_local and not _asks_for_this_machine(lines[1:]):
            return method, text(
                "ask for localhost or its address", HTTPStatus.MISDIRECTED_REQUEST
            )
        page = self._pages.get(target.partition("?")[0])
        if page is None:
            return method, text("no such page", HTTPStatus.NOT_FOUND)
        try:
            return method, await page()
        except Exception:  # noqa: BLE001 - ours, and no session ends by it
            telemetry.log_defect(_LOG, telemetry.CALL_FAILED, method=target)
            return method, text(
                "internal error; see the log", HTTPStatus.INTERNAL_SERVER_ERROR
            )


def _asks_for_this_machine(headers: list[str]) -> bool:
    """Whether the one Host header names the loopback: a tunnel's end does, too."""
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


def _written(method: str, answer: Answer) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n{_HEADERS}\r\n"
    )
    return head.encode("ascii") + (b"" if method == "HEAD" else answer.body)


class ConnectionTasks:
    """The callers of one listener."""

    def __init__(self) -> None:
        self._talking: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._talking)

    def begin(self, conversation: Coroutine[Any, Any, None]) -> None:
        """Talk to a caller until it is done, or `let_go` ends it."""
        caller = asyncio.create_task(conversation)
        self._talking.add(caller)
        caller.add_done_callback(self._talking.discard)

    async def let_go(self) -> None:
        """End all conversations; none is under way when this returns."""
        for caller in self._talking:
            caller.cancel()
        if self._talking:
            await asyncio.wait(self._talking)
