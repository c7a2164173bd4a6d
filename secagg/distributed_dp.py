"""Where secure sums and differential privacy meet: the only importer of `dpnoise`.

A *noised task* is a task whose parameters hold a noise block: the mechanism with all
its numbers, and the budget that it claims to meet.  The block enters the configuration
hash, so all clients add noise for the same claim or their masks do not cancel.

Rule 1: a task fixes the variance that counts.  What one client adds follows from the
        session's own U2: the honest others carry that variance after every loss that
        is tolerated, whatever colluders and the user itself add.
Rule 2: only `NoisedTask.encode` makes a `NoisedVector`, and a session with a noise
        block takes nothing else.
Rule 3: a client recomputes epsilon from the mechanism; it never believes the claim.
Rule 4: no amplification by sampling: the server knows who takes part, and readers see
        it in the noise that every participant adds.
Rule 5: noise and rounding derive from one secret seed per session and U2, so that a
        restarted client sends the same bytes; the rotation from the public session id.
Rule 6: who draws other noise for the same U2 has another ctx2 (PROTOCOL §4): builds
        that disagree make masks that do not cancel, never a sum with another noise.

It does no input or output.
"""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, Self, cast

import numpy as np
import numpy.typing as npt

from dpnoise.accounting import PrivacyStatement, expected_seconds, make_accountant
from dpnoise.errors import DPNoiseError, ParameterError, UnknownEventError
from dpnoise.errors import InputError as NoiseInputError
from dpnoise.events import Adversary, NoiseEvent, Repeated
from dpnoise.mechanisms import (
    Mechanism,
    MechanismParameters,
    SessionNoise,
    make_mechanism,
)
from dpnoise.planning import CurvePoint, Plan, error_curve, plan
from secagg.errors import ErrorCode, InputError, RemoteProtocolError
from secagg.noise_certificate import NoiseCertificate
from secagg.parameters import MAX_NOISE_BLOCK_BYTES, ProtocolParameters
from secagg.policy import PrivacyFloors
from secagg.primitives.cipher_suite import CipherSuite
from secagg.primitives.modular import subtract_into
from secagg.primitives.transcript import hash_parts
from secagg.protocol.events import NoisedVector
from secagg.protocol.noise_terms import NoiseSecrets, NoiseTerms
from secagg.protocol.outputs import NoiseRemoval

__all__ = [
    "CurvePoint",
    "DPNoiseError",
    "NoiseBudget",
    "NoisedInput",
    "NoisedTask",
    "ParameterError",
    "Plan",
    "PrivacyReport",
    "PrivacyStatement",
    "SessionNoise",
    "UnknownEventError",
    "central_gaussian_variance",
    "certify",
    "error_curve",
    "plan",
    "read_noise_terms",
    "subtract_layers",
]

_BLOCK_VERSION: Final = 2
# A claim may be off by the accountant's own rounding, not by a decision.
_EPSILON_SLACK: Final = 1e-6
# Colluders see the ring with the roster and may end sessions that do not suit them, so
# rosters count and not sums (PROTOCOL §11.3).
_ROSTERS_PER_SESSION: Final = 10
MAX_STEPS: Final = 1_000_000
# What a client spends on one offer before it says no; plans take a few at most.
_MAX_ACCOUNTING_SECONDS: Final = 45.0
# Draws of all clients for so many entries stay in the processor's cache.
_LAYER_CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseBudget:
    """What a task claims to spend on each of its users.

    Attributes:
        epsilon: Over all sessions that it covers, against the server.
        delta: Failure probability, over all sessions that it covers.
        steps: Sums that the task is to release.
        spare: Sessions on top of them, for those that end after they may have shown
            something: a fault then costs a spare session and not the task.
        accountant: Name of the accountant that computes epsilon.
    """

    epsilon: float
    delta: float
    steps: int
    spare: int
    accountant: str

    @property
    def sessions(self) -> int:
        """Sessions that the budget covers, and that one client may be charged for."""
        return self.steps + self.spare


@dataclass(frozen=True, slots=True)
class PrivacyReport:
    """Privacy figures, each with the adversary that it holds against.

    Attributes:
        server: Against the server and its colluders.
        model_reader: Against readers of the released sums.  Neither counts any
            amplification by sampling.
        local_noise_stddev: The least noise of one client, over all rosters, caller's
            units: all that is left if secure aggregation is broken.
        counted_shares: The fewest noise shares that the figures rely on, over all
            rosters.
        steps: Sums that the task is to release.
        spare: Sessions that the figures cover beyond them.
        graph_delta: What a ring adds to delta, see `NoisedTask.graph_delta`; 0 on the
            complete graph.
    """

    server: PrivacyStatement
    model_reader: PrivacyStatement
    local_noise_stddev: float
    counted_shares: int
    steps: int
    spare: int
    graph_delta: float = 0.0

    def grounds(self, *, graph_delta: float | None = None) -> str:
        """Say how the figure against the server is known, never without the graph.

        The accountant's word is about the noise alone.  On a ring it holds but for the
        chance that a session unmasks more than one sum.

        Args:
            graph_delta: That chance; by default over the whole task.  For one session
                2^-graph_bits, or 0 if nobody could have cut its ring.
        """
        added = self.graph_delta if graph_delta is None else graph_delta
        word = str(self.server.status)
        return f"{word}, with {added:.3g} added to delta" if added else word

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return {
            "server": self.server.to_dict(),
            "model_reader": self.model_reader.to_dict(),
            "local_noise_stddev": self.local_noise_stddev,
            "counted_shares": self.counted_shares,
            "steps": self.steps,
            "spare": self.spare,
            "graph_delta": self.graph_delta,
            "grounds": self.grounds(),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the report that `to_dict` wrote.

        Raises:
            KeyError: A key is missing.
            ValueError: A value is none that a report can have.
        """
        return cls(
            server=PrivacyStatement.from_dict(document["server"]),
            model_reader=PrivacyStatement.from_dict(document["model_reader"]),
            local_noise_stddev=float(document["local_noise_stddev"]),
            counted_shares=int(document["counted_shares"]),
            steps=int(document["steps"]),
            spare=int(document["spare"]),
            graph_delta=float(document["graph_delta"]),
        )


@dataclass(frozen=True, slots=True)
class NoisedInput:
    """What a client hands to its session, and what only the client should know.

    Attributes:
        vector: For the session.
        shortened_by: Length of the client's vector over what clipping left of it, 1.0
            if it fitted.  It says something about the vector: tell its owner alone.
    """

    vector: NoisedVector
    shortened_by: float = field(repr=False)


@dataclass(frozen=True, slots=True)
class NoisedTask:
    """A task with distributed noise: protocol parameters and mechanism, joined.

    Build it with `from_plan` (operator) or `from_parameters` (client).

    Attributes:
        parameters: Of the protocol; their noise block describes the other two.
        mechanism: Encodes vectors and decodes sums.
        budget: What the task claims.
    """

    parameters: ProtocolParameters
    mechanism: Mechanism
    budget: NoiseBudget

    @classmethod
    def from_plan(
        cls, made: Plan, protocol: ProtocolParameters, *, spare: int = 0
    ) -> Self:
        """Join a plan with protocol parameters.

        Args:
            made: From `plan`; its accountant and budget are what the task claims.
            protocol: Cohort, threshold, graph and deadlines; modulus, dimension and
                noise block are replaced by the plan's.
            spare: How many of the plan's steps are spare sessions.

        Raises:
            RemoteProtocolError: BAD_CONFIG, if they contradict each other.
        """
        if not 0 <= spare < made.request.steps:
            raise _bad_block(f"of {made.request.steps} planned steps {spare} are spare")
        mechanism = make_mechanism(made.parameters)
        budget = NoiseBudget(
            epsilon=float(made.request.epsilon),
            delta=float(made.request.delta),
            steps=made.request.steps - spare,
            spare=spare,
            accountant=made.accountant,
        )
        parameters = replace(
            protocol,
            modulus=mechanism.modulus,
            dimension=mechanism.encoded_dim,
            noise_layers=_layers(mechanism.parameters.noise_rule.ladder),
            noise_block=_encode_block(
                mechanism, budget, mechanism.sampler_digest.hex()
            ),
        )
        return cls(parameters.validate(), mechanism, budget).validate()

    @classmethod
    def from_parameters(cls, parameters: ProtocolParameters) -> Self:
        """Read the noise block of a session on offer.

        Raises:
            RemoteProtocolError: BAD_CONFIG, if the block is missing, malformed,
                contradicts the parameters, or describes a mechanism outside its
                theorem.  Stay out of the session.
        """
        mechanism, budget, _ = _decode_block(parameters.noise_block)
        return cls(parameters, mechanism, budget).validate()

    def validate(self) -> Self:
        """Return self if protocol and mechanism fit each other.

        Raises:
            RemoteProtocolError: BAD_CONFIG, naming the contradiction.
        """
        given, ours = self.mechanism.parameters, self.parameters
        rule = given.noise_rule
        for holds, complaint in (
            # R3.2-10
            (
                ours.noise_layers == _layers(rule.ladder),
                (
                    f"its ladder of {rule.ladder} needs {_layers(rule.ladder)} noise "
                    f"layers, the session has {ours.noise_layers}"
                ),
            ),
            (
                not self.mechanism.noise_is_central,
                f"mechanism {given.mechanism} needs a trusted party",
            ),
            (given.modulus == ours.modulus, "its modulus is not the session's"),
            (
                self.mechanism.encoded_dim == ours.dimension,
                (
                    f"it encodes to {self.mechanism.encoded_dim} coordinates, the "
                    f"session has {ours.dimension}"
                ),
            ),
            # Rule 1: fewer survivors than the noise is calibrated for would leave
            # the sum with too little noise.
            (
                rule.min_survivors <= ours.min_survivors,
                (
                    f"noise is calibrated for {rule.min_survivors} survivors, the "
                    f"session unmasks {ours.min_survivors}"
                ),
            ),
            (
                rule.colluders >= ours.colluders,
                (
                    f"noise tolerates {rule.colluders} colluders, the session "
                    f"{ours.colluders}"
                ),
            ),
            # Of larger rosters the rule says nothing.
            (
                given.num_clients >= ours.max_clients,
                (
                    f"noise is planned for {given.num_clients} clients, the session "
                    f"takes {ours.max_clients}"
                ),
            ),
        ):
            if not holds:
                raise _bad_block(complaint)
        return self

    @property
    def dim(self) -> int:
        """Coordinates of the caller's vectors."""
        return self.mechanism.dim

    def encode(
        self,
        vector: npt.NDArray[Any],
        *,
        session_id: bytes,
        secrets: NoiseSecrets,
    ) -> NoisedInput:
        """Clip, rotate, scale, round, add the noise share, and reduce modulo m.

        Args:
            vector: Floats of shape (dim,), caller's units.
            session_id: Of the session on offer; fixes the public rotation.
            secrets: What the noise is drawn from, and for how many sharers.

        Raises:
            InputError: NaN, infinity, or a wrong length or dtype.
            RemoteProtocolError: BAD_CONFIG; for so many sharers there is no noise.
        """
        noise = self.session_noise(secrets.sharers)
        try:
            encoded = self.mechanism.encode(
                np.asarray(vector),
                private_seed=secrets.seed.reveal(),
                public_seed=_rotation_seed(session_id, self.parameters.suite),
                session_noise=noise,
                layer_seeds=[
                    seed.reveal() for seed in secrets.layers[: len(noise.layers)]
                ],
            )
        except NoiseInputError as error:
            raise InputError(
                str(error), next_step="Correct the vector; nothing of it was sent."
            ) from None
        return NoisedInput(
            NoisedVector(encoded.residues, self.parameters.noise_block),
            encoded.shortened_by,
        )

    def decode(
        self, residues: npt.NDArray[np.unsignedinteger[Any]], *, session_id: bytes
    ) -> npt.NDArray[np.float64]:
        """Return the estimate of the sum, shape (dim,), caller's units."""
        return self.mechanism.decode(
            residues, public_seed=_rotation_seed(session_id, self.parameters.suite)
        )

    def session_noise(self, sharers: int) -> SessionNoise:
        """Return what each client of a session adds, as exact rationals (R3.5-1).

        Args:
            sharers: |U2|.

        Raises:
            RemoteProtocolError: BAD_CONFIG; the rule has no answer for so many.
        """
        try:
            return self.mechanism.session(sharers)
        except DPNoiseError as error:
            raise _bad_block(str(error)) from None

    def certificate(
        self,
        *,
        clients: int,
        sharers: int,
        survivors: int,
        given: Mapping[int, int] | None = None,
    ) -> NoiseCertificate:
        """Return what noise a sum holds.

        Args:
            clients: |U1|.
            sharers: |U2|.
            survivors: |U3|.
            given: From how many survivors each layer was subtracted; None where only
                the server knows.

        Raises:
            RemoteProtocolError: BAD_CONFIG; the rule has no answer for such sets, or
                more was subtracted than survivors can have given.
        """
        noise = self.session_noise(sharers)
        unseen = self.parameters.most_set_apart(clients)  # R5.9-13
        try:
            removed = noise.removed_layers(sharers - survivors + unseen)
        except DPNoiseError as error:
            raise _bad_block(str(error)) from None
        counts = None
        if given is not None:
            counts = tuple(given.get(layer, 0) for layer in removed)
            if not given.keys() <= set(removed) or max(counts, default=0) > survivors:
                raise _bad_block("noise was subtracted that nobody was asked for")
        return NoiseCertificate(
            sharers=sharers,
            survivors=survivors,
            unseen=unseen,
            colluders=noise.colluders,
            required=noise.counted_variance,
            base=noise.base,
            layers=noise.layers,
            removed=removed,
            given=counts,
        )

    def noise_context(self, sharers: int) -> bytes:
        """Return 32 bytes that cover how noise is drawn, PROTOCOL §3.5.

        Args:
            sharers: |U2|.

        Raises:
            RemoteProtocolError: BAD_CONFIG; the rule has no answer for so many, or
                no sampler holds such noise.
        """
        noise = self.session_noise(sharers)
        try:
            digests = self.mechanism.sampler_digests(noise)
        except DPNoiseError as error:
            raise _bad_block(str(error)) from None
        entries = {
            "base": _rational(noise.base),
            "layers": [_rational(layer) for layer in noise.layers],
            "roster": sharers,
            "tables": [digest.hex() for digest in digests],
        }
        return hash_parts(
            "noise-context", _canonical_json(entries), suite=self.parameters.suite
        )

    def report(self) -> PrivacyReport:
        """State what the whole task costs its users, adversary by adversary."""
        given = self.mechanism.parameters
        return PrivacyReport(
            server=_statement(self.parameters.noise_block, Adversary.SERVER),
            model_reader=_statement(
                self.parameters.noise_block, Adversary.MODEL_READER
            ),
            local_noise_stddev=self.local_noise_stddev,
            counted_shares=given.noise_rule.smallest_counted_shares(given.num_clients),
            steps=self.budget.steps,
            spare=self.budget.spare,
            graph_delta=self.graph_delta,
        )

    @property
    def max_rosters(self) -> int | None:
        """Rosters that one client accepts over the whole task; None for any number.

        Each is a new ring, and one more chance that it is unsafe (PROTOCOL §11.3).
        """
        if self.parameters.is_complete_graph:
            return None
        return _ROSTERS_PER_SESSION * self.budget.sessions

    @property
    def local_noise_stddev(self) -> float:
        """The least noise of one client, over all rosters, caller's units."""
        given = self.mechanism.parameters
        least = given.noise_rule.least_variance(given.num_clients)
        return math.sqrt(self.mechanism.drawn_variance(least)) / given.scale_factor

    @property
    def graph_delta(self) -> float:
        """What the sharing graph adds to delta, over the whole task.

        Returns:
            The chance that some session unmasks more than one sum: 2^-graph_bits for
            each of `max_rosters`; 0 on the complete graph.
        """
        return (self.max_rosters or 0) * 2.0**-self.parameters.graph_bits

    def check_noise(self, floors: PrivacyFloors) -> None:
        """Compare what a task states with a client's floors; computes no epsilon.

        Computing it takes up to seconds, of a server's choosing.

        Args:
            floors: What the client insists on.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION, naming the floor.
        """
        rule = self.mechanism.parameters.noise_rule
        fraction = floors.colluder_fraction(self.parameters.profile)
        _insist(
            (
                # Never from the report, which may be one of another graph.
                self.budget.delta + self.graph_delta <= floors.max_delta,
                (
                    f"delta is {self.budget.delta + self.graph_delta:.3g}, of which "
                    f"the graph adds {self.graph_delta:.3g}; at most "
                    f"{floors.max_delta:.3g} is accepted"
                ),
            ),
            (
                # As the task claims, which `check` holds the noise to.
                self.budget.epsilon <= floors.max_epsilon * (1 + _EPSILON_SLACK),
                (
                    f"epsilon is {self.budget.epsilon:.4g}, at most "
                    f"{floors.max_epsilon:.4g} is accepted"
                ),
            ),
            (
                rule.colluder_fraction >= Fraction(str(fraction)),
                (
                    f"the noise takes {float(rule.colluder_fraction):.4g} of a roster "
                    f"for colluders, at least {fraction:.4g} is demanded"
                ),
            ),
            (
                self.local_noise_stddev >= floors.min_local_noise_stddev,
                (
                    f"each client adds noise of standard deviation "
                    f"{self.local_noise_stddev:.4g}, at least "
                    f"{floors.min_local_noise_stddev:.4g} is demanded"
                ),
            ),
        )

    def check(
        self, floors: PrivacyFloors, *, report: PrivacyReport | None = None
    ) -> PrivacyReport:
        """Compare the task with a client's privacy floors.

        Args:
            floors: What the client insists on.
            report: What this client itself computed for this very task before;
                computed now by default.

        Returns:
            The report.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION, naming the floor; BAD_CONFIG, if
                this release draws other noise than the block describes.
        """
        self.check_noise(floors)
        report = report or self.report()
        stated = report.server
        _insist(
            (
                stated.epsilon <= self.budget.epsilon * (1 + _EPSILON_SLACK),
                (
                    f"the noise gives epsilon {stated.epsilon:.4g}, the task claims "
                    f"{self.budget.epsilon:.4g}"
                ),
            ),
            (
                str(stated.status) in floors.statuses,
                (
                    f"epsilon is only {stated.status}; accepted: "
                    f"{', '.join(sorted(floors.statuses))}"
                ),
            ),
        )
        return report


def _layers(ladder: int) -> int:
    """Return how many layers a ladder of so many rungs has."""
    return ladder + 1 if ladder else 0


def _insist(*demands: tuple[bool, str]) -> None:
    """Raise POLICY_VIOLATION for the first demand that does not hold."""
    for holds, complaint in demands:
        if not holds:
            raise RemoteProtocolError(
                f"the task breaks this client's privacy policy: {complaint}",
                code=ErrorCode.POLICY_VIOLATION,
                next_step="Ask the operator for more noise or fewer steps, or change "
                "[policy] in the client's settings if that is what you want.",
            )


def subtract_layers(
    total: npt.NDArray[np.unsignedinteger[Any]], removal: NoiseRemoval | None
) -> None:
    """Subtract what survivors have given away of their noise, in place (R6.7-1).

    Args:
        total: A sum, or a part of it: residues of shape (d,), words of the modulus.
        removal: As the state machine put it out, or a part of that; None for nothing.

    Raises:
        RemoteProtocolError: BAD_CONFIG; the block is no block, or has no such layer.
    """
    if removal is None or not removal.seeds:
        return
    mechanism, _, _ = _decode_block(removal.noise_block)
    try:
        noise = mechanism.session(removal.sharers)
        layers = [(noise.layers[layer], seed.reveal()) for layer, seed in removal.seeds]
    except (DPNoiseError, IndexError) as error:
        raise _bad_block(str(error)) from None
    for start in range(0, total.size, _LAYER_CHUNK):
        target = total[start : start + _LAYER_CHUNK]
        drawn = mechanism.layer_noise(layers, start=start, count=target.size)
        subtract_into(target, drawn, mechanism.modulus)


@lru_cache(maxsize=256)  # every client of a simulated session asks the same
def read_noise_terms(parameters: ProtocolParameters, sharers: int) -> NoiseTerms:
    """Return what |U2| settles about the noise of a session: for the core.

    Args:
        parameters: With a noise block.
        sharers: |U2|.

    Raises:
        RemoteProtocolError: BAD_CONFIG; the block is malformed, or describes no noise
            for so many sharers.
    """
    task = NoisedTask.from_parameters(parameters)
    noise = task.session_noise(sharers)
    reveals = [noise.removed_layers(d) for d in range(noise.tolerated_losses + 1)]
    return NoiseTerms(
        context=task.noise_context(sharers),
        tolerated_losses=noise.tolerated_losses,
        reveals=tuple(reveals) if noise.layers else (),
    )


def certify(
    parameters: ProtocolParameters, clients: int, sharers: int, survivors: int
) -> NoiseCertificate:
    """Return what noise a sum must hold: for the verifier of receipts.

    Args:
        parameters: With a noise block.
        clients: |U1|.
        sharers: |U2|.
        survivors: |U3|.

    Raises:
        RemoteProtocolError: BAD_CONFIG; the block is malformed, or has no answer for
            such sets.
    """
    task = NoisedTask.from_parameters(parameters)
    return task.certificate(clients=clients, sharers=sharers, survivors=survivors)


def central_gaussian_variance(made: Plan) -> float:
    """Return the variance of the central Gaussian with the same budget and steps.

    Returns:
        Per coordinate of the sum, caller's units squared: the baseline with a
        trusted party.
    """
    return made.gaussian_mse


def _rotation_seed(session_id: bytes, suite: CipherSuite) -> bytes:
    # Public and fresh per session: an input cannot be prepared for a known rotation.
    return hash_parts("rotation", session_id, suite=suite)


@lru_cache(maxsize=64)  # one task has one block; an epsilon takes up to seconds
def _statement(noise_block: bytes, adversary: Adversary) -> PrivacyStatement:
    mechanism, budget, _ = _decode_block(noise_block)
    try:
        _check_cost(mechanism, budget.accountant)
        # No figure for noise that this release does not draw.
        _check_sampler(noise_block)
        accountant = make_accountant(budget.accountant, adversary=adversary)
        accountant.compose(Repeated(mechanism.event(), budget.sessions))
        return accountant.statement(budget.delta)
    except DPNoiseError as error:
        # The block names accountant and numbers: whoever offers it is at fault.
        raise _bad_block(str(error)) from None


def _encode_block(mechanism: Mechanism, budget: NoiseBudget, sampler: str) -> bytes:
    """Return the canonical bytes of a noise block (PROTOCOL §3.5).

    JSON with sorted keys, no white space, floats in their shortest form, rationals as
    "p/q" in lowest terms.

    Args:
        mechanism: With its noise.
        budget: What the task claims.
        sampler: Digest of how the noise is drawn, in hexadecimal.
    """
    encoder = mechanism.parameters.to_dict()
    entries = {
        "version": _BLOCK_VERSION,
        "noise": encoder.pop("noise_rule"),
        "mechanism": encoder,
        "noise_sampler": sampler,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "steps": budget.steps,
        "spare": budget.spare,
        "accountant": budget.accountant,
    }
    return _canonical_json(entries)


def _canonical_json(entries: object) -> bytes:
    return json.dumps(
        entries, sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode()


def _rational(number: Fraction) -> str:
    return f"{number.numerator}/{number.denominator}"


_BLOCK_KEYS: Final = frozenset(
    {
        "version",
        "mechanism",
        "noise",
        "noise_sampler",
        "epsilon",
        "delta",
        "steps",
        "spare",
        "accountant",
    }
)


@lru_cache(maxsize=64)
def _decode_block(block: bytes) -> tuple[Mechanism, NoiseBudget, str]:
    """Read a block, in the order of what its checks cost; draw no noise yet."""
    if not 0 < len(block) <= MAX_NOISE_BLOCK_BYTES:
        raise _bad_block("it is missing" if not block else "it is too long")
    try:
        entries = json.loads(block)
        is_canonical = _canonical_json(entries) == block
    except (ValueError, RecursionError):
        raise _bad_block("it is not JSON") from None
    if not is_canonical:
        raise _bad_block("it is not in canonical form")
    if not isinstance(entries, dict) or set(entries) != _BLOCK_KEYS:
        raise _bad_block(
            f"it must have exactly the keys {', '.join(sorted(_BLOCK_KEYS))}"
        )
    if entries["version"] != _BLOCK_VERSION:
        raise _bad_block(f"its version is not {_BLOCK_VERSION}")
    budget = NoiseBudget(
        epsilon=_positive(entries["epsilon"], "epsilon", math.inf),
        delta=_positive(entries["delta"], "delta", 1.0),
        steps=_whole(entries["steps"], "steps", lowest=1),
        spare=_whole(entries["spare"], "spare", lowest=0),
        accountant=str(entries["accountant"]),
    )
    encoder, noise = entries["mechanism"], entries["noise"]
    if not isinstance(encoder, dict) or "noise_rule" in encoder:
        raise _bad_block("its mechanism is not an object, or holds the noise")
    try:
        mechanism = make_mechanism(
            MechanismParameters.from_dict(encoder | {"noise_rule": noise})
        )
    except DPNoiseError as error:
        raise _bad_block(str(error)) from None
    sampler = str(entries["noise_sampler"])
    # One description, one block: what is charged is charged to its bytes.
    if _encode_block(mechanism, budget, sampler) != block:
        raise _bad_block("its numbers are not in canonical form")
    return mechanism, budget, sampler


def _check_cost(mechanism: Mechanism, accountant: str) -> None:
    """Refuse a block that keeps everybody busy who judges it."""
    release = cast("NoiseEvent", mechanism.event())
    seconds = expected_seconds(release, accountant)
    if seconds > _MAX_ACCOUNTING_SECONDS:
        raise _bad_block(
            f"{accountant} would take about {seconds:.0f} seconds to judge it, at most "
            f"{_MAX_ACCOUNTING_SECONDS:.0f} are accepted; plan on a coarser grid, or "
            "name skellam-gdp with the mechanism skellam"
        )


@lru_cache(maxsize=64)
def _check_sampler(block: bytes) -> None:
    """Refuse noise that this release does not draw; takes up to seconds."""
    mechanism, _, sampler = _decode_block(block)
    try:
        digest = mechanism.sampler_digest
    except DPNoiseError as error:
        raise _bad_block(str(error)) from None
    # Two samplers with other tables would not draw what the block promises.
    if sampler != digest.hex():
        raise _bad_block("its noise sampler is not the one that this release builds")


def _positive(value: object, name: str, below: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad_block(f"{name} is not a number")
    # Compared before it is converted: a server's whole number may exceed all floats.
    if not 0 < value < min(below, sys.float_info.max):
        raise _bad_block(f"{name} must lie between 0 and {below}")
    return float(value)


def _whole(value: object, name: str, *, lowest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _bad_block(f"{name} must be a whole number")
    if not lowest <= value <= MAX_STEPS:
        raise _bad_block(f"{name} must lie between {lowest} and {MAX_STEPS}")
    return value


def _bad_block(complaint: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the noise block cannot be used: {complaint}",
        code=ErrorCode.BAD_CONFIG,
        next_step="Plan the task again with `secagg plan`.",
    )
