"""What a client has to show of sessions that are over: its last sum, its receipts.

A client that is started again after the end of its task has not failed: its work was
done by an earlier process.
"""

from dataclasses import dataclass

from secagg.protocol.client.states import Completed
from secagg.protocol.messages import Fate
from secagg.storage.change import Side
from secagg.storage.client_store import ClientRecords
from secagg.storage.journal import decode_ending
from secagg.storage.queries import ListSessions, LoadSession
from secagg.storage.rows import SessionState


@dataclass(frozen=True, slots=True)
class Participation:
    """A session whose sum holds this client's input.

    Attributes:
        session_number: Its number within the task.
        inputs: How many vectors the sum adds up, this client's included.
    """

    session_number: int
    inputs: int


async def last_part(store: ClientRecords, task_id: str) -> Participation | None:
    """Return the latest session of a task whose sum holds this client's input.

    Args:
        store: The client's.
        task_id: Name of the task.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    for row in await store.read(
        ListSessions(role=Side.CLIENT, task=task_id, state=SessionState.ENDED)
    ):
        stored = await store.read(LoadSession(row.key))
        if stored is None or stored.receipt is None:
            continue
        ending = decode_ending(stored.receipt).state
        if isinstance(ending, Completed) and ending.outcome.fate is Fate.INCLUDED:
            return Participation(row.number, ending.outcome.survivors)
    return None


async def receipt_of(
    store: ClientRecords, task_id: str, session_number: int
) -> bytes | None:
    """Return the receipt of a session that is over for this client, or None.

    Args:
        store: The client's.
        task_id: Name of the task.
        session_number: Of the session; of two aggregators' the newer one counts.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    for row in await store.read(
        ListSessions(role=Side.CLIENT, task=task_id, state=SessionState.ENDED)
    ):
        if row.number != session_number:
            continue
        stored = await store.read(LoadSession(row.key))
        if stored is not None and stored.receipt is not None:
            return decode_ending(stored.receipt).audit
    return None
