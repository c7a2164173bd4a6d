"""`secagg conformance`: tests another implementation of the protocol."""

from pathlib import Path
from typing import Annotated

import typer

from secagg.cli.options import JSONOption

app = typer.Typer(
    help="Test another implementation of the protocol.", no_args_is_help=True
)


@app.callback()
def _group() -> None:
    """Test another implementation of the protocol."""


@app.command()
def drive(  # noqa: PLR0913 - every option of the verb
    *,
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND...",
            help="The program under test, with its arguments.",
            show_default=False,
        ),
    ],
    profile: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=2,
            help="Cases of this profile only; give it again for more.",
            show_default="those that the program claims",
        ),
    ] = None,
    role: Annotated[
        str,
        typer.Option(help="What the program is: client, or server (experimental)."),
    ] = "client",
    only: Annotated[str, typer.Option(help="Cases whose names match.")] = "*",
    junit: Annotated[
        Path | None, typer.Option(help="Write the results as JUnit XML.")
    ] = None,
    known_failing: Annotated[
        Path | None,
        typer.Option(help="File of cases that must fail, one a line."),
    ] = None,
    transcript: Annotated[
        Path | None, typer.Option(help="Write all messages, a file for each case.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=600.0, help="Seconds that an answer may take.")
    ] = 10.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the keys and noise that the kit draws.")
    ] = 1,
    as_json: JSONOption = False,
) -> None:
    """Drive another implementation through sessions, honest and not.

    The kit plays the aggregator and all other clients. The program reads one JSON
    object a line and answers one line; docs/write-a-client.md says what. It is run as
    you, without a sandbox.

    Example: secagg conformance drive --profile 1 -- node build/conformance.js
    """
    import tempfile
    from dataclasses import replace
    from hashlib import sha256

    from secagg.cli.failures import EXIT_OK, exit_code_of
    from secagg.cli.output import Output
    from secagg.conformance import kit, report
    from secagg.conformance.program import Program, ProgramFailedError
    from secagg.errors import ErrorCode

    output = Output(as_json=as_json)
    if role not in {"client", "server"}:
        raise typer.BadParameter("must be client or server", param_hint="--role")
    known = _expected_failures(known_failing)
    verdicts: list[kit.CaseVerdict] = []
    with tempfile.TemporaryDirectory(prefix="secagg-kit-") as home:
        program = Program(command, timeout=timeout, state=Path(home))
        try:
            try:
                abilities = kit.hello(program)
            except ProgramFailedError as error:
                raise ErrorCode.NOT_CONFORMING.error(
                    f"the program under test does not say hello: {error}",
                    fix="Run the command by hand, and answer the line hello as "
                    "docs/write-a-client.md says.",
                ) from None
            chosen = kit.chosen(profile or sorted(abilities.profiles), only, role=role)
            if not chosen:
                raise ErrorCode.BAD_SETTINGS.error(
                    f"no case matches {only!r} in these profiles",
                    fix="Run it without --only to see the names of all cases.",
                )
            for case in chosen:
                verdict = report.with_known(
                    kit.play(
                        case, program, abilities, seed=sha256(b"%d" % seed).digest()
                    ),
                    known,
                )
                verdicts.append(replace(verdict, lines=()))
                why = f": {verdict.why}" if verdict.why else ""
                output.line(
                    f"{verdict.state:<8} {case.rules[0]:<8} {case.id}{why}",
                    style="bold red" if verdict.is_bad else None,
                )
                if transcript is not None:
                    errors = program.read_errors()
                    report.write_transcript(transcript, verdict, errors)
        finally:
            program.end()
    found = report.certificate(abilities, verdicts, role=role, seed=seed)
    if junit is not None:
        junit.write_text(report.junit(verdicts), encoding="utf-8")
    output.line()
    for line in report.certificate_text(found):
        output.line(line)
    code = EXIT_OK
    # A program that claims nothing that a case is about has not passed.
    if any(verdict.is_bad for verdict in verdicts) or not found["counts"].get(
        kit.State.PASSED
    ):
        code = exit_code_of(ErrorCode.NOT_CONFORMING)
    output.result(
        {
            "ok": code == EXIT_OK,
            "exit_code": code,
            "certificate": found,
            "cases": [
                {
                    "id": verdict.case.id,
                    "rules": list(verdict.case.rules),
                    "state": verdict.state,
                    "why": verdict.why,
                    "seconds": round(verdict.seconds, 3),
                }
                for verdict in verdicts
            ],
        }
    )
    raise typer.Exit(code)


def _expected_failures(path: Path | None) -> frozenset[str]:
    """Return the cases that must fail.

    Raises:
        ServiceError: BAD_SETTINGS; the file is not a list of cases.
    """
    from secagg.conformance import report
    from secagg.errors import ErrorCode

    if path is None:
        return frozenset()
    try:
        return report.known_failing(path)
    except (OSError, ValueError) as error:
        raise ErrorCode.BAD_SETTINGS.error(
            f"{path} is not a list of cases: {error}",
            fix="Write one name of a case a line.",
        ) from None
