"""When the open round of a session may be closed, and how long the server waits.

Rule 1: a round closes when all clients that can answer have answered, else at its
        deadline. The time of AdvertiseKeys starts with its first advert, and again at
        its deadline while too few clients have joined.  Such an extension stores
        nothing and spends no attempt, and the received adverts stay valid.  Uploads
        that are arriving extend their round, altogether by one more deadline at most.
Rule 2: a process that resumes a session alone gives its open round the whole time
        again.  Where several aggregators share the store, any of them extends a round,
        and the store keeps its deadline.
Rule 3: no round lasts beyond the session's end.  AdvertiseKeys ends early enough for
        the other rounds to have their whole time.
Rule 4: a session that no client has joined ends when the machine's date jumps. Clients
        refuse an end that is impossible by the right clock (R5.0-2).
Rule 5: a task ends by its sessions, by its end date or by its operator.  A session that
        still waits for clients then ends with it; one that has its cohort continues.
Rule 6: only a client that has joined learns how many have.  Only a client whose answer
        to a round is stored learns until when the round lasts.
Rule 7: a stream sends keepalives often enough for a client to notice in time that the
        connection is dead.

It closes nothing: that is done by `secagg.server.session.runner`.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Final

from secagg.config import end_of_task
from secagg.config.task import TaskSection
from secagg.errors import ErrorCode
from secagg.protocol.descriptor import CLOCK_TOLERANCE_SECONDS, SessionDescriptor
from secagg.protocol.messages import Round
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.profiles import MAX_DEADLINE_SECONDS
from secagg.protocol.rounds import ROUNDS, rounds_of, seconds_until_next
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.protocol.server.states import RosterFixed
from secagg.runtime.clock import Clock, SystemClock, wait_set
from secagg.server.session.state import DurableState, retrying
from secagg.storage.change import Change
from secagg.wire.calls import LEAST_QUIET_SECONDS, MAX_QUIET_SECONDS, Wait

# Machines sleep and dates are corrected, so the date is read at this interval, in
# seconds.
_LOOK_EVERY: Final = 60.0
# Part of a round's time for which a stream may be idle.
_QUIET_PARTS: Final = 3
# A keepalive is sent after this part of the idle time; the rest is for the network.
_KEEPALIVE_PART: Final = 0.75
# Bytes that arrived within this share of the deadline keep MaskedInputCollection open.
_UPLOAD_GRACE: Final = 0.25
# Every chunk asks for an extension, and an extension is a commit.
_EXTEND_EVERY_SECONDS: Final = 5.0
# A larger jump of the date makes an offer that clients may refuse.
_DATE_SET_SECONDS: Final = CLOCK_TOLERANCE_SECONDS // 2
_LOOK_AT_DATE_SECONDS: Final = 60.0


def is_below_min_clients(state: server.ServerState) -> bool:
    """Whether AdvertiseKeys is open and has too few clients to close successfully."""
    if not isinstance(state, server.AdvertiseKeys):
        return False
    now = server_machine.progress(state)
    return now.answered < now.needed


def missing_in(state: server.ServerState) -> tuple[str, ...]:
    """Return the names of clients that may still answer in the open round."""
    if isinstance(state, server.AdvertiseKeys):
        awaited = (state.invited or frozenset()) - state.excluded
    elif isinstance(state, RosterFixed) and not isinstance(state, server.Summing):
        awaited = state.cohort.names_of(_awaited_clients(state))
    else:
        return ()
    answered = state.session.accepted.get(state.ROUND, ())
    return tuple(sorted(awaited - frozenset(answered)))


def _awaited_clients(state: RosterFixed) -> Iterable[int]:
    """Return the indices of the clients that may answer in the open round."""
    match state:
        case server.ShareKeys():
            return state.expected
        case server.MaskedInputCollection():
            return state.share_holders
        case server.ConsistencyCheck() | server.Unmasking():
            return state.survivors
    return range(len(state.cohort.roster.adverts))


def expiry_of(state: server.ServerState) -> tuple[ErrorCode, str]:
    """Return the code and the text for a session that lasts too long (R5-7)."""
    if isinstance(state, server.AdvertiseKeys):
        return (
            ErrorCode.ROSTER_TOO_SMALL,
            "no roster was fixed in time for the other rounds; another session follows",
        )
    return ErrorCode.DEADLINE, "the session has reached its end"


def wait_answer(
    state: server.ServerState,
    identity: str,
    *,
    retry_after_seconds: float,
    closes_in_seconds: float,
) -> Wait:
    """Return the answer for a client that has to wait.

    A client whose answer to the open round is stored is told until when that round
    lasts: it may sleep until then.  All others are told nothing and send again.

    Args:
        state: The session.
        identity: The client.
        retry_after_seconds: When the client asks again.
        closes_in_seconds: Until the open round's deadline.
    """
    if not has_answered(state, identity):
        return Wait(retry_after_seconds)
    closes_in_seconds = min(max(0.0, closes_in_seconds), MAX_DEADLINE_SECONDS)
    if not isinstance(state, server.AdvertiseKeys):
        return Wait(retry_after_seconds, closes_in_seconds=closes_in_seconds)
    now = server_machine.progress(state)
    return Wait(
        retry_after_seconds,
        joined=now.answered,
        needed=now.needed,
        closes_in_seconds=closes_in_seconds,
    )


def has_answered(state: server.ServerState, identity: str) -> bool:
    """Whether a client's answer to the open round is stored; False after the end."""
    if isinstance(state, server.Completed | server.Failed):
        return False
    return identity in state.session.accepted.get(state.ROUND, ())


def idle_timeout(open_round: Round, parameters: ProtocolParameters) -> float:
    """Return how long a stream may be idle in a round, in seconds.

    A client whose stream is dead must still answer in the round: hence a third of it.
    The other clients may end a long round early. What the dead stream did not deliver
    is then due in the following round: hence no more than a third of that one.
    """
    deadlines = parameters.deadlines
    lasts = seconds_until_next(open_round, deadlines)
    later = (each for each in rounds_of(parameters.profile) if each > open_round)
    following = next(later, None)
    if following is not None:
        lasts = min(lasts, ROUNDS[following].seconds(deadlines))
    return min(max(LEAST_QUIET_SECONDS, lasts / _QUIET_PARTS), MAX_QUIET_SECONDS)


def keepalive_interval(quiet: float) -> float:
    """Return the interval of keepalives, in seconds, for this idle time."""
    return _KEEPALIVE_PART * quiet


def _utc_now() -> datetime:
    """Return the machine's date."""
    return datetime.now(UTC)


async def until(
    moment: datetime,
    then: Callable[[], Awaitable[None]],
    *,
    clock: Clock,
    now: Callable[[], datetime] = _utc_now,
) -> None:
    """Wait for a date, then act.

    Args:
        moment: The date, with its time zone.
        then: The action.
        clock: Time.
        now: Returns the present date.
    """
    while (left := (moment - now()).total_seconds()) > 0:
        await clock.sleep_until(clock.now() + min(left, _LOOK_EVERY))
    await then()


async def at_end_date(task: TaskSection, end: Callable[[str], Awaitable[None]]) -> None:
    """End a task when its end date comes; return at once where it has none.

    Args:
        task: Settings of the task.
        end: Ends it; its argument is the reason.
    """
    moment = end_of_task(task)
    if moment is not None:
        reason = f"the end date of the task has come ({moment})"
        await until(moment, lambda: end(reason), clock=SystemClock())


class RoundTimer:
    """Measures the time of one session's rounds.

    Args:
        offer: The session.
        session_key: Its name in the store.
        durable: Its state, and the deadline in the store.
        is_shared: Whether other aggregators write to the store, too.
        clock: Time.
        date: This moment, in Unix seconds.
        woken: Set whenever the session must be checked again.
        is_full: Returns whether every client that can answer has answered.

    Attributes:
        rounds_entered: Number of rounds entered, also in earlier processes.
        opened_at: When the open round was opened, on the clock.
    """

    def __init__(  # noqa: PLR0913 - every part can be exchanged
        self,
        offer: SessionDescriptor,
        session_key: str,
        durable: DurableState,
        *,
        is_shared: bool,
        clock: Clock,
        date: float,
        woken: asyncio.Event,
        is_full: Callable[[], bool],
    ) -> None:
        self._session_key = session_key
        self._durable = durable
        self._is_shared = is_shared
        self._clock = clock
        self._woken = woken
        self._is_full = is_full
        self._deadlines = deadlines = offer.parameters.deadlines
        self._joined = asyncio.Event()
        self._attention = asyncio.Event()
        self._deadline = 0.0
        self._wanted_until = 0.0
        self._extended_at = 0.0
        self.rounds_entered = 0
        self.opened_at = clock.now()
        self._ends_at = clock.now() + offer.session_end - date
        # A client that joins later could not be served to the end.
        self._last_start = (
            self._ends_at - deadlines.longest_session + deadlines.advertise_keys
        )
        self._epoch = clock.date() - clock.now()
        left = offer.session_end - date
        if left > deadlines.longest_session + CLOCK_TOLERANCE_SECONDS:
            self._last_start = -math.inf

    @property
    def _state(self) -> server.ServerState:
        return self._durable.state

    def closes_in(self) -> float:
        """Return the seconds until the open round's deadline, negative after it."""
        return self._deadline - self._clock.now()

    def seconds_left(self) -> float | None:
        """Return the time until the open round's deadline; None before any advert."""
        if isinstance(self._state, server.AdvertiseKeys) and not self._joined.is_set():
            return None
        return max(0.0, self.closes_in())

    def is_too_late(self, state: server.ServerState) -> bool:
        """Whether too little time is left for the rounds after this one."""
        now = self._clock.now()
        if isinstance(state, server.AdvertiseKeys):
            return now > self._last_start or (
                now == self._last_start and is_below_min_clients(state)
            )
        # The answers of this round are all that the sum needs.
        return now >= self._ends_at and not isinstance(state, server.Unmasking)

    def record_message(self) -> None:
        """Record that a message was accepted.

        The first message starts the round's deadline, and the last one ends the wait.
        The messages between them wake no task.
        """
        is_full = self._is_full()
        if is_full or not self._joined.is_set():
            self._joined.set()
            self._woken.set()
        if is_full:
            self._attention.set()

    def record_missing(self) -> None:
        """Record that an answer was lost: the round may not be full any more."""
        if not self._is_full():
            self._attention.clear()

    def record_end(self) -> None:
        """Record that the session continues elsewhere: nothing is waited for here."""
        self._attention.set()

    def record_upload_bytes(self) -> None:
        """Record that bytes of an upload have arrived."""
        if isinstance(self._state, server.MaskedInputCollection):
            seconds = self._seconds_of(Round.MASKED_INPUT_COLLECTION)
            wanted = self._clock.now() + _UPLOAD_GRACE * seconds
            self._wanted_until = min(wanted, self.opened_at + 2 * seconds)
            if self._wanted_until > self._deadline:
                self._woken.set()

    async def begin(self) -> None:
        """Resume the open round; without other replicas, it gets its whole time."""
        if self._is_shared:
            self.open_round()
        else:
            await self._extend_deadline()

    def open_round(self) -> None:
        """Start the time of a round."""
        now = self._clock.now()
        self.opened_at = now
        self._wanted_until = 0.0  # the extensions of uploads were for their own round
        if self._is_shared:
            self._deadline = min(self._durable.deadline or math.inf, self._latest_end())
        else:
            lasts = self._seconds_of(self._state.ROUND)
            self._deadline = min(now + lasts, self._latest_end())
        self._attention.clear()
        if (
            server_machine.is_over(self._state)
            or self._is_full()
            or self._durable.has_failed_over
        ):
            self._attention.set()

    async def wait_to_close(self) -> bool:
        """Wait until the open round may close; False if another replica closed it."""
        if self._is_shared:
            return await self._wait_to_close_in_store()
        await self._wait_for_answers()
        return True

    async def _wait_for_answers(self) -> None:
        """Wait until the round is full, its deadline has passed or it was aborted."""
        clock = self._clock
        if isinstance(self._state, server.AdvertiseKeys):
            waiting = asyncio.ensure_future(self._joined.wait())
            attention = asyncio.ensure_future(self._attention.wait())
            expiry = asyncio.ensure_future(self._expires())
            try:
                await asyncio.wait(
                    {waiting, attention, expiry}, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                waiting.cancel()
                attention.cancel()
                expiry.cancel()
            self.open_round()
        while not await wait_set(clock, self._deadline, self._attention):
            if is_below_min_clients(self._state) and clock.now() < self._last_start:
                await self._extend_deadline()  # waiting is not failing
                continue
            # Uploads that arrived meanwhile ask for more time.
            wanted = min(self._wanted_until, self._ends_at)
            if wanted <= self._deadline:
                return
            self._deadline = wanted
            await self._store_deadline(self._deadline - clock.now())

    async def _expires(self) -> None:
        """Wait until no client can join any more, reading the date once a minute."""
        clock = self._clock
        while clock.now() < self._last_start:
            if abs(clock.date() - clock.now() - self._epoch) > _DATE_SET_SECONDS:
                self._last_start = -math.inf
                return
            look = clock.now() + _LOOK_AT_DATE_SECONDS
            await clock.sleep_until(min(self._last_start, look))

    async def _wait_to_close_in_store(self) -> bool:
        """Wait as `wait_to_close`, where other replicas may close or extend the round.

        The extension is stored before the deadline, so other replicas see it in time.
        """
        clock, entered = self._clock, self.rounds_entered
        while not self._durable.is_over and self.rounds_entered == entered:
            self._woken.clear()
            self._deadline = min(self._durable.deadline or math.inf, self._latest_end())
            now, wanted = clock.now(), min(self._wanted_until, self._ends_at)
            if self._is_full() or self._durable.has_failed_over:
                return True  # or the store refuses, and says why
            if wanted > max(now, self._deadline) and (
                now >= self._deadline or self._may_extend(now)
            ):
                self._extended_at = now
                await self._store_deadline(wanted - now, extend=True)
            elif now < self._deadline:
                await wait_set(clock, self._deadline, self._woken)
            elif is_below_min_clients(self._state) and now < self._last_start:
                lasts = self._seconds_of(self._state.ROUND)
                await self._store_deadline(lasts, extend=True)  # waiting is not failing
            else:
                return True
        return False

    def _may_extend(self, now: float) -> bool:
        """Whether the last extension is old enough for another commit."""
        grace = _UPLOAD_GRACE * self._seconds_of(self._state.ROUND)
        return now >= self._extended_at + min(_EXTEND_EVERY_SECONDS, grace / 4)

    async def _extend_deadline(self) -> None:
        """Give the open round its whole time, in the store too (rule 2)."""
        self.open_round()
        if server_machine.is_over(self._state) or not self._joined.is_set():
            return
        await self._store_deadline(self._deadline - self.opened_at)

    async def _store_deadline(self, seconds: float, *, extend: bool = False) -> None:
        """Store a deadline, unless the round has changed meanwhile."""
        entered = self.rounds_entered
        change = Change(key=self._session_key, deadline_seconds=seconds, extend=extend)
        await retrying(
            self._clock,
            lambda: self._durable.write(
                lambda _: change if self.rounds_entered == entered else None
            ),
        )

    def _latest_end(self) -> float:
        """Return until when the open round may last."""
        if isinstance(self._state, server.AdvertiseKeys):
            return self._last_start
        return self._ends_at

    def _seconds_of(self, opened: Round) -> int:
        return ROUNDS[opened].seconds(self._deadlines)
