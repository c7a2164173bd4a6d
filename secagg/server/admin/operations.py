"""The operations of an operator: their arguments and their answers.

The admin socket and the command line use the same answers. An operation that needs no
process reads the store of an aggregator that does not run.

Rule 1: operations, pages and the process (`secagg.server.service`) know an aggregator
        of any kind by the protocols of this module alone.
"""

import shutil
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, get_type_hints

from secagg.config import TaskSettings, task_from_document
from secagg.errors import ErrorCode, ServiceError
from secagg.runtime.files import nearest_place
from secagg.server.session.events import LiveSession, SessionProgress
from secagg.server.telemetry.prometheus import GaugeSample
from secagg.storage.store import Store
from secagg.transport.tls import TLSIdentity

if TYPE_CHECKING:
    from secagg.server.http_edge.listener import HttpEdge
    from secagg.server.rpc.grpc_server import GrpcServer


View = dict[str, object]
_Arguments = TypeVar("_Arguments")


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Selects the sessions of a list.

    Attributes:
        task: Only sessions of this task.
        since: Only those opened since, in Unix seconds.
        outcome: Only those with this outcome: `running`, `released`, or the name of a
            code.
        limit: The largest number of sessions; for a filter by outcome more are read.
    """

    task: str | None = None
    since: int | None = None
    outcome: str | None = None
    limit: int | None = None


class OperatorViews(Protocol):
    """Returns what operators see; each call may raise STORAGE_FAILED."""

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
        """Return all that is known of one session.

        Raises:
            ServiceError: UNKNOWN_SESSION; no session has this number.
        """

    async def budgets(self, *, task: str | None = None) -> list[View]:
        """Return what tasks cost and have spent."""

    async def replicas(self) -> list[View]:
        """Return the aggregators that share the store."""

    async def readings(self) -> list[GaugeSample]:
        """Return the present gauges of tasks and sessions."""


class ServedAggregator(Protocol):
    """Describes an aggregator that a process serves, open."""

    @property
    def transport(self) -> "GrpcServer | None":
        """Its gRPC server; None before it listens."""

    @property
    def edge(self) -> "HttpEdge | None":
        """Its HTTP edge; None where it has none."""

    @property
    def identity(self) -> TLSIdentity | None:
        """Its present certificate."""

    @property
    def is_draining(self) -> bool:
        """Whether no further session is offered."""

    @property
    def stores(self) -> Sequence[Store]:
        """The stores of its sessions; it cannot serve without each of them."""

    def views(self, state_dir: Path) -> OperatorViews:
        """Return what operators see of its tasks and sessions."""

    def runs_a_task(self) -> bool:
        """Whether sessions may open, now or later."""

    def live(self) -> tuple[LiveSession, ...]:
        """Return the progress of the sessions that are not over."""

    def refused(self) -> dict[str, int]:
        """Return how many calls were refused in the last hour, by error code."""

    def progress(
        self, at_first: Iterable[SessionProgress] = ()
    ) -> AsyncIterator[SessionProgress]:
        """Watch all sessions; see `ProgressFeed.watch`."""

    async def abort_session(self, session_id: bytes, reason: str) -> None:
        """End a session without a sum."""

    def drain(self) -> None:
        """Stop offering sessions; those that run continue."""

    async def settle(self) -> None:
        """Wait a while until clients know how their sessions ended."""


class TaskControl(Protocol):
    """Changes tasks for an operator; see `TaskSupervisor` for each operation."""

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


class AggregatorStatus(Protocol):
    """Reads the status of an aggregator that runs; see `StatusSnapshot`."""

    @property
    def views(self) -> OperatorViews:
        """What operators see of tasks and sessions."""

    async def status(self) -> View:
        """Return process and tasks, as JSON values."""


@dataclass(frozen=True, slots=True)
class ServerControl:
    """Gives operations access to an aggregator that runs.

    Attributes:
        server: The open aggregator.
        tasks: Changes its tasks.
        snapshot: Its status.
        finish: Ends the process; with True, after the open sessions are over.
    """

    server: ServedAggregator
    tasks: TaskControl
    snapshot: AggregatorStatus
    finish: Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class Sources:
    """Holds the sources of an answer.

    Attributes:
        views: Returns what operators see of tasks and sessions.
        state_dir: State directory of the aggregator; it may be lost, with a store in a
            database.
        control: The process; None when the aggregator does not run.
    """

    views: OperatorViews
    state_dir: Path
    control: ServerControl | None = None

    @property
    def running(self) -> ServerControl:
        """The process.

        Raises:
            ServiceError: UNREACHABLE; the aggregator does not run.
        """
        if self.control is None:
            raise ErrorCode.UNREACHABLE.error(
                "the operation needs an aggregator that runs",
                fix="Start it with the same settings file: `secagg server`, or "
                "`secagg two-aggregators`.",
            )
        return self.control


@dataclass(frozen=True, slots=True)
class Operation(Generic[_Arguments]):
    """Describes one operation.

    Attributes:
        arguments: A dataclass of texts, integers, flags and JSON objects.
        answer: Makes the answer, a JSON object.
        is_offline: Whether the store suffices, without a process.
    """

    arguments: type[_Arguments]
    answer: Callable[[Sources, _Arguments], Awaitable[View]]
    is_offline: bool = False

    async def call(self, sources: Sources, given: object) -> View:
        """Answer a request.

        Args:
            sources: The sources of the answer.
            given: The arguments as JSON; unknown keys are ignored.

        Raises:
            ServiceError: BAD_INPUT for arguments of a wrong type.
            SecAggError: The error of the operation.
        """
        return await self.answer(sources, read_arguments(self.arguments, given))


@dataclass(frozen=True, slots=True)
class _NoArguments:
    """Takes no arguments."""


@dataclass(frozen=True, slots=True)
class _TaskSettingsGiven:
    """Takes a task as its settings file states it; `version` is the expected one."""

    settings: dict[str, object]
    origin: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class _OneTask:
    """Takes the name of a task."""

    task: str


@dataclass(frozen=True, slots=True)
class _TaskChange:
    """Takes the name of a task, the reason of a change, and the expected version."""

    task: str
    reason: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class _TaskVersion:
    """Takes the name of a task, and the expected version."""

    task: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class _OneSession:
    """Takes a session by task and number."""

    task: str
    number: int


@dataclass(frozen=True, slots=True)
class _SessionAbort:
    """Takes a session by task and number, and the reason of its end."""

    task: str
    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Takes the name of a task; none selects all tasks."""

    task: str | None = None


@dataclass(frozen=True, slots=True)
class _Drain:
    """Takes whether open sessions are finished first."""

    finish: bool = False


async def _status(sources: Sources, _: _NoArguments) -> View:
    """Return the status of the process, or what the store says without one."""
    if sources.control is not None:
        return await sources.control.snapshot.status()
    free = shutil.disk_usage(nearest_place(sources.state_dir)).free
    return {
        "server": {"is_running": False, "free_bytes": free},
        "tasks": await sources.views.tasks(),
    }


async def _add(sources: Sources, given: _TaskSettingsGiven) -> View:
    tasks, settings = sources.running.tasks, _settings(given)
    await tasks.add(settings)
    return await sources.views.task(settings.task.id)


async def _apply(sources: Sources, given: _TaskSettingsGiven) -> View:
    tasks, settings = sources.running.tasks, _settings(given)
    await tasks.apply(settings, expect_version=given.version)
    return await sources.views.task(settings.task.id)


async def _list_tasks(sources: Sources, _: _NoArguments) -> View:
    return {"tasks": await sources.views.tasks()}


async def _show_task(sources: Sources, given: _OneTask) -> View:
    return await sources.views.task(given.task)


async def _pause(sources: Sources, given: _TaskChange) -> View:
    await sources.running.tasks.pause(
        given.task, reason=given.reason, expect_version=given.version
    )
    return await sources.views.task(given.task)


async def _resume(sources: Sources, given: _TaskVersion) -> View:
    await sources.running.tasks.resume(given.task, expect_version=given.version)
    return await sources.views.task(given.task)


async def _stop(sources: Sources, given: _TaskChange) -> View:
    await sources.running.tasks.stop(
        given.task, reason=given.reason, expect_version=given.version
    )
    return await sources.views.task(given.task)


async def _list_sessions(sources: Sources, given: SessionFilter) -> View:
    return {"sessions": await sources.views.sessions(given)}


async def _show_session(sources: Sources, given: _OneSession) -> View:
    return await sources.views.session(given.task, given.number)


async def _abort(sources: Sources, given: _SessionAbort) -> View:
    """End one running session without a sum."""
    server = sources.running.server
    for live in server.live():
        progress = live.progress
        if (progress.task_id, progress.session_number) == (given.task, given.number):
            await server.abort_session(progress.session_id, given.reason)
            return {
                "task": given.task,
                "number": given.number,
                "outcome": ErrorCode.CANCELLED.name,
            }
    raise ErrorCode.UNKNOWN_SESSION.error(
        f"session {given.number} of task {given.task!r} does not run",
        fix="`secagg sessions list` shows those that do.",
    )


async def _budget(sources: Sources, given: TaskFilter) -> View:
    views = await sources.views.budgets(task=given.task)
    return {"role": "server", "budgets": views}


async def _drain(sources: Sources, given: _Drain) -> View:
    sources.running.finish(given.finish)
    return {"draining": True, "finishes_sessions": given.finish}


OPERATIONS: Final[Mapping[str, Operation[Any]]] = MappingProxyType(
    {
        "status": Operation(_NoArguments, _status, is_offline=True),
        "task.add": Operation(_TaskSettingsGiven, _add),
        "task.apply": Operation(_TaskSettingsGiven, _apply),
        "task.list": Operation(_NoArguments, _list_tasks, is_offline=True),
        "task.show": Operation(_OneTask, _show_task, is_offline=True),
        "task.pause": Operation(_TaskChange, _pause),
        "task.resume": Operation(_TaskVersion, _resume),
        "task.stop": Operation(_TaskChange, _stop),
        "session.list": Operation(SessionFilter, _list_sessions, is_offline=True),
        "session.show": Operation(_OneSession, _show_session, is_offline=True),
        "session.abort": Operation(_SessionAbort, _abort),
        "budget": Operation(TaskFilter, _budget, is_offline=True),
        "drain": Operation(_Drain, _drain),
    }
)


def operation_of(name: str) -> Operation[Any]:
    """Return the operation of a name.

    Raises:
        ServiceError: BAD_INPUT; no operation has this name.
    """
    if name not in OPERATIONS:
        raise _not_understood("unknown operation")
    return OPERATIONS[name]


def _not_understood(complaint: str) -> ServiceError:
    """Build the refusal of a request that this release does not understand."""
    return ErrorCode.BAD_INPUT.error(
        f"the command cannot be understood: {complaint}",
        kind=ServiceError,
        fix="Use the command of the same release as the aggregator.",
    )


def _settings(given: _TaskSettingsGiven) -> "TaskSettings":
    return task_from_document(given.settings, origin=given.origin)


# Each type of an argument, and its name in errors.
_KINDS: Final[Mapping[object, tuple[type, str]]] = {
    str: (str, "a text"),
    str | None: (str, "a text"),
    int: (int, "an integer"),
    int | None: (int, "an integer"),
    bool: (bool, "true or false"),
    dict[str, object]: (dict, "an object"),
}


def read_arguments(kind: type[_Arguments], given: object) -> _Arguments:
    """Return arguments of JSON as an object of their dataclass.

    Args:
        kind: The dataclass.
        given: An object of JSON; unknown keys are ignored.

    Raises:
        ServiceError: BAD_INPUT; a value is missing or has another type.
    """
    if not isinstance(given, dict):
        raise _not_understood("args must be an object")
    hints = get_type_hints(kind)
    values: dict[str, object] = {}
    for field in fields(kind):  # type: ignore[arg-type]  # each kind is a dataclass
        value = given.get(field.name)
        wanted, name = _KINDS[hints[field.name]]
        if value is None and field.default is not MISSING:
            continue
        is_number_for_flag = isinstance(value, bool) and wanted is int
        if not isinstance(value, wanted) or is_number_for_flag:
            raise _not_understood(f"{field.name} must be {name}")
        values[field.name] = value
    return kind(**values)
