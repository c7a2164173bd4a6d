"""Masks: a key expands to a vector over Z_m, added or subtracted in place.

Rule 1: one key and iv per (session, pair or client, vector).  Its stream is the AES-CTR
        keystream from counter block iv ‖ 00000002. It is read as little-endian words of
        2, 4 or 8 bytes, the word of the modulus.
Rule 2: m = 2^b: coordinate j is word j modulo m.
Rule 3: any other m: let T be the largest multiple of m that a word can express,
        exclusive.  Coordinate j is word j modulo m if word j < T.  The other
        positions j < d take the accepted words among d, d+1, ..., again modulo m.  Both
        are in ascending order.
Rule 4: the engine is not observable.  AES-GCM ciphertext of zeros is the same
        keystream, and faster where OpenSSL vectorises GCM better than CTR.  The engine
        is chosen once per process and changes no byte; no tag is made (R6.4-2).
Rule 5: no mask is ever held whole: chunks of the accumulator stay in cache while all
        masks pass over them through one buffer.

The protocol decides which keys belong to which clients, and their signs.

Source: PROTOCOL §6.4 and §6.5.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.crypto.modular import (
    UnsignedArray,
    add_into,
    check_modulus,
    is_power_of_two,
    reduce_in_place,
    subtract_into,
    word_dtype,
)
from secagg.crypto.secret_bytes import SecretBytes

_IV_SIZE: Final = 12
_KEY_SIZES: Final = (16, 32)

MAX_STREAM_BYTES: Final = (1 << 36) - 32
"""Longest stream: up to here counters of 32 and of 128 bits agree, and GCM works."""

CHUNK_BYTES: Final = 1 << 18
"""Accumulator bytes that all masks pass over in turn: they fit into the L2 cache."""

_BLOCK: Final = 16
_FIRST_COUNTER: Final = 2  # the first block that GCM encrypts data with
_MASKS_PER_PASS: Final = 2048  # open GCM contexts take about 1.6 KB each
# The plaintext; pages that are only read cost no memory.
_ZEROS: Final = memoryview(bytes(CHUNK_BYTES))
_TRIAL_BYTES: Final = 1 << 17
_TRIALS: Final = 4

# (zeros, buffer) -> number of bytes written
_Fill = Callable[[memoryview, memoryview], int]


@dataclass(frozen=True, slots=True)
class Mask:
    """One mask of a sum.

    Attributes:
        key: AES key, 16 or 32 bytes, used for this stream only.
        iv: 12 bytes.
        sign: +1 to add the mask, -1 to subtract it.

    Raises:
        ValueError: An attribute lies outside its range.
    """

    key: SecretBytes
    iv: bytes
    sign: int

    def __post_init__(self) -> None:
        if len(self.key) not in _KEY_SIZES:
            raise ValueError(f"a mask key has 16 or 32 bytes, this one {len(self.key)}")
        if len(self.iv) != _IV_SIZE:
            raise ValueError(f"a mask iv has {_IV_SIZE} bytes, this one {len(self.iv)}")
        if self.sign not in (1, -1):
            raise ValueError("a mask's sign is +1 or -1")


def add_masks(  # noqa: PLR0913 - a slice of a vector takes two numbers to describe
    accumulator: UnsignedArray,
    masks: Sequence[Mask],
    modulus: int,
    *,
    start: int = 0,
    dim: int | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> None:
    """Add signed masks to a vector, or to a slice of one, in place.

    Args:
        accumulator: Coordinates [start, start + size) of the vector, contiguous, in the
            word of the modulus.  Entries below m unless m = 2^b.  Afterwards all
            entries are in [0, m).
        masks: The masks to add; every mask has the dimension of the whole vector.
        modulus: m, in [2, 2^62].
        start: First coordinate of the slice.
        dim: Dimension d of the whole vector.  It may be omitted only when the
            accumulator is the whole vector.
        chunk_bytes: Accumulator bytes per chunk; affects the speed only.

    Raises:
        ValueError: An argument is outside its range, or the stream of a vector of this
            dimension would be too long; split the vector.
    """
    whole = _check_slice(accumulator, modulus, start, dim)
    chunk = max(1, chunk_bytes // accumulator.itemsize)
    adder = _PowerOfTwoAdder if is_power_of_two(modulus) else _RejectionAdder
    for low in range(0, len(masks), _MASKS_PER_PASS):
        batch = masks[low : low + _MASKS_PER_PASS]
        adder(batch, modulus, start=start, dim=whole, chunk=chunk).add(accumulator)
    reduce_in_place(accumulator, modulus)


def expand(  # noqa: PLR0913 - a slice of a vector takes two numbers to describe
    key: SecretBytes,
    iv: bytes,
    length: int,
    modulus: int,
    *,
    start: int = 0,
    dim: int | None = None,
) -> UnsignedArray:
    """Expand one mask without optimisation: the test oracle of `add_masks`.

    Args:
        key: AES key, 16 or 32 bytes.
        iv: 12 bytes.
        length: Number of coordinates wanted.
        modulus: m, in [2, 2^62].
        start: First coordinate wanted.
        dim: Dimension of the whole vector; default start + length.

    Returns:
        Coordinates [start, start + length) of the mask, shape (length,), in the
        word of the modulus, entries in [0, m).

    Raises:
        ValueError: An argument lies outside its range.
    """
    if length < 0:
        raise ValueError("expected a length that is not negative")
    mask = Mask(key, iv, 1)
    out = np.zeros(length, word_dtype(modulus))
    whole = start + length if dim is None else dim
    _check_slice(out, modulus, start, whole)
    stream = _ctr_stream(mask, 0)
    size = out.itemsize

    def draw(count: int) -> list[int]:
        data = stream(count * size)
        return [
            int.from_bytes(data[low : low + size], "little")
            for low in range(0, len(data), size)
        ]

    if is_power_of_two(modulus):
        values = draw(start + length)
    else:
        limit = _rejection_limit(modulus)
        values = draw(whole)
        for position in range(whole):
            while values[position] >= limit:
                (values[position],) = draw(1)
    out[:] = [value % modulus for value in values[start : start + length]]
    return out


def _check_slice(
    accumulator: UnsignedArray, modulus: int, start: int, dim: int | None
) -> int:
    """Check that the slice lies inside a vector of legal length; return d."""
    check_modulus(modulus)
    expected = word_dtype(modulus)
    if accumulator.ndim != 1 or not accumulator.flags.c_contiguous:
        raise ValueError("expected a contiguous vector as accumulator")
    if accumulator.dtype != expected:
        raise ValueError(f"expected words of type {expected}, not {accumulator.dtype}")
    if dim is None and start != 0:
        raise ValueError("a slice of a vector needs the dimension of the whole: dim=")
    whole = accumulator.size if dim is None else dim
    if not 0 <= start <= start + accumulator.size <= whole:
        raise ValueError(
            f"coordinates {start} to {start + accumulator.size} do not lie in a"
            f" vector of dimension {whole}"
        )
    # R6.4-1: refills lie behind the vector.  Fewer than half of all words are rejected,
    # so that a vector of a quarter of the limit reaches it with negligible chance.
    share = 1 if is_power_of_two(modulus) else 4
    if whole > MAX_STREAM_BYTES // share // accumulator.itemsize:
        raise ValueError(
            f"a vector of dimension {whole} needs a longer stream than one key may "
            "produce; split it into several vectors"
        )
    return whole


def _rejection_limit(modulus: int) -> int:
    """Return T of rule 3."""
    words = 1 << (8 * word_dtype(modulus).itemsize)
    return words // modulus * modulus


def _cipher(mask: Mask, block: int) -> Cipher[modes.CTR]:
    counter = (_FIRST_COUNTER + block).to_bytes(4, "big")
    return Cipher(algorithms.AES(mask.key.reveal()), modes.CTR(mask.iv + counter))


def _ctr_stream(mask: Mask, byte: int) -> Callable[[int], bytes]:
    """Open the keystream at a byte position; each call returns the next bytes."""
    block, skip = divmod(byte, _BLOCK)
    encryptor = _cipher(mask, block).encryptor()
    encryptor.update(bytes(skip))
    return lambda size: encryptor.update(bytes(size))


def _ctr_fill(mask: Mask, byte: int) -> _Fill:
    """Return a function that fills a buffer with AES-CTR from a byte on."""
    block, skip = divmod(byte, _BLOCK)
    encryptor = _cipher(mask, block).encryptor()
    encryptor.update(bytes(skip))
    return encryptor.update_into


def _gcm_fill(mask: Mask) -> _Fill:
    # The context is never finalised: its tag would be a function of the keystream.
    cipher = Cipher(algorithms.AES(mask.key.reveal()), modes.GCM(mask.iv))
    return cipher.encryptor().update_into


def _open_fill(mask: Mask, byte: int) -> _Fill:
    """Open a stream with the faster engine that can start at this position."""
    if byte == 0 and _gcm_is_faster(len(mask.key)):
        return _gcm_fill(mask)
    return _ctr_fill(mask, byte)


@lru_cache(maxsize=len(_KEY_SIZES))
def _gcm_is_faster(key_size: int) -> bool:
    """Compare both engines, once per process: first their bytes, then their speed."""
    mask = Mask(SecretBytes(bytes(range(key_size))), bytes(range(_IV_SIZE)), 1)
    zeros = memoryview(bytes(_TRIAL_BYTES))
    fills = (_ctr_fill(mask, 0), _gcm_fill(mask))
    buffers = (bytearray(_TRIAL_BYTES), bytearray(_TRIAL_BYTES))
    best = [0, 0]
    for trial in range(_TRIALS):
        for engine, fill in enumerate(fills):
            before = time.perf_counter_ns()
            fill(zeros, memoryview(buffers[engine]))
            spent = time.perf_counter_ns() - before
            best[engine] = spent if trial == 0 else min(best[engine], spent)
        if buffers[0] != buffers[1]:
            return False  # this build's GCM differs from the specification
    return best[1] < best[0]


class _Buffer:
    """One keystream buffer, seen as words and as bytes, and zeros to encrypt."""

    def __init__(self, words: int, word: np.dtype[Any]) -> None:
        raw = bytearray(words * word.itemsize)
        self._words = np.frombuffer(raw, word)
        self._bytes = memoryview(raw)
        fits = len(raw) <= len(_ZEROS)
        self._zeros = _ZEROS if fits else memoryview(bytes(len(raw)))

    def front(self, count: int) -> tuple[UnsignedArray, memoryview, memoryview]:
        """Return the first words, their bytes, and as many zeros."""
        size = count * self._words.itemsize
        return self._words[:count], self._bytes[:size], self._zeros[:size]


class _PowerOfTwoAdder:
    """Rule 2: words are added as they come; the word's wrap-around is harmless."""

    def __init__(
        self,
        masks: Sequence[Mask],
        modulus: int,
        *,
        start: int,
        dim: int,  # noqa: ARG002 - same signature as the other adder
        chunk: int,
    ) -> None:
        self._chunk = chunk
        self._word = word_dtype(modulus).newbyteorder("<")
        byte = start * self._word.itemsize
        self._streams = [
            (_open_fill(mask, byte), np.add if mask.sign > 0 else np.subtract)
            for mask in masks
        ]

    def add(self, accumulator: UnsignedArray) -> None:
        """Add all masks to the slice."""
        chunk = min(self._chunk, accumulator.size)
        buffer = _Buffer(chunk, self._word)
        for low in range(0, accumulator.size, chunk or 1):
            part = accumulator[low : low + chunk]
            words, target, source = buffer.front(part.size)
            for fill, combine in self._streams:
                fill(source, target)
                combine(part, words, out=part)


class _RejectionAdder:
    """Rule 3: rejected words are replaced by words from behind the vector."""

    def __init__(
        self,
        masks: Sequence[Mask],
        modulus: int,
        *,
        start: int,
        dim: int,
        chunk: int,
    ) -> None:
        self._masks = masks
        self._modulus = modulus
        self._start = start
        self._chunk = chunk
        self._word = word_dtype(modulus).newbyteorder("<")
        self._limit = _rejection_limit(modulus)
        # Which refill a rejected word takes depends on all rejections before it, so
        # that a slice too is read from the beginning of the stream.
        self._streams = [
            (_open_fill(mask, 0), _Refill(mask, dim, self._word, self._limit))
            for mask in masks
        ]

    def add(self, accumulator: UnsignedArray) -> None:
        """Add all masks to the slice."""
        whole = self._start + accumulator.size
        buffer = _Buffer(min(self._chunk, whole), self._word)
        for low in range(0, self._start, self._chunk):
            count = min(self._chunk, self._start - low)
            for fill, refill in self._streams:
                refill.read(self._draw(fill, buffer, count)[1].size)
        narrow = self._word.itemsize < 8  # noqa: PLR2004 - bytes of the widest word
        combine = self._combine_narrow if narrow else self._combine_wide
        for low in range(0, accumulator.size, self._chunk):
            part = accumulator[low : low + self._chunk]
            combine(part, buffer)

    def _draw(
        self, fill: _Fill, buffer: "_Buffer", count: int
    ) -> tuple[UnsignedArray, npt.NDArray[np.intp]]:
        """Draw the next words; return them and the positions that are rejected."""
        words, target, source = buffer.front(count)
        fill(source, target)
        return words, np.flatnonzero(words >= words.dtype.type(self._limit))

    def _combine_narrow(self, part: UnsignedArray, buffer: "_Buffer") -> None:
        """Add words of at most 32 bits lazily in 64 bits, and divide once."""
        # |sum| < 2^62: at most 2048 masks per pass, each below 2^32.
        total = part.astype(np.int64)
        for mask, (fill, refill) in zip(self._masks, self._streams, strict=True):
            words, rejected = self._draw(fill, buffer, part.size)
            words[rejected] = refill.read(rejected.size)
            combine = np.add if mask.sign > 0 else np.subtract
            combine(total, words, out=total)
        np.remainder(total, self._modulus, out=total)
        part[:] = total

    def _combine_wide(self, part: UnsignedArray, buffer: "_Buffer") -> None:
        """Add words of 64 bits, each reduced first."""
        modulus = part.dtype.type(self._modulus)
        for mask, (fill, refill) in zip(self._masks, self._streams, strict=True):
            words, rejected = self._draw(fill, buffer, part.size)
            words[rejected] = refill.read(rejected.size)
            np.remainder(words, modulus, out=words)
            combine = add_into if mask.sign > 0 else subtract_into
            combine(part, words, self._modulus)


class _Refill:
    """The accepted words behind a vector, in order."""

    def __init__(self, mask: Mask, dim: int, word: np.dtype[Any], limit: int) -> None:
        self._mask = mask
        self._word = word
        self._limit = limit
        self._position = dim * word.itemsize
        self._stream: Callable[[int], bytes] | None = None  # rarely needed
        self._pending: UnsignedArray = np.empty(0, word)

    def read(self, count: int) -> UnsignedArray:
        """Return the next `count` accepted words."""
        while self._pending.size < count:
            self._draw(2 * (count - self._pending.size) + 8)
        taken, self._pending = self._pending[:count], self._pending[count:]
        return taken

    def _draw(self, count: int) -> None:
        """Draw that many further words, and keep those below the limit."""
        if self._stream is None:
            self._stream = _ctr_stream(self._mask, self._position)
        size = count * self._word.itemsize
        self._position += size
        if self._position > MAX_STREAM_BYTES:
            raise ValueError("the refills of a mask exceed the stream of one key")
        words = np.frombuffer(self._stream(size), self._word)
        accepted = words[words < words.dtype.type(self._limit)]
        self._pending = np.concatenate([self._pending, accepted])
