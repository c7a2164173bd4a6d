"""The cost of a noisy task to its users, by adversary, and its local randomiser.

An operator may choose a local randomiser, which acts before the noise.

* A level and a bound suffice to choose one. How `separated` splits the level follows
  from a public estimate of the vectors' length, the same for every vector.
* This module states its cost and its guarantee, for tasks and for plans.
  `dpnoise.local` does the randomising.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Self

from dpnoise import local  # few tasks have a randomiser, and need all of it
from dpnoise.accounting import (
    PrivacyStatement,
    Status,
    make_accountant,
    privacy_unit,
    weakened,
)
from dpnoise.errors import DPNoiseError
from dpnoise.events import Adversary, Repeated
from dpnoise.floats import rational_text, text_above, text_below
from dpnoise.local import LocalParameters
from dpnoise.mechanisms import ALL_CLIENTS, make_mechanism, most_selected
from secagg.distributed_dp.noise_block import (
    NoiseBudget,
    bad_block,
    check_sampler,
    decode_block,
)
from secagg.errors import ErrorCode

if TYPE_CHECKING:  # few tasks have a randomiser, and a client plans nothing
    from dpnoise.local import LocalRandomiser
    from dpnoise.planning import Plan, PlanRequest

EPSILON_SLACK: Final = 1e-6
"""Relative slack of a claim, for the accountant's own rounding."""


@dataclass(frozen=True, slots=True)
class LocalPrivacy:
    """The privacy of a vector against an adversary that sees it without masks.

    Pure differential privacy, between any two vectors.

    Attributes:
        randomiser: Name of the local randomiser.
        epsilon: Level of one session, nats.
        sessions: Number of sessions that the task may charge one client.
        is_exact: Whether the level holds for what the program draws; if not, it holds
            for the law of the randomiser in real arithmetic.
    """

    randomiser: str
    epsilon: float
    sessions: int
    is_exact: bool

    @property
    def total_epsilon(self) -> float:
        """Level of all sessions together: pure levels add up."""
        return self.epsilon * self.sessions

    def reconstruction(
        self, *, features: int, cosine: float, prior_excess: float = 0.0
    ) -> float:
        """Bound the probability that all sessions together reveal a direction.

        Args:
            features: Dimension of the recovered direction, at least 2.
            cosine: Similarity that counts as recovered, in [0, 1).
            prior_excess: Log of the largest density of the prior belief, over the
                uniform one.

        Raises:
            ParameterError: A number is out of range.
        """
        return local.reconstruction_probability(
            self.total_epsilon,
            features=features,
            cosine=cosine,
            prior_excess=prior_excess,
        )

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON values."""
        return {
            "randomiser": self.randomiser,
            "epsilon": self.epsilon,
            "sessions": self.sessions,
            "is_exact": self.is_exact,
            "total_epsilon": self.total_epsilon,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return what `to_dict` wrote.

        Raises:
            KeyError: A key is missing.
            ValueError: A value is impossible.
        """
        return cls(
            randomiser=str(document["randomiser"]),
            epsilon=float(document["epsilon"]),
            sessions=int(document["sessions"]),
            is_exact=bool(document["is_exact"]),
        )


@dataclass(frozen=True, slots=True)
class PrivacyReport:
    """Privacy figures, each with the adversary that it holds against.

    Attributes:
        server: Cost against the server and its colluders.
        model_reader: Cost against readers of the released sums. Both figures count the
            secret selection of vectors, if the task has one, and no other
            amplification.
        local_noise_stddev: Smallest standard deviation of one client's noise, over all
            rosters, caller's units. It is the only protection if secure aggregation is
            broken and `broken_masks` is None.
        counted_shares: Smallest number of noise shares that the figures rely on, over
            all rosters.
        participations: Largest number of sums that hold one client's data.
        spare: Further sessions of one client that the figures cover.
        graph_delta: What a ring adds to delta, as `NoisyTask.graph_delta`; 0 on the
            complete graph.
        selection_rate: Part of the vectors that count, by secret selection; 1 for all.
        broken_masks: Cost against a server that sees every vector alone, because it
            broke the masks or invented all other clients; None without a guarantee.
    """

    server: PrivacyStatement
    model_reader: PrivacyStatement
    local_noise_stddev: float
    counted_shares: int
    participations: int
    spare: int
    graph_delta: float = 0.0
    selection_rate: Fraction = ALL_CLIENTS
    broken_masks: LocalPrivacy | None = None

    @classmethod
    def of_plan(cls, made: "Plan", broken_masks: LocalPrivacy | None) -> Self:
        """Report on a plan before it is a task: its graph is assumed to be complete.

        Args:
            made: A plan with noise in shares.
            broken_masks: The guarantee of a local randomiser; None without one.

        Raises:
            ValueError: A trusted party adds the noise, on which no client may rely.
        """
        if made.statement_server is None:
            raise ValueError("a plan with a trusted party gives clients no guarantee")
        given = made.parameters
        least = given.noise_rule.least_variance(given.num_clients)
        drawn = make_mechanism(given).drawn_variance(least)
        return cls(
            server=made.statement_server,
            model_reader=made.statement_model_reader,
            local_noise_stddev=math.sqrt(drawn) / given.scale_factor,
            counted_shares=given.noise_rule.smallest_counted_shares(given.num_clients),
            participations=made.request.sums_of_one_client,
            spare=made.request.spare,
            selection_rate=made.request.selection,
            broken_masks=broken_masks,
        )

    @property
    def privacy_unit(self) -> str:
        """The data that the figures protect, and in how many sessions."""
        return privacy_unit(self.participations + self.spare)

    @property
    def assumes(self) -> str:
        """The assumptions of all figures beside theorems (R3.5-5), in sentences."""
        return (
            "Assumes that whether and when a client takes part does not depend on its "
            "data. Kept by this client from the payload on, with `answer_at` also in "
            "time; not for crashes, not for `accept`, and not for the program that "
            "calls it."
        )

    def figures(self) -> str:
        """Return epsilon and delta of the whole task against the server."""
        return self.server.figures(added_delta=self.graph_delta)

    def lines(self) -> tuple[str, str, str]:
        """Return what the whole task costs, one sentence for each adversary."""
        local = self.broken_masks
        if local is None:
            alone = (
                "nothing is promised beyond the client's own noise, standard deviation "
                f"{text_below(self.local_noise_stddev, 3)}"
            )
        else:
            law = "what is drawn" if local.is_exact else "the law in real arithmetic"
            alone = (
                f"epsilon {text_above(local.epsilon, 4)} per session, "
                f"{text_above(local.total_epsilon, 4)} together, no delta "
                f"({local.randomiser}; proven for {law})"
            )
        server, reader = self.server, self.model_reader
        added = self.graph_delta
        colluding = f"{self.figures()} ({server.accountant}; {self.grounds()})"
        reading = (
            f"{reader.figures(added_delta=added)} ({reader.accountant}; "
            f"{reader.grounds})"
        )
        return (
            f"against a server that breaks the masks: {alone}",
            f"against the server and its colluders: {colluding}",
            f"against readers of the sums: {reading}",
        )

    def grounds(self, *, graph_delta: float | None = None) -> str:
        """Return the status of proof of the figure against the server.

        The accountant's status covers the noise alone. On a ring it holds except with
        the probability that a session unmasks more than one sum.

        Args:
            graph_delta: That probability; by default over the whole task. For one
                session 2^-graph_bits, or 0 if no colluders could have cut its ring.
        """
        added = self.graph_delta if graph_delta is None else graph_delta
        word = self.server.grounds
        return f"{word}, with {added:.3g} added to delta" if added else word

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return {
            "server": self.server.to_dict(),
            "model_reader": self.model_reader.to_dict(),
            "local_noise_stddev": self.local_noise_stddev,
            "counted_shares": self.counted_shares,
            "participations": self.participations,
            "spare": self.spare,
            "privacy_unit": self.privacy_unit,
            "graph_delta": self.graph_delta,
            "selection_rate": rational_text(self.selection_rate),
            "broken_masks": self.broken_masks and self.broken_masks.to_dict(),
            "grounds": self.grounds(),
            "assumes": self.assumes,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the report that `to_dict` wrote.

        Raises:
            KeyError: A key is missing.
            ValueError: A value is impossible.
        """
        part, _, whole = document["selection_rate"].partition("/")
        return cls(
            server=PrivacyStatement.from_dict(document["server"]),
            model_reader=PrivacyStatement.from_dict(document["model_reader"]),
            local_noise_stddev=float(document["local_noise_stddev"]),
            counted_shares=int(document["counted_shares"]),
            participations=int(document["participations"]),
            spare=int(document["spare"]),
            graph_delta=float(document["graph_delta"]),
            selection_rate=Fraction(int(part), max(1, int(whole))),
            broken_masks=None
            if document["broken_masks"] is None
            else LocalPrivacy.from_dict(document["broken_masks"]),
        )


def check_claim(stated: PrivacyStatement, budget: NoiseBudget) -> None:
    """Check that the noise keeps the epsilon that a task claims.

    Args:
        stated: The figure computed from the noise.
        budget: The task's claim.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION.
    """
    complaint = ""
    # A program's own accountant may return NaN, which is above nothing.
    if not stated.epsilon <= budget.epsilon * (1 + EPSILON_SLACK):
        complaint = (
            f"the noise gives epsilon {stated.epsilon:.9g}, the task claims "
            f"{budget.epsilon:.9g}"
        )
    elif stated.status == Status.HYPOTHETICAL:
        complaint = f"accountant {budget.accountant} bounds no epsilon of this task"
    if complaint:
        raise ErrorCode.POLICY_VIOLATION.error(
            f"the task does not keep its claim: {complaint}",
            fix="Ask the operator to plan the task again.",
        )


@lru_cache(maxsize=64)  # one task has one block; an epsilon takes up to seconds
def statement(noise_block: bytes, adversary: Adversary) -> PrivacyStatement:
    """Compute the cost of all sessions that one client may be charged for.

    Args:
        noise_block: Noise block of the task.
        adversary: The adversary to count against.

    Raises:
        RemoteProtocolError: BAD_CONFIG; the block cannot be used.
    """
    if adversary is not Adversary.SERVER:
        # For noise in shares. An adversary that sees less than the server learns no
        # more, and a second search would double a client's time.
        return replace(statement(noise_block, Adversary.SERVER), adversary=adversary)
    block = decode_block(noise_block)
    budget = block.budget
    try:
        # No figures exist for noise that this release does not draw.
        check_sampler(noise_block)
        accountant = make_accountant(budget.accountant, adversary=adversary)
        accountant.compose(Repeated(block.release, budget.charges))
        stated = accountant.statement(budget.delta)
        return weakened(stated, block.mechanism.parameters.mechanism)
    except DPNoiseError as error:
        # The block names accountant and numbers: the party that offers it is at fault.
        raise bad_block(str(error)) from None


# Part of the bound, if the caller states no length; guarantees hold for any length.
_TYPICAL_NORM: Final = 0.2
_PARTS_OF_WRAPPING: Final = 1024.0


def local_parameters(
    randomiser: str,
    *,
    dim: int,
    bound: float,
    epsilon: float,
    magnitude_epsilon: float | None,
) -> LocalParameters:
    """Return the parameters of a randomiser, choosing those that are not given.

    Args:
        randomiser: One of `dpnoise.local.randomiser_names()`.
        dim: Entries of a vector.
        bound: Bound of the input, caller's units; see `LocalParameters`.
        epsilon: Level of one session, nats.
        magnitude_epsilon: The part that `separated` spends on the norm; None for the
            best part for vectors of a fifth of the bound.

    Raises:
        ParameterError: A number is out of range, or belongs to another randomiser.
    """
    if randomiser == "separated" and magnitude_epsilon is None:
        magnitude_epsilon = local.best_magnitude_epsilon(
            dim=dim, bound=bound, epsilon=epsilon, typical_norm=_TYPICAL_NORM * bound
        )
    return LocalParameters(
        randomiser=randomiser,
        dim=dim,
        bound=bound,
        epsilon=epsilon,
        magnitude_epsilon=magnitude_epsilon,
    )


def local_privacy(
    randomiser: "LocalRandomiser | None", *, sessions: int
) -> LocalPrivacy | None:
    """Return the guarantee against an adversary that sees each vector alone.

    Args:
        randomiser: Randomiser of a task; None without one.
        sessions: Number of sessions that the task may charge one client.

    Returns:
        The guarantee; None without a randomiser.
    """
    if randomiser is None:
        return None
    return LocalPrivacy(
        randomiser=randomiser.name,
        epsilon=randomiser.parameters.epsilon,
        sessions=sessions,
        is_exact=randomiser.exact_alphabet,
    )


def randomised_sum(
    randomiser: "LocalRandomiser", request: "PlanRequest"
) -> dict[str, float]:
    """Return the planner's bound on the norm of a sum of randomised vectors.

    Randomised copies of equal vectors mostly differ. Their sum is bounded with high
    probability, and the modulus has to hold no more.

    Args:
        randomiser: Randomiser of the task.
        request: The request for the plan, for its `output_norm` as `l2_clip`.
            `sum_l2_norm` is the expected norm of the sum of the randomiser's inputs;
            None if all vectors may agree.

    Returns:
        `sum_l2_norm` and `sum_l2_failure` of the randomiser's outputs. The failure
            probability is a 1024th of the one that wrapping may have.
    """
    failure = request.max_wrap_probability / _PARTS_OF_WRAPPING
    norm = randomiser.sum_norm(
        most_selected(request.clients, request.selection),
        failure=failure,
        mean_norm=request.sum_l2_norm,
    )
    return {"sum_l2_norm": norm, "sum_l2_failure": failure}


def randomised_mse(
    randomiser: "LocalRandomiser | None", *, clients: int, selection_rate: Fraction
) -> float:
    """Return what randomising adds to the mean squared error of an entry of a sum.

    Args:
        randomiser: Randomiser of a task; None without one.
        clients: Size of the largest cohort.
        selection_rate: Part q of the vectors that count. Of n vectors q·n are selected,
            and their sum is divided by q.

    Returns:
        The added error, caller's units squared: the larger one of the shortest and the
        longest vectors; 0 without a randomiser.
    """
    if randomiser is None:
        return 0.0
    each = max(randomiser.mse(0.0), randomiser.mse(randomiser.largest_norm))
    return clients / float(selection_rate) * each / randomiser.parameters.dim
