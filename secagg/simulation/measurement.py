"""What a simulated session cost: processor seconds, bytes and memory.

Rule 1: processor time, not wall time: it does not depend on what else runs.
Rule 2: bytes are those of the protocol's own messages; the transport's framing adds
        a few percent.
"""

import gc
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import FunctionType, ModuleType
from typing import Final

__all__ = ["CostReport", "Meter", "held_bytes", "peak_rss_bytes"]


@dataclass(frozen=True, slots=True)
class CostReport:
    """Costs of one session.

    Attributes:
        client_cpu_seconds_mean: Per client that took part.
        client_cpu_seconds_max: Of the busiest client.
        server_cpu_seconds: By round.
        bytes_up: From all clients to the server.
        bytes_down: From the server to all clients.
        bytes_down_per_client: Of these, to each client that took part, on average.
        client_state_bytes: Most that one client has held from one round to the next.
        peak_rss_bytes: Most memory that the process has held, all clients included.
    """

    client_cpu_seconds_mean: float
    client_cpu_seconds_max: float
    server_cpu_seconds: dict[str, float]
    bytes_up: int
    bytes_down: int
    bytes_down_per_client: float
    client_state_bytes: int
    peak_rss_bytes: int


@dataclass(slots=True)
class Meter:
    """Adds up costs while a session runs."""

    clients: dict[int, float] = field(default_factory=dict)
    server: dict[str, float] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    client_state_bytes: int = 0

    @contextmanager
    def client(self, index: int) -> Iterator[None]:
        """Charge the processor time of the block to one client.

        A client in a process of its own has little to sweep; here the garbage of all
        of them would now and then be swept at the expense of one.
        """
        with _unswept():
            before = time.process_time()
            yield
            spent = time.process_time() - before
        self.clients[index] = self.clients.get(index, 0.0) + spent

    @contextmanager
    def round(self, name: str) -> Iterator[None]:
        """Charge the processor time of the block to one round of the server."""
        before = time.process_time()
        yield
        spent = time.process_time() - before
        self.server[name] = self.server.get(name, 0.0) + spent

    def report(self) -> CostReport:
        """Return the costs so far."""
        spent = list(self.clients.values()) or [0.0]
        return CostReport(
            client_cpu_seconds_mean=sum(spent) / len(spent),
            client_cpu_seconds_max=max(spent),
            server_cpu_seconds=dict(self.server),
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            bytes_down_per_client=self.bytes_down / len(spent),
            client_state_bytes=self.client_state_bytes,
            peak_rss_bytes=peak_rss_bytes(),
        )


@contextmanager
def _unswept() -> Iterator[None]:
    """Put off the garbage collector."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def peak_rss_bytes() -> int:
    """Return the most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts kibibytes, macOS bytes.
    return peak if sys.platform == "darwin" else peak * 1024


def held_bytes(value: object) -> int:
    """Return the memory of an object and everything that only it leads to.

    Classes, functions, modules and members of enumerations are everybody's.
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
