"""How an operator's command talks to an aggregator on the same machine.

A message is a u32 of its length and that many bytes of JSON.  A command sends `{"verb",
"args"}`, one over each connection. The answer is `{"ok": true, "data"}` or `{"ok":
false, "error"}`. A verb that watches sends many answers with `"more": true`, the first
at once and without data.

Rule 1: a caller that may connect may do everything. The socket's file is for its owner
        and root alone, and where the system identifies the caller, other users are
        refused.
Rule 2: lengths are checked before anything is read.
"""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.runtime.files import disk

if TYPE_CHECKING:
    from secagg.config.server import HostSection


MAX_MESSAGE_BYTES: Final = 64 << 20
"""A task that invites 65535 clients by name, or a session that names each of them a few
times, with names of 255 bytes."""

_ADMIN_SOCKET: Final = "admin.sock"
_LENGTH_BYTES: Final = 4
# Longest path in a socket address; Linux allows 107, other systems a little less.
_MAX_PATH_BYTES: Final = 100
# Adding a task plans its noise, which may take minutes; every other verb is instant.
_ANSWER_SECONDS: Final = 900.0


def admin_socket_of(server: "HostSection") -> Path:
    """Return where an aggregator listens for its operator."""
    return (server.admin_socket or server.state_dir / _ADMIN_SOCKET).absolute()


def refuse_no_socket(path: Path) -> None:
    """Refuse a path at which something else than a socket exists.

    Raises:
        ServiceError: BAD_SETTINGS; STORAGE_FAILED where this user may not read the
            directory.
    """
    with disk(path):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return
    if not stat.S_ISSOCK(mode):
        raise ErrorCode.BAD_SETTINGS.error(
            f"{path} exists and is not a socket",
            fix="Set server.admin_socket to another path.",
        )


class NoAdminSocketError(ServiceError):
    """Reports that no aggregator listens at a socket."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"no aggregator answers at {path}",
            code=ErrorCode.UNREACHABLE,
            next_step="Start it with the same settings file: `secagg server`, or "
            "`secagg two-aggregators`.",
        )


async def call_admin(
    path: Path, verb: str, arguments: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Send a request to an aggregator of this machine, and return its answer.

    Args:
        path: Path of its socket.
        verb: The operation.
        arguments: The arguments of the operation.

    Raises:
        NoAdminSocketError: No aggregator listens there.
        SecAggError: The error that the aggregator answered, with its code.
    """
    async for answer in watch_admin(path, verb, arguments):
        return answer
    raise _no_answer_error(path)


async def watch_admin(
    path: Path, verb: str, arguments: Mapping[str, object] | None = None
) -> AsyncIterator[dict[str, Any]]:
    """Send a request to an aggregator of this machine, and yield all its answers.

    A verb that watches answers at once, without data: changes may take hours.

    Raises:
        NoAdminSocketError: No aggregator listens there.
        SecAggError: The error that the aggregator answered, with its code.
    """
    try:
        with short_path(path) as place:
            reader, writer = await asyncio.open_unix_connection(place)
    except PermissionError:
        raise ErrorCode.UNAUTHENTICATED.error(
            f"this user may not use the socket {path}",
            kind=ServiceError,
            fix="Run the command as the user that runs the aggregator, or root.",
        ) from None
    except OSError:
        raise NoAdminSocketError(path) from None
    try:
        await write_message(writer, {"verb": verb, "args": dict(arguments or {})})
        is_first = True
        while True:
            async with asyncio.timeout(_ANSWER_SECONDS if is_first else None):
                answer = await read_message(reader)
            if answer is None:
                if is_first:
                    raise _no_answer_error(path)
                return
            is_first = False
            if not answer.get("ok"):
                raise _error_of(answer.get("error"))
            data = answer.get("data")
            yield data if isinstance(data, dict) else {}
            if not answer.get("more"):
                return
    except (ConnectionError, TimeoutError):
        raise _no_answer_error(path) from None
    finally:
        writer.transport.abort()


async def read_message(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Read one message; None at the end of the stream.

    Raises:
        ServiceError: BAD_INPUT; the message is too long, or not a JSON object.
    """
    try:
        head = await reader.readexactly(_LENGTH_BYTES)
        size = int.from_bytes(head, "big")
        if size > MAX_MESSAGE_BYTES:
            raise _malformed(f"a message of {size} bytes is too long")
        data = await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        return None
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        raise _malformed("a message is not JSON") from None
    if not isinstance(message, dict):
        raise _malformed("a message is not a JSON object")
    return message


async def write_message(
    writer: asyncio.StreamWriter, message: Mapping[str, object]
) -> None:
    """Write one message.

    Raises:
        ServiceError: BAD_INPUT; the message is too long.
    """
    data = json.dumps(message).encode()
    if len(data) > MAX_MESSAGE_BYTES:
        raise _malformed(f"a message of {len(data)} bytes is too long")
    writer.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    await writer.drain()


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Return a path of a socket that fits into a socket address.

    A path that is too long is reached through its open directory, on systems that name
    open files under /proc.

    Raises:
        ServiceError: BAD_SETTINGS; the path is too long for this system.
        OSError: The directory cannot be opened.
    """
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield str(path)
        return
    if not Path("/proc/self/fd").is_dir():
        raise ErrorCode.BAD_SETTINGS.error(
            f"the path of the socket {path} is too long for this system",
            fix="Set server.admin_socket to a shorter one.",
        )
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _error_of(found: object) -> SecAggError:
    """Return the error that the aggregator answered with."""
    fields = found if isinstance(found, dict) else {}
    try:
        code = ErrorCode(int(fields.get("code", 0)))
    except (ValueError, TypeError):
        code = ErrorCode.INTERNAL
    return code.error(
        str(fields.get("message", "the aggregator answered with an error")),
        kind=ServiceError,
        fix=str(fields.get("next_step", "")),
    )


def _no_answer_error(path: Path) -> SecAggError:
    """Return the error of an aggregator that did not answer."""
    return ErrorCode.UNREACHABLE.error(
        f"the aggregator at {path} did not answer",
        fix="Read its log; the operation may have been carried out.",
    )


def _malformed(complaint: str) -> ServiceError:
    """Return the error of a message that is malformed."""
    return ErrorCode.BAD_INPUT.error(
        complaint,
        kind=ServiceError,
        fix="Use the command of the same release as the aggregator.",
    )
