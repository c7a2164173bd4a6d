"""Whom a client takes for its aggregator, over real mutual TLS on loopback.

Every impostor here holds a certificate of the client's own authority and a gRPC server
that answers whatever is asked; what must not happen is that it is asked anything.
"""

import asyncio
import dataclasses
import ipaddress
import socket
import ssl
from contextlib import asynccontextmanager

import pytest
from cryptography.x509 import DNSName, IPAddress, UniformResourceIdentifier
from cryptography.x509.oid import ExtendedKeyUsageOID
from secagg_testing.scripted_service import ScriptedService
from secagg_testing.tls_deployment import TLSDeployment

from secagg.client.grpc_connection import GrpcConnection
from secagg.errors import ErrorCode, LocalProtocolError, ServiceError
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.transport.address import Address
from secagg.transport.handshake import Expected
from secagg.transport.peer_identity import PeerIdentity, Role
from secagg.wire.calls import AdvertiseKeys, WatchSession

SESSION = bytes(32)
LOOPBACK = Address("127.0.0.1", 0)
HOST = IPAddress(ipaddress.ip_address("127.0.0.1"))
RESERVED = "agg.ours.example.server.secagg.internal"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    return TLSDeployment(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def calling(server_identity, client_identity, **options):
    front = ScriptedService()
    async with (
        await GrpcServer.start(front, LOOPBACK, identity=server_identity) as server,
        GrpcConnection(
            server.address, identity=client_identity, **options
        ) as connection,
    ):
        yield front, connection


def impostors(deployment):
    """Return (what it is, its certificate, what the client says)."""
    elsewhere = dataclasses.replace(deployment.ours, trust_domain="elsewhere.example")
    evil = UniformResourceIdentifier("secagg://ours.example/client/evil")
    return [
        (
            "a client's certificate of `secagg pki`",
            deployment.cheat(deployment.ours.issue_client("evil")),
            "not for servers",
        ),
        (
            "a client's certificate with the host, for no stated purpose",
            deployment.forge([evil, HOST]),
            "is not an aggregator: .*client/evil",
        ),
        (
            "a client's certificate with the host, for servers",
            deployment.forge([evil, HOST], purpose=ExtendedKeyUsageOID.SERVER_AUTH),
            "is not an aggregator: .*client/evil",
        ),
        (
            "an aggregator of another trust domain under the same authority",
            deployment.cheat(elsewhere.issue_server("agg", ["127.0.0.1"])),
            "trust domain elsewhere.example, this client to ours.example",
        ),
        (
            "a certificate with the host name and no identity",
            deployment.forge([HOST], purpose=ExtendedKeyUsageOID.SERVER_AUTH),
            "not an aggregator to this client: .*exactly one",
        ),
        (
            "an aggregator without the DNS name for later handshakes",
            deployment.forge(
                [UniformResourceIdentifier("secagg://ours.example/server/agg"), HOST]
            ),
            "lacks the DNS name agg.ours",
        ),
        (
            "a client that spells the aggregator's DNS name",
            deployment.forge([evil, HOST, DNSName(RESERVED)]),
            "reserved DNS name",
        ),
        (
            "the same where C strings end",
            deployment.forge([evil, HOST, DNSName(RESERVED + "\0.evil")]),
            "reserved DNS name",
        ),
    ]


@pytest.mark.parametrize("number", range(8))
async def test_an_impostor_is_rejected_before_any_request(deployment, number):
    what, certificate, complaint = impostors(deployment)[number]
    client = deployment.client()
    async with calling(certificate, client) as (front, connection):
        with pytest.raises(ServiceError, match=complaint) as caught:
            await connection.call(AdvertiseKeys(SESSION, b"advert"))
        with pytest.raises(ServiceError):
            await anext(connection.watch(WatchSession(SESSION, None)))
        with pytest.raises(LocalProtocolError):
            _ = connection.aggregator
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE, what
    assert caught.value.next_step
    assert not front.calls


@pytest.mark.parametrize("number", range(8))
async def test_an_impostor_is_rejected_even_if_the_aggregator_is_pinned(
    deployment, number
):
    _, certificate, complaint = impostors(deployment)[number]
    client = deployment.client()
    async with calling(certificate, client, aggregator="agg") as (front, connection):
        with pytest.raises(ServiceError, match=complaint) as caught:
            await connection.call(AdvertiseKeys(SESSION, b"advert"))
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE
    assert not front.calls


async def test_an_aggregator_below_tls_1_3_is_rejected(deployment):
    # R10.1-1
    identity = deployment.server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(identity.files.certificate, identity.files.private_key)

    def serve_one(listener):
        accepted, _ = listener.accept()
        # It says why before it closes.
        with accepted, pytest.raises(ssl.SSLError):
            context.wrap_socket(accepted, server_side=True)

    with socket.create_server((LOOPBACK.host, 0)) as listener:
        serving = asyncio.create_task(asyncio.to_thread(serve_one, listener))
        address = Address(LOOPBACK.host, listener.getsockname()[1])
        client = deployment.client()
        async with GrpcConnection(address, identity=client, aggregator="agg") as ours:
            with pytest.raises(
                ServiceError, match="refuses the TLS handshake"
            ) as caught:
                await ours.call(AdvertiseKeys(SESSION, b"advert"))
        await serving
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE
    assert "TLS 1.3" in caught.value.next_step


async def test_another_aggregator_than_the_pinned_one_is_refused(deployment):
    server, client = deployment.server(name="other"), deployment.client()
    async with calling(server, client, aggregator="agg") as (front, connection):
        with pytest.raises(ServiceError, match=r"'other', .* only 'agg'") as caught:
            await connection.call(AdvertiseKeys(SESSION, b"advert"))
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE
    assert "client.aggregator" in caught.value.next_step
    assert not front.calls


async def test_the_pinned_aggregator_is_accepted_at_any_address(deployment):
    server, client = deployment.server("elsewhere.example"), deployment.client()
    async with calling(server, client, aggregator="agg") as (front, connection):
        await connection.call(AdvertiseKeys(SESSION, b"advert"))
        assert connection.aggregator == "agg"
    assert len(front.calls) == 1


async def test_without_a_pinned_name_the_host_name_is_verified(deployment):
    async with calling(deployment.server(), deployment.client()) as (_, connection):
        with pytest.raises(LocalProtocolError):
            _ = connection.aggregator
        await connection.call(AdvertiseKeys(SESSION, b"advert"))
        assert connection.aggregator == "agg"


@pytest.mark.parametrize("impostor", ["another aggregator", "a client", "a host"])
async def test_a_later_owner_of_the_address_receives_no_request(deployment, impostor):
    """Each connection is checked by TLS, not only the first one."""
    certificate = {
        "another aggregator": lambda: deployment.server(name="b"),
        "a client": lambda: deployment.forge(
            [UniformResourceIdentifier("secagg://ours.example/client/evil"), HOST]
        ),
        "a host": lambda: deployment.forge([HOST]),
    }[impostor]()
    first, second = ScriptedService(), ScriptedService()
    server = await GrpcServer.start(first, LOOPBACK, identity=deployment.server())
    async with GrpcConnection(
        server.address, identity=deployment.client()
    ) as connection:
        await connection.call(AdvertiseKeys(SESSION, b"advert"))
        await server.stop(0)
        async with await GrpcServer.start(second, server.address, identity=certificate):
            with pytest.raises(ServiceError) as caught:
                await connection.call(AdvertiseKeys(SESSION, b"advert"))
            assert connection.aggregator == "agg"
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE
    assert not second.calls


async def test_a_plaintext_test_connection_names_its_aggregator():
    async with (
        await GrpcServer.start(
            ScriptedService(), LOOPBACK, insecure_for_tests=True
        ) as server,
        GrpcConnection(server.address, insecure_for_tests="c") as connection,
    ):
        assert connection.aggregator == "aggregator"


@pytest.mark.parametrize("name", ["", "A", "a.b", "a" * 64])
def test_an_impossible_aggregator_name_is_a_settings_error(deployment, name):
    with pytest.raises(ServiceError, match=r"client\.aggregator") as caught:
        GrpcConnection(LOOPBACK, identity=deployment.client(), aggregator=name)
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    assert caught.value.next_step


@pytest.mark.parametrize(
    "peer",
    [
        PeerIdentity("ours.example", Role.CLIENT, "agg"),
        PeerIdentity("elsewhere.example", Role.SERVER, "agg"),
        PeerIdentity("ours.example", Role.SERVER, "other"),
    ],
)
def test_role_trust_domain_and_name_are_each_checked(peer):
    Expected("ours.example", "agg").check(
        PeerIdentity("ours.example", Role.SERVER, "agg")
    )
    with pytest.raises(ServiceError) as caught:
        Expected("ours.example", "agg").check(peer)
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE
