from dpnoise.planning.planner import Planner as Planner, plan as plan
from dpnoise.planning.request import (
    PlanRequest as PlanRequest,
    clip_flag_amplitude as clip_flag_amplitude,
)
from dpnoise.planning.result import (
    CurvePoint as CurvePoint,
    Plan as Plan,
    error_curve as error_curve,
    root_text as root_text,
)
