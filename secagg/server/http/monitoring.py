"""What watches an aggregator from outside: metrics, probes, the operator's page.

Rule 1: probes and metrics name tasks at most; the page names clients, and is served to
        this machine alone.
Rule 2: what the service manager hears is what probes are told.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from secagg.config.server import HostSection
from secagg.errors import ErrorCode
from secagg.runtime.clock import Clock, SystemClock
from secagg.server.admin.control import ServedAggregator
from secagg.server.admin.page import operator_page
from secagg.server.admin.snapshot import StatusSnapshot
from secagg.server.http.listener import Answer, HTTPListener
from secagg.server.http.probes import Probes
from secagg.server.http.readiness import Readiness
from secagg.server.service_manager import ServiceManager
from secagg.server.telemetry.open_telemetry import OpenTelemetry
from secagg.server.telemetry.prometheus import PrometheusMeter
from secagg.transport.address import Address


@dataclass(frozen=True, slots=True)
class MonitoringEndpoints:
    """Where somebody may look; None where nobody asked for it.

    Attributes:
        metrics: /metrics, /healthz and /readyz.
        page: The operator's page.
    """

    metrics: Address | None = None
    page: Address | None = None


def meter_of(section: HostSection) -> PrometheusMeter | None:
    """Return what takes measurements, if somebody wants to read them.

    Raises:
        ServiceError: MISSING_EXTRA; prometheus-client is not installed.
    """
    return None if section.metrics_listen is None else PrometheusMeter()


def exporter_of(section: HostSection) -> OpenTelemetry | None:
    """Return what sends measurements and traces on, if somebody collects them.

    Raises:
        ServiceError: MISSING_EXTRA, or BAD_SETTINGS for an address that is none.
    """
    check_collector(section)
    return None if section.otlp is None else OpenTelemetry.to(section.otlp)


def check_collector(section: HostSection) -> None:
    """Refuse a collector that nothing could be sent to.

    Raises:
        ServiceError: As `exporter_of`.
    """
    if section.otlp is None:
        return
    parts = urlsplit(section.otlp)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
        raise ErrorCode.BAD_SETTINGS.error(
            "server.otlp is no address of a collector, or holds a password",
            fix="Write http://127.0.0.1:4318, or https:// beyond this machine.",
        )
    OpenTelemetry.packages()


def page_address(section: HostSection) -> Address | None:
    """Return where the operator's page is served, if anywhere.

    Raises:
        ServiceError: BAD_SETTINGS; other machines could read it.
    """
    given = section.page_listen
    if given is None:
        return None
    address = Address.parse(given, name="server.page_listen")
    if not address.is_loopback:
        raise ErrorCode.BAD_SETTINGS.error(
            f"server.page_listen {given} would show names of clients to other machines",
            fix="Listen on 127.0.0.1, and reach it with ssh -L.",
        )
    return address


class _Pages:
    """What the listeners answer."""

    def __init__(
        self,
        server: ServedAggregator,
        section: HostSection,
        meter: PrometheusMeter | None,
        clock: Clock,
    ) -> None:
        self._server = server
        self._overview = StatusSnapshot(server, section.state_dir)
        self._readiness = Readiness(
            server.stores,
            section.state_dir,
            server.runs_a_task,
            clock,
            is_store_elsewhere=section.store is not None,
        )
        self.probes = Probes(self._readiness, self._overview.readings, meter)

    async def operator(self) -> Answer:
        complaint = await self._readiness.complaint()
        shown = await operator_page(self._server, self._overview, complaint)
        return Answer(shown, "text/html; charset=utf-8")


@asynccontextmanager
async def watching(
    server: ServedAggregator,
    section: HostSection,
    meter: PrometheusMeter | None,
    *,
    manager: ServiceManager | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[MonitoringEndpoints]:
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

    async with AsyncExitStack() as stack:
        probed = shown = None
        if section.metrics_listen is not None:
            address = Address.parse(
                section.metrics_listen, name="server.metrics_listen"
            )
            listener = HTTPListener(address, pages.probes.pages, is_local=False)
            probed = (await stack.enter_async_context(listener)).address
        own = page_address(section)
        if own is not None:
            listener = HTTPListener(own, {"/": pages.operator}, is_local=True)
            shown = (await stack.enter_async_context(listener)).address
        # While tasks are planned, there is no transport.
        announcing = asyncio.ensure_future(
            pages.probes.announce(lambda: server.transport, clock, manager.alive)
        )
        try:
            yield MonitoringEndpoints(probed, shown)
        finally:
            announcing.cancel()
            await asyncio.wait({announcing})
