"""A process with many clients: each a `secagg.Client` over TLS of its own.

Run as ``python -m secagg.testbed.load.client_pool DIRECTORY SERVER,... FIRST LAST``.

Rule 1: every client is the product's own, with a certificate and connections of its
        own.  They share the process, its event loop and its threads.  Their stores are
        in memory: the aggregator is measured.
Rule 2: a client that is to drop out vanishes when it is asked for its vector: it has
        shared its keys, sends nothing more, and closes its connection.
Rule 3: a client arrives when one before it has joined, so that a busy host makes them
        slower and not late.

A client connects to one at a time of several aggregators that share a store.  In
service, a name with several addresses, or a balancer of connections, does the same.
"""

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from secagg import (
    Client,
    ExactSumWaiver,
    SecAggError,
    SessionInfo,
)
from secagg.advanced import (
    NO_NOISE_ACKNOWLEDGEMENT,
    Address,
    ClientPhase,
    ClientProgress,
    GrpcConnection,
)
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.messages import Envelope
from secagg.testbed.child_process import (
    allow_all_files,
    run_process,
    say,
    say_failed,
)
from secagg.testbed.load.plan import TASK_ID, LoadLayout, LoadPlan, vector_of
from secagg.testbed.run_folder import client_name
from secagg.wire.calls import Reference, Request, Wait, WatchSession

_Answer = TypeVar("_Answer")

# A busy aggregator may fail one call, so one failure is not enough.
_FAILURES_OF_ONE: Final = 3
_MAY_BE_GONE: Final = frozenset({ErrorCode.UNREACHABLE, ErrorCode.SHUTTING_DOWN})


class SpreadConnection:
    """An `AggregatorConnection` that changes its aggregator when that fails.

    The caller repeats a failed call: this class only directs the next attempt to
    another aggregator.

    Args:
        ways: A connection to each aggregator.
        first: Index of the one to begin with.

    Attributes:
        ways: As given.
    """

    def __init__(self, ways: Sequence[GrpcConnection], first: int) -> None:
        self.ways: Final = tuple(ways)
        self._at = first
        self._failures = 0

    @property
    def identity(self) -> str:
        """The caller of all calls."""
        return self.ways[self._at].identity

    @property
    def aggregator(self) -> str:
        """The name that all aggregators share."""
        return self.ways[self._at].aggregator

    async def meet(self) -> str:
        """Return the aggregator that answers now."""
        try:
            return await self.ways[self._at].meet()
        except ServiceError as error:
            self._note_failure(error)
            raise

    @property
    def trust_domain(self) -> str | None:
        """Of all of them, which have one authority."""
        return self.ways[self._at].trust_domain

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Pass the call to the present aggregator."""
        try:
            answer = await self.ways[self._at].call(request)
        except ServiceError as error:
            self._note_failure(error)
            raise
        self._failures = 0
        return answer

    async def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Yield the updates of the present aggregator."""
        try:
            async for update in self.ways[self._at].watch(request):
                self._failures = 0
                yield update
        except ServiceError as error:
            self._note_failure(error)
            raise

    def _note_failure(self, error: ServiceError) -> None:
        """Change to the next aggregator when this one fails repeatedly."""
        if error.code not in _MAY_BE_GONE:
            return
        self._failures += 1
        if self._failures >= _FAILURES_OF_ONE:
            self._failures = 0
            self._at = (self._at + 1) % len(self.ways)


# Clients of one process that are joining the session (rule 3).
_ARRIVING: Final = 8
# For vectors and masks of all clients of a process, which wait for a core.
_THREADS: Final = 2


def main(directory: str, servers: str, first: str, last: str) -> int:
    """Let the clients of this process take part in one session.

    Args:
        directory: Of the load test.
        servers: Addresses of the aggregators, with commas between them.
        first: Number of the first client.
        last: Number of the last one.
    """
    allow_all_files()
    pool = _ClientPool(
        LoadLayout(Path(directory)), list(map(Address.parse, servers.split(",")))
    )
    return run_process(pool.take_part(range(int(first), int(last) + 1)))


class _ClientPool:
    """The clients of this process."""

    def __init__(self, layout: LoadLayout, servers: Sequence[Address]) -> None:
        self._layout = layout
        self._planned = LoadPlan.read(layout)
        self._servers = servers
        self._gate = asyncio.Semaphore(_ARRIVING)
        self._threads = ThreadPoolExecutor(_THREADS, "secagg-client-pool")
        self._errors: list[SecAggError] = []
        self._completed = 0

    async def take_part(self, numbers: range) -> None:
        """Run all clients until each has its sum, has dropped out or has failed.

        Raises:
            SecAggError: That of the first client that failed, if none has its sum.
        """
        asyncio.get_running_loop().set_default_executor(self._threads)
        async with asyncio.TaskGroup() as group:
            for number in numbers:
                await self._gate.acquire()
                group.create_task(self._run_one(number))
        if self._errors and not self._completed:
            raise self._errors[0]

    async def _run_one(self, number: int) -> None:
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
            arriving = stack.enter_context(_Arrival(self._gate))
            try:
                await self._contribute(number, connection, arriving)
            except _VanishedError:
                say("lost", name=name, traffic=_traffic(connection))
            except SecAggError as error:
                self._errors.append(error)
                say_failed(error, name=name, traffic=_traffic(connection))

    async def _contribute(
        self, number: int, connection: SpreadConnection, arriving: "_Arrival"
    ) -> None:
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
            on_progress=arriving.see,
            threads=self._threads,
        )
        async with client:
            given = await client.contribute(make)
        self._completed += 1
        values = np.asarray(given.values, dtype="<i8")
        say(
            "completed",
            name=client_name(number),
            sum_sha256=hashlib.sha256(values.tobytes()).hexdigest(),
            traffic=_traffic(connection),
        )


class _VanishedError(Exception):
    """A client has dropped out, an event of this process alone."""


class _Arrival:
    """Keeps a place in the gate until its client has joined or dropped out."""

    def __init__(self, gate: asyncio.Semaphore) -> None:
        self._gate = gate
        self._has_passed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pass()

    def see(self, progress: ClientProgress) -> None:
        """Receive the client's present action."""
        if progress.joined or progress.phase is ClientPhase.SHARING:
            self._pass()

    def _pass(self) -> None:
        if not self._has_passed:
            self._has_passed = True
            self._gate.release()


def _traffic(connection: SpreadConnection) -> list[dict[str, list[int]]]:
    """Return calls, bytes up and bytes down, by aggregator and name of the call."""
    return [
        {
            name: [each.calls, each.bytes_sent, each.bytes_received]
            for name, each in way.traffic.items()
        }
        for way in connection.ways
    ]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
