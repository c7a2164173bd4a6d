"""The process of an aggregator: many tasks, one port, an operator's socket.

`run_process` serves an aggregator of any kind, `run_service` one that is alone.

Rule 1: everything that can be wrong before the first client comes is found before the
        port opens.
Rule 2: it ends when it is asked to, never by a count: with SIGTERM or SIGINT now, and
        sessions that are open wait on the disk; with SIGUSR1 or `drain --finish` when
        the sessions that have their cohort are over.

What is printed is decided by whoever calls.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from typing import Any, Final

from secagg.config import HostSettings, TaskSettings
from secagg.config.server import HostSection
from secagg.errors import InternalError
from secagg.protocol.messages import Round
from secagg.runtime.clock import SystemClock
from secagg.runtime.garbage import keep_what_is_loaded
from secagg.runtime.metrics import Meter, Meters
from secagg.server.admin.channel import admin_socket_of
from secagg.server.admin.control import ServedAggregator, TaskControl, View
from secagg.server.admin.socket import AdminSocket
from secagg.server.http.monitoring import (
    MonitoringEndpoints,
    exporter_of,
    meter_of,
    page_address,
    watching,
)
from secagg.server.operated_server import OperatedServer
from secagg.server.program import server_of
from secagg.server.rpc.certificate_watch import LOOK_EVERY_SECONDS
from secagg.server.rpc.grpc_server import run_until_signalled
from secagg.server.service_manager import ServiceManager
from secagg.server.session.progress import SessionProgress
from secagg.server.supervisor import TaskSupervisor
from secagg.transport.address import Address

_LOOK_EVERY_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Service:
    """An aggregator of any kind, open, and how a process runs it.

    Attributes:
        server: What is served.
        tasks: Acts on its tasks for an operator.
        start: Begins its tasks, and listens.
        failed: Waits until something ends the process; a restart continues.
        refresh: Reads once a minute what others may have published.
        close: Ends the tasks; sessions wait on the disk.
    """

    server: ServedAggregator
    tasks: TaskControl
    start: Callable[[], Awaitable[None]]
    failed: Callable[[], Awaitable[None]]
    close: Callable[[], Awaitable[None]]
    refresh: Callable[[], Awaitable[None]] | None = None


async def run_service(  # noqa: PLR0913 - who is told what, and what is run
    settings: HostSettings,
    proposed: Iterable[TaskSettings],
    *,
    own_task: str | None,
    listening: Callable[[Address], None],
    progress: Callable[[SessionProgress], None],
    tell: Callable[[str], None],
    check_task: Callable[[TaskSettings], object],
    manager: ServiceManager | None = None,
    accept_restored: bool = False,
) -> list[View]:
    """Run tasks until somebody ends it.

    Args:
        settings: Where to listen, where to store.
        proposed: Tasks of files; those that were added before run too.
        own_task: The one in the server's own file; None for none.
        listening: Called once with the address, when clients can connect.
        progress: Called with every change of a session.
        tell: Told in a sentence what becomes of tasks.
        check_task: Raises what speaks against a task beside these settings, such as a
            payload that is the key of the server; called on a thread.
        manager: What started the process, and wants to be told how it is.
        accept_restored: As for `Server`.

    Returns:
        What became of the tasks.

    Raises:
        ServiceError: BAD_SETTINGS, INFEASIBLE, BAD_CERTIFICATE, PORT_IN_USE,
            STATE_DAMAGED, RESTORED_STATE; STORAGE_FAILED also when the disk gives up:
            a restart goes on.
    """
    section = settings.server

    @asynccontextmanager
    async def opened(meter: Meter) -> AsyncIterator[Service]:
        keeper = TaskSupervisor(
            section.output_dir,
            section.state_dir,
            own_task=own_task,
            tell=tell,
            check_task=check_task,
        )
        server = server_of(
            OperatedServer,
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
        section, opened, listening=listening, tell=tell, manager=manager
    )


async def run_process(
    section: HostSection,
    opened: Callable[[Meter], AbstractAsyncContextManager[Service]],
    *,
    listening: Callable[[Address], None],
    tell: Callable[[str], None],
    manager: ServiceManager | None = None,
) -> list[View]:
    """Serve an aggregator of any kind until its operator or the system ends it.

    Args:
        section: Where operators and monitors find it.
        opened: Opens the aggregator; handed what takes its measurements.
        listening: Called once with the address, when clients can connect.
        tell: Told in a sentence where it can be watched.
        manager: What started the process, and wants to be told how it is.

    Returns:
        What became of the tasks.

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
        keep_what_is_loaded()
        try:
            async with (
                AdminSocket(
                    admin_socket_of(section),
                    server,
                    service.tasks,
                    state_dir=section.state_dir,
                    finish=ending.ask,
                ),
                watching(server, section, meter, manager=manager) as watched,
                _every_minute(service.refresh),
            ):
                _say_where(watched, tell)
                with ending.on_signal():
                    await service.start()
                    if server.transport is None:
                        raise InternalError("a server with an address listens")
                    await run_until_signalled(
                        server.transport,
                        _work(service, ending, open_to_clients),
                        drain=lambda: _drain(server),
                        grace_seconds=section.drain_seconds,
                    )
        finally:
            server.drain()
            await service.close()
        return await server.views(section.state_dir).tasks()


@asynccontextmanager
async def _every_minute(
    refresh: Callable[[], Awaitable[None]] | None,
) -> AsyncIterator[None]:
    """Call `refresh` once a minute, until the block is left."""
    if refresh is None:
        yield
        return
    clock = SystemClock()

    async def follow() -> None:
        while True:
            await clock.sleep_until(clock.now() + LOOK_EVERY_SECONDS)
            await refresh()

    following = asyncio.create_task(follow())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait({following})


def _say_where(watched: MonitoringEndpoints, tell: Callable[[str], None]) -> None:
    if watched.metrics is not None:
        tell(f"metrics at http://{watched.metrics}/metrics")
    if watched.page is not None:
        tell(f"the operator's page at http://{watched.page}/")


class _Ending:
    """Whether the process was asked to end, and whether at once."""

    def __init__(self, manager: ServiceManager) -> None:
        self._manager = manager
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()

    def ask(self, is_patient: bool) -> None:  # noqa: FBT001 - a callback's one word
        # Not STOPPING: that would begin the manager's countdown.
        self._manager.status("finishing sessions" if is_patient else "stopping")
        self.asked.set()
        if not is_patient:
            self.hurried.set()

    @contextmanager
    def on_signal(self) -> Iterator[None]:
        """Take SIGUSR1 for a patient question, until the block is left."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self.ask, True)  # noqa: FBT003 - patient
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGUSR1)


async def _work(
    service: Service, ending: _Ending, listening: Callable[[Address], None]
) -> None:
    server = service.server
    if server.transport is not None:
        listening(server.transport.address)  # now, and not before, a signal drains
    failing = asyncio.ensure_future(service.failed())
    try:
        await _first_of(failing, asyncio.ensure_future(ending.asked.wait()))
        if not failing.done():
            server.drain()
            await _first_of(
                failing,
                asyncio.ensure_future(ending.hurried.wait()),
                asyncio.ensure_future(_finish_sessions(server)),
            )
    finally:
        failing.cancel()


async def _first_of(
    failing: "asyncio.Future[None]", *others: "asyncio.Future[Any]"
) -> None:
    """Wait for the first of them, and let the others go."""
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
    """Wait until no session with a cohort is under way, and its clients know."""
    clock = SystemClock()
    # One that gathers its clients gets none any more: it waits on the disk.
    while any(
        live.progress.round is not Round.ADVERTISE_KEYS for live in server.live()
    ):
        await clock.sleep_until(clock.now() + _LOOK_EVERY_SECONDS)
    await server.settle()


async def _drain(server: ServedAggregator) -> None:
    server.drain()
