"""`secagg client`: contribute one vector, and get the sum."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secagg.cli.options import (
    ConfigOption,
    JSONOption,
    SetOption,
    ShowSettingsOption,
    warn_if_experimental,
)
from secagg.cli.output import Output
from secagg.client.session_paths import SessionPath

if TYPE_CHECKING:
    from secagg.client.client import Client
    from secagg.client.contribution import Contribution
    from secagg.client.input_files import FileInput
    from secagg.client.participation import Participation
    from secagg.client.service import CertificateRenewal
    from secagg.client.session_driver import ClientProgress
    from secagg.config import ClientSettings
    from secagg.errors import SecAggError


# As many sessions as a client can be set to take part in.
_WITHOUT_END = 1_000_000
_RENEW_BEFORE_DAYS = 30

RESTORED_ACKNOWLEDGEMENT = "I accept that this client may answer twice"


def client(  # noqa: PLR0913 - one parameter per flag
    *,
    config: ConfigOption,
    vector: Annotated[
        Path,
        typer.Option(
            "--input",
            metavar="X.npy",
            help="The vector to contribute; {session} in it stands for the session's "
            "number.",
        ),
    ],
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
            help="Give one vector to every session of client.sessions.",
        ),
    ] = False,
    service: Annotated[
        bool,
        typer.Option(
            "--service",
            help="Run for good: give a vector to every session of the task, wait for "
            "inputs that are not there yet and for an aggregator that cannot be "
            "reached, and end only when a person has to act or the task is over.",
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
            help="With --service: what puts a new certificate in the place of the old "
            "one; finds the paths in SECAGG_TLS_CERTIFICATE, SECAGG_TLS_KEY and "
            "SECAGG_TLS_CA. No shell.",
        ),
    ] = None,
    restored: Annotated[
        str | None,
        typer.Option(
            "--restored",
            metavar="SENTENCE",
            help="Go on, this once, with a state that was put back. The sentence: "
            "I accept that this client may answer twice",
        ),
    ] = None,
    overrides: SetOption = None,
    show_settings: ShowSettingsOption = False,
    as_json: JSONOption = False,
) -> None:
    """Contribute one vector to a sum.

    The vector never leaves this machine as it is: it is clipped, gets a share of
    noise, and is masked. A client that was stopped goes on where it stood when it is
    started again with the same input; once the task is over, it says where its last
    sum lies, and fails if it was handed another input since. With client.sessions
    above one, every session takes a file of its own, such as x-{session}.npy.

    Example: secagg client --config client.toml --input x.npy --output sum.npy
    """
    import asyncio
    import os
    from dataclasses import replace

    from secagg.cli.checks.preflight import require_all, show_checked
    from secagg.cli.checks.setup_checks import shown_findings, start_findings
    from secagg.cli.checks.setups import ClientSetup
    from secagg.cli.output import log_to_stderr
    from secagg.client.input_files import FileInput, check_reuse
    from secagg.client.program import client_policy
    from secagg.config import load_client_settings

    if renew_exec is not None and not service:
        raise typer.BadParameter("--renew-exec goes with --service")
    if renew_before is not None and renew_exec is None:
        raise typer.BadParameter("--renew-before goes with --renew-exec")
    output = Output(as_json=as_json, is_aside=not show_settings)
    loaded = load_client_settings(
        config, environment=os.environ, overrides=overrides or ()
    )
    settings = loaded.settings
    targets = {
        option: path
        for option, path in (("--output", sum_path), ("--payload-out", payload_path))
        if path is not None
    }
    check_reuse(
        sessions=_WITHOUT_END if service else settings.client.sessions,
        source=vector,
        targets=targets,
        same_input_again=same_input_again,
    )
    setup = ClientSetup(config, settings, vector=vector, outputs=targets)
    if show_settings:
        setup = replace(setup, describe_input=lambda: FileInput(vector).describe())
        show_checked(loaded.rows(), shown_findings(setup), output)
        output.result({key: value for key, value, _ in loaded.rows()})
        return
    accept_restored = accepts_restored(restored)
    log_to_stderr(settings.client.log_level, settings.client.log_format)
    for profile in client_policy(settings).profiles:
        warn_if_experimental(profile, output)
    source = FileInput(
        vector, payload_path=payload_path, state_dir=settings.client.state_dir
    )
    setup = replace(setup, accepts_restored=accept_restored)
    for complaint in require_all(start_findings(setup)):
        output.line(complaint, style="bold red")
    files = _Files(
        sum_path=None if sum_path is None else SessionPath(sum_path),
        payload_path=None if payload_path is None else SessionPath(payload_path),
    )
    if service:
        renewal = _renewal(renew_before or _RENEW_BEFORE_DAYS, renew_exec)
        given = asyncio.run(
            _serve(
                settings,
                source,
                files,
                output,
                accept_restored=accept_restored,
                renewal=renewal,
            )
        )
        output.result({"sessions_given": given})
        return
    contributions, last = asyncio.run(
        _contribute(settings, source, files, output, accept_restored=accept_restored)
    )
    output.result(_payload(contributions, last, files, output))


@dataclass(frozen=True, slots=True)
class _Files:
    """What is written in each session.

    Attributes:
        sum_path: Where sums go; None for whoever wants none.
        payload_path: Where payloads go, likewise.
        of_aborted: Receipts of sessions that gave no sum, by their numbers.
    """

    sum_path: SessionPath | None
    payload_path: SessionPath | None
    of_aborted: dict[int, Path] = field(default_factory=dict)

    def receipt(self, session_number: int) -> Path | None:
        """Return where the receipt of one session goes: beside its sum.

        Named after the sum, so that clients of one directory keep their own.
        """
        if self.sum_path is None:
            return None
        return self.sum_path.of(session_number).with_suffix(".receipt.bin")

    def aborted(self, session_number: int) -> Path | None:
        """Return where the receipt of a session without a sum goes.

        It has the session's number, so that it is no other session's receipt.
        """
        if self.sum_path is None or self.sum_path.is_pattern:
            return self.receipt(session_number)
        suffix = f".receipt-{session_number}.bin"
        return self.sum_path.path.with_suffix(suffix)

    def of(self, session_number: int) -> dict[str, str | None]:
        """Return the files of one session, by what is in them."""
        return {
            name: None if path is None else str(path)
            for name, path in (
                ("output", self.sum_path and self.sum_path.of(session_number)),
                ("audit_receipt", self.receipt(session_number)),
                ("payload", self.payload_path and self.payload_path.of(session_number)),
            )
        }


def accepts_restored(sentence: str | None) -> bool:
    """Say whether somebody accepts a state that was put back, in words."""
    from secagg.errors import ErrorCode, LocalProtocolError

    if sentence is not None and sentence != RESTORED_ACKNOWLEDGEMENT:
        raise ErrorCode.BAD_SETTINGS.error(
            "--restored takes one sentence, and this is another",
            kind=LocalProtocolError,
            fix=f'Write --restored "{RESTORED_ACKNOWLEDGEMENT}" if it is true.',
        )
    return sentence is not None


def _payload(
    contributions: "list[Contribution]",
    last: "Participation | None",
    files: _Files,
    output: Output,
) -> dict[str, object]:
    """Return what the command says of all sessions, for programs."""
    return {
        "aborted": [
            {"session_number": number, "audit_receipt": str(path)}
            for number, path in files.of_aborted.items()
        ],
        "task_over": last is not None,
        "last_part": None if last is None else _shown(last, files, output),
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


def _shown(last: "Participation", files: _Files, output: Output) -> dict[str, object]:
    """Say what a client has to show for a task that is over, or out of reach."""
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


async def _contribute(
    settings: "ClientSettings",
    source: "FileInput",
    files: _Files,
    output: Output,
    *,
    accept_restored: bool,
) -> "tuple[list[Contribution], Participation | None]":
    """Return what was given, and the client's last part if the task is over."""
    from secagg.client.program import client_of
    from secagg.client.session_driver import ClientPhase
    from secagg.errors import ErrorCode, ServiceError
    from secagg.runtime.garbage import keep_what_is_loaded

    aborted: list[int] = []

    def show(progress: "ClientProgress") -> None:
        if progress.phase is ClientPhase.ABORTED:
            aborted.append(progress.session_number)
        output.line(_line_of(progress))

    contributions: list[Contribution] = []
    async with client_of(
        settings,
        fetch_sum=files.sum_path is not None,
        accept_restored=accept_restored,
        on_progress=show,
    ) as one:
        keep_what_is_loaded()
        if not await one.is_in_session():
            source.ready()
        while len(contributions) < settings.client.sessions:
            try:
                given = await one.contribute(source.vector, accept=source.check)
            except ServiceError as error:
                last = await one.last_part()
                if error.code is ErrorCode.TASK_OVER and last is not None:
                    output.line("the task is over; no further vector was given")
                    if source.was_given(settings.client.task, last.session_number):
                        return contributions, last
                    output.line(f"{source} is not what that session was given")
                if last is not None:
                    _shown(last, files, output)
                raise
            finally:
                await _write_aborted(one, aborted, files, output)
            contributions.append(given)
            _describe(given, output)
            _write_given(given, files, output)
    return contributions, None


async def _serve(  # noqa: PLR0913 - what is given, and where to
    settings: "ClientSettings",
    source: "FileInput",
    files: _Files,
    output: Output,
    *,
    accept_restored: bool,
    renewal: "CertificateRenewal | None",
) -> int:
    """Give to every session of the task; return how many were given."""
    import asyncio

    from secagg.client.program import client_of
    from secagg.client.service import ClientService
    from secagg.client.session_driver import ClientPhase
    from secagg.errors import ErrorCode, ServiceError
    from secagg.runtime.clock import SystemClock
    from secagg.runtime.garbage import keep_what_is_loaded

    aborted: list[int] = []
    count = 0

    def show(progress: "ClientProgress") -> None:
        if progress.phase is ClientPhase.ABORTED:
            aborted.append(progress.session_number)
        output.line(_line_of(progress))

    def take(given: "Contribution") -> None:
        nonlocal count
        count += 1
        _describe(given, output)
        _write_given(given, files, output)

    async with client_of(
        settings,
        fetch_sum=files.sum_path is not None,
        accept_restored=accept_restored,
        is_service=True,
        on_progress=show,
    ) as one:
        keep_what_is_loaded()
        if not await one.is_in_session():
            source.ready()

        async def fail(_: "SecAggError") -> None:
            await _write_aborted(one, aborted, files, output)

        service = ClientService(one, source.vector, source.check, take, fail)
        renewing = (
            None
            if renewal is None
            else asyncio.create_task(
                renewal.keep(lambda: one.certificate, SystemClock())
            )
        )
        try:
            await service.run()
        except ServiceError as error:
            # The end of a task in which this client has given is no failure.
            if error.code is not ErrorCode.TASK_OVER or await one.last_part() is None:
                raise
            output.line(f"the task is over; sessions given: {count}")
        finally:
            if renewing is not None:
                renewing.cancel()
                await asyncio.wait({renewing})
    return count


def _renewal(days: int, command: str | None) -> "CertificateRenewal | None":
    """Return what has certificates fetched, if somebody said how."""
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
    """Write sum and receipt of a session, and say where everything lies."""
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
    """Write the receipts of sessions that gave no sum; forget their numbers."""
    from secagg.runtime.vector_files import write_bytes

    while numbers:
        number = numbers.pop(0)
        audit, path = await one.receipt(number), files.aborted(number)
        if audit is not None and path is not None:
            write_bytes(path, audit)
            files.of_aborted[number] = path
            output.line(f"wrote {path}")


def _error_of(given: "Contribution") -> str:
    from secagg.distributed_dp import error_text

    if given.privacy is None:
        return ""
    return f", each entry ± {error_text(given.standard_error)} at most"


def _describe(given: "Contribution", output: Output) -> None:
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
