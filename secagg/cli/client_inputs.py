"""Inputs of `secagg client`: a file, a program's output, or one for each task.

A file of tasks has one table for each, named like the task:

    [flu]
    input = "flu-{session}.npy"
    output = "flu-sum-{session}.npy"

    [digits]
    exec = "python train.py {payload} {model}"
    sessions = 3
"""

import tomllib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import typer

from secagg.cli.output import Output
from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.arguments import did_you_mean
from secagg.runtime.files import read_small

if TYPE_CHECKING:
    from secagg.client.input_files import FileInput
    from secagg.config import ClientSettings
    from secagg.learning.program_input import ProgramInput

    Source = FileInput | ProgramInput

# A line for each task; one process serves tens, not thousands.
_MOST_BYTES: Final = 1 << 16
_KEYS: Final = {
    "input": str,
    "exec": str,
    "output": str,
    "payload_out": str,
    "same_input_again": bool,
    "sessions": int,
}
_MOST_SESSIONS: Final = 1_000_000
# Of one name in a directory, on common file systems.
_MOST_NAME_BYTES: Final = 255


@dataclass(frozen=True, slots=True)
class GivenInput:
    """Input of one task, and where its results go.

    Attributes:
        vector: File of --input.
        command: Of --exec; one of the two is None.
        sum_path: File of --output.
        payload_path: File of --payload-out.
        same_input_again: Whether one file may serve several sessions.
        sessions: How many; None for client.sessions.
    """

    vector: Path | None
    command: str | None
    sum_path: Path | None = None
    payload_path: Path | None = None
    same_input_again: bool = False
    sessions: int | None = None

    @property
    def targets(self) -> dict[str, Path]:
        """Files to be written, by the option that names them."""
        named = (("--output", self.sum_path), ("--payload-out", self.payload_path))
        return {option: path for option, path in named if path is not None}


def check_one_source(
    given: GivenInput, tasks: Path | None, *, program_options: bool
) -> None:
    """Refuse options that exclude each other.

    Raises:
        typer.BadParameter: None of --input, --exec and --tasks was given, or several.
    """
    sources = (("--input", given.vector), ("--exec", given.command), ("--tasks", tasks))
    named = [option for option, value in sources if value is not None]
    if len(named) != 1:
        raise typer.BadParameter(
            f"{' and '.join(named)} exclude each other"
            if named
            else "one of --input, --exec and --tasks is needed"
        )
    if tasks is not None and (given.targets or given.same_input_again):
        raise typer.BadParameter("with --tasks, its file says what is written where")
    if program_options and given.vector is not None:
        raise typer.BadParameter("--exec-seconds and --exec-env go with --exec")
    if given.command is not None and (given.same_input_again or given.payload_path):
        raise typer.BadParameter("--same-input-again and --payload-out go with --input")


def read_tasks(path: Path) -> dict[str, GivenInput]:
    """Read a file of tasks.

    Raises:
        ServiceError: BAD_SETTINGS; it names no task, or an entry cannot work.
    """
    data = read_small(
        path,
        most=_MOST_BYTES,
        code=ErrorCode.BAD_SETTINGS,
        what="the file of tasks",
        if_large="Name the file with one table for each task.",
    )
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _task_file_error(path, f"is not TOML: {error}", "Correct it.") from None
    if not document:
        raise _task_file_error(
            path, "names no task", "Add a table [name] for each task."
        )
    return {
        name: _read_task_input(path, name, table) for name, table in document.items()
    }


def _read_task_input(path: Path, name: str, table: object) -> GivenInput:
    """Return the input of one task, as its table states it."""
    if not isinstance(table, dict):
        raise _task_file_error(
            path,
            f"has {name!r} outside of any task",
            "Write it below the [name] of its task.",
        )
    for key, value in table.items():
        if key not in _KEYS:
            raise _task_file_error(path, f"has {name}.{key}", did_you_mean(key, _KEYS))
        if type(value) is not _KEYS[key]:
            kind = _KEYS[key].__name__
            raise _task_file_error(
                path, f"has a {name}.{key} that is not {kind}", "Correct it."
            )
    if ("input" in table) == ("exec" in table):
        raise _task_file_error(
            path, f"has both or neither of {name}.input and {name}.exec", "Write one."
        )
    odd = table.keys() & {"payload_out", "same_input_again"}
    if odd and "exec" in table:
        raise _task_file_error(
            path, f"has {name}.{min(odd)}, which goes with input", "Omit it."
        )
    sessions = table.get("sessions")
    if sessions is not None and not 1 <= sessions <= _MOST_SESSIONS:
        raise _task_file_error(
            path, f"has {name}.sessions = {sessions}", "Write a number of at least 1."
        )
    paths = {
        key: Path(table[key]) if key in table else None
        for key in ("input", "output", "payload_out")
    }
    return GivenInput(
        vector=paths["input"],
        command=table.get("exec"),
        sum_path=paths["output"],
        payload_path=paths["payload_out"],
        same_input_again=table.get("same_input_again", False),
        sessions=sessions,
    )


def _task_file_error(path: Path, fault: str, fix: str) -> SecAggError:
    return ErrorCode.BAD_SETTINGS.error(f"the file of tasks {path} {fault}", fix=fix)


def settings_of_inputs(
    settings: "ClientSettings", given: GivenInput, by_task: dict[str, GivenInput]
) -> list[tuple["ClientSettings", GivenInput]]:
    """Return what is given to each task of a process, with the settings for it.

    Args:
        settings: Of the process.
        given: To its one task.
        by_task: Of --tasks; empty without.
    """
    if not by_task:
        return [(settings, given)]
    own = settings.client
    return [
        (replace(settings, client=replace(own, task=name, sessions=sessions)), each)
        for name, each in by_task.items()
        for sessions in [each.sessions or own.sessions]
    ]


def _files_of(state_dir: Path, task: str) -> Path:
    """Return where a task keeps what it is given; no name leads out of it."""
    name = quote(task, safe="").replace(".", "%2E")
    if len(name) > _MOST_NAME_BYTES:
        name = sha256(task.encode()).hexdigest()
    return state_dir / "tasks" / name


def source_of(
    settings: "ClientSettings",
    given: GivenInput,
    *,
    exec_seconds: float | None,
    exec_env: Sequence[str],
) -> "Source":
    """Return what supplies the vectors of a task.

    Raises:
        ServiceError: BAD_SETTINGS, of a command.
    """
    state_dir = _files_of(settings.client.state_dir, settings.client.task)
    if given.command is None:
        from secagg.client.input_files import FileInput

        assert given.vector is not None  # noqa: S101 - one of them was given
        return FileInput(
            given.vector, payload_path=given.payload_path, state_dir=state_dir
        )
    from secagg.learning.program_input import ProgramInput
    from secagg.runtime.external_program import ExternalProgram, split_command

    program = ExternalProgram(
        split_command("--exec", given.command), passed_on=frozenset(exec_env)
    )
    return ProgramInput(
        program,
        state_dir=state_dir,
        seconds=exec_seconds,
        answer_at=settings.client.answer_at,
    )


class _NamedLines(Output):
    """Lines for people that begin with the task of each."""

    def __init__(self, output: Output, task: str) -> None:
        super().__init__(as_json=output.as_json, is_aside=True)
        self._task = task

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """Print one line for people."""
        super().line(f"{self._task}: {text}", style=style)


async def run_all(
    tasks: Sequence[str],
    give: Callable[[int, Output], Coroutine[Any, Any, dict[str, object]]],
    output: Output,
) -> dict[str, object]:
    """Contribute to several tasks side by side; one that fails leaves the rest.

    Args:
        tasks: Their names.
        give: Contributes to the task of a number, and prints to its own output.
        output: Where failures are printed.

    Returns:
        What is reported of each, by its name.

    Raises:
        SecAggError: Of the first that failed, when all have ended.
    """
    import asyncio

    async def one(number: int) -> dict[str, object] | SecAggError:
        named = _NamedLines(output, tasks[number])
        try:
            return await give(number, named)
        except SecAggError as error:
            named.line(f"ended: {error}", style="bold red")
            return error

    results = await asyncio.gather(*map(one, range(len(tasks))))
    for found in results:
        if isinstance(found, SecAggError):
            raise found
    return dict(zip(tasks, results, strict=True))


def remove_vector(source: "Source") -> None:
    """Remove the vector that was kept for a session that is over."""
    from secagg.client.input_files import FileInput

    if not isinstance(source, FileInput):
        source.ready()


def stop_source(source: "Source") -> None:
    """End a program that still runs."""
    from secagg.client.input_files import FileInput

    if not isinstance(source, FileInput):
        source.stop()
