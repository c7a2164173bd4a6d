"""The parameters of a mechanism: everything both sides must agree on.

* Two parties with equal parameters encode and decode alike, and state the same
  privacy. Nothing that changes either lives outside this record.
* The noise variance is an exact rational, because the sampler's table and the hash
  of a configuration need it exactly.
* `to_dict` is canonical: equal parameters give equal dictionaries of JSON values,
  and `from_dict` inverts it without loss. An unknown key is an error, since a key
  that one party ignores is a parameter on which the parties differ.
* A parameter that cannot work is refused when the record is built. The error names
  it and the nearest value that works. Every number may come from a server that lies,
  so each has a limit with its reason beside it.
* The noise is stated as the variance that privacy counts and the rule that divides it
  (`NoiseRule`). One client's share follows from them and the roster of a session.

It does not check a mechanism's theorem; each mechanism does that with these parameters
in hand. It computes no privacy loss.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Self

from dpnoise.checks import check_integer, check_number, check_positive
from dpnoise.encoding.rotation import rotation_names
from dpnoise.encoding.scaling import BOUND_GRID
from dpnoise.encoding.wrapping import MAX_MODULUS
from dpnoise.errors import ParameterError
from dpnoise.floats import rational_text
from dpnoise.mechanisms.noise_share import MAX_CLIENTS, NoiseRule
from dpnoise.mechanisms.parameter_checks import (
    check_choice,
    check_flag,
    check_length,
    read_fields,
    read_fraction,
)
from dpnoise.mechanisms.registry import mechanism_names

ROTATION_NAMES: Final = rotation_names()
"""Names of the rotations a configuration may ask for."""

MAX_DIM: Final = 1 << 30
"""Largest dimension: one int64 working vector of that length takes 8 GiB."""

MAX_SCALED_CLIP: Final = float(1 << 25)
"""Largest clip in grid steps: squares of fixed-point coordinates must stay exact."""

_MOST_BOUND_UNITS: Final = int(MAX_SCALED_CLIP) * BOUND_GRID

MAX_SHARE_VARIANCE: Final = 1 << 64
"""Largest variance of one share, grid steps squared; samplers have tighter limits."""

DEFAULT_ROUNDING_BIAS: Final = math.exp(-0.5)
"""The β of conditional rounding that [Aga21] fixes for all experiments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismParameters:
    """What a mechanism needs to encode, decode and account.

    Args:
        mechanism: One of `mechanism_names()`.
        dim: Coordinates of the caller's vector, 1 … 2^30.
        l2_clip: Bound r on the L2 norm of one client's vector, caller's units,
            2^-256 … 2^256. Longer vectors are scaled down to it.
        scale_factor: Grid steps γ per caller's unit, greater than 0.
        modulus: The m of the ring Z_m in which vectors are added, 2 … 2^62.
        noise_rule: How much noise counts and how it is divided. For `ddgauss` and
            `discrete-gaussian` its variances are variance *parameters* of discrete
            Gaussians.
        num_clients: Cohort size: the largest roster of a session and the largest
            number of shares in one sum; at least 2 and `noise_rule.min_survivors`.
        rotation: One of `ROTATION_NAMES`.
        rounding_bias: The β of conditional rounding, in [0, 1); 0 gives the
            worst-case norm bound and accepts every rounding. Used by `skellam`,
            `ddgauss` and `binomial`.
        linf_bound: Bound on every absolute coordinate before rounding, grid steps, a
            multiple of 1/4096 in [1/4096, 2^25]. None lets the mechanism derive it from
            the clip. `smm` requires an integer, because its theorem depends on it.
        clip_flag_amplitude: L2 norm a, in the caller's units, of the extra coordinates
            that tell whether a client's vector was clipped; 0 for none. The joint L2
            bound becomes √(r² + a²).
        max_nonzero: Largest number of entries of one vector that are not zero, 1 …
            `dim`. For `skellam-counts`, which demands it, and for no other.
        signed: Whether entries of `skellam-counts` may be below 0.

    Raises:
        ParameterError: A value cannot work; the error names it and the nearest value
            that does.

    Source:
        [Aga21] Algorithm 1; [Bao22] Algorithms 4 to 6.
    """

    mechanism: str
    dim: int
    l2_clip: float
    scale_factor: float
    modulus: int
    noise_rule: NoiseRule
    num_clients: int
    rotation: str = "hadamard"
    rounding_bias: float = DEFAULT_ROUNDING_BIAS
    linf_bound: Fraction | None = None
    clip_flag_amplitude: float = 0.0
    max_nonzero: int | None = None
    signed: bool = False

    def __post_init__(self) -> None:
        self.validate()

    @property
    def bits(self) -> int:
        """Bits per coordinate on the wire: ⌈log2 m⌉."""
        return (self.modulus - 1).bit_length()

    def validate(self) -> None:
        """Refuse what cannot work.

        Raises:
            ParameterError: A value cannot work; the error names it and the nearest
                value that does.
        """
        check_choice("mechanism", self.mechanism, mechanism_names())
        check_choice("rotation", self.rotation, ROTATION_NAMES)
        check_integer("dim", self.dim, 1, MAX_DIM)
        check_integer("modulus", self.modulus, 2, MAX_MODULUS)
        check_integer("num_clients", self.num_clients, 2, MAX_CLIENTS)
        self._check_noise()
        check_length("l2_clip", self.l2_clip)
        check_positive("scale_factor", self.scale_factor)
        self._check_lengths()
        check_rounding_bias(self.rounding_bias)
        if self.linf_bound is not None:
            check_linf_bound(self.linf_bound)
        if self.max_nonzero is not None:
            check_integer("max_nonzero", self.max_nonzero, 1, self.dim)
        check_flag("signed", self.signed)

    def to_dict(self) -> dict[str, object]:
        """Return the parameters as JSON values, in the order of the fields.

        `noise_rule` becomes a dictionary of its own, `linf_bound` "p/q" in lowest
        terms. Floats stay floats: their shortest decimal form gives back the same
        double.
        """
        entries: dict[str, object] = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }
        if (cap := self.linf_bound) is not None:
            entries["linf_bound"] = rational_text(cap)
        return entries | {"noise_rule": self.noise_rule.to_dict()}

    @classmethod
    def from_dict(cls, entries: Mapping[str, object]) -> Self:
        """Build parameters from what `to_dict` returned, or from a configuration.

        Args:
            entries: JSON values by field name; fields with a default may be missing.

        Returns:
            The parameters.

        Raises:
            ParameterError: A key is unknown or missing, or a value cannot work.
        """
        values = read_fields(cls, entries, what="a set of mechanism parameters")
        if not isinstance(noise := values["noise_rule"], Mapping):
            raise ParameterError(
                f"noise_rule must be an object, got {type(noise).__name__}",
                parameter="noise_rule",
            )
        values["noise_rule"] = NoiseRule.from_dict(noise)
        if values.get("linf_bound") is not None:
            values["linf_bound"] = read_fraction("linf_bound", values["linf_bound"])
        for name in _FLOAT_FIELDS & values.keys():
            # JSON writers print 1.0 as 1, and equal numbers must stay equal.
            values[name] = check_number(name, values[name])
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks each one

    def _check_noise(self) -> None:
        """Refuse a rule of noise that the number of clients does not allow."""
        if not isinstance(self.noise_rule, NoiseRule):
            raise ParameterError(
                f"noise_rule must be a NoiseRule, got {type(self.noise_rule).__name__}",
                parameter="noise_rule",
            )
        check_integer(
            "min_survivors", self.noise_rule.min_survivors, 2, self.num_clients
        )
        # Every roster must leave a share to count.
        self.noise_rule.smallest_counted_shares(self.num_clients)

    def _check_lengths(self) -> None:
        """Refuse a clip, in grid steps, outside of what the encoding can hold."""
        amplitude = check_number("clip_flag_amplitude", self.clip_flag_amplitude)
        if amplitude < 0.0:
            raise ParameterError.of(
                "clip_flag_amplitude", amplitude, "must be at least 0", nearest="0.0"
            )
        steps = self.scale_factor * math.hypot(self.l2_clip, amplitude)
        # Below one part in 2^20 of a grid step nothing survives the rounding. Squares
        # of still smaller lengths would leave the range of normal floats.
        if not 2.0**-20 <= steps <= MAX_SCALED_CLIP:
            limit = 2.0**-20 if steps < 1.0 else MAX_SCALED_CLIP
            inwards = 1.00001 if steps < 1.0 else 0.99999  # six digits are printed
            nearest = inwards * limit / math.hypot(self.l2_clip, amplitude)
            raise ParameterError(
                "scale_factor times the clip must be between 2^-20 and 2^25 grid "
                f"steps, got {steps:.6g}",
                parameter="scale_factor",
                value=self.scale_factor,
                nearest=f"{nearest:.6g}",
            )


_FLOAT_FIELDS: Final = frozenset(
    {"l2_clip", "scale_factor", "rounding_bias", "clip_flag_amplitude"}
)


def check_linf_bound(linf_bound: object) -> Fraction:
    """Return a bound on coordinates, or refuse it by name.

    Args:
        linf_bound: What the caller passed, grid steps.

    Returns:
        The bound, a multiple of 1/4096 in [1/4096, 2^25].

    Raises:
        ParameterError: It is no such Fraction; the error names the nearest one.
    """
    if not isinstance(linf_bound, Fraction):
        raise ParameterError(
            f"linf_bound must be an exact Fraction, got {type(linf_bound).__name__}",
            parameter="linf_bound",
            value=linf_bound,
        )
    units = min(max(1, math.floor(linf_bound * BOUND_GRID)), _MOST_BOUND_UNITS)
    nearest = Fraction(units, BOUND_GRID)
    if linf_bound != nearest:
        raise ParameterError(
            f"linf_bound must be a multiple of 1/{BOUND_GRID} between 1/{BOUND_GRID} "
            f"and 2^25, got {float(linf_bound):.6g}",
            parameter="linf_bound",
            value=linf_bound,
            nearest=str(nearest),
        )
    return linf_bound


def check_rounding_bias(rounding_bias: object) -> float:
    """Return the β of conditional rounding, or refuse it by name.

    Args:
        rounding_bias: What the caller passed.

    Returns:
        The number, in [0, 1).

    Raises:
        ParameterError: It is no number in [0, 1).
    """
    bias = check_number("rounding_bias", rounding_bias)
    if not 0.0 <= bias < 1.0:
        raise ParameterError.of(
            "rounding_bias",
            bias,
            "must lie in [0, 1)",
            nearest="0.0" if bias < 0.0 else repr(1.0 - 2.0**-53),
        )
    return bias
