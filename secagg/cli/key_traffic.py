"""Bytes that one client sends and receives for keys and shares.

The vector comes on top of it, and so do the frames around messages.  Sizes are those of
the messages themselves, if no client drops out.
"""

from dataclasses import dataclass, replace
from typing import Final

from secagg.crypto.shamir import SHARE_SIZE
from secagg.crypto.transcript import NODE_SIZE
from secagg.protocol.enrolment import Credential
from secagg.protocol.graphs.choice import GraphChoice
from secagg.protocol.messages import (
    BUNDLE_BYTES,
    Advert,
    Delivery,
    Neighbourhood,
    Roster,
    Survivors,
)
from secagg.protocol.parameters import Graph

# As in client-01017.
_NAME: Final = 12

_INDEX: Final = 4
_LENGTH: Final = 4
_SIGNATURE: Final = 64
_CREDENTIAL: Final = Credential(
    name="x" * _NAME,
    identity_key=bytes(32),
    not_before=0,
    not_after=0,
    serial=1,
    signature=bytes(_SIGNATURE),
)


@dataclass(frozen=True, slots=True)
class KeyTraffic:
    """Bytes of one client in one session, without its vector.

    Attributes:
        up: From the client to the server.
        down: From the server to the client; on sparse graphs at most, of a client that
            as many clients have drawn as it has drawn.
    """

    up: int
    down: int


def key_traffic(choice: GraphChoice, *, clients: int) -> KeyTraffic:
    """Return what a client of a full cohort sends and receives.

    Args:
        choice: The graph; with a quorum clients also sign, and read its signatures.
        clients: n, size of the roster.
    """
    advert = Advert("x" * _NAME, bytes(32), bytes(32), bytes(32))
    if choice.quorum is not None:
        advert = replace(advert, credential=_CREDENTIAL, signature=bytes(_SIGNATURE))
    roster = _roster_bytes(choice, len(advert.encode()), clients)
    bitmap = bytes(-(-clients // 8))
    holders = choice.degree or clients - 1  # besides the dealer itself
    dealers = choice.degree or clients
    up = len(advert.encode()) + holders * BUNDLE_BYTES
    up += -(-dealers // 8) + dealers * SHARE_SIZE
    delivery = len(Delivery(bitmap).encode()) + holders * BUNDLE_BYTES
    down = roster + delivery + len(Survivors(bitmap).encode())
    if choice.quorum is not None:
        up += 2 * _SIGNATURE  # over the bundles and over U3
        # Every client that signs in time is in the quorum, however few suffice.
        down += 2 * _LENGTH + clients * (_INDEX + _SIGNATURE)
    if choice.graph is Graph.K_OUT:
        up += choice.degree * _INDEX + _SIGNATURE
        down += _published_bytes(choice.degree, clients)
    return KeyTraffic(up, down)


def _published_bytes(degree: int, clients: int) -> int:
    """Return the size of what a client is shown of drawn neighbours, at most.

    As many clients draw it as it draws.
    """
    listed = degree * _INDEX + _SIGNATURE
    drawers = degree * (_INDEX + _LENGTH + listed)
    # One leaf of a tree is proven by a hash for each level.
    within = NODE_SIZE * (degree - 1).bit_length()
    places = degree * (1 + NODE_SIZE + 2 * _INDEX + _LENGTH + within)
    proofs = NODE_SIZE * (clients - 1).bit_length() + _proof_bytes(degree, clients)
    return NODE_SIZE + 4 * _LENGTH + drawers + places + proofs


def _roster_bytes(choice: GraphChoice, advert: int, clients: int) -> int:
    """Return the size of what a client reads of the roster.

    On a ring that is its neighbourhood, one arc of the roster: at each depth of the
    tree it lacks at most the node before the arc and the one behind it.
    """
    if choice.graph is not Graph.RING:
        return len(Roster((), b"").encode()) + clients * (_LENGTH + advert)
    shown = choice.degree + 1
    hashes = 2 * (clients - 1).bit_length() - 1
    head = len(Neighbourhood(clients, 0, {}, bytes(32), ()).encode())
    each = _INDEX + _LENGTH + advert
    return head + shown * each + NODE_SIZE * hashes


def _proof_bytes(shown: int, clients: int) -> int:
    """Return the size of a proof of so many leaves, at most.

    It depends on where they stand.  Of the nodes at depth j of the tree min(2^j, q) can
    lie above q known leaves, and each of these with one such child takes a hash.
    """
    depth, full = (clients - 1).bit_length(), shown.bit_length() - 1
    return NODE_SIZE * ((2 << full) + shown * (depth - 2 - full))
