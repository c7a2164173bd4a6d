"""What a client can show of a session: its own receipt, from what it has stored.

Rule 1: a receipt is made of the public bytes that this client received and accepted,
        and of its offer.  While a session runs they are its records on the disk, and
        nothing of them is kept in memory.
Rule 2: when the keys are erased, the records go with them.  What stays is `seen`:
        the same public bytes without a single bundle or share (PROTOCOL §12).
Rule 3: a client vouches for the sum of sets that it has answered for.  A sum that was
        released without its answer is the server's word about sets that it was not
        shown, or that no quorum has shown it; its receipt says that the session was
        over for it.
"""

from collections.abc import Iterable
from dataclasses import replace

from secagg.distributed_dp import certify
from secagg.errors import ErrorCode
from secagg.protocol import context
from secagg.protocol.client.states import Completed, Failed
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import ClientEvent, Received
from secagg.protocol.messages import (
    Delivery,
    EdgesPublished,
    Quorum,
    Roster,
    RosterFrame,
    Survivors,
)
from secagg.protocol.noise_terms import NoiseCertificate
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.receipts.receipt import (
    AuditReceipt,
    Outcome,
    RosterCommitment,
    WrittenBy,
)


def seen_at_offer(descriptor: SessionDescriptor) -> AuditReceipt:
    """Return the receipt of a client that has only been offered a session."""
    return AuditReceipt(
        writer=WrittenBy.CLIENT, offer=descriptor.encode(), outcome=Outcome.ABORTED
    )


def seen_with(
    seen: AuditReceipt, descriptor: SessionDescriptor, events: Iterable[ClientEvent]
) -> AuditReceipt:
    """Add to a receipt what a client has received and accepted since.

    Args:
        seen: What was seen before.
        descriptor: The offer.
        events: As they were accepted, in their order.

    Returns:
        The receipt of a session that has not ended yet: how it ends is open.
    """
    for event in events:
        if not isinstance(event, Received):
            continue
        envelope = event.envelope
        if envelope.kind is Roster:
            seen = replace(seen, view=_view(descriptor, envelope.data))
        elif envelope.kind is EdgesPublished:
            shown = EdgesPublished.decode(envelope.data)
            seen = replace(seen, edge_root=shown.edge_root)
        elif envelope.kind is Delivery:
            share_holders = Delivery.decode(envelope.data).share_holders
            seen = replace(seen, share_holders=share_holders)
        elif envelope.kind is Survivors:
            seen = replace(seen, survivors=envelope.data)
        elif envelope.kind is Quorum:
            seen = replace(seen, quorum=envelope.data)
    return seen


def concluded(
    seen: AuditReceipt,
    descriptor: SessionDescriptor,
    ended: Completed | Failed,
    *,
    has_answered: bool,
) -> AuditReceipt:
    """Return the receipt of a session that has ended for this client.

    Args:
        seen: All that was seen of it.
        descriptor: The offer.
        ended: How it ended.
        has_answered: This client has given the shares that its sets ask for.

    Raises:
        RemoteProtocolError: BAD_CONFIG; a noise block that this client answered for
            has no certificate for its own sets.
    """
    if isinstance(ended, Failed):
        return replace(seen, code=ended.code)
    if not has_answered:
        return replace(seen, code=ErrorCode.SESSION_OVER)
    parameters, certificate = descriptor.parameters, b""
    if parameters.noise_layers:
        certificate = certificate_of(parameters, seen).encode()
    return replace(
        seen,
        outcome=Outcome.RELEASED,
        sum_hash=ended.outcome.sum_hash,
        size=ended.outcome.size,
        certificate=certificate,
    )


def certificate_of(
    parameters: ProtocolParameters, seen: AuditReceipt
) -> NoiseCertificate:
    """Return what noise a sum holds whose sets this client has answered for.

    Args:
        parameters: Of the session, with a noise block.
        seen: With a view and both sets.

    Raises:
        RemoteProtocolError: BAD_CONFIG; the block has no answer for these sets.
    """
    if isinstance(seen.view, RosterCommitment):
        clients = seen.view.clients
    else:
        clients = RosterFrame.decode(seen.view or b"").size
    share_holders, survivors = _size(seen.share_holders), _size(seen.survivors)
    return certify(parameters, clients, share_holders, survivors)


def _view(descriptor: SessionDescriptor, data: bytes) -> bytes | RosterCommitment:
    """Return what a roster is in a receipt, whole or as its reader knows it."""
    frame = RosterFrame.decode(data)
    if frame.reader is None:
        return data
    ctx0 = context.session_context(descriptor)
    top = context.roster_top(ctx0, frame, descriptor.parameters.suite)
    return RosterCommitment(frame.size, top, frame.graph_seed)


def _size(bitmap: bytes) -> int:
    return int.from_bytes(bitmap, "big").bit_count()
