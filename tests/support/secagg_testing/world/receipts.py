"""Checks of the receipts of a released sum against the disk.

A receipt is checked by the product's own verifier, as an outsider would, and
compared with messages of which the verifier knows nothing: those that clients have
sent.  It may say that a quorum has agreed only if these clients have signed, and, where
they draw their neighbours, only if its edge root covers the very lists that they drew
(R5.9-1, R5.9-3, R5.9-11).
"""

from collections.abc import Iterator
from itertools import pairwise

from secagg.distributed_dp import TaskNoiseVerifier
from secagg.errors import RemoteProtocolError
from secagg.protocol import context
from secagg.protocol.graphs.edge_selection import EdgeTrees
from secagg.protocol.messages import Consistency, Edges, RosterFrame, Round
from secagg.protocol.parameters import Graph
from secagg.protocol.receipts.verifier import Finding, Verdict, verify_receipt
from secagg.simulation.driver import simulated_trust
from secagg_testing.world.journals import Journal


def complaints(data: bytes, journal: Journal) -> Iterator[str]:
    """Yield the faults of a receipt of a released sum.

    Args:
        data: Of the aggregator, or of a client that has got the sum.
        journal: The session on the disk.
    """
    try:
        verdict = _verified(data)
    except RemoteProtocolError as error:
        yield f"it does not hold: {error}"
        return
    parameters = verdict.descriptor.parameters
    is_signed = parameters.profile.has_identities
    due = Finding.AGREED if is_signed else Finding.STATED
    if verdict.finding is not due:
        yield f"it shows that its sets are {verdict.finding}, not {due}"
    for what, found, which in (
        ("U2", verdict.share_holders, Round.SHARE_KEYS),
        ("U3", verdict.survivors, Round.MASKED_INPUT_COLLECTION),
    ):
        if len(found) != len(journal.senders(which)):
            yield f"its {what} is not that of the disk"
    if not verdict.names:
        return  # a client that reads its neighbourhood alone knows no other names
    signed = {name for kind, name in journal.taken if kind is Consistency}
    if is_signed and (
        len(verdict.signers) < parameters.quorum
        or not {verdict.names[each] for each in verdict.signers} <= signed
    ):
        yield "clients are said to have agreed who have not"
    for indices, which in (
        (verdict.share_holders, Round.SHARE_KEYS),
        (verdict.survivors, Round.MASKED_INPUT_COLLECTION),
    ):
        if {verdict.names[each] for each in indices} != journal.senders(which):
            yield f"it names others than those who have answered in {which.name}"
    if parameters.graph is Graph.K_OUT:
        yield from _edge_complaints(verdict, journal)


def _verified(data: bytes) -> Verdict:
    """Verify a receipt as an outsider does who pins the key of simulations."""
    return verify_receipt(
        data,
        enrolment_key=simulated_trust().enrolment_key,
        noise=TaskNoiseVerifier(),
    )


def _edge_complaints(verdict: Verdict, journal: Journal) -> Iterator[str]:
    """Compare the edge root with the edges that clients have drawn."""
    parameters, receipt = verdict.descriptor.parameters, verdict.receipt
    lists: dict[int, Edges] = {}
    for index, name in enumerate(verdict.names):
        said = journal.taken.get((Edges, name))
        if said is None:
            continue
        lists[index] = edges = Edges.decode(said)
        is_ascending = all(one < other for one, other in pairwise(edges.drawn))
        others = set(range(verdict.clients)) - {index}
        if (
            not is_ascending
            or len(edges.drawn) != parameters.degree
            or not set(edges.drawn) <= others
        ):
            yield f"{name} has not drawn {parameters.degree} others"
            return
    if not verdict.share_holders <= lists.keys():
        yield "a client has shared that has drawn no neighbours"
    if not isinstance(receipt.view, bytes):
        return
    suite = parameters.suite
    ctx0 = context.session_context(verdict.descriptor)
    frame = RosterFrame.decode(receipt.view)
    ctx1 = context.roster_context(ctx0, frame, suite)
    if receipt.edge_root != EdgeTrees(ctx1, verdict.clients, lists, suite).root:
        yield "its edge root does not cover what clients have drawn"
