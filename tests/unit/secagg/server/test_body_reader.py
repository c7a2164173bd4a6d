"""Messages wait at their senders until it is their turn."""

import asyncio

import pytest

from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.server.call_guards import MESSAGES_OF_ONE_CALLER, BodyReader


class Sender:
    """A call's message, and whether any handler has asked for it."""

    def __init__(self, body=b"body"):
        self.body, self.asked, self.sent = body, asyncio.Event(), asyncio.Event()

    async def messages(self):
        self.asked.set()
        await self.sent.wait()
        yield self.body


async def ask(reader, sender):
    return await reader.read(sender.messages())


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["arrives", "hangs up"])
async def test_bodies_are_read_in_turn(is_cancelled):
    reader = BodyReader(2, 30.0)
    first, second, third = senders = [Sender(body) for body in (b"1", b"2", b"3")]
    reading = [asyncio.ensure_future(ask(reader, sender)) for sender in senders]
    await asyncio.gather(first.asked.wait(), second.asked.wait())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not third.asked.is_set()
    if is_cancelled:
        reading[1].cancel()
    else:
        second.sent.set()
        assert await reading[1] == b"2"
    await third.asked.wait()
    third.sent.set()
    first.sent.set()
    assert [await reading[0], await reading[2]] == [b"1", b"3"]


async def test_a_stalling_caller_loses_its_turn():
    reader = BodyReader(1, 0.01)
    with pytest.raises(ServiceError, match=r"within 0\.01 s") as caught:
        await ask(reader, Sender())
    assert caught.value.code is ErrorCode.OVERLOADED
    assert caught.value.retry_after_seconds == 1.0
    prompt = Sender()
    prompt.sent.set()
    assert await ask(reader, prompt) == b"body"


async def test_a_call_without_a_message_is_rejected_and_frees_its_turn():
    reader = BodyReader(1, 30.0)

    async def nothing():
        for body in ():
            yield body

    for _ in range(2):
        with pytest.raises(RemoteProtocolError) as caught:
            await reader.read(nothing())
        assert caught.value.code is ErrorCode.BAD_ENCODING


async def test_an_upload_keeps_its_turn_until_it_is_acknowledged():
    reader = BodyReader(1, 30.0, waiting=1)
    first, second = Sender(b"1"), Sender(b"2")
    first.sent.set()
    second.sent.set()
    async with reader.held("c", first.messages()) as body:
        assert body == b"1"
        waiting = asyncio.ensure_future(ask(reader, second))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not second.asked.is_set()
        # One waits; the next caller is told so before anything is received.
        third = Sender(b"3")
        with pytest.raises(ServiceError, match="too many messages wait") as caught:
            await ask(reader, third)
        assert caught.value.code is ErrorCode.OVERLOADED
        assert caught.value.retry_after_seconds == 5.0
        assert not third.asked.is_set()
    assert await waiting == b"2"
    third.sent.set()
    assert await ask(reader, third) == b"3"


async def test_stalled_messages_of_one_caller_are_limited():
    reader = BodyReader(99, 30.0)
    stalled = [Sender() for _ in range(MESSAGES_OF_ONE_CALLER)]
    calls = [
        asyncio.ensure_future(reader.read(sender.messages(), caller="c"))
        for sender in stalled
    ]
    await asyncio.gather(*(sender.asked.wait() for sender in stalled))
    another = Sender()
    with pytest.raises(ServiceError, match="this caller has other"):
        await reader.read(another.messages(), caller="c")
    assert not another.asked.is_set()
    another.sent.set()
    assert await reader.read(another.messages(), caller="d") == b"body"
    stalled[0].sent.set()
    await calls.pop(0)
    assert await reader.read(another.messages(), caller="c") == b"body"
    for each in calls:
        each.cancel()


async def test_long_turns_of_one_caller_are_limited():
    reader = BodyReader(8, 30.0)
    sender = Sender()
    sender.sent.set()
    async with (
        reader.held("c", sender.messages()),
        reader.held("c", sender.messages()),
    ):
        with pytest.raises(ServiceError, match="this caller has other") as caught:
            async with reader.held("c", sender.messages()):
                pass
        assert caught.value.code is ErrorCode.OVERLOADED
        async with reader.held("d", sender.messages()) as body:
            assert body == b"body"
    async with reader.held("c", sender.messages()) as body:
        assert body == b"body"


async def test_a_message_is_freed_after_it_has_been_read():
    """gRPC's iterator and its generator are a cycle while that one is suspended."""
    reader = BodyReader(1, 30.0)
    sender = Sender()
    sender.sent.set()
    generator = sender.messages()

    class Messages:
        def __aiter__(self):
            return generator

    assert await reader.read(Messages()) == b"body"
    assert generator.ag_frame is None
    assert await ask(reader, sender) == b"body"
