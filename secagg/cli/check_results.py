"""What a numbered check of the doctor has found, and how checks hang together.

Rule 1: checks stand in branches.  What fails ends its branch, because all that follows
        would fail for the same reason; other branches go on.
Rule 2: a check says what it found in one line; its error is the one that the program
        would meet, with the same exit code and a next step.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from secagg.errors import SecAggError

S = TypeVar("S")


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


Found: TypeAlias = str | Caution | None


@dataclass(frozen=True, slots=True)
class SetupCheck(Generic[S]):
    """One numbered thing that a part needs.

    Attributes:
        number: Such as D120; never reused.
        subject: What is looked at: the setting or option that names it, or a noun.
        run: Says what there is; None where the settings name no such thing.  Raises
            what is wrong, as the program would.
        starts: Whether a start looks at it before anything else; what it does not look
            at it meets by itself, with the same error.
        is_local: Whether this machine alone can tell; else the doctor alone looks.
    """

    number: str
    subject: str
    run: Callable[[S], Found | Awaitable[Found]]
    starts: bool = False
    is_local: bool = True


Branch: TypeAlias = tuple[SetupCheck[S], ...]


async def findings_of(
    branches: Sequence[Branch[S]],
    setup: S,
    *,
    only: Callable[[SetupCheck[S]], bool] = lambda _: True,
) -> list[Finding]:
    """Run checks; what follows a failure in its branch is skipped.

    Args:
        branches: Checks that hang together, in the order in which they are run.
        setup: What they look at.
        only: Says which are run.

    Returns:
        What was found, by number.
    """
    findings: list[Finding] = []
    for branch in branches:
        failed = ""
        for check in filter(only, branch):
            if failed:
                reason = f"needs {failed} to be right"
                findings.append(
                    Finding(check.number, check.subject, State.SKIPPED, reason)
                )
                continue
            finding = await _finding_of(check, setup)
            if finding is not None:
                findings.append(finding)
                failed = check.number if finding.error else ""
    return sorted(findings, key=lambda each: each.number)


async def _finding_of(check: SetupCheck[S], setup: S) -> Finding | None:
    number, subject = check.number, check.subject
    try:
        found = check.run(setup)
        if not isinstance(found, str | Caution | None):
            found = await found
    except SecAggError as error:
        step = error.at_command or error.next_step
        return Finding(number, subject, State.FAILED, str(error), step, error)
    if found is None:
        return None
    if isinstance(found, str):
        return Finding(number, subject, State.OK, found)
    return Finding(number, subject, State.WARNING, found.found, found.next_step)
