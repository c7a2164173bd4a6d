"""What a task would claim of a client's data, by the client's own computation."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from secagg.client.budget import budget_key_of
from secagg.distributed_dp import (
    NoisyTask,
    PrivacyReport,
    TaskLoss,
    loss_against_broken_masks,
    loss_against_server,
)
from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.policy import PrivacyLimits, TotalBudget
from secagg.storage.budget_ledger import Claim, ClaimAdversary


class TotalBudgetExceededError(RemoteProtocolError):
    """A task does not fit into what its data may cost over all tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTotal:
    """The total of a client's data, and how claims on it are computed.

    Attributes:
        budget: The total.
        against: The adversary of all claims.
        loss_of: Returns what all sessions of a task cost against it, by this client's
            own computation; may take seconds.
    """

    budget: TotalBudget
    against: ClaimAdversary
    loss_of: Callable[[SessionDescriptor], TaskLoss]


def claim_for(
    total: OwnTotal,
    offered: SessionDescriptor,
    *,
    trust_domain: str | None,
    holder: bytes,
) -> Claim:
    """Return what the task of a session would claim; takes up to seconds.

    Args:
        total: What it would claim of.
        offered: One of the task's sessions; between two aggregators, the leader's.
        trust_domain: Of its aggregator, as the connection has proven it.
        holder: Name of the store that counts the task's sessions.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION; nothing bounds what the task costs.
    """
    loss = total.loss_of(offered)
    # The graph is no part of the block, and the figures follow from it, too.
    described = offered.parameters.noise_block + struct.pack(">d", loss.added_delta)
    gaussian = loss.gaussian
    return Claim(
        data=total.budget.data,
        holder=holder,
        budget=budget_key_of(offered, trust_domain=trust_domain),
        noise_digest=sha256(described).digest(),
        against=total.against,
        epsilon=loss.epsilon,
        delta=loss.delta,
        shift=None if gaussian is None else gaussian.shift,
        distance=0.0 if gaussian is None else gaussian.distance,
        added_delta=loss.added_delta,
    )


def adversary_of(privacy_limits: PrivacyLimits | None) -> ClaimAdversary:
    """Return the adversary that a client's privacy limits name."""
    if privacy_limits is None or privacy_limits.max_local_epsilon is None:
        return ClaimAdversary.SERVER
    return ClaimAdversary.BROKEN_MASKS


def loss_of_session(
    offered: SessionDescriptor,
    *,
    report_of: Callable[[NoisyTask], PrivacyReport],
    against: ClaimAdversary,
) -> TaskLoss:
    """Return what all sessions of a task cost; takes up to seconds.

    Args:
        offered: One of them.
        report_of: Returns what a task costs this client.
        against: The adversary.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION; there is no noise, or no randomiser, that
            would bound it. BAD_CONFIG for noise that cannot be.
    """
    noise_block = offered.parameters.noise_block
    if not noise_block:
        raise _unbounded("it releases the sum without noise")
    report = report_of(NoisyTask.of_session(offered))
    if against is ClaimAdversary.SERVER:
        return loss_against_server(noise_block, report)
    loss = loss_against_broken_masks(report)
    if loss is None:
        raise _unbounded("no local randomiser protects a vector without masks")
    return loss


def _unbounded(complaint: str) -> SecAggError:
    return ErrorCode.POLICY_VIOLATION.error(
        f"nothing bounds what the task costs this client's data: {complaint}",
        fix="Give data with a total (policy.data) to tasks only whose loss "
        "against the adversary of this client's policy is bounded.",
    )
