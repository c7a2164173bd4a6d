"""One session of many clients in one process, and its costs.

Rule 1: client i's input is one at coordinate i mod d and zero elsewhere, so that an
        input counted twice or swapped for another shows in the sum.  With a noise block
        it is encoded, noise included.  The noise that survivors remove is drawn a
        second time from the clients' secrets.
Rule 2: memory is O(d) beside the clients' keys.  An upload is added to the sum as it
        arrives, because the simulator knows that an uploading client survives.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, overload

import numpy as np

from secagg.crypto.entropy import Entropy
from secagg.crypto.modular import (
    UnsignedArray,
    add_into,
    reduce_in_place,
    zeros,
)
from secagg.crypto.prg import add_masks
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import NoisyTask, subtract_layers
from secagg.errors import SessionAbortedError
from secagg.protocol import masking
from secagg.protocol.client import machine as client
from secagg.protocol.client import states as client_states
from secagg.protocol.events import (
    ClientEvent,
    ClientOutput,
    ComputeSum,
    InputReady,
    MaskAndUpload,
    Received,
    ServerEvent,
    ServerOutput,
    SessionOffered,
)
from secagg.protocol.messages import Advert, Envelope, Round, Shares, Upload
from secagg.protocol.noise_terms import NoiseCertificate, NoiseSecrets
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.rounds import ROUNDS
from secagg.protocol.server import states as server_states
from secagg.simulation.driver import InProcessSession, Residues, run_session
from secagg.simulation.losses import LossPlan
from secagg.simulation.measurement import CostReport, Meter, held_bytes

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
    if isinstance(session.server_state, server_states.Failed):
        failed = session.server_state.outcome
        raise SessionAbortedError(failed.reason, code=failed.code)
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
        self.meter = Meter()
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
        state = self.clients[number]
        if self._task is None or not isinstance(state, client_states.ReadyForInput):
            return super().supply_input(number)
        vector = np.zeros(self._task.dim)
        vector[number % vector.size] = 1.0
        with self.meter.client(number, self._open):
            secrets = client.noise_secrets(state, self._seeds[number])
            made = self._task.encode(
                vector, session_id=self.descriptor.session_id, secrets=secrets
            )
        self._secrets[number] = secrets
        return self.to_client(number, InputReady(made.vector))

    def step_server(self, event: ServerEvent) -> tuple[ServerOutput, ...]:
        if isinstance(event, Received) and event.envelope.kind is not Upload:
            self.meter.rounds[self._open].bytes_up += len(event.envelope.data)
        with self._charged():
            return super().step_server(event)

    def to_client(self, number: int, event: ClientEvent) -> tuple[ClientOutput, ...]:
        if isinstance(event, SessionOffered):
            offer = event.descriptor.encode()
            self.meter.rounds[self._open].bytes_down += len(offer)
            self._seeds[number] = SecretBytes(event.seed.reveal())
        with self.meter.client(number, self._open):
            outputs = super().to_client(number, event)
        state = self.clients[number]
        if number == _WEIGHED:
            kept = held_bytes(state)
            self.meter.client_state_bytes = max(kept, self.meter.client_state_bytes)
        # Equal views of n clients would take O(n^2) memory in one process.
        if isinstance(state, client_states.EdgesChosen):
            self._adverts = self._adverts or state.roster.adverts
            roster = replace(state.roster, adverts=self._adverts)
            self.clients[number] = replace(state, roster=roster)
        if (
            isinstance(state, client_states.Shared)
            and self.parameters.is_complete_graph
        ):
            self._adverts = self._adverts or state.roster.adverts
            shared = replace(state.roster, adverts=self._adverts)
            self.clients[number] = replace(state, roster=shared)
        return outputs

    def fetch(self, number: int) -> Envelope | None:
        with self._charged():
            envelope = super().fetch(number)
        if envelope:
            self.meter.rounds[self._open].bytes_down += len(envelope.data)
        return envelope

    def message(self, number: int, output: ClientOutput) -> Received | None:
        with self.meter.client(number, self._open):
            received = super().message(number, output)
        if isinstance(output, MaskAndUpload):
            _, packed = self.uploads.popitem()
            self.meter.rounds[self._open].bytes_up += len(packed)
            with self._charged():
                add_into(self.sum, self.unpacked(packed), self.parameters.modulus)
            add_into(self.expected, output.vector.residues, self.parameters.modulus)
        elif received is not None and received.envelope.kind is Shares:
            self._answered.add(number)
        return received

    def compute_sum(self, job: ComputeSum) -> Residues:
        with self._charged():
            add_masks(self.sum, masking.removal_masks(job), job.modulus)
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
        return self.meter.server(self._open)

    @property
    def _open(self) -> str:
        """Name of the open round; after the last one, that of the last."""
        return ROUNDS[self.server_state.ROUND].deadline or _LAST
