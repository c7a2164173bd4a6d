"""Who may call, over real mutual TLS on loopback."""

import asyncio
import dataclasses
import datetime as dt
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from cryptography.x509 import UniformResourceIdentifier
from secagg_testing.scripted_service import ScriptedService
from secagg_testing.tls_deployment import TLSDeployment

from secagg.client.grpc_connection import GrpcConnection
from secagg.errors import ErrorCode, LocalProtocolError, ServiceError
from secagg.server.call_guards import CallLimits
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.rpc.guards import ACCESS
from secagg.transport import status
from secagg.transport.address import Address
from secagg.transport.channel_options import TEST_IDENTITY_KEY
from secagg.transport.peer_identity import Role
from secagg.wire.calls import AdvertiseKeys, WatchSession

SESSION = bytes(32)
LOOPBACK = Address("127.0.0.1", 0)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    return TLSDeployment(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def calling(server_identity, client_identity):
    service = ScriptedService()
    async with (
        await GrpcServer.start(service, LOOPBACK, identity=server_identity) as server,
        GrpcConnection(server.address, identity=client_identity) as connection,
    ):
        yield service, connection


async def test_the_name_in_the_certificate_is_the_identity(deployment):
    async with calling(deployment.server(), deployment.client()) as (
        service,
        connection,
    ):
        assert connection.identity == "client-7"
        await connection.call(AdvertiseKeys(SESSION, b"advert"))
    assert service.calls == [("client-7", AdvertiseKeys(SESSION, b"advert"))]


async def test_no_metadata_can_change_the_identity(deployment):
    async with calling(deployment.server(), deployment.client()) as (
        service,
        connection,
    ):
        connection._metadata = ((TEST_IDENTITY_KEY, "another-client"),)
        await connection.call(AdvertiseKeys(SESSION, b"advert"))
    assert service.calls == [("client-7", AdvertiseKeys(SESSION, b"advert"))]


async def test_a_certificate_for_another_address_is_a_bad_certificate(
    deployment,
):
    server = deployment.server("aggregator.example")
    async with calling(server, deployment.client()) as (service, connection):
        with pytest.raises(ServiceError, match="not issued for this address") as caught:
            await connection.call(AdvertiseKeys(SESSION, b"advert"))
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE
    assert not service.calls


async def test_a_server_certificate_of_another_authority_is_rejected(deployment):
    stranger = deployment.load(
        deployment.theirs.issue_server("agg", ["127.0.0.1"]), Role.SERVER, "theirs"
    )
    async with calling(stranger, deployment.client()) as (service, connection):
        with pytest.raises(ServiceError, match="another authority") as caught:
            await connection.call(AdvertiseKeys(SESSION, b"advert"))
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE
    assert not service.calls


async def test_a_client_of_another_authority_is_refused_at_the_handshake(deployment):
    stranger = dataclasses.replace(
        deployment.load(
            deployment.theirs.issue_client("client-7"), Role.CLIENT, "theirs"
        ),
        authorities=deployment.ours.certificate_pem(),
    )
    async with calling(deployment.server(), stranger) as (service, connection):
        with pytest.raises(ServiceError) as caught:
            await connection.call(AdvertiseKeys(SESSION, b"advert"))
    assert caught.value.code is ErrorCode.UNREACHABLE
    assert "certificate" in caught.value.next_step
    assert not service.calls


async def test_an_expired_client_certificate_is_reported_before_connecting(deployment):
    past = dt.datetime.now(dt.UTC) - dt.timedelta(days=10)
    issued = deployment.ours.issue_client("late", days=5, now=past)
    late = deployment.load(issued, Role.CLIENT, now=past)
    # Nothing listens there, and it would be UNREACHABLE for all others.
    async with GrpcConnection(Address("127.0.0.1", 1), identity=late) as connection:
        with pytest.raises(ServiceError, match=r"leaf-.*\.pem expired on") as caught:
            await connection.call(AdvertiseKeys(SESSION, b"advert"))
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE
    assert caught.value.next_step


async def test_an_expired_client_is_refused_at_the_handshake(deployment):
    late = deployment.forge(
        [UniformResourceIdentifier("secagg://ours.example/client/client-7")], days=-1
    )
    async with calling(deployment.server(), late) as (service, connection):
        with pytest.raises(ServiceError, match="client's certificate"):
            await connection.call(AdvertiseKeys(SESSION, b"advert"))
    assert not service.calls


async def test_a_client_of_another_trust_domain_is_unauthenticated(deployment):
    # The same authority key, but names of another party's deployment.
    elsewhere = dataclasses.replace(deployment.ours, trust_domain="elsewhere.example")
    guest = deployment.cheat(elsewhere.issue_client("client-7"))
    async with calling(deployment.server(), guest) as (service, connection):
        with pytest.raises(ServiceError, match="elsewhere") as caught:
            await connection.call(AdvertiseKeys(SESSION, b"advert"))
        assert caught.value.code is ErrorCode.UNAUTHENTICATED
        with pytest.raises(ServiceError) as caught:
            await anext(connection.watch(WatchSession(SESSION, after=None)))
    assert caught.value.code is ErrorCode.UNAUTHENTICATED
    assert not service.calls


async def test_a_server_certificate_is_not_accepted_as_a_client(deployment):
    posing = deployment.server("127.0.0.1")
    async with calling(deployment.server(), posing) as (service, connection):
        with pytest.raises(ServiceError):
            await connection.call(AdvertiseKeys(SESSION, b"advert"))
    assert not service.calls


async def test_a_name_with_a_nul_byte_is_not_truncated(deployment):
    """gRPC's own text of the URI ends at the NUL and reads `client-1`."""
    posing = deployment.forge(
        [UniformResourceIdentifier("secagg://ours.example/client/client-1\0.evil")]
    )
    async with calling(deployment.server(), posing) as (service, connection):
        with pytest.raises(ServiceError, match="x00") as caught:
            await connection.call(AdvertiseKeys(SESSION, b"advert"))
    assert caught.value.code is ErrorCode.UNAUTHENTICATED
    assert not service.calls


async def test_a_certificate_with_a_second_uri_is_rejected(deployment):
    names = [
        UniformResourceIdentifier("https://unrelated.example"),
        UniformResourceIdentifier("secagg://ours.example/client/a"),
    ]
    posing = deployment.forge(names)
    async with calling(deployment.server(), posing) as (service, connection):
        with pytest.raises(ServiceError, match="exactly one") as caught:
            await connection.call(AdvertiseKeys(SESSION, b"advert"))
    assert caught.value.code is ErrorCode.UNAUTHENTICATED
    assert not service.calls


async def test_every_method_refuses_a_caller_without_an_identity():
    """Plaintext for tests stands in for a certificate that names no client."""
    service = ScriptedService()
    async with await GrpcServer.start(
        service, LOOPBACK, insecure_for_tests=True
    ) as server:
        channel = grpc.aio.insecure_channel(str(server.address))
        for method in sorted(m for m in ACCESS if "SecAggService" in m):
            if method.endswith("WatchSession"):
                call = channel.unary_stream(method)(b"", timeout=10)
                attempt = anext(aiter(call))
            else:
                attempt = channel.unary_unary(method)(b"", timeout=10)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await attempt
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, method
            error = status.error_of(
                caught.value.code(), "", tuple(caught.value.trailing_metadata())
            )
            assert error.code is ErrorCode.UNAUTHENTICATED
            assert error.next_step
        await channel.close()
    assert not service.calls


async def test_an_unknown_method_is_unimplemented():
    async with await GrpcServer.start(
        ScriptedService(), LOOPBACK, insecure_for_tests=True
    ) as server:
        channel = grpc.aio.insecure_channel(str(server.address))
        for method in (
            "/secagg.v1.SecAggService/DropTables",
            "/grpc.health.v1.Health/Watch",
            "/other.Service/Method",
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(method)(b"", timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await channel.close()


async def test_health_needs_no_identity_and_is_counted_by_certificate(deployment):
    check = "/grpc.health.v1.Health/Check"

    def channel(server, identity):
        return grpc.aio.secure_channel(
            str(server.address), identity.channel_credentials()
        )

    async with (
        await GrpcServer.start(
            ScriptedService(),
            LOOPBACK,
            identity=deployment.server(),
            limits=CallLimits(calls_at_once=1),
        ) as server,
        channel(server, deployment.forge([])) as unnamed,
        channel(server, deployment.client()) as other,
    ):
        # Requests that are never sent: one call is let in and waits, one is refused.
        calls = [unnamed.stream_unary(check)(timeout=30) for _ in "ab"]
        waits = [asyncio.ensure_future(call.code()) for call in calls]
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        assert [code.result() for code in done] == [grpc.StatusCode.RESOURCE_EXHAUSTED]
        assert await other.unary_unary(check)(b"", timeout=30) == b"\x08\x01"


async def test_a_call_without_tls_reaches_no_tls_service(deployment):
    service = ScriptedService()
    async with await GrpcServer.start(
        service, LOOPBACK, identity=deployment.server()
    ) as server:
        async with GrpcConnection(
            server.address, insecure_for_tests="client-7"
        ) as connection:
            with pytest.raises(ServiceError) as caught:
                await connection.call(AdvertiseKeys(SESSION, b"advert"))
        assert caught.value.code is ErrorCode.UNREACHABLE
    assert not service.calls


async def test_tls_to_a_plaintext_server_is_reported(deployment):
    async with await GrpcServer.start(
        ScriptedService(), LOOPBACK, insecure_for_tests=True
    ) as server:
        async with GrpcConnection(
            server.address, identity=deployment.client()
        ) as connection:
            with pytest.raises(ServiceError, match="does not speak TLS") as caught:
                await connection.call(AdvertiseKeys(SESSION, b"advert"))
        assert caught.value.code is ErrorCode.BAD_CERTIFICATE


async def test_plaintext_is_allowed_on_loopback_only_and_never_beside_tls(deployment):
    service, everywhere = ScriptedService(), Address("0.0.0.0", 0)
    with pytest.raises(LocalProtocolError):
        await GrpcServer.start(service, LOOPBACK)
    with pytest.raises(LocalProtocolError):
        await GrpcServer.start(
            service, LOOPBACK, identity=deployment.server(), insecure_for_tests=True
        )
    with pytest.raises(LocalProtocolError):
        await GrpcServer.start(service, everywhere, insecure_for_tests=True)
    with pytest.raises(LocalProtocolError):
        GrpcConnection(LOOPBACK)
    with pytest.raises(LocalProtocolError):
        GrpcConnection(everywhere, insecure_for_tests="c")
    with pytest.raises(LocalProtocolError):
        GrpcConnection(
            LOOPBACK, identity=deployment.client(), insecure_for_tests="client-7"
        )


async def test_a_certificate_renewed_on_disk_is_used_for_the_next_connection(
    deployment,
):
    """Only the renewed one was issued for the address, so that the use of it shows."""
    server = deployment.server("aggregator.example")
    service, client = ScriptedService(), deployment.client()
    async with await GrpcServer.start(service, LOOPBACK, identity=server) as running:
        async with GrpcConnection(running.address, identity=client) as connection:
            with pytest.raises(ServiceError, match="not issued for this address"):
                await connection.call(AdvertiseKeys(SESSION, b"advert"))
        renewed = deployment.server("127.0.0.1").files
        renewed.certificate.replace(server.files.certificate)
        renewed.private_key.replace(server.files.private_key)
        async with GrpcConnection(running.address, identity=client) as connection:
            await connection.call(AdvertiseKeys(SESSION, b"advert"))
    assert len(service.calls) == 1


async def test_requests_equal_those_of_a_generated_grpc_stub(deployment):
    """The generated stub of another language is what other clients will use."""
    from secagg.v1 import secagg_service_pb2, secagg_service_pb2_grpc  # noqa: PLC0415 - only this test plays that client

    identity = deployment.client()
    service = ScriptedService()
    async with await GrpcServer.start(
        service, LOOPBACK, identity=deployment.server()
    ) as server:
        channel = grpc.aio.secure_channel(
            str(server.address), identity.channel_credentials()
        )
        stub = secagg_service_pb2_grpc.SecAggServiceStub(channel)
        request = secagg_service_pb2.AdvertiseKeysRequest(
            session_id=SESSION, message=b"advert"
        )
        assert (
            await stub.AdvertiseKeys(request, timeout=10)
            == secagg_service_pb2.AdvertiseKeysResponse()
        )
        assert AdvertiseKeys(SESSION, b"advert").encode() == (
            request.SerializeToString()
        )
        await channel.close()
    assert service.calls == [("client-7", AdvertiseKeys(SESSION, b"advert"))]
