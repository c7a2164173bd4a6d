"""Who of those that share a book takes a session's last steps: its sum, and its end.

Rule 1: one of them does, by a lease; the others wait, and any of them goes on when its
        holder has died: at once where the book sees that, as a database does when a
        connection ends, else when the lease has run out.  It only saves double work:
        all would get the same bytes, and what is written is compared in any case.
Rule 2: whoever gets the lease looks at what its last holder has stored before it acts.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from secagg.errors import ServiceError
from secagg.runtime.clock import Clock, is_set_before
from secagg.runtime.metrics import LEASES_LOST, Meter, SilentMeter
from secagg.server.session.state import patiently
from secagg.storage.change import Lease
from secagg.storage.leases import AcquireLease, ReleaseLease, RenewLease
from secagg.storage.store import Store

# How long a sum waits for a replica that stands still, or is cut off from the book, and
# may come back; a third of it between signs of life.
LEASE_SECONDS: Final = 12.0
# Whoever waits for another replica looks again after so long.
LOOK_EVERY_SECONDS: Final = 1.0


class SessionLease:
    """The right to take one session's last steps.

    Args:
        session_key: The session's name in the book.
        replica: Name of this process among those that share the book.
        book: Says who has the lease; one that is not shared needs none.
        clock: Time between looks and signs of life.
        place: Returns where the session stands: how many rounds it has entered, None
            once somebody else has ended it.
        look: Learns what others have stored of the session.
        woken: Set whenever the session may stand elsewhere.
        meter: Counts leases that were lost.

    Attributes:
        held: The lease, while this process has it.
    """

    def __init__(  # noqa: PLR0913 - every part can be exchanged
        self,
        session_key: str,
        replica: str,
        *,
        store: Store,
        clock: Clock,
        place: Callable[[], int | None],
        look: Callable[[], Awaitable[None]],
        woken: asyncio.Event,
        meter: Meter | None = None,
    ) -> None:
        self._name = f"sum/{session_key}"
        self._replica = replica
        self._store = store
        self._clock = clock
        self._place = place
        self._look = look
        self._woken = woken
        self._meter = meter or SilentMeter()
        self._renewing: asyncio.Task[None] | None = None
        self.held: Lease | None = None

    async def hold(self) -> bool:
        """Have the session's last steps to oneself; waits while somebody else has them.

        Returns:
            False when somebody else has done them, or the session stands elsewhere
            than when this was called.

        Raises:
            ServiceError: STORAGE_FAILED, again and again.
        """
        if not self._store.is_shared:
            return True
        is_held, place = False, self._place()

        async def hold() -> None:
            nonlocal is_held
            try:
                is_held = await self._held_at(place)
            except ServiceError:
                await self.let_go()  # whoever takes it again must look again
                raise

        await patiently(self._clock, hold)
        return is_held

    async def let_go(self) -> None:
        """Let others have what `hold` has taken."""
        lease, self.held = self.held, None
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.wait({renewing})
        if lease is not None:
            with suppress(ServiceError):  # it expires
                await self._store.commit(ReleaseLease(lease))

    async def _held_at(self, place: int | None) -> bool:
        """See `hold`; the session stood at this place when that was called."""
        if self.held is not None and not await self._store.commit(
            RenewLease(self.held, seconds=LEASE_SECONDS)
        ):
            self._meter.add(LEASES_LOST)
            await self.let_go()
        while self.held is None:
            if not self._is_at(place):
                return False
            self._woken.clear()
            self.held = await self._store.commit(
                AcquireLease(self._name, holder=self._replica, seconds=LEASE_SECONDS)
            )
            if self.held is None:
                again = self._clock.now() + LOOK_EVERY_SECONDS
                await is_set_before(self._clock, again, self._woken)
            else:  # its last holder may have done all that there is to do
                await self._look()
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())
        return self._is_at(place)

    def _is_at(self, place: int | None) -> bool:
        return place is not None and self._place() == place

    async def _renew(self) -> None:
        while self.held is not None:
            await self._clock.sleep_until(self._clock.now() + LEASE_SECONDS / 3)
            with suppress(ServiceError):  # a refusal at the next step says so
                if not await self._store.commit(
                    RenewLease(self.held, seconds=LEASE_SECONDS)
                ):
                    return
