"""The rounds of a session."""

from enum import IntEnum, unique


@unique
class Round(IntEnum):
    """The round of a session.  Numbers are those on the wire (PROTOCOL §1)."""

    ADVERTISE_KEYS = 1
    CHOOSE_EDGES = 2
    SHARE_KEYS = 3
    MASKED_INPUT_COLLECTION = 4
    CONSISTENCY_CHECK = 5
    UNMASKING = 6
    FINISHED = 7
