"""Signals that stop a command, wherever they meet it; processes: test_stopping."""

import asyncio
import signal

import pytest

from secagg.cli.failures import StopSignals


@pytest.fixture
def in_the_background():
    """As a shell starts a job: SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


class Dying:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("in_the_background")
def test_a_signal_that_meets_a_finaliser_is_heard():
    async def work():
        dying = Dying()
        del dying
        async with asyncio.timeout(60):  # only a signal that was lost reaches it
            await asyncio.Event().wait()

    with StopSignals() as stopping, pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert stopping.received is signal.SIGTERM


@pytest.mark.usefixtures("in_the_background")
def test_a_signal_that_meets_a_command_without_a_loop_is_heard():
    with StopSignals(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
