"""Whole sessions in one process, through the real client and server cores."""

from secagg.simulation.driver import (
    OFFERED_AT,
    InProcessSession,
    SessionResult,
    identity_of,
    run_session,
)
from secagg.simulation.losses import LossPlan, plan_losses
from secagg.simulation.measurement import CostReport
from secagg.simulation.session import SimulatedSession, simulate_session

__all__ = [
    "OFFERED_AT",
    "CostReport",
    "InProcessSession",
    "LossPlan",
    "SessionResult",
    "SimulatedSession",
    "identity_of",
    "plan_losses",
    "run_session",
    "simulate_session",
]
