"""Planning: from a privacy budget to parameters, with their cost and their error."""

from dpnoise.planning.clip_flag import clip_flag_amplitude
from dpnoise.planning.error_curve import error_curve
from dpnoise.planning.planner import plan
from dpnoise.planning.request import PlanRequest
from dpnoise.planning.result import CurvePoint, Plan

__all__ = [
    "CurvePoint",
    "Plan",
    "PlanRequest",
    "clip_flag_amplitude",
    "error_curve",
    "plan",
]
