"""Bounds on a graph whose edges clients draw, computed before they draw.

Each of n clients draws k others, uniformly and without the server.  A drawn client
holds a share of the drawer's secrets, and the two share masks. c of all collude with
the server, D drop out, and the server may choose the dropouts after it has seen the
graph.  Of the three chances for the ring, E1 and E3 are those of
`secagg.protocol.graphs.ring_bounds`, since each set of holders is a uniform choice of k
among n - 1.  E2 becomes

    some s honest survivors have no edge to the other honest survivors

for any s from a smallest size on, up to half of them.  The threshold covers smaller
sets.  Their members cannot be unmasked while it exceeds the shares that the set and the
colluders hold together.

Corruption must be fixed before the edges are drawn.  The argument is an addition of
this protocol and unreviewed.  Rounding is below 1e-12 for n <= 60.

Source: A union bound over the set and over the dropouts.  Members of the set draw from
it, the colluders and the dropouts; all other survivors draw around it.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.protocol.graphs.ring_bounds import bits_of, log_corrupt_holders

_Floats = npt.NDArray[np.floating[Any]]
# A cohort's smallest and largest roster, for one or two tasks at a time.
_KNOWN_TABLES: Final = 4


@dataclass(frozen=True, slots=True)
class EdgeBound:
    """What an adversary can do to drawn edges, except with a demanded probability.

    Attributes:
        corrupt_holders: Most colluders among the holders of any honest client.
        set_apart: Most honest survivors that have no edge to the others.  A server that
            lies can omit as many from the sum without being noticed.
        cut_bits: -log2 of the chance that more stand apart.
    """

    corrupt_holders: int
    set_apart: int
    cut_bits: float

    @property
    def least_threshold(self) -> int:
        """The smallest t at which no secret of a set apart can be rebuilt.

        The holders of such a secret are at most s - 1 of the set and the corrupt ones.
        """
        return self.corrupt_holders + max(1, self.set_apart)


def judge_edges(
    *, clients: int, degree: int, colluders: int, losses: int, demanded_bits: float
) -> EdgeBound:
    """Compute the bounds of a graph of drawn edges.

    Args:
        clients: n.
        degree: k, how many others each client draws.
        colluders: c, of all clients.
        losses: D, of all clients, chosen by the adversary.
        demanded_bits: Each of the two failure probabilities is at most
            2^-demanded_bits.
    """

    def holds(corrupt: int) -> bool:
        log_bound = log_corrupt_holders(
            clients=clients, degree=degree, threshold=corrupt, colluders=colluders
        )
        return bits_of(log_bound) >= demanded_bits

    logs = log_set_apart(
        clients=clients, degree=degree, colluders=colluders, losses=losses
    )
    # Entry s bounds sets of s or more, so that what is met at s leaves s - 1.
    met = bisect_left(logs, x=True, key=lambda log: bits_of(log) >= demanded_bits)
    return EdgeBound(
        corrupt_holders=bisect_left(range(1, degree + 1), x=True, key=holds),
        set_apart=max(0, met - 1),
        cut_bits=bits_of(float(logs[met])),
    )


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
            survivors; shape (largest s + 2,).  Entry 0 equals entry 1 and the last one
            is -inf.  Values above 0 bound nothing.
    """
    honest = clients - colluders
    largest = max(0, (honest - losses) // 2)
    if largest == 0:
        return np.full(2, -math.inf)  # no client is left to stand apart
    if not 0 < degree < clients:
        return np.append(np.zeros(largest + 1), -math.inf)
    sizes = np.arange(1, largest + 1)
    rest = honest - losses - sizes
    # Entry j: all k drawn ones are among some n - 1 - j of the n - 1 others.
    others = np.arange(clients - 1, 0, -1)
    with np.errstate(divide="ignore"):  # fewer than k others cannot contain them
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
    # Sum from the largest sizes down, so that small terms are not lost to rounding.
    or_more = np.logaddexp.accumulate(np.append(exactly, -math.inf)[::-1])[::-1]
    return np.concatenate((or_more[:1], or_more))


@lru_cache(maxsize=_KNOWN_TABLES)
def _log_factorials(largest: int) -> _Floats:
    """Return ln 0! to ln largest!, shape (largest + 1,)."""
    table = np.fromiter(map(math.lgamma, range(1, largest + 2)), float, largest + 1)
    table.flags.writeable = False
    return table
