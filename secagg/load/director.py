"""Directs one load test: makes files, starts the processes, counts, compares.

Rule 1: the aggregator is a process of its own, and so is every crowd of clients; this
        one only prepares their files, watches, and compares at the end.
Rule 2: exactness is checked from the outside: the released sum must be that of the
        vectors of exactly the clients that the receipt names, and every client that
        took part to the end must have decoded the same.
Rule 3: figures are CPU seconds, bytes and counts; what the clock on the wall says
        depends on who else uses the machine and is given for orientation.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from secagg.child_process import Child, start_child
from secagg.errors import ErrorCode, ServiceError, SessionAbortedError
from secagg.load.layout import LoadLayout
from secagg.load.machine import CLIENTS_PER_PROCESS, Machine, check_machine
from secagg.load.plan import LoadPlan, write_server_settings
from secagg.load.vectors import expected_sum
from secagg.messages import Round
from secagg.run_folder import client_name
from secagg.wire.calls import CALLS

__all__ = ["ALLOCATOR", "CallTraffic", "ClosedRound", "LoadResult", "run_load"]

ALLOCATOR: Final = {"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""What the shipped unit tells the allocator of the C library: memory is measured as it
is held in service."""

# A cohort is told of this often while it gathers.
_TELL_PARTS: Final = 10


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """What one round cost the aggregator.

    Attributes:
        name: Of the round.
        seconds: How long it was open.
        cpu_seconds: Of the aggregator meanwhile.
        late_seconds: Of these, the second half.
        late_cpu_seconds: Of the aggregator in the second half.
    """

    name: str
    seconds: float
    cpu_seconds: float
    late_seconds: float
    late_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class CallTraffic:
    """What one call meant for a client, on average over all of them.

    Attributes:
        name: Of the call.
        calls: How often it was made.
        bytes_up: Of its requests, before TLS and HTTP/2.
        bytes_down: Of its answers and updates, likewise.
    """

    name: str
    calls: float
    bytes_up: float
    bytes_down: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What a load test found out.

    Attributes:
        is_exact: The released sum is the right one, and every client has it.
        clients_completed: Clients that took part to the end.
        clients_lost: Clients that vanished as planned.
        clients_failed: Clients that ended otherwise.
        failure: The first of these in words; empty without one.
        survivors: Inputs in the sum.
        server_start_cpu_seconds: CPU of the aggregator until its port was open.
        server_cpu_seconds: CPU from then on.
        server_peak_rss_bytes: The most memory that it ever held.
        traffic: Calls and bytes of a client, by name of the call, in their order.
        wall_seconds: From the open port to the end of the aggregator.
        rounds: What each round cost, in order.
    """

    is_exact: bool
    clients_completed: int
    clients_lost: int
    clients_failed: int
    failure: str
    survivors: int
    server_start_cpu_seconds: float
    server_cpu_seconds: float
    server_peak_rss_bytes: int
    traffic: tuple[CallTraffic, ...]
    wall_seconds: float
    rounds: tuple[ClosedRound, ...]

    @property
    def bytes_up_per_client(self) -> float:
        """Mean over all clients, before TLS and HTTP/2."""
        return sum(each.bytes_up for each in self.traffic)

    @property
    def bytes_down_per_client(self) -> float:
        """Likewise."""
        return sum(each.bytes_down for each in self.traffic)

    @property
    def waiting_cpu_ms(self) -> float | None:
        """CPU of the aggregator for a second that one client waits, in milliseconds.

        From the second half of the round that waited for lost clients alone; None
        without such a round.
        """
        name = Round.MASKED_INPUT_COLLECTION.name
        for each in self.rounds:
            if each.name == name and self.clients_lost and each.late_seconds > 0:
                waited = each.late_seconds * self.survivors
                return 1000.0 * each.late_cpu_seconds / waited
        return None


@dataclass(slots=True)
class _Heard:
    """What the processes have said so far."""

    listening: asyncio.Future[Mapping[str, Any]]
    included: list[str] = field(default_factory=list)
    done: Mapping[str, Any] | None = None
    failed: Mapping[str, Any] | None = None
    reason: str = ""
    rounds: list[ClosedRound] = field(default_factory=list)
    clients: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    place: tuple[str, int] = ("", 0)


async def run_load(
    planned: LoadPlan, directory: Path, tell: Callable[[str], None]
) -> LoadResult:
    """Run one session of many clients and measure the aggregator.

    Args:
        planned: How many clients, which vectors, who is lost.
        directory: An empty directory for all files.
        tell: Told what happens, in lines for people.

    Returns:
        Figures and whether the sum was exact.

    Raises:
        ServiceError: OVERLOADED for what this machine cannot hold; else what a process
            could not do.
        SessionAbortedError: The session released no sum, or no session can be like
            this.
    """
    check_machine(planned, Machine.here(directory))
    layout = LoadLayout(directory)
    key = await asyncio.to_thread(_make_files, layout, planned)
    write_server_settings(layout, planned, enrolment_key=key)
    tell(f"{planned.clients} clients have certificates")
    return await _Direction(layout, planned, key, tell).run()


class _Direction:
    """The processes of one run and what they say."""

    def __init__(
        self,
        layout: LoadLayout,
        planned: LoadPlan,
        enrolment_key: str,
        tell: Callable[[str], None],
    ) -> None:
        self._layout = layout
        self._planned = planned
        self._enrolment_key = enrolment_key
        self._tell = tell
        self._heard = _Heard(asyncio.get_running_loop().create_future())
        self._children: list[Child] = []

    async def run(self) -> LoadResult:
        """Run the session; every process has ended when it returns."""
        try:
            return await self._run()
        finally:
            await asyncio.gather(*(child.end() for child in self._children))

    async def _run(self) -> LoadResult:
        heard = self._heard
        aggregator = await self._start(
            "aggregator",
            "secagg.load.aggregator",
            [str(self._layout.root)],
            environment=ALLOCATOR,
        )
        ended = asyncio.create_task(aggregator.wait())
        first: set[asyncio.Future[Any]] = {ended, heard.listening}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        self._check_aggregator()
        began = heard.listening.result()
        started = time.monotonic()
        self._tell(f"the aggregator listens on {began['address']}")
        crowds = [
            await self._start(name, "secagg.load.crowd", words)
            for name, words in self._crowds(began["address"])
        ]
        here = asyncio.gather(*(crowd.wait() for crowd in crowds))
        # Without their clients the aggregator would wait for ever.
        last: set[asyncio.Future[Any]] = {ended, here}
        await asyncio.wait(last, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            self._check_crowds(here.result())
            await ended
        wall = time.monotonic() - started
        self._check_aggregator()
        await here
        return await asyncio.to_thread(self._result, wall)

    async def _start(
        self,
        name: str,
        module: str,
        words: list[str],
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        child = await start_child(
            name,
            module,
            words,
            log=self._layout.log(name),
            listener=self._hear,
            environment=environment,
        )
        self._children.append(child)
        return child

    def _crowds(self, address: str) -> list[tuple[str, list[str]]]:
        planned = self._planned
        # Of equal size, so that none is done long before the others.
        count = -(-planned.clients // CLIENTS_PER_PROCESS)
        ends = [planned.clients * i // count for i in range(count + 1)]
        return [
            (
                f"clients-{first + 1}-{last}",
                [
                    str(self._layout.root),
                    address,
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

    # --- what they say ----------------------------------------------------------------

    def _hear(self, said: Mapping[str, Any]) -> None:
        heard = self._heard
        match said["event"]:
            case "listening":
                heard.listening.set_result(said)
            case "progress":
                self._show(said)
            case "closed":
                heard.rounds.append(
                    ClosedRound(
                        said["round"],
                        said["seconds"],
                        said["cpu_seconds"],
                        said["late_seconds"],
                        said["late_cpu_seconds"],
                    )
                )
            case "sum":
                heard.included = list(said["included"])
            case "done":
                heard.done = said
            case "completed" | "lost":
                heard.clients[said["number"]] = said
            case "failed" if "number" in said:
                heard.clients[said["number"]] = said
                name = client_name(said["number"])
                self._tell(f"{name} has failed: {said['message']}")
            case "failed":
                heard.failed = said

    def _show(self, said: Mapping[str, Any]) -> None:
        """Tell of a new round, and of every tenth part of a cohort that gathers."""
        heard = self._heard
        if said["reason"]:
            heard.reason = said["reason"]
        gathering = said["round"] == Round.ADVERTISE_KEYS.name
        part = _TELL_PARTS * said["joined"] // said["needed"] if gathering else 0
        if (said["round"], part) == heard.place:
            return
        heard.place = (said["round"], part)
        self._tell(
            f"{said['round'].lower().replace('_', ' ')}: {said['joined']} joined, "
            f"{said['lost']} lost"
        )

    def _check_aggregator(self) -> None:
        heard = self._heard
        if heard.failed is not None:
            raise SessionAbortedError(
                f"the aggregator stopped: {heard.failed['message']}",
                code=ErrorCode[str(heard.failed["code"])],
                next_step=str(heard.failed["next_step"])
                or f"See {self._layout.log('aggregator')}.",
            )
        if not heard.listening.done():
            raise ServiceError(
                "the aggregator ended before it listened",
                code=ErrorCode.INTERNAL,
                next_step="Run `secagg server` with settings of your own, and see what "
                "it says.",
            )

    def _check_crowds(self, codes: list[int]) -> None:
        """Refuse to wait for a sum for which too few clients are left."""
        complete = [
            each
            for each in self._heard.clients.values()
            if each["event"] == "completed"
        ]
        if complete:
            return
        failed = [
            each for each in self._heard.clients.values() if each["event"] == "failed"
        ]
        if failed:
            raise SessionAbortedError(
                f"no client took part to the end: {failed[0]['message']}",
                code=ErrorCode[str(failed[0]["code"])],
                next_step=str(failed[0]["next_step"]),
            )
        raise ServiceError(
            f"the clients' processes ended with {sorted(set(codes))}",
            code=ErrorCode.INTERNAL,
            next_step="This is a fault of secagg; please report it.",
        )

    # --- the end ----------------------------------------------------------------------

    def _result(self, wall_seconds: float) -> LoadResult:
        heard, clients = self._heard, list(self._heard.clients.values())
        if heard.done is None or not heard.included:
            raise SessionAbortedError(
                f"the session released no sum: {heard.reason or 'nobody knows why'}",
                code=ErrorCode.TOO_FEW_ANSWERS,
                next_step="Take a longer --round-seconds, or fewer --clients.",
            )
        ended = {
            event: [each for each in clients if each["event"] == event]
            for event in ("completed", "lost", "failed")
        }
        failed = ended["failed"]
        return LoadResult(
            is_exact=self._is_exact(ended["completed"]),
            clients_completed=len(ended["completed"]),
            clients_lost=len(ended["lost"]),
            clients_failed=self._planned.clients
            - len(ended["completed"])
            - len(ended["lost"]),
            failure=str(failed[0]["message"]) if failed else "",
            survivors=len(heard.included),
            server_start_cpu_seconds=heard.listening.result()["start_cpu_seconds"],
            server_cpu_seconds=heard.done["cpu_seconds"],
            server_peak_rss_bytes=heard.done["peak_rss_bytes"],
            traffic=_mean_traffic(clients, self._planned.clients),
            wall_seconds=wall_seconds,
            rounds=tuple(heard.rounds),
        )

    def _is_exact(self, completed: list[Mapping[str, Any]]) -> bool:
        """Whether the sum is right, and every client has decoded this one (rule 2)."""
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


def _mean_traffic(
    clients: list[Mapping[str, Any]], count: int
) -> tuple[CallTraffic, ...]:
    """Return what clients have sent and received, divided by their number."""
    totals: dict[str, list[int]] = {row.name: [0, 0, 0] for row in CALLS.values()}
    for each in clients:
        for name, counted in each["traffic"].items():
            totals[name] = [a + b for a, b in zip(totals[name], counted, strict=True)]
    return tuple(
        CallTraffic(name, *(total / count for total in counted))
        for name, counted in totals.items()
        if counted[0]
    )


def _make_files(layout: LoadLayout, planned: LoadPlan) -> str:
    """Issue certificates, and credentials where the profile asks for them.

    Returns:
        The enrolment key, as people write it; empty without credentials.
    """
    names = [client_name(number) for number in range(1, planned.clients + 1)]
    authority = layout.issue_certificates(names)
    return layout.enrol(names, authority) if planned.profile.has_identities else ""
