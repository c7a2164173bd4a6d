"""One aggregator of two on the network: the gRPC server of every other aggregator."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from secagg.server.rpc.grpc_server import GrpcServer
from secagg.transport.address import Address
from secagg.transport.tls import TLSIdentity
from secagg.two_aggregators.helper import Helper
from secagg.two_aggregators.leader import Leader


@asynccontextmanager
async def serving(
    party: Helper | Leader,
    address: Address,
    identity: TLSIdentity,
    *,
    health_address: Address | None = None,
    revoked: Path | None = None,
) -> AsyncIterator[GrpcServer]:
    """Load what an earlier process left, then answer calls over TLS.

    Args:
        party: The helper, or the leader.
        address: Where to listen; port 0 lets the system choose.
        identity: The aggregator's certificate. Its trust domain is the one whose
            clients are served, and at the helper the one whose authority has issued
            the leader a client's certificate under the leader's name.
        health_address: Answers health checks here too, in plaintext.
        revoked: File of certificates that were taken back, looked at once a minute.

    Yields:
        The server; its `address` has the real port.

    Raises:
        ServiceError: PORT_IN_USE, STORAGE_FAILED, STATE_DAMAGED or BAD_CERTIFICATE.
    """
    await party.recover()
    try:
        async with await GrpcServer.start(
            party,
            address,
            identity=identity,
            health_address=health_address,
            revoked=revoked,
        ) as server:
            yield server
    finally:
        party.close()
