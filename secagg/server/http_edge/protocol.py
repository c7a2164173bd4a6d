"""HTTP/1.1 of the edge: uvicorn's protocol, with limits, in the running loop.

Rule 1: headers have a limit and a time.  uvicorn's protocol has neither: it keeps any
        number of bytes, and half a line for ever.
Rule 2: a connection has one request at a time, and must read its answer in time.
        uvicorn reads requests ahead of the answer, and waits for a reader for ever.
Rule 3: uvicorn's own server is not used.  It handles the process's signals, polls for
        its end ten times a second, and waits for ever for calls that do not end.

Only an aggregator with an edge imports it: it needs the extra `edge`.
"""

import asyncio
import math
import ssl
from contextlib import suppress
from typing import Final, Self

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from secagg.server.http_edge.app import EdgeApplication
from secagg.transport.address import Address

# A credential of two long names, a signature and the headers of browsers take 3 KiB.
_MAX_HEADER_BYTES: Final = 16 << 10
# From the first byte of a request, or of a connection, to the end of its headers.
HEADER_SECONDS: Final = 10.0
# Between two requests: most proxies and browsers keep connections for a minute.
IDLE_SECONDS: Final = 60.0
# Time to read an answer before more is written: 4 MiB at 35 KiB/s, as the longest unary
# call.
ANSWER_SECONDS: Final = 120.0
# Time for a peer to close TLS after a refusal.
_CLOSE_SECONDS: Final = 2.0
_BACKLOG: Final = 1024


class _ListenerState(ServerState):
    """Holds uvicorn's connections and calls of one listener."""

    is_closed: bool = False


class _GuardedProtocol(HttpToolsProtocol):
    """Ends the connections of uvicorn's protocol that rule 1 or rule 2 does not allow.

    Args:
        config: uvicorn's configuration.
        state: Connections and calls of the same listener.
        most: The largest number of connections.
        lost: Set whenever a connection has ended.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        state: _ListenerState,
        *,
        most: int,
        lost: asyncio.Event,
    ) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._listener = state
        self._most = most
        self._lost = lost
        # From a request to the end of the headers of the next one.
        self._is_between = True
        self._header_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        # A handshake may end after the listener has closed: it is not counted before.
        if self._listener.is_closed or len(self.connections) >= self._most:
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        self._limit_time()

    def data_received(self, data: bytes) -> None:
        """Count header bytes and time, and close a connection over its limit."""
        if self.transport.is_closing():
            return  # bytes after a refusal
        if self._is_between:
            self._header_bytes += len(data)
            self._limit_time()
        super().data_received(data)
        if self._is_between and self._header_bytes > _MAX_HEADER_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # No browser and no proxy does this.  Each request in a piece would be
            # stored, beyond every limit, before the first one is checked.
            self.transport.abort()
            raise ValueError("a request before the answer of another")
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Refuse headers over the limit, and keep the path as it was sent."""
        sizes = (len(name) + len(value) for name, value in self.headers)
        if sum(sizes, len(self.url)) > _MAX_HEADER_BYTES:
            raise ValueError("too long")  # the answer is 400, and the connection ends
        self._is_between = False
        self._unlimit_time()
        super().on_headers_complete()
        # As received: the application refuses a query or another host.
        self.scope["raw_path"] = self.url

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_between, self._header_bytes = True, 0

    def pause_writing(self) -> None:
        self._writing = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unlimit_writing()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unlimit_time()
        self._unlimit_writing()
        super().connection_lost(exc)
        self._lost.set()

    def _limit_time(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _unlimit_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _unlimit_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None


class HTTPServer:
    """Runs a listening socket whose connections speak to an application.

    Made by `start`.

    Attributes:
        address: Where it listens, with the real port.
    """

    def __init__(
        self, server: asyncio.Server, state: _ListenerState, lost: asyncio.Event
    ) -> None:
        self._server = server
        self._state = state
        self._lost = lost
        host, port = server.sockets[0].getsockname()[:2]
        self.address: Final = Address(host, port)

    @classmethod
    async def start(
        cls,
        app: EdgeApplication,
        address: Address,
        context: ssl.SSLContext,
        *,
        most: int,
    ) -> Self:
        """Listen.

        Args:
            app: Answers the requests.
            address: Where to listen; port 0 lets the system choose.
            context: Of TLS.
            most: The largest number of connections.

        Raises:
            ServiceError: PORT_IN_USE or BAD_SETTINGS.
        """
        config = uvicorn.Config(
            app,
            log_config=None,
            # Unauthenticated peers cause what it logs, a line each.
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            ws="none",
            lifespan="off",
            timeout_keep_alive=math.ceil(IDLE_SECONDS),
        )
        config.load()
        state, lost = _ListenerState(), asyncio.Event()
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: _GuardedProtocol(config, state, most=most, lost=lost),
                address.host,
                address.port,
                ssl=context,
                backlog=_BACKLOG,
                ssl_handshake_timeout=HEADER_SECONDS,
                ssl_shutdown_timeout=_CLOSE_SECONDS,
            )
        except (OSError, UnicodeError):
            raise address.bind_error() from None
        return cls(server, state, lost)

    async def close(self, grace_seconds: float) -> None:
        """Close the port, let calls finish within the grace, then close everything."""
        self._state.is_closed = True
        self._server.close()
        for connection in tuple(self._state.connections):
            connection.shutdown()  # at once, or after its answer
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                while self._state.connections or self._state.tasks:
                    self._lost.clear()
                    await self._lost.wait()
        for connection in tuple(self._state.connections):
            connection.transport.abort()
        left = tuple(self._state.tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
