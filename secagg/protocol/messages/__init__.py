"""One frozen class for each protocol message, in both directions.

Rule 1: `encode` is the canonical encoding of PROTOCOL §3.  Hashes, journal, wire and
        comparisons always use these bytes and never a serialisation of the transport.
Rule 2: every decoder is total: it returns a value, or raises `RemoteProtocolError` with
        the fault.
Rule 3: sets travel as bitmaps over the roster, so that duplicates, foreign ids and
        unsorted lists cannot be expressed (PROTOCOL §3.3).
Rule 4: an `Envelope` is a message in transit: its class and its canonical bytes.  The
        state machines accept and return envelopes; journal and wire carry them unread.

The package checks form only.  `secagg.protocol` decides whether a message is
acceptable.  `envelope` lists all messages; each other module is named for the subject
of its messages.
"""

from secagg.protocol.messages import (
    BUNDLE_BYTES,
    DIGEST_BYTES,
    KINDS,
    MAX_ADVERT_BYTES,
    MAX_EDGES_BYTES,
    MAX_IDENTITY_BYTES,
    MAX_REASON_BYTES,
    NO_VIEW,
    SIGNATURE_BYTES,
    Aborted,
    Advert,
    Bundles,
    Complaint,
    Consistency,
    Delivery,
    Edges,
    EdgesPublished,
    Envelope,
    Fate,
    ListProof,
    Message,
    Neighbourhood,
    Quorum,
    Released,
    Roster,
    RosterFrame,
    RosterProof,
    Round,
    Shares,
    Survivors,
    Update,
    Upload,
    advert_parts,
    is_neighbourhood,
    rank_key,
)

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
