"""Random bits at fixed positions, expanded from a 32-byte seed.

* This module is the only place in dpnoise that asks the operating system for
  randomness (`fresh_seed`). Everything else is a function of a seed and a label.
* A stream is AES-256 in counter mode under a key that HKDF-SHA256 derives from the
  seed and the label. Different labels of one seed are independent streams, as long
  as AES is a pseudorandom permutation and HKDF a pseudorandom function.
* Byte `offset` of a stream never depends on how it is read. Chunking, skipping and
  regenerating therefore give the same bits on every platform.
* Words are little-endian. Word `i` of width `w` bytes occupies bytes `w·i` to
  `w·i + w − 1`; block `i` is the AES encryption of `i` as a 128-bit big-endian number.
* Neither a seed nor a key appears in a representation, an error, or a pickle.

Limits: it keeps no position, so it cannot notice that the same words are read twice.
The caller gives every purpose of a seed a label of its own.
"""

import os
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpnoise.errors import ParameterError

SEED_BYTES: Final = 32
"""Length of every seed: 256 bits, the key length of the cipher."""

MAX_POSITION: Final = 1 << 56
"""Largest byte offset of a stream; 2^52 blocks stay far from the 2^64 birthday bound
at which counter mode could be told from random bits."""

_MAX_LABEL_BYTES: Final = 255  # the length is framed in one byte
_DOMAIN: Final = b"dpnoise/v1/bit-source"
_BLOCK_BYTES: Final = 16
# 256 KiB per cipher call: enough for the cipher's full speed, and it stays in L2.
_ZEROS: Final = bytes(1 << 18)


def fresh_seed() -> bytes:
    """Draw a seed from the operating system.

    Returns:
        32 bytes. Use them for one session of one client, then forget them: two
        releases under one seed carry the same noise, and their difference cancels it.
    """
    return os.urandom(SEED_BYTES)


class BitSource:
    """One seekable stream of pseudorandom bits.

    Args:
        seed: 32 secret bytes (or public ones, for public randomness).
        label: What the stream is for, 1 to 255 bytes. Streams with different labels
            are independent.

    Raises:
        ParameterError: The seed is not 32 bytes, or the label is empty or too long.
            Derive longer secrets down to 32 bytes first.

    Source:
        HKDF: RFC 5869 with an empty salt. Counter mode: NIST SP 800-38A, the counter
        block being the block's index.
    """

    __slots__ = ("_cipher", "_label")

    def __init__(self, seed: bytes, label: bytes) -> None:
        _require_length("seed", seed, SEED_BYTES, SEED_BYTES)
        _require_length("label", label, 1, _MAX_LABEL_BYTES)
        info = _DOMAIN + bytes([len(label)]) + label
        key = HKDF(hashes.SHA256(), SEED_BYTES, salt=None, info=info).derive(seed)
        self._cipher = algorithms.AES256(key)
        self._label = label

    def __repr__(self) -> str:
        return f"BitSource(seed=<redacted>, label={self._label!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a BitSource holds a key and cannot be pickled; pass the seed")

    def fill(self, offset: int, buffer: npt.NDArray[np.uint8]) -> None:
        """Write the bytes from position `offset` on into `buffer`.

        Args:
            offset: Byte position of the first byte, at least 0.
            buffer: Contiguous one-dimensional array of bytes, overwritten.

        Raises:
            ParameterError: The range leaves [0, 2^56).
        """
        size = buffer.size
        if offset < 0 or offset + size > MAX_POSITION:
            raise ParameterError(
                f"byte positions lie in [0, 2^56), got offset {offset} "
                f"and {size} bytes",
                parameter="offset",
                value=offset,
            )
        # int(): positions computed with numpy are welcome too.
        index, skip = divmod(int(offset), _BLOCK_BYTES)
        counter = modes.CTR(index.to_bytes(_BLOCK_BYTES, "big"))
        stream = Cipher(self._cipher, counter).encryptor()
        if skip:
            stream.update(bytes(skip))
        target = buffer.data
        zeros = memoryview(_ZEROS)
        for low in range(0, size, len(_ZEROS)):
            high = min(size, low + len(_ZEROS))
            stream.update_into(zeros[: high - low], target[low:high])

    def bytes_at(self, offset: int, count: int) -> bytes:
        """Bytes `offset` to `offset + count − 1` of the stream.

        Raises:
            ParameterError: `count` is negative or the range leaves [0, 2^56).
        """
        return self._read_words(np.dtype(np.uint8), offset, count).tobytes()

    def uint16(self, start: int, count: int) -> npt.NDArray[np.uint16]:
        """Words `start` to `start + count − 1` of 16 bits, shape (count,).

        Raises:
            ParameterError: `count` is negative or the range leaves the stream.
        """
        return self._read_words(np.dtype("<u2"), start, count).astype(
            np.uint16, copy=False
        )

    def uint32(self, start: int, count: int) -> npt.NDArray[np.uint32]:
        """Words `start` to `start + count − 1` of 32 bits, shape (count,).

        Raises:
            ParameterError: `count` is negative or the range leaves the stream.
        """
        return self._read_words(np.dtype("<u4"), start, count).astype(
            np.uint32, copy=False
        )

    def uint64(self, start: int, count: int) -> npt.NDArray[np.uint64]:
        """Words `start` to `start + count − 1` of 64 bits, shape (count,).

        Raises:
            ParameterError: `count` is negative or the range leaves the stream.
        """
        return self._read_words(np.dtype("<u8"), start, count).astype(
            np.uint64, copy=False
        )

    def block_words(self, blocks: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Both 64-bit words of each numbered block, in any order, in one call.

        Args:
            blocks: Indices of 16-byte blocks, shape (n,), each below 2^52.

        Returns:
            Array of shape (n, 2): words `2·i` and `2·i + 1` of the stream for block i.

        Raises:
            ParameterError: A block lies beyond the end of the stream.
        """
        if blocks.size and int(blocks.max()) >= MAX_POSITION // _BLOCK_BYTES:
            raise ParameterError("block indices lie below 2^52", parameter="blocks")
        counters = np.zeros((blocks.size, 2), dtype=">u8")
        counters[:, 1] = blocks
        # Counter mode by hand: one cipher call for scattered positions, where seeking
        # would cost a new context for each. The blocks serve as random bits only.
        encryptor = Cipher(self._cipher, modes.ECB()).encryptor()  # noqa: S305 - see above
        words = np.frombuffer(encryptor.update(counters.tobytes()), dtype="<u8")
        return words.reshape(blocks.size, 2).astype(np.uint64, copy=False)

    def _read_words(
        self, dtype: np.dtype[np.unsignedinteger], start: int, count: int
    ) -> npt.NDArray[np.unsignedinteger]:
        """`count` little-endian words of the given type from word `start` on."""
        if count < 0 or start < 0:
            raise ParameterError(
                f"start and count are at least 0, got {start} and {count}",
                parameter="count" if count < 0 else "start",
                value=count if count < 0 else start,
                nearest="0",
            )
        words = np.empty(count, dtype)
        self.fill(int(start) * dtype.itemsize, words.view(np.uint8))
        return words


def _require_length(parameter: str, value: object, least: int, most: int) -> None:
    """Refuse anything but bytes of a length in range; say nothing of its content."""
    got = len(value) if isinstance(value, bytes) else type(value).__name__
    if not isinstance(value, bytes) or not least <= len(value) <= most:
        wanted = str(most) if least == most else f"{least} to {most}"
        raise ParameterError(
            f"{parameter} must be a bytes object of length {wanted}, got {got}",
            parameter=parameter,
        )
