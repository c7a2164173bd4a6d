"""The layer of local privacy below the noise: an operator's choices.

* A level and a bound suffice.  How `separated` splits the level follows from an
  estimate of the vectors' length, which is public and the same for every vector.
* Its cost and its guarantee are stated here once, for tasks and for plans.

`dpnoise.local` randomises; this module does not.
"""

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from dpnoise import local  # few tasks have a randomiser, and need all of it
from dpnoise.local import LocalParameters
from dpnoise.mechanisms import most_selected
from secagg.distributed_dp.report import LocalPrivacy

if TYPE_CHECKING:  # few tasks have a randomiser, and a client plans nothing
    from dpnoise.local import LocalRandomiser
    from dpnoise.planning import PlanRequest

# Of the bound, where the caller states no length: bounds hold for the longest.
_TYPICAL_NORM: Final = 0.2
_PARTS_OF_WRAPPING: Final = 1024.0


def local_parameters(
    randomiser: str,
    *,
    dim: int,
    bound: float,
    epsilon: float,
    magnitude_epsilon: float | None,
) -> LocalParameters:
    """Fill in what an operator leaves open.

    Args:
        randomiser: One of `dpnoise.local.randomiser_names()`.
        dim: Entries of a vector.
        bound: Of the input, caller's units; see `LocalParameters`.
        epsilon: Level of one session, nats.
        magnitude_epsilon: The part that `separated` spends on the norm; None for the
            best part for vectors of a fifth of the bound.

    Raises:
        ParameterError: A number is out of range, or belongs to another randomiser.
    """
    if randomiser == "separated" and magnitude_epsilon is None:
        magnitude_epsilon = local.best_magnitude_epsilon(
            dim=dim, bound=bound, epsilon=epsilon, typical_norm=_TYPICAL_NORM * bound
        )
    return LocalParameters(
        randomiser=randomiser,
        dim=dim,
        bound=bound,
        epsilon=epsilon,
        magnitude_epsilon=magnitude_epsilon,
    )


def local_privacy(
    randomiser: "LocalRandomiser | None", *, sessions: int
) -> LocalPrivacy | None:
    """Return what holds against an adversary that sees each vector alone.

    Args:
        randomiser: Of a task; None without one.
        sessions: How many the task may cost one client.

    Returns:
        None without a randomiser.
    """
    if randomiser is None:
        return None
    return LocalPrivacy(
        randomiser=randomiser.name,
        epsilon=randomiser.parameters.epsilon,
        sessions=sessions,
        is_exact=randomiser.exact_alphabet,
    )


def randomised_sum(
    randomiser: "LocalRandomiser", request: "PlanRequest"
) -> dict[str, float]:
    """Return what the planner has to know of a sum of randomised vectors.

    Equal vectors are sent as vectors that mostly differ.  Their sum is bounded with
    high probability, and the modulus has to hold no more.

    Args:
        randomiser: Of the task.
        request: The request for the plan, for its `output_norm` as `l2_clip`.
            `sum_l2_norm` is the expected norm of the sum of the randomiser's inputs;
            None if all vectors may agree.

    Returns:
        `sum_l2_norm` and `sum_l2_failure`, of the randomiser's outputs.  The chance is
            a 1024th of what wrapping is allowed.
    """
    failure = request.max_wrap_probability / _PARTS_OF_WRAPPING
    norm = randomiser.sum_norm(
        most_selected(request.clients, request.selection),
        failure=failure,
        mean_norm=request.sum_l2_norm,
    )
    return {"sum_l2_norm": norm, "sum_l2_failure": failure}


def randomised_mse(
    randomiser: "LocalRandomiser | None", *, clients: int, selection_rate: Fraction
) -> float:
    """Return what randomising adds to the mean squared error of one entry of a sum.

    Args:
        randomiser: Of a task; None without one.
        clients: Size of the largest cohort.
        selection_rate: Part of the vectors that count. Of n vectors q·n are selected,
            and their sum is divided by q.

    Returns:
        Caller's units squared, for the shortest vectors or the longest, whichever is
        more; 0 without a randomiser.
    """
    if randomiser is None:
        return 0.0
    each = max(randomiser.mse(0.0), randomiser.mse(randomiser.largest_norm))
    return clients / float(selection_rate) * each / randomiser.parameters.dim
