"""Mechanisms: float vectors in, noisy residues out, and back."""

from typing import Final

from dpnoise.lazy_names import lazy_names

_MODULES: Final = {
    "dpnoise.encoding.wrapping": ("Residues",),
    ".clip_flag": ("ClippingSchedule", "suggest_flag_amplitude"),
    ".base": ("CentralMechanism", "Encoded", "Mechanism"),
    ".discrete_gaussian": ("fixed_point_parameters",),
    ".error_forecast": ("ErrorForecast",),
    ".noise_share": ("NoiseRule", "SessionNoise"),
    ".parameters": ("MechanismParameters",),
    ".registry": (
        "make_mechanism",
        "mechanism_class",
        "mechanism_names",
        "register_mechanism",
    ),
    ".secret_selection": (
        "ALL_CLIENTS",
        "check_selection_rate",
        "is_selected",
        "most_selected",
    ),
    ".skellam": ("scale_from_bits",),
    ".sum_error": ("SumError", "noise_quantile"),
}

__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
