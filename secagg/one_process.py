"""An aggregator and its clients in one process, for tests and notebooks.

Rule 1: nothing is shortened but the network: these are the product's own server and
        clients, with their floors.
Rule 2: everything is kept in memory and forgotten at the end.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from secagg.client.client import Client, VectorMaker
from secagg.errors import LocalProtocolError
from secagg.policy import ClientPolicy, ExactSumsAccepted, PrivacyFloors
from secagg.server.server import ReleasedSum, RunningTask, Server
from secagg.server.task_setup import PreparedTask

__all__ = ["LocalCohort", "local"]

_TASK = "local"


@dataclass(frozen=True, slots=True)
class LocalCohort:
    """A task and its clients, open; made by `local`.

    Attributes:
        server: The aggregator.
        task: Its one task.
        clients: In the order of their names, client-1, client-2, ...
    """

    server: Server
    task: RunningTask
    clients: tuple[Client, ...]

    async def sum(self, vectors: Sequence[npt.ArrayLike | VectorMaker]) -> ReleasedSum:
        """Let every client give one vector, and return the sum of the session.

        Args:
            vectors: One for each client, or a function that makes it.

        Raises:
            LocalProtocolError: Their number is not that of the clients, or the task
                has released all its sums.
            SecAggError: The first error of a client or of the server.
        """
        if len(vectors) != len(self.clients):
            raise LocalProtocolError(
                f"{len(vectors)} vectors are given by {len(self.clients)} clients"
            )
        if not self.task.sums_left:
            raise LocalProtocolError("the task has released all its sums")
        released = asyncio.ensure_future(self.task.next_sum())
        everybody: list[asyncio.Future[Any]] = [
            released,
            *(
                asyncio.ensure_future(client.contribute(vector))
                for client, vector in zip(self.clients, vectors, strict=True)
            ),
        ]
        try:
            await asyncio.gather(*everybody)
        finally:
            for one in everybody:
                one.cancel()
            await asyncio.wait(everybody)
        self.task.take()
        total = released.result()
        if total is None:
            raise LocalProtocolError("the task has released all its sums")
        return total


@asynccontextmanager
async def local(  # noqa: PLR0913 - what server and clients are told
    prepared: PreparedTask,
    *,
    clients: int,
    floors: PrivacyFloors | ExactSumsAccepted,
    cohort: ClientPolicy | None = None,
    sessions: int | None = None,
    payload: bytes | Callable[[int], bytes] | None = None,
) -> AsyncIterator[LocalCohort]:
    """Open an aggregator and its clients in this process, without network.

    Args:
        prepared: The task.
        clients: How many there are.
        floors: Privacy floors of every client, or their waiver in words.
        cohort: Floors and caps of the cohort, for every client.
        sessions: As in `Server.add_task`.
        payload: As in `Server.add_task`.

    Yields:
        Server, task and clients.

    Raises:
        LocalProtocolError: There are no floors, or more or fewer clients than a session
            of the task takes.
    """
    fewest, most = prepared.parameters.min_clients, prepared.parameters.max_clients
    if not fewest <= clients <= most:
        raise LocalProtocolError(
            f"a session of this task takes {fewest} to {most} clients, not {clients}",
            next_step="Open as many, or plan the task for another number.",
        )
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(None))
        task = await server.add_task(
            _TASK, prepared, sessions=sessions, payload=payload
        )
        opened = [
            await stack.enter_async_context(
                Client(
                    server.connection(f"client-{number}"),
                    task=_TASK,
                    floors=floors,
                    cohort=cohort,
                )
            )
            for number in range(1, clients + 1)
        ]
        yield LocalCohort(server, task, tuple(opened))
