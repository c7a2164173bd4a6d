"""Callers of the operator's socket are let go, whatever comes at the same moment."""

import asyncio

import pytest

from secagg.server.admin.channel import read_message, watch_admin, write_message
from secagg.server.admin.socket import AdminSocket
from secagg.server.server import OperatedServer

# More than anything here takes that is still to end: no clock is asked.
MANY_TURNS = 50


async def pass_turns(number):
    for _ in range(number):
        await asyncio.sleep(0)


def socket_in(directory, server):
    path = directory / "admin.sock"
    return AdminSocket(path, server, None, state_dir=directory, finish=lambda _: None)


@pytest.fixture
async def listening(tmp_path):
    async with (
        OperatedServer(None) as server,
        socket_in(tmp_path, server) as listening,
    ):
        yield listening


async def test_a_closing_socket_leaves_the_one_that_has_taken_its_path(
    tmp_path, monkeypatch
):
    async with OperatedServer(None) as server:
        first, second = socket_in(tmp_path, server), socket_in(tmp_path, server)
        monkeypatch.setattr(first._callers, "cancel_all", second.__aenter__)
        async with first:
            pass
        assert second._path.exists()
        await second.__aexit__()
        assert not second._path.exists()


@pytest.mark.parametrize("turns", range(8))
async def test_a_closing_socket_cancels_its_requests(listening, turns):
    """`session.watch` has no end of its own: a cancellation must not be forgotten."""
    _, writer = await asyncio.open_unix_connection(listening._path)
    await pass_turns(MANY_TURNS)  # it waits for the request
    (serving,) = listening._callers._open
    await write_message(writer, {"verb": "session.watch", "args": {}})
    await pass_turns(turns)
    serving.cancel()
    await pass_turns(MANY_TURNS)
    is_let_go = serving.done()
    writer.close()  # the other end of a watch, if it continues
    await asyncio.wait({serving})
    assert is_let_go


@pytest.mark.parametrize("turns", range(8))
async def test_a_caller_cancelled_as_the_answer_arrives_stops(tmp_path, turns):
    answering = asyncio.Event()

    async def answer(reader, writer):
        await read_message(reader)
        await answering.wait()
        await write_message(writer, {"ok": True, "more": True, "data": {}})
        await reader.read()
        writer.close()

    async def watch():
        return [each async for each in watch_admin(tmp_path / "s", "session.watch")]

    async with await asyncio.start_unix_server(answer, tmp_path / "s"):
        watching = asyncio.create_task(watch())
        await pass_turns(MANY_TURNS)
        answering.set()
        await pass_turns(turns)
        watching.cancel()
        await pass_turns(MANY_TURNS)
        has_stopped = watching.done()
        watching.cancel()
        await asyncio.wait({watching})
    assert has_stopped
