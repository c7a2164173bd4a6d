"""One frozen class per protocol message, in both directions: what is said.

Rule 1: `encode` is the canonical encoding of PROTOCOL §3; what is hashed, journalled,
        sent and compared is always these bytes and never a serialisation of the
        transport.
Rule 2: every decoder is total: a value, or `RemoteProtocolError` naming what is wrong.
Rule 3: sets travel as bitmaps over the roster, so that duplicates, foreign ids and
        unsorted lists cannot be expressed (PROTOCOL §3.3).
Rule 4: an `Envelope` is a message on its way: its class and its canonical bytes.  The
        state machines take and give envelopes; journal and wire carry them unread.

It checks form only.  Whether a message is acceptable now is the business of
`secagg.protocol`.  `envelope` has the list of them all; the other modules are named for
what their messages tell of.
"""

from secagg.protocol.messages.advert import (
    MAX_ADVERT_BYTES,
    MAX_IDENTITY_BYTES,
    Advert,
    advert_parts,
)
from secagg.protocol.messages.edges import (
    MAX_EDGES_BYTES,
    Edges,
    EdgesPublished,
    ListProof,
)
from secagg.protocol.messages.encoding import DIGEST_BYTES, SIGNATURE_BYTES
from secagg.protocol.messages.envelope import (
    KINDS,
    Envelope,
    Message,
    Update,
    is_neighbourhood,
)
from secagg.protocol.messages.outcome import MAX_REASON_BYTES, Aborted, Fate, Released
from secagg.protocol.messages.roster import Neighbourhood, Roster, RosterFrame, rank_key
from secagg.protocol.messages.round import Round
from secagg.protocol.messages.shares import (
    BUNDLE_BYTES,
    Bundles,
    Complaint,
    Delivery,
    Shares,
)
from secagg.protocol.messages.survivors import (
    Consistency,
    Quorum,
    RosterProof,
    Survivors,
)
from secagg.protocol.messages.upload import NO_VIEW, Upload

__all__ = [
    "BUNDLE_BYTES",
    "DIGEST_BYTES",
    "KINDS",
    "MAX_ADVERT_BYTES",
    "MAX_EDGES_BYTES",
    "MAX_IDENTITY_BYTES",
    "MAX_REASON_BYTES",
    "NO_VIEW",
    "SIGNATURE_BYTES",
    "Aborted",
    "Advert",
    "Bundles",
    "Complaint",
    "Consistency",
    "Delivery",
    "Edges",
    "EdgesPublished",
    "Envelope",
    "Fate",
    "ListProof",
    "Message",
    "Neighbourhood",
    "Quorum",
    "Released",
    "Roster",
    "RosterFrame",
    "RosterProof",
    "Round",
    "Shares",
    "Survivors",
    "Update",
    "Upload",
    "advert_parts",
    "is_neighbourhood",
    "rank_key",
]
