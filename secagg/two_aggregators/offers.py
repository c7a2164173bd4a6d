"""What a session between two aggregators is: two offers that belong together.

Rule 1: each aggregator offers a session of its own, in the words of every other offer.
        The leader's offer names the helper's: its nonce *is* the helper's session id.
        So the leader's session id covers both names, both numbers and the helper's
        fresh nonce, and it enters the expansion of every seed.
Rule 2: numbers that have no meaning here have one value each; others are refused.
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
# One that has lost its book catches up with the other; one that lies does not use up
# all numbers.
MAX_AHEAD: Final = 1 << 20
# No secret is shared among clients, so that no number of them rebuilds one.
_NO_THRESHOLD: Final = 2
_NO_ROUND: Final = 1


def highest_accepted(known: int) -> int:
    """Return the highest session number that one aggregator takes from the other.

    A book that was put back numbers by the clock, whatever the other one has seen.

    Args:
        known: The highest number that is known here.
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
        min_survivors: Fewest vectors in a sum, at least 2.
        max_clients: Most.
        collect_seconds: How long shares are waited for.
        agree_seconds: How long the leader waits for the helper.

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
    """Refuse parameters that say more than a session between two can mean.

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
        raise _invalid_pair("its parameters are not those of a session between two")


def check_pair(leader: SessionDescriptor, helper: SessionDescriptor) -> None:
    """Refuse two offers that do not belong together.

    Args:
        leader: The leader's.
        helper: The helper's.

    Raises:
        RemoteProtocolError: BAD_CONFIG; says what differs.
    """
    for holds, complaint in (
        (leader.aggregator != helper.aggregator, "one aggregator plays both parts"),
        (leader.task_id == helper.task_id, "the tasks differ"),
        (leader.parameters == helper.parameters, "the parameters differ"),
        (
            leader.server_nonce == helper.session_id,
            "the leader's session is not the helper's",
        ),
        (
            not any(each.noise_terms or each.payload_hash for each in (leader, helper)),
            "there is a payload or a unit, which no session between two has",
        ),
    ):
        if not holds:
            raise _invalid_pair(complaint)
    check_terms(leader.parameters)


def _invalid_pair(complaint: str) -> SecAggError:
    return ErrorCode.BAD_CONFIG.error(
        f"the two offers make no session: {complaint}",
        fix="Give both aggregators the same task, and different names.",
    )
