"""A book that several aggregators of one process share, each over a link of its own.

Every call takes some turns of the loop, so that steps of different replicas come
between one another; a link can be cut for a while, as when its process is stopped.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from secagg.crypto.entropy import Entropy
from secagg.storage.change import Change, Lease
from secagg.storage.store import Store
from secagg_testing.manual_clock import ManualClock

_POLL_SECONDS: Final = 2.0
_MOST_TURNS: Final = 4


class SharedStore:
    """Implements `Store` over another one that others use too.

    Args:
        inner: What they share.
        clock: Everybody's time.
        entropy: Draws how long calls take.
        others: Links to the same book; this one is added.
        hears: Whether it is woken by the others; else it looks every two seconds.
    """

    is_shared: Final = True

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
        """Hear that another one has written."""
        if self._hears:
            self._hint.set()

    def cut(self, seconds: float) -> None:
        """Have nothing come through for a while, in either direction."""
        self._cut_until = self._clock.now() + seconds

    async def hang_up(self) -> None:
        """Have it seen that the process of this link has ended."""
        for lease in self._taken:
            await self._inner.give_back(lease)

    def __getattr__(self, name: str) -> Any:
        call: Callable[..., Awaitable[object]] = getattr(self._inner, name)

        async def pass_on(*words: object, **more: object) -> object:
            await self._turns()
            answer = await call(*words, **more)
            if isinstance(answer, Lease):
                self._taken.append(answer)
            await self._turns()
            if name in {"put_task", "put_facts"} or (
                name == "commit" and _opens(words[0])
            ):
                self._wake_others()
            return answer

        return pass_on

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


def _opens(change: object) -> bool:
    return isinstance(change, Change) and (
        change.round is not None or change.end is not None
    )
