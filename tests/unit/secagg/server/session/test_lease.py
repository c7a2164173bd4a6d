"""One of those who share a store takes a session's last steps; the others wait."""

import asyncio

from secagg_testing import manual_clock
from secagg_testing.counting_meter import CountingMeter

from secagg.errors import ErrorCode, ServiceError
from secagg.server.session.lease import LEASE_SECONDS, LOOK_EVERY_SECONDS, SessionLease
from secagg.storage.leases import AcquireLease, Leases, RenewLease


class SharedStore:
    """The leases of a store that several share, and nothing else of it."""

    def __init__(self, clock, *, is_shared=True):
        self.is_shared = is_shared
        self.refusals = 0
        self.ended = set()
        self.sharing = Leases(clock.now, self.ended.__contains__)

    async def commit(self, command):
        if self.refusals and isinstance(command, AcquireLease):
            self.refusals -= 1
            raise ServiceError("full", code=ErrorCode.STORAGE_FAILED)
        return await command.run(self)


class Replica:
    """A process that may end the session `s`."""

    def __init__(self, name, store, clock):
        self.place, self.looks = 5, 0
        self.at_look = lambda: None
        self.woken = asyncio.Event()
        self.meter = CountingMeter()
        self.lease = SessionLease(
            "s",
            name,
            store=store,
            clock=clock,
            place=lambda: self.place,
            refresh=self.look,
            woken=self.woken,
            meter=self.meter,
        )

    async def look(self):
        self.looks += 1
        self.at_look()


def test_a_single_replica_needs_no_lease():
    async def main(clock):
        alone = Replica("a", SharedStore(clock, is_shared=False), clock)
        assert await alone.lease.hold()
        assert (alone.lease.held, alone.looks) == (None, 0)

    manual_clock.run(main)


def test_a_live_holder_keeps_its_lease_and_a_released_one_passes_at_once():
    async def main(clock):
        store = SharedStore(clock)
        one, other = Replica("a", store, clock), Replica("b", store, clock)
        assert await one.lease.hold()
        waiting = asyncio.ensure_future(other.lease.hold())
        await clock.sleep_until(clock.now() + 10 * LEASE_SECONDS)
        assert not waiting.done()
        assert await one.lease.hold()  # it is the same one's still
        await one.lease.release()
        other.woken.set()
        before = clock.now()
        assert await waiting
        assert (clock.now(), other.looks) == (before, 1)
        await other.lease.release()
        assert len(asyncio.all_tasks()) == 1  # no task renews it

    manual_clock.run(main)


def test_the_lease_of_an_ended_replica_passes_within_a_second():
    async def main(clock):
        store = SharedStore(clock)
        one, other = Replica("a", store, clock), Replica("b", store, clock)
        assert await one.lease.hold()
        waiting = asyncio.ensure_future(other.lease.hold())
        await clock.sleep_until(clock.now() + LEASE_SECONDS)
        one.lease._renewing.cancel()
        store.ended.add("a")
        began = clock.now()
        assert await waiting
        assert clock.now() - began <= LOOK_EVERY_SECONDS
        assert other.lease.held.token > one.lease.held.token
        assert not await store.commit(RenewLease(one.lease.held, seconds=LEASE_SECONDS))
        await other.lease.release()

    manual_clock.run(main)


def test_a_replica_stopped_for_long_loses_its_lease_and_refreshes():
    async def main(clock):
        store = SharedStore(clock)
        one, other = Replica("a", store, clock), Replica("b", store, clock)
        assert await one.lease.hold()
        one.lease._renewing.cancel()  # as if the process stood still
        first = one.lease.held
        began = clock.now()
        assert await other.lease.hold()
        assert LEASE_SECONDS <= clock.now() - began <= LEASE_SECONDS + 2
        await other.lease.release()
        assert await one.lease.hold()
        assert one.lease.held.token > first.token
        assert one.looks == 2
        assert one.meter.total == {("secagg_leases_lost_total",): 1}
        await one.lease.release()

    manual_clock.run(main)


def test_work_done_by_another_replica_is_not_repeated():
    async def main(clock):
        store = SharedStore(clock)
        for place in (6, None):  # another round, and the end
            late = Replica("a", store, clock)
            late.at_look = lambda late=late, place=place: setattr(late, "place", place)
            assert not await late.lease.hold()
            await late.lease.release()
        assert not await late.lease.hold()  # and nothing is taken for it
        assert late.lease.held is None

    manual_clock.run(main)


def test_a_temporary_store_error_is_retried_after_a_refresh():
    async def main(clock):
        store = SharedStore(clock)
        one = Replica("a", store, clock)
        store.refusals = 2
        assert await one.lease.hold()
        assert one.looks == 1
        await one.lease.release()

        def refuse_once():
            if one.looks == 2:
                raise ServiceError("full", code=ErrorCode.STORAGE_FAILED)

        one.at_look = refuse_once
        assert await one.lease.hold()
        assert one.looks == 3  # what it holds unseen is let go
        await one.lease.release()

    manual_clock.run(main)
