"""What a client fetches is judged before it is used."""

import asyncio
import hashlib
import math

import pytest

from secagg.client.calls import ClientCalls
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.messages import Delivery, Envelope, Quorum, Round, Survivors
from secagg.primitives.entropy import SeededEntropy
from secagg.primitives.secret_bytes import SecretBytes
from secagg.runtime.workers import Workers
from secagg.testing import manual_clock
from secagg.testing.held_executor import HeldExecutor
from secagg.testing.manual_clock import InlineExecutor
from secagg.testing.scripted_service import ScriptedService
from secagg.transport.in_memory import InMemoryConnection
from secagg.wire.calls import Blob, BlobChunk, FetchChunk, GetUpdate

WHOLE = bytes(range(250))
UPDATES = [Envelope(kind, b"") for kind in (Delivery, Survivors, Quorum)]


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


def test_one_stream_serves_a_whole_session_and_ends_with_it():
    opened, closed = [], []

    class Streaming(InMemoryConnection):
        async def watch(self, request):
            opened.append(request.after)
            try:
                for update in UPDATES:
                    yield update
            finally:
                closed.append(request.session_id)

    async def follow(clock):
        calls = ClientCalls(
            Streaming(ScriptedService({}), "client"),
            clock,
            SeededEntropy(SecretBytes(bytes(32)), b"jitter"),
            Workers(general=InlineExecutor()),
            watch=True,
        )

        async def update(session_id, after):
            return await calls.next_update(
                session_id,
                after=after,
                answer_seconds=60,
                deadline=clock.now() + 60,
                on_wait=lambda _: pytest.fail("nobody has to wait"),
            )

        after = Round.SHARE_KEYS
        while after is not Round.UNMASKING:
            after = (await update(bytes(32), after)).kind.ROUND
        assert opened == [Round.SHARE_KEYS]
        assert not closed
        # Another session, or a round that the stream has left, needs another stream.
        await update(b"\x01" * 32, Round.SHARE_KEYS)
        assert closed == [bytes(32)]
        await update(b"\x01" * 32, Round.SHARE_KEYS)
        assert len(opened) == 3
        await calls.hang_up()
        assert closed == [bytes(32), b"\x01" * 32, b"\x01" * 32]
        await calls.hang_up()

    manual_clock.run(follow)


@pytest.mark.parametrize(
    ("deadline", "answer_seconds", "asked"),
    [
        pytest.param(630, 300, 100, id="a third of the round that follows"),
        pytest.param(300, 3000, 50, id="a sixth of the time that is left"),
        pytest.param(630, 30, 20, id="never at once"),
        pytest.param(9000, math.inf, 240, id="never much later"),
    ],
)
def test_a_silent_stream_is_given_up_while_there_is_time_to_answer(
    deadline, answer_seconds, asked
):
    instants = []

    async def follow(clock):
        async def answer(_identity, _request):
            instants.append(clock.now())
            return UPDATES[0]

        class Silent(InMemoryConnection):
            async def watch(self, request):
                del request
                await asyncio.Event().wait()
                yield

        calls = ClientCalls(
            Silent(ScriptedService({GetUpdate: answer}), "client"),
            clock,
            SeededEntropy(SecretBytes(bytes(32)), b"jitter"),
            Workers(general=InlineExecutor()),
            watch=True,
        )
        begun = clock.now()
        update = await calls.next_update(
            bytes(32),
            after=Round.SHARE_KEYS,
            answer_seconds=answer_seconds,
            deadline=begun + deadline,
            on_wait=lambda _: pytest.fail("nobody has to wait"),
        )
        assert update == UPDATES[0]
        assert instants == [begun + asked]

    manual_clock.run(follow)
