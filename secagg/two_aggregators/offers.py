"""Offers of a session between two aggregators: two that belong together.

Rule 1: each aggregator offers a session of its own, in the format of every other offer.
        The leader's offer names the helper's: its nonce *is* the helper's session id.
        So the leader's session id covers both names, both numbers and the helper's
        fresh nonce, and it enters the expansion of every seed.
Rule 2: numbers without a meaning here have one value each; other values are refused.
"""

from dataclasses import replace
from typing import Final

from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.profiles import RoundDeadlines
from secagg.storage.change import first_number_after_restore

_DEFAULT_COLLECT_SECONDS: Final = 300
_DEFAULT_AGREE_SECONDS: Final = 60
# An aggregator whose store was restored catches up with the other one, and a lying one
# does not use up all numbers.
MAX_AHEAD: Final = 1 << 20
# Clients share no secrets, so no number of them reconstructs one.
_NO_THRESHOLD: Final = 2
_NO_ROUND: Final = 1


def highest_accepted(known: int) -> int:
    """Return the highest session number that one aggregator accepts from the other.

    A restored store takes its numbers from the clock, whatever the other one has seen.

    Args:
        known: The highest number in the own store.
    """
    return max(known, first_number_after_restore()) + MAX_AHEAD


def cohort_parameters(
    *,
    min_survivors: int,
    max_clients: int,
    collect_seconds: int = _DEFAULT_COLLECT_SECONDS,
    agree_seconds: int = _DEFAULT_AGREE_SECONDS,
) -> ProtocolParameters:
    """Return cohort and deadlines of a task between two aggregators.

    Args:
        min_survivors: Smallest number of vectors in a sum, at least 2.
        max_clients: Largest number of vectors in a sum.
        collect_seconds: How long the leader collects shares, in seconds.
        agree_seconds: How long the leader waits for the helper, in seconds.

    Returns:
        Parameters without noise, for `AggregatorNoise.joined`.

    Raises:
        RemoteProtocolError: BAD_CONFIG; names the number and its range.
    """
    return ProtocolParameters(
        modulus=2,
        dimension=1,
        min_clients=min_survivors,
        max_clients=max_clients,
        threshold=_NO_THRESHOLD,
        min_survivors=min_survivors,
        max_dropouts=0,
        max_losses=0,
        deadlines=RoundDeadlines(
            advertise_keys=_NO_ROUND,
            share_keys=_NO_ROUND,
            masked_input=collect_seconds,
            unmasking=agree_seconds,
        ),
    ).validate()


def check_terms(parameters: ProtocolParameters) -> None:
    """Refuse parameters that a session between two aggregators cannot have.

    Raises:
        RemoteProtocolError: BAD_CONFIG.
    """
    plain = cohort_parameters(
        min_survivors=parameters.min_survivors,
        max_clients=parameters.max_clients,
        collect_seconds=parameters.deadlines.masked_input,
        agree_seconds=parameters.deadlines.unmasking,
    )
    expected = replace(
        plain,
        suite=parameters.suite,
        modulus=parameters.modulus,
        dimension=parameters.dimension,
        noise_block=parameters.noise_block,
    )
    if parameters != expected:
        raise _invalid_pair("a parameter has a value without a meaning here")


def check_pair(leader: SessionDescriptor, helper: SessionDescriptor) -> None:
    """Refuse two offers that do not belong together.

    Args:
        leader: The leader's offer.
        helper: The helper's offer.

    Raises:
        RemoteProtocolError: BAD_CONFIG; the text names the difference.
    """
    for holds, complaint in (
        (leader.aggregator != helper.aggregator, "one aggregator plays both parts"),
        (leader.task_id == helper.task_id, "the tasks differ"),
        (leader.parameters == helper.parameters, "the parameters differ"),
        (
            leader.server_nonce == helper.session_id,
            "the leader's offer names another session of the helper",
        ),
        (
            not any(each.noise_terms or each.payload_hash for each in (leader, helper)),
            "a payload or a unit is set, which no session between two has",
        ),
    ):
        if not holds:
            raise _invalid_pair(complaint)
    check_terms(leader.parameters)


def _invalid_pair(complaint: str) -> SecAggError:
    """Return the error of two offers that form no session."""
    return ErrorCode.BAD_CONFIG.error(
        f"the two offers form no session: {complaint}",
        fix="Configure the same task at both aggregators, under different names.",
    )
