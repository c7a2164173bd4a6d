"""Commands of an operator, made from the rows of `secagg.server.admin.operations`.

Rule 1: a row alone says what its command is called, takes, prints and explains.
Rule 2: an aggregator that runs answers over its socket.  For one that does not run, the
        store answers where it suffices.
"""

import difflib
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import MISSING, Field, fields
from datetime import UTC, datetime
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from secagg.cli.options import JSONOption, SetOption
from secagg.cli.output import Output
from secagg.cli.receipts import verify
from secagg.errors import ErrorCode
from secagg.server.admin.operations import (
    GROUPS,
    OPERATIONS,
    Operation,
    Sources,
    TaskFile,
)

if TYPE_CHECKING:
    from secagg.config import HostSettings
    from secagg.config.two_aggregators import PartySettings
    from secagg.server.admin.operations import OperatorViews


_USUAL_PLACES: Final = (Path("server.toml"), Path("/etc/secagg/server.toml"))

ServerFileOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings of the aggregator; server.toml here, or in /etc/secagg, by "
        "default.",
    ),
]

EitherFileOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings of the server or client; server.toml here, or in /etc/secagg, "
        "by default.",
    ),
]

_YesOption = Annotated[
    bool, typer.Option("--yes", help="Do not ask before the task is offered.")
]

# Of these a client has an answer, too: their commands take its settings file.
_OF_CLIENTS: Final = frozenset({"budget"})


def server_file(given: Path | None) -> Path:
    """Return the settings file of the aggregator that a command is about.

    Raises:
        ServiceError: BAD_SETTINGS; no file is named, and no usual place has one.
    """
    if given is not None:
        return given
    for path in _USUAL_PLACES:
        if path.is_file():
            return path
    places = " and ".join(str(path) for path in _USUAL_PLACES)
    raise ErrorCode.BAD_SETTINGS.error(
        f"no settings file is named, and {places} do not exist",
        fix="Name the settings: --config FILE.",
    )


# --- commands -------------------------------------------------------------------------


def operator_commands() -> dict[str, typer.Typer | Callable[..., None]]:
    """Return the commands of all operations, and their groups, by name."""
    commands: dict[str, typer.Typer | Callable[..., None]] = {}
    groups = {
        name: typer.Typer(help=text, no_args_is_help=True)
        for name, text in GROUPS.items()
    }
    for operation in OPERATIONS.values():
        word, *rest = operation.words
        if rest:
            groups[word].command(*rest)(_make_command(operation))
            commands[word] = groups[word]
        else:
            commands[word] = _make_command(operation)
    # It reads files, and needs no aggregator.
    groups["sessions"].command("verify")(verify)
    return commands


def _make_command(operation: Operation[Any]) -> Callable[..., None]:
    """Return the command of an operation: a function with a parameter per option."""

    def command(
        *,
        config: Path | None,
        as_json: bool,
        yes: bool = False,
        overrides: list[str] | None = None,
        **given: object,
    ) -> None:
        output = Output(as_json=as_json)
        arguments = {
            field.name: _read_option(field, given[field.name], output, yes=yes)
            for field in fields(operation.arguments)
        }
        if operation.changes is not None:
            _follow_changes(config, operation, arguments, output)
            return
        answer = (
            _answer_of_either(config, overrides, operation, arguments)
            if operation.name in _OF_CLIENTS
            else _answer_operation(config, operation, arguments)
        )
        if not as_json:
            operation.show(answer, output)
        output.result(answer)

    parameters = list(_command_parameters(operation))
    command.__doc__ = operation.help
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # read by typer
    return command


def _command_parameters(operation: Operation[Any]) -> Iterator[Parameter]:
    """Yield the parameters of a command, in the order of its help."""
    hints = get_type_hints(operation.arguments)
    own = fields(operation.arguments)

    def of(field: Field[Any]) -> Parameter:
        facts, hint = field.metadata, hints[field.name]
        hint = Path if hint is TaskFile else hint
        hint = datetime | None if facts["is_date"] else hint
        shown: dict[str, Any] = {
            "metavar": facts["metavar"],
            "help": facts["doc"] or None,
            "min": facts["low"],
            "max": facts["high"],
        }
        option = (
            typer.Argument(**shown)
            if facts["is_positional"]
            else typer.Option(f"--{field.name.replace('_', '-')}", **shown)
        )
        annotation = Annotated[hint, option]  # type: ignore[valid-type] # read by typer
        return _keyword_parameter(field.name, annotation, field.default)

    yield from (of(field) for field in own if field.default is MISSING)
    yield _keyword_parameter("config", ServerFileOption, None)
    if operation.name in _OF_CLIENTS:
        yield _keyword_parameter("overrides", SetOption, None)
    yield from (of(field) for field in own if field.default is not MISSING)
    if TaskFile in hints.values():
        yield _keyword_parameter("yes", _YesOption, default=False)
    yield _keyword_parameter("as_json", JSONOption, default=False)


def _keyword_parameter(name: str, annotation: object, default: object) -> Parameter:
    """Return a parameter that is given by name."""
    default = Parameter.empty if default is MISSING else default
    return Parameter(
        name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


def _read_option(
    field: Field[Any], given: object, output: Output, *, yes: bool
) -> object:
    """Return what the socket is told of one option."""
    if isinstance(given, datetime):
        return int(given.replace(tzinfo=UTC).timestamp())
    if isinstance(given, Path):
        return _confirm_task(given, output, yes=yes)
    choices = field.metadata["choices"]
    if given is not None and choices and given not in choices:
        close = difflib.get_close_matches(str(given), choices, n=1, cutoff=0.5)
        raise typer.BadParameter(
            f"unknown {field.name} {given!r}"
            + (f"; did you mean {close[0]}?" if close else ""),
            param_hint=f"--{field.name}",
        )
    return given


def _confirm_task(file: Path, output: Output, *, yes: bool) -> dict[str, object]:
    """Read a task, and on a terminal show its plan and ask."""
    from secagg.config import load_task_settings

    settings = load_task_settings(file)
    if not (yes or output.as_json or not sys.stdin.isatty()):
        from secagg.cli.server import print_task
        from secagg.server.task.setup import prepare_task

        output.line("planning the task")
        print_task(prepare_task(settings), output)
        typer.confirm(f"offer task {settings.task.id!r} to clients", abort=True)
    return {"settings": settings.document(), "origin": str(file)}


# --- answers --------------------------------------------------------------------------


def _settings_of(given: Path | None) -> "HostSettings | PartySettings":
    """Return the settings of the aggregator that a command is about.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    import os

    from secagg.config import load_host_settings
    from secagg.config.files import party_of
    from secagg.config.two_aggregators import load_two_aggregator_settings

    path = server_file(given)
    kind = party_of(path)
    if kind is None:
        return load_host_settings(path, environment=os.environ).settings
    return load_two_aggregator_settings(kind, path, environment=os.environ).settings


def _answer_operation(
    config: Path | None, operation: Operation[Any], arguments: Mapping[str, object]
) -> dict[str, Any]:
    """Have the aggregator answer an operation, or its store where that suffices.

    Raises:
        SecAggError: The error of the answer; UNREACHABLE when no aggregator runs;
            STORAGE_FAILED when no store exists.
    """
    import asyncio

    from secagg.server.admin.channel import (
        NoAdminSocketError,
        admin_socket_of,
        call_admin,
    )

    settings = _settings_of(config)
    socket = admin_socket_of(settings.server)
    try:
        return asyncio.run(call_admin(socket, operation.name, arguments))
    except NoAdminSocketError:
        if not operation.is_offline:
            raise
    return asyncio.run(_answer_from_store(settings, socket, operation, arguments))


def _answer_of_either(
    config: Path | None,
    overrides: list[str] | None,
    operation: Operation[Any],
    arguments: Mapping[str, Any],
) -> dict[str, Any]:
    """Have the aggregator or the client of a settings file answer an operation."""
    from secagg.cli.budget import client_budget
    from secagg.cli.checks.setups import ClientSetup, SharingSetup, load_setup

    setup = load_setup(server_file(config), overrides or ())
    if isinstance(setup, ClientSetup | SharingSetup):
        return client_budget(setup.settings, **arguments)
    if overrides:
        raise typer.BadParameter("--set goes with the settings file of a client")
    return _answer_operation(config, operation, arguments)


def _follow_changes(
    config: Path | None,
    operation: Operation[Any],
    arguments: Mapping[str, object],
    output: Output,
) -> None:
    """Print what an aggregator sends, until it ends."""
    import asyncio

    from secagg.server.admin.channel import admin_socket_of, watch_admin

    socket = admin_socket_of(_settings_of(config).server)

    async def follow() -> None:
        async for each in watch_admin(socket, operation.name, arguments):
            if each:
                output.result(each)
            if not (each and output.as_json):
                operation.show(each, output)

    asyncio.run(follow())


async def _answer_from_store(
    settings: "HostSettings | PartySettings",
    socket: Path,
    operation: Operation[Any],
    arguments: Mapping[str, object],
) -> dict[str, Any]:
    """Answer an operation from the store of an aggregator that does not run."""
    from secagg.storage.open_store import StoreInUseError

    server = settings.server
    try:
        async with _views_of(settings) as views:
            sources = Sources(views, server.state_dir)
            return await operation.call(sources, arguments)
    except StoreInUseError:
        raise ErrorCode.UNREACHABLE.error(
            f"an aggregator has {server.state_dir} open, but answers no commands at "
            f"{socket}",
            fix="It may be starting: try again. With --until-done it takes no "
            "commands; else both must name the same server.admin_socket.",
        ) from None


@asynccontextmanager
async def _views_of(
    settings: "HostSettings | PartySettings",
) -> "AsyncIterator[OperatorViews]":
    """Open the stores of a stopped aggregator for reading."""
    from secagg.config import HostSettings
    from secagg.storage.open_store import open_reader

    server = settings.server
    if isinstance(settings, HostSettings):
        async with open_reader(server.state_dir, store=server.store) as store:
            from secagg.server.admin.views import StoreViews

            yield StoreViews(store, server.state_dir)
        return
    from secagg.two_aggregators.program import stored_views

    async with stored_views(settings) as views:
        yield views
