"""What watches one aggregator of two from outside: metrics and probes.

The same pages under the same names as of every other aggregator; there is no operator's
page, and no admin socket.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from secagg.errors import ServiceError
from secagg.runtime.clock import Clock
from secagg.server.http.listener import HTTPListener
from secagg.server.http.probes import Probes
from secagg.server.http.readiness import Readiness
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.storage import ServerStorage
from secagg.server.telemetry.process_metrics import process_readings
from secagg.server.telemetry.prometheus import PrometheusMeter, Reading
from secagg.transport.address import Address
from secagg.two_aggregators.helper import Helper
from secagg.two_aggregators.leader import Leader


@asynccontextmanager
async def watching(  # noqa: PLR0913 - a party, and what is said of its process
    party: Helper | Leader,
    server: GrpcServer,
    *,
    storage: ServerStorage,
    state_dir: Path,
    listen: Address | None,
    meter: PrometheusMeter | None,
    clock: Clock,
) -> AsyncIterator[Address | None]:
    """Answer whoever watches, until the block is left.

    Args:
        party: The helper, or the leader.
        server: What serves it; its health says from now on whether it can.
        storage: Its book.
        state_dir: Whose disk is watched.
        listen: Where /metrics, /healthz and /readyz are; None for nowhere.
        meter: What the party tells its measurements.
        clock: Time.

    Yields:
        Where they are, with the real port.

    Raises:
        ServiceError: PORT_IN_USE.
    """

    async def readings(is_ready: bool) -> list[Reading]:  # noqa: FBT001 - a page hands it on
        found = process_readings(server.identity, server, state_dir, is_ready=is_ready)
        with suppress(ServiceError):  # whoever scrapes hears that nothing is ready
            found += await party.readings()
        return found

    readiness = Readiness(storage.store, state_dir, lambda: party.may_serve, clock)
    probes = Probes(readiness, readings, meter)
    async with AsyncExitStack() as stack:
        address = None
        if listen is not None:
            listener = HTTPListener(listen, probes.pages, is_local=False)
            address = (await stack.enter_async_context(listener)).address
        announcing = asyncio.ensure_future(probes.announce(lambda: server, clock))
        try:
            yield address
        finally:
            announcing.cancel()
            await asyncio.wait({announcing})
