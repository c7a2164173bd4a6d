"""What a client fetches is judged before it is used."""

import asyncio
import hashlib
import math

import pytest

from secagg.client.calls import ClientCalls
from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.messages import Delivery, Envelope, Quorum, Roster, Round, Survivors
from secagg.primitives.entropy import SeededEntropy
from secagg.primitives.secret_bytes import SecretBytes
from secagg.runtime.workers import Workers
from secagg.storage.inline_executor import InlineExecutor
from secagg.testing import manual_clock
from secagg.testing.held_executor import HeldExecutor
from secagg.testing.scripted_service import ScriptedService
from secagg.transport.in_memory import InMemoryConnection
from secagg.wire.calls import Blob, BlobChunk, FetchChunk, GetUpdate, Wait

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


def streaming(silent, answer, clock, opened):
    """Return calls whose streams give `silent` and are then as silent."""

    class Stream(InMemoryConnection):
        async def watch(self, request):
            opened.append(request.after)
            for update in silent:
                yield update
            await asyncio.Event().wait()

    return ClientCalls(
        Stream(ScriptedService({GetUpdate: answer}), "client"),
        clock,
        SeededEntropy(SecretBytes(bytes(32)), b"jitter"),
        Workers(general=InlineExecutor()),
        watch=True,
    )


def test_a_round_that_the_profile_leaves_out_needs_no_stream_of_its_own():
    """A roster opens ChooseEdges by name; whoever draws nobody is in ShareKeys."""
    opened, roster = [], Envelope(Roster, b"")

    async def follow(clock):
        async def nothing_yet(_identity, _request):
            return Wait(0.5)

        calls = streaming((roster, UPDATES[0]), nothing_yet, clock, opened)
        for after, expected in (
            (Round.ADVERTISE_KEYS, roster),
            (Round.SHARE_KEYS, UPDATES[0]),
        ):
            update = await calls.next_update(
                bytes(32),
                after=after,
                answer_seconds=60,
                deadline=clock.now() + 60,
                on_wait=lambda _: clock.now() + 60,
            )
            assert update == expected
        await calls.hang_up()

    manual_clock.run(follow)
    assert opened == [Round.ADVERTISE_KEYS]


@pytest.mark.parametrize(
    ("answer_seconds", "streams"),
    [
        pytest.param(300, 1, id="who has time to answer keeps the stream"),
        pytest.param(30, 3, id="who has none takes another one each time"),
    ],
)
def test_a_quiet_stream_is_kept_while_the_aggregator_says_that_there_is_nothing(
    answer_seconds, streams
):
    opened, answers = [], iter([Wait(0.5), Wait(0.5), UPDATES[0]])

    async def follow(clock):
        async def answer(_identity, _request):
            return next(answers)

        calls = streaming((), answer, clock, opened)
        update = await calls.next_update(
            bytes(32),
            after=Round.SHARE_KEYS,
            answer_seconds=answer_seconds,
            deadline=clock.now() + 9000,
            on_wait=lambda _: clock.now() + 9000,
        )
        assert update == UPDATES[0]
        # It has said nothing of this update: it is of no use any more.
        assert calls._open_stream is None

    manual_clock.run(follow)
    assert opened == [Round.SHARE_KEYS] * streams


def test_a_quiet_stream_is_given_up_when_the_aggregator_was_out_of_reach():
    """It may have started anew and know nothing of the stream."""
    opened = []
    gone = ServiceError(
        "gone", code=ErrorCode.UNREACHABLE, next_step="-", retry_after_seconds=1.0
    )
    answers = iter([Wait(0.5), gone, Wait(0.5), UPDATES[0]])

    async def follow(clock):
        async def answer(_identity, _request):
            said = next(answers)
            if isinstance(said, ServiceError):
                raise said
            return said

        calls = streaming((), answer, clock, opened)
        await calls.next_update(
            bytes(32),
            after=Round.SHARE_KEYS,
            answer_seconds=300,
            deadline=clock.now() + 9000,
            on_wait=lambda _: clock.now() + 9000,
        )

    manual_clock.run(follow)
    assert opened == [Round.SHARE_KEYS] * 2


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
