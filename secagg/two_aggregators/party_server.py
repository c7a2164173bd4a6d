"""A server for leaders or helpers: the tasks of one of two aggregators, on one port.

Rule 1: a call reaches the party of its task. `GetOffer` names the task; every other
        call names its session. Parties share a port and a certificate, but no state.
Rule 2: an operator's commands work as for a single aggregator where they have a
        meaning; the others are refused with an explanation.

An operator sees tasks, sessions and budgets:

Rule 3: the views come from the store of each task, whether the aggregator runs or not.
        A running process adds its own facts under `live`.
Rule 4: a helper does not learn what was released: its sums are its answers.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, Self, TypeVar

from secagg.config.task import CONTINUOUS
from secagg.distributed_dp import AggregatorNoise
from secagg.errors import ErrorCode, ServiceError
from secagg.pki.certificate_revocations import RevocationFile
from secagg.protocol.arguments import says_how_to_open
from secagg.protocol.messages import Aborted, Envelope
from secagg.runtime.clock import Clock, SystemClock
from secagg.server.admin.operations import SessionFilter, View
from secagg.server.admin.views import (
    TaskFacts,
    found_session,
    sessions_view,
    unknown_task,
)
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.session.events import LiveSession, SessionProgress
from secagg.server.task.history import TaskHistory
from secagg.server.task.stored import row_of
from secagg.server.telemetry.measures import GaugeSample, RefusalCounts
from secagg.storage.change import Side
from secagg.storage.queries import ListSessions, ReadTally
from secagg.storage.rows import SessionTally, TaskState
from secagg.storage.store import Store, StoreReader
from secagg.transport.address import Address
from secagg.transport.handshake_limits import AdmissionLimits
from secagg.transport.tls import TLSIdentity
from secagg.two_aggregators.helper import Helper
from secagg.two_aggregators.leader import Leader, history_in
from secagg.two_aggregators.leader_outcome import LeaderOutcome
from secagg.wire.calls import GetOffer, Reference, Request, Wait, WatchSession

_PROFILE: Final = "two-aggregators"


@dataclass(frozen=True, slots=True)
class PartyTask:
    """A task of a leader or a helper, with its store.

    Attributes:
        task: Name of the task.
        noise: The task, with the noise of one aggregator.
        steps: Number of sums of the task.
        is_leader: Whether the store is the leader's.
        store: Store of the task.
        party: The running party; None when the aggregator does not run.
    """

    task: str
    noise: AggregatorNoise
    steps: int
    is_leader: bool
    store: StoreReader
    party: Leader | Helper | None = None

    @classmethod
    def of(cls, party: Leader | Helper) -> "PartyTask":
        """Return the task that a party runs."""
        return cls(
            party.task, party.noise, party.steps, party.is_leader, party.store, party
        )

    def ended(self, receipt: bytes) -> View:
        """Return the view of an ended session."""
        joined: int | None
        inputs: int | None
        if self.is_leader:
            result = LeaderOutcome.decode(receipt)
            outcome, names = result.outcome, result.included.names
            joined, inputs = len(result.held.names), len(names)
            code = outcome.code if isinstance(outcome, Aborted) else None
            reason = outcome.reason if isinstance(outcome, Aborted) else ""
        else:
            joined = inputs = None  # erased with the seeds
            code = None if receipt else ErrorCode.CANCELLED
            reason = "" if receipt else "the helper gave no answer"
        return {
            "outcome": "released" if code is None else ErrorCode(code).name,
            "reason": reason,
            "joined": joined,
            "inputs": inputs,
            "next_step": "",
        }

    def live(self) -> tuple[LiveSession, ...]:
        """Return the open session of a running party."""
        return () if self.party is None else self.party.live()

    def _facts(self, tally: SessionTally) -> TaskFacts:
        """Return what the store has of the task."""
        history = history_in(tally) if self.is_leader else TaskHistory(sums=tally.spent)
        return TaskFacts(self.task, self.steps, tally, history, self.noise.budget)

    async def view(self) -> View:
        """Return the view of the task."""
        facts = self._facts(await self.store.read(ReadTally(Side.SERVER, self.task)))
        row = await row_of(self.store, self.task)
        running = await self.store.read(ListSessions(role=Side.SERVER, task=self.task))
        is_over = facts.history.sums >= self.steps or not facts.sessions_left
        # Only the process that asked the helper knows of a final refusal.
        is_over |= self.party is not None and not self.party.may_serve
        state = TaskState.RUNNING if row is None else row.task.state
        return {
            "task": self.task,
            "state": "done" if is_over else state.value,
            "reason": "" if row is None else row.task.reason,
            "unwritten": "",
            "short_of_clients": "",
            "version": 0 if row is None else row.version,
            "profile": _PROFILE,
            "schedule": CONTINUOUS,
            "window": None,
            "ends": None,
        } | facts.progress_of(running, self.live())

    async def budget(self) -> View:
        """Return the view of the task's budget."""
        tally = await self.store.read(ReadTally(Side.SERVER, self.task))
        running = await self.store.read(ListSessions(role=Side.SERVER, task=self.task))
        report = self.noise.report()
        # An open session of a leader may still release a sum; a helper has counted it.
        paid = sum(each.spent for each in running) if self.is_leader else 0
        return {
            "task": self.task,
            "epsilon_server": report.aggregator.epsilon,
            "epsilon_model_reader": report.reader.epsilon,
            "grounds": report.aggregator.grounds,
        } | self._facts(tally).spending_of(self.noise.budget, paid)


@dataclass(frozen=True, slots=True)
class PartyViews:
    """The views of a leader or a helper; implements `OperatorViews`.

    Attributes:
        of: The tasks of the aggregator.
    """

    of: Sequence[PartyTask]

    def _chosen(self, task: str | None) -> list[PartyTask]:
        """Return the tasks of a name, or all tasks, in order."""
        found = [each for each in self.of if task in (None, each.task)]
        if task is not None and not found:
            raise unknown_task(task, (each.task for each in self.of))
        return sorted(found, key=lambda each: each.task)

    async def tasks(self) -> list[View]:
        """Return the view of each task."""
        return [await each.view() for each in self._chosen(None)]

    async def task(self, task_id: str) -> View:
        """Return the view of one task."""
        (found,) = self._chosen(task_id)
        return await found.view()

    async def sessions(self, chosen: SessionFilter) -> list[View]:
        """Return the chosen sessions, newest first."""
        found: list[View] = []
        for each in self._chosen(chosen.task):
            found += await sessions_view(
                each.store, chosen, live=each.live, ended=each.ended
            )
        found.sort(key=lambda view: str(view["opened"]), reverse=True)
        return found[: chosen.limit]

    async def session(self, task_id: str, number: int) -> View:
        """Return one session with its clients."""
        (task,) = self._chosen(task_id)
        view, receipt = await found_session(
            task.store, task_id, number, task.live, task.ended
        )
        if task.is_leader and receipt:
            result = LeaderOutcome.decode(receipt)
            view["shares_of"] = list(result.held.names)
            view["in_the_sum"] = list(result.included.names)
        return view

    async def budgets(self, *, task: str | None = None) -> list[View]:
        """Return what each task has spent."""
        return [await each.budget() for each in self._chosen(task)]

    async def replicas(self) -> list[View]:
        """Return no replica: the store of a party is not shared."""
        return []

    async def readings(self) -> list[GaugeSample]:
        """Return the gauges of all parties."""
        found: dict[object, GaugeSample] = {}
        for each in self.of:
            if each.party is not None:
                with suppress(ServiceError):
                    for metric, value, labels in await each.party.readings():
                        # Several leaders ask one helper; the worst value counts.
                        key = metric.name, tuple(sorted(labels.items()))
                        least = min(value, found.get(key, (metric, value, {}))[1])
                        found[key] = metric, least, labels
        return list(found.values())


_Answer = TypeVar("_Answer")

# Sessions whose party is cached; for the others it is looked up in the stores.
_REMEMBERED: Final = 4096


@says_how_to_open
class PartyServer:
    """The server of an aggregator's parties; use it as an asynchronous context manager.

    Args:
        parties: One for each task, all leaders or all helpers, each with a state
            directory of its own.
        address: Where to listen; port 0 lets the system choose.
        identity: The aggregator's certificate. Clients of its trust domain are served.
            At the helper, the authority of that domain has issued the leader a client's
            certificate under the leader's name.
        health_address: Also answers health checks, in plaintext.
        admission: As for `GrpcServer.start`.
        revoked: As for `GrpcServer.start`.
        clock: Source of time; the system clock by default.

    Attributes:
        parties: The parties that are served.
        transport: The running gRPC server; None before `listen`.

    Raises:
        LocalProtocolError: No party is given, or two parties have the same task.
    """

    edge = None

    def __init__(  # noqa: PLR0913 - one argument for each decision of the operator
        self,
        parties: Sequence[Leader] | Sequence[Helper],
        address: Address,
        identity: TLSIdentity,
        *,
        health_address: Address | None = None,
        admission: AdmissionLimits | None = None,
        revoked: RevocationFile | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not parties or len({each.task for each in parties}) < len(parties):
            raise ErrorCode.LOCAL_MISUSE.error(
                "an aggregator needs one party for each task"
            )
        self.parties: Final[tuple[Leader | Helper, ...]] = tuple(parties)
        self.transport: GrpcServer | None = None
        self._address = address
        self._identity = identity
        self._health_address = health_address
        self._admission = admission
        self._revoked = revoked
        self._clock = clock or SystemClock()
        self._refusals = RefusalCounts(self._clock)
        self._routes: OrderedDict[bytes, Leader | Helper] = OrderedDict()
        self._is_draining = False
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Load the state of an earlier process.

        Raises:
            ServiceError: STORAGE_FAILED or STATE_DAMAGED.
        """
        async with AsyncExitStack() as unless_loaded:  # the stores have locks
            for party in self.parties:
                unless_loaded.callback(party.close)
            for party in self.parties:
                await party.recover()
            self._stack = unless_loaded.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening; open sessions stay in the store."""
        await self._stack.aclose()

    async def listen(self) -> Address:
        """Start to answer calls over TLS.

        Returns:
            The address, with the real port.

        Raises:
            ServiceError: PORT_IN_USE or BAD_CERTIFICATE.
        """
        self.transport = await GrpcServer.start(
            self,
            self._address,
            identity=self._identity,
            health_address=self._health_address,
            admission=self._admission,
            revoked=self._revoked,
            clock=self._clock,
        )
        self._stack.push_async_callback(self.transport.stop, 0.0)
        return self.transport.address

    # --- calls ------------------------------------------------------------------------

    async def answer(self, identity: str, request: Request[_Answer]) -> _Answer:
        """Answer one call by the party of its task."""
        return await (await self._party_of(request)).answer(identity, request)

    def watch(
        self, identity: str, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Refuse streams, as each party does."""
        return self.parties[0].watch(identity, request)

    def record_refusal(self, code: ErrorCode) -> None:
        """Count a call that was refused before it reached the service."""
        self._refusals.count(code)
        self.parties[0].record_refusal(code)

    async def _party_of(self, request: Request[Any]) -> Leader | Helper:
        """Return the party that a call is for; the first one for an unknown session."""
        if isinstance(request, GetOffer):
            named = (each for each in self.parties if each.task == request.task_id)
            return next(named, self.parties[0])
        session_id: bytes = getattr(request, "session_id", b"")
        if len(self.parties) == 1 or session_id in self._routes:
            return self._routes.get(session_id, self.parties[0])
        for party in self.parties:
            if await party.has_session(session_id):
                self._routes[session_id] = party
                if len(self._routes) > _REMEMBERED:
                    self._routes.popitem(last=False)
                return party
        return self.parties[0]

    # --- its process and its operator -------------------------------------------------

    @property
    def identity(self) -> TLSIdentity | None:
        """The aggregator's current certificate."""
        return self._identity if self.transport is None else self.transport.identity

    @property
    def is_draining(self) -> bool:
        """Whether the aggregator opens no further sessions."""
        return self._is_draining

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores that this process writes: one for each party."""
        return tuple(each.store for each in self.parties)

    def views(self, _state_dir: Path) -> PartyViews:
        """Return the views of all parties that operators read."""
        return PartyViews([PartyTask.of(each) for each in self.parties])

    def may_open_sessions(self) -> bool:
        """Whether sessions may open, now or when a task is resumed."""
        return any(each.may_serve for each in self.parties) and not self._is_draining

    def live(self) -> tuple[LiveSession, ...]:
        """Return the open sessions of all tasks."""
        return tuple(live for each in self.parties for live in each.live())

    def refused(self) -> dict[str, int]:
        """Return how many calls were refused in the last hour, by name of the code."""
        return self._refusals.of_last_hour()

    def drain(self) -> None:
        """Open no further sessions; open ones continue."""
        self._is_draining = True
        for party in self.parties:
            party.drain()

    async def settle(self) -> None:
        """Return at once: clients can also fetch a sum after the next start."""

    async def pause(
        self, task_id: str, *, reason: str, expect_version: int | None = None
    ) -> None:
        """Open no session of a task until `resume`; the open one continues.

        Raises:
            ServiceError: UNKNOWN_SESSION; BAD_SETTINGS for another version;
                STORAGE_FAILED.
        """
        await self._set_state(task_id, TaskState.PAUSED, reason, expect_version)

    async def resume(self, task_id: str, *, expect_version: int | None = None) -> None:
        """Open sessions of a task again.

        Raises:
            ServiceError: As `pause`.
        """
        await self._set_state(task_id, TaskState.RUNNING, "", expect_version)

    async def _set_state(
        self, task_id: str, state: TaskState, reason: str, version: int | None
    ) -> None:
        """Store the state that an operator chose for a task."""
        found = [each for each in self.parties if each.task == task_id]
        if not found:
            raise unknown_task(task_id, (each.task for each in self.parties))
        await found[0].set_state(state, reason, expect_version=version)

    async def add(self, *_: object, **__: object) -> NoReturn:
        """Refuse: the settings of both aggregators define the tasks."""
        raise _unsupported("a task is added in the settings of both aggregators")

    async def apply(self, *_: object, **__: object) -> NoReturn:
        """Refuse: the settings of both aggregators define the tasks."""
        raise _unsupported("a task is changed in the settings of both aggregators")

    async def stop(self, *_: object, **__: object) -> NoReturn:
        """Refuse: a task ends by its sums, or is paused."""
        raise _unsupported(
            "a task between two aggregators ends by its sums alone",
            "Pause the task, or remove it from the settings of both aggregators.",
        )

    async def abort_session(self, *_: object, **__: object) -> NoReturn:
        """Refuse: the answers of one aggregator bind the other one."""
        raise _unsupported(
            "a session between two aggregators ends with its sum or its deadline",
            "Pause the task, so that no other session follows.",
        )

    def progress(self, *_: object, **__: object) -> AsyncIterator[SessionProgress]:
        """Refuse: the sessions of leader and helper can only be polled."""
        raise _unsupported(
            "sessions between two aggregators cannot be watched",
            "Poll with `secagg status` or `secagg sessions list`.",
        )


def _unsupported(
    complaint: str,
    next_step: str = "Change the settings of both aggregators, and restart both.",
) -> ServiceError:
    """Return the error for an operation that has no meaning between two aggregators."""
    return ErrorCode.UNEXPECTED_MESSAGE.error(
        complaint, kind=ServiceError, fix=next_step
    )
