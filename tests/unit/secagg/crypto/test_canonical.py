import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.canonical import CanonicalEncodingError, Reader, Writer

TEXT = st.characters(codec="utf-8", exclude_characters="\0")
FIELDS = st.one_of(
    st.tuples(st.just("u8"), st.integers(0, 2**8 - 1)),
    st.tuples(st.just("u16"), st.integers(0, 2**16 - 1)),
    st.tuples(st.just("u32"), st.integers(0, 2**32 - 1)),
    st.tuples(st.just("u64"), st.integers(0, 2**64 - 1)),
    st.tuples(st.just("flag"), st.booleans()),
    st.tuples(st.just("blob"), st.binary(max_size=20)),
    st.tuples(
        st.just("text"),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
    ),
)


def read(reader, name):
    if name in {"blob", "text"}:
        return getattr(reader, name)(max_bytes=80)
    return getattr(reader, name)()


def read_all(reader, fields):
    for name, _ in fields:
        read(reader, name)


def write(fields):
    writer = Writer()
    for name, value in fields:
        getattr(writer, name)(value)
    return writer.getvalue()


@given(st.lists(FIELDS, max_size=8))
def test_written_fields_are_read_back_completely(fields):
    reader = Reader(write(fields), "record")
    assert [(name, read(reader, name)) for name, _ in fields] == fields
    reader.end()


@given(st.lists(FIELDS, min_size=1, max_size=6), st.data())
def test_every_truncation_is_refused(fields, data):
    encoded = write(fields)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    reader = Reader(encoded[:cut], "record")
    with pytest.raises(CanonicalEncodingError, match="record"):
        read_all(reader, fields)


def test_integers_are_big_endian_and_blobs_carry_their_length():
    encoded = Writer().u16(0x0102).blob(b"ab").fixed(b"z").text("é").getvalue()
    assert encoded.hex() == "0102" + "00000002" + "6162" + "7a" + "00000002" + "c3a9"


def test_a_text_with_a_nul_character_is_neither_written_nor_read():
    with pytest.raises(ValueError, match=r"U\+0000"):
        Writer().text("a\0b")
    with pytest.raises(CanonicalEncodingError, match=r"U\+0000"):
        Reader(Writer().blob(b"a\0b").getvalue(), "record").text(max_bytes=9)


def test_trailing_bytes_are_refused():
    reader = Reader(b"\x01\x02", "record")
    reader.u8()
    with pytest.raises(CanonicalEncodingError, match="1 bytes follow"):
        reader.end()


def test_a_flag_other_than_zero_and_one_is_refused():
    with pytest.raises(CanonicalEncodingError, match="neither 0 nor 1"):
        Reader(b"\x02", "record").flag()


def test_a_blob_above_its_limit_is_refused_before_it_is_read():
    huge = Writer().u32(2**32 - 1).getvalue()
    with pytest.raises(CanonicalEncodingError, match="at most 10"):
        Reader(huge, "record").blob(max_bytes=10)
    exact = Writer().blob(b"0123456789").getvalue()
    assert Reader(exact, "record").blob(max_bytes=10) == b"0123456789"


def test_text_that_is_not_utf_8_is_refused():
    bad = Writer().blob(b"\xff\xfe").getvalue()
    with pytest.raises(CanonicalEncodingError, match="not UTF-8"):
        Reader(bad, "record").text(max_bytes=10)


@pytest.mark.parametrize(
    ("name", "value"),
    [("u8", 256), ("u16", 2**16), ("u32", 2**32), ("u64", 2**64), ("u8", -1)],
)
def test_a_value_outside_its_field_is_the_writers_fault(name, value):
    with pytest.raises(ValueError, match="expected an integer") as caught:
        getattr(Writer(), name)(value)
    assert not isinstance(caught.value, CanonicalEncodingError)


def test_the_representation_of_a_reader_shows_no_content():
    assert "73656372" not in repr(Reader(b"secret", "record"))
    assert "secret" not in repr(Reader(b"secret", "record"))


def test_remaining_counts_the_unread_bytes():
    reader = Reader(b"abc", "record")
    reader.fixed(2)
    assert reader.remaining == 1
