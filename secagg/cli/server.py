"""`secagg server`: runs an aggregator."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from secagg.cli.operator import ServerFileOption, server_file
from secagg.cli.options import (
    JSONOption,
    SetOption,
    ShowSettingsOption,
    warn_if_experimental,
)
from secagg.cli.output import Output

if TYPE_CHECKING:
    from secagg.config import HostSettings, ServerSettings, TaskSettings
    from secagg.learning.served_training import ServedTraining
    from secagg.protocol.parameters import ProtocolParameters
    from secagg.server.admin.operations import View
    from secagg.server.task.setup import PreparedTask


# For one evaluation of a large model; the clients of the next session wait.
_UPDATE_SECONDS: Final = 600.0


def server(  # noqa: PLR0913 - one argument per option
    *,
    config: ServerFileOption = None,
    overrides: SetOption = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            help="Keep sessions, numbers and budgets in a PostgreSQL database; same as "
            "--set server.store=URL.",
        ),
    ] = None,
    until_done: Annotated[
        bool,
        typer.Option(
            "--until-done",
            help="End when the task in the settings file has all its sums and its "
            "clients know; other tasks are not run.",
        ),
    ] = False,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="Continue, this once, from a restored state: sessions open in it "
            "end, and their inputs count as summed.",
        ),
    ] = False,
    learn: Annotated[
        str | None,
        typer.Option(
            "--learn",
            metavar="RULE",
            help="With --until-done and --model: train a model by the sums. The rule: "
            "fedavg, fedavgm or fedadam.",
        ),
    ] = None,
    update_with: Annotated[
        str | None,
        typer.Option(
            "--update-with",
            metavar="COMMAND",
            help="In place of --learn: the program that makes the next model. {model} "
            "and {mean} in it stand for files that it reads, {next} for the one that "
            "it writes. No shell.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="MODEL.npz",
            help="With --learn or --update-with: the model to start from.",
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            "--learning-rate", help="With --learn: step of the rule; 1 by default."
        ),
    ] = None,
    max_weight: Annotated[
        float | None,
        typer.Option(
            "--max-weight",
            help="With --learn or --update-with: weight from which on all clients "
            "count alike; without it they always do.",
        ),
    ] = None,
    update_seconds: Annotated[
        float,
        typer.Option(
            "--update-seconds",
            min=1,
            max=86_400,
            help="With --update-with: longest time of one run.",
        ),
    ] = _UPDATE_SECONDS,
    show_settings: ShowSettingsOption = False,
    as_json: JSONOption = False,
) -> None:
    """Run an aggregator, until it is stopped.

    It runs the task in its settings file, those in server.tasks_dir, and those that
    were added with `secagg tasks add`, side by side. Writes sum-<n>.npy,
    report-<n>.json and receipt-<n>.bin for every session n that released a sum.
    SIGTERM stops it gently; it resumes when it is started again.
    With --learn or --update-with its sums train a model, which every session hands
    out; model-<n>.npz is the one after session n.

    Example: secagg server --config server.toml
    """
    import asyncio
    import os
    from dataclasses import replace

    from secagg.cli.checks.preflight import print_checks
    from secagg.cli.checks.setup_checks import local_checks, owner_of, require_start
    from secagg.cli.checks.setups import ServerSetup, tasks_in_folder
    from secagg.cli.output import log_to_stderr
    from secagg.config import has_task_section, load_host_settings, load_server_settings
    from secagg.server.task.setup import prepare_task
    from secagg.storage.postgres.address import checked_address

    training = _TrainingOptions(
        learn, update_with, model, learning_rate, max_weight, update_seconds
    )
    training.check(until_done=until_done)
    output = Output(as_json=as_json, is_aside=not show_settings)
    changed = [
        *(overrides or ()),
        *([] if store is None else [f"server.store={store}"]),
    ]
    task: ServerSettings | None = None
    path = server_file(config)
    if until_done or has_task_section(path):
        own = load_server_settings(path, environment=os.environ, overrides=changed)
        task, settings, rows = own.settings, own.settings.host, own.rows()
    else:
        host = load_host_settings(path, environment=os.environ, overrides=changed)
        settings, rows = host.settings, host.rows()
    if until_done and settings.server.tasks_dir is not None:
        raise typer.BadParameter(
            "--until-done runs the task of the settings file alone, and "
            "server.tasks_dir names further ones: leave one of the two out, for "
            "example with --set server.tasks_dir="
        )
    if settings.server.store is not None:
        checked_address(settings.server.store)  # before anything shows it
    own_task = None if task is None else task.own_task
    tasks = () if own_task is None else (own_task,)
    setup = ServerSetup(path, settings, tasks, accepts_restored=restored)
    if show_settings:
        setup = replace(
            setup,
            tasks=(*setup.tasks, *tasks_in_folder(settings)),
            owner=asyncio.run(owner_of(settings.server)),
        )
        print_checks(rows, local_checks(setup), output)
        if task is not None:
            output.line("planning the noise of the task")
            shown = prepare_task(task, reports=settings.server.state_dir, keep=False)
            print_task(shown, output)
        return
    log_to_stderr(settings.server.log_level, settings.server.log_format)
    output.line("checking certificates, directories and port")
    # A server that runs for good waits for a disk; that of sums delays sums only.
    require_start(setup, output, may_be_full="" if until_done else "D170")
    if task is not None and until_done:
        _run_until_complete(task, output, restored=restored, options=training)
    else:
        _run_until_stopped(settings, own_task, output, file=path, restored=restored)


@dataclass(frozen=True, slots=True)
class _TrainingOptions:
    """Values of --learn, --update-with and the options that go with them.

    Attributes:
        rule: Of --learn.
        command: Of --update-with.
        model: Of --model.
        learning_rate: Of --learning-rate.
        max_weight: Of --max-weight.
        seconds: Of --update-seconds.
    """

    rule: str | None
    command: str | None
    model: Path | None
    learning_rate: float | None
    max_weight: float | None
    seconds: float

    def check(self, *, until_done: bool) -> None:
        """Refuse options that do not go together.

        Raises:
            typer.BadParameter: In words.
        """
        if self.rule is None and self.command is None:
            others = (self.model, self.learning_rate, self.max_weight)
            if any(given is not None for given in others):
                raise typer.BadParameter(
                    "--model, --learning-rate and --max-weight go with --learn or "
                    "--update-with"
                )
            return
        if self.rule is not None and self.command is not None:
            raise typer.BadParameter("--learn and --update-with exclude each other")
        if self.model is None:
            raise typer.BadParameter("--learn and --update-with need --model")
        if self.learning_rate is not None and self.rule is None:
            raise typer.BadParameter("--learning-rate goes with --learn")
        if not until_done:
            raise typer.BadParameter("--learn and --update-with go with --until-done")

    def training(
        self, settings: "ServerSettings", prepared: "PreparedTask"
    ) -> "ServedTraining | None":
        """Return the training; None where none was asked for.

        Raises:
            SecAggError: The model, the command or the task cannot work.
        """
        if self.model is None:
            return None
        from secagg.learning.optimizers import Optimizer, ServerOptimizer
        from secagg.learning.served_training import (
            ProgramOptimizer,
            ServedTraining,
            read_model,
        )
        from secagg.learning.vectors import VectorSpec
        from secagg.runtime.external_program import ExternalProgram, split_command

        first = read_model(self.model)
        state_dir = settings.server.state_dir
        rule: Optimizer
        if self.command is None:
            rate = 1.0 if self.learning_rate is None else self.learning_rate
            rule = ServerOptimizer(self.rule or "", rate)
        else:
            rule = ProgramOptimizer(
                ExternalProgram(split_command("--update-with", self.command)),
                VectorSpec.of(first),
                directory=state_dir / "update",
                seconds=self.seconds,
            )
        return ServedTraining(
            first,
            rule,
            state_dir=state_dir,
            output_dir=settings.server.output_dir,
            max_weight=self.max_weight,
            prepared=prepared,
        )


def _run_until_stopped(
    settings: "HostSettings",
    own: "TaskSettings | None",
    output: Output,
    *,
    file: "Path",
    restored: bool,
) -> None:
    """Run all tasks until a signal or an operator ends it."""
    import asyncio
    import os
    from functools import partial

    from secagg.cli.checks.preflight import check_task_rules
    from secagg.cli.checks.setups import tasks_in_folder
    from secagg.cli.session_view import SessionView
    from secagg.config.files import identity_of
    from secagg.server.service import ServiceManager, run_service
    from secagg.transport.peer_identity import Role

    manager = ServiceManager.from_environment(os.environ)
    proposed = [*([] if own is None else [own]), *tasks_in_folder(settings)]
    domain = identity_of(settings.tls, Role.SERVER).identity.trust_domain

    async def run() -> "list[View]":
        # Printed when the loop runs: a signal that comes while one is being made would
        # leave Python's own words behind.
        output.line("planning the noise of new tasks")
        return await run_service(
            settings,
            proposed,
            own_task=None if own is None else own.task.id,
            listening=lambda address: output.line(f"listening on {address}"),
            progress=view.show,
            notify=output.line,
            check_task=partial(check_task_rules, settings, file, domain),
            manager=manager,
            accept_restored=restored,
        )

    with SessionView(output, names_tasks=True) as view:
        tasks = asyncio.run(run())
    output.line("stopped; start again to resume the tasks")
    output.result({"tasks": tasks})


def _run_until_complete(
    settings: "ServerSettings",
    output: Output,
    *,
    restored: bool,
    options: "_TrainingOptions",
) -> None:
    """Run the task of the settings file until it has all its sums."""
    import asyncio

    from secagg.cli.session_view import SessionView
    from secagg.server.service import Observer, plan_task, serve
    from secagg.server.task.outputs import ReleasedSum, SumWriter

    async def planned() -> "PreparedTask":
        # As in `_run_until_stopped`.
        output.line("planning the noise of the task")
        return await plan_task(settings, accept_restored=restored)

    prepared = asyncio.run(planned())
    print_task(prepared, output)
    written: list[Path] = []
    files = SumWriter(settings.server.output_dir, prepared, notify=written.append)

    training = options.training(settings, prepared)

    async def write_sum(total: ReleasedSum) -> None:
        await files.write(total)
        output.line(str(total))
        if training is not None:
            step, path = await training.apply_sum(total)
            written.append(path)
            output.line(str(step))

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
                on_sum=write_sum,
                on_aborted=files.write_aborted,
                observer=observer,
                payload=None if training is None else training.payload,
            )
        )
    for path in written:
        output.line(f"wrote {path}")
    if not served.is_complete:
        output.line("stopped before the task was done; start again to resume it")
    output.result(
        {
            "task": settings.task.id,
            "completed": served.is_complete,
            "sessions_left": served.receipts[-1].sessions_left
            if served.receipts
            else None,
            "sessions": [receipt.to_dict() for receipt in served.receipts],
            "files": [str(path) for path in written],
        }
    )


def _graph_of(parameters: "ProtocolParameters") -> str:
    """Return one line about the graph of shares, and its failure bounds."""
    from secagg.protocol.graphs.choice import failure_bounds_of
    from secagg.protocol.parameters import Graph

    if parameters.is_complete_graph:
        return "complete graph: each client shares with every other client"
    bounds = failure_bounds_of(parameters)
    if parameters.graph is Graph.K_OUT:
        return (
            f"{parameters.degree} neighbours drawn by each client: unsafe with a "
            f"chance of at most 2^-{parameters.graph_bits}; expected are "
            f"2^-{bounds.holder_bits:.1f} for too many colluders around a client and "
            f"2^-{bounds.cut_bits:.1f} for a set of clients that stands apart; "
            f"{parameters.quorum} clients must sign who is in the sum"
        )
    return (
        f"ring of degree {parameters.degree}: sessions unsafe with a chance above "
        f"2^-{parameters.graph_bits} are not summed up; expected are "
        f"2^-{bounds.holder_bits:.1f} for too many colluders around a client and "
        f"2^-{bounds.cut_bits:.1f} for a ring cut into parts"
    )


def print_task(prepared: "PreparedTask", output: Output) -> None:
    """Print what a task runs, and its privacy cost for clients."""
    parameters = prepared.parameters
    output.line(
        f"profile {parameters.profile.label}, {parameters.min_clients} to "
        f"{parameters.max_clients} clients, threshold {parameters.threshold}, "
        f"at least {parameters.min_survivors} inputs in a sum"
    )
    warn_if_experimental(parameters.profile, output)
    output.line(_graph_of(parameters))
    if prepared.noised is None or prepared.report is None:
        output.line("no noise: sums are released exactly", style="bold red")
        return
    budget, report = prepared.noised.budget, prepared.report
    output.line(
        f"{report.server.figures()} against the server, for {report.privacy_unit}; "
        f"accountant {budget.accountant} ({report.grounds()})"
    )
    output.line(
        f"{prepared.sums} sums, of which one client gives to at most "
        f"{budget.participations}; {budget.spare} spare session(s) for each client"
    )
    alone, _, readers = report.lines()
    output.line(alone)
    output.line(readers)
    output.line(report.assumes)
