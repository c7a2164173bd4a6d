"""The error forecast, compared with sums over the exact laws."""

import math

import numpy as np
import pytest

from dpnoise.mechanisms.error_forecast import (
    Rounding,
    bounded_wrap_effect,
    coordinate_clip_effect,
    forecast_error,
    mixture_clip_effect,
    normal_tail,
    rounding_variance,
    wrap_effect,
)


def _normal_average(function, stddev):
    nodes = np.linspace(-12.0, 12.0, 2_000_001)
    weights = np.exp(-0.5 * nodes * nodes)
    weights /= weights.sum()
    return float(weights @ function(nodes * stddev))


def _spread(values):
    fractions = values - np.floor(values)
    return fractions - fractions**2


@pytest.mark.parametrize("stddev", [0.003, 0.05, 0.0999, 0.1, 0.3, 0.7, 2.0])
def test_rounding_variance_is_the_average_over_the_normal_law(stddev):
    expected = _normal_average(_spread, stddev)
    assert rounding_variance(stddev) == pytest.approx(expected, rel=1e-6)


def test_rounding_variance_of_wide_coordinates_is_a_sixth():
    assert rounding_variance(100.0) == pytest.approx(1.0 / 6.0, rel=1e-12)


@pytest.mark.parametrize("stddev", [2.0, 5.0, 20.0, 63.0, 65.0, 100.0])
def test_the_wrap_effect_is_that_of_rounding_to_multiples_of_the_modulus(stddev):
    modulus = 32
    nodes = np.linspace(-12.0, 12.0, 2_000_001) * stddev
    weights = np.exp(-0.5 * (nodes / stddev) ** 2)
    weights /= weights.sum()
    displacement = modulus * np.rint(nodes / modulus)
    found = wrap_effect(stddev, modulus)
    assert found.displacement == pytest.approx(
        float(weights @ displacement**2), rel=1e-4
    )
    assert found.overlap == pytest.approx(
        float(weights @ (nodes * displacement)), rel=1e-4
    )
    assert found.probability == pytest.approx(
        float(weights @ (np.abs(nodes) > modulus / 2)), rel=1e-3
    )


@pytest.mark.parametrize("stddev", [1.0, 3.0, 10.0, 40.0])
@pytest.mark.parametrize("bound", [0.0, 5.0, 12.0, 15.9])
@pytest.mark.parametrize("place", [-1.0, -0.4, 0.0, 1.0])
def test_the_wrap_bound_holds_for_every_bounded_sum(stddev, bound, place):
    modulus = 32
    noise = np.linspace(-12.0, 12.0, 2_000_001) * stddev
    weights = np.exp(-0.5 * (noise / stddev) ** 2)
    weights /= weights.sum()
    displacement = modulus * np.rint((place * bound + noise) / modulus)
    found = bounded_wrap_effect(bound, stddev, modulus)
    assert float(weights @ (displacement != 0)) <= found.probability * (1 + 1e-3)
    assert float(weights @ displacement**2) <= found.displacement * (1 + 1e-3)


def test_the_wrap_bound_is_infinite_if_the_sum_alone_may_wrap():
    assert bounded_wrap_effect(16.0, 1.0, 32).displacement == math.inf
    assert bounded_wrap_effect(15.0, 1e9, 32).displacement == math.inf
    assert bounded_wrap_effect(15.0, 0.0, 32).probability == 0.0


def test_in_few_dimensions_the_coordinate_bound_limits_the_modulus():
    """A hundred coordinates of at most 8 steps, rounded, add up to 800 at most."""
    given = {"encoded_dim": 1, "sum_norm_steps": 800.0}
    found = _forecast(modulus=2 * (800 + 120), **given)
    assert found.wrap_probability == pytest.approx(2 * normal_tail(6.0), rel=1e-9)
    assert found.wrap_mse < 1e-3 * found.noise_mse
    # The layers that stay are noise, and no bound holds them.
    more = _forecast(modulus=2 * (800 + 120), most_noise_variance=3600.0, **given)
    assert more.wrap_probability == pytest.approx(2 * normal_tail(2.0), rel=1e-9)
    # In many dimensions the normal law leaves less room.
    assert _forecast().wrap_probability == pytest.approx(
        wrap_effect(_forecast().sum_stddev, 1 << 12).probability, rel=1e-9
    )


def test_a_sum_much_wider_than_the_modulus_is_penalised_in_planning():
    # A wrapped error is bounded by the modulus; it must not look better than noise.
    useless, useful = _forecast(modulus=16), _forecast()
    assert useless.expected_mse < useful.expected_mse
    assert useless.planning_mse > useful.planning_mse


@pytest.mark.parametrize("bound", [None, 102.0, 20.0])
@pytest.mark.parametrize("modulus", [24, 64, 100, 300])
def test_the_expected_error_is_exact_for_a_modulus_that_is_too_small(modulus, bound):
    # The mixture clip shortens vectors of small coordinates by a factor.
    effect = mixture_clip_effect(0.25, math.inf if bound is None else bound, 1024, 8.0)
    found = _forecast(modulus=modulus, sum_norm_steps=320.0, mixture_norm_bound=bound)
    noise, signal = 400.0 + 100 * effect.rounding, 320.0**2 / 1024
    total = noise + effect.signal**2 * signal
    error = noise + (1 - effect.signal) ** 2 * signal
    both = noise - effect.signal * (1 - effect.signal) * signal
    # Given the sum, the error is normal about its share of it.
    nodes = np.linspace(-12.0, 12.0, 400_001)
    weights = np.exp(-0.5 * nodes * nodes)
    weights /= weights.sum()
    sums = nodes * math.sqrt(total)
    mean = sums * both / total - modulus * np.rint(sums / modulus)
    expected = error - both**2 / total + float(weights @ mean**2)
    assert found.expected_mse == pytest.approx(expected / 64.0, rel=2e-3)


def test_the_mixture_clip_leaves_vectors_within_the_bound_unchanged():
    effect = mixture_clip_effect(0.5, 1e9, 100, math.inf)
    assert effect.signal == pytest.approx(1.0)
    assert effect.residue == pytest.approx(0.0, abs=1e-12)
    assert effect.rounding == pytest.approx(rounding_variance(0.5), rel=1e-3)


def test_the_mixture_clip_acts_like_an_l1_clip_on_small_coordinates():
    # For |x| < 1 the mixture norm is |x|, so the factor is c over the L1 norm.
    dim, stddev = 65536, 4.0 / 256.0
    effect = mixture_clip_effect(stddev, 16.0, dim, math.inf)
    l1_norm = dim * stddev * math.sqrt(2.0 / math.pi)
    assert effect.signal == pytest.approx(16.0 / l1_norm, rel=1e-3)


@pytest.mark.parametrize("reach", [0.1, 0.5, 1.0, 2.0, 5.0, 9.0])
def test_the_effect_of_a_coordinate_clip_is_averaged_over_the_normal_law(reach):
    stddev = 3.0
    effect = coordinate_clip_effect(stddev, reach * stddev)

    def clip(values):
        return np.clip(values, -reach * stddev, reach * stddev)

    signal = _normal_average(lambda x: x * clip(x), stddev) / stddev**2
    residue = _normal_average(lambda x: (clip(x) - signal * x) ** 2, stddev)
    assert effect.signal == pytest.approx(signal, rel=1e-6)
    assert effect.residue == pytest.approx(residue / stddev**2, rel=1e-5, abs=1e-12)


def _forecast(**changes):
    given = {
        "encoded_dim": 1024,
        "l2_clip_steps": 8.0,
        "scale_factor": 8.0,
        "modulus": 1 << 12,
        "num_clients": 100,
        "noise_variance": 400.0,
        "most_noise_variance": 400.0,
        "sum_norm_steps": 80.0,
        "flatness": 1.0,
        "rounding": Rounding.STOCHASTIC,
        "coordinate_cap": 8.0,
    }
    return forecast_error(**(given | changes))


def test_the_parts_of_a_forecast_add_up():
    found = _forecast()
    parts = found.noise_mse + found.rounding_mse + found.bias_mse + found.wrap_mse
    assert found.expected_mse == pytest.approx(parts, rel=1e-12)
    assert found.noise_mse == pytest.approx(400.0 / 64.0)
    assert found.rounding_mse == pytest.approx(100 * rounding_variance(0.25) / 64.0)


def test_a_wider_modulus_never_forecasts_a_larger_error():
    errors = [_forecast(modulus=1 << bits).planning_mse for bits in range(6, 20)]
    assert errors == sorted(errors, reverse=True)


def test_without_a_rotation_the_worst_case_replaces_the_average():
    assert _forecast(flatness=None).sum_stddev > _forecast().sum_stddev
    assert _forecast(flatness=None).rounding_mse == pytest.approx(100 * 0.25 / 64.0)


def test_truncation_errors_of_aligned_vectors_add_up():
    aligned = _forecast(rounding=Rounding.TOWARD_ZERO, sum_norm_steps=800.0)
    spread = _forecast(rounding=Rounding.TOWARD_ZERO, sum_norm_steps=80.0)
    assert aligned.rounding_mse > 50.0 * spread.rounding_mse


def test_the_normal_tail_is_accurate_far_out():
    assert normal_tail(0.0) == 0.5
    assert normal_tail(10.0) == pytest.approx(7.61985302416e-24, rel=1e-10)
