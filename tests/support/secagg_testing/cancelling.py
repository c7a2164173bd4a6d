"""Cancellation at a chosen suspension: for "may be cancelled at any await"."""

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


@coroutine
def cancelled_at(
    place: int, work: Coroutine[Any, Any, _Result], *, is_late: bool
) -> Generator[Any, None, _Result]:
    """Run a coroutine in the caller's task and cancel it at one suspension.

    Args:
        place: Number of the suspension, from 0.  Work that suspends less often runs to
            its end.
        work: The coroutine.
        is_late: Cancel after what it waits for is done, just before it resumes; else
            before.

    Returns:
        What the coroutine returns.

    Raises:
        CancelledError: It was cancelled.
    """
    failure: BaseException | None = None
    suspensions = 0
    while True:
        try:
            waits_for = work.send(None) if failure is None else work.throw(failure)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # an exception carries Any
        failure, is_here = None, suspensions == place
        suspensions += 1
        task = asyncio.current_task()
        if is_here and not is_late and task is not None:
            task.cancel()
        try:
            yield waits_for
        except BaseException as error:  # noqa: BLE001 - belongs to the coroutine
            failure = error
        if is_here and is_late:
            failure = asyncio.CancelledError()
