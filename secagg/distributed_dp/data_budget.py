"""The cost of a whole task to the data that it uses, for a total over tasks.

The figures are those that a client computes for the task. The terms are those of
`dpnoise.accounting.cross_task`, which decides whether one more task fits.
"""

from functools import lru_cache

from dpnoise.accounting.accountant import GaussianLoss
from dpnoise.accounting.cross_task import TaskLoss, gaussian_loss
from dpnoise.events import Repeated
from secagg.distributed_dp.aggregator_noise import TwoAggregatorReport
from secagg.distributed_dp.noise_block import decode_block
from secagg.distributed_dp.report import PrivacyReport


def loss_against_server(noise_block: bytes, report: PrivacyReport) -> TaskLoss:
    """Return what a task costs one client against the server and its colluders.

    Args:
        noise_block: Noise block of the task.
        report: The client's own report on the task.

    Raises:
        RemoteProtocolError: BAD_CONFIG; the block cannot be read.
    """
    stated = report.server
    return TaskLoss(
        epsilon=stated.epsilon,
        delta=stated.delta + report.graph_delta,
        gaussian=_gaussian(noise_block, stated.delta),
        added_delta=report.graph_delta,
    )


def loss_against_broken_masks(report: PrivacyReport) -> TaskLoss | None:
    """Return what a task costs one client against a server that breaks masks.

    Args:
        report: The client's own report on the task.

    Returns:
        The level of its local randomiser over all sessions; None without one.
    """
    local = report.broken_masks
    if local is None:
        return None
    return TaskLoss(epsilon=local.total_epsilon, delta=0.0)


def loss_between_two(noise_block: bytes, report: TwoAggregatorReport) -> TaskLoss:
    """Return what a task costs one client against either of two aggregators.

    Args:
        noise_block: Noise block of the task.
        report: The client's own report on the task.

    Raises:
        RemoteProtocolError: BAD_CONFIG; the block cannot be read.
    """
    stated = report.aggregator
    return TaskLoss(
        epsilon=stated.epsilon,
        delta=stated.delta,
        gaussian=_gaussian(noise_block, stated.delta),
    )


@lru_cache(maxsize=64)  # as of a statement: one task has one block
def _gaussian(noise_block: bytes, delta: float) -> GaussianLoss | None:
    block = decode_block(noise_block)
    return gaussian_loss(Repeated(block.release, block.budget.charges), delta=delta)
