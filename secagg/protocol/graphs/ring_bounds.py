"""Failure bounds of a ring before it is drawn: three chances, from integers alone.

n clients stand on a ring in an order drawn uniformly after the roster is fixed. Each
shares with the k/2 next on either side, and t of these k holders rebuild a secret.  At
most c of all n collude with the server, D drop out.  Then

    E1  some honest client has t corrupt holders       ends the secrecy of its input
    E2  corrupt and lost ones cut the ring in two      reveals the sums of parts
    E3  some client has fewer than t holders left      ends the session, nothing else

E1 needs no assumption on dropouts and is required of every session.  E2 and E3 take
dropouts to be random and serve for planning.  When the dropouts are known,
`secagg.protocol.graphs.ring_safety` replaces E2 (PROTOCOL §11).

Every function returns the natural logarithm of a union bound, which may exceed 0; -inf
means impossible.  All are total: numbers that describe no ring raise nothing and bound
nothing.  Rounding is below 1e-12 for n <= 60 and below 1e-8 for n <= 65535.

Source: [Bell20] section 3, with the exact hypergeometric tails.  The ring has two equal
windows where that proof has consecutive nodes.
"""

import math
from typing import Final

from secagg.protocol.graphs.hypergeometric import log_choose, log_drawn

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

    A dealer on the ring keeps no share of its own, hence its holders are `degree` of
    the `clients` - 1 others, and E1 is (n - c) P[Hyp(n - 1, c, k) >= t]. It grows with
    `colluders` wherever it is below 1, so fewer colluders than assumed are safe.

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
