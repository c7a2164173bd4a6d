"""What the HTTP edge does before it knows who calls, over real TLS on loopback.

Each test is a fault of an HTTP server that is open to the world.
"""

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from secagg_testing.edge_deployment import AUTHORITY, EdgeDeployment
from secagg_testing.edge_requests import EdgeRequest
from secagg_testing.inline_store import inline_store
from secagg_testing.manual_clock import ManualClock
from secagg_testing.scripted_service import ScriptedService

from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError, ServiceError
from secagg.protocol.enrolment import RevocationList
from secagg.server.rpc.certificates import LOOK_EVERY_SECONDS
from secagg.transport.address import Address
from secagg.transport.handshake_limits import AdmissionLimits
from secagg.transport.relay import Rejection
from secagg.wire.calls import (
    Blob,
    BlobChunk,
    FetchChunk,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    UploadStatus,
    Wait,
)

pytest.importorskip("uvicorn", reason="needs the extra edge")
pytest.importorskip("httptools", reason="needs the extra edge")

SESSION = bytes(32)
STATUS = GetUploadStatus(SESSION)
HELD = GetUpdate(SESSION, None, 30_000)
RELAY = AdmissionLimits(relay="on", handshake_seconds=0.5)


@pytest.fixture
def deployment(tmp_path):
    return EdgeDeployment.create(tmp_path, now=int(time.time()))


@asynccontextmanager
async def serving(deployment, script=None, **options):
    service = ScriptedService({GetUploadStatus: UploadStatus(3)} | (script or {}))
    async with asyncio.timeout(120):
        edge = await deployment.start(service, **options)
        try:
            yield edge, service
        finally:
            await edge.stop(0.0)


def signed(deployment, request=STATUS, name="ada", serial=7, *, created=None):
    identity = deployment.issuer.identity(name, serial)
    created = int(time.time()) if created is None else created
    return EdgeRequest.signed(identity, request, authority=AUTHORITY, created=created)


def used_memory():
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def flood(link, piece, times):
    """Send as much as the other end takes; return how many bytes."""
    sent = 0
    with suppress(OSError, ssl.SSLError, TimeoutError):
        for _ in range(times):
            async with asyncio.timeout(5):
                await link.send(piece)
            sent += len(piece)
    return sent


# --- before there is a caller ---------------------------------------------------------


async def test_headers_without_end_are_cut_and_cost_no_memory(deployment):
    async with serving(deployment) as (edge, service):
        link, before = await deployment.raw(edge.address), used_memory()
        await link.send(b"POST / HTTP/1.1\r\nhost: a\r\n")
        sent = await flood(link, b"x: " + b"y" * 65_000 + b"\r\n", 1600)
        assert sent < 20 << 20  # of 104 MB: what the sockets held
        assert used_memory() - before < 32 << 20
        assert not service.calls
        link.close()


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\n" + b"x: " + b"y" * 20_000 + b"\r\n\r\n",
        b"POST /" + b"y" * 20_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + b"x: y\r\n" * 9000 + b"\r\n",
    ],
)
async def test_headers_that_are_whole_and_too_long_are_refused(deployment, head):
    async with serving(deployment) as (edge, service):
        link = await deployment.raw(edge.address)
        await flood(link, head, 1)
        rest = await link.rest()
        assert rest == b"" or rest.startswith(b"HTTP/1.1 400")
        assert not service.calls
        link.close()


@pytest.mark.parametrize(
    "start", [b"", b"POST / HT", b"\r\n", b"POST / HTTP/1.1\r\na:"]
)
async def test_an_incomplete_request_is_closed_after_its_time_limit(
    deployment, start, monkeypatch
):
    monkeypatch.setattr("secagg.server.http_edge.protocol.HEADER_SECONDS", 0.3)
    async with serving(deployment) as (edge, _):
        link = await deployment.raw(edge.address)
        await link.send(start)
        assert await link.rest() == b""


async def test_an_incomplete_second_request_is_closed_as_well(deployment, monkeypatch):
    monkeypatch.setattr("secagg.server.http_edge.protocol.HEADER_SECONDS", 0.3)
    async with serving(deployment) as (edge, _):
        link = await deployment.raw(edge.address)
        assert (await link.request(signed(deployment)))[0] == 200
        await link.send(b"\r\n")
        assert await link.rest() == b""


async def test_a_slow_body_outlives_the_time_of_headers(deployment, monkeypatch):
    # The time is of headers alone, and a kept connection may use it again.
    monkeypatch.setattr("secagg.server.http_edge.protocol.HEADER_SECONDS", 0.3)
    async with serving(deployment) as (edge, _):
        link, request = await deployment.raw(edge.address), signed(deployment)
        for _ in range(2):
            await link.send(request.head(AUTHORITY))
            with suppress(TimeoutError):
                async with asyncio.timeout(0.6):
                    await link.answer()
            await link.send(request.body)
            assert (await link.answer())[0] == 200
        link.close()


async def test_the_body_of_a_refused_request_is_not_received(deployment):
    async with serving(deployment) as (edge, service):
        link, request = await deployment.raw(edge.address), signed(deployment)
        request.headers["secagg-credential"] = "AA"
        request.headers["content-length"] = str(4 << 20)
        await link.send(request.head(AUTHORITY))
        assert (await link.answer())[0] == 401
        piece = bytes(65_536)
        sent = await flood(link, piece, 800)
        assert sent < 12 << 20  # of 50 MB: what the sockets held
        assert not service.calls
        link.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT a:443 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b"POST http://b/secagg.v1.SecAggService/GetOffer HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST /\xff HTTP/1.1\r\nhost: a\r\n\r\n",
        b"\x00\x01\x02",
    ],
)
async def test_an_unknown_request_is_rejected_and_logs_no_defect(
    deployment, said, caplog
):
    async with serving(deployment) as (edge, service):
        link = await deployment.raw(edge.address)
        await link.send(said)
        rest = await link.rest()
        assert rest.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
        assert not service.calls
    assert "call_failed" not in caplog.text
    assert "Invalid HTTP" not in caplog.text


async def test_a_pipelined_request_ends_the_connection(deployment):
    async with serving(deployment) as (edge, service):
        link, request = await deployment.raw(edge.address), signed(deployment)
        # Bytes between requests are no request.
        await link.send(request.head(AUTHORITY) + request.body + b"\r\n")
        assert (await link.answer())[0] == 200
        await link.send(2 * (request.head(AUTHORITY) + request.body))
        assert await link.rest() == b""
        assert len(service.calls) < 3
        # Thousands in one piece would each be kept and read before the first one ends.
        link = await deployment.raw(edge.address)
        await link.send(500 * b"GET / HTTP/1.1\r\n\r\n")
        assert await link.rest() == b""


async def test_a_client_that_does_not_read_its_answer_is_disconnected(
    deployment, monkeypatch
):
    # What it does not take is kept for it; no time of requests or of calls ends that.
    monkeypatch.setattr("secagg.server.http_edge.protocol.IDLE_SECONDS", 0.1)
    monkeypatch.setattr("secagg.server.http_edge.protocol.ANSWER_SECONDS", 2.0)
    answered = asyncio.Event()

    async def answer(_, __):
        answered.set()
        return BlobChunk(bytes(32 << 20), 32 << 20)  # more than sockets hold

    async with serving(deployment, {FetchChunk: answer}) as (edge, _):
        link = await deployment.raw(edge.address)
        request = signed(deployment, FetchChunk(SESSION, Blob.ROSTER, 0))
        for _ in range(3):  # the last one waits for room
            await link.send(request.head(AUTHORITY) + request.body)
            await answered.wait()
            answered.clear()
            await asyncio.sleep(0)  # the answer is on its way
        async with asyncio.timeout(30):
            await edge._server._lost.wait()
        link.close()


async def test_the_signature_covers_the_exact_request_target(deployment):
    async with serving(deployment) as (edge, service):
        for path in (
            "/secagg.v1.SecAggService/GetUploadStatus?",
            "/secagg.v1.SecAggService/GetUploadStatus?a=1",
            "/secagg.v1.SecAggService/GetUploadStatu%73",
            "//secagg.v1.SecAggService/GetUploadStatus",
        ):
            link, request = await deployment.raw(edge.address), signed(deployment)
            request.path = path
            assert (await link.request(request))[0] == 404
            link.close()
        assert not service.calls


async def test_older_tls_and_foreign_client_certificates_are_rejected(deployment):
    # R10.3-1.
    async with serving(deployment) as (edge, _):
        old = ssl.create_default_context(cafile=deployment.tls.directory / "ours.pem")
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(
                edge.address.host,
                edge.address.port,
                ssl=old,
                server_hostname=AUTHORITY,
            )


# --- the relay ------------------------------------------------------------------------


async def test_idle_sockets_are_closed_and_a_proven_connection_is_kept(deployment):
    async with serving(deployment, admission=RELAY) as (edge, _):
        idle = [
            await asyncio.open_connection(edge.address.host, edge.address.port)
            for _ in range(30)
        ]
        silent = await deployment.raw(edge.address)  # TLS, and no call
        link = await deployment.raw(edge.address)
        assert (await link.request(signed(deployment)))[0] == 200
        for reader, writer in idle:
            with suppress(OSError):
                assert await reader.read() == b""
            writer.transport.abort()
        assert await silent.rest() == b""
        assert (await link.request(signed(deployment)))[0] == 200
        assert edge.relay.refused[Rejection.NO_HELLO] == 30
        assert edge.relay.refused[Rejection.HANDSHAKE_TIMEOUT] == 1
        link.close()


async def test_behind_the_relay_the_log_has_the_address_of_the_client(
    deployment, caplog
):
    caplog.set_level("INFO")
    async with serving(deployment, admission=RELAY) as (edge, _):
        link = await deployment.raw(edge.address)
        assert (await link.request(signed(deployment)))[0] == 200
        link.close()
    (seen,) = [each for each in caplog.messages if "edge_client_seen" in each]
    assert seen == "edge_client_seen identity=ada serial=7 address=127.0.0.1"


async def test_connections_of_unwelcome_clients_are_closed(deployment):
    async with serving(deployment, admission=RELAY) as (edge, _):
        link = await deployment.raw(edge.address)
        assert (await link.request(signed(deployment)))[0] == 200
        edge.end_connections(lambda name: name == "ada")
        assert await link.rest() == b""


async def test_connections_beyond_the_most_are_turned_away(deployment):
    admission = AdmissionLimits(relay="off", connections=2)
    async with serving(deployment, admission=admission) as (edge, _):
        links = [await deployment.raw(edge.address) for _ in range(2)]
        for link in links:
            assert (await link.request(signed(deployment)))[0] == 200
        refused = await deployment.raw(edge.address)
        assert await refused.rest() == b""
        links.pop().close()
        while True:  # until the server has noticed
            link = await deployment.raw(edge.address)
            with suppress(OSError, asyncio.IncompleteReadError):
                assert (await link.request(signed(deployment)))[0] == 200
                break
        link.close()
        links.pop().close()


# --- the certificate ------------------------------------------------------------------


def shown(address):
    """Return the number of the certificate that a new connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((address.host, address.port)) as plain,
        context.wrap_socket(plain) as tls,  # without a server name
    ):
        return tls.getpeercert(binary_form=True)


async def pass_a_minute(clock):
    clock.advance(LOOK_EVERY_SECONDS)
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_certificate_is_reloaded_only_when_both_files_match(deployment, caplog):
    clock = ManualClock(date=deployment.issuer.now)
    files = deployment.options
    newer = deployment.tls.server(AUTHORITY).files
    async with serving(deployment, clock=clock) as (edge, _):
        before = await asyncio.to_thread(shown, edge.address)
        shutil.copy(newer.certificate, files.certificate)  # and the old key
        await pass_a_minute(clock)
        assert "certificate_refused" in caplog.text
        assert await asyncio.to_thread(shown, edge.address) == before
        files.private_key.write_text("damaged")
        await pass_a_minute(clock)
        assert await asyncio.to_thread(shown, edge.address) == before
        shutil.copy(newer.private_key, files.private_key)
        await pass_a_minute(clock)
        after = await asyncio.to_thread(shown, edge.address)
        assert after != before
        link = await deployment.raw(edge.address)  # which checks the host name
        now = int(clock.date())
        assert (await link.request(signed(deployment, created=now)))[0] == 200
        link.close()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"authority": "other.example"}, ErrorCode.BAD_CERTIFICATE),
        ({"authority": "Edge.example"}, ErrorCode.BAD_SETTINGS),
        ({"authority": "edge.example:443"}, ErrorCode.BAD_SETTINGS),
        ({"authority": "https://edge.example"}, ErrorCode.BAD_SETTINGS),
        ({"listen": "nonsense"}, ErrorCode.BAD_SETTINGS),
    ],
)
async def test_an_edge_unreachable_for_clients_does_not_start(deployment, change, code):
    deployment.options = replace(deployment.options, **change)
    with pytest.raises(ServiceError) as caught:
        await deployment.start(ScriptedService())
    assert caught.value.code is code


async def test_a_port_in_use_is_reported(deployment):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        deployment.options = replace(deployment.options, listen=listen)
        with pytest.raises(ServiceError) as caught:
            await deployment.start(ScriptedService())
    assert caught.value.code is ErrorCode.PORT_IN_USE


# --- revocation -----------------------------------------------------------------------


def revoke(deployment, path, number, *serials):
    issuer = deployment.issuer
    listed = RevocationList(
        trust_domain="ours.example", number=number, made_at=issuer.now, serials=serials
    )
    path.write_bytes(listed.signed_by(issuer.key).encode())


async def test_a_revoked_serial_is_rejected_within_a_minute_and_its_held_answers_end(
    deployment, tmp_path, caplog
):
    # R10.3-18.
    clock = ManualClock(date=deployment.issuer.now)
    lists = tmp_path / "revocations.bin"
    deployment.options = replace(deployment.options, revocations=lists)
    revoke(deployment, lists, 1, 99)
    held = asyncio.Event()

    async def hold(_, __):
        held.set()
        await asyncio.Event().wait()

    def status(**who):
        return signed(deployment, created=int(clock.date()), **who)

    async with serving(deployment, {GetUpdate: hold}, clock=clock) as (edge, _):
        link = await deployment.raw(edge.address)
        question = signed(deployment, HELD, created=deployment.issuer.now)
        asking = asyncio.ensure_future(link.request(question))
        await held.wait()
        lists.write_bytes(b"damaged")  # changes nothing
        await pass_a_minute(clock)
        assert "revocation_list_rejected" in caplog.text
        assert not asking.done()
        revoke(deployment, lists, 2, 7)
        await pass_a_minute(clock)
        assert (await asking)[0] == 503
        assert (await link.request(status()))[0] == 401
        revoke(deployment, lists, 1, 99)  # an older list takes nothing back
        await pass_a_minute(clock)
        link = await deployment.raw(edge.address)
        assert (await link.request(status()))[0] == 401
        link = await deployment.raw(edge.address)
        assert (await link.request(status(name="bob", serial=8)))[0] == 200
        link.close()


@pytest.mark.parametrize("older", ["an older one", "another of its number", "none"])
async def test_no_older_revocation_list_is_accepted_after_a_restart_or_at_a_replica(
    deployment, tmp_path, caplog, older
):
    # R10.3-18: the store, which replicas share, has the newest number.
    clock, store = ManualClock(date=deployment.issuer.now), inline_store()
    lists, copy = tmp_path / "revocations.bin", tmp_path / "copy.bin"
    newest = replace(deployment.options, revocations=lists)
    revoke(deployment, lists, 2, 7)
    deployment.options = replace(newest, revocations=copy)
    revoke(deployment, copy, 1, 99)

    async def starts():
        edge = await deployment.start(ScriptedService(), clock=clock, store=store)
        await edge.stop(0.0)

    replica = await deployment.start(ScriptedService(), clock=clock, store=store)
    deployment.options = newest
    await starts()
    match older:
        case "an older one":
            revoke(deployment, lists, 1, 99)
        case "another of its number":
            revoke(deployment, lists, 2, 99)
        case _:
            deployment.options = replace(newest, revocations=None)
    with pytest.raises(SecAggError, match="older than") as caught:
        await starts()
    assert caught.value.code is ErrorCode.BAD_CREDENTIAL
    deployment.options = newest
    revoke(deployment, lists, 3, 7)
    await starts()
    revoke(deployment, copy, 2, 7)  # in force there, and said to be too old
    await pass_a_minute(clock)
    assert "is older than" in caplog.text
    await replica.stop(0.0)


# --- the client -----------------------------------------------------------------------


async def test_a_client_corrects_its_clock_once_and_by_an_hour_at_most(deployment):
    # R10.3-3.
    async with serving(deployment) as (edge, service):
        identity = deployment.issuer.identity("ada")
        async with deployment.connection(
            edge.address, identity, date=lambda: time.time() - 3000
        ) as connection:
            assert await connection.call(STATUS) == UploadStatus(3)
        assert service.refusals == [ErrorCode.UNAUTHENTICATED]
        async with deployment.connection(
            edge.address, identity, date=lambda: time.time() + 4000
        ) as connection:
            with pytest.raises(ServiceError, match="clock") as caught:
                await connection.call(STATUS)
            assert caught.value.code is ErrorCode.BAD_CLOCK


async def test_a_client_accepts_only_the_host_of_its_settings(deployment):
    # R10.3-1 and R10.3-2.
    async with serving(deployment) as (edge, service):
        identity = deployment.issuer.identity("ada")
        connection = deployment.connection(edge.address, identity)
        connection._host = "other.example"
        with pytest.raises(ServiceError) as caught:
            await connection.call(STATUS)
        assert caught.value.code is ErrorCode.BAD_CERTIFICATE
        await connection.close()
        with pytest.raises(ServiceError):
            await connection.call(STATUS)
        assert not service.calls


async def test_a_client_reuses_its_connection_and_replaces_a_lost_one(deployment):
    async with serving(deployment) as (edge, service):
        identity = deployment.issuer.identity("ada")
        async with deployment.connection(edge.address, identity) as connection:
            assert await connection.probe() == "agg"
            for _ in range(3):
                await connection.call(STATUS)
            (link,) = connection._idle
            link.writer.transport.abort()
            await connection.call(STATUS)
        assert len(service.calls) == 4
        assert service.calls[0][0] == "ada"
    async with deployment.connection(edge.address, identity) as connection:
        with pytest.raises(ServiceError) as caught:
            await connection.call(STATUS)
        assert caught.value.code is ErrorCode.UNREACHABLE


async def test_a_client_corrects_its_clock_only_after_a_rejected_proof(deployment):
    # R10.3-3.
    past = deployment.issuer.now - 60
    told = ServiceError("no", code=ErrorCode.OVERLOADED, server_time=past)
    async with serving(deployment, {GetUploadStatus: told}) as (edge, service):
        identity = deployment.issuer.identity("ada")
        async with deployment.connection(edge.address, identity) as connection:
            with pytest.raises(ServiceError) as caught:
                await connection.call(STATUS)
            assert caught.value.code is ErrorCode.OVERLOADED
            assert connection._correction is None
        assert len(service.calls) == 1


@pytest.mark.parametrize(
    "head",
    [
        "HTTP/1.1 200 OK\r\ncontent-length: " + "9" * 5000,
        "HTTP/1.1 " + "2" * 5000 + " OK\r\ncontent-length: 0",
        "HTTP/1.1 200 OK\r\ncontent-length: \xb2",
        "HTTP/1.1 200 OK\r\nx: " + "y" * 20_000,
    ],
)
async def test_a_malformed_http_answer_is_reported_as_unreachable(deployment, head):
    identity = deployment.issuer.identity("ada")
    connection = deployment.connection(Address("127.0.0.1", 1), identity)
    reader = asyncio.StreamReader(limit=16 << 10)
    reader.feed_data(head.encode("latin-1") + b"\r\n\r\n")
    with pytest.raises(ServiceError) as caught:
        await connection._read_answer(reader)
    assert caught.value.code is ErrorCode.UNREACHABLE


async def test_errors_of_the_service_are_transmitted_unchanged(deployment):
    refused = RemoteProtocolError("no", code=ErrorCode.EQUIVOCATION, sender="ada")
    full = ServiceError("full", code=ErrorCode.OVERLOADED, retry_after_seconds=2.5)
    script = {GetUploadStatus: refused, GetOffer: full}
    async with serving(deployment, script) as (edge, _):
        identity = deployment.issuer.identity("ada")
        async with deployment.connection(edge.address, identity) as connection:
            with pytest.raises(RemoteProtocolError) as caught:
                await connection.call(STATUS)
            assert caught.value.code is ErrorCode.EQUIVOCATION
            with pytest.raises(ServiceError) as later:
                await connection.call(GetOffer("t"))
            assert later.value.retry_after_seconds == 2.5


# --- the end --------------------------------------------------------------------------


async def test_a_handshake_that_ends_behind_the_stop_leads_nowhere(deployment):
    async with serving(deployment) as (edge, service):
        late = socket.create_connection((edge.address.host, edge.address.port))
        link = await deployment.raw(edge.address)  # both are accepted, in this order
        assert (await link.request(signed(deployment)))[0] == 200
        link.close()
        await edge.stop(0.0)
        with suppress(OSError, ssl.SSLError):
            link = await deployment.raw(edge.address, sock=late)
            await link.send(signed(deployment).head(AUTHORITY) + STATUS.encode())
            await link.rest()
        link.close()
        late.close()
        assert len(service.calls) == 1


async def test_stopping_ends_held_answers_first_and_completes_others(deployment):
    held, slow, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hold(_, __):
        held.set()
        await asyncio.Event().wait()

    async def take_time(_, __):
        slow.set()
        await go.wait()
        return Wait(1.0)

    script = {GetUpdate: hold, GetOffer: take_time}
    async with serving(deployment, script) as (edge, _):
        links = [await deployment.raw(edge.address) for _ in range(3)]
        waiting = asyncio.ensure_future(links[0].request(signed(deployment, HELD)))
        working = asyncio.ensure_future(
            links[1].request(signed(deployment, GetOffer("t"), "bob", 8))
        )
        await held.wait()
        await slow.wait()
        stopping = asyncio.ensure_future(edge.stop(60.0))
        assert (await waiting)[0] == 503
        assert await links[2].rest() == b""  # idle
        with pytest.raises(ConnectionRefusedError):
            await deployment.raw(edge.address)
        go.set()
        assert (await working)[0] == 200
        await stopping


PROGRAM = """
import asyncio, signal, sys, time
from pathlib import Path
from secagg_testing.edge_deployment import EdgeDeployment
from secagg_testing.scripted_service import ScriptedService
from secagg.server.rpc.grpc_server import GrpcServer, run_until_signalled
from secagg.transport.address import Address

async def main():
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    deployment = EdgeDeployment.create(Path(sys.argv[1]), now=int(time.time()))
    service = ScriptedService()
    edge = await deployment.start(service)
    assert before == {n: signal.getsignal(n) for n in before}
    server = await GrpcServer.start(
        service, Address("127.0.0.1", 0), insecure_for_tests=True
    )
    server.stop_with(edge.stop)
    async def work():
        print(edge.address, flush=True)
        await asyncio.Event().wait()
    async def drain():
        print("draining", flush=True)
    assert not await run_until_signalled(server, work(), drain=drain)
    print("stopped", flush=True)

asyncio.run(main())
"""


async def test_a_signal_stops_the_edge_and_ends_the_process(tmp_path):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        str(tmp_path),
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    async with asyncio.timeout(120):
        address = Address.parse((await process.stdout.readline()).decode().strip())
        reader, writer = await asyncio.open_connection(address.host, address.port)
        process.send_signal(signal.SIGTERM)
        assert await process.stdout.readline() == b"draining\n"
        assert await process.stdout.readline() == b"stopped\n"
        assert await process.wait() == 0
        with suppress(OSError):
            assert await reader.read() == b""
        writer.close()


# --- an edge that is off --------------------------------------------------------------


WITHOUT = """
import sys, secagg.server.service, secagg.server.http_edge.listener
print([n for n in sys.modules if n in ('uvicorn', 'httptools')])
"""


def test_without_an_edge_its_extra_is_not_imported():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            WITHOUT,
        ],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "[]\n"
