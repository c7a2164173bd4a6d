"""Coroutines without an event loop.

The record of a session and the total budget wait for their store alone.  If it returns
at once, a coroutine over it never waits.
"""

from collections.abc import Coroutine
from typing import Any, TypeVar

from secagg.errors import InternalError

_Result = TypeVar("_Result")


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
