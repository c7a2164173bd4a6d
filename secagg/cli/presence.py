"""How many of the devices that join are present in the rounds that follow.

The model: a device is present and absent in turn, each for an exponential time, without
day and night.  Rounds last their whole length.  A device that has answered is present
then; in the next round it answers if it is present at any time of it.
"""

import math
from dataclasses import dataclass
from typing import Final

from secagg.errors import ErrorCode

# After joining: sharing, input, signatures (in profiles that have them), unmasking.
_LATER_ROUNDS: Final = 4
# Between these multiples of its stay a device is neither kept by a round nor caught by
# the next one.
_SHORTEST_BAD: Final = 1 / 3
_LONGEST_BAD: Final = 5.0


@dataclass(frozen=True, slots=True)
class Presence:
    """Model of when devices are present.

    Attributes:
        present: Mean time that a device stays, in seconds; above 0.
        absent: Mean time that it is away, in seconds; above 0.
        round_seconds: Length of every round after joining, in seconds; above 0.
    """

    present: float
    absent: float
    round_seconds: float

    def share(self, rounds: int = _LATER_ROUNDS) -> float:
        """Return which part of those devices answers in all later rounds, in (0, 1).

        Args:
            rounds: How many rounds follow.
        """
        lasts = self.round_seconds
        away = self.absent / (self.present + self.absent)
        leaves = -math.expm1(-lasts * (1 / self.present + 1 / self.absent))
        missed = away * leaves * math.exp(-lasts / self.absent)
        return (1.0 - missed) ** rounds

    def sentences(self, *, clients: int, min_survivors: int) -> list[str]:
        """Return what a session of so many clients needs, and what it may expect.

        Args:
            clients: That join.
            min_survivors: Fewest inputs in a released sum.
        """
        share = self.share()
        expected = math.floor(share * clients)
        needed = (
            f"{min_survivors} of {clients} devices must be present in each of "
            f"{_LATER_ROUNDS} rounds after joining; expect {expected} in all of them."
        )
        found = [needed]
        if expected < min_survivors:
            found.append(
                "Most sessions will end without a sum. Lower min_survivors, or make "
                f"rounds shorter than {self.present * _SHORTEST_BAD:.0f} s or longer "
                f"than {max(2 * self.absent, _LONGEST_BAD * self.present):.0f} s."
            )
        elif _SHORTEST_BAD < self.round_seconds / self.present < _LONGEST_BAD:
            found.append(
                "Rounds of this length lose the devices that pass by while other "
                "devices join. Make them much shorter or longer than a stay."
            )
        return found


def presence_of(
    present: float | None, absent: float | None, round_seconds: float
) -> Presence | None:
    """Return what the options say of presence; None where they say nothing.

    Raises:
        ServiceError: BAD_SETTINGS; one is missing, or is not a time.
    """
    if present is None and absent is None:
        return None
    if present is None or absent is None:
        raise ErrorCode.BAD_SETTINGS.error(
            "--presence and --absence are one statement, and one of them is missing",
            fix="Give both: how long a device stays, and how long it is away.",
        )
    for name, value in (
        ("--presence", present),
        ("--absence", absent),
        ("--round-seconds", round_seconds),
    ):
        if not (math.isfinite(value) and value > 0):
            raise ErrorCode.BAD_SETTINGS.error(
                f"{name} is not a time: {value:g}", fix="Give seconds above 0."
            )
    return Presence(present, absent, round_seconds)
