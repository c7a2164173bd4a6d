"""The model of how much noise a grid needs, between calibrations."""

import pytest

from dpnoise.planning.request import PlanRequest
from dpnoise.planning.scale_search import NoiseModel


@pytest.fixture
def model():
    return NoiseModel.of(
        PlanRequest(clients=99, dimension=64, l2_clip=1.0, epsilon=1.0, delta=1e-5), 14
    )


def test_the_model_passes_through_two_calibrations(model):
    fitted = model.through({1.0: 20.0, 2.0: 64.0})
    assert fitted.counted_variance(1.0) == pytest.approx(20.0)
    assert fitted.counted_variance(2.0) == pytest.approx(64.0)
    assert fitted.counted_variance(4.0) > 4.0 * 14.0 * 4.0


def test_a_finer_grid_without_more_noise_does_not_exclude_still_finer_ones(model):
    """As where noise needs a certain width before any theorem covers it."""
    fitted = model.through({1.0: 5000.0, 2.0: 4990.0})
    assert fitted.fit.factor == 1.0
    # The error, in the caller's units, falls by far.
    assert fitted.counted_variance(32.0) / 32.0**2 < 0.01 * 5000.0


def test_the_noise_of_a_coarser_grid_is_a_minimum_for_finer_ones(model):
    fitted = model.through({1.0: 5000.0}).through({32.0: 15_000.0, 64.0: 58_000.0})
    assert fitted.fit.extra < 1000.0
    for scale in (1.0, 1.5, 8.0):
        assert fitted.counted_variance(scale) >= 5000.0
    assert fitted.counted_variance(0.5) < 1000.0
    assert fitted.counted_variance(32.0) == pytest.approx(15_000.0)
