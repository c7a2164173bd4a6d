"""When a program looks for garbage: hardly while it loads, never in what has loaded.

For programs, not for libraries: it is about everything in the process.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["keep_what_is_loaded", "seldom_collected"]

_USUAL: Final = gc.get_threshold()
# More objects than all libraries bring (120 thousand for an aggregator).  They are no
# garbage, and looking through them as they come was a twentieth of a command's start.
_SELDOM: Final = 300_000


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for garbage seldom: for a command that loads, says something and ends."""
    gc.set_threshold(_SELDOM, *_USUAL[1:])
    try:
        yield
    finally:
        gc.set_threshold(*_USUAL)


def keep_what_is_loaded() -> None:
    """Look for garbage as usual from now on, but not in what has been loaded so far.

    Libraries are most of an aggregator's objects and stay to its end; looking through
    them again and again was a twentieth of its CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_USUAL)
