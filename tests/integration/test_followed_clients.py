"""A client's certificate that is renewed while it runs, over mutual TLS."""

import asyncio

import pytest
from secagg_testing.manual_clock import ManualClock
from secagg_testing.scripted_service import ScriptedService
from secagg_testing.tls_deployment import TLSDeployment

from secagg.client.grpc_connection import GrpcConnection
from secagg.errors import ErrorCode, ServiceError
from secagg.pki.certificate_revocations import RevocationFile
from secagg.server.rpc.certificates import LOOK_EVERY_SECONDS
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.transport.address import Address
from secagg.wire.calls import AdvertiseKeys, GetOffer, Wait

CALL, OFFER = AdvertiseKeys(bytes(32), b"advert"), GetOffer("t", 0)


def replace(files, issued):
    files.certificate.write_bytes(issued.certificate)
    files.private_key.write_bytes(issued.private_key)


async def test_a_renewed_certificate_is_used_by_the_next_session_only(
    tmp_path,
):
    deployment, clock = TLSDeployment(tmp_path), ManualClock()
    identity = deployment.client()
    revoked = tmp_path / "ca.crl"
    deployment.revoke(revoked, now=clock.date())
    service = ScriptedService({GetOffer: Wait(1.0)})
    async with (
        await GrpcServer.start(
            service,
            Address("127.0.0.1", 0),
            identity=deployment.server(),
            revoked=RevocationFile(path=revoked),
            clock=clock,
        ) as server,
        GrpcConnection(server.address, identity=identity) as connection,
    ):
        await connection.call(OFFER)
        replace(identity.files, deployment.ours.issue_client("client-7"))
        # Only the old one is refused, so that it shows which is presented.
        old = identity.certificate_chain
        deployment.revoke(revoked, old, number=2, now=clock.date())
        await connection.call(CALL)
        clock.advance(LOOK_EVERY_SECONDS)
        for _ in range(3):  # the server's watch takes its turn
            await asyncio.sleep(0)
        with pytest.raises(ServiceError) as caught:
            await connection.call(CALL)
        assert caught.value.code is ErrorCode.UNAUTHENTICATED
        aggregator = connection.aggregator
        await connection.call(OFFER)
        await connection.call(CALL)
        assert connection.certificate.certificate_chain != identity.certificate_chain
        assert connection.aggregator == aggregator
        # Half of a pair: the one before stays.
        issued = deployment.ours.issue_client("client-7")
        identity.files.certificate.write_bytes(issued.certificate)
        await connection.call(OFFER)
        await connection.call(CALL)
