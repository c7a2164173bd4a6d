"""What leader and helper say where they cannot serve, or are not served."""

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
"""The helper's process, or the way to it, is gone or refuses everything."""

FINAL_REFUSALS: Final = frozenset({ErrorCode.TASK_OVER, ErrorCode.POLICY_VIOLATION})
"""What a helper that is asked for a session says when it will never open another."""


def no_more_sums(task: str) -> SecAggError:
    """Return what is said of a task whose budget is used."""
    return ErrorCode.TASK_OVER.error(
        f"task {task!r} has released all its sums",
        fix="A new task id is a new budget, to be agreed on.",
    )


def nothing_offered(helper: str) -> SessionAbortedError:
    """Return how a leader's question ends that its helper only told to wait."""
    return ErrorCode.DEADLINE.error(
        f"{helper!r} answers, and offers no session",
        kind=SessionAbortedError,
        fix="Ask the helper's operator whether it drains, or pauses the task.",
    )


def participations_given(identity: str, *, given: int, most: int) -> SecAggError:
    """Return what a client is told that is in as many sums as it may be."""
    return ErrorCode.TASK_OVER.error(
        f"the task is over for {identity!r}: it has given its participations, "
        f"{given} of {most}",
        fix="Nothing is to be done; other clients give to the further sums.",
    )


def no_such_call(identity: str, request: Request[Any]) -> SecAggError:
    """Return the refusal of a call that has no meaning between two aggregators."""
    return ErrorCode.UNEXPECTED_MESSAGE.error(
        f"{type(request).__name__} is no call of {identity!r} in a session between "
        "two aggregators",
        sender=identity,
        fix="Take part with secagg.two_aggregators.TwoAggregatorClient.",
    )


def no_such_session() -> SecAggError:
    """Return the refusal of a session that is over, or never was."""
    return ErrorCode.UNKNOWN_SESSION.error(
        "the session is over, or none of this aggregator's",
        fix="Ask for the next offer.",
    )


def no_such_task(task: str) -> SecAggError:
    """Return the refusal of a task that is not run here."""
    return ErrorCode.TASK_OVER.error(
        f"there is no task {task!r} here",
        fix="Compare the name of the task with the aggregators'.",
    )


def refused_by_helper(error: SecAggError) -> SessionAbortedError:
    """Return how a session ends that the helper does not want to go on with."""
    return SessionAbortedError(
        f"the helper refuses: {error}", code=error.code, next_step=error.next_step
    )


def second_upload(identity: str) -> SecAggError:
    """Return the refusal of something else than what was sent before."""
    return ErrorCode.EQUIVOCATION.error(
        f"{identity!r} has sent something else in this session before",
        sender=identity,
        fix="Wait for the next session.",
    )
