"""The arrays of a model as one vector, and the hash of what an app trains on.

Rule 1: order and names are the same on both sides: keys by their UTF-8 bytes.
Rule 2: only numbers with a fractional part are summed; counters are refused by name.
Rule 3: the hash covers whatever the app is given, so that no node trains on something
        else than the session has announced (PROTOCOL §5.0).

Flower's own classes are not imported: arrays are read by their attributes.
"""

import math
import struct
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from secagg.errors import ErrorCode

Vector: TypeAlias = npt.NDArray[np.float64]

_DOMAIN: Final = b"secagg/flower-payload/v1\0"
_FLOATS: Final = frozenset({"float16", "float32", "float64"})
_NUMPY: Final = "numpy.ndarray"
_LENGTH: Final = struct.Struct(">Q")


class WireArray(Protocol):
    """An array as Flower's messages have it.

    Attributes:
        dtype: Name of the type of its entries.
        shape: Its shape, as stated.
        stype: How `data` is written.
        data: The entries, as they travel.
    """

    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes

    def numpy(self) -> npt.NDArray[Any]:
        """Read them."""
        ...


Arrays: TypeAlias = Mapping[str, WireArray]


def sorted_keys(arrays: Iterable[str]) -> list[str]:
    """Return names in the order of the vector."""
    return sorted(arrays, key=str.encode)


def dimension_of(arrays: Arrays) -> int:
    """Return how many numbers a model has, by its stated shapes.

    Raises:
        LocalProtocolError: An array has no fractional part, or is not numpy's.
    """
    for name in sorted_keys(arrays):
        if arrays[name].dtype not in _FLOATS or arrays[name].stype != _NUMPY:
            raise ErrorCode.LOCAL_MISUSE.error(
                f"array {name!r} is of type {arrays[name].dtype}, and only float16, "
                "float32 and float64 of numpy are summed",
                fix="Give the strategy floating-point arrays alone, and leave "
                "counters such as num_batches_tracked out of the model.",
            )
    return sum(math.prod(each.shape) for each in arrays.values())


def flatten(arrays: Arrays) -> Vector:
    """Return a model as one vector of shape (d,).

    Raises:
        LocalProtocolError: As `dimension_of`, or an array is not of its stated shape.
    """
    dimension_of(arrays)
    parts = []
    for name in sorted_keys(arrays):
        part = arrays[name].numpy()
        if part.shape != tuple(arrays[name].shape) or str(part.dtype) not in _FLOATS:
            raise ErrorCode.LOCAL_MISUSE.error(
                f"array {name!r} is not what its header states"
            )
        parts.append(part.astype(np.float64).ravel())
    return np.concatenate(parts) if parts else np.zeros(0)


def restored(vector: Vector, like: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Return a vector as arrays of the shapes and types of a model, in its order.

    Raises:
        LocalProtocolError: A number is too large for its array.
    """
    found: dict[str, npt.NDArray[Any]] = {}
    start = 0
    for name in sorted_keys(like):
        shape = tuple(like[name].shape)
        end = start + math.prod(shape)
        with np.errstate(over="ignore"):
            array = vector[start:end].astype(like[name].dtype).reshape(shape)
        if not np.isfinite(array).all():
            raise ErrorCode.LOCAL_MISUSE.error(
                f"array {name!r} of type {like[name].dtype} cannot hold the new model",
                fix="Use a wider type, or a smaller l2_clip.",
            )
        found[name] = array
        start = end
    return {name: found[name] for name in like}


def payload_hash(message_type: str, records: Mapping[str, object]) -> bytes:
    """Return the SHA-256 of what the training function of an app is given.

    The order counts, too, which Flower keeps: apps take arrays by their place.

    Args:
        message_type: Of the instruction: it names the function.
        records: Mappings of arrays, or of the values of a configuration, by name.

    Raises:
        LocalProtocolError: A value is of a type that no record of Flower has.
    """
    digest = sha256(_DOMAIN)
    digest.update(_length_prefixed(message_type.encode()))
    for name, record in records.items():
        if not isinstance(record, Mapping):
            raise ErrorCode.LOCAL_MISUSE.error(f"record {name!r} has no entries")
        digest.update(_length_prefixed(name.encode()) + _LENGTH.pack(len(record)))
        for key, value in record.items():
            digest.update(_length_prefixed(key.encode()))
            if hasattr(value, "stype"):
                head = f"{value.dtype} {tuple(value.shape)} {value.stype}"
                digest.update(b"a" + _length_prefixed(head.encode()))
                digest.update(_LENGTH.pack(len(value.data)))
                digest.update(value.data)
            else:
                digest.update(_scalar(value))
    return digest.digest()


def _scalar(value: object) -> bytes:
    """Encode one value of a record."""
    match value:
        case bool():
            return b"b" + bytes([value])
        case int():
            return b"i" + _length_prefixed(str(value).encode())
        case float():
            return b"f" + struct.pack(">d", value)
        case str():
            return b"s" + _length_prefixed(value.encode())
        case bytes():
            return b"y" + _length_prefixed(value)
        case list():
            return b"l" + _LENGTH.pack(len(value)) + b"".join(map(_scalar, value))
    raise ErrorCode.LOCAL_MISUSE.error(
        f"a record has a value of type {type(value).__name__}",
        fix="Give whole numbers, floats, texts, bytes, or lists of them.",
    )


def _length_prefixed(data: bytes) -> bytes:
    """Return bytes with their length before them."""
    return _LENGTH.pack(len(data)) + data
