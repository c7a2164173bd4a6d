"""Packing and unpacking of vectors, beside copying and numpy's bit functions."""

import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
from measurement import cpu_seconds, emit

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.modular import UnsignedArray, word_dtype
from secagg.crypto.secret_bytes import SecretBytes
from secagg.protocol.packing import BLOCK_VALUES, pack, unpack

_PROMISED_BITS = 32


def make_vector(dim: int, bits: int) -> UnsignedArray:
    """Return a vector of uniform entries."""
    word = word_dtype(1 << bits)
    stream = SeededEntropy(SecretBytes(bytes(32)), b"benchmark")
    vector: UnsignedArray = np.frombuffer(stream.token(dim * word.itemsize), word)
    return vector & word.type((1 << bits) - 1)


def main(*, tiny: bool = False) -> None:
    """Measure several widths at d = 2^20 and for one block."""
    for dim in (1000,) if tiny else (BLOCK_VALUES, 1 << 20):
        for bits in (1, 12, 16, 17, 20, 24, 27, 32, 40, 62):
            _measure(dim, bits)


def _measure(dim: int, bits: int) -> None:
    vector = make_vector(dim, bits)
    packed = pack(vector, bits)
    raw = np.frombuffer(packed, np.uint8)
    sides: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "packing/pack": (
            partial(pack, vector, bits),
            lambda: np.packbits(_spread(vector, bits)),
        ),
        "packing/unpack": (
            partial(unpack, packed, dim, bits, 1 << bits),
            lambda: np.unpackbits(raw),
        ),
    }
    promised = dim > BLOCK_VALUES and bits <= _PROMISED_BITS
    for name, (ours, theirs) in sides.items():
        seconds = cpu_seconds(ours)
        nanoseconds = 1e9 * seconds / dim
        emit(
            name,
            parameters={"bits": bits, "dim": dim},
            value=nanoseconds,
            unit="ns/value",
            baseline="numpy.packbits or unpackbits, entries not joined",
            ratio=cpu_seconds(theirs, repeats=1) / seconds,
            target_met=nanoseconds <= 1 if promised else None,
        )


def _spread(vector: UnsignedArray, bits: int) -> npt.NDArray[np.uint8]:
    """Spread entries into single bits, as packbits wants them."""
    raw = vector.view(np.uint8).reshape(len(vector), -1)
    return np.unpackbits(raw, axis=1, bitorder="little")[:, :bits]


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv)
