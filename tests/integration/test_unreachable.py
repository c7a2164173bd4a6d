"""Why a client cannot reach its aggregator: one sentence for each reason."""

import asyncio
import contextlib
import dataclasses
import ipaddress
import socket
import ssl
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import grpc.aio
import pytest
from cryptography.x509 import DNSName, IPAddress, UniformResourceIdentifier
from secagg_testing.manual_clock import ManualClock
from secagg_testing.scripted_service import ScriptedService
from secagg_testing.tls_deployment import TLSDeployment

from secagg.client.grpc_connection import GrpcConnection
from secagg.errors import ErrorCode, ServiceError
from secagg.runtime.clock import SystemClock
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.transport import grpc_channel as aggregator_channel
from secagg.transport.address import Address
from secagg.transport.handshake import HANDSHAKE_SECONDS, Expected, probe
from secagg.transport.peer_identity import Role
from secagg.wire.calls import AdvertiseKeys

HOST = IPAddress(ipaddress.ip_address("127.0.0.1"))
LOOPBACK = Address("127.0.0.1", 0)
EXPECTED = Expected("ours.example")
LASTING, PASSING = ErrorCode.BAD_CERTIFICATE, ErrorCode.UNREACHABLE


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    return TLSDeployment(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def unknown_host(deployment):
    yield Address("no-such-host.invalid", 1), deployment.client()


@asynccontextmanager
async def refusal(deployment):
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    yield Address("127.0.0.1", port), deployment.client()


def answering(answer):
    async def serve(reader, writer):
        writer.write(answer)
        with contextlib.suppress(OSError):
            if answer:
                await reader.read()
        writer.close()

    return serve


@asynccontextmanager
async def listening(deployment, answer):
    server = await asyncio.start_server(answering(answer), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield Address("127.0.0.1", port), deployment.client()


def no_tls(deployment):
    return listening(deployment, b"HTTP/1.1 400 Bad Request\r\n\r\n")


def hanging_up(deployment):
    return listening(deployment, b"")


def old_tls(deployment):
    """Answer with the alert of a server that knows no TLS 1.3."""
    fatal, protocol_version = 2, 70
    return listening(deployment, bytes([21, 3, 3, 0, 2, fatal, protocol_version]))


@asynccontextmanager
async def serving(identity, client):
    async with await GrpcServer.start(
        ScriptedService(), LOOPBACK, identity=identity
    ) as server:
        yield server.address, client


def forged_server(deployment, *hosts, **options):
    names = [
        *hosts,
        UniformResourceIdentifier("secagg://ours.example/server/agg"),
        DNSName("agg.ours.example.server.secagg.internal"),
    ]
    return serving(deployment.forge(names, **options), deployment.client())


def other_authority(deployment):
    issued = deployment.theirs.issue_server("agg", ["127.0.0.1"])
    return serving(deployment.load(issued, Role.SERVER, "theirs"), deployment.client())


def expired(deployment):
    return forged_server(deployment, HOST, days=-1)


def wrong_host(deployment):
    return forged_server(deployment, DNSName("elsewhere.example"))


def own_authority_is_unknown(deployment):
    issued = deployment.theirs.issue_client("client-7")
    return serving(deployment.server(), deployment.cheat(issued))


REASONS = [
    (unknown_host, PASSING, "not known to the name service"),
    (refusal, PASSING, "refuses connections: nothing listens"),
    (hanging_up, PASSING, "during the TLS handshake"),
    (no_tls, LASTING, "does not speak TLS"),
    (old_tls, LASTING, "refuses the TLS handshake"),
    (other_authority, LASTING, "comes from another authority"),
    (expired, LASTING, "has expired"),
    (wrong_host, LASTING, "not issued for this address"),
    (own_authority_is_unknown, PASSING, "when it saw this client's certificate"),
]


async def why(address, client):
    async with GrpcConnection(address, identity=client) as connection:
        with pytest.raises(ServiceError) as caught:
            await connection.call(AdvertiseKeys(bytes(32), b"advert"))
    return caught.value


@pytest.mark.parametrize(("situation", "code", "complaint"), REASONS)
async def test_each_cause_has_its_own_error_text(
    deployment, situation, code, complaint
):
    async with situation(deployment) as (address, client):
        error = await why(address, client)
    assert complaint in str(error)
    assert error.code is code
    assert (error.retry_after_seconds is None) == (code is LASTING)


async def test_each_cause_has_its_own_next_step(deployment):
    steps = set()
    for situation, _, _ in REASONS:
        async with situation(deployment) as (address, client):
            steps.add((await why(address, client)).next_step)
    steps.add((await silence(deployment)).next_step)
    assert len(steps) == len(REASONS) + 1
    assert all(steps)


async def silence(deployment):
    """Accept a connection and never say a word; time is moved by hand."""
    clock, loop = ManualClock(), asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)  # noqa: FBT003 - the name of the standard library
        address = Address(*listener.getsockname())
        meeting = asyncio.ensure_future(
            probe(address, deployment.client(), EXPECTED, clock)
        )
        accepted, _ = await loop.sock_accept(listener)
        with accepted:
            assert not meeting.done()
            clock.advance(HANDSHAKE_SECONDS)
            with pytest.raises(ServiceError) as caught:
                await meeting
    return caught.value


async def test_a_silent_connection_times_out_after_a_handshake(
    deployment,
):
    error = await silence(deployment)
    assert error.code is PASSING
    assert "nothing answers at 127.0.0.1" in str(error)


async def test_a_silent_address_leaves_time_for_the_next_address(
    deployment, monkeypatch
):
    """As IPv6 that leads nowhere: gRPC would find the other way, and so must we."""
    clock, loop, waiting = ManualClock(), asyncio.get_running_loop(), asyncio.Event()
    connect, silent = loop.sock_connect, ("192.0.2.1", 1)

    async def sock_connect(attempt, where):
        if where == silent:
            waiting.set()
            await asyncio.Event().wait()
        await connect(attempt, where)

    async with serving(deployment.server(), deployment.client()) as (address, client):

        async def getaddrinfo(host, port, **_):
            found = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
            return [(*found, silent), (*found, (host, port))]

        monkeypatch.setattr(loop, "sock_connect", sock_connect)
        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        meeting = asyncio.ensure_future(probe(address, client, EXPECTED, clock))
        await waiting.wait()
        clock.advance(HANDSHAKE_SECONDS / 2)
        async with asyncio.timeout(30):  # only reached when the next is never tried
            assert (await meeting).name == "agg"


async def test_an_unavailable_server_is_reported_after_the_first_call_too(deployment):
    """After the first call it is gRPC that notices, and its text is not ours."""
    server = await GrpcServer.start(
        ScriptedService(), LOOPBACK, identity=deployment.server()
    )
    async with GrpcConnection(
        server.address, identity=deployment.client()
    ) as connection:
        await connection.call(AdvertiseKeys(bytes(32), b"advert"))
        await server.stop(0)
        with pytest.raises(ServiceError, match="nothing listens there") as caught:
            await connection.call(AdvertiseKeys(bytes(32), b"advert"))
    assert caught.value.code is PASSING


@pytest.mark.parametrize("aggregator", [None, "agg"])
async def test_an_intermediary_ends_no_session_after_the_aggregator_was_reached(
    deployment, aggregator
):
    """As a captive portal, or a proxy's error page, while the link is down."""
    client = deployment.client()
    server = await GrpcServer.start(
        ScriptedService(), LOOPBACK, identity=deployment.server()
    )
    async with GrpcConnection(
        server.address, identity=client, aggregator=aggregator
    ) as connection:
        request = AdvertiseKeys(bytes(32), b"advert")
        await connection.call(request)
        await server.stop(0)
        async with await asyncio.start_server(
            answering(b"HTTP/1.1 302 Found\r\n\r\n"), "127.0.0.1", server.address.port
        ):
            with pytest.raises(ServiceError, match="does not speak TLS") as caught:
                await connection.call(request)
        assert caught.value.code is PASSING
        assert caught.value.retry_after_seconds is not None
        assert "Check the address" in caught.value.next_step
        # What only this machine can be the cause of, waiting does not heal.
        expired = dataclasses.replace(
            client, not_valid_after=datetime.now(UTC) - timedelta(days=1)
        )
        connection._channel._identity = expired
        with pytest.raises(ServiceError, match="expired") as caught:
            await connection.call(request)
        assert caught.value.code is LASTING


async def test_a_pinned_aggregator_behind_a_silent_network_is_left_to_grpc(deployment):
    """Its proxies are found by gRPC alone; refusals are explained all the same."""
    async with (
        refusal(deployment) as (address, client),
        GrpcConnection(address, identity=client, aggregator="agg") as connection,
    ):
        with pytest.raises(ServiceError, match="nothing listens there"):
            await connection.call(AdvertiseKeys(bytes(32), b"advert"))


async def test_missing_certificate_files_are_named(deployment):
    client = deployment.client()
    client.files.private_key.unlink()
    with pytest.raises(ServiceError, match="can no longer be used") as caught:
        await probe(
            Address("127.0.0.1", 1),
            client,
            EXPECTED,
            SystemClock(),
            as_ourselves=True,
        )
    assert caught.value.code is LASTING
    assert str(client.files.private_key) in str(caught.value)


@pytest.mark.parametrize("as_ourselves", [False, True])
async def test_a_listener_sees_the_client_certificate_only_if_it_is_presented(
    deployment, as_ourselves
):
    """TLS 1.3 proves the aggregator first; OpenSSL sees here what was sent."""
    server, client = deployment.server(), deployment.client()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.files.certificate, server.files.private_key)
    context.load_verify_locations(server.files.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    seen = asyncio.get_running_loop().create_future()

    async def serve(_reader, writer):
        seen.set_result(writer.get_extra_info("peercert"))
        writer.write(b"x")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with listener:
        address = Address("127.0.0.1", listener.sockets[0].getsockname()[1])
        peer = await probe(
            address, client, EXPECTED, SystemClock(), as_ourselves=as_ourselves
        )
    assert peer.name == "agg"
    assert seen.done() == as_ourselves
    if as_ourselves:
        assert ("URI", client.identity.uri) in seen.result()["subjectAltName"]


async def test_a_client_without_an_answer_does_not_probe_again_at_once(
    deployment, monkeypatch
):
    """Looking why costs it a handshake each time, and it may be busy with others."""

    async def look(*_, **__):
        raise ServiceError("busy", code=PASSING, next_step="-")

    monkeypatch.setattr(aggregator_channel, "probe", look)
    channel = aggregator_channel.AggregatorChannel(
        Address("127.0.0.1", 1), deployment.client(), aggregator="agg"
    )
    failure = ServiceError("late", code=PASSING, next_step="-")

    async def fail(times):
        return [str(await channel.explain(failure)) for _ in range(times)]

    looks = {1, 2, 4, 8}
    assert await fail(9) == [
        "busy" if number in looks else "late" for number in range(1, 10)
    ]
    channel.record_answered()
    assert await fail(2) == ["busy", "busy"]
    channel.record_answered()
    # Who is connected learns nothing at the door.
    async with await GrpcServer.start(
        ScriptedService(), LOOPBACK, insecure_for_tests=True
    ) as server:
        channel._channel = grpc.aio.insecure_channel(str(server.address))
        await channel._channel.channel_ready()
        assert await fail(1) == ["late"]
        await channel.close()
