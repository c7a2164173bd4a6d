"""What a client gets for its part in a session, from its own record and the sum."""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.client.client_receipt import certificate_of
from secagg.crypto.modular import BadVectorError
from secagg.distributed_dp import (
    EXACT,
    NoisyTask,
    PrivacyReport,
    SumError,
    SumEstimate,
)
from secagg.distributed_dp.plain_sums import decode_integers
from secagg.errors import ErrorCode
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Released
from secagg.protocol.noise_terms import NoiseCertificate
from secagg.protocol.packing import packed_size, unpack
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.receipts.receipt import AuditReceipt, Outcome

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
            f"the sum has {released.size} bytes instead of {size}",
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
            f"the sum is no vector of the session: {error}",
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
