"""One turn of letting go of receipts, for either side.

Rule 1: only receipts of ended sessions go; numbers, charges and what was spent stay.
Rule 2: a disk that refuses is met again at the next turn; sessions do not notice.
"""

import logging

from secagg.errors import ServiceError
from secagg.runtime import log_events as telemetry
from secagg.storage.changes import PURGE_ROWS, PurgeReceipts
from secagg.storage.client_store import ClientRecords
from secagg.storage.rows import Retention


async def purge_once(
    store: ClientRecords, policy: Retention, log: logging.Logger
) -> None:
    """Purge a store, and log how many receipts were deleted.

    Args:
        store: Store of a client or an aggregator.
        policy: What is kept.
        log: Log of that party.
    """
    purged, removed = 0, PURGE_ROWS
    try:
        while removed == PURGE_ROWS:
            removed = len(await store.commit(PurgeReceipts(policy)))
            purged += removed
    except ServiceError as error:
        telemetry.log_event(
            log, logging.ERROR, telemetry.STORAGE_WRITE_FAILED, reason=error
        )
    if purged:
        telemetry.log_event(log, logging.INFO, telemetry.RECEIPTS_PURGED, count=purged)
