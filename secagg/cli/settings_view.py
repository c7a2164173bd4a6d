"""What `--show-settings` prints: every setting, and what each file of them is worth."""

from collections.abc import Sequence

from secagg.cli.output import Output
from secagg.cli.preflight import Check, require_all

__all__ = ["show_checked"]


def show_checked(
    rows: Sequence[tuple[str, str, str]], checks: Sequence[Check], output: Output
) -> None:
    """Print settings and checks.

    Raises:
        SecAggError: The first problem among the checks; all of them are printed.
    """
    output.table(("setting", "value", "from"), rows, title="Settings")
    output.table(
        ("checked", "found"),
        [
            (
                check.subject,
                check.found if check.problem is None else f"ERROR: {check.problem}",
            )
            for check in checks
        ],
        title="Checks",
    )
    require_all(checks)
