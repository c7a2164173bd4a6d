"""One session in one process: the real cores, wired together without I/O.

Rule 1: clients and server are the state machines of `secagg.protocol`; only the network
        between them is omitted.
Rule 2: it has no clock and no deadlines: its caller closes the rounds.
Rule 3: every event passes through `step_server` or `to_client`.  A caller that
        overrides them, or calls `to_server` with the result of `message`, can lose,
        repeat, reorder, replace and measure any message.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.modular import add_into, reduce_in_place, zeros
from secagg.crypto.prg import add_masks
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import read_noise_terms, subtract_layers
from secagg.errors import ErrorCode, InternalError
from secagg.protocol import masking
from secagg.protocol.client import machine as client
from secagg.protocol.client.states import (
    ClientState,
    ReadyForInput,
    ReadyForNoisedInput,
    ReadyForPlainInput,
)
from secagg.protocol.context import view_of
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import (
    ClientEvent,
    ClientOutput,
    ComputeSum,
    DropClient,
    InputReady,
    MaskAndUpload,
    NoisyVector,
    PlainVector,
    Received,
    RoundClosed,
    Send,
    ServerEvent,
    ServerOutput,
    SessionOffered,
    SumComputed,
)
from secagg.protocol.membership import Membership
from secagg.protocol.messages import Envelope, Round, Upload
from secagg.protocol.noise_terms import NoiseReader
from secagg.protocol.packing import pack, packed_size, unpack
from secagg.protocol.parameters import Graph, ProtocolParameters
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.rounds import rounds_of
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.protocol.server.states import RosterFixed
from secagg.simulation.enrolled import membership_of

Residues = npt.NDArray[np.unsignedinteger[Any]]

# The time of every offer, in Unix seconds: 2027-01-15, 08:00 UTC.
OFFERED_AT: Final = 1_800_000_000


def identity_of(number: int) -> str:
    """Return the name of the n-th client; names sort like their numbers."""
    return f"client-{number:05d}"


def accepting(parameters: ProtocolParameters) -> ClientPolicy:
    """Return a policy that accepts any configuration."""
    return ClientPolicy(
        profiles=frozenset({parameters.profile}),
        graphs=frozenset(Graph),
        min_graph_bits=1,
        min_clients=2,
        max_clients=parameters.max_clients,
        min_survivors=2,
        max_dimension=parameters.dimension,
        require_majority=False,
        require_noise=False,
    )


@dataclass
class InProcessSession:
    """Both roles of one session, driven by method calls.

    Attributes:
        parameters: Of the session.
        inputs: One vector per client: residues, or for a task with noise the function
            that makes one with its share for a ctx2.
        policy: The limits of all clients; None lets them accept everything.
        session_number: Of the task.
        aggregator: Name of the server.
        task_id: Name of the task.
        seed_of: Returns the seed of a client's secrets, 32 bytes.
        server_nonce: 32 bytes.
        graph_seed: 32 bytes that order a ring.
        read_noise: Reads the noise block for a U2.
        takes_every_view: The server lies and compares no views (R5.3-14).
    """

    parameters: ProtocolParameters
    inputs: Sequence[Residues | Callable[[bytes], NoisyVector]]
    policy: ClientPolicy | None = None
    session_number: int = 1
    aggregator: str = "aggregator"
    task_id: str = "test-task"
    seed_of: Callable[[int], bytes] = lambda n: hashlib.sha256(b"%d" % n).digest()
    server_nonce: bytes = hashlib.sha256(b"nonce").digest()
    graph_seed: bytes = hashlib.sha256(b"graph").digest()
    read_noise: NoiseReader = read_noise_terms
    takes_every_view: bool = False

    _accepting: ClientPolicy = field(init=False, repr=False)
    descriptor: SessionDescriptor = field(init=False)
    server_state: server.ServerState = field(init=False)
    clients: dict[int, ClientState] = field(init=False)
    uploads: dict[bytes, bytes] = field(init=False, default_factory=dict)
    dropped: dict[str, str] = field(init=False, default_factory=dict)
    total: Residues | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Offer the session; no message is delivered yet."""
        self._accepting = accepting(self.parameters)
        self.descriptor = SessionDescriptor(
            aggregator=self.aggregator,
            task_id=self.task_id,
            session_number=self.session_number,
            server_nonce=self.server_nonce,
            session_end=OFFERED_AT + self.parameters.deadlines.longest_session,
            payload_hash=b"",
            parameters=self.parameters,
        )
        self.server_state = server_machine.start(
            self.descriptor,
            packed_bytes=self.packed_bytes,
            read_noise=self.read_noise,
        )
        self.clients = {
            number: client.start(self.read_noise) for number in range(len(self.inputs))
        }

    @property
    def packed_bytes(self) -> int:
        """Size of an upload."""
        return packed_size(self.parameters.dimension, self.parameters.bits)

    # --- messages -------------------------------------------------------------------

    def step_server(self, event: ServerEvent) -> tuple[ServerOutput, ...]:
        """Apply an event at the server, and return its outputs."""
        result = server_machine.step(self.server_state, event)
        self.server_state = result.state
        return result.outputs

    def to_server(self, event: ServerEvent) -> None:
        """Pass the server an event, and carry out its outputs."""
        for output in self.step_server(event):
            match output:
                case DropClient():
                    self.dropped[output.identity] = output.reason.value
                case ComputeSum():
                    self.total = self.compute_sum(output)
                    packed = pack(self.total, self.parameters.bits)
                    digest = hashlib.sha256(packed).digest()
                    self.to_server(SumComputed(digest, len(packed)))

    def to_client(self, number: int, event: ClientEvent) -> tuple[ClientOutput, ...]:
        """Apply an event at a client, and return what it would send."""
        policy = self.policy or self._accepting
        result = client.step(self.clients[number], event, policy=policy)
        self.clients[number] = result.state
        return result.outputs

    @property
    def roster(self) -> tuple[int, ...]:
        """Numbers of the clients of U1, in the order of the roster.

        On a ring that is their order there; elsewhere they ascend.
        """
        state = self.server_state
        if not isinstance(state, RosterFixed):
            raise TypeError("the session has no roster yet, or no more")
        number_of = {identity_of(number): number for number in self.clients}
        return tuple(number_of[each.identity] for each in state.cohort.roster.adverts)

    def index_of(self, number: int) -> int:
        """Return the roster index of a client of U1."""
        return self.roster.index(number)

    def fetch(self, number: int) -> Envelope | None:
        """Ask the server for a client's update."""
        return server_machine.update_for(self.server_state, identity_of(number))

    def compute_sum(self, job: ComputeSum) -> Residues:
        """Add up the uploads and remove the masks."""
        total = zeros(job.dimension, job.modulus)
        for _, digest in job.uploads:
            add_into(total, self.unpacked(self.uploads[digest]), job.modulus)
        add_masks(total, masking.removal_masks(job), job.modulus)
        subtract_layers(total, job.noise)
        return reduce_in_place(total, job.modulus)

    def unpacked(self, packed: bytes) -> Residues:
        """Return the vector in an upload."""
        parameters = self.parameters
        return unpack(packed, parameters.dimension, parameters.bits, parameters.modulus)

    # --- clients --------------------------------------------------------------------

    def offer(self, number: int) -> tuple[ClientOutput, ...]:
        """Offer the session to a client."""
        offered = SessionOffered(
            self.descriptor,
            identity_of(number),
            self.aggregator,
            SecretBytes(self.seed_of(number)),
            OFFERED_AT,
            self.membership(number),
        )
        return self.to_client(number, offered)

    def membership(self, number: int) -> Membership | None:
        """Return a client's membership, if the profile needs one."""
        if not self.parameters.profile.has_identities:
            return None
        return membership_of(identity_of(number), number + 1)

    def update(self, number: int) -> tuple[ClientOutput, ...]:
        """Let a client fetch its update, if there is one, and react to it."""
        envelope = self.fetch(number)
        if envelope is None:
            return ()
        outputs = self.to_client(number, Received(envelope))
        if isinstance(
            self.clients[number],
            ReadyForPlainInput | ReadyForNoisedInput,
        ):
            outputs += self.supply_input(number)
        return outputs

    def supply_input(self, number: int) -> tuple[ClientOutput, ...]:
        """Pass a client its vector."""
        given, state = self.inputs[number], self.clients[number]
        if not callable(given):
            return self.to_client(number, InputReady(PlainVector(given)))
        if not isinstance(state, ReadyForInput):
            raise InternalError("noise is drawn when the set U2 is known")
        vector = given(state.delivered.ctx2)
        return self.to_client(number, InputReady(vector))

    def message(self, number: int, output: ClientOutput) -> Received | None:
        """Return what the server receives for an output of a client."""
        match output:
            case Send():
                envelope = output.envelope
            case MaskAndUpload():
                masked = masking.mask_input(output.vector.residues, output.job)
                packed = pack(masked, self.parameters.bits)
                digest = hashlib.sha256(packed).digest()
                self.uploads[digest] = packed
                view, state = output.view, self.server_state
                if self.takes_every_view and isinstance(
                    state, server.MaskedInputCollection
                ):
                    view = view_of(state.ctx2, self.parameters.suite)
                named = Upload(len(packed), digest, view)
                envelope = Envelope.of(named)
            case _:
                return None
        return Received(envelope, identity_of(number))

    def send(self, number: int, outputs: tuple[ClientOutput, ...]) -> None:
        """Deliver a client's outputs to the server."""
        for output in outputs:
            event = self.message(number, output)
            if event is not None:
                self.to_server(event)

    def act(self, number: int, which: Round) -> tuple[ClientOutput, ...]:
        """Let a client do its work of a round, without sending."""
        if which is Round.ADVERTISE_KEYS:
            return self.offer(number)
        return self.update(number)

    def play(self, which: Round, clients: Sequence[int] | None = None) -> None:
        """Let clients act in a round and send; all of them by default."""
        for number in list(self.clients) if clients is None else clients:
            self.send(number, self.act(number, which))

    def close(self, which: Round) -> None:
        """Close a round at the server."""
        opening = which is Round.ADVERTISE_KEYS
        self.to_server(RoundClosed(which, self.graph_seed if opening else b""))


@dataclass
class SessionResult:
    """The outcome of a session.

    Attributes:
        total: The clean sum, or None after an abort.
        survivors: Numbers of the clients whose inputs are in it.
        code: Abort code of the server, or None.
        client_states: Final state of every client that did not drop out.
    """

    total: Residues | None
    survivors: tuple[int, ...]
    code: ErrorCode | None
    client_states: dict[int, ClientState]


def run_session(
    session: InProcessSession, lost_before: Mapping[int, Round] | None = None
) -> SessionResult:
    """Run a session to its end.

    Args:
        session: Fresh, as constructed.
        lost_before: For a client's number, the first round in which it sends nothing. A
            client lost before FINISHED only misses the result.
    """
    lost = dict(lost_before or {})

    def alive(which: Round) -> list[int]:
        return [n for n in session.clients if lost.get(n, Round.FINISHED + 1) > which]

    for which in rounds_of(session.parameters.profile):
        if not server_machine.is_over(session.server_state):
            session.play(which, alive(which))
            session.close(which)
    for number in alive(Round.FINISHED):
        session.update(number)
    state = session.server_state
    survivors: tuple[int, ...] = ()
    if isinstance(state, server.Completed):
        uploaded = state.session.accepted[Round.MASKED_INPUT_COLLECTION]
        survivors = tuple(n for n in session.clients if identity_of(n) in uploaded)
    return SessionResult(
        total=session.total,
        survivors=survivors,
        code=state.outcome.code if isinstance(state, server.Failed) else None,
        client_states={n: session.clients[n] for n in alive(Round.FINISHED)},
    )
