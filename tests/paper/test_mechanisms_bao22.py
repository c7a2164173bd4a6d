"""Statements of [Bao22] about the mechanism, one test each."""

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest

from dpnoise.encoding.mixture_clipping import mixture_norm
from dpnoise.errors import TheoremNotApplicableError
from dpnoise.events import SkellamMixtureClippedEvent
from dpnoise.mechanisms import MechanismParameters, NoiseRule, make_mechanism
from dpnoise.mechanisms.smm import largest_linf_bound


def seed(*parts):
    return hashlib.sha256(repr(parts).encode()).digest()


def smm(**changes):
    given = {
        "mechanism": "smm",
        "dim": 1024,
        "l2_clip": 1.0,
        "scale_factor": 64.0,
        "modulus": 1 << 16,
        "noise_rule": NoiseRule(counted_variance=Fraction(1900), min_survivors=20),
        "num_clients": 20,
        "linf_bound": Fraction(10),
    }
    return make_mechanism(MechanismParameters(**(given | changes)))


def random_vectors(count, dim):
    words = np.frombuffer(
        b"".join(seed("data", i) for i in range(-(-count * dim // 16))), "<u2"
    )
    vectors = words[: count * dim].reshape(count, dim).astype(np.float64) - 32767.5
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_algorithm_5_enforces_eq_4_and_the_integer_linf_bound():
    chosen = smm()
    event = chosen.event()
    assert isinstance(event, SkellamMixtureClippedEvent)
    assert event.mixture_norm_bound == 64.0**2
    spike = np.zeros(1024)
    spike[3] = 1.0
    for vector in [spike, -1e12 * spike, *random_vectors(20, 1024)]:
        scaled = 64.0 * vector
        fixed = chosen._to_fixed_point(scaled)
        assert mixture_norm(fixed) <= event.mixture_norm_bound
        assert int(np.abs(fixed.values).max()) <= event.linf_bound << 32


def test_algorithm_5_leaves_a_vector_within_its_bound_unchanged():
    chosen = smm()
    vector = 0.5 * random_vectors(1, 1024)[0]
    fixed = chosen._to_fixed_point(64.0 * vector)
    np.testing.assert_allclose(fixed.values / 2.0**32, 64.0 * vector, atol=2.0**-31)


def test_algorithm_4_line_3_has_no_other_clip():
    # A vector of one coordinate twice as long as the clip: Algorithm 5 alone decides.
    chosen = smm(dim=1, rotation="none", scale_factor=3.5, linf_bound=Fraction(4))
    fixed = chosen._to_fixed_point(np.array([7.0]))
    # c = 12.25 = 3² + 7·p, hence p = 3.25/7.
    assert fixed.values[0] / 2.0**32 == pytest.approx(3.0 + 3.25 / 7.0, rel=1e-8)


def test_algorithm_6_is_an_unbiased_estimate_of_what_algorithm_5_left():
    chosen = smm(scale_factor=16.0)
    vector = 0.4 * random_vectors(1, 1024)[0]
    total = np.zeros(1024)
    repeats = 500
    for index in range(repeats):
        public = seed("p", index % 10)
        total += chosen.decode(
            chosen.encode(
                vector,
                private_seed=seed(index),
                public_seed=public,
                session_noise=chosen.session(20),
            ).residues,
            public_seed=public,
        )
    # Coordinates of size 0.2 have a mixture norm of about 0.16·1024 = 163 < 256, so
    # nothing is clipped; five deviations of the projection, false alarms 5.7e-7.
    shift = float(total @ vector) / repeats - 0.16
    assert abs(shift) < 5.0 * 0.4 * math.sqrt(100.25 / 256.0 / repeats)


def test_section_6_1_the_clip_keeps_a_fiftieth_of_a_flat_signal():
    # n = 100, d = 65536, r = 1, γ = 4: entries near 1/64 count by their L1 norm.
    chosen = smm(
        dim=65536,
        scale_factor=4.0,
        num_clients=100,
        noise_rule=NoiseRule(counted_variance=Fraction(396), min_survivors=100),
        linf_bound=Fraction(1),
        modulus=1 << 10,
    )
    vector = random_vectors(1, 65536)[0]
    rotation = chosen._rotation(seed("p"))
    scaled = 4.0 * rotation.forward(vector)
    clipped = chosen._to_fixed_point(scaled).values / 2.0**32
    kept = float(clipped @ scaled) / 16.0
    assert 0.015 < kept < 0.025
    forecast = chosen.forecast()
    # The bias is what the noise hides at this signal-to-noise ratio.
    assert forecast.bias_mse == pytest.approx(
        (1.0 - kept) ** 2 * 100.0**2 / 65536, rel=0.01
    )


def test_eq_3_allows_no_bound_at_the_smallest_published_scale():
    # At γ = 4, ε = 1 the formula asks for v = 20.5·16 at an order near 14.
    variance = Fraction(205, 10) * 16
    assert largest_linf_bound(14, variance) == 0
    assert largest_linf_bound(2, variance) > 0


def test_eq_3_requires_integer_bounds():
    # The real bound is 5.94; rounding up to 6 would leave the theorem.
    order = 4
    quadratic = (109 * order * order - 18 * order - 91) / 10
    variance = Fraction(5.94**2 * quadratic / 2.0)
    assert largest_linf_bound(order, variance) == 5
    with pytest.raises(TheoremNotApplicableError):
        smm(
            num_clients=2,
            noise_rule=NoiseRule(counted_variance=Fraction(15), min_survivors=2),
        )
