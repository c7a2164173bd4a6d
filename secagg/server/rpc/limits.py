"""How much of an aggregator its clients may use, each number with its reason."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final, Self

from secagg.errors import ErrorCode

# Long beside a call within a process, and short beside a client's wait for its answer.
_NEAR_SECONDS: Final = 0.05
RETRY_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorLimits:
    """Limits how much of the aggregator clients may use.

    Attributes:
        poll_seconds: Time until a polling client asks again.
        join_poll_seconds: The same for a client that waits for a session.
        watches_per_identity: Open streams of one client: its own, and one that a
            broken link has left behind.
        watches: Open streams of all clients.
        held_per_identity: Requests for a session that are held here, likewise.
        held: Held requests of all clients.  All are answered when a session opens, and
            the adverts follow: so many take some six seconds of the fifteen that a
            client waits.  A client beyond this limit is answered at once, and polls.
        concurrent_chunks: Chunks of uploads that are written at the same time; more
            only make the disk seek.
        waiting_bytes: Chunks that have arrived and wait for their turn: 16 whole ones,
            or 400 vectors of 10^4 entries.  A received chunk is not discarded to be
            received again.
        kept_sums: Ended sessions whose sum and receipt at least stay available.
        keep_seconds: How long those of every ended session at least stay available.
        idle_timeout: How long no client must have called before `settle` returns.
        fetch_seconds: How long `settle` waits for a client that was told of a sum to
            fetch it: a few round trips of the slowest link.
    """

    poll_seconds: float = 0.5
    join_poll_seconds: float = 1.0
    watches_per_identity: int = 2
    watches: int = 20_000
    held_per_identity: int = 2
    held: int = 8192
    concurrent_chunks: int = 16
    waiting_bytes: int = 16 << 20
    kept_sums: int = 16
    keep_seconds: float = 600.0
    idle_timeout: float = 0.5
    fetch_seconds: float = 10.0

    @classmethod
    def in_one_process(cls, *, keep_seconds: float) -> Self:
        """Return limits for clients of this process, whose calls cross no network.

        Args:
            keep_seconds: The value of the limit of this name.
        """
        return cls(
            poll_seconds=_NEAR_SECONDS,
            join_poll_seconds=_NEAR_SECONDS,
            idle_timeout=4 * _NEAR_SECONDS,
            keep_seconds=keep_seconds,
        )


class ConcurrencyLimit:
    """Limits how many calls wait, of one client and of all.

    Args:
        of_one: The limit of one client.
        of_all: The limit of all clients.
    """

    def __init__(self, of_one: int, of_all: int) -> None:
        self._max_each: Final = of_one
        self._max_all: Final = of_all
        self._held: Counter[str] = Counter()
        self._total = 0

    def is_free_for(self, identity: str) -> bool:
        """Whether one more call of this client may wait."""
        return self._total < self._max_all and self._held[identity] < self._max_each

    @contextmanager
    def acquire(self, identity: str) -> Iterator[None]:
        """Count one waiting call, until the block is left."""
        self._held[identity] += 1
        self._total += 1
        try:
            yield
        finally:
            self._total -= 1
            self._held[identity] -= 1
            if not self._held[identity]:
                del self._held[identity]


class UploadSlots:
    """Bounds the chunks that are written at the same time, over all sessions.

    Args:
        limit: The number of chunks.
        waiting_bytes: How much may wait in memory for its turn; first come, first
            served.
    """

    def __init__(self, limit: int = 16, *, waiting_bytes: int = 16 << 20) -> None:
        self._slots = asyncio.Semaphore(limit)
        self._room = waiting_bytes

    @asynccontextmanager
    async def slot(self, size: int) -> AsyncIterator[None]:
        """Hold one slot, when it is this chunk's turn.

        Args:
            size: Bytes of the chunk.

        Raises:
            ServiceError: OVERLOADED, with a hint when to come back.
        """
        if self._slots.locked() and size > self._room:
            raise ErrorCode.OVERLOADED.error(
                "too many uploads are being written",
                fix="Send this chunk again a little later.",
                retry_after_seconds=RETRY_SECONDS,
            )
        self._room -= size
        try:
            await self._slots.acquire()
        finally:
            self._room += size
        try:
            yield
        finally:
            self._slots.release()
