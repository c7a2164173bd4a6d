"""`secagg demo`: federated training on this machine, with real processes."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from secagg.cli.failures import exit_code_of, removed_directory
from secagg.cli.options import (
    JSONOption,
    ProfileOption,
    named_profile,
    warn_if_experimental,
)
from secagg.cli.output import Output
from secagg.errors import ErrorCode

if TYPE_CHECKING:
    from rich.status import Status

    from secagg.testbed.demo.run import DemoResult
    from secagg.testbed.demo.sum_check import SessionCheck

# Longer than that without a line looks like a fault.
_QUIET_SECONDS: Final = 3.0


def demo(  # noqa: PLR0913 - one parameter per flag
    *,
    clients: Annotated[
        int, typer.Option("--clients", min=8, max=150, help="Client processes.")
    ] = 40,
    steps: Annotated[
        int,
        typer.Option("--steps", min=3, max=50, help="Training steps, a session each."),
    ] = 5,
    epsilon: Annotated[
        float,
        typer.Option(
            "--epsilon", min=0.01, help="Budget of the whole training per client."
        ),
    ] = 6.0,
    delta: Annotated[
        float, typer.Option("--delta", min=1e-15, max=0.1, help="That goes with it.")
    ] = 1e-5,
    mechanism: Annotated[
        str, typer.Option("--mechanism", help="Mechanism by name.")
    ] = "skellam",
    round_seconds: Annotated[
        int,
        typer.Option(
            "--round-seconds",
            min=1,
            max=600,
            help="How long a round waits for clients that were killed.",
        ),
    ] = 4,
    profile: ProfileOption = "honest-curious-server",
    adaptive_clip: Annotated[
        bool,
        typer.Option(
            "--adaptive-clip",
            help="Let the clip follow the median length of the vectors, as released "
            "sums show it; the budget stays.",
        ),
    ] = False,
    xnoise: Annotated[
        bool,
        typer.Option(
            help="Let survivors remove noise that no dropout has made necessary; that "
            "of ddgauss cannot be removed.",
        ),
    ] = True,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            metavar="DIR",
            help="Keep all files in this new directory; default: a temporary one.",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture",
            metavar="FILE",
            help="Draw accuracy by step into FILE.svg; default: secagg-demo.svg here, "
            "or in --directory.",
        ),
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Train a model on handwritten digits that never leave their owners.

    One aggregator and 40 clients run as processes of their own on this machine, with
    certificates made for the occasion. Three clients are killed in the middle of
    different sessions. Printed are the accuracy beside training without privacy and
    beside noise added by a trusted party, the privacy report, and whether every sum
    was exact. A picture of it is drawn.

    Example: secagg demo --clients 40 --epsilon 6
    """
    output = Output(as_json=as_json)
    chosen = named_profile(profile)
    warn_if_experimental(chosen, output)
    output.line(f"one aggregator and {clients} clients will run on this machine")
    with (
        DemoLines(output, clients=clients) as view,
        removed_directory("secagg-demo-") as (temporary, run),
    ):
        from secagg.storage.directories import new_directory
        from secagg.testbed.demo.layout import DemoPlan
        from secagg.testbed.demo.run import run_demo
        from secagg.testbed.run_folder import client_name

        late = "sign" if chosen.has_identities else "reveal"
        planned = DemoPlan(
            clients=clients,
            steps=steps,
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            round_seconds=round_seconds,
            # Restarted clients import their libraries again.
            join_seconds=4 * round_seconds,
            adaptive_clip=adaptive_clip,
            profile=chosen,
            xnoise=xnoise,
            losses={
                client_name(clients - 2 * place): (session, before)
                for place, (session, before) in enumerate(
                    ((2, "upload"), (3, late), (min(4, steps), "share")), start=1
                )
            },
        )
        place = temporary if directory is None else new_directory(directory)
        drawing = picture or (directory or Path()) / "secagg-demo.svg"
        _check_drawing(drawing)
        result = run(run_demo(planned, place, view))
    _print_result(result, output)
    _draw_picture(result, epsilon, drawing)
    output.line(f"The picture is in {drawing}.")
    output.result(_result_values(result) | {"picture": str(drawing)})
    if not result.is_exact:
        raise typer.Exit(code=exit_code_of(ErrorCode.INTERNAL))


def _check_drawing(path: Path) -> None:
    """Refuse a picture that could not be written, before anything is started."""
    if path.suffix.lower() != ".svg":
        raise ErrorCode.BAD_SETTINGS.error(
            f"{path} does not end like a picture that the demo draws",
            fix="End the name of --picture in .svg.",
        )
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise ErrorCode.STORAGE_FAILED.error(
            f"the picture cannot be written to {path}",
            fix="Choose another path with --picture.",
        )


def _draw_picture(result: "DemoResult", epsilon: float, path: Path) -> None:
    """Draw the accuracy of each step into a file."""
    from secagg.runtime.files import disk
    from secagg.testbed.demo.run import accuracy_picture, demo_title

    drawn = accuracy_picture(
        demo_title(result.planned.clients, epsilon, result.clients_lost),
        private=[check.accuracy for check in result.checks],
        central=result.baseline,
        nonprivate=result.nonprivate,
    )
    with disk(path):
        path.write_text(drawn, encoding="utf-8")


def _print_result(result: "DemoResult", output: Output) -> None:
    """Print the steps of a demo and what they cost."""
    from secagg.distributed_dp import text_above

    stated, reader = result.report.server, result.report.model_reader
    output.table(
        ("step", "inputs", "lost", "exact", "private", "central noise", "no privacy"),
        [
            (
                str(step),
                str(check.survivors),
                ", ".join(lost["name"] for lost in check.dropped) or "-",
                "yes" if check.is_exact else "NO",
                f"{check.accuracy:.1%}",
                f"{result.baseline[step - 1]:.1%}",
                f"{result.nonprivate[step - 1]:.1%}",
            )
            for step, check in enumerate(result.checks, start=1)
        ],
        title="Accuracy on pictures that no client trained on",
        numeric=(0, 1, 4, 5, 6),
    )
    unit = stated.adjacency.value
    own_noise = f"standard deviation {result.report.local_noise_stddev:.3g} per weight"
    facts = {
        "epsilon, server": f"{text_above(stated.epsilon, 4)} for all steps together",
        "epsilon, model reader": text_above(reader.epsilon, 4),
        "delta": text_above(stated.delta, 3),
        "accountant": f"{stated.accountant} ({result.report.grounds()})",
        "neighbouring inputs": f"one client's pictures or none ({unit})",
        "noise shares counted": f"{result.report.counted_shares}",
        "one client's own noise": own_noise,
        "mechanism": str(result.plan.parameters.mechanism),
        "bits per weight": str(result.plan.parameters.modulus.bit_length() - 1),
    }
    output.pairs(facts.items(), title="Privacy report")
    output.line()
    output.line(
        f"In words: an adversary that sees everything the server sees may test "
        f"whether one client's pictures were used. Its likelihood ratio is at most "
        f"e^{text_above(stated.epsilon, 2)} (except with probability "
        f"{text_above(stated.delta, 1)})."
    )
    exact = "every decoded sum was exact" if result.is_exact else "A SUM WAS NOT EXACT"
    output.line(
        f"{exact}; {result.clients_lost} clients were killed; "
        f"{result.wall_seconds:.0f} seconds"
    )


def _result_values(result: "DemoResult") -> dict[str, object]:
    """Return the result of a demo as JSON values."""
    stated = result.report.server
    return {
        "profile": result.planned.profile.label,
        "is_experimental": result.planned.profile.is_experimental,
        "clients": result.planned.clients,
        "steps": len(result.checks),
        "sessions_completed": len(result.checks),
        "clients_lost": result.clients_lost,
        "exact": result.is_exact,
        "epsilon": stated.epsilon,
        "delta": stated.delta,
        "accuracy": result.checks[-1].accuracy,
        "baseline_accuracy": result.baseline[-1],
        "nonprivate_accuracy": result.nonprivate[-1],
        "accuracy_by_step": [check.accuracy for check in result.checks],
        "baseline_accuracy_by_step": result.baseline,
        "nonprivate_accuracy_by_step": result.nonprivate,
        "sessions": [
            {
                "session_number": check.session_number,
                "inputs": check.survivors,
                "exact": check.is_exact,
                "dropped": [dict(lost) for lost in check.dropped],
                "l2_clip": check.l2_clip,
                "fitted": check.fitted,
                "standard_error": check.standard_error,
            }
            for check in result.checks
        ],
        "privacy": result.report.to_dict(),
        "mechanism": result.plan.parameters.to_dict(),
        "wall_seconds": result.wall_seconds,
    }


class DemoLines:
    """Prints a demo line by line; a `secagg.testbed.demo.run.DemoView`.

    On a terminal one line is live.  A pipe gets none, which would be a line per message
    of every client; it gets the state when no line was printed for long.

    Use it as a context manager: a thread of it repeats the state in the meantime,
    because planning keeps the event loop busy. It imports nothing heavy, to print
    while the libraries of the demo are loaded.

    Args:
        output: Receives the lines.
        clients: Client processes.
        clock: Seconds since any moment.
    """

    def __init__(
        self,
        output: Output,
        *,
        clients: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._output = output
        self._clients = clients
        self._clock = clock
        self._started = self._shown = clock()
        self._state = "loading libraries"
        self._has_ended = threading.Event()
        self._repeater = threading.Thread(target=self._repeat_states, daemon=True)
        self._steps = 0
        self._nonprivate: list[float] = []
        self._baseline: list[float] = []
        self._live: Status | None = (
            output.console.status(self._state) if output.is_terminal else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        self._repeater.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._repeater.join()
        if self._live is not None:
            self._live.stop()

    def stage(self, state: str) -> None:
        """Show what is being done, in place."""
        self._state = state
        if self._live is not None:
            self._live.update(state)

    def repeat_state(self) -> None:
        """Print the state to a pipe, if nothing was printed for long."""
        if self._live is None and self._clock() - self._shown >= _QUIET_SECONDS:
            self.show_line(self._state)

    def _repeat_states(self) -> None:
        while not self._has_ended.wait(_QUIET_SECONDS / 4):
            self.repeat_state()

    def references(self, nonprivate: list[float], baseline: list[float]) -> None:
        """Record the accuracies to compare with, and print the start."""
        self._nonprivate, self._baseline = nonprivate, baseline
        self.show_line(
            f"starting {self._clients} clients and one aggregator, each a "
            "process of its own"
        )

    def progress(self, session: Mapping[str, Any]) -> None:
        """Show the round of a session, in place."""
        from secagg.protocol.messages import Round
        from secagg.protocol.rounds import ROUNDS

        self.stage(
            f"session {session['session']}: {ROUNDS[Round[session['round']]].title}, "
            f"{session['answered']} of {session['expected']} clients, "
            f"{session['joined']} joined, {len(session['dropped'])} lost, "
            f"{session['upload_bytes']:,} bytes uploaded"
        )

    def step(self, check: "SessionCheck") -> None:
        """Show one training step."""
        from secagg.distributed_dp import error_text

        self._steps += 1
        exact = "exact" if check.is_exact else "NOT EXACT"
        line = (
            f"step {self._steps}: {check.survivors} inputs, sum {exact}, noise "
            f"± {error_text(check.standard_error)}, accuracy "
            f"{check.accuracy:.1%} (central noise "
            f"{self._baseline[self._steps - 1]:.1%}, no privacy "
            f"{self._nonprivate[self._steps - 1]:.1%})"
        )
        if check.fitted is not None:
            line += f", clip {check.l2_clip:.3g} fitted {check.fitted:.0%}"
        self.show_line(line, style="bold" if check.is_exact else "bold red")

    def show_line(self, line: str, *, style: str | None = None) -> None:
        """Show one line."""
        self._shown = self._clock()
        self._output.line(f"{self._shown - self._started:5.1f} s  {line}", style=style)
