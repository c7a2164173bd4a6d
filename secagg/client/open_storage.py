"""Opens the storage of a client that runs on an event loop."""

from pathlib import Path

from secagg.client.storage import ClientStorage
from secagg.storage.open_store import open_state


async def open_storage(
    directory: Path | None, *, mark: Path | None = None, accept_restored: bool = False
) -> ClientStorage:
    """Open the storage of one client, for this process alone.

    Args:
        directory: Where it is kept; None keeps it in memory and forgets it.
        mark: File of the rollback mark, outside the directory; by default one under
            the user's persistent state.
        accept_restored: The state may have been restored; see `open_store`.

    Raises:
        ServiceError: STORAGE_FAILED, STATE_DAMAGED or RESTORED_STATE.
    """
    store = await open_state(directory, mark=mark, accept_restored=accept_restored)
    return ClientStorage(store, directory)
