"""From floats to fixed point: the integers on which every privacy claim rests.

* The input is the rotated vector times `scale_factor`, in grid steps. The result is an
  integer vector in units of 2^-32 grid steps.
* Conversion truncates towards zero: no coordinate ever grows, and every float64 of
  magnitude up to 2^25 is truncated exactly.
* The squared norm of the result, in exact arithmetic, is at most the bound, and no
  coordinate exceeds the coordinate bound. Rotation and scaling may have lost a few
  bits; whatever they did, the check comes after them.
* Entries are secret: a representation shows the length only.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from dpnoise.encoding.clipping import check_vector, require_positive, squared_norm_bound
from dpnoise.errors import CertificateError, ParameterError

FRACTIONAL_BITS: Final = 32
"""Bits after the binary point: one 32-bit word rounds a coordinate without error."""

MAX_COORDINATE_BOUND: Final = 1 << 25
"""Keeps sums of squares of 4096 rounded coordinates inside 63 bits."""

BOUND_GRID: Final = 1 << 12
"""Bounds on coordinates are multiples of 1/4096: exact in floats and in fixed point."""

_DEVIATIONS: Final = 6.0
_SHRINK: Final = 1.0 - 1e-9
_ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FixedPointVector:
    """Coordinates in units of 2^-fractional_bits grid steps.

    Attributes:
        values: Integers, shape (dim,), read-only.
        fractional_bits: Always 32; named so that no caller has to know.
    """

    values: npt.NDArray[np.int64]
    fractional_bits: int = FRACTIONAL_BITS

    def __post_init__(self) -> None:
        """Check the type and protect the entries from being written to."""
        if self.values.dtype != np.int64 or self.values.ndim != 1:
            raise ParameterError(
                "values must be a one-dimensional int64 array, "
                f"got {self.values.dtype} of shape {self.values.shape}",
                parameter="values",
            )
        if self.fractional_bits != FRACTIONAL_BITS:
            raise ParameterError(
                f"fractional_bits must be {FRACTIONAL_BITS}",
                parameter="fractional_bits",
                value=self.fractional_bits,
                nearest=str(FRACTIONAL_BITS),
            )
        self.values.setflags(write=False)

    def __repr__(self) -> str:
        return f"FixedPointVector(dim={self.values.size}, entries=<redacted>)"

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return self.values.size


def natural_coordinate_cap(
    norm: float, *, dim: int, flatness: float | None
) -> Fraction:
    """Return a bound on coordinates that a rotated vector practically never reaches.

    A larger bound would gain nothing and cost noise: where a grid is coarse, the loss
    of a coordinate grows faster than its square.

    Args:
        norm: Norm of the scaled vector, grid steps.
        dim: Coordinates after rotation.
        flatness: The rotation's ρ, or None without a rotation.

    Returns:
        Six standard deviations of a rotated coordinate, which a normal coordinate
        exceeds once in 5·10^8 and that of the worst vector once in 3·10^7; or the
        norm, where that is smaller or nothing spreads it. Rounded up: to a multiple of
        1/4096 if at most 1, else to an integer.
    """
    cap = norm
    if flatness is not None:
        cap = min(cap, _DEVIATIONS * norm * math.sqrt(flatness / dim))
    grid = BOUND_GRID if cap <= 1.0 else 1
    return Fraction(math.ceil(grid * cap), grid)


def to_fixed_point(
    scaled: npt.NDArray[np.float64],
    *,
    max_squared_norm: float,
    coordinate_bound: float,
) -> FixedPointVector:
    """Clamp, truncate to 32 fractional bits, and verify the norm.

    Args:
        scaled: Rotated vector times scale factor, in grid steps, shape (dim,).
        max_squared_norm: Largest squared L2 norm, in grid steps squared: the number
            that the accountant is told. In [2^-500, 2^500].
        coordinate_bound: Largest magnitude of a coordinate in grid steps, a multiple
            of 2^-12 in [2^-12, 2^25].

    Returns:
        A vector g with |g_j| ≤ coordinate_bound and Σ g_j² ≤ max_squared_norm exactly
        (in grid steps), no coordinate of which is larger than the input's. A vector
        whose norm is above the bound, or within 2^-39 of it, is shrunk to
        1 − 10^-9 of the bound.

    Raises:
        InputError: `scaled` is no vector of finite numbers.
        ParameterError: A bound is out of range.
        CertificateError: The norm could not be verified. This is a defect.

    Checked by:
        tests/unit/dpnoise/encoding/test_scaling.py
    """
    limit = require_positive("max_squared_norm", max_squared_norm, 2.0**-500, 2.0**500)
    cap = require_positive(
        "coordinate_bound", coordinate_bound, 1.0 / BOUND_GRID, MAX_COORDINATE_BOUND
    )
    if not (cap * BOUND_GRID).is_integer():
        raise ParameterError(
            f"coordinate_bound must be a multiple of 1/{BOUND_GRID}, got {cap!r}",
            parameter="coordinate_bound",
            value=cap,
            nearest=repr(math.floor(cap * BOUND_GRID) / BOUND_GRID),
        )
    steps = check_vector(scaled, name="scaled")
    np.clip(steps, -cap, cap, out=steps)
    limit_units = math.ldexp(limit, 2 * FRACTIONAL_BITS)
    for _ in range(_ATTEMPTS):
        # Both operations are exact: below 2^57 every truncated float is an integer that
        # float64 and int64 hold alike.
        units = steps * float(1 << FRACTIONAL_BITS)
        np.trunc(units, out=units)
        bound = squared_norm_bound(units)
        if bound <= limit_units:
            return FixedPointVector(units.astype(np.int64))
        # Measured before truncation: on very short vectors the truncated norm can be
        # below the bound's reach and yet not move when the vector shrinks a little.
        full = squared_norm_bound(steps * float(1 << FRACTIONAL_BITS))
        # Shrinking can only make magnitudes smaller, so the clamp still holds.
        steps *= math.sqrt(limit_units / full) * _SHRINK
    raise CertificateError(
        "the squared norm of an encoded vector could not be brought below its bound; "
        "this is a defect of dpnoise, please report it"
    )
