"""Proofs of inequalities, by z3: PROTOCOL §3.2, §3.5, §5.4, §11.2, and privacy proofs.

Those of the theorems on paper are named as in docs/security-proofs.md; the rules of
`dpnoise` are those of the module named.

Each claim is a situation that must be impossible, for all integers in it: z3 looks for
an example and must find none.  Beside it stand situations that must be possible: that
sessions exist at all, and that without the rule in question things do go wrong.

Run by `make models`.
"""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import z3

PLACES = range(5, 17)
"""Sizes of the rings that are proven, for every pattern of living and corrupt clients
at once."""


@dataclass(frozen=True)
class Claim:
    """One formula.

    Attributes:
        name: What is claimed.
        situation: The counter-example that is looked for, or the example.
        is_possible: Whether there must be one.
    """

    name: str
    situation: z3.BoolRef
    is_possible: bool = False


def quorums() -> Iterator[Claim]:
    """R5.2-7: with 2t > n + c two quorums share an honest client, which signs once."""
    n, c, t, first, second, both = z3.Ints("n c t first second both")
    two_quorums = z3.And(
        n >= 2,
        c >= 0,
        c < n,
        t <= n,
        first >= t,
        second >= t,
        first <= n,
        second <= n,
        both >= first + second - n,
        both >= 0,
    )
    only_liars = both <= c
    yield Claim(
        "two quorums share an honest client",
        z3.And(two_quorums, 2 * t > n + c, only_liars),
    )
    yield Claim(
        "... and with 2t = n + c they need not",
        z3.And(two_quorums, 2 * t == n + c, only_liars),
        is_possible=True,
    )


def parameters() -> Iterator[Claim]:
    """R3.2-5 to R3.2-8 together."""
    smallest, largest, t, survivors = z3.Ints("min_clients max_clients t min_survivors")
    dropouts, losses, c, n = z3.Ints("max_dropouts max_losses c n")
    common = z3.And(
        2 <= smallest,
        smallest <= largest,
        t >= 2,
        c >= 0,
        t <= survivors,
        survivors <= smallest,
        survivors >= c + 2,
        dropouts >= 0,
        dropouts <= losses,
        losses <= largest - t,
    )
    malicious = z3.And(common, 2 * t > largest + c)
    roster = z3.And(smallest <= n, n <= largest)
    yield Claim(
        "some complete, honest-curious session exists", common, is_possible=True
    )
    yield Claim("some malicious-server session exists", malicious, is_possible=True)
    yield Claim(
        "R3.2-8 gives R5.2-7 for every roster in range",
        z3.And(malicious, roster, 2 * t <= n + c),
    )
    yield Claim(
        "R3.2-8 gives t >= c + 1: colluders alone rebuild nothing",
        z3.And(malicious, t < c + 1),
    )
    yield Claim(
        "R3.2-5 leaves an honest client beside any other one",
        z3.And(common, survivors - c - 1 < 1),
    )
    yield Claim(
        "t honest clients of a full roster can finish after max_losses",
        z3.And(common, largest - losses < t),
    )
    yield Claim(
        "R3.2-8 demands more than half of the honest clients for any quorum",
        z3.And(malicious, roster, 2 * (t - c) <= n - c),
    )


def several_rosters() -> Iterator[Claim]:
    """Lemma 1' and Theorem 2: several rosters, or several U2, under one session."""
    enrolled, corrupt, t = z3.Ints("N c_N t")
    first, second, both = z3.Ints("first second both")
    two_quorums = z3.And(
        corrupt >= 0,
        t >= 1,
        t <= first,
        t <= second,
        first <= enrolled,
        second <= enrolled,
        both >= first + second - enrolled,
        both >= 0,
    )
    yield Claim(
        "2t > N + c_N: quorums over any two rosters share an honest client",
        z3.And(two_quorums, 2 * t > enrolled + corrupt, both <= corrupt),
    )
    yield Claim(
        "... and with 2t = N + c_N they need not",
        z3.And(two_quorums, 2 * t == enrolled + corrupt, both <= corrupt),
        is_possible=True,
    )
    n, c, signers, share_holders = z3.Ints("n c signers share_holders")
    # The honest signers of one ctx3, and another U2 that holds none of them.
    apart = z3.And(
        c >= 0,
        c < n,
        t <= n,
        signers >= t - c,
        share_holders <= n - signers,
        2 * t > n + c,
    )
    yield Claim(
        "another U2 of t members holds an honest signer (R5.3-5)",
        z3.And(apart, share_holders >= t),
    )
    yield Claim(
        "... and with t - 1 members it need not",
        z3.And(apart, t >= 2, share_holders >= t - 1),
        is_possible=True,
    )
    yield Claim(
        "2t > n + c gives t > c: without an honest answer no self mask is rebuilt",
        z3.And(n >= 1, c >= 0, t <= n, 2 * t > n + c, t <= c),
    )


def secrets() -> Iterator[Claim]:
    """R5.5-1: t shares of both secrets of a client never lie with the server."""
    n, c, t, mask, seed = z3.Ints("n c t mask seed")
    # Every honest holder reveals one kind; a corrupt one may reveal both.
    shares = z3.And(
        n >= 2, 0 <= c, c < n, t <= n, mask >= 0, seed >= 0, mask + seed <= n - c
    )
    both = z3.And(mask + c >= t, seed + c >= t)
    yield Claim(
        "2t > n + c: one kind of share for each holder suffices",
        z3.And(shares, 2 * t > n + c, both),
    )
    yield Claim(
        "... and t = c + 1 does not, against a server that lies",
        z3.And(shares, c >= 1, t == c + 1, n >= t + 1, both),
        is_possible=True,
    )


def noise() -> Iterator[Claim]:
    """Noise is counted from what any accepted U3 must hold (dpnoise, noise rule)."""
    n, m, c, lost, allowed, living = z3.Ints("n m c lost allowed living")
    accepted = z3.And(
        n >= m,
        m >= c + 2,
        c >= 0,
        0 <= allowed,
        allowed <= n - m,
        lost >= 0,
        lost <= allowed,
        living == n - lost,
    )
    yield Claim(
        "honest shares beside one's own number at least n - D - c - 1 >= 1",
        z3.And(
            accepted, z3.Or(living - c - 1 < n - allowed - c - 1, living - c - 1 < 1)
        ),
    )


def ladder() -> Iterator[Claim]:
    """Theorem 3, step 4: what honest clients keep of their noise adds up to v."""
    needed, upload, unit, others = z3.Reals("v upload unit others")
    lost, most, taken = z3.Reals("d D r")
    # others: n - c' - 1, the honest clients beside one's own before any loss.
    shares = z3.And(
        needed > 0,
        0 <= lost,
        lost <= most,
        others - most >= 1,
        upload >= needed / (others - most),
    )
    yield Claim(
        "an upload is never below what must be kept after d <= D losses",
        z3.And(shares, upload < needed / (others - lost)),
    )
    yield Claim(
        "what the others keep after d losses adds up to v",
        z3.And(
            shares,
            unit > 0,
            taken >= 0,
            taken * unit <= upload - needed / (others - lost),
            (upload - taken * unit) * (others - lost) < needed,
        ),
    )
    base, share, rungs = z3.Reals("base share rungs")
    yield Claim(
        "base and layers are at least a share, whatever rounding upwards adds",
        z3.And(
            rungs >= 1,
            unit >= (share - base) / rungs,
            base + unit * rungs < share,
        ),
    )


def single_selection() -> Iterator[Claim]:
    """One Bernoulli selection: the direction that is dominated."""
    rate, t = z3.Reals("q t")
    rest = 1 - t * (1 - rate)
    yield Claim(
        "t q / a >= 1 + (t - 1) / q where a > 0",
        z3.And(
            rate > 0,
            rate <= 1,
            t >= 1,
            rest > 0,
            t * rate * rate < rest * (rate + t - 1),
        ),
    )
    yield Claim("a <= q", z3.And(rate > 0, rate <= 1, t >= 1, rest > rate))


def unit_shift() -> Iterator[Claim]:
    """`accounting/tradeoff/unit_shift`, rules 5 and 6: the Riccati comparisons."""
    s, t, x = z3.Reals("s t x")
    d = t * s + t + 1
    # rho' = left / below, and 1 - (2t+1) rho / v - rho^2 = (1 - s)^2 / 2D, where
    # v = 2 rho D / (1 - s^2) has been inserted.
    inside = z3.And(t >= 0, s > 0, s < 1)
    below = 8 * s * s * d + (6 * t * s + 2 * t + 2) * (1 - s * s)
    yield Claim(
        "rule 5: the right side of the equation at rho",
        z3.And(inside, 2 * d - (2 * t + 1) * (1 + s) != 1 - s),
    )
    yield Claim(
        "rule 5: rho is a strict supersolution",
        z3.And(inside, 2 * d * (1 - s * s) ** 2 <= (1 - s) ** 2 * below),
    )
    yield Claim(
        "rule 5: by a margin of 4 s (1 - s)",
        z3.And(inside, 2 * d * (1 + s) ** 2 - below != 4 * s * (1 - s)),
    )
    bound = 1 - x / 2 - x * x / 8 - x * x * x / 4
    slope = -z3.Q(1, 2) - x / 4 - z3.Q(3, 4) * x * x
    yield Claim(
        "rule 6: a subsolution for v = 1/x >= 4",
        z3.And(x > 0, x <= z3.Q(1, 4), -x * x * slope > 1 - x * bound - bound * bound),
    )
    low, high = _bessel_four()
    yield Claim(
        "rule 6: it begins below I_1(4) / I_0(4)",
        z3.And(x == z3.Q(1, 4), bound * _rational(high) >= _rational(low)),
    )


def _bessel_four() -> tuple[Fraction, Fraction]:
    """Return a lower bound on I_1(4) and an upper bound on I_0(4)."""
    terms = 30
    first = sum(
        Fraction(2 * 4**k, math.factorial(k) * math.factorial(k + 1))
        for k in range(terms)
    )
    zeroth = sum(Fraction(4**k, math.factorial(k) ** 2) for k in range(terms))
    # Terms fall by more than a half from here on.
    return first, zeroth + 2 * Fraction(4**terms, math.factorial(terms) ** 2)


def _rational(number: Fraction) -> z3.RatNumRef:
    return z3.Q(number.numerator, number.denominator)


def rings() -> Iterator[Claim]:
    """§11.2: the cut test, for every ring of a size, losses and corruption at once."""
    for places, reach in product(PLACES, (1, 2, 3, 4)):
        if 2 * reach > places - 2:
            continue
        for corrupt in range(min(places - 2, 2 * reach + 1)):
            yield _no_window_no_cut(places, reach, corrupt)
            yield _window_cuts(places, reach, corrupt)


def _ring(places: int) -> tuple[list[z3.BoolRef], list[z3.BoolRef]]:
    alive = [z3.Bool(f"alive{i}") for i in range(places)]
    bad = [z3.Bool(f"bad{i}") for i in range(places)]
    return alive, bad


def _count(bits: list[z3.BoolRef]) -> z3.ArithRef:
    return z3.Sum([z3.If(bit, 1, 0) for bit in bits])


def _pairs(
    places: int, reach: int
) -> Iterator[tuple[list[int], list[int], list[int], list[int]]]:
    """Disjoint windows with a place on both arcs between them: (w, arc, w', arc')."""
    for first in range(places):
        for second in range(first + reach + 1, places):
            windows = [
                [(start + step) % places for step in range(reach)]
                for start in (first, second)
            ]
            near = list(range(first + reach, second))
            far = [place % places for place in range(second + reach, places + first)]
            if near and far:
                yield windows[0], near, windows[1], far


def _no_window_no_cut(places: int, reach: int, corrupt: int) -> Claim:
    """If every pair of windows holds more than c living, nothing cuts the ring."""
    alive, bad = _ring(places)
    side = [z3.Bool(f"side{i}") for i in range(places)]
    honest = [z3.And(alive[i], z3.Not(bad[i])) for i in range(places)]
    left = [z3.And(honest[i], side[i]) for i in range(places)]
    right = [z3.And(honest[i], z3.Not(side[i])) for i in range(places)]
    no_edge = [
        z3.Not(z3.Or(z3.And(left[i], right[j]), z3.And(right[i], left[j])))
        for i in range(places)
        for step in range(1, reach + 1)
        for j in [(i + step) % places]
    ]
    passes = [
        _count([alive[i] for i in (*first, *second)]) > corrupt
        for first, _, second, _ in _pairs(places, reach)
    ]
    return Claim(
        f"ring of {places}, degree {2 * reach}, c = {corrupt}: what passes is not cut",
        z3.And(
            *passes,
            *(z3.Implies(bad[i], alive[i]) for i in range(places)),
            _count(bad) <= corrupt,
            z3.Or(*left),
            z3.Or(*right),
            *no_edge,
        ),
    )


def _window_cuts(places: int, reach: int, corrupt: int) -> Claim:
    """Two windows with at most c living and a living one on both arcs: c can cut."""
    alive, _ = _ring(places)
    weak = [
        z3.And(
            _count([alive[i] for i in (*first, *second)]) <= corrupt,
            z3.Or(*(alive[i] for i in near)),
            z3.Or(*(alive[i] for i in far)),
            # The living of both windows are corrupt: is an edge left between the arcs?
            z3.Or(
                *(
                    z3.And(alive[i], alive[j])
                    for i in near
                    for j in far
                    if min((i - j) % places, (j - i) % places) <= reach
                )
            ),
        )
        for first, near, second, far in _pairs(places, reach)
    ]
    return Claim(
        f"ring of {places}, degree {2 * reach}, c = {corrupt}: what fails can be cut",
        z3.Or(*weak) if weak else z3.Or(),
    )


SUBJECTS: tuple[Callable[[], Iterator[Claim]], ...] = (
    quorums,
    parameters,
    several_rosters,
    secrets,
    noise,
    ladder,
    single_selection,
    unit_shift,
    rings,
)


def _written(model: z3.ModelRef) -> str:
    return ", ".join(sorted(f"{name} = {model[name]}" for name in model))


def main() -> int:
    """Check every claim; return 1 if one is not as it must be."""
    wrong = 0
    for subject in SUBJECTS:
        claims = list(subject())
        title = (subject.__doc__ or "").splitlines()[0]
        print(f"{title}\n  {len(claims)} formulas")
        for claim in claims:
            solver = z3.Solver()
            solver.add(claim.situation)
            answer = solver.check()
            as_said = answer == (z3.sat if claim.is_possible else z3.unsat)
            wrong += not as_said
            example = f"; e.g. {_written(solver.model())}" if answer == z3.sat else ""
            if not as_said:
                print(f"  WRONG: {claim.name}: {answer}{example}")
            elif subject is not rings:  # they would fill pages
                print(f"  {claim.name}{example}")
    print("all as they must be" if not wrong else f"{wrong} formulas are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
