"""What leader and helper say where they cannot serve, or are not served."""

from typing import Any, Final

from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.wire.calls import Request

SILENCE: Final = frozenset(
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

FOR_GOOD: Final = frozenset({ErrorCode.TASK_OVER, ErrorCode.POLICY_VIOLATION})
"""What a helper that is asked for a session says when it will never open another."""


def no_more_sums(task: str) -> ServiceError:
    """Return what is said of a task whose budget is used."""
    return ServiceError(
        f"task {task!r} has released all its sums",
        code=ErrorCode.TASK_OVER,
        next_step="A new task id is a new budget, to be agreed on.",
    )


def participations_given(identity: str, *, given: int, most: int) -> ServiceError:
    """Return what a client is told that is in as many sums as it may be."""
    return ServiceError(
        f"the task is over for {identity!r}: it has given its participations, "
        f"{given} of {most}",
        code=ErrorCode.TASK_OVER,
        next_step="Nothing is to be done; other clients give to the further sums.",
    )


def no_such_call(identity: str, request: Request[Any]) -> RemoteProtocolError:
    """Return the refusal of a call that has no meaning between two aggregators."""
    return RemoteProtocolError(
        f"{type(request).__name__} is no call of {identity!r} in a session between "
        "two aggregators",
        code=ErrorCode.UNEXPECTED_MESSAGE,
        sender=identity,
        next_step="Take part with secagg.two_aggregators.TwoAggregatorClient.",
    )


def no_such_session() -> ServiceError:
    """Return the refusal of a session that is over, or never was."""
    return ServiceError(
        "the session is over, or none of this aggregator's",
        code=ErrorCode.UNKNOWN_SESSION,
        next_step="Ask for the next offer.",
    )


def no_such_task(task: str) -> ServiceError:
    """Return the refusal of a task that is not run here."""
    return ServiceError(
        f"there is no task {task!r} here",
        code=ErrorCode.TASK_OVER,
        next_step="Compare the name of the task with the aggregators'.",
    )


def refused_by_helper(error: SecAggError) -> SessionAbortedError:
    """Return how a session ends that the helper does not want to go on with."""
    return SessionAbortedError(
        f"the helper refuses: {error}", code=error.code, next_step=error.next_step
    )


def second_upload(identity: str) -> RemoteProtocolError:
    """Return the refusal of something else than what was sent before."""
    return RemoteProtocolError(
        f"{identity!r} has sent something else in this session before",
        code=ErrorCode.EQUIVOCATION,
        sender=identity,
        next_step="Wait for the next session.",
    )
