"""Envelopes of messages, and the numbers of message kinds."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from secagg.protocol.messages.advert import Advert
from secagg.protocol.messages.edges import Edges, EdgesPublished
from secagg.protocol.messages.outcome import Aborted, Released
from secagg.protocol.messages.roster import NEIGHBOURHOOD_FORM, Neighbourhood, Roster
from secagg.protocol.messages.shares import Bundles, Complaint, Delivery, Shares
from secagg.protocol.messages.survivors import Consistency, Quorum, Survivors
from secagg.protocol.messages.upload import Upload

Update = (
    Roster
    | Neighbourhood
    | EdgesPublished
    | Delivery
    | Survivors
    | Quorum
    | Released
    | Aborted
)
Message = Advert | Edges | Bundles | Upload | Consistency | Shares | Complaint | Update

# Numbers of the journal and of the wire; a number never gets a second meaning.  Both
# forms of a roster share one.
KINDS: Final[Mapping[int, type[Message]]] = {
    kind.KIND: kind
    for kind in (
        Advert,
        Bundles,
        Upload,
        Shares,
        Roster,
        Delivery,
        Survivors,
        Released,
        Aborted,
        Complaint,
        Consistency,
        Quorum,
        Edges,
        EdgesPublished,
    )
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message in transit: its kind and its canonical bytes.

    Attributes:
        kind: Class of the message.
        data: Its canonical bytes, as received or as encoded once.
    """

    kind: type[Message]
    data: bytes = field(repr=False)
    # A roster is one envelope for a whole cohort: it is hashed once.
    _digest: bytes = field(default=b"", init=False, repr=False, compare=False)

    @classmethod
    def of(cls, message: Message) -> Self:
        """Encode a message."""
        return cls(KINDS[message.KIND], message.encode())

    @property
    def digest(self) -> bytes:
        """SHA-256 of the bytes: tells a repetition from a contradiction."""
        if not self._digest:
            digest = hashlib.sha256(self.data).digest()
            object.__setattr__(self, "_digest", digest)
        return self._digest

    def open(self) -> Message:
        """Decode the message.

        Raises:
            RemoteProtocolError: BAD_ENCODING.
        """
        return self.kind.decode(self.data)


def is_neighbourhood(envelope: Envelope) -> bool:
    """Whether an envelope holds a roster in the form of a neighbourhood."""
    return envelope.kind is Roster and envelope.data[:1] == bytes((NEIGHBOURHOOD_FORM,))
