"""The aggregator's side of an operator's commands: a socket of this machine.

Rule 1: what lies at the path is removed only if it is a socket that a killed process
        left. One that answers belongs to another aggregator, which keeps it.
Rule 2: a command is answered or refused with a code; nothing that a caller sends ends
        the process.
Rule 3: a caller has limited time to send its request, and to receive each answer; the
        number of callers is limited.
"""

import asyncio
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from secagg.errors import ErrorCode, SecAggError
from secagg.runtime import log_events as telemetry
from secagg.server.admin.channel import (
    read_message,
    refuse_no_socket,
    short_path,
    write_message,
)
from secagg.server.admin.operations import (
    ServedAggregator,
    ServerControl,
    Sources,
    TaskControl,
    View,
    operation_of,
    read_arguments,
)
from secagg.server.admin.snapshot import StatusSnapshot
from secagg.server.http.listener import ConnectionTasks

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

_CALLERS_AT_MOST: Final = 16
_REQUEST_SECONDS: Final = 10.0
# A suspended caller of this machine loses its connection to later ones.
_TAKING_SECONDS: Final = 30.0
_ROOT: Final = 0


class AdminSocket:
    """Answers an operator's commands; use it as an asynchronous context manager.

    Args:
        path: Path of the socket.
        server: The open server.
        tasks: Changes its tasks.
        state_dir: State directory of the server, whose disk is monitored.
        finish: Ends the process: at once, or when the open sessions are over.
    """

    def __init__(
        self,
        path: Path,
        server: ServedAggregator,
        tasks: TaskControl,
        *,
        state_dir: Path,
        finish: Callable[[bool], None],
    ) -> None:
        self._path = path
        self._snapshot = StatusSnapshot(server, state_dir)
        self._control = ServerControl(server, tasks, finish)
        self._callers = ConnectionTasks()
        self._listener: asyncio.AbstractServer | None = None

    @property
    def _sources(self) -> Sources:
        return self._snapshot.sources(self._control)

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ServiceError: STORAGE_FAILED; the socket cannot be made.  BAD_SETTINGS;
                another file lies at its path, or another aggregator listens there.
        """
        try:
            refuse_no_socket(self._path)
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with short_path(self._path) as place:
                _refuse_in_use(place, self._path)
                self._path.unlink(missing_ok=True)
                bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                bound.bind(place)
            # No client can connect before the socket listens.
            self._path.chmod(0o600)
            self._listener = await asyncio.start_unix_server(
                self._begin_connection, sock=bound
            )
        except OSError as error:
            raise ErrorCode.STORAGE_FAILED.error(
                f"the socket {self._path} cannot be made: {error.strerror}",
                fix="Check the directory, or set server.admin_socket.",
            ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening, and close all connections."""
        # While it listens no other aggregator takes the path (rule 1); later one may.
        with suppress(OSError):
            self._path.unlink()
        if self._listener is not None:
            self._listener.close()
        await self._callers.cancel_all()

    # --- callers ----------------------------------------------------------------------

    def _begin_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve a connection beside the others."""
        self._callers.begin(self._serve_connection(reader, writer))

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Read one request of a connection and answer it."""
        try:
            if not _may_call(writer.get_extra_info("socket")):
                telemetry.log_event(
                    _LOG,
                    logging.WARNING,
                    telemetry.ADMIN_REQUEST_REJECTED,
                    reason="another user",
                )
                return
            if len(self._callers) > _CALLERS_AT_MOST:
                raise ErrorCode.OVERLOADED.error(
                    "too many commands at once",
                    fix="Try again when the other commands have ended.",
                )
            # `wait_for` is not used, here and below: it loses a cancellation that
            # coincides with the awaited event. A watch has no end of its own.
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = await read_message(reader)
            if request is not None:
                await self._answer_request(request, reader, writer)
        except SecAggError as error:
            await _send_error(writer, error)
        except (OSError, TimeoutError):
            pass  # the caller has gone, or sends nothing
        finally:
            writer.close()

    async def _answer_request(
        self,
        request: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Answer one request, or send the error of its operation."""
        verb = str(request.get("verb"))
        try:
            operation, given = operation_of(verb), request.get("args")
            if operation.changes is not None:
                arguments = read_arguments(operation.arguments, given)
                changes = operation.changes(self._sources, arguments)
                await self._follow_changes(changes, reader, writer)
                return
            data = await operation.call(self._sources, given)
            await _send_answer(writer, {"ok": True, "data": data})
        except SecAggError as error:
            await _send_error(writer, error)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - a defect of the aggregator ends no session
            telemetry.log_defect(_LOG, telemetry.CALL_FAILED, verb=verb)
            await _send_error(
                writer,
                ErrorCode.INTERNAL.error(
                    f"internal error: {type(error).__name__}",
                    fix="Please report it with the aggregator's log.",
                ),
            )

    async def _follow_changes(
        self,
        changes: AsyncIterator[View],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Send every change until the caller goes."""

        async def tell() -> None:
            # The first change may take hours; the caller gets an answer at once.
            await _send_answer(writer, {"ok": True, "more": True, "data": {}})
            async for change in changes:
                await _send_answer(writer, {"ok": True, "more": True, "data": change})

        telling = asyncio.ensure_future(tell())
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (telling, leaving):
                each.cancel()
            await asyncio.gather(telling, leaving, return_exceptions=True)


def _refuse_in_use(place: str, path: Path) -> None:
    """Refuse a path at which another process listens; its commands would come here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)  # one with a long queue does not answer at once
        try:
            probe.connect(place)
        except (FileNotFoundError, ConnectionRefusedError):
            return
        except BlockingIOError:
            pass
    raise ErrorCode.BAD_SETTINGS.error(
        f"another process listens at {path}",
        fix="Give each aggregator a server.admin_socket of its own.",
    )


def _may_call(caller: socket.socket) -> bool:
    """Whether the caller is this process's user or root, if the system says so."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True  # the mode of the socket's file decides alone
    size = struct.calcsize("3i")
    found = caller.getsockopt(socket.SOL_SOCKET, option, size)
    _, user, _ = struct.unpack("3i", found)
    return user in (_ROOT, os.geteuid())


async def _send_answer(writer: asyncio.StreamWriter, message: View) -> None:
    """Write an answer.

    Raises:
        OSError: The caller has gone, or reads nothing, and was disconnected.
    """
    try:
        async with asyncio.timeout(_TAKING_SECONDS):
            await write_message(writer, message)
    except TimeoutError:
        # Unwritten bytes would keep the connection open for ever.
        writer.transport.abort()
        raise


async def _send_error(writer: asyncio.StreamWriter, error: SecAggError) -> None:
    """Send an error as the answer; a caller that is gone gets none."""
    with suppress(OSError):
        await _send_answer(
            writer,
            {
                "ok": False,
                "error": {
                    "code": int(error.code),
                    "message": str(error),
                    "next_step": error.next_step,
                },
            },
        )
