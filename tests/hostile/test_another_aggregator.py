"""A session belongs to the aggregator of its offer, also after a restart (R5.0-6).

The client's process dies when its input has left for aggregator `a`, which is honest.
It starts again where aggregator `b` of the same trust domain answers, with a
certificate of its own: another address, a name that resolves elsewhere, a fail-over.
The budget of the task covers one session.

The knowledge ledger checks the same attacks with `b` in the adversary's hands: in a
build without the rule it finds each of them, in this one nothing.
"""

import asyncio
import hashlib
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.client_state import LastingStore
from secagg_testing.cohorts import parameters_for, with_noise
from secagg_testing.crash_points import SimulatedCrashError
from secagg_testing.deployment import Deployment
from secagg_testing.inline_store import inline_store
from secagg_testing.knowledge.claims import Claim, ForbiddenKnowledgeError
from secagg_testing.knowledge.closure import close
from secagg_testing.knowledge.sums import recover, revealed_sums
from secagg_testing.observed_connection import TaskObserver
from secagg_testing.scripted_service import ScriptedService
from secagg_testing.tls_deployment import TLSDeployment

from secagg.client.calls import ClientCalls
from secagg.client.client import Client
from secagg.client.grpc_connection import GrpcConnection
from secagg.client.service import ClientService
from secagg.crypto.modular import word_dtype
from secagg.crypto.transcript import encode_set
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.messages import Aborted, Envelope, Fate, Released, Survivors
from secagg.protocol.packing import pack
from secagg.protocol.policy import PrivacyLimits
from secagg.protocol.profiles import RoundDeadlines
from secagg.server.aggregator import Aggregator
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.task.definition import TaskDefinition
from secagg.simulation.driver import identity_of
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.budget_ledger import ChargeState
from secagg.storage.directories import STORE_FILE
from secagg.storage.queries import ListCharges
from secagg.storage.spool import UploadSpool
from secagg.transport.address import Address
from secagg.transport.connection import UNCERTIFIED_AGGREGATOR, InMemoryConnection
from secagg.wire.calls import (
    AdvertiseKeys,
    BlobChunk,
    FetchChunk,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    UploadChunk,
    UploadStatus,
)

DIMENSION = 4
OTHERS = ("bob", "carol", "dave")
# Unmasking ends without alice; all other rounds end with the last message.
PARAMETERS = with_noise(
    parameters_for(
        4, dimension=DIMENSION, threshold=3, deadlines=RoundDeadlines(unmasking=1)
    )
)
LOOPBACK = Address("127.0.0.1", 0)
FORGED_SUM = pack(
    np.full(DIMENSION, 5, word_dtype(PARAMETERS.modulus)), PARAMETERS.bits
)
TASK_OVER = ServiceError("no such task", code=ErrorCode.TASK_OVER)
REFUND = Envelope.of(Aborted(Fate.NEVER_FIXED, ErrorCode.CANCELLED, "maintenance"))


def dying(connection, behind=UploadChunk):
    """End a client's process after a call; of an upload, after its last chunk."""
    inner = connection.call

    async def call(request):
        answer = await inner(request)
        if isinstance(request, behind) and getattr(answer, "complete", True):
            raise asyncio.CancelledError
        return answer

    connection.call = call
    return connection


class InMemory:
    """Aggregators in this process."""

    trust_domain = "ours.example"

    def __init__(self, _directory):
        self.stack = AsyncExitStack()

    async def serve(self, service, name):
        return service, name

    async def connect(self, place, client):
        service, name = place
        return InMemoryConnection(
            service, client, aggregator=name, trust_domain=self.trust_domain
        )

    def elsewhere(self, _directory):
        """Return the way of another trust domain."""
        other = InMemory(None)
        other.trust_domain = "another.example"
        return other


class OverTLS:
    """Aggregators behind sockets, each with a certificate of its own name."""

    def __init__(self, directory, trust_domain="ours.example"):
        self.stack = AsyncExitStack()
        self.certificates = TLSDeployment(directory, trust_domain)

    def elsewhere(self, directory):
        """Return the way of another trust domain."""
        other = OverTLS(directory, "another.example")
        self.stack.push_async_callback(other.stack.aclose)
        return other

    async def serve(self, service, name):
        server = await self.stack.enter_async_context(
            await GrpcServer.start(
                service, LOOPBACK, identity=self.certificates.server(name=name)
            )
        )
        return server.address

    async def connect(self, place, client):
        return await self.stack.enter_async_context(
            GrpcConnection(place, identity=self.certificates.client(client))
        )


@pytest.fixture(params=[InMemory, OverTLS], ids=["in memory", "over TLS"])
async def way(request, tmp_path_factory):
    made = request.param(tmp_path_factory.mktemp("certificates"))
    async with made.stack:
        yield made


def client_of(connection, state, **options):
    return Client(
        connection,
        task="t",
        privacy_limits=PrivacyLimits(max_epsilon=8.0, max_delta=1e-5),
        state_dir=state,
        rollback_mark=Path(f"{state}.mark"),
        attempts=1,
        **options,
    )


async def charge_of(state):
    store = LastingStore.make(state / STORE_FILE, mark=Path(f"{state}.mark"))
    try:
        return [each.state for each in await store.read(ListCharges("t"))]
    finally:
        store.end()


class Honest:
    """Aggregator `a` with one task, of which alice dies behind her upload."""

    def __init__(self, way, directory):
        self.way, self.directory = way, directory
        self.sums = []

    async def start(self):
        self.aggregator = Aggregator(
            inline_store(), UploadSpool(MemoryBlobs()), name="a"
        )

        async def payload(_):
            return b""

        async def on_sum(released):
            self.sums.append(released)

        self.running = asyncio.create_task(
            self.aggregator.run_task(
                TaskDefinition(task_id="t", parameters=PARAMETERS, sessions=1),
                next_payload=payload,
                on_sum=on_sum,
            )
        )
        await asyncio.sleep(0)
        self.place = await self.way.serve(self.aggregator, "a")
        return self

    async def session(self):
        """Run the session to its sum; alice's input is in it, her answer is not."""

        async def give(name):
            connection = await self.way.connect(self.place, name)
            if name == "alice":
                connection = dying(connection)
            async with client_of(connection, self.directory / name) as client:
                return await client.contribute(np.ones(DIMENSION))

        return await asyncio.gather(
            *map(give, ("alice", *OTHERS)), return_exceptions=True
        )

    async def stop(self):
        self.running.cancel()
        await asyncio.wait({self.running})


@pytest.fixture
async def honest(way, tmp_path):
    made = await Honest(way, tmp_path).start()
    yield made
    await made.stop()


def refunding():
    """Return an aggregator that states that none of its sessions fixed U3."""
    return ScriptedService(
        {
            GetUploadStatus: UploadStatus(0, complete=True),
            GetUpdate: REFUND,
            GetOffer: TASK_OVER,
        },
        updates=[REFUND],
    )


def reaping(survivors=(0, 1, 2)):
    """Return an aggregator that accepts all messages of a session of `a`."""
    survivors = Envelope.of(Survivors(encode_set(survivors, 4)))
    released = Released(
        Fate.INCLUDED, hashlib.sha256(FORGED_SUM).digest(), len(FORGED_SUM), 3, 0
    )

    async def stored(_, chunk):
        end = chunk.offset + len(chunk.data)
        return UploadStatus(end, complete=end == chunk.total_size)

    return ScriptedService(
        {
            GetUploadStatus: UploadStatus(0),
            UploadChunk: stored,
            FetchChunk: BlobChunk(FORGED_SUM, len(FORGED_SUM)),
            GetUpdate: survivors,
            GetOffer: TASK_OVER,
        },
        updates=[survivors, Envelope.of(released)],
    )


@pytest.mark.parametrize("lies", [refunding, reaping])
async def test_another_aggregator_neither_sees_nor_ends_a_stored_session(
    honest, way, tmp_path, lies
):
    results = await honest.session()
    assert isinstance(results[0], asyncio.CancelledError)
    assert [each.inputs for each in results[1:]] == [4, 4, 4]
    assert await charge_of(tmp_path / "alice") == [ChargeState.BOUND]

    impostor = lies()
    elsewhere = await way.serve(impostor, "b")
    connection = await way.connect(elsewhere, "alice")
    async with client_of(connection, tmp_path / "alice") as client:
        with pytest.raises(ServiceError, match="one of 'a', and 'b' answers") as caught:
            await client.contribute(np.ones(DIMENSION))
    assert caught.value.code is ErrorCode.UNREACHABLE
    assert not impostor.calls  # not even the name of the session
    assert await charge_of(tmp_path / "alice") == [ChargeState.BOUND]

    # Its own aggregator is still believed; the sum counts her, so the charge is kept.
    connection = await way.connect(honest.place, "alice")
    async with client_of(connection, tmp_path / "alice") as client:
        given = await client.contribute(np.ones(DIMENSION))
    assert given.inputs == 4
    assert await charge_of(tmp_path / "alice") == [ChargeState.KEPT]
    assert len(honest.sums) == 1


@pytest.mark.parametrize("lies", [refunding, reaping])
async def test_equal_names_in_two_trust_domains_are_different_aggregators(
    honest, way, tmp_path, tmp_path_factory, lies
):
    """The client's owner has moved it to a trust domain that has an `a`, too."""
    await honest.session()
    impostor = lies()
    other = way.elsewhere(tmp_path_factory.mktemp("elsewhere"))
    elsewhere = await other.serve(impostor, "a")
    connection = await other.connect(elsewhere, "alice")
    async with client_of(connection, tmp_path / "alice") as client:
        with pytest.raises(ServiceError) as caught:
            await client.contribute(np.ones(DIMENSION))
    # It is asked for sessions of its own, and hears nothing of the other's.
    assert caught.value.code is ErrorCode.TASK_OVER
    assert [type(request) for _, request in impostor.calls] == [GetOffer]
    assert await charge_of(tmp_path / "alice") == [ChargeState.BOUND]

    connection = await way.connect(honest.place, "alice")
    async with client_of(connection, tmp_path / "alice") as client:
        assert (await client.contribute(np.ones(DIMENSION))).inputs == 4
    assert await charge_of(tmp_path / "alice") == [ChargeState.KEPT]


async def test_session_numbers_are_counted_per_trust_domain(
    way, tmp_path, tmp_path_factory
):
    """R5.0-2 counts the numbers of one aggregator; its name alone is not it."""
    first = await Honest(way, tmp_path).start()
    await first.session()
    await first.stop()
    other = way.elsewhere(tmp_path_factory.mktemp("elsewhere"))
    second = await Honest(other, tmp_path).start()
    results = await second.session()
    assert isinstance(results[0], asyncio.CancelledError)  # behind her upload
    assert [each.inputs for each in results[1:]] == [4, 4, 4]
    await second.stop()


class Turning:
    """A way that leads to one aggregator, and later to another."""

    def __init__(self, *inner):
        self.inner = list(inner)
        self.identity = inner[0].identity
        self.trust_domain, self.is_direct = inner[0].trust_domain, inner[0].is_direct

    @property
    def aggregator(self):
        return self.inner[0].aggregator

    async def probe(self):
        return await self.inner[0].probe()

    async def call(self, request):
        return await self.inner[0].call(request)

    def watch(self, request):
        return self.inner[0].watch(request)


async def test_a_service_waits_until_its_aggregator_answers_again(
    honest, way, tmp_path
):
    await honest.session()
    impostor, waits, given = refunding(), [], []
    elsewhere = await way.serve(impostor, "b")
    turning = Turning(
        await way.connect(elsewhere, "alice"), await way.connect(honest.place, "alice")
    )

    class Clock:
        def now(self):
            return float(len(waits))

        async def sleep_until(self, instant):
            waits.append(instant)
            if len(waits) == 3:
                turning.inner.pop(0)

    async with client_of(turning, tmp_path / "alice") as client:
        await ClientService(
            client,
            make=lambda _: np.ones(DIMENSION),
            accept=lambda _: None,
            on_done=given.append,
            on_failed=lambda _: asyncio.sleep(0),
            clock=Clock(),
        ).run()
    assert [each.inputs for each in given] == [4]
    assert len(waits) == 3
    assert not impostor.calls


async def test_a_session_without_an_input_is_abandoned_and_the_client_continues(
    honest, way, tmp_path
):
    connection = dying(await way.connect(honest.place, "alice"), AdvertiseKeys)
    async with client_of(connection, tmp_path / "alice") as client:
        with pytest.raises(asyncio.CancelledError):
            await client.contribute(np.ones(DIMENSION))
    other = refunding()
    connection = await way.connect(await way.serve(other, "b"), "alice")
    async with client_of(connection, tmp_path / "alice") as client:
        with pytest.raises(ServiceError) as caught:
            await client.contribute(np.ones(DIMENSION))
    assert caught.value.code is ErrorCode.TASK_OVER
    assert [type(request) for _, request in other.calls] == [GetOffer]
    assert await charge_of(tmp_path / "alice") == []


async def test_a_client_configured_for_another_aggregator_continues_there(tmp_path):
    way = OverTLS(tmp_path)
    async with way.stack:
        honest = await Honest(way, tmp_path).start()
        await honest.session()
        other = refunding()
        elsewhere = await way.serve(other, "b")

        async def give(place, name):
            async with client_of(
                str(place),
                tmp_path / "alice",
                identity=way.certificates.client("alice"),
                aggregator=name,
            ) as client:
                return await client.contribute(np.ones(DIMENSION))

        with pytest.raises(ServiceError) as caught:
            await give(elsewhere, "b")
        assert caught.value.code is ErrorCode.TASK_OVER
        assert [type(request) for _, request in other.calls] == [GetOffer]
        # The session of `a` is neither left nor settled by that.
        assert await charge_of(tmp_path / "alice") == [ChargeState.BOUND]
        assert (await give(honest.place, "a")).inputs == 4
        assert await charge_of(tmp_path / "alice") == [ChargeState.KEPT]
        await honest.stop()


async def test_a_connection_is_bound_to_its_peer_only_by_the_first_call(tmp_path):
    way = OverTLS(tmp_path)
    async with way.stack:
        first = await way.serve(ScriptedService({GetOffer: TASK_OVER}), "b")
        connection = await way.connect(first, "alice")
        assert await connection.probe() == "b"
        second = await way.serve(ScriptedService({GetOffer: TASK_OVER}), "a")
        connection._channel._address = second
        assert await connection.probe() == connection.aggregator == "a"
        with pytest.raises(ServiceError, match="no such task"):
            await connection.call(GetOffer("t"))
        connection._channel._address = first  # too late: it is settled
        assert await connection.probe() == "a"


# --- what the ledger says of them -----------------------------------------------------


def without_the_rule(patch):
    """Make a client accept any aggregator as that of its session."""

    def bind(self, aggregator):
        self.believed = aggregator

    async def meet(self, _deadline):
        return self.believed

    patch.setattr(ClientCalls, "bind", bind)
    patch.setattr(ClientCalls, "probe", meet)
    # The gate compares names once more at a restart (R5.0-1).
    patch.setattr("secagg.client.gate.check_aggregator", lambda *_: None)


def misdirected(numbers, other, *, threshold, honest=()):
    """Run a task of which some clients die behind their uploads, and then meet `b`."""
    parameters = parameters_for(
        4,
        dimension=DIMENSION,
        threshold=threshold,
        min_survivors=3,
        max_dropouts=1,
        max_losses=1,
        min_clients=4,
    )
    turned = set()

    def tamper(number, link):
        name = identity_of(number)
        if number in turned:
            return InMemoryConnection(other, name, aggregator="b")
        return Leaving(link, number) if number in numbers else link

    class Leaving:
        def __init__(self, link, number):
            self.inner, self.number = link, number
            self.identity, self.aggregator = link.identity, link.aggregator
            self.trust_domain, self.meet = link.trust_domain, link.probe
            self.watch, self.is_direct = link.watch, link.is_direct

        async def call(self, request):
            answer = await self.inner.call(request)
            if isinstance(request, UploadChunk) and answer.complete:
                turned.add(self.number)
                raise SimulatedCrashError
            return answer

    async def main(clock):
        deployment = Deployment(
            clock,
            with_noise(parameters),
            4,
            tamper=tamper,
            max_attempts=1,
            observer=TaskObserver(honest=honest),
        )
        try:
            await deployment.run()
        except ForbiddenKnowledgeError as error:
            return deployment, error.violations
        return deployment, ()

    deployment, violations = manual_clock.run(main)
    assert turned == set(numbers)
    return deployment, {each.claim: each for each in violations}


MISDIRECTIONS = {
    # The first one has a sum with its input, and the client's store says: for nothing.
    "refund": (refunding, {0}, 3, (), {Claim.BUDGET}),
    # Two clients answer to the first for all four, two to `b` for three of them: the
    # fourth one's input stands alone.
    "another set": (
        reaping,
        {0, 1},
        2,
        (),
        {
            Claim.ONE_SECRET,
            Claim.ONE_SUM,
            Claim.HONEST_PART,
            Claim.SIZE,
            Claim.NOISE,
        },
    ),
    # What the first one is honest about, and shows to no adversary, `b` reads.
    "its own sum": (
        lambda: reaping(range(4)),
        {0, 1, 2, 3},
        3,
        {UNCERTIFIED_AGGREGATOR},
        {Claim.APART},
    ),
}


@pytest.mark.parametrize("which", MISDIRECTIONS)
def test_the_ledger_detects_what_a_second_aggregator_of_the_domain_gains(
    which, monkeypatch
):
    lies, numbers, threshold, honest, broken = MISDIRECTIONS[which]
    _, found = misdirected(numbers, lies(), threshold=threshold, honest=honest)
    assert not found

    without_the_rule(monkeypatch)
    deployment, found = misdirected(numbers, lies(), threshold=threshold, honest=honest)
    assert broken | {Claim.OWN} == set(found)
    assert found[Claim.OWN].who == tuple(map(identity_of, sorted(numbers)))
    # No claim on paper: each sum follows from the recorded bytes.
    closure = close(deployment.observer.facts)
    for known in revealed_sums(closure):
        inputs = {n for n in range(4) if identity_of(n) in known.members}
        if known.is_plain_sum:
            assert recover(closure, known).tolist() == (
                deployment.expected_sum(inputs).tolist()
            )
