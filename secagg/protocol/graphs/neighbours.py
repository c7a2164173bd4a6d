"""Graphs that decide which clients share secrets and masks.

* The complete graph: every client shares with every other one.  A dealer holds one
  share of its own secrets.  Each secret has n holders.
* The Harary ring of degree k, for the honest-curious profile only. Clients stand in a
  ring in the order of the roster, which the server's seed draws once all clients are
  known.  Each shares with the k/2 next on either side.  A dealer holds no share of its
  own secrets, so each secret has k holders (PROTOCOL §11).
* The drawn graph, for profile malicious-server-sparse only.  After the roster is fixed,
  each client draws k others, which hold the shares of its secrets.  The two ends of an
  edge share masks, whichever of them drew it (PROTOCOL §11.4).

Source: [Bell20] section 3; [Bon17] for the complete graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from secagg.errors import ErrorCode
from secagg.protocol.parameters import Graph, ProtocolParameters


class SharingGraph(Protocol):
    """Which clients share what with which, over roster indices 0..n-1."""

    def mask_peers(self, index: int) -> tuple[int, ...]:
        """Return the clients that `index` shares masks with, ascending; symmetric."""

    def holders(self, dealer: int) -> tuple[int, ...]:
        """Return the clients that hold a share of `dealer`'s secrets, ascending."""

    def dealers(self, holder: int) -> tuple[int, ...]:
        """Return the clients whose shares `holder` holds, ascending."""

    @property
    def has_common_holders(self) -> bool:
        """Whether all secrets have the same holders."""

    def receivers(self, dealer: int) -> tuple[int, ...]:
        """Return the holders of `dealer` but itself, which get bundles, ascending."""

    def senders(self, holder: int) -> tuple[int, ...]:
        """Return the dealers of `holder` but itself, which send bundles, ascending."""

    def place(self, dealer: int, receiver: int) -> int:
        """Return the place of `receiver` in `receivers(dealer)`."""

    def abscissa(self, dealer: int, holder: int) -> int:
        """Return the point of `holder` on the polynomials of `dealer` (PROTOCOL §7).

        One more than its place among the holders, so that dealers with equally many
        holders are rebuilt with the same weights.
        """

    def count_holders(self, dealer: int, alive: frozenset[int]) -> int:
        """Return how many holders of `dealer` are in `alive`, a set of clients."""


@dataclass(frozen=True, slots=True)
class CompleteGraph:
    """Every client shares with every other one and keeps a share of its own."""

    size: int

    @property
    def has_common_holders(self) -> bool:
        """All clients hold shares of every dealer."""
        return True

    def mask_peers(self, index: int) -> tuple[int, ...]:
        """Return all other clients, ascending."""
        return tuple(other for other in range(self.size) if other != index)

    def holders(self, dealer: int) -> tuple[int, ...]:  # noqa: ARG002 - all hold
        """Return all clients, the dealer included."""
        return tuple(range(self.size))

    def dealers(self, holder: int) -> tuple[int, ...]:  # noqa: ARG002 - of all
        """Return all clients, the holder included."""
        return tuple(range(self.size))

    def receivers(self, dealer: int) -> tuple[int, ...]:
        """Return all other clients, ascending."""
        return self.mask_peers(dealer)

    def senders(self, holder: int) -> tuple[int, ...]:
        """Return all other clients, ascending."""
        return self.mask_peers(holder)

    def place(self, dealer: int, receiver: int) -> int:
        """Return the rank of `receiver` among the other clients."""
        return receiver if receiver < dealer else receiver - 1

    def abscissa(self, dealer: int, holder: int) -> int:  # noqa: ARG002 - all hold
        """Return the roster index of `holder` plus one."""
        return holder + 1

    def count_holders(
        self,
        dealer: int,  # noqa: ARG002 - all hold
        alive: frozenset[int],
    ) -> int:
        """Return the size of `alive`: all clients are holders."""
        return len(alive)


@dataclass(frozen=True, slots=True)
class HararyRing:
    """A ring in which each client shares with the k nearest.

    Attributes:
        degree: k, even.
        size: n; roster indices are the places of the ring, in order.
    """

    degree: int
    size: int

    @property
    def has_common_holders(self) -> bool:
        """Dealers have different holders."""
        return False

    def mask_peers(self, index: int) -> tuple[int, ...]:
        """Return the k clients within k/2 places, ascending."""
        end, start = self._runs(index)
        arc = (*range(end), *range(start, start + self.degree + 1 - end))
        return tuple(each for each in arc if each != index)

    def _runs(self, index: int) -> tuple[int, int]:
        """Return the two runs of roster indices of the k + 1 places around `index`.

        The places are those below the first number and those from the second number on.
        The first number is 0 unless the places pass an end of the roster.
        """
        first, end = index - self.degree // 2, index + self.degree // 2 + 1
        if first < 0:
            return end, first + self.size
        return max(0, end - self.size), first

    def holders(self, dealer: int) -> tuple[int, ...]:
        """Return the k clients within k/2 places, ascending."""
        return self.mask_peers(dealer)

    def dealers(self, holder: int) -> tuple[int, ...]:
        """Return the k clients within k/2 places, ascending."""
        return self.mask_peers(holder)

    def receivers(self, dealer: int) -> tuple[int, ...]:
        """Return the k clients within k/2 places, ascending."""
        return self.mask_peers(dealer)

    def senders(self, holder: int) -> tuple[int, ...]:
        """Return the k clients within k/2 places, ascending."""
        return self.mask_peers(holder)

    def place(self, dealer: int, receiver: int) -> int:
        """Return the rank of `receiver` among the dealer's neighbours."""
        end, start = self._runs(dealer)
        rank = receiver if receiver < end else receiver - start + end
        return rank - (dealer < receiver)

    def abscissa(self, dealer: int, holder: int) -> int:
        """Return the rank of `holder` among the dealer's neighbours, plus one."""
        return self.place(dealer, holder) + 1

    def count_holders(self, dealer: int, alive: frozenset[int]) -> int:
        """Return how many neighbours of `dealer` are in `alive`."""
        return len(alive.intersection(self.mask_peers(dealer)))


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """The graph of clients that draw their holders; every edge has masks.

    A client knows its own list, its drawers, and their lists; a server knows all.  A
    client with unknown edges has no neighbours.

    Attributes:
        drawn: The k clients that each client drew, ascending.
        drawers: The clients that drew each client, ascending.
    """

    drawn: Mapping[int, tuple[int, ...]] = field(repr=False)
    drawers: Mapping[int, tuple[int, ...]] = field(repr=False)

    @property
    def has_common_holders(self) -> bool:
        """Dealers have different holders."""
        return False

    def mask_peers(self, index: int) -> tuple[int, ...]:
        """Return the clients that `index` drew and its drawers, ascending."""
        return tuple(sorted({*self.holders(index), *self.dealers(index)}))

    def holders(self, dealer: int) -> tuple[int, ...]:
        """Return the clients that `dealer` drew, ascending."""
        return self.drawn.get(dealer, ())

    def dealers(self, holder: int) -> tuple[int, ...]:
        """Return the clients that drew `holder`, ascending."""
        return self.drawers.get(holder, ())

    def receivers(self, dealer: int) -> tuple[int, ...]:
        """Return the clients that `dealer` drew, ascending."""
        return self.holders(dealer)

    def senders(self, holder: int) -> tuple[int, ...]:
        """Return the clients that drew `holder`, ascending."""
        return self.dealers(holder)

    def place(self, dealer: int, receiver: int) -> int:
        """Return the rank of `receiver` among the clients that `dealer` drew."""
        return self.holders(dealer).index(receiver)

    def abscissa(self, dealer: int, holder: int) -> int:
        """Return the rank of `holder` among those that `dealer` drew, plus one."""
        return self.place(dealer, holder) + 1

    def count_holders(self, dealer: int, alive: frozenset[int]) -> int:
        """Return how many clients that `dealer` drew are in `alive`."""
        return len(alive.intersection(self.holders(dealer)))


def sharing_graph(
    parameters: ProtocolParameters, size: int, graph_seed: bytes
) -> SharingGraph:
    """Return the graph that a roster's size defines; check its seed.

    Every party derives it from the same public bytes. So a neighbour list that is
    asymmetric, repeats a client, names its owner or has the wrong degree cannot be
    expressed (PROTOCOL §11).

    Args:
        parameters: Of the session.
        size: n, size of the roster.
        graph_seed: As in the roster, whose order it has drawn.

    Returns:
        In profiles whose clients draw neighbours, a graph without edges.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION (R5.2-10) if the seed is missing on a ring
            or present on another graph, or the ring would overlap itself.
    """
    if parameters.graph is not Graph.RING:
        if graph_seed:
            raise ErrorCode.POLICY_VIOLATION.error(
                "the roster has a graph seed, but the session's graph is "
                f"{parameters.graph}"
            )
        if parameters.graph is Graph.K_OUT:
            return DrawnGraph({}, {})
        return CompleteGraph(size)
    if not graph_seed:
        raise ErrorCode.POLICY_VIOLATION.error(
            f"the roster has no graph seed for a ring of degree {parameters.degree}"
        )
    if size < parameters.degree + 2:
        raise ErrorCode.POLICY_VIOLATION.error(
            f"a ring of degree {parameters.degree} needs at least "
            f"{parameters.degree + 2} clients, the roster has {size}"
        )
    return HararyRing(parameters.degree, size)
