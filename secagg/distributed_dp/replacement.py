"""Zeros with the whole noise in place of a vector that cannot be used (R3.5-5).

A client that knows the payload of a session stays in it, whatever its data are.
Otherwise the published number of inputs would tell a server that chose the payload one
bit about the data, without noise.

Zeros take the path of every vector, `NoisyTask.encode`.  They fit every clip, so that
no privacy statement changes.  After a restart the digest of the bound input decides.
"""

from dataclasses import dataclass, field
from enum import StrEnum, unique

import numpy as np

from secagg.distributed_dp.task import NoisyInput, NoisyTask
from secagg.errors import InputError
from secagg.protocol.client.handlers import input_digest
from secagg.protocol.noise_terms import NoiseSecrets
from secagg.protocol.vectors import as_vector


@unique
class UnusableKind(StrEnum):
    """Why a vector cannot be used, as one word for logs."""

    INVALID = "invalid"
    """It is not a vector of the task."""
    RAISED = "raised"
    """The function that returns it raised an exception."""
    LATE = "late"
    """It was not ready in time."""
    BUSY = "busy"
    """The function is still running for an earlier session."""
    BOUND = "bound"
    """Zeros were bound to the session before a restart."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why there is no vector.

    Attributes:
        kind: The reason as one word.
        reason: The reason as a clause after "zeros were given: ", for the owner of the
            vector alone.
    """

    kind: UnusableKind
    reason: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReplacedInput:
    """An encoded input of a session.

    Attributes:
        encoded: The vector or zeros, with the whole noise.
        replaced: Why it is zeros; None for the vector.
    """

    encoded: NoisyInput
    replaced: Unusable | None


def encode_or_zeros(
    task: NoisyTask,
    given: object,
    *,
    session_id: bytes,
    secrets: NoiseSecrets,
    bound: bytes = b"",
) -> ReplacedInput:
    """Encode a vector, or zeros if it cannot be encoded (R3.5-5).

    Args:
        task: Task of the session.
        given: The vector, shape (dim,), caller's units; or why it is missing.
        session_id: Id of the session.
        secrets: The secrets from which the noise is drawn.
        bound: Digest of the input that the session accepted before a restart; b""
            before one is bound.

    Returns:
        The input. With `bound`, whichever of vector and zeros has this digest; if
            neither has, an input that the session refuses (R5.3-2).

    Raises:
        RemoteProtocolError: BAD_CONFIG; for so many share holders there is no noise.
    """
    encoded, why = None, given if isinstance(given, Unusable) else None
    if why is None:
        try:
            vector = as_vector(given, task.dim, noisy=True)
            encoded = task.encode(vector, session_id=session_id, secrets=secrets)
        except InputError as error:
            why = Unusable(UnusableKind.INVALID, str(error))
        except Exception as error:  # noqa: BLE001 - if data caused it, an abort would reveal that
            kind = type(error).__name__
            why = Unusable(UnusableKind.INVALID, f"encoding it ended in {kind}")
    if encoded is not None and bound in {b"", input_digest(encoded.vector)}:
        return ReplacedInput(encoded, None)
    zeros = task.encode(
        np.zeros(task.dim), session_id=session_id, secrets=secrets
    )  # an error that the data did not cause is raised here
    if bound and bound != input_digest(zeros.vector):
        return ReplacedInput(zeros if encoded is None else encoded, None)
    return ReplacedInput(
        zeros,
        why
        or Unusable(
            UnusableKind.BOUND, "they were bound to the session before a restart"
        ),
    )
