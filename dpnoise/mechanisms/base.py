"""The mechanism interface: float vector in, residues with a noise share out, and back.

* `encode` is a function of the vector, the two seeds and the parameters. Replaying
  it gives the same residues on every platform, so a client that restarts never
  sends two different messages.
* The order is: check, clip in the caller's units, rotate, scale, turn into fixed
  point with a proven norm bound, round, add the noise share, reduce modulo m. The
  norm that counts is the one handed to the rounding step.
* Noise and rounding read separate streams derived from the private seed, under
  labels of their own. A private seed serves one vector once: the difference of two
  encodings under one seed would be free of noise.
* What `encode` enforces is exactly what `event` states. A mechanism whose theorem
  does not cover its parameters refuses to be built.
* `decode` estimates the sum, not the mean: who was summed is the protocol's business.

It computes no privacy loss; `event` hands an accountant all it needs. It draws no seed:
the caller draws one with `dpnoise.samplers.fresh_seed`.
"""

import abc
import math
import sys
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dpnoise.encoding.clipping import check_vector, clip_l2
from dpnoise.encoding.rotation import Rotation, encoded_dim, flatness, make_rotation
from dpnoise.encoding.scaling import (
    FRACTIONAL_BITS,
    FixedPointVector,
    to_fixed_point,
)
from dpnoise.encoding.wrapping import Residues, centre, wrap
from dpnoise.errors import InputError, ParameterError
from dpnoise.events import PrivacyEvent
from dpnoise.floats import float_above
from dpnoise.mechanisms.forecast import ErrorForecast, Rounding, forecast_error
from dpnoise.mechanisms.parameters import MechanismParameters
from dpnoise.samplers import SEED_BYTES, BitSource
from dpnoise.samplers.skellam import MAX_TABLE_VARIANCE, MIN_TABLE_VARIANCE

__all__ = [
    "NOISE_LABEL",
    "ROUNDING_LABEL",
    "CentralMechanism",
    "Encoded",
    "Mechanism",
    "NoiseSource",
    "Residues",
]

NOISE_LABEL: Final = b"dpnoise/v1/noise"
"""Label of the stream that the noise share is drawn from."""

ROUNDING_LABEL: Final = b"dpnoise/v1/rounding"
"""Label of the stream that rounding bits are drawn from."""


_SHARE_BITS: Final = 20
_SHORTENED: Final = 1.0 + 2.0**-20  # what rounding of floats never reaches
_PUBLIC_ROTATIONS: Final = 4  # a simulation rotates many vectors under one public seed


class NoiseSource(Protocol):
    """What a mechanism asks of a sampler; `InversionTable` is the exact one."""

    @property
    def digest(self) -> bytes:
        """32 bytes that identify the law and how it is sampled."""

    @property
    def distance_bound(self) -> float:
        """Total variation distance of one draw from the law."""

    def add_to(
        self, vector: NDArray[np.int64], seed: bytes, label: bytes, *, start: int = 0
    ) -> None:
        """Add one draw to every entry, in place."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Encoded:
    """One client's contribution, ready to be summed.

    Args:
        residues: Shape `(encoded_dim,)`, the smallest unsigned type that holds the
            modulus; equal arguments of `encode` give equal residues.
        shortened_by: Length of the vector over what the clips left of it: 1.0 for a
            vector that fitted, 10.0 for one ten times too long. To six digits. It
            says something about the vector: show it to its owner alone.
    """

    residues: Residues
    shortened_by: float

    def __repr__(self) -> str:
        return f"Encoded(length={self.residues.size}, entries=<redacted>)"


class Mechanism(abc.ABC):
    """Encodes float vectors as residues that carry noise, and decodes their sum.

    A subclass names itself, says how it rounds, checks its theorem in `_check`,
    draws its noise in `_table`, and states the release in `event_with_noise`.

    Args:
        parameters: What to encode and how.

    Raises:
        ParameterError: The parameters name another mechanism, or the mechanism
            cannot work with them.
        TheoremNotApplicableError: The mechanism's theorem does not cover them.
    """

    name: ClassVar[str]
    rounding: ClassVar[Rounding]
    noise_is_central: ClassVar[bool] = False
    """Whether one trusted party adds all noise, instead of every client its share."""

    least_variance: ClassVar[Fraction] = MIN_TABLE_VARIANCE
    """Smallest variance of one draw that the sampler accepts, grid steps²."""

    largest_variance: ClassVar[Fraction] = MAX_TABLE_VARIANCE
    """Largest variance of one draw that the sampler holds, grid steps²."""

    published_accountant: ClassVar[str | None] = None
    """The accountant whose theorem ties the noise to an integer `linf_bound`, which
    must then be given; None where noise and bound are chosen apart."""

    def __init__(self, parameters: MechanismParameters) -> None:
        if parameters.mechanism != self.name:
            raise ParameterError(
                f"these parameters are for {parameters.mechanism}, not {self.name}",
                parameter="mechanism",
                value=parameters.mechanism,
                nearest=self.name,
            )
        self._parameters: Final = parameters
        self._check()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._parameters!r})"

    @classmethod
    def round_share_up(cls, variance: Fraction) -> Fraction:
        """Round the variance of one draw up to a rational that the sampler accepts.

        More noise than required is post-processing, so the least variance stands in
        for anything below it. Few digits keep configurations readable.

        Args:
            variance: Required variance, grid steps², greater than 0.

        Returns:
            A dyadic rational, at least the argument and above it by at most one part
            in 2^20, or the sampler's least variance.
        """
        least = max(variance, cls.least_variance)
        unit = Fraction(2) ** (math.floor(math.log2(least)) - _SHARE_BITS)
        return math.ceil(least / unit) * unit

    @classmethod
    def mixture_norm_bound(cls, l2_clip_squared_steps: float) -> float | None:
        """Return the bound c of a special clip that shortens vectors inside the ball.

        Args:
            l2_clip_squared_steps: Squared norm of the ball, grid steps².

        Returns:
            Bound on Σ(x² + f − f²), f being fractional parts; None for a plain clip.
        """
        del l2_clip_squared_steps
        return None

    @property
    def parameters(self) -> MechanismParameters:
        """The parameters the mechanism was built with."""
        return self._parameters

    @property
    def dim(self) -> int:
        """Coordinates of the caller's vector."""
        return self._parameters.dim

    @property
    def modulus(self) -> int:
        """The m of the ring Z_m."""
        return self._parameters.modulus

    @property
    def has_clip_flag(self) -> bool:
        """Whether one extra coordinate tells if the vector was clipped."""
        return self._parameters.clip_flag_amplitude > 0.0

    @cached_property
    def rotated_dim(self) -> int:
        """Coordinates after rotation and padding, without the clip flag."""
        return encoded_dim(self._parameters.rotation, self.dim)

    @property
    def encoded_dim(self) -> int:
        """Length of the vectors of residues."""
        return self.rotated_dim + int(self.has_clip_flag)

    @cached_property
    def l2_clip_squared_steps(self) -> float:
        """Bound C on the squared norm before rounding, grid steps², rounded up."""
        given = self._parameters
        square = Fraction(given.l2_clip) ** 2 + Fraction(given.clip_flag_amplitude) ** 2
        return float_above(Fraction(given.scale_factor) ** 2 * square)

    @cached_property
    def coordinate_cap(self) -> int:
        """Bound on every absolute coordinate before rounding, grid steps.

        `linf_bound` when given. Otherwise eight standard deviations of a rotated
        coordinate, which acts once in 10^13 coordinates, or the norm itself where
        that is smaller or nothing spreads the norm over the coordinates.
        """
        given = self._parameters
        if given.linf_bound is not None:
            return given.linf_bound
        return natural_coordinate_cap(
            given.scale_factor * given.l2_clip,
            given.scale_factor * given.clip_flag_amplitude,
            dim=self.rotated_dim,
            flatness=self.flatness,
        )

    @property
    def flatness(self) -> float | None:
        """The rotation's ρ: 1 for Hadamard, 2 for the DFT, None without a rotation.

        A rotated coordinate is sub-Gaussian with variance ρ‖x‖²/dim.
        """
        rotation = self._parameters.rotation
        return None if rotation == "none" else flatness(rotation, self.dim)

    @property
    def counted_noise_variance(self) -> Fraction:
        """Variance of the noise that privacy may count, grid steps²."""
        given = self._parameters
        if self.noise_is_central:
            return given.local_noise_variance
        return given.num_noise_shares * given.local_noise_variance

    @property
    def total_noise_variance(self) -> Fraction:
        """Variance of all noise that can arrive, grid steps²."""
        given = self._parameters
        if self.noise_is_central:
            return given.local_noise_variance
        return given.num_clients * given.local_noise_variance

    @cached_property
    def table(self) -> NoiseSource:
        """The sampler of one noise draw; built at first use."""
        return self._table()

    @property
    def sampler_distance(self) -> float:
        """Total variation distance of all noise of one sum from the exact law."""
        draws = self.encoded_dim
        if not self.noise_is_central:
            draws *= self._parameters.num_clients
        return draws * self.table.distance_bound * (1.0 + 2.0**-40)

    def encode(
        self,
        vector: NDArray[np.floating] | NDArray[np.integer],
        *,
        private_seed: bytes,
        public_seed: bytes,
    ) -> Encoded:
        """Turn one client's vector into residues that carry its noise share.

        Args:
            vector: Real numbers of shape `(dim,)`, finite, caller's units. A vector
                longer than `l2_clip` is scaled down to it.
            private_seed: 32 secret bytes, fresh for this vector, from
                `dpnoise.samplers.fresh_seed`.
            public_seed: 32 bytes that all parties of the session share; they fix the
                rotation.

        Returns:
            The residues, and by what factor the vector was shortened.

        Raises:
            InputError: The vector or a seed has a wrong type, shape or length, or an
                entry is not finite. Nothing was drawn; repair the input.
        """
        check_seed("private_seed", private_seed)
        check_seed("public_seed", public_seed)
        checked = check_vector(vector, self.dim)
        fixed = self._fixed_point(checked, public_seed)
        steps = self._round(fixed, private_seed)
        if not self.noise_is_central:
            self.table.add_to(steps, private_seed, NOISE_LABEL)
        return Encoded(
            wrap(steps, self.modulus),
            _shortened_by(
                checked, fixed.values[: self.rotated_dim], self._parameters.scale_factor
            ),
        )

    def decode(
        self, modular_sum: NDArray[np.unsignedinteger], *, public_seed: bytes
    ) -> NDArray[np.float64]:
        """Estimate the sum of the clients' vectors.

        Args:
            modular_sum: Sum of encoded vectors modulo m, shape `(encoded_dim,)`, an
                unsigned integer array with entries in [0, m).
            public_seed: The seed the vectors were encoded with.

        Returns:
            The estimate in the caller's units, shape `(dim,)`.

        Raises:
            InputError: The sum has a wrong type or shape or an entry of at least m,
                or the seed has a wrong length.
        """
        check_seed("public_seed", public_seed)
        steps = self._centred(modular_sum)[: self.rotated_dim].astype(np.float64)
        estimate = self._rotation(public_seed).inverse(steps)
        estimate /= self._parameters.scale_factor
        return estimate

    def decode_clip_flag(
        self, modular_sum: NDArray[np.unsignedinteger], *, num_contributors: int
    ) -> float:
        """Estimate the share of clients whose vector was not clipped.

        Args:
            modular_sum: As for `decode`.
            num_contributors: Number of clients that were summed.

        Returns:
            The estimate, clamped to [0, 1]; unbiased before the clamp.

        Raises:
            ParameterError: The parameters have no clip flag, or the number of
                contributors is not between 1 and the cohort size.
            InputError: As for `decode`.
        """
        given = self._parameters
        if not self.has_clip_flag:
            raise ParameterError(
                "these parameters have no clip flag",
                parameter="clip_flag_amplitude",
                value=0.0,
                nearest="a positive amplitude, see suggest_flag_amplitude",
            )
        if not 1 <= num_contributors <= given.num_clients:
            raise ParameterError(
                f"num_contributors must be between 1 and {given.num_clients}, got "
                f"{num_contributors}",
                parameter="num_contributors",
                value=num_contributors,
                nearest=str(given.num_clients if num_contributors > 0 else 1),
            )
        flag = float(self._centred(modular_sum)[-1]) / given.scale_factor
        share = 0.5 + flag / (2.0 * given.clip_flag_amplitude * num_contributors)
        return min(1.0, max(0.0, share))

    def event(self) -> PrivacyEvent:
        """State one release, with the counted noise and the sampler's distance."""
        return self.event_with_noise(
            self.counted_noise_variance, sampler_distance=self.sampler_distance
        )

    @abc.abstractmethod
    def event_with_noise(
        self, noise_variance: Fraction, *, sampler_distance: float = 0.0
    ) -> PrivacyEvent:
        """State one release as if its counted noise had another variance.

        Calibration calls this, because sensitivities do not depend on the noise.

        Args:
            noise_variance: Counted variance per coordinate, grid steps².
            sampler_distance: Total variation distance to charge.

        Returns:
            The event.

        Raises:
            TheoremNotApplicableError: The release has no theorem at this noise.
        """

    def table_digest(self) -> bytes:
        """Return 32 bytes that identify the noise table, for configuration hashes."""
        return self.table.digest

    def forecast(self, *, sum_l2_norm: float | None = None) -> ErrorForecast:
        """Forecast the error of a sum in which every client of the cohort arrives.

        Args:
            sum_l2_norm: Expected L2 norm of the exact sum, caller's units; None for
                the largest possible, `num_clients * l2_clip`.

        Returns:
            The forecast per coordinate, caller's units.
        """
        given = self._parameters
        norm = given.num_clients * given.l2_clip if sum_l2_norm is None else sum_l2_norm
        return forecast_error(
            encoded_dim=self.rotated_dim,
            l2_clip_steps=given.scale_factor * given.l2_clip,
            scale_factor=given.scale_factor,
            modulus=given.modulus,
            num_clients=given.num_clients,
            total_noise_variance=float(self.total_noise_variance),
            sum_norm_steps=given.scale_factor * norm,
            flatness=self.flatness,
            rounding=self.rounding,
            coordinate_cap=float(self.coordinate_cap),
            mixture_norm_bound=self.mixture_norm_bound(self.l2_clip_squared_steps),
        )

    def remarks(self) -> tuple[str, ...]:
        """Return sentences that whoever configures this mechanism should not miss."""
        return ()

    def _check(self) -> None:  # noqa: B027  # most mechanisms cover all parameters
        """Refuse parameters that the mechanism's theorem does not cover."""

    @abc.abstractmethod
    def _table(self) -> NoiseSource:
        """Build the sampler of one noise draw."""

    @abc.abstractmethod
    def _round(self, fixed: FixedPointVector, private_seed: bytes) -> NDArray[np.int64]:
        """Turn the fixed-point vector into integers within the event's bounds."""

    def _fixed_point(
        self, checked: NDArray[np.float64], public_seed: bytes
    ) -> FixedPointVector:
        """Clip, rotate and scale; the result is within the bounds of `event`."""
        given = self._parameters
        rotated = self._rotation(public_seed).forward(self._clip(checked))
        rotated *= given.scale_factor
        scaled = rotated
        if self.has_clip_flag:
            # Never rotated: its value must be readable from one coordinate.
            inside = np.array_equal(clip_l2(checked, given.l2_clip), checked)
            amplitude = given.scale_factor * given.clip_flag_amplitude
            scaled = np.append(scaled, amplitude if inside else -amplitude)
        return self._to_fixed_point(scaled)

    def _clip(self, checked: NDArray[np.float64]) -> NDArray[np.float64]:
        """Clip in the caller's units, before the rotation."""
        return clip_l2(checked, self._parameters.l2_clip)

    def _to_fixed_point(self, scaled: NDArray[np.float64]) -> FixedPointVector:
        """Bring the scaled vector into the bounds that `event` states."""
        return to_fixed_point(
            scaled,
            max_squared_norm=self.l2_clip_squared_steps,
            coordinate_bound=self.coordinate_cap,
        )

    def _rounding_bits(self, private_seed: bytes) -> BitSource:
        return BitSource(private_seed, ROUNDING_LABEL)

    def _rotation(self, public_seed: bytes) -> Rotation:
        return _cached_rotation(self._parameters.rotation, self.dim, public_seed)

    def _centred(self, modular_sum: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
        residues: object = modular_sum
        if not isinstance(residues, np.ndarray):
            raise InputError(
                f"modular_sum must be an array, got {type(residues).__name__}"
            )
        if modular_sum.shape != (self.encoded_dim,):
            raise InputError(
                f"modular_sum must have shape ({self.encoded_dim},), got "
                f"{modular_sum.shape}"
            )
        return centre(modular_sum, self.modulus)


class CentralMechanism(Mechanism):
    """A mechanism whose noise one trusted party adds to the sum.

    Its noise protects against readers of what that party releases, never against the
    party itself, so `encode` adds none. Whoever demands noise from clients must
    refuse a mechanism with `noise_is_central`.
    """

    noise_is_central: ClassVar[bool] = True

    def add_noise(
        self, modular_sum: NDArray[np.unsignedinteger], *, private_seed: bytes
    ) -> Residues:
        """Add the noise to a sum, once, before anything is released.

        Args:
            modular_sum: Sum of encoded vectors modulo m, shape `(encoded_dim,)`.
            private_seed: 32 secret bytes of the party that adds the noise, fresh.

        Returns:
            The noisy sum modulo m. Release this and keep the argument out of logs
            and storage.

        Raises:
            InputError: As for `decode`.
        """
        check_seed("private_seed", private_seed)
        steps = self._centred(modular_sum)
        self.table.add_to(steps, private_seed, NOISE_LABEL)
        return wrap(steps, self.modulus)


def _shortened_by(
    checked: NDArray[np.float64], fixed: NDArray[np.int64], scale_factor: float
) -> float:
    """Return the length before the clips over the length after them, at least 1.

    Args:
        checked: The caller's vector, caller's units.
        fixed: What is left of it, in fixed point.
        scale_factor: Grid steps per unit.
    """
    peak = float(np.abs(checked).max())
    if peak == 0.0:
        return 1.0
    # Divided by the largest entry, whose square may be no float.
    before = float(np.linalg.norm(checked / peak))
    # Truncation took less than one fixed-point unit off each coordinate.
    after = float(np.linalg.norm(fixed.astype(np.float64))) + math.sqrt(fixed.size)
    ratio = before * (peak / after) * scale_factor * float(1 << FRACTIONAL_BITS)
    if ratio <= _SHORTENED:
        return 1.0
    return float(f"{min(ratio, sys.float_info.max):.6g}")


def check_seed(argument: str, seed: object) -> None:
    """Refuse anything but 32 bytes, without showing it.

    Args:
        argument: Name for the error.
        seed: What the caller passed.

    Raises:
        InputError: It is not a bytes object of length 32.
    """
    if not isinstance(seed, bytes):
        raise InputError(f"{argument} must be bytes, got {type(seed).__name__}")
    if len(seed) != SEED_BYTES:
        raise InputError(f"{argument} must be {SEED_BYTES} bytes, got {len(seed)}")


def natural_coordinate_cap(
    norm: float, flag: float, *, dim: int, flatness: float | None
) -> int:
    """Return a bound on coordinates that a rotated vector practically never reaches.

    Args:
        norm: Norm of the scaled vector, grid steps.
        flag: Amplitude of the clip flag, grid steps.
        dim: Coordinates after rotation.
        flatness: The rotation's ρ, or None without a rotation.

    Returns:
        Eight standard deviations of a rotated coordinate, rounded up, which a
        coordinate exceeds once in 10^13; or the norm, where that is smaller or
        nothing spreads it. At least 1, and at least the flag.
    """
    cap = norm
    if flatness is not None:
        cap = min(cap, 8.0 * norm * math.sqrt(flatness / dim))
    return max(1, math.ceil(cap), math.ceil(flag))


@lru_cache(maxsize=_PUBLIC_ROTATIONS)
def _cached_rotation(name: str, dim: int, public_seed: bytes) -> Rotation:
    return make_rotation(name, dim, public_seed)
