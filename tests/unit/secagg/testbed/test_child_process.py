"""A process that its parent listens to."""

import asyncio
import sys
from types import SimpleNamespace

import pytest

from secagg.testbed.child_process import ChildProcess, child_environment, start_child

PROGRAM = """
from secagg.testbed.child_process import report
report("first", number=1)
print("a library's word")
print("[3]")
print("x" * (1 << 21))
report("last")
print('{"event": "half', end="")
"""


async def test_a_line_that_is_no_event_is_logged(tmp_path, monkeypatch):
    (tmp_path / "talking_program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *sys.path]))
    heard = []
    log = tmp_path / "log"
    child = await start_child(
        "one",
        ["-m", "talking_program"],
        log=log,
        listener=heard.append,
        environment=child_environment(),
    )
    assert await child.wait() == 0
    assert heard == [{"event": "first", "number": 1}, {"event": "last"}]
    logged = log.read_text()
    for word in ("a library's word", "[3]", "too long", '"half'):
        assert word in logged


async def test_a_failed_listener_is_reported(tmp_path, monkeypatch):
    (tmp_path / "talking_program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *sys.path]))

    def fail(_):
        raise LookupError("a defect")

    child = await start_child(
        "one",
        ["-m", "talking_program"],
        log=tmp_path / "log",
        listener=fail,
        environment=child_environment(),
    )
    with pytest.raises(LookupError):
        await child.wait()
    with pytest.raises(LookupError):
        await child.end()


async def test_a_cancelled_waiter_does_not_stop_the_reader(tmp_path):
    """Else the next one to wait would be cancelled, and what it has to end left."""
    heard, lines = [], asyncio.StreamReader()

    async def has_ended():
        return 0

    process = SimpleNamespace(stdout=lines, returncode=0, wait=has_ended)
    child = ChildProcess("one", process, heard.append, tmp_path / "log")
    waiting = asyncio.create_task(child.wait())
    await asyncio.wait({waiting}, timeout=0)
    waiting.cancel()
    await asyncio.wait({waiting})
    lines.feed_data(b'{"event": "last"}\n')
    lines.feed_eof()
    assert await child.wait() == 0
    assert heard == [{"event": "last"}]
    await child.end()


async def test_a_process_is_ended_although_its_reader_was_cancelled(tmp_path):
    """As a loop does with every task when it ends by an exception."""
    ended = asyncio.get_running_loop().create_future()
    process = SimpleNamespace(
        stdout=asyncio.StreamReader(),
        returncode=None,
        kill=lambda: ended.done() or ended.set_result(-9),
        wait=lambda: asyncio.shield(ended),
    )
    child = ChildProcess("one", process, print, tmp_path / "log")
    await asyncio.wait({asyncio.create_task(child.wait())}, timeout=0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await child.end()
    assert ended.done()


def test_a_child_process_inherits_no_secagg_settings(monkeypatch):
    monkeypatch.setenv("SECAGG_SERVER_LISTEN", "0.0.0.0:443")
    found = child_environment({"MALLOC_ARENA_MAX": "2"})
    assert found["MALLOC_ARENA_MAX"] == "2"
    assert not [key for key in found if key.startswith("SECAGG_")]
