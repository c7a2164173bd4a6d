"""A task of sums for one model: its name, its noise, its cohort."""

from dataclasses import dataclass
from typing import Any, Self

from secagg.distributed_dp.planning import plan
from secagg.errors import ErrorCode
from secagg.integrations.flower.arrays import Arrays, dimension_of
from secagg.protocol.arguments import (
    check_kind,
    check_name,
    check_whole,
    validates_arguments,
)
from secagg.protocol.descriptor import MAX_TASK_ID_BYTES
from secagg.protocol.profiles import Profile, RoundDeadlines
from secagg.server.task.setup import Cohort, PreparedTask


@validates_arguments
@dataclass(frozen=True, slots=True)
class SecureTask:
    """What the rounds of one strategy sum.

    Attributes:
        name: Of the task.  Nodes keep budgets by it: a new name is a new budget, so it
            must not hold the number of a run.
        prepared: Its noise, its cohort and its deadlines.

    Raises:
        LocalProtocolError: `name` is no name, or the profile is not
            honest-curious-server, the only one that Flower's messages carry.
    """

    name: str
    prepared: PreparedTask

    def __post_init__(self) -> None:
        """Refuse what no node would accept."""
        check_name("a task", self.name, most=MAX_TASK_ID_BYTES)
        check_kind("prepared", self.prepared, PreparedTask, make="PreparedTask(...)")
        profile = self.prepared.parameters.profile
        if profile is not Profile.HONEST_CURIOUS_SERVER:
            raise ErrorCode.LOCAL_MISUSE.error(
                f"profile {profile.label} needs clients that sign, and in Flower no "
                "node knows the keys of others but from the server",
                fix="Prepare the task with profile honest-curious-server.",
            )

    @classmethod
    def planned(  # noqa: PLR0913 - the questions that a plan answers
        cls,
        name: str,
        arrays: Arrays,
        *,
        clients: int,
        epsilon: float,
        delta: float,
        rounds: int,
        l2_clip: float,
        min_survivors: int | None = None,
        train_seconds: int = 300,
        stage_seconds: int = 60,
        **choices: Any,  # noqa: ANN401 - of the planner
    ) -> Self:
        """Plan the noise of a task; takes up to seconds.

        Args:
            name: Of the task.
            arrays: The model that the strategy starts with: its shapes count.
            clients: Most nodes of one round.
            epsilon: What all rounds together cost one node, nats, above 0.
            delta: Failure probability of that, in (0, 1).
            rounds: Sums that are to be released; a node gives to each of them at most.
            l2_clip: Longest update that is not shortened, an L2 norm, model's units.
            min_survivors: Fewest updates in a released sum; four fifths of `clients`,
                rounded up, by default.  As many nodes must join.
            train_seconds: How long a round waits for updates.
            stage_seconds: How long it waits for each other message.
            choices: Further arguments of `secagg.plan`, such as `spare`, `ladder` or
                `participations`.

        Raises:
            LocalProtocolError: A value cannot work, or an array is not of floats.
            ServiceError: INFEASIBLE; no amount of noise meets the budget.
        """
        clients = check_whole("clients", clients, least=2)
        if min_survivors is None:
            min_survivors = -(-4 * clients // 5)
        made = plan(
            clients=clients,
            dimension=dimension_of(arrays),
            l2_clip=l2_clip,
            epsilon=epsilon,
            delta=delta,
            steps=rounds,
            min_survivors=min_survivors,
            **choices,
        )
        cohort = Cohort(
            min_clients=min_survivors,
            max_clients=clients,
            min_survivors=min_survivors,
            colluders=made.request.colluders,
            deadlines=RoundDeadlines.of(
                Profile.HONEST_CURIOUS_SERVER,
                advertise_keys=stage_seconds,
                share_keys=stage_seconds,
                masked_input=train_seconds,
                unmasking=stage_seconds,
            ),
        )
        return cls(name, PreparedTask.from_plan(made, cohort))
