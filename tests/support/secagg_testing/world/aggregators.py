"""The aggregators of a world: a program that builds on the library, or an operator's.

An operator's aggregator writes each sum to files; in their place the witness
receives the sum.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.server.server import OperatedServer, Server
from secagg.server.supervisor import TaskSupervisor
from secagg.server.task.outputs import ReleasedSum
from secagg.server.task.setup import PreparedTask
from secagg_testing.world.certificates import Door, TakenBack
from secagg_testing.world.machines import Machine
from secagg_testing.world.network import Listener, Network
from secagg_testing.world.plan import THIRD, Plan
from secagg_testing.world.tasks import prepared_of, settings_of
from secagg_testing.world.witness import Witness

# Nothing of a world lies in files.
_NOWHERE: Final = Path("/nowhere")


class Aggregators:
    """What the processes of aggregators do.

    Args:
        plan: Of the run.
        network: Where they listen.
        witness: Receives all sums.
        taken_back: Revoked certificates; None where clients have
            none.

    Attributes:
        keepers: Those of the aggregators that have an operator, by process.
        have_listened: Processes that have started to accept calls.
        closing: Set when no client needs an aggregator any more.
    """

    def __init__(
        self,
        plan: Plan,
        network: Network,
        witness: Witness,
        taken_back: TakenBack | None,
    ) -> None:
        self._plan = plan
        self._network = network
        self._witness = witness
        self._taken_back = taken_back
        self._servers: dict[Machine, Server] = {}
        self.keepers: Final[dict[Machine, TaskSupervisor]] = {}
        self.have_listened: Final[set[Machine]] = set()
        self.closing: Final = asyncio.Event()

    def drain(self, machine: Machine) -> bool:
        """Drain an aggregator; False if it does not serve."""
        if machine not in self._servers or machine.is_gone:
            return False
        self._witness.servers.drained(machine)
        machine.context.run(self._servers[machine].drain)
        return True

    async def serve(self, machine: Machine) -> None:
        """Run one process of an aggregator.

        Raises:
            SecAggError: It cannot continue.
        """
        is_restored = machine.disk.is_restored
        if is_restored:
            try:
                async with Server(None):
                    pass  # another server has accepted it meanwhile
            except SecAggError as error:
                if error.code is not ErrorCode.RESTORED_STATE:
                    raise
        if self._plan.is_operated:
            await self._serve_operator(machine)
        else:
            await self._serve_program(machine, accept_restored=is_restored)

    async def _serve_program(self, machine: Machine, *, accept_restored: bool) -> None:
        (of,) = self._plan.tasks
        async with Server(None, accept_restored=accept_restored) as server:
            task = await server.add_task(
                of.name, prepared_of(of.kind), steps=of.sums, attempts=5
            )
            async with self._listening(machine, server):
                async for total in task.sums():
                    self._witness.servers.record_sum(total)
                await server.settle()

    async def _serve_operator(self, machine: Machine) -> None:
        keeper = TaskSupervisor(
            _NOWHERE, _NOWHERE, own_task=None, notify=lambda _: None
        )
        async with OperatedServer(None, on_aborted=keeper.write_aborted) as server:
            try:
                await keeper.start(
                    server,
                    [
                        settings_of(task.name, task.sums)
                        for task in self._plan.tasks
                        if task.name != THIRD
                    ],
                )
                async with self._listening(machine, server):
                    self.keepers[machine] = keeper
                    await self._until_closing(keeper)
            finally:
                self.keepers.pop(machine, None)
                server.drain()
                await keeper.close()

    async def _until_closing(self, keeper: TaskSupervisor) -> None:
        failing = asyncio.ensure_future(keeper.failed())
        closing = asyncio.ensure_future(self.closing.wait())
        try:
            ends: set[asyncio.Future[Any]] = {failing, closing}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                failing.result()
        finally:
            failing.cancel()
            closing.cancel()

    @asynccontextmanager
    async def _listening(self, machine: Machine, server: Server) -> AsyncIterator[None]:
        door = None if self._taken_back is None else Door(machine, self._taken_back)
        listener = Listener(machine, server, door)
        self._network.listeners.append(listener)
        self._servers[machine] = server
        self.have_listened.add(machine)
        try:
            yield
        finally:
            del self._servers[machine]
            self._network.close(listener)


@contextmanager
def without_files(witness: Witness, has_room: Callable[[], bool]) -> Iterator[None]:
    """Deliver sums to the witness where an operator's aggregator writes files.

    Args:
        witness: Receives them.
        has_room: Whether the process that asks has room for files.
    """

    def check_room() -> None:
        if not has_room():
            raise ServiceError(
                "no room",
                code=ErrorCode.STORAGE_FAILED,
                next_step="Make room.",
            )

    def store_receipt(_: Path, __: SessionDescriptor, ___: bytes) -> Path:
        check_room()
        return _NOWHERE

    class Folder:
        """The folder of any task."""

        def __init__(self, _: Path, __: PreparedTask) -> None:
            pass

        async def write(self, total: ReleasedSum) -> None:
            """Accept a sum, with the delay of a disk."""
            check_room()
            await asyncio.to_thread(witness.servers.record_sum, total)

    with (
        mock.patch("secagg.server.supervisor.SumWriter", Folder),
        mock.patch("secagg.server.supervisor.store_receipt", store_receipt),
    ):
        yield
