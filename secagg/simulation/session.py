"""One session of many clients in one process, through the real cores.

Rule 1: clients and server are the state machines of `secagg.protocol`; nothing is
        shortened but the network between them.
Rule 2: client i's input is one at coordinate i mod d and zero elsewhere, so that an
        input counted twice or swapped for another shows in the sum.
Rule 3: memory is O(d) beside the clients' keys: an upload is folded into the sum as
        it arrives, because the simulator knows that whoever uploads survives.

It has no clock and no deadlines: a round is closed when everybody who is still alive
has answered.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from secagg.errors import InternalError, SessionAbortedError
from secagg.messages import (
    Roster,
    RosterPublished,
    SharesDelivered,
    UnmaskRequested,
)
from secagg.parameters import ProtocolParameters, SessionDescriptor
from secagg.policy import ClientPolicy
from secagg.primitives.entropy import Entropy
from secagg.primitives.modular import (
    UnsignedArray,
    add_into,
    reduce_in_place,
    zeros,
)
from secagg.primitives.prg import add_masks
from secagg.primitives.secret_bytes import SecretBytes
from secagg.protocol import client as client_core
from secagg.protocol import server as server_core
from secagg.protocol.events import (
    BundlesSent,
    ClientEvent,
    InputUploaded,
    KeysAdvertised,
    PlainInputReady,
    PlainVector,
    RosterReceived,
    RoundClosed,
    ServerEvent,
    SessionOffered,
    SharesReceived,
    SharesRevealed,
    SumComputed,
    SurvivorsReceived,
)
from secagg.protocol.masking import mask_input, removal_masks
from secagg.protocol.outputs import (
    ComputeSum,
    SendAdvert,
    SendBundles,
    SendShares,
    ServerOutput,
    UploadMasked,
)
from secagg.protocol.rounds import Round
from secagg.simulation.losses import LossPlan, LossPoint
from secagg.simulation.measurement import CostReport, Meter
from secagg.wire.packing import pack, packed_size, unpack

__all__ = ["SimulatedSession", "simulate_session"]

_Output = TypeVar("_Output")

_NAME_OF: Final[Mapping[Round, str]] = {
    Round.ADVERTISE_KEYS: "advertise_keys",
    Round.SHARE_KEYS: "share_keys",
    Round.MASKED_INPUT_COLLECTION: "masked_input",
    Round.UNMASKING: "unmasking",
}


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedSession:
    """How a simulated session ended.

    Attributes:
        total: The sum that the server computed, shape (d,), entries in [0, m).
        expected: The sum of the survivors' inputs, computed in the clear.
        survivors: |U3|.
        clients_lost: Clients that vanished at any point.
        costs: What it took.
    """

    total: UnsignedArray
    expected: UnsignedArray
    survivors: int
    clients_lost: int
    costs: CostReport

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
) -> SimulatedSession:
    """Run one session.

    Args:
        parameters: The session's configuration; `max_clients` must be at least
            `clients`.
        clients: How many clients exist, 0 .. clients - 1.
        losses: Who vanishes when.
        entropy: Source of all seeds.

    Returns:
        The sum, what it should be, and the costs.

    Raises:
        SessionAbortedError: Too few clients were left; the code says in which round.
        RemoteProtocolError: The parameters allow no session at all.
    """
    return _Simulation(parameters.validate(), clients, losses, entropy).run()


class _Simulation:
    """The two state machines of everybody, and the wires between them."""

    def __init__(
        self,
        parameters: ProtocolParameters,
        clients: int,
        losses: LossPlan,
        entropy: Entropy,
    ) -> None:
        self._parameters = parameters
        self._clients = clients
        self._losses = losses
        self._entropy = entropy
        self._meter = Meter()
        # The simulated cohort accepts what the caller configured.
        self._policy = ClientPolicy(
            profiles=frozenset({parameters.profile}),
            min_clients=2,
            max_clients=parameters.max_clients,
            min_survivors=2,
            max_dimension=parameters.dimension,
            require_majority=False,
            require_noise=False,
        )
        self._descriptor = SessionDescriptor(
            task_id="simulation",
            session_number=1,
            server_nonce=entropy.token(32),
            payload_hash=b"",
            parameters=parameters,
        )
        self._packed_bytes = packed_size(parameters.dimension, parameters.bits)
        self._server = server_core.start(
            self._descriptor, packed_bytes=self._packed_bytes
        )
        self._states: dict[int, client_core.ClientState] = {}
        self._sum = zeros(parameters.dimension, parameters.modulus)
        self._expected = zeros(parameters.dimension, parameters.modulus)
        self._survivors = 0

    def run(self) -> SimulatedSession:
        """Drive every round to its end."""
        self._advertise()
        self._close(Round.ADVERTISE_KEYS, graph_seed=self._entropy.token(32))
        self._share()
        self._close(Round.SHARE_KEYS)
        self._upload()
        self._close(Round.MASKED_INPUT_COLLECTION)
        self._answer()
        outputs = self._close(Round.UNMASKING)
        job = next(each for each in outputs if isinstance(each, ComputeSum))
        with self._meter.round("unmasking"):
            add_masks(self._sum, removal_masks(job), job.modulus)
            reduce_in_place(self._sum, job.modulus)
            packed = pack(self._sum, self._parameters.bits)
            self._feed(SumComputed(hashlib.sha256(packed).digest(), len(packed)))
        reduce_in_place(self._expected, job.modulus)
        return SimulatedSession(
            total=self._sum,
            expected=self._expected,
            survivors=self._survivors,
            clients_lost=len(self._losses.losses),
            costs=self._meter.report(),
        )

    # --- the rounds -----------------------------------------------------------------

    def _advertise(self) -> None:
        offer_bytes = len(self._descriptor.encode())
        for client in self._alive(range(self._clients), LossPoint.BEFORE_ADVERT):
            seed = SecretBytes(self._entropy.token(32))
            self._meter.bytes_down += offer_bytes
            with self._meter.client(client):
                offered = SessionOffered(self._descriptor, _identity(client), seed)
                advert = self._step(client, offered, SendAdvert).advert
            self._meter.bytes_up += len(advert)
            with self._meter.round("advertise_keys"):
                self._feed(KeysAdvertised(_identity(client), advert))

    def _share(self) -> None:
        shared: Roster | None = None
        # The roster is the same for everybody; a server encodes it once.
        with self._meter.round("share_keys"):
            update = server_core.update_for(self._server, _identity(min(self._states)))
        if not isinstance(update, RosterPublished):
            raise InternalError("a client that advertised is not in the roster")
        for client in self._alive(self._states, LossPoint.BEFORE_SHARES):
            self._meter.bytes_down += len(update.roster)
            with self._meter.client(client):
                received = RosterReceived(update.roster)
                bundles = self._step(client, received, SendBundles).bundles
            state = self._states[client]
            if isinstance(state, client_core.Shared):
                # Equal rosters of n clients would take O(n^2) memory in one process.
                shared = shared or state.roster
                self._states[client] = dataclasses.replace(state, roster=shared)
            self._meter.bytes_up += len(bundles)
            with self._meter.round("share_keys"):
                self._feed(BundlesSent(_identity(client), bundles))

    def _upload(self) -> None:
        for client in self._alive(self._states, LossPoint.BEFORE_INPUT):
            with self._meter.round("masked_input"):
                update = server_core.update_for(self._server, _identity(client))
            if not isinstance(update, SharesDelivered):
                continue
            self._meter.bytes_down += len(update.sharers) + len(update.bundles)
            residues = self._input_of(client)
            with self._meter.client(client):
                self._states[client] = client_core.step(
                    self._states[client],
                    SharesReceived(update.sharers, update.bundles),
                    policy=self._policy,
                ).state
                ready = PlainInputReady(PlainVector(residues))
                upload = self._step(client, ready, UploadMasked)
                packed = pack(
                    mask_input(upload.vector.residues, upload.job),
                    self._parameters.bits,
                )
                digest = hashlib.sha256(packed).digest()
            self._meter.bytes_up += len(packed)
            add_into(self._expected, residues, self._parameters.modulus)
            with self._meter.round("masked_input"):
                self._feed(InputUploaded(_identity(client), digest, len(packed)))
                masked = unpack(
                    packed,
                    self._parameters.dimension,
                    self._parameters.bits,
                    self._parameters.modulus,
                )
                add_into(self._sum, masked, self._parameters.modulus)
            self._survivors += 1

    def _answer(self) -> None:
        for client in self._alive(self._states, LossPoint.BEFORE_ANSWER):
            with self._meter.round("unmasking"):
                update = server_core.update_for(self._server, _identity(client))
            if not isinstance(update, UnmaskRequested):
                continue
            self._meter.bytes_down += len(update.survivors)
            with self._meter.client(client):
                received = SurvivorsReceived(update.survivors)
                shares = self._step(client, received, SendShares).shares
            self._meter.bytes_up += len(shares)
            with self._meter.round("unmasking"):
                self._feed(SharesRevealed(_identity(client), shares))

    # --- the wires ------------------------------------------------------------------

    def _alive(self, clients: Iterable[int], point: LossPoint) -> list[int]:
        return [each for each in clients if self._losses.is_alive(each, point)]

    def _input_of(self, client: int) -> UnsignedArray:
        residues = zeros(self._parameters.dimension, self._parameters.modulus)
        residues[client % self._parameters.dimension] = 1
        return residues

    def _step(self, client: int, event: ClientEvent, wanted: type[_Output]) -> _Output:
        state = self._states.get(client, client_core.start())
        result = client_core.step(state, event, policy=self._policy)
        self._states[client] = result.state
        for output in result.outputs:
            if isinstance(output, wanted):
                return output
        if isinstance(result.state, client_core.Aborted):
            raise SessionAbortedError(result.state.reason, code=result.state.code)
        raise InternalError(f"{type(event).__name__} did not lead to {wanted.__name__}")

    def _feed(self, event: ServerEvent) -> tuple[ServerOutput, ...]:
        result = server_core.step(self._server, event)
        self._server = result.state
        return result.outputs

    def _close(
        self, closed: Round, *, graph_seed: bytes = b""
    ) -> tuple[ServerOutput, ...]:
        with self._meter.round(_NAME_OF[closed]):
            outputs = self._feed(RoundClosed(closed, graph_seed))
        if isinstance(self._server, server_core.Aborted):
            raise SessionAbortedError(self._server.reason, code=self._server.code)
        return outputs


def _identity(client: int) -> str:
    return f"client-{client}"
