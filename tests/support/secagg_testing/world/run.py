"""One run: a server, its clients, their operators, and what goes wrong.

Rule 1: a supervisor starts a process again when it has died or ended with an error
        that may pass, as a unit of systemd would, and does nothing else.
Rule 2: a run ends when all parties have come to an end: with the sums, or with a typed
        reason.  One that does not is a fault.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from secagg.client.durable_client import DurableClient
from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.errors import ErrorCode, LocalProtocolError, SecAggError
from secagg.protocol.packing import MAX_CHUNK_BYTES
from secagg.runtime.clock import SystemClock
from secagg.server.admin.views import StoreViews
from secagg.server.rpc.limits import AggregatorLimits
from secagg.server.storage import ServerStorage
from secagg.storage.budget_ledger import ChargeState
from secagg.storage.change import Change
from secagg.storage.client_store import ClientStore
from secagg.storage.queries import ListCharges
from secagg.storage.rows import Task
from secagg.storage.store import StoreUnavailableError
from secagg_testing.knowledge.claims import ForbiddenKnowledgeError
from secagg_testing.manual_clock import STARTED_AT, DeadlockError
from secagg_testing.observed_connection import CorruptEntropy
from secagg_testing.world.aggregators import Aggregators, without_files
from secagg_testing.world.certificates import TakenBack
from secagg_testing.world.dice import Dice, entropy_of
from secagg_testing.world.directed import LOST_SECONDS, Directed
from secagg_testing.world.loop import VirtualLoop, own_process
from secagg_testing.world.machines import Disk, DiskFault, Machine
from secagg_testing.world.network import Link, Network
from secagg_testing.world.operator import Operator
from secagg_testing.world.participants import WorldClient
from secagg_testing.world.plan import LAST_STEP, Action, Fault, Incident, Plan
from secagg_testing.world.poison import Poison
from secagg_testing.world.tasks import WorldTask
from secagg_testing.world.witness import Witness

SERVER: Final = "server"
# How long a supervisor takes to start a process again.
RESTART_SECONDS: Final = 3.0
# An operator who sees that nothing comes of a task any more, because too few clients
# have an input left to give, ends it.
TASK_TIMEOUT_SECONDS: Final = 3 * 3600.0
# How long services are left alone when no aggregator runs any more.
_GRACE_SECONDS: Final = 1800.0
# No party waits for anything as long as this.
_TOO_LONG_SECONDS: Final = 8 * 3600.0
# As long as it takes at most to make a connection to a database.
_TIMEOUT_SECONDS: Final = 10.0
# Clocks of machines differ by as much; clients grant more.
_SKEW_SECONDS: Final = 60.0
# What a client whose owner does nothing meets once, and not again.
_FINAL: Final = frozenset(
    {ErrorCode.TASK_OVER, ErrorCode.POLICY_VIOLATION, ErrorCode.RESTORED_STATE}
)


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run.

    Attributes:
        plan: What it was.
        faults: Failed checks; empty if all passed.
        digest: Names everything that happened.
        trace: The same in lines, if they were kept.
        steps: How many steps it had.
        seconds: How long it lasted in its own time.
        sums: How many sums the operator was given.
        endings: How server and clients ended, by name.
    """

    plan: Plan
    faults: tuple[str, ...]
    digest: str
    trace: tuple[str, ...]
    steps: int
    seconds: float
    sums: int
    endings: dict[str, str]


def simulate(seed: int, *, keep_trace: bool = False) -> Run:
    """Run the plan of a seed."""
    return simulate_plan(Plan.of(seed), keep_trace=keep_trace)


def simulate_plan(plan: Plan, *, keep_trace: bool = False) -> Run:
    """Run a plan.

    A directed one without the restart has a fault.
    """
    world = _World(plan, keep_trace=keep_trace)
    with (
        _without_machinery(world.plan),
        without_files(world.witness, world.has_room),
        world.poison.in_the_first_sum(),
    ):
        return world.run()


class _World:
    """Everything in one run.

    Args:
        plan: What happens.
        keep_trace: Whether the lines of the trace are kept.
    """

    def __init__(self, plan: Plan, *, keep_trace: bool) -> None:
        self.plan = plan
        self.dice = Dice(plan.seed, "world")
        self.loop = VirtualLoop(Dice(plan.seed, "order"))
        if not plan.is_shuffled:
            self.loop.keep_order()
        self.names = plan.clients
        self.task_of = {name: task for task in plan.tasks for name in task.clients}
        self.witness = Witness(
            plan.tasks,
            now=self.loop.time,
            on_step=self._on_step,
            keep_trace=keep_trace,
        )
        self.network = Network(
            self.loop, Dice(plan.seed, "network"), plan.weather, self.witness
        )
        self.loop.job_seconds = self._job_seconds
        self.loop.on_job = self.witness.step
        self.loop.set_exception_handler(self._escaped)
        self.is_calm = False
        self.full_until: dict[str, float] = {}
        self.away_until: dict[str, float] = {}
        self.no_room_until: dict[str, float] = {}
        self.poison = Poison(plan.poison, self.witness.servers, self._kill_soon)
        self.servers = tuple(f"{SERVER}-{n}" for n in range(plan.servers))
        self.directed = self._directed()
        if self.directed is not None:
            self.network.on_answer = self.directed.on_received
        self.disks = {name: self._disk(name) for name in self.names}
        self.disks |= dict.fromkeys(self.servers, self._disk(SERVER))
        self.machines: dict[str, Machine] = {}
        self.processes: dict[str, asyncio.Task[None]] = {}
        self.starts = dict.fromkeys((*self.servers, *self.names), 0)
        self.endings: dict[str, str] = {}
        self.is_leaving = False
        self.drained: set[Machine] = set()
        self.dismissed: set[str] = set()
        self.said: set[asyncio.Task[None]] = set()
        self.pending: list[Incident | Action] = [*plan.incidents, *plan.actions]
        self.pending.sort(key=lambda each: each.step)
        self.taken_back = TakenBack() if plan.has_certificates else None
        self.aggregators = Aggregators(
            plan, self.network, self.witness, self.taken_back
        )
        self.operator = Operator(
            self.aggregators, self.witness, Dice(plan.seed, "operator")
        )
        self.disk_dice = Dice(plan.seed, "disks")
        self.store_dice = Dice(plan.seed, "stores")

    def run(self) -> Run:
        """Run to the end, and check what must hold."""
        loop = self.loop
        if self.directed is not None:
            self.directed.begin()
        whole = loop.create_task(self._until_the_end())
        self.witness.on_fault = lambda: loop.call_soon(whole.cancel)
        try:
            loop.run_until_complete(whole)
        except asyncio.CancelledError:
            pass  # by a fault
        except DeadlockError as error:
            self.witness.fault(str(error))
        except ForbiddenKnowledgeError as error:
            self.witness.fault(f"forbidden knowledge: {error}")
        finally:
            self._teardown()
        witness = self.witness
        return Run(
            plan=self.plan,
            faults=tuple(witness.faults),
            digest=witness.digest,
            trace=tuple(witness.trace),
            steps=witness.steps,
            seconds=loop.time(),
            sums=len(witness.servers.sums),
            endings=self.endings,
        )

    def _teardown(self) -> None:
        """Release all resources of the run."""
        for machine in self.machines.values():
            machine.kill()
        for _ in range(50):
            left = asyncio.all_tasks(self.loop)
            if not left:
                break
            for task in left:
                task.cancel()
            try:
                self.loop.run_until_complete(asyncio.wait(left, timeout=60.0))
            except DeadlockError:
                continue
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        if self.taken_back is not None:
            self.taken_back.close()

    async def _until_the_end(self) -> None:
        clients = [
            self._supervise(name, partial(self._take_part, number))
            for number, name in enumerate(self.names)
        ]
        servers = [
            self._supervise(name, self.aggregators.serve) for name in self.servers
        ]
        serving = asyncio.ensure_future(_all(servers))
        taking_part = asyncio.ensure_future(_all(clients))
        # A server of an operator's tasks ends by a word alone.
        ends = {taking_part} if self.plan.is_operated else {serving, taking_part}
        minding = asyncio.ensure_future(self.operator.mind(self.plan.tasks))
        try:
            async with asyncio.timeout(_TOO_LONG_SECONDS):
                await asyncio.wait(
                    ends,
                    return_when=asyncio.FIRST_COMPLETED,
                    timeout=TASK_TIMEOUT_SECONDS,
                )
                if not any(each.done() for each in ends):
                    self._check_timeout()
                self.is_leaving = True  # a client that is alone need not wait for ever
                awaited = taking_part if self.plan.is_operated else serving
                if not awaited.done():
                    await self._end_tasks()
                if self.plan.is_operated:
                    await taking_part
                    self.aggregators.closing.set()
                await serving
                await self._leave(taking_part)
        except TimeoutError:
            self.witness.fault(f"there is no end; so far: {self.endings}")
            return
        finally:
            minding.cancel()
        await self._check_outcome()

    async def _leave(self, taking_part: "asyncio.Future[None]") -> None:
        """Wait for clients; end services that no server answers."""
        if self.plan.is_service:
            await asyncio.wait({taking_part}, timeout=_GRACE_SECONDS)
            for name in self.names:
                if name not in self.endings:
                    self.dismissed.add(name)
                    self._kill(name)
        await taking_part

    def _check_timeout(self) -> None:
        """Check that a task without a sum had too few clients."""
        for task in self.plan.tasks:
            left = [name for name in task.clients if name not in self.endings]
            if len(left) >= task.parameters.min_clients:
                self.witness.fault(
                    f"nothing comes of {task.name}; so far: {self.endings}"
                )

    @property
    def is_served(self) -> bool:
        """Whether any server has not ended."""
        return not all(name in self.endings for name in self.servers)

    async def _end_tasks(self) -> None:
        """Have the operator end tasks that have no clients left."""
        if self.plan.is_operated:
            for task in self.plan.tasks:
                await self.operator.stop(task)
            return
        (task,) = self.plan.tasks
        while self.is_served:
            for each in self.network.listeners:
                ending = each.process.start(
                    each.service.end_task(task.name, "no client is left")
                )
                ends: set[asyncio.Future[Any]] = {ending, each.process.death}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(RESTART_SECONDS)

    async def _check_outcome(self) -> None:
        if self.directed is not None and not self.directed.is_done:
            self.witness.fault("the restart that was planned did not come")
        self.witness.check_contributions(is_complete=self.plan.is_fair)
        if self.plan.is_operated:
            store = self.disks[self.servers[0]].open(accept_restored=False)
            self.witness.check_views(await StoreViews(store, Path()).tasks())
        is_done = any(self.endings[name] == "done" for name in self.servers)
        (task, *others) = self.plan.tasks
        if is_done and not others and len(self.witness.servers.sums) < task.sums:
            self.witness.fault(
                f"the task is done with {len(self.witness.servers.sums)} sums"
            )
        for task in self.plan.tasks:
            self.witness.check_knowledge(task, await self._charges(task))

    async def _charges(self, task: WorldTask) -> dict[str, int]:
        """Return how often clients have been charged, by their own ledgers."""
        charged: dict[str, int] = {}
        if not task.parameters.noise_block:
            return charged
        for name in task.clients:
            if self.disks[name].is_restored:
                # It was refused: what it had been charged is known here alone.
                charged[name] = self.witness.clients.charged(name)
                continue
            store = self.disks[name].open(accept_restored=False)
            rows = await store.read(ListCharges(task.name))
            states = {row.session_id: row.state for row in rows}
            self.witness.clients.check_charges(
                name, states, self.witness.servers.sums.values()
            )
            kept = [each for each in states.values() if each is not ChargeState.VOID]
            charged[name] = len(kept)
        return charged

    # --- processes --------------------------------------------------------------------

    async def _supervise(
        self, name: str, work: Callable[[Machine], Coroutine[Any, Any, None]]
    ) -> None:
        """Run a party's processes, one after the other, until it has ended."""
        while True:
            machine = self._machine(name)
            process = machine.start(work(machine))
            self.processes[name] = process
            await asyncio.wait(
                {process, machine.death}, return_when=asyncio.FIRST_COMPLETED
            )
            if machine.is_gone:
                await asyncio.wait({process})
            machine.end()
            ending = self._ending_of(machine, process)
            if ending is not None:
                self.endings[name] = ending
                self.witness.write(name, f"ends: {ending}")
                return
            await asyncio.sleep(RESTART_SECONDS)

    def _ending_of(self, machine: Machine, process: "asyncio.Task[None]") -> str | None:
        """Return the outcome of a party; None if it has to continue."""
        if machine.name in self.dismissed:
            return "dismissed"
        if machine.is_gone or process.cancelled():
            self.witness.write(machine.name, "has died")
            return None
        error = process.exception()
        if error is None:
            # It was asked to end: its machine starts it again.
            return None if machine in self.drained else "done"
        if not isinstance(error, SecAggError):
            self.witness.fault(f"{machine.name} ended by {error!r}")
            return repr(error)
        self.witness.write(machine.name, f"error: {error.code.name}, {error}")
        is_server = machine.disk.owner == SERVER
        ends = self._server_ends if is_server else self._client_ends
        return error.code.name if ends(machine.name, error) else None

    def _server_ends(self, name: str, error: SecAggError) -> bool:
        """Whether an error ends an aggregator."""
        has_served = self.machines[name] in self.aggregators.have_listened
        if has_served and isinstance(error, StoreUnavailableError):
            self.witness.fault(f"{name} ends because its store is unavailable")
        if error.code in _FINAL or self.is_leaving:
            return True
        if error.code is ErrorCode.STORAGE_FAILED:
            return False
        if self.plan.is_operated:
            self.witness.fault(f"{name} ends before it was asked to: {error}")
        return True

    def _client_ends(self, name: str, error: SecAggError) -> bool:
        """Whether an error ends a client."""
        if error.code in _FINAL or self.witness.servers.is_revoked(name):
            return True
        if self.plan.is_service and error.code is not ErrorCode.STORAGE_FAILED:
            # Only its own disk may end a service, and whatever a person has to mend.
            self.witness.fault(f"{name}, a service, ends: {error}")
        return self.is_leaving and not self.is_served

    def _machine(self, name: str) -> Machine:
        self.starts[name] += 1
        entropy: Entropy = entropy_of(self.plan.seed, f"{name} {self.starts[name]}")
        if name in self.names and self.names.index(name) in self.plan.corrupt:
            entropy = CorruptEntropy(entropy, name, self.witness.facts_of(name))
        machine = Machine(
            self.loop,
            name,
            disk=self.disks[name],
            entropy=entropy,
            skew=_SKEW_SECONDS * (2.0 * self.dice.uniform() - 1.0),
        )
        self.machines[name] = machine
        if machine.disk.owner == SERVER:
            self.witness.servers.uptime.record_start(machine)
        self.witness.write(name, "starts")
        return machine

    async def _take_part(self, number: int, machine: Machine) -> None:
        name = self.names[number]
        client = WorldClient(
            Link(self.network, name, machine),
            number,
            task=self.task_of[name],
            witness=self.witness,
            is_service=self.plan.is_service,
        )
        async with client:
            await client.take_part()

    # --- what goes wrong --------------------------------------------------------------

    def _job_seconds(self) -> float:
        return self.plan.job_seconds * self.dice.uniform() ** 4

    def _directed(self) -> Directed | None:
        if self.plan.direction is None:
            return None
        return Directed(
            self.plan.direction,
            server=SERVER,
            clients=self.names,
            lose=self._lose,
            restart=self._kill_soon,
        )

    def _lose(self, name: str) -> None:
        self.network.cut_off[name] = self.loop.time() + LOST_SECONDS

    def _committed(self, disk: Disk, change: Change | Task) -> None:
        self.witness.committed(disk, change)
        if self.directed is not None:
            self.directed.committed(disk, change)

    def _on_step(self, step: int) -> None:
        while self.pending and self.pending[0].step <= step:
            incident = self.pending.pop(0)
            # Never in the middle of another callback.
            self.loop.call_soon(self._inject, incident, context=self.network.context)
        if step == LAST_STEP:
            self.is_calm = True
            self.network.calm()
            self.away_until.clear()
            self.witness.servers.uptime.reconnect()
            self.no_room_until.clear()

    def _inject(self, incident: Incident | Action) -> None:
        if isinstance(incident, Action):
            task = next(t for t in self.plan.tasks if t.name == incident.task)
            action = self.loop.create_task(self.operator.act(incident, task))
            self.said.add(action)
            action.add_done_callback(self.said.discard)
            return
        if self.is_calm:
            return
        among = self.names if incident.fault.meets_client else self.servers
        victim = among[incident.client % len(among)]
        self.witness.write("WORLD", f"{incident.fault}: {victim}")
        match incident.fault:
            case Fault.KILL_SERVER | Fault.KILL_CLIENT:
                self._kill(victim)
            case Fault.STOP_SERVER | Fault.STOP_CLIENT:
                self._stop(victim, incident.seconds)
            case Fault.STOP_SERVERS:
                for name in self.servers:
                    self._stop(name, incident.seconds)
            case Fault.RESTART_SERVER:
                self._end(victim)
            case Fault.DRAIN_SERVER:
                self._drain(victim, incident.seconds)
            case Fault.REVOKE_CLIENT:
                self._take_back(victim)
            case _:
                self._inject_link(victim, incident)
                self._inject_disk(self.disks[victim], incident)

    def _inject_link(self, victim: str, incident: Incident) -> None:
        until = self.loop.time() + incident.seconds
        match incident.fault:
            case Fault.CUT_OFF_CLIENT:
                self.network.cut_off[victim] = until
            case Fault.CUT_OFF_ALL:
                self.network.cut_off.update(dict.fromkeys(self.names, until))
            case Fault.CUT_OFF_SERVER:
                self._cut_off(victim, until)
            case Fault.RESTART_DATABASE:
                for name in self.servers:
                    self._cut_off(name, until)
            case Fault.FILL_OUTPUT_DISK:
                self.no_room_until[victim] = until

    def _inject_disk(self, disk: Disk, incident: Incident) -> None:
        match incident.fault:
            case Fault.FILL_SERVER_DISK | Fault.FILL_CLIENT_DISK:
                self.full_until[disk.owner] = self.loop.time() + incident.seconds
            case Fault.BACK_UP_SERVER | Fault.BACK_UP_CLIENT:
                disk.back_up()
            case Fault.RESTORE_SERVER | Fault.RESTORE_CLIENT:
                for name, other in self.disks.items():
                    if other is disk:
                        self._kill(name)
                if disk.restore() and disk.owner == SERVER:
                    self.witness.servers.restore()

    def _cut_off(self, name: str, until: float) -> None:
        self.away_until[name] = max(until, self.away_until.get(name, 0.0))
        self.witness.servers.uptime.cut_off(name, until)

    def _is_cut_off(self) -> bool:
        process = own_process()
        name = "" if process is None else process.name
        return self.loop.time() < self.away_until.get(name, 0.0)

    def _away(self) -> float | None:
        """Return how long the calling process waits for its store; None if reachable.

        A link that falls silent is closed after a while, one that breaks at once.
        """
        if not self._is_cut_off():
            return None
        return self.store_dice.choice(
            (0.0, _TIMEOUT_SECONDS * self.store_dice.uniform())
        )

    def has_room(self) -> bool:
        """Whether the process that asks has room for a sum."""
        process = own_process()
        name = "" if process is None else process.name
        return self.loop.time() >= self.no_room_until.get(name, 0.0)

    def _kill_soon(self, name: str) -> None:
        self.loop.call_soon(self._kill, name, context=self.network.context)

    def _kill(self, name: str) -> None:
        machine = self.machines.get(name)
        if machine is not None:
            machine.kill()
            machine.disk.lose_power()
            for listener in tuple(self.network.listeners):
                if listener.process is machine:
                    self.network.close(listener)

    def _drain(self, name: str, seconds: float) -> None:
        """Ask an aggregator to end; kill it after a while (SIGTERM)."""
        machine = self.machines.get(name)
        if machine is not None and self.aggregators.drain(machine):
            self.drained.add(machine)
            self.loop.call_later(
                seconds, self._end, name, machine, context=self.network.context
            )

    def _end(self, name: str, machine: Machine | None = None) -> None:
        """Ask a process to end; if a machine is given, that one's alone."""
        if name in self.processes and machine in {None, self.machines[name]}:
            self.processes[name].cancel()

    def _take_back(self, name: str) -> None:
        if self.taken_back is not None and not self.witness.servers.is_revoked(name):
            self.taken_back.revoke(name)
            self.witness.servers.revoked(name)

    def _stop(self, name: str, seconds: float) -> None:
        machine = self.machines.get(name)
        if machine is not None:
            machine.stop()
            self.loop.call_later(seconds, machine.resume, context=self.network.context)

    def _disk(self, name: str) -> Disk:
        return Disk(
            name,
            entropy=entropy_of(self.plan.seed, f"disk of {name}"),
            now=lambda: STARTED_AT + self.loop.time(),
            fault=self._disk_fault,
            on_commit=self._committed,
            on_lost=lambda: self.witness.fault(
                f"a kill has lost what was committed on the disk of {name}"
            ),
            on_dropped=self.witness.dropped,
            on_unnoticed=lambda: self.witness.fault("a restored state is not noticed"),
            away=self._away,
            is_read=self._is_read,
            is_cut_off=self._is_cut_off,
            is_heard=lambda: not self.store_dice.chance(self.plan.hint_loss),
            is_shared=name == SERVER and self.plan.servers > 1,
        )

    def _disk_fault(self, disk: Disk) -> DiskFault:
        if self.is_calm:
            return DiskFault.NONE
        if self.loop.time() < self.full_until.get(disk.owner, 0.0):
            return DiskFault.REFUSE
        if self.disk_dice.chance(self.plan.disk_refusal):
            return DiskFault.REFUSE
        if self.disk_dice.chance(self.plan.disk_lost_replies):
            return DiskFault.FALL_SILENT
        return DiskFault.NONE

    def _is_read(self) -> bool:
        is_checker = own_process() is None
        return (
            is_checker
            or self.is_calm
            or not self.store_dice.chance(self.plan.read_refusal)
        )

    def _escaped(self, _: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        """Record an error that no code has caught."""
        error = about.get("exception")
        whose = about.get("task") or about.get("future")
        self.witness.fault(f"escaped: {about.get('message')}: {error!r} {whose!r}")


async def _all(parties: list[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*parties)


# --- in place of the operating system -------------------------------------------------


def _own() -> Machine:
    process = own_process()
    if not isinstance(process, Machine):
        raise LocalProtocolError("the world itself has no disk and no entropy")
    return process


async def _server_storage(*_: object, **options: Any) -> ServerStorage:
    disk = _own().disk
    await disk.reach()
    store = disk.open(accept_restored=options["accept_restored"])
    return ServerStorage(store, disk.open_spool())


def _client_store(client: DurableClient) -> ClientStore:
    return _own().disk.open_client(accept_restored=client.accept_restored)


def _instant(_: SystemClock) -> float:
    return asyncio.get_running_loop().time()


def _date(_: SystemClock) -> float:
    return _unix_time() + _own().skew


def _unix_time() -> float:
    return STARTED_AT + asyncio.get_running_loop().time()


def _token(_: SystemEntropy, size: int) -> bytes:
    return _own().entropy.token(size)


@contextmanager
def _without_machinery(plan: Plan) -> Iterator[None]:
    """Put the world in the place of clock, disks and entropy of the machine."""
    # As over a network, but seldom: every look is a turn of the loop.
    limits = partial(AggregatorLimits, poll_seconds=4.0, join_poll_seconds=4.0)
    is_collecting = gc.isenabled()
    level = logging.root.manager.disable
    with (
        mock.patch("secagg.server.server.open_storage", _server_storage),
        mock.patch.object(DurableClient, "open_store", _client_store),
        mock.patch.object(AggregatorLimits, "in_one_process", limits),
        mock.patch(
            "secagg.client.calls.MAX_CHUNK_BYTES", plan.chunk_bytes or MAX_CHUNK_BYTES
        ),
        mock.patch("secagg.storage.change.time", SimpleNamespace(time=_unix_time)),
        # So that a run sees the end of them.
        mock.patch("secagg.distributed_dp.task._ROSTERS_PER_SESSION", 1),
        mock.patch.object(SystemClock, "now", _instant),
        mock.patch.object(SystemClock, "date", _date),
        mock.patch.object(SystemEntropy, "token", _token),
    ):
        # What is collected when would depend on what ran before.
        gc.disable()
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(level)
            if is_collecting:
                gc.enable()
