"""How a server starts and stops: ports, health, running calls, signals."""

import asyncio
import os
import signal

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from secagg_testing.scripted_service import ScriptedService

from secagg.client.grpc_connection import GrpcConnection
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.messages import Envelope, Roster
from secagg.server.call_guards import BodyReader, set_caller
from secagg.server.rpc import grpc_server
from secagg.server.rpc.grpc_server import GrpcServer, run_until_signalled
from secagg.transport.address import Address
from secagg.transport.channel_options import SERVICE
from secagg.wire.calls import AdvertiseKeys, ShareKeys, WatchSession

SESSION = bytes(32)
ROSTER = Envelope(Roster, b"r")
LOOPBACK = Address("127.0.0.1", 0)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def serving(service, **options):
    return GrpcServer.start(service, LOOPBACK, insecure_for_tests=True, **options)


def connected(server):
    return GrpcConnection(server.address, insecure_for_tests="c")


async def health_of(address, service):
    async with grpc.aio.insecure_channel(str(address)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(
            health_pb2.HealthCheckRequest(service=service), timeout=10
        )
    return answer.status


async def test_a_port_in_use_is_an_error_with_a_next_step():
    async with await serving(ScriptedService()) as first:
        assert first.address.port > 0
        with pytest.raises(ServiceError, match=str(first.address.port)) as caught:
            await GrpcServer.start(
                ScriptedService(), first.address, insecure_for_tests=True
            )
    assert caught.value.code is ErrorCode.PORT_IN_USE
    assert "another port" in caught.value.next_step


async def test_health_is_served_on_the_main_port_and_on_the_health_port():
    async with await serving(ScriptedService(), health_address=LOOPBACK) as server:
        for address in (server.address, server.health_address):
            for service in ("", SERVICE):
                assert await health_of(address, service) == SERVING
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await health_of(address, "unknown")
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        await server.announce_stop()
        assert await health_of(server.health_address, SERVICE) == NOT_SERVING


async def test_the_health_port_serves_only_health_checks():
    service = ScriptedService()
    async with await serving(service, health_address=LOOPBACK) as server:
        async with GrpcConnection(
            server.health_address, insecure_for_tests="c"
        ) as connection:
            with pytest.raises(ServiceError) as caught:
                await connection.call(AdvertiseKeys(SESSION, b"advert"))
        assert caught.value.code is ErrorCode.BAD_VERSION
    assert not service.calls


async def test_stopping_finishes_a_running_call_and_rejects_new_ones():
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_identity, _request):
        entered.set()
        await go_on.wait()

    service = ScriptedService(script={AdvertiseKeys: slow})
    async with (
        await serving(service) as server,
        connected(server) as connection,
        connected(server) as late,
    ):
        running = asyncio.create_task(connection.call(AdvertiseKeys(SESSION, b"a")))
        await entered.wait()
        stopping = asyncio.create_task(server.stop(30.0))
        with pytest.raises(ServiceError) as caught:
            await _until_refused(late)
        assert caught.value.code is ErrorCode.UNREACHABLE
        assert not running.done()
        go_on.set()
        await running
        await stopping


async def _until_refused(connection):
    # The listener closes a moment after `stop` begins.
    while True:
        await connection.call(ShareKeys(SESSION, b""))


async def test_stopping_tells_watchers_to_retry():
    service = ScriptedService(updates=[ROSTER], hold=asyncio.Event())
    async with await serving(service) as server, connected(server) as connection:
        stream = connection.watch(WatchSession(SESSION, after=None))
        await anext(stream)
        stopping = asyncio.create_task(server.stop(30.0))
        with pytest.raises(ServiceError) as caught:
            await anext(stream)
        assert caught.value.code is ErrorCode.SHUTTING_DOWN
        assert caught.value.retry_after_seconds == 1.0
        await stopping
    assert service.ended_watches == 1


async def test_a_watcher_is_told_of_the_shutdown_after_the_update_being_sent():
    service = ScriptedService(updates=[ROSTER], hold=asyncio.Event())
    reader = BodyReader(1, 10.0)
    servicer = grpc_server._Servicer(service, reader, reader)

    async def bodies():
        yield WatchSession(SESSION, after=None).encode()

    async def send_all():
        set_caller("c")
        stream = servicer._watch(bodies(), None)
        assert await anext(stream)
        servicer.end_watches()
        await asyncio.sleep(0)  # gRPC still sends
        await anext(stream)

    with pytest.raises(ServiceError) as caught:
        await asyncio.create_task(send_all())
    assert caught.value.code is ErrorCode.SHUTTING_DOWN
    await service.watch_ended.wait()
    assert not servicer._watchers


async def test_the_server_stops_when_its_work_ends_and_raises_its_error():
    server = await serving(ScriptedService())

    async def work():
        await asyncio.sleep(0)

    assert await run_until_signalled(server, work(), drain=_nothing)
    with pytest.raises(ServiceError):
        async with connected(server) as connection:
            await connection.call(AdvertiseKeys(SESSION, b"a"))

    async def broken():
        raise ServiceError("task failed", code=ErrorCode.STORAGE_FAILED)

    server = await serving(ScriptedService())
    with pytest.raises(ServiceError, match="task failed"):
        await run_until_signalled(server, broken(), drain=_nothing)


async def _nothing():
    return


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_the_server_before_it_stops(number):
    trace = []
    server = await serving(ScriptedService(), health_address=LOOPBACK)
    started = asyncio.Event()

    async def work():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            trace.append("work ended")

    async def drain():
        assert await health_of(server.health_address, SERVICE) == NOT_SERVING
        trace.append("drained")

    running = asyncio.create_task(run_until_signalled(server, work(), drain=drain))
    await started.wait()
    os.kill(os.getpid(), number)
    assert not await running
    assert trace == ["drained", "work ended"]


async def test_a_second_signal_stops_the_server_at_once():
    server = await serving(ScriptedService())
    draining = asyncio.Event()

    async def drain():
        draining.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(
        run_until_signalled(server, asyncio.Event().wait(), drain=drain)
    )
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    await draining.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    assert not await running


async def test_each_step_of_a_shutdown_is_logged_once_and_in_order(caplog):
    caplog.set_level("INFO")
    server = await serving(ScriptedService())
    await server.announce_stop()
    for _ in range(2):  # a user of the server, and the one that has opened it
        await server.stop(0.0)
    events = [getattr(each, "event", None) for each in caplog.records]
    assert [each for each in events if each and each.startswith("transport_")] == [
        "transport_started",
        "transport_draining",
        "transport_stopped",
    ]
