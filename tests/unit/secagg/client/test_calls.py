"""What a client fetches is judged before it is used."""

import hashlib

import pytest

from secagg.client.calls import ClientCalls
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.primitives.entropy import SeededEntropy
from secagg.primitives.secret_bytes import SecretBytes
from secagg.runtime.workers import Workers
from secagg.testing import manual_clock
from secagg.testing.held_executor import HeldExecutor
from secagg.testing.manual_clock import InlineExecutor
from secagg.testing.scripted_service import ScriptedService
from secagg.transport.in_memory import InMemoryConnection
from secagg.wire.calls import Blob, BlobChunk, FetchChunk

WHOLE = bytes(range(250))


def fetching(digest, *, workers):
    async def answer(_, request):
        return BlobChunk(WHOLE[request.offset :][:100], len(WHOLE))

    async def fetched(clock):
        calls = ClientCalls(
            InMemoryConnection(ScriptedService({FetchChunk: answer}), "client"),
            clock,
            SeededEntropy(SecretBytes(bytes(32)), b"jitter"),
            workers,
            watch=False,
        )
        return await calls.fetch(
            bytes(32),
            Blob.PAYLOAD,
            max_bytes=len(WHOLE),
            digest=digest,
            deadline=clock.now() + 60,
        )

    return manual_clock.run(fetched)


def test_pieces_are_put_together_and_compared_with_what_was_announced():
    workers = Workers(general=InlineExecutor())
    assert fetching(hashlib.sha256(WHOLE).digest(), workers=workers) == WHOLE
    with pytest.raises(RemoteProtocolError) as caught:
        fetching(bytes(32), workers=workers)
    assert caught.value.code is ErrorCode.PAYLOAD_MISMATCH


def test_what_was_fetched_is_hashed_by_a_worker_not_on_the_event_loop():
    executor = HeldExecutor()
    executor.is_holding = True
    with pytest.raises(manual_clock.DeadlockError):
        fetching(hashlib.sha256(WHOLE).digest(), workers=Workers(general=executor))
    assert executor.held == 1
