"""Threads for blocking calls."""

import os
import threading

from secagg.runtime import workers
from secagg.runtime.workers import Workers


async def test_a_forked_process_uses_new_threads(monkeypatch):
    shared = Workers.of_process()
    parents = {await shared.run(threading.current_thread)}
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        forks = {
            await each.run(threading.current_thread)
            for each in (shared, Workers.of_process())
        }
    workers._threads_of(-1).shutdown()
    assert not any(each.is_alive() for each in forks)
    assert all(each.is_alive() for each in parents)
    assert await shared.run(threading.current_thread) not in forks
