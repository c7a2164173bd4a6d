"""Keys and masks of PROTOCOL §6, slowly: the part of the reference that needs ciphers.

Rule 1: a library supplies X25519, ChaCha20-Poly1305 and single AES blocks; HKDF, the
        counter of the mask stream and its words are spelled out.
Rule 2: the X25519 result is an argument, so that every step can be looked at alone.
"""

import hashlib
import hmac
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from reference import (
    BAD_PUBLIC_KEY,
    BAD_SHARE_CIPHERTEXT,
    KEY_SIZES,
    SHARE_CONFUSION,
    SHARE_SIZE,
    Refused,
    blob,
    tag,
    u32,
    word_bits,
)


def public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes) -> bytes:
    """X25519, refusing the all-zero result."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:
        raise Refused(BAD_PUBLIC_KEY) from None


def check_public_key(public: bytes) -> None:
    """Canonical, and not of low order."""
    if int.from_bytes(public, "little") >= 2**255 - 19:
        raise Refused(BAD_PUBLIC_KEY)
    # A scalar is a multiple of the cofactor: any of them gives zero, or none does.
    agree(bytes(32), public)


def extract(salt: bytes, secret: bytes) -> bytes:
    """HKDF-Extract of RFC 5869."""
    return hmac.new(salt, secret, hashlib.sha256).digest()


def expand(pseudorandom_key: bytes, info: bytes, size: int) -> bytes:
    """HKDF-Expand of RFC 5869."""
    output, last = b"", b""
    for counter in range(1, -(-size // 32) + 1):
        message = last + info + bytes([counter])
        last = hmac.new(pseudorandom_key, message, hashlib.sha256).digest()
        output += last
    return output[:size]


@dataclass(frozen=True)
class Channel:
    """§6.1: from one client to another, under the X25519 result of both."""

    suite: int
    sid: bytes
    ctx1: bytes
    secret: bytes
    sender: int
    receiver: int
    abscissa: int  # of the receiver, among the holders of the sender

    def key(self) -> bytes:
        info = tag("client", "share", self.suite) + self._ends()
        return expand(extract(self.sid, self.secret), info, 32)

    def associated_data(self) -> bytes:
        return tag("client", "share bundle", self.suite) + self._ends()

    def _ends(self) -> bytes:
        return blob(self.ctx1) + u32(self.sender) + u32(self.receiver)

    def indices(self) -> bytes:
        return u32(self.sender) + u32(self.receiver) + u32(self.abscissa)

    def seal_plaintext(self, plaintext: bytes) -> bytes:
        cipher = ChaCha20Poly1305(self.key())
        return cipher.encrypt(bytes(12), plaintext, self.associated_data())

    def seal(self, share_of_key: bytes, share_of_seed: bytes) -> bytes:
        return self.seal_plaintext(self.indices() + share_of_key + share_of_seed)

    def open(self, bundle: bytes) -> tuple[bytes, bytes]:
        """Return both shares; whether they are canonical is asked later (§5.3)."""
        cipher = ChaCha20Poly1305(self.key())
        try:
            plaintext = cipher.decrypt(bytes(12), bundle, self.associated_data())
        except InvalidTag:
            raise Refused(BAD_SHARE_CIPHERTEXT) from None
        if plaintext[:12] != self.indices():
            raise Refused(SHARE_CONFUSION)
        return plaintext[12 : 12 + SHARE_SIZE], plaintext[12 + SHARE_SIZE :]


@dataclass(frozen=True)
class MaskKeys:
    """§6.2 and §6.3: the keys of one session's masks, each followed by its iv."""

    suite: int
    sid: bytes
    ctx2: bytes

    def pair(self, secret: bytes, one: int, other: int) -> tuple[bytes, bytes]:
        ends = u32(min(one, other)) + u32(max(one, other))
        return self._derive(secret, "pair", ends)

    def own(self, seed: bytes, index: int) -> tuple[bytes, bytes]:
        return self._derive(seed, "self", u32(index))

    def _derive(self, secret: bytes, role: str, who: bytes) -> tuple[bytes, bytes]:
        info = tag(role, "mask", self.suite) + blob(self.ctx2) + who + u32(0)
        size = KEY_SIZES[self.suite]
        both = expand(extract(self.sid, secret), info, size + 12)
        return both[:size], both[size:]


class MaskStream:
    """§6.4 and §6.5: the words of one mask, at any position."""

    def __init__(self, key: bytes, iv: bytes, modulus: int) -> None:
        self._aes = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        self._first = int.from_bytes(iv + u32(2), "big")
        self._width = word_bits(modulus) // 8
        self._modulus = modulus

    def word(self, place: int) -> int:
        block, offset = divmod(place * self._width, 16)
        octets = self._aes.update((self._first + block).to_bytes(16, "big"))
        return int.from_bytes(octets[offset : offset + self._width], "little")

    def is_accepted(self, word: int) -> bool:
        whole = 2 ** (8 * self._width)
        return word < whole // self._modulus * self._modulus

    def coordinates(self, dim: int, start: int = 0) -> list[int]:
        """Return the coordinates from `start` on of a mask of dimension `dim`."""
        words = {}
        spare = dim  # the next word that may stand in for a rejected one
        rejecting = 2 ** (8 * self._width) % self._modulus != 0
        for place in range(0 if rejecting else start, dim):
            words[place] = self.word(place)
            while not self.is_accepted(words[place]):
                words[place] = self.word(spare)
                spare += 1
        return [words[place] % self._modulus for place in range(start, dim)]
