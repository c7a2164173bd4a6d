"""Clients of several tasks over one state: `Client(step_client=...)`."""

import asyncio
import gc
import json
import os
import threading
import time
import weakref

import numpy as np
import pytest
from secagg_testing.carrier import NOW, Carrier
from secagg_testing.cohorts import LENIENT_POLICY, parameters_for, with_noise
from secagg_testing.inline_store import inline_store

import secagg
from secagg import advanced
from secagg.client.durable_client import ReportNeededError
from secagg.client.open_client import HEARING_SECONDS
from secagg.client.session_driver import ClientPhase
from secagg.distributed_dp import NoisyTask
from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    SessionAbortedError,
)
from secagg.server.aggregator import Aggregator
from secagg.server.task.definition import TaskDefinition
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.spool import UploadSpool
from secagg.transport.connection import InMemoryConnection
from secagg.wire.calls import Blob, FetchChunk, UploadChunk

NAMES = ("alice", "bob", "carol")
EXACT = parameters_for(3, dimension=2, threshold=3)
WAIVER = secagg.ExactSumWaiver(advanced.NO_NOISE_ACKNOWLEDGEMENT)
LIMITS = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)


class Serving:
    """An aggregator with tasks, which end with the block."""

    def __init__(self, sessions=1, **tasks):
        self.aggregator = Aggregator(inline_store(), UploadSpool(MemoryBlobs()))
        self._tasks, self._sessions = tasks, sessions
        self._running = []

    async def __aenter__(self):
        async def no_payload(_):
            return b""

        async def ignore(_):
            return None

        for name, parameters in self._tasks.items():
            task = TaskDefinition(
                task_id=name, parameters=parameters, sessions=self._sessions
            )
            run = self.aggregator.run_task(task, next_payload=no_payload, on_sum=ignore)
            self._running.append(asyncio.create_task(run))
        await asyncio.sleep(0)  # one turn of the loop: the tasks are known
        return self

    async def __aexit__(self, *_):
        for each in self._running:
            each.cancel()
        await asyncio.wait(self._running)
        await self.aggregator.close()

    def connection(self, name="alice", **other):
        return InMemoryConnection(self.aggregator, name, **other)


def state(name="alice", home=None, **other):
    more = {
        "aggregator": "aggregator",
        "privacy_limits": WAIVER,
        "state_dir": home,
        "rollback_mark": None if home is None else home.with_name("mark"),
    }
    return secagg.StepClient(name, **(more | other))


async def contribute_as(serving, shared, task, vector):
    async with secagg.Client(
        serving.connection(state_name(shared)), task=task, step_client=shared
    ) as one:
        return await one.contribute(vector)


def state_name(shared):
    return shared._client.identity


async def test_tasks_share_one_state_and_do_not_close_it(tmp_path):
    shared = [state(name, tmp_path / name / "state") for name in NAMES]
    async with Serving(flu=EXACT, digits=EXACT) as serving:
        with shared[0], shared[1], shared[2]:
            given = await asyncio.gather(
                *(
                    contribute_as(serving, each, task, np.array([n, 10 * k]))
                    for k, each in enumerate(shared)
                    for n, task in ((1, "flu"), (2, "digits"))
                )
            )
            sums = [each.values.tolist() for each in given]
            assert sums == [[3, 30], [6, 30]] * 3
            assert shared[0].last_part("flu").inputs == 3
            assert shared[0].receipt("digits", 1) == given[1].audit
    assert (tmp_path / "alice" / "state").is_dir()


OWN = {
    "privacy_limits": LIMITS,
    "cohort": secagg.ClientPolicy(),
    "total": advanced.TotalBudget(data="scans", epsilon=1.0, delta=1e-6),
    "state_dir": "elsewhere",
    "rollback_mark": "mark",
    "retention": advanced.Retention(),
    "aggregator": "aggregator",
    "accept_restored": True,
    "keep_upload": True,
    "enrolment": advanced.ClientEnrolment(
        seed="seed", credential="credential", enrolment_key="ed25519:" + "0" * 64
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_an_option_of_the_shared_state_is_rejected_at_the_client(name):
    own = {name: OWN[name]}
    with pytest.raises(LocalProtocolError, match=f"{name} would be given twice"):
        secagg.Client(connection(), task="flu", step_client=state(), **own)


def connection(name="alice", **other):
    return InMemoryConnection(None, name, **other)


def test_a_client_without_a_shared_state_requires_privacy_limits():
    with pytest.raises(LocalProtocolError, match="limits of privacy"):
        secagg.Client(connection(), task="flu")


def test_a_remote_client_requires_a_durable_shared_state(tmp_path):
    network = {"task": "flu", "identity": object()}
    with pytest.raises(LocalProtocolError, match="needs identity and state_dir"):
        secagg.Client("localhost:7400", step_client=state(), **network)
    kept = state(home=tmp_path / "state")
    secagg.Client("localhost:7400", step_client=kept, **network)


def test_a_task_not_listed_by_the_owner_is_rejected():
    with pytest.raises(LocalProtocolError, match="other tasks"):
        secagg.Client(connection(), task="flu", step_client=state(tasks=["digits"]))


@pytest.mark.parametrize(
    ("link", "words"),
    [
        (connection("bob"), "of 'bob'"),
        (connection(trust_domain="example.org"), "trust domain"),
    ],
)
async def test_a_connection_of_another_client_or_domain_is_refused(link, words):
    with state() as shared, pytest.raises(LocalProtocolError, match=words):
        await secagg.Client(link, task="flu", step_client=shared).__aenter__()


async def test_a_state_that_is_not_open_is_refused():
    one = secagg.Client(connection(), task="flu", step_client=state())
    with pytest.raises(LocalProtocolError, match="not open"):
        await one.__aenter__()


async def test_only_one_client_at_a_time_contributes_to_a_task():
    with state() as shared:
        one, other = (
            secagg.Client(connection(), task="flu", step_client=shared)
            for _ in range(2)
        )
        async with one:
            with pytest.raises(LocalProtocolError, match="another client"):
                await other.__aenter__()
        async with other:
            pass


async def test_another_aggregator_is_rejected_before_any_claim():
    async with Serving(flu=EXACT) as serving:
        with state() as shared:
            link = serving.connection(aggregator="hub")
            async with secagg.Client(link, task="flu", step_client=shared) as one:
                with pytest.raises(RemoteProtocolError, match="answers") as caught:
                    await one.contribute(np.ones(2, dtype=int))
            assert shared.place("flu").highest_number == 0
    assert caught.value.code is ErrorCode.UNAUTHENTICATED


async def test_the_limits_of_a_shared_state_apply_to_each_task():
    strict = secagg.PrivacyLimits(max_epsilon=1.0, max_delta=1e-5)
    async with Serving(flu=with_noise(EXACT), digits=EXACT) as serving:
        with state(privacy_limits=strict, tasks=["flu", "digits"]) as shared:
            for task in ("flu", "digits"):
                with pytest.raises(RemoteProtocolError) as caught:
                    await contribute_as(serving, shared, task, np.ones(2))
                assert caught.value.code is ErrorCode.POLICY_VIOLATION


async def test_the_budget_persists_in_the_state_directory(tmp_path):
    async def all_give(serving):
        shared = [
            state(
                name,
                tmp_path / name / "state",
                privacy_limits=LIMITS,
                tasks=["flu"],
            )
            for name in NAMES
        ]
        with shared[0], shared[1], shared[2]:
            given = await asyncio.gather(
                *(contribute_as(serving, each, "flu", np.ones(2)) for each in shared)
            )
            return given[0], shared[0].sessions_left("flu")

    async with Serving(sessions=2, flu=with_noise(EXACT)) as serving:
        given, left = await all_give(serving)
        assert (given.sessions_left, left) == (0, 0)
        with pytest.raises(secagg.SecAggError, match="budget") as caught:
            await all_give(serving)
        assert caught.value.code is ErrorCode.POLICY_VIOLATION


async def test_a_cancelled_contribution_is_resumed_by_another_process(tmp_path):
    """The session continues with the same vector, over the directory."""
    asked, numbers = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def first(session):
        numbers.append(session.session_number)
        loop.call_soon_threadsafe(asked.set)
        return np.array([7, 7])

    homes = {name: tmp_path / name / "state" for name in NAMES}
    async with Serving(flu=EXACT) as serving:
        with state("bob", homes["bob"]) as bob, state("carol", homes["carol"]) as carol:
            rest = [
                asyncio.create_task(
                    contribute_as(serving, each, "flu", np.array([1, 1]))
                )
                for each in (bob, carol)
            ]
            with state("alice", homes["alice"]) as shared:
                began = asyncio.create_task(
                    contribute_as(serving, shared, "flu", first)
                )
                await asked.wait()
                began.cancel()
                await asyncio.wait({began})
            with state("alice", homes["alice"]) as shared:
                given = await contribute_as(serving, shared, "flu", np.array([7, 7]))
            await asyncio.gather(*rest)
    assert numbers == [given.session_number] == [1]
    assert given.values.tolist() == [9, 9]


def two_tasks(clock):
    """Carry task one until an input of alice is bound; return a session of two."""
    options = {"alice": {"clock": clock}}
    one = Carrier(EXACT, NAMES, options={"task_id": "one"}, client_options=options)
    for _ in range(3):
        for name in NAMES:
            one.deliver_update(name)
        one.server.close_round()
    later = {"task_id": "two", "now": one.server.descriptor.session_end}
    return one, Carrier(EXACT, NAMES, options=later)


def test_a_call_for_another_task_does_not_end_an_active_session():
    now = [NOW]
    one, two = two_tasks(lambda: now[0])
    now[0] = one.server.descriptor.session_end
    alice = one.client("alice")
    assert alice.step(two.server.offer).messages
    assert alice.step(one.server.offer).messages == ()
    now[0] += HEARING_SECONDS
    alice.step(two.server.offer)
    with pytest.raises(secagg.SessionAbortedError):
        alice.step(one.server.offer)
    one.close()


class Uploading(InMemoryConnection):
    """Holds the first upload, and ends every session on request."""

    is_over = False

    def __init__(self, *given):
        super().__init__(*given)
        self.held = asyncio.Event()

    async def call(self, request):
        if isinstance(request, UploadChunk) and not self.held.is_set():
            self.held.set()
            await asyncio.Event().wait()
        return await super().call(request)

    def watch(self, request):
        if self.is_over:
            raise SessionAbortedError("enough", code=ErrorCode.CANCELLED)
        return super().watch(request)


async def test_a_session_that_ends_while_its_vector_is_made_sends_nothing_more(
    tmp_path,
):
    """R5-7: with an input bound by an earlier call, only its fate is listened for."""
    shift, said = [0.0], []
    async with Serving(flu=EXACT) as serving:
        with (
            state("bob") as bob,
            state("carol") as carol,
            state(
                "alice",
                tmp_path / "alice" / "state",
                clock=lambda: time.time() + shift[0],
                keep_upload=False,
            ) as shared,
        ):
            rest = [
                asyncio.create_task(
                    contribute_as(serving, each, "flu", np.array([1, 1]))
                )
                for each in (bob, carol)
            ]
            link = Uploading(serving.aggregator, "alice")

            def late(session):
                link.is_over = True
                shift[0] = session.descriptor.session_end - time.time()
                return np.array([1, 1])

            async with secagg.Client(link, task="flu", step_client=shared) as one:
                began = asyncio.create_task(one.contribute(np.array([1, 1])))
                await link.held.wait()
                began.cancel()
                await asyncio.wait({began})
            brief = {"wait_seconds": 0.0, "on_progress": said.append}
            async with secagg.Client(
                link, task="flu", step_client=shared, **brief
            ) as one:
                with pytest.raises(SessionAbortedError):  # and there is no other one
                    await one.contribute(late)
            for each in rest:
                each.cancel()
            await asyncio.wait(rest)
    (aborted,) = (each for each in said if each.phase is ClientPhase.ABORTED)
    assert aborted.reason == "enough"


class SlowFigures:
    """Blocks every computation of a cost until `go` is set."""

    def __init__(self, monkeypatch):
        self.begun, self.go, self.count = threading.Event(), threading.Event(), 0
        report = NoisyTask.report

        def slow(task):
            self.begun.set()
            self.count += 1
            assert self.go.wait(30.0)
            return report(task)

        monkeypatch.setattr(NoisyTask, "report", slow)


@pytest.mark.parametrize("home", [None, "state"])
def test_no_call_blocks_while_the_cost_of_another_task_is_computed(
    home, tmp_path, monkeypatch
):
    given = state(
        home=home and tmp_path / home,
        aggregator="hub",
        privacy_limits=LIMITS,
        tasks=["one", "two"],
        total=advanced.TotalBudget(data="scans", epsilon=9.0, delta=1e-4),
        cohort=LENIENT_POLICY,
        clock=lambda: NOW,
    )
    one, two = (
        Carrier(with_noise(EXACT, epsilon=epsilon), NAMES, options={"task_id": task})
        for epsilon, task in ((2.0, "one"), (3.0, "two"))
    )
    with given as shared:
        said = shared.step(one.server.offer).messages
        figures, found = SlowFigures(monkeypatch), []
        thread = threading.Thread(
            target=lambda: found.append(shared.step(two.server.offer).messages)
        )
        thread.start()
        assert figures.begun.wait(60.0)
        # The state is not locked: the first task continues.
        assert shared.step(one.server.offer).messages == said
        assert shared.place("two").highest_number == 0
        figures.go.set()
        thread.join()
        assert len(found[0]) == 1
        assert shared.place("two").highest_number == 1
        assert len(shared.data_use().claims) == 2


def test_concurrent_calls_compute_each_privacy_report_once(tmp_path, monkeypatch):
    offers = [
        Carrier(
            with_noise(EXACT, epsilon=epsilon), NAMES, options={"task_id": task}
        ).server.offer
        for epsilon, task in ((2.0, "one"), (3.0, "two"))
    ]
    figures, need = SlowFigures(monkeypatch), threading.Semaphore(0)
    compute = ReportNeededError.compute
    monkeypatch.setattr(
        ReportNeededError, "compute", lambda each: (need.release(), compute(each))
    )
    with state(
        home=tmp_path / "state",
        aggregator="hub",
        privacy_limits=LIMITS,
        tasks=["one", "two"],
        cohort=LENIENT_POLICY,
        clock=lambda: NOW,
    ) as shared:
        threads = [
            threading.Thread(target=shared.step, args=(offer,))
            for offer in (*offers, *offers)
        ]
        for each in threads:
            each.start()
        for _ in threads:
            assert need.acquire(timeout=60.0)
        figures.go.set()
        for each in threads:
            each.join()
        assert figures.count == 2
        assert [shared.place(task).highest_number for task in ("one", "two")] == [1, 1]
    kept = json.loads((tmp_path / "state" / "privacy-reports.json").read_bytes())
    assert len(kept) == 2


async def test_no_pool_thread_of_other_clients_is_blocked_by_a_cost_computation(
    monkeypatch,
):
    """One task continues while as many tasks as threads wait for their figures."""
    names = [f"task-{number}" for number in range(max(4, os.cpu_count()))]
    tasks = {name: with_noise(EXACT, epsilon=2.0 + k) for k, name in enumerate(names)}
    figures, mine = SlowFigures(monkeypatch), np.array([1, 1])
    waived = secagg.ExactSumWaiver(
        advanced.NO_NOISE_ACKNOWLEDGEMENT,
        noised=secagg.PrivacyLimits(max_epsilon=99.0, max_delta=1e-5),
    )
    async with Serving(flu=EXACT, **tasks) as serving:
        with (
            state(privacy_limits=waived) as shared,
            state("bob") as bob,
            state("carol") as carol,
        ):
            waiting = [
                asyncio.create_task(contribute_as(serving, shared, name, np.ones(2)))
                for name in names
            ]
            await asyncio.to_thread(figures.begun.wait, 60.0)
            given = await asyncio.gather(
                *(
                    contribute_as(serving, each, "flu", mine)
                    for each in (shared, bob, carol)
                )
            )
            assert given[0].values.tolist() == [3, 3]
            for each in waiting:
                each.cancel()
            figures.go.set()
            await asyncio.wait(waiting)


class Vector(np.ndarray):
    """A vector that can be watched."""


def test_noise_without_privacy_figures_is_rejected_in_every_call(monkeypatch):
    asked = []

    def hopeless(_):
        asked.append(1)
        raise ErrorCode.BAD_CONFIG.error("no such noise")

    offer = Carrier(with_noise(EXACT), NAMES).server.offer
    monkeypatch.setattr(NoisyTask, "report", hopeless)
    with state(
        aggregator="hub", privacy_limits=LIMITS, tasks=["sums"], clock=lambda: NOW
    ) as shared:
        for ask in (shared.step, shared.check_offer, shared.step):
            with pytest.raises(RemoteProtocolError, match="no such noise"):
                ask(offer)
        assert shared.place("sums").highest_number == 0
        kept = weakref.ref(vector := np.ones(2).view(Vector))
        with pytest.raises(RemoteProtocolError, match="no such noise"):
            shared.step(offer, vector=vector)
        del vector
        gc.collect()
        assert kept() is None  # the error that is kept holds no call
    assert len(asked) == 1


class EndingMeanwhile(InMemoryConnection):
    """Runs something while the sum of a session is fetched."""

    meanwhile = None

    async def call(self, request):
        if isinstance(request, FetchChunk) and request.blob is Blob.SUM:
            self.meanwhile()
        return await super().call(request)


async def sum_of_alice(serving, shared, meanwhile):
    link = EndingMeanwhile(serving.aggregator, "alice")
    link.meanwhile = meanwhile
    async with secagg.Client(link, task="flu", step_client=shared) as one:
        return await one.contribute(np.array([1, 1]))


@pytest.fixture
async def others():
    """Serve a task to which bob and carol contribute."""
    async with Serving(flu=EXACT) as serving:
        with state("bob") as bob, state("carol") as carol:
            rest = [
                asyncio.create_task(
                    contribute_as(serving, each, "flu", np.array([1, 1]))
                )
                for each in (bob, carol)
            ]
            yield serving
            await asyncio.gather(*rest)


async def test_a_sum_can_be_read_after_another_task_ended_its_session(others):
    """The session is over by the clock while its sum is fetched."""
    shift, other = (
        [0.0],
        Carrier(EXACT, NAMES, options={"aggregator": "aggregator"}).server.offer,
    )
    with state(clock=lambda: time.time() + shift[0]) as shared:

        def meanwhile():
            shift[0] = 1e9
            with pytest.raises(RemoteProtocolError):  # the offer is of long ago
                shared.step(other)

        given = await sum_of_alice(others, shared, meanwhile)
        assert given.values.tolist() == [3, 3]
        assert shared.receipt("flu", 1) == given.audit


async def test_a_state_reopened_meanwhile_resumes_the_session(others, tmp_path):
    shared = state("alice", tmp_path / "alice" / "state")
    with shared:

        def meanwhile():
            shared.close()
            shared.__enter__()

        with pytest.raises(LocalProtocolError, match="released no sum"):
            await sum_of_alice(others, shared, meanwhile)
        given = await sum_of_alice(others, shared, lambda: None)
        assert given.values.tolist() == [3, 3]
