"""What the operator sees of one session: progress, lines of the log, measurements.

Rule 1: this module decides nothing and knows only what its callers pass.  A line names
        clients and numbers, never what they sent.
Rule 2: a slow watcher gets the latest state of every session, not a backlog; no session
        waits for watchers.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Final

from secagg.errors import RemoteProtocolError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Envelope, Round
from secagg.protocol.rounds import DropReason
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.runtime import log_events as telemetry
from secagg.server.telemetry.measures import Measures

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

# A log line stays readable when a thousand clients drop out at once.
_NAMED_AT_MOST: Final = 20


@unique
class SessionPhase(StrEnum):
    """Names what a session is doing."""

    COLLECTING = "collecting"
    SUMMING = "summing"
    COMPLETED = "completed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class DroppedClient:
    """Describes a client that a session continued without.

    Attributes:
        identity: The client's name.
        round: The round in which it dropped out.
        reason: Why, in words.
    """

    identity: str
    round: Round
    reason: str


@dataclass(frozen=True, slots=True)
class SessionProgress:
    """Describes a session at one moment.

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
        dropped: All clients that dropped out so far, in order.
        upload_bytes: Bytes of masked input received in this process.
        sessions_left: Sessions that the budget of the task still covers, with the spare
            ones and with this one until its survivors are fixed; None without a budget.
        excluded: Clients excluded because of earlier sessions of the task.
        reason: How it ended, in words; empty before its end.
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
    excluded: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LiveSession:
    """Describes a session that is not over.

    Attributes:
        progress: Its progress.
        seconds_left: Time until the open round closes; None while clients are missing
            and no deadline is set.
        missing: Names of the clients that may still answer in the open round. Before
            the cohort is fixed, they are known only if the task has a list of invited
            clients.
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
        """Send progress to all watchers, without waiting."""
        for watcher in self._watchers:
            watcher.offer(progress)

    def close(self) -> None:
        """End every watcher's iteration after its unread states."""
        self._closed = True
        for watcher in self._watchers:
            watcher.wake.set()

    async def watch(
        self, at_first: Iterable[SessionProgress] = ()
    ) -> AsyncIterator[SessionProgress]:
        """Yield progress until the feed is closed.

        Within one round of one session only the latest state is kept for a slow
        watcher. Every change of round or phase is seen.

        Args:
            at_first: Yielded before any change; read when the watch begins, so no
                change falls between.
        """
        watcher = _Watcher()
        for progress in at_first:
            watcher.offer(progress)
        self._watchers.add(watcher)
        try:
            while True:
                for progress in watcher.drain():
                    yield progress
                if self._closed and not watcher.waiting:
                    return
                await watcher.wake.wait()
        finally:
            self._watchers.discard(watcher)


class _Watcher:
    """Holds one watcher's unread states, one per session, round and phase."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.waiting: dict[tuple[bytes, Round, SessionPhase], SessionProgress] = {}

    def offer(self, progress: SessionProgress) -> None:
        key = (progress.session_id, progress.round, progress.phase)
        self.waiting[key] = progress
        self.wake.set()

    def drain(self) -> tuple[SessionProgress, ...]:
        taken = tuple(self.waiting.values())
        self.waiting.clear()
        self.wake.clear()
        return taken


def named(identities: Sequence[str], at_most: int) -> str:
    """Return names for people to read: the first few, and how many more exist."""
    shown = ", ".join(identities[:at_most])
    more = len(identities) - at_most
    return f"{shown} and {more} more" if more > 0 else shown


class SessionEvents:
    """Logs and measures one session for the operator.

    Args:
        session: The session.
        measures: Receives measurements.
    """

    def __init__(self, session: SessionDescriptor, measures: Measures) -> None:
        self._measures = measures
        self._names: Final = {
            "task": session.task_id,
            "number": session.session_number,
            "session": session.session_id.hex()[:16],
        }

    def write(self, name: str, *, level: int = logging.INFO, **facts: object) -> None:
        """Write one line about the session."""
        telemetry.log_event(_LOG, level, name, **self._names, **facts)

    def accepted(self, sender: str, envelope: Envelope) -> None:
        """Log that a client's message was new, and is durable."""
        self.write(
            telemetry.MESSAGE_ACCEPTED,
            level=logging.DEBUG,
            message=envelope.kind.__name__,
            sender=sender,
        )

    def refused(
        self, sender: str, envelope: Envelope, error: RemoteProtocolError
    ) -> None:
        """Log that a client's message was refused."""
        self.write(
            telemetry.MESSAGE_REFUSED,
            level=logging.DEBUG,  # the refused call has its own line
            message=envelope.kind.__name__,
            sender=sender,
            code=error.code.name,
        )

    def view_differs(self, client: str) -> None:
        """Log that a client has another view than this server (R5.3-14)."""
        self.write(
            telemetry.VIEW_DIFFERS,
            level=logging.WARNING,
            sender=client,
            reason=DropReason.OTHER_VIEW.value,
            next_step="Install the same release of secagg and dpnoise there and here.",
        )

    def tables_differ(
        self, differing: int, share_holders: int, tables: Iterable[bytes]
    ) -> None:
        """Log that many views differ, so this server may be the one at fault.

        Args:
            differing: How many clients.
            share_holders: |U2|.
            tables: Hashes of the tables that this server draws noise with.
        """
        self.write(
            telemetry.TABLES_DIFFER,
            level=logging.ERROR,
            differing=differing,
            clients=share_holders,
            reason="this server, or most clients, compute other tables",
            tables=named([each.hex() for each in tables], _NAMED_AT_MOST),
            next_step="Compare the releases of secagg, dpnoise and their libraries "
            "here and at a client.",
        )

    def lost(self, clients: Iterable[DroppedClient]) -> None:
        """Log which clients did not answer in the round that was closed."""
        for each in clients:
            self.write(
                telemetry.CLIENT_DROPPED,
                sender=each.identity,
                round=each.round.name,
                reason=each.reason,
            )

    def entered(
        self,
        before: server.ServerState,
        state: server.ServerState,
        progress: SessionProgress,
        *,
        seconds: float,
    ) -> None:
        """Log a change of state.

        Args:
            before: The former state.
            state: The new state.
            progress: The session's progress in the new state.
            seconds: How long the former state lasted.
        """
        counts = server_machine.progress(before)
        match state:
            case server.Completed():
                self.write(telemetry.SESSION_COMPLETED, reason=progress.reason)
            case server.Failed(outcome=outcome):
                self.write(
                    telemetry.SESSION_ABORTED,
                    level=logging.WARNING,
                    round=counts.round.name,
                    code=outcome.code.name,
                    reason=outcome.reason,
                    lost=named(
                        [lost.identity for lost in progress.dropped], _NAMED_AT_MOST
                    ),
                )
            case _:
                self.write(
                    telemetry.ROUND_CLOSED,
                    round=counts.round.name,
                    answered=counts.answered,
                    expected=counts.expected,
                    seconds=round(seconds, 3),
                )

    def measure(self, before: server.ServerState, seconds: float) -> None:
        """Measure how long a round, or the sum, took."""
        if isinstance(before, server.Summing):
            self._measures.summed(seconds)
            return
        counts = server_machine.progress(before)
        is_full = counts.answered >= counts.expected
        self._measures.closed(counts.round, seconds, is_full=is_full)
