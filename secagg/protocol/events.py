"""Events of a session: the inputs of the two state machines.

Names are past participles.  A message arrives as `Received`; the other events are local
and are never sent.  An event is a value that can be journalled: it holds bytes, numbers
and names.  On the client it may hold a vector, only while it is in memory.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.membership import Membership
from secagg.protocol.messages import Envelope, Round

# --- events of both -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    """A message arrived.

    Attributes:
        envelope: The message, unread.
        sender: Who sent it, as authenticated by the transport; "" for the server.
    """

    envelope: Envelope
    sender: str = ""


@dataclass(frozen=True, slots=True)
class AbortRequested:
    """The operator, the application or the runner ends the session.

    Attributes:
        code: Why.
        reason: One sentence for people.
        discard_unmasked: On the server, whether to end the session even when the
            secrets of U3 are rebuilt. Every client of U3 then pays its charge without a
            sum; False refuses the request in that case.
    """

    code: ErrorCode
    reason: str
    discard_unmasked: bool = False


# --- events of the server -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoundClosed:
    """The runner closes a round: all clients answered, or its deadline has passed.

    Attributes:
        round: The round that is closed; a stale event is refused.
        graph_seed: 32 fresh random bytes when AdvertiseKeys is closed, else b"".
        missing: When MaskedInputCollection is closed, roster indices of the clients
            whose accepted upload is no longer in the spool, ascending; else ().
    """

    round: Round
    graph_seed: bytes = b""
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SumComputed:
    """The runner has removed the masks; the packed sum is in the spool.

    Attributes:
        sum_hash: SHA-256 of the packed sum.
        size: Its bytes.
        kept_until: Time until which it can be fetched, in Unix seconds; 0 without a
            stated time.
    """

    sum_hash: bytes
    size: int
    kept_until: int = 0


ServerEvent = Received | RoundClosed | SumComputed | AbortRequested


# --- events of the client -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionOffered:
    """The server offered a session.

    Attributes:
        descriptor: The offer, decoded; its id is recomputed from it.
        identity: The client's own name, as in its certificate.
        aggregator: The server's name, as its connection has proven it.
        seed: 32 fresh random bytes from which all secrets of the session derive.
        now: The client's time of the offer, in Unix seconds.
        membership: The client's credential and pinned key; None for a client without
            them, which takes part in profile 1 only.
    """

    descriptor: SessionDescriptor
    identity: str
    aggregator: str
    seed: SecretBytes
    now: int
    membership: Membership | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PlainVector:
    """An input without noise, for tasks whose parameters hold no noise block.

    Attributes:
        residues: Unsigned integers in [0, m), shape (d,).
    """

    residues: npt.NDArray[np.unsignedinteger] = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class NoisyVector:
    """An input that carries its share of noise.

    Only `secagg.distributed_dp` makes these; `tests/architecture` checks it.

    Attributes:
        residues: Unsigned integers in [0, m), shape (d,), noise included.
        noise_block: The noise block under which the share was drawn.
        mask_context: ctx2 of the session for whose U2 it was drawn: another U2, or
            another session of the task, takes other noise.
    """

    residues: npt.NDArray[np.unsignedinteger] = field(repr=False)
    noise_block: bytes
    mask_context: bytes


@dataclass(frozen=True, slots=True)
class InputReady:
    """The application supplied its input.

    The vector's class, which keys the client's table of transitions, decides whether a
    session accepts it.
    """

    vector: PlainVector | NoisyVector


@dataclass(frozen=True, slots=True)
class InputBound:
    """Replay only: the journal holds the digest of a masked input."""

    digest: bytes


ClientEvent = SessionOffered | Received | InputReady | InputBound | AbortRequested
