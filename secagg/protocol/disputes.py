"""Who is left out of the next attempts, given who complained about whom.

A complaint puts a pair in dispute: nobody else can tell which of the two lies.  With at
most c corrupt clients, and honest ones that complain about corrupt ones only,

* whoever is in dispute with more than c others is corrupt: one of them is honest;
* of every other pair one is corrupt.  Leaving out both ends of *all* pairs would let c
  colluders evict about c^2 honest clients.  A maximal matching leaves out disjoint
  pairs only, each with a corrupt client in it: at most c honest ones are lost.

Rule 1: who is left out stays out for the rest of the task: disputes only ever add
        pairs, so that c colluders cost c attempts in all and not in every step.
Rule 2: silence is no dispute.
Rule 3: where there must be more corrupt clients than was stated, the least number that
        may explain the disputes stands for c: who accuses two garbage dealers is not
        corrupt because one was expected.

Source:
    PROTOCOL §5.7.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet


def left_out(
    complaints: Iterable[tuple[str, str]],
    *,
    colluders: int,
    already: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Return who takes no part in the next attempts of a task (R5-4).

    Args:
        complaints: (accuser, accused) by identity, of all sessions of the task.
        colluders: c, as the task states it.
        already: Who was left out before; stays out, and is in no new pair.

    Returns:
        All identities that are left out, `already` among them.
    """
    pairs = sorted({pair for pair in complaints if pair[0] != pair[1]})
    opponents: dict[str, set[str]] = {}
    for accuser, accused in pairs:
        opponents.setdefault(accuser, set()).add(accused)
        opponents.setdefault(accused, set()).add(accuser)
    # Each of disjoint pairs has a corrupt client.  The loop ends at no smaller bound
    # than their number: whoever is taken out of a greedy matching shortens it by one
    # pair at most.
    bound = colluders
    while True:
        proven = {v for v, others in opponents.items() if len(others) > bound} - already
        matched = _matching(pairs, already | proven)
        if len(proven) + len(matched) <= bound:
            return already | proven | {name for pair in matched for name in pair}
        bound += 1  # more corrupt clients than that, or the proof would hold


def _matching(
    pairs: Sequence[tuple[str, str]], out: AbstractSet[str]
) -> list[tuple[str, str]]:
    """Return disjoint pairs of those who are in, until none is left to add.

    Greedy in a fixed order: the same disputes give the same answer after a restart.
    """
    taken, matched = set(out), []
    for pair in pairs:
        if taken.isdisjoint(pair):
            taken.update(pair)
            matched.append(pair)
    return matched
