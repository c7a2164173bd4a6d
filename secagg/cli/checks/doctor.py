"""`secagg doctor`: checks everything that an aggregator or a client needs."""

import typer

from secagg.cli.operator import EitherFileOption, server_file
from secagg.cli.options import JSONOption, SetOption
from secagg.cli.output import Output


def doctor(
    *,
    config: EitherFileOption = None,
    overrides: SetOption = None,
    as_json: JSONOption = False,
) -> None:
    """Check everything that a server or a client needs, and print next steps.

    The settings file decides which of the two. Every check has a number. A failure
    ends its branch; the exit code is that of the first failure. Nothing is changed, no
    session is joined and no budget is spent.

    Example: secagg doctor --config client.toml
    """
    import asyncio

    from secagg.cli.checks.preflight import CheckState
    from secagg.cli.checks.setup_checks import doctor_results
    from secagg.cli.failures import EXIT_OK, exit_code_of

    output = Output(as_json=as_json)
    path = server_file(config)
    role, findings = asyncio.run(doctor_results(path, overrides=overrides or ()))
    for each in findings:
        output.line(
            f"{each.number} {each.state:<7} {each.subject}: {each.found}",
            style={CheckState.FAILED: "bold red", CheckState.WARNING: "yellow"}.get(
                each.state
            ),
        )
        if each.next_step:
            output.line(f"     next step: {each.next_step}")
    failed = [each for each in findings if each.error is not None]
    code = exit_code_of(failed[0].error) if failed and failed[0].error else EXIT_OK
    warned = [each.number for each in findings if each.state is CheckState.WARNING]
    if failed:
        first = failed[0].number
        output.line(
            f"{len(failed)} of {len(findings)} checks failed; begin with {first}"
        )
    elif warned:
        output.line(f"it works, with warnings: {', '.join(warned)}")
    else:
        output.line("nothing is wrong")
    output.result(
        {
            "role": role,
            "ok": not failed,
            "exit_code": code,
            "checks": [
                {
                    "number": each.number,
                    "subject": each.subject,
                    "state": each.state,
                    "found": each.found,
                    "next_step": each.next_step,
                    "error": None if each.error is None else each.error.code.name,
                }
                for each in findings
            ],
        }
    )
    raise typer.Exit(code)
