"""`secagg plan`: computes scale, modulus, noise and error from a privacy budget."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from secagg.cli.local_layer import adversaries, layer_table, local_layer
from secagg.cli.options import JSONOption
from secagg.cli.output import Output
from secagg.errors import ErrorCode, SecAggError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from secagg.distributed_dp import Adjacency, LocalRandomiser, ParameterError, Plan


_PICTURES: Final = (".png", ".svg", ".pdf")
# After joining: sharing, input, signatures (in profiles that have them), unmasking.
_LATER_ROUNDS: Final = 4
# Between these multiples of its stay a device is neither kept by a round nor caught by
# the next one.
_SHORTEST_BAD: Final = 1 / 3
_LONGEST_BAD: Final = 5.0


def _option_error(error: "ParameterError", context: typer.Context) -> SecAggError:
    """Return the planner's error about parameters, in terms of their options."""

    def in_options(text: str) -> str:
        for each in context.command.params:
            name, option = str(each.name), each.opts[0]
            if "_" in name:
                text = re.sub(rf"\b{name}\b", option, text)
            elif text.startswith(f"{name} "):  # elsewhere it is an ordinary word
                text = option + text.removeprefix(name)
        return text

    message = in_options(str(error.args[0]))
    named = {str(each.name): each.opts[0] for each in context.command.params}
    option = named.get(error.parameter, "")
    of_which = "" if option in message else f" of {option}"
    return ErrorCode.BAD_SETTINGS.error(
        message,
        fix="Correct that option; see secagg plan --help."
        if error.nearest is None
        else f"The nearest value{of_which} that works: {in_options(error.nearest)}",
    )


def _approve(context: typer.Context, path: Path | None) -> None:
    """Verify a task that is already planned; needs none of the other options."""
    if path is not None:
        from secagg.cli.approve import approve

        approve(path, Output(as_json=bool(context.params.get("as_json"))))
        raise typer.Exit


def plan(  # noqa: PLR0913 - one parameter per flag
    context: typer.Context,
    *,
    clients: Annotated[
        int, typer.Option("--clients", help="Size of the cohort of one session.")
    ],
    dimension: Annotated[
        int, typer.Option("--dimension", help="Entries of one client's vector.")
    ],
    epsilon: Annotated[
        float,
        typer.Option("--epsilon", help="Budget of one client over all its sessions."),
    ],
    delta: Annotated[
        float, typer.Option("--delta", help="Probability beyond epsilon.")
    ],
    l2_clip: Annotated[
        float | None,
        typer.Option(
            "--l2-clip",
            help="Longest vector of one client, its own units; leave it out for "
            "skellam-counts.",
        ),
    ] = None,
    max_nonzero: Annotated[
        int | None,
        typer.Option(
            "--max-nonzero",
            help="For skellam-counts: how many entries of one client may differ from "
            "zero; 1 for a histogram.",
        ),
    ] = None,
    linf_bound: Annotated[
        int | None,
        typer.Option(
            "--linf-bound",
            help="Largest entry of one client, grid steps; default: the mechanism's, "
            "1 for skellam-counts.",
        ),
    ] = None,
    signed: Annotated[
        bool,
        typer.Option("--signed", help="Let entries of skellam-counts be below 0."),
    ] = False,
    bits: Annotated[
        int | None,
        typer.Option(
            "--bits",
            help="Bits of one entry on the wire; default: the fewest within 5 percent "
            "of the central Gaussian's error, or 1 percent where entries are rounded "
            "together (skellam, ddgauss, binomial).",
        ),
    ] = None,
    mechanism: Annotated[
        str, typer.Option("--mechanism", help="Mechanism by name.")
    ] = "skellam-mixture",
    scale_factor: Annotated[
        float | None,
        typer.Option(
            "--scale-factor",
            help="Grid steps per unit; default: the one with the least error.",
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", help="Sums that the task releases.")
    ] = 1,
    participations: Annotated[
        int | None,
        typer.Option(
            "--participations",
            help="Most of these sums that hold one client's data; default: all.",
        ),
    ] = None,
    spare: Annotated[
        int,
        typer.Option(
            "--spare",
            help="Further sessions of one client that may end without a sum.",
        ),
    ] = 0,
    sampling_rate: Annotated[
        float | None,
        typer.Option(
            "--sampling-rate",
            help="Probability that a client takes part in a step; for mechanisms whose "
            "noise one trusted party adds.",
        ),
    ] = None,
    selection_rate: Annotated[
        str | None,
        typer.Option(
            "--selection-rate",
            metavar="Q",
            help="Probability, such as 1/10, that the vector of a client counts in a "
            "step, by a secret Bernoulli selection; a client that is not selected "
            "sends zeros and its noise.",
        ),
    ] = None,
    min_survivors: Annotated[
        int | None,
        typer.Option(
            "--min-survivors",
            help="Fewest inputs in a released sum; default: all clients.",
        ),
    ] = None,
    colluders: Annotated[
        int,
        typer.Option(
            "--colluders",
            help="Clients whose noise does not count because they know it.",
        ),
    ] = 0,
    loss_fraction: Annotated[
        float | None,
        typer.Option(
            "--loss-fraction",
            help="Part of a session's clients that may drop out; default: what "
            "--min-survivors leaves of --clients.",
        ),
    ] = None,
    colluder_fraction: Annotated[
        float,
        typer.Option(
            "--colluder-fraction",
            help="Part of a session's clients taken for colluders where that is more "
            "than --colluders.",
        ),
    ] = 0.0,
    ladder: Annotated[
        int | None,
        typer.Option(
            "--ladder",
            help="Rungs by which survivors remove noise that no dropout has made "
            "necessary; 0 for none; default: 4 where clients may drop out: about "
            "1 percent too much is kept where a tenth may, 2 where three tenths may.",
        ),
    ] = None,
    accountant: Annotated[
        str | None,
        typer.Option("--accountant", help="Accountant by name; default: a proven one."),
    ] = None,
    rotation: Annotated[
        str, typer.Option("--rotation", help="How vectors are spread before rounding.")
    ] = "hadamard",
    adjacency: Annotated[
        str,
        typer.Option(
            "--adjacency",
            help="Which inputs count as neighbouring: zero-out or replace-one.",
        ),
    ] = "zero-out",
    sum_l2_norm: Annotated[
        float | None,
        typer.Option(
            "--sum-l2-norm",
            help="Expected length of the exact sum, vectors' units: it decides how "
            "many bits the sum needs; default: all vectors agree.",
        ),
    ] = None,
    max_wrap_probability: Annotated[
        float,
        typer.Option(
            "--max-wrap-probability",
            help="Largest probability that one entry of the sum wraps around.",
        ),
    ] = 0.01,
    randomiser: Annotated[
        str | None,
        typer.Option(
            "--randomiser",
            help="Make every vector private by itself before noise is added, in case "
            "masks are broken: separated, privunit2, privunit-inf or scalar-dp. "
            "--l2-clip then bounds what goes into it, and the noise is planned for "
            "what comes out, which is longer.",
        ),
    ] = None,
    randomiser_epsilon: Annotated[
        float | None,
        typer.Option(
            "--randomiser-epsilon",
            help="Its level in one session, without a delta; sessions add up.",
        ),
    ] = None,
    randomiser_magnitude_epsilon: Annotated[
        float | None,
        typer.Option(
            "--randomiser-magnitude-epsilon",
            help="The part of that level which separated spends on the length of a "
            "vector; default: the best for vectors of a fifth of --l2-clip.",
        ),
    ] = None,
    presence: Annotated[
        float | None,
        typer.Option(
            "--presence",
            metavar="SECONDS",
            help="For devices that come and go: how long one stays on average. "
            "Prints how many must be present in each round, and warns.",
        ),
    ] = None,
    absence: Annotated[
        float | None,
        typer.Option(
            "--absence",
            metavar="SECONDS",
            help="With --presence: how long a device is away on average.",
        ),
    ] = None,
    round_seconds: Annotated[
        float,
        typer.Option(
            "--round-seconds",
            metavar="SECONDS",
            help="With --presence: how long each round lasts.",
        ),
    ] = 60.0,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw error against bits into FILE.png, .svg or .pdf (extra: viz).",
        ),
    ] = None,
    approve: Annotated[  # noqa: ARG001 - its callback does the work and ends the command
        Path | None,
        typer.Option(
            "--approve",
            metavar="FILE",
            callback=_approve,
            help="Instead of planning: verify the noise of an offer, or of a server's "
            "settings (.toml), and print the hash that a client may pin.",
        ),
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Choose scale, modulus and noise for a privacy budget.

    Example: secagg plan --clients 100 --dimension 65536 --l2-clip 1 --epsilon 1
    --delta 1e-5 --bits 10
    """
    if plot is not None:
        _check_picture(plot)
    from secagg import distributed_dp
    from secagg.config.common import parse_rate

    output = Output(as_json=as_json)
    devices = presence_of(presence, absence, round_seconds)
    layer: LocalRandomiser | None = None
    try:
        if (randomiser, randomiser_epsilon, randomiser_magnitude_epsilon) != (
            None,
        ) * 3:
            if mechanism == "skellam-counts":
                raise ErrorCode.BAD_SETTINGS.error(
                    "a randomiser sends real numbers, and skellam-counts adds up whole "
                    "ones",
                    fix="Leave out --randomiser, or choose skellam-mixture.",
                )
            layer = local_layer(
                randomiser,
                dim=dimension,
                bound=l2_clip,
                epsilon=randomiser_epsilon,
                magnitude_epsilon=randomiser_magnitude_epsilon,
            )
        asked: dict[str, Any] = dict(  # noqa: C408 - the keywords of `plan`
            clients=clients,
            dimension=dimension,
            l2_clip=(l2_clip or 0.0) if layer is None else layer.output_norm,
            epsilon=epsilon,
            delta=delta,
            bits=bits,
            max_nonzero=max_nonzero,
            linf_bound=linf_bound,
            signed=signed,
            mechanism=mechanism,
            scale_factor=scale_factor,
            steps=steps,
            participations=participations,
            spare=spare,
            sampling_rate=sampling_rate,
            selection_rate=None
            if selection_rate is None
            else parse_rate(selection_rate, name="--selection-rate"),
            min_survivors=min_survivors,
            loss_fraction=loss_fraction,
            colluders=colluders,
            colluder_fraction=colluder_fraction,
            ladder=ladder,
            accountant=accountant,
            rotation=rotation,
            adjacency=_read_adjacency(adjacency),
            sum_l2_norm=sum_l2_norm,
            max_wrap_probability=max_wrap_probability,
        )
        if layer is not None:
            request = distributed_dp.PlanRequest(**asked)
            asked |= distributed_dp.randomised_sum(layer, request)
        with output.progress("planning") as show:
            show("choosing a mechanism's grid")
            made = distributed_dp.plan(
                **asked, on_progress=lambda count: show(f"{count} grids accounted for")
            )
    except distributed_dp.ParameterError as error:
        if error.parameter == "l2_clip" and l2_clip is None:
            raise ErrorCode.BAD_SETTINGS.error(
                "--l2-clip is missing",
                fix="State how long one client's vector may be; only --mechanism "
                "skellam-counts needs no such bound.",
            ) from None
        raise _option_error(error, context) from None
    except distributed_dp.UnknownEventError as error:
        raise ErrorCode.INFEASIBLE.error(
            str(error),
            fix="Name an accountant with --accountant, or another --mechanism.",
        ) from None
    except distributed_dp.DPNoiseError as error:
        raise ErrorCode.INFEASIBLE.error(
            str(error), fix="Ask for a larger epsilon or delta, or for more clients."
        ) from None
    figures = adversaries(made, layer)
    output.pairs([*made.table(), *layer_table(figures)], title="Plan")
    _print_grounds(made, figures, output)
    _print_presence(devices, figures, output, clients, min_survivors)
    if plot is not None:
        draw(made, plot)
        output.line(f"The picture is in {plot}.")
    output.result(made.to_dict() | figures)


def _read_adjacency(text: str) -> "Adjacency":
    """Return the adjacency of a name, or refuse the name."""
    from secagg.distributed_dp import Adjacency

    try:
        return Adjacency(text)
    except ValueError:
        known = ", ".join(each.value for each in Adjacency)
        raise ErrorCode.BAD_SETTINGS.error(
            f"--adjacency must be one of {known}; got {text!r}",
            fix=f"Write one of {known}.",
        ) from None


def _print_grounds(made: "Plan", figures: dict[str, object], output: Output) -> None:
    """Print against whom a plan holds, and under which assumptions."""
    output.line(made.in_words)
    sentences = figures["adversaries"]
    if isinstance(sentences, list) and sentences:
        output.heading("Against whom")
        for sentence in sentences:
            output.line(f"  - {sentence}")
    if made.notes:
        output.heading("Mind that")
        for note in made.notes:
            output.line(f"  - {note}")
    assumptions = made.to_dict()["assumptions"]
    if isinstance(assumptions, list) and assumptions:
        output.heading("It holds if")
        for assumption in assumptions:
            output.line(f"  - {assumption}")


def _print_presence(
    devices: "Presence | None",
    figures: dict[str, object],
    output: Output,
    clients: int,
    min_survivors: int | None,
) -> None:
    """Print how many clients must be present, if a share of devices is given."""
    if devices is None:
        return
    figures["presence"] = sentences = devices.sentences(
        clients=clients, min_survivors=min_survivors or clients
    )
    output.heading("Clients that must be present")
    for sentence in sentences:
        output.line(f"  - {sentence}")


def _check_picture(path: Path) -> None:
    """Refuse a picture that could not be drawn, before anything is planned."""
    from importlib.util import find_spec

    if path.suffix.lower() not in _PICTURES:
        raise ErrorCode.BAD_SETTINGS.error(
            f"{path} does not end like a picture that can be drawn",
            fix=f"End the name in {', '.join(_PICTURES)}.",
        )
    if find_spec("matplotlib") is None:
        raise ErrorCode.MISSING_EXTRA.error(
            "--plot draws with matplotlib, which is not installed",
            fix="Run: pip install matplotlib (it is the extra 'viz').",
        )


def draw(made: "Plan", path: Path) -> None:
    """Draw error against bits into a file whose ending names its format.

    Raises:
        ServiceError: STORAGE_FAILED; the file cannot be written.
    """
    try:
        error_figure(made).savefig(path)
    except OSError as error:
        raise ErrorCode.STORAGE_FAILED.error(
            f"the picture cannot be written to {path}: {error.strerror}",
            fix="Choose another path for --plot.",
        ) from None


def error_figure(made: "Plan") -> "Figure":
    """Return error against bits, beside the plan and the central Gaussian."""
    # Not pyplot: a figure alone needs no display and leaves no global state.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from secagg.distributed_dp import error_curve

    curve = [
        point
        for point in error_curve(made)
        if point.expected_mse < 1e3 * made.gaussian_mse
    ]
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(
        [point.bits for point in curve],
        [point.expected_mse for point in curve],
        marker="o",
        label=made.parameters.mechanism,
    )
    axes.axhline(
        made.gaussian_mse, linestyle="--", color="grey", label="central Gaussian"
    )
    axes.plot(
        [made.parameters.modulus.bit_length() - 1],
        [made.forecast.expected_mse],
        marker="*",
        markersize=14,
        linestyle="none",
        label="this plan",
    )
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # there are no half bits
    axes.set_xlabel("bits per entry")
    axes.set_ylabel("expected squared error of the sum, per entry")
    axes.set_title(
        f"{made.request.clients} clients, {made.request.dimension} entries, "
        f"ε = {made.request.epsilon:g}, δ = {made.request.delta:g}"
    )
    axes.legend()
    return figure


# --- devices that come and go ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Presence:
    """How many of the devices that join are present in the rounds that follow.

    The model: a device is present and absent in turn, each for an exponential time,
    without day and night.  Rounds last their whole length.  A device that has answered
    is present then; in the next round it answers if it is present at any time of it.

    Attributes:
        present: Mean time that a device stays, in seconds; above 0.
        absent: Mean time that it is away, in seconds; above 0.
        round_seconds: Length of every round after joining, in seconds; above 0.
    """

    present: float
    absent: float
    round_seconds: float

    def share(self, rounds: int = _LATER_ROUNDS) -> float:
        """Return which part of those devices answers in all later rounds, in (0, 1).

        Args:
            rounds: How many rounds follow.
        """
        lasts = self.round_seconds
        away = self.absent / (self.present + self.absent)
        leaves = -math.expm1(-lasts * (1 / self.present + 1 / self.absent))
        missed = away * leaves * math.exp(-lasts / self.absent)
        return (1.0 - missed) ** rounds

    def sentences(self, *, clients: int, min_survivors: int) -> list[str]:
        """Return what a session of so many clients needs, and what it may expect.

        Args:
            clients: That join.
            min_survivors: Fewest inputs in a released sum.
        """
        share = self.share()
        expected = math.floor(share * clients)
        needed = (
            f"{min_survivors} of {clients} devices must be present in each of "
            f"{_LATER_ROUNDS} rounds after joining; expect {expected} in all of them."
        )
        found = [needed]
        if expected < min_survivors:
            found.append(
                "Most sessions will end without a sum. Lower min_survivors, or make "
                f"rounds shorter than {self.present * _SHORTEST_BAD:.0f} s or longer "
                f"than {max(2 * self.absent, _LONGEST_BAD * self.present):.0f} s."
            )
        elif _SHORTEST_BAD < self.round_seconds / self.present < _LONGEST_BAD:
            found.append(
                "Rounds of this length lose the devices that pass by while other "
                "devices join. Make them much shorter or longer than a stay."
            )
        return found


def presence_of(
    present: float | None, absent: float | None, round_seconds: float
) -> Presence | None:
    """Return what the options say of presence; None where they say nothing.

    Raises:
        ServiceError: BAD_SETTINGS; one is missing, or is not a time.
    """
    if present is None and absent is None:
        return None
    if present is None or absent is None:
        raise ErrorCode.BAD_SETTINGS.error(
            "--presence and --absence are one statement, and one of them is missing",
            fix="Give both: how long a device stays, and how long it is away.",
        )
    for name, value in (
        ("--presence", present),
        ("--absence", absent),
        ("--round-seconds", round_seconds),
    ):
        if not (math.isfinite(value) and value > 0):
            raise ErrorCode.BAD_SETTINGS.error(
                f"{name} is not a time: {value:g}", fix="Give seconds above 0."
            )
    return Presence(present, absent, round_seconds)
