"""A deployment of several replicas that share a store and a spool.

Every call of a client goes to another replica than the one before.  Replicas die at
crash points of their own, come back, and may be cut off from the store for a while.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.runtime.workers import Workers
from secagg.server.aggregator import Aggregator
from secagg.server.engine.mask_removal import MaskExecutor
from secagg.server.task.definition import (
    DeliveryDeferredError,
    SessionSum,
    TaskDefinition,
)
from secagg.server.task.outputs import RETRY_SECONDS
from secagg.simulation import identity_of
from secagg.storage.rows import Replica
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.transport.connection import AggregatorConnection, InMemoryConnection
from secagg_testing.crash_points import (
    CrashingSpool,
    CrashingStore,
    CrashSwitch,
    MortalConnection,
)
from secagg_testing.deployment import RESTART_SECONDS, TASK_ID, Deployment, entropy_of
from secagg_testing.lossy_connection import LossyConnection
from secagg_testing.manual_clock import inline_engine
from secagg_testing.shared_store import SharedStore


@dataclass(eq=False)
class Replicas(Deployment):
    """One task, several aggregators and their clients.

    Attributes:
        replicas: How many there are.
        crashes: Crash points of the first process of each replica, by number.
        cuts: When the link of a replica to the store is cut, and for how long, both in
            seconds, by number.
        seed: Of the order in which calls come to pass.
        deaf: Replicas that receive no notification of others.
        taking_seconds: How long it takes to accept a sum.
        full: Replicas that have no room for sums.
        settled: Replica that was notified that a sum is settled.
        given: Replica that delivered the sum of a session.
        given_at: When that was, in seconds of the clock.
    """

    replicas: int = 2
    crashes: dict[int, CrashSwitch] = field(default_factory=dict)
    cuts: dict[int, tuple[float, float]] = field(default_factory=dict)
    seed: str = ""
    deaf: frozenset[int] = frozenset()
    taking_seconds: float = 0.0
    full: set[int] = field(default_factory=set)
    settled: list[int] = field(default_factory=list)
    stores: list[SharedStore] = field(default_factory=list)
    alive: dict[int, tuple[Aggregator, CrashSwitch]] = field(default_factory=dict)
    given: list[tuple[int, int]] = field(default_factory=list)
    given_at: list[float] = field(default_factory=list)
    errors: list[SecAggError] = field(default_factory=list)

    async def serve(self) -> None:
        """Run all replicas, each again after a crash, until the task is over."""
        await asyncio.gather(*(self._serve_as(n) for n in range(self.replicas)))

    async def _serve_as(self, number: int) -> None:
        switch, restarts = self.crashes.get(number, CrashSwitch()), 0
        while True:
            died = asyncio.Event()
            switch.on_death(died.set)
            process = asyncio.ensure_future(self._replica(number, restarts, switch))
            dying = asyncio.ensure_future(died.wait())
            await asyncio.wait({process, dying}, return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            self.alive.pop(number, None)
            if not switch.is_dead:
                return await process
            process.cancel()
            await asyncio.wait({process})
            await self.clock.sleep_until(self.clock.now() + RESTART_SECONDS)
            restarts += 1
            switch = CrashSwitch()

    async def _replica(self, number: int, restarts: int, switch: CrashSwitch) -> None:
        inline = InlineExecutor()
        workers = Workers(general=inline)
        label = f"{self.seed} replica {number} {restarts}"
        store = SharedStore(
            self.server_store,
            self.clock,
            entropy_of(f"{label} turns"),
            self.stores,
            hears=number not in self.deaf,
        )
        if number in self.cuts and not restarts:
            cutting = asyncio.ensure_future(self._cut(store, *self.cuts[number]))
        else:
            cutting = asyncio.ensure_future(asyncio.sleep(0))
        aggregator = Aggregator(
            CrashingStore(store, switch),
            cast(Any, CrashingSpool(self.spool, switch)),
            clock=self.clock,
            entropy=entropy_of(label),
            workers=workers,
            masks=MaskExecutor(workers, inline_engine(2), min_work_per_part=1),
            limits=self.limits,
            on_aborted=self._on_aborted,
            on_ended=self.on_ended,
            replica=Replica(label, "", ""),
        )
        try:
            await aggregator.recover()
            self.alive[number] = (aggregator, switch)
            await self._run_task(number, aggregator)
            await aggregator.settle(at_most_seconds=60.0)
        finally:
            if switch.is_dead:
                await store.hang_up()
            cutting.cancel()
            closing = asyncio.ensure_future(aggregator.close())
            await asyncio.wait({closing})

    async def _cut(self, store: SharedStore, at: float, seconds: float) -> None:
        await self.clock.sleep_until(self.clock.now() + at)
        store.cut(seconds)

    async def _run_task(self, number: int, aggregator: Aggregator) -> None:
        task = TaskDefinition(
            task_id=TASK_ID,
            parameters=self.parameters,
            sessions=self.sessions,
            max_attempts=self.max_attempts,
            allowed=self.allowed,
        )

        async def on_sum(released: SessionSum) -> None:
            self.given.append((number, released.descriptor.session_number))
            self.given_at.append(self.clock.now())
            await self.clock.sleep_until(self.clock.now() + self.taking_seconds)
            if number in self.full:
                raise DeliveryDeferredError(
                    ServiceError("full", code=ErrorCode.STORAGE_FAILED),
                    retry_after_seconds=RETRY_SECONDS,
                    settle=lambda: self.settled.append(number),
                )
            await self._on_sum(released)

        ending = asyncio.create_task(self._end_in_time(aggregator))
        try:
            await aggregator.run_task(
                task, next_payload=self._next_payload, on_sum=on_sum
            )
        except SecAggError as error:
            self.errors.append(error)
        finally:
            ending.cancel()

    def _link(self, number: int) -> LossyConnection:
        chooser = entropy_of(f"{self.seed} client {number}")

        def find() -> AggregatorConnection | None:
            if not self.alive:
                return None
            there = sorted(self.alive)[chooser.token(1)[0] % len(self.alive)]
            aggregator, switch = self.alive[there]
            link = InMemoryConnection(aggregator, identity_of(number))
            return self.tamper(number, MortalConnection(link, switch))

        return LossyConnection(
            identity_of(number),
            find,
            lambda call, count: self.fault_of(number, call, count),
        )
