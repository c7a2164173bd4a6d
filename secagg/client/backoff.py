"""When to try again: waits that grow, with jitter, within what a server may ask for.

Rule 1: many clients that lost the same server must not come back at the same moment.
Rule 2: a server may ask for more patience, but not for an absurd amount of it, and
        not for none.
"""

from dataclasses import dataclass
from typing import Final

from secagg.primitives.entropy import Entropy

__all__ = ["Backoff"]

FIRST_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 10.0
SHORTEST_HINT_SECONDS: Final = 0.02
LONGEST_HINT_SECONDS: Final = 60.0


@dataclass(slots=True)
class Backoff:
    """The waits between attempts at one call.

    Attributes:
        entropy: Source of the jitter.
        attempts: Failed attempts so far.
    """

    entropy: Entropy
    attempts: int = 0

    def next_wait(self, hint_seconds: float | None = None) -> float:
        """Return how long to wait before the next attempt, in seconds.

        Args:
            hint_seconds: What the server asked for, if it did.
        """
        grown = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(self.attempts, 16))
        self.attempts += 1
        return self._jittered(max(grown, _clamped(hint_seconds)))

    def poll_wait(self, hint_seconds: float) -> float:
        """Return how long to wait before asking for news again, in seconds."""
        self.attempts = 0
        return self._jittered(_clamped(hint_seconds))

    def _jittered(self, seconds: float) -> float:
        fraction = int.from_bytes(self.entropy.token(2), "big") / 65536
        return seconds * (0.75 + 0.5 * fraction)


def _clamped(hint_seconds: float | None) -> float:
    if hint_seconds is None:
        return 0.0
    return min(LONGEST_HINT_SECONDS, max(SHORTEST_HINT_SECONDS, hint_seconds))
