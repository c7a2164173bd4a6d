"""Check that this host can hold a load test, before anything is started.

Rule 1: what is refused is refused with both numbers: what it takes and what there is.
Rule 2: the figures per client are upper ones of what was measured with 1000 clients
        (docs/performance.md); a machine that says nothing about itself is believed.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from secagg.errors import ErrorCode, SecAggError
from secagg.storage.spool import MIN_FREE_BYTES
from secagg.testbed.load.result import LoadPlan
from secagg.transport.handshake_limits import raise_file_limit

# One event loop serves these without making them wait for each other; more processes
# than cores only take memory.
_CLIENTS_PER_CORE: Final = 250
_CLIENTS_PER_PROCESS: Final = 1000

_MIB: Final = 1 << 20
# Of a process before its first client: libraries, logs, its store.
_FILES_OF_A_PROCESS: Final = 64
# A connection and a handshake beside it; on one machine no relay stands before them.
_FILES_PER_CLIENT: Final = 2
_BYTES_OF_A_PROCESS: Final = 120 * _MIB
# TLS and HTTP/2 at both ends, and the client's state.
_BYTES_PER_CLIENT: Final = _MIB
# Bundles of one pair: in the aggregator's memory, and on its way.
_BYTES_PER_PAIR: Final = 600
# A client's vector, its masked form, packed, and the sum that it decodes.
_BYTES_PER_ENTRY: Final = 32


@dataclass(frozen=True, slots=True)
class Machine:
    """Available resources; None for what the system does not report.

    Attributes:
        files: Files that one process may have open.
        memory_bytes: That are free, caches included.
        disk_bytes: Free where the files of the test will lie.
    """

    files: int
    memory_bytes: int | None
    disk_bytes: int

    @classmethod
    def detect(cls, directory: Path) -> Self:
        """Return the resources of this host."""
        disk = shutil.disk_usage(directory)
        return cls(raise_file_limit(), _free_memory(), disk.free)


def pools_of(planned: LoadPlan, cores: int) -> int:
    """Return how many processes hold the clients.

    Args:
        planned: How many clients.
        cores: Of the machine.
    """
    return max(
        -(-planned.clients // _CLIENTS_PER_PROCESS),
        min(cores, -(-planned.clients // _CLIENTS_PER_CORE)),
    )


def check_machine(planned: LoadPlan, machine: Machine) -> None:
    """Refuse a load test that the host cannot hold.

    Raises:
        ServiceError: OVERLOADED, with what it takes and what is available.
    """
    processes = planned.servers + pools_of(planned, os.cpu_count() or 1)
    of_one = -(-planned.clients // planned.servers)
    files = _FILES_OF_A_PROCESS + _FILES_PER_CLIENT * of_one
    neighbours = planned.degree or planned.clients - 1
    memory = (
        processes * _BYTES_OF_A_PROCESS
        + planned.clients * _BYTES_PER_CLIENT
        + planned.servers * planned.clients * neighbours * _BYTES_PER_PAIR
        + planned.clients * planned.dimension * _BYTES_PER_ENTRY
    )
    disk = MIN_FREE_BYTES + planned.clients * (
        planned.packed_bytes + neighbours * _BYTES_PER_PAIR
    )
    if files > machine.files:
        raise _too_large(
            f"the aggregator may need {files:,} open files, a process may have "
            f"{machine.files:,}",
            "Raise the limit of open files (ulimit -n), or take fewer --clients.",
        )
    if machine.memory_bytes is not None and memory > machine.memory_bytes:
        raise _too_large(
            f"aggregator and clients may need {memory // _MIB:,} MiB of memory, "
            f"{machine.memory_bytes // _MIB:,} MiB are free",
            "Take fewer --clients or a smaller --dimension.",
        )
    if disk > machine.disk_bytes:
        raise _too_large(
            f"the uploads may need {disk // _MIB:,} MiB of disk, "
            f"{machine.disk_bytes // _MIB:,} MiB are free",
            "Take fewer --clients or a smaller --dimension, or set TMPDIR to a larger "
            "disk.",
        )


def _too_large(complaint: str, next_step: str) -> SecAggError:
    return ErrorCode.OVERLOADED.error(
        f"this host cannot hold the load test: {complaint}", fix=next_step
    )


def _free_memory() -> int | None:
    """Return the bytes that can be had, by Linux's and a container's account."""
    free: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free += [
            1024 * int(line.split()[1])
            for line in lines
            if line.startswith("MemAvailable:")
        ]
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = (group / "memory.current").read_text(encoding="ascii").strip()
        if limit != "max":
            free.append(int(limit) - int(used))
    except OSError:
        pass  # another system, or no container
    return min(free, default=None)
