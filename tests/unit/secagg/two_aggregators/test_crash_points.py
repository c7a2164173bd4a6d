"""Leader and helper die at every step that outlives them, and come back.

Each process has another task beside the one of the session, whose sum stays as it was.
"""

import asyncio

import numpy as np
import pytest
from secagg_testing.client_state import LastingStore
from secagg_testing.crash_points import (
    CrashingSpool,
    CrashingStore,
    CrashSwitch,
    SimulatedCrashError,
)
from secagg_testing.manual_clock import run
from secagg_testing.two_aggregators import TASK, TwoAggregators, noise_for

from secagg.errors import ErrorCode, ServiceError
from secagg.server.storage import ServerStorage
from secagg.storage.change import Side
from secagg.storage.queries import ListCharges, ReadTally
from secagg.transport.address import Address
from secagg.two_aggregators import PartyServer
from secagg.wire.calls import Blob, FetchChunk

VECTORS = [np.linspace(-0.3, 0.1 * k, 5) for k in range(1, 5)]
PARTS = ("leader", "helper")
AWAY_SECONDS = 3.0


NOWHERE = Address("127.0.0.1", 0)


def part_of(storages):
    """Return the call for what the helper has answered to the task beside."""
    (session_id,) = storages[1].spool.session_ids()
    return FetchChunk(session_id, Blob.SUM, 0, 1 << 20)


class Way:
    """The way to a part, whichever process it is at the moment."""

    def __init__(self, mortal, part, identity):
        self._mortal, self.aggregator, self.identity = mortal, part, identity
        self.trust_domain, self.is_direct = None, True

    async def call(self, request):
        service = self._mortal.alive.get(self.aggregator)
        if service is None:
            raise ServiceError("away", code=ErrorCode.UNREACHABLE)
        try:
            return await service.answer(self.identity, request)
        except SimulatedCrashError:
            raise ServiceError("gone", code=ErrorCode.UNREACHABLE) from None


def beside():
    """What a task leaves that is in the same processes, and the session of its sum."""

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for(), task="beside")
        released, _ = await deployment.give(VECTORS)
        return deployment.storages, released.session_id

    return run(main)


class Mortal:
    """Two aggregators, one of which dies once and is started again."""

    def __init__(self, clock, part, switch, storages):
        self.clock, self.part, self.switch = clock, part, switch
        self.beside, self.parties = storages, {}
        self.deployment = TwoAggregators(clock, noise_for(), helper_way=self._way)
        self.storages, self.alive = self.deployment.storages, {}
        dying = list(self.storages)
        place = PARTS.index(part)
        kept = self.storages[place]
        dying[place] = ServerStorage(
            CrashingStore(kept.store, switch), CrashingSpool(kept.spool, switch)
        )
        self._begin(
            TwoAggregators(
                clock, noise_for(), helper_way=self._way, storages=tuple(dying)
            ),
            PARTS,
        )
        switch.on_death(lambda: self.alive.pop(part))

    def _way(self, _):
        return Way(self, "helper", "leader")

    def _begin(self, deployment, parts):
        for part in parts:
            self._server(deployment, part)

    def _server(self, deployment, part):
        other = TwoAggregators(
            self.clock, noise_for(), task="beside", storages=self.beside
        )
        parties = [getattr(each, part) for each in (other, deployment)]
        server = PartyServer(parties, NOWHERE, None, clock=self.clock)
        self.alive[part], self.parties[part] = server, parties[1]

    async def again(self):
        await self.clock.sleep_until(self.clock.now() + AWAY_SECONDS)
        deployment = TwoAggregators(
            self.clock, noise_for(), helper_way=self._way, storages=self.storages
        )
        await getattr(deployment, self.part).recover()
        self._server(deployment, self.part)

    async def sum(self):
        """Run the leader's session, at as many leaders as it takes."""
        try:
            return await self.parties["leader"].next_sum()
        except SimulatedCrashError:
            await self.again()
        leader = self.parties["leader"]
        return await leader.last_sum() or await leader.next_sum()

    async def watch(self):
        """Start a helper that has died."""
        died = asyncio.Event()
        if self.part == "helper":
            self.switch.on_death(died.set)
        await died.wait()
        await self.again()


def session(part, at, other):
    """Run one session; return what came of it, and whether any party died."""
    switch = CrashSwitch(at)

    async def main(clock):
        storages, session_id = other
        mortal = Mortal(clock, part, switch, storages)
        watching = asyncio.ensure_future(mortal.watch())
        stores = [LastingStore.make(now=clock.date) for _ in VECTORS]
        clients = [
            mortal.deployment.client(
                f"c{k}",
                leader=Way(mortal, "leader", f"c{k}"),
                helper=Way(mortal, "helper", f"c{k}"),
                store=store,
            )
            for k, store in enumerate(stores)
        ]
        released, *given = await asyncio.gather(
            mortal.sum(),
            *(
                one.contribute(vector)
                for one, vector in zip(clients, VECTORS, strict=True)
            ),
        )
        watching.cancel()
        spent = [
            (await each.store.read(ReadTally(Side.SERVER, TASK))).spent
            for each in mortal.storages
        ]
        charges = [len(await store.read(ListCharges(TASK))) for store in stores]
        fetch = FetchChunk(session_id, Blob.SUM, 0, 1 << 20)
        kept = [
            (await mortal.alive["leader"].answer("client-0", fetch)).data,
            (await mortal.alive["helper"].answer("leader", part_of(storages))).data,
        ]
        return released, given, spent, charges, kept

    return run(main), switch.is_dead


@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("part", PARTS)
def test_a_client_crash_anywhere_draws_one_noise_and_counts_each_client_once(
    part, first, drawn
):
    modulus = noise_for().parameters.modulus
    expected = sum(np.trunc(each * 2**7).astype(np.int64) for each in VECTORS)
    at, died, repeated, other, kept = first, True, 0, beside(), []
    while died:  # behind each second step; the point before a step leaves no more
        drawn.clear()
        (released, given, spent, charges, sums), died = session(part, at, other)
        kept.append(sums)
        noises = np.unique(np.array(drawn), axis=0)
        assert len(noises) == 2, at
        repeated += len(drawn) - 2
        np.testing.assert_array_equal(
            released.residues, (expected + noises.sum(axis=0)) % modulus
        )
        assert released.inputs == 4
        for each in given:
            assert each.is_included
            np.testing.assert_array_equal(each.values, released.values)
        assert spent == [1, 1]
        assert charges == [1] * 4
        at += 4
    assert all(sums == kept[0] for sums in kept)
    assert at > 20  # steps of either part, two points each
    if first == 1:
        assert repeated >= 1  # noise was in a sum before the sum was on the disk
