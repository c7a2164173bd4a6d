"""Every call over a real loopback connection, plaintext for tests."""

import hashlib
from contextlib import asynccontextmanager

import grpc
import pytest
from secagg_testing.cohorts import offer_of
from secagg_testing.scripted_service import ScriptedService

from secagg.client.grpc_connection import GrpcConnection
from secagg.errors import (
    ErrorCode,
    InternalError,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
    SessionAbortedError,
    ThresholdNotMetError,
)
from secagg.protocol.messages import (
    Aborted,
    Delivery,
    Envelope,
    Released,
    Roster,
    Round,
    Survivors,
)
from secagg.protocol.parameters import ProtocolParameters
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.transport.address import Address
from secagg.transport.channel_options import TEST_IDENTITY_KEY
from secagg.transport.connection import InMemoryConnection
from secagg.v1 import google_status_pb2
from secagg.wire.calls import (
    CALLS,
    AdvertiseKeys,
    Blob,
    BlobChunk,
    ChooseEdges,
    FetchChunk,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    Reference,
    ReportViolation,
    RevealShares,
    ShareKeys,
    SignConsistency,
    UploadChunk,
    UploadStatus,
    Wait,
    WatchSession,
)

LOOPBACK = Address("127.0.0.1", 0)
SESSION = bytes(range(32))
DIGEST = hashlib.sha256(b"vector").digest()
DESCRIPTOR = offer_of(
    ProtocolParameters(
        modulus=1 << 20,
        dimension=1000,
        min_clients=10,
        max_clients=100,
        threshold=7,
        min_survivors=8,
        max_dropouts=2,
        max_losses=2,
    ),
    task_id="digits",
    session_number=3,
    payload_hash=DIGEST,
)
UPDATES = [
    Envelope(Roster, b"roster"),
    Envelope(Delivery, b"delivery"),
    Envelope(Survivors, b"\x03"),
    Envelope(Released, b"release"),
    Envelope(Aborted, b"abort"),
]
ANSWERED = [
    (GetOffer("digits", 2), DESCRIPTOR),
    (GetOffer("digits"), Wait(0.25)),
    (AdvertiseKeys(SESSION, b"advert"), None),
    (ChooseEdges(SESSION, b"edges"), None),
    (ShareKeys(SESSION, b"bundles"), None),
    (GetUploadStatus(SESSION), UploadStatus(10)),
    (
        UploadChunk(SESSION, 10, 14, DIGEST, b"data"),
        UploadStatus(1 << 33, complete=True),
    ),
    (ReportViolation(SESSION, b"report"), None),
    (SignConsistency(SESSION, b"s" * 64), None),
    (RevealShares(SESSION, b"shares"), None),
    (GetUpdate(SESSION, None), Wait(0.25)),
    *((GetUpdate(SESSION, Round.SHARE_KEYS), update) for update in UPDATES),
    (GetUpdate(SESSION, None), Reference(Roster, DIGEST, 3 << 20, Blob.ROSTER)),
    (FetchChunk(SESSION, Blob.SUM, 95, 5), BlobChunk(b"piece", 100)),
]


def connected(server, name="c"):
    return GrpcConnection(server.address, insecure_for_tests=name)


@asynccontextmanager
async def serving(service):
    async with await GrpcServer.start(
        service, LOOPBACK, insecure_for_tests=True
    ) as server:
        yield server


@pytest.fixture
def service():
    return ScriptedService()


@pytest.fixture(params=["grpc", "memory"])
async def connection(request, service):
    if request.param == "memory":
        yield InMemoryConnection(service, "client-7")
        return
    async with serving(service) as server, connected(server, "client-7") as connection:
        yield connection


@pytest.mark.parametrize(
    ("request_", "answer"), ANSWERED, ids=lambda value: str(value)[:40]
)
async def test_a_call_arrives_unchanged_under_the_identity_of_its_caller(
    connection, service, request_, answer
):
    service.script[type(request_)] = answer
    assert await connection.call(request_) == answer
    assert service.calls == [("client-7", request_)]


def test_every_unary_call_is_tested():
    assert {type(request) for request, _ in ANSWERED} == set(CALLS) - {WatchSession}


async def test_a_watch_delivers_every_update_in_order_and_ends(connection, service):
    service.updates = [*UPDATES, Reference(Delivery, DIGEST, 3 << 20, Blob.DELIVERY)]
    request = WatchSession(SESSION, None)
    seen = [update async for update in connection.watch(request)]
    assert seen == service.updates
    assert service.calls == [("client-7", request)]


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (ServiceError("full", code=ErrorCode.OVERLOADED, retry_after_seconds=1.5), 1.5),
        (RemoteProtocolError("no", code=ErrorCode.NOT_INVITED, sender="c"), None),
    ],
    ids=["with a wait", "without"],
)
async def test_a_plain_grpc_client_reads_reason_and_retry_delay(service, error, wait):
    service.script[GetUploadStatus] = error
    request = GetUploadStatus(SESSION)
    async with serving(service) as server:
        channel = grpc.aio.insecure_channel(str(server.address))
        call = channel.unary_unary("/secagg.v1.SecAggService/GetUploadStatus")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(request.encode(), metadata=((TEST_IDENTITY_KEY, "c"),))
        await channel.close()
    trailers = dict(caught.value.trailing_metadata())
    told = google_status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert told.code == caught.value.code().value[0]
    assert told.message == str(error)
    info, *retry = told.details
    assert info.type_url == "type.googleapis.com/google.rpc.ErrorInfo"
    read = google_status_pb2.ErrorInfo.FromString(info.value)
    assert (read.reason, read.domain) == (error.code.name, "secagg")
    assert len(retry) == (wait is not None)
    for each in retry:
        assert each.type_url == "type.googleapis.com/google.rpc.RetryInfo"
        delay = google_status_pb2.RetryInfo.FromString(each.value).retry_delay
        assert delay.ToTimedelta().total_seconds() == wait


async def test_a_request_that_exceeds_its_limits_reaches_no_service(service):
    async with serving(service) as server, connected(server) as connection:
        for request in (ShareKeys(b"short", b""), FetchChunk(SESSION, Blob.SUM, 0, 0)):
            with pytest.raises(RemoteProtocolError) as caught:
                await connection.call(request)
            assert caught.value.code is ErrorCode.BAD_ENCODING
        with pytest.raises(RemoteProtocolError):
            await anext(connection.watch(WatchSession(b"short", None)))
    assert not service.calls


async def test_refused_calls_are_counted_before_they_are_decoded(service, caplog):
    """By code, whatever refuses them; their caller has one line of the log."""
    caplog.set_level("INFO", logger="secagg")
    named = ((TEST_IDENTITY_KEY, "c"),)
    async with (
        serving(service) as server,
        grpc.aio.insecure_channel(str(server.address)) as channel,
    ):
        for call in CALLS.values():
            method = f"/secagg.v1.SecAggService/{call.name}"
            garbage = (
                channel.unary_stream(method)
                if call.is_stream
                else channel.unary_unary(method)
            )
            for metadata in (named, named, ()):
                answered = garbage(b"\xff" * 9, metadata=metadata)
                with pytest.raises(grpc.aio.AioRpcError):
                    await (answered.read() if call.is_stream else answered)
    assert service.refusals.count(ErrorCode.UNAUTHENTICATED) == len(CALLS)
    assert service.refusals.count(ErrorCode.BAD_ENCODING) == 2 * len(CALLS)
    assert len(service.refusals) == 3 * len(CALLS)
    assert not service.calls
    lines = [each for each in caplog.messages if each.startswith("call_refused")]
    assert len(lines) == 2  # of "c", and of callers without a name


ERRORS = [
    RemoteProtocolError(
        "two adverts", code=ErrorCode.EQUIVOCATION, sender="client-7", next_step="stop"
    ),
    SessionAbortedError("lost", code=ErrorCode.RECONSTRUCTION_FAILED, next_step="wait"),
    ThresholdNotMetError(alive=3, needed=5, code=ErrorCode.U2_TOO_SMALL),
    ServiceError("gone", code=ErrorCode.UNKNOWN_SESSION, next_step="ask for an offer"),
    ServiceError("full", code=ErrorCode.OVERLOADED, retry_after_seconds=1.5),
    ServiceError("no disk", code=ErrorCode.STORAGE_FAILED),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code.name)
async def test_an_error_keeps_its_class_code_and_next_step(connection, service, error):
    service.script[ShareKeys] = error
    service.updates = [UPDATES[0], error]
    with pytest.raises(type(error)) as unary:
        await connection.call(ShareKeys(SESSION, b""))
    stream_of_updates = connection.watch(WatchSession(SESSION, after=None))
    assert await anext(stream_of_updates) == UPDATES[0]
    with pytest.raises(type(error)) as stream:
        await anext(stream_of_updates)
    for caught in (unary.value, stream.value):
        assert type(caught) is type(error)
        assert str(caught) == str(error)
        assert vars(caught) == vars(error)
    assert service.refusals == [error.code] * 2
    # gRPC did not repeat a call that was answered.
    assert [type(request) for _, request in service.calls] == [ShareKeys, WatchSession]


@pytest.mark.parametrize(
    "defect",
    [
        InternalError("secret state"),
        LocalProtocolError("secret state"),
    ],
)
async def test_a_defect_of_the_aggregator_reveals_nothing_to_the_client(
    connection, service, defect
):
    service.script[AdvertiseKeys] = defect
    with pytest.raises(ServiceError) as caught:
        await connection.call(AdvertiseKeys(SESSION, b"advert"))
    assert caught.value.code is ErrorCode.INTERNAL
    assert "secret" not in str(caught.value)


async def test_an_unexpected_exception_ends_one_call_and_is_logged(caplog):
    service = ScriptedService(script={AdvertiseKeys: ZeroDivisionError("secret state")})
    async with serving(service) as server, connected(server) as connection:
        with pytest.raises(ServiceError) as caught:
            await connection.call(AdvertiseKeys(SESSION, b"advert"))
        assert caught.value.code is ErrorCode.INTERNAL
        assert "secret" not in str(caught.value)
        assert any(
            record.message.startswith("call_failed") and record.exc_info
            for record in caplog.records
        )
        service.script[AdvertiseKeys] = None
        await connection.call(AdvertiseKeys(SESSION, b"advert"))


async def test_a_closed_connection_raises_cancelled():
    service = ScriptedService()
    async with serving(service) as server:
        connection = connected(server)
        await connection.close()
        await connection.close()
        with pytest.raises(ServiceError) as caught:
            await connection.call(AdvertiseKeys(SESSION, b"advert"))
        assert caught.value.code is ErrorCode.CANCELLED
        with pytest.raises(ServiceError, match="closed"):
            await anext(connection.watch(WatchSession(SESSION, after=None)))


async def test_a_port_without_a_listener_is_unreachable_and_retryable():
    async with GrpcConnection(
        Address("127.0.0.1", 1), insecure_for_tests="c"
    ) as connection:
        with pytest.raises(ServiceError) as caught:
            await connection.call(GetUploadStatus(SESSION))
    assert caught.value.code is ErrorCode.UNREACHABLE
    assert caught.value.retry_after_seconds is not None
    assert caught.value.next_step
