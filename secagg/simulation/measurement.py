"""Costs of a simulated session: processor seconds, bytes and memory.

Rule 1: processor time, not wall time: it does not depend on other load.
Rule 2: bytes are those of the protocol's own messages; the transport's framing adds a
        few percent.
"""

import gc
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import FunctionType, ModuleType
from typing import Final

from secagg.runtime.garbage import peak_rss_bytes


@dataclass(slots=True)
class RoundCost:
    """The costs of one open round.

    Attributes:
        client_cpu_seconds: Of all clients together.
        server_cpu_seconds: Of the server.
        bytes_up: From all clients to the server.
        bytes_down: From the server to all clients.
    """

    client_cpu_seconds: float = 0.0
    server_cpu_seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True, slots=True)
class CostReport:
    """Costs of one session.

    Attributes:
        client_cpu_seconds_mean: Per client that took part.
        client_cpu_seconds_max: Of the busiest client.
        rounds: Costs of either side by the round that was open, in order.
        bytes_down_per_client: From the server to each client that took part, on
            average.
        client_state_bytes: Most that one client has held from one round to the next.
        peak_rss_bytes: Most memory that the process has held, all clients included.
    """

    client_cpu_seconds_mean: float
    client_cpu_seconds_max: float
    rounds: dict[str, RoundCost]
    bytes_down_per_client: float
    client_state_bytes: int
    peak_rss_bytes: int

    @property
    def server_cpu_seconds(self) -> dict[str, float]:
        """Of the server, by round."""
        return {
            name: each.server_cpu_seconds
            for name, each in self.rounds.items()
            if each.server_cpu_seconds
        }

    @property
    def bytes_up(self) -> int:
        """From all clients to the server."""
        return sum(each.bytes_up for each in self.rounds.values())

    @property
    def bytes_down(self) -> int:
        """From the server to all clients."""
        return sum(each.bytes_down for each in self.rounds.values())


@dataclass(slots=True)
class SimulationMeter:
    """Adds up costs while a session runs.

    Attributes:
        clients: Processor seconds of each client.
        rounds: Costs by the round that was open.
        client_state_bytes: As in the report.
    """

    clients: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    rounds: defaultdict[str, RoundCost] = field(
        default_factory=lambda: defaultdict(RoundCost)
    )
    client_state_bytes: int = 0

    @contextmanager
    def client(self, index: int, name: str) -> Iterator[None]:
        """Charge the processor time of the block to one client, in an open round."""
        before = time.process_time()
        yield
        spent = time.process_time() - before
        self.clients[index] += spent
        self.rounds[name].client_cpu_seconds += spent

    @contextmanager
    def server(self, name: str) -> Iterator[None]:
        """Charge the processor time of the block to the server, in an open round."""
        before = time.process_time()
        yield
        self.rounds[name].server_cpu_seconds += time.process_time() - before

    def report(self) -> CostReport:
        """Return the costs so far."""
        spent = list(self.clients.values()) or [0.0]
        down = sum(each.bytes_down for each in self.rounds.values())
        return CostReport(
            client_cpu_seconds_mean=sum(spent) / len(spent),
            client_cpu_seconds_max=max(spent),
            rounds=dict(self.rounds),
            bytes_down_per_client=down / len(spent),
            client_state_bytes=self.client_state_bytes,
            peak_rss_bytes=peak_rss_bytes(),
        )


def held_bytes(value: object) -> int:
    """Return the memory of an object and of all objects that only it refers to.

    Classes, functions, modules and members of enumerations are shared and not counted.
    """
    seen, left, total = {id(value)}, [value], 0
    while left:
        one = left.pop()
        total += sys.getsizeof(one)
        for each in gc.get_referents(one):
            if id(each) in seen or isinstance(each, _EVERYBODYS):
                continue
            seen.add(id(each))
            left.append(each)
    return total


_EVERYBODYS: Final = (type, ModuleType, FunctionType, Enum)
