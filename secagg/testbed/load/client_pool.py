"""A process with many clients: each a `secagg.Client` over TLS of its own.

Run as ``python -m secagg.testbed.load.client_pool DIRECTORY SERVER,... FIRST LAST``.

Rule 1: every client is the product's own, with a certificate and connections of its
        own.  They share the process, its event loop and its threads.  Their stores are
        in memory: the aggregator is measured.
Rule 2: a client that is to drop out vanishes when it is asked for its vector: it has
        shared its keys, sends nothing more, and closes its connection.
Rule 3: a client arrives when one before it has joined, so that a busy host makes them
        slower and not late.
Rule 4: a client that fails before it has joined ends the process with its error.  The
        session begins with the whole cohort, so it would wait for that client for ever.

A client connects to one at a time of several aggregators that share a store.  In
service, a name with several addresses, or a balancer of connections, does the same.
"""

import asyncio
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg import Client, ExactSumWaiver, SecAggError, SessionAbortedError, SessionInfo
from secagg.advanced import (
    NO_NOISE_ACKNOWLEDGEMENT,
    Address,
    ClientPhase,
    ClientProgress,
    GrpcConnection,
)
from secagg.testbed.child_process import report, report_failed, run_process
from secagg.testbed.connections import SpreadConnection
from secagg.testbed.load.result import TASK_ID, LoadLayout, LoadPlan, vector_of
from secagg.testbed.run_folder import client_name
from secagg.transport.handshake_limits import raise_file_limit

# Clients of one process that are joining the session (rule 3).
_ARRIVING: Final = 8
# For vectors and masks of all clients of a process, which wait for a core.
_THREADS: Final = 2


class _ClientPool:
    """The clients of this process.

    Args:
        layout: The files of the load test.
        servers: Addresses of the aggregators.
    """

    def __init__(self, layout: LoadLayout, servers: Sequence[Address]) -> None:
        self._layout = layout
        self._planned = LoadPlan.read(layout)
        self._servers = servers
        self._gate = asyncio.Semaphore(_ARRIVING)
        self._threads = ThreadPoolExecutor(_THREADS, "secagg-client-pool")
        self._errors: list[SecAggError] = []
        self._completed = 0

    async def run_clients(self, numbers: range) -> None:
        """Run all clients until each has its sum, has dropped out or has failed.

        Raises:
            SecAggError: That of a client that has not joined (rule 4); else that of the
                first client that failed, if none has its sum.
        """
        asyncio.get_running_loop().set_default_executor(self._threads)
        try:
            async with asyncio.TaskGroup() as group:
                for number in numbers:
                    await self._gate.acquire()
                    group.create_task(self._run_one(number))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        if self._errors and not self._completed:
            raise self._errors[0]

    async def _run_one(self, number: int) -> None:
        """Run one client, and report how it ended and what it sent."""
        layout, name = self._layout, client_name(number)
        identity = layout.identity(name)
        async with AsyncExitStack() as stack:
            ways = [
                await stack.enter_async_context(
                    GrpcConnection(server, identity=identity)
                )
                for server in self._servers
            ]
            connection = SpreadConnection(ways, number % len(ways))
            joined = asyncio.Event()
            see = stack.enter_context(arrival(self._gate, joined))
            try:
                await self._contribute(number, connection, see)
            except _VanishedError:
                report("lost", name=name, traffic=_traffic(connection))
            except SecAggError as error:
                report_failed(error, name=name, traffic=_traffic(connection))
                if not joined.is_set():
                    raise
                # The aggregator that aborts a session ends itself, and says why.
                if not isinstance(error, SessionAbortedError):
                    self._errors.append(error)

    async def _contribute(
        self,
        number: int,
        connection: SpreadConnection,
        on_progress: Callable[[ClientProgress], None],
    ) -> None:
        """Contribute the vector of one client; one that is to be lost vanishes."""
        planned = self._planned

        def make(_: SessionInfo) -> npt.NDArray[Any]:
            if planned.is_lost(number):
                raise _VanishedError
            return vector_of(number, planned.dimension)

        client = Client(
            connection,
            task=TASK_ID,
            privacy_limits=ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT),
            enrolment=self._layout.enrolment(
                client_name(number), planned.enrolment_key
            ),
            cohort=planned.policy(),
            attempts=1,
            wait_seconds=None,
            on_progress=on_progress,
            threads=self._threads,
        )
        async with client:
            given = await client.contribute(make)
        self._completed += 1
        values = np.asarray(given.values, dtype="<i8")
        report(
            "completed",
            name=client_name(number),
            sum_sha256=hashlib.sha256(values.tobytes()).hexdigest(),
            traffic=_traffic(connection),
        )


class _VanishedError(Exception):
    """A client has dropped out, an event of this process alone."""


@contextmanager
def arrival(
    gate: asyncio.Semaphore, joined: asyncio.Event
) -> Iterator[Callable[[ClientProgress], None]]:
    """Keep a place in the gate until its client has joined or dropped out.

    Args:
        gate: Released once.
        joined: Set when the client has joined.

    Yields:
        What receives the client's progress.
    """
    with ExitStack() as place:
        place.callback(gate.release)

        def release_place(progress: ClientProgress) -> None:
            if progress.joined or progress.phase is ClientPhase.SHARING:
                joined.set()
                place.close()

        yield release_place


def _traffic(connection: SpreadConnection) -> list[dict[str, list[int]]]:
    """Return calls, bytes up and bytes down, by aggregator and name of the call."""
    return [
        {
            name: [each.calls, each.bytes_sent, each.bytes_received]
            for name, each in way.traffic.items()
        }
        for way in connection.connections
    ]


if __name__ == "__main__":
    _, root, addresses, first, last = sys.argv
    raise_file_limit()
    pool = _ClientPool(
        LoadLayout(Path(root)), [Address.parse(each) for each in addresses.split(",")]
    )
    sys.exit(run_process(pool.run_clients(range(int(first), int(last) + 1))))
