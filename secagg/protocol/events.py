"""Events and outputs of the two state machines.

Names of events are past participles.  A message arrives as `Received`; the other events
are local and are never sent.  An event is a value that can be journalled: it holds
bytes, numbers and names.  On the client it may hold a vector, only while it is in
memory.

Names of outputs are imperatives; the runner of the machine carries them out.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode
from secagg.protocol.context import view_of
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.membership import Membership
from secagg.protocol.messages import Envelope, Round
from secagg.protocol.rounds import DropReason

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
        reason: One sentence for the operator.
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


def input_digest(vector: PlainVector | NoisyVector) -> bytes:
    """Return 32 bytes that bind an input to a session (PROTOCOL §12)."""
    residues = vector.residues
    little_endian = residues.astype(residues.dtype.newbyteorder("<"), copy=False)
    return hashlib.sha256(little_endian.tobytes()).digest()


# --- outputs of the server ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DropClient:
    """A client has dropped out; for telemetry only, since the state records it."""

    identity: str
    reason: DropReason


@dataclass(frozen=True, slots=True)
class ShareDisputed:
    """A share does not belong to the secret that its dealer committed to.

    One of the two lies, if there are at most as many colluders as assumed.

    Attributes:
        dealer: Whose secret was rebuilt from the other shares.
        holder: The client that revealed the share.
    """

    dealer: str
    holder: str


@dataclass(frozen=True, slots=True)
class DealerFailed:
    """A secret could not be rebuilt, which ends the session.

    Attributes:
        dealer: The owner of the secret.
        is_proven: Whether the dealer must be corrupt. An honest dealer's secret would
            then have been rebuilt from these answers, whatever the colluders reveal.
            Otherwise they may have framed it.
    """

    dealer: str
    is_proven: bool


@dataclass(frozen=True, slots=True)
class SurvivorSeed:
    """A reconstructed self-mask seed of a client in U3."""

    index: int
    seed: SecretBytes


@dataclass(frozen=True, slots=True)
class DroppedKey:
    """A reconstructed mask key of a client in U2 but not in U3.

    Attributes:
        index: The dropped client.
        private_key: Its X25519 private key s^SK.
        peers: Its neighbours in U3, as (index, masking public key).
    """

    index: int
    private_key: SecretBytes
    peers: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class NoiseRemoval:
    """Layers of noise that survivors have revealed, to be subtracted from the sum.

    Attributes:
        noise_block: Of the session; determines how noise is drawn.
        share_holders: |U2|; determines how much.
        seeds: For each layer of each client the number of the layer, and its seed bound
            to ctx2.
    """

    noise_block: bytes
    share_holders: int
    seeds: tuple[tuple[int, SecretBytes], ...]


@dataclass(frozen=True, slots=True)
class ComputeSum:
    """Add the uploads of U3, remove masks and noise layers, answer `SumComputed`.

    Attributes:
        session_id: For key derivation.
        mask_context: ctx2.
        modulus: m.
        dimension: d.
        suite: Named algorithms.
        uploads: Digest of each survivor's upload, by index.
        survivor_seeds: One per client of U3.
        dropped_keys: One per client of U2 but not in U3.
        noise: What to subtract of the noise; None for nothing.
    """

    session_id: bytes
    mask_context: bytes
    modulus: int
    dimension: int
    suite: CipherSuite
    uploads: tuple[tuple[int, bytes], ...]
    survivor_seeds: tuple[SurvivorSeed, ...]
    dropped_keys: tuple[DroppedKey, ...]
    noise: NoiseRemoval | None = None


# The server sends nothing: clients fetch the value of `server.update_for`.
ServerOutput = DropClient | ShareDisputed | DealerFailed | ComputeSum


# --- outputs of the client ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send this message to the server."""

    envelope: Envelope


@dataclass(frozen=True, slots=True)
class MaskJob:
    """The keys that mask one input: own seed, own mask key, neighbours in U2.

    Attributes:
        session_id: For key derivation.
        mask_context: ctx2.
        modulus: m.
        suite: Named algorithms.
        index: Own roster index.
        self_mask_seed: b_u.
        mask_private_key: s_u^SK.
        peers: Neighbours in U2, as (index, masking public key).
    """

    session_id: bytes
    mask_context: bytes
    modulus: int
    suite: CipherSuite
    index: int
    self_mask_seed: SecretBytes
    mask_private_key: SecretBytes
    peers: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True, eq=False)
class MaskAndUpload:
    """Mask the vector by `masking.mask_input`, pack and upload it."""

    vector: PlainVector | NoisyVector
    job: MaskJob

    @property
    def view(self) -> bytes:
        """Return the view that travels with the upload, 32 bytes (R5.3-14)."""
        return view_of(self.job.mask_context, self.job.suite)


@dataclass(frozen=True, slots=True)
class Finish:
    """The session is over; `code` is None when a sum was released."""

    code: ErrorCode | None
    reason: str


ClientOutput = Send | MaskAndUpload | Finish

_State = TypeVar("_State")
_Output = TypeVar("_Output")


@dataclass(frozen=True, slots=True)
class Step(Generic[_State, _Output]):
    """The state after an event, and the outputs to carry out.

    Persist the event first, then carry out the outputs, so that no restart loses a
    message that was sent.

    Attributes:
        state: The state after the event.
        outputs: What to do.
        is_repeat: Whether the event repeated an accepted message: nothing has changed
            and there is nothing to persist.
    """

    state: _State
    outputs: tuple[_Output, ...] = ()
    is_repeat: bool = False
