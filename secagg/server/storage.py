"""Where an aggregator keeps its sessions and what clients have uploaded."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from secagg.server.task.history import TaskHistory
from secagg.storage.blobs import FileBlobs, MemoryBlobs
from secagg.storage.change import Role
from secagg.storage.leases import BindBlobs
from secagg.storage.open_blobs import BlobBindingFile, open_blobs, refuse_other_blobs
from secagg.storage.open_store import open_state
from secagg.storage.queries import ReadTally
from secagg.storage.spool import Spool, UploadSpool
from secagg.storage.store import Store


@dataclass(frozen=True, slots=True)
class ServerStorage:
    """The storage of one aggregator; make it with `open_storage`.

    Attributes:
        book: Sessions, numbers, budgets and plans.
        spool: Uploads, payloads and sums.
    """

    store: Store
    spool: Spool

    async def close(self) -> None:
        """Release the directory."""
        await self.store.close()

    async def sums_released(self, task_id: str) -> int:
        """Return how many sums of a task earlier processes released."""
        tally = await self.store.read(ReadTally(Role.SERVER, task_id))
        return TaskHistory.decode(tally.facts).sums


async def open_storage(
    directory: Path | None,
    *,
    store_url: str | None = None,
    mark: Path | None = None,
    accept_restored: bool = False,
    blobs: str | None = None,
) -> ServerStorage:
    """Open the storage of one aggregator.

    It is for this process alone, unless both book and blobs are kept where others can
    have them too.

    Args:
        directory: Where it is kept; None keeps it in memory and forgets it.
        store_url: URL of a book that is kept elsewhere; uploads, payloads and sums stay
            in the directory, or in `blobs`.
        mark: File of the rollback mark, outside the directory; by default one under
            the user's persistent state.
        accept_restored: The state may have been put back; see `open_store`.
        blobs: URL of a store of uploads, payloads and sums, as for `open_blobs`.

    Raises:
        ServiceError: STORAGE_FAILED, STATE_DAMAGED or RESTORED_STATE.
        LocalProtocolError: BAD_SETTINGS; the URL cannot be used.
    """
    is_shared = store_url is not None and blobs is not None
    kept = None if blobs is None else await asyncio.to_thread(open_blobs, blobs)
    store = await open_state(
        directory,
        store=store_url,
        mark=mark,
        accept_restored=accept_restored,
        is_shared=is_shared,
    )
    if directory is None:
        return ServerStorage(store, UploadSpool(MemoryBlobs()))
    async with AsyncExitStack() as undo:
        undo.push_async_callback(store.close)
        if kept is not None:
            own = BlobBindingFile(directory).bind
            shared = partial(_bind_blobs, store)
            await refuse_other_blobs(kept, shared if is_shared else own)
        found = kept or FileBlobs(directory / "spool")
        storage = ServerStorage(store, UploadSpool(found))
        undo.pop_all()
    return storage


async def _bind_blobs(store: Store, name: bytes | None) -> bytes | None:
    return await store.commit(BindBlobs(name))
