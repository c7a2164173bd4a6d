"""`secagg client`: contributes one vector, and fetches the sum."""

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from secagg.cli.options import (
    ConfigOption,
    JSONOption,
    SetOption,
    ShowSettingsOption,
    accepts_restored,
    restored_option,
    warn_if_experimental,
)
from secagg.cli.output import Output
from secagg.runtime.files import SessionPath

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from secagg.cli.client_inputs import GivenInput, Source
    from secagg.client.client import Client
    from secagg.client.contribution import Contribution, Participation
    from secagg.client.service import CertificateRenewal
    from secagg.client.session_driver import ClientProgress
    from secagg.client.step_client import StepClient
    from secagg.config import ClientSettings
    from secagg.errors import SecAggError


# The largest number of sessions that a client can be set to take part in.
_WITHOUT_END = 1_000_000
_RENEW_BEFORE_DAYS = 30


def client(  # noqa: PLR0913 - one parameter per flag
    *,
    config: ConfigOption,
    vector: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="X.npy",
            help="The vector to contribute; {session} in it stands for the session's "
            "number.",
        ),
    ] = None,
    exec_command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="In place of --input: the program that makes the vector of each "
            "session. {payload} in it stands for what the session hands out, and one "
            "of {model}, {update} and {vector} for the file that it writes. No shell.",
        ),
    ] = None,
    exec_seconds: Annotated[
        float | None,
        typer.Option(
            "--exec-seconds",
            metavar="SECONDS",
            min=1,
            max=86_400,
            help="With --exec: end the program after this time; in any case when its "
            "vector is due.",
        ),
    ] = None,
    exec_env: Annotated[
        list[str] | None,
        typer.Option(
            "--exec-env",
            metavar="NAME",
            help="With --exec: a further variable that the program may see. May be "
            "given several times.",
        ),
    ] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(
            "--tasks",
            metavar="TASKS.toml",
            help="In place of --input: contribute to several tasks, each with a "
            "table of its own in this file: input or exec, output, payload_out, "
            "same_input_again and sessions.",
        ),
    ] = None,
    sum_path: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="SUM.npy",
            help="Where to write the released sum; {session} as in --input. Beside "
            "SUM.npy goes SUM.receipt.bin, for `secagg sessions verify`, and "
            "SUM.receipt-N.bin of each session N that gave no sum.",
        ),
    ] = None,
    payload_path: Annotated[
        Path | None,
        typer.Option(
            "--payload-out",
            metavar="FILE",
            help="Where to write what the session hands out, for example a model; "
            "{session} as in --input.",
        ),
    ] = None,
    same_input_again: Annotated[
        bool,
        typer.Option(
            "--same-input-again",
            help="Contribute one vector to every session of client.sessions.",
        ),
    ] = False,
    service: Annotated[
        bool,
        typer.Option(
            "--service",
            help="Run for good: contribute a vector to every session of the task, wait "
            "for missing inputs and for an unavailable aggregator, and end only "
            "when a person has to act or the task is over.",
        ),
    ] = False,
    renew_before: Annotated[
        int | None,
        typer.Option(
            "--renew-before",
            metavar="DAYS",
            min=1,
            max=398,
            help="With --renew-exec: when to run it, before the certificate ends; 30 "
            "days by default.",
        ),
    ] = None,
    renew_exec: Annotated[
        str | None,
        typer.Option(
            "--renew-exec",
            metavar="COMMAND",
            help="With --service: the program that replaces the certificate; it finds "
            "the paths in SECAGG_TLS_CERTIFICATE, SECAGG_TLS_KEY and "
            "SECAGG_TLS_CA. No shell.",
        ),
    ] = None,
    restored: Annotated[
        str | None,
        restored_option("Continue, this once, from a restored state."),
    ] = None,
    overrides: SetOption = None,
    show_settings: ShowSettingsOption = False,
    as_json: JSONOption = False,
) -> None:
    """Contribute one vector to a sum.

    The vector never leaves this machine as it is: it is clipped, gets a share of
    noise, and is masked. A client that was stopped resumes when it is started again
    with the same input. Once the task is over, it prints where its last sum lies, and
    fails if it was given another input since. With client.sessions above one, every
    session takes a file of its own, such as x-{session}.npy.
    With --exec a program makes the vectors: it runs after this client has joined, and
    zeros take the place of a vector that it does not make in time.

    Example: secagg client --config client.toml --input x.npy --output sum.npy
    """
    import asyncio
    import os
    from dataclasses import replace
    from functools import partial

    from secagg.cli.checks.preflight import print_checks
    from secagg.cli.checks.setup_checks import local_checks, require_start
    from secagg.cli.checks.setups import ClientSetup
    from secagg.cli.client_inputs import (
        GivenInput,
        check_one_source,
        read_tasks,
        run_all,
        settings_of_inputs,
        source_of,
    )
    from secagg.cli.output import log_to_stderr
    from secagg.client.input_files import check_reuse
    from secagg.client.program import client_of, client_policy, shared_state_of
    from secagg.config import load_client_settings

    _check_renewal(renew_before, renew_exec, service=service)
    if renew_exec is not None and tasks is not None:
        raise typer.BadParameter(
            "--renew-exec goes with one task: with --tasks let a "
            "timer renew the certificate"
        )
    given = GivenInput(vector, exec_command, sum_path, payload_path, same_input_again)
    has_program_options = exec_seconds is not None or bool(exec_env)
    check_one_source(given, tasks, program_options=has_program_options)
    output = Output(as_json=as_json, is_aside=not show_settings)
    by_task = {} if tasks is None else read_tasks(tasks)
    changed = [*(overrides or ()), *(f"client.task={name}" for name in by_task)]
    loaded = load_client_settings(config, environment=os.environ, overrides=changed)
    settings = loaded.settings
    accept_restored = accepts_restored(restored)
    jobs, setups = [], []
    for own, each in settings_of_inputs(settings, given, by_task):
        source = source_of(
            own, each, exec_seconds=exec_seconds, exec_env=exec_env or ()
        )
        if each.vector is not None:
            check_reuse(
                sessions=_WITHOUT_END if service else own.client.sessions,
                source=each.vector,
                targets=each.targets,
                same_input_again=each.same_input_again,
            )
        setups.append(
            ClientSetup(
                config, own, vector=each.vector, outputs=each.targets, task_file=tasks
            )
        )
        jobs.append((own, source, _Files.of_input(each)))
    setups[0] = replace(setups[0], beside=setups[1:])
    if show_settings:
        shown = [
            replace(setup, describe_input=source.describe)
            for setup, (_, source, _) in zip(setups, jobs, strict=True)
        ]
        findings = [one for setup in shown for one in local_checks(setup)]
        print_checks(loaded.rows(), findings, output)
        return
    log_to_stderr(settings.client.log_level, settings.client.log_format)
    for profile in client_policy(settings).profiles:
        warn_if_experimental(profile, output)
    for setup in setups:
        require_start(replace(setup, accepts_restored=accept_restored), output)
    renewal = _renewal(renew_before or _RENEW_BEFORE_DAYS, renew_exec)

    def give(
        number: int, told: Output, shared: "StepClient | None" = None
    ) -> "Coroutine[Any, Any, dict[str, object]]":
        own, source, files = jobs[number]
        client = partial(
            client_of,
            own,
            shared=shared,
            fetch_sum=files.sum_path is not None,
            accept_restored=accept_restored,
            is_service=service,
        )
        return _contribute_to_task(
            own, source, files, told, client, service=service, renewal=renewal
        )

    if tasks is None:
        output.result(asyncio.run(give(0, output)))
        return
    with shared_state_of(
        settings, by_task, accept_restored=accept_restored
    ) as shared_state:
        one = partial(give, shared=shared_state)
        output.result({"tasks": asyncio.run(run_all(list(by_task), one, output))})


def _check_renewal(
    renew_before: int | None, renew_exec: str | None, *, service: bool
) -> None:
    """Refuse options of renewal that do not go together."""
    if renew_exec is not None and not service:
        raise typer.BadParameter("--renew-exec goes with --service")
    if renew_before is not None and renew_exec is None:
        raise typer.BadParameter("--renew-before goes with --renew-exec")


@dataclass(frozen=True, slots=True)
class _Files:
    """Files that are written in each session.

    Attributes:
        sum_path: Where sums go; None for a client that wants none.
        payload_path: Where payloads go, likewise.
        of_aborted: Receipts of sessions that gave no sum, by their numbers.
    """

    sum_path: SessionPath | None
    payload_path: SessionPath | None
    of_aborted: dict[int, Path] = field(default_factory=dict)

    @classmethod
    def of_input(cls, given: "GivenInput") -> Self:
        """Return the files of one task."""
        sums, payloads = given.sum_path, given.payload_path
        return cls(
            sum_path=None if sums is None else SessionPath(sums),
            payload_path=None if payloads is None else SessionPath(payloads),
        )

    def receipt(self, session_number: int) -> Path | None:
        """Return the path of the receipt of one session: beside its sum.

        Named after the sum, so that clients of one directory keep their own.
        """
        if self.sum_path is None:
            return None
        return self.sum_path.of(session_number).with_suffix(".receipt.bin")

    def aborted(self, session_number: int) -> Path | None:
        """Return the path of the receipt of a session without a sum.

        Its name has the session's number, since each session has its own receipt.
        """
        if self.sum_path is None or self.sum_path.is_pattern:
            return self.receipt(session_number)
        suffix = f".receipt-{session_number}.bin"
        return self.sum_path.path.with_suffix(suffix)

    def of(self, session_number: int) -> dict[str, str | None]:
        """Return the files of one session, by their content."""
        return {
            name: None if path is None else str(path)
            for name, path in (
                ("output", self.sum_path and self.sum_path.of(session_number)),
                ("audit_receipt", self.receipt(session_number)),
                ("payload", self.payload_path and self.payload_path.of(session_number)),
            )
        }


def _result_values(
    contributions: "list[Contribution]",
    last: "Participation | None",
    files: _Files,
    output: Output,
) -> dict[str, object]:
    """Return what the command reports of all sessions, for programs."""
    return {
        "aborted": [
            {"session_number": number, "audit_receipt": str(path)}
            for number, path in files.of_aborted.items()
        ],
        "task_over": last is not None,
        "last_part": None if last is None else _print_last_sum(last, files, output),
        "sessions": [
            {
                "session_number": each.session_number,
                "inputs": each.inputs,
                "standard_error": each.standard_error,
                "privacy": None if each.privacy is None else each.privacy.to_dict(),
                "grounds": each.grounds,
                "shortened_by": each.shortened_by,
                "replaced": each.replaced,
                "sessions_left": each.sessions_left,
                **files.of(each.session_number),
            }
            for each in contributions
        ],
    }


def _print_last_sum(
    last: "Participation", files: _Files, output: Output
) -> dict[str, object]:
    """Print the last sum of a client whose task is over or unavailable."""
    path = files.of(last.session_number)["output"]
    if path is not None and not Path(path).exists():
        output.line(f"its sum was not written to {path} while it could be fetched")
        path = None
    where = "" if path is None else f"; it lies in {path}"
    output.line(
        f"the last sum of the task with a vector of this client is that of session "
        f"{last.session_number} and adds up {last.inputs} inputs{where}"
    )
    return {
        "session_number": last.session_number,
        "inputs": last.inputs,
        "output": path,
    }


async def _contribute_to_task(  # noqa: PLR0913 - what is given, and where to
    settings: "ClientSettings",
    source: "Source",
    files: _Files,
    output: Output,
    client: "Callable[..., Client]",
    *,
    service: bool,
    renewal: "CertificateRenewal | None",
) -> dict[str, object]:
    """Contribute to one task; return what the command reports, for programs.

    `client` makes the client, told of its progress.
    """
    from secagg.cli.client_inputs import stop_source

    try:
        if service:
            count = await _serve(source, files, output, client, renewal=renewal)
            return {"sessions_given": count}
        contributions, last = await _contribute(settings, source, files, output, client)
        return _result_values(contributions, last, files, output)
    finally:
        stop_source(source)


@asynccontextmanager
async def _open_client(
    source: "Source", output: Output, client: "Callable[..., Client]"
) -> "AsyncIterator[tuple[Client, list[int]]]":
    """Open a client that prints its progress; yields the sessions without a sum, too.

    Their numbers are those whose receipts are not written yet.
    """
    from secagg.client.session_driver import ClientPhase
    from secagg.runtime.garbage import freeze_loaded

    aborted: list[int] = []

    def show(progress: "ClientProgress") -> None:
        if progress.phase is ClientPhase.ABORTED:
            aborted.append(progress.session_number)
        output.line(_line_of(progress))

    async with client(on_progress=show) as one:
        freeze_loaded()
        if not await one.is_in_session():
            source.ready()
        yield one, aborted


async def _contribute(
    settings: "ClientSettings",
    source: "Source",
    files: _Files,
    output: Output,
    client: "Callable[..., Client]",
) -> "tuple[list[Contribution], Participation | None]":
    """Return the contributions, and the last participation if the task is over."""
    from secagg.cli.client_inputs import remove_vector
    from secagg.errors import ErrorCode, ServiceError

    contributions: list[Contribution] = []
    async with _open_client(source, output, client) as (one, aborted):
        while len(contributions) < settings.client.sessions:
            try:
                given = await one.contribute(source.vector, accept=source.check)
            except ServiceError as error:
                last = await one.last_part()
                if error.code is ErrorCode.TASK_OVER and last is not None:
                    output.line("the task is over; no further vector was contributed")
                    if source.was_assigned(settings.client.task, last.session_number):
                        return contributions, last
                    output.line(f"{source} is not what that session was given")
                if last is not None:
                    _print_last_sum(last, files, output)
                raise
            finally:
                await _write_aborted(one, aborted, files, output)
            remove_vector(source)
            contributions.append(given)
            _describe(given, output)
            _write_given(given, files, output)
    return contributions, None


async def _serve(
    source: "Source",
    files: _Files,
    output: Output,
    client: "Callable[..., Client]",
    *,
    renewal: "CertificateRenewal | None",
) -> int:
    """Contribute to every session of the task; return the number of contributions."""
    from contextlib import nullcontext

    from secagg.cli.client_inputs import remove_vector
    from secagg.client.service import ClientService
    from secagg.errors import ErrorCode, ServiceError
    from secagg.runtime.clock import SystemClock, background

    count = 0

    def report(given: "Contribution") -> None:
        nonlocal count
        count += 1
        remove_vector(source)
        _describe(given, output)
        _write_given(given, files, output)

    async with _open_client(source, output, client) as (one, aborted):

        async def fail(_: "SecAggError") -> None:
            await _write_aborted(one, aborted, files, output)

        service = ClientService(one, source.vector, source.check, report, fail)
        renewing = (
            nullcontext()
            if renewal is None
            else background(renewal.poll(lambda: one.certificate, SystemClock()))
        )
        async with renewing:
            try:
                await service.run()
            except ServiceError as error:
                # The end of a task to which this client has contributed is no failure.
                is_over = error.code is ErrorCode.TASK_OVER
                if not is_over or await one.last_part() is None:
                    raise
                output.line(f"the task is over; sessions given: {count}")
    return count


def _renewal(days: int, command: str | None) -> "CertificateRenewal | None":
    """Return the renewal of certificates, if an option names its program."""
    import shlex
    from datetime import timedelta
    from functools import partial

    from secagg.client.service import CertificateRenewal, run_command

    if command is None:
        return None
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise typer.BadParameter(f"--renew-exec: {error}") from None
    if not words:
        raise typer.BadParameter("--renew-exec names no program")
    return CertificateRenewal(timedelta(days=days), partial(run_command, words))


def _write_given(given: "Contribution", files: _Files, output: Output) -> None:
    """Write sum and receipt of a session, and print where each file lies."""
    from secagg.runtime.vector_files import write_bytes, write_vector

    if files.sum_path is not None and given.values is not None:
        write_vector(files.sum_path.of(given.session_number), given.values)
    receipt_path = files.receipt(given.session_number)
    if receipt_path is not None:
        write_bytes(receipt_path, given.audit)
    for path in files.of(given.session_number).values():
        if path is not None:
            output.line(f"wrote {path}")


def _line_of(progress: "ClientProgress") -> str:
    """Return one line about a client's progress."""
    session = f"session {progress.session_number}: " if progress.session_number else ""
    reason = f": {progress.reason}" if progress.reason else ""
    size = (
        f" ({progress.sent_bytes:,} of {progress.total_bytes:,} bytes)"
        if progress.total_bytes
        else ""
    )
    joined = (
        f", {progress.joined} joined, {progress.needed} needed"
        if progress.needed
        else ""
    )
    return f"{session}{progress.phase}{joined}{size}{reason}"


async def _write_aborted(
    one: "Client", numbers: list[int], files: _Files, output: Output
) -> None:
    """Write the receipts of sessions that gave no sum; delete their numbers."""
    from secagg.runtime.vector_files import write_bytes

    while numbers:
        number = numbers.pop(0)
        audit, path = await one.receipt(number), files.aborted(number)
        if audit is not None and path is not None:
            write_bytes(path, audit)
            files.of_aborted[number] = path
            output.line(f"wrote {path}")


def _error_of(given: "Contribution") -> str:
    """Return the error of a contribution's sum, for a line."""
    from secagg.distributed_dp import error_text

    if given.privacy is None:
        return ""
    return f", each entry ± {error_text(given.standard_error)} at most"


def _describe(given: "Contribution", output: Output) -> None:
    """Print what the sum holds, and what it has cost this client."""
    output.line(f"the sum adds up {given.inputs} inputs{_error_of(given)}")
    if given.replaced is not None:
        output.line(f"zeros were given: {given.replaced}", style="bold")
    if given.shortened_by is not None and given.shortened_by > 1.0:
        output.line(
            f"the vector was longer than the task allows and was shortened by a factor "
            f"of {given.shortened_by:.4g}",
            style="bold",
        )
    if given.privacy is not None:
        stated = given.privacy.server
        output.line(
            f"the task costs this client {stated.figures()} against the server "
            f"({given.grounds}, {stated.accountant}), for "
            f"{given.privacy.privacy_unit}; sessions left in its budget: "
            f"{given.sessions_left}"
        )
        output.line(given.privacy.lines()[0])
        output.line(given.privacy.assumes)
