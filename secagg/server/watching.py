"""What watches an aggregator from outside: metrics, probes, the operator's page.

Rule 1: probes and metrics name tasks at most; the page names clients, and is served to
        this machine alone.
Rule 2: gRPC's health and /readyz say the same, because they ask the same; so does what
        the service manager hears.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from secagg.config.server import ServerSection
from secagg.errors import ErrorCode, ServiceError
from secagg.runtime.clock import Clock, SystemClock
from secagg.server.http_listener import Answer, HTTPListener, Page, text
from secagg.server.open_telemetry import OpenTelemetry
from secagg.server.operated_server import OperatedServer
from secagg.server.operator_page import operator_page
from secagg.server.overview import Overview
from secagg.server.prometheus_meter import CONTENT_TYPE, PrometheusMeter
from secagg.server.readiness import LOOK_EVERY_SECONDS, Readiness
from secagg.server.service_manager import ServiceManager
from secagg.transport.address import Address

__all__ = ["Watched", "exporter_of", "meter_of", "page_address", "watching"]


@dataclass(frozen=True, slots=True)
class Watched:
    """Where somebody may look; None where nobody asked for it.

    Attributes:
        metrics: /metrics, /healthz and /readyz.
        page: The operator's page.
    """

    metrics: Address | None = None
    page: Address | None = None


def meter_of(section: ServerSection) -> PrometheusMeter | None:
    """Return what takes measurements, if somebody wants to read them.

    Raises:
        ServiceError: MISSING_EXTRA; prometheus-client is not installed.
    """
    return None if section.metrics_listen is None else PrometheusMeter()


def exporter_of(section: ServerSection) -> OpenTelemetry | None:
    """Return what sends measurements and traces on, if somebody collects them.

    Raises:
        ServiceError: MISSING_EXTRA, or BAD_SETTINGS for an address that is none.
    """
    if section.otlp is None:
        return None
    parts = urlsplit(section.otlp)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
        raise ServiceError(
            "server.otlp is no address of a collector, or holds a password",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Write http://127.0.0.1:4318, or https:// beyond this machine.",
        )
    return OpenTelemetry.to(section.otlp)


def page_address(section: ServerSection) -> Address | None:
    """Return where the operator's page is served, if anywhere.

    Raises:
        ServiceError: BAD_SETTINGS; other machines could read it.
    """
    given = section.page_listen
    if given is None:
        return None
    address = Address.parse(given, name="server.page_listen")
    if not address.is_loopback:
        raise ServiceError(
            f"server.page_listen {given} would show names of clients to other machines",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Listen on 127.0.0.1, and reach it with ssh -L.",
        )
    return address


class _Pages:
    """What the listeners answer."""

    def __init__(
        self,
        server: OperatedServer,
        section: ServerSection,
        meter: PrometheusMeter | None,
        clock: Clock,
    ) -> None:
        self._server = server
        self._meter = meter
        self._overview = Overview(server, section.state_dir)
        self._readiness = Readiness(
            server.storage.book,
            section.state_dir,
            server.runs_a_task,
            clock,
            is_book_elsewhere=section.store is not None,
        )

    async def is_ready(self) -> bool:
        return not await self._readiness.complaint()

    @property
    def book_answers(self) -> bool:
        return self._readiness.book_answers

    async def metrics(self) -> Answer:
        if self._meter is None:
            return text("nothing is measured", HTTPStatus.NOT_FOUND)
        readings = await self._overview.readings(is_ready=await self.is_ready())
        return Answer(self._meter.scraped(readings), CONTENT_TYPE)

    async def alive(self) -> Answer:
        return text("alive")

    async def ready(self) -> Answer:
        complaint = await self._readiness.complaint()
        if complaint:
            return text(f"not ready: {complaint}", HTTPStatus.SERVICE_UNAVAILABLE)
        return text("ready")

    async def operator(self) -> Answer:
        complaint = await self._readiness.complaint()
        shown = await operator_page(self._server, self._overview, complaint)
        return Answer(shown, "text/html; charset=utf-8")


@asynccontextmanager
async def watching(
    server: OperatedServer,
    section: ServerSection,
    meter: PrometheusMeter | None,
    *,
    manager: ServiceManager | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Watched]:
    """Answer whoever watches, until the block is left.

    Args:
        server: Open.
        section: Where to listen.
        meter: What the server tells its measurements, from `meter_of`.
        manager: Told every few seconds that the process is alive, if it is.
        clock: Time; the machine's by default.

    Yields:
        Where to look, with the real ports.

    Raises:
        ServiceError: PORT_IN_USE or BAD_SETTINGS.
    """
    clock, manager = clock or SystemClock(), manager or ServiceManager()
    pages = _Pages(server, section, meter, clock)

    async def announce() -> None:
        while True:
            if server.transport is not None:  # while tasks are planned, there is none
                await server.transport.announce(is_ready=await pages.is_ready())
                if pages.book_answers:
                    manager.alive()
            await clock.sleep_until(clock.now() + LOOK_EVERY_SECONDS)

    async with AsyncExitStack() as stack:
        probed = shown = None
        if section.metrics_listen is not None:
            address = Address.parse(
                section.metrics_listen, name="server.metrics_listen"
            )
            answers: Mapping[str, Page] = {
                "/metrics": pages.metrics,
                "/healthz": pages.alive,
                "/readyz": pages.ready,
            }
            listener = HTTPListener(address, answers, is_local=False)
            probed = (await stack.enter_async_context(listener)).address
        own = page_address(section)
        if own is not None:
            listener = HTTPListener(own, {"/": pages.operator}, is_local=True)
            shown = (await stack.enter_async_context(listener)).address
        announcing = asyncio.ensure_future(announce())
        try:
            yield Watched(probed, shown)
        finally:
            announcing.cancel()
            await asyncio.wait({announcing})
