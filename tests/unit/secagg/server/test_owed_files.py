"""Files that a disk refuses are written later, and somebody is told meanwhile."""

import asyncio
import logging

import pytest

from secagg import telemetry
from secagg.errors import ErrorCode, ServiceError
from secagg.server.owed_files import SAY_EVERY_SECONDS, OwedFiles
from secagg.testing.manual_clock import ManualClock


class Disk:
    """Refuses until there is room."""

    def __init__(self, code=ErrorCode.STORAGE_FAILED) -> None:
        self.code, self.has_room, self.tried = code, False, 0

    async def write(self):
        self.tried += 1
        if not self.has_room:
            raise ServiceError("full", code=self.code, next_step="Make room.")


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_it_is_tried_until_there_is_room_and_said_now_and_again(caplog):
    caplog.set_level(logging.INFO)
    clock, disk = ManualClock(), Disk()
    owed = OwedFiles(clock)
    writing = asyncio.create_task(owed.write("t", disk.write))
    await settled()
    assert owed.refused == {"t": "full"}
    began = clock.now()
    while clock.now() < began + SAY_EVERY_SECONDS:
        assert clock.jump()
        await settled()
    assert not writing.done()
    disk.has_room = True
    clock.jump()
    await writing
    assert owed.refused == {}
    events = [line.split()[0] for line in caplog.messages]
    assert events == [telemetry.FILES_REFUSED] * 2 + [telemetry.FILES_WRITTEN]
    assert "Make room." in caplog.messages[0]
    assert disk.tried > SAY_EVERY_SECONDS / 10


async def test_what_no_patience_mends_is_told_at_once():
    owed = OwedFiles(ManualClock())
    with pytest.raises(ServiceError):
        await owed.write("t", Disk(ErrorCode.BAD_SETTINGS).write)
    assert owed.refused == {}


async def test_a_process_that_ends_leaves_nobody_waiting():
    owed = OwedFiles(ManualClock())
    writing = asyncio.create_task(owed.write("t", Disk().write))
    await settled()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert owed.refused == {}
