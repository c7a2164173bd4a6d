"""How commands reach an aggregator: over its socket, or in the store that it left.

The answers are the same (`secagg.server.admin.operations`). What changes anything
needs an aggregator that runs.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from secagg.config import HostSettings


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


def server_file(given: Path | None) -> Path:
    """Return the settings file of the aggregator that a command is about.

    Raises:
        ServiceError: BAD_SETTINGS; none is named, and none lies in the usual places.
    """
    from secagg.errors import ErrorCode, ServiceError

    if given is not None:
        return given
    for path in _USUAL_PLACES:
        if path.is_file():
            return path
    places = " and ".join(str(path) for path in _USUAL_PLACES)
    raise ServiceError(
        f"no settings file is named, and {places} do not exist",
        code=ErrorCode.BAD_SETTINGS,
        next_step="Name the settings: --config FILE.",
    )


def settings_of(given: Path | None) -> "HostSettings":
    """Return the settings of the aggregator that a command is about.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    import os

    from secagg.config import load_host_settings

    return load_host_settings(server_file(given), environment=os.environ).settings


def ask(given: Path | None, name: str, /, **arguments: object) -> dict[str, Any]:
    """Have an operation answered by the aggregator that runs.

    Args:
        given: What `--config` says.
        name: Of the operation.
        arguments: Of the operation.

    Raises:
        SecAggError: What it answers, or UNREACHABLE when none runs.
    """
    import asyncio

    from secagg.server.admin.channel import admin_socket_of, call_admin

    settings = settings_of(given)
    return asyncio.run(call_admin(admin_socket_of(settings), name, arguments))


def look(given: Path | None, name: str, /, **arguments: object) -> dict[str, Any]:
    """Have an operation answered by the aggregator, or from its store if it stopped.

    Args:
        given: What `--config` says.
        name: Of the operation.
        arguments: Of the operation.

    Raises:
        SecAggError: What it answers; STORAGE_FAILED when there is nothing to read.
    """
    import asyncio

    from secagg.server.admin.channel import NoAdminSocketError, admin_socket_of

    try:
        return ask(given, name, **arguments)
    except NoAdminSocketError:
        settings = settings_of(given)
    return asyncio.run(_stored(settings, admin_socket_of(settings), name, arguments))


async def _stored(
    settings: "HostSettings", socket: Path, name: str, arguments: dict[str, object]
) -> dict[str, Any]:
    from secagg.errors import ErrorCode, ServiceError
    from secagg.storage.reader import StoreInUseError, looking

    server = settings.server
    try:
        async with looking(server.state_dir, store=server.store) as store:
            # What makes answers is loaded where there is a store to read.
            from secagg.server.admin.operations import Sources, operation_of

            sources = Sources(store, server.state_dir)
            return await operation_of(name).call(sources, arguments)
    except StoreInUseError:
        raise ServiceError(
            f"an aggregator has {server.state_dir} open, but answers no commands at "
            f"{socket}",
            code=ErrorCode.UNREACHABLE,
            next_step="It may be starting: try again. With --until-done it takes no "
            "commands; else both must name the same server.admin_socket.",
        ) from None
