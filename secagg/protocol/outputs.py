"""Outputs of the state machines, which their runner carries out.

Names are imperatives.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode
from secagg.protocol.context import view_of
from secagg.protocol.events import NoisyVector, PlainVector
from secagg.protocol.messages import Envelope
from secagg.protocol.rounds import DropReason

# --- outputs of the server ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DropClient:
    """A client is out; telemetry only, the state already says so."""

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
        sharers: |U2|; determines how much.
        seeds: For each layer of each client the number of the layer, and its seed bound
            to ctx2.
    """

    noise_block: bytes
    sharers: int
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
        """Return what travels with the upload, 32 bytes (R5.3-14)."""
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
