"""R3.5-5: from the payload on, no vector keeps a client away."""

import asyncio
import gc
import threading
import weakref
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from secagg_testing import manual_clock

from secagg.client.application import Application, DaemonThreads
from secagg.distributed_dp import UnusableKind
from secagg.errors import ErrorCode, InputError, SecAggError
from secagg.runtime.clock import SystemClock

VICTIM, DIM = 2, 6
LARGE = [1 << 60] * DIM


class Evil:
    """Looks like an array until it is read."""

    def __array__(self, *_, **__):
        raise RuntimeError("entry 3 is 4711")


def raising(error):
    def make(_):
        raise error

    return make


async def _late():
    return np.ones(DIM)


BEHAVIOURS = {
    "NaN": lambda _: np.full(DIM, np.nan),
    "infinite": lambda _: [1.0] * (DIM - 1) + [np.inf],
    "too short": lambda _: np.ones(DIM - 1),
    "matrix": lambda _: np.ones((DIM, 1)),
    "empty": lambda _: [],
    "none": lambda _: None,
    "text": lambda _: "1 2 3 4 5 6",
    "truths": lambda _: np.ones(DIM, bool),
    "complex": lambda _: np.ones(DIM, complex),
    "objects": lambda _: np.array([None] * DIM),
    "ragged": lambda _: [[1.0], [2.0, 3.0]],
    "large": lambda _: LARGE,
    "smallest": lambda _: np.full(DIM, np.iinfo(np.int64).min),
    "masked": lambda _: np.ma.masked_array(np.ones(DIM), mask=[True] + [False] * 5),
    "generator": lambda _: (1.0 for _ in range(DIM)),
    "coroutine": lambda _: _late(),
    "evil": lambda _: Evil(),
    "ends": raising(StopIteration()),
    "exits": raising(SystemExit(3)),
    "interrupts": raising(KeyboardInterrupt()),
    "cancels": raising(asyncio.CancelledError()),
    "closes": raising(GeneratorExit()),
    "memory": raising(MemoryError()),
    "depth": raising(RecursionError()),
    "refuses": raising(InputError("there is no vector today")),
    "other": raising(ZeroDivisionError("entry 3 is 4711")),
}
FINE = {
    "long": lambda _: np.full(DIM, 1e300),
    "tiny": lambda _: np.full(DIM, 5e-324),
    "whole": lambda _: [1] * DIM,
}


class SlowExecutor(Executor):
    """Runs a call at once, and returns its result some seconds later."""

    def __init__(self, cohort, seconds):
        self._cohort, self._seconds = cohort, seconds

    def submit(self, fn, /, *args, **kwargs):
        result, later, clock = fn(*args, **kwargs), Future(), self._cohort.clock
        if not self._seconds:
            later.set_result(result)
            return later

        async def wait():
            await clock.sleep_until(clock.now() + self._seconds)
            if later.set_running_or_notify_cancel():
                later.set_result(result)

        later.waiting = asyncio.get_running_loop().create_task(wait())
        return later


def without_zeros(lines):
    return [line for line in lines if line[1] != "zeros_given"]


def kinds_and_sizes(sent):
    return [(kind, size) for kind, size, _ in sent]


@pytest.fixture(scope="module")
def usual():
    """Messages and records of the victim with a good vector, by `answer_at`."""
    return {}


@pytest.mark.parametrize("answer_at", [None, 0.5])
@pytest.mark.parametrize("name", [*BEHAVIOURS, *FINE])
def test_no_visible_behaviour_depends_on_the_function_of_the_application(
    cohort, noisy_task, usual, answer_at, name
):
    if answer_at not in usual:
        good = cohort(noisy_task, answer_at=answer_at).run({})
        usual[answer_at] = (good.sent[VICTIM], good.logged[VICTIM])
    sent, logged = usual[answer_at]
    make = (BEHAVIOURS | FINE)[name]
    run = cohort(noisy_task, answer_at=answer_at).run({VICTIM: make})
    assert run.inputs == [4]
    assert kinds_and_sizes(run.sent[VICTIM]) == kinds_and_sizes(sent)
    assert without_zeros(run.logged[VICTIM]) == without_zeros(logged)
    if answer_at is not None:
        assert run.sent[VICTIM] == sent
    (given,) = run.gifts[VICTIM]
    zeros = [line for line in run.logged[VICTIM] if line[1] == "zeros_given"]
    assert [line[0] for line in zeros] == ["WARNING"] * (name in BEHAVIOURS)
    assert (given.replaced is not None) == (name in BEHAVIOURS)
    assert (given.shortened_by is None) == (name in BEHAVIOURS)


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_the_reason_for_zeros_is_reported_only_to_the_owner_and_without_values(
    cohort, noisy_task, name
):
    run = cohort(noisy_task).run({VICTIM: BEHAVIOURS[name]})
    (given,) = run.gifts[VICTIM]
    assert given.replaced
    assert given.replaced not in repr(given)
    assert "4711" not in given.replaced
    if name == "refuses":  # which the function has said itself
        assert given.replaced == "there is no vector today"


def test_zeros_are_sent_with_the_whole_noise(cohort, noisy_task, monkeypatch):
    """As much noise as with vectors, for a sum of zeros alone."""
    run = cohort(noisy_task).run(dict.fromkeys(range(4), lambda _: None))
    sums = [one.values for given in run.gifts.values() for one in given]
    assert run.inputs == [4]
    assert all(np.array_equal(one, sums[0]) for one in sums)
    assert np.any(sums[0])  # chance of none: less than 1e-6, d = 6 and sigma > 10 steps
    # With noise taken away, nothing is left.
    monkeypatch.setattr("dpnoise.samplers.InversionTable.add_to", lambda *_, **__: None)
    silent = cohort(noisy_task).run(dict.fromkeys(range(4), lambda _: None))
    assert not np.any(silent.gifts[0][0].values)


# --- before a client has joined -------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [np.full(DIM, np.nan).tolist(), [1.0] * (DIM - 1), "text", None, LARGE],
    ids=["NaN", "length", "text", "none", "large"],
)
def test_invalid_numbers_are_rejected_before_the_client_joins(cohort, noisy_task, bad):
    run = cohort(noisy_task).run({VICTIM: bad}, alone=VICTIM)
    assert [type(each) for each in run.gifts[VICTIM]] == [InputError]
    said = {kind for kind, _, _ in run.sent.get(VICTIM, [])}
    # What needs an offer, or the class of the task, is known with the offer.
    assert said <= ({"GetOffer"} if np.size(bad) == DIM - 1 or bad == LARGE else set())


# --- time -----------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.0, 40.0, 400.0, 4000.0])
def test_with_a_fixed_time_vectors_and_zeros_are_sent_at_once(
    cohort, noisy_task, seconds
):
    """All four begin at the instant, whether and when a vector was ready."""
    run = cohort(noisy_task, answer_at=0.5)
    slow = SlowExecutor(run, seconds)
    run.run({VICTIM: lambda _: np.ones(DIM), 1: BEHAVIOURS["NaN"]}, {VICTIM: slow})
    assert len(run.uploads) == 4
    assert len(set(run.uploads.values())) == 1
    (given,) = run.gifts[VICTIM]
    assert (given.replaced is not None) == (seconds > run.due)
    assert run.inputs == [4]


def test_nothing_is_encoded_before_the_fixed_time(cohort, noisy_task, monkeypatch):
    """Else zeros that are made at the instant would leave later than a vector."""
    encoded = []
    encode = type(noisy_task).encode

    def noted(task, *args, **kwargs):
        encoded.append(run.clock.now())
        return encode(task, *args, **kwargs)

    monkeypatch.setattr(type(noisy_task), "encode", noted)
    run = cohort(noisy_task, answer_at=0.5)
    run.run({VICTIM: lambda _: None})
    assert set(encoded) == {at for at, _ in run.uploads.values()}


def test_without_a_fixed_time_zeros_are_sent_before_the_round_ends(cohort, noisy_task):
    run = cohort(noisy_task)
    slow = SlowExecutor(run, 4000.0)
    run.run({VICTIM: lambda _: np.ones(DIM)}, {VICTIM: slow})
    first = min(at for at, _ in run.uploads.values())
    assert run.uploads[VICTIM][0] == pytest.approx(first + run.due)
    assert run.inputs == [4]
    assert "not ready" in run.gifts[VICTIM][0].replaced


class Held(Executor):
    """Threads of the caller, all of which are at work for another client for ever."""

    def __init__(self):
        self.waiting = []

    def submit(self, fn, /, *args, **kwargs):
        self.waiting.append(Future())
        self.waiting[-1].call = lambda: fn(*args, **kwargs)
        return self.waiting[-1]


def test_a_call_that_no_thread_has_started_is_cancelled(cohort, noisy_task):
    held, made = Held(), []
    run = cohort(noisy_task, sessions=2)
    run.run({VICTIM: lambda _: made.append(1)}, {VICTIM: held})
    assert run.inputs == [4, 4]
    # The first never began, so the second was not kept from trying.
    assert len(held.waiting) == 2
    for each in held.waiting:
        each.call()
    assert not made


class Stuck(Executor):
    """One thread of the caller; `submit` returns when a call has begun."""

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.calls = 0
        self._thread = DaemonThreads(1)

    def submit(self, fn, /, *args, **kwargs):
        self.calls += 1
        given = self._thread.submit(fn, *args, **kwargs)
        self.begun.wait()
        return given

    def never(self, _):
        self.begun.set()
        self.go_on.wait()


@pytest.mark.parametrize("answer_at", [None, 0.5])
def test_a_function_that_never_returns_costs_its_thread_but_no_session(
    cohort, noisy_task, answer_at
):
    """One thread is all that there is, and it is lost."""
    stuck = Stuck()
    run = cohort(noisy_task, answer_at=answer_at, sessions=3)
    run.run({VICTIM: stuck.never}, {VICTIM: stuck})
    stuck.go_on.set()
    assert run.inputs == [4, 4, 4]
    first, *later = (given.replaced for given in run.gifts[VICTIM])
    assert "not ready" in first
    assert all("still at work" in each for each in later)
    assert stuck.calls == 1


def test_a_function_that_returned_late_is_called_again():
    stuck = Stuck()

    async def main(clock):
        one = Application(stuck)
        given = await one.vector(lambda: stuck.never(0), clock=clock, due=1000.0)
        assert given.kind is UnusableKind.LATE
        given = await one.vector(lambda: 1, clock=clock, due=1001.0)
        assert given.kind is UnusableKind.BUSY
        stuck.go_on.set()
        # Its thread does nothing else: when this returns, that function has, too.
        await asyncio.wrap_future(stuck.submit(lambda: None))
        return await one.vector(lambda: 1, clock=clock, due=float("inf"))

    with asyncio.Runner() as runner:
        assert runner.run(main(manual_clock.ManualClock())) == 1


def test_unavailable_threads_lead_to_zeros():
    class Closed(Executor):
        def submit(self, *_):
            raise RuntimeError("cannot schedule new futures after shutdown")

    async def main(clock):
        one = Application(Closed())
        return await one.vector(lambda: 1, clock=clock, due=1001.0)

    assert manual_clock.run(main).kind is UnusableKind.RAISED


@pytest.mark.parametrize("threads", [lambda: None, lambda: DaemonThreads(1)])
def test_a_function_without_a_thread_is_never_called(monkeypatch, threads):
    """Not even on the thread of a later session, beside the function of that."""
    begun = []

    def refused(_):
        raise RuntimeError("can't start new thread")

    async def main():
        one = Application(threads())
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            given = await one.vector(
                lambda: begun.append(1), clock=SystemClock(), due=float("inf")
            )
        assert given.kind is UnusableKind.RAISED
        return await one.vector(lambda: 2, clock=SystemClock(), due=float("inf"))

    assert asyncio.run(main()) == 2
    assert begun == []


def test_application_threads_are_limited_and_are_daemons():
    threads, go_on, seen = DaemonThreads(2), threading.Event(), []

    def call(number):
        seen.append(threading.current_thread())
        go_on.wait()
        return number

    running = [threads.submit(call, number) for number in range(5)]
    running[-1].cancel()
    go_on.set()
    assert [each.result() for each in running[:-1]] == [0, 1, 2, 3]
    assert len(set(seen)) <= 2
    assert all(each.daemon for each in seen)
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 / 0).result()


class Full(Executor):
    """Takes no call, for a reason of its own."""

    def submit(self, *_, **__):
        raise OSError("the queue is full")


def raising_now(error):
    def make():
        raise error

    return make


class UntoldError(SecAggError):
    """An error of a caller that cannot even be written down."""

    def __init__(self):
        super().__init__("entry 3 is 4711", code=ErrorCode.INTERNAL)

    def __str__(self):
        raise ValueError("entry 3 is 4711")


@pytest.mark.parametrize(
    ("threads", "make"),
    [
        # Its threads cannot begin, which it says when a call is given to it or later.
        (lambda: ThreadPoolExecutor(1, initializer=lambda: 1 / 0), lambda: 1),
        # What it is given cannot be sent to a process.
        (lambda: ProcessPoolExecutor(1), lambda: 1),
        (Full, lambda: 1),
        (DaemonThreads, raising_now(UntoldError())),
    ],
    ids=["initializer", "processes", "full", "untold"],
)
def test_any_failure_on_the_threads_of_the_caller_leads_to_zeros(threads, make):
    async def main():
        with threads() as given:
            one = Application(given)
            return await one.vector(make, clock=SystemClock(), due=float("inf"))

    found = asyncio.run(main())
    assert found.kind is UnusableKind.RAISED
    assert "4711" not in found.reason


def test_a_finished_function_is_not_kept_alive():
    """It holds the payload of its session."""

    class Makes:
        def __call__(self):
            return 1

    async def main():
        one, make = Application(), Makes()
        await one.vector(make, clock=SystemClock(), due=float("inf"))
        return one, weakref.ref(make)

    one, kept = asyncio.run(main())
    gc.collect()
    assert kept() is None
    del one


def test_a_late_function_that_finished_is_not_kept_alive():
    """Which may be until the next session, hours later."""
    threads, go_on = DaemonThreads(1), threading.Event()

    class Makes:
        def __call__(self):
            go_on.wait()
            return 1

    async def main(clock):
        one, make = Application(threads), Makes()
        given = await one.vector(make, clock=clock, due=1000.0)
        assert given.kind is UnusableKind.LATE
        go_on.set()
        await asyncio.wrap_future(threads.submit(lambda: None))
        return one, weakref.ref(make)

    with asyncio.Runner() as runner:
        one, kept = runner.run(main(manual_clock.ManualClock()))
    gc.collect()
    assert kept() is None
    del one


def test_no_second_function_starts_beside_an_abandoned_one():
    """A cancelled contribution leaves its function at work."""
    begun, go_on = threading.Event(), threading.Event()

    def stuck():
        begun.set()
        go_on.wait()

    async def main():
        one, clock = Application(), SystemClock()
        asking = asyncio.ensure_future(one.vector(stuck, clock=clock, due=float("inf")))
        await asyncio.to_thread(begun.wait)
        asking.cancel()
        await asyncio.wait({asking})
        return await one.vector(lambda: 1, clock=clock, due=float("inf"))

    found = asyncio.run(main())
    go_on.set()
    assert getattr(found, "kind", found) is UnusableKind.BUSY
