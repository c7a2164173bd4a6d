"""Files that a disk refuses are written later, and somebody is told meanwhile."""

import asyncio
import logging

import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.runtime import log_events as telemetry
from secagg.server.task.definition import NotTakenError
from secagg.server.task.pending_writes import SAY_EVERY_SECONDS, OwedFiles
from secagg.testing.manual_clock import ManualClock


class Disk:
    """Refuses until there is room."""

    def __init__(self, code=ErrorCode.STORAGE_FAILED) -> None:
        self.code, self.has_room, self.tried = code, False, 0

    async def write(self):
        self.tried += 1
        if not self.has_room:
            raise ServiceError("full", code=self.code, next_step="Make room.")


async def refused(owed, disk):
    with pytest.raises(NotTakenError) as caught:
        await owed.write("t", disk.write)
    return caught.value


async def test_it_is_owed_until_there_is_room_and_said_now_and_again(caplog):
    caplog.set_level(logging.INFO)
    clock, disk = ManualClock(), Disk()
    owed = OwedFiles(clock)
    began = clock.now()
    while clock.now() <= began + SAY_EVERY_SECONDS:
        again = await refused(owed, disk)
        assert owed.refused == {"t": "full"}
        await finish(clock, again.retry_after_seconds)
    disk.has_room = True
    await owed.write("t", disk.write)
    assert owed.refused == {}
    events = [line.split()[0] for line in caplog.messages]
    assert events == [telemetry.FILES_REFUSED] * 2 + [telemetry.FILES_WRITTEN]
    assert "Make room." in caplog.messages[0]
    assert disk.tried > SAY_EVERY_SECONDS / 10


async def finish(clock, seconds):
    waiting = asyncio.ensure_future(clock.sleep_until(clock.now() + seconds))
    while not waiting.done():
        await asyncio.sleep(0)
        clock.jump()


async def test_what_no_patience_mends_is_told_at_once():
    owed = OwedFiles(ManualClock())
    with pytest.raises(ServiceError) as caught:
        await owed.write("t", Disk(ErrorCode.BAD_SETTINGS).write)
    assert not isinstance(caught.value, NotTakenError)
    assert owed.refused == {}


async def test_what_somebody_else_has_written_is_not_owed(caplog):
    caplog.set_level(logging.INFO)
    owed = OwedFiles(ManualClock())
    why = await refused(owed, Disk())
    why.settle()
    why.settle()
    assert owed.refused == {}
    other = Disk()
    other.has_room = True
    await owed.write("t", other.write)
    assert telemetry.FILES_WRITTEN not in caplog.text
