"""Signals that stop a command, wherever they meet it; processes: test_stopping."""

import asyncio
import signal
import tempfile
import threading

import pytest

from secagg.cli.failures import StopSignals, removed_directory

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
def test_a_signal_during_a_finaliser_is_handled():
    async def work():
        dying = Dying()
        del dying
        async with asyncio.timeout(60):  # only a signal that was lost reaches it
            await asyncio.Event().wait()

    with StopSignals() as stopping, pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert stopping.received is signal.SIGTERM


@pytest.mark.usefixtures("in_the_background")
def test_a_signal_cancels_only_the_main_task():
    """As Ctrl-C does: it ends the others, in the order that it needs."""

    async def work():
        other = asyncio.create_task(asyncio.Event().wait())
        try:
            signal.raise_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append(other.cancelling())
            raise

    stopped = []
    with StopSignals(), pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert stopped == [0]


@pytest.mark.usefixtures("in_the_background")
def test_an_ignored_interrupt_stays_ignored():
    with StopSignals():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.usefixtures("in_the_background")
def test_a_signal_without_an_event_loop_is_handled():
    with StopSignals(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


def raise_all_signals():
    for number in STOPS:
        signal.raise_signal(number)


@pytest.fixture
def removal_under_signals(monkeypatch):
    """Every removal of a temporary directory meets all signals, before it begins."""
    remove = tempfile.TemporaryDirectory.cleanup

    def cleanup(self):
        raise_all_signals()
        remove(self)

    monkeypatch.setattr(tempfile.TemporaryDirectory, "cleanup", cleanup)


@pytest.mark.usefixtures("removal_under_signals")
@pytest.mark.parametrize("first", STOPS)
def test_later_signals_do_not_interrupt_the_shutdown(first):
    before = [signal.getsignal(number) for number in STOPS]
    steps = []

    async def work():
        try:
            signal.raise_signal(first)
            await asyncio.Event().wait()
        finally:
            raise_all_signals()
            await asyncio.sleep(0)  # a process is ended in more than one turn
            steps.append("processes have ended")
            has_ended.set()

    def command():
        with removed_directory("secagg-test-") as (place, run):
            steps.append(place)
            (place / "key").touch()
            late = threading.Thread(target=write, args=(place / "mark",))
            late.start()
            run(work())

    def write(path):
        has_ended.wait()
        path.touch()

    has_ended = threading.Event()
    with StopSignals() as stopping, pytest.raises(asyncio.CancelledError):
        command()
    place, last = steps
    assert not place.exists()
    assert last == "processes have ended"
    assert stopping.received == (None if first is signal.SIGINT else first)
    assert [signal.getsignal(number) for number in STOPS] == before


@pytest.mark.usefixtures("removal_under_signals", "in_the_background")
def test_a_temporary_directory_is_removed_without_a_signal():
    with StopSignals(), removed_directory("secagg-test-") as (place, _):
        (place / "key").touch()
    assert not place.exists()
