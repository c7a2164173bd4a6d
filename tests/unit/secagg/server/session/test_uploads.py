"""Uploads whose senders do not wait for the answer."""

import asyncio
import gc
from concurrent.futures import Executor, Future

import pytest
from secagg_testing.cohorts import parameters_for

from secagg.errors import ErrorCode, ServiceError
from secagg.runtime.workers import Workers
from secagg.server.rpc.limits import UploadSlots
from secagg.server.session.uploads import UploadReceiver
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.spool import UploadSpool
from secagg.wire.calls import UploadChunk


class HeldThread(Executor):
    """A thread whose calls fail when the test says so."""

    def __init__(self):
        self.asked = []

    def submit(self, *_):
        self.asked.append(Future())
        return self.asked[-1]


async def some_turns():
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_disk_failure_after_the_client_disconnected_is_not_unhandled():
    complaints = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, about: complaints.append(about["message"])
    )
    thread = HeldThread()
    receiver = UploadReceiver(
        bytes(32),
        parameters_for(3, dimension=2, threshold=2),
        spool=UploadSpool(MemoryBlobs()),
        workers=Workers(general=thread),
        slots=UploadSlots(1, waiting_bytes=100),
        arrived=lambda: None,
        accept=None,
    )
    chunk = UploadChunk(bytes(32), 0, 5, bytes(32), bytes(5))
    call = asyncio.ensure_future(receiver.receive("a", chunk))
    await some_turns()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    full = ServiceError("the disk is full", code=ErrorCode.STORAGE_FAILED)
    thread.asked.pop().set_exception(full)
    await some_turns()
    assert not receiver._in_work
    del call
    gc.collect()
    assert complaints == []
