"""Where secure sums and differential privacy meet: the only importer of `dpnoise`.

A *noised task* is a task whose parameters hold a noise block: the mechanism with all
its numbers, and the budget that it claims to meet.  The block enters the configuration
hash, so all clients add noise for the same claim or their masks do not cancel.

Rule 1: noise is calibrated to min_survivors - colluders - 1 shares: neither clients
        that may be lost, nor colluders, nor the user itself are counted.
Rule 2: only `NoisedTask.encode` makes a `NoisedVector`, and a session with a noise
        block takes nothing else.
Rule 3: a client recomputes epsilon from the mechanism; it never believes the claim.
Rule 4: no amplification by sampling: the server knows who takes part, and readers see
        it in the noise that every participant adds.
Rule 5: noise and rounding derive from one secret seed per session, so that a restarted
        client sends the same bytes; the rotation from the public session id.

It does no input or output.
"""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from dpnoise.accounting import PrivacyStatement, make_accountant
from dpnoise.errors import DPNoiseError, ParameterError, UnknownEventError
from dpnoise.errors import InputError as NoiseInputError
from dpnoise.events import Adversary, Repeated
from dpnoise.mechanisms import Mechanism, MechanismParameters, make_mechanism
from dpnoise.planning import CurvePoint, Plan, error_curve, plan
from secagg.errors import ErrorCode, InputError, RemoteProtocolError
from secagg.parameters import MAX_NOISE_BLOCK_BYTES, ProtocolParameters
from secagg.policy import PrivacyFloors
from secagg.primitives.cipher_suite import CipherSuite
from secagg.primitives.secret_bytes import SecretBytes
from secagg.primitives.transcript import hash_parts
from secagg.protocol.events import NoisedVector

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
    "UnknownEventError",
    "central_gaussian_variance",
    "error_curve",
    "plan",
]

_BLOCK_VERSION: Final = 1
# A claim may be off by the accountant's own rounding, not by a decision.
_EPSILON_SLACK: Final = 1e-6
# Colluders see the ring with the roster and may end sessions that do not suit them, so
# rosters count and not sums (PROTOCOL §11.3).
_ROSTERS_PER_SESSION: Final = 10
MAX_STEPS: Final = 1_000_000


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
        local_noise_stddev: One client's own noise, caller's units: all that is left
            if secure aggregation is broken.
        counted_shares: Noise shares that the figures rely on.
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
            noise_block=_encode_block(mechanism, budget),
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
        mechanism, budget = _decode_block(parameters.noise_block)
        return cls(parameters, mechanism, budget).validate()

    def validate(self) -> Self:
        """Return self if protocol and mechanism fit each other.

        Raises:
            RemoteProtocolError: BAD_CONFIG, naming the contradiction.
        """
        given, ours = self.mechanism.parameters, self.parameters
        for holds, complaint in (
            # R3.2-10
            (
                ours.noise_layers == 0,
                f"it has no ladder, the session has {ours.noise_layers} noise layers",
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
                given.min_survivors <= ours.min_survivors,
                (
                    f"noise is calibrated for {given.min_survivors} survivors, the "
                    f"session unmasks {ours.min_survivors}"
                ),
            ),
            (
                given.colluders >= ours.colluders,
                (
                    f"noise tolerates {given.colluders} colluders, the session "
                    f"{ours.colluders}"
                ),
            ),
            # More shares than planned for would overflow the modulus unannounced.
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
        noise_seed: SecretBytes,
    ) -> NoisedInput:
        """Clip, rotate, scale, round, add the noise share, and reduce modulo m.

        Args:
            vector: Floats of shape (dim,), caller's units.
            session_id: Of the session on offer; fixes the public rotation.
            noise_seed: 32 secret bytes that serve this session only.

        Raises:
            InputError: NaN, infinity, or a wrong length or dtype.
        """
        try:
            encoded = self.mechanism.encode(
                np.asarray(vector),
                private_seed=noise_seed.reveal(),
                public_seed=_rotation_seed(session_id, self.parameters.suite),
            )
        except NoiseInputError as error:
            raise InputError(str(error)) from None
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

    def report(self) -> PrivacyReport:
        """State what the whole task costs its users, adversary by adversary."""
        given = self.mechanism.parameters
        return PrivacyReport(
            server=_statement(self.parameters.noise_block, Adversary.SERVER),
            model_reader=_statement(
                self.parameters.noise_block, Adversary.MODEL_READER
            ),
            local_noise_stddev=math.sqrt(given.local_noise_variance)
            / given.scale_factor,
            counted_shares=given.num_noise_shares,
            steps=self.budget.steps,
            spare=self.budget.spare,
            graph_delta=self.graph_delta,
        )

    @property
    def graph_delta(self) -> float:
        """What the sharing graph adds to delta, over the whole task.

        Returns:
            The chance that some session unmasks more than one sum: 2^-graph_bits for
            each of `_ROSTERS_PER_SESSION` rosters for each session (PROTOCOL §11.3);
            0 on the complete graph.
        """
        if self.parameters.is_complete_graph:
            return 0.0
        rosters = _ROSTERS_PER_SESSION * self.budget.sessions
        return rosters * 2.0**-self.parameters.graph_bits

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
            RemoteProtocolError: POLICY_VIOLATION, naming the floor.
        """
        report = report or self.report()
        stated = report.server
        for holds, complaint in (
            (
                stated.epsilon <= self.budget.epsilon * (1 + _EPSILON_SLACK),
                (
                    f"the noise gives epsilon {stated.epsilon:.4g}, the task claims "
                    f"{self.budget.epsilon:.4g}"
                ),
            ),
            (
                stated.epsilon <= floors.max_epsilon * (1 + _EPSILON_SLACK),
                (
                    f"epsilon is {stated.epsilon:.4g}, at most "
                    f"{floors.max_epsilon:.4g} is accepted"
                ),
            ),
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
                str(stated.status) in floors.statuses,
                (
                    f"epsilon is only {stated.status}; accepted: "
                    f"{', '.join(sorted(floors.statuses))}"
                ),
            ),
            (
                report.local_noise_stddev >= floors.min_local_noise_stddev,
                (
                    f"each client adds noise of standard deviation "
                    f"{report.local_noise_stddev:.4g}, at least "
                    f"{floors.min_local_noise_stddev:.4g} is demanded"
                ),
            ),
        ):
            if not holds:
                raise RemoteProtocolError(
                    f"the task breaks this client's privacy policy: {complaint}",
                    code=ErrorCode.POLICY_VIOLATION,
                    next_step="Ask the operator for more noise or fewer steps, or "
                    "change [policy] in the client's settings if that is what you "
                    "want.",
                )
        return report


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
    mechanism, budget = _decode_block(noise_block)
    try:
        accountant = make_accountant(budget.accountant, adversary=adversary)
        accountant.compose(Repeated(mechanism.event(), budget.sessions))
        return accountant.statement(budget.delta)
    except DPNoiseError as error:
        # The block names the accountant: whoever offers it is at fault.
        raise _bad_block(str(error)) from None


def _encode_block(mechanism: Mechanism, budget: NoiseBudget) -> bytes:
    """Return the canonical bytes of a noise block (PROTOCOL §3.2).

    JSON with sorted keys, no white space, floats in their shortest form.
    """
    entries = {
        "version": _BLOCK_VERSION,
        "mechanism": mechanism.parameters.to_dict(),
        "noise_table": mechanism.table_digest().hex(),
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


@lru_cache(maxsize=64)
def _decode_block(block: bytes) -> tuple[Mechanism, NoiseBudget]:
    if not 0 < len(block) <= MAX_NOISE_BLOCK_BYTES:
        raise _bad_block("it is missing" if not block else "it is too long")
    try:
        entries = json.loads(block)
        is_canonical = _canonical_json(entries) == block
    except (ValueError, RecursionError):
        raise _bad_block("it is not JSON") from None
    keys = {
        "version",
        "mechanism",
        "noise_table",
        "epsilon",
        "delta",
        "steps",
        "spare",
        "accountant",
    }
    if not is_canonical:
        raise _bad_block("it is not in canonical form")
    if not isinstance(entries, dict) or set(entries) != keys:
        raise _bad_block(f"it must have exactly the keys {', '.join(sorted(keys))}")
    if entries["version"] != _BLOCK_VERSION:
        raise _bad_block(f"its version is not {_BLOCK_VERSION}")
    try:
        budget = NoiseBudget(
            epsilon=_positive(entries["epsilon"], "epsilon", math.inf),
            delta=_positive(entries["delta"], "delta", 1.0),
            steps=_whole(entries["steps"], "steps", lowest=1),
            spare=_whole(entries["spare"], "spare", lowest=0),
            accountant=str(entries["accountant"]),
        )
        if not isinstance(entries["mechanism"], dict):
            raise _bad_block("its mechanism is not an object")
        mechanism = make_mechanism(MechanismParameters.from_dict(entries["mechanism"]))
        # Building the table also proves that the noise can be drawn at all.
        digest = mechanism.table_digest().hex()
    except DPNoiseError as error:
        raise _bad_block(str(error)) from None
    # Two samplers with another table would not draw what the block promises.
    if entries["noise_table"] != digest:
        raise _bad_block("its noise table is not the one that this release builds")
    return mechanism, budget


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
