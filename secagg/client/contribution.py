"""What a client gets for its part in a session, and can show of it later.

Its own receipt is made from what it has stored:

Rule 1: a receipt is made of the public bytes that this client received and accepted,
        and of its offer.  While a session runs they are its records on the disk, and
        nothing of them is kept in memory.
Rule 2: when the keys are erased, the records go with them.  What stays is `seen`:
        the same public bytes without a single bundle or share (PROTOCOL §12).
Rule 3: a client vouches for the sum of sets that it has answered for.  A sum that was
        released without its answer is the server's word about sets that it was not
        shown, or that no quorum has shown it; its receipt says that the session was
        over for it.

A client that is started again after the end of its task has not failed: its work was
done by an earlier process.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.crypto.modular import BadVectorError
from secagg.distributed_dp import (
    EXACT,
    NoisyTask,
    PrivacyReport,
    SumError,
    SumEstimate,
    certify,
)
from secagg.distributed_dp.units import decode_integers
from secagg.errors import ErrorCode
from secagg.protocol import context
from secagg.protocol.client.states import Completed, Failed
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import ClientEvent, Received
from secagg.protocol.messages import (
    Delivery,
    EdgesPublished,
    Fate,
    Quorum,
    Released,
    Roster,
    RosterFrame,
    Survivors,
)
from secagg.protocol.noise_terms import NoiseCertificate
from secagg.protocol.packing import packed_size, unpack
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.receipts.receipt import (
    AuditReceipt,
    Outcome,
    RosterCommitment,
    WrittenBy,
)
from secagg.storage.change import Side
from secagg.storage.client_store import ClientRecords
from secagg.storage.journal import decode_ending
from secagg.storage.queries import ListSessions, LoadSession
from secagg.storage.rows import SessionState


def offer_receipt(descriptor: SessionDescriptor) -> AuditReceipt:
    """Return the receipt of a client that has only been offered a session."""
    return AuditReceipt(
        writer=WrittenBy.CLIENT, offer=descriptor.encode(), outcome=Outcome.ABORTED
    )


def extended(
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
            seen = replace(seen, view=_roster_view(descriptor, envelope.data))
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


def completed(
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
    share_holders = _count_members(seen.share_holders)
    survivors = _count_members(seen.survivors)
    return certify(parameters, clients, share_holders, survivors)


def _roster_view(
    descriptor: SessionDescriptor, data: bytes
) -> bytes | RosterCommitment:
    """Return what a roster is in a receipt, whole or as its reader knows it."""
    frame = RosterFrame.decode(data)
    if frame.reader is None:
        return data
    ctx0 = context.session_context(descriptor)
    top = context.roster_top(ctx0, frame, descriptor.parameters.suite)
    return RosterCommitment(frame.size, top, frame.graph_seed)


def _count_members(bitmap: bytes) -> int:
    """Return how many bits of a bitmap are set."""
    return int.from_bytes(bitmap, "big").bit_count()


Residues = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Contribution(SumEstimate):
    """What a client gets for taking part in one session: the sum with its error.

    Attributes:
        session_number: Number of the session.
        inputs: How many vectors the sum adds up, this client's included.
        values: The sum, shape (d,): floats in the caller's units, or whole numbers
            from a task without noise; None for a client that does not fetch sums.  With
            secret selection it is the estimate of the sum of all vectors.
        privacy: What the whole task costs this client, computed by itself; None for a
            task that releases exact sums.
        grounds: How the privacy figure is known for this session, such as "certified
            (own proof)", or "certified (own proof), with 9.09e-13 added to delta" where
            its ring may have been cut with that chance; "" with `privacy` None.
        shortened_by: Length of this client's vector over what clipping left of it, 1.0
            if it fitted; None when the vector had left before a restart, where zeros
            took its place, and where a lost selection may spare its making
            (`answer_at`), since it would tell the selection.  It says something about
            the vector: tell its owner alone.
        replaced: Why zeros were given in the place of this client's vector, as a
            clause; None for the vector itself, when the input had left before a
            restart, and where a lost selection may spare the making, as above.  It may
            say something about the data: tell their owner alone.
        sessions_left: How many more sessions of this client the budget of the task
            covers; None for a task that releases exact sums.
        noise: What noise the sum holds at least, computed by this client from the sets
            for which it has answered; None for a task that releases exact sums, and
            where it was not asked to answer.
        error: How far `values` may be from the sum of the vectors, at most: this client
            does not know how much noise the others have taken back.
        audit: What `secagg sessions verify` verifies: this client's own receipt of the
            session, from what it has received and signed (docs/receipts.md).
    """

    session_number: int
    inputs: int
    values: npt.NDArray[Any] | None = field(repr=False)
    privacy: PrivacyReport | None
    grounds: str
    shortened_by: float | None = field(repr=False)
    sessions_left: int | None
    error: SumError = field(repr=False)
    replaced: str | None = field(default=None, repr=False)
    noise: NoiseCertificate | None = None
    audit: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class SessionOutcome:
    """A session that released a sum.

    Attributes:
        descriptor: The session.
        released: Hash and size of the sum, number of survivors.
        is_certain: No choice of colluders could have had more than this one sum
            unmasked.  Always so on the complete graph; on a ring it is found by this
            process when it answers, and not known after a restart.
        residues: The sum modulo m, words of the modulus, shape (d,), entries in
            [0, m); None when it was not wanted.
        audit: This client's receipt (`secagg.protocol.receipts`).
        shortened_by: See `Contribution`.
        replaced: See `Contribution`.
    """

    descriptor: SessionDescriptor
    released: Released
    is_certain: bool
    audit: bytes = field(repr=False)
    residues: Residues | None = field(default=None, repr=False)
    shortened_by: float | None = field(default=None, repr=False)
    replaced: str | None = field(default=None, repr=False)

    @property
    def survivors(self) -> int:
        """How many inputs the sum adds up."""
        return self.released.survivors


def contribution_of(
    outcome: SessionOutcome,
    *,
    report_of: Callable[[NoisyTask], PrivacyReport],
    sessions_left: int | None = None,
) -> Contribution:
    """Return what a client gets for a session that has released a sum.

    Args:
        outcome: The session.
        report_of: Returns what a task costs this client; may take seconds.
        sessions_left: See `Contribution`.
    """
    descriptor, released = outcome.descriptor, outcome.released
    residues, audit = outcome.residues, outcome.audit
    parameters = descriptor.parameters
    values: npt.NDArray[Any] | None = None
    privacy = noise = None
    grounds, error = "", EXACT
    if parameters.noise_block:
        task = NoisyTask.of_session(descriptor)
        if residues is not None:
            values = task.decode(residues, session_id=descriptor.session_id)
        privacy = report_of(task)
        seen = AuditReceipt.decode(audit)
        if seen.outcome is Outcome.RELEASED:  # this client has answered for the sets
            noise = certificate_of(parameters, seen)
        error = task.sum_error(inputs=released.survivors, certificate=noise)
        added = 0.0 if outcome.is_certain else 2.0**-parameters.graph_bits
        grounds = privacy.grounds(graph_delta=added)
    elif residues is not None:
        values = decode_integers(residues, parameters.modulus)
    if outcome.replaced is not None:
        error = error.with_flaw("zeros replaced this client's vector")
    elif (by := outcome.shortened_by) is not None and by > 1.0:
        error = error.with_flaw("this client's vector was shortened")
    return Contribution(
        session_number=descriptor.session_number,
        inputs=released.survivors,
        values=values,
        privacy=privacy,
        grounds=grounds,
        shortened_by=outcome.shortened_by,
        sessions_left=sessions_left,
        error=error,
        replaced=outcome.replaced,
        noise=noise,
        audit=audit,
    )


def check_size_of_sum(released: Released, parameters: ProtocolParameters) -> int:
    """Return how many bytes a released sum has.

    Raises:
        RemoteProtocolError: BAD_VECTOR; it is stated to have another size.
    """
    size = packed_size(parameters.dimension, parameters.bits)
    if released.size != size:
        raise ErrorCode.BAD_VECTOR.error(
            f"the sum has {released.size} bytes instead of {size}"
        )
    return size


def read_residues(packed: bytes, parameters: ProtocolParameters) -> Residues:
    """Return a sum of the size and hash that were released.

    Raises:
        RemoteProtocolError: BAD_VECTOR; it is no vector of the session.
    """
    try:
        return unpack(packed, parameters.dimension, parameters.bits, parameters.modulus)
    except BadVectorError as error:
        raise ErrorCode.BAD_VECTOR.error(
            f"the sum is no vector of the session: {error}"
        ) from None


def check_hash_of_sum(released: Released, packed: bytes) -> None:
    """Refuse another sum than the one that was released.

    Raises:
        RemoteProtocolError: PAYLOAD_MISMATCH.
    """
    if sha256(packed).digest() != released.sum_hash:
        raise ErrorCode.PAYLOAD_MISMATCH.error(
            "the sum is not the one that the session has released",
            fix="Fetch it again; if it differs again, tell the operator.",
        )


@dataclass(frozen=True, slots=True)
class Participation:
    """A session whose sum holds this client's input.

    Attributes:
        session_number: Its number within the task.
        inputs: How many vectors the sum adds up, this client's included.
    """

    session_number: int
    inputs: int


async def last_part(store: ClientRecords, task_id: str) -> Participation | None:
    """Return the latest session of a task whose sum holds this client's input.

    Args:
        store: The client's.
        task_id: Name of the task.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    for row in await store.read(
        ListSessions(role=Side.CLIENT, task=task_id, state=SessionState.ENDED)
    ):
        stored = await store.read(LoadSession(row.key))
        if stored is None or stored.receipt is None:
            continue
        ending = decode_ending(stored.receipt).state
        if isinstance(ending, Completed) and ending.outcome.fate is Fate.INCLUDED:
            return Participation(row.number, ending.outcome.survivors)
    return None


async def receipt_of(
    store: ClientRecords, task_id: str, session_number: int
) -> bytes | None:
    """Return the receipt of a session that is over for this client, or None.

    Args:
        store: The client's.
        task_id: Name of the task.
        session_number: Of the session; of two aggregators' the newer one counts.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    for row in await store.read(
        ListSessions(role=Side.CLIENT, task=task_id, state=SessionState.ENDED)
    ):
        if row.number != session_number:
            continue
        stored = await store.read(LoadSession(row.key))
        if stored is not None and stored.receipt is not None:
            return decode_ending(stored.receipt).audit
    return None
