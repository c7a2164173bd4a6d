"""The façade for scripts: same names, same limits, no event loop of the caller's."""

import asyncio
import inspect
import io
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import secagg
from secagg import advanced, blocking
from secagg.client.session_driver import ClientPhase, ClientProgress
from secagg.protocol.rounds import rounds_of

WAIVER = secagg.ExactSumWaiver(advanced.NO_NOISE_ACKNOWLEDGEMENT)
COHORT = secagg.Cohort(min_clients=3, max_clients=3, min_survivors=3)
EXACT = secagg.PreparedTask.exact(WAIVER, COHORT, dimension=2)


def test_a_blocking_cohort_sums_vectors():
    with blocking.local(EXACT, clients=3, privacy_limits=WAIVER, steps=2) as people:
        for number in (1, 2):
            total = people.sum([[number, -1]] * 3)
            np.testing.assert_array_equal(total.values, [3 * number, -3])
    assert "secagg-loop" not in {thread.name for thread in threading.enumerate()}


async def test_the_blocking_api_works_beside_a_running_event_loop():
    with blocking.local(EXACT, clients=3, privacy_limits=WAIVER) as people:
        np.testing.assert_array_equal(people.sum([[1, 2]] * 3).values, [3, 6])


def test_a_blocking_task_without_noise_requires_its_waiver():
    with pytest.raises(secagg.LocalProtocolError, match="without noise"):
        blocking.local(EXACT).__enter__()
    privacy_limits = secagg.PrivacyLimits(max_epsilon=1.0, max_delta=1e-6)
    with (
        blocking.local(EXACT, clients=3, privacy_limits=privacy_limits) as people,
        pytest.raises(secagg.RemoteProtocolError, match="without noise"),
    ):
        people.sum([[1, 2]] * 3)


def test_a_blocking_server_and_its_clients_sum_vectors(tmp_path):
    authority = advanced.CertificateAuthority.create()
    authority.issued().write(tmp_path, "ca")
    authority.issue_server("server", ["127.0.0.1"]).write(tmp_path, "server")

    def identity(name, role):
        return secagg.TLSIdentity.in_directory(tmp_path, name, role=role)

    def give(name):
        authority.issue_client(name).write(tmp_path, name)
        with blocking.Client(
            str(server.address),
            task="t",
            privacy_limits=WAIVER,
            identity=identity(name, advanced.Role.CLIENT),
            state_dir=tmp_path / f"{name}-state",
        ) as one:
            assert one.last_part() is None
            first = one.contribute([1, 2])
            rest = one.contributions(lambda session: [session.session_number] * 2)
            given = [each.values.tolist() for each in (first, *rest)]
            assert one.last_part().session_number == 3
            return given

    with blocking.Server(
        "127.0.0.1:0",
        identity=identity("server", advanced.Role.SERVER),
        state_dir=tmp_path / "state",
    ) as server:
        task = server.add_task("t", EXACT, steps=3)
        with ThreadPoolExecutor(3) as threads:
            givers = [threads.submit(give, name) for name in "abc"]
            sums = [total.values.tolist() for total in task.sums()]
            assert sums == [[3, 6], [6, 6], [9, 9]]
            assert [giver.result() for giver in givers] == [sums] * 3


@pytest.fixture
def interruptible():
    """Ctrl-C raises KeyboardInterrupt, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_call_after_an_interrupt_continues_the_session():
    held = threading.Event()

    def interrupt(_):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return [1, 2]

    def hold(_):
        held.wait()
        return [1, 2]

    with blocking.local(EXACT, clients=3, privacy_limits=WAIVER) as people:
        with pytest.raises(KeyboardInterrupt):
            people.sum([interrupt, hold, hold])
        held.set()
        total = people.sum([[1, 2]] * 3)
    assert (total.session_number, total.inputs) == (1, 3)
    np.testing.assert_array_equal(total.values, [3, 6])


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("phase", rounds_of(secagg.Profile.HONEST_CURIOUS_SERVER))
def test_an_interrupt_in_any_round_leaves_all_directories_usable(phase, tmp_path):
    """While it opens, too: the first round is open then."""
    sent = []

    def interrupt(progress):
        if not sent and progress.round is phase:
            sent.append(progress)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def add_up(**more):
        shared = {"privacy_limits": WAIVER, "ledger": tmp_path, "steps": 2} | more
        with blocking.local(EXACT, **shared) as people:
            return people.sum([[1, 2]] * 3)

    with pytest.raises(KeyboardInterrupt):
        add_up(on_progress=interrupt)
    np.testing.assert_array_equal(add_up().values, [3, 6])


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_callback_that_raises_system_exit_does_not_hang(kind):
    def leave(_):
        raise kind

    told = {"privacy_limits": WAIVER}
    with blocking.local(EXACT, **told, on_progress=leave) as people:
        assert people.sum([[1, 2]] * 3).inputs == 3
    handed_out = blocking.local(EXACT, **told, payload=leave)
    with pytest.raises(kind), handed_out as people:
        people.sum([[1, 2]] * 3)
    assert "secagg-loop" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_closing_loop_ends_whatever_its_callbacks_raise(kind):
    loop = blocking._Loop()
    stop = loop._loop.stop

    def stop_and_leave():
        stop()
        raise kind

    loop._loop.stop = stop_and_leave
    closing = threading.Thread(target=loop.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()


def test_calls_that_would_deadlock_are_rejected():
    """A fork has no thread that would run a call, and a callback is on that thread."""
    refused = []

    def call(_):
        if not refused:
            with pytest.raises(secagg.LocalProtocolError, match="calls itself"):
                opened[0].sum([[1, 2]] * 3)
            refused.append(True)

    opened = []
    exact = {"clients": 3, "privacy_limits": WAIVER, "steps": 2}
    with blocking.local(EXACT, **exact, on_progress=call) as people:
        opened.append(people)
        assert people.sum([[1, 2]] * 3).inputs == 3
        child = os.fork()
        if child == 0:
            try:
                with pytest.raises(secagg.LocalProtocolError, match="a fork of it"):
                    people.sum([[1, 2]] * 3)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert people.sum([[1, 2]] * 3).inputs == 3
    assert refused


async def test_a_failing_progress_callback_does_not_end_the_session():
    """Every phase is told, whatever becomes of the callback; the loop reports it."""
    reported, phases = [], {"client": set(), "server": set()}
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))

    def fails(who):
        def tell(progress):
            phases[who].add(progress.phase)
            raise ZeroDivisionError(progress.phase)

        return tell

    async with secagg.Server(None, on_progress=fails("server")) as server:
        task = await server.add_task("sums", EXACT)

        async def give(name):
            async with secagg.Client(
                server.connection(name),
                task="sums",
                privacy_limits=WAIVER,
                on_progress=fails("client"),
            ) as one:
                return await one.contribute([1, 2])

        *given, _ = await asyncio.gather(*map(give, "abc"), task.next_sum())
        task.take()
    assert [each.inputs for each in given] == [3, 3, 3]
    assert ClientPhase.COMPLETED in phases["client"]
    assert len(phases["client"]) > 5
    assert phases["server"]
    assert {type(each["exception"]) for each in reported} == {ZeroDivisionError}


def test_a_cohort_that_is_not_open_is_reported():
    with pytest.raises(secagg.LocalProtocolError, match="not open"):
        blocking.local(EXACT, clients=3, privacy_limits=WAIVER).sum([[1, 2]] * 3)


def test_a_blocking_client_contributes_zeros_when_its_function_fails():
    made = secagg.plan(
        clients=3, dimension=2, l2_clip=2.0, epsilon=8.0, delta=1e-5, steps=2
    )
    task = secagg.PreparedTask.from_plan(made, COHORT)
    privacy_limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)

    def fails(_):
        raise ZeroDivisionError

    with blocking.local(task, clients=3, privacy_limits=privacy_limits) as people:
        total = people.sum([[1, 1], fails, lambda _: [np.nan, 1]])
        assert (total.inputs, total.replaced) == (3, 2)
        with pytest.raises(secagg.InputError, match="vector 2 of 3 has NaN"):
            people.sum([[1, 1], [np.nan, 1], [1, 1]])
        assert people.sum(x for x in [[1, 1]] * 3).replaced == 0


def test_progress_is_reported_for_plans_and_rounds():
    asked = []
    noise = secagg.plan(
        clients=3,
        dimension=4,
        l2_clip=2.0,
        epsilon=8.0,
        delta=1e-6,
        on_progress=asked.append,
    )
    assert asked == list(range(1, len(asked) + 1)) != []
    assert noise.request.on_progress is None  # a plan outlives its caller
    shown = io.StringIO()
    limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-6)
    with blocking.local(
        noise,
        clients=3,
        privacy_limits=limits,
        on_progress=blocking.ProgressLine(shown),
    ) as people:
        people.sum([[0.5] * 4] * 3)
    lines = shown.getvalue().splitlines()
    assert len(lines) == len(set(lines))
    assert "session 1: completed" in lines


def test_the_progress_option_writes_to_standard_error(capsys):
    waiver = secagg.ExactSumWaiver(advanced.NO_NOISE_ACKNOWLEDGEMENT)
    cohort = secagg.Cohort(min_clients=3, max_clients=3, min_survivors=3)
    task = secagg.PreparedTask.exact(waiver, cohort, dimension=1)
    assert inspect.signature(blocking.local).parameters["progress"].default is False
    for progress, lines in ((True, 1), (False, 0)):
        with blocking.local(task, privacy_limits=waiver, progress=progress) as people:
            people.sum([[1], [2], [4]])
        assert capsys.readouterr().err.count("session 1: completed") == lines


@pytest.mark.parametrize(
    ("progress", "words"), [(True, "both show"), ("yes", "of class bool")]
)
def test_two_progress_options_together_are_rejected(progress, words):
    with pytest.raises(secagg.LocalProtocolError, match=words):
        blocking.Server(None, on_progress=blocking.ProgressLine(), progress=progress)


class Unread(io.StringIO):
    def write(self, _):
        raise BrokenPipeError


@pytest.mark.parametrize("kind", ["without a reader", "closed", "none"])
def test_an_unwritable_stream_does_not_end_a_session(kind, monkeypatch):
    stream = None if kind == "none" else Unread()
    if kind == "closed":
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    line = blocking.ProgressLine()
    line(ClientProgress(ClientPhase.WAITING))
    line(ClientProgress(ClientPhase.COMPLETED, 1))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_receives_one_line_that_is_rewritten():
    shown = Terminal()
    tell = blocking.ProgressLine(shown)
    for phase, sent in (("UPLOADING", 5), ("UPLOADING", 5), ("COMPLETED", 0)):
        tell(
            advanced.ClientProgress(
                advanced.ClientPhase[phase],
                session_number=7,
                sent_bytes=sent,
                total_bytes=2 * sent,
            )
        )
    first = "\rsession 7: uploading, 5 of 10 bytes"
    rest = " " * (len(first) - len("\rsession 7: completed"))
    assert shown.getvalue() == f"{first}\rsession 7: completed{rest}\n"
