"""What a reader of a plan should not miss.

Numbered rules:

1. A note states a fact about this plan that its figures alone do not show.
2. No note repeats an assumption of the privacy statement; those travel with it.

This module deliberately decides nothing.
"""

from __future__ import annotations

import math
from typing import Final

from dpnoise.accounting import PrivacyStatement
from dpnoise.mechanisms.base import Mechanism
from dpnoise.mechanisms.forecast import (
    ErrorForecast,
    Rounding,
    mixture_clip_effect,
)
from dpnoise.mechanisms.smm import largest_linf_bound
from dpnoise.planning.request import PlanRequest

__all__ = ["plan_notes"]

_STEPS_TO_TRUNCATE: Final = 8.0


def plan_notes(
    request: PlanRequest,
    mechanism: Mechanism,
    forecast: ErrorForecast,
    statement_server: PrivacyStatement | None,
) -> tuple[str, ...]:
    """Collect the notes of a plan.

    Args:
        request: What was asked for.
        mechanism: The finished mechanism.
        forecast: Its error forecast.
        statement_server: What holds against the server.

    Returns:
        Sentences, the most important first.
    """
    notes = []
    if mechanism.noise_is_central:
        notes.append(
            "One trusted party adds all noise: nothing is promised against the server, "
            "and clients must not rely on it."
        )
    elif request.min_survivors is None:
        notes.append(
            "Every client is counted on: a session that loses one must be abandoned. "
            "Give min_survivors to tolerate losses."
        )
    if statement_server is not None and statement_server.epsilon == math.inf:
        notes.append(
            "Nothing useful holds against the server: without sampling, all steps "
            "together spend more than can be stated."
        )
    if request.mechanism == "gaussian":
        notes.append("Floating-point noise: for simulations only.")
    if request.mechanism == "smm":
        notes.extend(_published_mixture_notes(mechanism))
    if mechanism.rounding is Rounding.TOWARD_ZERO:
        given = mechanism.parameters
        typical = given.scale_factor * given.l2_clip / mechanism.rotated_dim**0.5
        if typical < _STEPS_TO_TRUNCATE:
            notes.append(
                f"A typical coordinate is {typical:.2g} grid steps long and truncation "
                "takes half a step off each: use a finer grid."
            )
    if forecast.bias_mse > forecast.noise_mse:
        notes.append(
            "The clip's bias exceeds the noise: the estimate is mostly too short."
        )
    return tuple(notes)


def _published_mixture_notes(mechanism: Mechanism) -> tuple[str, ...]:
    given = mechanism.parameters
    bound, counted = mechanism.coordinate_cap, mechanism.counted_noise_variance
    order = 2
    while largest_linf_bound(order + 1, counted) >= bound:
        order += 1
    kept = mixture_clip_effect(
        given.scale_factor * given.l2_clip / mechanism.rotated_dim**0.5,
        mechanism.l2_clip_squared_steps,
        mechanism.rotated_dim,
        float(bound),
    ).signal
    covered = (
        f"At this noise the published theorem covers integer orders up to {order} with "
        f"coordinates up to {bound}; where that excludes the best order, the noise has "
        "been raised until an order is covered."
    )
    shortened = (
        f"The published clip leaves {100.0 * kept:.3g} percent of the length of a "
        "vector that is as long as the clip and spread over all coordinates."
    )
    return covered, shortened
