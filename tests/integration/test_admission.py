"""An aggregator of few files against many unknown peers, over real TLS."""

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys

import grpc.aio
import pytest
from secagg_testing.scripted_service import ScriptedService
from secagg_testing.tls_deployment import TLSDeployment

from secagg.client.grpc_connection import GrpcConnection
from secagg.config.files import load_host_settings
from secagg.errors import ErrorCode, ServiceError
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.service import server_of
from secagg.transport.address import Address
from secagg.transport.channel_options import HEALTH_SERVICE
from secagg.transport.handshake_limits import AdmissionLimits
from secagg.transport.relay import Rejection
from secagg.wire.calls import AdvertiseKeys

CALL = AdvertiseKeys(bytes(32), b"advert")
LOOPBACK = Address("127.0.0.1", 0)

# The limits of files are a process's own, so that this one has a process.
SERVER = """
import asyncio, logging, resource, sys
from pathlib import Path
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.service import server_of
from secagg.server.server import Server
from secagg_testing.scripted_service import ScriptedService
from secagg.transport.address import Address
from secagg.transport.handshake_limits import AdmissionLimits
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity

async def main(relay, certificate, key, authority):
    identity = TLSIdentity.load(
        certificate=Path(certificate), private_key=Path(key),
        authority=Path(authority), role=Role.SERVER,
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 352))
    async with await GrpcServer.start(
        ScriptedService(), Address("127.0.0.1", 0), identity=identity,
        admission=AdmissionLimits(relay=relay, waiting=16),
    ) as server:
        print(server.address.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        print(dict(server.relay.refused), flush=True)

logging.basicConfig(level="INFO")
asyncio.run(main(*sys.argv[1:]))
"""
FLOOD = 400  # more than the process may have files


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    return TLSDeployment(tmp_path_factory.mktemp("certificates"))


@contextlib.contextmanager
def flood(port, first=b""):
    """Hold as many connections open as the other side lets us."""
    with contextlib.ExitStack() as stack:
        for number in range(FLOOD):
            stranger = stack.enter_context(socket.socket())
            stranger.settimeout(10)
            with contextlib.suppress(ConnectionError):
                # Ten addresses: the limit of one would end this too early.
                stranger.bind((f"127.0.7.{number % 10 + 1}", 0))
                stranger.connect(("127.0.0.1", port))
                stranger.sendall(first)
        yield


@contextlib.contextmanager
def aggregator_of_few_files(deployment, relay):
    """Run `SERVER`."""
    files = deployment.server().files
    paths = map(str, (files.certificate, files.private_key, files.authority))
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, relay, *paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


async def test_silent_and_stalled_peers_block_no_client(deployment):
    with aggregator_of_few_files(deployment, "on") as process:
        port = int(process.stdout.readline())
        # Before the first byte, and in the middle of a hello.
        with flood(port), flood(port, b"\x16\x03\x01"):
            async with GrpcConnection(
                Address("127.0.0.1", port), identity=deployment.client()
            ) as connection:
                await connection.call(CALL)
        out, err = process.communicate()
    assert process.returncode == 0
    assert "file_descriptors_exhausted" not in err
    assert "reason=waiting" in err
    assert "WAITING" in out


async def test_a_stalled_tls_handshake_is_dropped_after_the_time_limit(
    deployment,
):
    hello = client_hello()
    async with await GrpcServer.start(
        ScriptedService(),
        LOOPBACK,
        identity=deployment.server(),
        admission=AdmissionLimits(relay="on", handshakes=2, handshake_seconds=0.2),
    ) as server:
        stalled = [
            await asyncio.open_connection("127.0.0.1", server.address.port)
            for _ in range(6)
        ]
        for _, writer in stalled:
            writer.write(hello)
        async with GrpcConnection(
            server.address, identity=deployment.client()
        ) as connection:
            await connection.call(CALL)  # when its turn came
            for reader, writer in stalled:
                with contextlib.suppress(ConnectionError):
                    await reader.read()  # to the end
                writer.close()
            await connection.call(CALL)  # on the same connection, long after
            assert server.relay.connections == 1
        assert server.relay.refused[Rejection.HANDSHAKE_TIMEOUT] == 6


def client_hello():
    """Return what a TLS library sends first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="aggregator.example")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


async def test_a_refused_certificate_is_in_the_log_with_its_address(deployment, caplog):
    caplog.set_level("INFO")
    # Its holder believes our authority, which has not issued it.
    stranger = deployment.cheat(deployment.theirs.issue_client("client-7"))
    async with await GrpcServer.start(
        ScriptedService(),
        LOOPBACK,
        identity=deployment.server(),
        admission=AdmissionLimits(relay="on"),
    ) as server:
        async with GrpcConnection(server.address, identity=stranger) as connection:
            with pytest.raises(ServiceError) as caught:
                await connection.call(CALL)
        assert caught.value.code in {ErrorCode.BAD_CERTIFICATE, ErrorCode.UNREACHABLE}
        assert server.relay.refused[Rejection.CERTIFICATE] >= 1
    assert "handshake_refused address=127.0.0.1" in caplog.text
    assert "reason=certificate" in caplog.text


async def test_one_client_keeps_its_two_newest_connections(deployment):
    async with (
        await GrpcServer.start(
            ScriptedService(),
            LOOPBACK,
            identity=deployment.server(),
            admission=AdmissionLimits(relay="on"),
        ) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        identity = deployment.client()
        for _ in range(3):
            connection = await stack.enter_async_context(
                GrpcConnection(server.address, identity=identity)
            )
            await connection.call(CALL)
        assert server.relay.refused == {Rejection.PER_IDENTITY: 1}
        assert server.relay.connections == 2


async def test_probes_are_answered_and_idle_connections_at_their_port_are_bounded():
    async with await GrpcServer.start(
        ScriptedService(),
        LOOPBACK,
        insecure_for_tests=True,
        health_address=LOOPBACK,
        admission=AdmissionLimits(relay="on"),
    ) as server:
        with flood(server.health_address.port):
            async with grpc.aio.insecure_channel(str(server.health_address)) as probe:
                check = probe.unary_unary(f"/{HEALTH_SERVICE}/Check")
                assert await check(b"", timeout=30) == b"\x08\x01"


def test_the_server_enforces_its_admission_settings(deployment, tmp_path):
    files = deployment.server().files
    path = tmp_path / "server.toml"
    path.write_text(
        "[tls]\n"
        f'ca = "{files.authority}"\n'
        f'certificate = "{files.certificate}"\n'
        f'key = "{files.private_key}"\n'
    )
    usual = load_host_settings(path, environment={}).settings
    assert usual.admission.limits() == AdmissionLimits()
    changed = load_host_settings(
        path, environment={}, overrides=["admission.relay=on", "admission.waiting=7"]
    ).settings
    server = server_of(changed)
    assert server._admission == AdmissionLimits(relay="on", waiting=7)
