"""Sessions of many clients in one process: the real cores, wired together without I/O.

Rule 1: clients and server are the state machines of `secagg.protocol`; only the network
        between them is omitted.
Rule 2: it has no clock and no deadlines: its caller closes the rounds.
Rule 3: every event passes through `step_server` or `to_client`.  A caller that
        overrides them, or calls `to_server` with the result of `message`, can lose,
        repeat, reorder, replace and measure any message.
Rule 4: in a measured session client i's input is one at coordinate i mod d and zero
        elsewhere, so that an input counted twice or swapped for another shows in the
        sum.  With a noise block it is encoded, noise included.  The noise that
        survivors remove is drawn a second time from the clients' secrets.
Rule 5: its memory is O(d) beside the clients' keys.  An upload is added to the sum as
        it arrives, because the simulator knows that an uploading client survives.
Rule 6: dropouts are spread evenly over the rounds in which a client sends a message, so
        that every round has some.  A plan of them is data: the same entropy gives the
        same plan.

Clients are enrolled by an issuer whose key is public. Keys derive from public labels,
so that a simulated cohort is the same in every process. Only simulations and tests
trust this issuer.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from secagg.crypto.entropy import Entropy
from secagg.crypto.modular import UnsignedArray, add_into, reduce_in_place, zeros
from secagg.crypto.prg import add_masks
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey
from secagg.distributed_dp import NoisyTask, read_noise_terms, subtract_layers
from secagg.errors import ErrorCode, SessionAbortedError
from secagg.pki.key_files import PublishedEnrolment
from secagg.protocol import packing
from secagg.protocol.client import machine as client
from secagg.protocol.client.states import (
    ClientState,
    EdgesChosen,
    ReadyForInput,
    ReadyForNoisedInput,
    ReadyForPlainInput,
    Shared,
)
from secagg.protocol.context import view_of
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import (
    ClientIdentity,
    Credential,
    IssuedCredential,
    RevocationList,
)
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
from secagg.protocol.messages import Advert, Envelope, Round, Shares, Upload
from secagg.protocol.noise_terms import NoiseCertificate, NoiseReader, NoiseSecrets
from secagg.protocol.packing import pack, packed_size, unpack
from secagg.protocol.parameters import Graph, ProtocolParameters
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.profiles import Profile, Trust
from secagg.protocol.rounds import ROUNDS, rounds_of
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.protocol.server.states import RosterFixed
from secagg.simulation.measurement import CostReport, SimulationMeter, held_bytes

TRUST_DOMAIN: Final = "simulation"
# From 2020 to 2100: as long as no test is about time.
_NOT_BEFORE: Final = 1_577_836_800
_NOT_AFTER: Final = 4_102_444_800


def _simulated_key(label: str) -> IdentityKey:
    """Return the key of a label, the same in every run."""
    return IdentityKey.from_bytes(SecretBytes(sha256(label.encode()).digest()))


@cache
def _issuer() -> IdentityKey:
    return _simulated_key("the issuer of simulations")


def simulated_trust() -> Trust:
    """Return the enrolment part of a simulated session's parameters."""
    return Trust(TRUST_DOMAIN, _issuer().public_bytes)


def published_in_simulation(
    number: int = 0, *serials: int, made_at: int = _NOT_BEFORE
) -> PublishedEnrolment:
    """Return what a simulated aggregator publishes.

    Args:
        number: Of the revocation list; 0 for none.
        serials: Revoked, ascending.
        made_at: When the list was made, in Unix seconds.
    """
    data = b""
    if number:
        found = RevocationList(
            trust_domain=TRUST_DOMAIN, number=number, made_at=made_at, serials=serials
        )
        data = found.signed_by(_issuer()).encode()
    return PublishedEnrolment(TRUST_DOMAIN, _issuer().public_bytes, data)


def identity_in_simulation(name: str, serial: int) -> ClientIdentity:
    """Return a simulated client's key and credential, as from its own files."""
    return ClientIdentity(
        _simulated_key(f"identity of {name}"),
        IssuedCredential(TRUST_DOMAIN, issued_to(name, serial)),
        _issuer().public_bytes,
    )


def issued_to(
    name: str,
    serial: int,
    *,
    not_before: int = _NOT_BEFORE,
    not_after: int = _NOT_AFTER,
) -> Credential:
    """Return the credential of a simulated client."""
    credential = Credential(
        name=name,
        identity_key=_simulated_key(f"identity of {name}").public_bytes,
        not_before=not_before,
        not_after=not_after,
        serial=serial,
    )
    return credential.signed_by(_issuer(), TRUST_DOMAIN)


@cache
def membership_of(name: str, serial: int) -> Membership:
    """Return the membership of a simulated client."""
    return Membership(
        trust_domain=TRUST_DOMAIN,
        enrolment_key=_issuer().public_bytes,
        key=_simulated_key(f"identity of {name}"),
        credential=issued_to(name, serial),
    )


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
        add_masks(total, packing.removal_masks(job), job.modulus)
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
            raise ErrorCode.INTERNAL.error("noise is drawn when the set U2 is known")
        vector = given(state.delivered.ctx2)
        return self.to_client(number, InputReady(vector))

    def message(self, number: int, output: ClientOutput) -> Received | None:
        """Return what the server receives for an output of a client."""
        match output:
            case Send():
                envelope = output.envelope
            case MaskAndUpload():
                masked = packing.mask_input(output.vector.residues, output.job)
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


@dataclass(frozen=True, slots=True)
class LossPlan:
    """Client number -> the first round in which it sends nothing.

    Later rounds cost the server more.  Clients that are absent stay to the end.
    """

    losses: Mapping[int, Round]

    def count(self, which: Round) -> int:
        """Return how many clients vanish before they send their message of a round."""
        return sum(1 for each in self.losses.values() if each is which)


def plan_losses(
    clients: int,
    dropout_rate: float,
    entropy: Entropy,
    *,
    profile: Profile = Profile.HONEST_CURIOUS_SERVER,
) -> LossPlan:
    """Choose the clients that drop out.

    Args:
        clients: Size of the cohort.
        dropout_rate: Fraction that vanishes, 0 to 1; rounded down to whole clients.
        entropy: Source of the choice.

    Returns:
        A plan with floor(clients * dropout_rate) dropouts, distributed in turn over the
            rounds.

    Raises:
        ValueError: The rate lies outside [0, 1].
    """
    if not 0.0 <= dropout_rate <= 1.0:
        raise ValueError(f"dropout_rate must be between 0 and 1, not {dropout_rate}")
    # Sorting by 128-bit keys is a uniform order: no bias, no rejection loop.
    keys = [entropy.token(16) for _ in range(clients)]
    order = sorted(range(clients), key=keys.__getitem__)
    lost = order[: int(clients * dropout_rate)]
    rounds = rounds_of(profile)
    return LossPlan({each: rounds[i % len(rounds)] for i, each in enumerate(lost)})


# The client whose state is measured: all are alike, and it takes a while.
_WEIGHED: Final = 0
_LAST: Final = ROUNDS[Round.UNMASKING].deadline


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedSession:
    """The outcome of a simulated session.

    Attributes:
        total: The sum that the server computed, shape (d,), entries in [0, m).
        expected: The sum of the survivors' inputs, computed in the clear.
        survivors: |U3|.
        clients_lost: Clients that vanished at any point.
        costs: The costs.
        noise: The noise that the sum holds; None without a noise block.
    """

    total: UnsignedArray
    expected: UnsignedArray
    survivors: int
    clients_lost: int
    costs: CostReport
    noise: NoiseCertificate | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the server computed exactly the sum of the survivors' inputs."""
        return bool(np.array_equal(self.total, self.expected))


def simulate_session(
    parameters: ProtocolParameters,
    *,
    clients: int,
    losses: LossPlan,
    entropy: Entropy,
    on_progress: Callable[[Round, int, int], None] | None = None,
) -> SimulatedSession:
    """Run one session.

    Args:
        parameters: The session's configuration; `max_clients` must be at least
            `clients`.
        clients: How many clients exist, 0 .. clients - 1.
        losses: The dropouts by round.
        entropy: Source of all seeds.
        on_progress: Called after each client of a round, with the round, how many
            clients are done and how many there are.

    Returns:
        The sum, the expected sum, and the costs.

    Raises:
        SessionAbortedError: Too few clients were left; the code says in which round.
        RemoteProtocolError: The parameters allow no session at all.
    """
    session = _MeasuredSession(
        parameters.validate(),
        _OneHots(clients, parameters),
        task_id="simulation",
        server_nonce=entropy.token(32),
        graph_seed=entropy.token(32),
        seed_of=lambda _: entropy.token(32),
    )
    session.on_progress = on_progress
    result = run_session(session, losses.losses)
    if isinstance(session.server_state, server.Failed):
        failed = session.server_state.outcome
        raise failed.code.error(failed.reason, kind=SessionAbortedError)
    return SimulatedSession(
        total=session.sum,
        expected=reduce_in_place(session.expected, parameters.modulus),
        survivors=len(result.survivors),
        clients_lost=len(losses.losses),
        costs=session.meter.report(),
        noise=session.certificate(len(result.survivors)),
    )


@dataclass(frozen=True, slots=True)
class _OneHots(Sequence[Residues]):
    """The inputs of all clients, made when they are asked for."""

    clients: int
    parameters: ProtocolParameters

    def __len__(self) -> int:
        return self.clients

    @overload
    def __getitem__(self, index: int) -> Residues: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Residues]: ...
    def __getitem__(self, index: int | slice) -> Residues | Sequence[Residues]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self.clients))]
        residues = zeros(self.parameters.dimension, self.parameters.modulus)
        residues[index % self.parameters.dimension] = 1
        return residues


class _MeasuredSession(InProcessSession):
    """Charges every step to its party, and keeps no upload."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.on_progress: Callable[[Round, int, int], None] | None = None
        self.meter = SimulationMeter()
        self.sum = zeros(self.parameters.dimension, self.parameters.modulus)
        self.expected = zeros(self.parameters.dimension, self.parameters.modulus)
        self._adverts: Mapping[int, Advert] | None = None
        noise_block = self.parameters.noise_block
        self._task = NoisyTask.from_parameters(self.parameters) if noise_block else None
        self._seeds: dict[int, SecretBytes] = {}
        self._secrets: dict[int, NoiseSecrets] = {}
        self._answered: set[int] = set()
        self._given: Counter[int] = Counter()

    def play(self, which: Round, clients: Sequence[int] | None = None) -> None:
        numbers = list(self.clients) if clients is None else clients
        for done, number in enumerate(numbers, start=1):
            super().play(which, (number,))
            if self.on_progress is not None:
                self.on_progress(which, done, len(numbers))

    def certificate(self, survivors: int) -> NoiseCertificate | None:
        """Return the noise that the sum holds; None without a noise block."""
        if self._task is None:
            return None
        sent = self.server_state.session.accepted
        return self._task.certificate(
            clients=len(sent[Round.ADVERTISE_KEYS]),
            share_holders=len(sent[Round.SHARE_KEYS]),
            survivors=survivors,
            given=self._given,
        )

    def supply_input(self, number: int) -> tuple[ClientOutput, ...]:
        """Encode the client's vector, and measure what it costs."""
        state = self.clients[number]
        if self._task is None or not isinstance(state, ReadyForInput):
            return super().supply_input(number)
        vector = np.zeros(self._task.dim)
        vector[number % vector.size] = 1.0
        with self.meter.client(number, self._open_round):
            secrets = client.noise_secrets(state, self._seeds[number])
            made = self._task.encode(
                vector, session_id=self.descriptor.session_id, secrets=secrets
            )
        self._secrets[number] = secrets
        return self.to_client(number, InputReady(made.vector))

    def step_server(self, event: ServerEvent) -> tuple[ServerOutput, ...]:
        if isinstance(event, Received) and event.envelope.kind is not Upload:
            self.meter.rounds[self._open_round].bytes_up += len(event.envelope.data)
        with self._charged():
            return super().step_server(event)

    def to_client(self, number: int, event: ClientEvent) -> tuple[ClientOutput, ...]:
        """Hand an event to a client, and measure time, bytes and state."""
        if isinstance(event, SessionOffered):
            offer = event.descriptor.encode()
            self.meter.rounds[self._open_round].bytes_down += len(offer)
            self._seeds[number] = SecretBytes(event.seed.reveal())
        with self.meter.client(number, self._open_round):
            outputs = super().to_client(number, event)
        state = self.clients[number]
        if number == _WEIGHED:
            kept = held_bytes(state)
            self.meter.client_state_bytes = max(kept, self.meter.client_state_bytes)
        # Equal views of n clients would take O(n^2) memory in one process.
        if isinstance(state, EdgesChosen):
            self._adverts = self._adverts or state.roster.adverts
            roster = replace(state.roster, adverts=self._adverts)
            self.clients[number] = replace(state, roster=roster)
        if isinstance(state, Shared) and self.parameters.is_complete_graph:
            self._adverts = self._adverts or state.roster.adverts
            shared = replace(state.roster, adverts=self._adverts)
            self.clients[number] = replace(state, roster=shared)
        return outputs

    def fetch(self, number: int) -> Envelope | None:
        with self._charged():
            envelope = super().fetch(number)
        if envelope:
            self.meter.rounds[self._open_round].bytes_down += len(envelope.data)
        return envelope

    def message(self, number: int, output: ClientOutput) -> Received | None:
        """Return a client's message, and add its upload to the running sum."""
        with self.meter.client(number, self._open_round):
            received = super().message(number, output)
        if isinstance(output, MaskAndUpload):
            _, packed = self.uploads.popitem()
            self.meter.rounds[self._open_round].bytes_up += len(packed)
            with self._charged():
                add_into(self.sum, self.unpacked(packed), self.parameters.modulus)
            add_into(self.expected, output.vector.residues, self.parameters.modulus)
        elif received is not None and received.envelope.kind is Shares:
            self._answered.add(number)
        return received

    def compute_sum(self, job: ComputeSum) -> Residues:
        """Remove masks and noise layers from the running sum."""
        with self._charged():
            add_masks(self.sum, packing.removal_masks(job), job.modulus)
            subtract_layers(self.sum, job.noise)
            total = reduce_in_place(self.sum, job.modulus)
        if job.noise is not None:
            self._given.update(layer for layer, _ in job.noise.seeds)
            seeds = [
                (layer, self._secrets[number].layers[layer])
                for number in sorted(self._answered)
                for layer in sorted(self._given)
            ]
            subtract_layers(self.expected, replace(job.noise, seeds=tuple(seeds)))
        return total

    def _charged(self) -> AbstractContextManager[None]:
        """Charge the block to the open round of the server."""
        return self.meter.server(self._open_round)

    @property
    def _open_round(self) -> str:
        """Name of the open round; after the last one, that of the last."""
        return ROUNDS[self.server_state.ROUND].deadline or _LAST
