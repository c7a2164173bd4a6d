"""What `--show-settings` prints: every setting, and what each check of them found."""

from collections.abc import Sequence

from secagg.cli.check_results import Finding
from secagg.cli.checks.preflight import require_all
from secagg.cli.output import Output


def show_checked(
    rows: Sequence[tuple[str, str, str]], findings: Sequence[Finding], output: Output
) -> None:
    """Print settings and checks.

    Raises:
        SecAggError: The first problem among the checks; all of them are printed.
    """
    output.table(("setting", "value", "from"), rows, title="Settings")
    output.table(
        ("check", "of", "found"),
        [
            (
                each.number,
                each.subject,
                f"ERROR: {each.found}"
                if each.error
                else f"{each.found}; {each.next_step}"
                if each.next_step
                else each.found,
            )
            for each in findings
        ],
        title="Checks",
    )
    require_all(findings)
