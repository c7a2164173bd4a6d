"""Which replica of a shared store completes a session: computes its sum and ends it.

Rule 1: one replica does, by a lease; the others wait, and any of them continues when
        the holder has died.  The store may see that at once, as a database does when a
        connection ends; else the lease expires.  The lease only saves double work: all
        replicas would compute the same bytes, and a stored sum is compared in any case.
Rule 2: a replica that gets the lease first reads what the last holder has stored.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from secagg.errors import ServiceError
from secagg.runtime.clock import Clock, wait_set
from secagg.runtime.metrics import LEASES_LOST, Meter, SilentMeter
from secagg.server.session.state import retrying
from secagg.storage.change import Lease
from secagg.storage.leases import AcquireLease, ReleaseLease, RenewLease
from secagg.storage.store import Store

# How long a sum waits for a replica that is suspended or disconnected from the store.
# The holder renews the lease after a third of this time.
LEASE_SECONDS: Final = 12.0
# A replica that waits for another one checks again after this time.
LOOK_EVERY_SECONDS: Final = 1.0


class SessionLease:
    """Holds the right to complete one session.

    Args:
        session_key: The session's name in the store.
        replica: Name of this process among the replicas of the store.
        store: Keeps the lease; a store that is not shared needs none.
        clock: Time between checks and renewals.
        place: Returns how many rounds the session has entered; None once another
            replica has ended it.
        refresh: Applies what other replicas have stored of the session.
        woken: Set whenever the session may have changed.
        meter: Counts lost leases.

    Attributes:
        held: The lease, while this process holds it.
    """

    def __init__(  # noqa: PLR0913 - every part can be exchanged
        self,
        session_key: str,
        replica: str,
        *,
        store: Store,
        clock: Clock,
        place: Callable[[], int | None],
        refresh: Callable[[], Awaitable[None]],
        woken: asyncio.Event,
        meter: Meter | None = None,
    ) -> None:
        self._name = f"sum/{session_key}"
        self._replica = replica
        self._store = store
        self._clock = clock
        self._place = place
        self._refresh = refresh
        self._woken = woken
        self._meter = meter or SilentMeter()
        self._renewing: asyncio.Task[None] | None = None
        self.held: Lease | None = None

    async def hold(self) -> bool:
        """Acquire the right to complete the session; wait while another replica has it.

        Returns:
            False if another replica has completed it, or the session has entered
                another
            round since the call.

        Raises:
            ServiceError: STORAGE_FAILED, after repeated attempts.
        """
        if not self._store.is_shared:
            return True
        is_held, place = False, self._place()

        async def hold() -> None:
            nonlocal is_held
            try:
                is_held = await self._held_at(place)
            except ServiceError:
                await self.release()  # the next call must read the store again
                raise

        await retrying(self._clock, hold)
        return is_held

    async def release(self) -> None:
        """Release the lease, if it is held."""
        lease, self.held = self.held, None
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.wait({renewing})
        if lease is not None:
            with suppress(ServiceError):  # it expires
                await self._store.commit(ReleaseLease(lease))

    async def _held_at(self, place: int | None) -> bool:
        """Acquire the right, unless the session has entered another round."""
        if self.held is not None and not await self._store.commit(
            RenewLease(self.held, seconds=LEASE_SECONDS)
        ):
            self._meter.add(LEASES_LOST)
            await self.release()
        while self.held is None:
            if not self._is_at(place):
                return False
            self._woken.clear()
            self.held = await self._store.commit(
                AcquireLease(self._name, holder=self._replica, seconds=LEASE_SECONDS)
            )
            if self.held is None:
                again = self._clock.now() + LOOK_EVERY_SECONDS
                await wait_set(self._clock, again, self._woken)
            else:  # its last holder may have completed the session
                await self._refresh()
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())
        return self._is_at(place)

    def _is_at(self, place: int | None) -> bool:
        """Return whether the session is in the round of a place."""
        return place is not None and self._place() == place

    async def _renew(self) -> None:
        """Renew the lease three times in its length, until it is lost."""
        while self.held is not None:
            await self._clock.sleep_until(self._clock.now() + LEASE_SECONDS / 3)
            with suppress(ServiceError):  # the next step reports the refusal
                if not await self._store.commit(
                    RenewLease(self.held, seconds=LEASE_SECONDS)
                ):
                    return
