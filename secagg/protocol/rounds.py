"""The table of rounds: opening message, clients' answer and deadline of each.

Rule 1: all facts about a round are here; the transition tables of `server` and
        `client` state what happens in it.

Rounds and client sets (U1 to U5) are named as in [Bon17]; PROTOCOL §5 has one section
for each round.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Final

from secagg.protocol.messages import (
    Aborted,
    Advert,
    Bundles,
    Complaint,
    Consistency,
    Delivery,
    Edges,
    EdgesPublished,
    Message,
    Quorum,
    Released,
    Roster,
    Round,
    Shares,
    Survivors,
    Update,
    Upload,
)
from secagg.protocol.profiles import Profile, RoundDeadlines


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round.

    Attributes:
        opened_by: Updates that open it; none for AdvertiseKeys, which an offer opens.
        message: The message of each client in it, if any.
        deadline: Name of its field in `RoundDeadlines`; "" if it has no end.
        title: The clients' work in it, for display.
        profiles: Profiles that have it.
    """

    opened_by: tuple[type[Update], ...]
    message: type[Message] | None
    deadline: str
    title: str
    profiles: frozenset[Profile] = frozenset(Profile)

    def seconds(self, deadlines: RoundDeadlines) -> int:
        """Return how long the round stays open at most; 0 if it has no end."""
        seconds: int = getattr(deadlines, self.deadline) if self.deadline else 0
        return seconds


DUE_PART: Final = 0.7
"""Part of MaskedInputCollection after which a vector with noise is due (R3.5-5).

Where the client's owner has set no time.  Uploads that have begun move the end of the
round, so that the rest need not hold all of one.
"""

_SIGNED: Final = frozenset(each for each in Profile if each.has_identities)
_DRAWN: Final = frozenset({Profile.MALICIOUS_SERVER_SPARSE})

# fmt: off
ROUNDS: Final[Mapping[Round, RoundRow]] = {
    # round: opening updates, clients' message, deadline, title (in profiles without
    # round 2 or 5, the same message opens the next one)
    Round.ADVERTISE_KEYS:
        RoundRow((), Advert, "advertise_keys", "joining"),
    Round.CHOOSE_EDGES:
        RoundRow((Roster,), Edges, "choose_edges", "choosing neighbours", _DRAWN),
    Round.SHARE_KEYS:
        RoundRow((Roster, EdgesPublished), Bundles, "share_keys", "sharing keys"),
    Round.MASKED_INPUT_COLLECTION:
        RoundRow((Delivery,), Upload, "masked_input", "uploading"),
    Round.CONSISTENCY_CHECK:
        RoundRow((Survivors,), Consistency, "consistency", "agreeing", _SIGNED),
    Round.UNMASKING:
        RoundRow((Survivors, Quorum), Shares, "unmasking", "unmasking"),
    Round.FINISHED:
        RoundRow((Released, Aborted), None, "", "finished"),
}
# fmt: on


def rounds_of(profile: Profile) -> tuple[Round, ...]:
    """Return the rounds in which clients of a profile send something, in order."""
    return tuple(
        which
        for which, row in ROUNDS.items()
        if row.message is not None and profile in row.profiles
    )


def seconds_until_next(entered: Round, deadlines: RoundDeadlines) -> int:
    """Return how long the round after one may take to open, in seconds."""
    seconds = ROUNDS[entered].seconds(deadlines)
    if entered >= Round.UNMASKING:
        # Removing the masks takes about as long as making them.
        seconds += ROUNDS[Round.MASKED_INPUT_COLLECTION].seconds(deadlines)
    return seconds


# A complaint interrupts no round: it travels beside the round's messages.
FROM_CLIENTS: Final[frozenset[type[Message]]] = frozenset(
    {Complaint, *(row.message for row in ROUNDS.values() if row.message is not None)}
)
FROM_SERVER: Final[frozenset[type[Message]]] = frozenset(
    update for row in ROUNDS.values() for update in row.opened_by
)


@unique
class DropReason(StrEnum):
    """Why a client is no longer part of a session."""

    NO_EDGES = "chose no neighbours in time"
    NO_SHARES = "sent no shares in time"
    NO_INPUT = "sent no masked input in time"
    LOST_INPUT = "did not send again an input that the server had lost"
    OTHER_VIEW = (
        "has another view of the noise, of the roster or of U2 than this server"
    )
    NO_SIGNATURE = "did not sign the sets of clients in time"
    NO_ANSWER = "did not answer the unmask request in time"
    WITHHELD_SHARES = "withheld shares of clients that it had not complained about"
    BAD_NOISE_REVEAL = "gave away noise seeds that contradict its advert"
    BAD_SHARES = "revealed shares that contradict its advert or those of others"
