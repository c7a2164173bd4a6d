"""Local privacy in a plan: the layer that holds when masks are broken.

Every plan states three adversaries side by side, with a randomiser or without:
an observer of each vector alone, the server with its colluders, and readers of the
sums. No figure of one is stated for another.
"""

from typing import TYPE_CHECKING, Final

from secagg.errors import ErrorCode

if TYPE_CHECKING:
    from secagg.distributed_dp import LocalRandomiser, Plan


# What the randomiser calls its parameters, and what they are called here.
_OPTIONS: Final = {
    "dim": "--dimension",
    "bound": "--l2-clip",
    "epsilon": "--randomiser-epsilon",
    "magnitude_epsilon": "--randomiser-magnitude-epsilon",
}


def local_layer(
    randomiser: str | None,
    *,
    dim: int,
    bound: float | None,
    epsilon: float | None,
    magnitude_epsilon: float | None,
) -> "LocalRandomiser":
    """Build the randomiser that the options describe.

    Raises:
        ServiceError: BAD_SETTINGS; an option is missing, or its value cannot work.
    """
    from secagg.distributed_dp import ParameterError, local_parameters, make_randomiser

    if randomiser is None or epsilon is None or bound is None or bound <= 0.0:
        raise ErrorCode.BAD_SETTINGS.error(
            "a randomiser needs --randomiser, --randomiser-epsilon and --l2-clip",
            fix="Give all three, or neither of the first two.",
        )
    try:
        return make_randomiser(
            local_parameters(
                randomiser,
                dim=dim,
                bound=bound,
                epsilon=epsilon,
                magnitude_epsilon=magnitude_epsilon,
            )
        )
    except ParameterError as error:
        option = _OPTIONS.get(error.parameter, "--randomiser")
        complaint = str(error.args[0])
        if complaint.startswith(f"{error.parameter} "):
            complaint = option + complaint.removeprefix(error.parameter)
        else:
            complaint = f"{option}: {complaint}"
        raise ErrorCode.BAD_SETTINGS.error(
            complaint,
            fix=f"Correct {option}; see docs/local-privacy.md."
            if error.nearest is None
            else f"The nearest value that works: {error.nearest}",
        ) from None


def adversaries(made: "Plan", layer: "LocalRandomiser | None") -> dict[str, object]:
    """Return what a plan promises against each adversary, as JSON values.

    Args:
        made: The plan, for what comes out of the randomiser.
        layer: The randomiser; None for none.

    Returns:
        `adversaries`, one sentence for each, and what a randomiser does; without one
        null there.

    Raises:
        ServiceError: BAD_SETTINGS; there is a randomiser, and the noise is a trusted
            party's, so that no task of clients can have both.
    """
    from secagg.distributed_dp import PrivacyReport, local_privacy, randomised_mse

    if made.request.is_central and layer is not None:
        raise ErrorCode.BAD_SETTINGS.error(
            f"{made.parameters.mechanism} has its noise from a trusted party, and a "
            "randomiser is for clients that trust no party",
            fix="Choose a mechanism whose noise comes in shares, such as "
            "skellam-mixture.",
        )
    sentences: list[str] = []
    if not made.request.is_central:
        alone = local_privacy(layer, sessions=made.request.charges)
        sentences += PrivacyReport.of_plan(made, alone).lines()
    figures: dict[str, object] = {"adversaries": sentences, "randomiser": None}
    if layer is None:
        return figures
    added = randomised_mse(
        layer, clients=made.request.clients, selection_rate=made.request.selection
    )
    return figures | {
        "randomiser": layer.parameters.to_dict(),
        "randomiser_exact_epsilon": layer.exact_epsilon,
        "randomiser_total_epsilon": layer.parameters.epsilon * made.request.charges,
        "randomiser_output_norm": layer.output_norm,
        "randomised_sum_norm": made.request.sum_l2_norm,
        "randomiser_mse": added,
        "randomised_estimate_mse": made.estimate_mse + added,
    }


def layer_table(figures: dict[str, object]) -> list[tuple[str, str]]:
    """Return the figures of a randomiser for people: labels and texts."""
    from secagg.distributed_dp import root_text

    given = figures["randomiser"]
    if not isinstance(given, dict):
        return []
    spent = given.get("magnitude_epsilon")
    level = f"epsilon {given['epsilon']:.6g} in a session"
    if spent is not None:
        level += f", {spent:.4g} of it for lengths"
    sent = f"norm {figures['randomiser_output_norm']:.6g}"
    return [
        ("randomiser", f"{given['randomiser']}, {level}"),
        ("what it sends", f"{sent} for vectors up to {given['bound']:.6g}"),
        ("sum of what is sent", f"norm {figures['randomised_sum_norm']:.6g} or less"),
        ("error by randomising", root_text(_require_float(figures["randomiser_mse"]))),
        (
            "error of both layers",
            root_text(_require_float(figures["randomised_estimate_mse"])),
        ),
    ]


def _require_float(figure: object) -> float:
    """Return a figure that is a float."""
    assert isinstance(figure, float)  # noqa: S101 - `adversaries` has made it
    return figure
