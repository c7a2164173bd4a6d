"""The states of the server's side: one frozen value per round.

A state holds what its round needs and nothing else.  The only mutable parts are the
collectors of the open round, written by the last statement of a handler.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from secagg.errors import ErrorCode
from secagg.messages import Advert, Roster, SumReleased
from secagg.parameters import SessionDescriptor
from secagg.protocol.neighbors import SharingGraph
from secagg.protocol.outputs import ComputeSum, ServerOutput, Step

__all__ = [
    "Aborted",
    "AdvertiseKeys",
    "Completed",
    "MaskedInputCollection",
    "Rostered",
    "ServerState",
    "ServerStep",
    "ShareKeys",
    "Summing",
    "Unmasking",
]


@dataclass(frozen=True, slots=True)
class AdvertiseKeys:
    """Round 0: invited clients advertise their public keys."""

    descriptor: SessionDescriptor
    packed_bytes: int
    invited: frozenset[str] | None
    adverts: dict[str, Advert]  # U1, so far
    keys: set[bytes]  # every public key in `adverts`


@dataclass(frozen=True, slots=True)
class Rostered:
    """What holds from the moment U1 is fixed."""

    descriptor: SessionDescriptor
    packed_bytes: int
    roster: Roster
    index_of: Mapping[str, int]
    graph: SharingGraph
    ctx1: bytes


@dataclass(frozen=True, slots=True)
class ShareKeys(Rostered):
    """Round 1: clients of U1 send sealed shares to their neighbours."""

    bundles: dict[int, bytes] = field(repr=False)  # U2, so far


@dataclass(frozen=True, slots=True)
class MaskedInputCollection(Rostered):
    """Round 2: clients of U2 upload their masked inputs."""

    sharers: frozenset[int]  # U2
    ctx2: bytes
    bundles: Mapping[int, bytes] = field(repr=False)
    uploads: dict[int, bytes]  # U3, so far: digest by index


@dataclass(frozen=True, slots=True)
class Unmasking(Rostered):
    """Round 4: clients of U3 reveal one share per dealer."""

    sharers: frozenset[int]
    survivors: frozenset[int]  # U3
    ctx2: bytes
    uploads: Mapping[int, bytes]
    shares: dict[int, bytes] = field(repr=False)  # U5, so far


@dataclass(frozen=True, slots=True)
class Summing(Rostered):
    """All secrets are rebuilt; the runner removes the masks."""

    survivors: frozenset[int]
    job: ComputeSum = field(repr=False)


@dataclass(frozen=True, slots=True)
class Completed(Rostered):
    """A sum exists; every secret is gone."""

    survivors: frozenset[int]
    released: SumReleased


@dataclass(frozen=True, slots=True)
class Aborted:
    """The session is over without a sum; every secret is gone."""

    code: ErrorCode
    reason: str


ServerState = (
    AdvertiseKeys
    | ShareKeys
    | MaskedInputCollection
    | Unmasking
    | Summing
    | Completed
    | Aborted
)
ServerStep = Step[ServerState, ServerOutput]
