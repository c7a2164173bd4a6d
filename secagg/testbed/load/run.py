"""One load test: its files and processes, their cost, and whether the sum is exact.

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
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from secagg.errors import ErrorCode
from secagg.testbed.child_process import Event, Listener
from secagg.testbed.director import ChildProgram, Director
from secagg.testbed.load.database import Database
from secagg.testbed.load.machine import Machine, check_machine, pools_of
from secagg.testbed.load.result import (
    LoadLayout,
    LoadPlan,
    LoadResult,
    ReportCollector,
    expected_sum,
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
        ServiceError: OVERLOADED for a test that this host cannot hold; BAD_SETTINGS if
            no session can be like this; else the failure of a process.
        SessionAbortedError: The session released no sum.
    """
    check_machine(planned, Machine.detect(directory))
    layout = LoadLayout(directory)
    show("issuing certificates", 0, 0)
    key = await asyncio.to_thread(
        layout.issue, planned.clients, enrolled=planned.profile.has_identities
    )
    planned = replace(planned, enrolment_key=key)
    planned.write(layout)
    names = [f"aggregator-{number}" for number in range(1, planned.servers + 1)]
    for name in names:
        layout.write_settings(planned.settings(layout, database.url), name=name)
    tell(f"{planned.clients} clients have certificates")
    show("starting processes", 0, 0)
    heard = ReportCollector(tell, planned.servers, show)
    async with Director(layout, tell, ALLOCATOR) as director:
        addresses = await director.start_servers(
            [
                ChildProgram(
                    name,
                    "secagg.testbed.load.aggregator",
                    (name,),
                    partial(heard.on_server_event, index),
                )
                for index, name in enumerate(names)
            ]
        )
        started, used_before = time.monotonic(), database.cpu_seconds()
        pools = _pools(planned, addresses, heard.on_client_event)
        # The session begins with the whole cohort: every pool is needed.
        await director.start_clients(pools, needed=len(pools))
        await director.until_served()
        wall = time.monotonic() - started
        used = database.cpu_seconds()
        await director.until_clients_end()
    if used is not None and used_before is not None:
        used -= used_before
    return await asyncio.to_thread(_result, layout, planned, heard, wall, used)


def _pools(
    planned: LoadPlan, addresses: Sequence[str], listener: Listener
) -> list[ChildProgram]:
    """Return the programs that run the clients, a pool for each processor."""
    # Of equal size, so that no pool ends long before the others.
    count = pools_of(planned, os.cpu_count() or 1)
    ends = [planned.clients * i // count for i in range(count + 1)]
    return [
        ChildProgram(
            f"clients-{first + 1}-{last}",
            "secagg.testbed.load.client_pool",
            (",".join(addresses), str(first + 1), str(last)),
            listener,
        )
        for first, last in pairwise(ends)
    ]


def _result(
    layout: LoadLayout,
    planned: LoadPlan,
    heard: ReportCollector,
    wall_seconds: float,
    database: float | None,
) -> LoadResult:
    """Return the figures of a load test, or say why no sum was released."""
    servers = heard.costs()
    if len(servers) < planned.servers or not heard.included:
        raise ErrorCode.TOO_FEW_ANSWERS.error(
            f"the session released no sum: {heard.reason or 'unknown reason'}",
            fix="Take a longer --round-seconds, or fewer --clients.",
        )
    completed, lost = heard.ended("completed"), heard.ended("lost")
    failed = heard.ended("failed")
    return LoadResult(
        is_exact=is_exact(layout, planned, heard.included, completed),
        clients_completed=len(completed),
        clients_lost=len(lost),
        clients_failed=planned.clients - len(completed) - len(lost),
        failure=str(failed[0]["message"]) if failed else "",
        survivors=len(heard.included),
        servers=servers,
        database_cpu_seconds=database,
        traffic=mean_traffic(heard.clients.values(), planned.clients),
        wall_seconds=wall_seconds,
        rounds=tuple(heard.rounds.values()),
    )


def is_exact(
    layout: LoadLayout,
    planned: LoadPlan,
    included: Sequence[str],
    completed: Sequence[Event],
) -> bool:
    """Return whether the sum is right, and every client has decoded it (rule 2).

    Args:
        layout: The files, with the released sum.
        planned: The parameters of the load test.
        included: Names of the clients in the sum, as its receipt has them.
        completed: Reports of the clients that took part to the end.
    """
    number_of = {client_name(i): i for i in range(1, planned.clients + 1)}
    expected = expected_sum((number_of[name] for name in included), planned.dimension)
    released = np.load(layout.released, allow_pickle=False)
    digest = hashlib.sha256(expected.astype("<i8").tobytes()).hexdigest()
    return np.array_equal(expected, released) and all(
        each["sum_sha256"] == digest for each in completed
    )
