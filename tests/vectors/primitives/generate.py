"""Writes the vectors of this directory from plain integers.

Rule 1: this script shares no code with the product and uses no array library.  AES
        itself comes from a library, one block at a time; all else is spelled out.
Rule 2: every secret is a run of counting bytes, so that a reader sees what is what.

Run it to rewrite `derived.json`; a test fails when the file is out of date.
"""

import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

SUITES = {0x0001: 32, 0x0002: 16}
PRIME = 65537

# 2^15 + 1 and 2^31 + 5 reject almost half of all words, 65521 and 2^32 - 5 almost
# none; 10^12 + 39 needs words of 64 bits.
ODD_MODULI = [3, 2**15 + 1, 65521, 10**6 + 3, 2**31 + 5, 2**32 - 5, 10**12 + 39]


def counting(start: int, size: int) -> bytes:
    """Return counting bytes."""
    return bytes((start + place) % 256 for place in range(size))


def prefixed(data: bytes) -> bytes:
    """Return data behind its length."""
    return len(data).to_bytes(4, "big") + data


def domain_tag(role: str, usage: str, suite: int) -> bytes:
    """Return the domain separation tag."""
    parts = (b"SecAgg/1", suite.to_bytes(2, "big"), role.encode(), usage.encode())
    return b"".join(prefixed(part) for part in parts)


def hkdf(salt: bytes, secret: bytes, info: bytes, size: int) -> bytes:
    """HKDF-SHA256 of RFC 5869."""
    key = hmac.new(salt, secret, hashlib.sha256).digest()
    block, output, counter = b"", b"", 1
    while len(output) < size:
        block = hmac.new(key, block + info + bytes([counter]), hashlib.sha256).digest()
        output += block
        counter += 1
    return output[:size]


def keystream(key: bytes, counter_block: bytes) -> Iterator[int]:
    """Yield the bytes of AES in counter mode."""
    aes = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    counter = int.from_bytes(counter_block, "big")
    while True:
        yield from aes.update(counter.to_bytes(16, "big"))
        counter += 1


def mask(key: bytes, iv: bytes, dim: int, modulus: int) -> list[int]:
    """Expand a mask, position by position."""
    size = next(size for size in (2, 4, 8) if modulus <= 1 << (8 * size))
    stream = keystream(key, iv + bytes([0, 0, 0, 2]))

    def word() -> int:
        return int.from_bytes(bytes(next(stream) for _ in range(size)), "little")

    limit = (1 << (8 * size)) // modulus * modulus
    words = [word() for _ in range(dim)]
    for position in range(dim):
        while words[position] >= limit:
            words[position] = word()
    return [value % modulus for value in words]


def packed(values: list[int], bits: int) -> bytes:
    """Pack entries, bit by bit."""
    width = next(width for width in (16, 32, 64) if bits <= width)
    out = b""
    block = 1 << 17
    start = 0
    while len(values) - start >= width:
        take = min(block, (len(values) - start) // width * width)
        columns = take // width
        strings = [
            sum(
                values[start + row * columns + column] << (row * bits)
                for row in range(width)
            )
            for column in range(columns)
        ]
        for index in range(bits):
            for string in strings:
                word = string >> (index * width) & ((1 << width) - 1)
                out += word.to_bytes(width // 8, "little")
        start += take
    tail = values[start:]
    string = sum(value << (place * bits) for place, value in enumerate(tail))
    return out + string.to_bytes(-(-len(tail) * bits // 8), "little")


def share(secret: bytes, threshold: int, point: int, words: list[int]) -> bytes:
    """Share one secret; words are the coefficients, power by power."""
    limbs = [int.from_bytes(secret[2 * i : 2 * i + 2], "big") for i in range(16)]
    out, flags = b"", 0
    for limb, constant in enumerate(limbs):
        value = constant
        for power in range(1, threshold):
            coefficient = words[(power - 1) * 16 + limb] % PRIME
            value = (value + coefficient * pow(point, power, PRIME)) % PRIME
        flags |= (value == PRIME - 1) << limb
        out += (value % (PRIME - 1)).to_bytes(2, "big")
    return out + flags.to_bytes(2, "big")


def context_vectors() -> list[dict[str, Any]]:
    """Domain tags, hashes and derived keys."""
    session, context, secret = counting(0, 32), counting(32, 32), counting(64, 32)
    vectors = []
    for suite, key_size in SUITES.items():

        def info(role: str, usage: str, *numbers: int, suite: int = suite) -> bytes:
            fields = b"".join(number.to_bytes(4, "big") for number in numbers)
            return domain_tag(role, usage, suite) + prefixed(context) + fields

        channel = hkdf(session, secret, info("client", "share", 3, 5), 32)
        pair = hkdf(session, secret, info("pair", "mask", 3, 5, 1), key_size + 12)
        own = hkdf(session, secret, info("self", "mask", 3, 1), key_size + 12)
        hashed = domain_tag("hash", "ctx0", suite) + prefixed(session) + prefixed(b"")
        vectors.append(
            {
                "suite": suite,
                "session_id": session.hex(),
                "context": context.hex(),
                "secret": secret.hex(),
                "domain_tag_client_share": domain_tag("client", "share", suite).hex(),
                "hash_ctx0_of_session_id_and_nothing": hashlib.sha256(
                    hashed
                ).hexdigest(),
                "share_channel_3_to_5": channel.hex(),
                "pair_mask_3_5_vector_1": pair.hex(),
                "self_mask_3_vector_1": own.hex(),
            }
        )
    return vectors


def mask_vectors() -> list[dict[str, Any]]:
    """Masks for every power of two and for some other moduli."""
    key, iv, dim = counting(0, 32), counting(100, 12), 24
    moduli = [1 << bits for bits in range(1, 63)] + ODD_MODULI
    return [
        {
            "key": key[:size].hex(),
            "iv": iv.hex(),
            "modulus": str(modulus),
            "mask": [str(value) for value in mask(key[:size], iv, dim, modulus)],
        }
        for modulus in moduli
        for size in ((16, 32) if modulus in (1 << 20, *ODD_MODULI) else (32,))
    ]


def long_mask_vectors() -> list[dict[str, Any]]:
    """Masks of 16-bit words, long enough to meet the first rejected word itself."""
    vectors = []
    for modulus in (2**15 + 1, 65521):
        values = mask(counting(0, 32), counting(100, 12), 300_000, modulus)
        words = b"".join(value.to_bytes(2, "little") for value in values)
        vectors.append(
            {
                "key": counting(0, 32).hex(),
                "iv": counting(100, 12).hex(),
                "modulus": str(modulus),
                "dim": len(values),
                "sha256_of_words": hashlib.sha256(words).hexdigest(),
            }
        )
    return vectors


def share_vectors() -> list[dict[str, Any]]:
    """Shares of one secret, one of them with a limb of 65536."""
    secret, threshold, entropy = counting(200, 32), 3, counting(7, 128)
    words = [int.from_bytes(entropy[4 * i : 4 * i + 4], "little") for i in range(32)]
    wide = next(
        point
        for point in range(1, PRIME)
        if any(share(secret, threshold, point, words)[32:])
    )
    return [
        {
            "secret": secret.hex(),
            "threshold": threshold,
            "entropy": entropy.hex(),
            "points": points,
            "shares": [share(secret, threshold, x, words).hex() for x in points],
        }
        for points in ([1, 2, 3, 4], [wide, 65536, 7, 100])
    ]


def packing_vectors() -> list[dict[str, Any]]:
    """Packed vectors with a block and a tail, for every width."""
    vectors = []
    for bits in range(1, 63):
        width = next(width for width in (16, 32, 64) if bits <= width)
        values = mask(counting(0, 32), counting(0, 12), 2 * width + 3, 1 << bits)
        digest = hashlib.sha256(packed(values, bits)).hexdigest()
        vectors.append({"bits": bits, "dim": len(values), "sha256": digest})
    return vectors


def packing_example() -> dict[str, Any]:
    """Return one short packed vector in full."""
    values = list(range(35))
    return {"bits": 6, "values": values, "packed": packed(values, 6).hex()}


def entropy_vector() -> dict[str, Any]:
    """Return the beginning of one stream of seeded entropy."""
    seed, label = counting(0, 32), b"masking key"
    info = domain_tag("entropy", "stream", 0x0001) + prefixed(label)
    stream = keystream(hkdf(b"", seed, info, 32), bytes(16))
    first = bytes(next(stream) for _ in range(40))
    return {"seed": seed.hex(), "label": label.decode(), "first_bytes": first.hex()}


def derived() -> dict[str, Any]:
    """Return everything that `derived.json` holds."""
    return {
        "protocol": "SecAgg/1",
        "source": "generate.py beside this file",
        "contexts": context_vectors(),
        "masks": mask_vectors(),
        "long_masks": long_mask_vectors(),
        "shares": share_vectors(),
        "packing": packing_vectors(),
        "packing_example": packing_example(),
        "sets": [
            {"n": 11, "indices": [0, 3, 8, 10], "bitmap": "0905"},
            {"n": 8, "indices": [], "bitmap": "00"},
            {"n": 0, "indices": [], "bitmap": ""},
        ],
        "entropy": entropy_vector(),
    }


def encoded() -> str:
    """Return the text of `derived.json`."""
    return json.dumps(derived(), indent=1) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("derived.json").write_text(encoded())
