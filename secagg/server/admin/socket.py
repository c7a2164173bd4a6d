"""The aggregator's side of an operator's commands: a socket of this machine.

Rule 1: it is opened when the book is open, which one process holds at a time: so
        whatever lies at its path is left over, and may be removed.
Rule 2: what a command asks is answered or refused with a code; nothing that a caller
        sends ends the process.
Rule 3: a caller has a moment to say what it wants, and another to take each answer;
        there are few callers at a time.
"""

import asyncio
import logging
import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from secagg.config import task_from_document
from secagg.errors import ErrorCode, InternalError, SecAggError, ServiceError
from secagg.protocol.rounds import ROUNDS
from secagg.runtime import log_events as telemetry
from secagg.server.admin.channel import read_message, short_path, write_message
from secagg.server.admin.snapshot import StatusSnapshot
from secagg.server.admin.views import (
    MAX_LISTED,
    View,
    budgets_view,
    find_task,
    sessions_view,
    show_session,
    task_view,
    tasks_view,
)
from secagg.server.http.connection_tasks import ConnectionTasks
from secagg.server.operated_server import OperatedServer
from secagg.server.session.progress import SessionPhase, SessionProgress
from secagg.server.session.report import reports_in
from secagg.server.supervisor import TaskSupervisor
from secagg.storage.change import Role
from secagg.storage.rows import TaskRow
from secagg.storage.store import Store

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

_CALLERS_AT_MOST: Final = 16
_REQUEST_SECONDS: Final = 10.0
# A caller of this machine that was suspended gives its place to others.
_TAKING_SECONDS: Final = 30.0
_ROOT: Final = 0

_Verb = Callable[["_Arguments"], Awaitable[View]]


class AdminSocket:
    """Answers an operator's commands; use it as an asynchronous context manager.

    Args:
        path: Of the socket.
        server: Open.
        keeper: Of its tasks.
        state_dir: Of the server, whose disk is watched.
        finish: Ends the process: as soon as it can, or when the sessions under way are
            over.
    """

    def __init__(
        self,
        path: Path,
        server: OperatedServer,
        keeper: TaskSupervisor,
        *,
        state_dir: Path,
        finish: Callable[[bool], None],
    ) -> None:
        self._path = path
        self._server = server
        self._keeper = keeper
        self._state_dir = state_dir
        self._finish = finish
        self._overview = StatusSnapshot(server, state_dir)
        self._callers = ConnectionTasks()
        self._listener: asyncio.AbstractServer | None = None
        self._verbs: Mapping[str, _Verb] = {
            "status": self._status,
            "task.add": self._add,
            "task.apply": self._apply,
            "task.list": self._list_tasks,
            "task.show": self._show_task,
            "task.pause": self._pause,
            "task.resume": self._resume,
            "task.stop": self._stop,
            "session.list": self._list_sessions,
            "session.show": self._show_session,
            "session.abort": self._abort,
            "budget": self._budget,
            "drain": self._drain,
        }

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ServiceError: STORAGE_FAILED; the socket cannot be made.  BAD_SETTINGS;
                something else lies at its path.
        """
        try:
            self._remove_old()
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with short_path(self._path) as place:
                bound.bind(place)
            # Nobody can connect before somebody listens.
            self._path.chmod(0o600)
            self._listener = await asyncio.start_unix_server(self._meet, sock=bound)
        except OSError as error:
            raise ServiceError(
                f"the socket {self._path} cannot be made: {error.strerror}",
                code=ErrorCode.STORAGE_FAILED,
                next_step="Check the directory, or set server.admin_socket.",
            ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        """Listen no more, and let callers go."""
        if self._listener is not None:
            self._listener.close()
        await self._callers.let_go()
        with suppress(OSError):
            self._path.unlink()

    def _remove_old(self) -> None:
        """Remove the socket of a process that was killed, and nothing else."""
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise ServiceError(
                f"{self._path} exists, and is no socket",
                code=ErrorCode.BAD_SETTINGS,
                next_step="Set server.admin_socket to another path.",
            )
        self._path.unlink()

    # --- callers ----------------------------------------------------------------------

    def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._callers.begin(self._serve(reader, writer))

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
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
                raise ServiceError(
                    "too many commands at once",
                    code=ErrorCode.OVERLOADED,
                    next_step="Wait for the others.",
                )
            # Not `wait_for`, here and below: it forgets a cancellation that comes
            # together with what is waited for, and a watch has no end of its own.
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = await read_message(reader)
            if request is not None:
                await self._answer(request, reader, writer)
        except SecAggError as error:
            await _refuse(writer, None, error)
        except (OSError, TimeoutError):
            pass  # the caller has gone, or says nothing
        finally:
            writer.close()

    async def _answer(
        self,
        request: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        number, verb = request.get("id"), str(request.get("verb"))
        try:
            arguments = _Arguments(request.get("args"))
            if verb == "session.watch":
                await self._watch(number, arguments, reader, writer)
                return
            data = await self._verbs.get(verb, _unknown)(arguments)
            await _send(writer, {"id": number, "ok": True, "data": data})
        except SecAggError as error:
            await _refuse(writer, number, error)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - ours, and no session ends by it
            telemetry.log_defect(_LOG, telemetry.CALL_FAILED, verb=verb)
            await _refuse(
                writer,
                number,
                InternalError(
                    f"internal error: {type(error).__name__}",
                    next_step="Please report it with the aggregator's log.",
                ),
            )

    async def _watch(
        self,
        number: object,
        arguments: "_Arguments",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Tell of every change of a session until the caller goes."""
        task = arguments.text_or_none("task")

        async def tell() -> None:
            # The first change may take hours; whoever watches is heard at once.
            await _send(writer, {"id": number, "ok": True, "more": True, "data": {}})
            open_now = (live.progress for live in self._server.live())
            async for progress in self._server.progress(open_now):
                if task is None or progress.task_id == task:
                    await _send(
                        writer,
                        {
                            "id": number,
                            "ok": True,
                            "more": True,
                            "data": _progress_view(progress),
                        },
                    )

        telling = asyncio.ensure_future(tell())
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (telling, leaving):
                each.cancel()
            await asyncio.gather(telling, leaving, return_exceptions=True)

    # --- verbs ------------------------------------------------------------------------

    @property
    def _store(self) -> Store:
        return self._server.storage.store

    async def _status(self, _: "_Arguments") -> View:
        return await self._overview.status()

    async def _add(self, arguments: "_Arguments") -> View:
        settings = task_from_document(
            arguments.table("settings"), origin=arguments.text("origin")
        )
        return await self._told(await self._keeper.add(settings))

    async def _apply(self, arguments: "_Arguments") -> View:
        settings = task_from_document(
            arguments.table("settings"), origin=arguments.text("origin")
        )
        return await self._told(
            await self._keeper.apply(
                settings, expect_version=arguments.number_or_none("version")
            )
        )

    async def _list_tasks(self, _: "_Arguments") -> View:
        server = self._server
        return {
            "tasks": await tasks_view(
                self._store, server.live, server.pending_writes.refused
            )
        }

    async def _show_task(self, arguments: "_Arguments") -> View:
        return await self._told(await find_task(self._store, arguments.text("task")))

    async def _pause(self, arguments: "_Arguments") -> View:
        return await self._told(
            await self._keeper.pause(
                arguments.text("task"),
                reason=arguments.text("reason"),
                expect_version=arguments.number_or_none("version"),
            )
        )

    async def _resume(self, arguments: "_Arguments") -> View:
        return await self._told(
            await self._keeper.resume(
                arguments.text("task"),
                expect_version=arguments.number_or_none("version"),
            )
        )

    async def _stop(self, arguments: "_Arguments") -> View:
        return await self._told(
            await self._keeper.stop(
                arguments.text("task"),
                reason=arguments.text("reason"),
                expect_version=arguments.number_or_none("version"),
            )
        )

    async def _told(self, row: TaskRow) -> View:
        running = await self._store.sessions(role=Role.SERVER, task=row.task.task_id)
        server = self._server
        return task_view(row, running, server.live(), server.pending_writes.refused)

    async def _list_sessions(self, arguments: "_Arguments") -> View:
        return {
            "sessions": await sessions_view(
                self._store,
                task=arguments.text_or_none("task"),
                since=arguments.number_or_none("since"),
                outcome=arguments.text_or_none("outcome"),
                limit=arguments.number_or_none("limit") or MAX_LISTED,
                live=self._server.live,
            )
        }

    async def _show_session(self, arguments: "_Arguments") -> View:
        return await show_session(
            self._store,
            arguments.text("task"),
            arguments.number("number"),
            self._server.live,
            reports=reports_in(self._state_dir),
        )

    async def _abort(self, arguments: "_Arguments") -> View:
        task_id, number = arguments.text("task"), arguments.number("number")
        for live in self._server.live():
            progress = live.progress
            if (progress.task_id, progress.session_number) == (task_id, number):
                await self._server.abort_session(
                    progress.session_id, arguments.text("reason")
                )
                return {"task": task_id, "number": number, "outcome": "CANCELLED"}
        raise ServiceError(
            f"session {number} of task {task_id!r} does not run",
            code=ErrorCode.UNKNOWN_SESSION,
            next_step="`secagg sessions list` shows those that do.",
        )

    async def _budget(self, arguments: "_Arguments") -> View:
        wanted = arguments.text_or_none("task")
        views = await budgets_view(self._store, self._state_dir, task=wanted)
        return {"role": "server", "budgets": views}

    async def _drain(self, arguments: "_Arguments") -> View:
        is_patient = arguments.flag("finish")
        self._finish(is_patient)
        return {"draining": True, "finishes_sessions": is_patient}


class _Arguments:
    """What a command says, checked as it is read."""

    def __init__(self, given: object) -> None:
        if not isinstance(given, dict):
            raise _bad("args is no object")
        self._given: dict[str, object] = given

    def text(self, name: str) -> str:
        value = self._given.get(name)
        if not isinstance(value, str):
            raise _bad(f"{name} is no text")
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self._given.get(name) is None else self.text(name)

    def number(self, name: str) -> int:
        value = self._given.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise _bad(f"{name} is no whole number")
        return value

    def number_or_none(self, name: str) -> int | None:
        return None if self._given.get(name) is None else self.number(name)

    def flag(self, name: str) -> bool:
        return self._given.get(name) is True

    def table(self, name: str) -> dict[str, object]:
        value = self._given.get(name)
        if not isinstance(value, dict):
            raise _bad(f"{name} is no object")
        return value


async def _unknown(_: _Arguments) -> View:
    raise _bad("there is no such verb")


def _may_call(caller: socket.socket) -> bool:
    """Whether it is our own user or root that calls, where the system says who."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True  # the mode of the socket's file decides alone
    size = struct.calcsize("3i")
    found = caller.getsockopt(socket.SOL_SOCKET, option, size)
    _, user, _ = struct.unpack("3i", found)
    return user in (_ROOT, os.geteuid())


def _progress_view(progress: SessionProgress) -> View:
    is_over = progress.phase in (SessionPhase.COMPLETED, SessionPhase.ABORTED)
    return {
        "task": progress.task_id,
        "number": progress.session_number,
        "session_id": progress.session_id.hex(),
        "phase": str(progress.phase),
        "round": ROUNDS[progress.round].title,
        "joined": progress.joined,
        "needed": progress.needed,
        "answered": progress.answered,
        "expected": progress.expected,
        "lost": [lost.identity for lost in progress.dropped],
        "reason": progress.reason,
        "is_over": is_over,
    }


async def _send(writer: asyncio.StreamWriter, message: View) -> None:
    """Write an answer.

    Raises:
        OSError: The caller has gone, or takes nothing, and was let go.
    """
    try:
        async with asyncio.timeout(_TAKING_SECONDS):
            await write_message(writer, message)
    except TimeoutError:
        # What is still to be written would keep the connection open for ever.
        writer.transport.abort()
        raise


async def _refuse(
    writer: asyncio.StreamWriter, number: object, error: SecAggError
) -> None:
    with suppress(OSError):
        await _send(
            writer,
            {
                "id": number,
                "ok": False,
                "error": {
                    "code": int(error.code),
                    "message": str(error),
                    "next_step": error.next_step,
                },
            },
        )


def _bad(complaint: str) -> ServiceError:
    return ServiceError(
        f"the command cannot be understood: {complaint}",
        code=ErrorCode.BAD_INPUT,
        next_step="Use the command of the same release as the aggregator.",
    )
