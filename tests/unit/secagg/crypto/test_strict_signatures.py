"""The classes of keys and signatures on which libraries disagree (R6.6-1, R6.6-2).

The curve is written out here a second time, slowly, so that each class is made from
its definition and not from a list.
"""

import hashlib

import pytest

from secagg.crypto import signature as module
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey, SignatureError, check_identity, verify

P = (1 << 255) - 19
L = (1 << 252) + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
NEUTRAL = (0, 1)


def add(a, b):
    (x1, y1), (x2, y2) = a, b
    product = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P)
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, P)
    return x % P, y % P


def times(n, point):
    result = NEUTRAL
    while n:
        if n & 1:
            result = add(result, point)
        point = add(point, point)
        n >>= 1
    return result


def encode(point):
    x, y = point
    return (y | (x & 1) << 255).to_bytes(32, "little")


def on_curve(y):
    """Return a point with this y, by trying the two candidates of a root."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    root = pow(square, (P + 3) // 8, P)
    for x in (root, root * pow(2, (P - 1) // 4, P) % P):
        if x * x % P == square:
            return x, y
    return None


BASE = on_curve(4 * pow(5, -1, P) % P)
BASE = BASE if BASE[0] % 2 == 0 else (P - BASE[0], BASE[1])


def torsion():
    """Return a point of order eight."""
    for y in range(2, 1000):
        point = on_curve(y)
        if point is not None:
            small = times(L, point)
            if times(4, small) != NEUTRAL:
                return small
    raise AssertionError


TORSION = torsion()
SMALL_ORDER = [encode(times(i, TORSION)) for i in range(8)]
# Encodings of y from the prime on, each with either sign.
NOT_CANONICAL = [
    (y | sign << 255).to_bytes(32, "little")
    for y in range(P, 1 << 255)
    for sign in (0, 1)
]
# x = 0 has no sign.
ZERO_WITH_SIGN = [(y | 1 << 255).to_bytes(32, "little") for y in (1, P - 1)]
BAD_POINTS = SMALL_ORDER + NOT_CANONICAL + ZERO_WITH_SIGN


@pytest.fixture
def key():
    return IdentityKey.from_bytes(SecretBytes(bytes(range(32))))


@pytest.fixture
def any_library(monkeypatch):
    """Let the library accept everything: what is refused then is refused by us."""
    monkeypatch.setattr(module, "_equation_holds", lambda *_: True)


def challenge(r, a, message):
    return int.from_bytes(hashlib.sha512(r + a + message).digest(), "little") % L


def test_the_slow_curve_is_the_one_of_the_library(key):
    assert times(L, BASE) == NEUTRAL
    assert len({*SMALL_ORDER}) == 8
    digest = hashlib.sha512(key.seed().reveal()).digest()
    scalar = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | 1 << 254
    assert encode(times(scalar, BASE)) == key.public_bytes


@pytest.mark.usefixtures("any_library")
@pytest.mark.parametrize("point", BAD_POINTS, ids=bytes.hex)
def test_an_invalid_key_is_rejected_independently_of_the_library(key, point):
    with pytest.raises(SignatureError, match="an identity is"):
        check_identity(point)
    with pytest.raises(SignatureError, match="an identity is"):
        verify(point, b"message", key.sign(b"message"))


@pytest.mark.usefixtures("any_library")
@pytest.mark.parametrize("point", BAD_POINTS, ids=bytes.hex)
def test_an_invalid_signature_point_is_rejected_independently_of_the_library(
    key, point
):
    signed = point + key.sign(b"message")[32:]
    with pytest.raises(SignatureError, match="a signature's point is"):
        verify(key.public_bytes, b"message", signed)


@pytest.mark.usefixtures("any_library")
@pytest.mark.parametrize("multiple", [1, 2, 15])
def test_a_scalar_of_at_least_l_is_rejected_independently_of_the_library(key, multiple):
    good = key.sign(b"message")
    scalar = int.from_bytes(good[32:], "little") + multiple * L
    with pytest.raises(SignatureError, match="not reduced"):
        verify(key.public_bytes, b"message", good[:32] + scalar.to_bytes(32, "little"))


@pytest.mark.usefixtures("any_library")
def test_a_scalar_equal_to_l_is_rejected_independently_of_the_library(key):
    signed = key.sign(b"message")[:32] + L.to_bytes(32, "little")
    with pytest.raises(SignatureError, match="not reduced"):
        verify(key.public_bytes, b"message", signed)


@pytest.mark.usefixtures("any_library")
def test_a_scalar_of_l_minus_one_is_checked_by_the_equation(key):
    good = key.sign(b"message")
    verify(key.public_bytes, b"message", good[:32] + (L - 1).to_bytes(32, "little"))


def test_verification_uses_the_equation_without_the_cofactor():
    # A key with a torsion part: with the cofactor all of its signatures would hold,
    # without it those alone whose challenge is a multiple of eight.
    secret, nonce = 987654321, 123456789
    public = encode(add(times(secret, BASE), TORSION))
    check_identity(public)
    r = encode(times(nonce, BASE))
    accepted = []
    for number in range(40):
        message = bytes([number])
        h = challenge(r, public, message)
        signed = r + ((nonce + h * secret) % L).to_bytes(32, "little")
        try:
            verify(public, message, signed)
        except SignatureError:
            assert h % 8
        else:
            assert h % 8 == 0
            accepted.append(number)
    assert accepted


def test_only_points_of_the_curve_are_valid_keys():
    on, off = 0, 0
    for y in range(2, 200):
        encoded = y.to_bytes(32, "little")
        if on_curve(y):
            check_identity(encoded)
            on += 1
        else:
            with pytest.raises(SignatureError, match="not a point"):
                check_identity(encoded)
            off += 1
    assert on > 60
    assert off > 60
