"""Whether a client may take part in a session that it was offered.

Rule 1: everything is judged before a key is made: the cohort by the client's policy,
        the noise by the epsilon that this client computes itself, the budget by what
        it has spent (`secagg.client.budget`), and the input by the application.
Rule 2: a session that is resumed is judged again: floors may have risen since.
Rule 3: nothing around the client can take a floor away: who judges is the client, not
        its connection.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

from secagg.descriptor import SessionDescriptor
from secagg.distributed_dp import NoisedTask, PrivacyReport
from secagg.policy import ClientPolicy, ExactSumsAccepted, PrivacyFloors

__all__ = ["KnowsReports", "SessionInfo", "judge_offer", "policy_of"]


@dataclass(frozen=True, slots=True, eq=False)
class SessionInfo:
    """What a client knows of a session when it makes its vector.

    Attributes:
        descriptor: The session, with all parameters.
        dimension: Entries of one vector, before any encoding.
        privacy: What the task costs this client, computed by itself; None for a task
            that releases exact sums.
        payload: What the session hands out, for example a model; b"" for nothing, and
            while the offer is judged.
    """

    descriptor: SessionDescriptor
    dimension: int
    privacy: PrivacyReport | None
    payload: bytes = field(default=b"", repr=False)

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.descriptor.task_id

    @property
    def session_number(self) -> int:
        """Number of the session, from 1; aborted sessions have one, too."""
        return self.descriptor.session_number


class KnowsReports(Protocol):
    """Says what a task costs this client, by the client's own computation."""

    def report_of(self, task: NoisedTask) -> PrivacyReport:
        """Return the report of a task."""
        ...


def policy_of(
    floors: PrivacyFloors | ExactSumsAccepted, cohort: ClientPolicy
) -> ClientPolicy:
    """Return the policy for the core: noise is demanded unless it was waived."""
    return replace(cohort, require_noise=isinstance(floors, PrivacyFloors))


def judge_offer(
    offered: SessionDescriptor,
    *,
    floors: PrivacyFloors | ExactSumsAccepted,
    cohort: ClientPolicy,
    storage: KnowsReports,
) -> SessionInfo:
    """Judge a session by this client's floors; takes up to seconds.

    Args:
        offered: The session.
        floors: Of privacy, or their waiver.
        cohort: Floors and caps of the cohort.
        storage: Says what a task costs, and may have computed it before.

    Returns:
        The session, if the client may take part.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION, naming the floor; BAD_CONFIG for noise
            that cannot be.
    """
    parameters = offered.parameters
    policy_of(floors, cohort).check(offered)
    if not parameters.noise_block:
        return SessionInfo(offered, parameters.dimension, None)
    task = NoisedTask.of_session(offered)
    demanded = floors if isinstance(floors, PrivacyFloors) else floors.noised
    if demanded is not None:
        task.check_noise(demanded)  # costs less than epsilon does
    report = storage.report_of(task)
    if demanded is not None:
        task.check(demanded, report=report)
    return SessionInfo(offered, task.dim, report)
