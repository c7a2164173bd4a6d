"""Processes of a run: when they start, how they fail, and that none outlives it."""

import asyncio

import pytest

from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.testbed import director as module
from secagg.testbed.director import ChildProgram, Director
from secagg.testbed.run_folder import RunFolder

FAILED = {
    "event": "failed",
    "code": "DEADLINE",
    "message": "it is too late",
    "next_step": "",
}


class Process:
    """A process that lasts until it is ended, and says what a test wants."""

    def __init__(self, name, words, listener):
        self.name, self.words, self.say = name, words, listener
        self.was_killed = self.has_ended = False
        self.code = asyncio.get_running_loop().create_future()
        self.last_words = None

    def kill(self):
        self.was_killed = True
        if self.last_words is not None:
            self.say(self.last_words)
        self.leave(-9)

    def leave(self, code):
        if not self.code.done():
            self.code.set_result(code)

    async def wait(self):
        return await asyncio.shield(self.code)

    def break_listener(self):
        self.was_killed = True
        self.code.set_exception(LookupError("a defect"))

    async def end(self):
        self.kill()
        await asyncio.wait({self.code})
        self.has_ended = True
        self.code.result()


@pytest.fixture
def processes(monkeypatch):
    """All processes that are started, in order."""
    started = asyncio.Queue()

    async def start(name, words, *, listener, **_):
        process = Process(name, words, listener)
        started.put_nowait(process)
        return process

    monkeypatch.setattr(module, "start_child", start)
    return started


@pytest.fixture
def reports():
    return []


@pytest.fixture
def director(tmp_path, reports):
    return Director(RunFolder(tmp_path), reports.append)


def program(name, on_event=lambda _: None):
    return ChildProgram(name, "a.module", ("word",), on_event)


async def serving(director, processes):
    """Start one aggregator that listens; return it."""
    starting = asyncio.create_task(director.start_servers([program("server")]))
    server = await processes.get()
    server.say({"event": "listening", "address": "127.0.0.1:1"})
    assert await starting == ["127.0.0.1:1"]
    return server


async def with_clients(director, processes, clients, *, needed):
    """Start clients; return them."""
    await director.start_clients(clients, needed=needed)
    return [processes.get_nowait() for _ in clients]


async def test_no_process_survives_the_end_of_a_run(director, processes, tmp_path):
    """Also when one is started again just then, at the word of another."""
    again = program("a")
    clients = [again, program("b", lambda _: director.start_again(again))]
    async with director:
        server = await serving(director, processes)
        both = await with_clients(director, processes, clients, needed=2)
        director.kill("a")
        director.start_again(again)
        both[1].last_words = {"event": "paused"}
    assert all(each.has_ended for each in (server, *both))
    assert processes.empty()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert server.words == ["-m", "a.module", str(tmp_path), "word"]


async def test_a_killed_process_does_not_count_as_failed_and_may_restart(
    director, processes
):
    async with director:
        server = await serving(director, processes)
        await with_clients(director, processes, [program("a")], needed=1)
        director.kill("a")
        director.start_again(program("a"))
        for each in server, await processes.get():
            each.leave(0)
        await director.until_served()
        await director.until_clients_end()
        assert not director.failures


@pytest.mark.parametrize("reported", [True, False])
async def test_a_run_ends_once_too_few_clients_can_continue(
    director, processes, reports, reported, monkeypatch
):
    monkeypatch.setattr(module, "_LAST_WORDS_SECONDS", 0)
    async with director:
        await serving(director, processes)
        clients = [program(name) for name in "abc"]
        a, b, c = await with_clients(director, processes, clients, needed=2)
        served = asyncio.create_task(director.until_served())
        a.say({**FAILED, "name": "one of many in it"})
        a.leave(1)
        await asyncio.wait({served}, timeout=0)
        assert not served.done()
        b.leave(0)  # the task is over for it
        if reported:
            c.say(FAILED)
        c.leave(1)
        with pytest.raises(ServiceError, match="c cannot continue") as caught:
            await served
    wanted = ErrorCode.DEADLINE if reported else ErrorCode.INTERNAL
    assert caught.value.code is wanted
    assert "c.log" in caught.value.next_step
    assert [line.partition(":")[0] for line in reports] == [
        "server listens on 127.0.0.1",
        "one of many in it cannot continue",
        "a cannot continue",
        "c cannot continue",
    ]


@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize("listens", [True, False])
async def test_the_failure_of_an_aggregator_fails_the_run(
    director, processes, reported, listens
):
    async def run():
        async with director:
            await director.start_servers([program("server")])
            await director.start_clients([program("a")], needed=1)
            await director.until_served()

    running = asyncio.create_task(run())
    server = await processes.get()
    if listens:
        server.say({"event": "listening", "address": "127.0.0.1:1"})
    if reported:
        server.say(FAILED)
    server.leave(1)
    with pytest.raises(ServiceError, match="server cannot continue") as caught:
        await running
    wanted = ErrorCode.DEADLINE if reported else ErrorCode.INTERNAL
    assert caught.value.code is wanted


async def test_the_error_of_an_aggregator_takes_precedence_over_client_errors(
    director, processes
):
    async with director:
        server = await serving(director, processes)
        (a,) = await with_clients(director, processes, [program("a")], needed=1)
        served = asyncio.create_task(director.until_served())
        a.leave(1)
        await asyncio.wait({served}, timeout=0)
        server.say(FAILED)
        server.leave(1)
        with pytest.raises(ServiceError, match="server cannot continue"):
            await served


async def test_an_aggregator_that_ends_before_it_listens_fails_the_run(
    director, processes
):
    async with director:
        starting = asyncio.create_task(director.start_servers([program("server")]))
        (await processes.get()).leave(0)
        with pytest.raises(SecAggError, match="before it listened"):
            await starting


async def test_the_failure_of_one_of_several_aggregators_ends_the_run(
    director, processes, monkeypatch
):
    monkeypatch.setattr(module, "_LAST_WORDS_SECONDS", 0)
    async with director:
        await serving(director, processes)
        starting = asyncio.create_task(director.start_servers([program("second")]))
        second = await processes.get()
        second.say({"event": "listening", "address": "127.0.0.1:2"})
        await starting
        second.leave(-9)
        with pytest.raises(ServiceError, match="second cannot continue: it ended with"):
            await director.until_served()


async def test_a_failed_listener_ends_the_run_and_every_process(
    director, processes, monkeypatch
):
    """Its process is killed unheard: without it, the others would wait for ever."""
    monkeypatch.setattr(module, "_LAST_WORDS_SECONDS", 0)
    started = []

    async def run():
        async with director:
            started.append(await serving(director, processes))
            clients = [program("a"), program("b")]
            started.extend(await with_clients(director, processes, clients, needed=1))
            started[1].break_listener()
            await director.until_served()

    with pytest.raises(LookupError, match="a defect"):
        await run()
    assert [each.has_ended for each in started] == [True] * 3


async def test_the_last_output_of_a_failed_process_is_quoted(
    director, processes, reports, tmp_path
):
    """Its log is gone with the files of a command that keeps none."""
    async with director:
        await serving(director, processes)
        (a,) = await with_clients(director, processes, [program("a")], needed=0)
        log = RunFolder(tmp_path).log("a")
        log.parent.mkdir()
        log.write_text("Traceback ...\nMemoryError: \x1b[31mno room\n\n")
        a.leave(1)
        await director.until_clients_end()
    assert reports[-1] == (
        "a cannot continue: it ended with status 1: MemoryError:  [31mno room"
    )
