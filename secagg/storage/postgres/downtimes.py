"""Time in which nobody worked with a book that several share.

Clients could not answer then, so that it counts for no deadline: whoever comes next
moves the deadlines of all open rounds, before any timer may close one.
"""

from typing import Final

# Three signs of life.
SILENCE_MILLISECONDS: Final = 15_000
"""Time without any aggregator that counts for no deadline, when it was longer."""


def silence_between(alive: int | None, now: int) -> int:
    """Return how long nobody was there, in milliseconds; 0 where that is no silence.

    Args:
        alive: The last sign of life, in milliseconds; None for none.
        now: This moment.
    """
    silent = 0 if alive is None else now - alive
    return silent if silent > SILENCE_MILLISECONDS else 0
