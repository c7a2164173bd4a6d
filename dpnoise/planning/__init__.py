"""Planning: from a privacy budget to parameters, with their cost and their error."""

from dpnoise.planning.planner import Planner, plan
from dpnoise.planning.request import PlanRequest, clip_flag_amplitude
from dpnoise.planning.result import CurvePoint, Plan, error_curve, per_entry

__all__ = [
    "CurvePoint",
    "Plan",
    "PlanRequest",
    "Planner",
    "clip_flag_amplitude",
    "error_curve",
    "per_entry",
    "plan",
]
