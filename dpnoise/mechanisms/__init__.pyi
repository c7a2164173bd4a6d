from dpnoise.encoding.wrapping import Residues as Residues
from dpnoise.mechanisms.clip_flag import (
    ClippingSchedule as ClippingSchedule,
    suggest_flag_amplitude as suggest_flag_amplitude,
)
from dpnoise.mechanisms.base import (
    CentralMechanism as CentralMechanism,
    Encoded as Encoded,
    Mechanism as Mechanism,
)
from dpnoise.mechanisms.discrete_gaussian import (
    fixed_point_parameters as fixed_point_parameters,
)
from dpnoise.mechanisms.error_forecast import ErrorForecast as ErrorForecast
from dpnoise.mechanisms.noise_share import (
    NoiseRule as NoiseRule,
    SessionNoise as SessionNoise,
)
from dpnoise.mechanisms.parameters import MechanismParameters as MechanismParameters
from dpnoise.mechanisms.registry import (
    make_mechanism as make_mechanism,
    mechanism_class as mechanism_class,
    mechanism_names as mechanism_names,
    register_mechanism as register_mechanism,
)
from dpnoise.mechanisms.secret_selection import (
    ALL_CLIENTS as ALL_CLIENTS,
    check_selection_rate as check_selection_rate,
    is_selected as is_selected,
    most_selected as most_selected,
)
from dpnoise.mechanisms.skellam import scale_from_bits as scale_from_bits
from dpnoise.mechanisms.sum_error import (
    SumError as SumError,
    noise_quantile as noise_quantile,
)
