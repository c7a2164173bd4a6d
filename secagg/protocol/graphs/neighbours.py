"""Who shares secrets and masks with whom.

* The complete graph: everybody with everybody.  A dealer holds one share of its own
  secrets, so each secret has n holders.
* The Harary ring of degree k, for the honest-curious profile only: clients stand in a
  ring in the order of the roster, which the server's seed draws once everybody is
  known, and share with the k/2 next on either side.  A dealer holds no share of its
  own secrets, so each secret has k holders (PROTOCOL §11).
* The drawn graph, for profile malicious-server-sparse only: each client draws k others,
  after the roster is fixed, who hold the shares of its secrets.  Masks join the two
  ends of every edge, whoever drew it (PROTOCOL §11.4).

Source:
    [Bell20] section 3; [Bon17] for the complete graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.parameters import Graph, ProtocolParameters


class SharingGraph(Protocol):
    """Who shares what with whom, over roster indices 0..n-1."""

    def mask_peers(self, index: int) -> tuple[int, ...]:
        """Return the clients that `index` shares masks with, ascending; symmetric."""

    def holders(self, dealer: int) -> tuple[int, ...]:
        """Return who holds a share of the secrets of `dealer`, ascending."""

    def dealers(self, holder: int) -> tuple[int, ...]:
        """Return whose shares `holder` holds, ascending."""

    @property
    def has_common_holders(self) -> bool:
        """Whether all secrets have the same holders."""

    def receivers(self, dealer: int) -> tuple[int, ...]:
        """Return whom `dealer` sends bundles to: its holders but itself, ascending."""

    def senders(self, holder: int) -> tuple[int, ...]:
        """Return who sends `holder` bundles: its dealers but itself, ascending."""

    def place(self, dealer: int, receiver: int) -> int:
        """Return the place of `receiver` in `receivers(dealer)`."""

    def abscissa(self, dealer: int, holder: int) -> int:
        """Return where `holder` stands on the polynomials of `dealer` (PROTOCOL §7).

        One more than its place among the holders: secrets of dealers with as many
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
        """See `SharingGraph`."""
        return True

    def mask_peers(self, index: int) -> tuple[int, ...]:
        """See `SharingGraph`."""
        return tuple(other for other in range(self.size) if other != index)

    def holders(self, dealer: int) -> tuple[int, ...]:  # noqa: ARG002 - all hold
        """See `SharingGraph`."""
        return tuple(range(self.size))

    def dealers(self, holder: int) -> tuple[int, ...]:  # noqa: ARG002 - of all
        """See `SharingGraph`."""
        return tuple(range(self.size))

    def receivers(self, dealer: int) -> tuple[int, ...]:
        """See `SharingGraph`."""
        return self.mask_peers(dealer)

    def senders(self, holder: int) -> tuple[int, ...]:
        """See `SharingGraph`."""
        return self.mask_peers(holder)

    def place(self, dealer: int, receiver: int) -> int:
        """See `SharingGraph`."""
        return receiver if receiver < dealer else receiver - 1

    def abscissa(self, dealer: int, holder: int) -> int:  # noqa: ARG002 - all hold
        """See `SharingGraph`."""
        return holder + 1

    def count_holders(
        self,
        dealer: int,  # noqa: ARG002 - all hold
        alive: frozenset[int],
    ) -> int:
        """See `SharingGraph`."""
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
        """See `SharingGraph`."""
        return False

    def mask_peers(self, index: int) -> tuple[int, ...]:
        """See `SharingGraph`."""
        end, start = self._runs(index)
        arc = (*range(end), *range(start, start + self.degree + 1 - end))
        return tuple(each for each in arc if each != index)

    def _runs(self, index: int) -> tuple[int, int]:
        """Return where the k + 1 places around `index` lie on the roster.

        They are the places below the first number, which is 0 unless they go past an
        end of the roster, and as many as are left from the second number on.
        """
        first, end = index - self.degree // 2, index + self.degree // 2 + 1
        if first < 0:
            return end, first + self.size
        return max(0, end - self.size), first

    def holders(self, dealer: int) -> tuple[int, ...]:
        """See `SharingGraph`."""
        return self.mask_peers(dealer)

    def dealers(self, holder: int) -> tuple[int, ...]:
        """See `SharingGraph`."""
        return self.mask_peers(holder)

    def receivers(self, dealer: int) -> tuple[int, ...]:
        """See `SharingGraph`."""
        return self.mask_peers(dealer)

    def senders(self, holder: int) -> tuple[int, ...]:
        """See `SharingGraph`."""
        return self.mask_peers(holder)

    def place(self, dealer: int, receiver: int) -> int:
        """See `SharingGraph`."""
        end, start = self._runs(dealer)
        rank = receiver if receiver < end else receiver - start + end
        return rank - (dealer < receiver)

    def abscissa(self, dealer: int, holder: int) -> int:
        """See `SharingGraph`."""
        return self.place(dealer, holder) + 1

    def count_holders(self, dealer: int, alive: frozenset[int]) -> int:
        """See `SharingGraph`."""
        return len(alive.intersection(self.mask_peers(dealer)))


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """Every client has drawn who holds its shares; masks go along every edge.

    A client knows what touches itself: its own list, who drew it, and the lists of
    those.  A server knows all.  Of a client about which nothing is known, nobody is a
    neighbour.

    Attributes:
        drawn: Whom each client drew, k indices, ascending.
        drawers: Who drew each client, ascending.
    """

    drawn: Mapping[int, tuple[int, ...]] = field(repr=False)
    drawers: Mapping[int, tuple[int, ...]] = field(repr=False)

    @property
    def has_common_holders(self) -> bool:
        """See `SharingGraph`."""
        return False

    def mask_peers(self, index: int) -> tuple[int, ...]:
        """See `SharingGraph`."""
        return tuple(sorted({*self.holders(index), *self.dealers(index)}))

    def holders(self, dealer: int) -> tuple[int, ...]:
        """See `SharingGraph`."""
        return self.drawn.get(dealer, ())

    def dealers(self, holder: int) -> tuple[int, ...]:
        """See `SharingGraph`."""
        return self.drawers.get(holder, ())

    def receivers(self, dealer: int) -> tuple[int, ...]:
        """See `SharingGraph`."""
        return self.holders(dealer)

    def senders(self, holder: int) -> tuple[int, ...]:
        """See `SharingGraph`."""
        return self.dealers(holder)

    def place(self, dealer: int, receiver: int) -> int:
        """See `SharingGraph`."""
        return self.holders(dealer).index(receiver)

    def abscissa(self, dealer: int, holder: int) -> int:
        """See `SharingGraph`."""
        return self.place(dealer, holder) + 1

    def count_holders(self, dealer: int, alive: frozenset[int]) -> int:
        """See `SharingGraph`."""
        return len(alive.intersection(self.holders(dealer)))


def sharing_graph(
    parameters: ProtocolParameters, size: int, graph_seed: bytes
) -> SharingGraph:
    """Return the graph that the size of a roster defines, and whether it has a seed.

    Everybody derives it from the same public bytes, hence a neighbour list that is
    asymmetric, repeats a client, names oneself or has the wrong degree cannot be
    expressed (PROTOCOL §11).

    Args:
        parameters: Of the session.
        size: n, size of the roster.
        graph_seed: As in the roster, whose order it has drawn.

    Returns:
        Where clients draw their neighbours, a graph without edges: none is drawn yet.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION (R5.2-10) if the seed is missing on a ring
            or present on another graph, or the ring would overlap itself.
    """
    if parameters.graph is not Graph.RING:
        if graph_seed:
            raise RemoteProtocolError(
                "the roster carries a graph seed, but the session's graph is "
                f"{parameters.graph}",
                code=ErrorCode.POLICY_VIOLATION,
            )
        if parameters.graph is Graph.K_OUT:
            return DrawnGraph({}, {})
        return CompleteGraph(size)
    if not graph_seed:
        raise RemoteProtocolError(
            f"the roster has no graph seed for a ring of degree {parameters.degree}",
            code=ErrorCode.POLICY_VIOLATION,
        )
    if size < parameters.degree + 2:
        raise RemoteProtocolError(
            f"a ring of degree {parameters.degree} needs at least "
            f"{parameters.degree + 2} clients, the roster has {size}",
            code=ErrorCode.POLICY_VIOLATION,
        )
    return HararyRing(parameters.degree, size)
