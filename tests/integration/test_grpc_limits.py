"""What one client may use of the aggregator, and what the process survives."""

import asyncio
import hashlib
import json
import socket

import grpc
import grpc.aio
import pytest
from secagg_testing.manual_clock import ManualClock
from secagg_testing.scripted_service import ScriptedService

from secagg.client.grpc_connection import GrpcConnection
from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.protocol.messages import Envelope, Roster
from secagg.protocol.packing import MAX_CHUNK_BYTES
from secagg.server.call_guards import CallLimits
from secagg.server.rpc import guards
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.rpc.guards import refuse_expired
from secagg.transport.address import Address
from secagg.transport.channel_options import (
    CLIENT_OPTIONS,
    HEALTH_SERVICE,
    KEEPALIVE_CLIENT_MS,
    MAX_CONCURRENT_STREAMS,
    MAX_HEALTH_BYTES,
    SERVER_OPTIONS,
    SERVICE,
    TEST_IDENTITY_KEY,
)
from secagg.transport.connection import CallDeadlines
from secagg.transport.handshake_limits import AdmissionLimits
from secagg.transport.status import error_of
from secagg.wire.calls import (
    MAX_MESSAGE_BYTES,
    AdvertiseKeys,
    ShareKeys,
    UploadChunk,
    UploadStatus,
    WatchSession,
)

SESSION = bytes(32)
ROSTER = Envelope(Roster, b"r")
LOOPBACK = Address("127.0.0.1", 0)
GENEROUS = CallLimits(calls_per_second=1e6, burst=1_000_000)


def serving(service, limits=GENEROUS, clock=None, admission=None):
    return GrpcServer.start(
        service,
        LOOPBACK,
        insecure_for_tests=True,
        limits=limits,
        admission=admission,
        clock=clock or ManualClock(),  # moved by the test alone
    )


def connected(server, name="c", **options):
    return GrpcConnection(server.address, insecure_for_tests=name, **options)


class Gate:
    """A scripted answer that accepts calls and holds them."""

    def __init__(self):
        self.entered = asyncio.Semaphore(0)
        self.opened = asyncio.Event()

    async def __call__(self, _identity, _request):
        self.entered.release()
        await self.opened.wait()


async def test_without_a_relay_grpc_limits_the_number_of_connections():
    admission = AdmissionLimits(relay="off", connections=2)
    async with await serving(ScriptedService(), admission=admission) as server:
        loop, address = asyncio.get_running_loop(), ("127.0.0.1", server.address.port)

        async def said_to(visitor):
            """Connect; gRPC speaks first, or hangs up."""
            visitor.setblocking(False)  # noqa: FBT003 - the standard library's name
            await loop.sock_connect(visitor, address)
            return await loop.sock_recv(visitor, 1)

        with socket.socket() as second, socket.socket() as third:
            with socket.socket() as first:
                assert await said_to(first)
                assert await said_to(second)
                assert not await said_to(third)
            is_in = False
            while not is_in:  # soon: a caller that leaves makes room
                with socket.socket() as fourth:
                    is_in = bool(await said_to(fourth))


async def test_concurrent_calls_are_limited_per_client():
    gate = Gate()
    service = ScriptedService(script={AdvertiseKeys: gate})
    limits = CallLimits(calls_at_once=2, calls_per_second=1e6, burst=1000)
    async with (
        await serving(service, limits) as server,
        connected(server, "greedy") as greedy,
        connected(server, "modest") as modest,
    ):
        first = [
            asyncio.create_task(greedy.call(AdvertiseKeys(SESSION, b"a"))) for _ in "12"
        ]
        for _ in first:
            await gate.entered.acquire()
        with pytest.raises(ServiceError, match="are open") as caught:
            await greedy.call(AdvertiseKeys(SESSION, b"a"))
        assert caught.value.code is ErrorCode.OVERLOADED
        assert caught.value.retry_after_seconds == 1.0
        other = asyncio.create_task(modest.call(AdvertiseKeys(SESSION, b"a")))
        await gate.entered.acquire()
        gate.opened.set()
        await asyncio.gather(*first, other)
        await greedy.call(AdvertiseKeys(SESSION, b"a"))


async def test_no_body_is_read_before_its_sender_is_authenticated_and_admitted():
    """A caller without rights cannot make the server wait for 4 MiB, nor hold them."""
    gate = Gate()
    service = ScriptedService(script={AdvertiseKeys: gate})
    limits = CallLimits(calls_at_once=1, calls_per_second=1e6, burst=1000)
    async with (
        await serving(service, limits) as server,
        connected(server) as connection,
        grpc.aio.insecure_channel(str(server.address)) as channel,
    ):
        only = asyncio.create_task(connection.call(AdvertiseKeys(SESSION, b"a")))
        await gate.entered.acquire()
        for metadata, refusal in (
            ((), grpc.StatusCode.UNAUTHENTICATED),
            (((TEST_IDENTITY_KEY, "c"),), grpc.StatusCode.RESOURCE_EXHAUSTED),
        ):
            # A call whose request is never sent, nor its end.
            call = channel.stream_unary(f"/{SERVICE}/ShareKeys")(
                timeout=30, metadata=metadata
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is refusal
        gate.opened.set()
        await only


async def test_a_request_whose_body_does_not_arrive_is_ended():
    service = ScriptedService()
    limits = CallLimits(
        bodies_at_once=1, body_seconds=0.05, calls_per_second=1e6, burst=1000
    )
    async with (
        await serving(service, limits) as server,
        connected(server, "modest") as modest,
        grpc.aio.insecure_channel(str(server.address)) as channel,
    ):
        stalled = channel.stream_unary(f"/{SERVICE}/ShareKeys")(
            timeout=30, metadata=((TEST_IDENTITY_KEY, "staller"),)
        )
        assert await _outcome(stalled) is grpc.StatusCode.RESOURCE_EXHAUSTED
        await modest.call(AdvertiseKeys(SESSION, b"a"))


async def test_open_calls_per_connection_are_limited_to_those_of_one_client():
    gate = Gate()
    service = ScriptedService(script={AdvertiseKeys: gate})
    limits = CallLimits(calls_at_once=100, calls_per_second=1e6, burst=1000)
    async with (
        await serving(service, limits) as server,
        connected(server, "greedy") as greedy,
        connected(server, "modest") as modest,
    ):
        # One after the other: of one caller, few messages may be in transfer at once.
        calls = []
        for _ in range(MAX_CONCURRENT_STREAMS):
            calls.append(asyncio.create_task(greedy.call(AdvertiseKeys(SESSION, b"a"))))
            await gate.entered.acquire()
        calls.append(asyncio.create_task(greedy.call(AdvertiseKeys(SESSION, b"a"))))
        for _ in range(5):  # way and time enough for the last one
            await modest.call(ShareKeys(SESSION, b"b"))
        assert gate.entered.locked()
        gate.opened.set()
        await asyncio.gather(*calls)


async def test_health_checks_are_limited_before_their_body_is_read():
    """They need no identity, and would be a way round all limits."""
    limits = CallLimits(calls_at_once=1, calls_per_second=1e6, burst=1000)
    async with (
        await serving(ScriptedService(), limits) as server,
        grpc.aio.insecure_channel(str(server.address)) as channel,
    ):
        check = channel.stream_unary(f"/{HEALTH_SERVICE}/Check")
        # Calls whose request is never sent, nor its end: one waits, one is refused.
        calls = {asyncio.ensure_future(_outcome(check(timeout=30))) for _ in "ab"}
        done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result() for each in done] == [grpc.StatusCode.RESOURCE_EXHAUSTED]
        for each in waiting:
            each.cancel()


async def _outcome(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_the_health_port_accepts_only_short_messages():
    async with (
        await GrpcServer.start(
            ScriptedService(),
            LOOPBACK,
            insecure_for_tests=True,
            health_address=LOOPBACK,
        ) as server,
        grpc.aio.insecure_channel(str(server.health_address)) as channel,
    ):
        check = channel.unary_unary(f"/{HEALTH_SERVICE}/Check")
        assert await check(b"", timeout=30) == b"\x08\x01"
        assert await _outcome(check(bytes(MAX_HEALTH_BYTES + 1), timeout=30)) is (
            grpc.StatusCode.RESOURCE_EXHAUSTED
        )


async def test_a_call_without_a_request_is_refused():
    async with (
        await serving(ScriptedService()) as server,
        grpc.aio.insecure_channel(str(server.address)) as channel,
    ):
        call = channel.stream_unary(f"/{SERVICE}/ShareKeys")(
            timeout=30, metadata=((TEST_IDENTITY_KEY, "c"),)
        )
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError, match="no message") as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_rate_of_calls_is_limited_and_recovers_with_time():
    clock = ManualClock()
    service = ScriptedService()
    limits = CallLimits(calls_per_second=2.0, burst=3)
    async with (
        await serving(service, limits, clock) as server,
        connected(server) as connection,
    ):
        for _ in range(3):
            await connection.call(AdvertiseKeys(SESSION, b"a"))
        with pytest.raises(ServiceError, match="too often") as caught:
            await connection.call(AdvertiseKeys(SESSION, b"a"))
        assert caught.value.code is ErrorCode.OVERLOADED
        assert caught.value.retry_after_seconds == 0.5
        clock.advance(0.5)
        await connection.call(AdvertiseKeys(SESSION, b"a"))
        with pytest.raises(ServiceError):
            await connection.call(AdvertiseKeys(SESSION, b"a"))
        clock.advance(1e6)
        for _ in range(3):  # the burst, and not a million seconds' worth
            await connection.call(AdvertiseKeys(SESSION, b"a"))
        with pytest.raises(ServiceError):
            await connection.call(AdvertiseKeys(SESSION, b"a"))
    assert len(service.calls) == 7


async def test_streams_are_limited_apart_from_calls_and_released():
    service = ScriptedService(updates=[ROSTER], hold=asyncio.Event())
    limits = CallLimits(watches_at_once=1, calls_per_second=1e6, burst=1000)
    async with (
        await serving(service, limits) as server,
        connected(server) as connection,
    ):
        held = connection.watch(WatchSession(SESSION, after=None))
        await anext(held)
        with pytest.raises(ServiceError) as caught:
            await anext(connection.watch(WatchSession(SESSION, after=None)))
        assert caught.value.code is ErrorCode.OVERLOADED
        await connection.call(AdvertiseKeys(SESSION, b"a"))
        service.hold.set()
        assert [update async for update in held] == []
        await anext(connection.watch(WatchSession(SESSION, after=None)))


async def test_the_server_ends_a_hanging_call_at_its_own_limit():
    service = ScriptedService(script={AdvertiseKeys: Gate()})
    limits = CallLimits(unary_seconds=0.05)
    async with (
        await serving(service, limits) as server,
        connected(server) as connection,
    ):
        with pytest.raises(ServiceError, match="longer than") as caught:
            await connection.call(AdvertiseKeys(SESSION, b"a"))
        assert caught.value.code is ErrorCode.OVERLOADED


async def test_a_call_that_hangs_is_ended_by_the_clients_own_deadline():
    service = ScriptedService(script={AdvertiseKeys: Gate()})
    async with (
        await serving(service) as server,
        connected(server, deadlines=CallDeadlines(small=0.05)) as connection,
    ):
        with pytest.raises(ServiceError) as caught:
            await connection.call(AdvertiseKeys(SESSION, b"a"))
        assert caught.value.code is ErrorCode.UNREACHABLE


async def test_a_stream_at_its_deadline_resumes_after_the_last_update():
    service = ScriptedService(updates=[ROSTER], hold=asyncio.Event())
    async with (
        await serving(service) as server,
        connected(server, deadlines=CallDeadlines(stream=0.2)) as connection,
    ):
        stream = connection.watch(WatchSession(SESSION, after=None))
        await anext(stream)
        await anext(stream)  # the script tells the same again to a later stream
        rounds = [request.after for _, request in service.calls]
        assert rounds[0] is None
        assert rounds[-1] is Roster.ROUND
        await stream.aclose()


async def test_closing_a_stream_releases_its_place():
    service = ScriptedService(updates=[ROSTER], hold=asyncio.Event())
    async with await serving(service) as server, connected(server) as connection:
        stream = connection.watch(WatchSession(SESSION, after=None))
        await anext(stream)
        await stream.aclose()
        await service.watch_ended.wait()
        # Two more fit into the limit of two only if the first one was given back.
        others = [connection.watch(WatchSession(SESSION, after=None)) for _ in "12"]
        for other in others:
            await anext(other)


async def test_a_full_chunk_fits_and_a_larger_one_is_refused_by_name():
    service = ScriptedService(script={UploadChunk: UploadStatus(1, complete=False)})
    data = bytes(MAX_CHUNK_BYTES)
    async with await serving(service) as server, connected(server) as connection:

        async def upload(data):
            return await connection.call(
                UploadChunk(
                    SESSION,
                    offset=0,
                    total_size=1 << 30,
                    digest=hashlib.sha256(b"").digest(),
                    data=data,
                )
            )

        assert (await upload(data)).next_offset == 1
        with pytest.raises(RemoteProtocolError, match="data") as caught:
            await upload(data + b"x")
        assert caught.value.code is ErrorCode.BAD_ENCODING
        with pytest.raises(RemoteProtocolError, match="size limit") as caught:
            await upload(bytes(MAX_MESSAGE_BYTES))
        assert caught.value.code is ErrorCode.BAD_ENCODING
        assert (await upload(data)).next_offset == 1
    assert len(service.calls) == 2


async def test_garbage_is_rejected_as_bad_encoding_and_the_server_continues():
    service = ScriptedService()
    async with await serving(service) as server, connected(server) as connection:
        channel = grpc.aio.insecure_channel(str(server.address))
        for method in ("AdvertiseKeys", "ShareKeys", "UploadChunk", "GetUpdate"):
            for garbage in (b"", b"\xff" * 100, b"\x0a\x05abc", bytes(3 << 20)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary(f"/{SERVICE}/{method}")(
                        garbage, timeout=10, metadata=((TEST_IDENTITY_KEY, "c"),)
                    )
                error = error_of(
                    caught.value.code(), "", tuple(caught.value.trailing_metadata())
                )
                assert isinstance(error, RemoteProtocolError)
                assert error.code is ErrorCode.BAD_ENCODING
        await channel.close()
        assert not service.calls
        await connection.call(AdvertiseKeys(SESSION, b"advert"))


def test_keepalive_settings_of_client_and_server_match():
    client, server = dict(CLIENT_OPTIONS), dict(SERVER_OPTIONS)
    assert client["grpc.keepalive_time_ms"] == KEEPALIVE_CLIENT_MS
    assert (
        2 * server["grpc.http2.min_recv_ping_interval_without_data_ms"]
        <= client["grpc.keepalive_time_ms"]
    )
    for option in (
        "grpc.keepalive_permit_without_calls",
        "grpc.max_send_message_length",
        "grpc.max_receive_message_length",
    ):
        assert client[option] == server[option]


class Context:
    """What a guard asks of a call."""

    def __init__(self, *seconds_left):
        self.seconds_left = list(seconds_left)

    def time_remaining(self):
        return self.seconds_left.pop(0)


async def test_a_call_that_expires_in_the_queue_is_not_executed(monkeypatch):
    """Ninety seconds pass between the arrival of a call and its turn."""

    def much_later(context):
        refuse_expired(Context(context.time_remaining() - 90))

    monkeypatch.setattr(guards, "refuse_expired", much_later)
    service = ScriptedService(script={AdvertiseKeys: ROSTER})
    named = ((TEST_IDENTITY_KEY, "c"),)
    async with (
        await serving(service) as server,
        grpc.aio.insecure_channel(str(server.address)) as channel,
    ):
        call = channel.unary_unary(f"/{SERVICE}/AdvertiseKeys")
        request = AdvertiseKeys(SESSION, b"").encode()
        with pytest.raises(grpc.RpcError) as caught:
            await call(request, timeout=60, metadata=named)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert service.calls == []
        assert service.refusals == [ErrorCode.OVERLOADED]
        await call(request, timeout=600, metadata=named)
    assert len(service.calls) == 1


@pytest.mark.parametrize("left", [0.0, -1.0])
def test_only_an_expired_call_is_rejected(left):
    with pytest.raises(ServiceError) as caught:
        refuse_expired(Context(left))
    assert caught.value.code is ErrorCode.OVERLOADED
    refuse_expired(Context(0.01))
    refuse_expired(Context(None))


def test_retries_by_grpc_are_throttled():
    config = json.loads(dict(CLIENT_OPTIONS)["grpc.service_config"])
    assert config["retryThrottling"] == {"maxTokens": 10, "tokenRatio": 0.1}
    sides = dict(CLIENT_OPTIONS), dict(SERVER_OPTIONS)
    assert {each["grpc.keepalive_timeout_ms"] for each in sides} == {60_000}
