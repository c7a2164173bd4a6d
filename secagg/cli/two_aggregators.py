"""`secagg two-aggregators`: sums between two aggregators, in three parts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from secagg.cli.options import (
    ConfigOption,
    JSONOption,
    SetOption,
    ShowSettingsOption,
    accepts_restored,
    restored_option,
)
from secagg.cli.output import Output

if TYPE_CHECKING:
    from secagg.config.two_aggregators import HelperSettings, LeaderSettings
    from secagg.two_aggregators.client import SharedContribution


_Aggregator = TypeVar("_Aggregator", "HelperSettings", "LeaderSettings")

app = typer.Typer(
    help="Sums between two aggregators under different people: additive shares in the "
    "place of masks, and noise from both. Without a review from outside; see "
    "docs/two-aggregators.md.",
    no_args_is_help=True,
)

_RestoredOption = Annotated[
    bool,
    typer.Option(
        "--restored",
        help="Continue, this once, from a restored state: sessions open in it end.",
    ),
]


@app.command("helper")
def helper(
    *,
    config: ConfigOption,
    overrides: SetOption = None,
    restored: _RestoredOption = False,
    show_settings: ShowSettingsOption = False,
    as_json: JSONOption = False,
) -> None:
    """Run the helper, until it is stopped.

    It holds a seed of each client and answers the leader with one noisy sum a session.
    SIGTERM stops it; it resumes when it is started again.

    Example: secagg two-aggregators helper --config helper.toml
    """
    from secagg.config.two_aggregators import HelperSettings

    _run(
        HelperSettings,
        config,
        overrides,
        as_json=as_json,
        show=show_settings,
        restored=restored,
    )


@app.command("leader")
def leader(
    *,
    config: ConfigOption,
    overrides: SetOption = None,
    restored: _RestoredOption = False,
    show_settings: ShowSettingsOption = False,
    as_json: JSONOption = False,
) -> None:
    """Run the leader, until it is stopped.

    It runs one session after the other and writes sum-<n>.npy and report-<n>.json for
    every session n that released a sum, and receipt-<n>.bin for every session. When the
    task has released all of them it continues to serve the last one to its clients.
    SIGTERM stops it; it resumes when it is started again.

    Example: secagg two-aggregators leader --config leader.toml
    """
    from secagg.config.two_aggregators import LeaderSettings

    _run(
        LeaderSettings,
        config,
        overrides,
        as_json=as_json,
        show=show_settings,
        restored=restored,
    )


@app.command("client")
def client(  # noqa: PLR0913 - one parameter per flag
    *,
    config: ConfigOption,
    vector: Annotated[
        Path,
        typer.Option("--input", metavar="X.npy", help="The vector to contribute."),
    ],
    sum_path: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="SUM.npy", help="Where to write the released sum."
        ),
    ] = None,
    receipt_path: Annotated[
        Path | None,
        typer.Option(
            "--receipt",
            metavar="FILE",
            help="Where to write what both aggregators have signed, for `secagg "
            "sessions verify`.",
        ),
    ] = None,
    overrides: SetOption = None,
    restored: Annotated[
        str | None,
        restored_option(
            "Continue, this once, from a restored state: what was spent since is not "
            "known."
        ),
    ] = None,
    show_settings: ShowSettingsOption = False,
    as_json: JSONOption = False,
) -> None:
    """Contribute one vector to the next session.

    The vector is cut into two shares; either aggregator alone sees a random vector.
    A client that was stopped after it had begun has spent the session: the next call
    gives to the next one.

    Example: secagg two-aggregators client --config client.toml --input x.npy
    """
    import asyncio
    import os
    from dataclasses import replace

    from secagg.cli.checks.preflight import print_checks
    from secagg.cli.checks.setup_checks import local_checks, require_start
    from secagg.cli.checks.setups import SharingSetup
    from secagg.cli.output import log_to_stderr
    from secagg.client.input_files import FileInput
    from secagg.config.two_aggregators import (
        SharingClientSettings,
        load_two_aggregator_settings,
    )
    from secagg.runtime.vector_files import load_vector, write_bytes, write_vector
    from secagg.two_aggregators.program import contribute_vector

    output = Output(as_json=as_json)
    loaded = load_two_aggregator_settings(
        SharingClientSettings, config, environment=os.environ, overrides=overrides or ()
    )
    outputs = {
        option: path
        for option, path in (("--output", sum_path), ("--receipt", receipt_path))
        if path is not None
    }
    setup = SharingSetup(
        config,
        loaded.settings,
        vector=vector,
        outputs=outputs,
        accepts_restored=accepts_restored(restored),
    )
    if show_settings:
        setup = replace(setup, describe_input=lambda: FileInput(vector).describe())
        print_checks(loaded.rows(), local_checks(setup), output)
        return
    settings = loaded.settings
    log_to_stderr(settings.client.log_level, settings.client.log_format)
    # Before a session is spent on it.
    require_start(setup, output)
    given = asyncio.run(
        contribute_vector(
            settings, load_vector(vector), accept_restored=setup.accepts_restored
        )
    )
    if sum_path is not None:
        write_vector(sum_path, given.values)
    if receipt_path is not None:
        write_bytes(receipt_path, given.receipt)
    _print_contribution(given, sum_path, output)


def _print_contribution(
    given: "SharedContribution", sum_path: Path | None, output: Output
) -> None:
    """Print what the sum holds, and what it costs this client."""
    from secagg.distributed_dp import error_text

    # No party signs that a vector is not in a sum.
    part = (
        "with this one"
        if given.is_included
        else "the leader does not list it as included; do not contribute it again"
    )
    error = error_text(given.standard_error)
    output.line(
        f"session {given.session_number}: {given.inputs} vectors, {part}; each entry "
        f"± {error}"
    )
    for line in (*given.privacy.lines(), given.privacy.assumes):
        output.line(line)
    output.line(f"for {given.privacy.privacy_unit}")
    output.result(
        {
            "session_number": given.session_number,
            "inputs": given.inputs,
            "standard_error": given.standard_error,
            "is_included": given.is_included,
            "output": None if sum_path is None else str(sum_path),
            "privacy": given.privacy.to_dict(),
        }
    )


def _run(  # noqa: PLR0913 - an aggregator, and what its flags say
    kind: "type[_Aggregator]",
    config: Path,
    overrides: list[str] | None,
    *,
    as_json: bool,
    show: bool,
    restored: bool,
) -> None:
    """Print what the tasks of an aggregator cost, and run it or stop there."""
    import asyncio
    import os

    from secagg.cli.checks.preflight import print_checks
    from secagg.cli.checks.setup_checks import local_checks, require_start
    from secagg.cli.checks.setups import PartySetup
    from secagg.cli.output import log_to_stderr
    from secagg.config.two_aggregators import (
        load_two_aggregator_settings,
        tasks_of_party,
    )
    from secagg.distributed_dp import TwoAggregatorReport
    from secagg.errors import SecAggError
    from secagg.server.service import ServiceManager
    from secagg.two_aggregators.program import WrittenSum, noise_of, run_parties

    output = Output(as_json=as_json, is_aside=not show)
    loaded = load_two_aggregator_settings(
        kind, config, environment=os.environ, overrides=overrides or ()
    )
    settings = loaded.settings
    setup = PartySetup(config, settings, accepts_restored=restored)
    for task in tasks_of_party(settings):
        report: TwoAggregatorReport = noise_of(task).report()
        output.line(f"task {task.id!r}, for {report.privacy_unit}:")
        for line in (*report.lines(), report.assumes):
            output.line(line)
    if show:
        print_checks(loaded.rows(), local_checks(setup), output)
        return
    log_to_stderr(settings.server.log_level, settings.server.log_format)
    # Before clients spend a session on a sum that could not be stored.
    require_start(setup, output)
    sums: list[dict[str, object]] = []

    def written(found: WrittenSum) -> None:
        path, number = str(found.path), found.session_number
        what = {"task": found.task, "session_number": number, "sum": path}
        sums.append(what | {"inputs": found.inputs})
        output.line(
            f"task {found.task!r}, session {number}: {found.inputs} vectors, {path}"
        )

    def failed(error: SecAggError) -> None:
        output.line(f"no sum: {error}")

    tasks = asyncio.run(
        run_parties(
            settings,
            listening=lambda address: output.line(f"listening on {address}"),
            notify=output.line,
            written=written,
            failed=failed,
            manager=ServiceManager.from_environment(os.environ),
            accept_restored=restored,
        )
    )
    output.line("stopped; start again to resume the tasks")
    output.result({"tasks": tasks, "sums": sums})
