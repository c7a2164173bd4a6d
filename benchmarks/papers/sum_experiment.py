"""A distributed sum run for real: encode every client, add modulo m, decode, compare.

* Clients hold vectors drawn uniformly from a sphere, as both publications do.
* Every client goes through `Mechanism.encode` with its own seed; sums are modular.
* As in the publications all n shares count as privacy noise. (The planner of this
  project leaves out the share of the user at stake, 1 % of the noise at n = 100.)
* Seeds are fixed: the same table comes out of every run.

`predicted_mse` forecasts what `measured_mse` measures, wrap-around included.
"""

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np
import numpy.typing as npt

from dpnoise.encoding.mixture_clipping import clip_mixture
from dpnoise.encoding.rotation import make_rotation
from dpnoise.mechanisms import NoiseRule, make_mechanism
from dpnoise.mechanisms.base import Mechanism
from dpnoise.mechanisms.parameters import MechanismParameters

_NEGLIGIBLE = 1e-18
_NO_WRAPPING = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Cohort:
    """Vectors of all clients.

    Args:
        vectors: Shape (clients, dim), caller's units.
        radius: Norm of every vector, caller's units.
    """

    vectors: npt.NDArray[np.float64]
    radius: float

    @classmethod
    def on_sphere(cls, *, clients: int, dim: int, radius: float, label: str) -> Self:
        """Draw vectors uniformly from a sphere.

        Args:
            clients: Number of vectors.
            dim: Coordinates.
            radius: Norm of every vector.
            label: Names the draw; equal labels give equal vectors.
        """
        seed = int.from_bytes(_seed(label)[:8], "little")
        vectors = np.random.default_rng(seed).standard_normal((clients, dim))
        vectors *= radius / np.linalg.norm(vectors, axis=1, keepdims=True)
        return cls(vectors, radius)

    @classmethod
    def aligned(cls, *, clients: int, dim: int, radius: float, label: str) -> Self:
        """Give every client one and the same point of a sphere.

        Args:
            clients: Number of vectors.
            dim: Coordinates.
            radius: Norm of every vector.
            label: Names the draw.
        """
        one = cls.on_sphere(clients=1, dim=dim, radius=radius, label=label)
        return cls(np.tile(one.vectors, (clients, 1)), radius)

    @property
    def sum_norm(self) -> float:
        """L2 norm of the sum."""
        return float(np.linalg.norm(self.vectors.sum(axis=0)))


def build_mechanism(  # noqa: PLR0913  # the settings of one point of a figure
    name: str,
    *,
    dim: int,
    radius: float,
    scale_factor: float,
    bits: int,
    clients: int,
    noise_variance: Fraction,
    linf_bound: int | None = None,
) -> Mechanism:
    """Build a mechanism whose n shares add up to a given noise.

    Args:
        name: Mechanism.
        dim: Coordinates of the caller's vector.
        radius: L2 clip, caller's units.
        scale_factor: Grid steps per unit.
        bits: Bits of the modulus.
        clients: Number n of shares in the sum.
        noise_variance: Variance of the sum of all n shares, grid steps squared.
        linf_bound: Integer bound on coordinates, where the mechanism asks for it.
    """
    return make_mechanism(
        MechanismParameters(
            mechanism=name,
            dim=dim,
            l2_clip=radius,
            scale_factor=scale_factor,
            modulus=1 << bits,
            noise_rule=NoiseRule(
                counted_variance=noise_variance * (clients - 1) / clients,
                min_survivors=clients,
            ),
            num_clients=clients,
            linf_bound=None if linf_bound is None else Fraction(linf_bound),
        )
    )


def measured_mse(mechanism: Mechanism, cohort: Cohort, *, label: str) -> float:
    """Run one sum and return its mean squared error.

    Args:
        mechanism: What every client runs.
        cohort: Whose vectors to add up.
        label: Names the run; equal labels give equal noise.

    Returns:
        Mean over coordinates of the squared error of the sum, caller's units squared.
    """
    public_seed = _seed(f"{label}/public")
    total = np.zeros(mechanism.encoded_dim, np.uint64)
    for client, vector in enumerate(cohort.vectors):
        total += mechanism.encode(
            vector,
            private_seed=_seed(f"{label}/client {client}"),
            public_seed=public_seed,
            session_noise=mechanism.session(len(cohort.vectors)),
        ).residues
    total %= np.uint64(mechanism.modulus)
    residues = total.astype(np.min_scalar_type(mechanism.modulus - 1))
    estimate = mechanism.decode(residues, public_seed=public_seed)
    error = estimate - cohort.vectors.sum(axis=0)
    return float(np.mean(error * error))


def mixture_clip_gain(cohort: Cohort, *, scale_factor: float, linf_bound: int) -> float:
    """Measure how much of a vector the special clip of [Bao22] lets through.

    Args:
        cohort: Whose first vector to clip.
        scale_factor: Grid steps per unit.
        linf_bound: The integer Δ∞.

    Returns:
        ⟨clipped, vector⟩/‖vector‖² after rotation and scaling, in [0, 1].
    """
    vector = cohort.vectors[0]
    rotation = make_rotation("hadamard", vector.size, _seed("clip gain"))
    scaled = rotation.forward(vector) * scale_factor
    clipped = clip_mixture(
        scaled,
        mixture_norm_bound=(scale_factor * cohort.radius) ** 2,
        linf_bound=linf_bound,
    )
    kept = clipped.values * 2.0**-clipped.fractional_bits
    return float(kept @ scaled) / float(scaled @ scaled)


def predicted_mse(mechanism: Mechanism, cohort: Cohort) -> float:
    """Forecast the mean squared error of a sum, wrap-around included.

    A coordinate of the sum is taken as normal. The planner adds the whole multiple of
    m that wrapping displaces a coordinate by, because a wrapped sum is worthless
    however small its error; a measurement sees the wrapped value, whose variance is at
    most m²/12, so that is what is forecast here.

    Args:
        mechanism: What every client runs.
        cohort: Whose vectors are added up.

    Returns:
        Expected squared error per coordinate of the caller's vector, caller's units
        squared.
    """
    forecast = mechanism.forecast(sum_l2_norm=cohort.sum_norm)
    unit = mechanism.parameters.scale_factor**2
    signal = cohort.sum_norm**2 * unit / mechanism.encoded_dim
    noise = (forecast.noise_mse + forecast.rounding_mse) * unit
    error = wrapped_error(signal, noise, mechanism.modulus)
    # Padding and rotation spread the error evenly over the encoded coordinates.
    return error / unit + forecast.bias_mse


def wrapped_error(signal: float, noise: float, modulus: int) -> float:
    """Return E[(W − S)²], where W is S + N wrapped into [−m/2, m/2).

    Args:
        signal: Variance of the centred normal S, grid steps squared.
        noise: Variance of the centred normal N, independent of S.
        modulus: The modulus m.

    Returns:
        The error in grid steps squared. With e_k = exp(−2π²k²(signal+noise)/m²):
        E[W²] = m²/12 + Σ_k (−1)^k (m/πk)²·e_k from the Fourier series of the wrapped
        square, and E[WS] = signal·E[dW/dS] = −2·signal·Σ_k (−1)^k e_k by Stein's
        identity.
    """
    exponent = 2.0 * math.pi**2 * (signal + noise) / modulus**2
    if exponent < _NO_WRAPPING:
        # The modulus is thirty deviations wide; the series would need many terms.
        return noise
    square, slope, k = modulus**2 / 12.0, 0.0, 1
    while (decay := math.exp(-exponent * k * k)) > _NEGLIGIBLE:
        sign = -1.0 if k % 2 else 1.0
        square += sign * (modulus / (math.pi * k)) ** 2 * decay
        slope -= 2.0 * sign * decay
        k += 1
    return square + signal * (1.0 - 2.0 * slope)


def _seed(label: str) -> bytes:
    return hashlib.sha256(f"paper figures/{label}".encode()).digest()
