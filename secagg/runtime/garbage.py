"""When a program looks for garbage: hardly while it loads, never in what has loaded.

And less often than usual while it runs: what a session keeps is no garbage either.

For programs, not for libraries: it is about everything in the process.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_USUAL: Final = gc.get_threshold()
# More objects than all libraries bring (120 thousand for an aggregator).  They are no
# garbage, and looking through them as they come was a twentieth of a command's start.
_SELDOM: Final = 300_000
# The usual is 700, 10, 10.  With a thousand clients that was 734 looks and 0.5 of 15
# seconds of an aggregator's CPU, most of it for six looks at everything; this is 256
# and 0.2, for 5 MiB of garbage that waits a little longer.
STAYING: Final = (3000, 20, 10)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for garbage seldom: for a command that loads, says something and ends."""
    gc.set_threshold(_SELDOM, *_USUAL[1:])
    try:
        yield
    finally:
        gc.set_threshold(*_USUAL)


def keep_what_is_loaded() -> None:
    """Look for garbage from now on, but not in what has been loaded so far.

    Libraries are most of an aggregator's objects and stay to its end; looking through
    them again and again was a twentieth of its CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*STAYING)
