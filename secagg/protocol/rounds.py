"""The rounds of a session and the small public sets and sizes that name them.

Rounds and client sets (U1 to U5) are named as in [Bon17]; PROTOCOL §5 has one
section for each round.
"""

from enum import IntEnum, StrEnum, unique
from typing import Final

__all__ = ["BUNDLE_BYTES", "DropReason", "Round"]

# Sealed: sender, receiver, abscissa (4 bytes each), two shares of 34 bytes, 16 of tag.
BUNDLE_BYTES: Final = 3 * 4 + 2 * 34 + 16


@unique
class Round(IntEnum):
    """Which round a session is in.  Numbers are those of [Bon17]."""

    ADVERTISE_KEYS = 0
    SHARE_KEYS = 1
    MASKED_INPUT_COLLECTION = 2
    CONSISTENCY_CHECK = 3
    UNMASKING = 4
    FINISHED = 5


@unique
class DropReason(StrEnum):
    """Why a client is no longer part of a session."""

    NO_SHARES = "sent no shares in time"
    NO_INPUT = "sent no masked input in time"
    NO_ANSWER = "did not answer the unmask request in time"
    BAD_SHARES = "revealed shares that contradict its advert or those of others"
