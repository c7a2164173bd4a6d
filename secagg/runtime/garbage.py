"""Memory of a program: garbage collected rarely, and never of loaded libraries.

It is also rarer than usual while the program runs, because the objects of a session are
no garbage either.

For programs, not for libraries: the settings apply to the whole process.
"""

import gc
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_USUAL: Final = gc.get_threshold()
# More objects than all libraries bring (120 thousand for an aggregator).  They are no
# garbage, and collecting while they load took a twentieth of a command's start.
_SELDOM: Final = 300_000
# The usual is 700, 10, 10.  With a thousand clients that was 734 collections and 0.5 of
# 15 seconds of an aggregator's CPU, most of it for six full ones.  This is 256 and 0.2,
# for 5 MiB of garbage that is kept a little longer.
STAYING: Final = (3000, 20, 10)


@contextmanager
def infrequent_collection() -> Iterator[None]:
    """Collect seldom: for a command that loads, prints something and ends."""
    gc.set_threshold(_SELDOM, *_USUAL[1:])
    try:
        yield
    finally:
        gc.set_threshold(*_USUAL)


def freeze_loaded() -> None:
    """Collect from now on, but not what has been loaded so far.

    Libraries are most of an aggregator's objects and stay to its end; collecting them
    repeatedly took a twentieth of its CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*STAYING)


def peak_rss_bytes() -> int:
    """Return the most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts kibibytes, macOS bytes.
    return peak if sys.platform == "darwin" else peak * 1024
