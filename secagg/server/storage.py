"""The storage of one aggregator, and how long it keeps what.

Rule 1: only receipts and reports are deleted, by the age or number that the operator
        set. The history of a task (`TaskHistory`), its session numbers and its charges
        stay, so no sum is counted twice.
Rule 2: when a disk refuses, the purge is tried again an hour later; sessions are not
        affected.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from secagg.errors import ServiceError
from secagg.runtime import log_events as telemetry
from secagg.runtime.clock import Clock
from secagg.server.session.report import SessionReports
from secagg.storage.blobs import FileBlobs, MemoryBlobs
from secagg.storage.changes import purge_once
from secagg.storage.leases import BindBlobs
from secagg.storage.open_blobs import BlobBindingFile, open_blobs, refuse_other_blobs
from secagg.storage.open_store import open_state
from secagg.storage.queries import ReadClock
from secagg.storage.rows import Retention
from secagg.storage.spool import UploadSpool
from secagg.storage.store import Store

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

# Receipts are counted in days; a purge takes milliseconds.
PURGE_EVERY_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class ServerStorage:
    """Holds the storage of one aggregator; `open_storage` makes it.

    Attributes:
        store: Sessions, session numbers, budgets and plans.
        spool: Uploads, payloads and sums.
    """

    store: Store
    spool: UploadSpool

    async def close(self) -> None:
        """Release the directory."""
        await self.store.close()


async def open_storage(
    directory: Path | None,
    *,
    store_url: str | None = None,
    mark: Path | None = None,
    accept_restored: bool = False,
    blobs: str | None = None,
) -> ServerStorage:
    """Open the storage of one aggregator.

    It belongs to this process alone, unless both the store and the blobs can be shared
    with other replicas.

    Args:
        directory: The state directory; None keeps everything in memory.
        store_url: URL of a store outside the directory; uploads, payloads and sums stay
            in the directory, or in `blobs`.
        mark: File of the rollback mark, outside the directory; by default below the
            user's persistent state.
        accept_restored: Whether a restored state is accepted; see `open_store`.
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
    """Bind the store to its blobs by name."""
    return await store.commit(BindBlobs(name))


async def purge_regularly(
    store: Store,
    policy: Retention,
    *,
    clock: Clock,
    reports: SessionReports | None = None,
) -> None:
    """Purge a store now and every hour, until cancelled.

    Args:
        store: The store of an aggregator.
        policy: What is kept.
        clock: Time.
        reports: The sessions' reports, which are deleted with their receipts.
    """
    while True:
        await purge_once(store, policy, _LOG)
        if reports is not None:
            await _purge_reports(store, reports, policy)
        await clock.sleep_until(clock.now() + PURGE_EVERY_SECONDS)


async def _purge_reports(
    store: Store, reports: SessionReports, policy: Retention
) -> None:
    """Delete old session reports; a disk that refuses is logged."""
    try:
        now = await store.read(ReadClock())
        await asyncio.to_thread(reports.purge, policy, now=now)
    except (ServiceError, OSError) as error:
        telemetry.log_event(
            _LOG, logging.ERROR, telemetry.STORAGE_WRITE_FAILED, reason=error
        )
