"""What a client of the HTTP edge believes, and what it refuses, of an answer."""

import asyncio
import ssl
import time
from contextlib import asynccontextmanager

import pytest
from secagg_testing.edge_requests import EdgeIssuer
from secagg_testing.tls_deployment import TLSDeployment

from secagg.client.edge_connection import EdgeConnection
from secagg.errors import ErrorCode, ServiceError
from secagg.transport.address import Address
from secagg.wire.calls import CALLS, GetUploadStatus, UploadStatus

HOST = "edge.example"
STATUS = GetUploadStatus(bytes(32))


@asynccontextmanager
async def answering(tmp_path, *answers, host=HOST, **changes):
    """A TLS server that answers each request with the next of some bytes."""
    tls = TLSDeployment(tmp_path)
    files = tls.server(host).files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.private_key)
    heads, left = [], list(answers)

    async def serve(reader, writer):
        try:
            while left:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                length = heads[-1].lower().partition(b"content-length: ")[2]
                await reader.readexactly(int(length.partition(b"\r\n")[0]))
                writer.write(left.pop(0))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    identity = EdgeIssuer(now=int(time.time())).identity("ada")
    try:
        async with (
            asyncio.timeout(60),
            EdgeConnection(
                HOST,
                identity=identity,
                aggregator="agg",
                authorities=tmp_path / "ours.pem",
                address=Address("127.0.0.1", port),
                **changes,
            ) as connection,
        ):
            yield connection, heads
    finally:
        server.close()


def answer(body, status=200, **headers):
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


DONE = CALLS[GetUploadStatus].encode(UploadStatus(3))


async def failure(tmp_path, *answers, **changes):
    async with answering(tmp_path, *answers, **changes) as (connection, _):
        with pytest.raises(ServiceError) as caught:
            await connection.call(STATUS)
    return caught.value


async def test_calls_share_a_connection_and_their_signatures_cover_the_authority(
    tmp_path,
):
    async with answering(tmp_path, answer(DONE), answer(DONE)) as (connection, heads):
        assert await connection.probe() == "agg"
        for _ in range(2):
            assert await connection.call(STATUS) == UploadStatus(3)
        assert (connection.identity, connection.trust_domain) == ("ada", "ours.example")
    assert len(heads) == 2
    assert b"\r\nHost: edge.example\r\n" in heads[0]


async def test_a_certificate_for_another_host_is_refused_before_a_request(tmp_path):
    # R10.3-1.
    async with answering(tmp_path, answer(DONE), host="other.example") as made:
        connection, heads = made
        with pytest.raises(ServiceError) as caught:
            await connection.call(STATUS)
        assert caught.value.code is ErrorCode.BAD_CERTIFICATE
        with pytest.raises(ServiceError):
            await connection.probe()
    assert not heads


async def test_no_redirect_is_followed(tmp_path):
    # R10.3-2.
    moved = answer(b"", 307, Location="https://edge.example/other")
    async with answering(tmp_path, moved, answer(DONE)) as (connection, heads):
        with pytest.raises(ServiceError, match="status 307") as caught:
            await connection.call(STATUS)
        assert caught.value.code is ErrorCode.UNREACHABLE
    assert len(heads) == 1


@pytest.mark.parametrize("direct", [True, False])
async def test_the_connection_states_whether_tls_ends_at_the_aggregator(
    tmp_path, direct
):
    # R10.3-4: carriers ask for it, `rules/test_carriers.py`.
    async with answering(tmp_path, direct=direct) as (connection, _):
        assert connection.is_direct is direct


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (answer(b"<html>", 502), ErrorCode.UNREACHABLE),
        (answer(b"{}", 401), ErrorCode.UNREACHABLE),
        (answer(b'{"details": [{"value": "!"}]}', 400), ErrorCode.UNREACHABLE),
        (answer(b"[" * 100_000, 400), ErrorCode.UNREACHABLE),
        (answer(b"slow down", 429), ErrorCode.OVERLOADED),
        (b"HTTP/1.1 200 OK\r\n\r\n", ErrorCode.UNREACHABLE),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", ErrorCode.UNREACHABLE),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
            ErrorCode.UNREACHABLE,
        ),
        (b"nonsense\r\n\r\n", ErrorCode.UNREACHABLE),
        (b"x: " + b"y" * 40_000, ErrorCode.UNREACHABLE),
        (b"", ErrorCode.UNREACHABLE),
    ],
)
async def test_an_answer_of_another_server_is_a_connectivity_error(
    tmp_path, said, code
):
    assert (await failure(tmp_path, said)).code is code
