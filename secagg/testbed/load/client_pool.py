"""A process with many clients: each a `secagg.Client` over TLS of its own.

Run as ``python -m secagg.testbed.load.client_pool DIRECTORY SERVER,... FIRST LAST
...``.

Rule 1: every client is the product's own, with a certificate and connections of its
        own.  They share the process, its event loop and its threads.  Their stores are
        in memory: the aggregator is measured.
Rule 2: a client that is to drop out vanishes when it is asked for its vector: it has
        shared its keys, sends nothing more, and closes its connection.
Rule 3: a client arrives when one before it has joined, so that a busy host makes them
        slower and not late.
"""

import argparse
import asyncio
import hashlib
import resource
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from secagg import (
    Client,
    ExactSumWaiver,
    Profile,
    SecAggError,
    SessionInfo,
    TLSIdentity,
)
from secagg.advanced import (
    NO_NOISE_ACKNOWLEDGEMENT,
    Address,
    ClientEnrolment,
    ClientPhase,
    ClientProgress,
    GrpcConnection,
    Role,
)
from secagg.testbed.child_process import say, say_failed
from secagg.testbed.load.connection import SpreadConnection
from secagg.testbed.load.layout import TASK_ID, LoadLayout
from secagg.testbed.load.plan import LoadPlan
from secagg.testbed.load.vectors import vector_of
from secagg.testbed.run_folder import client_name

# Clients of one process that are joining the session (rule 3).
_ARRIVING: Final = 8
# For vectors and masks of all clients of a process, which wait for a core.
_THREADS: Final = 2


def main(arguments: Sequence[str]) -> int:
    """Let all clients of this process take part in one session."""
    parser = argparse.ArgumentParser(prog="secagg.testbed.load.client_pool")
    parser.add_argument("directory", type=Path)
    parser.add_argument("servers", type=_addresses)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--dimension", type=int, required=True)
    parser.add_argument("--degree", type=int, required=True)
    parser.add_argument("--lost", type=int, required=True)
    parser.add_argument("--round-seconds", type=int, required=True)
    parser.add_argument("--profile", type=Profile.from_label, required=True)
    parser.add_argument("--enrolment-key", default="")
    given = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    pool = _ClientPool(
        LoadLayout(given.directory),
        LoadPlan(
            clients=given.clients,
            dimension=given.dimension,
            degree=given.degree,
            lost=given.lost,
            round_seconds=given.round_seconds,
            profile=given.profile,
        ),
        given.servers,
        given.enrolment_key,
    )
    asyncio.run(pool.take_part(range(given.first, given.last + 1)))
    return 0


def _addresses(text: str) -> list[Address]:
    return [Address.parse(each) for each in text.split(",")]


class _ClientPool:
    """The clients of this process."""

    def __init__(
        self,
        layout: LoadLayout,
        planned: LoadPlan,
        servers: Sequence[Address],
        enrolment_key: str,
    ) -> None:
        self._layout = layout
        self._planned = planned
        self._servers = servers
        self._enrolment_key = enrolment_key
        self._gate = asyncio.Semaphore(_ARRIVING)
        self._threads = ThreadPoolExecutor(_THREADS, "secagg-crowd")

    async def take_part(self, numbers: range) -> None:
        """Run all clients until each has its sum, has dropped out or has failed."""
        asyncio.get_running_loop().set_default_executor(self._threads)
        async with asyncio.TaskGroup() as group:
            for number in numbers:
                await self._gate.acquire()
                group.create_task(self._run_one(number))

    async def _run_one(self, number: int) -> None:
        layout, name = self._layout, client_name(number)
        identity = TLSIdentity.load(
            certificate=layout.pki / f"{name}.pem",
            private_key=layout.pki / f"{name}.key",
            authority=layout.pki / "ca.pem",
            role=Role.CLIENT,
        )
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
                say("lost", number=number, **_traffic(connection))
            except SecAggError as error:
                say_failed(error, number=number, **_traffic(connection))

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
            enrolment=self._enrolment(number),
            cohort=planned.policy(),
            attempts=1,
            wait_seconds=None,
            on_progress=arriving.see,
            threads=self._threads,
        )
        async with client:
            given = await client.contribute(make)
        values = np.asarray(given.values, dtype="<i8")
        say(
            "completed",
            number=number,
            sum_sha256=hashlib.sha256(values.tobytes()).hexdigest(),
            **_traffic(connection),
        )

    def _enrolment(self, number: int) -> ClientEnrolment | None:
        if not self._planned.profile.has_identities:
            return None
        files, name = self._layout.enrolment, client_name(number)
        return ClientEnrolment(
            seed=files.seed(name),
            credential=files.credential(name),
            enrolment_key=self._enrolment_key,
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


def _traffic(
    connection: SpreadConnection,
) -> dict[str, list[dict[str, list[int]]]]:
    """Return calls, bytes up and bytes down, by aggregator and name of the call."""
    return {
        "traffic": [
            {
                name: [each.calls, each.bytes_sent, each.bytes_received]
                for name, each in way.traffic.items()
            }
            for way in connection.ways
        ]
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
