"""What one client sends and receives for keys and shares, in bytes.

The vector comes on top of it, and so do the frames around messages.  Sizes are those of
the messages themselves, if nobody is lost; for profiles whose
messages are not all part of this release they follow PROTOCOL's layouts.
"""

from dataclasses import dataclass
from typing import Final

from secagg.graph_choice import GraphChoice
from secagg.messages import BUNDLE_BYTES, Advert, Delivery, Roster, Survivors
from secagg.parameters import Graph
from secagg.primitives.share_encoding import SHARE_SIZE

__all__ = ["KeyTraffic", "key_traffic"]

# As in secagg://site/client/1017.
_NAME: Final = 26

_INDEX: Final = 4
_SIGNATURE: Final = 64


@dataclass(frozen=True, slots=True)
class KeyTraffic:
    """Bytes of one client in one session, without its vector.

    Attributes:
        up: From the client to the server.
        down: From the server to the client.
    """

    up: int
    down: int


def key_traffic(choice: GraphChoice, *, clients: int) -> KeyTraffic:
    """Return what a client of a full cohort sends and receives.

    Args:
        choice: The graph; with a quorum clients also sign, and read its signatures.
        clients: n, size of the roster.
    """
    signature = b"" if choice.quorum is None else bytes(_SIGNATURE)
    advert = Advert("x" * _NAME, bytes(32), bytes(32), bytes(32), signature=signature)
    seed = b"" if choice.graph is Graph.COMPLETE else bytes(32)
    every = len(Roster((advert,)).encode()) - len(Roster(()).encode())
    roster = len(Roster((), seed).encode()) + clients * every
    bitmap = bytes(-(-clients // 8))
    holders = choice.degree or clients - 1  # besides the dealer itself
    dealers = choice.degree or clients
    up = len(advert.encode()) + holders * BUNDLE_BYTES
    up += -(-dealers // 8) + dealers * SHARE_SIZE
    delivery = len(Delivery(bitmap).encode()) + holders * BUNDLE_BYTES
    down = roster + delivery + len(Survivors(bitmap).encode())
    if choice.quorum is not None:
        up += 2 * _SIGNATURE  # over the bundles and over U3
        down += _INDEX + choice.quorum * (_INDEX + _SIGNATURE)
    if choice.graph is Graph.K_OUT:
        chosen = choice.degree * _INDEX + _SIGNATURE
        up += chosen
        # As many draw this client as it draws, on average; each shows its signed list.
        down += choice.degree * (_INDEX + chosen)
    return KeyTraffic(up, down)
