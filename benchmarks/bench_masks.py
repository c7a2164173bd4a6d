"""Mask expansion and accumulation, beside the raw keystream rate."""

import sys
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from measurement import cpu_seconds, emit

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.modular import UnsignedArray, zeros
from secagg.crypto.prg import Mask, add_masks
from secagg.crypto.secret_bytes import SecretBytes

_RAW_CHUNK = 1 << 18
_PROMISED_MODULUS = 1 << 20
_MODULI = (1 << 16, 1 << 20, 1 << 32, 1 << 48, 10**6 + 3, 2**31 - 1)


def make_masks(count: int, key_size: int) -> list[Mask]:
    """Return masks of alternating sign."""
    stream = SeededEntropy(SecretBytes(bytes(32)), b"benchmark")
    return [
        Mask(SecretBytes(stream.token(key_size)), stream.token(12), 1 - 2 * (i % 2))
        for i in range(count)
    ]


def raw_seconds_per_byte(key_size: int, chunk: int) -> float:
    """Return the cost of a keystream byte of the faster engine, without adding up."""
    data, buffer = bytes(chunk), bytearray(chunk)
    best = float("inf")
    for mode in (modes.CTR(bytes(16)), modes.GCM(bytes(12))):
        stream = Cipher(algorithms.AES(bytes(key_size)), mode).encryptor()
        seconds = cpu_seconds(partial(stream.update_into, data, buffer), repeats=30)
        best = min(best, seconds / chunk)
    return best


def naive(accumulator: UnsignedArray, masks: list[Mask]) -> None:
    """Expand every mask whole, then add it."""
    for mask in masks:
        counter = mask.iv + bytes([0, 0, 0, 2])
        cipher = Cipher(algorithms.AES(mask.key.reveal()), modes.CTR(counter))
        data = cipher.encryptor().update(bytes(accumulator.nbytes))
        words = np.frombuffer(data, accumulator.dtype)
        combine = np.add if mask.sign > 0 else np.subtract
        combine(accumulator, words, out=accumulator)


def main(*, tiny: bool = False) -> None:
    """Measure the sum of many masks for several words and moduli."""
    for key_size in (16, 32):
        _measure(key_size, tiny=tiny)


def _measure(key_size: int, *, tiny: bool) -> None:
    dim, count = (1 << 12, 3) if tiny else (1 << 20, 16)
    masks = make_masks(count, key_size)
    raw = raw_seconds_per_byte(key_size, 1 << 12 if tiny else _RAW_CHUNK)
    for modulus in _MODULI:
        accumulator = zeros(dim, modulus)
        seconds = cpu_seconds(partial(add_masks, accumulator, masks, modulus))
        nanoseconds = 1e9 * seconds / (dim * count)
        ratio = raw * accumulator.itemsize * dim * count / seconds
        promised = modulus == _PROMISED_MODULUS and not tiny
        emit(
            "masks/add",
            parameters=_parameters(modulus, key_size, dim, count),
            value=nanoseconds,
            unit="ns per mask and coordinate",
            baseline="raw keystream of the faster engine",
            ratio=ratio,
            target_met=nanoseconds <= 0.5 or ratio >= 0.65 if promised else None,
        )
    accumulator = zeros(dim, _PROMISED_MODULUS)
    chunked = cpu_seconds(partial(add_masks, accumulator, masks, _PROMISED_MODULUS))
    whole = cpu_seconds(partial(naive, accumulator, masks))
    emit(
        "masks/add in chunks",
        parameters=_parameters(_PROMISED_MODULUS, key_size, dim, count),
        value=1e9 * chunked / (dim * count),
        unit="ns per mask and coordinate",
        baseline="every mask expanded whole, AES-CTR",
        ratio=whole / chunked,
    )


def _parameters(modulus: int, key_size: int, dim: int, count: int) -> dict[str, object]:
    return {"modulus": modulus, "key_bits": 8 * key_size, "dim": dim, "masks": count}


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv)
