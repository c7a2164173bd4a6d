"""Files that a disk refuses are written later, and the operator is told meanwhile."""

import asyncio
import logging

import pytest
from secagg_testing.manual_clock import ManualClock

from secagg.errors import ErrorCode, ServiceError
from secagg.runtime import log_events as telemetry
from secagg.server.task.definition import DeliveryDeferredError
from secagg.server.task.outputs import SAY_EVERY_SECONDS, PendingWrites


class Disk:
    """Refuses until there is room."""

    def __init__(self, code=ErrorCode.STORAGE_FAILED) -> None:
        self.code, self.has_room, self.tried = code, False, 0

    async def write(self):
        self.tried += 1
        if not self.has_room:
            raise ServiceError("full", code=self.code, next_step="Make room.")


async def refused(pending_writes, disk):
    with pytest.raises(DeliveryDeferredError) as caught:
        await pending_writes.write("t", disk.write)
    return caught.value


async def test_a_write_stays_pending_until_there_is_space_and_is_logged_repeatedly(
    caplog,
):
    caplog.set_level(logging.INFO)
    clock, disk = ManualClock(), Disk()
    pending_writes = PendingWrites(clock)
    began = clock.now()
    while clock.now() <= began + SAY_EVERY_SECONDS:
        again = await refused(pending_writes, disk)
        assert pending_writes.refused == {"t": "full"}
        await finish(clock, again.retry_after_seconds)
    disk.has_room = True
    await pending_writes.write("t", disk.write)
    assert pending_writes.refused == {}
    events = [line.split()[0] for line in caplog.messages]
    assert events == [telemetry.OUTPUT_WRITE_FAILED] * 2 + [telemetry.OUTPUT_WRITTEN]
    assert "Make room." in caplog.messages[0]
    assert disk.tried > SAY_EVERY_SECONDS / 10


async def finish(clock, seconds):
    waiting = asyncio.ensure_future(clock.sleep_until(clock.now() + seconds))
    while not waiting.done():
        await asyncio.sleep(0)
        clock.jump()


async def test_an_error_that_waiting_cannot_resolve_is_raised_at_once():
    pending_writes = PendingWrites(ManualClock())
    with pytest.raises(ServiceError) as caught:
        await pending_writes.write("t", Disk(ErrorCode.BAD_SETTINGS).write)
    assert not isinstance(caught.value, DeliveryDeferredError)
    assert pending_writes.refused == {}


async def test_a_file_written_by_another_process_is_not_pending(caplog):
    caplog.set_level(logging.INFO)
    pending_writes = PendingWrites(ManualClock())
    why = await refused(pending_writes, Disk())
    why.settle()
    why.settle()
    assert pending_writes.refused == {}
    other = Disk()
    other.has_room = True
    await pending_writes.write("t", other.write)
    assert telemetry.OUTPUT_WRITTEN not in caplog.text
