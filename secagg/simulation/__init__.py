"""Whole sessions in one process, through the real client and server cores."""

from secagg.simulation.driver import (
    OFFERED_AT,
    InProcessSession,
    LossPlan,
    SessionResult,
    SimulatedSession,
    identity_of,
    plan_losses,
    run_session,
    simulate_session,
)
from secagg.simulation.measurement import CostReport

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
