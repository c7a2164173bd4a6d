"""The error at other bit widths, from one calibrated plan.

* One calibration fixes the noise model; other widths are forecasts through it.
* A width that cannot hold the sum has no point, rather than a misleading one.

It calls no accountant.
"""

import dataclasses
from fractions import Fraction

from dpnoise.mechanisms.parameters import MechanismParameters
from dpnoise.mechanisms.registry import make_mechanism
from dpnoise.planning.central_gaussian import gaussian_variance_per_sensitivity
from dpnoise.planning.request import PlanRequest
from dpnoise.planning.result import CurvePoint, Plan
from dpnoise.planning.scale_search import NoiseModel, best_scale

__all__ = ["error_curve", "model_through", "packed_bytes"]


def error_curve(made: Plan, *, bits: range = range(2, 25)) -> tuple[CurvePoint, ...]:
    """Forecast the least error at other bit widths, without new calibrations.

    Args:
        made: The plan to vary; its noise fixes the model.
        bits: Bit widths to forecast.

    Returns:
        One point per bit width that can hold the sum, errors never growing with the
        bits.
    """
    model = model_through(made.request, made.parameters, made.noise_variance)
    length = make_mechanism(made.parameters).encoded_dim
    points = []
    for width in bits:
        scale = best_scale(model, width)
        if scale is None:
            continue
        points.append(
            CurvePoint(
                bits=width,
                scale_factor=scale.scale_factor,
                expected_mse=scale.forecast.expected_mse,
                wrap_probability=scale.forecast.wrap_probability,
                upload_bytes=packed_bytes(length, width),
            )
        )
    return tuple(points)


def model_through(
    request: PlanRequest, parameters: MechanismParameters, variance: Fraction
) -> NoiseModel:
    """Return the noise model that passes through a calibrated point.

    Args:
        request: What is planned.
        parameters: Parameters whose scale was calibrated.
        variance: The counted variance that the accountant required there.

    Returns:
        The model; at that scale it gives exactly that variance.
    """
    model = NoiseModel(request, gaussian_variance_per_sensitivity(request))
    modelled = model.counted_variance(parameters.scale_factor)
    return dataclasses.replace(model, factor=float(variance) / modelled)


def packed_bytes(length: int, bits: int) -> int:
    """Return the bytes of a packed vector: ⌈length · bits / 8⌉."""
    return -(-length * bits // 8)
