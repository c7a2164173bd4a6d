"""What can happen to a session: the inputs of the two state machines.

Names are past participles.  An event is a value that can be journalled: it holds
bytes, numbers and names, and, on the client, vectors only while they are in memory.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from secagg.errors import ErrorCode
from secagg.messages import SessionAborted, SumReleased
from secagg.parameters import SessionDescriptor
from secagg.primitives.secret_bytes import SecretBytes
from secagg.protocol.rounds import Round

__all__ = [
    "AbortRequested",
    "BundlesSent",
    "ClientEvent",
    "InputBound",
    "InputUploaded",
    "KeysAdvertised",
    "NoisedInputReady",
    "NoisedVector",
    "PlainInputReady",
    "PlainVector",
    "RosterReceived",
    "RoundClosed",
    "ServerEvent",
    "SessionEnded",
    "SessionOffered",
    "SharesReceived",
    "SharesRevealed",
    "SumComputed",
    "SurvivorsReceived",
]


# --- events of the server -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeysAdvertised:
    """Round 0: `sender` (authenticated by the transport) sent its advert."""

    sender: str
    advert: bytes


@dataclass(frozen=True, slots=True)
class BundlesSent:
    """Round 1: sealed bundles for every neighbour, in order of index."""

    sender: str
    bundles: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class InputUploaded:
    """Round 2: a complete masked input lies durably in the spool.

    Attributes:
        sender: Who uploaded it.
        digest: SHA-256 of the packed vector; the blob is stored under this name.
        size: Bytes of the packed vector.
    """

    sender: str
    digest: bytes
    size: int


@dataclass(frozen=True, slots=True)
class SharesRevealed:
    """Round 4: one share of 34 bytes per dealer of U2 that the sender holds."""

    sender: str
    shares: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RoundClosed:
    """The runner closes a round: everybody answered, or its deadline has passed.

    Attributes:
        round: The round that is closed; a stale event is refused.
        graph_seed: 32 fresh random bytes when round 0 is closed, else b"".
    """

    round: Round
    graph_seed: bytes = b""


@dataclass(frozen=True, slots=True)
class SumComputed:
    """The runner has removed the masks; the packed sum lies in the spool."""

    sum_hash: bytes
    size: int


@dataclass(frozen=True, slots=True)
class AbortRequested:
    """The operator, or the machinery (a full disk), ends the session."""

    code: ErrorCode
    reason: str


ServerEvent = (
    KeysAdvertised
    | BundlesSent
    | InputUploaded
    | SharesRevealed
    | RoundClosed
    | SumComputed
    | AbortRequested
)


# --- events of the client -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionOffered:
    """The server offered a session.

    Attributes:
        descriptor: The offer, decoded; its id is recomputed from it.
        identity: The client's own name, as in its certificate.
        seed: 32 fresh random bytes from which all secrets of the session derive.
    """

    descriptor: SessionDescriptor
    identity: str
    seed: SecretBytes


@dataclass(frozen=True, slots=True)
class RosterReceived:
    """Opens round 1: canonical bytes of the roster."""

    roster: bytes


@dataclass(frozen=True, slots=True)
class SharesReceived:
    """Opens round 2: bitmap of U2 and the bundles addressed to this client."""

    sharers: bytes
    bundles: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class PlainVector:
    """An input without noise, for tasks whose parameters hold no noise block.

    Attributes:
        residues: Unsigned integers in [0, m), shape (d,).
    """

    residues: npt.NDArray[np.unsignedinteger] = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class NoisedVector:
    """An input that carries its share of noise.

    Only `secagg.distributed_dp` makes these; `tests/architecture` checks it.

    Attributes:
        residues: Unsigned integers in [0, m), shape (d,), noise included.
        noise_block: The noise block under which the share was drawn.
    """

    residues: npt.NDArray[np.unsignedinteger] = field(repr=False)
    noise_block: bytes


@dataclass(frozen=True, slots=True)
class PlainInputReady:
    """The application supplied an input for a task without noise."""

    vector: PlainVector


@dataclass(frozen=True, slots=True)
class NoisedInputReady:
    """The application supplied an input for a task that demands noise."""

    vector: NoisedVector


@dataclass(frozen=True, slots=True)
class InputBound:
    """Replay only: the journal says that an input with this digest was masked."""

    digest: bytes


@dataclass(frozen=True, slots=True)
class SurvivorsReceived:
    """Opens round 4: bitmap of U3."""

    survivors: bytes


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The server says how the session ended, or the client's runner gives it up."""

    outcome: SumReleased | SessionAborted


ClientEvent = (
    SessionOffered
    | RosterReceived
    | SharesReceived
    | PlainInputReady
    | NoisedInputReady
    | InputBound
    | SurvivorsReceived
    | SessionEnded
)
