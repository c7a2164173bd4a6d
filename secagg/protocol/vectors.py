"""Validation of a caller's vector.

Lists, arrays, pandas Series and tensors become arrays of numbers. Data frames, masked
entries, text, generators and numbers that are not finite are refused. The texts name
types, shapes and positions, never values.
"""

import inspect
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.errors import InputError

# The largest range of integers that a float64 holds exactly.
_LARGEST_INTEGER: Final = 1 << 53
_MAX_ITEMSIZE: Final = 8


def as_vector(
    given: object,
    dimension: int | None = None,
    *,
    noisy: bool = False,
    name: str = "the vector",
) -> npt.NDArray[Any]:
    """Return a caller's vector as one row of finite numbers.

    Args:
        given: A list or tuple of numbers, a numpy array, a pandas Series, a tensor of
            torch, or an array of JAX.  The last three are recognised by their methods.
        dimension: Entries that it must have; None for any number of at least one.
        noisy: The vector is for a task with noise, which adds up floats.
        name: Subject of the sentence in the error.

    Returns:
        Integers or floats of at most 64 bits, shape (dimension,); float64 if `noisy`.
            It may share memory with `given`.

    Raises:
        InputError: Not one row of numbers, another length, NaN or infinity; if `noisy`
            also integers beyond 2^53.
    """
    array = _as_array(given, name)
    if array.ndim != 1:
        raise InputError(
            f"{name} has shape {array.shape}, expected one dimension",
            next_step="Flatten it with vector.ravel().",
        )
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > _MAX_ITEMSIZE:
        raise InputError(
            f"{name} holds {array.dtype}, expected numbers of at most 64 bits",
            next_step="Convert it with vector.astype(float).",
        )
    if dimension is not None and array.size != dimension:
        raise InputError(
            f"{name} has {array.size} entries, the task adds up vectors of {dimension}",
            next_step="Supply a vector of that length.",
        )
    if array.size == 0:
        raise InputError(
            f"{name} is empty, expected at least one entry",
            next_step="Supply a vector of the length that the task adds up.",
        )
    if array.dtype.kind == "f":
        finite = np.isfinite(array)
        if not finite.all():
            raise InputError(
                f"{name} has NaN or infinity, first at entry {int(np.argmin(finite))}",
                next_step="Replace such entries.",
            )
    elif noisy and max(int(array.max()), -int(array.min())) > _LARGEST_INTEGER:
        raise InputError(
            f"{name} has integers that a float64 cannot hold",
            next_step="Scale it down.",
        )
    return array.astype(np.float64, copy=False) if noisy else array


def _as_array(given: object, name: str) -> npt.NDArray[Any]:
    """Return an array of any kind and shape, without a copy where possible."""
    if isinstance(given, np.ma.MaskedArray):
        if np.ma.getmaskarray(given).any():
            raise InputError(
                f"{name} has masked entries",
                next_step="Fill them, for example with vector.filled(0).",
            )
        return np.asarray(given.data)
    try:
        _refuse_what_is_no_array(given, name)
        tensor: Any = given
        if hasattr(tensor, "detach") and hasattr(tensor, "cpu"):  # torch
            tensor = tensor.detach().cpu().numpy()
        return np.asarray(tensor)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - code of the caller's type runs here
        # The cause may quote entries, so the traceback omits it.
        raise InputError(
            f"{name}, {_kind_of(given)}, cannot be read as one row of numbers "
            f"({type(error).__name__})",
            next_step="Supply a flat list or a numpy array of float64.",
        ) from None


def _refuse_what_is_no_array(given: object, name: str) -> None:
    """Refuse objects that are not arrays, with the way to make one."""
    if inspect.iscoroutine(given):
        given.close()  # otherwise Python warns that it was never awaited
        complaint, way_out = "is a coroutine", "Await it, and pass the result."
    elif inspect.isawaitable(given):
        complaint, way_out = "has to be awaited", "Await it, and pass the result."
    elif given is None or isinstance(given, str | bytes | bytearray):
        complaint, way_out = f"is {_kind_of(given)}", "Supply a list of numbers."
    elif isinstance(given, Iterator):
        complaint, way_out = "is an iterator", "Supply list(vector)."
    elif isinstance(given, Mapping | AbstractSet):
        complaint, way_out = f"is {_kind_of(given)}", "Supply a list of its numbers."
    elif hasattr(given, "to_numpy") and hasattr(given, "columns"):  # pandas, polars
        complaint, way_out = "is a table", "Supply frame.to_numpy().ravel()."
    elif hasattr(given, "toarray") and hasattr(given, "nnz"):  # scipy
        complaint, way_out = "is sparse", "Supply vector.toarray().ravel()."
    else:
        return
    raise InputError(
        f"{name} {complaint}, expected one row of numbers", next_step=way_out
    )


def _kind_of(given: object) -> str:
    if given is None:
        return "None"
    if isinstance(given, str | bytes | bytearray):
        return "text"
    return f"of type {type(given).__name__}"
