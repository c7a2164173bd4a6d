"""What systemd hears of an aggregator, and what it must not believe."""

import asyncio
import os
import socket
from types import SimpleNamespace

import pytest
from secagg_testing import manual_clock

from secagg.config.server import ServerSection
from secagg.errors import ErrorCode, ServiceError
from secagg.server.http.readiness import PROBE_EVERY_SECONDS
from secagg.server.service import ServiceManager, watching


@pytest.fixture
def manager(tmp_path):
    """Listens as systemd does; `heard` has every datagram so far."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(0)

        def heard():
            lines = []
            while True:
                try:
                    lines.append(listener.recv(4096).decode())
                except BlockingIOError:
                    return lines

        yield SimpleNamespace(
            heard=heard, environment={"NOTIFY_SOCKET": str(tmp_path / "notify")}
        )


def test_the_service_manager_is_notified_when_clients_can_connect(manager):
    told = ServiceManager.from_environment(manager.environment)
    told.ready("listening on 0.0.0.0:7400")
    told.status("finishing sessions")
    told.alive()
    assert manager.heard() == [
        "READY=1\nSTATUS=listening on 0.0.0.0:7400",
        "STATUS=finishing sessions",
        "WATCHDOG=1",
    ]


def test_an_abstract_socket_is_notified_too():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("")  # Linux chooses an abstract name
        name = listener.getsockname().replace(b"\0", b"@").decode()
        ServiceManager.from_environment({"NOTIFY_SOCKET": name}).alive()
        listener.settimeout(10)
        assert listener.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize("socket_name", [None, "/nowhere/notify", "vsock:2:1"])
def test_an_absent_service_manager_is_no_error(socket_name):
    ServiceManager(socket_name).ready("listening")


@pytest.mark.parametrize(
    ("environment", "is_refused"),
    [
        ({"WATCHDOG_USEC": "30000000"}, False),
        ({"WATCHDOG_USEC": "14000000"}, True),
        ({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid())}, True),
        # Meant for a parent that left its environment to us.
        ({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, False),
    ],
)
def test_a_watchdog_interval_that_would_kill_a_healthy_process_is_rejected(
    environment, is_refused
):
    if not is_refused:
        ServiceManager.from_environment(environment)
        return
    with pytest.raises(ServiceError, match="expires") as caught:
        ServiceManager.from_environment(environment)
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    assert "WatchdogSec=15 " in caught.value.next_step


class Book:
    """Answers, refuses or hangs."""

    refuses = hangs = False

    async def read(self, _):
        return ()

    async def commit(self, _):
        if self.hangs:
            await asyncio.Event().wait()
        if self.refuses:
            raise ServiceError("disk full", code=ErrorCode.STORAGE_FAILED)


def test_watchdog_signals_stop_when_the_store_hangs_and_continue_when_it_rejects(
    manager, tmp_path
):
    store, announced = Book(), []

    async def announce(*, is_ready):
        announced.append(is_ready)

    server = SimpleNamespace(
        stores=(store,),
        may_open_sessions=lambda: True,
        transport=SimpleNamespace(announce=announce),
    )

    async def main(clock):
        section = ServerSection(state_dir=tmp_path)
        told = ServiceManager.from_environment(manager.environment)
        heard = []
        async with watching(server, section, None, manager=told, clock=clock):
            for store.refuses, store.hangs in (
                (False, False),
                (True, False),
                (False, True),
                (False, False),
            ):
                await clock.sleep_until(clock.now() + 3 * PROBE_EVERY_SECONDS)
                heard.append(manager.heard())
        return heard

    well, refusing, hanging, again = manual_clock.run(main)
    assert set(well) == set(refusing) == set(again) == {"WATCHDOG=1"}
    assert len(refusing) == 3  # a full disk is no reason to be killed
    assert len(hanging) <= 1  # the look under way when the disk stopped
    assert {True, False} == set(announced)
