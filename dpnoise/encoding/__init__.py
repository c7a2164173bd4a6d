"""From a float vector to integers modulo m, and from a modular sum back to floats.

The order is: clip, rotate, scale, fixed point, round, (noise), wrap; and for the sum:
centre, scale back, rotate back.
"""

from typing import Final

from dpnoise.lazy_names import lazy_names

_MODULES: Final = {
    ".clipping": ("check_vector", "clip_l2"),
    ".mixture_clipping": ("clip_mixture", "mixture_norm"),
    ".rotation": (
        "Rotation",
        "encoded_dim",
        "flatness",
        "make_rotation",
        "rotation_names",
    ),
    ".scaling": (
        "FixedPointVector",
        "conditional_norm_bound",
        "conditional_squared_bound",
        "round_conditional",
        "round_stochastic",
        "round_toward_zero",
        "to_fixed_point",
    ),
    ".wrapping": ("centre", "residue_dtype", "sum_residues", "wrap"),
}

__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
