"""`secagg two-aggregators`: sums between two aggregators, in three parts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from secagg.cli.options import (
    ConfigOption,
    JSONOption,
    SetOption,
    ShowSettingsOption,
)
from secagg.cli.output import Output

if TYPE_CHECKING:
    from secagg.config.two_aggregators import HelperSettings, LeaderSettings
    from secagg.server.rpc.grpc_server import GrpcServer
    from secagg.two_aggregators.client import SharedContribution


_Aggregator = TypeVar("_Aggregator", "HelperSettings", "LeaderSettings")

app = typer.Typer(
    help="Sums between two aggregators under different people: additive shares in the "
    "place of masks, and noise from both. Not reviewed by others; see "
    "docs/two-aggregators.md.",
    no_args_is_help=True,
)

_RestoredOption = Annotated[
    bool,
    typer.Option(
        "--restored",
        help="Accept, this once, that the state was put back: sessions open in it end.",
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
    SIGTERM stops it; it goes on where it stood when it is started again.

    Example: secagg two-aggregators helper --config helper.toml
    """
    import asyncio

    from secagg.config.two_aggregators import HelperSettings

    output = Output(as_json=as_json, is_aside=not show_settings)
    settings = _settings(
        HelperSettings, config, overrides, output, show=show_settings, restored=restored
    )
    if settings is None:
        return
    asyncio.run(_help(settings, output, accept_restored=restored))
    output.line("stopped; start again to go on with the task")
    output.result({"task": settings.task.id})


async def _help(
    settings: "HelperSettings", output: Output, *, accept_restored: bool
) -> None:
    from secagg.runtime.garbage import keep_what_is_loaded
    from secagg.server.rpc.grpc_server import run_until_signalled
    from secagg.two_aggregators.program import helping

    async with helping(settings, accept_restored=accept_restored) as helper:
        keep_what_is_loaded()
        _say_serving(helper.server, helper.receipt_key, output)
        await run_until_signalled(helper.server, _for_good(), drain=_nothing)


def _say_serving(server: "GrpcServer", receipt_key: bytes, output: Output) -> None:
    from secagg.pki.key_files import key_text

    output.line(f"signs receipts as {key_text(receipt_key)}")
    output.line(f"listening on {server.address}")


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
    task has released all of them it goes on serving the last one to its clients.
    SIGTERM stops it; it goes on where it stood when it is started again.

    Example: secagg two-aggregators leader --config leader.toml
    """
    import asyncio

    from secagg.config.two_aggregators import LeaderSettings

    output = Output(as_json=as_json, is_aside=not show_settings)
    settings = _settings(
        LeaderSettings, config, overrides, output, show=show_settings, restored=restored
    )
    if settings is None:
        return
    sums = asyncio.run(_lead(settings, output, accept_restored=restored))
    output.line("stopped; start again to go on with the task")
    output.result({"task": settings.task.id, "sums": sums})


async def _lead(
    settings: "LeaderSettings", output: Output, *, accept_restored: bool
) -> list[dict[str, object]]:
    from secagg.errors import SecAggError
    from secagg.runtime.garbage import keep_what_is_loaded
    from secagg.server.rpc.grpc_server import run_until_signalled
    from secagg.two_aggregators.program import WrittenSum, leading

    sums: list[dict[str, object]] = []

    def written(found: WrittenSum) -> None:
        path = str(found.path)
        number, inputs = found.session_number, found.inputs
        sums.append({"session_number": number, "inputs": inputs, "sum": path})
        output.line(f"session {number}: {inputs} vectors, {path}")

    def failed(error: SecAggError) -> None:
        output.line(f"no sum: {error}")

    async def work() -> None:
        await lead.release(written=written, failed=failed)
        output.line("there will be no more sums; clients can fetch the last")
        await _for_good()

    async with leading(settings, accept_restored=accept_restored) as lead:
        keep_what_is_loaded()
        _say_serving(lead.server, lead.receipt_key, output)
        await run_until_signalled(lead.server, work(), drain=_nothing)
    return sums


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
        typer.Option(
            "--restored",
            metavar="SENTENCE",
            help="Accept, this once, that the state was put back: what was spent "
            "since is not known. The sentence: I accept that this client may answer "
            "twice",
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

    from secagg.cli.checks.preflight import require_all
    from secagg.cli.checks.setup_checks import (
        SharingSetup,
        shown_findings,
        start_findings,
    )
    from secagg.cli.client import accepts_restored
    from secagg.cli.logs import log_to_stderr
    from secagg.cli.settings_view import show_checked
    from secagg.client.input_files import FileInput
    from secagg.config.two_aggregators import (
        SharingClientSettings,
        load_two_server_settings,
    )
    from secagg.runtime.vector_files import load_vector, write_bytes, write_vector
    from secagg.two_aggregators.program import give_vector

    output = Output(as_json=as_json)
    loaded = load_two_server_settings(
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
        show_checked(loaded.rows(), shown_findings(setup), output)
        output.result({key: value for key, value, _ in loaded.rows()})
        return
    settings = loaded.settings
    log_to_stderr(settings.client.log_level, settings.client.log_format)
    # Before a session is spent on it.
    for complaint in require_all(start_findings(setup)):
        output.line(complaint, style="bold red")
    given = asyncio.run(
        give_vector(
            settings, load_vector(vector), accept_restored=setup.accepts_restored
        )
    )
    if sum_path is not None:
        write_vector(sum_path, given.values)
    if receipt_path is not None:
        write_bytes(receipt_path, given.receipt)
    _say_given(given, sum_path, output)


def _say_given(
    given: "SharedContribution", sum_path: Path | None, output: Output
) -> None:
    from secagg.distributed_dp import error_text

    # That a vector is not in a sum is signed by nobody.
    part = (
        "with this one"
        if given.is_included
        else "the leader shows no place of this one in it; do not give it again"
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


def _settings(  # noqa: PLR0913 - an aggregator, and what its flags say
    kind: "type[_Aggregator]",
    config: Path,
    overrides: list[str] | None,
    output: Output,
    *,
    show: bool,
    restored: bool,
) -> "_Aggregator | None":
    """Load an aggregator's settings and say what its task costs; None to stop there."""
    import os

    from secagg.cli.checks.preflight import require_all
    from secagg.cli.checks.setup_checks import (
        PartySetup,
        shown_findings,
        start_findings,
    )
    from secagg.cli.logs import log_to_stderr
    from secagg.cli.settings_view import show_checked
    from secagg.config.two_aggregators import load_two_server_settings
    from secagg.distributed_dp import TwoAggregatorReport
    from secagg.two_aggregators.program import noise_of

    loaded = load_two_server_settings(
        kind, config, environment=os.environ, overrides=overrides or ()
    )
    settings = loaded.settings
    setup = PartySetup(config, settings, accepts_restored=restored)
    report: TwoAggregatorReport = noise_of(settings.task).report()
    for line in (*report.lines(), report.assumes):
        output.line(line)
    output.line(f"for {report.privacy_unit}")
    if show:
        show_checked(loaded.rows(), shown_findings(setup), output)
        output.result({key: value for key, value, _ in loaded.rows()})
        return None
    log_to_stderr(settings.aggregator.log_level, settings.aggregator.log_format)
    # Before clients spend a session on a sum that nobody could keep.
    for complaint in require_all(start_findings(setup)):
        output.line(complaint, style="bold red")
    return settings


async def _for_good() -> None:
    """Answer calls, and nothing else, until somebody stops it."""
    import asyncio

    await asyncio.Event().wait()


async def _nothing() -> None:
    """Whatever is open goes on after the next start: it is in the book."""
