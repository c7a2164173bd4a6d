"""Ed25519 as §6.6 wants it verified, in plain integers.

Rule 1: the group is that of RFC 8032; a point is (X, Y, Z, T) with x = X/Z, y = Y/Z
        and T = XY/Z, and is compared by cross-multiplication.
"""

import hashlib
from functools import cache

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT_OF_MINUS_ONE = pow(2, (P - 1) // 4, P)

Point = tuple[int, int, int, int]
NEUTRAL: Point = (0, 1, 1, 0)


def add(one: Point, other: Point) -> Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % P
    b = (one[1] + one[0]) * (other[1] + other[0]) % P
    c = 2 * one[3] * other[3] * D % P
    d = 2 * one[2] * other[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(scalar: int, point: Point) -> Point:
    result = NEUTRAL
    while scalar:
        if scalar & 1:
            result = add(result, point)
        point = add(point, point)
        scalar >>= 1
    return result


def same(one: Point, other: Point) -> bool:
    return (one[0] * other[2] - other[0] * one[2]) % P == 0 and (
        one[1] * other[2] - other[1] * one[2]
    ) % P == 0


def decode_point(data: bytes) -> Point | None:
    """A point from its canonical encoding; None for any other 32 bytes."""
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number % 2**255
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT_OF_MINUS_ONE % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    if x % 2 != sign:
        x = P - x
    return x, y, 1, x * y % P


def encode_point(point: Point) -> bytes:
    inverse = pow(point[2], -1, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x % 2) << 255).to_bytes(32, "little")


BASE = decode_point((4 * pow(5, -1, P) % P).to_bytes(32, "little")) or NEUTRAL


def admitted_point(data: bytes) -> Point | None:
    """R6.6-1 on one of A and R: canonical, and not of small order."""
    point = decode_point(data)
    if point is None or same(times(8, point), NEUTRAL):
        return None
    return point


def is_admitted_key(key: bytes) -> bool:
    """R2.1-5."""
    return admitted_point(key) is not None


def challenge(nonce_point: bytes, key: bytes, message: bytes) -> int:
    return int.from_bytes(
        hashlib.sha512(nonce_point + key + message).digest(), "little"
    )


@cache
def holds(key: bytes, message: bytes, signature: bytes) -> bool:
    """R6.6-1."""
    if len(signature) != 64:
        return False
    scalar = int.from_bytes(signature[32:], "little")
    one, other = admitted_point(key), admitted_point(signature[:32])
    if scalar >= L or one is None or other is None:
        return False
    hashed = challenge(signature[:32], key, message) % L
    return same(times(scalar, BASE), add(other, times(hashed, one)))


def _halves(seed: bytes) -> tuple[int, bytes]:
    digest = hashlib.sha512(seed).digest()
    scalar = int.from_bytes(digest[:32], "little")
    return scalar & (2**254 - 8) | 2**254, digest[32:]


@cache
def identity_key(seed: bytes) -> bytes:
    """The public key of a seed."""
    return encode_point(times(_halves(seed)[0], BASE))


@cache
def sign(seed: bytes, message: bytes) -> bytes:
    scalar, prefix = _halves(seed)
    nonce = int.from_bytes(hashlib.sha512(prefix + message).digest(), "little") % L
    nonce_point = encode_point(times(nonce, BASE))
    hashed = challenge(nonce_point, identity_key(seed), message)
    return nonce_point + ((nonce + hashed * scalar) % L).to_bytes(32, "little")
