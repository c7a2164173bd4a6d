"""What orchestrators and Prometheus ask of any aggregator: three pages, and its health.

Rule 1: gRPC's health and /readyz say the same, because they ask the same.
"""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

from secagg.runtime.clock import Clock
from secagg.server.http.listener import Answer, Page, text
from secagg.server.http.readiness import LOOK_EVERY_SECONDS, Readiness
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.telemetry.prometheus import CONTENT_TYPE, PrometheusMeter, Reading


class Probes:
    """Answers probes and scrapes of one aggregator.

    Args:
        readiness: Whether it can serve.
        readings: Returns all gauges; told whether it can.
        meter: What it tells its measurements; None if nothing is measured.
    """

    def __init__(
        self,
        readiness: Readiness,
        readings: Callable[[bool], Awaitable[list[Reading]]],
        meter: PrometheusMeter | None,
    ) -> None:
        self._readiness = readiness
        self._readings = readings
        self._meter = meter

    @property
    def pages(self) -> Mapping[str, Page]:
        """What is served, by path."""
        return {
            "/metrics": self._metrics,
            "/healthz": self._alive,
            "/readyz": self._ready,
        }

    async def announce(
        self,
        transport: Callable[[], GrpcServer | None],
        clock: Clock,
        looked: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep gRPC's health true, until this is cancelled.

        Args:
            transport: Returns what says it; None while there is none.
            clock: Time.
            looked: Called after each look at a book that has answered.
        """
        while True:
            found = transport()
            if found is not None:
                await found.announce(is_ready=await self._is_ready())
                if self._readiness.store_answers:
                    looked()
            await clock.sleep_until(clock.now() + LOOK_EVERY_SECONDS)

    async def _is_ready(self) -> bool:
        return not await self._readiness.complaint()

    async def _metrics(self) -> Answer:
        if self._meter is None:
            return text("nothing is measured", HTTPStatus.NOT_FOUND)
        readings = await self._readings(await self._is_ready())
        return Answer(self._meter.scraped(readings), CONTENT_TYPE)

    async def _alive(self) -> Answer:
        return text("alive")

    async def _ready(self) -> Answer:
        complaint = await self._readiness.complaint()
        if complaint:
            return text(f"not ready: {complaint}", HTTPStatus.SERVICE_UNAVAILABLE)
        return text("ready")
