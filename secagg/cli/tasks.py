"""`secagg tasks`: an aggregator's tasks, and an operator's actions on them."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secagg.cli.operator import ServerFileOption, ask, look
from secagg.cli.options import JSONOption
from secagg.cli.output import Output

if TYPE_CHECKING:
    from secagg.config import TaskSettings


app = typer.Typer(
    help="Add, watch, pause and stop the tasks of an aggregator.",
    no_args_is_help=True,
)

_TaskArgument = Annotated[str, typer.Argument(metavar="ID", help="Name of the task.")]
_FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Settings of the task: [task], [vector], [cohort], [noise], ...",
    ),
]
_YesOption = Annotated[
    bool, typer.Option("--yes", help="Do not ask before the task is offered.")
]
_VersionOption = Annotated[
    int | None,
    typer.Option(
        "--expect-version",
        metavar="N",
        min=1,
        help="Refuse if the task was changed since it had this version.",
    ),
]
_ReasonOption = Annotated[
    str, typer.Option("--reason", help="Why, in words for clients and operators.")
]


@app.command("add")
def add(
    *,
    file: _FileArgument,
    config: ServerFileOption = None,
    yes: _YesOption = False,
    as_json: JSONOption = False,
) -> None:
    """Add a task to an aggregator that runs.

    On a terminal the plan is shown first, and confirmed.

    Example: secagg tasks add digits.toml --config server.toml
    """
    output = Output(as_json=as_json)
    settings = _confirmed(file, output, yes=yes)
    answer = ask(config, "task.add", **_settings_of(settings, file))
    _print_one(answer, output)


@app.command("apply")
def apply(
    *,
    file: _FileArgument,
    config: ServerFileOption = None,
    expect_version: _VersionOption = None,
    yes: _YesOption = False,
    as_json: JSONOption = False,
) -> None:
    """Change a task to what its file says now.

    A session that no longer fits ends. Other noise under the same name is refused by
    clients that have given inputs: that takes a new task.

    Example: secagg tasks apply digits.toml --config server.toml
    """
    output = Output(as_json=as_json)
    settings = _confirmed(file, output, yes=yes)
    answer = ask(
        config,
        "task.apply",
        **_settings_of(settings, file),
        version=expect_version,
    )
    _print_one(answer, output)


@app.command("list")
def list_tasks(*, config: ServerFileOption = None, as_json: JSONOption = False) -> None:
    """List the tasks of an aggregator, running or not.

    Example: secagg tasks list --config server.toml
    """
    answer = look(config, "task.list")
    output = Output(as_json=as_json)
    if not as_json:
        output.table(
            ("task", "state", "sums", "sessions left", "now"),
            task_rows(answer["tasks"]),
            numeric=(3,),
        )
    output.result(answer)


@app.command("show")
def show(
    *,
    task: _TaskArgument,
    config: ServerFileOption = None,
    as_json: JSONOption = False,
) -> None:
    """Show everything about one task.

    Example: secagg tasks show digits --config server.toml
    """
    answer = look(config, "task.show", task=task)
    _print_one(answer, Output(as_json=as_json))


@app.command("pause")
def pause(
    *,
    task: _TaskArgument,
    config: ServerFileOption = None,
    reason: _ReasonOption = "the operator has paused the task",
    expect_version: _VersionOption = None,
    as_json: JSONOption = False,
) -> None:
    """Open no session of a task for now; one that has its cohort continues.

    Clients wait.

    Example: secagg tasks pause digits --config server.toml
    """
    answer = ask(
        config,
        "task.pause",
        task=task,
        reason=reason,
        version=expect_version,
    )
    _print_one(answer, Output(as_json=as_json))


@app.command("resume")
def resume(
    *,
    task: _TaskArgument,
    config: ServerFileOption = None,
    expect_version: _VersionOption = None,
    as_json: JSONOption = False,
) -> None:
    """Open sessions of a paused task again.

    Example: secagg tasks resume digits --config server.toml
    """
    answer = ask(config, "task.resume", task=task, version=expect_version)
    _print_one(answer, Output(as_json=as_json))


@app.command("stop")
def stop(
    *,
    task: _TaskArgument,
    config: ServerFileOption = None,
    reason: _ReasonOption = "the operator has stopped the task",
    expect_version: _VersionOption = None,
    as_json: JSONOption = False,
) -> None:
    """End a task for good; a session that has its cohort continues to its end.

    Clients receive TASK_OVER. A stopped task stays stopped.

    Example: secagg tasks stop digits --config server.toml
    """
    answer = ask(
        config,
        "task.stop",
        task=task,
        reason=reason,
        version=expect_version,
    )
    _print_one(answer, Output(as_json=as_json))


def task_rows(tasks: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return one line for each task."""
    return [
        (
            each["task"],
            each["state"],
            f"{each['sums']} of {each['sums_wanted']}",
            "" if each["sessions_left"] is None else str(each["sessions_left"]),
            each["unwritten"] or _now(each),
        )
        for each in tasks
    ]


def _now(task: dict[str, Any]) -> str:
    """Return what a task does, and whether too few clients are left for it."""
    words = (
        "; ".join(_running(session) for session in task["running"])
        or task["reason"]
        or _waiting(task)
    )
    return "; ".join(each for each in (task["short_of_clients"], words) if each)


def _waiting(task: dict[str, Any]) -> str:
    """Return when the next session of a task may open, if that is known."""
    from secagg.config.schedule import Schedule

    now = datetime.now(UTC)
    slot = Schedule.parse(task["schedule"], task["window"]).slot(now.timestamp())
    if task["state"] != "running" or slot is None:
        return ""
    opens = datetime.fromtimestamp(slot.next_start, UTC)
    shown = "%H:%M:%S" if opens.date() == now.date() else "%Y-%m-%d %H:%M:%S"
    return f"the next slot begins at {opens:{shown}} UTC"


def _running(session: dict[str, Any]) -> str:
    """Return one line about a running session."""
    live = session.get("live")
    words = f"session {session['number']}: {session['round']}"
    if live is None:
        return words
    if session["round"] == "joining":
        words += f", {live['joined']} joined, {live['needed']} needed"
    else:
        words += f", {live['answered']} of {live['expected']} answered"
    if live["seconds_left"] is not None:
        words += f", {live['seconds_left']:.0f} s left"
    return words


def _print_one(answer: dict[str, Any], output: Output) -> None:
    output.pairs(
        (name.replace("_", " "), _shown(value))
        for name, value in answer.items()
        if value not in (None, "", [])
    )
    output.result(answer)


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "; ".join(
            _running(each) if isinstance(each, dict) else str(each) for each in value
        )
    return "" if value is None else str(value)


def _settings_of(settings: "TaskSettings", file: Path) -> dict[str, object]:
    return {"settings": settings.document(), "origin": str(file)}


def _confirmed(file: Path, output: Output, *, yes: bool) -> "TaskSettings":
    """Read a task, and on a terminal show its plan and ask."""
    from secagg.cli.server import print_task
    from secagg.config import load_task_settings
    from secagg.server.task.setup import prepare_task

    settings = load_task_settings(file)
    if yes or output.as_json or not sys.stdin.isatty():
        return settings
    output.line("planning the task")
    print_task(prepare_task(settings), output)
    typer.confirm(f"offer task {settings.task.id!r} to clients", abort=True)
    return settings
