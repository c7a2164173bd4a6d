"""What aggregators of one store must have in common, as the store knows them."""

from collections.abc import Iterable
from typing import Final

from secagg.errors import ErrorCode
from secagg.protocol.descriptor import SessionDescriptor
from secagg.storage.rows import Replica, ReplicaRow

# Three heartbeats: a replica that was silent for longer has ended, or is about to.
_PRESENT_SECONDS: Final = 15.0


def refuse_sessions_of_another(own: str, opened: Iterable[SessionDescriptor]) -> None:
    """Refuse to continue open sessions under another name (R5.0-6).

    Their clients trust the name in their offer alone: they would never learn how their
    sessions ended.

    Args:
        own: Name in this aggregator's certificate.
        opened: The sessions of its store that are not over.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    for each in opened:
        if each.aggregator != own:
            raise ErrorCode.BAD_SETTINGS.error(
                f"session {each.session_number} of task {each.task_id!r} is open and "
                f"one of {each.aggregator!r}; the certificate here names {own!r}",
                fix="Start under the old name; to change it, drain the "
                "aggregator first, so that no session is open.",
            )


def refuse_other_names(own: Replica, rows: Iterable[ReplicaRow]) -> None:
    """Refuse to serve beside aggregators whose certificates have another name.

    Clients that were told one name refuse the other, and so would a session that goes
    from one aggregator to another.

    Args:
        own: This aggregator; its own row is not compared.
        rows: All replicas that the store knows.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    for row in rows:
        other = row.replica
        if (
            row.silent_seconds <= _PRESENT_SECONDS
            and other.name != own.name
            and other.aggregator != own.aggregator
        ):
            raise ErrorCode.BAD_SETTINGS.error(
                f"the certificate here names {own.aggregator!r}, that of the "
                f"aggregator at {other.address or 'no address yet'}, which shares the "
                f"store, {other.aggregator!r}",
                fix="Give all of them certificates of one name; keys may differ. "
                "For another name stop all of them first.",
            )
