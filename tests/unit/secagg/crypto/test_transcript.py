import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.canonical import CanonicalEncodingError
from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.transcript import (
    MAX_SET_SIZE,
    decode_set,
    domain_tag,
    encode_set,
    hash_parts,
)

SUITE = CipherSuite.AES_256_CTR


def test_moving_a_byte_between_parts_changes_the_hash():
    hashes = {
        hash_parts("x", b"ab", b"c", suite=SUITE),
        hash_parts("x", b"a", b"bc", suite=SUITE),
        hash_parts("x", b"abc", suite=SUITE),
        hash_parts("x", b"abc", b"", suite=SUITE),
    }
    assert len(hashes) == 4


def test_role_usage_and_suite_separate_domains():
    tags = {
        domain_tag(role, usage, suite)
        for role in ("client", "clien", "pair")
        for usage in ("share", "tshare", "mask")
        for suite in CipherSuite
    }
    assert len(tags) == 18


def test_usage_and_suite_enter_every_hash():
    hashes = {
        hash_parts(usage, b"same", suite=suite)
        for usage in ("ctx0", "ctx1")
        for suite in CipherSuite
    }
    assert len(hashes) == 4


@given(
    st.integers(1, 40).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))
    )
)
def test_sets_round_trip_in_ascending_order(case):
    n, indices = case
    bitmap = encode_set(indices, n)
    assert len(bitmap) == -(-n // 8)
    assert decode_set(bitmap, n) == tuple(sorted(indices))


@given(st.binary(min_size=3, max_size=3), st.integers(17, 24))
def test_a_bitmap_decodes_to_a_set_that_encodes_to_it_or_is_rejected(data, n):
    try:
        indices = decode_set(data, n)
    except CanonicalEncodingError:
        assert data[2] >> (n - 16)
    else:
        assert encode_set(indices, n) == data


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0"])
def test_a_bitmap_of_the_wrong_length_is_refused(data):
    with pytest.raises(CanonicalEncodingError, match="takes 2 bytes"):
        decode_set(data, 9)


def test_a_set_bit_in_the_padding_is_refused():
    assert decode_set(b"\0\1", 9) == (8,)
    with pytest.raises(CanonicalEncodingError, match="padding"):
        decode_set(b"\0\2", 9)


@pytest.mark.parametrize("indices", [[9], [-1], [2, 2]])
def test_unknown_and_repeated_indices_cannot_be_encoded(indices):
    with pytest.raises(ValueError, match="ind"):
        encode_set(indices, 9)


def test_a_roster_beyond_the_field_is_refused():
    assert decode_set(encode_set([MAX_SET_SIZE - 1], MAX_SET_SIZE), MAX_SET_SIZE) == (
        MAX_SET_SIZE - 1,
    )
    with pytest.raises(ValueError, match="65536"):
        encode_set([], MAX_SET_SIZE + 1)
    with pytest.raises(ValueError, match="65536"):
        decode_set(b"", -1)
