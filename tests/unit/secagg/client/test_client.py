"""A client keeps its limits, whatever builds it and carries its calls."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from secagg_testing.cohorts import parameters_for, with_noise
from secagg_testing.inline_store import inline_store
from secagg_testing.lossy_connection import LossyConnection
from secagg_testing.offers_only import OffersOnly

from secagg.client.client import Client
from secagg.client.contribution import Participation
from secagg.client.runner import ClientRunner
from secagg.distributed_dp import NoisyTask, task
from secagg.errors import (
    ErrorCode,
    InputError,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
    PrivacyLimits,
)
from secagg.server.aggregator import Aggregator
from secagg.server.task.definition import TaskDefinition
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.rows import Retention
from secagg.storage.spool import UploadSpool
from secagg.testbed.connections import PausingConnection
from secagg.transport.connection import InMemoryConnection
from secagg.wire.calls import AdvertiseKeys

DIMENSION = 4
NAMES = ("alice", "bob", "carol")
WAIVER = ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT)
COHORT = parameters_for(3, dimension=DIMENSION, threshold=3, modulus=1 << 16)


def privacy_limits(epsilon=8.0) -> PrivacyLimits:
    return PrivacyLimits(max_epsilon=epsilon, max_delta=1e-5)


def noised(epsilon=8.0, steps=1, spare=0):
    return with_noise(COHORT, epsilon=epsilon, steps=steps - spare, spare=spare)


class Listening(InMemoryConnection):
    """Remembers what was asked."""

    def __init__(self, service, identity):
        super().__init__(service, identity)
        self.asked = []

    async def call(self, request):
        self.asked.append(type(request))
        return await super().call(request)


@pytest.fixture
async def aggregator():
    made = Aggregator(inline_store(), UploadSpool(MemoryBlobs()))
    yield made
    await made.close()


class Serving:
    """A task that runs while the block does."""

    def __init__(self, aggregator, parameters, *, sessions=1, payload=b""):
        self._aggregator = aggregator
        self._task = TaskDefinition(
            task_id="t", parameters=parameters, sessions=sessions
        )
        self._payload = payload

    async def _next_payload(self, _):
        return self._payload

    async def _ignore(self, _):
        return None

    async def __aenter__(self):
        self._running = asyncio.create_task(
            self._aggregator.run_task(
                self._task, next_payload=self._next_payload, on_sum=self._ignore
            )
        )
        await asyncio.sleep(0)  # one turn of the loop: the task is known

    async def __aexit__(self, *_):
        self._running.cancel()
        await asyncio.wait({self._running})


def client(aggregator, name="alice", given=None, **more):
    return Client(
        InMemoryConnection(aggregator, name),
        task="t",
        privacy_limits=given or privacy_limits(),
        **more,
    )


async def contribute(aggregator, name, vector, **more):
    async with client(aggregator, name, **more) as one:
        return await one.contribute(vector)


async def refuse(aggregator, given=None, **more):
    """Have a client contribute; it must refuse the offer before a key is made."""
    connection = OffersOnly(aggregator, "alice")
    async with Client(
        connection, task="t", privacy_limits=given or privacy_limits(), **more
    ) as one:
        await one.contribute(np.ones(DIMENSION))


async def test_a_task_with_five_times_the_accepted_epsilon_is_refused(aggregator):
    async with Serving(aggregator, noised(epsilon=40.0)):
        with pytest.raises(RemoteProtocolError, match="epsilon is 40") as caught:
            await refuse(aggregator, given=privacy_limits(8.0))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


async def test_a_payload_above_the_limit_of_the_owner_is_rejected_before_joining(
    aggregator,
):
    class Recorded(InMemoryConnection):
        asked: tuple = ()

        async def call(self, request):
            self.asked += (type(request).__name__,)
            return await super().call(request)

    connection = Recorded(aggregator, "alice")
    async with (
        Serving(aggregator, noised(), payload=b"four"),
        Client(
            connection, task="t", privacy_limits=privacy_limits(), max_payload_bytes=3
        ) as one,
    ):
        with pytest.raises(RemoteProtocolError, match="4 bytes, at most 3") as caught:
            await one.contribute(np.ones(DIMENSION))
    assert caught.value.code is ErrorCode.PAYLOAD_MISMATCH
    assert connection.asked == ("GetOffer", "FetchChunk")


async def test_clients_of_one_process_can_share_a_thread_pool(aggregator):
    used = set()

    def vector(_):
        used.add(threading.current_thread())
        return np.ones(DIMENSION)

    with ThreadPoolExecutor(1) as pool:
        async with Serving(aggregator, noised()):
            given = [
                contribute(aggregator, each, vector, threads=pool) for each in NAMES
            ]
            await asyncio.gather(*given)
        # It is not closed, and all have worked on it.
        assert used == {pool.submit(threading.current_thread).result()}


async def test_a_session_beyond_the_budget_is_refused_before_a_key_is_made(aggregator):
    async def give(name):
        connection = OffersOnly(aggregator, name)
        async with Client(connection, task="t", privacy_limits=privacy_limits()) as one:
            connection.may_join = True
            await one.contribute(np.ones(DIMENSION))
            connection.may_join = False
            with pytest.raises(RemoteProtocolError, match="covers 1") as caught:
                await one.contribute(np.ones(DIMENSION))
        assert caught.value.code is ErrorCode.POLICY_VIOLATION

    async with Serving(aggregator, noised(), sessions=2):
        await asyncio.gather(*map(give, NAMES))


async def test_exact_sums_are_refused_by_a_client_that_has_not_waived_noise(aggregator):
    # Whatever the cohort's policy says of noise, the limits decide.
    async with Serving(aggregator, COHORT):
        with pytest.raises(RemoteProtocolError, match="without noise") as caught:
            await refuse(aggregator, cohort=ClientPolicy(require_noise=False))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


async def test_a_waiver_can_still_have_limits_for_tasks_with_noise(aggregator):
    waiver = ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT, noised=privacy_limits(7.0))
    async with Serving(aggregator, noised(8.0)):
        with pytest.raises(RemoteProtocolError, match="at most 7 is accepted"):
            await refuse(aggregator, given=waiver)


@pytest.mark.parametrize("given", [None, True, NO_NOISE_ACKNOWLEDGEMENT])
def test_a_client_requires_privacy_limits(given):
    with pytest.raises(LocalProtocolError, match="limits of privacy"):
        Client(InMemoryConnection(None, "alice"), task="t", privacy_limits=given)


@pytest.mark.parametrize(
    ("risen", "complaint"),
    [
        ({"privacy_limits": privacy_limits(7.0)}, "at most 7"),
        (
            {
                "privacy_limits": privacy_limits(),
                "cohort": ClientPolicy(min_clients=50),
            },
            "50",
        ),
    ],
    ids=["privacy", "cohort"],
)
async def test_stricter_limits_end_an_interrupted_session(
    aggregator, tmp_path, risen, complaint
):
    stopped = asyncio.Event()
    paused = PausingConnection(
        InMemoryConnection(aggregator, "alice"),
        session_number=1,
        before="share",
        on_pause=stopped.set,
    )

    async def first_process():
        async with Client(
            paused, task="t", privacy_limits=privacy_limits(), state_dir=tmp_path
        ) as alice:
            await alice.contribute(np.ones(DIMENSION))

    async with Serving(aggregator, noised()):
        others = [
            asyncio.create_task(contribute(aggregator, name, np.ones(DIMENSION)))
            for name in NAMES[1:]
        ]
        interrupted = asyncio.create_task(first_process())
        await stopped.wait()
        interrupted.cancel()
        await asyncio.wait({interrupted})

        again = OffersOnly(aggregator, "alice")
        async with Client(again, task="t", state_dir=tmp_path, **risen) as alice:
            with pytest.raises(RemoteProtocolError, match=complaint) as caught:
                await alice.contribute(np.ones(DIMENSION))
        assert caught.value.code is ErrorCode.POLICY_VIOLATION
        assert again.looks == 0
        for other in others:
            other.cancel()
        await asyncio.wait(others)


async def test_a_cancelled_client_resumes_from_its_last_record(aggregator, tmp_path):
    stopped = asyncio.Event()
    paused = PausingConnection(
        InMemoryConnection(aggregator, "alice"),
        session_number=1,
        before="upload",
        on_pause=stopped.set,
    )
    async with Serving(aggregator, noised()):
        others = [
            asyncio.create_task(contribute(aggregator, name, np.ones(DIMENSION)))
            for name in NAMES[1:]
        ]
        async with Client(
            paused, task="t", privacy_limits=privacy_limits(), state_dir=tmp_path
        ) as alice:
            giving = asyncio.create_task(alice.contribute(np.ones(DIMENSION)))
            await stopped.wait()
            giving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await giving
        given = await contribute(
            aggregator, "alice", np.ones(DIMENSION), state_dir=tmp_path
        )
        await asyncio.gather(*others)
    assert given.session_number == 1
    assert given.inputs == 3
    assert given.sessions_left == 0


async def test_a_function_receives_its_session_and_returns_the_vector(aggregator):
    seen = []

    def make(session):
        seen.append(session)
        return [float(session.payload)] * session.dimension

    async with Serving(aggregator, noised(), payload=b"0.5"):
        gifts = await asyncio.gather(
            *(contribute(aggregator, name, make) for name in NAMES)
        )
    assert len(seen) == 3
    for session in seen:
        assert (session.task, session.session_number) == ("t", 1)
        assert session.dimension == DIMENSION
        assert session.privacy.server.epsilon <= 8.0
    for given in gifts:
        assert given.values.shape == (DIMENSION,)
        np.testing.assert_array_equal(given.values, gifts[0].values)
        assert given.shortened_by == 1.0
        assert given.sessions_left == 0


async def test_a_client_reports_the_clipping_factor_of_its_vector(aggregator):
    long = np.full(DIMENSION, 10.0)  # of length 20; the task clips to 1
    async with Serving(aggregator, noised()):
        gifts = await asyncio.gather(
            contribute(aggregator, "alice", long),
            *(
                contribute(aggregator, name, np.full(DIMENSION, 0.5))
                for name in NAMES[1:]
            ),
        )
    factors = [given.shortened_by for given in gifts]
    assert factors == [pytest.approx(20.0), 1.0, 1.0]
    assert "20.0" not in repr(gifts[0])


async def test_exact_sums_are_whole_numbers(aggregator):
    async with Serving(aggregator, COHORT):
        gifts = await asyncio.gather(
            *(
                contribute(aggregator, name, [number, -number, 0, 7], given=WAIVER)
                for number, name in enumerate(NAMES)
            )
        )
    for given in gifts:
        np.testing.assert_array_equal(given.values, [3, -3, 0, 21])
        assert given.privacy is None
        assert given.sessions_left is None


@pytest.mark.parametrize(
    ("vector", "complaint"),
    [
        (np.ones(3), "vectors of 4"),
        ([0.5, 0, 0, 0], "entry 0"),
        ([1 << 15, 0, 0, 0], "entry 0"),
    ],
)
async def test_an_invalid_vector_is_rejected_before_a_key_is_made(
    aggregator, vector, complaint
):
    connection = Listening(aggregator, "alice")
    async with (
        Serving(aggregator, COHORT),
        Client(connection, task="t", privacy_limits=WAIVER) as one,
    ):
        with pytest.raises(InputError, match=complaint):
            await one.contribute(vector)
    assert AdvertiseKeys not in connection.asked


async def test_a_client_contributes_one_vector_at_a_time(aggregator):
    async with client(aggregator) as one:
        first = asyncio.create_task(one.contribute(np.ones(DIMENSION)))
        await asyncio.sleep(0)  # one turn of the loop: it has begun
        with pytest.raises(LocalProtocolError, match="one vector at a time"):
            await one.contribute(np.ones(DIMENSION))
        first.cancel()
        await asyncio.wait({first})


async def test_a_client_can_be_opened_only_once(aggregator):
    one = client(aggregator)
    with pytest.raises(LocalProtocolError, match="not open"):
        await one.contribute(np.ones(DIMENSION))
    async with one:
        with pytest.raises(LocalProtocolError, match="open already"):
            await one.__aenter__()


@pytest.mark.parametrize("missing", ["identity", "state_dir"])
def test_a_client_of_a_remote_server_requires_identity_and_state_dir(missing, tmp_path):
    parts = {"identity": object(), "state_dir": tmp_path} | {missing: None}
    with pytest.raises(LocalProtocolError, match="identity and state_dir"):
        Client("localhost:1", task="t", privacy_limits=privacy_limits(), **parts)


async def test_a_client_without_a_connection_raises_unreachable():
    nowhere = LossyConnection("alice", lambda: None, lambda *_: None)
    async with Client(
        nowhere, task="t", privacy_limits=privacy_limits(), wait_seconds=0.0
    ) as one:
        with pytest.raises(Exception, match="waiting after 0 seconds") as caught:
            await one.contribute(np.ones(DIMENSION))
    assert caught.value.code is ErrorCode.UNREACHABLE


async def test_a_contribution_without_a_timeout_is_limited_by_its_session(monkeypatch):
    async def passed_unheard(*_):
        raise SessionAbortedError("too late", code=ErrorCode.DEADLINE)

    monkeypatch.setattr(ClientRunner, "run_session", passed_unheard)
    nowhere = LossyConnection("alice", lambda: None, lambda *_: None)
    async with Client(
        nowhere,
        task="t",
        privacy_limits=privacy_limits(),
        wait_seconds=None,
        attempts=1,
    ) as one:
        with pytest.raises(ServiceError, match="as long as its session") as caught:
            await one.contribute(np.ones(DIMENSION))
    assert caught.value.code is ErrorCode.UNREACHABLE


async def test_a_client_computes_epsilon_itself(aggregator, monkeypatch):
    """What the block claims is compared, never believed."""
    parameters = noised(8.0)
    honest = task.statement

    def worse(block, adversary):
        stated = honest(block, adversary)
        return type(stated)(
            **{
                name: 9.0 if name == "epsilon" else getattr(stated, name)
                for name in stated.__dataclass_fields__
            }
        )

    monkeypatch.setattr(task, "statement", worse)
    async with Serving(aggregator, parameters):
        with pytest.raises(RemoteProtocolError, match="claims 8"):
            await refuse(aggregator, given=privacy_limits(99))


# --- every session of a task ----------------------------------------------------------


async def gather_all(aggregator, *makers, **more):
    """Have all clients contribute to all sessions; return their results."""

    async def everything(name, make):
        async with client(aggregator, name, **more) as one:
            return [given async for given in one.contributions(make)]

    return await asyncio.gather(
        *(everything(name, make) for name, make in zip(NAMES, makers, strict=True))
    )


async def test_a_client_contributes_a_new_vector_to_every_session_of_the_task(
    aggregator,
):
    seen = []

    def make(session):
        seen.append((session.session_number, session.payload))
        return np.full(DIMENSION, session.session_number)

    async with Serving(aggregator, COHORT, sessions=3, payload=b"model"):
        for given in await gather_all(aggregator, make, make, make, given=WAIVER):
            assert [one.session_number for one in given] == [1, 2, 3]
            for one in given:
                np.testing.assert_array_equal(
                    one.values, np.full(DIMENSION, 3 * one.session_number)
                )
    assert sorted(seen) == [(n, b"model") for n in (1, 2, 3) for _ in NAMES]


async def test_contributions_end_with_the_budget(aggregator, caplog):
    """A task that continues for others would only be refused from then on."""
    async with Serving(aggregator, noised(steps=2, spare=1), sessions=3):
        vector = np.ones(DIMENSION)
        for given in await gather_all(aggregator, *[lambda _: vector] * 3):
            assert [one.sessions_left for one in given] == [1, 0]
            assert all(one.privacy is not None for one in given)
    warned = [r for r in caplog.records if getattr(r, "event", "") == "budget_low"]
    assert [(r.levelname, r.facts["left"]) for r in warned] == [("WARNING", 0)] * 3


async def test_contributions_require_a_function_and_not_a_vector(aggregator):
    async with client(aggregator) as one:
        with pytest.raises(LocalProtocolError, match="every session"):
            await anext(one.contributions(np.ones(DIMENSION)))


async def test_only_the_end_of_the_task_ends_contributions_without_an_error(aggregator):
    async with client(aggregator) as one:
        with pytest.raises(ServiceError, match="no such task") as caught:
            await anext(one.contributions(lambda _: np.ones(DIMENSION)))
    assert caught.value.code is ErrorCode.UNKNOWN_SESSION


async def test_a_client_reports_its_last_participation(aggregator):
    async with client(aggregator, given=WAIVER) as one:
        assert await one.last_part() is None
        others = [
            contribute(aggregator, name, [1] * DIMENSION, given=WAIVER)
            for name in NAMES[1:]
        ]
        async with Serving(aggregator, COHORT):
            await asyncio.gather(one.contribute([1] * DIMENSION), *others)
        assert await one.last_part() == Participation(session_number=1, inputs=3)


async def test_receipts_are_kept_no_longer_than_the_retention_period(aggregator):
    gone_at_once = Retention(keep_receipts_days=0.0)
    async with (
        client(aggregator, given=WAIVER, retention=gone_at_once) as one,
        Serving(aggregator, COHORT, sessions=2),
    ):
        for number in (1, 2):
            others = [
                contribute(aggregator, name, [1] * DIMENSION, given=WAIVER)
                for name in NAMES[1:]
            ]
            await asyncio.gather(one.contribute([1] * DIMENSION), *others)
            assert await one.receipt(number) is not None
        # The first one went when the second session was asked for.
        assert await one.receipt(1) is None


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (PrivacyLimits(max_epsilon=1.0, max_delta=1e-5), "epsilon is 8"),
        (PrivacyLimits(max_epsilon=8.0, max_delta=1e-9), "delta is 1e-05"),
    ],
)
async def test_a_limit_violated_by_stated_values_is_rejected_before_computing_epsilon(
    aggregator, monkeypatch, given, complaint
):
    """Some noise takes minutes to check, and a server chooses which it offers."""

    def compute(*_):
        raise AssertionError("epsilon was computed")

    parameters = noised()
    monkeypatch.setattr(NoisyTask, "report", compute)
    async with Serving(aggregator, parameters):
        with pytest.raises(RemoteProtocolError, match=complaint) as caught:
            await refuse(aggregator, given=given)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
