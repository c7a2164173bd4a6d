"""A session run up to the computation of its sum."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.crypto.modular import UnsignedArray, word_dtype
from secagg.protocol.events import ComputeSum
from secagg.protocol.messages import Round
from secagg.protocol.parameters import ProtocolParameters
from secagg.simulation import InProcessSession
from secagg.storage.spool import UploadSpool
from secagg_testing.cohorts import one_hot, parameters_for


def summing_session(
    modulus: int,
    *,
    dimension: int = 40,
    clients: int = 6,
    lost: Sequence[int] = (2, 4),
) -> tuple[InProcessSession, ComputeSum]:
    """Run the cores up to the sum, and return the session and its job.

    Args:
        modulus: m.
        dimension: d.
        clients: Their inputs are `one_hot`.
        lost: Clients that send shares and no input.
    """
    parameters = parameters_for(
        clients, dimension=dimension, threshold=3, modulus=modulus
    )
    inputs = [one_hot(n, dimension, modulus) for n in range(clients)]
    session = InProcessSession(parameters, inputs)
    jobs: list[ComputeSum] = []

    def keep(job: ComputeSum) -> UnsignedArray:
        jobs.append(job)
        return np.zeros(dimension, word_dtype(modulus))

    vars(session)["compute_sum"] = keep
    survivors = sorted(set(range(clients)) - set(lost))
    for which in (Round.ADVERTISE_KEYS, Round.SHARE_KEYS):
        session.play(which)
        session.close(which)
    for which in (Round.MASKED_INPUT_COLLECTION, Round.UNMASKING):
        session.play(which, survivors)
        session.close(which)
    return session, jobs[0]


def spool_uploads(
    session: InProcessSession, job: ComputeSum, spool: UploadSpool
) -> None:
    """Put the uploads of a session into a spool."""
    for index, digest in job.uploads:
        packed = session.uploads[digest]
        spool.append(
            job.session_id,
            str(index),
            digest,
            offset=0,
            total_size=len(packed),
            data=packed,
        )
        spool.commit(job.session_id, str(index), digest)


def expected_sum(
    parameters: ProtocolParameters, survivors: Sequence[int]
) -> npt.NDArray[Any]:
    """Return the sum of the survivors' inputs, shape (d,), residues modulo m."""
    total = np.zeros(parameters.dimension, object)
    for number in survivors:
        total += one_hot(number, parameters.dimension, parameters.modulus).astype(
            object
        )
    return total % parameters.modulus
