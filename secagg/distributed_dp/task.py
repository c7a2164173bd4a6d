"""A task with distributed noise: protocol parameters and mechanism, joined.

Zeros with the whole noise take the place of a vector that cannot be used (R3.5-5). A
client that knows the payload of a session stays in it, whatever its data are.
Otherwise the published number of inputs would tell a server that chose the payload one
bit about the data, without noise.

Zeros take the path of every vector, `NoisyTask.encode`.  They fit every clip, so that
no privacy statement changes.  After a restart the digest of the bound input decides.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum, unique
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from dpnoise import local
from dpnoise.errors import DPNoiseError
from dpnoise.errors import InputError as NoiseInputError
from dpnoise.events import Adversary
from dpnoise.floats import rational_text, text_above
from dpnoise.local import LocalParameters
from dpnoise.mechanisms import (
    ALL_CLIENTS,
    ClippingSchedule,
    Mechanism,
    SessionNoise,
    SumError,
    is_selected,
    make_mechanism,
)
from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.transcript import hash_parts
from secagg.distributed_dp.noise_block import (
    NoiseBlock,
    NoiseBudget,
    bad_block,
    canonical_json,
    check_cost,
    decode_block,
)
from secagg.distributed_dp.report import (
    EPSILON_SLACK,
    LocalPrivacy,
    PrivacyReport,
    check_claim,
    local_privacy,
    randomised_mse,
    statement,
)
from secagg.distributed_dp.units import UnitBounds, read_unit
from secagg.errors import ErrorCode, InputError
from secagg.protocol.arguments import as_vector
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import NoisyVector, input_digest
from secagg.protocol.noise_terms import NoiseCertificate, NoiseSecrets
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.policy import PrivacyLimits

if TYPE_CHECKING:  # few tasks have a randomiser, and a client plans nothing
    from dpnoise.local import LocalRandomiser
    from dpnoise.planning import Plan

# Colluders see the ring with the roster, and may end sessions as they like. So rosters
# count, not sums (PROTOCOL §11.3).
_ROSTERS_PER_SESSION: Final = 10


@dataclass(frozen=True, slots=True)
class NoisyInput:
    """A client's input for its session, with a figure that only the client may see.

    Attributes:
        vector: The vector for the session.
        shortened_by: Length of the client's vector over its length after clipping, 1.0
            if it fitted. It reveals something about the vector: show it only to the
            vector's owner.
    """

    vector: NoisyVector
    shortened_by: float = field(repr=False)


@dataclass(frozen=True, slots=True)
class NoisyTask:
    """A task with distributed noise: protocol parameters and mechanism, joined.

    Build it with `from_plan` (operator), `from_parameters` (to check the task) or
    `of_session` (to encode or decode).

    Attributes:
        parameters: Protocol parameters, whose noise block describes mechanism and
            budget.
        mechanism: Encodes vectors and decodes sums.
        budget: The task's claim.
        selection_rate: Part of the vectors that count, by secret selection; 1 for all.
        units: Bounds of a clip that moves from session to session; None for a fixed
            clip.
        unit: Unit of one session of a task with an adaptive clip, grid steps per
            caller's unit. None for a fixed clip, and before a unit is known.
    """

    parameters: ProtocolParameters
    mechanism: Mechanism
    budget: NoiseBudget
    selection_rate: Fraction = ALL_CLIENTS
    units: UnitBounds | None = None
    unit: Fraction | None = None

    @classmethod
    def from_plan(
        cls,
        made: "Plan",
        protocol: ProtocolParameters,
        *,
        randomiser: LocalParameters | None = None,
        clip: ClippingSchedule | None = None,
    ) -> Self:
        """Join a plan with protocol parameters.

        Args:
            made: From `plan`; the task claims its accountant and budget.
            protocol: Cohort, threshold, graph and deadlines; modulus, dimension and
                noise block are replaced by the plan's.
            randomiser: Makes every vector private before it is encoded. The plan must
                be made for its `output_norm` as `l2_clip`.
            clip: Lets the clip follow the released sums; None for a fixed clip. The
                plan must have a clip flag, see `clip_flag_amplitude`.

        Raises:
            RemoteProtocolError: BAD_CONFIG, if they contradict each other.
        """
        mechanism = make_mechanism(made.parameters)
        budget = NoiseBudget(
            epsilon=float(made.request.epsilon),
            delta=float(made.request.delta),
            participations=made.request.sums_of_one_client,
            spare=made.request.spare,
            accountant=made.accountant,
            randomiser=randomiser,
        )
        parameters = replace(
            protocol,
            modulus=mechanism.modulus,
            dimension=mechanism.encoded_dim,
            noise_layers=_layers(mechanism.parameters.noise_rule.ladder),
            noise_block=NoiseBlock(
                mechanism=mechanism,
                budget=budget,
                selection_rate=made.request.selection,
                sampler=mechanism.sampler_digest.hex(),
                units=None if clip is None else UnitBounds.of(clip, made.parameters),
            ).encode(),
        )
        return cls.from_parameters(parameters.validate())

    @classmethod
    def from_parameters(cls, parameters: ProtocolParameters) -> Self:
        """Read the noise block of a session on offer.

        Raises:
            RemoteProtocolError: BAD_CONFIG, if the block is missing, malformed,
                contradicts the parameters, or describes a mechanism outside its
                theorem. Do not take part in the session.
        """
        block = decode_block(parameters.noise_block)
        return cls(
            parameters,
            block.mechanism,
            block.budget,
            block.selection_rate,
            block.units,
        ).validate()

    @classmethod
    def of_session(cls, session: SessionDescriptor) -> Self:
        """Read the noise block of a session, and the terms of its offer.

        Raises:
            RemoteProtocolError: BAD_CONFIG, as `from_parameters`, or if the offer
                states a unit outside the bounds of its task, or a unit without bounds
                (R3.5-3).
        """
        task = cls.from_parameters(session.parameters)
        if task.units is None:
            if session.noise_terms:
                raise bad_block("the clip of the task is fixed, but the offer moves it")
            return task
        try:
            unit = read_unit(session.noise_terms)
        except ValueError as error:
            raise bad_block(str(error)) from None
        bounds = task.units
        if not bounds.lowest <= unit <= bounds.highest:
            raise bad_block(
                f"the session has {float(unit):.6g} grid steps per unit, its task "
                f"allows {float(bounds.lowest):.6g} to {float(bounds.highest):.6g}"
            )
        return replace(task, unit=unit)

    def validate(self) -> Self:
        """Return self if protocol and mechanism match.

        Raises:
            RemoteProtocolError: BAD_CONFIG, naming the contradiction, or an accountant
                that would take too long.
        """
        # First, so that no later check of the task keeps a client busy for long.
        check_cost(self.mechanism, self.budget, self.selection_rate)
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
            # R3.5-6, here and below
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
            # The rule does not cover larger rosters.
            (
                given.num_clients >= ours.max_clients,
                (
                    f"noise is planned for {given.num_clients} clients, the session "
                    f"takes {ours.max_clients}"
                ),
            ),
        ):
            if not holds:
                raise bad_block(complaint)
        self._check_randomiser()
        return self

    def _check_randomiser(self) -> None:
        """Refuse a randomiser whose vectors the mechanism would change (R14.2-3)."""
        randomiser = self.randomiser
        if randomiser is None:
            return
        if randomiser.parameters.dim != self.dim:
            raise bad_block(
                f"its randomiser takes vectors of {randomiser.parameters.dim}, its "
                f"mechanism of {self.dim}"
            )
        if self.mechanism.has_clip_flag:
            # A flag of the vector itself would be a bit that is not randomised.
            raise bad_block(
                "its clip flag would state of every randomised vector that it fitted"
            )
        # Shortening the output would make it biased.
        if randomiser.output_norm > self.mechanism.parameters.l2_clip:
            raise bad_block(
                f"its randomiser sends vectors of norm {randomiser.output_norm:.6g}, "
                f"its l2_clip is {self.mechanism.parameters.l2_clip:.6g}"
            )

    @property
    def dim(self) -> int:
        """Dimension of the caller's vectors."""
        return self.mechanism.dim

    @property
    def magnification(self) -> float:
        """The factor of vectors before clipping; 1 for a fixed clip.

        Raises:
            RemoteProtocolError: BAD_CONFIG; the clip moves, and this is no session.
        """
        if self.units is None:
            return 1.0
        if self.unit is None:
            raise bad_block(
                "its clip is adaptive, and only a session's offer states the unit"
            )
        return float(self.unit / Fraction(self.mechanism.parameters.scale_factor))

    @property
    def l2_clip(self) -> float:
        """Longest vector that is not shortened in this session, caller's units."""
        return self.mechanism.parameters.l2_clip / self.magnification

    def fitted(
        self, residues: npt.NDArray[np.unsignedinteger[Any]], *, inputs: int
    ) -> float | None:
        """Return the released estimate of the part that fitted (R14.9-2).

        Args:
            residues: The sum.
            inputs: Number of vectors in the sum.

        Returns:
            The estimate, in [0, 1]; None without a clip flag.
        """
        if not self.mechanism.has_clip_flag:
            return None
        return self.mechanism.decode_clip_flag(
            residues, num_contributors=inputs, selection_rate=self.selection_rate
        )

    def is_selected(self, secrets: NoiseSecrets) -> bool:
        """Whether this client's vector counts, by secret selection (R3.5-2).

        A program that skips the computation of a vector that does not count must answer
        as if it had made it, at the same time.  Nothing that other parties see may
        depend on the selection.

        Args:
            secrets: The secrets from which the noise of the session is drawn.
        """
        return is_selected(secrets.seed.reveal(), self.selection_rate)

    @property
    def randomiser(self) -> "LocalRandomiser | None":
        """The local randomiser of every vector; None without one."""
        given = self.budget.randomiser
        return None if given is None else local.make_randomiser(given)

    def check_vector(self, vector: npt.NDArray[Any]) -> None:
        """Refuse every vector that `encode` refuses, before a session is joined.

        Args:
            vector: Floats of shape (dim,), caller's units.

        Raises:
            InputError: As `encode`.
            RemoteProtocolError: BAD_CONFIG; the clip moves, and this is no session.
        """
        sent = self._magnified_to_unit(vector)
        try:
            if (randomiser := self.randomiser) is not None:
                randomiser.shortened_by(sent)
            else:
                self.mechanism.check_input(sent)
        except NoiseInputError as error:
            raise _unfit(error) from None

    def _magnified_to_unit(self, vector: npt.NDArray[Any]) -> npt.NDArray[Any]:
        sent = np.asarray(vector)
        return sent if self.units is None else _magnified(sent, self.magnification)

    def encode(
        self,
        vector: npt.NDArray[Any],
        *,
        session_id: bytes,
        secrets: NoiseSecrets,
    ) -> NoisyInput:
        """Randomise, clip, rotate, scale, round, add noise, and reduce modulo m.

        The order is R14.3-1. The mechanism keeps R14.3-2, R14.4-1, R14.5-1 to R14.5-5,
        R14.6-1, R14.6-2 and R14.7-1 to R14.7-3.

        If the secret selection excludes the vector, zeros replace it after rounding,
        and all other steps are the same.

        Args:
            vector: Floats of shape (dim,), caller's units.
            session_id: Of the session on offer; fixes the public rotation.
            secrets: The secrets of the noise, with the number of share holders.

        Raises:
            InputError: NaN, infinity, or a wrong length or dtype.
            RemoteProtocolError: BAD_CONFIG; for so many share holders there is no
                noise.
        """
        noise = self.session_noise(secrets.share_holders)
        sent, shortened_by = self._magnified_to_unit(vector), None
        try:
            if (randomiser := self.randomiser) is not None:
                shortened_by = randomiser.shortened_by(sent)
                sent = randomiser.randomise(sent, private_seed=secrets.seed.reveal())
            encoded = self.mechanism.encode(
                sent,
                private_seed=secrets.seed.reveal(),
                public_seed=_rotation_seed(session_id, self.parameters.suite),
                session_noise=noise,
                layer_seeds=[
                    seed.reveal() for seed in secrets.layers[: len(noise.layers)]
                ],
                selection_rate=self.selection_rate,
            )
        except NoiseInputError as error:
            raise _unfit(error) from None
        return NoisyInput(
            NoisyVector(encoded.residues, self.parameters.noise_block, secrets.context),
            shortened_by or encoded.shortened_by,
        )

    def decode(
        self, residues: npt.NDArray[np.unsignedinteger[Any]], *, session_id: bytes
    ) -> npt.NDArray[np.float64]:
        """Return the estimate of the sum of all vectors, shape (dim,), caller's units.

        The way back is R14.9-1.

        With a selection rate q below 1, the residues add up the selected vectors, and
        the estimate is their sum over q. The mean of all vectors is the estimate over
        the number of inputs either way.
        """
        over = float(self.selection_rate) * self.magnification
        selected = self.mechanism.decode(
            residues, public_seed=_rotation_seed(session_id, self.parameters.suite)
        )
        return selected / over

    def session_noise(self, share_holders: int) -> SessionNoise:
        """Return the noise of each client of a session, as exact rationals (R3.5-1).

        Args:
            share_holders: |U2|.

        Raises:
            RemoteProtocolError: BAD_CONFIG; the rule has no answer for so many.
        """
        try:
            return self.mechanism.session(share_holders)
        except DPNoiseError as error:
            raise bad_block(str(error)) from None

    def certificate(
        self,
        *,
        clients: int,
        share_holders: int,
        survivors: int,
        given: Mapping[int, int] | None = None,
    ) -> NoiseCertificate:
        """Return the noise that a sum holds.

        Args:
            clients: |U1|.
            share_holders: |U2|.
            survivors: |U3|.
            given: From how many survivors each layer was subtracted; None if only the
                server knows.

        Raises:
            RemoteProtocolError: BAD_CONFIG; the rule has no answer for such sets, or
                more was subtracted than survivors can have revealed.
        """
        noise = self.session_noise(share_holders)
        unseen = self.parameters.max_omitted(clients)  # R5.9-13
        try:
            removed = noise.removed_layers(share_holders - survivors + unseen)
        except DPNoiseError as error:
            raise bad_block(str(error)) from None
        counts = None
        if given is not None:
            counts = tuple(given.get(layer, 0) for layer in removed)
            if not given.keys() <= set(removed) or max(counts, default=0) > survivors:
                raise bad_block("noise was subtracted that no survivor was asked for")
        return NoiseCertificate(
            share_holders=share_holders,
            survivors=survivors,
            unseen=unseen,
            colluders=noise.colluders,
            required=noise.counted_variance,
            base=noise.base,
            layers=noise.layers,
            removed=removed,
            given=counts,
        )

    def sum_error(
        self, *, inputs: int, certificate: NoiseCertificate | None
    ) -> SumError:
        """Return the error of a decoded sum against the sum of its vectors.

        Args:
            inputs: Number of vectors in the sum.
            certificate: Certificate of its noise. None where the sets are unknown: the
                most noise that any session retains is assumed.

        Returns:
            The error, caller's units, by the noise in the sum. Where the subtracted
            layers are unknown, it counts all noise that was added.

        Raises:
            RemoteProtocolError: BAD_CONFIG; the clip moves, and this is no session.
        """
        if certificate is None:
            noise = self.mechanism.total_noise_variance
        elif (total := certificate.total) is not None:
            noise = total
        else:
            noise = certificate.total_noise
        error = self.mechanism.sum_error(
            noise,
            inputs=inputs,
            selection_rate=self.selection_rate,
            magnification=Fraction(self.magnification),
        )
        if self.randomiser is not None:
            added = randomised_mse(
                self.randomiser, clients=inputs, selection_rate=self.selection_rate
            )
            error = replace(
                error, mean_square=error.mean_square + Fraction(added)
            ).with_flaw("a local randomiser has changed every vector by itself")
        if self.units is not None:
            error = error.with_flaw("the adaptive clip shortens some vectors")
        return error

    def table_hashes(self, share_holders: int) -> tuple[bytes, ...]:
        """Return the hashes of the tables that noise is drawn with, 32 bytes each.

        The laws of R14.7-2, as R14.8-1, R14.8-2 and R14.8-4 write them down.

        Args:
            share_holders: |U2|.

        Raises:
            RemoteProtocolError: BAD_CONFIG; the rule has no answer for so many, or
                no sampler holds such noise.
        """
        noise = self.session_noise(share_holders)
        try:
            return tuple(self.mechanism.sampler_digests(noise))
        except DPNoiseError as error:
            raise bad_block(str(error)) from None

    def noise_context(self, share_holders: int) -> bytes:
        """Return 32 bytes that cover how noise is drawn, PROTOCOL §3.5.

        Args:
            share_holders: |U2|.

        Raises:
            RemoteProtocolError: BAD_CONFIG; the rule has no answer for so many, or
                no sampler holds such noise.
        """
        noise = self.session_noise(share_holders)
        entries = {
            "base": rational_text(noise.base),
            "layers": [rational_text(layer) for layer in noise.layers],
            "roster": share_holders,
            "tables": [digest.hex() for digest in self.table_hashes(share_holders)],
        }
        return hash_parts(
            "noise-context", canonical_json(entries), suite=self.parameters.suite
        )

    def report(self) -> PrivacyReport:
        """Compute what the whole task costs its users, adversary by adversary."""
        given = self.mechanism.parameters
        return PrivacyReport(
            server=statement(self.parameters.noise_block, Adversary.SERVER),
            model_reader=statement(self.parameters.noise_block, Adversary.MODEL_READER),
            local_noise_stddev=self.local_noise_stddev,
            counted_shares=given.noise_rule.smallest_counted_shares(given.num_clients),
            participations=self.budget.participations,
            spare=self.budget.spare,
            graph_delta=self.graph_delta,
            selection_rate=self.selection_rate,
            broken_masks=self.broken_masks,
        )

    @property
    def broken_masks(self) -> LocalPrivacy | None:
        """Privacy against an adversary that sees each vector alone, or None."""
        return local_privacy(self.randomiser, sessions=self.budget.charges)

    @property
    def max_rosters(self) -> int | None:
        """Number of rosters that one client accepts for the task; None for any number.

        Each is a new ring, and one more chance that it is unsafe (PROTOCOL §11.3).
        """
        if self.parameters.is_complete_graph:
            return None
        return _ROSTERS_PER_SESSION * self.budget.charges

    @property
    def local_noise_stddev(self) -> float:
        """Smallest noise of one client over all rosters, caller's units."""
        given = self.mechanism.parameters
        least = given.noise_rule.least_variance(given.num_clients)
        unit = given.scale_factor
        if self.units is not None:
            unit = float(self.units.highest)
        return math.sqrt(self.mechanism.drawn_variance(least)) / unit

    @property
    def local_noise_multiplier(self) -> float:
        """Smallest noise of one client over the longest vector, for any units."""
        given = self.mechanism.parameters
        least = given.noise_rule.least_variance(given.num_clients)
        drawn = float(self.mechanism.drawn_variance(least))
        return math.sqrt(drawn / self.mechanism.l2_clip_squared_steps)

    @property
    def graph_delta(self) -> float:
        """What the sharing graph adds to delta, over the whole task.

        Returns:
            The probability that some session unmasks more than one sum: 2^-graph_bits
            for each of `max_rosters`; 0 on the complete graph.
        """
        return (self.max_rosters or 0) * 2.0**-self.parameters.graph_bits

    def check_noise(self, privacy_limits: PrivacyLimits) -> None:
        """Check a task's claims against a client's limits, without computing epsilon.

        Computing epsilon takes up to seconds, and a server could choose a slow task.

        Args:
            privacy_limits: The client's limits.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION, naming the limit.
        """
        rule = self.mechanism.parameters.noise_rule
        fraction = privacy_limits.colluder_fraction(self.parameters.profile)
        _require_limits(
            (
                # Not from the report, which may be that of another graph.
                self.budget.delta + self.graph_delta <= privacy_limits.max_delta,
                (
                    f"delta is {text_above(self.budget.delta + self.graph_delta, 3)}, "
                    f"of which the graph adds {self.graph_delta:.3g}; at most "
                    f"{privacy_limits.max_delta:.3g} is accepted"
                ),
            ),
            (
                # As the task claims; `check` compares the noise with the claim.
                self.budget.epsilon <= privacy_limits.max_epsilon * (1 + EPSILON_SLACK),
                (
                    f"epsilon is {text_above(self.budget.epsilon, 4)}, at most "
                    f"{privacy_limits.max_epsilon:.4g} is accepted"
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
                self.local_noise_stddev >= privacy_limits.min_local_noise_stddev,
                (
                    f"each client adds noise of standard deviation "
                    f"{self.local_noise_stddev:.4g}, at least "
                    f"{privacy_limits.min_local_noise_stddev:.4g} is demanded"
                ),
            ),
            (
                self.local_noise_multiplier
                >= privacy_limits.min_local_noise_multiplier,
                (
                    f"each client adds {self.local_noise_multiplier:.4g} of the "
                    f"longest vector as noise, at least "
                    f"{privacy_limits.min_local_noise_multiplier:.4g} is demanded"
                ),
            ),
        )
        self._check_local(privacy_limits.max_local_epsilon)

    def _check_local(self, most: float | None) -> None:
        """Refuse a loss without masks above the client's limit."""
        if most is None:
            return
        stated = self.broken_masks
        total = math.inf if stated is None else stated.total_epsilon
        _require_limits(
            (
                total <= most * (1 + EPSILON_SLACK),
                (
                    "no local randomiser protects a vector whose masks are broken"
                    if stated is None
                    else f"local epsilon is {text_above(total, 4)} over all sessions, "
                    f"at most {most:.4g} is accepted"
                ),
            )
        )

    def check(
        self, privacy_limits: PrivacyLimits, *, report: PrivacyReport | None = None
    ) -> PrivacyReport:
        """Check the task against a client's privacy limits.

        Args:
            privacy_limits: The client's limits.
            report: The caller's own earlier report on this very task; computed now by
                default.

        Returns:
            The report.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION, naming the limit; BAD_CONFIG, if this
                release draws other noise than the block describes.
        """
        self.check_noise(privacy_limits)
        report = self.kept_claim(report=report)
        stated = report.server
        _require_limits(
            (
                privacy_limits.accepts(status=stated.status, proof=stated.proof),
                (
                    f"epsilon is only {stated.grounds}; accepted: "
                    f"{', '.join(sorted(privacy_limits.statuses))}"
                ),
            ),
        )
        return report

    def kept_claim(self, *, report: PrivacyReport | None = None) -> PrivacyReport:
        """Return the report of a task whose noise keeps the epsilon that it claims.

        Args:
            report: The caller's own earlier report on this very task; computed now by
                default.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION, if the noise gives a larger epsilon,
                or only a hypothetical one; BAD_CONFIG, if this release draws other
                noise than the block describes.
        """
        report = report or self.report()
        check_claim(report.server, self.budget)
        return report


def _layers(ladder: int) -> int:
    """Return the number of layers of a ladder with so many rungs."""
    return ladder + 1 if ladder else 0


def _require_limits(*demands: tuple[bool, str]) -> None:
    """Raise POLICY_VIOLATION for the first limit that does not hold."""
    for holds, complaint in demands:
        if not holds:
            raise ErrorCode.POLICY_VIOLATION.error(
                f"the task breaks this client's privacy policy: {complaint}",
                fix="Ask the operator for more noise or fewer steps, or give "
                "this client other PrivacyLimits if that is what you want.",
                at_command="Ask the operator for more noise or fewer steps, or change "
                "[policy] in the client's settings if that is what you want.",
            )


def _unfit(error: NoiseInputError) -> InputError:
    return ErrorCode.BAD_INPUT.error(
        str(error), kind=InputError, fix="Correct the vector; none of it was sent."
    )


def _magnified(vector: npt.NDArray[Any], factor: float) -> npt.NDArray[np.float64]:
    """Multiply a vector; the encoder refuses what is not a vector of numbers.

    A product beyond all floats becomes the largest: it is far beyond the clip. A factor
    is the server's, and must not decide which finite vectors can be encoded.
    """
    if vector.dtype.kind not in "fiu":
        return vector
    given = vector.astype(np.float64)
    with np.errstate(over="ignore"):
        product = given * factor
    largest = np.finfo(np.float64).max
    return np.where(np.isfinite(given), np.clip(product, -largest, largest), given)


def _rotation_seed(session_id: bytes, suite: CipherSuite) -> bytes:
    # Public and fresh per session: no input can be prepared for a known rotation.
    return hash_parts("rotation", session_id, suite=suite)


@unique
class UnusableKind(StrEnum):
    """Why a vector cannot be used, as one word for logs."""

    INVALID = "invalid"
    """It is not a vector of the task."""
    RAISED = "raised"
    """The function that returns it raised an exception."""
    LATE = "late"
    """It was not ready in time."""
    BUSY = "busy"
    """The function is still running for an earlier session."""
    BOUND = "bound"
    """Zeros were bound to the session before a restart."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why there is no vector.

    Attributes:
        kind: The reason as one word.
        reason: The reason as a clause after "zeros were given: ", for the owner of the
            vector alone.
    """

    kind: UnusableKind
    reason: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReplacedInput:
    """An encoded input of a session.

    Attributes:
        encoded: The vector or zeros, with the whole noise.
        replaced: Why it is zeros; None for the vector.
    """

    encoded: NoisyInput
    replaced: Unusable | None


def encode_or_zeros(
    task: NoisyTask,
    given: object,
    *,
    session_id: bytes,
    secrets: NoiseSecrets,
    bound: bytes = b"",
) -> ReplacedInput:
    """Encode a vector, or zeros if it cannot be encoded (R3.5-5).

    Args:
        task: Task of the session.
        given: The vector, shape (dim,), caller's units; or why it is missing.
        session_id: Id of the session.
        secrets: The secrets from which the noise is drawn.
        bound: Digest of the input that the session accepted before a restart; b""
            before one is bound.

    Returns:
        The input. With `bound`, whichever of vector and zeros has this digest; if
            neither has, an input that the session refuses (R5.3-2).

    Raises:
        RemoteProtocolError: BAD_CONFIG; for so many share holders there is no noise.
    """
    encoded, why = None, given if isinstance(given, Unusable) else None
    if why is None:
        try:
            vector = as_vector(given, task.dim, noisy=True)
            encoded = task.encode(vector, session_id=session_id, secrets=secrets)
        except InputError as error:
            why = Unusable(UnusableKind.INVALID, str(error))
        except Exception as error:  # noqa: BLE001 - if data caused it, an abort would reveal that
            kind = type(error).__name__
            why = Unusable(UnusableKind.INVALID, f"encoding it ended in {kind}")
    if encoded is not None and bound in {b"", input_digest(encoded.vector)}:
        return ReplacedInput(encoded, None)
    zeros = task.encode(
        np.zeros(task.dim), session_id=session_id, secrets=secrets
    )  # an error that the data did not cause is raised here
    if bound and bound != input_digest(zeros.vector):
        return ReplacedInput(zeros if encoded is None else encoded, None)
    return ReplacedInput(
        zeros,
        why
        or Unusable(
            UnusableKind.BOUND, "they were bound to the session before a restart"
        ),
    )
