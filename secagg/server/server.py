"""An aggregator of several tasks, as a class for programs.

Rule 1: an interrupted task resumes from its last committed record. Sums that were
        released before count towards the number wanted, because they spent its budget.
Rule 2: a sum is delivered until the program has taken it. The body of ``async for total
        in task.sums()`` ends before the next session opens, and runs again after a
        crash in it.
Rule 3: a port is served with TLS only.  Plaintext exists for tests, on loopback, as an
        argument only.
Rule 4: the server may be stopped at any moment; open sessions then wait in the store.

It handles no signals and prints nothing: that is `secagg.server.service`.
"""

import asyncio
import math
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from secagg.config.task import TaskSettings, shortfall_of
from secagg.crypto.entropy import SystemEntropy
from secagg.distributed_dp import Plan
from secagg.errors import ErrorCode, LocalProtocolError, ServiceError
from secagg.pki.certificate_revocations import revocation_file
from secagg.protocol.arguments import (
    as_path,
    check_kind,
    check_name,
    check_names,
    check_real,
    check_whole,
    says_how_to_open,
    validates_arguments,
)
from secagg.protocol.descriptor import MAX_TASK_ID_BYTES, SessionDescriptor
from secagg.protocol.messages import MAX_IDENTITY_BYTES
from secagg.protocol.profiles import Profile
from secagg.runtime.clock import SystemClock, background, ends_before
from secagg.runtime.metrics import Meter
from secagg.runtime.workers import Workers, guarded_callback
from secagg.server.admin.views import StoreViews
from secagg.server.aggregator import Aggregator
from secagg.server.call_guards import CallGuards, CallLimits
from secagg.server.engine.mask_removal import MaskExecutor
from secagg.server.engine.opening import open_engine
from secagg.server.rpc.limits import AggregatorLimits
from secagg.server.session.events import LiveSession, SessionProgress
from secagg.server.session.report import reports_in
from secagg.server.storage import ServerStorage, open_storage, purge_regularly
from secagg.server.task.definition import (
    OnAttemptsExhausted,
    OnSum,
    SessionSum,
    TaskDefinition,
)
from secagg.server.task.history import sums_released
from secagg.server.task.outputs import PendingWrites, ReleasedSum, released_sum
from secagg.server.task.schedule import TaskSchedule
from secagg.server.task.setup import PreparedTask
from secagg.storage.rows import Replica, Retention
from secagg.storage.store import Store
from secagg.transport.address import Address
from secagg.transport.connection import (
    UNCERTIFIED_AGGREGATOR,
    AggregatorConnection,
    InMemoryConnection,
)
from secagg.transport.handshake_limits import AdmissionLimits
from secagg.transport.tls import TLSIdentity

if TYPE_CHECKING:
    from secagg.server.http_edge.listener import EdgeOptions, HttpEdge
    from secagg.server.rpc.grpc_server import GrpcServer

# A client polls a few times a minute at most.  A server that only waits for clients
# that missed an end waits no longer than this.
SETTLE_SECONDS: Final = 15.0
_REPLICA_BYTES: Final = 8


class RunningTask:
    """A task of a server that runs; made by `Server.add_task`.

    Attributes:
        task_id: Its name.
        prepared: The task's parameters.
        released_before: Sums that earlier processes released.
        sums_left: Sums that are not released yet.
    """

    def __init__(  # noqa: PLR0913 - what a task is made of
        self,
        task_id: str,
        prepared: PreparedTask,
        *,
        sums_left: int,
        released_before: int,
        run: Callable[[OnSum], Coroutine[Any, Any, None]],
        count_recorded: Callable[[], Awaitable[int]],
    ) -> None:
        self._count_recorded = count_recorded
        self.task_id: Final = task_id
        self.prepared: Final = prepared
        self.released_before: Final = released_before
        self.sums_left = sums_left
        self._wanted = released_before + sums_left
        self._unconfirmed: tuple[SessionSum, asyncio.Future[None]] | None = None
        self._is_delivered = asyncio.Event()
        self._running = asyncio.create_task(run(self._deliver))

    @property
    def is_done(self) -> bool:
        """Whether the task has ended, with success or not."""
        return self._running.done()

    async def sums(self) -> AsyncIterator[ReleasedSum]:
        """Yield the sums of this process, each when its session has released it.

        Ends with the task.  The next session opens when the next sum is requested, so
        its payload may depend on this one.  After a loop was left, another loop gets
        the sum of the unfinished turn again.

        Raises:
            SessionAbortedError: Too many attempts at one sum failed.
            ServiceError: STORAGE_FAILED, or CANCELLED when the server was closed.
            LocalProtocolError: The function of payloads returned no bytes.
        """
        while (released := await self.next_sum()) is not None:
            yield released
            self.take()

    async def next_sum(self) -> ReleasedSum | None:
        """Wait for the next sum that was not taken; return None when none follows.

        Raises:
            SessionAbortedError: Too many attempts at one sum failed.
            ServiceError: STORAGE_FAILED, or CANCELLED when the server was closed.
        """
        while self._unconfirmed is None and not self.is_done:
            self._is_delivered.clear()
            await ends_before(self._running, self._is_delivered)
        if self._unconfirmed is None:
            await self.wait()
            return None
        return await asyncio.to_thread(self._decoded, self._unconfirmed[0])

    def take(self) -> None:
        """Confirm that the sum was used, so the next session may open."""
        if self._unconfirmed is not None:
            taken = self._unconfirmed[1]
            self._unconfirmed = None
            self.sums_left -= 1
            if not taken.done():
                taken.set_result(None)

    async def recorded(self) -> None:
        """Wait until each taken sum is recorded, so none is delivered again.

        A process that ends sooner delivers the last one to the next process once more.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        taken = self._wanted - self.sums_left
        # Each query waits behind the commits of the store.
        while not self.is_done and await self._count_recorded() < taken:
            pass

    def defer(self, why: ServiceError) -> None:
        """Report that the sum cannot be used for now.

        Args:
            why: With `secagg.server.task.definition.DeliveryDeferredError` it is
                delivered again later, unless another replica of the store has delivered
                it meanwhile. Any other error ends the task.
        """
        if self._unconfirmed is not None:
            taken = self._unconfirmed[1]
            self._unconfirmed = None
            if not taken.done():
                taken.set_exception(why)

    async def wait(self) -> None:
        """Wait for the end of the task; another loop must read its sums.

        Raises:
            SessionAbortedError: Too many attempts at one sum failed.
            ServiceError: STORAGE_FAILED, or CANCELLED when the server was closed.
        """
        await asyncio.wait({self._running})
        if self._running.cancelled():
            raise ErrorCode.CANCELLED.error(
                f"the server was closed before task {self.task_id!r} was done",
                fix="Add the task again with the same state directory: it resumes "
                "from its last committed record.",
            )
        self._running.result()

    async def stop(self) -> None:
        """Stop the task; it resumes when it is added again."""
        self._running.cancel()
        await asyncio.wait({self._running})

    async def _deliver(self, released: SessionSum) -> None:
        """Hand a sum to the consumer, and wait until it is taken."""
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unconfirmed = (released, taken)
        self._is_delivered.set()
        await taken

    def _decoded(self, released: SessionSum) -> ReleasedSum:
        """Return a session's sum as its consumer reads it."""
        return released_sum(
            released.descriptor,
            released.residues,
            privacy=self.prepared.report,
            receipt=released.receipt,
            audit=released.audit,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """What an operator decides about a task, beside its name and its parameters.

    Attributes:
        steps: Sums to release; None for those that the noise was planned for.
        payload: Bytes for every client; or a function of the number of sums so far.
        invited: Names that may take part; None for every client.
        attempts: Sessions that are tried for one sum.
        gate: Decides when sessions open.
        on_attempts_exhausted: Called when that many attempts have failed; the task
            continues when its gate opens.  None ends the task.
    """

    steps: int | None = None
    payload: bytes | Callable[[int], bytes] | None = None
    invited: frozenset[str] | None = None
    attempts: int = 3
    gate: TaskSchedule = field(default_factory=TaskSchedule)
    on_attempts_exhausted: OnAttemptsExhausted | None = None


@dataclass(frozen=True, slots=True)
class _Parts:
    """Holds the parts of an open server."""

    storage: ServerStorage
    workers: Workers
    aggregator: Aggregator


@says_how_to_open
@validates_arguments
class Server:
    """Runs any number of tasks side by side.

    Use it as an asynchronous context manager.  The port opens with the first task, so
    no client asks for a task that does not exist yet.  When all tasks are done, leaving
    the block waits a moment for clients that do not know yet how their session ended.

    Args:
        listen: Address to serve on, such as "0.0.0.0:7400"; the system chooses port 0.
            None serves clients of this process only.
        identity: The aggregator's certificate; required with an address.
        state_dir: Directory of sessions and uploads, for this server alone; required
            with an address.  None keeps them in memory.
        store: URL of a PostgreSQL database for sessions, numbers and budgets; a file in
            `state_dir` by default.  The start waits for an unavailable database, ten
            minutes at most.
        blobs: URL of a store of uploads, payloads and sums; a folder in `state_dir` by
            default.  Servers with the same `store` and the same `blobs` share the work.
        rollback_mark: File outside `state_dir` that detects a restored state; by
            default one under the user's persistent state.
        accept_restored: Accept, this once, that the state may be restored from a
            backup. Sessions that are open in it end, and their inputs count as summed.
        engine: Removes masks from large sums: "threads", "processes",
            "dask:tls://host:8786" or "ray:auto".  All but threads need `state_dir`,
            which their workers must be able to read.
        health_listen: Address for health checks without TLS, and nothing else.
        admission: Limits of connections from unauthenticated peers; by default they fit
            into the files that this process may open. A relay before gRPC enforces them
            on Linux, unless only this machine can connect.
        revoked: Revocation lists (CRL) of the authorities that `identity` trusts, from
            `secagg pki revoke`; read once a minute.
        max_revocation_days: Greatest age of such a list; by default its own nextUpdate
            decides alone.
        edge: Address and credentials of clients that call over HTTPS without
            certificates; None for no such clients.
        grace_seconds: How long calls in flight may finish at the end.
        keep_seconds: How long the outcome, sum and payload of an ended session can at
            least be read.
        retention: How long receipts of ended sessions are kept; 400 days and 10 000 of
            each task by default.
        on_progress: Called on the event loop with every change of a session; must not
            block.  What it raises goes to the exception handler of the loop.
        on_aborted: Receives the audit receipt of each session that released no sum;
            called again with the same session after a crash.
        insecure_for_tests: Serve plaintext and trust the name that a client states.
            Only without `identity`, only on loopback.

    Attributes:
        transport: The running gRPC server; None before the first task.
        edge: The running HTTP edge; None before the first task, or without one.
        settle_seconds: The longest wait of `settle`.

    Raises:
        LocalProtocolError: The arguments contradict each other.
        ServiceError: BAD_SETTINGS; an address is invalid.

    Example:
        async with secagg.Server(
            "0.0.0.0:7400", identity=identity, state_dir=Path("server-state")
        ) as server:
            task = await server.add_task("digits", prepared)
            async for total in task.sums():
                print(total.values / total.inputs)
    """

    def __init__(  # noqa: PLR0913 - one argument per decision of the operator
        self,
        listen: str | None,
        *,
        identity: TLSIdentity | None = None,
        state_dir: Path | str | None = None,
        store: str | None = None,
        blobs: str | None = None,
        rollback_mark: Path | str | None = None,
        accept_restored: bool = False,
        engine: str = "threads",
        health_listen: str | None = None,
        admission: AdmissionLimits | None = None,
        revoked: Path | str | None = None,
        max_revocation_days: float | None = None,
        edge: "EdgeOptions | None" = None,
        grace_seconds: float = 10.0,
        keep_seconds: float = 600.0,
        retention: Retention | None = None,
        on_progress: Callable[[SessionProgress], None] | None = None,
        on_aborted: Callable[[SessionDescriptor, bytes], Awaitable[None]] | None = None,
        insecure_for_tests: bool = False,
    ) -> None:
        if listen is None and (
            identity or health_listen or revoked or edge or insecure_for_tests
        ):
            raise ErrorCode.LOCAL_MISUSE.error(
                "certificates, health checks, an HTTP edge and plaintext require an "
                "address",
                fix="Give listen an address, or remove them.",
            )
        if listen is not None and (identity is None) != insecure_for_tests:
            raise ErrorCode.LOCAL_MISUSE.error(
                "a server needs a TLS identity, or plaintext for tests, and not both",
                fix="Load the certificate with TLSIdentity.load.",
            )
        if listen is not None and state_dir is None and not insecure_for_tests:
            raise ErrorCode.LOCAL_MISUSE.error(
                "a server of a network needs state_dir",
                fix="Name a directory that survives restarts.",
            )
        self._listen = None if listen is None else Address.parse(listen, name="listen")
        self._health = (
            None
            if health_listen is None
            else Address.parse(health_listen, name="health_listen")
        )
        self._identity = identity
        if store is not None and state_dir is None:
            raise ErrorCode.LOCAL_MISUSE.error(
                "a server with a store needs state_dir, for uploads and sums",
                fix="Name a directory that survives restarts.",
            )
        if engine != "threads" and state_dir is None:
            raise ErrorCode.LOCAL_MISUSE.error(
                f"the workers of {engine!r} cannot read uploads in memory",
                fix="Name a state_dir that they can read.",
            )
        self._state_dir = state_dir = as_path("state_dir", state_dir)
        self._store_url = store
        self._engine = engine
        self._blobs = blobs
        self._reports = None if state_dir is None else reports_in(state_dir)
        self._rollback_mark = as_path("rollback_mark", rollback_mark)
        self._accept_restored = accept_restored
        self._admission = admission
        self._revoked = revocation_file(
            as_path("revoked", revoked),
            max_revocation_days,
            None if identity is None else state_dir,  # else no certificate is shown
        )
        if edge is not None and identity is not None:
            edge.check_trust_domain(identity.identity.trust_domain)
        self._edge_options = edge
        self._grace_seconds = check_real("grace_seconds", grace_seconds, least=0.0)
        self._keep_seconds = check_real("keep_seconds", keep_seconds, least=0.0)
        self._retention = retention or Retention()
        self.settle_seconds = SETTLE_SECONDS if listen is None else keep_seconds
        self._on_progress = guarded_callback(on_progress)
        self._on_aborted = on_aborted
        self._meter: Meter | None = None
        self._insecure_for_tests = insecure_for_tests
        self._tasks: dict[str, RunningTask] = {}
        self._is_draining = False
        self._parts: _Parts | None = None
        self._stack = AsyncExitStack()
        self.transport: GrpcServer | None = None
        self.edge: HttpEdge | None = None

    async def __aenter__(self) -> Self:
        """Open the storage, and load what an earlier process left.

        Raises:
            ServiceError: STORAGE_FAILED; another process may be using the directory.
            LocalProtocolError: The server is open already.
        """
        if self._parts is not None:
            raise ErrorCode.LOCAL_MISUSE.error(
                "the server is open already",
                fix="Use the object that is open, or make another one.",
            )
        async with AsyncExitStack() as stack:
            storage = await open_storage(
                self._state_dir,
                store_url=self._store_url,
                mark=self._rollback_mark,
                accept_restored=self._accept_restored,
                blobs=self._blobs,
            )
            stack.push_async_callback(storage.close)
            workers = Workers()
            engine = await stack.enter_async_context(open_engine(self._engine))
            aggregator = Aggregator(
                storage.store,
                storage.spool,
                name=UNCERTIFIED_AGGREGATOR
                if self._identity is None
                else self._identity.identity.name,
                workers=workers,
                masks=MaskExecutor(workers, engine, meter=self._meter),
                limits=AggregatorLimits(keep_seconds=self._keep_seconds)
                if self._listen is not None
                else AggregatorLimits.in_one_process(keep_seconds=self._keep_seconds),
                on_aborted=self._on_aborted,
                on_ended=None
                if self._reports is None
                else partial(self._reports.record, storage.store),
                meter=self._meter,
                replica=_new_replica(),
                check_profile=self._check_profile,
            )
            telling = asyncio.create_task(self._report_progress(aggregator))
            stack.push_async_callback(asyncio.wait, {telling})
            stack.push_async_callback(aggregator.close)
            stack.push_async_callback(self._end_tasks)
            # Also refuses sessions opened before a proxy was put in front (R10.3-4).
            await aggregator.recover()
            purging = purge_regularly(
                storage.store,
                self._retention,
                clock=SystemClock(),
                reports=self._reports,
            )
            await stack.enter_async_context(background(purging))
            self._parts = _Parts(storage, workers, aggregator)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close both; open sessions continue when their task is added again."""
        # Without a task no client has connected.
        is_done = self._tasks and all(task.is_done for task in self._tasks.values())
        try:
            if kind is None and is_done and not self._is_draining:
                await self.settle()
        finally:
            self._parts = None
            await self._stack.aclose()

    @property
    def address(self) -> Address:
        """The address where it listens, with the real port.

        Raises:
            LocalProtocolError: It does not listen.
        """
        if self.transport is None:
            raise ErrorCode.LOCAL_MISUSE.error(
                "the server does not listen", fix="Add a task first."
            )
        return self.transport.address

    async def add_task(  # noqa: PLR0913 - one argument per decision of the operator
        self,
        task_id: str,
        prepared: Plan | PreparedTask,
        *,
        steps: int | None = None,
        payload: bytes | Callable[[int], bytes] | None = None,
        invited: frozenset[str] | None = None,
        attempts: int = 3,
    ) -> RunningTask:
        """Run a task, or resume one that an earlier process began.

        Args:
            task_id: Its name, which clients ask for.
            prepared: A plan, or a prepared task.
            steps: Number of sums, with those of earlier processes; by default as many
                as were planned, or one without noise. With noise at least as many as
                may hold one client's data.
            payload: What each session hands out, or a function of the number of sums so
                far, called on a thread; the prepared one by default.
            invited: Names that may take part; None for all clients with a certificate.
            attempts: Sessions that may be aborted for one sum, the first included;
                sessions after which a client is excluded do not count (PROTOCOL §5.7).

        Returns:
            The task; read its `sums`.

        Raises:
            LocalProtocolError: The server is not open, the task runs already, or an
                argument is of the wrong kind. Also for more sums than were planned,
                fewer than may hold one client's data, or too few invited clients for
                them.
            ServiceError: PORT_IN_USE, STORAGE_FAILED; BAD_SETTINGS for a task that a
                proxy before the HTTP edge could read.
        """
        check_name("a task", task_id, most=MAX_TASK_ID_BYTES)
        attempts = check_whole("attempts", attempts, least=1)
        if steps is not None:
            steps = check_whole("steps", steps, least=1)
        if invited is not None:
            invited = check_names("invited", invited)
        if payload is not None and not callable(payload):
            _check_payload(payload)
        options = TaskOptions(
            steps=steps, payload=payload, invited=invited, attempts=attempts
        )
        prepared = await asyncio.to_thread(PreparedTask.of, prepared)
        running = await self._add_task(task_id, prepared, options)
        await self.listen()
        return running

    async def _add_task(
        self, task_id: str, prepared: PreparedTask, options: TaskOptions
    ) -> RunningTask:
        """Check a task and its options, and run it."""
        parts = self._opened()
        if task_id in self._tasks and not self._tasks[task_id].is_done:
            raise ErrorCode.LOCAL_MISUSE.error(
                f"task {task_id!r} runs already",
                fix="Read its sums, or choose another name.",
            )
        wanted = prepared.sums if options.steps is None else options.steps
        self._check_prepared(prepared, wanted, options.invited)
        released = await sums_released(parts.storage.store, task_id)
        missing = max(0, wanted - released)
        definition = TaskDefinition(
            task_id=task_id,
            parameters=prepared.parameters,
            revocations=b""
            if prepared.enrolment is None
            else prepared.enrolment.revocations,
            invited=options.invited,
            sessions=max(wanted, released),
            allowed=prepared.max_sessions,
            participations=None
            if prepared.noised is None
            else prepared.noised.budget.participations,
            max_attempts=options.attempts,
            on_attempts_exhausted=options.on_attempts_exhausted,
            gate=options.gate,
        )
        given = prepared.payload if options.payload is None else options.payload

        async def next_payload(count: int) -> bytes:
            if not callable(given):
                return given
            return _check_payload(await asyncio.to_thread(given, count))

        running = RunningTask(
            task_id,
            prepared,
            sums_left=missing,
            released_before=released,
            run=lambda on_sum: parts.aggregator.run_task(
                definition, next_payload=next_payload, on_sum=on_sum
            ),
            count_recorded=partial(sums_released, parts.storage.store, task_id),
        )
        self._tasks[task_id] = running
        await asyncio.sleep(0)  # the task exists before any client can ask for it
        return running

    def _check_prepared(
        self, prepared: PreparedTask, steps: int, invited: frozenset[str] | None
    ) -> None:
        """Refuse a task that may not run here."""
        self._check_profile(prepared.parameters.profile)
        _check_steps(prepared, steps, invited)

    def _check_profile(self, profile: Profile) -> None:
        """Refuse a profile whose inputs a proxy before the HTTP edge could read.

        Raises:
            ServiceError: BAD_SETTINGS (R10.3-4).
        """
        if self._edge_options is not None:
            self._edge_options.check_profile(profile)

    async def listen(self) -> None:
        """Open the port, if it is closed; the first task does so by itself.

        Raises:
            LocalProtocolError: The server is not open.
            ServiceError: PORT_IN_USE.
        """
        aggregator = self._opened().aggregator
        if self.transport is None and self._listen is not None:
            from secagg.server.rpc.grpc_server import GrpcServer  # noqa: PLC0415 - gRPC

            clock, admission = SystemClock(), self._admission or AdmissionLimits()
            guards = CallGuards(CallLimits(), clock.now)
            edge = None
            if self._edge_options is not None:
                from secagg.server.http_edge.listener import HttpEdge  # noqa: PLC0415 - HTTP

                edge = await HttpEdge.start(
                    aggregator,
                    self._edge_options,
                    guards=guards,
                    admission=admission,
                    store=self._opened().storage.store,
                    clock=clock,
                )
                # Harmless after `stop_with`, and needed where gRPC cannot listen.
                self._stack.push_async_callback(edge.stop, 0.0)
            transport = await GrpcServer.start(
                aggregator,
                self._listen,
                identity=self._identity,
                insecure_for_tests=self._insecure_for_tests,
                health_address=self._health,
                admission=admission,
                guards=guards,
                revoked=self._revoked,
            )
            if edge is not None:
                transport.stop_with(edge.stop)
            self.transport, self.edge = transport, edge
            aggregator.set_address(str(transport.address))
            self._stack.push_async_callback(transport.stop, self._grace_seconds)

    def connection(self, name: str) -> AggregatorConnection:
        """Return the connection of a client in this process, without network.

        Args:
            name: Name of the client.

        Raises:
            LocalProtocolError: The server is not open, or the name is invalid.
        """
        check_name("a client", name, most=MAX_IDENTITY_BYTES)
        return InMemoryConnection(self._opened().aggregator, name)

    def drain(self) -> None:
        """Stop offering sessions; those that run continue."""
        self._is_draining = True
        self._opened().aggregator.drain()

    async def end_task(self, task_id: str, reason: str) -> None:
        """End a task before its last sum.

        A session that still waits for clients ends without a sum; one whose cohort is
        complete continues to its own end.  Clients of a task that does not run are told
        that it is over.

        Args:
            task_id: One that was added.
            reason: Why, in words for the clients.

        Raises:
            LocalProtocolError: No task of this name was added.
        """
        aggregator = self._opened().aggregator
        if task_id not in self._tasks:
            raise ErrorCode.LOCAL_MISUSE.error(
                f"there is no task {task_id!r} here",
                fix=f"Name one that was added: {', '.join(sorted(self._tasks))}.",
            )
        await aggregator.end_task(task_id, reason)

    async def settle(self) -> None:
        """Wait until clients know how their sessions ended.

        It takes at most `settle_seconds`: `keep_seconds`, without a network 15 seconds.
        After an end that an earlier process may have announced, it waits for no more
        than 15 seconds without a call.
        """
        aggregator, seconds = self._opened().aggregator, self.settle_seconds
        # Other replicas of the store inform clients, too; which ones is unknown.
        is_alone = not self._opened().storage.store.is_shared
        await aggregator.settle(
            at_most_seconds=seconds,
            silent_seconds=math.inf
            if is_alone and not aggregator.ended_before()
            else SETTLE_SECONDS,
        )

    def _opened(self) -> _Parts:
        """Return the parts of the open server."""
        if self._parts is None:
            raise ErrorCode.LOCAL_MISUSE.error(
                "the server is not open",
                fix="Use it as an asynchronous context manager.",
            )
        return self._parts

    async def _end_tasks(self) -> None:
        for task in self._tasks.values():
            await task.stop()

    async def _report_progress(self, aggregator: Aggregator) -> None:
        async for progress in aggregator.progress():
            self._on_progress(progress)


def _new_replica() -> Replica:
    """Return a name for this process among the replicas of a store."""
    token = SystemEntropy().token(_REPLICA_BYTES).hex()
    name = f"{socket.gethostname()}-{os.getpid()}-{token}"
    return Replica(name, "", metadata.version("secagg"))


def _check_payload(payload: object) -> bytes:
    """Return what a session hands out; None from a function would end its task.

    Raises:
        LocalProtocolError: It is not bytes.
    """
    make = "model.tobytes(), or a function of the number of sums so far that returns it"
    return check_kind("payload", payload, bytes, make=make)


def _check_steps(
    prepared: PreparedTask, steps: int, invited: frozenset[str] | None
) -> None:
    """Refuse a number of sums that the noise of a task, or its clients, cannot cover.

    Raises:
        LocalProtocolError: The number is too large or too small.
    """
    if prepared.noised is None:
        return
    planned, participations = prepared.sums, prepared.noised.budget.participations
    if steps > planned:
        raise ErrorCode.LOCAL_MISUSE.error(
            f"{steps} sums are wanted, the noise is planned for {planned}",
            fix="Plan with more steps.",
        )
    if steps < participations:
        raise ErrorCode.LOCAL_MISUSE.error(
            f"{steps} sums are wanted, and the noise covers {participations} "
            "participations of one client",
            fix="Plan with fewer participations, which needs less noise.",
        )
    if invited is None:
        return
    shortfall = shortfall_of(
        len(invited),
        participations=participations,
        steps=steps,
        min_clients=prepared.parameters.min_clients,
    )
    if shortfall:
        raise ErrorCode.LOCAL_MISUSE.error(
            f"too few clients are invited: {shortfall}",
            fix="Invite more clients, or plan with more participations.",
        )


class OperatedServer(Server):
    """A server whose tasks open by their gates, and can be paused."""

    async def add_gated_task(
        self, task_id: str, prepared: PreparedTask, options: TaskOptions
    ) -> RunningTask:
        """Run a task, or resume one that an earlier process began.

        It opens no port, so no client asks for a task that does not exist yet.

        Raises:
            LocalProtocolError: As `Server.add_task`.
            ServiceError: STORAGE_FAILED.
        """
        return await self._add_task(task_id, prepared, options)

    def check_task(self, settings: TaskSettings, prepared: PreparedTask) -> None:
        """Refuse a task that `add_gated_task` would refuse.

        Raises:
            ServiceError: BAD_SETTINGS.
        """
        task = settings.task
        try:
            self._check_prepared(prepared, task.steps, frozenset(task.invited) or None)
        except LocalProtocolError as error:  # the settings are no program's
            raise ErrorCode.BAD_SETTINGS.error(
                str(error), kind=ServiceError, fix=error.next_step
            ) from None

    def end_clients(self, is_unwelcome: Callable[[str], bool]) -> None:
        """End open calls and connections of clients that are not welcome any more.

        Args:
            is_unwelcome: Returns whether a client's name is not welcome.
        """
        if self.transport is not None:
            self.transport.end_clients(is_unwelcome)
        if self.edge is not None:
            self.edge.end_connections(is_unwelcome)

    @property
    def aggregator(self) -> Aggregator:
        """The aggregator, which pauses, resumes and holds its tasks."""
        return self._opened().aggregator

    @cached_property
    def pending_writes(self) -> PendingWrites:
        """Writes the files of sums, and records which the disk refuses."""
        return PendingWrites()

    def measure_with(self, meter: Meter) -> None:
        """Set the meter; before the server is opened."""
        self._meter = meter

    def may_open_sessions(self) -> bool:
        """Whether sessions may open, now or when a task's gate opens."""
        is_any = any(not task.is_done for task in self._tasks.values())
        return is_any and not self._is_draining

    def live(self) -> tuple[LiveSession, ...]:
        """Return the progress of all sessions that are not over."""
        return self.aggregator.live()

    def refused(self) -> dict[str, int]:
        """Return how many calls were refused in the last hour, by error code."""
        return self.aggregator.refused()

    def progress(
        self, at_first: Iterable[SessionProgress] = ()
    ) -> AsyncIterator[SessionProgress]:
        """Watch all sessions; ends with the server.

        Args:
            at_first: As for `ProgressFeed.watch`.
        """
        return self.aggregator.progress(at_first)

    async def abort_session(self, session_id: bytes, reason: str) -> None:
        """End a session without a sum; do nothing if it is over.

        Raises:
            ServiceError: UNKNOWN_SESSION; it does not run here.
            LocalProtocolError: Its sum is being computed.
        """
        await self.aggregator.abort(session_id, reason)

    @property
    def storage(self) -> ServerStorage:
        """The server's storage."""
        return self._opened().storage

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores that this process writes: one."""
        return (self.storage.store,)

    def views(self, state_dir: Path) -> StoreViews:
        """Return the views of this store that operators read."""
        store = self.storage.store
        return StoreViews(
            store, state_dir, self.live, lambda: self.pending_writes.refused
        )

    @property
    def identity(self) -> TLSIdentity | None:
        """The aggregator's certificate, as it is now."""
        return self._identity if self.transport is None else self.transport.identity

    @property
    def is_draining(self) -> bool:
        """Whether no further session is offered."""
        return self._is_draining
