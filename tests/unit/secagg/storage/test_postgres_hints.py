"""The hints of a database that others have written, without a database."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("asyncpg", reason="the extra [postgres] is not installed")

from secagg.storage.postgres_link import PostgresLink


class Hinted(PostgresLink):
    """A link whose listening connection is the test itself."""

    def __init__(self):
        self.heard = None

    async def _listener(self, _stack, hint):
        self.heard = hint
        return SimpleNamespace(is_closed=lambda: False)


async def test_whoever_is_cancelled_together_with_a_hint_is_cancelled():
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


async def some_turns():
    for _ in range(10):
        await asyncio.sleep(0)
