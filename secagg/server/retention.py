"""Lets go of receipts that are older, or more, than an operator wants to keep.

Rule 1: only receipts go.  What a task knows from its sessions stays (`TaskFacts`), and
        so do its numbers and what it has spent: no sum is counted twice.
Rule 2: a disk that refuses is met again at the next turn; sessions do not notice.
"""

import logging
from typing import Final

from secagg import telemetry
from secagg.runtime.clock import Clock
from secagg.storage.book import Book
from secagg.storage.purging import purge_once
from secagg.storage.stored import Retention

__all__ = ["purge_regularly"]

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

# Receipts are counted in days; a look takes milliseconds.
PURGE_EVERY_SECONDS: Final = 3600.0


async def purge_regularly(book: Book, policy: Retention, *, clock: Clock) -> None:
    """Purge a book now and every hour, until cancelled.

    Args:
        book: The book of an aggregator.
        policy: What stays.
        clock: How to wait.
    """
    while True:
        await purge_once(book, policy, _LOG)
        await clock.sleep_until(clock.now() + PURGE_EVERY_SECONDS)
