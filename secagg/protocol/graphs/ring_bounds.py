"""What can be said of a ring before it is drawn: three chances, from integers alone.

n clients stand on a ring in an order drawn uniformly after the roster is fixed; each
shares with the k/2 next on either side, and t of these k holders rebuild a secret.  At
most c of all n collude with the server, D are lost.  Then

    E1  some honest client has t corrupt holders       ends the secrecy of its input
    E2  corrupt and lost ones cut the ring in two      lets the sums of parts be seen
    E3  some client has fewer than t holders left      ends the session, nothing else

E1 needs no assumption on losses and is demanded of every session; E2 and E3 take losses
to be random and serve for planning.  Who really was lost is judged when it is known, by
`secagg.protocol.graphs.ring_safety`, in the place of E2 (PROTOCOL §11).

Every function returns the natural logarithm of a union bound, which may exceed 0; -inf
means impossible.  All are total: numbers that describe no ring raise nothing and
promise nothing.  Rounding is below 1e-12 for n <= 60 and below 1e-8 for n <= 65535.

Source:
    [Bell20] section 3, with the exact hypergeometric tails; the ring itself has two
    equal windows where that proof has consecutive nodes.
"""

import math
from typing import Final

from secagg.protocol.graphs.hypergeometric import log_choose, log_drawn

# Far above what two libraries' logarithms differ by, far below what anybody notices.
_MARGIN_BITS: Final = 0.01


def bits_of(log_probability: float) -> float:
    """Return -log2 of a bound on a probability.

    Args:
        log_probability: Its natural logarithm; -inf for the impossible.

    Returns:
        Bits, inf for the impossible, 0 for a bound of 1 or more.
    """
    return max(0.0, -log_probability / math.log(2.0))


def client_demand(graph_bits: int) -> float:
    """Return the bits a client demands of each of the two chances.

    Together they then stay below 2^-graph_bits, the term that is added to delta.
    """
    return graph_bits + 1.0


def server_demand(graph_bits: int) -> float:
    """Return the bits the server demands of each of the two chances.

    A little more than `client_demand`: logarithms are rounded differently on different
    machines, and no client may refuse what the server has passed.
    """
    return client_demand(graph_bits) + _MARGIN_BITS


def log_corrupt_holders(
    *, clients: int, degree: int, threshold: int, colluders: int
) -> float:
    """Return ln E1: that some honest client has `threshold` corrupt holders.

    A dealer on the ring keeps no share of its own, hence its holders are `degree` of
    the `clients` - 1 others, and E1 is (n - c) P[Hyp(n - 1, c, k) >= t].  It grows with
    `colluders` wherever it is below 1, so fewer colluders than assumed do no harm.

    Args:
        clients: n, the size of the roster.
        degree: k.
        threshold: t.
        colluders: c, of the whole roster.
    """
    if colluders < threshold:
        return -math.inf
    if colluders >= clients or degree >= clients:
        return 0.0  # nobody honest, or no ring
    return math.log(clients - colluders) + log_drawn(
        range(threshold, degree + 1),
        population=clients - 1,
        marked=colluders,
        drawn=degree,
    )


def log_planned_cut(*, clients: int, degree: int, colluders: int, losses: int) -> float:
    """Return ln E2: that random corrupt and lost clients cut the ring in two.

    A cut needs two windows of k/2 places, apart by a place or more on either side, in
    which nobody is both honest and alive.  There are n (n - k - 1) / 2 such pairs.

    Args:
        clients: n, the size of the roster.
        degree: k, even.
        colluders: c, of the whole roster.
        losses: D, all clients of the roster that do not get into the sum.
    """
    bad = min(colluders + losses, clients)
    if clients < degree + 2:  # everybody is everybody's neighbour
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
    """Return ln E3: that some client has fewer than `threshold` holders left.

    Pessimistic for very small rings: the union bound over n clients takes all losses
    to be among the others, for each of them.

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
