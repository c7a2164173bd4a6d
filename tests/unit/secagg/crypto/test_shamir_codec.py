import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.shamir import (
    BadShareError,
    check_shares,
    decode_shares,
    encode_shares,
    flagged_limbs,
    limbs_of,
    secrets_of,
)


def values(**limbs):
    row = np.arange(16)
    for name, value in limbs.items():
        row[int(name[1:])] = value
    return row


def test_limbs_are_big_endian_in_both_directions():
    secret = np.arange(32, dtype=np.uint8)[None]
    limbs = limbs_of(secret)
    assert limbs[0, :2].tolist() == [0x0001, 0x0203]
    assert secrets_of(limbs).tolist() == secret.tolist()


def test_the_layout_is_sixteen_words_and_a_word_of_flags():
    encoded = encode_shares(values(_3=65536, _15=65535))
    assert encoded.shape == (34,)
    assert encoded[2:4].tolist() == [0, 1]
    assert encoded[6:8].tolist() == [0, 0]
    assert encoded[30:32].tolist() == [255, 255]
    assert encoded[32:].tolist() == [0, 1 << 3]


def test_every_limb_can_be_65536():
    rows = np.full((17, 16), 7)
    for limb in range(16):
        rows[limb, limb] = 65536
    rows[16] = 65536
    encoded = encode_shares(rows)
    assert check_shares(encoded).all()
    assert decode_shares(encoded).tolist() == rows.tolist()
    assert decode_shares(encoded.reshape(17, 1, 34)).shape == (17, 1, 16)


def test_a_flag_over_a_limb_that_is_not_zero_is_refused():
    # R7.2-1
    good = encode_shares(values(_3=65536))
    for limb in range(1, 16):
        bad = good.copy()
        bad[33 - limb // 8] |= 1 << limb % 8
        if limb == 3:
            bad[7] = 1
        assert not check_shares(bad).any()
        with pytest.raises(BadShareError, match="flag"):
            decode_shares(bad)


def test_an_invalid_share_of_a_batch_is_located():
    batch = encode_shares(np.stack([np.stack([values(), values(_2=65536)])] * 3))
    batch[1, 1, 33] |= 1 << 5
    assert check_shares(batch).tolist() == [[True, True], [True, False], [True, True]]
    with pytest.raises(BadShareError):
        decode_shares(batch)
    with pytest.raises(BadShareError):
        flagged_limbs(batch)


def test_flagged_limbs_are_located():
    batch = encode_shares(np.stack([np.stack([values(), values(_2=65536, _9=65536)])]))
    found = flagged_limbs(batch)
    assert [axis.tolist() for axis in found] == [[0, 0], [1, 1], [2, 9]]


@pytest.mark.parametrize(
    "encoded",
    [np.zeros((2, 33), np.uint8), np.zeros((2, 34), np.int8), np.uint8(0)],
)
def test_other_lengths_and_types_are_refused(encoded):
    with pytest.raises(BadShareError, match="34 bytes"):
        decode_shares(np.asarray(encoded))
    with pytest.raises(BadShareError, match="34 bytes"):
        check_shares(np.asarray(encoded))


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**16 - 1))
def test_any_bytes_decode_to_values_that_encode_to_them_or_are_rejected(limbs, flags):
    # Limbs under flags are zero in half of the examples, so that both ends occur.
    words = bytearray(limbs)
    if limbs[0] % 2:
        for limb in range(16):
            if flags >> limb & 1:
                words[2 * limb : 2 * limb + 2] = b"\0\0"
    encoded = np.frombuffer(bytes(words) + flags.to_bytes(2, "big"), np.uint8)
    if check_shares(encoded):
        values = decode_shares(encoded)
        assert ((values >= 0) & (values <= 65536)).all()
        assert encode_shares(values).tolist() == encoded.tolist()
    else:
        with pytest.raises(BadShareError):
            decode_shares(encoded)
