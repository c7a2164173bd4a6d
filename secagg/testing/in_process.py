"""One session in one process: the real cores, wired together without I/O.

The driver delivers every message by itself and lets a test lose clients, repeat,
reorder or replace messages at any point.  Uploads are arrays, added up in memory;
packing, storage and transport are not involved.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.errors import ErrorCode
from secagg.messages import (
    RosterPublished,
    ServerUpdate,
    SharesDelivered,
    UnmaskRequested,
)
from secagg.parameters import ProtocolParameters, SessionDescriptor
from secagg.policy import ClientPolicy
from secagg.primitives.modular import add_into, word_dtype, zeros
from secagg.primitives.prg import add_masks
from secagg.primitives.secret_bytes import SecretBytes
from secagg.protocol import client, masking, server
from secagg.protocol.client_states import ClientState
from secagg.protocol.events import (
    BundlesSent,
    ClientEvent,
    InputUploaded,
    KeysAdvertised,
    NoisedInputReady,
    NoisedVector,
    PlainInputReady,
    PlainVector,
    RosterReceived,
    RoundClosed,
    ServerEvent,
    SessionEnded,
    SessionOffered,
    SharesReceived,
    SharesRevealed,
    SumComputed,
    SurvivorsReceived,
)
from secagg.protocol.outputs import (
    ClientOutput,
    ComputeSum,
    DropClient,
    SendAdvert,
    SendBundles,
    SendShares,
    UploadMasked,
)
from secagg.protocol.rounds import Round
from secagg.protocol.server_states import ServerState

__all__ = [
    "LENIENT_POLICY",
    "InProcessSession",
    "SessionResult",
    "event_of",
    "identity_of",
    "one_hot",
    "parameters_for",
    "run_session",
]

Residues = npt.NDArray[np.unsignedinteger[Any]]

# For tests that are not about policy: every floor at its lowest.
LENIENT_POLICY = ClientPolicy(
    min_clients=2, min_survivors=2, require_majority=False, require_noise=False
)


def identity_of(number: int) -> str:
    """Return the name of the n-th test client; names sort like their numbers."""
    return f"secagg://test/client/{number:05d}"


def parameters_for(
    clients: int,
    *,
    dimension: int,
    threshold: int,
    **overrides: Any,  # noqa: ANN401 - any field of the parameters
) -> ProtocolParameters:
    """Return parameters that tolerate every loss down to the threshold."""
    fields: dict[str, Any] = {
        "modulus": 1 << 20,
        "dimension": dimension,
        "min_clients": max(2, threshold),
        "max_clients": clients,
        "threshold": threshold,
        "min_survivors": max(2, threshold),
        "max_dropouts": clients,
    }
    return ProtocolParameters(**(fields | overrides))


def one_hot(number: int, dimension: int, modulus: int) -> Residues:
    """Return a vector that is m-1 at its own coordinate and 0 elsewhere.

    In the sum, a coordinate that is not m-1 for a survivor and 0 otherwise means a
    loss, a replay or a mix-up.
    """
    vector = zeros(dimension, modulus)
    vector[number % dimension] = modulus - 1
    return vector


def event_of(update: ServerUpdate) -> ClientEvent:
    """Return the client's event for an update of the server."""
    match update:
        case RosterPublished(roster):
            return RosterReceived(roster)
        case SharesDelivered(sharers, bundles):
            return SharesReceived(sharers, bundles)
        case UnmaskRequested(survivors):
            return SurvivorsReceived(survivors)
    return SessionEnded(update)


@dataclass
class SessionResult:
    """How a session ended.

    Attributes:
        total: The clean sum, or None after an abort.
        survivors: Numbers of the clients whose inputs are in it.
        code: Abort code of the server, or None.
        client_states: Final state of every client that was not lost.
    """

    total: Residues | None
    survivors: tuple[int, ...]
    code: ErrorCode | None
    client_states: dict[int, ClientState]


@dataclass
class InProcessSession:
    """Both roles of one session, driven by method calls.

    Attributes:
        parameters: Of the session.
        inputs: One vector of residues per client.
        policy: What all clients insist on.
        session_number: Of the task.
    """

    parameters: ProtocolParameters
    inputs: Sequence[Residues]
    policy: ClientPolicy = LENIENT_POLICY
    session_number: int = 1
    task_id: str = "test-task"
    seed_of: Callable[[int], bytes] = lambda n: hashlib.sha256(b"%d" % n).digest()

    descriptor: SessionDescriptor = field(init=False)
    server_state: ServerState = field(init=False)
    clients: dict[int, ClientState] = field(init=False)
    journal: list[ServerEvent] = field(init=False, default_factory=list)
    client_journals: dict[int, list[ClientEvent]] = field(init=False)
    uploads: dict[bytes, Residues] = field(init=False, default_factory=dict)
    dropped: dict[str, str] = field(init=False, default_factory=dict)
    total: Residues | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Offer the session; no message is delivered yet."""
        self.descriptor = SessionDescriptor(
            task_id=self.task_id,
            session_number=self.session_number,
            server_nonce=hashlib.sha256(b"nonce").digest(),
            payload_hash=b"",
            parameters=self.parameters,
        )
        self.server_state = server.start(
            self.descriptor, packed_bytes=self.packed_bytes
        )
        self.clients = {number: client.start() for number in range(len(self.inputs))}
        self.client_journals = {number: [] for number in self.clients}

    @property
    def packed_bytes(self) -> int:
        """Size of an upload: here words are not packed."""
        return self.parameters.dimension * word_dtype(self.parameters.modulus).itemsize

    def to_server(self, event: ServerEvent) -> None:
        """Apply an event at the server, journal it, and carry out a sum at once."""
        result = server.step(self.server_state, event)
        self.server_state = result.state
        self.journal.append(event)
        for output in result.outputs:
            if isinstance(output, DropClient):
                self.dropped[output.identity] = output.reason.value
            if isinstance(output, ComputeSum):
                self.total = self.compute_sum(output)
                digest = hashlib.sha256(self.total.tobytes()).digest()
                self.to_server(SumComputed(digest, self.packed_bytes))

    def to_client(self, number: int, event: ClientEvent) -> tuple[ClientOutput, ...]:
        """Apply an event at a client, journal it, and return what it would send."""
        result = client.step(self.clients[number], event, policy=self.policy)
        self.clients[number] = result.state
        self.client_journals[number].append(event)
        return result.outputs

    def send(self, number: int, outputs: tuple[ClientOutput, ...]) -> None:
        """Deliver a client's outputs to the server."""
        for output in outputs:
            event = self.server_event(number, output)
            if event is not None:
                self.to_server(event)

    def server_event(self, number: int, output: ClientOutput) -> ServerEvent | None:
        """Return the server's event for an output of a client."""
        sender = identity_of(number)
        match output:
            case SendAdvert(advert):
                return KeysAdvertised(sender, advert)
            case SendBundles(bundles):
                return BundlesSent(sender, bundles)
            case UploadMasked(vector, job):
                masked = masking.mask_input(vector.residues, job)
                digest = hashlib.sha256(masked.tobytes()).digest()
                self.uploads[digest] = masked
                return InputUploaded(sender, digest, masked.nbytes)
            case SendShares(shares):
                return SharesRevealed(sender, shares)
        return None

    def offer(self, number: int) -> tuple[ClientOutput, ...]:
        """Offer the session to a client."""
        seed = SecretBytes(self.seed_of(number))
        return self.to_client(
            number, SessionOffered(self.descriptor, identity_of(number), seed)
        )

    def update(self, number: int) -> tuple[ClientOutput, ...]:
        """Let a client fetch its update, if there is one, and react to it."""
        message = server.update_for(self.server_state, identity_of(number))
        if message is None:
            return ()
        outputs = self.to_client(number, event_of(message))
        if isinstance(
            self.clients[number],
            client.ReadyForPlainInput | client.ReadyForNoisedInput,
        ):
            outputs += self.supply_input(number)
        return outputs

    def supply_input(self, number: int) -> tuple[ClientOutput, ...]:
        """Hand a client its vector, as the session's parameters demand it."""
        block, residues = self.parameters.noise_block, self.inputs[number]
        if block:
            return self.to_client(
                number, NoisedInputReady(NoisedVector(residues, block))
            )
        return self.to_client(number, PlainInputReady(PlainVector(residues)))

    def close(self, which: Round) -> None:
        """Close a round at the server."""
        seed = hashlib.sha256(b"graph").digest()
        self.to_server(
            RoundClosed(which, seed if which is Round.ADVERTISE_KEYS else b"")
        )

    def compute_sum(self, job: ComputeSum) -> Residues:
        """Add up the uploads and remove the masks."""
        total = zeros(job.dimension, job.modulus)
        for _, digest in job.uploads:
            add_into(total, self.uploads[digest], job.modulus)
        add_masks(total, masking.removal_masks(job), job.modulus)
        return total


ROUNDS = (
    Round.ADVERTISE_KEYS,
    Round.SHARE_KEYS,
    Round.MASKED_INPUT_COLLECTION,
    Round.UNMASKING,
)


def run_session(
    session: InProcessSession, lost_before: Mapping[int, Round] | None = None
) -> SessionResult:
    """Run a session to its end.

    Args:
        session: Fresh, as constructed.
        lost_before: For a client's number, the first round in which it is silent.
            A client lost before FINISHED only misses the result.
    """
    lost = dict(lost_before or {})

    def alive(which: Round) -> list[int]:
        return [n for n in session.clients if lost.get(n, Round.FINISHED + 1) > which]

    for which in ROUNDS:
        if server.is_over(session.server_state):
            break
        for number in alive(which):
            first = which is Round.ADVERTISE_KEYS
            session.send(
                number, session.offer(number) if first else session.update(number)
            )
        session.close(which)
    for number in alive(Round.FINISHED):
        session.update(number)
    code = (
        session.server_state.code
        if isinstance(session.server_state, server.Aborted)
        else None
    )
    survivors: tuple[int, ...] = ()
    if isinstance(session.server_state, server.Completed):
        names = [advert.identity for advert in session.server_state.roster.adverts]
        survivors = tuple(
            int(names[index].rsplit("/", 1)[1])
            for index in sorted(session.server_state.survivors)
        )
    return SessionResult(
        total=session.total,
        survivors=survivors,
        code=code,
        client_states={n: session.clients[n] for n in alive(Round.FINISHED)},
    )
