"""Whole sessions through the real aggregator and clients, over mutual TLS."""

import asyncio
import time

import numpy as np
import pytest
from secagg_testing.client_state import client_over
from secagg_testing.inline_store import inline_store
from secagg_testing.manual_clock import ManualClock

from secagg.client.grpc_connection import GrpcConnection
from secagg.client.session_driver import SessionSettings
from secagg.errors import ErrorCode, SecAggError, ServiceError, SessionAbortedError
from secagg.pki.certificate_authority import CertificateAuthority
from secagg.protocol.events import PlainVector
from secagg.protocol.messages import Round
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.policy import ClientPolicy
from secagg.runtime.workers import Workers
from secagg.server.aggregator import Aggregator
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.task.definition import TaskDefinition
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.spool import UploadSpool
from secagg.transport.address import Address
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity
from secagg.wire.calls import GetOffer, GetUploadStatus

CLIENTS = 5
# Two chunks and a bit: an upload that really is resumed and reassembled.
DIMENSION = 400_003
MODULUS = 1 << 48


def parameters(**changes):
    fields = {
        "modulus": MODULUS,
        "dimension": DIMENSION,
        "min_clients": CLIENTS,
        "max_clients": CLIENTS,
        "threshold": 3,
        "min_survivors": 3,
        "max_dropouts": 2,
        "max_losses": 2,
    }
    return ProtocolParameters(**{**fields, **changes})


def one_hot(index):
    vector = np.zeros(DIMENSION, dtype=np.uint64)
    vector[index] = index + 1
    vector[-1] = MODULUS - 1
    return vector


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pki")
    authority = CertificateAuthority.create("sums.example")
    authority.issued().write(directory, "ca")
    issued = {
        "server": authority.issue_server("aggregator", ["127.0.0.1"]),
        **{f"c{i}": authority.issue_client(f"c{i}") for i in range(CLIENTS)},
    }
    for stem, certificate in issued.items():
        certificate.write(directory, stem)
    return {
        stem: TLSIdentity.load(
            certificate=directory / f"{stem}.pem",
            private_key=directory / f"{stem}.key",
            authority=directory / "ca.pem",
            role=Role.SERVER if stem == "server" else Role.CLIENT,
        )
        for stem in issued
    }


async def run_task(identities, task, make_inputs, *, watch=True, survivors=CLIENTS):
    """Run one session; return the sums, and each client's outcome or error.

    The aggregator's time stands still until all survivors have uploaded; then the
    deadline of the round passes.
    """
    # The clients have the machine's clock: the dates of the two must agree.
    sums, clock = [], ManualClock(date=time.time())

    async def pass_deadline(aggregator):
        async for progress in aggregator.progress():
            is_open = progress.round is Round.MASKED_INPUT_COLLECTION
            if is_open and progress.answered == survivors < CLIENTS:
                clock.advance(task.parameters.deadlines.masked_input)

    async def on_sum(result):
        sums.append(result)

    async def next_payload(_count):
        return b"payload"

    async def participate(name, make_input, address):
        async with GrpcConnection(address, identity=identities[name]) as connection:
            runner = client_over(
                connection.identity,
                connection,
                policy=ClientPolicy(require_noise=False),
                make_input=make_input,
                settings=SessionSettings(watch=watch),
            )
            return await runner.run_session(task.task_id)

    workers = Workers()
    aggregator = Aggregator(
        inline_store(),
        UploadSpool(MemoryBlobs()),
        workers=workers,
        clock=clock,
    )
    timekeeper = asyncio.create_task(pass_deadline(aggregator))
    running = asyncio.create_task(
        aggregator.run_task(task, next_payload=next_payload, on_sum=on_sum)
    )
    async with await GrpcServer.start(
        aggregator, Address("127.0.0.1", 0), identity=identities["server"]
    ) as server:
        outcomes = await asyncio.gather(
            *(
                participate(name, make_input, server.address)
                for name, make_input in make_inputs.items()
            ),
            return_exceptions=True,
        )
        ended = (await asyncio.gather(running, return_exceptions=True))[0]
    await aggregator.close()
    await timekeeper
    assert not isinstance(ended, BaseException), ended
    return sums, outcomes


@pytest.mark.parametrize("watch", [True, False], ids=["watching", "polling"])
async def test_a_session_over_mtls_sums_exactly_in_chunks(identities, watch):
    def input_of(index):
        def make_input(_descriptor, payload, _noise_seed):
            assert payload == b"payload"
            return PlainVector(one_hot(index))

        return make_input

    sums, outcomes = await run_task(
        identities,
        TaskDefinition(
            task_id="sum", parameters=parameters(), invited=frozenset(identities)
        ),
        {f"c{i}": input_of(i) for i in range(CLIENTS)},
        watch=watch,
    )
    expected = sum(one_hot(i) for i in range(CLIENTS)) % MODULUS
    assert len(sums) == 1
    assert np.array_equal(sums[0].residues, expected)
    assert sums[0].survivors == CLIENTS
    for outcome in outcomes:
        assert np.array_equal(outcome.residues, expected)
        assert outcome.survivors == CLIENTS


async def test_a_client_that_is_not_invited_gets_an_error(identities):
    task = TaskDefinition(
        task_id="sum",
        parameters=parameters(),
        invited=frozenset({"c0"}),
        max_attempts=1,
    )
    workers = Workers()
    aggregator = Aggregator(inline_store(), UploadSpool(MemoryBlobs()), workers=workers)

    async def next_payload(_count):
        return b""

    async def on_sum(_result):
        return

    running = asyncio.create_task(
        aggregator.run_task(task, next_payload=next_payload, on_sum=on_sum)
    )
    await asyncio.sleep(0)
    async with (
        await GrpcServer.start(
            aggregator, Address("127.0.0.1", 0), identity=identities["server"]
        ) as server,
        GrpcConnection(server.address, identity=identities["c1"]) as connection,
    ):
        with pytest.raises(SecAggError) as caught:
            await connection.call(GetOffer("sum", after_session=0))
        assert caught.value.code is ErrorCode.NOT_INVITED
        with pytest.raises(ServiceError) as caught:
            await connection.call(GetUploadStatus(bytes(32)))
        assert caught.value.code is ErrorCode.UNKNOWN_SESSION
    running.cancel()
    await asyncio.wait({running})
    await aggregator.close()


async def test_a_failed_input_excludes_only_its_client(identities):
    """Three of five clients survive: their sum is exact, the others are told."""
    small = parameters(dimension=8)

    def input_of(index):
        def make_input(*_):
            if index >= 3:
                raise SessionAbortedError("left", code=ErrorCode.CANCELLED)
            vector = np.zeros(8, dtype=np.uint64)
            vector[index] = 1
            return PlainVector(vector)

        return make_input

    sums, outcomes = await run_task(
        identities,
        TaskDefinition(task_id="sum", parameters=small),
        {f"c{i}": input_of(i) for i in range(CLIENTS)},
        survivors=3,
    )
    assert sums[0].residues.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert [type(outcome).__name__ for outcome in outcomes] == [
        *["SessionOutcome"] * 3,
        *["SessionAbortedError"] * 2,
    ]
