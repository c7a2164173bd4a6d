"""Intervals in which a server ran with its store, observed from outside."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from secagg_testing.world.loop import Process

# What the product forgives it may count; what is longer it must not.
_LONG_SECONDS: Final = 15.0

_Piece = tuple[float, float]


class Uptime:
    """Servers that ran, and were not cut off from their store.

    Args:
        now: The world's time.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now: Final = now
        self._processes: Final[list[Process]] = []
        self._cuts: Final[defaultdict[str, list[_Piece]]] = defaultdict(list)

    def record_start(self, process: Process) -> None:
        """Record that a server starts."""
        self._processes.append(process)

    def cut_off(self, name: str, until: float) -> None:
        """Record that a server is cut off from its store."""
        self._cuts[name].append((self._now(), until))

    def reconnect(self) -> None:
        """Record that no server is cut off any more."""
        now = self._now()
        for cuts in self._cuts.values():
            cuts[:] = [(start, min(end, now)) for start, end in cuts]

    def downtime_since(self, instant: float) -> float:
        """Return the seconds without any running server, except short gaps."""
        total, reached = 0.0, instant
        for start, end in sorted((*self._at_work(), (self._now(), self._now()))):
            if end < instant:
                continue
            gap = start - reached
            total += gap if gap > _LONG_SECONDS else 0.0
            reached = max(reached, end)
        return total

    def _at_work(self) -> Iterator[_Piece]:
        for process in self._processes:
            for piece in process.awake():
                yield from _without(piece, self._cuts[process.name])


def _without(piece: _Piece, cuts: list[_Piece]) -> Iterator[_Piece]:
    """Yield the parts of an interval outside all cuts."""
    start, end = piece
    for cut, joined in sorted(cuts):
        if joined > start and cut < end:
            if cut > start:
                yield start, cut
            start = max(start, joined)
    if start < end:
        yield start, end
