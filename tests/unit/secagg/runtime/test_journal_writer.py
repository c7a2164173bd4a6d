import asyncio

import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.runtime.journal_writer import JournalWriter
from secagg.runtime.workers import Workers
from secagg.storage.base import Role
from secagg.storage.memory import MemorySessionStore
from secagg.testing.held_executor import HeldExecutor


class CountingStore(MemorySessionStore):
    writes = 0

    def append(self, session_key, first_sequence, records):
        self.writes += 1
        super().append(session_key, first_sequence, records)


def writer_on(executor):
    store = CountingStore()
    store.create("s", Role.SERVER, b"")
    workers = Workers(storage=executor, general=executor)
    return store, JournalWriter(store, workers, "s")


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


async def test_durable_returns_only_when_the_record_is_written():
    disk = HeldExecutor()
    store, writer = writer_on(disk)
    disk.is_holding = True
    writer.append(b"one")
    task = asyncio.ensure_future(writer.durable())
    await settle()
    assert not task.done()
    assert store.load("s").records == ()
    disk.release()
    await task
    assert store.load("s").records == (b"one",)


async def test_records_that_wait_share_one_write():
    disk = HeldExecutor()
    store, writer = writer_on(disk)
    disk.is_holding = True
    tasks = []
    for number in range(100):
        writer.append(b"%d" % number)
        tasks.append(asyncio.ensure_future(writer.durable()))
        await settle()
    disk.release()
    await asyncio.gather(*tasks)
    assert store.writes == 2  # the first record, and everything that came meanwhile
    assert store.load("s").records == tuple(b"%d" % n for n in range(100))


async def test_a_failed_write_loses_nothing():
    disk = HeldExecutor()
    store, writer = writer_on(disk)
    disk.failure = ServiceError("full", code=ErrorCode.STORAGE_FAILED)
    writer.append(b"one")
    with pytest.raises(ServiceError):
        await writer.durable()
    writer.append(b"two")
    with pytest.raises(ServiceError):
        await writer.durable()
    disk.failure = None
    await writer.durable()
    assert store.load("s").records == (b"one", b"two")


async def test_a_caller_that_goes_away_does_not_stop_the_write():
    disk = HeldExecutor()
    store, writer = writer_on(disk)
    disk.is_holding = True
    writer.append(b"one")
    task = asyncio.ensure_future(writer.durable())
    await settle()
    task.cancel()
    await settle()
    disk.release()
    await settle()
    assert store.load("s").records == (b"one",)
    await writer.durable()
    assert store.writes == 1
