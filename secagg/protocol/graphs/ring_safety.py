"""Whether a ring may be unmasked, given its survivors.

On the ring a session can reveal more than its sum in two ways.  Some honest client has
t corrupt holders, or the honest survivors fall into parts without a mask between them.
The sum of each part is then revealed.  Dropouts are known when U3 is fixed; corrupt
clients are not.  The order of the ring was drawn after the roster, so corrupt clients
are a uniform subset of the survivors.  Both sides therefore compute the probability
that such a session is unsafe from public integers, by one rule for all n (R11.2-1).

How a ring is cut.  Masks reach k/2 places.  The ring falls into parts exactly if two
*windows* of k/2 neighbouring places hold no honest survivor, and both arcs between them
hold one.  A pair of windows that holds L of the m survivors is emptied by
c corrupt ones with probability C(m - L, c - L) / C(m, c).

Two functions follow.  They treat arcs differently on purpose:

* `log_cut` sums this over all pairs of windows with at least one *place* on either arc.
  It does not require survivors on the arcs: colluders could drop out to empty an arc
  and have its pairs ignored.  By places no pair is ignored.  A colluder gains nothing
  by dropping out: L of m become L or L - 1 of m - 1, which are both more probable.
* `is_uncuttable` decides whether *any* c of the survivors could cut the ring.  It
  assumes nothing about corruption or dropouts, so arcs count only with a survivor on
  them.

The first assumes that corruption is fixed before the order is drawn, and that honest
clients drop out independently of the order.  The second assumes neither.
"""

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from secagg.crypto.transcript import ClientBitmap
from secagg.protocol.graphs.bounds import bits_of, log_corrupt_holders
from secagg.protocol.graphs.neighbours import HararyRing, SharingGraph
from secagg.protocol.parameters import ProtocolParameters

_Living = npt.NDArray[np.bool_]
_Counts = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True)
class RingRisk:
    """The risk of unmasking one session on a ring.

    Attributes:
        holder_bits: -log2 of the chance that an honest client has t corrupt holders;
            inf when there are fewer than t colluders.
        cut_bits: -log2 of the chance that the colluders and the dropouts of this
            session cut the ring; inf when no choice of colluders could.
        worst_case_safe: Both are impossible for every choice of colluders and dropouts.
            A report may then call the session *certified*.
    """

    holder_bits: float
    cut_bits: float
    worst_case_safe: bool

    def to_dict(self) -> dict[str, object]:
        """Return the risk as JSON values; null bits stand for impossible."""
        return {
            "holder_bits": _finite(self.holder_bits),
            "cut_bits": _finite(self.cut_bits),
            "worst_case_safe": self.worst_case_safe,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the risk that `to_dict` wrote.

        Raises:
            KeyError: A key is missing.
            ValueError: A value is impossible.
        """
        holder, cut = (
            math.inf if document[name] is None else float(document[name])
            for name in ("holder_bits", "cut_bits")
        )
        return cls(holder, cut, worst_case_safe=bool(document["worst_case_safe"]))

    def shortcoming(self, demanded_bits: float) -> str | None:
        """Return why the session must not be unmasked; None if it may be.

        Args:
            demanded_bits: `server_demand` or `client_demand`; each of the two chances
                must be at most 2^-demanded_bits.
        """
        if self.holder_bits < demanded_bits:
            return (
                "an honest client may have too many colluders next to it, with "
                f"probability 2^-{self.holder_bits:.1f}; at most "
                f"2^-{demanded_bits:.1f} is accepted"
            )
        if self.cut_bits < demanded_bits:
            return (
                "dropouts and colluders may cut the ring into parts and reveal their "
                f"sums, with probability 2^-{self.cut_bits:.1f}; at most "
                f"2^-{demanded_bits:.1f} is accepted"
            )
        return None


def holder_bits(graph: HararyRing, *, colluders: int, threshold: int) -> float:
    """Return -log2 of the chance that some honest client has t corrupt holders.

    It depends on the roster alone, hence is checked before shares are dealt.

    Args:
        graph: The ring of the session.
        colluders: c, of the whole roster.
        threshold: t.
    """
    return bits_of(
        log_corrupt_holders(
            clients=graph.size,
            degree=graph.degree,
            threshold=threshold,
            colluders=colluders,
        )
    )


def ring_risk(
    graph: HararyRing,
    survivors: AbstractSet[int],
    *,
    colluders: int,
    threshold: int,
) -> RingRisk:
    """Return the risk of a session once U3 is known.

    The server computes it before it fixes U3, a client before it answers. Time grows
    with n k, and with k^2; memory with n.

    Args:
        graph: The ring of the session.
        survivors: U3, roster indices.
        colluders: c, of the whole roster; not reduced by dropouts.
        threshold: t.
    """
    living = _members_by_place(graph, survivors)
    uncuttable = is_uncuttable(living, degree=graph.degree, colluders=colluders)
    return RingRisk(
        holder_bits=holder_bits(graph, colluders=colluders, threshold=threshold),
        # If no colluders can cut the ring, the sum over pairs does not matter.
        cut_bits=math.inf
        if uncuttable
        else bits_of(log_cut(living, degree=graph.degree, colluders=colluders)),
        worst_case_safe=uncuttable and colluders < threshold,
    )


def graph_risk(
    parameters: ProtocolParameters, graph: SharingGraph, survivors: AbstractSet[int]
) -> RingRisk | None:
    """Return the risk of a session on any graph; None on the complete graph.

    There t > c, and every survivor masks with every other one: no risk remains.
    """
    if not isinstance(graph, HararyRing):
        return None
    return ring_risk(
        graph,
        survivors,
        colluders=parameters.colluders,
        threshold=parameters.threshold,
    )


def graph_shortcoming(
    parameters: ProtocolParameters,
    graph: SharingGraph,
    survivors: AbstractSet[int],
    demanded_bits: float,
) -> str | None:
    """Return why a session must not be unmasked, as `RingRisk.shortcoming`.

    For callers that need no figures.  A bound on the sum over pairs takes k/2 times
    less time and accepts most sessions; it accepts none that the sum would refuse.

    Args:
        parameters: Of the session.
        graph: Of the session.
        survivors: U3, roster indices.
        demanded_bits: As for `RingRisk.shortcoming`.

    Returns:
        None if it may be unmasked.
    """
    if not isinstance(graph, HararyRing):
        return None
    colluders, threshold = parameters.colluders, parameters.threshold
    reach = graph.degree // 2
    cut = _log_pairs_cut(
        _pairs_of_all(
            _living_per_window(_members_by_place(graph, survivors), reach), reach
        ),
        alive=len(survivors),
        colluders=colluders,
    )
    bound = RingRisk(
        holder_bits(graph, colluders=colluders, threshold=threshold),
        bits_of(cut),
        worst_case_safe=False,
    )
    if bound.shortcoming(demanded_bits) is None:
        return None
    risk = ring_risk(graph, survivors, colluders=colluders, threshold=threshold)
    return risk.shortcoming(demanded_bits)


def is_worst_case_safe(
    parameters: ProtocolParameters, graph: SharingGraph, survivors: AbstractSet[int]
) -> bool | None:
    """Return `RingRisk.worst_case_safe` alone; None on other graphs than the ring."""
    if not isinstance(graph, HararyRing):
        return None
    colluders, living = parameters.colluders, _members_by_place(graph, survivors)
    return colluders < parameters.threshold and is_uncuttable(
        living, degree=graph.degree, colluders=colluders
    )


def _members_by_place(graph: HararyRing, survivors: AbstractSet[int]) -> _Living:
    """Return the members of U3 by the places of the ring, shape (n,)."""
    if isinstance(survivors, ClientBitmap):
        return survivors.places()
    living = np.zeros(graph.size, np.bool_)
    living[list(survivors)] = True
    return living


def log_cut(living: _Living, *, degree: int, colluders: int) -> float:
    """Return ln of a bound on the chance that colluders cut the ring.

    It never falls when a colluder drops out, and grows with `colluders`, so that
    earlier dropouts need not be known.

    Args:
        living: Whether each place of the ring is in U3, shape (n,), in ring order.
        degree: k, even.
        colluders: c.

    Returns:
        A sum over pairs of windows, possibly above 0; -inf if no pair holds c or fewer.
    """
    reach = degree // 2
    if living.size < 2 * reach + 2:
        return -math.inf  # all clients are neighbours
    pairs = _pairs_by_living(living, reach)
    return _log_pairs_cut(pairs, alive=int(living.sum()), colluders=colluders)


def _log_pairs_cut(pairs: _Counts, *, alive: int, colluders: int) -> float:
    """Return ln of the sum over pairs of windows; entry L counts those that hold L."""
    corrupt = min(colluders, alive)
    pairs = pairs[: corrupt + 1]
    # C(m - L, c - L) / C(m, c) is the product of (c - l) / (m - l) over l < L.
    inside = np.arange(pairs.size - 1)
    log_emptied = np.concatenate(
        ([0.0], np.cumsum(np.log((corrupt - inside) / (alive - inside))))
    )
    possible = pairs > 0
    logs = np.log(pairs[possible]) + log_emptied[possible]
    return float(np.logaddexp.reduce(logs[::-1], initial=-math.inf))


def is_uncuttable(living: _Living, *, degree: int, colluders: int) -> bool:
    """Return whether no `colluders` or fewer of the survivors could cut the ring.

    Exact: false means that some choice leaves two honest survivors without a path of
    masks between them.

    Args:
        living: Whether each place of the ring is in U3, shape (n,), in ring order.
        degree: k, even.
        colluders: c.
    """
    reach, size = degree // 2, living.size
    if size < 2 * reach + 2:
        return True  # all clients are neighbours
    # A gap between honest survivors begins right after one of them.  Consider windows
    # that begin so: an arc with a place on it then ends with a survivor.
    never = 2 * reach + 1 + colluders
    held = np.where(np.roll(living, 1), _living_per_window(living, reach), never)
    # The partners of window i begin at i + reach + 1 ... i + size - reach - 1.  Minima
    # of a sliding range: each covers the end of one block and the start of the next.
    span = size - 2 * reach - 1
    blocks = -(-2 * size // span)
    around = np.resize(held, (blocks, span))
    to_right = np.minimum.accumulate(around, axis=1).ravel()
    to_left = np.minimum.accumulate(around[:, ::-1], axis=1)[:, ::-1].ravel()
    first = np.arange(size) + reach + 1
    best = np.minimum(to_left[first], to_right[first + span - 1])
    return bool((held + best).min() > colluders)


def _living_per_window(living: _Living, reach: int) -> _Counts:
    """Count the survivors in the `reach` places from each place on, shape (n,)."""
    before = np.zeros(living.size + reach + 1, np.int64)
    np.cumsum(np.concatenate((living, living[:reach])), out=before[1:])
    return before[reach : reach + living.size] - before[: living.size]


def _pairs_by_living(living: _Living, reach: int) -> _Counts:
    """Count the pairs that could cut, by the survivors that both windows hold.

    The pairs have a place or more on each arc between them.

    Returns:
        Entry L for pairs that hold L together, shape (2 reach + 1,).
    """
    held = _living_per_window(living, reach)
    pairs = _pairs_of_all(held, reach)
    # Subtract the pairs that overlap or touch.  They are n k / 2, fewer to visit than
    # the others, which makes the exact sum cheap on rings of any size.
    around = np.concatenate((held, held[:reach]))
    for step in range(1, reach + 1):
        close = held + around[step : step + held.size]
        pairs -= np.bincount(close, minlength=pairs.size)
    return pairs


def _pairs_of_all(held: _Counts, reach: int) -> _Counts:
    """Count all pairs of two different windows by the survivors that both hold.

    Args:
        held: By each window, shape (n,).
        reach: Places of a window.

    Returns:
        Entry L for pairs that hold L together, shape (2 reach + 1,).
    """
    windows = np.bincount(held, minlength=reach + 1)
    pairs = np.convolve(windows, windows)
    pairs[::2] -= windows
    pairs //= 2
    return pairs


def _finite(bits: float) -> float | None:
    return None if math.isinf(bits) else bits
