from dpnoise.encoding.clipping import check_vector as check_vector, clip_l2 as clip_l2
from dpnoise.encoding.mixture_clipping import (
    clip_mixture as clip_mixture,
    mixture_norm as mixture_norm,
)
from dpnoise.encoding.rotation import (
    Rotation as Rotation,
    encoded_dim as encoded_dim,
    flatness as flatness,
    make_rotation as make_rotation,
    rotation_names as rotation_names,
)
from dpnoise.encoding.scaling import (
    FixedPointVector as FixedPointVector,
    conditional_norm_bound as conditional_norm_bound,
    conditional_squared_bound as conditional_squared_bound,
    round_conditional as round_conditional,
    round_stochastic as round_stochastic,
    round_toward_zero as round_toward_zero,
    to_fixed_point as to_fixed_point,
)
from dpnoise.encoding.wrapping import (
    centre as centre,
    residue_dtype as residue_dtype,
    sum_residues as sum_residues,
    wrap as wrap,
)
