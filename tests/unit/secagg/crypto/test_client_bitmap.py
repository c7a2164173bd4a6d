"""A set of clients as its bitmap behaves as every other set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.canonical import CanonicalEncodingError
from secagg.crypto.transcript import ClientBitmap, decode_set, encode_set


@st.composite
def sets(draw, fewest=0, most=70):
    size = draw(st.integers(fewest, most))
    chosen = st.frozensets(st.integers(0, size - 1)) if size else st.just(frozenset())
    return size, draw(chosen)


def roster_set(members, size):
    return ClientBitmap(encode_set(members, size), size)


@given(sets())
def test_a_set_contains_the_members_of_its_bitmap(case):
    size, members = case
    made = roster_set(members, size)
    assert made == members
    assert members == made
    assert list(made) == sorted(members)
    assert len(made) == len(members)
    assert {i for i in range(-9, size + 9) if i in made} == members
    assert "0" not in made
    assert made.places().tolist() == [i in members for i in range(size)]
    assert repr(made) == f"ClientBitmap({len(members)} of {size})"


@given(sets(40, 48), sets(40, 40))
def test_sets_are_compared_by_their_members(one, other):
    (size, members), (_, others) = one, other
    made = roster_set(members, size)
    assert (made <= roster_set(others, 40)) == (members <= others)
    assert (made <= others) == (members <= others)
    assert (made >= others) == (members >= others)
    assert (made == roster_set(others, 40)) == (members == others)


@given(st.integers(0, 40), st.binary(max_size=6))
def test_a_set_accepts_exactly_the_bitmaps_that_decode(size, data):
    # R3.3-1
    try:
        expected = decode_set(data, size)
    except CanonicalEncodingError:
        with pytest.raises(CanonicalEncodingError):
            ClientBitmap(data, size)
    else:
        assert tuple(ClientBitmap(data, size)) == expected


def test_a_negative_roster_size_is_rejected():
    with pytest.raises(ValueError, match="roster"):
        ClientBitmap(b"", -1)
