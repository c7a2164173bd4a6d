"""Mechanisms: float vectors in, noisy residues out, and back."""

from dpnoise.encoding.wrapping import Residues
from dpnoise.mechanisms.adaptive_clipping import (
    ClippingSchedule,
    suggest_flag_amplitude,
)
from dpnoise.mechanisms.base import CentralMechanism, Encoded, Mechanism
from dpnoise.mechanisms.discrete_gaussian import fixed_point_parameters
from dpnoise.mechanisms.error_forecast import ErrorForecast
from dpnoise.mechanisms.noise_share import NoiseRule, SessionNoise
from dpnoise.mechanisms.parameters import MechanismParameters
from dpnoise.mechanisms.registry import make_mechanism, mechanism_names
from dpnoise.mechanisms.secret_selection import (
    ALL_CLIENTS,
    check_selection_rate,
    is_selected,
)
from dpnoise.mechanisms.skellam import scale_from_bits
from dpnoise.mechanisms.sum_error import SumError, noise_quantile

__all__ = [
    "ALL_CLIENTS",
    "CentralMechanism",
    "ClippingSchedule",
    "Encoded",
    "ErrorForecast",
    "Mechanism",
    "MechanismParameters",
    "NoiseRule",
    "Residues",
    "SessionNoise",
    "SumError",
    "check_selection_rate",
    "fixed_point_parameters",
    "is_selected",
    "make_mechanism",
    "mechanism_names",
    "noise_quantile",
    "scale_from_bits",
    "suggest_flag_amplitude",
]
