"""Integer vectors in and out of a session without noise.

A task without a noise block releases the exact sum. This hides single inputs and
nothing else: the difference of two sums, or a sum of similar inputs, can reveal a
person. Use `secagg.distributed_dp` for vectors about people.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.crypto.modular import word_dtype
from secagg.errors import InputError, LocalProtocolError
from secagg.protocol.events import PlainVector
from secagg.protocol.parameters import ProtocolParameters


def encode_integers(
    vector: npt.NDArray[Any], parameters: ProtocolParameters
) -> PlainVector:
    """Encode whole numbers as residues modulo m (R14.1-1).

    Args:
        vector: Integers, or floats without a fractional part, shape (d,), in
            [-m/2, m/2).  Sums outside this range wrap around.
        parameters: Parameters of a task without a noise block.

    Raises:
        InputError: NaN, infinity, a fraction, an entry out of range, or a wrong
            length or dtype; the message names the first offender.
        LocalProtocolError: The task demands noise.
    """
    if parameters.noise_block:
        raise LocalProtocolError(
            "this task requires noise; encode with secagg.distributed_dp"
        )
    if vector.shape != (parameters.dimension,):
        raise InputError(
            f"the input has shape {vector.shape}, the task needs "
            f"({parameters.dimension},)"
        )
    if vector.dtype.kind == "f":
        vector = _whole_numbers(vector)
    elif vector.dtype.kind not in "iu":
        raise InputError(
            f"the input has dtype {vector.dtype}, expected integers or whole floats"
        )
    lowest, above = -(parameters.modulus // 2), (parameters.modulus + 1) // 2
    out_of_range = np.flatnonzero((vector < lowest) | (vector >= above))
    if out_of_range.size:
        raise InputError(
            f"entry {int(out_of_range[0])} of the input lies outside "
            f"[{lowest}, {above}), the range of modulus {parameters.modulus}"
        )
    residues = vector.astype(np.int64) % parameters.modulus
    return PlainVector(residues.astype(word_dtype(parameters.modulus)))


def _whole_numbers(vector: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return floats as integers, or refuse an entry that is not whole."""
    broken = np.flatnonzero(~np.isfinite(vector))
    if broken.size:
        raise InputError(f"entry {int(broken[0])} of the input is NaN or infinite")
    fractions = np.flatnonzero(vector != np.trunc(vector))
    if fractions.size:
        raise InputError(
            f"entry {int(fractions[0])} of the input is not a whole number; scale and "
            "round it, or use a task with noise, which does both"
        )
    # Beyond 2^62 no modulus exists, and the conversion below would overflow.
    large = np.flatnonzero(np.abs(vector) > float(1 << 62))
    if large.size:
        raise InputError(f"entry {int(large[0])} of the input exceeds 2^62")
    return vector.astype(np.int64)


def decode_integers(
    residues: npt.NDArray[np.unsignedinteger[Any]], modulus: int
) -> npt.NDArray[np.int64]:
    """Return the sum as signed integers in [-m/2, m/2) (R14.1-2)."""
    values = residues.astype(np.int64)
    return np.where(values >= (modulus + 1) // 2, values - modulus, values)
