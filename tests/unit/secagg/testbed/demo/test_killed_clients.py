"""Clients that a demo kills, and starts again once their session is over."""

from types import SimpleNamespace

import pytest

from secagg.testbed.demo.layout import DemoLayout
from secagg.testbed.demo.run import _Run


@pytest.fixture
def done():
    """What the director was told to do, in order."""
    return []


@pytest.fixture
def run(tmp_path, done):
    director = SimpleNamespace(
        kill=lambda name: done.append(("kill", name)),
        start_again=lambda program: done.append(("start", program.name)),
    )
    view = SimpleNamespace(show_line=lambda _: None, progress=lambda _: None)
    return _Run(director, DemoLayout(tmp_path), None, view, None, None)


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_killed_client_is_restarted_once(run, done, is_slow):
    """Also a slow one, whose session was over when it came to its pause."""
    client = run._client(1, "127.0.0.1:1")
    paused = {"event": "paused", "session": 2, "before": "upload"}
    ended = {"event": "progress", "session": 2, "phase": "aborted", "reason": ""}
    first, second = (client.on_event, paused), (run._on_aggregator_event, ended)
    for hear, said in (second, first) if is_slow else (first, second):
        hear(said)
    run._on_aggregator_event(ended)
    assert done == [("kill", "client-1"), ("start", "client-1")]
    assert run.killed == 1
