"""Accepts connections before gRPC does, and passes on those with a valid beginning.

gRPC accepts every peer, keeps an idle connection without limit, does not report
refusals, and cannot close a single one.  A thousand idle sockets block an aggregator.

Rule 1: gRPC gets a connection when its first message is whole, and its turn has come.
Rule 2: a connection counts as unauthenticated until a call under a certificate was made
        on it; `AdmissionLimits` limits their number and their time.
Rule 3: a refused peer is removed from every count at once, and logged: ten lines a
        second at most, the last of which is a number.
Rule 4: bytes pass unread.  TLS ends in gRPC; the relay has no key and sees no
        certificate.  It is told the caller of each call, by connection.
Rule 5: a side that does not read stops the other one; nothing accumulates here.
Rule 6: idle peers make room for newcomers.  If there is no room, the oldest connection
        that has not begun TLS is closed, or else a handshake that has stalled.  It is
        one of an address with more unauthenticated peers here than the newcomer's.
Rule 7: a process that is late works on few handshakes at a time: a handshake that it
        has begun then ends before its client stops waiting.

Connections are told apart by the address from which they are passed on, one of
127.0.0.0/8 for each: ports are reused too soon.
"""

import asyncio
import errno
import ipaddress
import logging
import math
import os
import socket
import struct
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final, Self

from secagg.runtime.log_events import (
    FILE_DESCRIPTORS_EXHAUSTED,
    HANDSHAKE_REFUSED,
    HANDSHAKES_REFUSED,
    TRANSPORT_LOGGER,
    log_event,
)
from secagg.transport.address import Address, address_group
from secagg.transport.handshake_limits import AdmissionLimits
from secagg.transport.tls import CertificateNumber

# And one with the number of the others.
_LINES_PER_SECOND: Final = 9


class LimitedLog:
    """Writes a line for each event, while there are few.

    A second begins with a line.  If lines were not written, it ends with their number:
    that is its last line, and the only one beyond nine.

    Args:
        loop: The running loop.
        write_count: Writes the line with the number of the others.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, write_count: Callable[[int], None]
    ) -> None:
        self._loop = loop
        self._write_count = write_count
        self._ends = -math.inf
        self._lines = 0
        self._unwritten = 0
        self._at_end: asyncio.TimerHandle | None = None

    def write(self, write_line: Callable[[], None]) -> None:
        """Write a line, or count it.

        Args:
            write_line: Writes it.
        """
        now = self._loop.time()
        if now >= self._ends:
            self.flush()
            self._ends, self._lines = now + 1.0, 0
        if self._lines >= _LINES_PER_SECOND:
            if self._at_end is None:
                self._at_end = self._loop.call_at(self._ends, self.flush)
            self._unwritten += 1
            return
        self._lines += 1
        write_line()

    def flush(self) -> None:
        """End this second; write how many lines were not written."""
        self._ends = -math.inf
        if self._at_end is not None:
            self._at_end.cancel()
            self._at_end = None
            self._write_count(self._unwritten)
            self._unwritten = 0


_LOG: Final = logging.getLogger(TRANSPORT_LOGGER)

# A ClientHello with a post-quantum key share takes 2 KiB.
_MAX_HELLO_BYTES: Final = 4096
_TLS_HEADER_BYTES: Final = 5
_HANDSHAKE_RECORD: Final = 22
_CLIENT_HELLO: Final = 1
_HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_MAX_OPENING_BYTES: Final = _TLS_HEADER_BYTES + _MAX_HELLO_BYTES

_BACKLOG: Final = 1024
_ACCEPTS_AT_ONCE: Final = 64
# A handshake takes a few round trips; a longer one makes room if others wait.
_STALLED_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.25
# Handshakes under way while the process is behind: TLS keeps each core busy with them.
_HANDSHAKES_PER_CORE: Final = 2
_RETRY_SECONDS: Final = 1.0
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# close() then drops the connection at once, with nothing left behind in the kernel.
_LINGER_NOT: Final = struct.pack("ii", 1, 0)

# 127.1.0.0 and above: 127.0.0.x belongs to the host.
_FIRST_SOURCE: Final = int(ipaddress.IPv4Address("127.1.0.0"))
_SOURCES: Final = int(ipaddress.IPv4Address("127.255.255.255")) - _FIRST_SOURCE


class Rejection(StrEnum):
    """Why a connection was ended."""

    TOTAL = "total"
    PER_ADDRESS = "per_address"
    WAITING = "waiting"
    NO_HELLO = "no_hello"
    BAD_HELLO = "bad_hello"
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    CERTIFICATE = "certificate"
    PER_IDENTITY = "per_identity"
    REVOKED = "revoked"
    NO_FILES = "no_files"
    STOPPING = "stopping"


def begins_tls(opening: bytes) -> bool | None:
    """Return whether bytes are one whole ClientHello; None when more must come.

    It checks only the frame: a record of type 22 and version 3.x, at most 4096 bytes,
    that holds a message of type 1.
    """
    start = bytes((_HANDSHAKE_RECORD, 3))
    if not start.startswith(opening[:2]):
        return False
    if len(opening) <= _TLS_HEADER_BYTES:
        return None
    length = int.from_bytes(opening[3:5], "big")
    if not 0 < length <= _MAX_HELLO_BYTES or opening[5] != _CLIENT_HELLO:
        return False
    return True if len(opening) >= _TLS_HEADER_BYTES + length else None


def begins_http2(opening: bytes) -> bool | None:
    """Return whether bytes begin HTTP/2 in plaintext; None when more must come."""
    if not _HTTP2_PREFACE.startswith(opening[: len(_HTTP2_PREFACE)]):
        return False
    return True if len(opening) >= len(_HTTP2_PREFACE) else None


class _HandshakeStage(Enum):
    WAITING = 1
    QUEUED = 2
    DIALLED = 3
    KNOWN = 4
    GONE = 5


class _PendingConnection(asyncio.Protocol):
    """The outer end of one connection, and its state."""

    def __init__(self, relay: "Relay", address: str, group: str, now: float) -> None:
        self.relay = relay
        self.address = address
        self.group = group
        self.accepted_at = now
        self.stage = _HandshakeStage.WAITING
        self.received = 0
        self.opening = bytearray()
        self.source = ""
        self.identity = ""
        self.certificate: CertificateNumber | None = None
        self.transport: asyncio.Transport | None = None
        self.inside: _RelayedConnection | None = None
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a socket
        self.transport = transport
        if self.stage is _HandshakeStage.GONE:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, or collect those of the handshake."""
        self.received += len(data)
        if self.inside is not None:
            self.inside.transport.write(data)
            return
        self.opening += data
        self.relay.read(self)

    def pause_writing(self) -> None:
        if self.inside is not None:
            self.inside.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.inside is not None:
            self.inside.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self.relay.record_close(self)
        if self.inside is not None:
            self.inside.transport.close()

    def abort(self) -> None:
        """Drop both ends, whatever is under way."""
        for end in (self, self.inside):
            if end is not None and end.transport is not None:
                end.transport.abort()


class _RelayedConnection(asyncio.Protocol):
    """The end of a connection that leads to gRPC."""

    transport: asyncio.Transport

    def __init__(self, visitor: _PendingConnection) -> None:
        self.visitor = visitor

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Forward the bytes that the peer has sent so far."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a socket
        self.transport = transport
        if self.visitor.stage is _HandshakeStage.GONE:
            transport.abort()
            return
        self.visitor.inside = self
        transport.write(bytes(self.visitor.opening))
        self.visitor.opening.clear()

    def data_received(self, data: bytes) -> None:
        """Pass answers on to the peer."""
        if self.visitor.transport is not None:
            self.visitor.transport.write(data)

    def pause_writing(self) -> None:
        if self.visitor.transport is not None:
            self.visitor.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.visitor.transport is not None:
            self.visitor.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self.visitor.relay.forward_close(self.visitor)


class LoopDelay:
    """Detects that a loop runs late because its process has too little time.

    Args:
        loop: The loop.
        on_change: Called when the loop is on time again.
    """

    TICK_SECONDS: Final = 0.5
    LATE_SECONDS: Final = 0.5

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_change: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._on_change = on_change
        self.is_late = False
        self._begin_tick()

    def _begin_tick(self) -> None:
        self._due = self._loop.time() + self.TICK_SECONDS
        self._tick = self._loop.call_at(self._due, self._end_tick)

    def _end_tick(self) -> None:
        """Measure how late the loop is, and report when it has caught up."""
        was_late = self.is_late
        self.is_late = self._loop.time() - self._due > self.LATE_SECONDS
        self._begin_tick()
        if was_late and not self.is_late:
            self._on_change()

    def close(self) -> None:
        """Stop measuring."""
        self._tick.cancel()


class Relay:
    """Listens in gRPC's place and passes connections on to it.

    Made by `listen`.

    Attributes:
        address: Where it listens, with the real port.
        most: Connections that it takes at once.
        refused: How many were ended, by reason.
    """

    def __init__(  # noqa: PLR0913 - by `listen` alone
        self,
        listeners: Iterable[socket.socket],
        address: Address,
        admission: AdmissionLimits,
        *,
        inside: Address,
        most: int,
        begins: Callable[[bytes], bool | None],
    ) -> None:
        self.address: Final = address
        self.most: Final = most
        self._listeners = tuple(listeners)
        self._admission = admission
        self._inside = inside
        self._begins = begins
        self._loop = asyncio.get_running_loop()
        self._refused: Counter[Rejection] = Counter()
        self._log = LimitedLog(
            self._loop,
            lambda n: log_event(_LOG, logging.INFO, HANDSHAKES_REFUSED, count=n),
        )
        # Every open connection is in `_open`, and by its stage in one of the others.
        self._open: set[_PendingConnection] = set()
        self._waiting: OrderedDict[_PendingConnection, None] = OrderedDict()
        self._queued: OrderedDict[str, deque[_PendingConnection]] = OrderedDict()
        self._dialled: OrderedDict[_PendingConnection, float] = (
            OrderedDict()
        )  # and since when
        self._of_identity: dict[str, OrderedDict[_PendingConnection, None]] = {}
        self._unproven: Counter[str] = Counter()  # by group, in any of the first three
        self._by_source: dict[str, _PendingConnection] = {}
        self._next_source = 0
        self._is_stopping = False
        self._is_making_room = False
        self._timer: asyncio.TimerHandle | None = None
        self._delay = LoopDelay(self._loop, self._dial_next)
        self._tasks: set[asyncio.Future[object]] = set()
        for listener in self._listeners:
            self._loop.add_reader(listener, self._accept_connections, listener)

    @classmethod
    async def listen(
        cls,
        address: Address,
        admission: AdmissionLimits,
        *,
        inside: Address,
        most: int,
        begins: Callable[[bytes], bool | None] = begins_tls,
    ) -> Self:
        """Open the port.

        Args:
            address: Where to listen; port 0 lets the system choose.
            admission: The limits.
            inside: Where gRPC listens, on 127.0.0.1.
            most: Connections to take at once, from
                `AdmissionLimits.connections_within`.
            begins: Checks how a connection begins.

        Raises:
            ServiceError: PORT_IN_USE or BAD_SETTINGS; states what to change.
        """
        listeners = await _bind(address)
        port = listeners[0].getsockname()[1]
        return cls(
            listeners,
            Address(address.host, port),
            admission,
            inside=inside,
            most=most,
            begins=begins,
        )

    @property
    def refused(self) -> Mapping[Rejection, int]:
        """How many connections were ended, by reason."""
        return MappingProxyType(self._refused)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    def record_caller(
        self, peer: str, identity: str, certificate: CertificateNumber | None = None
    ) -> None:
        """Record that a call was made under a certificate; the first one counts.

        Args:
            peer: gRPC's name of the connection: ``ipv4:127.9.8.7:4321``.
            identity: The name in the certificate.
            certificate: Its number.
        """
        _, _, place = peer.partition(":")
        visitor = self._by_source.get(place.rpartition(":")[0])
        if visitor is None or visitor.stage is not _HandshakeStage.DIALLED:
            return
        self._leave_stage(visitor)
        self._decrement(visitor)
        visitor.stage = _HandshakeStage.KNOWN
        visitor.identity, visitor.certificate = identity, certificate
        own = self._of_identity.setdefault(identity, OrderedDict())
        own[visitor] = None
        while len(own) > self._admission.per_identity:
            self._end_visitor(next(iter(own)), Rejection.PER_IDENTITY)
        self._dial_next()

    def address_of(self, peer: str) -> str | None:
        """Return the origin of a connection; None for one that is closed.

        Args:
            peer: The address from which it was passed on.
        """
        visitor = self._by_source.get(peer)
        return None if visitor is None else visitor.address

    def end_known(
        self, is_unwelcome: Callable[[str, CertificateNumber | None], bool]
    ) -> None:
        """Drop authenticated connections whose callers are no longer accepted.

        Args:
            is_unwelcome: Checks identity and certificate of each.
        """
        known = [each for own in self._of_identity.values() for each in own]
        for visitor in known:
            if is_unwelcome(visitor.identity, visitor.certificate):
                self._end_visitor(visitor, Rejection.REVOKED)

    def stop_listening(self) -> None:
        """Close the port; open connections stay."""
        if self._is_stopping:
            return
        self._is_stopping = True
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()

    async def close(self) -> None:
        """Close the port and every connection."""
        self.stop_listening()
        if self._timer is not None:
            self._timer.cancel()
        self._delay.close()
        self._is_making_room = True  # and no further connection gets its turn
        for visitor in tuple(self._open):
            self._remove(visitor)
            visitor.abort()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._log.flush()

    # --- accepting ------------------------------------------------------------------

    def _accept_connections(self, listener: socket.socket) -> None:
        """Accept some connections of a listener that is ready."""
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                accepted, where = listener.accept()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._rest(listener, error)
                # Every other error of accept() concerns the connection that it lost.
                return
            self._admit(accepted, str(where[0]))

    def _rest(self, listener: socket.socket, error: OSError) -> None:
        """Stop accepting for a moment: waiting peers stay in the kernel's queue."""
        self._refused[Rejection.NO_FILES] += 1
        log_event(
            _LOG, logging.CRITICAL, FILE_DESCRIPTORS_EXHAUSTED, reason=error.strerror
        )
        self._loop.remove_reader(listener)
        self._loop.call_later(_RETRY_SECONDS, self._accept_again, listener)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            self._loop.add_reader(listener, self._accept_connections, listener)

    def _admit(self, accepted: socket.socket, address: str) -> None:
        """Admit a connection to the handshake, or refuse it by a limit."""
        group = address_group(address)
        per_address = self._admission.per_address
        refusal = None
        if per_address and self._unproven[group] >= per_address:
            refusal = Rejection.PER_ADDRESS
        elif len(self._open) >= self.most and not self._make_room(group):
            refusal = Rejection.TOTAL
        if refusal is not None:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            accepted.close()
            self._count_refusal(refusal, address, seconds=0.0, received=0)
            return
        accepted.settimeout(0.0)
        visitor = _PendingConnection(self, address, group, self._loop.time())
        self._open.add(visitor)
        self._waiting[visitor] = None
        self._unproven[group] += 1
        self._limit_time(visitor, Rejection.NO_HELLO)
        self._run(self._loop.connect_accepted_socket(lambda: visitor, accepted))
        if len(self._waiting) > self._admission.waiting:
            self._end_visitor(next(iter(self._waiting)), Rejection.WAITING)

    def _make_room(self, group: str) -> bool:
        """Close a silent connection for one from `group`, if there is any (rule 6)."""
        oldest = next(iter(self._waiting), None)
        if oldest is not None:
            self._end_visitor(oldest, Rejection.WAITING)
            return True
        for stalled in self._stalled_handshakes():
            if self._unproven[stalled.group] > self._unproven.get(group, 0) + 1:
                self._end_visitor(stalled, Rejection.HANDSHAKE_TIMEOUT)
                return True
        return False

    def _limit_time(self, visitor: _PendingConnection, refusal: Rejection) -> None:
        visitor.timer = self._loop.call_later(
            self._admission.handshake_seconds, self._end_visitor, visitor, refusal
        )

    # --- passing on -----------------------------------------------------------------

    def read(self, visitor: _PendingConnection) -> None:
        """Check the bytes that a connection sent before it was passed on."""
        if visitor.stage is _HandshakeStage.WAITING:
            begins = self._begins(bytes(visitor.opening))
            if begins is None:
                return
            if begins:
                self._leave_stage(visitor)
                visitor.stage = _HandshakeStage.QUEUED
                self._queued.setdefault(visitor.group, deque()).append(visitor)
                self._dial_next()
        if (
            len(visitor.opening) > _MAX_OPENING_BYTES
            or visitor.stage is _HandshakeStage.WAITING
        ):
            self._end_visitor(visitor, Rejection.BAD_HELLO)

    def _dial_next(self) -> None:
        """Dial for the connections whose turn it is: one of each group, in turns."""
        if self._is_making_room:
            return
        while self._queued and len(self._dialled) < self._handshake_limit():
            self._dial_first_of(next(iter(self._queued)))
        if self._queued and self._timer is None:
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._end_stalled)

    def _handshake_limit(self) -> int:
        """Return how many handshakes may be under way (rule 7)."""
        most = self._admission.handshakes
        if self._delay.is_late:
            return min(most, _HANDSHAKES_PER_CORE * (os.cpu_count() or 1))
        return most

    def _dial_first_of(self, group: str) -> None:
        """Dial for the first of a group that has waited for its turn."""
        queue = self._queued[group]
        visitor = queue.popleft()
        self._queued.move_to_end(group)
        if not queue:
            del self._queued[group]
        visitor.stage = _HandshakeStage.DIALLED
        self._dialled[visitor] = self._loop.time()
        self._limit_time(visitor, Rejection.HANDSHAKE_TIMEOUT)
        visitor.source = self._unused_source()
        self._by_source[visitor.source] = visitor
        self._run(self._dial(visitor))

    def _end_stalled(self) -> None:
        """Close handshakes that have stalled for groups that wait (rule 6)."""
        self._timer = None
        self._is_making_room = True
        waiting = deque(sorted(self._queued, key=self._unproven.__getitem__))
        for visitor in self._stalled_handshakes():
            most = self._unproven[visitor.group]
            if waiting and most > self._unproven[waiting[0]]:
                self._end_visitor(visitor, Rejection.HANDSHAKE_TIMEOUT)
                self._dial_first_of(waiting.popleft())
        self._is_making_room = False
        self._dial_next()

    def _stalled_handshakes(self) -> list[_PendingConnection]:
        """Return the handshakes that take too long, oldest first."""
        latest = self._loop.time() - _STALLED_SECONDS
        return [each for each, began in self._dialled.items() if began <= latest]

    async def _dial(self, visitor: _PendingConnection) -> None:
        """Connect an admitted peer with the server behind the relay."""
        try:
            await self._loop.create_connection(
                lambda: _RelayedConnection(visitor),
                self._inside.host,
                self._inside.port,
                local_addr=(visitor.source, 0),
            )
        except OSError as error:
            if error.errno in _NO_ROOM:
                log_event(
                    _LOG,
                    logging.CRITICAL,
                    FILE_DESCRIPTORS_EXHAUSTED,
                    reason=error.strerror,
                )
                self._end_visitor(visitor, Rejection.NO_FILES)
            else:  # gRPC is about to stop
                self._end_visitor(visitor, Rejection.STOPPING)

    def _unused_source(self) -> str:
        """Return a loopback address that no connection has."""
        while True:
            self._next_source = (self._next_source + 1) % _SOURCES
            source = str(ipaddress.IPv4Address(_FIRST_SOURCE + self._next_source))
            if source not in self._by_source:
                return source

    def _run(self, work: Awaitable[object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- ending ---------------------------------------------------------------------

    def record_close(self, visitor: _PendingConnection) -> None:
        """Record that the peer has closed its end."""
        self._remove(visitor)

    def forward_close(self, visitor: _PendingConnection) -> None:
        """Pass on that gRPC has closed its end, after its last bytes."""
        if visitor.stage is _HandshakeStage.DIALLED and not self._is_stopping:
            self._count_visitor(visitor, Rejection.CERTIFICATE)
        self._remove(visitor)
        if visitor.transport is not None and not visitor.transport.is_closing():
            visitor.transport.close()
            # A peer that does not read would keep the file open.
            self._loop.call_later(
                self._admission.handshake_seconds, visitor.transport.abort
            )

    def _end_visitor(self, visitor: _PendingConnection, refusal: Rejection) -> None:
        """Count, remove and close a connection, once."""
        if visitor.stage is _HandshakeStage.GONE:
            return
        self._count_visitor(visitor, refusal)
        self._remove(visitor)
        visitor.abort()

    def _remove(self, visitor: _PendingConnection) -> None:
        """Remove a connection from every count."""
        if visitor.stage is _HandshakeStage.GONE:
            return
        stage = visitor.stage
        self._leave_stage(visitor)
        if stage is not _HandshakeStage.KNOWN:
            self._decrement(visitor)
        visitor.stage = _HandshakeStage.GONE
        self._open.discard(visitor)
        self._by_source.pop(visitor.source, None)
        if stage is _HandshakeStage.DIALLED:
            self._dial_next()

    def _leave_stage(self, visitor: _PendingConnection) -> None:
        """Remove a connection from the counts of its stage."""
        if visitor.timer is not None:
            visitor.timer.cancel()
            visitor.timer = None
        if visitor.stage is _HandshakeStage.KNOWN:
            own = self._of_identity[visitor.identity]
            del own[visitor]
            if not own:
                del self._of_identity[visitor.identity]
            return
        if visitor.stage is _HandshakeStage.WAITING:
            del self._waiting[visitor]
        elif visitor.stage is _HandshakeStage.QUEUED:
            queue = self._queued[visitor.group]
            queue.remove(visitor)
            if not queue:
                del self._queued[visitor.group]
        else:
            self._dialled.pop(visitor, None)

    def _decrement(self, visitor: _PendingConnection) -> None:
        """Count one unauthenticated peer less in this one's group."""
        self._unproven[visitor.group] -= 1
        if not self._unproven[visitor.group]:
            del self._unproven[visitor.group]

    def _count_visitor(self, visitor: _PendingConnection, refusal: Rejection) -> None:
        """Count the refused handshake of a connection."""
        self._count_refusal(
            refusal,
            visitor.address,
            seconds=self._loop.time() - visitor.accepted_at,
            received=visitor.received,
        )

    def _count_refusal(
        self, refusal: Rejection, address: str, *, seconds: float, received: int
    ) -> None:
        """Count a refused handshake, and log it while there are few."""
        self._refused[refusal] += 1
        self._log.write(
            lambda: log_event(
                _LOG,
                logging.INFO,
                HANDSHAKE_REFUSED,
                address=address,
                seconds=round(seconds, 1),
                client_bytes=received,
                reason=refusal.value,
            )
        )


async def _bind(address: Address) -> list[socket.socket]:
    """Listen at every address of a host, at the same port.

    Raises:
        ServiceError: PORT_IN_USE or BAD_SETTINGS.
    """
    listeners: list[socket.socket] = []
    port = address.port
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, where in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            listeners.append(listener)
            listener.settimeout(0.0)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # "::" means every address of either kind, as it does to gRPC.
                only_6 = int(address.host != "::")
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_6)
            listener.bind((where[0], port, *where[2:]))
            listener.listen(_BACKLOG)
            port = listener.getsockname()[1]
    except (OSError, UnicodeError):
        for listener in listeners:
            listener.close()
        raise address.bind_error() from None
    return listeners
