"""When to try again: waits that grow, with jitter, within what a server may ask for.

Rule 1: many clients that lost the same server must not come back at the same moment.
Rule 2: a server may ask for more patience, but not for an absurd amount of it, and
        not for none.
Rule 3: whoever waits for ever is patient: waits grow from a second to five minutes, and
        each is anything up to that (full jitter), so that a thousand clients come back
        as a trickle.  Within a session there are deadlines, and waits stay short.
"""

from dataclasses import dataclass
from typing import Final

from secagg.crypto.entropy import Entropy

FIRST_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 10.0
_SHORTEST_HINT_SECONDS: Final = 0.02
_LONGEST_HINT_SECONDS: Final = 60.0
_PATIENT_FIRST_SECONDS: Final = 1.0
PATIENT_LONGEST_SECONDS: Final = 300.0


@dataclass(slots=True)
class Backoff:
    """The waits between attempts at one call.

    Attributes:
        entropy: Source of the jitter.
        attempts: Failed attempts so far.
        is_patient: Whether nobody waits for the outcome.
    """

    entropy: Entropy
    attempts: int = 0
    is_patient: bool = False

    def next_wait(self, hint_seconds: float | None = None) -> float:
        """Return how long to wait before the next attempt, in seconds.

        Args:
            hint_seconds: What the server asked for, if it did.
        """
        doublings = 2.0 ** min(self.attempts, 16)
        self.attempts += 1
        asked = _clamped(hint_seconds)
        if self.is_patient:
            most = min(PATIENT_LONGEST_SECONDS, _PATIENT_FIRST_SECONDS * doublings)
            return max(asked, _SHORTEST_HINT_SECONDS, most * self._fraction())
        return self._jittered(
            max(min(LONGEST_SECONDS, FIRST_SECONDS * doublings), asked)
        )

    def poll_wait(self, hint_seconds: float) -> float:
        """Return how long to wait before asking for news again, in seconds."""
        self.attempts = 0
        return self._jittered(_clamped(hint_seconds))

    def _jittered(self, seconds: float) -> float:
        return seconds * (0.75 + 0.5 * self._fraction())

    def _fraction(self) -> float:
        return int.from_bytes(self.entropy.token(2), "big") / 65536


def _clamped(hint_seconds: float | None) -> float:
    if hint_seconds is None:
        return 0.0
    return min(_LONGEST_HINT_SECONDS, max(_SHORTEST_HINT_SECONDS, hint_seconds))
