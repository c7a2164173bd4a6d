"""An aggregator and its clients in one process, for tests and notebooks.

Rule 1: only the network is omitted: these are the product's own server and clients,
        with their limits.
Rule 2: without a ledger everything is kept in memory and deleted at the end; keys of
        enrolment always are.
"""

import asyncio
import functools
import itertools
import logging
import statistics
import warnings
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, ParamSpec

import numpy.typing as npt

from secagg.client.application import DaemonThreads
from secagg.client.client import Client, VectorMaker, check_vector_maker
from secagg.client.contribution import Contribution
from secagg.client.enrolment import EnrolledClient, EnrolledIdentity
from secagg.config.task import shortfall_of
from secagg.crypto.entropy import SystemEntropy
from secagg.crypto.signature import IdentityKey
from secagg.distributed_dp import NoisyTask, Plan
from secagg.distributed_dp.units import encode_integers
from secagg.errors import ErrorCode, LocalProtocolError
from secagg.pki.key_files import PublishedEnrolment
from secagg.protocol.arguments import (
    as_path,
    as_vector,
    check_whole,
    says_how_to_open,
    validates_arguments,
)
from secagg.protocol.enrolment import ClientIdentity, Credential, IssuedCredential
from secagg.protocol.policy import (
    ClientPolicy,
    ExactSumWaiver,
    PrivacyLimits,
    TotalBudget,
)
from secagg.runtime import log_events as telemetry
from secagg.server.server import RunningTask, Server
from secagg.server.session.events import SessionProgress
from secagg.server.task.outputs import ReleasedSum
from secagg.server.task.setup import PreparedTask

_LOG: Final = logging.getLogger(telemetry.CLIENT_LOGGER)
_TASK: Final = "local"
_Asked = ParamSpec("_Asked")
_NAME_DIGITS: Final = 16
# As long as a process may live.
_FOR_EVER: Final = (1 << 63) - 1
# Functions of all clients of one cohort that run at once.
_THREADS: Final = 8
# Part of the vectors that may be shortened before a cohort is told aloud.
_SHORTENED_WITHOUT_WARNING: Final = 0.25


class ClippingWarning(UserWarning):
    """More than a quarter of the vectors of a cohort were longer than the clip.

    A filter may turn it into an error after the sum was released and charged: it holds
    the sum.

    Args:
        text: How many vectors were changed, and how.
        total: The sum.
    """

    def __init__(self, text: str, total: ReleasedSum) -> None:
        super().__init__(text)
        self.total = total


class InProcessEnrolment:
    """An issuer for the clients of this process, in profiles that need one.

    Its key is drawn when it is made, and never leaves the process.

    Attributes:
        published: The enrolment of the task's `secagg.Cohort`.

    Example:
        enrolment = secagg.advanced.InProcessEnrolment()
        cohort = secagg.Cohort(
            profile=secagg.Profile.MALICIOUS_SERVER,
            enrolment=enrolment.published,
            min_clients=8,
            max_clients=8,
            min_survivors=6,
        )
        task = secagg.PreparedTask.from_plan(made, cohort)
        async with secagg.local(
            task, clients=8, privacy_limits=limits, enrolment=enrolment
        ) as opened:
            ...
    """

    def __init__(self) -> None:
        self._issuer: Final = IdentityKey.generate(SystemEntropy())
        self._serials: Final = itertools.count(1)
        self.published: Final = PublishedEnrolment(_TASK, self._issuer.public_bytes)

    def enrol(self, name: str) -> EnrolledIdentity:
        """Return a membership under a fresh key."""
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


@dataclass(frozen=True, slots=True)
class InProcessCohort:
    """A task and its clients, open; made by `local`.

    Attributes:
        server: The aggregator.
        task: Its one task.
        clients: In the order of their names, client-1, client-2, ...
    """

    server: Server
    task: RunningTask
    clients: tuple[Client, ...]

    async def sum(
        self, vectors: Iterable[npt.ArrayLike | VectorMaker | None]
    ) -> ReleasedSum:
        """Let clients contribute one vector each, and return the sum of the session.

        All vectors that are not functions are checked before any client starts.

        Args:
            vectors: One for each client, or a function that makes it; None for a client
                that takes no part in this session.

        Returns:
            The sum, with how many vectors were `shortened` and `replaced`.

        Raises:
            InputError: A vector cannot be used; no client has started.
            LocalProtocolError: Their number is not that of the clients, a session takes
                more or fewer vectors, or the task has released all its sums.
            SecAggError: The first error of a client or of the server.

        Warns:
            ClippingWarning: More than a quarter of the vectors were shortened, by a
                clip that does not move. Its `total` is the sum, which a filter that
                makes it an error cannot lose.
        """
        given = self._check_vectors(vectors)
        _check_count(self.task.prepared, len(given), what="vectors")
        if not self.task.sums_left:
            raise _is_all_released()
        released = asyncio.ensure_future(self.task.next_sum())
        contributing = [
            asyncio.ensure_future(client.contribute(vector)) for client, vector in given
        ]
        everything: list[asyncio.Future[Any]] = [released, *contributing]
        try:
            await asyncio.gather(*everything)
        finally:
            for one in everything:
                one.cancel()
            await asyncio.wait(everything)
        self.task.take()
        await self.task.recorded()
        total = released.result()
        if total is None:
            raise _is_all_released()
        noised = self.task.prepared.noised
        return _shortened_warning(total, [one.result() for one in contributing], noised)

    def _check_vectors(
        self, vectors: Iterable[npt.ArrayLike | VectorMaker | None]
    ) -> list[tuple[Client, npt.ArrayLike | VectorMaker]]:
        """Return each client that takes part, with its usable vector or function."""
        if (
            isinstance(vectors, str | bytes)
            or not hasattr(vectors, "__iter__")
            or hasattr(vectors, "columns")  # iterating over a table gives its names
        ):
            raise ErrorCode.LOCAL_MISUSE.error(
                f"vectors of {len(self.clients)} clients are needed, but "
                f"{type(vectors).__name__} is not a sequence",
                fix="Pass a list with one vector for each client; of a table "
                "list(frame.to_numpy()).",
            )
        # One more than needed shows that there are too many, also for an endless
        # iterable.
        given = list(itertools.islice(vectors, len(self.clients) + 1))
        if len(given) != len(self.clients):
            many = len(given) if len(given) < len(self.clients) else "more"
            raise ErrorCode.LOCAL_MISUSE.error(
                f"{many} vectors were passed for {len(self.clients)} clients",
                fix="Pass one vector for each client.",
            )
        checked: list[tuple[Client, npt.ArrayLike | VectorMaker]] = []
        for number, (client, each) in enumerate(
            zip(self.clients, given, strict=True), 1
        ):
            if callable(each):
                check_vector_maker(each)
                checked.append((client, each))
            elif each is not None:
                name = f"vector {number} of {len(given)}"
                checked.append((client, _checked_for(self.task.prepared, each, name)))
        return checked


def _checked_for(
    task: PreparedTask, given: npt.ArrayLike, name: str
) -> npt.NDArray[Any]:
    """Return a vector that a task accepts, or refuse it before any session."""
    noised = task.noised
    if noised is None:
        vector = as_vector(given, task.parameters.dimension, name=name)
        encode_integers(vector, task.parameters)
        return vector
    vector = as_vector(given, noised.dim, noisy=True, name=name)
    if noised.units is None:  # else each session has a clip of its own
        noised.check_vector(vector)
    return vector


def _shortened_warning(
    total: ReleasedSum, given: list[Contribution], noised: NoisyTask | None
) -> ReleasedSum:
    """Return the warning of vectors that were changed before they were added."""
    factors = [one.shortened_by for one in given if one.shortened_by is not None]
    longer = [factor for factor in factors if factor > 1.0]
    zeros = sum(one.replaced is not None for one in given)
    error = total.error
    if longer:
        error = error.with_flaw(f"{len(longer)} of {len(given)} vectors were shortened")
    if zeros:
        error = error.with_flaw(f"zeros replaced {zeros} of {len(given)} vectors")
    total = replace(total, shortened=len(longer), replaced=zeros, error=error)
    clip_stays = noised is not None and noised.units is None
    # One that moves is meant to shorten some, and a few are no reason for more noise.
    if clip_stays and len(longer) > _SHORTENED_WITHOUT_WARNING * len(given):
        text = (
            f"{len(longer)} of {len(given)} vectors were longer than the task allows"
            f"{_clip_of(total, noised)} and were shortened, by a factor of "
            f"{statistics.median(longer):.3g} in the median; plan a larger clip, with "
            "which the noise grows, or scale the vectors"
        )
        warnings.warn(ClippingWarning(text, total), stacklevel=2)
    return total


def _clip_of(total: ReleasedSum, noised: NoisyTask | None) -> str:
    """Return the clip in brackets where it is what vectors are held to."""
    if noised is None or noised.randomiser or noised.mechanism.takes_counts:
        return ""
    return f" (l2_clip = {total.l2_clip:.6g})"


@says_how_to_open
class _Opening(AsyncExitStack):
    """Opens what a generator yields, and says so where it is opened by `with`."""

    def __init__(self, opened: AbstractAsyncContextManager[InProcessCohort]) -> None:
        super().__init__()
        self._opened = opened

    async def __aenter__(self) -> InProcessCohort:  # type: ignore[override]  # it is what is opened
        return await self.enter_async_context(self._opened)


def _opening(
    opened: Callable[_Asked, AbstractAsyncContextManager[InProcessCohort]],
) -> Callable[_Asked, AbstractAsyncContextManager[InProcessCohort]]:
    """Let a function's result be opened as a context manager."""

    @functools.wraps(opened)
    def local(*args: _Asked.args, **kwargs: _Asked.kwargs) -> Any:  # noqa: ANN401 - as above
        return _Opening(opened(*args, **kwargs))

    return local


@validates_arguments
@_opening
@asynccontextmanager
async def local(  # noqa: PLR0913 - what server and clients are told
    prepared: Plan | PreparedTask,
    *,
    clients: int | None = None,
    privacy_limits: PrivacyLimits | ExactSumWaiver | None = None,
    cohort: ClientPolicy | None = None,
    steps: int | None = None,
    payload: bytes | Callable[[int], bytes] | None = None,
    enrolment: InProcessEnrolment | None = None,
    total: TotalBudget | None = None,
    ledger: Path | str | None = None,
    on_progress: Callable[[SessionProgress], None] | None = None,
) -> AsyncIterator[InProcessCohort]:
    """Open an aggregator and its clients in this process, without network.

    Args:
        prepared: The task: a plan, or one that was prepared.
        clients: How many there are; as many as a session takes by default. More where
            one client may be in some of the sums only.
        privacy_limits: What every client accepts, or its waiver in words; by default
            what the task claims, since one program is server and clients here.
        cohort: Limits on the cohort, for every client; by default they accept profile
            and graph of the task, and no other.
        steps: As in `Server.add_task`.
        payload: As in `Server.add_task`.
        enrolment: The issuer, in profiles that distrust the server: the one whose
            `published` the task was prepared with.
        total: What all tasks together may cost the data of each client. Without a
            ledger it knows of this block alone.
        ledger: Directory that outlives the block: which sums were released, and what
            each client has spent and claimed. A further block with the same noise
            continues its budget. None forgets all of it: the next block of the same
            task spends the budget again, of which a warning is logged once.
        on_progress: As in `Server`: told of every change of a session.

    Yields:
        Server, task and clients.

    Raises:
        LocalProtocolError: A task without noise comes without the waiver, there are
            more or fewer clients than the sums of the task need, the task goes by
            another enrolment, or all clients would share one directory of claims.
        ServiceError: STORAGE_FAILED, STATE_DAMAGED or RESTORED_STATE, of the ledger.
    """
    ledger = as_path("ledger", ledger)
    prepared = await asyncio.to_thread(PreparedTask.of, prepared)
    published = None if enrolment is None else enrolment.published
    if prepared.enrolment != published:
        raise ErrorCode.LOCAL_MISUSE.error(
            "the task was prepared with another enrolment than the clients have",
            fix="Pass Cohort and local the same InProcessEnrolment, or neither.",
        )
    if total is not None and total.directory is not None:
        raise ErrorCode.LOCAL_MISUSE.error(
            "a directory of claims would be shared by all clients of this block",
            fix="Omit TotalBudget.directory, and pass ledger.",
        )
    if privacy_limits is None:
        privacy_limits = _limits_of(prepared)
    if clients is None:
        clients = prepared.parameters.max_clients
    clients = check_whole("clients", clients, least=2)
    wanted = prepared.sums if steps is None else steps
    budget = None if prepared.noised is None else prepared.noised.budget
    if budget is None or budget.participations == wanted:
        _check_count(prepared, clients, what="clients")
    elif shortfall := shortfall_of(
        clients,
        participations=budget.participations,
        steps=wanted,
        min_clients=prepared.parameters.min_clients,
    ):
        raise ErrorCode.LOCAL_MISUSE.error(
            f"too few clients: {shortfall}",
            fix="Open more, or plan with more participations.",
        )
    async with AsyncExitStack() as stack:
        state = None if ledger is None else ledger / "server"
        server = await stack.enter_async_context(
            Server(None, state_dir=state, on_progress=on_progress)
        )
        name = _name_of(prepared)
        task = await server.add_task(name, prepared, steps=steps, payload=payload)
        if ledger is None:
            _warn_of_reset_budget(name)
        if cohort is None:
            named = prepared.parameters
            cohort = ClientPolicy(
                profiles=frozenset({named.profile}), graphs=frozenset({named.graph})
            )
        threads = DaemonThreads(_THREADS)
        opened: list[Client] = []
        for number in range(1, clients + 1):
            who = f"client-{number}"
            client = Client(
                server.connection(who),
                task=name,
                privacy_limits=privacy_limits,
                cohort=cohort,
                threads=threads,
                total=total,
                enrolment=None if enrolment is None else enrolment.enrol(who),
                state_dir=None if ledger is None else ledger / who,
            )
            opened.append(await stack.enter_async_context(client))
        yield InProcessCohort(server, task, tuple(opened))


def _limits_of(prepared: PreparedTask) -> PrivacyLimits:
    """Return the limits that are what the task claims."""
    noised = prepared.noised
    if noised is None:
        raise ErrorCode.LOCAL_MISUSE.error(
            "a task without noise is given no privacy_limits",
            fix="Give local an ExactSumWaiver with its sentence.",
        )
    return PrivacyLimits(
        max_epsilon=noised.budget.epsilon,
        max_delta=noised.budget.delta + noised.graph_delta,
    )


def _is_all_released() -> LocalProtocolError:
    """Return the error of a task without sums left."""
    return ErrorCode.LOCAL_MISUSE.error(
        "the task has released all its sums",
        kind=LocalProtocolError,
        fix="Plan the task with more steps.",
    )


def _check_count(prepared: PreparedTask, count: int, *, what: str) -> None:
    """Refuse another number of vectors, or clients, than a session takes."""
    fewest, most = prepared.parameters.min_clients, prepared.parameters.max_clients
    if not fewest <= count <= most:
        raise ErrorCode.LOCAL_MISUSE.error(
            f"a session of this task takes {fewest} to {most} {what}, not {count}",
            fix="Pass as many, or plan the task for another number.",
        )


def _name_of(prepared: PreparedTask) -> str:
    """Return the name of a task: one budget has one name, in every block."""
    block = prepared.parameters.noise_block
    if not block:
        return _TASK
    return f"{_TASK}-{sha256(block).hexdigest()[:_NAME_DIGITS]}"


# Names of the tasks with noise that were opened without a ledger in this process.
_FORGOTTEN: Final[set[str]] = set()
_WARNED: Final[set[str]] = set()


def _warn_of_reset_budget(name: str) -> None:
    """Log once that a budget begins again that an earlier block has spent."""
    if name == _TASK:
        return
    if name in _FORGOTTEN and name not in _WARNED:
        _WARNED.add(name)
        telemetry.log_event(
            _LOG,
            logging.WARNING,
            telemetry.BUDGET_FORGOTTEN,
            task=name,
            next_step="epsilon holds for one block alone: pass secagg.local a ledger "
            "if the vectors are of the same people",
        )
    _FORGOTTEN.add(name)
