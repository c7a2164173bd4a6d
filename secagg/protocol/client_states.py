"""The states of the client's side: one frozen value per round.

A state holds what its round needs and nothing else: what it does not hold, it cannot
leak, log or answer with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from secagg.errors import ErrorCode
from secagg.messages import Advert, Roster, SumReleased
from secagg.parameters import ProtocolParameters
from secagg.primitives.secret_bytes import SecretBytes
from secagg.protocol.neighbors import SharingGraph
from secagg.protocol.outputs import ClientOutput, MaskJob, Step
from secagg.protocol.share_bundles import HeldShares

__all__ = [
    "Aborted",
    "Accepted",
    "Advertised",
    "Answered",
    "ClientState",
    "ClientStep",
    "Delivered",
    "Finished",
    "Idle",
    "Masked",
    "ReadyForNoisedInput",
    "ReadyForPlainInput",
    "SessionFacts",
    "Shared",
]


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """Public facts that hold for the whole session."""

    parameters: ProtocolParameters
    session_id: bytes
    ctx0: bytes
    identity: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """Digests of the messages accepted so far, to tell repeats from contradictions."""

    roster: bytes
    delivery: bytes = b""
    survivors: bytes = b""


@dataclass(frozen=True, slots=True)
class Idle:
    """No session yet."""


@dataclass(frozen=True, slots=True)
class Advertised:
    """Round 0 is done: the advert is out, the roster is awaited."""

    facts: SessionFacts
    seed: SecretBytes
    advert: Advert


@dataclass(frozen=True, slots=True)
class Shared:
    """Round 1 is done: bundles are out, those of the others are awaited."""

    facts: SessionFacts
    accepted: Accepted
    roster: Roster
    graph: SharingGraph
    index: int
    ctx1: bytes
    channels: Mapping[int, SecretBytes] = field(repr=False)
    own_shares: bytes = field(repr=False)
    mask_private_key: SecretBytes
    self_mask_seed: SecretBytes
    bundles: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Delivered:
    """What both kinds of readiness and `Masked` hold: U2 and the shares of others."""

    facts: SessionFacts
    accepted: Accepted
    roster_size: int
    index: int
    sharers: frozenset[int]  # U2
    ctx2: bytes
    held: HeldShares
    job: MaskJob


@dataclass(frozen=True, slots=True)
class ReadyForPlainInput(Delivered):
    """Round 2 is open; the task has no noise block."""


@dataclass(frozen=True, slots=True)
class ReadyForNoisedInput(Delivered):
    """Round 2 is open; only a vector that carries its noise share can go out."""


@dataclass(frozen=True, slots=True)
class Masked(Delivered):
    """One input is bound to the masks of this session; U3 is awaited."""

    bound_input: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """Round 4 is done.  All keys are gone; the answer is kept for retries only."""

    facts: SessionFacts
    accepted: Accepted
    answer: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Finished:
    """A sum was released."""

    outcome: SumReleased


@dataclass(frozen=True, slots=True)
class Aborted:
    """The session is over for this client; no key is left."""

    code: ErrorCode
    reason: str


ClientState = (
    Idle
    | Advertised
    | Shared
    | ReadyForPlainInput
    | ReadyForNoisedInput
    | Masked
    | Answered
    | Finished
    | Aborted
)
ClientStep = Step[ClientState, ClientOutput]
