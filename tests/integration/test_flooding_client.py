"""One client with a certificate floods and holds; the sum of the others comes."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from hashlib import sha256

import numpy as np
from secagg_testing.cohorts import parameters_for, with_noise
from secagg_testing.inline_store import inline_store
from secagg_testing.tls_deployment import TLSDeployment

from secagg.client.client import Client
from secagg.client.grpc_connection import GrpcConnection
from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.policy import PrivacyLimits
from secagg.server.aggregator import Aggregator
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.task.definition import TaskDefinition
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.spool import UploadSpool
from secagg.transport.address import Address
from secagg.transport.handshake_limits import AdmissionLimits
from secagg.wire.calls import GetOffer, GetUpdate, UploadChunk, WatchSession

CLIENTS, DIMENSION = 5, 16
# More at once than one client may have open, on each of its connections.
CALLS_AT_ONCE = 12
CHUNK = bytes(1 << 16)


class Flooder:
    """Calls as fast as it can, on more connections than it may have."""

    def __init__(self, address, identity):
        self._address, self._identity = address, identity
        self.answers = Counter()
        self.at_its_limits = asyncio.Event()

    def _refused(self, error):
        self.answers[error.code] += 1
        if error.code is ErrorCode.OVERLOADED:
            self.at_its_limits.set()

    async def run(self):
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(self._connected())

    async def _connected(self):
        async with (
            GrpcConnection(self._address, identity=self._identity) as connection,
            asyncio.TaskGroup() as group,
        ):
            for place in range(CALLS_AT_ONCE):
                group.create_task(self._calling(connection, place))

    async def _calling(self, connection, place):
        nowhere = bytes(31) + bytes([place])
        digest = sha256(CHUNK).digest()
        chunk = UploadChunk(nowhere, 0, 2 * len(CHUNK), digest, CHUNK)
        while True:
            for request in (GetOffer("t"), GetUpdate(nowhere, None), chunk):
                try:
                    await connection.call(request)
                    self.answers["answered"] += 1
                except SecAggError as error:
                    self._refused(error)
                await asyncio.sleep(0)
            try:  # an answer that it takes and does not let go of
                async for _ in connection.watch(WatchSession(nowhere, None)):
                    pass
            except SecAggError as error:
                self._refused(error)


async def flooded_sum(place, clients=CLIENTS, **admission):
    """Run a sum of some clients beside a flooder; return it and what that one heard."""
    parameters = with_noise(
        parameters_for(clients, dimension=DIMENSION, threshold=clients * 2 // 3)
    )
    certificates = TLSDeployment(place)
    aggregator = Aggregator(inline_store(), UploadSpool(MemoryBlobs()), name="a")
    sums = []

    async def payload(_):
        return b""

    async def on_sum(released):
        sums.append(released)

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            await GrpcServer.start(
                aggregator,
                Address("127.0.0.1", 0),
                identity=certificates.server(name="a"),
                admission=AdmissionLimits(relay="on", **admission),
            )
        )
        running = asyncio.create_task(
            aggregator.run_task(
                TaskDefinition(task_id="t", parameters=parameters, sessions=1),
                next_payload=payload,
                on_sum=on_sum,
            )
        )
        flooder = Flooder(server.address, certificates.client("mallory"))
        flooding = asyncio.create_task(flooder.run())
        reached = asyncio.create_task(flooder.at_its_limits.wait())
        await asyncio.wait({reached, flooding}, return_when=asyncio.FIRST_COMPLETED)
        assert not flooding.done(), flooding

        async def give(number):
            async with Client(
                str(server.address),
                task="t",
                identity=certificates.client(f"client-{number}"),
                aggregator="a",
                state_dir=place / f"state-{number}",
                rollback_mark=place / f"{number}.mark",
                privacy_limits=PrivacyLimits(max_epsilon=8.0, max_delta=1e-5),
            ) as client:
                return await client.contribute(np.ones(DIMENSION))

        given = await asyncio.gather(*map(give, range(clients)))
        flooding.cancel()
        await asyncio.wait({flooding})
        await running
    return sums, given, flooder.answers


async def test_a_sum_completes_while_one_client_floods_the_server(tmp_path):
    sums, given, answers = await flooded_sum(tmp_path)
    assert len(sums) == 1
    assert [each.inputs for each in given] == [CLIENTS] * CLIENTS
    assert answers[ErrorCode.OVERLOADED] > 0
    assert answers[ErrorCode.UNKNOWN_SESSION] > 0
