"""How long a server waits, and for whom: AdvertiseKeys, and the end of a task.

Rule 1: waiting is not failing.  AdvertiseKeys with too few clients stays open at its
        deadline, which starts again: nothing is stored, no attempt is spent, and the
        adverts that are in stay valid.
Rule 2: a task ends by its sessions, by its end date or by its operator.  A session that
        still waits for clients then ends with it; one that has its cohort goes on.
Rule 3: who has joined may know how many have; nobody else.
Rule 4: a stream says that there is nothing yet, often enough for a client to notice in
        time that its other end has vanished.
"""

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Final

from secagg.errors import ErrorCode
from secagg.protocol.messages import Round
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.rounds import ROUNDS, rounds_of
from secagg.protocol.server import machine as server
from secagg.protocol.server.states import RosterFixed
from secagg.runtime.clock import Clock
from secagg.wire.calls import Wait
from secagg.wire.limits import LEAST_QUIET_SECONDS, MAX_QUIET_SECONDS

# Machines sleep and dates are set right: the date is read this often, in seconds.
_LOOK_EVERY: Final = 60.0
# Of a round's time, as long as a stream may be quiet in it.
_QUIET_PARTS: Final = 3
# A stream is heard of when this part of its quiet is over: the rest is for the way.
_BEAT_PART: Final = 0.75


def is_below_min_clients(state: server.ServerState) -> bool:
    """Whether AdvertiseKeys is open and cannot be closed in success."""
    if not isinstance(state, server.AdvertiseKeys):
        return False
    now = server.progress(state)
    return now.answered < now.needed


def missing_in(state: server.ServerState) -> tuple[str, ...]:
    """Return who may still answer in the open round, by name, as far as known."""
    if isinstance(state, server.AdvertiseKeys):
        awaited = (state.invited or frozenset()) - state.left_out
    elif isinstance(state, RosterFixed) and not isinstance(state, server.Summing):
        awaited = state.cohort.names_of(_awaited(state))
    else:
        return ()
    answered = state.session.accepted.get(state.ROUND, ())
    return tuple(sorted(awaited - frozenset(answered)))


def _awaited(state: RosterFixed) -> Iterable[int]:
    """Return the indices of those who may answer in the open round."""
    match state:
        case server.ShareKeys():
            return state.expected
        case server.MaskedInputCollection():
            return state.sharers
        case server.ConsistencyCheck() | server.Unmasking():
            return state.survivors
    return range(len(state.cohort.roster.adverts))


def expiry_of(state: server.ServerState) -> tuple[ErrorCode, str]:
    """Return the code and the words for a session that lasts too long (R5-7)."""
    if isinstance(state, server.AdvertiseKeys):
        return (
            ErrorCode.ROSTER_TOO_SMALL,
            "no roster was fixed in time for the other rounds; another session follows",
        )
    return ErrorCode.DEADLINE, "the session has reached its end"


def wait_of(
    state: server.ServerState,
    identity: str,
    *,
    retry_after_seconds: float,
    closes_in_seconds: float,
) -> Wait:
    """Return what a client is told that has to wait.

    Args:
        state: The session.
        identity: Who asks.
        retry_after_seconds: When asking again makes sense.
        closes_in_seconds: Until the open round's deadline.
    """
    if not isinstance(state, server.AdvertiseKeys) or identity not in state.adverts:
        return Wait(retry_after_seconds)
    now = server.progress(state)
    return Wait(
        retry_after_seconds,
        joined=now.answered,
        needed=now.needed,
        closes_in_seconds=max(0.0, closes_in_seconds),
    )


def idle_timeout(open_round: Round, parameters: ProtocolParameters) -> float:
    """Return how long a stream may be quiet in a round, in seconds.

    A third of the round, so that a client whose stream has vanished still says what it
    has to say in it; and as the others may end a long round early, no more than a third
    of the one that follows: what a dead stream did not tell still has to be answered in
    that one.
    """
    deadlines = parameters.deadlines
    lasts = ROUNDS[open_round].seconds(deadlines)
    if open_round >= Round.UNMASKING:
        # Removing the masks takes about as long as making them.
        lasts += ROUNDS[Round.MASKED_INPUT_COLLECTION].seconds(deadlines)
    later = (each for each in rounds_of(parameters.profile) if each > open_round)
    following = next(later, None)
    if following is not None:
        lasts = min(lasts, ROUNDS[following].seconds(deadlines))
    return min(max(LEAST_QUIET_SECONDS, lasts / _QUIET_PARTS), MAX_QUIET_SECONDS)


def keepalive_interval(quiet: float) -> float:
    """Return after how many seconds something is said that must come within `quiet`."""
    return _BEAT_PART * quiet


def utc_now() -> datetime:
    """Return the machine's date."""
    return datetime.now(UTC)


async def until(
    moment: datetime,
    then: Callable[[], Awaitable[None]],
    *,
    clock: Clock,
    now: Callable[[], datetime] = utc_now,
) -> None:
    """Wait for a date, then act.

    Args:
        moment: The date, with its time zone.
        then: What to do.
        clock: How to wait.
        now: The date of this moment.
    """
    while (left := (moment - now()).total_seconds()) > 0:
        await clock.sleep_until(clock.now() + min(left, _LOOK_EVERY))
    await then()
