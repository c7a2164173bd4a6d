"""The error at other bit widths, from one plan.

* The plan's calibrations fix the noise model; other widths are forecasts through it.
* A width that cannot hold the sum has no point, rather than a misleading one.

It calls no accountant.
"""

from dpnoise.mechanisms.registry import make_mechanism
from dpnoise.planning.central_gaussian import gaussian_variance_per_sensitivity
from dpnoise.planning.result import CurvePoint, Plan
from dpnoise.planning.scale_search import NoiseModel, best_scale


def error_curve(made: Plan, *, bits: range = range(2, 25)) -> tuple[CurvePoint, ...]:
    """Forecast the least error at other bit widths, without new calibrations.

    Args:
        made: The plan to vary; its noise fixes the model.
        bits: Bit widths to forecast.

    Returns:
        One point per bit width that can hold the sum, errors never growing with the
        bits.
    """
    request = made.request
    model = NoiseModel.of(
        request, gaussian_variance_per_sensitivity(request), fit=made.noise_fit
    )
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


def packed_bytes(length: int, bits: int) -> int:
    """Return the bytes of a packed vector: ⌈length · bits / 8⌉."""
    return -(-length * bits // 8)
