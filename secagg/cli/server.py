"""`secagg server`: run an aggregator until its task is done."""

from typing import TYPE_CHECKING, Annotated

import typer

from secagg.cli.options import (
    EXPERIMENTAL,
    ConfigOption,
    JSONOption,
    SetOption,
    ShowSettingsOption,
)
from secagg.cli.output import Output

if TYPE_CHECKING:
    from secagg.parameters import ProtocolParameters
    from secagg.server.task_setup import PreparedTask

__all__ = ["server"]


def server(
    *,
    config: ConfigOption,
    overrides: SetOption = None,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="Accept, this once, that the state was put back: sessions open in it "
            "end, and their inputs count as summed.",
        ),
    ] = False,
    show_settings: ShowSettingsOption = False,
    as_json: JSONOption = False,
) -> None:
    """Run an aggregator until its task is done.

    Writes sum-<n>.npy, report-<n>.json and receipt-<n>.bin for every session n that
    released a sum.
    SIGTERM stops it gently; it goes on where it stood when it is started again.

    Example: secagg server --config server.toml
    """
    import asyncio
    import os

    from secagg.cli.logs import log_to_stderr
    from secagg.cli.preflight import check_port, require_all, server_checks
    from secagg.cli.session_view import SessionView
    from secagg.cli.settings_view import show_checked
    from secagg.config import load_server_settings
    from secagg.server.program import Observer, plan_task, serve
    from secagg.server.sum_files import SumFiles
    from secagg.server.task_setup import prepare_task

    output = Output(as_json=as_json)
    loaded = load_server_settings(
        config, environment=os.environ, overrides=overrides or ()
    )
    settings = loaded.settings
    if show_settings:
        show_checked(loaded.rows(), server_checks(settings), output)
        output.line("planning the noise of the task")
        shown = prepare_task(settings, reports=settings.server.state_dir, keep=False)
        _print_task(shown, output)
        output.result({key: value for key, value, _ in loaded.rows()})
        return
    log_to_stderr(settings.server.log_level)
    output.line("checking certificates, directories and port")
    require_all(server_checks(settings))
    check_port(settings)

    async def planned() -> "PreparedTask":
        # Said when the loop runs: a signal that comes while one is being made would
        # leave Python's own words behind.
        output.line("planning the noise of the task")
        return await plan_task(settings, accept_restored=restored)

    prepared = asyncio.run(planned())
    _print_task(prepared, output)
    files = SumFiles(settings.server.output_dir, prepared)

    with SessionView(output) as view:
        observer = Observer(
            listening=lambda address: output.line(
                f"listening on {address} for task {settings.task.id!r}"
            ),
            progress=view.show,
            nothing_to_do=output.line,
        )
        served = asyncio.run(
            serve(
                settings,
                prepared,
                on_sum=files.write,
                on_aborted=files.write_aborted,
                observer=observer,
            )
        )
    for path in files.written:
        output.line(f"wrote {path}")
    if not served.is_complete:
        output.line("stopped before the task was done; start again to go on")
    output.result(
        {
            "task": settings.task.id,
            "completed": served.is_complete,
            "sessions_left": served.receipts[-1].sessions_left
            if served.receipts
            else None,
            "sessions": [receipt.to_dict() for receipt in served.receipts],
            "files": [str(path) for path in files.written],
        }
    )


def _graph_of(parameters: "ProtocolParameters") -> str:
    """Return one line about who shares with whom, and what that is worth."""
    from secagg.graph_choice import odds_of
    from secagg.parameters import Graph

    if parameters.is_complete_graph:
        return "complete graph: everybody shares with everybody"
    odds = odds_of(parameters)
    if parameters.graph is Graph.K_OUT:
        return (
            f"{parameters.degree} neighbours drawn by each client: unsafe with a "
            f"chance of at most 2^-{parameters.graph_bits}; expected are "
            f"2^-{odds.holder_bits:.1f} for too many colluders around a client and "
            f"2^-{odds.cut_bits:.1f} for a set of clients that stands apart; "
            f"{parameters.quorum} clients must sign who is in the sum"
        )
    return (
        f"ring of degree {parameters.degree}: sessions unsafe with a chance above "
        f"2^-{parameters.graph_bits} are not summed up; expected are "
        f"2^-{odds.holder_bits:.1f} for too many colluders around a client and "
        f"2^-{odds.cut_bits:.1f} for a ring cut into parts"
    )


def _print_task(prepared: "PreparedTask", output: Output) -> None:
    parameters = prepared.parameters
    output.line(
        f"profile {parameters.profile.label}, {parameters.min_clients} to "
        f"{parameters.max_clients} clients, threshold {parameters.threshold}, "
        f"at least {parameters.min_survivors} inputs in a sum"
    )
    if parameters.profile.is_experimental:
        output.line(EXPERIMENTAL.format(parameters.profile.label), style="bold red")
    output.line(_graph_of(parameters))
    if prepared.noised is None or prepared.report is None:
        output.line("no noise: sums are released exactly", style="bold red")
        return
    budget, report = prepared.noised.budget, prepared.report
    output.line(
        f"epsilon {report.server.epsilon:.4g}, delta {budget.delta:.3g} against the "
        f"server for {budget.steps} session(s) and {budget.spare} spare one(s) "
        "together; accountant "
        f"{budget.accountant} ({report.grounds()})"
    )
    alone, _, readers = report.lines()
    output.line(alone)
    output.line(readers)
