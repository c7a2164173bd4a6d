"""An aggregator and its clients as processes that can die and start again.

Everything runs on one event loop and one `ManualClock`; stores and spools stand for
disks and survive the processes.  Inputs are one-hot, so that a sum says who is in it.

When a task is over, a knowledge ledger checks what server and corrupt clients can
compute together.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from secagg.client.contribution import SessionOutcome
from secagg.client.enrolment import EnrolledClient
from secagg.client.runner import ClientRunner
from secagg.client.session_driver import SessionSettings
from secagg.crypto.entropy import Entropy, SeededEntropy
from secagg.crypto.modular import UnsignedArray, zeros
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode, SecAggError, ServiceError, SessionAbortedError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import ClientIdentity
from secagg.protocol.events import NoisyVector, PlainVector
from secagg.protocol.noise_terms import NoiseSecrets
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.policy import ClientPolicy
from secagg.runtime.clock import Clock
from secagg.runtime.workers import Workers
from secagg.server.aggregator import Aggregator
from secagg.server.engine.mask_removal import MaskExecutor
from secagg.server.rpc.limits import AggregatorLimits
from secagg.server.task.definition import OnEnded, SessionSum, TaskDefinition
from secagg.simulation.driver import identity_in_simulation, identity_of
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.budget_ledger import ChargeState
from secagg.storage.client_store import ClientStore
from secagg.storage.queries import ListCharges
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.storage.store import Store
from secagg.transport.connection import AggregatorConnection, InMemoryConnection
from secagg.wire.calls import Request
from secagg_testing.client_state import LastingStore, MakeInput, client_over
from secagg_testing.cohorts import LENIENT_POLICY
from secagg_testing.crash_points import (
    CrashingConnection,
    CrashingSpool,
    CrashingStore,
    CrashSwitch,
    MortalConnection,
    SimulatedCrashError,
)
from secagg_testing.inline_store import inline_store
from secagg_testing.knowledge.claims import check
from secagg_testing.lossy_connection import Fault, LossyConnection
from secagg_testing.manual_clock import ManualClock, inline_engine
from secagg_testing.observed_connection import (
    CorruptEntropy,
    ObservedConnection,
    TaskObserver,
)

TASK_ID = "a-task"
# How long a supervisor takes to notice that a process is gone and to restart it.
RESTART_SECONDS = 3.0


def one_hot_input(number: int, parameters: ProtocolParameters) -> UnsignedArray:
    """Return m - 1 at the client's own coordinate, its number at the last, else 0."""
    vector = zeros(parameters.dimension, parameters.modulus)
    vector[number % (parameters.dimension - 1)] = parameters.modulus - 1
    vector[-1] = number % parameters.modulus
    return vector


@dataclass(eq=False)
class Deployment:
    """One task, its aggregator and its clients.

    Attributes:
        clock: The time of all processes.
        parameters: Of every session.
        clients: How many there are.
        sessions: How many sums are wanted.
        payload: Handed to the clients of every session.
        server_crash: Crash point of the aggregator's first process.
        client_crash: Crash point of a client's first process, by number.
        fault_of: Returns the fault of a client's n-th call of one kind.
        make_input: Replaces the one-hot input of a client.
        tamper: Wraps the connection of a client to the aggregator.
        settings: Of every client.
        max_attempts: Sessions per sum.
        allowed: Sessions that the budget of the task covers; None without one.
        ends_at: End date of the task on the deployment's clock, in seconds; a session
            that waits for clients who never come ends then.
        limits: Of the aggregator. Clients that poll ask every ten seconds: most of what
            a session with losses would cost is waiting.
        corrupt: Clients whose secrets the adversary has; they run as the others do.
        identity_files: What a client that starts finds of its identity, by number, in
            profiles with credentials; None finds nothing.
        revocations: The list that the parameters name, as the issuer made it.
        on_ended: Receives the state of each ended session at the aggregator.
        server_clock: The aggregator's, where its date is another; `clock` by default.
    """

    clock: ManualClock
    parameters: ProtocolParameters
    clients: int
    sessions: int = 1
    payload: bytes = b""
    server_crash: CrashSwitch = field(default_factory=CrashSwitch)
    client_crash: dict[int, CrashSwitch] = field(default_factory=dict)
    fault_of: Callable[[int, type[Request[Any]], int], Fault] = lambda *_: Fault.NONE
    make_input: Callable[[int], MakeInput] | None = None
    tamper: Callable[[int, AggregatorConnection], AggregatorConnection] = (
        lambda _who, connection: connection
    )
    settings: SessionSettings = SessionSettings(offer_seconds=600.0)  # noqa: RUF009 - frozen
    policy: ClientPolicy = LENIENT_POLICY
    max_attempts: int = 3
    allowed: int | None = None
    ends_at: float = 7200.0
    limits: AggregatorLimits = AggregatorLimits(  # noqa: RUF009 - frozen
        idle_timeout=30.0, poll_seconds=10.0
    )

    corrupt: frozenset[int] = frozenset()
    identity_files: Callable[[int], ClientIdentity | None] = lambda number: (
        identity_in_simulation(identity_of(number), number + 1)
    )
    revocations: bytes = b""
    on_ended: OnEnded | None = None
    server_clock: Clock | None = None

    observer: TaskObserver = field(default_factory=TaskObserver)
    server_store: Store = field(default_factory=inline_store)
    spool: UploadSpool = field(default_factory=lambda: UploadSpool(MemoryBlobs()))
    client_stores: dict[int, ClientStore] = field(default_factory=dict)
    links: dict[int, LossyConnection] = field(default_factory=dict)
    aggregator: Aggregator | None = None
    server_process: CrashSwitch = field(default_factory=CrashSwitch)
    sums: list[SessionSum] = field(default_factory=list)
    aborted: dict[int, bytes] = field(default_factory=dict)
    server_error: SecAggError | None = None
    server_restarts: int = 0

    async def run(
        self, *, absent: frozenset[int] = frozenset()
    ) -> dict[int, SessionOutcome | SecAggError]:
        """Run the task to its end; return each client's last outcome.

        Args:
            absent: Clients that never start.

        Raises:
            ForbiddenKnowledgeError: The adversary knows more than it may.
        """
        serving = asyncio.ensure_future(self.serve())
        present = [n for n in range(self.clients) if n not in absent]
        endings = await asyncio.gather(*(self.take_part(n) for n in present))
        await serving
        check(self.observer.facts, charged=await self.charged())
        return dict(zip(present, endings, strict=True))

    # --- the aggregator ---------------------------------------------------------------

    async def serve(self) -> None:
        """Run the aggregator, again after each crash, until the task is over."""
        switch = self.server_crash
        while True:
            died = asyncio.Event()
            self.server_process = switch
            switch.on_death(died.set)
            process = asyncio.ensure_future(self._serve_once(switch))
            dying = asyncio.ensure_future(died.wait())
            await asyncio.wait({process, dying}, return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            if not switch.is_dead:
                return await process
            self.aggregator = None
            process.cancel()
            await asyncio.wait({process})
            await self.clock.sleep_until(self.clock.now() + RESTART_SECONDS)
            self.server_restarts += 1
            switch = CrashSwitch()

    async def _serve_once(self, switch: CrashSwitch) -> None:
        workers = Workers(general=InlineExecutor())
        aggregator = Aggregator(
            CrashingStore(self.server_store, switch),
            cast(Any, CrashingSpool(self.spool, switch)),
            clock=self.server_clock or self.clock,
            entropy=entropy_of(f"server {self.server_restarts}"),
            workers=workers,
            masks=MaskExecutor(workers, inline_engine(2), min_work_per_part=1),
            limits=self.limits,
            on_aborted=self._on_aborted,
            on_ended=self.on_ended,
        )
        await aggregator.recover()
        self.aggregator = aggregator
        task = TaskDefinition(
            task_id=TASK_ID,
            parameters=self.parameters,
            revocations=self.revocations,
            sessions=self.sessions,
            max_attempts=self.max_attempts,
            allowed=self.allowed,
        )
        ending = asyncio.create_task(self._end_in_time(aggregator))
        try:
            await aggregator.run_task(
                task, next_payload=self._next_payload, on_sum=self._on_sum
            )
        except SecAggError as error:
            self.server_error = error
        finally:
            ending.cancel()
        await aggregator.settle(at_most_seconds=600.0)
        self.aggregator = None

    async def _end_in_time(self, aggregator: Aggregator) -> None:
        await self.clock.sleep_until(self.ends_at)
        await aggregator.end_task(TASK_ID, "its end date has come")

    async def _next_payload(self, _count: int) -> bytes:
        return self.payload

    async def _on_aborted(self, session: SessionDescriptor, audit: bytes) -> None:
        self.aborted[session.session_number] = audit

    async def _on_sum(self, released: SessionSum) -> None:
        known = {s.descriptor.session_id for s in self.sums}
        if released.descriptor.session_id not in known:
            self.sums.append(released)

    # --- the clients ------------------------------------------------------------------

    async def take_part(self, number: int) -> SessionOutcome | SecAggError:
        """Run one client, again after each crash, until the task is over for it."""
        switch = self.client_crash.get(number, CrashSwitch())
        last: SessionOutcome | SecAggError | None = None
        while True:
            try:
                last = await self._client(number, switch).run_session(TASK_ID)
            except SimulatedCrashError:
                await self.clock.sleep_until(self.clock.now() + RESTART_SECONDS)
                switch = CrashSwitch()
            except ServiceError as error:
                return last or error  # the task is over, or the aggregator is gone
            except SessionAbortedError as error:
                last = error
                if error.code is ErrorCode.DEADLINE:
                    return error
            except SecAggError as error:
                return error  # a party is at fault: a person would look at it

    def _client(self, number: int, switch: CrashSwitch) -> ClientRunner:
        link = self.links.setdefault(number, self._link(number))
        make_input = self.make_input(number) if self.make_input else self._input(number)
        connection = CrashingConnection(link, switch)
        entropy: Entropy = entropy_of(f"client {number} {len(switch.points)}")
        if number in self.corrupt:
            facts = self.observer.facts
            entropy = CorruptEntropy(entropy, identity_of(number), facts)
        if number not in self.client_stores:
            self.client_stores[number] = LastingStore.make()
        store = self.client_stores[number]
        return client_over(
            identity_of(number),
            ObservedConnection(connection, self.observer),
            CrashingStore(store, switch),
            policy=self.policy,
            make_input=make_input,
            clock=self.clock,
            entropy=entropy,
            enrolment=self._enrolment(number),
            settings=self.settings,
        )

    def _enrolment(self, number: int) -> EnrolledClient | None:
        if not self.parameters.profile.has_identities:
            return None
        found = self.identity_files(number)
        return None if found is None else EnrolledClient(found)

    def _link(self, number: int) -> LossyConnection:
        def find() -> AggregatorConnection | None:
            if self.aggregator is None:
                return None
            there = InMemoryConnection(self.aggregator, identity_of(number))
            return self.tamper(number, MortalConnection(there, self.server_process))

        return LossyConnection(
            identity_of(number),
            find,
            lambda call, count: self.fault_of(number, call, count),
        )

    def _input(self, number: int) -> MakeInput:
        def make(
            descriptor: SessionDescriptor, _: bytes, secrets: NoiseSecrets
        ) -> PlainVector | NoisyVector:
            vector = one_hot_input(number, descriptor.parameters)
            block = descriptor.parameters.noise_block
            if not block:
                return PlainVector(vector)
            # Its noise share is nothing, so that a sum still says who is in it.
            return NoisyVector(vector, block, secrets.context)

        return make

    # --- what must hold ---------------------------------------------------------------

    async def charged(self) -> dict[str, int]:
        """Return how many sessions each client has paid for.

        As its own store says, less what was refunded.  Without noise nothing is
        charged there, and every session counts for which an input was masked.
        """
        if not self.parameters.noise_block:
            return {name: len(known) for name, known in self.observer.masked.items()}
        spent = {}
        for number, store in self.client_stores.items():
            rows = await store.read(ListCharges(TASK_ID))
            kept = [row for row in rows if row.state is not ChargeState.VOID]
            spent[identity_of(number)] = len(kept)
        return spent

    def expected_sum(self, numbers: set[int]) -> UnsignedArray:
        """Return the sum of some clients' inputs modulo m."""
        m = self.parameters.modulus
        total = [0] * self.parameters.dimension
        for number in numbers:
            vector = one_hot_input(number, self.parameters)
            total = [(a + int(b)) % m for a, b in zip(total, vector, strict=True)]
        return np.array(total, zeros(0, m).dtype)

    def contradictions(
        self,
    ) -> dict[int, dict[tuple[bytes, type[Request[Any]]], int]]:
        """Return the clients that sent two different messages for the same round."""
        found = {}
        for number, link in self.links.items():
            many = {k: n for k, n in link.distinct_messages().items() if n > 1}
            if many:
                found[number] = many
        return found


def entropy_of(label: str) -> SeededEntropy:
    """Return a stream of chance that is the same in every run."""
    seed = SecretBytes(hashlib.sha256(b"deployment").digest())
    return SeededEntropy(seed, label.encode())
