"""Planning: from a privacy budget to parameters, with their cost and their error."""

from typing import Final

from dpnoise.lazy_names import lazy_names

_MODULES: Final = {
    ".planner": ("Planner", "plan"),
    ".request": ("PlanRequest", "clip_flag_amplitude"),
    ".result": ("CurvePoint", "Plan", "error_curve", "per_entry"),
}

__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
