"""Failure bounds of a graph before it is drawn: a ring, or edges that clients draw.

On a ring, n clients stand in an order drawn uniformly after the roster is fixed. Each
shares with the k/2 next on either side, and t of these k holders rebuild a secret.  At
most c of all n collude with the server, D drop out.  Three failures are bounded:

    E1  some honest client has t corrupt holders.      Its input is no longer secret.
    E2  Corrupt and lost clients cut the ring in two.  Partial sums are revealed.
    E3  Some client has fewer than t holders left.     The session ends, nothing else.

E1 needs no assumption on dropouts and is required of every session.  E2 and E3 take
dropouts to be random and serve for planning.  When the dropouts are known,
`secagg.protocol.graphs.ring_safety` replaces E2 (PROTOCOL §11).

With drawn edges, each of n clients draws k others, uniformly and without the server.  A
drawn client holds a share of the drawer's secrets, and the two share masks.  The server
may choose the dropouts after it has seen the graph.  E1 and E3 are those of the ring,
since each set of holders is a uniform choice of k among n - 1.  E2 becomes

    some s honest survivors have no edge to the other honest survivors

for any s from a smallest size on, up to half of them.  The threshold covers smaller
sets.  Their members cannot be unmasked while it exceeds the shares that the set and the
colluders hold together.  Corruption must be fixed before the edges are drawn.  The
argument is an addition of this protocol and unreviewed.

Every function returns the natural logarithm of a union bound, which may exceed 0; -inf
means impossible.  All are total: numbers that describe no graph raise no error and
bound nothing.  Rounding is below 1e-12 for n <= 60 and below 1e-8 for n <= 65535.

Rule 1: a hypergeometric tail is summed from its own terms, never taken from 1: 2^-40
        would be lost to rounding.

Source: [Bell20] section 3, with the exact hypergeometric tails.  The ring has two equal
windows where that proof has consecutive nodes.  For drawn edges, a union bound over the
set and over the dropouts.  Members of the set draw from it, the colluders and the
dropouts; all other survivors draw around it.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

# Terms below this part of the sum so far cannot change its last digit, even all of them
# together: they fall beyond the mode, and a tail has at most 2^20 of them.
_NEGLIGIBLE = 2.0**-72


def log_choose(among: int, chosen: int) -> float:
    """Return ln C(among, chosen), -inf where there is no choice."""
    if not 0 <= chosen <= among:
        return -math.inf
    return (
        math.lgamma(among + 1)
        - math.lgamma(chosen + 1)
        - math.lgamma(among - chosen + 1)
    )


# A party needs the same bounds at the offer, at the roster and before it answers.
@lru_cache(maxsize=256)
def log_drawn(hits: range, *, population: int, marked: int, drawn: int) -> float:
    """Return ln P[X in hits], where X counts the marked ones among those drawn.

    Args:
        hits: Consecutive numbers; impossible ones add nothing.
        population: Size of the population, at least `marked` and `drawn`.
        marked: How many of them are marked.
        drawn: How many are drawn, without replacement.
    """
    low = max(hits.start, 0, marked + drawn - population)
    high = min(hits.stop - 1, marked, drawn)
    if low > high:
        return -math.inf
    # The largest term is nearest to the mode; the others follow from it as products.
    mode = (marked + 1) * (drawn + 1) // (population + 2)
    top = min(max(low, mode), high)
    rest = population - marked - drawn
    terms = [1.0]
    for hit in range(top, high):
        term = terms[-1] * (marked - hit) * (drawn - hit)
        terms.append(term / ((hit + 1) * (rest + hit + 1)))
        if terms[-1] < _NEGLIGIBLE:
            break
    falling = 1.0
    for hit in range(top, low, -1):
        falling *= hit * (rest + hit) / ((marked - hit + 1) * (drawn - hit + 1))
        terms.append(falling)
        if falling < _NEGLIGIBLE:
            break
    return (
        math.log(math.fsum(terms))
        + log_choose(marked, top)
        + log_choose(population - marked, drawn - top)
        - log_choose(population, drawn)
    )


# Far above the difference between two libraries' logarithms, and negligible as a bound.
_MARGIN_BITS: Final = 0.01


def bits_of(log_probability: float) -> float:
    """Return -log2 of a bound on a probability.

    Args:
        log_probability: Its natural logarithm; -inf if impossible.

    Returns:
        Bits; inf if impossible, 0 for a bound of 1 or more.
    """
    return max(0.0, -log_probability / math.log(2.0))


def client_demand(graph_bits: int) -> float:
    """Return the bits that a client requires of each of the two chances.

    Together they stay below 2^-graph_bits, the term that is added to delta.
    """
    return graph_bits + 1.0


def server_demand(graph_bits: int) -> float:
    """Return the bits that the server requires of each of the two chances.

    They exceed `client_demand` a little.  Hosts round logarithms differently, and no
    client may refuse what the server has accepted.
    """
    return client_demand(graph_bits) + _MARGIN_BITS


def log_corrupt_holders(
    *, clients: int, degree: int, threshold: int, colluders: int
) -> float:
    """Return ln E1, that some honest client has `threshold` corrupt holders.

    A dealer on the ring keeps no share of its own.  Its holders are therefore `degree`
    of the `clients` - 1 others, and E1 is (n - c) P[Hyp(n - 1, c, k) >= t].  It grows
    with `colluders` wherever it is below 1, so fewer colluders than assumed are safe.

    Args:
        clients: n, the size of the roster.
        degree: k.
        threshold: t.
        colluders: c, of the whole roster.
    """
    if colluders < threshold:
        return -math.inf
    if colluders >= clients or degree >= clients:
        return 0.0  # no honest client, or no ring
    return math.log(clients - colluders) + log_drawn(
        range(threshold, degree + 1),
        population=clients - 1,
        marked=colluders,
        drawn=degree,
    )


def log_planned_cut(*, clients: int, degree: int, colluders: int, losses: int) -> float:
    """Return ln E2, that random corrupt and dropped clients cut the ring in two.

    A cut needs two windows of k/2 places without an honest survivor. At least one place
    must lie between them on either side.  There are n (n - k - 1) / 2 such pairs.

    Args:
        clients: n, the size of the roster.
        degree: k, even.
        colluders: c, of the whole roster.
        losses: D, all clients of the roster that are not in the sum.
    """
    bad = min(colluders + losses, clients)
    if clients < degree + 2:  # all clients are neighbours
        return -math.inf
    return (
        math.log(clients)
        + math.log(clients - degree - 1)
        - math.log(2.0)
        + log_choose(clients - degree, bad - degree)
        - log_choose(clients, bad)
    )


def log_short_of_holders(
    *, clients: int, degree: int, threshold: int, losses: int
) -> float:
    """Return ln E3, that some client has fewer than `threshold` holders left.

    Pessimistic for very small rings: for each of the n clients the union bound places
    all dropouts among the other clients.

    Args:
        clients: n, the size of the roster.
        degree: k.
        threshold: t.
        losses: D.
    """
    if degree >= clients:
        return 0.0
    return math.log(clients) + log_drawn(
        range(threshold),
        population=clients - 1,
        marked=max(0, clients - 1 - losses),
        drawn=degree,
    )


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


def edge_bound(
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
