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
from secagg.protocol.vectors import as_vector


def encode_integers(given: object, parameters: ProtocolParameters) -> PlainVector:
    """Encode whole numbers as residues modulo m (R14.1-1).

    Args:
        given: Integers, or floats without a fractional part, as `as_vector` takes
            them, shape (d,), in [-m/2, m/2).  Sums outside this range wrap around.
        parameters: Parameters of a task without a noise block.

    Raises:
        InputError: As `as_vector`; also a fraction, or an entry out of range.  The
            message names the first offender.
        LocalProtocolError: The task demands noise.
    """
    if parameters.noise_block:
        raise LocalProtocolError(
            "this task requires noise; encode with secagg.distributed_dp"
        )
    vector = as_vector(given, parameters.dimension)
    lowest, above = -(parameters.modulus // 2), (parameters.modulus + 1) // 2
    if vector.dtype.kind == "f":
        vector = vector.astype(np.float64, copy=False)
        fractions = np.flatnonzero(vector != np.trunc(vector))
        if fractions.size:
            raise InputError(
                f"entry {int(fractions[0])} of the vector is not a whole number",
                next_step="Scale and round it, or use a task with noise, which does "
                "both.",
            )
    out_of_range = np.flatnonzero((vector < lowest) | (vector >= above))
    if out_of_range.size:
        raise InputError(
            f"entry {int(out_of_range[0])} of the vector lies outside "
            f"[{lowest}, {above}), the range of modulus {parameters.modulus}",
            next_step="Scale it down, or use a task with a larger modulus.",
        )
    residues = vector.astype(np.int64) % parameters.modulus
    return PlainVector(residues.astype(word_dtype(parameters.modulus)))


def decode_integers(
    residues: npt.NDArray[np.unsignedinteger[Any]], modulus: int
) -> npt.NDArray[np.int64]:
    """Return the sum as signed integers in [-m/2, m/2) (R14.1-2)."""
    values = residues.astype(np.int64)
    return np.where(values >= (modulus + 1) // 2, values - modulus, values)
