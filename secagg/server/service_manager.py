"""What an aggregator tells the service manager that started it: systemd's protocol.

Rule 1: nothing is said where nobody asked; `NOTIFY_SOCKET` names who did.
Rule 2: telling never fails and never waits: a manager that does not listen is no
        reason to end sessions.
Rule 3: READY means that clients can connect.  WATCHDOG means that the loop turns and
        the book answers, if only to refuse: who restarts a process that hangs helps
        its clients, who restarts one with a full disk does not.

The protocol is that of sd_notify(3): lines in one datagram.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Self

from secagg.errors import ErrorCode
from secagg.server.http.readiness import LOOK_EVERY_SECONDS

# Two looks may be late before the manager loses its patience.
_LEAST_PATIENCE_SECONDS: Final = 3 * LOOK_EVERY_SECONDS


class ServiceManager:
    """Tells a service manager how the process is.

    Args:
        address: Of its datagram socket: a path, or "@" and an abstract name; None for
            nobody.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = None
        if address is not None and address.startswith(("/", "@")):
            self._address = address.replace("@", "\0", 1)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Return the manager that started this process, if one wants to be told.

        Args:
            environment: Of the process: NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID.

        Raises:
            ServiceError: BAD_SETTINGS; its patience is shorter than the time between
                two looks at the book, so that it would kill a sound process.
        """
        given = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        if given.isdecimal() and is_ours:
            seconds = int(given) / 1e6
            if seconds < _LEAST_PATIENCE_SECONDS:
                raise ErrorCode.BAD_SETTINGS.error(
                    f"the service manager waits {seconds:g} s for a sign of life, and "
                    f"the book is looked at every {LOOK_EVERY_SECONDS:g} s",
                    fix=f"Set WatchdogSec={_LEAST_PATIENCE_SECONDS:g} or more in "
                    "the unit.",
                )
        return cls(environment.get("NOTIFY_SOCKET"))

    def ready(self, status: str) -> None:
        """Say that clients can connect.

        Args:
            status: One line for `systemctl status`.
        """
        self._tell("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Say in one line what the process does."""
        self._tell(f"STATUS={status}")

    def alive(self) -> None:
        """Say that the process is worth keeping."""
        self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if self._address is None:
            return
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker,
        ):
            speaker.settimeout(0)
            speaker.sendto("\n".join(lines).encode(), self._address)
