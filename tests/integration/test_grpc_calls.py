"""Every call over a real loopback connection, plaintext for tests."""

import hashlib
from contextlib import asynccontextmanager

import pytest

from secagg.errors import (
    ErrorCode,
    InternalError,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
    SessionAbortedError,
    ThresholdNotMetError,
)
from secagg.messages import (
    RosterPublished,
    SessionAborted,
    SharesDelivered,
    SumReleased,
    UnmaskRequested,
)
from secagg.parameters import ProtocolParameters, SessionDescriptor
from secagg.protocol.rounds import Round
from secagg.runtime.connection import Blob, BlobChunk, UploadStatus, Wait
from secagg.testing.scripted_front import ScriptedFront
from secagg.transport.address import Address
from secagg.transport.grpc_client import GrpcConnection
from secagg.transport.grpc_server import GrpcServer
from secagg.transport.in_memory import InMemoryConnection

LOOPBACK = Address("127.0.0.1", 0)
SESSION = bytes(range(32))
DIGEST = hashlib.sha256(b"vector").digest()
DESCRIPTOR = SessionDescriptor(
    task_id="digits",
    session_number=3,
    server_nonce=bytes(32),
    payload_hash=DIGEST,
    parameters=ProtocolParameters(
        modulus=1 << 20,
        dimension=1000,
        min_clients=10,
        max_clients=100,
        threshold=7,
        min_survivors=8,
        max_dropouts=2,
    ),
)
UPDATES = [
    RosterPublished(b"roster"),
    SharesDelivered(b"\x07", b"b" * 192),
    UnmaskRequested(b"\x03"),
    SumReleased(DIGEST, 2500, 9),
]


def connected(server, name="c"):
    return GrpcConnection(server.address, insecure_for_tests=name)


@asynccontextmanager
async def serving(front):
    async with await GrpcServer.start(
        front, LOOPBACK, insecure_for_tests=True
    ) as server:
        yield server


@pytest.fixture
def front():
    return ScriptedFront()


@pytest.fixture(params=["grpc", "memory"])
async def connection(request, front):
    if request.param == "memory":
        yield InMemoryConnection(front, "client-7")
        return
    async with serving(front) as server, connected(server, "client-7") as connection:
        yield connection


async def test_an_offer_arrives_whole_and_under_the_callers_name(connection, front):
    front.script["offer"] = DESCRIPTOR
    assert await connection.offer("digits", after_session=2) == DESCRIPTOR
    assert front.calls == [
        ("offer", "client-7", {"task_id": "digits", "after_session": 2})
    ]


async def test_a_wait_arrives_as_a_wait(connection, front):
    front.script["offer"] = front.script["update"] = Wait(0.25)
    assert await connection.offer("digits", after_session=0) == Wait(0.25)
    assert await connection.update(SESSION, after=None) == Wait(0.25)


async def test_messages_of_the_rounds_arrive_byte_for_byte(connection, front):
    await connection.advertise(SESSION, b"advert")
    await connection.share(SESSION, b"bundles")
    await connection.reveal(SESSION, b"shares")
    assert [(method, arguments) for method, _, arguments in front.calls] == [
        ("advertise", {"session_id": SESSION, "advert": b"advert"}),
        ("share", {"session_id": SESSION, "bundles": b"bundles"}),
        ("reveal", {"session_id": SESSION, "shares": b"shares"}),
    ]


async def test_an_upload_says_where_to_go_on(connection, front):
    front.script["upload_status"] = UploadStatus(10, complete=False)
    front.script["upload_chunk"] = UploadStatus(1 << 33, complete=True)
    assert await connection.upload_status(SESSION) == UploadStatus(10, complete=False)
    status = await connection.upload_chunk(
        SESSION, offset=10, total_size=14, digest=DIGEST, data=b"data"
    )
    assert status == UploadStatus(1 << 33, complete=True)
    assert front.calls[-1][2] == {
        "session_id": SESSION,
        "offset": 10,
        "total_size": 14,
        "digest": DIGEST,
        "data": b"data",
    }


@pytest.mark.parametrize("update", UPDATES, ids=lambda u: type(u).__name__)
async def test_an_update_arrives_whole(connection, front, update):
    front.script["update"] = update
    assert await connection.update(SESSION, after=Round.SHARE_KEYS) == update
    assert front.calls[0][2]["after"] is Round.SHARE_KEYS


async def test_a_watch_brings_every_update_in_order_and_ends(connection, front):
    front.updates = UPDATES
    seen = [update async for update in connection.watch(SESSION, after=None)]
    assert seen == UPDATES
    assert front.calls == [
        ("watch", "client-7", {"session_id": SESSION, "after": None})
    ]


async def test_a_fetched_piece_arrives(connection, front):
    front.script["fetch"] = BlobChunk(b"piece", 100)
    chunk = await connection.fetch(SESSION, blob=Blob.SUM, offset=95, max_bytes=5)
    assert chunk == BlobChunk(b"piece", 100)
    assert front.calls[0][2] == {
        "session_id": SESSION,
        "blob": Blob.SUM,
        "offset": 95,
        "max_bytes": 5,
    }


@pytest.mark.parametrize(
    "update",
    [
        RosterPublished(bytes(range(256)) * 12_345),
        SharesDelivered(b"\xff\x01", b"bundle" * 200_000),
    ],
    ids=["roster", "bundles"],
)
async def test_what_exceeds_one_message_is_fetched_in_pieces(connection, front, update):
    front.script["update"] = update
    assert await connection.update(SESSION, after=Round.ADVERTISE_KEYS) == update
    front.updates = [update]
    watched = [got async for got in connection.watch(SESSION, after=None)]
    assert watched == [update]
    assert {identity for _, identity, _ in front.calls} == {"client-7"}


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
async def test_an_error_keeps_class_number_and_next_step(connection, front, error):
    front.script["share"] = error
    front.updates = [UPDATES[0], error]
    with pytest.raises(type(error)) as unary:
        await connection.share(SESSION, b"")
    stream_of_updates = connection.watch(SESSION, after=None)
    assert await anext(stream_of_updates) == UPDATES[0]
    with pytest.raises(type(error)) as stream:
        await anext(stream_of_updates)
    for caught in (unary.value, stream.value):
        assert type(caught) is type(error)
        assert str(caught) == str(error)
        assert vars(caught) == vars(error)
    # gRPC did not repeat a call that was answered.
    assert [method for method, _, _ in front.calls] == ["share", "watch"]


@pytest.mark.parametrize(
    "defect",
    [
        InternalError("secret state"),
        LocalProtocolError("secret state"),
    ],
)
async def test_a_defect_of_the_aggregator_tells_the_client_nothing(
    connection, front, defect
):
    front.script["advertise"] = defect
    with pytest.raises(ServiceError) as caught:
        await connection.advertise(SESSION, b"advert")
    assert caught.value.code is ErrorCode.INTERNAL
    assert "secret" not in str(caught.value)


async def test_an_unexpected_exception_ends_one_call_and_goes_to_the_log(caplog):
    front = ScriptedFront(script={"advertise": ZeroDivisionError("secret state")})
    async with serving(front) as server, connected(server) as connection:
        with pytest.raises(ServiceError) as caught:
            await connection.advertise(SESSION, b"advert")
        assert caught.value.code is ErrorCode.INTERNAL
        assert "secret" not in str(caught.value)
        assert any(
            record.message.startswith("call_failed") and record.exc_info
            for record in caplog.records
        )
        front.script["advertise"] = None
        await connection.advertise(SESSION, b"advert")


@pytest.mark.parametrize("abort", [SessionAborted(ErrorCode.DEADLINE, "too late")])
async def test_an_abort_by_update_is_an_answer_and_no_error(connection, front, abort):
    front.script["update"] = abort
    assert await connection.update(SESSION, after=Round.UNMASKING) == abort


async def test_a_roster_that_changes_between_pieces_is_refused():
    sizes = iter([3 << 20, 3 << 20, 3 << 20, 3 << 20])

    async def update(_identity, **_arguments):
        size = next(sizes)
        return RosterPublished(bytes([size % 251 + len(front.calls)]) * size)

    front = ScriptedFront(script={"update": update})
    async with serving(front) as server, connected(server) as connection:
        with pytest.raises(RemoteProtocolError, match="not the one announced"):
            await connection.update(SESSION, after=Round.ADVERTISE_KEYS)


async def test_a_large_part_that_is_gone_or_overrun_is_an_error_of_the_caller():
    front = ScriptedFront(script={"update": Wait(1.0)})
    async with serving(front) as server, connected(server) as connection:
        fetch = connection._fetch
        with pytest.raises(RemoteProtocolError) as caught:
            await fetch(SESSION, 3, 0, 10)
        assert caught.value.code is ErrorCode.UNEXPECTED_MESSAGE
        front.script["update"] = RosterPublished(b"roster")
        assert (await fetch(SESSION, 3, 2, 3)).data == b"ste"
        assert (await fetch(SESSION, 3, 6, 3)).data == b""
        with pytest.raises(RemoteProtocolError, match="beyond"):
            await fetch(SESSION, 3, 7, 3)
        with pytest.raises(RemoteProtocolError):
            await fetch(SESSION, 4, 0, 3)


async def test_a_closed_connection_says_so():
    front = ScriptedFront()
    async with serving(front) as server:
        connection = connected(server)
        await connection.close()
        await connection.close()
        with pytest.raises(ServiceError) as caught:
            await connection.advertise(SESSION, b"advert")
        assert caught.value.code is ErrorCode.CANCELLED
        with pytest.raises(ServiceError, match="closed"):
            await anext(connection.watch(SESSION, after=None))


async def test_nobody_listening_is_unreachable_and_worth_another_try():
    async with GrpcConnection(
        Address("127.0.0.1", 1), insecure_for_tests="c"
    ) as connection:
        with pytest.raises(ServiceError) as caught:
            await connection.upload_status(SESSION)
    assert caught.value.code is ErrorCode.UNREACHABLE
    assert caught.value.retry_after_seconds is not None
    assert caught.value.next_step
