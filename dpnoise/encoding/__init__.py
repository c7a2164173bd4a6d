"""From a float vector to integers modulo m, and from a modular sum back to floats.

The order is: clip, rotate, scale, fixed point, round, (noise), wrap; and for the sum:
centre, scale back, rotate back.
"""

from dpnoise.encoding.clipping import check_vector, clip_l2
from dpnoise.encoding.mixture_clipping import clip_mixture, mixture_norm
from dpnoise.encoding.rotation import (
    Rotation,
    encoded_dim,
    flatness,
    make_rotation,
    rotation_names,
)
from dpnoise.encoding.rounding import (
    conditional_norm_bound,
    conditional_squared_bound,
    round_conditional,
    round_stochastic,
    round_toward_zero,
)
from dpnoise.encoding.scaling import FixedPointVector, to_fixed_point
from dpnoise.encoding.wrapping import (
    centre,
    residue_dtype,
    sum_residues,
    wrap,
)

__all__ = [
    "FixedPointVector",
    "Rotation",
    "centre",
    "check_vector",
    "clip_l2",
    "clip_mixture",
    "conditional_norm_bound",
    "conditional_squared_bound",
    "encoded_dim",
    "flatness",
    "make_rotation",
    "mixture_norm",
    "residue_dtype",
    "rotation_names",
    "round_conditional",
    "round_stochastic",
    "round_toward_zero",
    "sum_residues",
    "to_fixed_point",
    "wrap",
]
