"""An aggregator and its clients in one process, for tests and notebooks.

Rule 1: nothing is shortened but the network: these are the product's own server and
        clients, with their floors.
Rule 2: everything is kept in memory and forgotten at the end, keys of enrolment
        included.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy.typing as npt

from secagg.client.client import Client, VectorMaker
from secagg.client.enrolment import EnrolledClient
from secagg.enrolment.credential import Credential, IssuedCredential
from secagg.enrolment.identity_files import ClientIdentity
from secagg.enrolment.published import PublishedEnrolment
from secagg.errors import LocalProtocolError
from secagg.policy import ClientPolicy, ExactSumsAccepted, PrivacyFloors
from secagg.primitives.entropy import SystemEntropy
from secagg.primitives.signature import IdentityKey
from secagg.server.server import ReleasedSum, RunningTask, Server
from secagg.server.task_setup import PreparedTask

__all__ = ["LocalCohort", "LocalEnrolment", "local"]

_TASK: Final = "local"
# As long as a process may live.
_FOR_EVER: Final = (1 << 63) - 1


class LocalEnrolment:
    """An issuer for the clients of this process, in profiles that ask for one.

    Its key is drawn when it is made, and nobody outside of the process knows it.

    Attributes:
        published: What the task's `secagg.Cohort` says of enrolment.

    Example:
        everybody = secagg.LocalEnrolment()
        cohort = secagg.Cohort(
            profile=secagg.Profile.MALICIOUS_SERVER,
            enrolment=everybody.published,
            min_clients=8,
            max_clients=8,
            min_survivors=6,
        )
        task = secagg.PreparedTask.from_plan(made, cohort)
        async with secagg.local(
            task, clients=8, floors=floors, enrolment=everybody
        ) as people:
            ...
    """

    def __init__(self) -> None:
        self._issuer: Final = IdentityKey.generate(SystemEntropy())
        self._serials: Final = itertools.count(1)
        self.published: Final = PublishedEnrolment(_TASK, self._issuer.public_bytes)

    def _enrol(self, name: str) -> EnrolledClient:
        key = IdentityKey.generate(SystemEntropy())
        credential = Credential(
            name=name,
            identity_key=key.public_bytes,
            not_before=0,
            not_after=_FOR_EVER,
            serial=next(self._serials),
        ).signed_by(self._issuer, _TASK)
        issued = IssuedCredential(_TASK, credential)
        return EnrolledClient(ClientIdentity(key, issued, self._issuer.public_bytes))


class _LocalClient(Client):
    """A client whose identity lies in no file."""

    local_enrolment: LocalEnrolment | None = None

    def _enrolled(self, name: str) -> EnrolledClient | None:
        issuer = self.local_enrolment
        return None if issuer is None else issuer._enrol(name)  # noqa: SLF001 - ours


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
    enrolment: LocalEnrolment | None = None,
) -> AsyncIterator[LocalCohort]:
    """Open an aggregator and its clients in this process, without network.

    Args:
        prepared: The task.
        clients: How many there are.
        floors: Privacy floors of every client, or their waiver in words.
        cohort: Floors and caps of the cohort, for every client; by default they accept
            profile and graph of the task, and no other.
        sessions: As in `Server.add_task`.
        payload: As in `Server.add_task`.
        enrolment: Who enrols the clients, in profiles that distrust the server: the one
            whose `published` the task was prepared with.

    Yields:
        Server, task and clients.

    Raises:
        LocalProtocolError: There are no floors, more or fewer clients than a session of
            the task takes, or the task goes by another enrolment.
    """
    published = None if enrolment is None else enrolment.published
    if prepared.enrolment != published:
        raise LocalProtocolError(
            "the task was prepared with another enrolment than the clients have",
            next_step="Give Cohort and local the same LocalEnrolment, or neither.",
        )
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
        if cohort is None:
            named = prepared.parameters
            cohort = ClientPolicy(
                profiles=frozenset({named.profile}), graphs=frozenset({named.graph})
            )
        opened: list[Client] = []
        for number in range(1, clients + 1):
            client = _LocalClient(
                server.connection(f"client-{number}"),
                task=_TASK,
                floors=floors,
                cohort=cohort,
            )
            client.local_enrolment = enrolment
            opened.append(await stack.enter_async_context(client))
        yield LocalCohort(server, task, tuple(opened))
