"""A server that hides from some clients which clients drew them."""

from collections.abc import Set as AbstractSet

from secagg.crypto.cipher_suite import CipherSuite
from secagg.protocol.graphs.edge_selection import EdgeTrees
from secagg.protocol.server.states import FixedCohort


def hiding_trees(
    cohort: FixedCohort, hidden: AbstractSet[tuple[int, int]], suite: CipherSuite
) -> EdgeTrees:
    """Return trees over the drawn edges that hide some of them.

    Who has drawn whom stands in two leaves: that of the drawer has it, that of the one
    who was drawn has not.

    Args:
        cohort: Of a state after ChooseEdges.
        hidden: Edges, as drawer and drawn.
        suite: Of the session.
    """
    if cohort.edges is None:
        raise ValueError("no client has drawn another one in this session")
    lists, whole = cohort.edges.lists, cohort.edges.graph
    drawers = {
        drawn: tuple(d for d in whole.dealers(drawn) if (d, drawn) not in hidden)
        for drawn in lists
    }
    size = len(cohort.roster)
    return EdgeTrees(cohort.ctx1, size, lists, suite, drawers=drawers)
