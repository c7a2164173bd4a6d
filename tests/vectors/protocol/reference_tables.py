"""§14.8 and §6.7: tables of integer laws, their hashes, and draws, slowly.

Rule 1: weights are pairs of integers, a lower and an upper end; a floor that is not the
        same for both ends is computed again with twice the bits.
Rule 2: a draw compares one number of 256 bits with all thresholds.
"""

import decimal
import functools
import hashlib
import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from reference_keys import expand, extract

WHOLE = 2**256
CUT = 2**119  # 2^-137 of the whole
WIDE_FROM = 12_000
MOST_BITS = 2000
LARGEST = 2**28  # variance of one table
EXACT = 1024  # half the coins of a binomial table whose weights are whole

Ends = tuple[int, int]
Weights = tuple[list[Ends], int]
"""Weights of 0, 1, 2, … of a law that is symmetric, and a bound of all beyond them."""


def stream(key: bytes, label: bytes, offset: int, size: int) -> bytes:
    """Bytes of a noise stream."""
    info = b"dpnoise/v1/bit-source" + bytes([len(label)]) + label
    block_key = expand(extract(bytes(32), key), info, 32)
    encryptor = Cipher(algorithms.AES(block_key), modes.ECB()).encryptor()
    first, last = offset // 16, -(-(offset + size) // 16)
    counters = b"".join(i.to_bytes(16, "big") for i in range(first, last))
    return encryptor.update(counters)[offset % 16 :][:size]


def little(octets: bytes) -> int:
    return int.from_bytes(octets, "little")


class Sampler(Protocol):
    """What a client adds draws of."""

    def hash(self) -> bytes: ...

    def draw(self, key: bytes, label: bytes, place: int) -> int: ...


@dataclass(frozen=True)
class Table:
    """R14.8-1."""

    law: str
    parameter: Fraction
    first: int
    thresholds: list[int]

    def packed(self) -> bytes:
        return b"".join(number.to_bytes(32, "big") for number in self.thresholds)

    def hash(self) -> bytes:
        """R14.8-2."""
        text = str(self.parameter)  # an integer has no "/1" here
        state = hashlib.sha256(b"dpnoise/v1/inversion-table")
        first = self.first.to_bytes(8, "big", signed=True)
        for part in (self.law.encode(), text.encode(), first, self.packed()):
            state.update(len(part).to_bytes(8, "big") + part)
        return state.digest()

    def uniform(self, key: bytes, label: bytes, place: int) -> int:
        """U_j of §6.7."""
        rest = stream(key, label + b"/refinement", 32 * place, 32)
        words = [little(rest[at : at + 8]) for at in range(0, 32, 8)]
        wide = len(self.thresholds) >= WIDE_FROM
        size, bits = (4, 20) if wide else (2, 16)
        cell = little(stream(key, label + b"/cells", size * place, size))
        leading = cell >> (8 * size - bits)
        number = leading << (64 - bits) | words[0] >> bits
        for word in words[1:]:
            number = number << 64 | word
        return number

    def draw(self, key: bytes, label: bytes, place: int) -> int:
        number = self.uniform(key, label, place)
        return self.first + bisect_right(self.thresholds, number)


@dataclass(frozen=True)
class Sum:
    """R14.8-4."""

    tables: list[Table]

    def hash(self) -> bytes:
        hashes = b"".join(table.hash() for table in self.tables)
        return hashlib.sha256(b"dpnoise/v1/added-draws" + hashes).digest()

    def draw(self, key: bytes, label: bytes, place: int) -> int:
        return sum(
            table.draw(key, label + b"/" + bytes([number]), place)
            for number, table in enumerate(self.tables)
        )


def skellam(variance: Fraction, precision: int) -> Weights:
    """The steps of §14.8, by their numbers."""
    one = 2**precision
    root = math.sqrt(variance)
    cells = math.ceil(21.07 * root + 148) + 8  # 2
    top, under = variance.as_integer_ratio()
    low, high = 0, one
    ratios: list[Ends] = []
    for k in range(cells + math.ceil(root / 4) + 8, 0, -1):
        # 1: 2k/u + r, in units of 2^-precision, down and up
        least = (2 * k * under << precision) // top + low
        most = -(-(2 * k * under << precision) // top) + high
        low = one * one // most
        high = min(one, one * one // least + 1) if least else one
        if k <= cells:
            ratios.append((low, high))
    weights: list[Ends] = [(one, one)]
    for lower, upper in reversed(ratios):  # 3
        before = weights[-1]
        weights.append(
            (before[0] * lower >> precision, (before[1] * upper >> precision) + 1)
        )
    last = ratios[0][1]
    return weights, weights[-1][1] * last // (one - last) + 1


def binomial(variance: Fraction, precision: int) -> Weights:
    half, one = int(2 * variance), 2**precision
    weights: list[Ends]
    if half <= EXACT:  # tails are multiples of 2^-2·half: ends would never agree
        exact = [math.comb(2 * half, half + k) for k in range(half + 1)]
        return [(weight, weight) for weight in exact], 0
    weights = [(one, one)]
    for k in range(half):
        low, high = weights[-1]
        top, under = half - k, half + k + 1
        weights.append((low * top // under, -(-high * top // under)))
        if high < 2 ** (precision - 340):
            # Weights fall: all others are fewer than this many of the last one.
            return weights, weights[-1][1] * half
    return weights, 0


def discrete_gaussian(variance: Fraction, precision: int) -> Weights:
    one = 2**precision
    digits = decimal.Context(prec=precision // 3 + 30)
    top, under = variance.as_integer_ratio()
    weights: list[Ends] = [(one, one)]
    k = 0
    while weights[-1][1] > 2 ** (precision - 340):
        k += 1
        exponent = digits.divide(decimal.Decimal(-k * k * under), 2 * top)
        value = int(digits.multiply(digits.exp(exponent), one))
        weights.append((max(0, value - 1), value + 2))
    return weights, weights[-1][1] * (k + 2 * math.ceil(variance))


LAWS: dict[str, Callable[[Fraction, int], Weights]] = {
    "skellam": skellam,
    "binomial": binomial,
    "discrete-gaussian": discrete_gaussian,
}


@functools.cache
def table(law: str, variance: Fraction) -> Table:
    precision = 384
    while (tails := _tails(LAWS[law](variance, precision))) is None:
        precision *= 2
        if precision > MOST_BITS:
            raise AssertionError(law, variance)
    parameter = 4 * variance if law == "binomial" else variance
    right = [WHOLE - tail for tail in tails]
    return Table(law, parameter, -len(tails), [*reversed(tails), *right])


def _tails(weights: Weights) -> list[int] | None:
    """⌊2^256·G(k)⌋ for k = 0, 1, …, or None where the ends of one differ."""
    listed, rest = weights
    both = [2 * sum(pair[end] for pair in listed[1:]) for end in (0, 1)]
    least, most = listed[0][0] + both[0], listed[0][1] + both[1] + 2 * rest
    low, high = 0, rest
    tails: list[int] = []
    for k in range(len(listed) - 1, -1, -1):
        upper = high * WHOLE // least
        if upper >= CUT:
            if low * WHOLE // most != upper:
                return None
            tails.append(upper)
        low += listed[k][0]
        high += listed[k][1]
    tails.reverse()
    return tails


def sampler(law: str, variance: Fraction) -> Table | Sum:
    """One table, or for wide draws a sum of them."""
    if variance <= LARGEST:
        return table(law, variance)
    if law == "skellam":
        count = 2
        while variance / count > LARGEST:
            count *= 2
        return Sum([table(law, variance / count)] * count)
    coins = int(4 * variance)
    count = -(-coins // 2**30)
    each, more = divmod(coins // 2, count)
    tables = [table(law, Fraction(2 * each + 2, 4))] * more
    return Sum(tables + [table(law, Fraction(2 * each, 4))] * (count - more))
