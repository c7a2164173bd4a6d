"""Blocking calls in place, for programs without an event loop.

The record of a session and the total budget wait for two things only: a store and long
calls.  If both return at once, a coroutine over them never waits, and needs no event
loop.
"""

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar

from secagg.errors import InternalError

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Runner(Protocol):
    """Runs long calls, for example on threads."""

    async def run(
        self,
        call: Callable[_Parameters, _Result],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> _Result:
        """Return the result of the call."""
        ...


class InlineRunner:
    """Runs every call at once, in the thread of its caller."""

    async def run(
        self,
        call: Callable[_Parameters, _Result],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> _Result:
        """Return the result of the call."""
        return call(*args, **kwargs)


def run_inline(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine that never waits, to its end.

    Raises:
        InternalError: It waits.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    coroutine.close()
    raise InternalError("a call without an event loop waited")
