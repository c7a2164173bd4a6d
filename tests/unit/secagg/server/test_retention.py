"""Receipts that go, and what does not go with them."""

import asyncio
import logging

import pytest
from secagg_testing import manual_clock

from secagg.errors import ErrorCode, ServiceError
from secagg.runtime import log_events as telemetry
from secagg.server.storage import PURGE_EVERY_SECONDS, purge_regularly
from secagg.storage.changes import PurgeReceipts
from secagg.storage.rows import Retention

POLICY = Retention(keep_receipts_days=3.0, keep_receipts=16)


class Shelf:
    """Purges as often as it is asked to, and fails when it is told to."""

    def __init__(self, clock, fails_at=()):
        self.clock, self.fails_at, self.calls = clock, fails_at, []

    async def commit(self, command):
        assert command == PurgeReceipts(POLICY)
        self.calls.append(self.clock.now())
        if len(self.calls) in self.fails_at:
            raise ServiceError("the disk is full", code=ErrorCode.STORAGE_FAILED)
        return ("one",) if len(self.calls) == 1 else ()


def purging(turns, **options):
    async def main(clock):
        shelf = Shelf(clock, **options)
        task = asyncio.ensure_future(purge_regularly(shelf, POLICY, clock=clock))
        until = clock.now() + (turns - 0.5) * PURGE_EVERY_SECONDS
        await clock.sleep_until(until)
        assert not task.done()
        task.cancel()
        await asyncio.wait({task})
        return [at - shelf.calls[0] for at in shelf.calls]

    return manual_clock.run(main)


@pytest.mark.parametrize("fails_at", [(), (1, 2)], ids=["disk", "full disk"])
def test_receipts_are_purged_at_the_start_and_every_hour(fails_at, caplog):
    caplog.set_level(logging.INFO, telemetry.SERVER_LOGGER)
    assert purging(3, fails_at=fails_at) == [
        turn * PURGE_EVERY_SECONDS for turn in range(3)
    ]
    said = [record.getMessage() for record in caplog.records]
    if fails_at:
        assert (
            said == [f"{telemetry.STORAGE_WRITE_FAILED} reason='the disk is full'"] * 2
        )
    else:
        assert said == [f"{telemetry.RECEIPTS_PURGED} count=1"]
