"""The mechanism interface: float vector in, residues with a noise share out, and back.

* `encode` is a function of the vector, the two seeds and the parameters. Replaying
  it gives the same residues on every platform, so a client that restarts never
  sends two different messages.
* The order is: check, clip in the caller's units, rotate and scale. Then convert to
  fixed point with a proven norm bound, round, add the noise share, and reduce modulo m.
  The norm that counts is the one handed to the rounding step.
* The noise of one client depends on the session's roster (`session`). Removable layers
  have seeds of their own; a party that holds such a seed draws the same noise.
* Under a selection rate below 1 a secret selection decides whether the vector counts.
  If not, its rounded integers are replaced by zeros before noise is added; everything
  else is computed in both cases.
* Noise, rounding and selection read separate streams derived from the private seed,
  under labels of their own. A private seed serves one vector and one roster, once: the
  difference of two encodings under one seed would be nearly free of noise.
* What `encode` enforces is exactly what `event` states. A mechanism whose theorem
  does not cover its parameters refuses to be built.
* `decode` estimates the sum, not the mean. The protocol states which clients it covers.

It computes no privacy loss; `event` states all that an accountant needs. It draws no
seed: the caller draws one with `dpnoise.samplers.fresh_seed`.
"""

import abc
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import ClassVar, Final, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpnoise.checks import check_integer
from dpnoise.encoding.clipping import check_matrix, check_vector, clip_l2
from dpnoise.encoding.rotation import Rotation, encoded_dim, flatness, make_rotation
from dpnoise.encoding.scaling import (
    FRACTIONAL_BITS,
    FixedPointVector,
    natural_coordinate_cap,
    to_fixed_point,
)
from dpnoise.encoding.wrapping import Residues, centre, residue_dtype, wrap
from dpnoise.errors import InputError, ParameterError
from dpnoise.events import NoiseEvent
from dpnoise.floats import float_above
from dpnoise.mechanisms.clip_flag import ClipFlag
from dpnoise.mechanisms.error_forecast import ErrorForecast, Rounding, forecast_error
from dpnoise.mechanisms.noise_share import DEFAULT_SHARE_BITS, SessionNoise
from dpnoise.mechanisms.parameters import MechanismParameters
from dpnoise.mechanisms.secret_selection import ALL_CLIENTS, is_selected
from dpnoise.mechanisms.sum_error import SumError, rounding_variance_bound
from dpnoise.samplers import SEED_BYTES, BitSource
from dpnoise.samplers.skellam import MAX_TABLE_VARIANCE, MIN_TABLE_VARIANCE

NOISE_LABEL: Final = b"dpnoise/v1/noise"
"""Label of the stream that the noise share, or its base, is drawn from."""

LAYER_LABEL: Final = b"dpnoise/v1/layer"
"""Label of the stream that a layer is drawn from, under the layer's own seed."""

ROUNDING_LABEL: Final = b"dpnoise/v1/rounding"
"""Label of the stream that rounding bits are drawn from."""


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


DISTANCE_PER_DRAW: Final = 2.0**-120
"""Charged per draw of distributed noise; every sampler is nearer than this to its law,
whichever variance the roster of a session asks for."""


class NoiseSource(Protocol):
    """What a mechanism requires of a sampler; `InversionTable` is the exact one."""

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


_HIDDEN_BIAS: Final = Fraction(1, 100)
"""Squared bias over noise variance that takes 0.1 percent off an interval's 95."""

_NORMAL_FROM: Final = 1 << 10
"""Noise in all entries that a rotation mixes, steps², from which on one entry's lattice
takes 0.2 percent off an interval's 95, and the normal law holds far out."""

_SHORTENED: Final = 1.0 + 2.0**-20  # what rounding of floats never reaches


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Encoded:
    """One client's contribution, ready to be summed.

    Args:
        residues: Shape `(encoded_dim,)`, the smallest unsigned type that holds the
            modulus; equal arguments of `encode` give equal residues.
        shortened_by: Length of the vector over its length after the clips, to six
            digits: 1.0 for a vector within the bounds, 10.0 for one ten times too long.
            It reveals something about the vector: show it to its owner only.
    """

    residues: Residues
    shortened_by: float

    def __repr__(self) -> str:
        return f"Encoded(length={self.residues.size}, entries=<redacted>)"


def _shortening(
    checked: NDArray[np.float64], fixed: NDArray[np.int64], scale_factor: float
) -> float:
    """Return the length before the clips over the length after them, at least 1.

    Args:
        checked: The caller's vector, caller's units.
        fixed: The clipped vector, in fixed point.
        scale_factor: Grid steps per unit.
    """
    peak = float(np.abs(checked).max())
    if peak == 0.0:
        return 1.0
    # Divided by the largest entry, whose square may overflow a float.
    before = float(np.linalg.norm(checked / peak))
    # Truncation took less than one fixed-point unit off each coordinate.
    after = float(np.linalg.norm(fixed.astype(np.float64))) + math.sqrt(fixed.size)
    ratio = before * (peak / after) * scale_factor * float(1 << FRACTIONAL_BITS)
    if ratio <= _SHORTENED:
        return 1.0
    return float(f"{min(ratio, sys.float_info.max):.6g}")


_PUBLIC_ROTATIONS: Final = 4  # a simulation rotates many vectors under one public seed


class Mechanism(abc.ABC):
    """Encodes float vectors as residues that carry noise, and decodes their sum.

    A subclass names itself, says how it rounds, checks its theorem in `_check`,
    draws its noise in `_sampler`, and states the release in `event_with_noise`.

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

    takes_counts: ClassVar[bool] = False
    """Whether vectors are few small whole numbers, bounded by `linf_bound` and
    `max_nonzero`, which are neither scaled nor rotated."""

    finest_share_bits: ClassVar[int] = DEFAULT_SHARE_BITS
    """Largest `share_bits`: the sampler takes multiples of 2^-finest_share_bits."""

    least_variance: ClassVar[Fraction] = MIN_TABLE_VARIANCE
    """Smallest variance of one draw that the sampler accepts, grid steps²."""

    takes_ladder: ClassVar[bool] = True
    """Whether sums of draws have the law of the summed variance, so that layers may be
    taken back."""

    largest_variance: ClassVar[Fraction] = MAX_TABLE_VARIANCE
    """Largest variance of one draw that the sampler holds, grid steps²."""

    published_accountant: ClassVar[str | None] = None
    """The accountant whose theorem ties the noise to an integer `linf_bound`, which
    must then be given; None if noise and bound are independent."""

    def __init__(self, parameters: MechanismParameters) -> None:
        if parameters.mechanism != self.name:
            raise ParameterError(
                f"these parameters are for {parameters.mechanism}, not {self.name}",
                parameter="mechanism",
                value=parameters.mechanism,
                nearest=self.name,
            )
        self._parameters: Final = parameters
        self._check_counts()
        self._clip_flag: Final = self._make_clip_flag()
        self._check_sampling()
        self._check()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._parameters!r})"

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
        """Whether extra coordinates tell if the vector was clipped."""
        return self._clip_flag is not None

    @cached_property
    def rotated_dim(self) -> int:
        """Coordinates after rotation and padding, without the clip flag."""
        return encoded_dim(self._parameters.rotation, self.dim)

    @property
    def clip_flag_coordinates(self) -> int:
        """Number of coordinates that the clip flag is spread over; 0 without a flag."""
        return 0 if self._clip_flag is None else self._clip_flag.coordinates

    @property
    def encoded_dim(self) -> int:
        """Length of the vectors of residues."""
        return self.rotated_dim + self.clip_flag_coordinates

    @cached_property
    def l2_clip_squared_steps(self) -> float:
        """Bound C on the squared norm before rounding, grid steps², rounded up."""
        given = self._parameters
        square = Fraction(given.l2_clip) ** 2 + Fraction(given.clip_flag_amplitude) ** 2
        return float_above(Fraction(given.scale_factor) ** 2 * square)

    @cached_property
    def coordinate_cap(self) -> Fraction:
        """Bound on every absolute coordinate before rounding, grid steps.

        `linf_bound` when given, `natural_coordinate_cap` otherwise.
        """
        given = self._parameters
        if given.linf_bound is not None:
            return given.linf_bound
        return natural_coordinate_cap(
            given.scale_factor * given.l2_clip,
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
        return self._parameters.noise_rule.counted_variance

    @property
    def total_noise_variance(self) -> Fraction:
        """Variance of all noise that can arrive, over all rosters, grid steps²."""
        given = self._parameters
        if self.noise_is_central:
            return given.noise_rule.counted_variance
        return given.noise_rule.largest_total(given.num_clients)

    @property
    def expected_noise_variance(self) -> Fraction:
        """Variance of the noise in a sum of the whole cohort without losses.

        It excludes layers that survivors remove. Grid steps².
        """
        given = self._parameters
        if self.noise_is_central:
            return given.noise_rule.counted_variance
        return given.num_clients * self.session(given.num_clients).remaining(0)

    @property
    def sampler_distance(self) -> float:
        """Total variation distance of all noise of one sum from the exact law."""
        given = self._parameters
        if self.noise_is_central:
            distance = self.sampler(self.counted_noise_variance).distance_bound
            return self.encoded_dim * distance * (1.0 + 2.0**-40)
        layers = 1 + given.noise_rule.ladder if given.noise_rule.ladder else 0
        draws = self.encoded_dim * given.num_clients * (1 + layers)
        return draws * DISTANCE_PER_DRAW

    def session(self, roster: int) -> SessionNoise:
        """Return the noise that each client of a session adds.

        Args:
            roster: Number of clients that share the noise.

        Raises:
            ParameterError: It is below `min_survivors` or above the cohort size.
        """
        given = self._parameters
        lowest = given.noise_rule.min_survivors
        check_integer("roster", roster, lowest, given.num_clients)
        return given.noise_rule.session(roster)

    def sampler(self, variance: Fraction) -> NoiseSource:
        """Build, or fetch, the sampler of one noise draw.

        Args:
            variance: Variance of the draw, grid steps².

        Raises:
            ParameterError: The sampler does not hold such a variance.
        """
        source = self._sampler(variance)
        if source.distance_bound > DISTANCE_PER_DRAW:
            raise ParameterError(
                f"the sampler of {self.name} is farther from its law than is charged",
                parameter="counted_variance",
                value=float(variance),
            )
        return source

    def drawn_variance(self, variance: Fraction) -> Fraction:
        """Return the true variance of one draw, for forecasts only.

        Args:
            variance: As `sampler` takes it, grid steps².
        """
        return variance

    def sampler_digests(self, session_noise: SessionNoise) -> tuple[bytes, ...]:
        """Return 32 bytes for each draw of a session: base first, then the layers.

        Two parties with equal digests draw equal noise from equal seeds.

        Args:
            session_noise: From `session`.
        """
        variances = (session_noise.base, *session_noise.layers)
        return tuple(self.sampler(variance).digest for variance in variances)

    @cached_property
    def sampler_digest(self) -> bytes:
        """32 bytes that identify how noise is drawn, for configuration hashes.

        They identify the share of the smallest roster, or the central draw.
        """
        variance = self.counted_noise_variance
        if not self.noise_is_central:
            variance = self.session(self._parameters.noise_rule.min_survivors).base
        return self.sampler(variance).digest

    def check_input(self, vector: ArrayLike) -> NDArray[np.float64]:
        """Refuse every vector that `encode` refuses, and no other.

        Args:
            vector: As for `encode`.

        Returns:
            A fresh float64 copy, shape `(dim,)`.

        Raises:
            InputError: The vector has a wrong type, shape or length, or an entry that
                is not finite or that this mechanism does not take.
        """
        return check_vector(vector, self.dim)

    def encode(  # noqa: PLR0913 - what one upload depends on, all of it
        self,
        vector: NDArray[np.floating] | NDArray[np.integer],
        *,
        private_seed: bytes,
        public_seed: bytes,
        session_noise: SessionNoise,
        layer_seeds: Sequence[bytes] = (),
        selection_rate: Fraction = ALL_CLIENTS,
    ) -> Encoded:
        """Turn one client's vector into residues that carry its noise share.

        Args:
            vector: Real numbers of shape `(dim,)`, finite, caller's units. A vector
                longer than `l2_clip` is scaled down to it.
            private_seed: 32 secret bytes, fresh for this vector and roster, from
                `dpnoise.samplers.fresh_seed`.
            public_seed: 32 bytes that all parties of the session share; they fix the
                rotation.
            session_noise: From `session`, for the roster of this session. Central
                mechanisms add none.
            layer_seeds: One seed like `private_seed` for each layer of noise. A party
                that holds such a seed can remove that layer, and no other.
            selection_rate: Probability that the vector counts; otherwise zeros are
                sent, flag included, under the same noise (`is_selected`).

        Returns:
            The residues, and by what factor the vector was shortened, whether or not
            it counts.

        Raises:
            InputError: The vector or a seed has a wrong type, shape or length, or an
                entry is not finite. Or the number of seeds differs from that of layers.
                Nothing was drawn; correct the input.
            ParameterError: The selection rate is invalid.
        """
        for seed in (private_seed, *layer_seeds):
            check_seed("private_seed", seed)
        check_seed("public_seed", public_seed)
        if not self.noise_is_central and len(layer_seeds) != len(session_noise.layers):
            raise InputError(
                f"{len(session_noise.layers)} layers of noise need as many seeds, not "
                f"{len(layer_seeds)}"
            )
        checked = self.check_input(vector)
        fixed = self._fixed_point(checked, public_seed)
        steps = self._round(fixed, private_seed)
        # A product, so that both outcomes take the same path.
        steps *= int(is_selected(private_seed, selection_rate))
        if not self.noise_is_central:
            self.sampler(session_noise.base).add_to(steps, private_seed, NOISE_LABEL)
            for variance, seed in zip(session_noise.layers, layer_seeds, strict=True):
                self.sampler(variance).add_to(steps, seed, LAYER_LABEL)
        return Encoded(
            wrap(steps, self.modulus),
            _shortening(
                checked, fixed.values[: self.rotated_dim], self._parameters.scale_factor
            ),
        )

    def encode_many(  # noqa: PLR0913 - as `encode`, for every row
        self,
        vectors: NDArray[np.floating] | NDArray[np.integer],
        *,
        private_seeds: Sequence[bytes],
        public_seed: bytes,
        session_noise: SessionNoise,
        layer_seeds: Sequence[Sequence[bytes]] | None = None,
        selection_rate: Fraction = ALL_CLIENTS,
    ) -> Residues:
        """Encode the vectors of many clients: a row each, byte for byte as `encode`.

        Args:
            vectors: One client's vector a row, shape `(n, dim)`.
            private_seeds: One seed for each row, all different.
            public_seed: As for `encode`.
            session_noise: As for `encode`.
            layer_seeds: The seeds of one row's layers for each row; None without.
            selection_rate: As for `encode`.

        Returns:
            Residues, shape `(n, encoded_dim)`; `encoding.sum_residues` adds them up.

        Raises:
            InputError: The vectors are not a matrix, the seeds are not as many as rows,
                two of them are equal, or as for `encode`.
            ParameterError: As for `encode`.
        """
        check_matrix(vectors, self.dim)
        seeds = [()] * len(vectors) if layer_seeds is None else layer_seeds
        if not len(vectors) == len(private_seeds) == len(seeds):
            raise InputError(
                f"{len(vectors)} vectors need as many private seeds and layer seeds, "
                f"not {len(private_seeds)} and {len(seeds)}"
            )
        if len(set(private_seeds)) < len(private_seeds):
            raise InputError("two vectors have one private seed, hence the same noise")
        residues = np.empty(
            (len(vectors), self.encoded_dim), residue_dtype(self.modulus)
        )
        for row, vector, private_seed, layers in zip(
            residues, vectors, private_seeds, seeds, strict=True
        ):
            row[:] = self.encode(
                vector,
                private_seed=private_seed,
                public_seed=public_seed,
                session_noise=session_noise,
                layer_seeds=layers,
                selection_rate=selection_rate,
            ).residues
        return residues

    def quantise(
        self,
        vector: NDArray[np.floating] | NDArray[np.integer],
        *,
        private_seed: bytes,
        public_seed: bytes,
    ) -> NDArray[np.int64]:
        """Return the integers that `encode` adds noise to, for experiments.

        They are as private as the vector: show them to its owner only.

        Args:
            vector: As for `encode`.
            private_seed: As for `encode`; it decides how entries are rounded.
            public_seed: As for `encode`.

        Returns:
            Grid steps, shape `(encoded_dim,)`, within the bounds that `event` states.

        Raises:
            InputError: As for `encode`.
        """
        check_seed("private_seed", private_seed)
        check_seed("public_seed", public_seed)
        fixed = self._fixed_point(self.check_input(vector), public_seed)
        return self._round(fixed, private_seed)

    def layer_noise(
        self, layers: Iterable[tuple[Fraction, bytes]], *, start: int, count: int
    ) -> Residues:
        """Draw a stretch of layers again, as `encode` has added them.

        Args:
            layers: For each layer its variance, an entry of `SessionNoise.layers`, and
                its seed. They may be those of many clients.
            start: First coordinate.
            count: Number of coordinates.

        Returns:
            Residues of the sum of the layers modulo m, shape (count,): subtract them
            from a sum that holds these clients' vectors. Stretches in any order give
            the same noise.

        Raises:
            InputError: A seed is not 32 bytes.
        """
        steps = np.zeros(count, np.int64)
        for variance, seed in layers:
            check_seed("seed", seed)
            self.sampler(variance).add_to(steps, seed, LAYER_LABEL, start=start)
        return wrap(steps, self.modulus)

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
        self,
        modular_sum: NDArray[np.unsignedinteger],
        *,
        num_contributors: int,
        selection_rate: Fraction = ALL_CLIENTS,
    ) -> float:
        """Estimate the share of clients whose vector was not clipped.

        Args:
            modular_sum: As for `decode`.
            num_contributors: Number of clients that were summed.
            selection_rate: That of `encode`; a vector not selected sends no flag.

        Returns:
            The estimate, clamped to [0, 1]; unbiased before the clamp.

        Raises:
            ParameterError: The parameters have no clip flag, or the number of
                contributors is not between 1 and the cohort size.
            InputError: As for `decode`.
        """
        if self._clip_flag is None:
            raise ParameterError(
                "these parameters have no clip flag",
                parameter="clip_flag_amplitude",
                value=0.0,
                nearest="a positive amplitude, see suggest_flag_amplitude",
            )
        return self._clip_flag.decode(
            self._centred(modular_sum)[self.rotated_dim :],
            num_contributors=num_contributors,
            selection_rate=selection_rate,
        )

    def event(self) -> NoiseEvent:
        """State one release, with the counted noise and the sampler's distance."""
        return self.event_with_noise(
            self.counted_noise_variance, sampler_distance=self.sampler_distance
        )

    @abc.abstractmethod
    def event_with_noise(
        self, noise_variance: Fraction, *, sampler_distance: float = 0.0
    ) -> NoiseEvent:
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

    def forecast(self, *, sum_l2_norm: float | None = None) -> ErrorForecast:
        """Forecast the error of a sum of the whole cohort without losses.

        The modulus is chosen for the most noise that any session can retain.

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
            noise_variance=float(self.expected_noise_variance),
            most_noise_variance=float(self.total_noise_variance),
            sum_norm_steps=given.scale_factor * norm,
            flatness=self.flatness,
            rounding=self.rounding,
            coordinate_cap=float(self.coordinate_cap),
            mixture_norm_bound=self.mixture_norm_bound(self.l2_clip_squared_steps),
        )

    def sum_error(
        self,
        noise_variance: Fraction,
        *,
        inputs: int,
        selection_rate: Fraction = ALL_CLIENTS,
        magnification: Fraction = ALL_CLIENTS,
    ) -> SumError:
        """Return the error of a decoded sum as an estimate of the sum of its vectors.

        The reference is the sum of the vectors after clipping.

        Args:
            noise_variance: Of all noise in the sum, per coordinate, grid steps²: the
                shares of clients whose vectors arrived, less the removed layers.
            inputs: Number of vectors in the sum.
            selection_rate: The q that they were encoded with; the sum is over q.
            magnification: What vectors were multiplied by before they were clipped, and
                the sum was divided by.

        Returns:
            The error, caller's units.
        """
        given, rate = self._parameters, selection_rate
        unit = Fraction(given.scale_factor) * magnification
        clip = Fraction(given.l2_clip) / magnification
        # What is not mixed may lie in one entry, vectors and their errors alike.
        mixed = 1 if self.flatness is None else self.rotated_dim
        size = Fraction(given.scale_factor * given.l2_clip) ** 2 / mixed
        rounded, bias = inputs * rounding_variance_bound(size), Fraction(0)
        match self.rounding:
            case Rounding.EXACT:
                rounded = bias
            case Rounding.TOWARD_ZERO:
                # Less than a step and than the coordinate. They may all point one way,
                # and the rotation that is taken back bring them into one entry.
                rounded = inputs**2 * min(Fraction(1), size)
                bias = rounded * mixed
            case Rounding.CONDITIONAL:
                # Where at most a part β is rounded again, the mean of an error of
                # variance 1/4 moves by at most √(β/(1 − β))/2 (Cauchy-Schwarz).
                again = Fraction(given.rounding_bias)
                bias = inputs**2 * again / (4 * (1 - again))
        # A vector that is not selected adds neither entries nor rounding to the sum.
        error = SumError(
            (noise_variance + rate * rounded) / (unit * rate) ** 2
            + (1 / rate - 1) * inputs * clip**2 / self.dim,
            None if mixed > 1 else 1 / unit,
        )
        if rate != 1:
            error = error.with_flaw("secret selection decides which vectors it adds up")
        if bias > noise_variance * _HIDDEN_BIAS:
            error = error.with_flaw("rounding may shorten every vector, noise or not")
        if mixed > 1 and mixed * noise_variance < _NORMAL_FROM:
            error = error.with_flaw("so little noise in so few entries is not normal")
        if self.mixture_norm_bound(self.l2_clip_squared_steps) is not None:
            error = error.with_flaw(
                f"the clip of {self.name} also shortens vectors within l2_clip"
            )
        return error

    def remarks(self) -> tuple[str, ...]:
        """Return warnings for the author of a plan with this mechanism."""
        return ()

    def _check_counts(self) -> None:
        """Refuse bounds that this mechanism would ignore."""
        given = self._parameters
        if self.takes_counts:
            return
        if given.max_nonzero is not None or given.signed:
            name = "signed" if given.max_nonzero is None else "max_nonzero"
            raise ParameterError(
                f"{self.name} knows no {name}; it belongs to skellam-counts",
                parameter=name,
                value=getattr(given, name),
                nearest="false" if name == "signed" else "none",
            )

    def _make_clip_flag(self) -> ClipFlag | None:
        if self._parameters.clip_flag_amplitude == 0.0:
            return None
        return ClipFlag(self._parameters, self.coordinate_cap)

    def _check_sampling(self) -> None:
        """Refuse noise that this mechanism cannot draw."""
        given, rule = self._parameters, self._parameters.noise_rule
        if self.noise_is_central:
            return
        check_integer("share_bits", rule.share_bits, 0, self.finest_share_bits)
        if rule.ladder and not self.takes_ladder:
            raise ParameterError(
                f"shares of {self.name} do not add up to noise of the same law, so "
                "that no layer can be taken back",
                parameter="ladder",
                value=rule.ladder,
                nearest="0",
            )
        largest = rule.largest_share(given.num_clients)
        smallest = rule.least_variance(given.num_clients)
        for share, limit, inwards, holds in (  # four digits are printed
            (largest, self.largest_variance, 0.999, largest <= self.largest_variance),
            (smallest, self.least_variance, 1.001, smallest >= self.least_variance),
        ):
            if not holds:
                nearest = inwards * float(rule.counted_variance * limit / share)
                raise ParameterError(
                    f"one noise share would have a variance of {float(share):.4g} grid "
                    f"steps squared, and samplers hold {float(self.least_variance):.4g}"
                    f" to {float(self.largest_variance):.4g}",
                    parameter="counted_variance",
                    value=float(rule.counted_variance),
                    nearest=f"{nearest:.4g}",
                )

    def _check(self) -> None:  # noqa: B027  # most mechanisms cover all parameters
        """Refuse parameters that the mechanism's theorem does not cover."""

    @abc.abstractmethod
    def _sampler(self, variance: Fraction) -> NoiseSource:
        """Build, or fetch, the sampler of one draw of that variance."""

    @abc.abstractmethod
    def _round(self, fixed: FixedPointVector, private_seed: bytes) -> NDArray[np.int64]:
        """Turn the fixed-point vector into integers within the event's bounds."""

    def _fixed_point(
        self, checked: NDArray[np.float64], public_seed: bytes
    ) -> FixedPointVector:
        """Clip, rotate and scale; the result is within the bounds of `event`."""
        given = self._parameters
        scaled = self._rotation(public_seed).forward(self._clip(checked))
        scaled *= given.scale_factor
        if self._clip_flag is not None:
            fitted = np.array_equal(clip_l2(checked, given.l2_clip), checked)
            scaled = np.append(scaled, self._clip_flag.encode(fitted=fitted))
        return self._to_fixed_point(scaled)

    def _clip(self, checked: NDArray[np.float64]) -> NDArray[np.float64]:
        """Clip in the caller's units, before the rotation."""
        return clip_l2(checked, self._parameters.l2_clip)

    def _to_fixed_point(self, scaled: NDArray[np.float64]) -> FixedPointVector:
        """Bring the scaled vector into the bounds that `event` states."""
        return to_fixed_point(
            scaled,
            max_squared_norm=self.l2_clip_squared_steps,
            coordinate_bound=float(self.coordinate_cap),
        )

    def _rounding_bits(self, private_seed: bytes) -> BitSource:
        return BitSource(private_seed, ROUNDING_LABEL)

    def _rotation(self, public_seed: bytes) -> Rotation:
        return _cached_rotation(self._parameters.rotation, self.dim, public_seed)

    def _centred(self, modular_sum: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
        """Return a modular sum as signed integers, or refuse its shape."""
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


@lru_cache(maxsize=_PUBLIC_ROTATIONS)
def _cached_rotation(name: str, dim: int, public_seed: bytes) -> Rotation:
    return make_rotation(name, dim, public_seed)


class CentralMechanism(Mechanism):
    """A mechanism whose noise one trusted party adds to the sum.

    Its noise protects against readers of what that party releases, never against the
    party itself, so `encode` adds none. A caller that requires noise from clients must
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
        source = self.sampler(self.counted_noise_variance)
        source.add_to(steps, private_seed, NOISE_LABEL)
        return wrap(steps, self.modulus)
