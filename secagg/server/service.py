"""The process of an aggregator: its port, an operator's socket, metrics and probes.

`run_process` serves an aggregator of any kind, and `run_service` one aggregator with
its tasks. `serve` runs one task and ends with it, for scripts, demos and examples.

Rule 1: every error that can be found before the first client comes is found before the
        port opens: in settings, certificates, budget and storage.
Rule 2: the process ends on request, never by a count. After SIGTERM or SIGINT it ends
        now, and open sessions wait in the store. After SIGUSR1 or `drain --finish` it
        ends when the sessions that have their cohort are over.
Rule 3: a process of one task also ends when the task is done and the clients know it,
        at the latest `server.keep_seconds` later.  A task ends by its sums, its end
        date or its operator, never by clients that come too early.
Rule 4: sums that an earlier process released count towards the number wanted.  A task
        that has all its sums is not run again. If the process was killed right after
        the last sum, clients may not know the outcome: the port opens until they do.
Rule 5: probes and metrics name tasks at most. The page names clients, and is served to
        this machine alone.
Rule 6: gRPC's health, /readyz and the service manager state the same, from the same
        check.  The manager is notified by the protocol of sd_notify(3): lines in one
        datagram.  Notifying never fails and never waits, and is skipped where
        `NOTIFY_SOCKET` names no manager.
Rule 7: READY means that clients can connect.  WATCHDOG means that the loop runs and the
        store answers, if only to refuse. A restart repairs a process that hangs, but
        not a full disk.

The caller decides what is printed.
"""

import asyncio
import os
import signal
import socket
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.parse import urlsplit

from secagg.config import HostSettings, ServerSettings, TaskSettings
from secagg.config.files import identity_of
from secagg.config.server import HostSection
from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.pki.key_files import parse_key
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Round
from secagg.runtime.clock import Clock, SystemClock, background
from secagg.runtime.garbage import freeze_loaded
from secagg.runtime.metrics import Meter, Meters
from secagg.server.admin.channel import admin_socket_of
from secagg.server.admin.operations import ServedAggregator, TaskControl, View
from secagg.server.admin.page import operator_page
from secagg.server.admin.snapshot import StatusSnapshot
from secagg.server.admin.socket import AdminSocket
from secagg.server.http.listener import HTTPAnswer, HTTPListener, Page, text
from secagg.server.http.readiness import PROBE_EVERY_SECONDS, Readiness
from secagg.server.http_edge.listener import (
    EdgeOptions,
    check_origins,
    edge_packages,
    host_of,
)
from secagg.server.rpc.certificates import LOOK_EVERY_SECONDS
from secagg.server.rpc.grpc_server import run_until_signalled
from secagg.server.server import SETTLE_SECONDS, OperatedServer, RunningTask, Server
from secagg.server.session.events import SessionProgress
from secagg.server.session.report import SessionReceipt
from secagg.server.session.timer import at_end_date
from secagg.server.storage import open_storage
from secagg.server.supervisor import TaskSupervisor
from secagg.server.task.outputs import ReleasedSum
from secagg.server.task.setup import PreparedTask, settle_task
from secagg.server.telemetry.measures import CONTENT_TYPE, PrometheusMeter
from secagg.server.telemetry.open_telemetry import OpenTelemetry
from secagg.storage.rows import Retention
from secagg.transport.address import Address
from secagg.transport.peer_identity import Role

# Two checks may be late before the manager's watchdog expires.
_MIN_WATCHDOG_SECONDS: Final = 3 * PROBE_EVERY_SECONDS
_LOOK_EVERY_SECONDS: Final = 0.2


class ServiceManager:
    """Notifies a service manager of the state of the process.

    Args:
        address: Its datagram socket: a path, or "@" and an abstract name; None without
            a manager.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = None
        if address is not None and address.startswith(("/", "@")):
            self._address = address.replace("@", "\0", 1)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Return the manager that started this process, if it expects notifications.

        Args:
            environment: Environment of the process: NOTIFY_SOCKET, WATCHDOG_USEC,
                WATCHDOG_PID.

        Raises:
            ServiceError: BAD_SETTINGS; its watchdog time is shorter than the interval
                of the store checks, so it would kill a sound process.
        """
        given = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        if given.isdecimal() and is_ours:
            seconds = int(given) / 1e6
            if seconds < _MIN_WATCHDOG_SECONDS:
                raise ErrorCode.BAD_SETTINGS.error(
                    f"the service manager's watchdog expires after {seconds:g} s, and "
                    f"the store is checked every {PROBE_EVERY_SECONDS:g} s",
                    fix=f"Set WatchdogSec={_MIN_WATCHDOG_SECONDS:g} or more in "
                    "the unit.",
                )
        return cls(environment.get("NOTIFY_SOCKET"))

    def ready(self, status: str) -> None:
        """Notify that clients can connect.

        Args:
            status: One line for `systemctl status`.
        """
        self._send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """State in one line what the process does."""
        self._send(f"STATUS={status}")

    def alive(self) -> None:
        """Notify that the process is alive."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        """Send lines to systemd, where it listens."""
        if self._address is None:
            return
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker,
        ):
            speaker.settimeout(0)
            speaker.sendto("\n".join(lines).encode(), self._address)


@dataclass(frozen=True, slots=True)
class MonitoringEndpoints:
    """Holds the addresses of metrics and page; None where an endpoint is not served.

    Attributes:
        metrics: /metrics, /healthz and /readyz.
        page: The operator's page.
    """

    metrics: Address | None = None
    page: Address | None = None


def meter_of(section: HostSection) -> PrometheusMeter | None:
    """Return the meter that the settings ask for.

    Raises:
        ServiceError: MISSING_EXTRA; prometheus-client is not installed.
    """
    return None if section.metrics_listen is None else PrometheusMeter()


def exporter_of(section: HostSection) -> OpenTelemetry | None:
    """Return the exporter of measurements and traces that the settings ask for.

    Raises:
        ServiceError: MISSING_EXTRA, or BAD_SETTINGS for an invalid address.
    """
    check_collector(section)
    return None if section.otlp is None else OpenTelemetry.to(section.otlp)


def check_collector(section: HostSection) -> None:
    """Refuse the address of a collector that cannot be used.

    Raises:
        ServiceError: As `exporter_of`.
    """
    if section.otlp is None:
        return
    parts = urlsplit(section.otlp)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
        raise ErrorCode.BAD_SETTINGS.error(
            "server.otlp is not the address of a collector, or contains a password",
            fix="Write http://127.0.0.1:4318, or https:// beyond this machine.",
        )
    OpenTelemetry.packages()


def page_address(section: HostSection) -> Address | None:
    """Return the address of the operator's page, if it is served.

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
    """Answers probes, scrapes and the operator's browser."""

    def __init__(
        self,
        server: ServedAggregator,
        section: HostSection,
        meter: PrometheusMeter | None,
        clock: Clock,
    ) -> None:
        self._server = server
        self._meter = meter
        self._clock = clock
        self._overview = StatusSnapshot(server, section.state_dir)
        self._readiness = Readiness(
            server.stores,
            section.state_dir,
            server.may_open_sessions,
            clock,
            is_store_elsewhere=section.store is not None,
        )
        self.probed: Mapping[str, Page] = {
            "/metrics": self._metrics,
            "/healthz": self._alive,
            "/readyz": self._ready,
        }
        self.shown: Mapping[str, Page] = {"/": self._operator}

    async def announce(self, manager: ServiceManager) -> None:
        """Keep gRPC's health current, until this is cancelled.

        Args:
            manager: Notified after each check that the store answered.
        """
        while True:
            found = self._server.transport  # None while tasks are planned
            if found is not None:
                await found.announce(is_ready=await self._is_ready())
                if self._readiness.store_answers:
                    manager.alive()
            await self._clock.sleep_until(self._clock.now() + PROBE_EVERY_SECONDS)

    async def _is_ready(self) -> bool:
        return not await self._readiness.complaint()

    async def _metrics(self) -> HTTPAnswer:
        """Answer with the present measures."""
        if self._meter is None:
            return text("nothing is measured", HTTPStatus.NOT_FOUND)
        readings = await self._overview.readings(await self._is_ready())
        return HTTPAnswer(self._meter.scraped(readings), CONTENT_TYPE)

    async def _alive(self) -> HTTPAnswer:
        return text("alive")

    async def _ready(self) -> HTTPAnswer:
        """Answer whether the aggregator can serve clients."""
        complaint = await self._readiness.complaint()
        if complaint:
            return text(f"not ready: {complaint}", HTTPStatus.SERVICE_UNAVAILABLE)
        return text("ready")

    async def _operator(self) -> HTTPAnswer:
        complaint = await self._readiness.complaint()
        shown = await operator_page(self._overview.sources(), complaint)
        return HTTPAnswer(shown, "text/html; charset=utf-8")


@asynccontextmanager
async def watching(
    server: ServedAggregator,
    section: HostSection,
    meter: PrometheusMeter | None,
    *,
    manager: ServiceManager | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[MonitoringEndpoints]:
    """Answer probes, scrapes and the operator's browser, until the block is left.

    Args:
        server: The open server.
        section: Settings with the addresses.
        meter: Receives the server's measurements, from `meter_of`.
        manager: Notified every few seconds that the process is alive, if it is.
        clock: Time; the machine's by default.

    Yields:
        The addresses, with the real ports.

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
            listener = HTTPListener(address, pages.probed, is_local=False)
            probed = (await stack.enter_async_context(listener)).address
        own = page_address(section)
        if own is not None:
            listener = HTTPListener(own, pages.shown, is_local=True)
            shown = (await stack.enter_async_context(listener)).address
        await stack.enter_async_context(background(pages.announce(manager)))
        yield MonitoringEndpoints(probed, shown)


@dataclass(frozen=True, slots=True)
class Observer:
    """Holds the callbacks of a process.

    Attributes:
        listening: Called once with the address, when clients can connect.
        progress: Called with every change of a session.
        nothing_to_do: Called with a sentence when the task has all its sums and the
            port opens only for clients that missed the last one.
    """

    listening: Callable[[Address], None]
    progress: Callable[[SessionProgress], None]
    nothing_to_do: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServedTask:
    """Holds the result of the task in this process.

    Attributes:
        receipts: Sessions that released a sum, in order.
        is_complete: Whether the task has all its sums; False after a signal.
    """

    receipts: tuple[SessionReceipt, ...]
    is_complete: bool


async def plan_task(
    settings: ServerSettings, *, accept_restored: bool = False
) -> PreparedTask:
    """Plan the task of `settings`, or load its stored plan.

    Args:
        settings: Settings of the server.
        accept_restored: Accept, this once, that the state may be restored from a
            backup. Sessions that are open in it end, and their inputs count as summed.

    Raises:
        ServiceError: BAD_SETTINGS, INFEASIBLE, STORAGE_FAILED, STATE_DAMAGED, or
            RESTORED_STATE for a restored state.
    """
    storage = await open_storage(
        settings.server.state_dir,
        store_url=settings.server.store,
        mark=settings.server.rollback_mark,
        accept_restored=accept_restored,
        blobs=settings.server.blobs,
    )
    try:
        return await settle_task(
            settings.own_task, storage.store, reports=settings.server.state_dir
        )
    finally:
        await storage.close()


async def serve(  # noqa: PLR0913 - callbacks, and what is run
    settings: ServerSettings,
    prepared: PreparedTask,
    *,
    on_sum: Callable[[ReleasedSum], Awaitable[None]],
    observer: Observer,
    on_aborted: Callable[[SessionDescriptor, bytes], Awaitable[None]] | None = None,
    payload: Callable[[int], bytes] | None = None,
) -> ServedTask:
    """Run the task of `settings` to its end.

    Args:
        settings: Addresses, storage and invitations.
        prepared: The prepared task, from `plan_task`.
        on_sum: Called with each sum; repeated with the same session after a crash.
        observer: Holds the callbacks.
        on_aborted: As for `Server`.
        payload: As in `Server.add_task`.

    Returns:
        The sessions of this process.

    Raises:
        ServiceError: BAD_CERTIFICATE, PORT_IN_USE or STORAGE_FAILED. TASK_OVER for a
            task that had released all its sums before; clients that had missed the last
            one were informed first.
        SessionAbortedError: Too many attempts at one sum failed, or the end date came
            first: ROSTER_TOO_SMALL if a session was waiting for clients, else
            TASK_OVER.
    """
    server = server_of(
        settings.host, on_progress=observer.progress, on_aborted=on_aborted
    )
    async with server:
        freeze_loaded()
        task = await server.add_task(
            settings.task.id,
            prepared,
            steps=settings.task.steps,
            payload=payload,
            invited=frozenset(settings.task.invited) or None,
            attempts=settings.task.attempts,
        )
        if server.transport is None:
            raise ErrorCode.INTERNAL.error("a server with an address listens")
        is_over = task.released_before >= settings.task.steps
        spent = f"task {task.task_id!r} has released its {task.released_before} sums"
        if is_over:
            server.settle_seconds = min(server.settle_seconds, SETTLE_SECONDS)
            observer.nothing_to_do(
                f"{spent}; waiting at most {server.settle_seconds:g} seconds for "
                "clients that missed the last one"
            )
        receipts: list[SessionReceipt] = []

        async def deliver(released: ReleasedSum) -> None:
            await on_sum(released)
            receipts.append(released.receipt)

        ending = at_end_date(settings.task, partial(server.end_task, settings.task.id))
        async with background(ending):
            is_complete = await run_until_signalled(
                server.transport,
                _finish_task(server, task, deliver, observer),
                drain=lambda: _drain(server),
                grace_seconds=settings.server.drain_seconds,
            )
        server.drain()  # the transport has stopped, so no client is waited for
        if is_over:
            raise ErrorCode.TASK_OVER.error(
                f"{spent}; its budget is spent",
                fix="Choose a new task.id for a new series of sums.",
            )
        return ServedTask(tuple(receipts), is_complete)


def server_of(
    settings: HostSettings,
    *,
    accept_restored: bool = False,
    on_progress: Callable[[SessionProgress], None] | None = None,
    on_aborted: Callable[[SessionDescriptor, bytes], Awaitable[None]] | None = None,
) -> OperatedServer:
    """Return the server that settings describe, not yet open.

    Args:
        settings: Addresses and storage.
        accept_restored: As for `Server`.
        on_progress: As for `Server`.
        on_aborted: As for `Server`.

    Raises:
        ServiceError: BAD_CERTIFICATE or BAD_SETTINGS.
    """
    return OperatedServer(
        settings.server.listen,
        identity=identity_of(settings.tls, Role.SERVER),
        state_dir=settings.server.state_dir,
        store=settings.server.store,
        engine=settings.server.engine,
        blobs=settings.server.blobs,
        rollback_mark=settings.server.rollback_mark,
        accept_restored=accept_restored,
        health_listen=settings.server.health_listen,
        admission=settings.admission.limits(),
        revoked=settings.server.revoked,
        max_revocation_days=settings.server.max_revocation_days,
        edge=edge_options(settings),
        grace_seconds=settings.server.drain_seconds,
        keep_seconds=settings.server.keep_seconds,
        retention=Retention(
            keep_receipts_days=settings.server.keep_receipts_days,
            keep_receipts=settings.server.keep_receipts,
        ),
        on_progress=on_progress,
        on_aborted=on_aborted,
    )


def edge_options(settings: HostSettings) -> EdgeOptions | None:
    """Return the options of the HTTP edge; None without [edge].

    Raises:
        ServiceError: BAD_SETTINGS, naming the key that is missing or wrong; or
            MISSING_EXTRA.
    """
    edge, enrolment = settings.edge, settings.enrolment
    if edge.listen is None:
        return None
    edge_packages()
    if enrolment.enrolment_key is None:
        raise _incomplete(
            "enrolment.enrolment_key", "what `secagg pki enrol list` of the issuer says"
        )
    if edge.authority is None:
        raise _incomplete("edge.authority", "the host name by which clients call it")
    if edge.certificate is None or edge.private_key is None:
        key = "private_key" if edge.certificate else "certificate"
        raise _incomplete(f"edge.{key}", "a file of the certificate for that host name")
    Address.parse(edge.listen, name="edge.listen")
    host_of(edge.authority)
    check_origins(edge.origins)
    return EdgeOptions(
        listen=edge.listen,
        authority=edge.authority,
        certificate=edge.certificate,
        private_key=edge.private_key,
        trust_domain=enrolment.trust_domain,
        enrolment_key=parse_key(enrolment.enrolment_key),
        revocations=enrolment.revocations,
        origins=edge.origins,
        behind_proxy=edge.behind_proxy,
    )


def _incomplete(key: str, value: str) -> SecAggError:
    """Return the error of a setting that the HTTP edge lacks."""
    return ErrorCode.BAD_SETTINGS.error(
        f"{key} is missing, and edge.listen opens an HTTP edge",
        fix=f"Set it to {value}, or remove edge.listen.",
    )


async def _finish_task(
    server: Server,
    task: RunningTask,
    on_sum: Callable[[ReleasedSum], Awaitable[None]],
    observer: Observer,
) -> None:
    """Deliver all sums of a task, then wait until clients know the outcome."""
    observer.listening(server.address)  # only from now on a signal drains
    try:
        async for released in task.sums():
            await on_sum(released)
    except SecAggError as error:
        if isinstance(error, ServiceError):
            # The session is not over; it continues after a restart, which must not
            # wait.
            server.settle_seconds = min(server.settle_seconds, SETTLE_SECONDS)
        await server.settle()
        raise
    await server.settle()  # a signal that ends the loop skips this


@dataclass(frozen=True, slots=True)
class Service:
    """Holds an open aggregator of any kind, and how a process runs it.

    Attributes:
        server: The aggregator.
        tasks: Changes its tasks for an operator.
        start: Begins its tasks, and listens.
        failed: Waits until something ends the process; a restart continues.
        refresh: Reads once a minute what the issuer or other replicas have published.
        close: Ends the tasks; sessions wait in the store.
    """

    server: ServedAggregator
    tasks: TaskControl
    start: Callable[[], Awaitable[None]]
    failed: Callable[[], Awaitable[None]]
    close: Callable[[], Awaitable[None]]
    refresh: Callable[[], Awaitable[None]] | None = None


async def run_service(  # noqa: PLR0913 - callbacks, and what is run
    settings: HostSettings,
    proposed: Iterable[TaskSettings],
    *,
    own_task: str | None,
    listening: Callable[[Address], None],
    progress: Callable[[SessionProgress], None],
    notify: Callable[[str], None],
    check_task: Callable[[TaskSettings], object],
    manager: ServiceManager | None = None,
    accept_restored: bool = False,
) -> list[View]:
    """Run tasks until the operator or the system ends the process.

    Args:
        settings: Addresses and storage.
        proposed: Tasks of files; stored tasks run too.
        own_task: The task in the server's own file; None for none.
        listening: Called once with the address, when clients can connect.
        progress: Called with every change of a session.
        notify: Receives a sentence about each change of a task.
        check_task: Raises if a task does not fit these settings, such as a payload that
            is the key of the server; called on a thread.
        manager: The service manager that started the process, if it expects
            notifications.
        accept_restored: As for `Server`.

    Returns:
        The result of the tasks.

    Raises:
        ServiceError: BAD_SETTINGS, INFEASIBLE, BAD_CERTIFICATE, PORT_IN_USE,
            STATE_DAMAGED, RESTORED_STATE; STORAGE_FAILED also when the disk fails: a
            restart continues.
    """
    section = settings.server

    @asynccontextmanager
    async def opened(meter: Meter) -> AsyncIterator[Service]:
        keeper = TaskSupervisor(
            section.output_dir,
            section.state_dir,
            own_task=own_task,
            notify=notify,
            check_task=check_task,
        )
        server = server_of(
            settings,
            accept_restored=accept_restored,
            on_progress=progress,
            on_aborted=keeper.write_aborted,
        )
        server.measure_with(meter)
        async with server:
            yield Service(
                server,
                keeper,
                start=lambda: keeper.start(server, proposed),
                failed=keeper.failed,
                close=keeper.close,
                refresh=keeper.renew_lists,
            )

    return await run_process(
        section, opened, listening=listening, notify=notify, manager=manager
    )


async def run_process(
    section: HostSection,
    opened: Callable[[Meter], AbstractAsyncContextManager[Service]],
    *,
    listening: Callable[[Address], None],
    notify: Callable[[str], None],
    manager: ServiceManager | None = None,
) -> list[View]:
    """Serve an aggregator of any kind until its operator or the system ends it.

    Args:
        section: Settings with the addresses for operators and monitors.
        opened: Opens the aggregator, with the meter for its measurements.
        listening: Called once with the address, when clients can connect.
        notify: Receives a sentence about each monitoring address.
        manager: The service manager that started the process, if it expects
            notifications.

    Returns:
        The result of the tasks.

    Raises:
        SecAggError: As `opened` and `Service`; BAD_SETTINGS for a page that other
            machines could read.
    """
    meter, exporter = meter_of(section), exporter_of(section)
    meters = Meters([each for each in (meter, exporter) if each is not None])
    manager = manager or ServiceManager()
    ending = _Ending(manager)
    page_address(section)  # rule 1

    def open_to_clients(address: Address) -> None:
        listening(address)
        manager.ready(f"listening on {address}")

    async with exporter or nullcontext(), opened(meters) as service:
        server = service.server
        freeze_loaded()
        try:
            async with (
                AdminSocket(
                    admin_socket_of(section),
                    server,
                    service.tasks,
                    state_dir=section.state_dir,
                    finish=ending.request,
                ),
                watching(server, section, meter, manager=manager) as watched,
                nullcontext()
                if service.refresh is None
                else background(_every_minute(service.refresh)),
            ):
                _log_addresses(watched, notify)
                with ending.on_signal():
                    await service.start()
                    if server.transport is None:
                        raise ErrorCode.INTERNAL.error(
                            "a server with an address listens"
                        )
                    await run_until_signalled(
                        server.transport,
                        _serve_until_stopped(service, ending, open_to_clients),
                        drain=lambda: _drain(server),
                        grace_seconds=section.drain_seconds,
                    )
        finally:
            server.drain()
            await service.close()
        return await server.views(section.state_dir).tasks()


async def _every_minute(refresh: Callable[[], Awaitable[None]]) -> None:
    """Call `refresh` once a minute, without end."""
    clock = SystemClock()
    while True:
        await clock.sleep_until(clock.now() + LOOK_EVERY_SECONDS)
        await refresh()


def _log_addresses(watched: MonitoringEndpoints, notify: Callable[[str], None]) -> None:
    """Report the addresses of the pages."""
    if watched.metrics is not None:
        notify(f"metrics at http://{watched.metrics}/metrics")
    if watched.page is not None:
        notify(f"the operator's page at http://{watched.page}/")


class _Ending:
    """Records whether the process was asked to end, and whether at once."""

    def __init__(self, manager: ServiceManager) -> None:
        self._manager = manager
        self.requested = asyncio.Event()
        self.forced = asyncio.Event()

    def request(self, is_patient: bool) -> None:  # noqa: FBT001 - a callback's one argument
        # STOPPING is not sent: it would start the manager's stop timeout.
        self._manager.status("finishing sessions" if is_patient else "stopping")
        self.requested.set()
        if not is_patient:
            self.forced.set()

    @contextmanager
    def on_signal(self) -> Iterator[None]:
        """Handle SIGUSR1 as a request to finish sessions, until the block is left."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self.request, True)  # noqa: FBT003 - args
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGUSR1)


async def _serve_until_stopped(
    service: Service, ending: _Ending, listening: Callable[[Address], None]
) -> None:
    """Serve until a stop is asked for, then finish or drop the sessions."""
    server = service.server
    if server.transport is not None:
        listening(server.transport.address)  # only from now on a signal drains
    failing = asyncio.ensure_future(service.failed())
    try:
        await _first_of(failing, asyncio.ensure_future(ending.requested.wait()))
        if not failing.done():
            server.drain()
            await _first_of(
                failing,
                asyncio.ensure_future(ending.forced.wait()),
                asyncio.ensure_future(_finish_sessions(server)),
            )
    finally:
        failing.cancel()


async def _first_of(
    failing: "asyncio.Future[None]", *others: "asyncio.Future[Any]"
) -> None:
    """Wait until one of them ends, and cancel the others."""
    ends: set[asyncio.Future[Any]] = {failing, *others}
    try:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in others:
            each.cancel()
        await asyncio.wait(others)
    for each in done:
        each.result()


async def _finish_sessions(server: ServedAggregator) -> None:
    """Wait until no session with a cohort is open, and its clients know its end."""
    clock = SystemClock()
    # A session that gathers its clients gets no more clients: it waits in the store.
    while any(
        live.progress.round is not Round.ADVERTISE_KEYS for live in server.live()
    ):
        await clock.sleep_until(clock.now() + _LOOK_EVERY_SECONDS)
    await server.settle()


async def _drain(server: ServedAggregator) -> None:
    server.drain()
