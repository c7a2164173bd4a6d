"""What a reader of a plan should not miss.

* A note states a fact about this plan that its figures alone do not show.
* No note repeats an assumption of the privacy statement; those travel with it.

It decides nothing.
"""

from typing import Final

from dpnoise.mechanisms.base import Mechanism
from dpnoise.mechanisms.error_forecast import ErrorForecast, Rounding
from dpnoise.planning.request import PlanRequest

_STEPS_TO_TRUNCATE: Final = 8.0
_FAR_OVER_GAUSSIAN: Final = 2.0


def plan_notes(
    request: PlanRequest,
    mechanism: Mechanism,
    forecast: ErrorForecast,
    *,
    over_gaussian: float,
) -> tuple[str, ...]:
    """Collect the notes of a plan.

    Args:
        request: What was asked for.
        mechanism: The finished mechanism.
        forecast: Its error forecast.
        over_gaussian: Variance that counts, over the central Gaussian's.

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
        if request.loss_fraction or request.ladder:
            notes.append(
                "loss_fraction and ladder have no effect without min_survivors: no "
                "loss is tolerated that they could divide."
            )
    notes += _participation_notes(request)
    if request.selection < 1:
        notes += [
            (
                "The sum holds the selected vectors alone: over the selection rate it "
                "estimates everybody's. Selection saves computing, never error."
            ),
            (
                "Members that skip computing when their coin is lost must answer at a "
                "fixed time: the secrecy of selection then rests on their "
                "availability. A vector that lies in a file is computed whatever the "
                "coin says."
            ),
        ]
    if request.is_published_mixture or not mechanism.published_accountant:
        notes.extend(mechanism.remarks())  # those of a published theorem are its own
    if request.is_published_mixture and over_gaussian > _FAR_OVER_GAUSSIAN:
        notes.append(
            f"The theorem of {mechanism.name} ties the bound on coordinates to the "
            f"noise, which has to be {over_gaussian:.3g} times the central Gaussian's: "
            "take skellam-mixture, which needs hardly more than that one."
        )
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


def _participation_notes(request: PlanRequest) -> tuple[str, ...]:
    """Say how many clients a task needs whose clients give to some sums only."""
    participations, steps = request.sums_of_one_client, request.steps
    if participations == steps:
        return ()
    needed = -(-steps * request.survivors // participations)
    note = (
        f"Each client gives to at most {participations} of {steps} sums, so that sums "
        f"of {request.survivors} vectors need at least {needed} clients."
    )
    return (note,)
