"""The sample of an edge, in front of two aggregators, with the real Envoy."""

import asyncio
import contextlib
import re
import socket
import subprocess
import sysconfig
from pathlib import Path

import pytest
from secagg_testing.scripted_service import ScriptedService
from secagg_testing.tls_deployment import TLSDeployment

from secagg.client.grpc_connection import GrpcConnection
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.transport.address import Address
from secagg.wire.calls import AdvertiseKeys

pytestmark = pytest.mark.services

ENVOY = Path(sysconfig.get_path("scripts")) / "envoy"
SAMPLE = Path(__file__).parents[2] / "deploy" / "envoy" / "envoy.yaml"
CALL = AdvertiseKeys(bytes(32), b"advert")
READY = "starting workers"
CONNECTIONS = 6
ENDPOINT = re.compile(
    r"( +- endpoint:\n.*?address: )aggregator(, port_value: )7401"
    r"(.*?health_check_config: {port_value: )7402(.*?\n)",
    re.DOTALL,
)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def await_listener(port):
    """Connect until a worker listens: the workers have just been told to."""
    is_open = False
    while not is_open:
        with socket.socket() as probe:
            is_open = probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def edge(directory, *inside):
    """Run the sample before some servers with less patience; yield its port and log."""
    port, log = free_port(), directory / "envoy.log"
    text, count = ENDPOINT.subn(
        lambda found: "".join(
            f"{found[1]}127.0.0.1{found[2]}{each.address.port}"
            f"{found[3]}{each.health_address.port}{found[4]}"
            for each in inside
        ),
        SAMPLE.read_text(),
    )
    assert count == 1
    for usual, here in (
        ("0.0.0.0, port_value: 7400", f"127.0.0.1, port_value: {port}"),
        # Of names it waits for the first one only, before it listens.
        ("type: STRICT_DNS", "type: STATIC"),
        ("port_value: 9901", "port_value: 0"),
        ("listener_filters_timeout: 10s", "listener_filters_timeout: 0.2s"),
    ):
        assert text.count(usual) == 1
        text = text.replace(usual, here)
    config = directory / "envoy.yaml"
    config.write_text(text)
    with (
        log.open("w") as stdout,
        subprocess.Popen(
            [ENVOY, "-c", config, "--concurrency", "1", "--disable-hot-restart"],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if READY in line:
                    break
            else:
                pytest.fail("".join(said))
            await_listener(port)
            yield port, log
        finally:
            process.terminate()
            process.communicate()


def is_closed(stranger):
    """Whether the other side closes, within the socket's patience."""
    try:
        return stranger.recv(1) == b""
    except ConnectionError:
        return True


async def test_clients_pass_with_their_own_tls_and_unknown_peers_do_not(tmp_path):
    deployment, service = TLSDeployment(tmp_path), ScriptedService()
    anywhere = Address("127.0.0.1", 0)

    async def aggregator(answers):
        return await stack.enter_async_context(
            await GrpcServer.start(
                answers,
                anywhere,
                identity=deployment.server(),
                health_address=anywhere,
            )
        )

    async with contextlib.AsyncExitStack() as stack:
        serving = await aggregator(service)
        unready = await aggregator(ScriptedService())
        await unready.announce(is_ready=False)
        # On a thread: it begins to listen when the aggregators have said how they are.
        port, log = await asyncio.to_thread(
            stack.enter_context, edge(tmp_path, serving, unready)
        )

        def stranger(first):
            one = stack.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=10)
            )
            one.sendall(first)
            return one

        silent = [stranger(b"") for _ in range(100)]
        foreign = stranger(b"GET / HTTP/1.1\r\n\r\n")
        for _ in range(CONNECTIONS):  # each to an aggregator that serves
            async with GrpcConnection(
                Address("127.0.0.1", port), identity=deployment.client()
            ) as connection:
                await connection.call(CALL)
        assert is_closed(foreign)
        assert all(is_closed(each) for each in silent)
    assert service.calls == [("client-7", CALL)] * CONNECTIONS
    assert "connection address=127.0.0.1 milliseconds=" in log.read_text()


def test_the_envoy_sample_holds_no_key_and_no_certificate():
    """TLS is the client's and the aggregator's; a proxy that ends it would forge."""
    text = SAMPLE.read_text()
    assert "transport_socket" not in text
    assert "filename" not in text
