"""The numbers, files and inputs of one load test, and what it measures.

A client's number determines its vector, and no two clients have the same one.  So a sum
with an input twice, or without one of its inputs, is detected.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.protocol.messages import Round
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT, ClientPolicy
from secagg.protocol.rounds import ROUNDS
from secagg.testbed.child_process import Event
from secagg.testbed.run_folder import (
    ROUNDS_OF_ANSWERS,
    RunFolder,
    RunPlan,
    SettingsTables,
)
from secagg.wire.calls import CALLS


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """What one round cost an aggregator, or all of them together.

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

    def __add__(self, other: "ClosedRound") -> "ClosedRound":
        """Return what it cost both: they work side by side."""
        return ClosedRound(
            self.name,
            max(self.seconds, other.seconds),
            self.cpu_seconds + other.cpu_seconds,
            max(self.late_seconds, other.late_seconds),
            self.late_cpu_seconds + other.late_cpu_seconds,
        )


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
class ServerCost:
    """What one aggregator has used.

    Attributes:
        start_cpu_seconds: CPU until its port was open.
        cpu_seconds: CPU from then on.
        peak_rss_bytes: The most memory that it ever held.
        bytes_up: That clients have sent to it, before TLS and HTTP/2.
        bytes_down: That they have got from it, likewise.
    """

    start_cpu_seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    bytes_up: int
    bytes_down: int


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
        servers: What each aggregator has used, in order.
        database_cpu_seconds: CPU of the PostgreSQL server from the first open port on;
            None without one of our own.
        traffic: Calls and bytes of a client, by name of the call, in their order.
        wall_seconds: From the open ports to the end of the aggregators.
        rounds: What each round cost all aggregators, in order.
    """

    is_exact: bool
    clients_completed: int
    clients_lost: int
    clients_failed: int
    failure: str
    survivors: int
    servers: tuple[ServerCost, ...]
    database_cpu_seconds: float | None
    traffic: tuple[CallTraffic, ...]
    wall_seconds: float
    rounds: tuple[ClosedRound, ...]

    @property
    def server_start_cpu_seconds(self) -> float:
        """CPU of all aggregators until their ports were open."""
        return sum(each.start_cpu_seconds for each in self.servers)

    @property
    def server_cpu_seconds(self) -> float:
        """CPU of all aggregators from then on."""
        return sum(each.cpu_seconds for each in self.servers)

    @property
    def server_peak_rss_bytes(self) -> int:
        """The most memory that each ever held, summed up."""
        return sum(each.peak_rss_bytes for each in self.servers)

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
        """CPU of the aggregators for a second that one client waits, in milliseconds.

        From the second half of the round that waited for lost clients alone; None
        without such a round.
        """
        name = Round.MASKED_INPUT_COLLECTION.name
        for each in self.rounds:
            if each.name == name and self.clients_lost and each.late_seconds > 0:
                waited = each.late_seconds * self.survivors
                return 1000.0 * each.late_cpu_seconds / waited
        return None


def mean_traffic(clients: Iterable[Event], count: int) -> tuple[CallTraffic, ...]:
    """Return what clients have sent and received, divided by their number.

    Args:
        clients: What each has said: ``traffic`` has, for each aggregator, calls, bytes
            sent and bytes received by name of the call.
        count: How many clients there were.
    """
    totals: dict[str, list[int]] = {row.name: [0, 0, 0] for row in CALLS.values()}
    for each in clients:
        for way in each["traffic"]:
            for name, counted in way.items():
                totals[name] = [
                    a + b for a, b in zip(totals[name], counted, strict=True)
                ]
    return tuple(
        CallTraffic(name, *(total / count for total in counted))
        for name, counted in totals.items()
        if counted[0]
    )


# A cohort is told of this often while it gathers.
_TELL_PARTS: Final = 10


class ReportCollector:
    """Reads the output of all processes of one load test.

    Args:
        tell: Receives the events, in lines for people.
        servers: How many aggregators there are.
        show: Receives what happens meanwhile: a round, how many clients are done with
            it, and how many there are.

    Attributes:
        servers: The reports of each aggregator: when its port was open, and at its
            end, by the name of the event.
        rounds: What each closed round cost all aggregators together, by its name.
        clients: The last report of each client that has ended, by its name.
        included: Whose inputs the released sum holds.
        reason: Why a session was aborted, if known.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        servers: int,
        show: Callable[[str, int, int], None],
    ) -> None:
        self._print = tell
        self._show_state = show
        self._place = (-1, 0)
        self.servers: list[dict[str, Event]] = [{} for _ in range(servers)]
        self.rounds: dict[str, ClosedRound] = {}
        self.clients: dict[str, Event] = {}
        self.included: list[str] = []
        self.reason = ""

    def on_server_event(self, index: int, said: Event) -> None:
        """Take what an aggregator says."""
        match said["event"]:
            case "progress":
                self._report_progress(said)
            case "closed":
                facts = {key: value for key, value in said.items() if key != "event"}
                closed = ClosedRound(**facts)
                known = self.rounds.get(closed.name)
                self.rounds[closed.name] = closed + known if known else closed
            case "sum":
                self.included = list(said["included"])
            case "listening" | "done" as event:
                self.servers[index][event] = said

    def on_client_event(self, said: Event) -> None:
        """Take what a process full of clients says, of one of them."""
        if "name" in said:
            self.clients[said["name"]] = said

    def ended(self, event: str) -> list[Event]:
        """Return the last words of the clients that have ended in one way."""
        return [each for each in self.clients.values() if each["event"] == event]

    def costs(self) -> tuple[ServerCost, ...]:
        """Return what each aggregator has used that ended as it should."""
        return tuple(
            ServerCost(
                start_cpu_seconds=said["listening"]["start_cpu_seconds"],
                cpu_seconds=said["done"]["cpu_seconds"],
                peak_rss_bytes=said["done"]["peak_rss_bytes"],
                bytes_up=self._traffic_bytes(index, 1),
                bytes_down=self._traffic_bytes(index, 2),
            )
            for index, said in enumerate(self.servers)
            if "done" in said
        )

    def _traffic_bytes(self, server: int, column: int) -> int:
        """Return the bytes that clients sent to an aggregator (1), or received (2)."""
        return sum(
            counted[column]
            for client in self.clients.values()
            for counted in client["traffic"][server].values()
        )

    def _report_progress(self, said: Event) -> None:
        """Report a new round, and every tenth part of a cohort that gathers.

        Aggregators that share a store report both one after the other: it is shown
        once.
        """
        self.reason = said["reason"] or self.reason
        entered = Round[said["round"]]
        self._show_state(ROUNDS[entered].title, said["answered"], said["expected"])
        gathering = entered is Round.ADVERTISE_KEYS
        part = _TELL_PARTS * said["joined"] // said["needed"] if gathering else 0
        if (int(entered), part) <= self._place:
            return
        self._place = (int(entered), part)
        self._print(
            f"{said['round'].lower().replace('_', ' ')}: {said['joined']} joined, "
            f"{len(said['dropped'])} lost"
        )


TASK_ID = "load"


@dataclass(frozen=True, slots=True)
class LoadLayout(RunFolder):
    """The directory of one run."""

    @property
    def blobs(self) -> Path:
        """The blobs that aggregators of one store share."""
        return self.root / "blobs"

    @property
    def released(self) -> Path:
        """The sum as the aggregator released it, modulo m."""
        return self.root / "released.npy"


# One client in so many may fail beside those that vanish: a fault is then a figure of
# the result, and not the end of the session.
_FAULTS_PER_CLIENTS: Final = 100
# A waiting cohort reopens its round, so that no machine is too slow to gather it.
_JOIN_SECONDS: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan(RunPlan):
    """The parameters of a load test.

    Each client has a certificate and connections of its own.  While a round waits for
    the lost ones, all others wait too.

    Attributes:
        dimension: Entries of one vector.
        lost: Clients that vanish when they are asked for their vector: after their
            shares and before their upload, where a dropout costs the aggregator most.
        servers: Aggregators that share one store.
    """

    dimension: int
    lost: int
    servers: int = 1

    @property
    def survivors(self) -> int:
        """Clients that stay."""
        return self.clients - self.lost

    @property
    def packed_bytes(self) -> int:
        """Bytes of one upload: 32 bits an entry."""
        return 4 * self.dimension

    def is_lost(self, number: int) -> bool:
        """Whether a client vanishes: they are spread evenly over all numbers."""
        return number * self.lost // self.clients > (
            (number - 1) * self.lost // self.clients
        )

    def policy(self) -> ClientPolicy:
        """Return what the clients insist on: exactly this cohort."""
        return ClientPolicy(
            profiles=frozenset({self.profile}),
            graphs=frozenset({self.graph}),
            min_clients=2,
            max_clients=self.clients,
            min_survivors=min(self.survivors, 2),
            require_noise=False,
        )

    def settings(self, layout: LoadLayout, store: str | None) -> SettingsTables:
        """Return what an aggregator is asked for.

        Args:
            layout: The files.
            store: Address of the PostgreSQL store of all aggregators; None for a file,
                of one aggregator.
        """
        shared = {"store": store, "blobs": f"file:{layout.blobs}"}
        return {
            "server": {} if store is None else shared,
            "task": {
                "id": TASK_ID,
                "steps": 1,
                "attempts": 1,
                "profile": self.profile.label,
            },
            "vector": {"dimension": self.dimension},
            "cohort": {
                "min_clients": self.clients,
                "max_clients": self.clients,
                "min_survivors": self.survivors - self.clients // _FAULTS_PER_CLIENTS,
                "degree": self.degree,
            },
            "noise": {"none": NO_NOISE_ACKNOWLEDGEMENT},
            "rounds": {
                "advertise_keys": _JOIN_SECONDS,
                **dict.fromkeys(ROUNDS_OF_ANSWERS, _JOIN_SECONDS),
                "masked_input": self.round_seconds,
            },
            "enrolment": {"enrolment_key": self.enrolment_key},
        }


# The largest prime below 2^12: 65 535 clients stay below 2^28.
_PRIME: Final = 4093


def vector_of(number: int, dimension: int) -> npt.NDArray[np.int64]:
    """Return the vector of one client, shape (dimension,), entries below 2^12.

    Args:
        number: Of the client, counted from 1.
        dimension: Entries.
    """
    places = np.arange(1, dimension + 1, dtype=np.int64)
    return (number * places + number // _PRIME) % _PRIME


def expected_sum(numbers: Iterable[int], dimension: int) -> npt.NDArray[np.int64]:
    """Return the sum of the vectors of these clients, shape (dimension,)."""
    total = np.zeros(dimension, dtype=np.int64)
    for number in numbers:
        total += vector_of(number, dimension)
    return total
