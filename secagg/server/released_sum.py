"""The sum of one session, as its operator is given it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.distributed_dp import (
    EXACT,
    NoisyTask,
    PrivacyReport,
    SumError,
    SumEstimate,
)
from secagg.distributed_dp.plain_sums import decode_integers
from secagg.protocol.descriptor import SessionDescriptor
from secagg.server.session.receipt import SessionReceipt


@dataclass(frozen=True, slots=True, eq=False)
class ReleasedSum(SumEstimate):
    """The sum of one session, with its error.

    Example:
        total = await task.next_sum()
        print(total)                        # its first entries, each with ±
        lowest, highest = total.interval(0.95)
        print(total.mean, "±", total.standard_error / total.inputs)

    Attributes:
        session_number: Number of the session.
        inputs: How many vectors the sum adds up.
        values: The sum, shape (d,): floats in the caller's units, or whole numbers
            from a task without noise.  With secret selection it is the estimate of the
            sum of all vectors, so that over `inputs` it is their mean.
        privacy: What the whole task costs its users; None for exact sums.
        l2_clip: Longest vector that was not shortened, caller's units; None for exact
            sums.  In tasks with adaptive clipping it moves from sum to sum.
        fitted: Released estimate of the part of the vectors that were not shortened;
            None where it is not stated.
        error: How far `values` may be from the sum of the vectors: `standard_error`,
            `interval` and `str` follow from it.
        residues: The sum as it was released, modulo m.
        receipt: The public facts of the session.
        audit: What `secagg sessions verify` verifies: any reader can recompute from
            these bytes who has agreed to the sets that were summed.
        shortened: How many vectors were longer than `l2_clip` and were shortened; None
            where the clients are not in this process (`secagg.local`).
        replaced: In the place of how many vectors zeros were given; None likewise.
    """

    session_number: int
    inputs: int
    values: npt.NDArray[Any] = field(repr=False)
    privacy: PrivacyReport | None
    l2_clip: float | None
    fitted: float | None
    error: SumError = field(repr=False)
    residues: npt.NDArray[np.unsignedinteger[Any]] = field(repr=False)
    receipt: SessionReceipt = field(repr=False)
    audit: bytes = field(repr=False)
    shortened: int | None = None
    replaced: int | None = None

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """Who of the sum has sent a signature over its sets that does not hold.

        By name.  In a task with noise the sum may then be wrong.
        """
        return self.receipt.unconfirmed


def released_sum(
    descriptor: SessionDescriptor,
    residues: npt.NDArray[np.unsignedinteger[Any]],
    *,
    privacy: PrivacyReport | None,
    receipt: SessionReceipt,
    audit: bytes,
) -> ReleasedSum:
    """Return a sum in the units of its callers.

    Args:
        descriptor: The session.
        residues: The sum modulo m, shape (d,).
        privacy: What the task costs; None for exact sums.
        receipt: Of the session, which has released a sum.
        audit: The same, for verifiers.
    """
    parameters, inputs = descriptor.parameters, len(receipt.survivors)
    values: npt.NDArray[Any]
    clip = fitted = None
    error = EXACT
    if not parameters.noise_block:
        values = decode_integers(residues, parameters.modulus)
    else:
        task = NoisyTask.of_session(descriptor)
        values = task.decode(residues, session_id=descriptor.session_id)
        clip = task.l2_clip
        fitted = task.fitted(residues, inputs=inputs)
        error = task.sum_error(inputs=inputs, certificate=receipt.noise)
        if receipt.unconfirmed:
            error = error.with_flaw(_unconfirmed(receipt.unconfirmed))
    return ReleasedSum(
        session_number=descriptor.session_number,
        inputs=inputs,
        values=values,
        l2_clip=clip,
        fitted=fitted,
        error=error,
        privacy=privacy,
        residues=residues,
        receipt=receipt,
        audit=audit,
    )


def _unconfirmed(names: tuple[str, ...]) -> str:
    return (
        f"{', '.join(names)} signed other sets of clients, so that the sum itself may "
        "be wrong"
    )
