"""Exclusion of clients from later attempts, decided from complaints.

A complaint puts a pair in dispute: no other client can tell which of the two lies. The
rule assumes at most c corrupt clients, and honest clients that complain only about
corrupt ones:

* A client in dispute with more than c others is corrupt, because one of these is
  honest.
* Of every other pair one client is corrupt.  Excluding both ends of *all* pairs would
  let c colluders evict about c^2 honest clients.  A maximal matching excludes disjoint
  pairs only, each with a corrupt client in it: at most c honest clients are excluded.

Rule 1: an excluded client stays excluded for the rest of the task.  Disputes only add
        pairs, so that c colluders cost c attempts in all and not in every step.
Rule 2: a missing message is not a dispute.
Rule 3: if more clients must be corrupt than was stated, the least number that may
        explain the disputes replaces c. The accuser of two corrupt dealers is thus not
        corrupt because one was expected.

Source: PROTOCOL §5.7.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet


def excluded(
    complaints: Iterable[tuple[str, str]],
    *,
    colluders: int,
    already: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Return the clients that are excluded from later attempts of a task (R5-4).

    Args:
        complaints: (accuser, accused) by identity, of all sessions of the task.
        colluders: c, as the task states it.
        already: Clients excluded before; they stay excluded, and are in no new pair.

    Returns:
        All excluded identities, `already` among them.
    """
    pairs = sorted({pair for pair in complaints if pair[0] != pair[1]})
    opponents: dict[str, set[str]] = {}
    for accuser, accused in pairs:
        opponents.setdefault(accuser, set()).add(accused)
        opponents.setdefault(accused, set()).add(accuser)
    # Each of disjoint pairs has a corrupt client.  The loop ends at no smaller bound
    # than their number: removing a client from a greedy matching shortens it by at most
    # one pair.
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
    """Return disjoint pairs of the remaining clients, as many as can be added.

    Greedy in a fixed order: the same disputes have the same result after a restart.
    """
    taken, matched = set(out), []
    for pair in pairs:
        if taken.isdisjoint(pair):
            taken.update(pair)
            matched.append(pair)
    return matched
