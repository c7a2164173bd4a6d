"""Generate the known-answer vectors of the table samplers, without using dpnoise.

Thresholds come from mpmath, bits from the standard library's HMAC and raw AES blocks,
and each draw compares one full 256-bit number with all thresholds. Run it to rewrite
`tables.json` beside it:  python tests/vectors/samplers/generate.py
"""

import hashlib
import hmac
import json
from bisect import bisect_right
from fractions import Fraction
from pathlib import Path

import mpmath
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

PATH = Path(__file__).with_name("tables.json")
CASES = [
    # law, parameter, label, first coordinate, number of samples
    ("skellam", "1/100", "kat", 0, 24),
    ("skellam", "1", "kat", 0, 24),
    ("skellam", "22/7", "noise", 1000, 24),
    ("skellam", "400", "noise", 4294967290, 24),
    ("skellam", "10000", "kat", 7, 24),
    ("discrete-gaussian", "1/4", "kat", 0, 24),
    ("discrete-gaussian", "1000", "kat", 0, 24),
    ("discrete-laplace", "1/8", "kat", 0, 24),
    ("binomial", "64", "kat", 0, 24),
    ("poisson", "17/2", "kat", 0, 24),
    # Just below and just above 12 000 thresholds, where 20 bits lead instead of 16.
    ("discrete-laplace", "1/63", "narrow", 3, 24),
    ("discrete-laplace", "1/64", "wide", 3, 24),
]
SEED = bytes(range(32))
WHOLE = 1 << 256


def pmf_of(law, parameter):
    """Unnormalised or exact weights, the centre, and a reach beyond every tail."""
    number = mpmath.mpf(parameter.numerator) / parameter.denominator
    if law == "skellam":
        # e^(−v) I_k(v), by downward ratios started far out (Miller's method).
        reach = int(24 * mpmath.sqrt(number)) + 200
        ratio = mpmath.mpf(0)
        ratios = []
        for k in range(2 * reach, 0, -1):
            ratio = 1 / (2 * k / number + ratio)
            ratios.append(ratio)
        weights = [mpmath.exp(-number) * mpmath.besseli(0, number)]
        for ratio in reversed(ratios[reach:]):
            weights.append(weights[-1] * ratio)
        return lambda k: weights[abs(k)], 0, reach - 1
    if law == "discrete-gaussian":
        reach = int(24 * mpmath.sqrt(number)) + 50
        return lambda k: mpmath.exp(-k * k / (2 * number)), 0, reach
    if law == "discrete-laplace":
        return lambda k: mpmath.exp(-number * abs(k)), 0, int(260 / number)
    if law == "binomial":
        trials = int(parameter)
        weight = lambda k: mpmath.binomial(trials, trials // 2 + k)  # noqa: E731 - a formula
        return weight, 0, trials // 2
    reach = int(24 * mpmath.sqrt(number)) + 200
    weight = lambda k: number**k / mpmath.factorial(k) if k >= 0 else mpmath.mpf(0)  # noqa: E731 - a formula
    return weight, int(mpmath.floor(number)), reach


def thresholds_of(law, parameter):
    """First outcome and 256-bit thresholds: floors of both tails, cut at 2^-137."""
    with mpmath.workdps(120):
        weight, centre, reach = pmf_of(law, parameter)
        weights = [weight(k) for k in range(centre - reach, centre + reach + 1)]
        total = mpmath.fsum(weights)
        cut = 1 << 119  # 2^256 · 2^-137
        lower, upper = [], []
        running = mpmath.mpf(0)
        for value in weights[:reach]:
            running += value
            lower.append(int(mpmath.floor(running / total * WHOLE)))
        running = mpmath.mpf(0)
        for value in reversed(weights[reach + 1 :]):
            running += value
            upper.append(int(mpmath.floor(running / total * WHOLE)))
    lower = [tail for tail in lower if tail >= cut]
    upper = [tail for tail in upper if tail >= cut]
    return centre - len(lower), lower + [WHOLE - tail for tail in reversed(upper)]


def stream(label, offset, size):
    """Bytes of a stream, from its definition."""
    info = b"dpnoise/v1/bit-source" + bytes([len(label)]) + label
    extracted = hmac.digest(bytes(32), SEED, hashlib.sha256)
    key = hmac.digest(extracted, info + b"\x01", hashlib.sha256)
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    first, last = offset // 16, (offset + size - 1) // 16
    blocks = b"".join(i.to_bytes(16, "big") for i in range(first, last + 1))
    return encryptor.update(blocks)[offset % 16 :][:size]


def draw(first, thresholds, label, coordinate, *, wide):
    """One sample by comparing all 256 bits."""
    refinement = stream(label + b"/refinement", 32 * coordinate, 32)
    words = [int.from_bytes(refinement[i : i + 8], "little") for i in range(0, 32, 8)]
    if wide:
        word = stream(label + b"/cells", 4 * coordinate, 4)
        uniform = int.from_bytes(word, "little") >> 12
        uniform = (uniform << 44) | (words[0] >> 20)
    else:
        word = stream(label + b"/cells", 2 * coordinate, 2)
        uniform = int.from_bytes(word, "little")
        uniform = (uniform << 48) | (words[0] >> 16)
    for word in words[1:]:
        uniform = (uniform << 64) | word
    return first + bisect_right(thresholds, uniform)


def vectors():
    """All cases with their answers."""
    answers = []
    for law, text, label, start, count in CASES:
        first, thresholds = thresholds_of(law, Fraction(text))
        wide = len(thresholds) >= 12_000
        samples = [
            draw(first, thresholds, label.encode(), start + i, wide=wide)
            for i in range(count)
        ]
        packed = b"".join(t.to_bytes(32, "big") for t in thresholds)
        answers.append(
            {
                "law": law,
                "parameter": text,
                "label": label,
                "start": start,
                "first": first,
                "num_thresholds": len(thresholds),
                "thresholds_sha256": hashlib.sha256(packed).hexdigest(),
                "samples": samples,
            }
        )
    return {
        "kind": "dpnoise/v1/inversion-table",
        "source": "generate.py",
        "seed": SEED.hex(),
        "cases": answers,
    }


if __name__ == "__main__":
    content = vectors()
    # One line per case: readable, and a difference shows which case changed.
    lines = ",\n  ".join(json.dumps(case) for case in content.pop("cases"))
    head = json.dumps(content, indent=1).removesuffix("\n}")
    PATH.write_text(f'{head},\n "cases": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
