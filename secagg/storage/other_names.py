"""What aggregators of one book must have in common, as the book knows them."""

from collections.abc import Iterable
from typing import Final

from secagg.errors import ErrorCode, ServiceError
from secagg.storage.stored import Replica, ReplicaRow

__all__ = ["refuse_other_names"]

# Three signs of life: whoever was silent for longer has ended, or is about to.
_PRESENT_SECONDS: Final = 15.0


def refuse_other_names(own: Replica, rows: Iterable[ReplicaRow]) -> None:
    """Refuse to serve beside aggregators whose certificates have another name.

    Clients that were told one name refuse the other, and so would a session that goes
    from one aggregator to another.

    Args:
        own: This aggregator; of its own row nothing is asked.
        rows: All that the book knows.

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
            raise ServiceError(
                f"the certificate here names {own.aggregator!r}, that of the "
                f"aggregator at {other.address or 'no address yet'}, which shares the "
                f"book, {other.aggregator!r}",
                code=ErrorCode.BAD_SETTINGS,
                next_step="Give all of them certificates of one name; keys may differ. "
                "For another name stop all of them first.",
            )
