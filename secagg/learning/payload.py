"""What a session of a training task hands out: the model, and how it is trained.

Bytes, integers and floats big-endian:

    "SAL1" ‖ u16 version ‖ u64 step ‖ 32 digest of the schema ‖ f64 max_weight
    ‖ f64 kappa ‖ u32 length ‖ config, JSON ‖ the arrays as .npz

The session's keys depend on the hash of the payload, so that all clients of a sum have
one model and one schema.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from secagg.errors import ErrorCode, InputError
from secagg.learning.array_files import read_arrays, write_arrays
from secagg.learning.vectors import Array, VectorSpec
from secagg.learning.weights import Weighting

_MAGIC: Final = b"SAL1"
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">4sHQ32sddI")
# Settings of training, not data: a longer text is a mistake.
MAX_CONFIG_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class StepPayload:
    """What a client is given to train on.

    Attributes:
        step: Number of the step, from 1.
        weighting: How clients are weighted.
        config: What the server says about training, such as a learning rate.
        arrays: The model by the names of its arrays.
    """

    step: int
    weighting: Weighting
    config: Mapping[str, Any]
    arrays: Mapping[str, Array] = field(repr=False)

    def encode(self) -> bytes:
        """Return the bytes of the payload.

        Raises:
            LocalProtocolError: The config is no JSON, or too long.
        """
        config = encode_config(self.config)
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            self.step,
            VectorSpec.of_names(self.arrays).digest,
            self.weighting.max_weight,
            self.weighting.kappa,
            len(config),
        )
        return head + config + write_arrays(self.arrays)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` has written; the server may have written anything.

        Raises:
            InputError: It is no payload of a training task.
        """
        if not is_step(data):
            raise _payload_error("is not the model of a training task")
        _, version, step, digest, max_weight, kappa, length = _HEAD.unpack_from(data)
        begin = _HEAD.size + length
        if version != _VERSION or length > MAX_CONFIG_BYTES or begin > len(data):
            raise _payload_error("has another version, or a damaged head")
        try:
            config = json.loads(data[_HEAD.size : begin])
        except (ValueError, RecursionError):
            raise _payload_error("has a config that is no JSON") from None
        arrays = read_arrays(
            data[begin:], max_bytes=len(data), what="the model of the payload"
        )
        spec = VectorSpec.of_names(arrays)
        if not _is_weighting(max_weight, kappa) or not isinstance(config, dict):
            raise _payload_error("has a head that cannot be")
        if spec.digest != digest:
            raise _payload_error("has arrays of another schema than its head")
        weighting = Weighting(max_weight, kappa)
        return cls(step, weighting, config, arrays)

    @property
    def spec(self) -> VectorSpec:
        """Schema of the model."""
        return VectorSpec.of_names(self.arrays)


def _is_weighting(max_weight: float, kappa: float) -> bool:
    """Say whether two numbers of the server weight clients; privacy does not depend."""
    if max_weight == 0.0:
        return kappa == 0.0
    return 0.0 < max_weight < math.inf and 0.0 < kappa <= 1.0


def is_step(payload: bytes) -> bool:
    """Say whether a payload begins like that of a training task."""
    return payload.startswith(_MAGIC) and len(payload) >= _HEAD.size


def encode_config(config: Mapping[str, Any]) -> bytes:
    """Return a config as JSON, the same bytes for equal configs.

    Raises:
        LocalProtocolError: It is no JSON, or too long.
    """
    try:
        text = json.dumps(dict(config), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError):
        raise ErrorCode.LOCAL_MISUSE.error(
            "config is not a dict of texts, numbers, lists and dicts",
            fix="Pass values that JSON can hold.",
        ) from None
    if len(text) > MAX_CONFIG_BYTES:  # ASCII
        raise ErrorCode.LOCAL_MISUSE.error(
            f"config has {len(text)} bytes, expected at most {MAX_CONFIG_BYTES}",
            fix="Pass settings there, and data in the model.",
        )
    return text.encode()


def _payload_error(fault: str) -> InputError:
    """Return the error of a payload that is not a model."""
    return ErrorCode.BAD_INPUT.error(
        f"the payload of the session {fault}",
        kind=InputError,
        fix="Ask the operator which task trains a model.",
    )
