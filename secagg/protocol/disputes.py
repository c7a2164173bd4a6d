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

Source:
    PROTOCOL §5.7.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

__all__ = ["left_out"]


def left_out(
    complaints: Iterable[tuple[str, str]],
    *,
    colluders: int,
    already: AbstractSet[str] = frozenset(),
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
    out = set(already)
    out.update(name for name, others in opponents.items() if len(others) > colluders)
    # Greedy in a fixed order: the same disputes give the same answer after a restart.
    for accuser, accused in pairs:
        if accuser not in out and accused not in out:
            out.update((accuser, accused))
    return frozenset(out)
