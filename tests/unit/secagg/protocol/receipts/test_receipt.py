import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.conformance import read_vectors
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.receipts import receipt as module
from secagg.protocol.receipts.receipt import (
    AuditReceipt,
    Dispute,
    Outcome,
    RosterCommitment,
    WrittenBy,
)

VECTORS = read_vectors("receipts")["receipts"]
GOOD = [row for row in VECTORS if row["success"]]
BROKEN = [row for row in VECTORS if row.get("step") == "encoding"]
BYTES_32 = st.binary(min_size=32, max_size=32)

receipts = st.builds(
    AuditReceipt,
    writer=st.sampled_from(WrittenBy),
    offer=st.binary(max_size=9),
    view=st.one_of(
        st.none(),
        st.binary(max_size=9),
        st.builds(RosterCommitment, st.integers(0, 2**32 - 1), BYTES_32, BYTES_32),
    ),
    edge_root=st.binary(max_size=9),
    share_holders=st.binary(max_size=9),
    survivors=st.binary(max_size=9),
    quorum=st.binary(max_size=9),
    outcome=st.sampled_from(Outcome),
    code=st.integers(0, 2**16 - 1),
    sum_hash=BYTES_32,
    size=st.integers(0, 2**64 - 1),
    certificate=st.binary(max_size=9),
    disputes=st.lists(
        st.builds(
            Dispute,
            st.integers(0, 2**32 - 1),
            st.integers(0, 2**32 - 1),
            st.integers(0, 2**16 - 1),
            st.sampled_from([b"", bytes(96), b"e" * 96]),
        ),
        max_size=3,
    ).map(tuple),
)


def refusal(data):
    with pytest.raises(RemoteProtocolError) as refused:
        AuditReceipt.decode(data)
    assert refused.value.code == ErrorCode.BAD_ENCODING
    return str(refused.value)


@given(receipts)
def test_a_receipt_survives_encoding(receipt):
    data = receipt.encode()
    assert AuditReceipt.decode(data) == receipt
    assert receipt.is_undamaged(data)


@pytest.mark.parametrize("row", GOOD, ids=lambda row: row["name"])
def test_the_receipts_of_the_vectors_match_the_implementation(row):
    data = bytes.fromhex(row["receipt"])
    assert AuditReceipt.decode(data).encode() == data


@pytest.mark.parametrize("row", BROKEN, ids=lambda row: row["name"])
def test_invalid_receipts_are_rejected(row):
    refusal(bytes.fromhex(row["receipt"]))


@given(receipts, st.data())
def test_any_changed_byte_is_detected(receipt, data):
    whole = receipt.encode()
    place = data.draw(st.integers(0, len(whole) - 1))
    change = data.draw(st.integers(1, 255))
    broken = whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :]
    try:
        decoded = AuditReceipt.decode(broken)
    except RemoteProtocolError as error:
        assert error.code == ErrorCode.BAD_ENCODING  # noqa: PT017 - one of two ends
    else:
        assert not decoded.is_undamaged(broken)


@given(receipts, st.data())
def test_a_truncated_receipt_is_rejected(receipt, data):
    whole = receipt.encode()
    refusal(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_the_size_of_a_certificate_is_limited():
    long = AuditReceipt(
        writer=WrittenBy.SERVER,
        offer=b"",
        outcome=Outcome.ABORTED,
        certificate=bytes(65537),
    )
    assert "65536" in refusal(long.encode())


def test_a_receipt_has_a_limit(monkeypatch):
    longest = AuditReceipt(
        writer=WrittenBy.SERVER, offer=b"offer", outcome=Outcome.ABORTED
    )
    longer = AuditReceipt(
        writer=WrittenBy.SERVER, offer=b"offers", outcome=Outcome.ABORTED
    )
    monkeypatch.setattr(module, "MAX_RECEIPT_BYTES", len(longest.encode()))
    assert AuditReceipt.decode(longest.encode()) == longest
    assert "it has more than" in refusal(longer.encode())


def test_a_committed_ring_requires_a_whole_seed():
    view = RosterCommitment(8, b"t" * 32, b"g" * 31)
    short = AuditReceipt(
        writer=WrittenBy.SERVER, offer=b"", view=view, outcome=Outcome.ABORTED
    )
    assert "32 bytes" in refusal(short.encode())


@pytest.mark.parametrize("size", [1, 95])
def test_evidence_is_a_digest_and_a_signature(size):
    row = Dispute(0, 1, 10, bytes(size))
    cut = AuditReceipt(
        writer=WrittenBy.SERVER, offer=b"", outcome=Outcome.ABORTED, disputes=(row,)
    )
    assert "96 bytes" in refusal(cut.encode())


def test_more_disputes_than_bytes_are_rejected_without_allocating_memory():
    data = AuditReceipt(
        writer=WrittenBy.SERVER, offer=b"", outcome=Outcome.ABORTED
    ).encode()
    claimed = data[:-36] + b"\xff\xff\xff\xff" + data[-32:]
    refusal(claimed)
