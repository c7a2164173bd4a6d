"""Vectors in a caller's unit, and as whole numbers: what becomes of each entry.

A task with adaptive clipping fixes its noise in grid steps, and with it epsilon; only
the unit changes. Vectors are multiplied by it before they are clipped, so a larger unit
is a smaller clip in caller's units.

Theorem. The cost of a task does not depend on its units, even if each follows from all
sums before it. Proof: clip, rotation and rounding map any real vector into the set
that the event describes, and the unit only changes which vector that is.  The pair of
laws that dominates the event does so for every past; compose.

Rule 1: the noise block holds bounds, and clients refuse a session outside them.
Rule 2: the next unit follows from the block and from the released values, by
        `following` alone: every party that knows the sum computes the same.

A task without a noise block takes whole numbers, and releases the exact sum. This hides
single inputs and nothing else: the difference of two sums, or a sum of similar inputs,
can reveal a person. Use `secagg.distributed_dp` for vectors about people.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from dpnoise.floats import rational_text
from dpnoise.mechanisms import ClippingSchedule, MechanismParameters
from secagg.crypto.modular import word_dtype
from secagg.errors import ErrorCode
from secagg.protocol.arguments import as_vector
from secagg.protocol.events import PlainVector
from secagg.protocol.parameters import ProtocolParameters

# Twelve significant bits between 2^-80 and 2^80; a server's number has no more digits.
_RATIONAL: Final = re.compile(r"[1-9][0-9]{0,27}/[1-9][0-9]{0,27}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBounds:
    """The units that the sessions of a task may have.

    Attributes:
        start: Unit of the first session, grid steps per caller's unit.
        lowest: Lowest unit of a session: the largest clip.
        highest: Highest unit of a session: the smallest clip, and the least noise in
            caller's units.
        quantile: Part of the vectors that should fit the clip, in (0, 1).

    Raises:
        ValueError: The values contradict each other.
    """

    start: Fraction
    lowest: Fraction
    highest: Fraction
    quantile: Fraction

    def __post_init__(self) -> None:
        """Refuse bounds without effect."""
        if not 0 < self.lowest <= self.start <= self.highest:
            raise ValueError("the units of its sessions are not in order")
        if not 0 < self.quantile < 1:
            raise ValueError("the quantile of its units must lie between 0 and 1")

    @classmethod
    def of(cls, schedule: ClippingSchedule, parameters: MechanismParameters) -> Self:
        """Return the bounds of a schedule of clips.

        Args:
            schedule: The schedule, caller's units.
            parameters: Parameters of the planned mechanism.
        """
        lowest = schedule.unit_of(schedule.highest_clip, parameters)
        highest = schedule.unit_of(schedule.lowest_clip, parameters)
        start = schedule.unit_of(schedule.l2_clip, parameters)
        return cls(
            start=min(max(start, lowest), highest),
            lowest=lowest,
            highest=highest,
            quantile=Fraction(schedule.target_quantile).limit_denominator(1_000_000),
        )

    def following(
        self, unit: Fraction, parameters: MechanismParameters, *, fitted: float
    ) -> Fraction:
        """Return the unit of the session after one that has released a sum.

        Args:
            unit: Unit of that session.
            parameters: Parameters of the mechanism.
            fitted: Released estimate of the part of the vectors that fitted, in [0, 1].
        """
        steps = parameters.scale_factor * parameters.l2_clip
        schedule = ClippingSchedule(
            l2_clip=steps / float(unit),
            lowest_clip=steps / float(max(self.highest, unit)),
            highest_clip=steps / float(min(self.lowest, unit)),
            target_quantile=float(self.quantile),
        ).advance(fitted)
        moved = schedule.unit_of(schedule.l2_clip, parameters)
        return min(max(moved, self.lowest), self.highest)

    def to_dict(self) -> dict[str, str]:
        """Return the bounds as JSON values, "p/q" in lowest terms."""
        return {
            "start": rational_text(self.start),
            "lowest": rational_text(self.lowest),
            "highest": rational_text(self.highest),
            "quantile": rational_text(self.quantile),
        }

    @classmethod
    def from_dict(cls, entries: object) -> Self:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: The values are not valid bounds.
        """
        names = {"start", "lowest", "highest", "quantile"}
        if not isinstance(entries, Mapping) or set(entries) != names:
            raise ValueError("its units need start, lowest, highest and quantile")
        return cls(**{name: _read_rational(entries[name]) for name in names})


def unit_terms(unit: Fraction) -> bytes:
    """Return an offer's statement of its session's noise: canonical JSON."""
    return json.dumps({"unit": rational_text(unit)}, separators=(",", ":")).encode()


def read_unit(terms: bytes) -> Fraction:
    """Return the unit that an offer states.

    Raises:
        ValueError: The terms state no unit, or are not in canonical form.
    """
    try:
        entries: Any = json.loads(terms)
    except (ValueError, RecursionError):
        raise ValueError("the noise terms of the offer are not JSON") from None
    if not isinstance(entries, dict) or set(entries) != {"unit"}:
        raise ValueError("the noise terms of the offer must state only a unit")
    unit = _read_rational(entries["unit"])
    if unit_terms(unit) != terms:
        raise ValueError("the noise terms of the offer are not in canonical form")
    return unit


def _read_rational(value: object) -> Fraction:
    """Return the number of a text "p/q"."""
    if not isinstance(value, str) or _RATIONAL.fullmatch(value) is None:
        raise ValueError('a unit must have the form "p/q"')
    return Fraction(value)


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
        raise ErrorCode.LOCAL_MISUSE.error(
            "this task requires noise; encode with secagg.distributed_dp"
        )
    vector = as_vector(given, parameters.dimension)
    lowest, above = -(parameters.modulus // 2), (parameters.modulus + 1) // 2
    if vector.dtype.kind == "f":
        vector = vector.astype(np.float64, copy=False)
        fractions = np.flatnonzero(vector != np.trunc(vector))
        if fractions.size:
            raise ErrorCode.BAD_INPUT.error(
                f"entry {int(fractions[0])} of the vector is not a whole number",
                fix="Scale and round it, or use a task with noise, which does both.",
            )
    out_of_range = np.flatnonzero((vector < lowest) | (vector >= above))
    if out_of_range.size:
        raise ErrorCode.BAD_INPUT.error(
            f"entry {int(out_of_range[0])} of the vector lies outside "
            f"[{lowest}, {above}), the range of modulus {parameters.modulus}",
            fix="Scale it down, or use a task with a larger modulus.",
        )
    residues = vector.astype(np.int64) % parameters.modulus
    return PlainVector(residues.astype(word_dtype(parameters.modulus)))


def decode_integers(
    residues: npt.NDArray[np.unsignedinteger[Any]], modulus: int
) -> npt.NDArray[np.int64]:
    """Return the sum as signed integers in [-m/2, m/2) (R14.1-2)."""
    values = residues.astype(np.int64)
    return np.where(values >= (modulus + 1) // 2, values - modulus, values)
