"""Statements of [Aga21] about the mechanism, one test each."""

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest

from dpnoise.errors import ParameterError
from dpnoise.events import SkellamEvent
from dpnoise.mechanisms import (
    MechanismParameters,
    NoiseRule,
    make_mechanism,
    scale_from_bits,
)


def seed(*parts):
    return hashlib.sha256(repr(parts).encode()).digest()


def skellam(**changes):
    given = {
        "mechanism": "skellam",
        "dim": 65536,
        "l2_clip": 1.0,
        "scale_factor": 16.0,
        "modulus": 1 << 16,
        "noise_rule": NoiseRule(counted_variance=Fraction(198_000), min_survivors=100),
        "num_clients": 100,
    }
    return make_mechanism(MechanismParameters(**(given | changes)))


def test_proposition_4_2_bounds_the_rounded_norm():
    event = skellam().event()
    assert isinstance(event, SkellamEvent)
    # D² + d/4 + √(2·log(1/β))·(D + √d/2) with β = e^(−1/2), so the root is 1.
    expected = 16.0**2 + 65536 / 4 + 1.0 * (16.0 + 128.0)
    # The integer below it; a bound that is itself an integer may lose one.
    assert math.floor(expected) - 1 <= event.l2_sensitivity**2 < expected + 1e-6


def test_the_l1_norm_of_an_integer_vector_follows_from_its_l2_norm():
    event = skellam().event()
    assert isinstance(event, SkellamEvent)
    assert event.l1_sensitivity == pytest.approx(
        min(event.l2_sensitivity**2, 256.0 * event.l2_sensitivity), rel=1e-9
    )


def test_algorithm_1_line_6_accepts_a_rounding_with_the_promised_probability():
    # Acceptance is at least 1 − β = 0.39; count vectors whose norm is near the bound.
    chosen = skellam(dim=4096, scale_factor=32.0)
    vector = np.full(4096, 1.0 / 64.0)
    norms = [
        int(np.sum(chosen._round(chosen._fixed_point(vector, seed("p")), seed(i)) ** 2))
        for i in range(50)
    ]
    assert max(norms) <= chosen.max_squared_norm
    # Rounding adds about d·E[f − f²] to the squared norm; the ball leaves it room.
    assert min(norms) > 32.0**2


def test_algorithm_1_server_lifts_m_half_to_minus_m_half():
    chosen = skellam(dim=4, rotation="none", scale_factor=2.0, modulus=16)
    lifted = chosen.decode(np.array([7, 8, 15, 0], np.uint16), public_seed=seed("p"))
    np.testing.assert_array_equal(lifted, [3.5, -4.0, -0.5, 0.0])


def test_the_shared_scale_has_the_closed_form():
    # With σ_loc fixed in caller's units, γ has a closed form.
    bits, dim, clients, clip, k, sigma = 16, 1024, 100, 2.0, 3.0, 0.7
    found = scale_from_bits(
        bits,
        dim=dim,
        l2_clip=clip,
        num_clients=clients,
        noise_variance_at=lambda scale: clients * (scale * sigma) ** 2,
        deviations=k,
    )
    closed = math.sqrt(4.0**bits - clients * k * k) / (
        2 * k * math.sqrt(clip**2 * clients**2 / dim + clients * sigma**2)
    )
    assert found == pytest.approx(closed, rel=1e-9)


def test_the_shared_scale_grows_with_the_bits():
    scales = [
        scale_from_bits(
            bits,
            dim=4096,
            l2_clip=1.0,
            num_clients=50,
            noise_variance_at=lambda scale: 14.0 * (1024.0 + scale**2),
        )
        for bits in range(10, 30)
    ]
    assert scales == sorted(scales)


def test_too_few_bits_for_any_scale_are_refused_with_the_number_that_works():
    def noise(scale):
        return 14.0 * (1024.0 + scale**2)

    with pytest.raises(ParameterError) as caught:
        scale_from_bits(
            6, dim=4096, l2_clip=1.0, num_clients=50, noise_variance_at=noise
        )
    assert caught.value.parameter == "bits"
    assert caught.value.nearest is not None
    enough = int(caught.value.nearest)
    scale_from_bits(
        enough, dim=4096, l2_clip=1.0, num_clients=50, noise_variance_at=noise
    )
    with pytest.raises(ParameterError):
        scale_from_bits(
            enough - 1, dim=4096, l2_clip=1.0, num_clients=50, noise_variance_at=noise
        )
