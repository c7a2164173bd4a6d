"""The table of operations: what an operator asks of an aggregator, and its answers.

The admin socket, the command line and the web page use this one table. An operation
that needs no process reads the store of an aggregator that does not run.

Rule 1: operations, pages and the process (`secagg.server.service`) know an aggregator
        of any kind by the protocols of this module alone.
Rule 2: a row says all of its operation: arguments, answer, help, and what people read
        of the answer.  `secagg.cli.operator` makes its command.
Rule 3: the table loads no server and no store: each command of an operator reads it.
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
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from inspect import getdoc
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, get_type_hints

from secagg.config.loader import read_value, setting
from secagg.errors import ErrorCode, SecAggError, ServiceError, printable
from secagg.runtime.files import nearest_existing
from secagg.server.admin.printed import (
    Printer,
    print_abort,
    print_budgets,
    print_drain,
    print_pairs,
    print_progress,
    print_session,
    print_sessions,
    print_status,
    print_tasks,
)

if TYPE_CHECKING:
    from secagg.config import TaskSettings
    from secagg.server.http_edge.listener import HttpEdge
    from secagg.server.rpc.grpc_server import GrpcServer
    from secagg.server.session.events import LiveSession, SessionProgress
    from secagg.server.telemetry.measures import GaugeSample
    from secagg.storage.store import Store
    from secagg.transport.tls import TLSIdentity


View = dict[str, object]
_Arguments = TypeVar("_Arguments")
_MAX_LISTED: Final = 1000
"""A page of sessions: what fits on a screen several times, and into one answer."""
_MAX_SHOWN: Final = 64  # bytes of an unknown key, in the error that names it


def argument(
    doc: str = "",
    *,
    metavar: str | None = None,
    is_positional: bool = False,
    is_date: bool = False,
    **limits: Any,  # noqa: ANN401 - as `setting` takes them
) -> Any:  # noqa: ANN401 - it stands where a value of the field's type does
    """Declare one argument of an operation, which is checked as a setting is.

    Args:
        doc: One sentence for the help of the command.
        metavar: What the help of the command calls its value.
        is_positional: Whether a command takes it without the name of an option.
        is_date: Whether a command takes a date in UTC for these Unix seconds.
        limits: Its default and its limits; see `secagg.config.loader.setting`.

    Returns:
        A dataclass field.
    """
    made = setting(doc, **limits)
    shown = {"metavar": metavar, "is_positional": is_positional, "is_date": is_date}
    return field(default=made.default, metadata={**made.metadata, **shown})


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

    task: str | None = argument("Only this task.", metavar="ID", default=None)
    since: int | None = argument(
        "Only those opened since, in UTC.", is_date=True, default=None
    )
    outcome: str | None = argument(
        "Only these: running, released, or the name of a code.",
        choices=("running", "released", *(code.name for code in ErrorCode)),
        default=None,
    )
    limit: int = argument("Show so many at most.", low=1, high=_MAX_LISTED, default=50)


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

    async def readings(self) -> "list[GaugeSample]":
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
    def identity(self) -> "TLSIdentity | None":
        """Its present certificate."""

    @property
    def is_draining(self) -> bool:
        """Whether no further session is offered."""

    @property
    def stores(self) -> "Sequence[Store]":
        """The stores of its sessions; it cannot serve without each of them."""

    def views(self, state_dir: Path) -> OperatorViews:
        """Return what operators see of its tasks and sessions."""

    def may_open_sessions(self) -> bool:
        """Whether sessions may open, now or later."""

    def live(self) -> "tuple[LiveSession, ...]":
        """Return the progress of the sessions that are not over."""

    def refused(self) -> dict[str, int]:
        """Return how many calls were refused in the last hour, by error code."""

    def progress(
        self, at_first: "Iterable[SessionProgress]" = ()
    ) -> "AsyncIterator[SessionProgress]":
        """Watch all sessions; see `ProgressFeed.watch`."""

    async def abort_session(self, session_id: bytes, reason: str) -> None:
        """End a session without a sum."""

    def drain(self) -> None:
        """Stop offering sessions; those that run continue."""

    async def settle(self) -> None:
        """Wait a while until clients know how their sessions ended."""


class TaskControl(Protocol):
    """Changes tasks for an operator; see `TaskSupervisor` for each operation."""

    async def add(self, settings: "TaskSettings") -> object:
        """Add a task and run it."""

    async def apply(
        self, settings: "TaskSettings", *, expect_version: int | None = None
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

    async def status(self) -> View:
        """Return process and tasks, as JSON values."""


@dataclass(frozen=True, slots=True)
class ServerControl:
    """Gives operations access to an aggregator that runs.

    Attributes:
        server: The open aggregator.
        tasks: Changes its tasks.
        finish: Ends the process; with True, after the open sessions are over.
    """

    server: ServedAggregator
    tasks: TaskControl
    finish: Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class Sources:
    """Holds the sources of an answer.

    Attributes:
        views: Returns what operators see of tasks and sessions.
        state_dir: State directory of the aggregator; it may be lost, with a store in a
            database.
        snapshot: The status of the process; None when the aggregator does not run.
        control: The process; None also where answers may change nothing.
    """

    views: OperatorViews
    state_dir: Path
    snapshot: AggregatorStatus | None = None
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
        name: Its name at the socket.  Its command has the same words: `task.pause` is
            `secagg tasks pause`.
        arguments: A dataclass whose fields are made by `argument`.
        answer: Makes the answer, a JSON object.  Its docstring is the command's help.
        show: Prints an answer for people.
        changes: In the place of an answer, returns what is sent until the caller goes.
        is_offline: Whether the store suffices, without a process.
    """

    name: str
    arguments: type[_Arguments]
    answer: Callable[[Sources, _Arguments], Awaitable[View]] | None
    show: Callable[[View, Printer], None] = print_pairs
    changes: Callable[[Sources, _Arguments], AsyncIterator[View]] | None = None
    is_offline: bool = False

    @property
    def help(self) -> str:
        """What its command does, with an example."""
        return getdoc(self.answer or self.changes) or ""

    @property
    def words(self) -> tuple[str, ...]:
        """The words of its command, after `secagg`."""
        group, _, verb = self.name.rpartition(".")
        return (f"{group}s", verb) if group else (verb,)

    async def call(self, sources: Sources, given: object) -> View:
        """Answer a request.

        Args:
            sources: The sources of the answer.
            given: The arguments as JSON.

        Raises:
            ServiceError: BAD_INPUT for arguments of a wrong type, for unknown ones, or
                for an operation that has no single answer.
            SecAggError: The error of the operation.
        """
        if self.answer is None:
            raise _unsupported_request("unknown operation")
        return await self.answer(sources, read_arguments(self.arguments, given))


@dataclass(frozen=True, slots=True)
class NoArguments:
    """Takes no arguments."""


@dataclass(frozen=True, slots=True)
class TaskFile:
    """Holds a task as its settings file states it, and the name of that file."""

    settings: dict[str, object] = argument()
    origin: str = argument()


_VERSION: Final = "Refuse if the task was changed since it had this version."


@dataclass(frozen=True, slots=True)
class _NewTask:
    """Takes a task."""

    file: TaskFile = argument(
        "Settings of the task: [task], [vector], [cohort], [noise], ...",
        metavar="FILE",
        is_positional=True,
    )


@dataclass(frozen=True, slots=True)
class _ChangedTask(_NewTask):
    """Takes a task, and the version that it replaces."""

    expect_version: int | None = argument(_VERSION, metavar="N", low=1, default=None)


@dataclass(frozen=True, slots=True)
class _OneTask:
    """Takes the name of a task."""

    task: str = argument("Name of the task.", metavar="ID", is_positional=True)


@dataclass(frozen=True, slots=True)
class _Pause(_OneTask):
    """Takes the name of a task, the reason of a pause, and the expected version."""

    reason: str = argument(
        "Why, in words for clients and operators.",
        default="the operator has paused the task",
    )
    expect_version: int | None = argument(_VERSION, metavar="N", low=1, default=None)


@dataclass(frozen=True, slots=True)
class _Stop(_Pause):
    """Takes the same for the end of a task."""

    reason: str = argument(
        "Why, in words for clients and operators.",
        default="the operator has stopped the task",
    )


@dataclass(frozen=True, slots=True)
class _Resume(_OneTask):
    """Takes the name of a task, and the expected version."""

    expect_version: int | None = argument(_VERSION, metavar="N", low=1, default=None)


@dataclass(frozen=True, slots=True)
class _OneSession:
    """Takes a session by number and task."""

    number: int = argument(metavar="NUMBER", low=1, is_positional=True)
    task: str = argument("Of which task.", metavar="ID")


@dataclass(frozen=True, slots=True)
class _Abort(_OneSession):
    """Takes a session by number and task, and the reason of its end."""

    reason: str = argument(
        "Why, in words for the clients.", default="the operator has ended the session"
    )


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Takes the name of a task; none selects all tasks."""

    task: str | None = argument("Only this task.", metavar="ID", default=None)


@dataclass(frozen=True, slots=True)
class _Drain:
    """Takes whether open sessions are finished first."""

    finish: bool = argument(
        "Let sessions that have their cohort come to their end.", default=False
    )


async def _status(sources: Sources, _: NoArguments) -> View:
    """Show an aggregator and its tasks: what runs, who is missing, what is left.

    Reads the store of an aggregator that does not run.

    Example: secagg status --config server.toml
    """
    if sources.snapshot is not None:
        return await sources.snapshot.status()
    free = shutil.disk_usage(nearest_existing(sources.state_dir)).free
    return {
        "server": {"is_running": False, "free_bytes": free},
        "tasks": await sources.views.tasks(),
    }


async def _add(sources: Sources, given: _NewTask) -> View:
    """Add a task to an aggregator that runs.

    On a terminal the plan is shown first, and confirmed.

    Example: secagg tasks add digits.toml --config server.toml
    """
    tasks, settings = sources.running.tasks, _settings_in(given.file)
    await tasks.add(settings)
    return await sources.views.task(settings.task.id)


async def _apply(sources: Sources, given: _ChangedTask) -> View:
    """Change a task to what its file says now.

    A session that no longer fits ends. Other noise under the same name is refused
    by clients that have given inputs: that takes a new task.

    Example: secagg tasks apply digits.toml --config server.toml
    """
    tasks, settings = sources.running.tasks, _settings_in(given.file)
    await tasks.apply(settings, expect_version=given.expect_version)
    return await sources.views.task(settings.task.id)


def _settings_in(file: TaskFile) -> "TaskSettings":
    """Return the settings of a task's file."""
    from secagg.config import task_from_document

    return task_from_document(file.settings, origin=file.origin)


async def _list_tasks(sources: Sources, _: NoArguments) -> View:
    """List the tasks of an aggregator, running or not.

    Example: secagg tasks list --config server.toml
    """
    return {"tasks": await sources.views.tasks()}


async def _show_task(sources: Sources, given: _OneTask) -> View:
    """Show everything about one task.

    Example: secagg tasks show digits --config server.toml
    """
    return await sources.views.task(given.task)


async def _pause(sources: Sources, given: _Pause) -> View:
    """Open no session of a task for now; one that has its cohort continues.

    Clients wait.

    Example: secagg tasks pause digits --config server.toml
    """
    await sources.running.tasks.pause(
        given.task, reason=given.reason, expect_version=given.expect_version
    )
    return await sources.views.task(given.task)


async def _resume(sources: Sources, given: _Resume) -> View:
    """Open sessions of a paused task again.

    Example: secagg tasks resume digits --config server.toml
    """
    await sources.running.tasks.resume(given.task, expect_version=given.expect_version)
    return await sources.views.task(given.task)


async def _stop(sources: Sources, given: _Stop) -> View:
    """End a task for good; a session that has its cohort continues to its end.

    Clients receive TASK_OVER. A stopped task stays stopped.

    Example: secagg tasks stop digits --config server.toml
    """
    await sources.running.tasks.stop(
        given.task, reason=given.reason, expect_version=given.expect_version
    )
    return await sources.views.task(given.task)


async def _sessions(sources: Sources, given: SessionFilter) -> View:
    """List the sessions of an aggregator, the newest first.

    Example: secagg sessions list --task digits --config server.toml
    """
    return {"sessions": await sources.views.sessions(given)}


async def _session(sources: Sources, given: _OneSession) -> View:
    """Show all that is known of one session: its outcome, clients and times.

    Example: secagg sessions show 7 --task digits --config server.toml
    """
    return await sources.views.session(given.task, given.number)


async def _abort(sources: Sources, given: _Abort) -> View:
    """End a session without a sum; the next one of its task follows.

    Example: secagg sessions abort 7 --task digits --reason "wrong model"
    """
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


def _watch(sources: Sources, given: TaskFilter) -> AsyncIterator[View]:
    """Follow the sessions of an aggregator that runs, until it ends or Ctrl-C.

    With --json one object for every change.

    Example: secagg sessions watch --config server.toml
    """
    from secagg.server.admin.views import progress_view

    server = sources.running.server
    changes = server.progress(live.progress for live in server.live())

    async def chosen() -> AsyncIterator[View]:
        async for progress in changes:
            if given.task in (None, progress.task_id):
                yield progress_view(progress)

    return chosen()


async def _budget(sources: Sources, given: TaskFilter) -> View:
    """Show what an aggregator's tasks or a client have spent of privacy budgets.

    The settings file says which of the two, with the --set of a client. Epsilon and
    delta of a task hold against the server, for one client's data in all sessions that
    it may give: its participations and the spare sessions. For a client, `charges` is
    their number and `left` how many it may still give. Of a client whose data have a
    total (policy.data) all tasks with claims are listed.

    Example: secagg budget --config client.toml
    """
    views = await sources.views.budgets(task=given.task)
    return {"role": "server", "budgets": views}


async def _drain(sources: Sources, given: _Drain) -> View:
    """End an aggregator gently; sessions that are open then wait on the disk.

    Example: secagg drain --finish --config server.toml
    """
    sources.running.finish(given.finish)
    return {"draining": True, "finishes_sessions": given.finish}


_ROWS: Final[tuple[Operation[Any], ...]] = (
    Operation("status", NoArguments, _status, print_status, is_offline=True),
    Operation("task.add", _NewTask, _add),
    Operation("task.apply", _ChangedTask, _apply),
    Operation("task.list", NoArguments, _list_tasks, print_tasks, is_offline=True),
    Operation("task.show", _OneTask, _show_task, is_offline=True),
    Operation("task.pause", _Pause, _pause),
    Operation("task.resume", _Resume, _resume),
    Operation("task.stop", _Stop, _stop),
    Operation(
        "session.list", SessionFilter, _sessions, print_sessions, is_offline=True
    ),
    Operation("session.show", _OneSession, _session, print_session, is_offline=True),
    Operation("session.watch", TaskFilter, None, print_progress, changes=_watch),
    Operation("session.abort", _Abort, _abort, print_abort),
    Operation("budget", TaskFilter, _budget, print_budgets, is_offline=True),
    Operation("drain", _Drain, _drain, print_drain),
)
OPERATIONS: Final[Mapping[str, Operation[Any]]] = MappingProxyType(
    {row.name: row for row in _ROWS}
)
GROUPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tasks": "Add, watch, pause and stop the tasks of an aggregator.",
        "sessions": "List, explain, watch and abort sessions; verify their receipts.",
    }
)
"""The help of each group of commands."""


def operation_of(name: str) -> Operation[Any]:
    """Return the operation of a name.

    Raises:
        ServiceError: BAD_INPUT; no operation has this name.
    """
    if name not in OPERATIONS:
        raise _unsupported_request("unknown operation")
    return OPERATIONS[name]


def _unsupported_request(complaint: str) -> ServiceError:
    """Build the refusal of a request that this release does not understand."""
    return ErrorCode.BAD_INPUT.error(
        f"the command cannot be understood: {complaint}",
        kind=ServiceError,
        fix="Use the command of the same release as the aggregator.",
    )


def read_arguments(
    kind: type[_Arguments], given: object, *, name: str = "args"
) -> _Arguments:
    """Return arguments of JSON as an object of their dataclass.

    Args:
        kind: The dataclass.
        given: An object of JSON.
        name: What errors call it.

    Raises:
        ServiceError: BAD_INPUT; a key is unknown, or a value is missing, has another
            type, or is outside of its limits.
    """
    if not isinstance(given, dict):
        raise _unsupported_request(f"{name} must be an object")
    hints = get_type_hints(kind)
    for key in sorted(given.keys() - hints.keys()):
        raise _unsupported_request(
            f"{printable(key, max_bytes=_MAX_SHOWN)!r} is not a key of {name}"
        )
    values: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]  # each kind is a dataclass
        value, hint = given.get(each.name), hints[each.name]
        if value is None and each.default is not MISSING:
            continue
        if is_dataclass(hint):
            values[each.name] = read_arguments(hint, value, name=each.name)  # type: ignore[arg-type] # a class
            continue
        try:
            values[each.name] = read_value(
                value, hint, each.metadata, key=each.name, origin="the command"
            )
        except SecAggError as error:
            raise _unsupported_request(str(error)) from None
    return kind(**values)
