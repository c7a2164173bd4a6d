"""Size limits of all data on the wire, each number with its reason.

Rule 1: a limit that needs no session is a constant; another is computed from the
        session's parameters and from nothing else.
Rule 2: sizes are checked on the bytes, before anything is parsed from them.

`secagg.protocol.parameters` limits what a task may configure, `secagg.protocol.policy`
what one client accepts.
"""

from dataclasses import dataclass
from typing import Final

from secagg.errors import ErrorCode
from secagg.protocol.descriptor import (
    MAX_AGGREGATOR_BYTES,
    MAX_NOISE_TERMS_BYTES,
    MAX_TASK_ID_BYTES,
)
from secagg.protocol.messages import (
    BUNDLE_BYTES,
    DIGEST_BYTES,
    MAX_ADVERT_BYTES,
    SIGNATURE_BYTES,
)
from secagg.protocol.packing import MAX_CHUNK_BYTES
from secagg.protocol.parameters import (
    MAX_CLIENTS,
    MAX_DIMENSION,
    MAX_MODULUS,
    MAX_NOISE_BLOCK_BYTES,
    MAX_TAIL_BYTES,
    ProtocolParameters,
)
from secagg.protocol.profiles import SparseParameters

# The largest message that every gRPC implementation accepts by default.
MAX_MESSAGE_BYTES: Final = 4 << 20

# Above this, an update carries a reference and the client reads the object in
# chunks: a phone on a bad link resumes a chunk, not a roster.
MAX_INLINE_BYTES: Final = MAX_CHUNK_BYTES

# 2^30 coordinates of at most 62 bits: the largest packed vector of any session.
MAX_UPLOAD_BYTES: Final = MAX_DIMENSION * (MAX_MODULUS - 1).bit_length() // 8

SESSION_ID_BYTES: Final = 32

# Revealed share (PROTOCOL §7.2), and revealed seed of a layer of noise (§5.1).
_SHARE_BYTES: Final = 34
NOISE_SEED_BYTES: Final = 32

# The largest object that a reference may name: a full roster is larger than the
# bundles of a full complete graph.  Four bytes of length precede each advert;
# one of form, four of count and 4 + 32 of graph seed surround them.
MAX_OBJECT_BYTES: Final = MAX_CLIENTS * (MAX_ADVERT_BYTES + 4) + 41

# Two names with their lengths, session number, nonce, end, payload hash and the fixed
# part of the parameters, 87 bytes, around what varies; four are a length of its own.
MAX_DESCRIPTOR_BYTES: Final = (
    4 + MAX_AGGREGATOR_BYTES + 4 + MAX_TASK_ID_BYTES + 8 + 32 + 8 + 4 + 32
) + (91 + MAX_NOISE_TERMS_BYTES + MAX_NOISE_BLOCK_BYTES + MAX_TAIL_BYTES)

# Error details travel in trailing metadata, of which gRPC takes 8 KiB by default.
MAX_DETAIL_BYTES: Final = 4096
MAX_ERROR_TEXT_BYTES: Final = 1000
MAX_NEXT_STEP_BYTES: Final = 500

# No client is asked to wait longer than an hour: by then the address, the certificate
# or the task may have changed.
MAX_RETRY_AFTER_SECONDS: Final = 3600.0

# How long a request may be kept until there is an answer.  A proxy ends quiet calls
# after a minute, and the request of a client that has vanished is kept no longer.
MAX_HELD_MS: Final = 30_000

# A stream whose other end has vanished looks like a quiet one.  So each pause has a
# limit: the stated one, or the first of these before any statement and behind an
# update.  A shorter limit costs the aggregator work and mistakes a brief fault of the
# link for the end.  More than the second gains nothing.
LEAST_QUIET_SECONDS: Final = 20.0
MAX_QUIET_SECONDS: Final = 240.0

# Session id, tags and lengths around the payload of a request.
_ENVELOPE_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class MessageSizes:
    """Bytes of one client's messages in a full session, without transport overhead.

    The packed vector is not included: `secagg.protocol.packing` has its size.

    Attributes:
        roster: At most, and whole; to every client that reads it.
        edges: The drawn edges that one client is shown; 0 without drawn edges.
        bundles: From one client.
        shares: From one client.
        quorum: At most, to every client of U3; 0 if clients do not sign.
        neighbourhood: At most, to one client; 0 on graphs without one.
        delivery: At most, to one client.
        survivors: U3 in a full session; to every client of it.
    """

    roster: int
    edges: int
    bundles: int
    shares: int
    neighbourhood: int
    delivery: int
    quorum: int
    survivors: int


def message_sizes(parameters: ProtocolParameters) -> MessageSizes:
    """Return the message sizes of the largest session with these parameters."""
    n = parameters.max_clients
    neighbours = n - 1 if parameters.is_complete_graph else parameters.degree
    # With drawn edges, as many clients as the cap allows may have drawn one.
    tail = parameters.tail
    is_drawn = isinstance(tail, SparseParameters)
    dealers = tail.in_cap if isinstance(tail, SparseParameters) else neighbours + 1
    has_neighbourhood = not (parameters.is_complete_graph or is_drawn)
    return MessageSizes(
        roster=n * (MAX_ADVERT_BYTES + 4) + 41,
        edges=_published_edges(parameters),
        bundles=neighbours * BUNDLE_BYTES,
        # On the complete graph the own share is revealed too; one bit for each absence;
        # at most all seeds of noise.
        shares=dealers * _SHARE_BYTES
        + -(-dealers // 8)
        + parameters.noise_layers * NOISE_SEED_BYTES,
        # Each member of U3 is in one of the two lists, at most in the one with the
        # longer rows: index, digest and signature.
        quorum=8 + n * (4 + DIGEST_BYTES + SIGNATURE_BYTES)
        if parameters.profile.has_identities
        else 0,
        neighbourhood=_neighbourhood(parameters) if has_neighbourhood else 0,
        # Two lengths around the bitmap of U2 and one bundle of each dealer.
        delivery=8 + -(-n // 8) + (dealers if is_drawn else neighbours) * BUNDLE_BYTES,
        survivors=-(-n // 8),  # a bitmap of the roster
    )


def _neighbourhood(parameters: ProtocolParameters) -> int:
    """Return the largest size of a neighbourhood (PROTOCOL §5.1)."""
    shown = parameters.degree + 1
    depth = (parameters.max_clients - 1).bit_length()
    # Head and graph seed; each advert with its index and length; the proof.
    return 53 + shown * (8 + MAX_ADVERT_BYTES) + shown * depth * DIGEST_BYTES


def _published_edges(parameters: ProtocolParameters) -> int:
    """Return the largest size of published edges (PROTOCOL §5.9)."""
    if not isinstance(parameters.tail, SparseParameters):
        return 0
    k, most = parameters.degree, parameters.tail.in_cap
    depth = (parameters.max_clients - 1).bit_length()
    # Each drawer of the reader, with its whole list.  For each client that the reader
    # drew a place and its proof.  The proofs of the reader's leaf and of their leaves.
    return (
        DIGEST_BYTES
        + (4 + most * (4 + 4 + 4 * k + SIGNATURE_BYTES))
        + (4 + k * (1 + DIGEST_BYTES + 4 + 4 + 4 + depth * DIGEST_BYTES))
        + (4 + 4 + (1 + k) * depth * DIGEST_BYTES)
    )


def check_transportable(parameters: ProtocolParameters) -> None:
    """Check that every message of a session fits into one call.

    The roster, the delivered bundles and the vectors travel in chunks and always
    fit; bundles and shares that one client sends travel whole.  Published edges travel
    in chunks, and grow with the square of the degree.

    Raises:
        RemoteProtocolError: BAD_CONFIG, with the largest number of neighbours that
            fits.  Give the task a degree, or fewer clients.
    """
    room, sizes = MAX_MESSAGE_BYTES - _ENVELOPE_BYTES, message_sizes(parameters)
    if sizes.edges > MAX_OBJECT_BYTES:
        raise ErrorCode.BAD_CONFIG.error(
            f"{parameters.degree} drawn neighbours make the published edges of one "
            f"client {sizes.edges} bytes, at most {MAX_OBJECT_BYTES} fit",
            fix="Lower degree or in_cap.",
        )
    if sizes.bundles > room:
        raise ErrorCode.BAD_CONFIG.error(
            f"{parameters.max_clients} clients on the complete graph make the bundles "
            f"of one client larger than {MAX_MESSAGE_BYTES} bytes; at most "
            f"{room // BUNDLE_BYTES} neighbours fit",
            fix="Give the task a degree, or lower max_clients.",
        )
