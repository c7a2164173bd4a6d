"""How commands find an aggregator: over its socket, or in the book that it left.

Rule 1: an aggregator that runs is asked; the book of one that does not is read, and
        the views are the same (`secagg.server.admin.views`).
Rule 2: what changes anything takes an aggregator that runs.
"""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from secagg.config import HostSettings
    from secagg.storage.reader import StoreReader


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


def ask(
    given: Path | None, verb: str, arguments: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Ask the aggregator that runs.

    Raises:
        SecAggError: What it answers, or UNREACHABLE when none runs.
    """
    import asyncio

    from secagg.server.admin.channel import admin_socket_of, call_admin

    settings = settings_of(given)
    return asyncio.run(call_admin(admin_socket_of(settings), verb, arguments))


def look(
    given: Path | None,
    verb: str,
    arguments: Mapping[str, object],
    read: "Callable[[StoreReader], Awaitable[dict[str, Any]]]",
) -> dict[str, Any]:
    """Ask the aggregator if it runs, else read its book.

    Args:
        given: What `--config` says.
        verb: What to ask.
        arguments: With what.
        read: Makes the same answer from the book.

    Raises:
        SecAggError: What it answers; STORAGE_FAILED when there is nothing to read.
    """
    import asyncio

    from secagg.errors import ErrorCode, ServiceError
    from secagg.server.admin.channel import (
        NoAdminSocketError,
        admin_socket_of,
        call_admin,
    )

    settings = settings_of(given)
    socket = admin_socket_of(settings)
    try:
        return asyncio.run(call_admin(socket, verb, arguments))
    except NoAdminSocketError:
        pass
    # What reads a book is loaded where there is one to read.
    from secagg.storage.reader import StoreInUseError, looking

    server = settings.server

    async def copied() -> dict[str, Any]:
        async with looking(server.state_dir, store=server.store) as reader:
            return await read(reader)

    try:
        return asyncio.run(copied())
    except StoreInUseError:
        raise ServiceError(
            f"an aggregator has {server.state_dir} open, but answers no commands at "
            f"{socket}",
            code=ErrorCode.UNREACHABLE,
            next_step="It may be starting: try again. With --until-done it takes no "
            "commands; else both must name the same server.admin_socket.",
        ) from None
