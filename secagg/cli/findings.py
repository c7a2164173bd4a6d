"""What a numbered check of the doctor has found, and how checks hang together.

Rule 1: checks stand in branches.  What fails ends its branch, because all that follows
        would fail for the same reason; other branches go on.
Rule 2: a check says what it found in one line; its error is the one that the program
        would meet, with the same exit code and a next step.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from secagg.errors import SecAggError

__all__ = ["Caution", "Finding", "State", "branch"]


class State:
    """What became of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check and what it found.

    Attributes:
        number: Such as D120; never reused.
        subject: What was looked at.
        state: One of `State`.
        found: What there is, or what is wrong.
        next_step: What to do about it; "" where nothing is wrong.
        error: Of a check that failed.
    """

    number: str
    subject: str
    state: str
    found: str
    next_step: str = ""
    error: SecAggError | None = None


@dataclass(frozen=True, slots=True)
class Caution:
    """Something that works and should not stay so."""

    found: str
    next_step: str


_Look = Callable[[], Awaitable["str | Caution"] | str | Caution]
_Step = tuple[str, str, _Look]


async def branch(steps: Sequence[_Step]) -> list[Finding]:
    """Look at one thing after the other; what follows a failure is skipped."""
    findings: list[Finding] = []
    failed = ""
    for number, subject, look in steps:
        if failed:
            findings.append(
                Finding(number, subject, State.SKIPPED, f"needs {failed} to be right")
            )
            continue
        try:
            found = look()
            if not isinstance(found, str | Caution):
                found = await found
        except SecAggError as error:
            failed = number
            findings.append(
                Finding(
                    number,
                    subject,
                    State.FAILED,
                    str(error),
                    error.next_step,
                    error,
                )
            )
            continue
        if isinstance(found, str):
            findings.append(Finding(number, subject, State.OK, found))
        else:
            findings.append(
                Finding(number, subject, State.WARNING, found.found, found.next_step)
            )
    return findings
