"""Access of commands to an aggregator: over its socket, or in the store that it left.

The answers are the same (`secagg.server.admin.operations`). An operation that changes
anything needs an aggregator that runs.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

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


def server_file(given: Path | None) -> Path:
    """Return the settings file of the aggregator that a command is about.

    Raises:
        ServiceError: BAD_SETTINGS; no file is named, and no usual place has one.
    """
    from secagg.errors import ErrorCode

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


def settings_of(given: Path | None) -> "HostSettings | PartySettings":
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


def ask(given: Path | None, name: str, /, **arguments: object) -> dict[str, Any]:
    """Have the running aggregator answer an operation.

    Args:
        given: What `--config` says.
        name: Of the operation.
        arguments: Of the operation.

    Raises:
        SecAggError: The error of the answer, or UNREACHABLE when no aggregator runs.
    """
    import asyncio

    from secagg.server.admin.channel import admin_socket_of, call_admin

    settings = settings_of(given)
    return asyncio.run(call_admin(admin_socket_of(settings.server), name, arguments))


def look(given: Path | None, name: str, /, **arguments: object) -> dict[str, Any]:
    """Have an aggregator answer an operation, or read its store if it stopped.

    Args:
        given: What `--config` says.
        name: Of the operation.
        arguments: Of the operation.

    Raises:
        SecAggError: The error of the answer; STORAGE_FAILED when no store exists.
    """
    import asyncio

    from secagg.server.admin.channel import NoAdminSocketError, admin_socket_of

    try:
        return ask(given, name, **arguments)
    except NoAdminSocketError:
        settings = settings_of(given)
    socket = admin_socket_of(settings.server)
    return asyncio.run(_stored(settings, socket, name, arguments))


async def _stored(
    settings: "HostSettings | PartySettings",
    socket: Path,
    name: str,
    arguments: dict[str, object],
) -> dict[str, Any]:
    """Answer an operation from the store of an aggregator that does not run."""
    from secagg.errors import ErrorCode
    from secagg.storage.open_store import StoreInUseError

    server = settings.server
    try:
        async with _views_of(settings) as views:
            # The modules that answer are loaded only where a store can be read.
            from secagg.server.admin.operations import Sources, operation_of

            sources = Sources(views, server.state_dir)
            return await operation_of(name).call(sources, arguments)
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
    from secagg.storage.open_store import looking

    server = settings.server
    if isinstance(settings, HostSettings):
        async with looking(server.state_dir, store=server.store) as store:
            from secagg.server.admin.views import StoreViews

            yield StoreViews(store, server.state_dir)
        return
    from secagg.two_aggregators.program import stored_views

    async with stored_views(settings) as views:
        yield views
