"""A client that tells what it is about to mask, so that others can check a sum.

Never use it with vectors that matter: what it tells is what masks exist to hide.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.client.client import Client
from secagg.distributed_dp import NoisedTask, subtract_layers
from secagg.parameters import ProtocolParameters, SessionDescriptor
from secagg.primitives.modular import word_dtype
from secagg.protocol.events import NoisedVector, PlainVector
from secagg.protocol.noise_terms import NoiseSecrets
from secagg.protocol.outputs import NoiseRemoval

__all__ = ["RecordingClient"]

# Told the number of the session, the residues, and what each layer of noise that may be
# taken back would take off them, shape (layers, d); on a thread.
Residues = npt.NDArray[np.unsignedinteger[Any]]
Record = Callable[[int, Residues, Residues], None]


class RecordingClient(Client):
    """A `Client` that shows its integers, noise included, before it masks them.

    Attributes:
        record: Who is told; nobody until it is set.
    """

    record: Record = staticmethod(lambda _number, _residues, _layers: None)

    def _make_input(
        self, descriptor: SessionDescriptor, payload: bytes, secrets: NoiseSecrets
    ) -> PlainVector | NoisedVector:
        made = super()._make_input(descriptor, payload, secrets)
        layers = _layers(descriptor.parameters, secrets)
        self.record(descriptor.session_number, made.residues, layers)
        return made


def _layers(parameters: ProtocolParameters, secrets: NoiseSecrets) -> Residues:
    """Return the residues of each layer of this client's noise, shape (layers, d)."""
    count = 0
    if parameters.noise_block:
        task = NoisedTask.from_parameters(parameters)
        # Where no loss is tolerated there are seeds, and nothing to take back.
        count = len(task.session_noise(secrets.sharers).layers)
    shape = (count, parameters.dimension)
    rows = np.zeros(shape, word_dtype(parameters.modulus))
    for layer, row in enumerate(rows):
        seeds = ((layer, secrets.layers[layer]),)
        subtract_layers(
            row, NoiseRemoval(parameters.noise_block, secrets.sharers, seeds)
        )
        row[:] = np.where(row > 0, parameters.modulus - (row % parameters.modulus), 0)
    return rows % parameters.modulus
