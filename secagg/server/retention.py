"""Lets go of receipts and reports that are older, or more, than an operator wants.

Rule 1: only these go.  What a task knows from its sessions stays (`TaskHistory`), and
        so do its numbers and what it has spent: no sum is counted twice.
Rule 2: a disk that refuses is met again at the next turn; sessions do not notice.
"""

import asyncio
import logging
from typing import Final

from secagg.errors import ServiceError
from secagg.runtime import log_events as telemetry
from secagg.runtime.clock import Clock
from secagg.server.session.report import SessionReports
from secagg.storage.queries import ReadClock
from secagg.storage.retention import purge_once
from secagg.storage.rows import Retention
from secagg.storage.store import Store

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

# Receipts are counted in days; a look takes milliseconds.
PURGE_EVERY_SECONDS: Final = 3600.0


async def purge_regularly(
    store: Store,
    policy: Retention,
    *,
    clock: Clock,
    reports: SessionReports | None = None,
) -> None:
    """Purge a book now and every hour, until cancelled.

    Args:
        book: The book of an aggregator.
        policy: What stays.
        clock: How to wait.
        reports: Those of the sessions, which go with the receipts.
    """
    while True:
        await purge_once(store, policy, _LOG)
        if reports is not None:
            await _purge_reports(store, reports, policy)
        await clock.sleep_until(clock.now() + PURGE_EVERY_SECONDS)


async def _purge_reports(
    store: Store, reports: SessionReports, policy: Retention
) -> None:
    try:
        now = await store.read(ReadClock())
        await asyncio.to_thread(reports.purge, policy, now=now)
    except (ServiceError, OSError) as error:
        telemetry.log_event(
            _LOG, logging.ERROR, telemetry.STORAGE_WRITE_FAILED, reason=error
        )
