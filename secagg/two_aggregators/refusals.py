"""Errors of leader and helper for calls that they refuse, or that are refused."""

from typing import Any, Final

from secagg.errors import (
    ErrorCode,
    SecAggError,
    SessionAbortedError,
)
from secagg.wire.calls import Request

UNAVAILABLE_CODES: Final = frozenset(
    {
        ErrorCode.UNREACHABLE,
        ErrorCode.DEADLINE,
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.OVERLOADED,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.STORAGE_FAILED,
    }
)
"""Codes that show no answer of the helper: it is unreachable or refuses all calls."""

FINAL_REFUSALS: Final = frozenset({ErrorCode.TASK_OVER, ErrorCode.POLICY_VIOLATION})
"""Codes with which a helper refuses every further session of a task."""


def no_more_sums(task: str) -> SecAggError:
    """Return the error for a task whose budget is spent."""
    return ErrorCode.TASK_OVER.error(
        f"task {task!r} has released all its sums",
        fix="Agree on a new task id, which has a budget of its own.",
    )


def nothing_offered(helper: str) -> SessionAbortedError:
    """Return the error for a helper that answered, but offered no session in time."""
    return ErrorCode.DEADLINE.error(
        f"{helper!r} answers, but offers no session",
        kind=SessionAbortedError,
        fix="Ask the helper's operator whether it drains, or pauses the task.",
    )


def participations_given(identity: str, *, given: int, most: int) -> SecAggError:
    """Return the error for a client that has used all its participations."""
    return ErrorCode.TASK_OVER.error(
        f"the task is over for {identity!r}: it has used {given} of {most} "
        "participations",
        fix="Do nothing; other clients contribute to the remaining sums.",
    )


def no_such_call(identity: str, request: Request[Any]) -> SecAggError:
    """Return the error for a call that has no meaning between two aggregators."""
    return ErrorCode.UNEXPECTED_MESSAGE.error(
        f"{identity!r} may not call {type(request).__name__} in a session between two "
        "aggregators",
        sender=identity,
        fix="Take part with secagg.two_aggregators.TwoAggregatorClient.",
    )


def no_such_session() -> SecAggError:
    """Return the error for a session that is over, or never existed."""
    return ErrorCode.UNKNOWN_SESSION.error(
        "the session is over, or does not belong to this aggregator",
        fix="Ask for the next offer.",
    )


def no_such_task(task: str) -> SecAggError:
    """Return the error for a task that this aggregator does not run."""
    return ErrorCode.TASK_OVER.error(
        f"this aggregator has no task {task!r}",
        fix="Compare the name of the task with the aggregators' settings.",
    )


def refused_by_helper(error: SecAggError) -> SessionAbortedError:
    """Return the error of a session that the helper refuses to continue."""
    return SessionAbortedError(
        f"the helper refuses: {error}", code=error.code, next_step=error.next_step
    )


def second_upload(identity: str) -> SecAggError:
    """Return the error for an upload that differs from an earlier one."""
    return ErrorCode.EQUIVOCATION.error(
        f"{identity!r} has sent a different upload in this session before",
        sender=identity,
        fix="Wait for the next session.",
    )
