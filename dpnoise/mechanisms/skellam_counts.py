"""Skellam noise on whole numbers as they are: counts, votes, histograms.

* Client: integers, clamped to [0, L] (or [−L, L] if signed), of which the first k that
  are not zero are kept. Then it adds a Skellam share and reduces modulo m. No rotation,
  no scale, no rounding: a vector that fits the bounds is released as it is, plus noise.
* Any map into the set that the event describes is private; this one does not touch
  honest vectors. The bounds are integers, so the accountant sees the norm exactly.
* Unsigned vectors differ by less: one person in one bucket moves to another by +1 and
  −1, and not by 2. That is why they are clamped at 0 and the event says so.

It knows nothing of questions and answers; `dpnoise.answers` does.
"""

import math
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpnoise.encoding.scaling import FRACTIONAL_BITS, FixedPointVector
from dpnoise.errors import InputError, ParameterError
from dpnoise.events import NoiseEvent, SkellamEvent
from dpnoise.mechanisms.base import Mechanism
from dpnoise.mechanisms.error_forecast import ErrorForecast, Rounding
from dpnoise.samplers import InversionTable, skellam_table


def counts_norm(linf_bound: int, max_nonzero: int) -> float:
    """Return the L2 bound of vectors of few small whole numbers.

    Args:
        linf_bound: Largest absolute entry L, at least 1.
        max_nonzero: Largest number k of entries that are not zero, at least 1.

    Returns:
        L·√k, rounded up so that its exact square is at least L²·k.
    """
    squared = linf_bound * linf_bound * max_nonzero
    root = math.sqrt(squared)
    return root if Fraction(root) ** 2 >= squared else math.nextafter(root, math.inf)


class SkellamCountsMechanism(Mechanism):
    """Clamped whole numbers and Skellam noise shares.

    Source:
        This project; privacy by the accountants `lattice-pld` and `skellam-gdp`.
    """

    name: ClassVar[str] = "skellam-counts"
    rounding: ClassVar[Rounding] = Rounding.EXACT
    takes_counts: ClassVar[bool] = True

    @property
    def largest_entry(self) -> int:
        """Largest absolute entry L of one client's vector."""
        return int(self.coordinate_cap)

    @property
    def max_nonzero(self) -> int:
        """Largest number k of entries of one client's vector that are not zero."""
        given = self._parameters.max_nonzero
        return self.dim if given is None else given

    def event_with_noise(
        self, noise_variance: Fraction, *, sampler_distance: float = 0.0
    ) -> NoiseEvent:
        """State one release as if its counted noise had another variance."""
        largest, nonzero = self.largest_entry, self.max_nonzero
        return SkellamEvent(
            dim=self.encoded_dim,
            aggregate_noise_variance=noise_variance,
            l2_sensitivity=self._parameters.l2_clip,
            l1_sensitivity=float(largest * nonzero),
            linf_sensitivity=largest,
            sampler_distance=sampler_distance,
            l2_squared=largest * largest * nonzero,
            unsigned=not self._parameters.signed,
        )

    def forecast(self, *, sum_l2_norm: float | None = None) -> ErrorForecast:
        """Forecast the error of a count of the whole cohort without losses.

        A count wraps if the noise carries it beyond half the modulus. The count is
        assumed as large as possible, with the most noise that any session can retain.
        Chernoff's bound gives the tails of the noise.

        Args:
            sum_l2_norm: Expected L2 norm of the exact sum; None for the largest.

        Returns:
            The forecast per count.
        """
        given = self._parameters
        largest = float(given.num_clients * self.largest_entry)
        if sum_l2_norm is not None:
            largest = min(largest, sum_l2_norm)
        variance = float(self.expected_noise_variance)
        most = float(self.total_noise_variance)
        probability = _skellam_tail(given.modulus // 2 - largest, most)
        wrapped = probability * float(given.modulus) ** 2
        return ErrorForecast(
            expected_mse=variance + wrapped,
            noise_mse=variance,
            rounding_mse=0.0,
            bias_mse=0.0,
            wrap_mse=wrapped,
            planning_mse=variance + wrapped,
            sum_stddev=math.hypot(math.sqrt(most), largest),
            wrap_probability=probability,
            expected_wrapped_coordinates=probability * self.encoded_dim,
        )

    def remarks(self) -> tuple[str, ...]:
        """Return what the clamp does to vectors that do not fit."""
        lowest = -self.largest_entry if self._parameters.signed else 0
        clamped = f"Entries are clamped to {lowest} … {self.largest_entry}"
        if self.max_nonzero == self.dim:
            return (f"{clamped}.",)
        return (f"{clamped}; at most {self.max_nonzero} may differ from zero.",)

    def _check(self) -> None:
        given = self._parameters
        bound = self.coordinate_cap
        if given.linf_bound is None or bound.denominator != 1:
            raise ParameterError(
                "skellam-counts needs linf_bound, the largest entry, a whole number",
                parameter="linf_bound",
                value=given.linf_bound,
                nearest=str(max(1, math.floor(bound))),
            )
        if given.max_nonzero is None or given.max_nonzero > given.dim:
            raise ParameterError(
                "skellam-counts needs max_nonzero, the number of entries that one "
                "client may fill, at most dim",
                parameter="max_nonzero",
                value=given.max_nonzero,
                nearest=str(given.dim),
            )
        for name, value, wanted in (
            ("rotation", given.rotation, "none"),
            ("scale_factor", given.scale_factor, 1.0),
            ("clip_flag_amplitude", given.clip_flag_amplitude, 0.0),
            (
                "l2_clip",
                given.l2_clip,
                counts_norm(self.largest_entry, self.max_nonzero),
            ),
        ):
            if value != wanted:
                raise ParameterError(
                    f"skellam-counts releases whole numbers as they are: {name} must "
                    f"be {wanted!r}, got {value!r}",
                    parameter=name,
                    value=value,
                    nearest=str(wanted),
                )

    def _sampler(self, variance: Fraction) -> InversionTable:
        return skellam_table(variance)

    def check_input(self, vector: ArrayLike) -> NDArray[np.float64]:
        """Refuse every vector that `encode` refuses: here also one with fractions."""
        checked = super().check_input(vector)
        if not bool(np.all(checked == np.rint(checked))):
            raise InputError(
                "skellam-counts requires integer entries; choose skellam-mixture for "
                "real vectors"
            )
        return checked

    def _fixed_point(
        self, checked: NDArray[np.float64], public_seed: bytes
    ) -> FixedPointVector:
        """Clamp, and keep the first entries that are not zero."""
        del public_seed  # nothing is rotated
        lowest = -self.largest_entry if self._parameters.signed else 0
        clamped = np.clip(checked, lowest, self.largest_entry).astype(np.int64)
        clamped[np.flatnonzero(clamped)[self.max_nonzero :]] = 0
        return FixedPointVector(clamped << FRACTIONAL_BITS)

    def _round(self, fixed: FixedPointVector, private_seed: bytes) -> NDArray[np.int64]:
        del private_seed  # integers need no random rounding
        return fixed.values >> FRACTIONAL_BITS


def _skellam_tail(room: float, variance: float) -> float:
    """Bound P(noise ≥ room) for Skellam noise by Chernoff's method."""
    if room <= 0.0:
        return 1.0
    # U·asinh(U/v) − √(U² + v²) + v, whose last two terms cancel for small U.
    root = math.hypot(room, variance) + variance
    return math.exp(-(room * math.asinh(room / variance) - room * room / root))
