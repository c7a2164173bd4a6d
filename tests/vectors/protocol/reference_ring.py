"""§11.2, slowly: the numbers of the ring, in fractions and by their definitions."""

import itertools
import math
from fractions import Fraction

import reference as ref


def bits_of(chance: Fraction) -> float:
    """Return -log2, however small the chance is."""
    if chance == 0:
        return math.inf
    return math.log2(chance.denominator) - math.log2(chance.numerator)


def corrupt_holders(count: int, degree: int, threshold: int, colluders: int) -> float:
    """Bits of E1(n)."""
    if colluders < threshold:
        return math.inf
    ways = sum(
        math.comb(colluders, hit) * math.comb(count - 1 - colluders, degree - hit)
        for hit in range(threshold, min(degree, colluders) + 1)
        if degree - hit <= count - 1 - colluders
    )
    chance = Fraction(ways, math.comb(count - 1, degree))
    return bits_of((count - colluders) * chance)


def pairs_of_windows(count: int, degree: int) -> list[tuple[int, int]]:
    half = degree // 2
    return [
        (i, j)
        for i, j in itertools.combinations(range(count), 2)
        if half < j - i < count - half
    ]


def window(alive: list[bool], start: int, degree: int) -> int:
    """w_i: members of U3 in the window that starts there."""
    return sum(alive[(start + step) % len(alive)] for step in range(degree // 2))


def cut(alive: list[bool], degree: int, colluders: int) -> float:
    """Bits of p_cut; infinite where U3 is uncuttable."""
    count, living = len(alive), sum(alive)
    pairs = pairs_of_windows(count, degree)
    held = [window(alive, start, degree) for start in range(count)]
    threatened = [
        (i, j)
        for i, j in pairs
        if alive[i - 1] and alive[j - 1] and held[i] + held[j] <= colluders
    ]
    if not threatened:
        return math.inf
    chance = Fraction(0)
    for i, j in pairs:
        both = held[i] + held[j]
        if living <= colluders:
            chance += 1
        elif both <= colluders:
            chance += Fraction(
                math.comb(living - both, colluders - both),
                math.comb(living, colluders),
            )
    return bits_of(chance)


def is_safe(
    rules: ref.Parameters, count: int, survivors: set[int], margin: float
) -> bool:
    """R5.3-9 and R5.5-7; the margin is what the server demands beyond a client."""
    demanded = rules.graph_bits + 1 + margin
    alive = [place in survivors for place in range(count)]
    holders = corrupt_holders(count, rules.degree, rules.threshold, rules.colluders)
    return holders >= demanded and cut(alive, rules.degree, rules.colluders) >= demanded
