"""A store that several aggregators of one process share, each over its own link.

Every call takes some turns of the loop, so that steps of different replicas come
between one another; a link can be cut for a while, as when its process is stopped.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, TypeVar

from secagg.crypto.entropy import Entropy
from secagg.storage.change import Change, Command, Lease, Query
from secagg.storage.changes import PutFacts, PutTask
from secagg.storage.leases import ReleaseLease
from secagg.storage.store import Store
from secagg_testing.manual_clock import ManualClock

_Answer = TypeVar("_Answer")

_POLL_SECONDS: Final = 2.0
_MOST_TURNS: Final = 4


class SharedStore:
    """Implements `Store` over another one that others use too.

    Args:
        inner: What they share.
        clock: The time of all aggregators.
        entropy: Draws how long calls take.
        others: Links to the same store; this one is added.
        hears: Whether it is notified by the others; else it polls every two seconds.
    """

    is_shared: Final = True
    retains_erased_data: Final = True

    def __init__(
        self,
        inner: Store,
        clock: ManualClock,
        entropy: Entropy,
        others: "list[SharedStore]",
        *,
        hears: bool = True,
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._entropy = entropy
        self._others = others
        self._hears = hears
        self._hint = asyncio.Event()
        self._cut_until = 0.0
        self._taken: list[Lease] = []
        others.append(self)

    def wake(self) -> None:
        """Receive the notification that another one has written."""
        if self._hears:
            self._hint.set()

    def cut(self, seconds: float) -> None:
        """Block both directions for a while."""
        self._cut_until = self._clock.now() + seconds

    async def hang_up(self) -> None:
        """Report that the process of this link has ended."""
        for lease in self._taken:
            await self._inner.commit(ReleaseLease(lease))

    async def commit(self, command: Command[_Answer]) -> _Answer:
        """See `Store.commit`."""
        await self._turns()
        answer = await self._inner.commit(command)
        if isinstance(answer, Lease):
            self._taken.append(answer)
        await self._turns()
        if _is_notified(command):
            self._wake_others()
        return answer

    async def read(self, query: Query[_Answer]) -> _Answer:
        """See `Store.read`."""
        await self._turns()
        answer = await self._inner.read(query)
        await self._turns()
        return answer

    async def close(self) -> None:
        """See `Store.close`."""
        await self._turns()
        await self._inner.close()
        await self._turns()

    async def changes(self) -> AsyncIterator[None]:
        """Yield when another one has written, and every two seconds."""
        while True:
            waking = asyncio.ensure_future(self._hint.wait())
            again = self._clock.now() + _POLL_SECONDS
            sleeping = asyncio.ensure_future(self._clock.sleep_until(again))
            try:
                await asyncio.wait(
                    {waking, sleeping}, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                waking.cancel()
                sleeping.cancel()
            self._hint.clear()
            yield

    def _wake_others(self) -> None:
        for other in self._others:
            if other is not self:
                other.wake()

    async def _turns(self) -> None:
        for _ in range(self._entropy.token(1)[0] % _MOST_TURNS):
            await asyncio.sleep(0)
        while self._cut_until > self._clock.now():
            await self._clock.sleep_until(self._cut_until)


def _is_notified(command: Command[Any]) -> bool:
    """Return whether the other replicas are woken."""
    if isinstance(command, Change):
        return command.round is not None or command.end is not None
    return isinstance(command, PutTask | PutFacts)
