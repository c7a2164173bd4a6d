"""What can be said of a graph whose edges the clients draw, before they draw them.

n clients draw k others each, uniformly and without the server; who is drawn holds a
share of the drawer's secrets, and masks join the two.  c of all collude with the
server, D are lost, and the server may choose who is lost after it has seen the graph.
Of the three chances for the ring, E1 and E3 are those of `secagg.ring_odds`, since each
set of holders is a uniform choice of k among n - 1.  E2 becomes

    some s honest survivors have no edge to the other honest survivors

for any s from a smallest size on, up to half of them.  Smaller sets are left to the
threshold: their members cannot be unmasked while it exceeds the shares that the set and
the colluders hold together (`secagg.graph_choice`).

Corruption has to be settled before the edges are drawn.  The argument is ours and
unreviewed.  Rounding is
below 1e-12 for n <= 60.

Source:
    A union bound over the set and over the losses.  Members of the set draw from it,
    the colluders and the lost ones; all other survivors draw around it.
"""

import math
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["log_set_apart"]

_Floats = npt.NDArray[np.floating[Any]]
# A cohort's smallest and largest roster, for a task or two at a time.
_KNOWN_TABLES: Final = 4


def log_set_apart(
    *, clients: int, degree: int, colluders: int, losses: int
) -> npt.NDArray[np.float64]:
    """Return ln of the chances that a set of honest survivors is cut off, by its size.

    Args:
        clients: n.
        degree: k, how many others each client draws.
        colluders: c, of all clients.
        losses: D, of all clients, chosen by the adversary.

    Returns:
        Entry s bounds the chance of a set of s *or more*, up to half of the honest
        survivors; shape (largest s + 2,), entry 0 being that of entry 1 and the last
        one -inf.  Values above 0 promise nothing.
    """
    honest = clients - colluders
    largest = max(0, (honest - losses) // 2)
    if largest == 0:
        return np.full(2, -math.inf)  # nobody is left to stand apart
    if not 0 < degree < clients:
        return np.append(np.zeros(largest + 1), -math.inf)
    sizes = np.arange(1, largest + 1)
    rest = honest - losses - sizes
    # Entry j: all k drawn ones are among some n - 1 - j of the n - 1 others.
    others = np.arange(clients - 1, 0, -1)
    with np.errstate(divide="ignore"):  # among fewer than k they cannot be
        among = np.cumsum(np.log(np.maximum(others - degree, 0) / others))
    among = np.append(0.0, among)
    factorials = _log_factorials(clients)
    exactly = (
        # The set and the losses: honest! / (s! losses! rest!) choices.
        factorials[honest]
        - factorials[sizes]
        - factorials[losses]
        - factorials[rest]
        + sizes * among[clients - sizes - colluders - losses]
        + rest * among[sizes]
    )
    # From the largest sizes down, so that small terms are not lost beside large ones.
    or_more = np.logaddexp.accumulate(np.append(exactly, -math.inf)[::-1])[::-1]
    return np.concatenate((or_more[:1], or_more))


@lru_cache(maxsize=_KNOWN_TABLES)
def _log_factorials(largest: int) -> _Floats:
    """Return ln 0! to ln largest!, shape (largest + 1,)."""
    table = np.fromiter(map(math.lgamma, range(1, largest + 2)), float, largest + 1)
    table.flags.writeable = False
    return table
