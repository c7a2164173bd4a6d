"""The choice of a cohort's graph: the sparsest safe one, with degree and threshold.

Rule 1: a choice is a search over `secagg.protocol.graphs.bounds`.  Server and clients
        later check the parameters by the same functions, so they accept the choice.
Rule 2: everything is counted in clients.  Fractions of a cohort are exact rationals:
        0.29 of 100 is 29, which binary floats miss.
Rule 3: without a safe sparse graph of degree up to half of the cohort, the answer is
        the complete graph, and the reason.  If no graph is safe, the choice is refused.

Each adversary requires a threshold.  x is the most corrupt holders of any honest client
(except with probability 2^-graph_bits), k the holders of each secret.  A set of fewer
than s survivors may stand apart.

    curious          ring      t >= x + 1
    semi-malicious   ring      2t > k + x
    malicious        k-out     t >= x + s - 1, and 2Q > n + c for the quorum Q
    (semi-)malicious complete  2t > n + c

A server that follows the protocol learns the shares of colluders only.  Another may ask
some holders for one kind of share and the others for the other kind.  By the quorum
honest clients agree on one set of survivors.

Source: [Bell20] section 3 for the ring, with exact tails.  The k-out graph with a
global quorum is an addition of this protocol and unreviewed.
"""

import math
from bisect import bisect_left
from dataclasses import asdict, dataclass
from enum import StrEnum, unique
from fractions import Fraction
from typing import Final, Self

from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.graphs.bounds import (
    EdgeBound,
    bits_of,
    edge_bound,
    log_corrupt_holders,
    log_planned_cut,
    log_short_of_holders,
    server_demand,
)
from secagg.protocol.parameters import (
    MAX_CLIENTS,
    MAX_SPARSE_CLIENTS,
    Graph,
    ProtocolParameters,
)

# Bounds the chance that a session ends for lack of holders: one in a thousand million.
_DEFAULT_LIVENESS_BITS: Final = 30
# Up to here the failure bounds are exact to 1e-8.
_MAX_RING_CLIENTS: Final = 1 << 20
# Below, the complete graph costs a client little and needs only a counting argument.
_MIN_OUT_EDGE_CLIENTS: Final = 1_000
# Each client would send three megabytes of bundles, so the graph is no longer sparse.
_MAX_DEGREE: Final = 1 << 15
# One share would be the secret, and the sum of one client is its input.
_LEAST_THRESHOLD: Final = 2
_LEAST_COHORT: Final = 2


@unique
class GraphAdversary(StrEnum):
    """What the server may do, besides reading what its colluders know."""

    CURIOUS = "curious"
    """It follows the protocol."""
    SEMI_MALICIOUS = "semi-malicious"
    """It distributes keys honestly and deviates afterwards."""
    MALICIOUS = "malicious"
    """It deviates from the start; clients sign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphDemand:
    """A cohort and the requirements on its graph.

    Attributes:
        min_clients: Smallest roster.
        max_clients: Largest roster.
        min_survivors: Fewest inputs that a sum adds up.
        max_losses: Most clients of a roster that may be missing from the sum.
        colluders: c, of the whole roster.
        graph_bits: A session unmasks more than one sum with probability 2^-graph_bits
            at most; each of its two causes gets half.
        liveness_bits: A session ends for lack of holders with probability
            2^-liveness_bits at most, if dropouts are random.
    """

    min_clients: int
    max_clients: int
    min_survivors: int
    max_losses: int
    colluders: int
    graph_bits: int = 40
    liveness_bits: int = _DEFAULT_LIVENESS_BITS

    @classmethod
    def from_rates(
        cls,
        clients: int,
        *,
        corrupt: Fraction,
        dropout: Fraction,
        graph_bits: int = 40,
        liveness_bits: int = _DEFAULT_LIVENESS_BITS,
    ) -> Self:
        """Return the demand of a cohort of one size.

        Args:
            clients: n.
            corrupt: Fraction of the cohort that colludes, rounded down to clients.
            dropout: Fraction of the cohort that is lost, rounded down to clients.
            graph_bits: See the class.
            liveness_bits: See the class.
        """
        losses = math.floor(dropout * clients)
        return cls(
            min_clients=clients,
            max_clients=clients,
            min_survivors=clients - losses,
            max_losses=losses,
            colluders=math.floor(corrupt * clients),
            graph_bits=graph_bits,
            liveness_bits=liveness_bits,
        )

    def losses(self, clients: int) -> int:
        """Return D, the most dropouts of a roster of this size."""
        return max(0, min(self.max_losses, clients - self.min_survivors))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The rosters with the worst of some failure bound, ascending.

        The smallest one has the most colluders in proportion.  Dropouts weigh most on
        the smallest roster that admits all of `max_losses`, or on the largest one.
        """
        turn = self.min_survivors + self.max_losses
        middle = min(max(turn, self.min_clients), self.max_clients)
        return tuple(sorted({self.min_clients, middle, self.max_clients}))


@dataclass(frozen=True, slots=True)
class FailureBounds:
    """The failure bounds of a graph, each on the roster where it is worst.

    Attributes:
        holder_bits: -log2 of the chance E1, that some honest client has so many corrupt
            holders that its secrets are known; inf if impossible.
        cut_bits: -log2 of the chance E2, that colluders and dropouts leave honest
            survivors without a path of masks.  On a ring dropouts are taken to be
            random.
        liveness_bits: -log2 of the chance E3, that random dropouts leave some client
            with fewer holders than the threshold.
    """

    holder_bits: float = math.inf
    cut_bits: float = math.inf
    liveness_bits: float = math.inf

    def to_dict(self) -> dict[str, float | None]:
        """Return the bounds as JSON values; null stands for impossible."""
        every = asdict(self).items()
        return {name: bits if math.isfinite(bits) else None for name, bits in every}


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphChoice:
    """A graph for a cohort.

    Attributes:
        graph: Which clients share with which.
        degree: k; 0 on the complete graph.
        threshold: t, the smallest that is safe; on the complete graph also more than
            half of the cohort if dropouts allow it.
        max_threshold: Every threshold up to this one is as safe, and meets the liveness
            bound.
        quorum: Q, the signatures that clients need before they unmask; None unless the
            adversary is malicious.
        unseen: Most honest clients that a malicious server can omit from the sum
            without being noticed; noise counts on `quorum - unseen` inputs.
        failure_bounds: Its failure bounds.
        why: Why it is the complete graph, if a sparse one was searched for.
    """

    graph: Graph
    degree: int
    threshold: int
    max_threshold: int
    quorum: int | None = None
    unseen: int = 0
    failure_bounds: FailureBounds = FailureBounds()
    why: str = ""


def choose_graph(
    demand: GraphDemand, adversary: GraphAdversary, *, threshold: int | None = None
) -> GraphChoice:
    """Return the sparsest graph that is safe, or the complete one.

    Args:
        demand: The cohort.
        adversary: What the server may do.
        threshold: Consider graphs with this threshold only.

    Raises:
        ServiceError: INFEASIBLE; no graph is safe, and why.
    """
    _check_possible(demand)
    chosen: GraphChoice | None = None
    if adversary is not GraphAdversary.MALICIOUS:
        chosen = _ring(demand, adversary, threshold)
        why = f"no ring with degree up to {_max_degree(demand)} is safe"
    elif demand.min_clients < _MIN_OUT_EDGE_CLIENTS:
        why = f"below {_MIN_OUT_EDGE_CLIENTS} clients the complete graph costs little"
    elif demand.max_clients > MAX_SPARSE_CLIENTS:
        why = (
            f"above {MAX_SPARSE_CLIENTS} clients a quorum has too many signatures for "
            "each client to read"
        )
    else:
        chosen = _drawn_graph(demand, threshold, range(4, _max_degree(demand) + 1))
        why = f"no k-out graph with degree up to {_max_degree(demand)} is safe"
    return chosen or complete_graph(demand, adversary, threshold=threshold, why=why)


def complete_graph(
    demand: GraphDemand,
    adversary: GraphAdversary,
    *,
    threshold: int | None = None,
    why: str = "",
) -> GraphChoice:
    """Return the complete graph with the threshold that the cohort needs.

    Args:
        demand: The cohort.
        adversary: What the server may do.
        threshold: Use this threshold or refuse.
        why: Why no sparse graph is used.

    Raises:
        ServiceError: INFEASIBLE; no threshold is both safe and live, and why.
    """
    _check_possible(demand)
    why += "; " if why else ""
    if demand.max_clients > MAX_CLIENTS:
        raise _infeasible(
            f"{why}the complete graph ends at {MAX_CLIENTS} clients",
            "Split the cohort, or assume fewer colluders and dropouts.",
        )
    lowest, highest = demand.colluders + 1, demand.min_survivors
    if adversary is not GraphAdversary.CURIOUS:
        lowest = _least_agreement(demand)
    lowest = max(lowest, _LEAST_THRESHOLD)
    # Prefer more than half: two disjoint groups then never both unmask.
    chosen = threshold or min(max(lowest, demand.max_clients // 2 + 1), highest)
    if not lowest <= chosen <= highest:
        wanted = "" if threshold is None else f", and not {threshold}"
        raise _infeasible(
            f"{why}on the complete graph a secret must take at least {lowest} shares, "
            f"and dropouts leave at most {highest}{wanted}",
            "Assume fewer colluders or fewer dropouts."
            if lowest > highest
            else "Choose a threshold between the two.",
        )
    return GraphChoice(
        graph=Graph.COMPLETE,
        degree=0,
        threshold=chosen,
        max_threshold=highest,
        # The profile uses both rules with one number (PROTOCOL §2).
        quorum=chosen if adversary is GraphAdversary.MALICIOUS else None,
        why=why.removesuffix("; "),
    )


def drawn_edges(
    demand: GraphDemand, *, degree: int | None = None, threshold: int | None = None
) -> GraphChoice:
    """Return a k-out graph against a malicious server, at any size of the cohort.

    `choose_graph` returns one only if the complete graph would cost too much.

    Args:
        demand: The cohort.
        degree: k; None for the smallest that is safe.
        threshold: Use this threshold or refuse.

    Raises:
        ServiceError: INFEASIBLE; no such graph is safe, and why.
    """
    _check_possible(demand)
    quorum = _least_agreement(demand)
    if quorum > demand.min_survivors:
        raise _infeasible(
            f"{quorum} clients must agree on the members of the sum, dropouts may "
            f"leave {demand.min_survivors}",
            f"Require {quorum} inputs in a sum, or assume fewer colluders.",
        )
    # A graph that was requested by name may have any degree.
    degrees = range(2, demand.min_clients)
    if degree is not None:
        degrees = range(degree, min(degree + 1, demand.min_clients))
    chosen = _drawn_graph(demand, threshold, degrees)
    if chosen is None:
        tried = f"degree {degree}" if degree else f"a degree up to {degrees.stop - 1}"
        taken = "" if threshold is None else f" and threshold {threshold}"
        raise _infeasible(
            f"no k-out graph with {tried}{taken} is safe and live for "
            f"{demand.min_clients} to {demand.max_clients} clients with "
            f"{demand.colluders} colluders and {demand.max_losses} dropouts",
            "Use the profile malicious-server, which has no degree, or assume fewer "
            "colluders and dropouts.",
        )
    return chosen


def failure_bounds_of(parameters: ProtocolParameters) -> FailureBounds:
    """Return the failure bounds of a task's graph, however it was chosen.

    Args:
        parameters: Valid ones; on the complete graph all failures are impossible.
    """
    if parameters.is_complete_graph:
        return FailureBounds()
    demand = GraphDemand(
        min_clients=parameters.min_clients,
        max_clients=parameters.max_clients,
        min_survivors=parameters.min_survivors,
        max_losses=parameters.max_losses,
        colluders=parameters.colluders,
        graph_bits=parameters.graph_bits,
    )
    if parameters.graph is Graph.K_OUT:
        bounds = [
            _edge_bounds(demand, parameters.degree, size) for size in demand.sizes
        ]
        return _edge_failures(demand, parameters.degree, parameters.threshold, bounds)
    return FailureBounds(
        _holder_bits(demand, parameters.degree, parameters.threshold),
        _ring_cut_bits(demand, parameters.degree),
        _liveness_bits(demand, parameters.degree, parameters.threshold),
    )


# --- sparse graphs ------------------------------------------------------------------


def _ring(
    demand: GraphDemand, adversary: GraphAdversary, threshold: int | None
) -> GraphChoice | None:
    """Return the ring of the smallest degree that meets the demand."""
    wanted = server_demand(demand.graph_bits)
    # E2 falls with the degree and does not depend on the threshold: begin where it is
    # met.
    degrees = range(2, _max_degree(demand) + 1, 2)
    met = bisect_left(
        degrees, x=True, key=lambda k: _ring_cut_bits(demand, k) >= wanted
    )
    degree = 2 + 2 * met
    while degree in degrees:
        corrupt = _most_corrupt_holders(demand, degree)
        lowest, highest = corrupt + 1, _highest_live_threshold(demand, degree)
        if adversary is GraphAdversary.SEMI_MALICIOUS:
            lowest = (degree + corrupt) // 2 + 1
        lowest = max(lowest, _LEAST_THRESHOLD)
        if threshold is not None and lowest > threshold:
            return None  # and never again: it grows with the degree
        chosen = threshold or lowest
        if chosen <= highest:
            # By lying, the server may obtain two shares from one holder (see the
            # module's docstring).
            breaking = chosen
            if adversary is GraphAdversary.SEMI_MALICIOUS:
                breaking = 2 * chosen - degree
            return GraphChoice(
                graph=Graph.RING,
                degree=degree,
                threshold=chosen,
                max_threshold=highest,
                failure_bounds=FailureBounds(
                    _holder_bits(demand, degree, breaking),
                    _ring_cut_bits(demand, degree),
                    _liveness_bits(demand, degree, chosen),
                ),
            )
        missing = chosen - highest
        if adversary is GraphAdversary.SEMI_MALICIOUS and threshold is None:
            missing *= 2  # the smallest safe one grows by at least half of the degree
        degree += _degree_jump(missing)
    return None


def _drawn_graph(
    demand: GraphDemand, threshold: int | None, degrees: range
) -> GraphChoice | None:
    """Return the graph of drawn edges of the smallest degree that suffices."""
    quorum = _least_agreement(demand)
    if quorum > demand.min_survivors:
        return None  # the complete graph is also infeasible, and its error says so
    degree = degrees.start
    while degree < degrees.stop:
        highest = _highest_live_threshold(demand, degree)
        missing = _most_corrupt_holders(demand, degree) + 1 - highest
        if missing > 0:
            degree += _degree_jump(missing)
            continue
        bounds = [_edge_bounds(demand, degree, size) for size in demand.sizes]
        lowest = max(each.least_threshold for each in bounds)
        chosen = threshold or max(_LEAST_THRESHOLD, lowest)
        if lowest <= chosen <= highest:
            return GraphChoice(
                graph=Graph.K_OUT,
                degree=degree,
                threshold=chosen,
                max_threshold=highest,
                quorum=quorum,
                unseen=max(each.set_apart for each in bounds),
                failure_bounds=_edge_failures(demand, degree, chosen, bounds),
            )
        degree += 2
    return None


def _edge_failures(
    demand: GraphDemand, degree: int, threshold: int, bounds: list[EdgeBound]
) -> FailureBounds:
    """Return the bounds for more corrupt holders, or a larger set, than found."""
    corrupt = max(each.corrupt_holders for each in bounds)
    return FailureBounds(
        _holder_bits(demand, degree, corrupt + 1),
        min(each.cut_bits for each in bounds),
        _liveness_bits(demand, degree, threshold),
    )


def _max_degree(demand: GraphDemand) -> int:
    """Return the largest degree of a graph that still counts as sparse."""
    return min(demand.min_clients // 2, _MAX_DEGREE)


def _degree_jump(missing: int) -> int:
    """Return how far the degree may jump when the thresholds are `missing` apart.

    One more neighbour is at most one more living holder.  So the largest live threshold
    grows by at most one, and the smallest safe one never falls.
    """
    return missing + missing % 2


def _most_corrupt_holders(demand: GraphDemand, degree: int) -> int:
    """Return the most corrupt holders of any honest client, except with chance E1."""
    wanted = server_demand(demand.graph_bits)
    return bisect_left(
        range(1, degree + 1),
        x=True,
        key=lambda holders: _holder_bits(demand, degree, holders) >= wanted,
    )


def _highest_live_threshold(demand: GraphDemand, degree: int) -> int:
    """Return the largest threshold that dropouts leave reachable, except with E3."""
    live = bisect_left(
        range(1, degree + 1),
        x=True,
        key=lambda t: _liveness_bits(demand, degree, t) <= demand.liveness_bits,
    )
    return min(live, demand.min_survivors)


def _holder_bits(demand: GraphDemand, degree: int, holders: int) -> float:
    """Return -log2 of E1, that many corrupt holders; the smallest roster is worst."""
    return bits_of(
        log_corrupt_holders(
            clients=demand.min_clients,
            degree=degree,
            threshold=holders,
            colluders=demand.colluders,
        )
    )


def _ring_cut_bits(demand: GraphDemand, degree: int) -> float:
    """Return -log2 of E2 on the worst roster."""
    return min(
        bits_of(
            log_planned_cut(
                clients=size,
                degree=degree,
                colluders=demand.colluders,
                losses=demand.losses(size),
            )
        )
        for size in demand.sizes
    )


def _liveness_bits(demand: GraphDemand, degree: int, threshold: int) -> float:
    """Return -log2 of E3 on the worst roster."""
    return min(
        bits_of(
            log_short_of_holders(
                clients=size,
                degree=degree,
                threshold=threshold,
                losses=demand.losses(size),
            )
        )
        for size in demand.sizes
    )


def _edge_bounds(demand: GraphDemand, degree: int, clients: int) -> EdgeBound:
    """Return the bounds of drawn edges on a roster of one size."""
    return edge_bound(
        clients=clients,
        degree=degree,
        colluders=demand.colluders,
        losses=demand.losses(clients),
        demanded_bits=server_demand(demand.graph_bits),
    )


def _least_agreement(demand: GraphDemand) -> int:
    """Return the least Q with 2Q > n + c: two quorums of Q share an honest client."""
    return (demand.max_clients + demand.colluders) // 2 + 1


# --- refusals -----------------------------------------------------------------------


def _check_possible(demand: GraphDemand) -> None:
    """Refuse a demand that no graph can meet."""
    if (
        not _LEAST_COHORT
        <= demand.min_clients
        <= demand.max_clients
        <= _MAX_RING_CLIENTS
    ):
        raise _infeasible(
            f"a cohort has {_LEAST_COHORT} to {_MAX_RING_CLIENTS} clients, not "
            f"{demand.min_clients} to {demand.max_clients}",
            "Split the cohort, or configure more clients.",
        )
    if demand.min_survivors < demand.colluders + 2:
        raise _infeasible(
            f"{demand.min_survivors} inputs in a sum, {demand.colluders} of them of "
            "colluders, leave fewer than two honest ones: no graph can hide them",
            "Assume fewer colluders or fewer dropouts, or configure more clients.",
        )


def _infeasible(message: str, next_step: str) -> SecAggError:
    return ErrorCode.INFEASIBLE.error(message, fix=next_step)
