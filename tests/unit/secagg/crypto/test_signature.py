import pytest

from secagg.crypto.entropy import SystemEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey, SignatureError, verify

# 2^252 + 27742317777372353535851937790883648493, the order of the base point.
ORDER = (1 << 252) + 27742317777372353535851937790883648493


@pytest.fixture
def key():
    return IdentityKey.generate(SystemEntropy())


def test_a_signature_verifies_for_its_message_and_signer_only(key):
    signature = key.sign(b"message")
    verify(key.public_bytes, b"message", signature)
    other = IdentityKey.generate(SystemEntropy())
    for identity, message in (
        (key.public_bytes, b"massage"),
        (key.public_bytes, b""),
        (other.public_bytes, b"message"),
    ):
        with pytest.raises(SignatureError):
            verify(identity, message, signature)


def test_a_change_of_any_byte_invalidates_a_signature(key):
    signature = key.sign(b"message")
    for place in range(64):
        changed = bytearray(signature)
        changed[place] ^= 0x10
        with pytest.raises(SignatureError):
            verify(key.public_bytes, b"message", bytes(changed))


def test_a_signature_with_an_unreduced_scalar_is_rejected(key):
    # S and S + order satisfy the same equation; accepting both would allow a third
    # party to make a different signature of the same message.
    signature = key.sign(b"message")
    scalar = int.from_bytes(signature[32:], "little") + ORDER
    forged = signature[:32] + scalar.to_bytes(32, "little")
    with pytest.raises(SignatureError):
        verify(key.public_bytes, b"message", forged)


def test_an_identity_of_low_order_is_refused():
    # With the neutral element as key, R = B·S would verify for every message.
    with pytest.raises(SignatureError):
        verify(bytes([1] + 31 * [0]), b"message", bytes([1] + 63 * [0]))


@pytest.mark.parametrize(("identity", "signature"), [(31, 64), (33, 64), (0, 0)])
def test_wrong_lengths_of_keys_are_refused(identity, signature):
    with pytest.raises(SignatureError, match="bytes"):
        verify(bytes(identity), b"", bytes(signature))


@pytest.mark.parametrize("size", [0, 31, 33])
def test_seeds_of_another_length_are_refused(size):
    with pytest.raises(ValueError, match="an identity seed has 32 bytes"):
        IdentityKey.from_bytes(SecretBytes(bytes(size)))


def test_a_stored_identity_key_signs_identically(key):
    again = IdentityKey.from_bytes(key.seed())
    assert again.public_bytes == key.public_bytes
    assert again.sign(b"x") == key.sign(b"x")
    with pytest.raises(ValueError, match="32 bytes"):
        IdentityKey.from_bytes(SecretBytes(bytes(31)))


def test_the_representation_shows_the_identity_only(key):
    assert repr(key) == f"IdentityKey(public={key.public_bytes.hex()})"


@pytest.mark.parametrize("size", [0, 63, 65])
def test_wrong_lengths_of_signatures_are_refused(key, size):
    signed = (key.sign(b"") + bytes(1))[:size]
    with pytest.raises(SignatureError, match="a signature has 64 bytes"):
        verify(key.public_bytes, b"", signed)
