"""A client that is taken back: over mutual TLS, with the clock in the test's hand."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from secagg_testing.manual_clock import STARTED_AT, ManualClock
from secagg_testing.scripted_service import ScriptedService
from secagg_testing.tls_deployment import TLSDeployment

from secagg.client.grpc_connection import GrpcConnection
from secagg.errors import ErrorCode, ServiceError
from secagg.pki.certificate_revocations import RevocationFile
from secagg.server.rpc.certificates import LOOK_EVERY_SECONDS
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.transport.address import Address
from secagg.transport.handshake_limits import AdmissionLimits
from secagg.transport.relay import Rejection
from secagg.wire.calls import AdvertiseKeys, WatchSession

LOOPBACK = Address("127.0.0.1", 0)
CALL = AdvertiseKeys(bytes(32), b"advert")
WATCH = WatchSession(bytes(32), after=None)


class Silent(ScriptedService):
    """Lets streams wait for ever, and counts them."""

    def __init__(self):
        super().__init__()
        self.opened = self.ended = 0
        self.changed = asyncio.Condition()

    async def watch(self, *_):
        self.opened += 1
        await self._say()
        try:
            await asyncio.Event().wait()
            yield
        finally:
            self.ended += 1
            await self._say()

    async def _say(self):
        async with self.changed:
            self.changed.notify_all()

    async def until(self, is_so):
        async with self.changed:
            await self.changed.wait_for(is_so)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    return TLSDeployment(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def revoked(deployment, tmp_path):
    path = tmp_path / "ca.crl"
    deployment.revoke(path, now=STARTED_AT)
    return RevocationFile(path=path, mark=tmp_path / "crl-numbers.json")


async def next_of(connection):
    return await anext(connection.watch(WATCH))


@asynccontextmanager
async def serving(deployment, service, *, relay, **options):
    """A server of that service; a minute is far beyond what a test needs."""
    async with (
        asyncio.timeout(60),
        await GrpcServer.start(
            service,
            LOOPBACK,
            identity=deployment.server(),
            admission=AdmissionLimits(relay=relay),
            **options,
        ) as server,
    ):
        yield server


@asynccontextmanager
async def listening(server, service, first, second):
    """Two clients that have called and listen, and what they hear."""
    async with (
        GrpcConnection(server.address, identity=first) as one,
        GrpcConnection(server.address, identity=second) as other,
    ):
        streams = []
        for connection in (one, other):
            await connection.call(CALL)
            streams.append(asyncio.ensure_future(next_of(connection)))
        await service.until(lambda: service.opened == 2)
        yield one, other, streams


async def pass_time(clock, seconds):
    """Let the watch look as often as it would."""
    clock.advance(seconds)
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("relay", ["on", "off"])
async def test_a_revoked_client_is_disconnected_within_a_minute_and_others_stay(
    deployment, revoked, relay
):
    clock, service = ManualClock(), Silent()
    gone, stays = deployment.client("gone"), deployment.client("stays")
    async with (
        serving(
            deployment, service, relay=relay, revoked=revoked, clock=clock
        ) as server,
        listening(server, service, gone, stays) as (one, other, streams),
    ):
        listed = gone.certificate_chain
        deployment.revoke(revoked.path, listed, number=2, now=clock.date())
        await pass_time(clock, LOOK_EVERY_SECONDS - 1)
        assert not service.ended
        await pass_time(clock, 1)
        await service.until(lambda: service.ended)  # without a call
        with pytest.raises(ServiceError):  # of the call, the connection, or the next
            await streams[0]
        for attempt in (one.call(CALL), next_of(one)):
            with pytest.raises(ServiceError, match="revoked") as caught:
                await attempt
            assert caught.value.code is ErrorCode.UNAUTHENTICATED
        if server.relay is not None:
            assert server.relay.refused[Rejection.REVOKED] == 1
        await other.call(CALL)
        # The same client, by a new certificate.
        again = deployment.client("gone")
        async with GrpcConnection(server.address, identity=again) as renewed:
            await renewed.call(CALL)
        streams[1].cancel()
    assert [who for who, _ in service.calls] == ["gone", "stays", "stays", "gone"]


@pytest.mark.parametrize("relay", ["on", "off"])
async def test_a_connection_ends_with_its_certificate(deployment, relay):
    """TLS has checked it when the connection was made, and does so no second time."""
    ends, lasts = deployment.client("ends"), deployment.longer_client("lasts")
    clock = ManualClock(date=ends.not_valid_after.timestamp() - 2 * LOOK_EVERY_SECONDS)
    service = Silent()
    async with (
        serving(deployment, service, relay=relay, clock=clock) as server,
        listening(server, service, ends, lasts) as (one, other, streams),
    ):
        await pass_time(clock, LOOK_EVERY_SECONDS)
        await one.call(CALL)
        assert not service.ended
        await pass_time(clock, LOOK_EVERY_SECONDS)
        await service.until(lambda: service.ended)  # without a call
        with pytest.raises(ServiceError):
            await streams[0]
        # Not UNAUTHENTICATED, after which a client would stay away for good.
        with pytest.raises(ServiceError, match="has expired") as caught:
            await one.call(CALL)
        assert caught.value.code is ErrorCode.UNREACHABLE
        if server.relay is not None:
            assert server.relay.refused[Rejection.REVOKED] == 1
        await other.call(CALL)
        streams[1].cancel()
    assert [who for who, _ in service.calls] == ["ends", "lasts", "ends", "lasts"]


@pytest.mark.parametrize("relay", ["on", "off"])
async def test_with_an_expired_revocation_list_no_certificate_is_accepted(
    deployment, revoked, relay
):
    clock, service = ManualClock(), Silent()
    first = deployment.longer_client("first")
    other = deployment.longer_client("other")
    revoked = replace(revoked, max_days=2 * LOOK_EVERY_SECONDS / 86_400)
    async with (
        serving(
            deployment, service, relay=relay, revoked=revoked, clock=clock
        ) as server,
        listening(server, service, first, other) as (one, _, streams),
    ):
        await pass_time(clock, LOOK_EVERY_SECONDS)
        await one.call(CALL)
        assert not service.ended
        await pass_time(clock, LOOK_EVERY_SECONDS)
        await service.until(lambda: service.ended == 2)  # no client had to call
        # Not UNAUTHENTICATED, after which a client would stay away for good.
        with pytest.raises(ServiceError, match=r"list of revoked .* expired") as caught:
            await one.call(CALL)
        assert caught.value.code is ErrorCode.UNREACHABLE
        deployment.revoke(revoked.path, number=2, now=clock.date())
        await pass_time(clock, LOOK_EVERY_SECONDS)
        await one.call(CALL)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


async def test_a_disconnected_client_can_reconnect(deployment):
    service = Silent()
    async with (
        serving(deployment, service, relay="on") as server,
        GrpcConnection(server.address, identity=deployment.client()) as connection,
    ):
        stream = asyncio.ensure_future(next_of(connection))
        await service.until(lambda: service.opened)
        server.end_clients(lambda name: name == "another-client")
        await connection.call(CALL)
        assert not service.ended
        server.end_clients(lambda name: name == "client-7")
        await service.until(lambda: service.ended)
        # It comes back at once; whether it may is for its task to say.
        await service.until(lambda: service.opened == 2)
        stream.cancel()


async def test_an_unreadable_revocation_list_prevents_the_start(deployment, tmp_path):
    with pytest.raises(ServiceError, match="cannot read") as caught:
        await GrpcServer.start(
            ScriptedService(),
            LOOPBACK,
            identity=deployment.server(),
            revoked=RevocationFile(path=tmp_path / "nowhere"),
        )
    assert caught.value.code is ErrorCode.BAD_CERTIFICATE
