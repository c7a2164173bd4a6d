"""A server for leaders or helpers: the tasks of one of two aggregators, on one port.

Rule 1: a call reaches the party of its task. `GetOffer` names the task; every other
        call names its session. Parties share a port and a certificate, but no state.
Rule 2: an operator's commands work as for a single aggregator where they have a
        meaning; the others are refused with an explanation.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, NoReturn, Self, TypeVar

from secagg.errors import ErrorCode, LocalProtocolError, ServiceError
from secagg.pki.certificate_revocations import RevocationFile
from secagg.protocol.arguments import says_how_to_open
from secagg.protocol.messages import Envelope
from secagg.runtime.clock import Clock, SystemClock
from secagg.server.admin.views import unknown_task
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.session.events import LiveSession, SessionProgress
from secagg.server.telemetry.measures import RefusalCounts
from secagg.storage.rows import TaskState
from secagg.storage.store import Store
from secagg.transport.address import Address
from secagg.transport.handshake_limits import AdmissionLimits
from secagg.transport.tls import TLSIdentity
from secagg.two_aggregators.helper import Helper
from secagg.two_aggregators.leader import Leader
from secagg.two_aggregators.views import PartyTask, PartyViews
from secagg.wire.calls import GetOffer, Reference, Request, Wait, WatchSession

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
            raise LocalProtocolError("an aggregator needs one party for each task")
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
        """See `AggregatorService.answer`."""
        return await (await self._party_of(request)).answer(identity, request)

    def watch(
        self, identity: str, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """See `AggregatorService.watch`."""
        return self.parties[0].watch(identity, request)

    def note_refusal(self, code: ErrorCode) -> None:
        """See `AggregatorService.note_refusal`."""
        self._refusals.note(code)
        self.parties[0].note_refusal(code)

    async def _party_of(self, request: Request[Any]) -> Leader | Helper:
        """Return the party that a call is for; the first one for an unknown session."""
        if isinstance(request, GetOffer):
            named = (each for each in self.parties if each.task == request.task_id)
            return next(named, self.parties[0])
        session_id: bytes = getattr(request, "session_id", b"")
        if len(self.parties) == 1 or session_id in self._routes:
            return self._routes.get(session_id, self.parties[0])
        for party in self.parties:
            if await party.knows(session_id):
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
        """See `ServedAggregator.stores`."""
        return tuple(each.store for each in self.parties)

    def views(self, _state_dir: Path) -> PartyViews:
        """See `ServedAggregator.views`."""
        return PartyViews([PartyTask.of(each) for each in self.parties])

    def runs_a_task(self) -> bool:
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
