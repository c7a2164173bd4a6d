"""What clients put into sums, and what a sum of it must be.

Rule 1: what counts is what a client has handed to its session, noise included.  No
        other party knows it, so an exact sum is exact to the last bit of its noise.
Rule 2: of noise that could be taken back exactly that is missing from the sum which
        U2, U3 and the ladder say, from each survivor whose answer is on the disk.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.crypto.modular import UnsignedArray, zeros
from secagg.distributed_dp import NoisyTask, certify
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import NoisyVector, PlainVector
from secagg.protocol.noise_terms import NoiseCertificate, NoiseSecrets
from secagg.protocol.parameters import ProtocolParameters


@dataclass(frozen=True, slots=True)
class _Input:
    """What one client has handed to one session.

    Attributes:
        residues: The vector, noise included.
        layers: Of that the noise which can be taken back, by layer.
    """

    residues: UnsignedArray
    layers: tuple[UnsignedArray, ...] = ()


@dataclass(slots=True)
class Inputs:
    """The inputs of all sessions."""

    _given: dict[tuple[bytes, str], _Input] = field(default_factory=dict)

    def record(
        self,
        name: str,
        session: SessionDescriptor,
        vector: PlainVector | NoisyVector,
        secrets: NoiseSecrets,
    ) -> bool:
        """Record an input; return whether it equals the one recorded before, if any.

        Args:
            name: Of the client.
            session: The session of the input.
            vector: The vector that the client supplies.
            secrets: What its noise was drawn from.
        """
        key, layers = (session.session_id, name), _drawn(session.parameters, secrets)
        given = _Input(vector.residues.copy(), layers)
        before = self._given.setdefault(key, given)
        return np.array_equal(before.residues, given.residues)

    def expected(
        self,
        session: SessionDescriptor,
        *,
        clients: int,
        share_holders: int,
        survivors: Collection[str],
        answered: Collection[str],
    ) -> tuple[npt.NDArray[Any], NoiseCertificate | None]:
        """Return what the sum of a session must be, and what noise is in it.

        Args:
            session: The session.
            clients: |U1|.
            share_holders: |U2|.
            survivors: U3 by name; each has given an input.
            answered: Those whose answers to the unmasking are on the disk.
        """
        parameters, certificate = session.parameters, None
        modulus = parameters.modulus
        total = zeros(parameters.dimension, modulus).astype(np.int64)
        removed: tuple[int, ...] = ()
        if parameters.noise_layers:
            certificate = certify(parameters, clients, share_holders, len(survivors))
            removed = certificate.removed
        for name in survivors:
            given = self._given[session.session_id, name]
            total += given.residues.astype(np.int64)
            for layer in removed if name in answered else ():
                total -= given.layers[layer].astype(np.int64)
        return total % modulus, certificate


def _drawn(
    parameters: ProtocolParameters, secrets: NoiseSecrets
) -> tuple[UnsignedArray, ...]:
    """Draw the layers of one client again."""
    if not parameters.noise_layers:
        return ()
    task = NoisyTask.from_parameters(parameters)
    noise = task.session_noise(secrets.share_holders)
    return tuple(
        task.mechanism.layer_noise(
            [(variance, seed.reveal())], start=0, count=parameters.dimension
        )
        for variance, seed in zip(noise.layers, secrets.layers, strict=False)
    )
