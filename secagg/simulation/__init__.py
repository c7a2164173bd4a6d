"""Whole sessions in one process, through the real client and server cores."""

from secagg.simulation.losses import LossPlan, LossPoint, plan_losses
from secagg.simulation.measurement import CostReport
from secagg.simulation.session import SimulatedSession, simulate_session

__all__ = [
    "CostReport",
    "LossPlan",
    "LossPoint",
    "SimulatedSession",
    "plan_losses",
    "simulate_session",
]
