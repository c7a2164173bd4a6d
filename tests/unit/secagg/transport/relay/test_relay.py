"""Connections before a client is known: who waits, who passes, who is turned away.

The inside is a plain echo here; `tests/integration/test_admission.py` has gRPC's TLS.
"""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
from types import SimpleNamespace

import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.runtime.log_events import HANDSHAKE_REFUSED, HANDSHAKES_REFUSED, log_event
from secagg.transport.address import Address
from secagg.transport.handshake_limits import AdmissionLimits
from secagg.transport.relay import (
    LimitedLog,
    LoopDelay,
    Rejection,
    Relay,
    begins_http2,
    begins_tls,
)

LOOPBACK = Address("127.0.0.1", 0)
HELLO = bytes((22, 3, 1, 0, 4, 1)) + b"abc"
VISITORS = []
PATIENCE = 20.0  # seconds after which a test fails instead of waiting for ever
PATIENT = AdmissionLimits(relay="on", handshake_seconds=600.0)


class Echo(asyncio.Protocol):
    """One connection inside."""

    def __init__(self, inside):
        self.inside = inside

    def connection_made(self, transport):
        host, port = transport.get_extra_info("peername")
        self.transport = transport
        self.inside.transports.append(transport)
        self.inside.peers.put_nowait(f"ipv4:{host}:{port}")

    def data_received(self, data):
        self.transport.write(data)

    def pause_writing(self):
        self.transport.pause_reading()

    def resume_writing(self):
        self.transport.resume_reading()


class Inside:
    """Echoes what arrives, and knows from where."""

    def __init__(self):
        self.peers = asyncio.Queue()
        self.transports = []

    async def serve(self):
        return await asyncio.get_running_loop().create_server(
            lambda: Echo(self), "127.0.0.1", 0
        )


@contextlib.asynccontextmanager
async def relaying(admission=PATIENT, *, most=1000, begins=begins_tls):
    inside = Inside()
    server = await inside.serve()
    port = server.sockets[0].getsockname()[1]
    relay = await Relay.listen(
        LOOPBACK,
        admission,
        inside=Address("127.0.0.1", port),
        most=most,
        begins=begins,
    )
    try:
        yield relay, inside
    finally:
        await relay.close()
        server.close()
        for transport in inside.transports:
            transport.abort()
        await Visitor.all_leave()


class Visitor:
    """A client's end of a connection; closed by `relaying`."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer
        VISITORS.append(self)

    @classmethod
    async def come(cls, relay, first=b"", *, host="127.0.0.1"):
        visitor = cls(
            *await asyncio.open_connection(
                "127.0.0.1", relay.address.port, local_addr=(host, 0)
            )
        )
        visitor.writer.write(first)
        return visitor

    async def answer(self, size):
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readexactly(size)

    async def end(self):
        """Wait until the peer has closed; return its last bytes."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    def leave(self):
        self.writer.transport.abort()

    @staticmethod
    async def all_leave():
        for visitor in VISITORS:
            visitor.leave()
            with contextlib.suppress(ConnectionError):
                await visitor.writer.wait_closed()
        VISITORS.clear()


async def is_rejected(relay):
    """Connect, and wait until the connection is closed without data."""
    try:
        return await (await Visitor.come(relay, HELLO)).end() == b""
    except ConnectionError:
        return True


async def until(condition):
    """Run the loop until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what changes is the code under test
            await asyncio.sleep(0)


@pytest.mark.parametrize("size", range(len(HELLO)))
def test_an_incomplete_hello_is_undecided(size):
    assert begins_tls(HELLO[:size]) is None


@pytest.mark.parametrize(
    ("opening", "begins"),
    [
        (HELLO, True),
        (HELLO + b"more", True),
        (b"GET / HTTP/1.1\r\n", False),
        (b"\x16\x02", False),
        (bytes((22, 3, 1, 0, 4, 2)), False),  # no ClientHello
        (bytes((22, 3, 1, 0, 0, 1)), False),  # empty
        (bytes((22, 3, 1, 0x10, 0, 1)), None),  # 4096 bytes
        (bytes((22, 3, 1, 0x10, 1, 1)), False),  # one more
    ],
)
def test_only_the_frame_of_a_hello_is_checked(opening, begins):
    assert begins_tls(opening) is begins


def test_http2_is_detected_by_its_preface():
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    assert begins_http2(preface[:-1]) is None
    assert begins_http2(preface + b"frames") is True
    assert begins_http2(b"PRI * HTTP/1") is False


async def test_bytes_are_forwarded_in_both_directions_and_in_order():
    data = bytes(range(256)) * 4096  # larger than every buffer on the way
    async with relaying() as (relay, _):
        visitor = await Visitor.come(relay, HELLO)
        assert await visitor.answer(len(HELLO)) == HELLO
        visitor.writer.write(data)
        assert await visitor.answer(len(data)) == data
        assert relay.connections == 1
        visitor.leave()
        await until(lambda: not relay.connections)
        assert not relay.refused


async def test_a_slow_reader_stops_the_sender():
    """What is under way stays in the buffers of the kernel and two of 64 KiB."""
    async with relaying() as (relay, _):
        visitor = await Visitor.come(relay, HELLO)
        await visitor.answer(len(HELLO))
        (inside,) = (each.inside for each in relay._open)
        visitor.writer.transport.pause_reading()
        data = bytes(32 << 20)  # more than the kernel takes on one way
        visitor.writer.write(data)
        await until(lambda: not inside.transport.is_reading())
        (outer,) = relay._open
        assert outer.transport.get_write_buffer_size() < 1 << 20
        visitor.writer.transport.resume_reading()
        assert await visitor.answer(len(data)) == data
        visitor.leave()


async def test_no_inner_connection_is_opened_before_the_hello_is_complete():
    async with relaying() as (relay, inside):
        visitor = await Visitor.come(relay, HELLO[:-1])
        probe = await Visitor.come(relay, HELLO)
        await probe.answer(len(HELLO))
        assert inside.peers.qsize() == 1
        visitor.writer.write(HELLO[-1:])
        assert await visitor.answer(len(HELLO)) == HELLO


@pytest.mark.parametrize("opening", [b"GET / HTTP/1.1\r\n\r\n", HELLO + bytes(5000)])
async def test_a_connection_without_a_hello_is_closed_and_logged(opening, caplog):
    caplog.set_level(logging.INFO)
    admission = AdmissionLimits(relay="on", handshakes=0)  # no turn comes
    async with relaying(admission) as (relay, inside):
        visitor = await Visitor.come(relay, opening)
        assert await visitor.end() == b""
        assert relay.refused == {Rejection.BAD_HELLO: 1}
        assert inside.peers.empty()
    (line,) = caplog.messages
    assert line.startswith("handshake_refused address=127.0.0.1 seconds=0.")
    assert line.endswith(f"client_bytes={len(opening)} reason=bad_hello")


async def test_the_oldest_idle_connection_is_closed_for_a_new_client():
    admission = AdmissionLimits(
        relay="on", waiting=2, per_address=0, handshake_seconds=600.0
    )
    async with relaying(admission) as (relay, _):
        silent = [await Visitor.come(relay) for _ in range(5)]
        for each in silent[:3]:
            assert await each.end() == b""
        honest = await Visitor.come(relay, HELLO)
        assert await honest.answer(len(HELLO)) == HELLO
        assert relay.refused[Rejection.WAITING] >= 3
        assert relay.connections <= 3


async def test_an_idle_connection_ends_at_the_handshake_timeout():
    async with relaying(AdmissionLimits(relay="on", handshake_seconds=0.05)) as (
        relay,
        _,
    ):
        visitor = await Visitor.come(relay, HELLO[:3])
        assert await visitor.end() == b""
        assert relay.refused == {Rejection.NO_HELLO: 1}


async def test_a_stalled_handshake_ends_and_releases_its_slot():
    admission = AdmissionLimits(relay="on", handshake_seconds=0.05, handshakes=1)
    async with relaying(admission) as (relay, inside):
        stalled = await Visitor.come(relay, HELLO)
        await inside.peers.get()
        later = await Visitor.come(relay, HELLO)
        assert await later.answer(len(HELLO)) == HELLO
        relay.record_caller(inside.peers.get_nowait(), "c")
        assert await stalled.end() == HELLO
        assert relay.refused == {Rejection.HANDSHAKE_TIMEOUT: 1}
        assert relay.connections == 1


async def test_connections_per_address_are_limited_for_unauthenticated_peers_only():
    admission = AdmissionLimits(
        relay="on", per_address=2, per_identity=9, handshake_seconds=600.0
    )
    async with relaying(admission) as (relay, inside):
        for name in "abc":
            visitor = await Visitor.come(relay, HELLO)
            await visitor.answer(len(HELLO))
            relay.record_caller(await inside.peers.get(), name)
        first, _ = [await Visitor.come(relay, HELLO) for _ in range(2)]
        assert await is_rejected(relay)
        assert relay.refused == {Rejection.PER_ADDRESS: 1}
        other = await Visitor.come(relay, HELLO, host="127.0.0.9")
        assert await other.answer(len(HELLO)) == HELLO
        first.leave()
        await until(lambda: relay._unproven["127.0.0.1"] == 1)
        again = await Visitor.come(relay, HELLO)
        assert await again.answer(len(HELLO)) == HELLO


async def test_connections_beyond_the_total_are_rejected_until_a_client_leaves():
    async with relaying(most=2) as (relay, _):
        kept = [await Visitor.come(relay, HELLO) for _ in range(2)]
        for each in kept:
            await each.answer(len(HELLO))
        assert await is_rejected(relay)
        assert relay.refused == {Rejection.TOTAL: 1}
        kept[0].leave()
        await until(lambda: relay.connections == 1)
        newcomer = await Visitor.come(relay, HELLO)
        assert await newcomer.answer(len(HELLO)) == HELLO


async def test_an_idle_connection_is_closed_for_a_new_one():
    async with relaying(most=2) as (relay, _):
        silent = [await Visitor.come(relay) for _ in range(2)]
        await until(lambda: relay.connections == 2)
        for one in silent:
            newcomer = await Visitor.come(relay, HELLO)
            assert await newcomer.answer(len(HELLO)) == HELLO
            assert await one.end() == b""
        assert relay.refused == {Rejection.WAITING: 2}
        assert await is_rejected(relay)  # connections in a handshake are not idle


@pytest.mark.parametrize("limits", [{"most": 2}, {"handshakes": 2}])
async def test_a_stalled_client_pool_yields_to_a_single_client(limits, monkeypatch):
    monkeypatch.setattr("secagg.transport.relay._STALLED_SECONDS", 0.0)
    monkeypatch.setattr("secagg.transport.relay._LOOK_SECONDS", 0.0)
    admission = AdmissionLimits(
        relay="on", handshake_seconds=600.0, handshakes=limits.get("handshakes", 9)
    )
    async with relaying(admission, most=limits.get("most", 9)) as (relay, _):
        crowd = [await Visitor.come(relay, HELLO, host="127.0.0.8") for _ in range(2)]
        for each in crowd:
            await each.answer(len(HELLO))
        honest = await Visitor.come(relay, HELLO, host="127.0.0.9")
        assert await honest.answer(len(HELLO)) == HELLO
        assert await crowd[0].end() == b""
        # Of one address each, no peer is in a larger group than the other.
        if "most" in limits:
            assert await is_rejected(relay)
            assert relay.refused[Rejection.TOTAL] == 1
        assert relay.refused[Rejection.HANDSHAKE_TIMEOUT] == 1
        assert not crowd[1].reader.at_eof()


async def test_a_recent_handshake_is_not_ended_for_another():
    admission = AdmissionLimits(relay="on", handshake_seconds=600.0, handshakes=2)
    async with relaying(admission) as (relay, _):
        for _ in range(2):
            crowd = await Visitor.come(relay, HELLO, host="127.0.0.8")
            await crowd.answer(len(HELLO))
        await Visitor.come(relay, HELLO, host="127.0.0.9")
        await until(lambda: "127.0.0.9" in relay._queued)
        relay._end_stalled()
        assert not relay.refused


async def test_addresses_take_turns_when_handshake_slots_are_short():
    admission = AdmissionLimits(relay="on", handshakes=1, handshake_seconds=600.0)
    async with relaying(admission) as (relay, inside):
        for _ in range(4):
            await Visitor.come(relay, HELLO)
        await until(lambda: len(relay._queued.get("127.0.0.1", ())) == 3)
        honest = await Visitor.come(relay, HELLO, host="127.0.0.9")
        await until(lambda: "127.0.0.9" in relay._queued)
        for _ in range(2):  # one of the larger group goes first, then the other address
            relay.record_caller(await inside.peers.get(), "c")
        assert await honest.answer(len(HELLO)) == HELLO
        assert relay._queued.keys() == {"127.0.0.1"}


async def test_a_known_client_that_reconnects_closes_its_own_oldest_connection():
    async with relaying() as (relay, inside):
        visitors = []
        for name in ("a", "a", "b", "a"):
            visitor = await Visitor.come(relay, HELLO)
            await visitor.answer(len(HELLO))
            visitors.append(visitor)
            peer = await inside.peers.get()
            relay.record_caller(peer, name)
            relay.record_caller(
                peer, name
            )  # every call says so; only the first one counts
        assert await visitors[0].end() == b""
        assert relay.refused == {Rejection.PER_IDENTITY: 1}
        for visitor in visitors[1:]:
            visitor.writer.write(b"still here")
            assert await visitor.answer(10) == b"still here"


async def test_a_revoked_client_is_disconnected_by_name_and_certificate():
    async with relaying(AdmissionLimits(relay="on", per_identity=9)) as (relay, inside):
        visitors = []
        for name, certificate in (("a", 1), ("a", 2), ("b", 1), ("b", None)):
            visitor = await Visitor.come(relay, HELLO)
            await visitor.answer(len(HELLO))
            visitors.append(visitor)
            relay.record_caller(await inside.peers.get(), name, certificate)
        stranger = await Visitor.come(relay, HELLO)
        await stranger.answer(len(HELLO))
        relay.end_known(lambda name, certificate: (name, certificate) == ("a", 1))
        assert await visitors[0].end() == b""
        assert relay.refused == {Rejection.REVOKED: 1}
        for each in (*visitors[1:], stranger):
            each.writer.write(b"still here")
            assert await each.answer(10) == b"still here"
        relay.end_known(lambda *_: True)
        assert relay.refused == {Rejection.REVOKED: 4}
        assert relay.connections == 1  # a caller that is not known yet


async def test_each_connection_is_forwarded_from_its_own_address():
    """A port may come back while gRPC still has calls of the one before."""
    async with relaying() as (relay, inside):
        sources = set()
        for _ in range(3):
            visitor = await Visitor.come(relay, HELLO)
            peer = await inside.peers.get()
            sources.add(ipaddress.ip_address(peer.split(":")[1]))
            visitor.leave()
            await until(lambda: not relay.connections)
            relay.record_caller(peer, "c")  # too late: no connection is closed for it
        assert len(sources) == 3
        assert min(sources) > ipaddress.ip_address("127.1.0.0")
        assert not relay._of_identity


async def test_the_last_bytes_of_grpc_reach_a_rejected_client():
    async with relaying() as (relay, inside):
        visitor = await Visitor.come(relay, HELLO)
        await visitor.answer(len(HELLO))
        inside.transports[0].write(b"alert")
        inside.transports[0].close()
        assert await visitor.end() == b"alert"
        assert relay.refused == {Rejection.CERTIFICATE: 1}


async def test_refusals_are_logged_up_to_ten_lines_per_second(caplog):
    caplog.set_level(logging.INFO)
    async with relaying() as (relay, _):
        visitors = [await Visitor.come(relay, b"garbage") for _ in range(40)]
        for visitor in visitors:
            await visitor.end()
        assert relay.refused == {Rejection.BAD_HELLO: 40}
    lines = [each for each in caplog.messages if "handshake_refused " in each]
    counts = [each for each in caplog.messages if "handshakes_refused" in each]
    assert len(lines) % 9 == 0  # of one second, or of several
    assert len(lines) < 40
    assert sum(int(each.partition("count=")[2]) for each in counts) == 40 - len(lines)


LOG = logging.getLogger("secagg.transport")


class SlowTimers:
    """A loop whose time and timers are controlled by a test."""

    def __init__(self):
        self.now, self.timers = 0.75, []

    def time(self):
        return self.now

    def call_at(self, when, callback):
        timer = SimpleNamespace(when=when, ring=callback)
        timer.cancel = lambda: self.timers.remove(timer)
        self.timers.append(timer)
        return timer


@pytest.mark.parametrize("late", [0.0, 0.04])
def test_the_count_line_stays_within_the_limit_when_its_timer_is_late(caplog, late):
    caplog.set_level(logging.INFO)
    loop, written = SlowTimers(), []
    log = LimitedLog(
        loop, lambda n: log_event(LOG, logging.INFO, HANDSHAKES_REFUSED, count=n)
    )
    for each in range(1000):
        loop.now = 0.75 + each / 100
        for timer in [x for x in loop.timers if loop.now >= x.when + late]:
            timer.ring()
        log.write(lambda: log_event(LOG, logging.INFO, HANDSHAKE_REFUSED, reason="x"))
        written += [loop.now] * (len(caplog.messages) - len(written))
    log.flush()
    assert not loop.timers
    # Ten seconds, nine lines and a number of each.
    counts = [int(x.partition("count=")[2]) for x in caplog.messages if "count=" in x]
    assert len(caplog.messages) == 100
    assert len(counts) == 10
    assert sum(counts) == 1000 - 90
    assert all(
        later - one >= 0.95 for one, later in zip(written, written[10:], strict=False)
    )


class OutOfFiles:
    """A listener whose accept fails once, as when the process has no file left."""

    def __init__(self, listener):
        self._listener = listener
        self.has_failed = asyncio.Event()

    def __getattr__(self, name):
        return getattr(self._listener, name)

    def accept(self):
        if not self.has_failed.is_set():
            self.has_failed.set()
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()


async def test_exhausted_file_descriptors_are_reported_and_retried(caplog, monkeypatch):
    monkeypatch.setattr("secagg.transport.relay._RETRY_SECONDS", 0.01)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.0)
    failing = OutOfFiles(listener)
    server = await Inside().serve()
    relay = Relay(
        [failing],
        Address("127.0.0.1", listener.getsockname()[1]),
        PATIENT,
        inside=Address("127.0.0.1", server.sockets[0].getsockname()[1]),
        most=9,
        begins=begins_tls,
    )
    visitor = await Visitor.come(relay, HELLO)
    assert await visitor.answer(len(HELLO)) == HELLO
    assert relay.refused == {Rejection.NO_FILES: 1}
    assert "file_descriptors_exhausted" in caplog.text
    assert caplog.records[0].levelno == logging.CRITICAL
    await relay.close()
    server.close()
    await Visitor.all_leave()


async def test_a_port_in_use_is_reported_at_the_start():
    async with relaying() as (relay, _):
        with pytest.raises(ServiceError, match="in use") as caught:
            await Relay.listen(
                relay.address, PATIENT, inside=LOOPBACK, most=1, begins=begins_tls
            )
    assert caught.value.code is ErrorCode.PORT_IN_USE


async def test_a_host_with_several_addresses_uses_one_port():
    relay = await Relay.listen(
        Address("localhost", 0), PATIENT, inside=LOOPBACK, most=1
    )
    ports = {each.getsockname()[1] for each in relay._listeners}
    assert ports == {relay.address.port}
    await relay.close()


async def test_closing_ends_every_connection():
    async with relaying() as (relay, _):
        known = await Visitor.come(relay, HELLO)
        await known.answer(len(HELLO))
        silent = await Visitor.come(relay)
        await until(lambda: relay.connections == 2)
        await relay.close()
        assert await known.end() == b""
        assert await silent.end() == b""
        assert relay.connections == 0
        assert not relay.refused


class LateLoop:
    """A loop whose time is controlled by a test, so that calls are late."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def time(self):
        return self.now

    def call_at(self, when, call):
        self.calls.append((when, call))
        return SimpleNamespace(cancel=self.calls.clear)

    def run(self, now):
        self.now = now
        ((_, call),) = self.calls
        self.calls.clear()
        call()


def test_a_late_loop_is_late_until_it_is_on_time_again():
    loop, changes = LateLoop(), []
    delay = LoopDelay(loop, lambda: changes.append(loop.now))
    loop.run(0.6)
    assert not delay.is_late
    loop.run(5.0)  # stopped for four seconds
    assert delay.is_late
    loop.run(9.0)
    assert delay.is_late
    assert not changes
    loop.run(9.5)
    assert not delay.is_late
    assert changes == [9.5]
    delay.close()
    assert not loop.calls


async def test_a_late_process_limits_concurrent_handshakes(monkeypatch):
    """Those that wait have their turn when one is done, and all when it is on time."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    async with relaying(PATIENT) as (relay, inside):
        relay._delay.close()
        relay._delay.is_late = True
        visitors = [await Visitor.come(relay, HELLO) for _ in range(5)]
        first, second = [await inside.peers.get() for _ in range(2)]
        assert (len(relay._dialled), inside.peers.qsize()) == (2, 0)
        relay.record_caller(first, "a")
        third = await inside.peers.get()
        assert len(relay._dialled) == 2
        relay._delay.is_late = False
        relay._dial_next()
        for each in visitors:
            assert await each.answer(len(HELLO)) == HELLO
        assert len({first, second, third}) == 3
