"""What an operator may watch: numbers and names of rounds, never messages.

Rule 1: a watcher that is slow gets the latest state of every session, not a backlog;
        nothing waits for watchers.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique

from secagg.protocol.messages import Round


@unique
class SessionPhase(StrEnum):
    """What a session is doing."""

    COLLECTING = "collecting"
    SUMMING = "summing"
    COMPLETED = "completed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class DroppedClient:
    """A client that was lost.

    Attributes:
        identity: Who.
        round: In which round.
        reason: Why, in words.
    """

    identity: str
    round: Round
    reason: str


@dataclass(frozen=True, slots=True)
class SessionProgress:
    """A session at one moment.

    Attributes:
        session_id: The session.
        task_id: Its task.
        session_number: Its number within the task.
        phase: What it is doing.
        round: The open round; FINISHED at the end.
        joined: Clients that advertised.
        answered: Clients whose message of this round is in.
        expected: Clients that may still answer, those included.
        needed: Clients that this round needs.
        dropped: Everybody lost so far, in order.
        upload_bytes: Bytes of masked input received in this process.
        sessions_left: Sessions that the budget of the task still covers, spare ones
            included, and this one until its survivors are fixed; None without one.
        left_out: Who takes no part in it because of earlier sessions of the task.
        reason: How it ended, in words; empty before.
    """

    session_id: bytes
    task_id: str
    session_number: int
    phase: SessionPhase
    round: Round
    joined: int
    answered: int
    expected: int
    needed: int
    dropped: tuple[DroppedClient, ...] = ()
    upload_bytes: int = 0
    sessions_left: int | None = None
    left_out: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LiveSession:
    """A session that is not over.

    Attributes:
        progress: Where it stands.
        seconds_left: Until the open round closes; None while that is not known, because
            clients are missing and nothing says until when they may come.
        missing: Who may still answer in the open round, by name; before the cohort is
            fixed only where the task has a list of who is invited.
    """

    progress: SessionProgress
    seconds_left: float | None
    missing: tuple[str, ...] = ()


class ProgressFeed:
    """Hands the latest progress of every session to any number of watchers."""

    def __init__(self) -> None:
        self._watchers: set[_Watcher] = set()
        self._closed = False

    def publish(self, progress: SessionProgress) -> None:
        """Tell all watchers; never waits."""
        for watcher in self._watchers:
            watcher.offer(progress)

    def close(self) -> None:
        """End every watcher's iteration after what it has not seen yet."""
        self._closed = True
        for watcher in self._watchers:
            watcher.wake.set()

    async def watch(
        self, at_first: Iterable[SessionProgress] = ()
    ) -> AsyncIterator[SessionProgress]:
        """Yield progress until the feed is closed.

        Within one round of one session only the latest state is kept for a watcher
        that is busy; every change of round or phase is seen.

        Args:
            at_first: Yielded before any change; read when the watch begins, so that no
                change falls between.
        """
        watcher = _Watcher()
        for progress in at_first:
            watcher.offer(progress)
        self._watchers.add(watcher)
        try:
            while True:
                for progress in watcher.take():
                    yield progress
                if self._closed and not watcher.waiting:
                    return
                await watcher.wake.wait()
        finally:
            self._watchers.discard(watcher)


class _Watcher:
    """One watcher's unread states, one per session, round and phase."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.waiting: dict[tuple[bytes, Round, SessionPhase], SessionProgress] = {}

    def offer(self, progress: SessionProgress) -> None:
        key = (progress.session_id, progress.round, progress.phase)
        self.waiting[key] = progress
        self.wake.set()

    def take(self) -> tuple[SessionProgress, ...]:
        taken = tuple(self.waiting.values())
        self.waiting.clear()
        self.wake.clear()
        return taken


def named(identities: Sequence[str], at_most: int) -> str:
    """Return names for people to read: the first few, and how many more there are."""
    shown = ", ".join(identities[:at_most])
    more = len(identities) - at_most
    return f"{shown} and {more} more" if more > 0 else shown
