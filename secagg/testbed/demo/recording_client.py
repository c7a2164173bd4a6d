"""A client that records what it is about to mask, so that a sum can be checked.

Never use it with vectors that matter: it discloses what masks exist to hide.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.client.client import Client
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import NoisyVector, PlainVector
from secagg.protocol.noise_terms import NoiseSecrets

# Called with the number of the session, the residues, and the secrets of their noise;
# on a thread.
Record = Callable[[int, npt.NDArray[np.unsignedinteger[Any]], NoiseSecrets], None]


class RecordingClient(Client):
    """A `Client` that records its integers, noise included, before it masks them.

    Attributes:
        record: Receives the integers; None until it is set.
    """

    record: Record = staticmethod(lambda _number, _residues, _secrets: None)

    def _make_input(
        self, descriptor: SessionDescriptor, payload: bytes, secrets: NoiseSecrets
    ) -> PlainVector | NoisyVector:
        made = super()._make_input(descriptor, payload, secrets)
        self.record(descriptor.session_number, made.residues, secrets)
        return made
