import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.cipher_suite import TAG_SIZE, AuthenticationError, open_sealed, seal
from secagg.crypto.secret_bytes import SecretBytes

KEY = SecretBytes(bytes(range(32)))
BUNDLE = bytes(range(76))
SEALED = seal(KEY, BUNDLE, b"context")


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_sealed_messages_open_and_grow_by_the_tag(message, data):
    sealed = seal(KEY, message, data)
    assert len(sealed) == len(message) + TAG_SIZE
    assert open_sealed(KEY, sealed, data) == message


def test_every_single_bit_of_the_ciphertext_is_authenticated():
    for bit in range(8 * len(SEALED)):
        changed = bytearray(SEALED)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(AuthenticationError):
            open_sealed(KEY, bytes(changed), b"context")


@pytest.mark.parametrize("size", [0, 1, 15, 16, len(SEALED) - 1])
def test_truncated_ciphertexts_are_refused(size):
    with pytest.raises(AuthenticationError, match=f"{size} bytes"):
        open_sealed(KEY, SEALED[:size], b"context")


def test_another_context_or_key_is_refused():
    with pytest.raises(AuthenticationError):
        open_sealed(KEY, SEALED, b"Context")
    with pytest.raises(AuthenticationError):
        open_sealed(SecretBytes(bytes(32)), SEALED, b"context")


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_key_of_another_length_is_the_callers_fault(size):
    with pytest.raises(ValueError, match="32 bytes") as caught:
        open_sealed(SecretBytes(bytes(size)), SEALED, b"context")
    assert not isinstance(caught.value, AuthenticationError)


def test_the_length_depends_on_nothing_but_the_length():
    assert len({len(seal(KEY, bytes([value] * 76), b"")) for value in range(256)}) == 1
