"""The tasks and the other clients of the kit's sessions.

Rule 1: a peer is the product's own state machine, and what it masks is known.  What is
        left of a sum without the peers is what the tested program has given.
Rule 2: all secrets derive from the seed of the run, and all times from its `NOW`.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import NoisyTask, plan, read_noise_terms, subtract_layers
from secagg.distributed_dp.units import encode_integers
from secagg.protocol.client import machine, states
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import (
    ClientOutput,
    InputReady,
    MaskAndUpload,
    NoiseRemoval,
    Received,
    Send,
    SessionOffered,
)
from secagg.protocol.messages import KINDS, Envelope, Upload
from secagg.protocol.noise_terms import NoiseSecrets
from secagg.protocol.packing import mask_input, pack
from secagg.protocol.parameters import Graph, ProtocolParameters
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.profiles import (
    HonestCuriousParameters,
    MaliciousParameters,
    Profile,
    RoundDeadlines,
)
from secagg.server.task.setup import PreparedTask
from secagg.simulation.driver import (
    TRUST_DOMAIN,
    identity_in_simulation,
    membership_of,
    published_in_simulation,
    simulated_trust,
)

NOW: Final = 1_800_000_000
"""When every session is offered, in Unix seconds: 2027-01-15, 08:00 UTC."""
AGGREGATOR: Final = "kit"
TESTED: Final = "client-b"
"""Name of the tested program: peers stand before it and behind it."""
_LETTERS: Final = "acdefghijklmno"
_LENIENT: Final = ClientPolicy(
    profiles=frozenset(Profile),
    graphs=frozenset(Graph),
    min_graph_bits=1,
    min_clients=2,
    min_survivors=2,
    require_majority=False,
    require_noise=False,
)
_SERIALS: Final = {name: i + 1 for i, name in enumerate("abcdefghijklmno")}


@dataclass(frozen=True)
class Scene:
    """A task, and who takes part in it.

    Attributes:
        parameters: Of its sessions.
        peers: Names of the clients that the kit plays.
    """

    parameters: ProtocolParameters
    peers: tuple[str, ...]

    @property
    def profile(self) -> int:
        """Number of the profile."""
        return int(self.parameters.profile)

    @property
    def graph(self) -> str:
        """Name of the graph."""
        return str(self.parameters.graph)

    @property
    def task(self) -> NoisyTask | None:
        """The noise; None for exact sums."""
        if not self.parameters.noise_block:
            return None
        return NoisyTask.from_parameters(self.parameters)

    @property
    def dim(self) -> int:
        """Entries of one vector."""
        task = self.task
        return self.parameters.dimension if task is None else task.dim

    def prepared(self) -> PreparedTask:
        """Return what a server of this task is made of."""
        task = self.task
        report = None if task is None else task.report()
        is_listed = self.parameters.trust == _WITH_LIST.trust
        return PreparedTask(
            self.parameters, task, report, enrolment=_WITH_LIST if is_listed else None
        )


def _parameters(clients: int, threshold: int, **fields: Any) -> ProtocolParameters:
    """Return parameters that tolerate every loss down to the threshold."""
    profile = fields.pop("profile", Profile.HONEST_CURIOUS_SERVER)
    tail: Any = HonestCuriousParameters(40 if fields.get("degree") else 0)
    if profile is Profile.MALICIOUS_SERVER:
        tail = MaliciousParameters(fields.pop("trust", None) or simulated_trust())
    fewest = fields.pop("min_clients", threshold)
    return ProtocolParameters(
        **{
            "modulus": 1 << 20,
            "dimension": 33,
            "min_clients": fewest,
            "max_clients": clients,
            "threshold": threshold,
            "min_survivors": threshold,
            "max_dropouts": clients - threshold,
            "max_losses": clients - threshold,
            "tail": tail,
            "deadlines": RoundDeadlines.of(profile),
        }
        | fields
    )


@cache
def _accountant() -> str:
    """Return the accountant of all tasks with noise: one that small clients have."""
    text = (files("secagg.conformance") / "cases.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["accountant"])


def _noised(clients: int, threshold: int, dim: int, **asked: Any) -> ProtocolParameters:
    """Return parameters of a task whose epsilon a small client can compute."""
    fields = {key: asked.pop(key) for key in ("profile", "degree") if key in asked}
    wanted: dict[str, Any] = {
        "epsilon": 8.0,
        "delta": 1e-5,
        "l2_clip": 1.0,
        "scale_factor": 64.0,
        "mechanism": "skellam-mixture",
        "accountant": _accountant(),
        "steps": 1,
        "colluders": 0,
    }
    fewest = asked.pop("min_clients", threshold)
    made = plan(
        clients=clients, dimension=dim, min_survivors=threshold, **(wanted | asked)
    )
    base = _parameters(clients, threshold, min_clients=fewest, **fields)
    return NoisyTask.from_plan(made, base).parameters


_WITH_LIST: Final = published_in_simulation(7, 400, 900, made_at=NOW - 86_400)
REVOKED_SERIAL: Final = 400
LIST: Final = _WITH_LIST.revocations


_SIGNING: Final = Profile.MALICIOUS_SERVER
_MAKERS: Final[Mapping[str, Callable[[], ProtocolParameters]]] = {
    "plain": lambda: _parameters(5, 3, max_dropouts=1),
    "odd-modulus": lambda: _parameters(4, 3, modulus=10_007, dimension=300),
    "wide-modulus": lambda: _parameters(4, 3, modulus=(1 << 40) + 15),
    "narrow": lambda: _parameters(
        4, 3, modulus=2, dimension=77, suite=CipherSuite.AES_128_CTR
    ),
    "long": lambda: _parameters(
        3, 2, min_clients=3, dimension=(1 << 17) + 37, modulus=1 << 17
    ),
    "ring": lambda: _parameters(9, 3, degree=4, min_clients=6),
    "signed": lambda: _parameters(5, 3, profile=_SIGNING),
    "signed-list": lambda: _parameters(5, 3, profile=_SIGNING, trust=_WITH_LIST.trust),
    "noised": lambda: _noised(4, 3, 16_384),
    "loud": lambda: _noised(12, 11, 4096, epsilon=55.0),
    "noised-twice": lambda: _noised(4, 3, 4096, steps=2),
    "layered": lambda: _noised(5, 3, 16_384, ladder=2),
    "noised-signed": lambda: _noised(5, 3, 64, ladder=2, profile=_SIGNING),
    "few-losses": lambda: _noised(5, 3, 16, ladder=0, loss_fraction=0.2),
    "once": lambda: _noised(4, 3, 16),
    "twice": lambda: _noised(4, 3, 16, steps=2),
    "once-signed": lambda: _noised(4, 3, 16, profile=_SIGNING),
    "once-ring": lambda: _noised(9, 3, 16, degree=4, min_clients=6),
}


def scene_names() -> tuple[str, ...]:
    """Return the names of all scenes."""
    return tuple(_MAKERS)


@cache
def scene(name: str) -> Scene:
    """Return a scene by its name."""
    parameters = _MAKERS[name]()
    letters = _LETTERS[: parameters.max_clients - 1]
    return Scene(parameters, tuple(f"client-{letter}" for letter in letters))


def serial_of(name: str) -> int:
    """Return the serial of a client's credential."""
    return _SERIALS[name.rpartition("-")[2]]


def membership_line(name: str) -> dict[str, str]:
    """Return what an enrolled client of the kit has, as the line `begin` tells it."""
    found = identity_in_simulation(name, serial_of(name))
    label = f"identity of {name}".encode()
    return {
        "seed": sha256(label).hexdigest(),
        "credential": found.issued.encode().hex(),
        "enrolment_key": found.enrolment_key.hex(),
        "trust_domain": TRUST_DOMAIN,
    }


class Peer:
    """A client that the kit plays in one session; it forgets nothing.

    Args:
        name: Its name.
        offer: The session.
        seed: Of the run: 32 bytes.
        revoked: Serials of the list that the offer names.

    Attributes:
        state: Of its state machine.
        residues: What it has masked, noise included; None before.
    """

    def __init__(
        self,
        name: str,
        offer: SessionDescriptor,
        *,
        seed: bytes,
        revoked: frozenset[int] = frozenset(),
    ) -> None:
        self.name = name
        self._offer = offer
        self._seed = SecretBytes(sha256(seed + name.encode()).digest())
        self._revoked = revoked
        self.state: states.ClientState = machine.start(read_noise_terms)
        self.residues: npt.NDArray[Any] | None = None
        self._secrets: NoiseSecrets | None = None

    def join(self) -> tuple[bytes, ...]:
        """Return its advert."""
        membership = None
        if self._offer.parameters.profile.has_identities:
            found = membership_of(self.name, serial_of(self.name))
            membership = replace(found, revoked=self._revoked)
        event = SessionOffered(
            self._offer, self.name, AGGREGATOR, self._seed, NOW, membership
        )
        return self._messages(self._apply(event))

    def receive(self, update: bytes) -> tuple[bytes, ...]:
        """Take an update; return what it answers."""
        envelope = Envelope(KINDS[update[0]], update[1:])
        said = self._apply(Received(envelope))
        state = self.state
        if isinstance(state, states.ReadyForInput):
            said += self._apply(InputReady(self._input(state)))
        return self._messages(said)

    def vector(self) -> npt.NDArray[Any]:
        """Return its vector in an exact task: small whole numbers, some negative."""
        most = min(100, self._offer.parameters.modulus // 2)
        start = serial_of(self.name)
        entries = np.arange(self._offer.parameters.dimension, dtype=np.int64)
        return (entries * start + start) % most - most // 2

    def remaining_input(self, removed: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Return what a sum holds of it when some layers are taken back.

        Args:
            removed: Numbers of the layers.
        """
        match self._secrets:
            case NoiseSecrets(clients, _, _, layers) if self.residues is not None:
                left = self.residues.copy()
                seeds = tuple((layer, layers[layer]) for layer in removed)
                block = self._offer.parameters.noise_block
                subtract_layers(left, NoiseRemoval(block, clients, seeds))
                return left.astype(np.int64)
            case _:
                return np.zeros(self._offer.parameters.dimension, dtype=np.int64)

    def _input(self, state: states.ReadyForInput) -> Any:
        """Return the encoded vector of this peer."""
        parameters = self._offer.parameters
        if not parameters.noise_block:
            vector: Any = encode_integers(self.vector(), parameters)
        else:
            task = NoisyTask.of_session(self._offer)
            self._secrets = machine.noise_secrets(state, self._seed)
            vector = task.encode(
                np.zeros(task.dim),
                session_id=self._offer.session_id,
                secrets=self._secrets,
            ).vector
        self.residues = vector.residues
        return vector

    def _apply(self, event: Any) -> tuple[ClientOutput, ...]:
        step = machine.step(self.state, event, policy=_LENIENT)
        self.state = step.state
        return tuple(step.outputs)

    def _messages(self, outputs: tuple[ClientOutput, ...]) -> tuple[bytes, ...]:
        """Return the messages of a step as bytes."""
        said = []
        for output in outputs:
            if isinstance(output, Send):
                said.append(output.envelope.tagged())
            elif isinstance(output, MaskAndUpload):
                masked = mask_input(output.vector.residues, output.job)
                packed = pack(masked, self._offer.parameters.bits)
                named = Upload(len(packed), sha256(packed).digest(), output.view)
                said.append(Envelope.of(named).tagged() + packed)
        return tuple(said)
