"""What an operator sees of an aggregator of any kind, and may have it do.

Rule 1: the process (`secagg.server.service`), its pages and the operations know an
        aggregator by these protocols alone.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from secagg.config import TaskSettings
from secagg.server.http_edge.listener import HttpEdge
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.session.progress import LiveSession, SessionProgress
from secagg.server.telemetry.prometheus import Reading
from secagg.storage.store import Store
from secagg.transport.tls import TLSIdentity

if TYPE_CHECKING:
    from secagg.server.admin.snapshot import StatusSnapshot

View = dict[str, object]


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Which sessions to list.

    Attributes:
        task: Only of this task.
        since: Only those opened since, in Unix seconds.
        outcome: Only those that ended so: `running`, `released`, or the name of a code.
        limit: At most so many; for those of one outcome more are read.
    """

    task: str | None = None
    since: int | None = None
    outcome: str | None = None
    limit: int | None = None


class OperatorViews(Protocol):
    """What is told of tasks and sessions; each may raise STORAGE_FAILED."""

    async def tasks(self) -> list[View]:
        """Return all tasks, in the order of their names."""

    async def task(self, task_id: str) -> View:
        """Return one task.

        Raises:
            ServiceError: UNKNOWN_SESSION; no task has this name.
        """

    async def sessions(self, chosen: SessionFilter) -> list[View]:
        """Return sessions, the newest first; see `sessions_view`."""

    async def session(self, task_id: str, number: int) -> View:
        """Return everything that is known of one session.

        Raises:
            ServiceError: UNKNOWN_SESSION; no session has this number.
        """

    async def budgets(self, *, task: str | None = None) -> list[View]:
        """Return what tasks cost and have spent."""

    async def replicas(self) -> list[View]:
        """Return the aggregators that share the store."""

    async def readings(self) -> list[Reading]:
        """Return the gauges of tasks and sessions as they stand now."""


class ServedAggregator(Protocol):
    """An aggregator that a process serves, open."""

    @property
    def transport(self) -> GrpcServer | None:
        """Its gRPC server; None before it listens."""

    @property
    def edge(self) -> HttpEdge | None:
        """Its HTTP edge; None where it has none."""

    @property
    def identity(self) -> TLSIdentity | None:
        """Its certificate, as it is now."""

    @property
    def is_draining(self) -> bool:
        """Whether no further session is offered."""

    @property
    def stores(self) -> Sequence[Store]:
        """Where it keeps its sessions; without each of them it cannot serve."""

    def views(self, state_dir: Path) -> OperatorViews:
        """Return what is told of its tasks and sessions."""

    def runs_a_task(self) -> bool:
        """Whether sessions may open, now or later."""

    def live(self) -> tuple[LiveSession, ...]:
        """Return the sessions that are not over, as they stand now."""

    def refused(self) -> dict[str, int]:
        """Return how many calls were refused in the last hour, by name of the code."""

    def progress(
        self, at_first: Iterable[SessionProgress] = ()
    ) -> AsyncIterator[SessionProgress]:
        """Watch all sessions; see `ProgressFeed.watch`."""

    async def abort_session(self, session_id: bytes, reason: str) -> None:
        """End a session without a sum."""

    def drain(self) -> None:
        """Offer no further sessions; those that run continue."""

    async def settle(self) -> None:
        """Wait a while until clients know how their sessions ended."""


class TaskControl(Protocol):
    """What an operator may say of tasks; see `TaskSupervisor` for each."""

    async def add(self, settings: TaskSettings) -> object:
        """Add a task and run it."""

    async def apply(
        self, settings: TaskSettings, *, expect_version: int | None = None
    ) -> object:
        """Change the settings of a task."""

    async def pause(
        self, task_id: str, *, reason: str, expect_version: int | None = None
    ) -> object:
        """Open no session of a task until `resume`."""

    async def resume(
        self, task_id: str, *, expect_version: int | None = None
    ) -> object:
        """Open sessions of a task again."""

    async def stop(
        self, task_id: str, *, reason: str, expect_version: int | None = None
    ) -> object:
        """End a task for good."""


@dataclass(frozen=True, slots=True)
class ServerControl:
    """What operations may call of an aggregator that runs.

    Attributes:
        server: Open.
        tasks: Acts on its tasks.
        snapshot: Its status.
        finish: Ends the process; with True when the open sessions are over.
    """

    server: ServedAggregator
    tasks: TaskControl
    snapshot: "StatusSnapshot"
    finish: Callable[[bool], None]
