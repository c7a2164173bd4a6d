"""Proofs of the inequalities of PROTOCOL §3.2, §5.4 and §11.2, by z3.

Each claim is a situation that must be impossible, for all integers in it: z3 looks for
an example and must find none.  Beside it stand situations that must be possible: that
sessions exist at all, and that without the rule in question things do go wrong.

Run by `make models`.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    secrets,
    noise,
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
