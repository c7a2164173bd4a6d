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
* The noise that counts is the noise of `min_survivors − colluders − 1` shares: not
  the shares of clients that may be lost, not those of parties that can subtract
  their own, and not the share of the user whose privacy is at stake.

It does not check a mechanism's theorem; each mechanism does that with these parameters
in hand. It computes no privacy loss.
"""

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Self, cast

from dpnoise.encoding.rotation import rotation_names
from dpnoise.encoding.wrapping import MAX_MODULUS
from dpnoise.errors import ParameterError

__all__ = [
    "DEFAULT_ROUNDING_BIAS",
    "MAX_CLIENTS",
    "MAX_DIM",
    "MAX_SCALED_CLIP",
    "MAX_SHARE_VARIANCE",
    "MECHANISM_NAMES",
    "ROTATION_NAMES",
    "MechanismParameters",
]

MECHANISM_NAMES: Final = (
    "skellam-mixture",
    "skellam",
    "smm",
    "ddgauss",
    "binomial",
    "discrete-gaussian",
    "gaussian",
)
"""Names of all mechanisms, the default one first."""

ROTATION_NAMES: Final = rotation_names()
"""Names of the rotations a configuration may ask for."""

MAX_DIM: Final = 1 << 30
"""Largest dimension: one int64 working vector of that length takes 8 GiB."""

MAX_CLIENTS: Final = 1 << 24
"""Largest cohort: the sum of its noise shares must stay far inside int64."""

MAX_SCALED_CLIP: Final = float(1 << 25)
"""Largest clip in grid steps: squares of fixed-point coordinates must stay exact."""

MAX_SHARE_VARIANCE: Final = 1 << 64
"""Largest variance of one share, grid steps squared; samplers have tighter limits."""

MAX_VARIANCE_BITS: Final = 512
"""Longest numerator or denominator of a variance: building a table is slow in it."""

_MAX_DIGITS: Final = 160  # the decimal digits of 512 bits, and a few

DEFAULT_ROUNDING_BIAS: Final = math.exp(-0.5)
"""The β of conditional rounding that [Aga21] fixes for all experiments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismParameters:
    """What a mechanism needs to encode, decode and account.

    Args:
        mechanism: One of `MECHANISM_NAMES`.
        dim: Coordinates of the caller's vector, 1 … 2^30.
        l2_clip: Bound r on the L2 norm of one client's vector, caller's units,
            greater than 0. Longer vectors are scaled down to it.
        scale_factor: Grid steps γ per caller's unit, greater than 0.
        modulus: The m of the ring Z_m in which vectors are added, 2 … 2^62.
        local_noise_variance: Variance v_loc of one client's noise share per
            coordinate, grid steps squared, exact, greater than 0. For `ddgauss` and
            `discrete-gaussian` the variance *parameter* of the discrete Gaussian. For
            mechanisms whose noise is central, the variance of the one central draw.
        num_clients: Cohort size: the largest number of shares in one sum, at least 2.
        min_survivors: Smallest set of clients that will ever be summed, fixed in
            advance; at least `colluders + 2`, at most `num_clients`.
        colluders: Tolerated parties that know and subtract their own shares, at
            least 0.
        rotation: One of `ROTATION_NAMES`.
        rounding_bias: The β of conditional rounding, in [0, 1); 0 gives the
            worst-case norm bound and accepts every rounding. Used by `skellam`,
            `ddgauss` and `binomial`.
        linf_bound: Bound on every absolute coordinate before rounding, grid steps,
            an integer at least 1; None lets the mechanism derive it from the clip
            (`smm` demands it, because its theorem depends on it).
        clip_flag_amplitude: Amplitude a, in the caller's units, of the one extra
            coordinate that tells whether a client's vector was clipped; 0 for none.
            The joint L2 bound becomes √(r² + a²).

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
    local_noise_variance: Fraction
    num_clients: int
    min_survivors: int
    colluders: int = 0
    rotation: str = "hadamard"
    rounding_bias: float = DEFAULT_ROUNDING_BIAS
    linf_bound: int | None = None
    clip_flag_amplitude: float = 0.0

    def __post_init__(self) -> None:
        self.validate()

    @property
    def bits(self) -> int:
        """Bits per coordinate on the wire: ⌈log2 m⌉."""
        return (self.modulus - 1).bit_length()

    @property
    def num_noise_shares(self) -> int:
        """Counted noise shares: min_survivors − colluders − 1, at least 1."""
        return self.min_survivors - self.colluders - 1

    def validate(self) -> None:
        """Refuse what cannot work.

        Raises:
            ParameterError: A value cannot work; the error names it and the nearest
                value that does.
        """
        check_choice("mechanism", self.mechanism, MECHANISM_NAMES)
        check_choice("rotation", self.rotation, ROTATION_NAMES)
        check_integer("dim", self.dim, 1, MAX_DIM)
        check_integer("modulus", self.modulus, 2, MAX_MODULUS)
        check_integer("num_clients", self.num_clients, 2, MAX_CLIENTS)
        check_integer("colluders", self.colluders, 0, self.num_clients - 2)
        check_integer(
            "min_survivors", self.min_survivors, self.colluders + 2, self.num_clients
        )
        check_positive("l2_clip", self.l2_clip)
        check_positive("scale_factor", self.scale_factor)
        self._check_lengths()
        _check_variance(self.local_noise_variance)
        check_rounding_bias(self.rounding_bias)
        if self.linf_bound is not None:
            check_integer("linf_bound", self.linf_bound, 1, int(MAX_SCALED_CLIP))

    def to_dict(self) -> dict[str, object]:
        """Return the parameters as JSON values, in the order of the fields.

        Fractions become "p/q" in lowest terms. Floats stay floats: their shortest
        decimal form gives back the same double.
        """
        entries: dict[str, object] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Fraction):
                value = f"{value.numerator}/{value.denominator}"
            entries[field.name] = value
        return entries

    @classmethod
    def from_dict(cls, entries: Mapping[str, object]) -> Self:
        """Build parameters from what `to_dict` returned, or from a configuration.

        Args:
            entries: JSON values by field name; fields with a default may be missing.
                A variance may be "p/q", an integer, or a float (taken exactly).

        Returns:
            The parameters.

        Raises:
            ParameterError: A key is unknown or missing, or a value cannot work.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for key in entries:
            if key not in fields:
                near = difflib.get_close_matches(key, fields, n=1)
                raise ParameterError(
                    f"mechanism parameters have no key {key!r}",
                    parameter=key,
                    nearest=near[0] if near else None,
                )
        for name, field in fields.items():
            if field.default is dataclasses.MISSING and name not in entries:
                raise ParameterError(
                    f"mechanism parameters lack the key {name!r}", parameter=name
                )
        values = dict(entries)
        values["local_noise_variance"] = read_fraction(
            "local_noise_variance", values["local_noise_variance"]
        )
        for name in _FLOAT_FIELDS & values.keys():
            # JSON writers print 1.0 as 1, and equal numbers must stay equal.
            values[name] = check_number(name, values[name])
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks each one

    def _check_lengths(self) -> None:
        amplitude = check_number("clip_flag_amplitude", self.clip_flag_amplitude)
        if amplitude < 0.0:
            raise ParameterError(
                f"clip_flag_amplitude must be at least 0, got {amplitude!r}",
                parameter="clip_flag_amplitude",
                value=amplitude,
                nearest="0.0",
            )
        steps = self.scale_factor * math.hypot(self.l2_clip, amplitude)
        # Below one part in 2^20 of a grid step nothing survives the rounding, and
        # squares of still smaller lengths would leave the range of normal floats.
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


def check_number(parameter: str, value: object) -> float:
    """Return a finite number as a float, or refuse it by name.

    Args:
        parameter: Name for the error.
        value: What the caller passed.

    Returns:
        The number as a float.

    Raises:
        ParameterError: It is no number, NaN, or infinite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise ParameterError(
            f"{parameter} must be a number, got {type(value).__name__}",
            parameter=parameter,
            value=value,
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ParameterError(
            f"{parameter} must be a finite number, got {number!r}",
            parameter=parameter,
            value=number,
        )
    return number


def check_positive(parameter: str, value: object) -> float:
    """Return a number greater than zero as a float, or refuse it by name.

    Args:
        parameter: Name for the error.
        value: What the caller passed.

    Returns:
        The number as a float.

    Raises:
        ParameterError: It is no finite number greater than 0.
    """
    number = check_number(parameter, value)
    if number <= 0.0:
        raise ParameterError(
            f"{parameter} must be greater than 0, got {number!r}",
            parameter=parameter,
            value=number,
            nearest="any number above 0, such as 1.0",
        )
    return number


def check_integer(parameter: str, value: object, lowest: int, highest: int) -> int:
    """Return an integer within its limits, or refuse it by name.

    Args:
        parameter: Name for the error.
        value: What the caller passed.
        lowest: Smallest value that works.
        highest: Largest value that works.

    Returns:
        The integer.

    Raises:
        ParameterError: It is no integer, or outside the limits.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterError(
            f"{parameter} must be an integer, got {type(value).__name__}",
            parameter=parameter,
            value=value,
        )
    if not lowest <= value <= highest:
        raise ParameterError(
            f"{parameter} must be between {lowest} and {highest}, got {value}",
            parameter=parameter,
            value=value,
            nearest=str(lowest if value < lowest else highest),
        )
    return value


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
        raise ParameterError(
            f"rounding_bias must lie in [0, 1), got {bias!r}",
            parameter="rounding_bias",
            value=bias,
            nearest="0.0" if bias < 0.0 else repr(1.0 - 2.0**-53),
        )
    return bias


def read_fraction(parameter: str, value: object) -> Fraction:
    """Read an exact rational from "p/q", an integer, a float, or a Fraction.

    Args:
        parameter: Name for the error.
        value: What a configuration held.

    Returns:
        The rational; a float is taken for exactly what it is.

    Raises:
        ParameterError: It is none of these, or not finite.
    """
    if isinstance(value, str):
        numerator, _, denominator = value.partition("/")
        # Decimal forms such as "1e9999" would be expanded; only plain integers pass.
        parts = (numerator, denominator or "1")
        if all(map(_is_plain_integer, parts)) and int(parts[1]) > 0:
            return Fraction(int(parts[0]), int(parts[1]))
        raise ParameterError(
            f'{parameter} must read "numerator/denominator" in digits',
            parameter=parameter,
            value=value[:80],
        )
    check_number(parameter, value)
    return Fraction(cast("int | float | Fraction", value))


def _is_plain_integer(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def check_choice(parameter: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        text = str(value)[:80]
        near = difflib.get_close_matches(text.replace("_", "-"), choices, n=1)
        raise ParameterError(
            f"{parameter} must be one of {', '.join(choices)}; got {text!r}",
            parameter=parameter,
            value=text,
            nearest=near[0] if near else None,
        )


def _check_variance(variance: object) -> None:
    if not isinstance(variance, Fraction):
        raise ParameterError(
            "local_noise_variance must be an exact Fraction, got "
            f"{type(variance).__name__}",
            parameter="local_noise_variance",
            value=variance,
            nearest=(
                f"Fraction({variance!r})" if isinstance(variance, int | float) else None
            ),
        )
    if not 0 < variance <= MAX_SHARE_VARIANCE:
        raise ParameterError(
            f"local_noise_variance must be greater than 0 and at most 2^64, got "
            f"{float(variance):.6g}",
            parameter="local_noise_variance",
            value=variance,
            nearest=str(MAX_SHARE_VARIANCE) if variance > 0 else None,
        )
    longest = max(variance.numerator.bit_length(), variance.denominator.bit_length())
    if longest > MAX_VARIANCE_BITS:
        raise ParameterError(
            "local_noise_variance must have at most 512 bits in numerator and "
            f"denominator, got {longest}",
            parameter="local_noise_variance",
            value=float(variance),
            nearest="the next larger multiple of 2^-200",
        )
