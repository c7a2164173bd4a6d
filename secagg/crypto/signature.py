"""Ed25519 identities for the profiles that distrust the server.

Rule 1: verification raises; there is no result that could be overlooked.
Rule 2: signed bytes start with a domain tag (`secagg.crypto.transcript`), so that a
        signature for one purpose is worthless for another.
Rule 3: honest clients agree on every signature, or a hostile one could split them.
        Libraries differ on keys and signatures that no honest signer makes.  This
        module refuses them first: a scalar of L or more, and points that are not
        canonical or of small order.  The equation itself is the one
        without the cofactor (R6.6-1), never in batches (R6.6-2).

`secagg.pki` decides which identities may take part.

Source: RFC 8032; PROTOCOL §6.  The equation is libsodium's: it takes about half the
time of OpenSSL's.
"""

from typing import Final, Self

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from secagg.crypto.entropy import Entropy
from secagg.crypto.secret_bytes import SecretBytes

SEED_SIZE: Final = 32
IDENTITY_SIZE: Final = 32
SIGNATURE_SIZE: Final = 64

_SCALAR_SIZE: Final = 32
_SIGN_BIT: Final = 255
# Edwards25519: the field, the order of the base point, and d of the curve equation
# -x^2 + y^2 = 1 + d x^2 y^2.
_PRIME: Final = (1 << 255) - 19
_ORDER: Final = (1 << 252) + 27742317777372353535851937790883648493
_D: Final = -121665 * pow(121666, -1, _PRIME) % _PRIME
# Of the eight points whose order divides 8: (0, 1), (0, -1), the two with y = 0, and
# the four of order eight.  All points with x = 0 are among them.  So the one other
# non-canonical encoding below the prime, x = 0 with a sign, is refused as well.
_ORDER_EIGHT: Final = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER: Final = frozenset({0, 1, _PRIME - 1, _ORDER_EIGHT, _PRIME - _ORDER_EIGHT})


class SignatureError(ValueError):
    """A signature does not belong to this message and this identity.

    Its sender, or the server that carried it, is at fault.  Refuse the message.
    """


class IdentityKey:
    """A client's long-lived signing key."""

    __slots__ = ("_key", "public_bytes")

    public_bytes: bytes
    """The identity: 32 bytes, public."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self.public_bytes = bytes(key.verify_key)

    @classmethod
    def generate(cls, entropy: Entropy) -> Self:
        """Make a fresh identity from 32 bytes of entropy."""
        return cls.from_bytes(SecretBytes(entropy.token(SEED_SIZE)))

    @classmethod
    def from_bytes(cls, seed: SecretBytes) -> Self:
        """Load an identity from its 32-byte seed.

        Raises:
            ValueError: Another length.
        """
        if len(seed) != SEED_SIZE:
            raise ValueError(
                f"an identity seed has {SEED_SIZE} bytes, this one {len(seed)}"
            )
        return cls(SigningKey(seed.reveal()))

    def seed(self) -> SecretBytes:
        """Return the seed, for storing the identity."""
        return SecretBytes(bytes(self._key))

    def sign(self, message: bytes) -> bytes:
        """Sign a message; signing is deterministic.

        Returns:
            64 bytes.
        """
        return self._key.sign(message).signature

    def __repr__(self) -> str:
        return f"IdentityKey(public={self.public_bytes.hex()})"


def check_identity_form(identity: bytes) -> None:
    """Check a public key of which a signature is verified as well.

    `verify` passes only with a point of the curve: its equation has no meaning for
    another.  The library computes the point before it reads the signature.  The root
    that `check_identity` takes would repeat this check, and double the time.

    Args:
        identity: 32 bytes.

    Raises:
        SignatureError: Not canonical, or of small order; refuse the message that names
            it.
    """
    _strict_point(identity, "an identity")


def check_identity(identity: bytes) -> None:
    """Check a public key that has signed nothing yet (R6.6-1).

    Args:
        identity: 32 bytes.

    Raises:
        SignatureError: Not the canonical encoding of a point of the curve, or of small
            order; refuse the message that names it.
    """
    y = _strict_point(identity, "an identity")
    # x^2 = (y^2 - 1) / (d y^2 + 1) has a root exactly when the product has one.
    product = (y * y - 1) * (_D * y * y + 1) % _PRIME
    if pow(product, (_PRIME - 1) // 2, _PRIME) != 1:
        raise SignatureError("an identity is not a point of the curve")


def verify(identity: bytes, message: bytes, signature: bytes) -> None:
    """Verify a signature.

    Args:
        identity: The signer's public key, 32 bytes.
        message: The signed bytes.
        signature: 64 bytes.

    Raises:
        SignatureError: The three do not belong together; refuse the message.
    """
    _strict_point(identity, "an identity")
    if len(signature) != SIGNATURE_SIZE:
        raise SignatureError(
            f"a signature has {SIGNATURE_SIZE} bytes, this one {len(signature)}"
        )
    _strict_point(signature[:_SCALAR_SIZE], "a signature's point")
    if int.from_bytes(signature[_SCALAR_SIZE:], "little") >= _ORDER:
        raise SignatureError("a signature's scalar is not reduced")
    if not _equation_holds(identity, message, signature):
        raise SignatureError("the signature does not match message and signer")


def _strict_point(encoded: bytes, what: str) -> int:
    """Return y of a point that is canonical, if it is on the curve at all."""
    if len(encoded) != IDENTITY_SIZE:
        raise SignatureError(
            f"{what} has {IDENTITY_SIZE} bytes, this one {len(encoded)}"
        )
    y = int.from_bytes(encoded, "little") & ((1 << _SIGN_BIT) - 1)
    if y >= _PRIME:
        raise SignatureError(f"{what} is not in canonical form")
    if y in _SMALL_ORDER:
        raise SignatureError(f"{what} is of small order")
    return y


def _equation_holds(identity: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether [S]B = R + [h]A."""
    try:
        VerifyKey(identity).verify(message, signature)
    except BadSignatureError:
        return False
    return True
