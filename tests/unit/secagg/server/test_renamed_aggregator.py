"""A renamed aggregator does not continue with sessions that are open (R5.0-6)."""

import asyncio

import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for
from secagg_testing.inline_store import inline_store

from secagg.errors import ErrorCode, ServiceError, SessionAbortedError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.runtime.workers import Workers
from secagg.server.aggregator import Aggregator
from secagg.server.task.definition import TaskDefinition
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.wire.calls import GetOffer


def test_a_renamed_aggregator_starts_only_when_no_session_is_open():
    async def main(clock):
        store, spool = inline_store(), UploadSpool(MemoryBlobs())
        workers = Workers(general=InlineExecutor())

        async def nothing(_):
            return b""

        def process(name):
            return Aggregator(store, spool, name=name, clock=clock, workers=workers)

        async def offered(aggregator):
            running = asyncio.create_task(
                aggregator.run_task(
                    TaskDefinition(
                        task_id="t",
                        parameters=parameters_for(4, dimension=4, threshold=3),
                    ),
                    next_payload=nothing,
                    on_sum=nothing,
                )
            )
            offer = None
            while not isinstance(offer, SessionDescriptor):
                await clock.sleep_until(clock.now() + 1)
                offer = await aggregator.answer("alice", GetOffer("t"))
            return running, offer

        first = process("a")
        running, offer = await offered(first)
        assert offer.aggregator == "a"
        running.cancel()
        await asyncio.wait({running})

        with pytest.raises(ServiceError, match=r"one of 'a'.*names 'b'") as caught:
            await process("b").recover()
        assert caught.value.code is ErrorCode.BAD_SETTINGS
        assert "drain" in caught.value.next_step

        again = process("a")  # another process of the name, and nothing has changed
        await again.recover()
        running, same = await offered(again)
        assert same == offer
        await again.end_task("t", "drained")
        with pytest.raises(SessionAbortedError, match="drained"):
            await running
        await process("b").recover()

    manual_clock.run(main)
