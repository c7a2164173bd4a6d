"""The hints of a database that others have written, without a database."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("asyncpg", reason="the extra [postgres] is not installed")

import asyncpg

from secagg.storage.postgres import connection as postgres_link
from secagg.storage.postgres.connection import PostgresLink


class Hinted(PostgresLink):
    """A link whose listening connection is the test itself."""

    def __init__(self):
        self.heard = None

    async def _listener(self, hint):
        self.heard = hint
        return SimpleNamespace(is_closed=lambda: False, terminate=lambda: None)


async def test_a_caller_cancelled_together_with_a_hint_is_cancelled():
    link = Hinted()

    async def follow():
        async for _ in link.hints():
            pass

    following = asyncio.create_task(follow())
    await some_turns()
    link.heard.set()
    following.cancel()
    await some_turns()
    assert following.cancelled()


class UnlistenableConnection:
    """A connection on which no process can listen."""

    is_terminated = False

    def __init__(self, error):
        self._error = error
        self._transport = SimpleNamespace(
            get_extra_info=lambda _: SimpleNamespace(family=None)
        )

    async def add_listener(self, *_):
        raise self._error

    def terminate(self):
        self.is_terminated = True


FAILURES = [
    asyncpg.InternalClientError("got result for unknown protocol state"),
    asyncpg.InterfaceError("connection is closed"),
    TimeoutError(),
    ConnectionResetError(104, "Connection reset by peer"),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("has_connected", [False, True])
async def test_polling_replaces_hints_while_no_process_can_listen(
    monkeypatch, error, has_connected
):
    made = []

    async def connect(*_, **__):
        if not has_connected:
            raise error
        made.append(UnlistenableConnection(error))
        return made[-1]

    monkeypatch.setattr(postgres_link.asyncpg, "connect", connect)
    monkeypatch.setattr(postgres_link, "_HINT_SECONDS", 0.0)
    link = Hinted()
    link._address = "postgresql://nowhere"
    link._listener = PostgresLink._listener.__get__(link)
    hints = link.hints()
    for _ in range(3):
        await anext(hints)
    await hints.aclose()
    assert len(made) == (3 if has_connected else 0)
    assert all(each.is_terminated for each in made)


async def some_turns():
    for _ in range(10):
        await asyncio.sleep(0)
