"""What the operator is told of one session: lines of the log, and measurements.

It decides nothing and knows nothing of the session but what it is handed; a line names
clients and numbers, never what they sent.
"""

import logging
from collections.abc import Iterable
from typing import Final

from secagg.errors import RemoteProtocolError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Envelope
from secagg.protocol.rounds import DropReason
from secagg.protocol.server import machine as server
from secagg.runtime import log_events as telemetry
from secagg.server.session.progress import DroppedClient, SessionProgress, named
from secagg.server.telemetry.measures import Measures

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

# A log line stays readable when a thousand clients are lost at once.
_NAMED_AT_MOST: Final = 20


class SessionLog:
    """Tells the operator of one session.

    Args:
        session: The session.
        measures: Takes measurements.
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
        """Note that a client's message was new, and is durable."""
        self.write(
            telemetry.MESSAGE_ACCEPTED,
            level=logging.DEBUG,
            message=envelope.kind.__name__,
            sender=sender,
        )

    def refused(
        self, sender: str, envelope: Envelope, error: RemoteProtocolError
    ) -> None:
        """Note that a client's message was refused."""
        self.write(
            telemetry.MESSAGE_REFUSED,
            level=logging.DEBUG,  # the refused call has its line
            message=envelope.kind.__name__,
            sender=sender,
            code=error.code.name,
        )

    def view_differs(self, client: str) -> None:
        """Note that a client has another view than this server (R5.3-14)."""
        self.write(
            telemetry.VIEW_DIFFERS,
            level=logging.WARNING,
            sender=client,
            reason=DropReason.OTHER_VIEW.value,
            next_step="Install the same release of secagg and dpnoise there and here.",
        )

    def tables_differ(
        self, differing: int, sharers: int, tables: Iterable[bytes]
    ) -> None:
        """Note that so many views differ that this server may be the odd one.

        Args:
            differing: How many clients.
            sharers: |U2|.
            tables: Hashes of the tables that this server draws noise with.
        """
        self.write(
            telemetry.TABLES_DIFFER,
            level=logging.ERROR,
            differing=differing,
            clients=sharers,
            reason="this server, or most clients, compute other tables",
            tables=named([each.hex() for each in tables], _NAMED_AT_MOST),
            next_step="Compare the releases of secagg, dpnoise and their libraries "
            "here and at a client.",
        )

    def lost(self, clients: Iterable[DroppedClient]) -> None:
        """Note who has not answered in the round that was closed."""
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
        """Note a change of state.

        Args:
            before: The state that was left.
            state: The state that was entered.
            progress: Where the session stands by it.
            seconds: How long the former was open.
        """
        counts = server.progress(before)
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
        """Tell the meter how long a round, or the sum, took."""
        if isinstance(before, server.Summing):
            self._measures.summed(seconds)
            return
        counts = server.progress(before)
        is_full = counts.answered >= counts.expected
        self._measures.closed(counts.round, seconds, is_full=is_full)
