import hashlib
import math

import pytest

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.messages import (
    RosterPublished,
    SessionAborted,
    SharesDelivered,
    SumReleased,
    UnmaskRequested,
)
from secagg.v1 import messages_pb2, secagg_service_pb2
from secagg.wire import answers
from secagg.wire.limits import (
    MAX_INLINE_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_OBJECT_BYTES,
    MAX_SET_BYTES,
)
from secagg.wire.requests import FetchChunk

HASH = hashlib.sha256(b"sum").digest()
LARGE = bytes(MAX_INLINE_BYTES + 1)

UPDATES = [
    RosterPublished(b"roster"),
    RosterPublished(bytes(MAX_INLINE_BYTES)),
    SharesDelivered(b"\x07", b"b" * 192),
    SharesDelivered(b"\x07", b""),
    UnmaskRequested(b"\xff" * MAX_SET_BYTES),
    SumReleased(HASH, 12345, 40),
    SessionAborted(ErrorCode.TOO_MANY_DROPOUTS, "three clients too many were lost"),
]


@pytest.mark.parametrize("update", UPDATES, ids=lambda u: type(u).__name__)
def test_an_update_survives_polling_and_watching(update):
    assert answers.decode_update(answers.encode_update(update)) == update
    assert answers.decode_watched(answers.encode_watched(update)) == update


@pytest.mark.parametrize(
    ("update", "blob"),
    [
        (RosterPublished(LARGE), FetchChunk.ROSTER),
        (SharesDelivered(b"\x03", LARGE), FetchChunk.BUNDLES),
    ],
)
def test_a_large_part_travels_by_reference_and_is_completed_from_its_bytes(
    update, blob
):
    encoded = answers.encode_update(update)
    assert len(encoded) < 9000
    deferred = answers.decode_update(encoded)
    assert isinstance(deferred, answers.DeferredUpdate)
    assert deferred.blob == blob
    large = answers.referenced_object(update, blob)
    assert deferred.complete(large) == update


@pytest.mark.parametrize("data", [LARGE[1:], LARGE + b"x", b"x" + LARGE[1:], b""])
def test_another_object_than_the_announced_one_is_refused(data):
    deferred = answers.decode_update(answers.encode_update(RosterPublished(LARGE)))
    with pytest.raises(RemoteProtocolError, match="not the one announced"):
        deferred.complete(data)


def test_an_update_serves_no_object_that_it_does_not_hold():
    assert answers.referenced_object(RosterPublished(b"r"), FetchChunk.BUNDLES) is None
    assert answers.referenced_object(UPDATES[-1], FetchChunk.ROSTER) is None
    assert (
        answers.referenced_object(SharesDelivered(b"", b"b"), FetchChunk.ROSTER) is None
    )


@pytest.mark.parametrize("size", [0, MAX_INLINE_BYTES, MAX_OBJECT_BYTES + 1, 1 << 60])
def test_a_reference_to_an_impossible_size_is_refused_before_memory_is_taken(size):
    message = secagg_service_pb2.GetUpdateResponse()
    message.update.roster_published.roster_reference.size = size
    message.update.roster_published.roster_reference.digest = HASH
    with pytest.raises(RemoteProtocolError, match="size of a referenced object"):
        answers.decode_update(message.SerializeToString())


@pytest.mark.parametrize(
    "update",
    [
        messages_pb2.ServerUpdate(),
        messages_pb2.ServerUpdate(roster_published={}),
        messages_pb2.ServerUpdate(sum_released={"sum_hash": b"short"}),
        messages_pb2.ServerUpdate(sum_released={"sum_hash": HASH, "survivors": 70000}),
        messages_pb2.ServerUpdate(
            unmask_requested={"survivors": bytes(MAX_SET_BYTES + 1)}
        ),
        messages_pb2.ServerUpdate(
            shares_delivered={"sharers": bytes(MAX_SET_BYTES + 1)}
        ),
        messages_pb2.ServerUpdate(roster_published={"roster": LARGE}),
    ],
)
def test_an_update_against_the_form_is_the_aggregators_fault(update):
    for data, decode in (
        (
            secagg_service_pb2.GetUpdateResponse(update=update).SerializeToString(),
            answers.decode_update,
        ),
        (
            secagg_service_pb2.WatchSessionResponse(update=update).SerializeToString(),
            answers.decode_watched,
        ),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            decode(data)
        assert caught.value.code is ErrorCode.BAD_ENCODING
        assert caught.value.sender is None


@pytest.mark.parametrize(
    "decode",
    [
        answers.decode_offer,
        answers.decode_update,
        answers.decode_watched,
        answers.decode_upload_progress,
    ],
)
def test_an_empty_answer_where_one_is_due_is_refused(decode):
    with pytest.raises(RemoteProtocolError, match="hold"):
        decode(b"")


def test_a_wait_is_rounded_up_and_capped_so_that_nobody_spins_or_sleeps_for_days():
    def through(seconds):
        waited = answers.decode_update(answers.encode_update(answers.Retry(seconds)))
        assert answers.decode_offer(answers.encode_offer(answers.Retry(seconds))) == (
            waited
        )
        return waited.after_seconds

    assert through(0.0) == 0.001
    assert through(1.5) == 1.5
    assert through(0.0004) == 0.001
    assert through(1e9) == 3600.0
    assert through(math.inf) == 3600.0


@pytest.mark.parametrize("milliseconds", [0, 3_600_001, (1 << 64) - 1])
def test_a_wait_outside_its_range_is_refused(milliseconds):
    message = secagg_service_pb2.GetUpdateResponse()
    message.wait.retry_after_ms = milliseconds
    message.wait.SetInParent()
    with pytest.raises(RemoteProtocolError, match="retry_after_ms"):
        answers.decode_update(message.SerializeToString())


def test_an_offer_survives_and_an_oversized_one_is_refused():
    assert answers.decode_offer(answers.encode_offer(b"descriptor")) == b"descriptor"
    for size in (0, 10_000):
        with pytest.raises(RemoteProtocolError, match="descriptor"):
            answers.decode_offer(answers.encode_offer(bytes(size)))


def test_progress_and_pieces_survive():
    progress = answers.UploadProgress(1 << 33, complete=True)
    assert (
        answers.decode_upload_progress(answers.encode_upload_progress(progress))
        == progress
    )
    chunk = answers.ObjectChunk(b"piece", 1 << 40)
    assert answers.decode_fetched(answers.encode_fetched(chunk)) == chunk


@pytest.mark.parametrize(("data", "total"), [(b"piece", 4), (LARGE, len(LARGE))])
def test_a_piece_longer_than_the_whole_or_than_a_chunk_is_refused(data, total):
    encoded = answers.encode_fetched(answers.ObjectChunk(data, total))
    with pytest.raises(RemoteProtocolError):
        answers.decode_fetched(encoded)


def test_an_abort_of_a_later_release_keeps_its_reason_without_terminal_escapes():
    message = secagg_service_pb2.WatchSessionResponse()
    message.update.session_aborted.code = 999
    message.update.session_aborted.reason = (
        "gone\x1b[2J\nINFO all is well\u202e" + "x" * 5000
    )
    update = answers.decode_watched(message.SerializeToString())
    assert update.code is ErrorCode.INTERNAL
    assert update.reason.startswith("gone [2J INFO all is well ")
    assert len(update.reason.encode()) == 1000


def test_no_message_of_the_wire_exceeds_the_limit():
    largest = answers.encode_watched(
        SharesDelivered(bytes(MAX_SET_BYTES), bytes(MAX_INLINE_BYTES))
    )
    assert len(largest) < MAX_MESSAGE_BYTES
