"""Speed of the integer-only encoding steps beside rounding with float randomness.

The baseline is what a quick implementation does: floor, subtract, compare with uniform
floats, and convert. It checks no norm and its probabilities are rounded.
"""

import math
import sys
from collections.abc import Callable

import numpy as np
from measurement import cpu_seconds, emit

from dpnoise.encoding import (
    clip_l2,
    clip_mixture,
    conditional_squared_bound,
    round_conditional,
    round_stochastic,
    round_toward_zero,
    to_fixed_point,
    wrap,
)
from dpnoise.samplers import BitSource, fresh_seed


def main(*, tiny: bool = False) -> None:
    """Print one line per step."""
    dim = 1 << 10 if tiny else 1 << 20
    radius = 300.0
    generator = np.random.default_rng()
    raw = generator.normal(size=dim)
    unit = clip_l2(raw, 1.0)
    scaled = unit * radius
    fixed = to_fixed_point(scaled, max_squared_norm=radius**2, coordinate_bound=300)
    bits = BitSource(fresh_seed(), b"rounding")
    bound = conditional_squared_bound(radius, dim, math.exp(-0.5))
    rounded = round_stochastic(fixed, bits)

    def with_floats() -> object:
        floor = np.floor(scaled)
        return (floor + (generator.random(dim) < scaled - floor)).astype(np.int64)

    repeats = 1 if tiny else 7
    baseline = cpu_seconds(with_floats, repeats=repeats)
    steps: dict[str, Callable[[], object]] = {
        "encoding/clip_l2": lambda: clip_l2(raw, 1.0),
        "encoding/to_fixed_point": lambda: to_fixed_point(
            scaled, max_squared_norm=radius**2, coordinate_bound=300
        ),
        "encoding/round_stochastic": lambda: round_stochastic(fixed, bits),
        "encoding/round_conditional": lambda: round_conditional(fixed, bits, bound),
        "encoding/round_toward_zero": lambda: round_toward_zero(fixed),
        "encoding/clip_mixture": lambda: clip_mixture(
            scaled, mixture_norm_bound=radius**2, linf_bound=2
        ),
        "encoding/wrap": lambda: wrap(rounded, 1 << 16),
    }
    for name, step in steps.items():
        seconds = cpu_seconds(step, repeats=repeats)
        emit(
            name,
            parameters={"dim": dim},
            value=seconds / dim * 1e9,
            unit="ns/coordinate",
            baseline="stochastic rounding with numpy's uniform floats",
            ratio=baseline / seconds,
        )


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv)
