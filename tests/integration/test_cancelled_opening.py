"""A client, a server or a store may be cancelled while it opens, and opens again."""

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import pytest
from secagg_testing.cancelling import cancelled_at
from secagg_testing.tls_deployment import TLSDeployment

from secagg.client.client import Client
from secagg.protocol.policy import PrivacyLimits, TotalBudget
from secagg.server.server import Server
from secagg.storage.open_store import open_store
from secagg.storage.rollback_mark import RollbackMark


async def cancel_everywhere(make):
    """Cancel an opening at each of its suspensions, and open it again each time.

    Args:
        make: Returns a context manager that opens the same state.

    Returns:
        How many suspensions it has.
    """
    counts = []
    for is_late in (False, True):
        for place in itertools.count():
            opened = make()
            opening = asyncio.create_task(
                cancelled_at(place, opened.__aenter__(), is_late=is_late)
            )
            await asyncio.wait({opening})
            if not opening.cancelled():
                opening.result()
                await opened.__aexit__(None, None, None)
                counts.append(place)
                break
            async with make():
                pass
    assert len(set(counts)) == 1
    return counts[0]


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return TLSDeployment(tmp_path_factory.mktemp("pki"))


@pytest.mark.parametrize("has_total", [False, True])
async def test_a_client(has_total, tmp_path, pki):
    identity = pki.client()

    def make():
        return Client(
            "127.0.0.1:1",
            task="t",
            privacy_limits=PrivacyLimits(max_epsilon=1.0, max_delta=1e-6),
            total=TotalBudget(
                data="rows",
                epsilon=4.0,
                delta=1e-5,
                directory=tmp_path / "claims",
                rollback_mark=tmp_path / "marks" / "claims",
            )
            if has_total
            else None,
            identity=identity,
            state_dir=tmp_path / "state",
            rollback_mark=tmp_path / "marks" / "state",
        )

    assert await cancel_everywhere(make) > 0


@pytest.mark.parametrize("has_blobs", [False, True])
async def test_a_server(has_blobs, tmp_path, pki):
    identity = pki.server()

    def make():
        return Server(
            "127.0.0.1:0",
            identity=identity,
            state_dir=tmp_path / "state",
            rollback_mark=tmp_path / "mark" / "server",
            blobs=f"file:{tmp_path / 'blobs'}" if has_blobs else None,
        )

    assert await cancel_everywhere(make) > 0


async def test_a_server_with_a_database(tmp_path, pki, postgres_url):
    identity = pki.server()

    def make():
        return Server(
            "127.0.0.1:0",
            identity=identity,
            state_dir=tmp_path / "state",
            store=postgres_url,
            rollback_mark=tmp_path / "mark" / "server",
        )

    await emptied(postgres_url)
    try:
        assert await cancel_everywhere(make) > 0
    finally:
        await emptied(postgres_url)


async def test_closing_a_file_is_cancelled_while_its_thread_is_busy(tmp_path):
    directory, busy = tmp_path / "state", threading.Event()
    directory.mkdir()
    url, mark = f"sqlite:{directory / 'store.db'}", tmp_path / "mark" / "store"
    with ThreadPoolExecutor(1) as thread:
        store = await open_store(url, mark=mark, thread=thread)
        thread.submit(busy.wait)
        await cancel_at_once(store.close())
        busy.set()
        again = await open_store(url, mark=mark)
        await again.close()


async def test_opening_a_file_is_cancelled_before_it_begins(tmp_path):
    directory, busy = tmp_path / "state", threading.Event()
    directory.mkdir()
    path, mark = directory / "store.db", tmp_path / "mark" / "store"
    with ThreadPoolExecutor(1) as thread:
        thread.submit(busy.wait)
        await cancel_at_once(open_store(f"sqlite:{path}", mark=mark, thread=thread))
        busy.set()
    assert not path.exists()


async def test_opening_a_database_is_cancelled_before_its_mark_is_locked(
    tmp_path, postgres_url, monkeypatch
):
    """The thread that waits for the lock of the mark cannot be stopped."""
    mark, hold = tmp_path / "mark" / "store", RollbackMark.hold
    begun, cancelled = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def held_late(self, *, wait_seconds):
        loop.call_soon_threadsafe(begun.set)
        cancelled.wait()
        hold(self, wait_seconds=wait_seconds)

    await emptied(postgres_url)
    with monkeypatch.context() as patch:
        patch.setattr(RollbackMark, "hold", held_late)
        opening = asyncio.create_task(open_store(postgres_url, mark=mark))
        await begun.wait()
        opening.cancel()
        await has_hung_up(postgres_url)
        cancelled.set()
        await asyncio.wait({opening})
        assert opening.cancelled()
    store = await open_store(postgres_url, mark=mark)
    await store.close()
    await emptied(postgres_url)


async def has_hung_up(url):
    """Wait until no store is connected, and what follows from that has been done."""
    watching = await asyncpg.connect(url)
    connected = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'secagg' "
        "AND datname = current_database()"
    )
    while await watching.fetchval(connected):
        pass
    for _ in range(20):
        await watching.fetchval("SELECT 1")
    await watching.close()


async def cancel_at_once(work):
    """Cancel a coroutine at its first suspension."""
    task = asyncio.create_task(cancelled_at(0, work, is_late=False))
    await asyncio.wait({task})
    assert task.cancelled()


async def emptied(url):
    database = await asyncpg.connect(url)
    await database.execute("DROP SCHEMA IF EXISTS secagg CASCADE")
    await database.close()
