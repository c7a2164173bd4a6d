"""Directs one load test: makes files, starts the processes, counts, compares.

Rule 1: each aggregator is a process of its own, and so is every client pool; this one
        only prepares their files, watches, and compares at the end.
Rule 2: exactness is checked from the outside.  The released sum must be that of the
        vectors of exactly the clients that the receipt names.  Every client that took
        part to the end must have decoded the same.
Rule 3: figures are CPU seconds, bytes and counts.  Elapsed time depends on other users
        of the host and serves for orientation.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from secagg.errors import ErrorCode, SessionAbortedError
from secagg.testbed.child_process import ChildProcess, Listener, start_child
from secagg.testbed.load.database import Database
from secagg.testbed.load.machine import Machine, check_machine, client_processes
from secagg.testbed.load.plan import (
    LoadLayout,
    LoadPlan,
    expected_sum,
    write_server_settings,
)
from secagg.testbed.load.result import (
    Heard,
    HeardServer,
    LoadResult,
    ServerCost,
    mean_traffic,
)
from secagg.testbed.run_folder import client_name

ALLOCATOR: Final = {"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""What the shipped unit tells the allocator of the C library: memory is measured as it
is held in service."""


async def run_load(
    planned: LoadPlan,
    directory: Path,
    tell: Callable[[str], None],
    database: Database,
    show: Callable[[str, int, int], None] = lambda *_: None,
) -> LoadResult:
    """Run one session of many clients and measure the aggregators.

    Args:
        planned: How many clients and aggregators, their vectors, and the dropouts.
        directory: An empty directory for all files.
        tell: Receives the events, in lines for people.
        database: The store of the aggregators.
        show: Receives what happens meanwhile: a round, how many clients are done with
            it, and how many there are; 0 and 0 if that is not known.

    Returns:
        Figures and whether the sum was exact.

    Raises:
        ServiceError: OVERLOADED for a test that this host cannot hold; else the failure
            of a process.
        SessionAbortedError: The session released no sum, or no session can be like
            this.
    """
    check_machine(planned, Machine.here(directory))
    layout = LoadLayout(directory)
    show("issuing certificates", 0, 0)
    key = await asyncio.to_thread(_make_files, layout, planned)
    write_server_settings(layout, planned, enrolment_key=key, store=database.url)
    tell(f"{planned.clients} clients have certificates")
    show("starting processes", 0, 0)
    return await _Direction(layout, planned, key, tell, database, show).run()


class _Direction:
    """The processes of one run and their reports."""

    def __init__(  # noqa: PLR0913, PLR0917 - one run has one of each
        self,
        layout: LoadLayout,
        planned: LoadPlan,
        enrolment_key: str,
        tell: Callable[[str], None],
        database: Database,
        show: Callable[[str, int, int], None],
    ) -> None:
        self._layout = layout
        self._planned = planned
        self._enrolment_key = enrolment_key
        self._tell = tell
        self._database = database
        self._heard = Heard(tell, planned.servers, show)
        self._children: list[ChildProcess] = []

    async def run(self) -> LoadResult:
        """Run the session; every process has ended when it returns."""
        try:
            return await self._run()
        finally:
            await asyncio.gather(*(child.end() for child in self._children))

    async def _run(self) -> LoadResult:
        servers, addresses = [], []
        for index in range(self._planned.servers):
            ended, address = await self._start_server(index)
            servers.append(ended)
            addresses.append(address)
        started, used_before = time.monotonic(), self._database.cpu_seconds()
        pools = [
            await self._start(
                name, "secagg.testbed.load.client_pool", words, self._heard.hear_clients
            )
            for name, words in self._pools(addresses)
        ]
        there: asyncio.Future[Any] = asyncio.gather(*servers)
        here: asyncio.Future[Any] = asyncio.gather(*(each.wait() for each in pools))
        # Without their clients the aggregators would wait for ever.
        await asyncio.wait({there, here}, return_when=asyncio.FIRST_COMPLETED)
        if not there.done():
            self._check_pools(here.result())
            await there
        wall = time.monotonic() - started
        used = self._database.cpu_seconds()
        for server in self._heard.servers:
            self._check_aggregator(server)
        await here
        return await asyncio.to_thread(
            self._result,
            wall,
            None if used is None or used_before is None else used - used_before,
        )

    async def _start_server(self, index: int) -> tuple[asyncio.Task[int], str]:
        """Start an aggregator; return its future end, and its address."""
        heard = self._heard.servers[index]
        child = await self._start(
            f"aggregator-{index + 1}",
            "secagg.testbed.load.aggregator",
            [str(self._layout.root), str(index + 1)],
            partial(self._heard.hear_server, index),
        )
        ended = asyncio.create_task(child.wait())
        first: set[asyncio.Future[Any]] = {ended, heard.listening}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        self._check_aggregator(heard)
        address = str(heard.listening.result()["address"])
        self._tell(f"an aggregator listens on {address}")
        return ended, address

    async def _start(
        self, name: str, module: str, words: list[str], listener: Listener
    ) -> ChildProcess:
        child = await start_child(
            name,
            module,
            words,
            log=self._layout.log(name),
            listener=listener,
            environment=ALLOCATOR,
        )
        self._children.append(child)
        return child

    def _pools(self, addresses: list[str]) -> list[tuple[str, list[str]]]:
        planned = self._planned
        # Of equal size, so that no pool ends long before the others.
        count = client_processes(planned, os.cpu_count() or 1)
        ends = [planned.clients * i // count for i in range(count + 1)]
        return [
            (
                f"clients-{first + 1}-{last}",
                [
                    str(self._layout.root),
                    ",".join(addresses),
                    str(first + 1),
                    str(last),
                    f"--clients={planned.clients}",
                    f"--dimension={planned.dimension}",
                    f"--degree={planned.degree}",
                    f"--lost={planned.lost}",
                    f"--round-seconds={planned.round_seconds}",
                    f"--profile={planned.profile.label}",
                    f"--enrolment-key={self._enrolment_key}",
                ],
            )
            for first, last in pairwise(ends)
        ]

    def _check_aggregator(self, heard: HeardServer) -> None:
        if heard.failed is not None:
            raise SessionAbortedError(
                f"an aggregator stopped: {heard.failed['message']}",
                code=ErrorCode[str(heard.failed["code"])],
                next_step=str(heard.failed["next_step"]) or "See what it says above.",
            )
        if not heard.listening.done():
            raise ErrorCode.INTERNAL.error(
                "an aggregator ended before it listened",
                fix="Run `secagg server` with settings of your own, and see what "
                "it says.",
            )

    def _check_pools(self, codes: list[int]) -> None:
        """Stop waiting for a sum once too few clients are left."""
        if self._heard.ended("completed"):
            return
        failed = self._heard.ended("failed")
        if failed:
            raise SessionAbortedError(
                f"no client took part to the end: {failed[0]['message']}",
                code=ErrorCode[str(failed[0]["code"])],
                next_step=str(failed[0]["next_step"]),
            )
        raise ErrorCode.INTERNAL.error(
            f"the clients' processes ended with {sorted(set(codes))}",
            fix="This is a fault of secagg; please report it.",
        )

    # --- the end ----------------------------------------------------------------------

    def _result(self, wall_seconds: float, database: float | None) -> LoadResult:
        heard, planned = self._heard, self._planned
        servers = self._costs()
        if len(servers) < planned.servers or not heard.included:
            raise ErrorCode.TOO_FEW_ANSWERS.error(
                f"the session released no sum: {heard.reason or 'unknown reason'}",
                fix="Take a longer --round-seconds, or fewer --clients.",
            )
        completed, lost = heard.ended("completed"), heard.ended("lost")
        failed = heard.ended("failed")
        return LoadResult(
            is_exact=self._is_exact(completed),
            clients_completed=len(completed),
            clients_lost=len(lost),
            clients_failed=planned.clients - len(completed) - len(lost),
            failure=str(failed[0]["message"]) if failed else "",
            survivors=len(heard.included),
            servers=servers,
            database_cpu_seconds=database,
            traffic=mean_traffic(heard.clients.values(), planned.clients),
            wall_seconds=wall_seconds,
            rounds=heard.rounds(),
        )

    def _costs(self) -> tuple[ServerCost, ...]:
        """Return what each aggregator has used that ended as it should."""
        return tuple(
            ServerCost(
                start_cpu_seconds=server.listening.result()["start_cpu_seconds"],
                cpu_seconds=server.done["cpu_seconds"],
                peak_rss_bytes=server.done["peak_rss_bytes"],
                bytes_up=self._bytes(index, 1),
                bytes_down=self._bytes(index, 2),
            )
            for index, server in enumerate(self._heard.servers)
            if server.done is not None
        )

    def _bytes(self, server: int, column: int) -> int:
        """Return the bytes that clients sent to an aggregator (1), or received (2)."""
        return sum(
            counted[column]
            for client in self._heard.clients.values()
            for counted in client["traffic"][server].values()
        )

    def _is_exact(self, completed: list[Mapping[str, Any]]) -> bool:
        """Return whether the sum is right, and every client has decoded it (rule 2)."""
        planned = self._planned
        number_of = {client_name(i): i for i in range(1, planned.clients + 1)}
        expected = expected_sum(
            (number_of[name] for name in self._heard.included), planned.dimension
        )
        released = np.load(self._layout.released, allow_pickle=False)
        digest = hashlib.sha256(expected.astype("<i8").tobytes()).hexdigest()
        return np.array_equal(expected, released) and all(
            each["sum_sha256"] == digest for each in completed
        )


def _make_files(layout: LoadLayout, planned: LoadPlan) -> str:
    """Issue certificates, and credentials if the profile needs them.

    Returns:
        The enrolment key, as text; empty without credentials.
    """
    names = [client_name(number) for number in range(1, planned.clients + 1)]
    authority = layout.issue_certificates(names)
    return layout.enrol(names, authority) if planned.profile.has_identities else ""
