"""Noise that two aggregators add, each the whole variance.

Rule 1: no client adds noise. Each aggregator draws noise of the whole variance, from a
        seed of its own. A party that knows one part of the noise still faces the other.
Rule 2: the figure against an aggregator counts the other one's noise alone; against
        readers it counts both.  The first assumes that the other one follows the
        protocol.
Rule 3: only parties of a session between two aggregators accept such a block.
        `NoisyTask` refuses it, because a single aggregator would add its noise to a sum
        that it has already read.

This module does no input or output.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from dpnoise.accounting import (
    PrivacyStatement,
    default_accountant,
    make_accountant,
    privacy_unit,
    weakened,
)
from dpnoise.errors import DPNoiseError
from dpnoise.errors import InputError as NoiseInputError
from dpnoise.events import (
    Adversary,
    DiscreteGaussianEvent,
    DistributedDiscreteGaussianEvent,
    Repeated,
)
from dpnoise.floats import text_above
from dpnoise.mechanisms import (
    ALL_CLIENTS,
    CentralMechanism,
    MechanismParameters,
    SumError,
    make_mechanism,
)
from secagg.crypto.modular import UnsignedArray
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.transcript import hash_parts
from secagg.distributed_dp.noise_block import (
    NoiseBlock,
    NoiseBudget,
    bad_block,
    decode_block,
)
from secagg.distributed_dp.report import EPSILON_SLACK, check_claim, statement
from secagg.errors import ErrorCode
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.policy import PrivacyLimits

_AGGREGATORS: Final = 2


@dataclass(frozen=True, slots=True)
class TwoAggregatorReport:
    """What a task between two aggregators costs its users, adversary by adversary.

    Attributes:
        aggregator: Cost against either aggregator, if the other one adds its noise.
        reader: Cost against readers of the sums, if both aggregators add their noise;
            if only one does, it is `aggregator`.
        noise_stddev: Standard deviation of all noise in one coordinate of a sum,
            caller's units.
        charges: Largest number of sessions with one client's data, which the figures
            cover.
    """

    aggregator: PrivacyStatement
    reader: PrivacyStatement
    noise_stddev: float
    charges: int

    @property
    def privacy_unit(self) -> str:
        """The data that the figures protect, and in how many sessions."""
        return privacy_unit(self.charges)

    @property
    def assumes(self) -> str:
        """The assumptions of all figures beside theorems (R3.5-5), in sentences."""
        return (
            "Assumes that whether and when a client takes part does not depend on its "
            "data. Kept by this client from its first call on; not in time, not for "
            "crashes, and not for the program that calls it."
        )

    def figures(self) -> str:
        """Return epsilon and delta of the whole task against either aggregator."""
        return self.aggregator.figures()

    def lines(self) -> tuple[str, str, str]:
        """Return what the whole task costs, one sentence for each adversary."""
        one, both = _statement_text(self.aggregator), _statement_text(self.reader)
        return (
            "against both aggregators together: nothing is promised",
            f"against either aggregator, if the other one adds its noise: {one}",
            f"against readers of the sums, if both do: {both}",
        )

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return {
            "aggregator": self.aggregator.to_dict(),
            "reader": self.reader.to_dict(),
            "noise_stddev": self.noise_stddev,
            "charges": self.charges,
            "privacy_unit": self.privacy_unit,
            "assumes": self.assumes,
        }


@dataclass(frozen=True, slots=True)
class AggregatorNoise:
    """The noise of a task between two aggregators, read from its parameters.

    Attributes:
        parameters: Protocol parameters, whose noise block describes the other two.
        mechanism: Encodes vectors, draws one aggregator's noise, decodes sums.
        budget: The task's claim against either aggregator.
    """

    parameters: ProtocolParameters
    mechanism: CentralMechanism
    budget: NoiseBudget

    @classmethod
    def joined(  # noqa: PLR0913 - a mechanism and a claim
        cls,
        chosen: MechanismParameters,
        protocol: ProtocolParameters,
        *,
        epsilon: float,
        delta: float,
        participations: int = 1,
        spare: int = 0,
        accountant: str | None = None,
    ) -> Self:
        """Join a mechanism with protocol parameters.

        Args:
            chosen: Parameters of `discrete-gaussian`, with the noise of *one*
                aggregator; for example a plan's, or those of
                `dpnoise.mechanisms.fixed_point_parameters`.
            protocol: Cohort and deadlines; modulus, dimension and noise block are
                replaced.
            epsilon: What the task claims against either aggregator, over all charges of
                one client.
            delta: Failure probability, over the same charges.
            participations: Largest number of sums that hold one client's data.
            spare: Further sessions of one client, for those that end without a sum
                after the client has sent its shares or the helper has answered.
            accountant: Accountant of the claim; None for the proven or certified one
                with the smallest epsilon.

        Raises:
            RemoteProtocolError: BAD_CONFIG, if they contradict each other.
        """
        try:
            mechanism = make_mechanism(chosen)
            if accountant is None:
                accountant = default_accountant(
                    Repeated(mechanism.event(), participations + spare),
                    delta=delta,
                    adversary=Adversary.SERVER,
                )
        except DPNoiseError as error:
            raise bad_block(str(error)) from None
        block = NoiseBlock(
            mechanism=mechanism,
            budget=NoiseBudget(
                epsilon=float(epsilon),
                delta=float(delta),
                participations=participations,
                spare=spare,
                accountant=accountant,
            ),
            selection_rate=ALL_CLIENTS,
            sampler=mechanism.sampler_digest.hex(),
        )
        parameters = replace(
            protocol,
            modulus=mechanism.modulus,
            dimension=mechanism.encoded_dim,
            noise_block=block.encode(),
        )
        return cls.from_parameters(parameters.validate())

    @classmethod
    def from_parameters(cls, parameters: ProtocolParameters) -> Self:
        """Read the noise block of a session on offer.

        Raises:
            RemoteProtocolError: BAD_CONFIG, if the block is missing or malformed, does
                not fit the parameters, or describes noise of clients.
        """
        block = decode_block(parameters.noise_block)
        mechanism, rule = block.mechanism, block.mechanism.parameters.noise_rule
        if not isinstance(mechanism, CentralMechanism) or not isinstance(
            mechanism.event(), DiscreteGaussianEvent
        ):
            raise bad_block(
                f"mechanism {mechanism.name} is not noise that an aggregator adds"
            )
        for holds, complaint in (
            (block.selection_rate == ALL_CLIENTS, "it selects vectors in secret"),
            (block.budget.randomiser is None, "it has a local randomiser"),
            # Without its flag no clip can move either.
            (not mechanism.has_clip_flag, "it has a clip flag"),
            (
                mechanism.modulus == parameters.modulus
                and mechanism.encoded_dim == parameters.dimension,
                "its modulus or dimension is not the session's",
            ),
            (
                rule.min_survivors <= parameters.min_survivors
                and mechanism.parameters.num_clients >= parameters.max_clients,
                "it is planned for another cohort",
            ),
        ):
            if not holds:
                raise bad_block(complaint)
        return cls(parameters, mechanism, block.budget)

    @property
    def dim(self) -> int:
        """Coordinates of the caller's vectors."""
        return self.mechanism.dim

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of all noise in one coordinate, caller's units."""
        variance = _AGGREGATORS * self.mechanism.counted_noise_variance
        return math.sqrt(variance) / self.mechanism.parameters.scale_factor

    def sum_error(self, *, inputs: int) -> SumError:
        """Return the error of a decoded sum against the sum of its vectors.

        Args:
            inputs: Number of vectors in the sum.

        Returns:
            The error, caller's units.
        """
        noise = _AGGREGATORS * self.mechanism.counted_noise_variance
        return self.mechanism.sum_error(noise, inputs=inputs)

    def encode(
        self, vector: npt.NDArray[Any], *, session_id: bytes, seed: SecretBytes
    ) -> UnsignedArray:
        """Clip, rotate, scale, truncate and reduce a vector modulo m; add no noise.

        Args:
            vector: Floats of shape (dim,), caller's units.
            session_id: Id of the offered session; determines the public rotation.
            seed: 32 secret bytes of this client.

        Returns:
            Residues of shape (dimension,).

        Raises:
            InputError: NaN, infinity, or a wrong length or dtype.
        """
        cohort = self.mechanism.parameters.noise_rule.min_survivors
        try:
            return self.mechanism.encode(
                vector,
                private_seed=seed.reveal(),
                public_seed=self._rotation_seed(session_id),
                session_noise=self.mechanism.session(cohort),
            ).residues
        except NoiseInputError as error:
            raise ErrorCode.BAD_INPUT.error(
                str(error), fix="Correct the vector; none of it was sent."
            ) from None

    def add_noise(self, residues: UnsignedArray, *, seed: SecretBytes) -> UnsignedArray:
        """Add the whole noise of one aggregator to residues, and return them.

        Args:
            residues: A sum of shares, shape (dimension,), entries below m.
            seed: 32 secret bytes of this aggregator, for this sum alone.
        """
        return self.mechanism.add_noise(residues, private_seed=seed.reveal())

    def decode(
        self, residues: UnsignedArray, *, session_id: bytes
    ) -> npt.NDArray[np.float64]:
        """Return the estimate of the sum of all vectors, shape (dim,)."""
        return self.mechanism.decode(
            residues, public_seed=self._rotation_seed(session_id)
        )

    def report(self) -> TwoAggregatorReport:
        """Compute what the whole task costs its users, adversary by adversary.

        Raises:
            RemoteProtocolError: BAD_CONFIG; the accountant does not know such noise,
                or this release does not draw it.
        """
        against_one = statement(self.parameters.noise_block, Adversary.SERVER)
        alone = self.mechanism.event()
        assert isinstance(alone, DiscreteGaussianEvent)  # noqa: S101 - from_parameters
        both = DistributedDiscreteGaussianEvent(
            dim=alone.dim,
            num_noise_shares=_AGGREGATORS,
            local_noise_variance=alone.noise_variance,
            l2_sensitivity=alone.l2_sensitivity,
            sampler_distance=min(0.5, _AGGREGATORS * alone.sampler_distance),
        )
        reader, delta = Adversary.MODEL_READER, self.budget.delta
        released = Repeated(both, self.budget.charges)
        try:
            name = default_accountant(released, delta=delta, adversary=reader)
            account = make_accountant(name, adversary=reader).compose(released)
        except DPNoiseError as error:
            raise bad_block(str(error)) from None
        return TwoAggregatorReport(
            aggregator=against_one,
            reader=weakened(
                account.statement(delta), self.mechanism.parameters.mechanism
            ),
            noise_stddev=self.noise_stddev,
            charges=self.budget.charges,
        )

    def kept_claim(
        self, *, report_of: Callable[[], TwoAggregatorReport] | None = None
    ) -> TwoAggregatorReport:
        """Return the report of a task whose noise keeps what the task claims.

        Args:
            report_of: Returns this task's own report; computes it by default.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION; the noise does not keep the claim, or
                epsilon is only hypothetical. BAD_CONFIG as `report`.
        """
        report = (report_of or self.report)()
        check_claim(report.aggregator, self.budget)
        return report

    def check(
        self,
        privacy_limits: PrivacyLimits,
        *,
        report_of: Callable[[], TwoAggregatorReport] | None = None,
    ) -> TwoAggregatorReport:
        """Check the task against a client's privacy limits.

        Every `min_colluder_fraction` is met, because no client's noise is counted.

        Args:
            privacy_limits: The client's limits.
            report_of: As for `kept_claim`; called only if the rest fits.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION, naming the limit; BAD_CONFIG as
                `report`.
        """
        _require(
            privacy_limits.max_local_epsilon is None,
            "no local randomiser protects a vector that both aggregators read together",
        )
        _require(
            privacy_limits.min_local_noise_stddev == 0.0
            and privacy_limits.min_local_noise_multiplier == 0.0,
            "no client adds noise to its own vector",
        )
        _require(
            self.budget.delta <= privacy_limits.max_delta,
            f"delta is {text_above(self.budget.delta, 3)}, at most "
            f"{privacy_limits.max_delta:.3g} is accepted",
        )
        _require(
            self.budget.epsilon <= privacy_limits.max_epsilon * (1 + EPSILON_SLACK),
            f"epsilon is {text_above(self.budget.epsilon, 4)}, at most "
            f"{privacy_limits.max_epsilon:.4g} "
            "is accepted",
        )
        report = self.kept_claim(report_of=report_of)
        stated = report.aggregator
        _require(
            privacy_limits.accepts(status=stated.status, proof=stated.proof),
            f"epsilon is only {stated.grounds}; accepted: "
            f"{', '.join(sorted(privacy_limits.statuses))}",
        )
        return report

    def _rotation_seed(self, session_id: bytes) -> bytes:
        return hash_parts("rotation", session_id, suite=self.parameters.suite)


def _statement_text(stated: PrivacyStatement) -> str:
    """Return figures, accountant and status of the proof of a statement."""
    return f"{stated.figures()} ({stated.accountant}; {stated.grounds})"


def _require(holds: bool, complaint: str) -> None:  # noqa: FBT001 - the value asked about
    """Raise POLICY_VIOLATION unless a rule holds."""
    if not holds:
        raise ErrorCode.POLICY_VIOLATION.error(
            f"the task breaks this client's privacy policy: {complaint}",
            fix="Ask the operators for more noise or fewer sums, or change "
            "your limits if you accept these.",
        )
