"""One client of one task: the way into private sums for people who build on them.

Rule 1: every client has privacy limits, or their waiver in words; both are
        enforced in here, for every builder of a client and every carrier of calls.
Rule 2: the vector becomes integers only inside a session, with noise if the session
        demands noise; nothing here can send it bare.
Rule 3: a task gets as many sessions of this client as its budget covers, counted and
        written down before an input leaves.
Rule 4: what a session released is decoded by the parameters of that session.
Rule 5: a client may be cancelled at any await.  What it has done is on the disk, and
        the next `contribute` resumes it.
Rule 6: the selection of a task with secret selection is not revealed.  The application
        is not asked for a vector that does not count, but only if this client answers
        at a fixed time.
Rule 7: from the payload on no vector keeps a client away (R3.5-5): one that cannot be
        used becomes zeros with the whole noise.  Before it an unusable vector is an
        error, and the client does not come.
Rule 8: no vector is given twice without being told to: a caller who gives to all
        sessions of a task gives a function.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from secagg.client.application import Application
from secagg.client.budget import DataUsage
from secagg.client.contribution import (
    Contribution,
    Participation,
    last_part,
    receipt_of,
)
from secagg.client.durable_client import DurableClient, check_terms
from secagg.client.enrolment import ClientEnrolment, EnrolledClient, EnrolledIdentity
from secagg.client.gate import SessionInfo
from secagg.client.open_client import (
    EncodedInput,
    GivenVector,
    OpenClient,
    encode_input,
)
from secagg.client.retry_policy import AttemptCounter, Backoff
from secagg.client.runner import ClientRunner
from secagg.client.session import ClientSession
from secagg.client.session_driver import (
    DEFAULT_MAX_PAYLOAD_BYTES,
    ClientProgress,
    Preparation,
    SessionSettings,
    call_state,
)
from secagg.client.step_client import StepClient, check_peer, state_of
from secagg.crypto.entropy import SystemEntropy
from secagg.distributed_dp import NoisyTask, Unusable, UnusableKind
from secagg.distributed_dp.units import encode_integers
from secagg.errors import (
    ErrorCode,
    InputError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol.arguments import (
    as_path,
    as_vector,
    check_kind,
    check_name,
    check_real,
    check_whole,
    says_how_to_open,
    validates_arguments,
)
from secagg.protocol.descriptor import MAX_TASK_ID_BYTES
from secagg.protocol.policy import (
    ClientPolicy,
    ExactSumWaiver,
    PrivacyLimits,
    TotalBudget,
)
from secagg.runtime import log_events as telemetry
from secagg.runtime.clock import SystemClock
from secagg.runtime.workers import Workers
from secagg.storage.rows import Retention
from secagg.transport.address import Address
from secagg.transport.connection import AggregatorConnection

if TYPE_CHECKING:
    from secagg.client.grpc_connection import GrpcConnection
    from secagg.transport.tls import TLSIdentity

_LOG: Final = logging.getLogger(telemetry.CLIENT_LOGGER)

_Answer = TypeVar("_Answer")

# Makes the vector of a session; called on a thread.  After a restart it is called
# again for the same session and must return the same vector.  In a task with noise an
# exception, a result that is no vector, or one that is late becomes zeros.
VectorMaker = Callable[[SessionInfo], npt.ArrayLike]


class _GivenVector:
    """A vector that was given before any session is known."""

    def __init__(
        self, given: npt.ArrayLike, accept: Callable[[SessionInfo], None]
    ) -> None:
        self._given: object = given
        self._accept = accept

    @property
    def builtin_values(self) -> npt.NDArray[Any] | None:
        """The numbers, where no code of the caller's type has to run for them."""
        given = self._given
        return given if type(given) is np.ndarray else None

    def ready(self) -> None:
        self._given = as_vector(self._given)

    def accept(self, session: SessionInfo) -> None:
        check_encodable(self._given, session)
        self._accept(session)

    def make(self, _: SessionInfo) -> object:
        return self._given


class _MadeVectors:
    """A function that makes the vector of a session."""

    builtin_values: Final = None

    def __init__(
        self, make: VectorMaker, accept: Callable[[SessionInfo], None]
    ) -> None:
        self.make, self.accept = make, accept

    def ready(self) -> None:
        """Nothing can be said of a vector that is not made."""


@says_how_to_open
@validates_arguments
class Client:
    """One client of one task.

    Use it as an asynchronous context manager; it gives one vector at a time.

    Args:
        server: Address of the aggregator, such as "sums.example.org:7400", or a
            connection to it, which stays the caller's to close.
        task: Name of the task.
        privacy_limits: The privacy that this client demands, or their waiver in words;
            required, unless `step_client` has them.
        step_client: State that clients of several tasks share, open and the caller's
            to close.  It is of one aggregator, and has the limits, cohort, enrolment,
            total and files of all of them: none of these is given here then.  One
            client at a time contributes to a task.
        identity: The client's certificate; with an address only, and required there.
        enrolment: Who the client is among the enrolled, by its files or as
            `load_enrolled` returns it, for profiles that distrust the server; `cohort`
            must accept these.  None takes part in no session of such a profile.
        total: What all tasks together may cost the data that this client gives; a task
            that does not fit is refused before anything leaves.  None keeps the budget
            of each task alone.
        state_dir: Where sessions and spent budget are kept, for this client alone;
            required with an address, here or in `step_client`.  None keeps them in
            memory: a client that is made again then knows nothing of earlier
            contributions.
        rollback_mark: File outside `state_dir` that distinguishes a restored state
            from the newest one; by default one under the user's persistent state.
        accept_restored: A person accepts, this once, that the state may have been
            restored and this client answer twice; what is open in it is left. Of claims
            in `state_dir` those made since are forgotten; claims in a directory of
            their own (`TotalBudget.directory`) that were restored stay refused.
        cohort: Limits of the cohort.
        aggregator: Name of the one aggregator to accept, wherever it listens; with an
            address only.
        attempts: How often to try in a row when sessions abort or continue without
            this client.
        wait_seconds: How long to wait for a session, and at least for one that was
            joined and has not begun while the server is silent: `contribute` then tries
            again, `attempts` times in all, and raises UNREACHABLE.  The place in the
            session is kept, also for another process.  None waits for ever.
        fetch_sum: Whether the released sums are wanted.
        max_payload_bytes: Largest payload of a session that is fetched, 1 GiB by
            default; a session with a larger one is left before the client joins.
        retention: How long receipts of ended sessions stay on the disk; 400 days and
            10,000 of each task by default.  What was spent and which numbers were used
            stay for good.
        keep_upload: Keep the masked input in a file until the seed of its session is
            erased, so that a function is not asked again after a restart.  Seed and
            file together are the vector: until then no other program may read the disk.
        answer_at: In tasks with noise, when every input leaves, as a part of the
            duration of MaskedInputCollection, say 0.7.  The vector is due then, and is
            encoded, masked and uploaded then, zeros like a vector: so the time of an
            upload says nothing about the data that a function needed time for.  Leave
            enough of the round for the upload.  Experimental below some 10
            milliseconds, by which encoding differs.  None lets an input leave when it
            is ready; a vector is then due at 0.7 of the round.
            With secret selection the vector of a session is asked for only if this
            client is selected.  The caller who sets this keeps a client that is not
            selected running until it has answered: the privacy of all counts on that.
        make_unselected: With `answer_at` and secret selection, whether the function
            that makes vectors is called also for an unselected client.  Needed by one
            that leaves traces, such as files: these would reveal the selection.  Then
            `shortened_by` and `replaced` do not reveal it, and are returned.
        on_progress: Told what the client is doing; called on the event loop, must not
            block.  What it raises goes to the exception handler of the loop, and ends
            no session.
        threads: Where the functions that are given to this client run; one thread is
            enough.  The caller closes it, and may give it to all clients of a process,
            which then take turns.  By default each call has a daemon thread.  Masks and
            encoding run on threads of the process, never on these.

    Raises:
        LocalProtocolError: Arguments that do not belong together, or no limits.
        ServiceError: BAD_SETTINGS; the address cannot be one.

    Example:
        async with secagg.Client(
            "sums.example.org:7400",
            task="digits",
            privacy_limits=secagg.PrivacyLimits(max_epsilon=4.0, max_delta=1e-6),
            identity=identity,
            state_dir=Path("client-state"),
        ) as client:
            contribution = await client.contribute(np.ones(64))

    or, for every session of the task::

            async for contribution in client.contributions(
                lambda session: my_step(session.payload)
            ):
                print(contribution.values, contribution.sessions_left)
    """

    def __init__(  # noqa: PLR0913 - one argument per decision of the client's owner
        self,
        server: str | AggregatorConnection,
        *,
        task: str,
        privacy_limits: PrivacyLimits | ExactSumWaiver | None = None,
        step_client: StepClient | None = None,
        identity: "TLSIdentity | None" = None,
        enrolment: ClientEnrolment | EnrolledIdentity | None = None,
        total: TotalBudget | None = None,
        state_dir: Path | str | None = None,
        rollback_mark: Path | str | None = None,
        accept_restored: bool = False,
        cohort: ClientPolicy | None = None,
        aggregator: str | None = None,
        attempts: int = 3,
        wait_seconds: float | None = 120.0,
        fetch_sum: bool = True,
        max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
        retention: Retention | None = None,
        keep_upload: bool = False,
        answer_at: float | None = None,
        make_unselected: bool = False,
        on_progress: Callable[[ClientProgress], None] | None = None,
        threads: Executor | None = None,
    ) -> None:
        check_name("a task", task, most=MAX_TASK_ID_BYTES)
        if step_client is None:
            check_terms(privacy_limits, cohort=cohort, total=total)
        else:
            _check_shared(
                step_client,
                task,
                privacy_limits=privacy_limits,
                cohort=cohort,
                enrolment=enrolment,
                total=total,
                state_dir=state_dir,
                rollback_mark=rollback_mark,
                retention=retention,
                aggregator=aggregator,
                accept_restored=accept_restored or None,
                keep_upload=keep_upload or None,
            )
        if not isinstance(enrolment, ClientEnrolment | EnrolledClient | None):
            check_kind(
                "enrolment", enrolment, ClientEnrolment, make="ClientEnrolment(...)"
            )
        if isinstance(server, str):
            kept = state_of(step_client).state_dir if step_client else state_dir
            if identity is None or kept is None:
                raise ErrorCode.LOCAL_MISUSE.error(
                    "a client of a network needs identity and state_dir",
                    fix="Load the certificate with TLSIdentity.load, and name a "
                    "directory that survives restarts.",
                )
        elif not hasattr(server, "call"):
            raise ErrorCode.LOCAL_MISUSE.error(
                f"server is {type(server).__name__}, and neither an address nor a "
                "connection",
                fix='Give an address, such as "sums.example.org:7400".',
            )
        elif identity is not None or aggregator is not None:
            raise ErrorCode.LOCAL_MISUSE.error(
                "identity and aggregator belong to an address; a connection has its "
                "own",
                fix="Leave both out, or give an address in place of the connection.",
            )
        if answer_at is not None and not 0.0 < answer_at < 1.0:
            raise ErrorCode.LOCAL_MISUSE.error(
                f"answer_at is {answer_at!r}; it is a part of a round, between 0 and 1",
                fix="Take 0.7, or None to answer when the vector is ready.",
            )
        self._server = (
            Address.parse(server, name="server") if isinstance(server, str) else server
        )
        self._task = task
        self._privacy_limits = privacy_limits
        self._identity = identity
        self._enrolment = enrolment
        self._total = total
        self._state_dir = as_path("state_dir", state_dir)
        self._rollback_mark = as_path("rollback_mark", rollback_mark)
        self._accept_restored = accept_restored
        self._cohort = cohort or ClientPolicy()
        self._shared = step_client
        self._aggregator = step_client.aggregator if step_client else aggregator
        self._attempts = check_whole("attempts", attempts, least=1)
        if wait_seconds is not None:
            wait_seconds = check_real("wait_seconds", wait_seconds, least=0.0)
        self._settings = SessionSettings(
            fetch_sum=fetch_sum,
            max_payload_bytes=check_whole(
                "max_payload_bytes", max_payload_bytes, least=0
            ),
            offer_seconds=wait_seconds,
            answer_at=answer_at,
            skips_unselected=answer_at is not None and not make_unselected,
        )
        self._retention = retention or Retention()
        self._keep_upload = keep_upload
        self._on_progress = on_progress
        self._application = Application(threads)
        self._workers = Workers.of_process()
        self._clock = SystemClock()
        self._stack = AsyncExitStack()
        self._opened: tuple[ClientRunner, DurableClient] | None = None
        self._source: _GivenVector | _MadeVectors | None = None
        self._network: GrpcConnection | None = None
        self._has_reported_short = False

    async def __aenter__(self) -> Self:
        """Open storage and connection.

        Raises:
            ServiceError: STORAGE_FAILED; another process may be using the directory.
            SecAggError: BAD_CREDENTIAL, or what else is wrong with `enrolment`.
            LocalProtocolError: The client is open already.
        """
        if self._opened is not None:
            raise ErrorCode.LOCAL_MISUSE.error(
                "the client is open already",
                fix="Use the object that is open, or make another one.",
            )
        async with AsyncExitStack() as stack:
            connection = await self._connect(stack)
            state = await self._open_state(stack, connection)
            runner = ClientRunner(
                state,
                connection,
                prepare=self._prepare,
                accept=self._accept_session,
                aggregator=self._aggregator,
                settings=self._settings,
                clock=self._clock,
                workers=self._workers,
                on_progress=self._on_progress,
            )
            self._opened = (runner, state)
            self._accept_restored = False  # what was accepted was this state
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close both; a session that is not over can be resumed."""
        self._opened = None
        await self._stack.aclose()

    async def contribute(
        self,
        vector: npt.ArrayLike | VectorMaker,
        *,
        accept: Callable[[SessionInfo], None] | None = None,
    ) -> Contribution:
        """Contribute one vector to one session that releases a sum.

        A session that was interrupted is finished first, with the vector that is
        given here: it must be the one of that time, or the session refuses it.  A
        session that ends without a sum, or continues without this client, is followed
        by the next one, without costing an attempt where this client is not at fault.

        In a task with noise a vector that cannot be used keeps no client away that has
        joined: zeros take its place, and `Contribution.replaced` says why.  So does
        whatever the function raises; the text of a `SecAggError` becomes `replaced`,
        of other exceptions the class alone.

        Args:
            vector: Numbers of shape (d,), or a function that makes them for the
                session at hand.  Numbers are checked before the client joins.
            accept: Called before the client joins, and not when a session is resumed;
                raises, for example InputError, for a session that the caller has no
                vector for.  It must not decide by the data: whether a client takes
                part is seen.

        Returns:
            The session's sum and what it cost.

        Raises:
            SessionAbortedError: As many attempts as are allowed have failed.
            RemoteProtocolError: POLICY_VIOLATION for a session below a limit of this
                client; other codes for a server that broke the protocol.
            InputError: The vector cannot be used.  With noise the client has joined no
                session; without, it may have, and the session continues while it lasts.
            LocalProtocolError: The client is not open, or contributes already; another
                input than this was bound to a session before a restart.
            ServiceError: Storage, network, certificates, or no such task; the message
                says what to do.
        """
        runner, _ = self._require_open()
        if self._source is not None:
            raise ErrorCode.LOCAL_MISUSE.error(
                "the client gives one vector at a time",
                fix="Await the contribution that is under way.",
            )
        self._source = _source_of(vector, accept)
        try:
            await self._call_own_state(lambda client: client.purge_receipts())
            attempts = AttemptCounter(self._attempts, Backoff(SystemEntropy()))
            while True:
                try:
                    return await self._take_part(runner, self._source)
                except SecAggError as error:
                    pause = attempts.pause_after(error, runner.reach)
                    if pause is None:
                        raise
                    await asyncio.sleep(pause)
        finally:
            self._source = None

    async def contributions(
        self,
        vector: VectorMaker,
        *,
        accept: Callable[[SessionInfo], None] | None = None,
    ) -> AsyncIterator[Contribution]:
        """Contribute a vector to every session of the task, one after the other.

        The next session is joined when the loop asks for its contribution.  The loop
        may be left at any time, and another one continues; it ends by itself when the
        task is over, or its budget covers no further session of this client.

        A task whose sessions are days apart takes a client with ``wait_seconds=None``.

        Args:
            vector: Makes the vector of a session, on a thread; its argument has the
                session's payload.
            accept: As in `contribute`.

        Yields:
            What every session gave back.

        Raises:
            SecAggError: As in `contribute`, but for the end of the task.
        """
        if not callable(vector):
            raise ErrorCode.LOCAL_MISUSE.error(
                "one vector would be given to every session",
                fix="Give a function that makes a vector for each, or call contribute.",
            )
        while True:
            try:
                given = await self.contribute(vector, accept=accept)
            except ServiceError as error:
                if error.code is ErrorCode.TASK_OVER:
                    return
                raise
            yield given
            if given.sessions_left == 0:
                return

    async def is_in_session(self) -> bool:
        """Return whether this client has joined a session that is not over.

        `contribute` then resumes it first, whatever becomes of the vector.

        Raises:
            LocalProtocolError: The client is not open.
            ServiceError: STORAGE_FAILED.
        """
        return await self._call_own_state(
            lambda client: client.is_in_session(self._task)
        )

    @property
    def certificate(self) -> "TLSIdentity | None":
        """What is presented to the aggregator now; None where nothing is.

        Raises:
            LocalProtocolError: The client is not open.
        """
        self._require_open()
        return None if self._network is None else self._network.certificate

    async def last_part(self) -> Participation | None:
        """Return the latest session whose sum holds a vector of this client.

        Whatever process gave it; None where no such session is recorded any more.

        Raises:
            LocalProtocolError: The client is not open.
            ServiceError: STORAGE_FAILED.
        """
        return await self._call_own_state(
            lambda client: last_part(client.store, self._task)
        )

    async def receipt(self, session_number: int) -> bytes | None:
        """Return this client's receipt of a session that is over for it.

        However it ended, and whatever process took part; None without a receipt.

        Args:
            session_number: Number of the session.

        Raises:
            LocalProtocolError: The client is not open.
            ServiceError: STORAGE_FAILED.
        """
        return await self._call_own_state(
            lambda client: receipt_of(client.store, self._task, session_number)
        )

    async def data_use(self) -> DataUsage | None:
        """Return what tasks have claimed of this client's data, and what is left.

        None for a client without a total.

        Raises:
            LocalProtocolError: The client is not open.
            ServiceError: STORAGE_FAILED.
        """
        return await self._call_own_state(lambda client: client.data_use())

    async def _call_own_state(
        self, work: Callable[[OpenClient], Coroutine[Any, Any, _Answer]]
    ) -> _Answer:
        """Run a call on the client's state."""
        _, state = self._require_open()
        return await call_state(state, work, self._workers)

    async def _open_state(
        self, stack: AsyncExitStack, connection: AggregatorConnection
    ) -> DurableClient:
        """Open this client's state, or use the shared one."""
        if self._shared is not None:
            state = state_of(self._shared)
            check_peer(self._shared, connection.identity, connection.trust_domain)
            stack.enter_context(state.carried(self._task))
            return state
        state = self._state_of(connection.identity)
        await self._workers.open(
            partial(state.open, trust_domain=connection.trust_domain), state.close
        )
        stack.push_async_callback(self._workers.close_later, state.close)
        return state

    def _state_of(self, name: str) -> DurableClient:
        """Return the state of this client, not open yet."""
        if self._privacy_limits is None:
            raise ErrorCode.INTERNAL.error("a client without a shared state has limits")
        return DurableClient(
            identity=name,
            limits=self._privacy_limits,
            tasks=frozenset({self._task}),
            cohort=self._cohort,
            state_dir=self._state_dir,
            rollback_mark=self._rollback_mark,
            accept_restored=self._accept_restored,
            enrolment=self._enrolled(name),
            total=self._total,
            keep_upload=self._keep_upload,
            retention=self._retention,
            encode=self._encode,
            clock=self._clock.date,
        )

    def _require_open(self) -> tuple[ClientRunner, DurableClient]:
        """Return the parts of the open client."""
        if self._opened is None:
            raise ErrorCode.LOCAL_MISUSE.error(
                "the client is not open",
                fix="Use it as an asynchronous context manager.",
            )
        return self._opened

    def _enrolled(self, name: str) -> EnrolledClient | None:
        """Return who the client is among the enrolled."""
        own = self._enrolment
        if not isinstance(own, ClientEnrolment):
            return own if isinstance(own, EnrolledClient) else None
        from secagg.client.enrolment_files import read_enrolled  # noqa: PLC0415 - X.509

        tls = self._identity
        return read_enrolled(
            own,
            name=name,
            trust_domain=None if tls is None else tls.identity.trust_domain,
        )

    async def _connect(self, stack: AsyncExitStack) -> AggregatorConnection:
        """Return the connection that was given, or open one."""
        if not isinstance(self._server, Address):
            return self._server
        from secagg.client.grpc_connection import GrpcConnection  # noqa: PLC0415 - gRPC

        self._network = await stack.enter_async_context(
            GrpcConnection(
                self._server, identity=self._identity, aggregator=self._aggregator
            )
        )
        return self._network

    async def _take_part(
        self, runner: ClientRunner, source: _GivenVector | _MadeVectors
    ) -> Contribution:
        """Take part in one session, and return what was contributed."""
        if not await self.is_in_session():
            await self._application.check(source.ready)
        try:
            outcome = await runner.run_session(self._task)
        except SessionAbortedError as error:
            if error.code is ErrorCode.DEADLINE and not runner.has_been_answered:
                raise self._unreachable_error(runner.failure) from None
            raise
        given = await self._call_own_state(lambda client: client.contribution(outcome))
        if given.sessions_left is not None:
            task = NoisyTask.from_parameters(outcome.descriptor.parameters)
            self._warn_if_short(given.sessions_left, task.budget.spare)
        return given

    def _warn_if_short(self, left: int, spare: int) -> None:
        """Say once that faults have begun to use up what was planned for them.

        A task that has ended well leaves its clients all spare sessions and no others.
        """
        if left < spare and not self._has_reported_short:
            self._has_reported_short = True
            telemetry.log_event(
                _LOG,
                logging.WARNING,
                telemetry.BUDGET_LOW,
                task=self._task,
                left=left,
                spare=spare,
                next_step="ask the operator whether the task has all its sums; a "
                "further one takes a new task with a budget of its own",
            )

    def _unreachable_error(self, why: ServiceError | None) -> SecAggError:
        """Return the error for an aggregator that has answered no call."""
        waited = (
            "no call was answered as long as its session lasted"
            if self._settings.offer_seconds is None
            else f"stopped waiting after {self._settings.offer_seconds:g} seconds"
        )
        if why is not None:
            return why.code.error(
                f"{waited}: {why}", kind=ServiceError, fix=why.next_step
            )
        where = f"at {self._server}" if isinstance(self._server, Address) else "there"
        return ErrorCode.UNREACHABLE.error(
            f"{waited}: nothing answers {where}",
            fix="Check the address (client.server), and that firewalls and "
            "port forwarding let this client through; waiting longer helps with slow "
            "links.",
        )

    async def _accept_session(self, admitted: SessionInfo) -> None:
        """Let the application refuse a session."""
        await self._application.check(self._this_source().accept, admitted)

    async def _prepare(self, given: Preparation) -> object:
        """Have the vector made, or find out why it is missing."""
        source, session = self._this_source(), given.session
        if not session.descriptor.parameters.noise_block:
            return await self._application.exact_vector(
                lambda: as_vector(source.make(session))
            )
        if (known := source.builtin_values) is not None:
            return known
        return await self._application.vector(
            lambda: _validated_vector(source.make(session), session.dimension),
            clock=given.clock,
            due=given.due,
        )

    def _encode(
        self, session: ClientSession, given: GivenVector, bound: bytes
    ) -> EncodedInput:
        """Return the input of a session; called on a thread."""
        return encode_input(session, given, bound)

    def _this_source(self) -> _GivenVector | _MadeVectors:
        if self._source is None:
            raise ErrorCode.LOCAL_MISUSE.error("the contribution was cancelled")
        return self._source


def _check_shared(shared: StepClient, task: str, **own: object) -> None:
    """Refuse arguments that belong to the state that clients share.

    Raises:
        LocalProtocolError: There are such arguments, or the state is not for the task.
    """
    check_kind("step_client", shared, StepClient, make="StepClient(...)")
    given = [name for name, value in own.items() if value is not None]
    if given:
        raise ErrorCode.LOCAL_MISUSE.error(
            f"{' and '.join(given)} would be given twice: the step client has its own "
            "for all of its tasks",
            fix="Give them to StepClient(...) only.",
        )
    tasks = state_of(shared).tasks
    if tasks is not None and task not in tasks:
        raise ErrorCode.LOCAL_MISUSE.error(
            f"the step client takes part in other tasks than {task!r}",
            fix="Add the name to its tasks, if its owner agrees.",
        )


def check_encodable(
    given: object, session: SessionInfo, *, name: str = "the vector"
) -> None:
    """Refuse a vector that its session cannot encode, before the client joins.

    Args:
        given: The vector, caller's units.
        session: The session, checked.
        name: Subject of the sentence that refuses.

    Raises:
        InputError: As `as_vector`; also fractions where whole numbers are summed.
    """
    parameters = session.descriptor.parameters
    noisy = bool(parameters.noise_block)
    vector = as_vector(given, session.dimension, noisy=noisy, name=name)
    if noisy:
        NoisyTask.of_session(session.descriptor).check_vector(vector)
    else:
        encode_integers(vector, parameters)


def check_vector_maker(make: VectorMaker) -> None:
    """Refuse a function that returns no vector when it is called.

    Raises:
        InputError: It is asynchronous, or takes no session.
    """
    if inspect.iscoroutinefunction(make):
        raise ErrorCode.BAD_INPUT.error(
            "the function that makes vectors is asynchronous, and it runs on a thread",
            fix="Give a function without async.",
        )
    try:
        inspect.signature(make).bind(None)
    except TypeError:
        raise ErrorCode.BAD_INPUT.error(
            "the function that makes vectors cannot be called with one session",
            fix="Give a function of one argument, such as lambda session: ....",
        ) from None
    except ValueError:
        return  # nothing is known of a function that is not written in Python


def _source_of(
    vector: npt.ArrayLike | VectorMaker, accept: Callable[[SessionInfo], None] | None
) -> _GivenVector | _MadeVectors:
    """Return the source of the vectors of one call."""
    accepts = accept or (lambda _: None)
    if not callable(vector):
        return _GivenVector(vector, accepts)
    check_vector_maker(vector)
    return _MadeVectors(vector, accepts)


def _validated_vector(made: object, dimension: int) -> npt.NDArray[Any] | Unusable:
    """Read what a function made, on the thread of that function."""
    try:
        return as_vector(made, dimension, noisy=True)
    except InputError as error:
        return Unusable(UnusableKind.INVALID, str(error))
