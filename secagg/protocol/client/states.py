"""The states of the client's side: one frozen value for each round.

A state holds only what its round needs, so that nothing else can leak.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey
from secagg.crypto.transcript import ClientBitmap
from secagg.errors import ErrorCode
from secagg.protocol.agreement import Signers
from secagg.protocol.client.checks import RosterView
from secagg.protocol.events import ClientOutput, MaskJob, Step
from secagg.protocol.graphs.neighbours import SharingGraph
from secagg.protocol.membership import Member
from secagg.protocol.messages import Advert, Bundles, Edges, Released, Round
from secagg.protocol.noise_terms import NoiseReader, NoiseTerms, no_noise
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.refund import ChargeOutcome
from secagg.protocol.share_bundles import HeldShares

# SHA-256 of the message that opened each round: repeats differ from contradictions.
Accepted = Mapping[Round, bytes]


@dataclass(frozen=True, slots=True)
class OfferFacts:
    """Public facts that hold for the whole session."""

    parameters: ProtocolParameters
    session_id: bytes
    ctx0: bytes
    identity: str
    read_noise: NoiseReader = field(default=no_noise, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Idle:
    """No session yet."""

    read_noise: NoiseReader = field(default=no_noise, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Advertised:
    """AdvertiseKeys is done: the advert is out, the roster is awaited."""

    ROUND: ClassVar[Round] = Round.ADVERTISE_KEYS

    facts: OfferFacts
    seed: SecretBytes
    advert: Advert
    member: Member | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """This client's signing key, and the keys that verify the signatures of others.

    Attributes:
        key: Signs for this client.
        signers: Names and keys of the clients that may have signed.
        ctx1: Context of the roster: all of U3 must have signed it (R5.3-13).
    """

    key: IdentityKey = field(repr=False, compare=False)
    signers: Signers
    ctx1: bytes


@dataclass(frozen=True, slots=True)
class EdgesChosen:
    """ChooseEdges is done: neighbours are drawn, and what others drew is awaited."""

    ROUND: ClassVar[Round] = Round.CHOOSE_EDGES

    facts: OfferFacts
    accepted: Accepted
    seed: SecretBytes
    roster: RosterView
    edges: Edges
    agreement: Agreement


@dataclass(frozen=True, slots=True)
class Shared:
    """ShareKeys is done: bundles are out, those of the others are awaited."""

    ROUND: ClassVar[Round] = Round.SHARE_KEYS

    facts: OfferFacts
    accepted: Accepted
    roster: RosterView
    channels: Mapping[int, SecretBytes] = field(repr=False)
    own_shares: bytes = field(repr=False)
    mask_private_key: SecretBytes
    self_mask_seed: SecretBytes
    layer_seeds: tuple[SecretBytes, ...]
    bundles: Bundles
    agreement: Agreement | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """Data of MaskedInputCollection: U2 and the shares of other clients.

    Attributes:
        roster_size: |U1|.
        graph: Which clients share with which.
        index: Own roster index.
        share_holders: U2.
        noise: What |U2| determines about the noise.
        ctx2: Context of U2.
        held: The shares of other clients.
        layer_seeds: g_i of each noise layer; some of them may be revealed.
        job: What masks the input.
        agreement: In profiles that distrust the server.
    """

    roster_size: int
    graph: SharingGraph
    index: int
    share_holders: ClientBitmap
    noise: NoiseTerms
    ctx2: bytes
    held: HeldShares
    layer_seeds: tuple[SecretBytes, ...]
    job: MaskJob
    agreement: Agreement | None = None


@dataclass(frozen=True, slots=True)
class ReadyForInput:
    """Uploads are open: an input is awaited, for the first time or again."""

    ROUND: ClassVar[Round] = Round.MASKED_INPUT_COLLECTION

    facts: OfferFacts
    accepted: Accepted
    delivered: Delivered


@dataclass(frozen=True, slots=True)
class ReadyForPlainInput(ReadyForInput):
    """The task has no noise block."""


@dataclass(frozen=True, slots=True)
class ReadyForNoisedInput(ReadyForInput):
    """Only a vector that carries its noise share is accepted."""


@dataclass(frozen=True, slots=True)
class Masked(ReadyForInput):
    """One input is bound to the masks of this session; U3 is awaited."""

    bound_input: bytes


@dataclass(frozen=True, slots=True)
class Signed:
    """Round 5 is done: this client has signed one U3 and signs no other.

    Attributes:
        facts: Public facts.
        accepted: Digest of the message that opened each round.
        survivors: Bitmap of the U3 that was signed.
        members: The same as indices.
        share_holders: |U2|.
        ctx1: Context of the roster: all of U3 must have signed it (R5.3-13).
        ctx3: What was signed.
        signature: 64 bytes, as sent.
        held: The shares of other clients.
        layer_seeds: g_i of each noise layer; some of them may be revealed.
        noise: What |U2| determines about the noise.
        signers: Names and keys of the clients that may have signed the same.
    """

    ROUND: ClassVar[Round] = Round.CONSISTENCY_CHECK

    facts: OfferFacts
    accepted: Accepted
    survivors: bytes
    members: ClientBitmap
    share_holders: int
    ctx1: bytes
    ctx3: bytes
    signature: bytes
    held: HeldShares
    layer_seeds: tuple[SecretBytes, ...]
    noise: NoiseTerms
    signers: Signers


@dataclass(frozen=True, slots=True)
class Answered:
    """Round 6 is done.  All keys are erased; the answer is kept for retries (R5.5-5).

    Attributes:
        facts: Public facts.
        accepted: Digest of the message that opened each round.
        share_holders: |U2|.
        survivors: Bitmap of the U3 that was answered; no other may follow.
        answer: The answer, as sent.
    """

    ROUND: ClassVar[Round] = Round.UNMASKING

    facts: OfferFacts
    accepted: Accepted
    share_holders: int
    survivors: bytes
    answer: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Completed:
    """A sum was released.

    Attributes:
        outcome: The outcome, as sent by the server.
        charge: What becomes of the session's charge.
    """

    ROUND: ClassVar[Round] = Round.FINISHED

    outcome: Released
    charge: ChargeOutcome


@dataclass(frozen=True, slots=True)
class Failed:
    """The session is over for this client; no key is left.

    Attributes:
        code: Why.
        reason: One sentence for the client's operator.
        charge: What becomes of the session's charge.
        next_step: What the client's operator can do, if this client itself refused
            something; not kept in its store.
    """

    ROUND: ClassVar[Round] = Round.FINISHED

    code: ErrorCode
    reason: str
    charge: ChargeOutcome
    next_step: str = field(default="", compare=False)


ClientState = (
    Idle
    | Advertised
    | EdgesChosen
    | Shared
    | ReadyForPlainInput
    | ReadyForNoisedInput
    | Masked
    | Signed
    | Answered
    | Completed
    | Failed
)
ClientStep = Step[ClientState, ClientOutput]
