"""The Gaussian profile against 60-digit arithmetic and dp-accounting."""

import mpmath
import pytest

from dpnoise.accounting.gaussian import (
    analytic_gaussian_stddev,
    gaussian_delta,
    gaussian_epsilon,
    log_normal_tail,
    mills_ratio,
)
from dpnoise.errors import ParameterError


def exact_delta(epsilon, noise_multiplier):
    with mpmath.workdps(60):
        shift = 1 / mpmath.mpf(noise_multiplier)
        first = mpmath.ncdf(-epsilon / shift + shift / 2)
        return first - mpmath.exp(epsilon) * mpmath.ncdf(-epsilon / shift - shift / 2)


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.5, 1.0, 4.0, 50.0])
@pytest.mark.parametrize("noise_multiplier", [0.1, 0.7, 3.73, 40.0, 1e4])
def test_delta_is_never_below_the_exact_value_and_close_to_it(
    epsilon, noise_multiplier
):
    exact = exact_delta(epsilon, noise_multiplier)
    found = gaussian_delta(epsilon, noise_multiplier=noise_multiplier)
    assert found >= exact * (1 - mpmath.mpf(10) ** -30)
    if exact > 1e-280:
        assert found <= exact * (1 + mpmath.mpf("1e-8")) + 1e-14


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
@pytest.mark.parametrize("noise_multiplier", [0.5, 1.0, 10.0])
def test_epsilon_agrees_with_dp_accounting(delta, noise_multiplier):
    import dp_accounting  # noqa: PLC0415 - slow import, one test

    theirs = dp_accounting.get_epsilon_gaussian(noise_multiplier, delta)
    ours = gaussian_epsilon(delta, noise_multiplier=noise_multiplier)
    assert ours == pytest.approx(theirs, rel=1e-8, abs=1e-12)


def test_analytic_noise_of_the_reference_setting_is_13_92():
    assert analytic_gaussian_stddev(1.0, 1e-5, 1.0) ** 2 == pytest.approx(
        13.92, abs=0.005
    )


def test_three_percent_less_noise_than_analytic_misses_the_target():
    stddev = analytic_gaussian_stddev(1.0, 1e-5, 1.0)
    assert gaussian_delta(1.0, noise_multiplier=stddev) <= 1e-5
    assert exact_delta(1.0, stddev * 0.97**0.5) > 1e-5


def test_noise_scales_with_sensitivity():
    assert analytic_gaussian_stddev(0.3, 1e-6, 7.0) == pytest.approx(
        7.0 * analytic_gaussian_stddev(0.3, 1e-6, 1.0)
    )


@pytest.mark.parametrize("x", [-30.0, -3.0, 0.0, 4.9, 5.1, 20.0, 300.0])
def test_tail_and_mills_ratio_match_high_precision(x):
    with mpmath.workdps(60):
        tail = mpmath.erfc(mpmath.mpf(x) / mpmath.sqrt(2)) / 2
        assert log_normal_tail(x) == pytest.approx(
            float(mpmath.log(tail)), rel=1e-13, abs=1e-300
        )
        ratio = tail / mpmath.npdf(x)
        assert mills_ratio(x) == pytest.approx(float(ratio), rel=1e-12)


@pytest.mark.parametrize("epsilon", [-1.0, float("nan"), float("inf"), True])
def test_an_invalid_epsilon_is_refused(epsilon):
    with pytest.raises(ParameterError, match="epsilon"):
        gaussian_delta(epsilon, noise_multiplier=1.0)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, float("nan")])
def test_a_delta_outside_the_unit_interval_is_refused(delta):
    with pytest.raises(ParameterError, match="delta"):
        gaussian_epsilon(delta, noise_multiplier=1.0)


def test_zero_epsilon_is_no_calibration_target():
    with pytest.raises(ParameterError, match="greater than 0"):
        analytic_gaussian_stddev(0.0, 1e-5, 1.0)


@pytest.mark.parametrize("noise_multiplier", [0.0, -1.0, float("nan")])
def test_invalid_noise_is_refused(noise_multiplier):
    with pytest.raises(ParameterError, match="noise_multiplier"):
        gaussian_delta(1.0, noise_multiplier=noise_multiplier)


def test_infinite_noise_costs_nothing():
    assert gaussian_delta(0.0, noise_multiplier=float("inf")) == 0.0
    assert gaussian_epsilon(1e-9, noise_multiplier=float("inf")) == 0.0
