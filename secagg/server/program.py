"""One task as a process: settings become a `Server` that runs the task to its end.

For scripts, demos and examples; what runs for months is `secagg.server.service`.

Rule 1: everything that can be wrong before the first client comes is found before the
        port opens: settings, certificates, budget, storage.
Rule 2: a task that was interrupted goes on where it stood; sums that were released
        before count towards the number wanted, because they spent its budget.
Rule 3: a task that has all its sums is not run again, but a process that was killed
        right after the last one still owes its clients the outcome: the port opens
        until they have it.
Rule 4: the process ends by itself when the task is done and the clients know it, at the
        latest `server.keep_seconds` later, or when it is asked to; sessions that are
        still open then wait on the disk.
Rule 5: a task ends by its sums, its end date or its operator, never by clients that
        come too early.

What is printed is decided by whoever calls.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from secagg.config import HostSettings, ServerSettings, end_of_task
from secagg.errors import ErrorCode, InternalError, SecAggError, ServiceError
from secagg.pki.key_files import parse_key
from secagg.protocol.descriptor import SessionDescriptor
from secagg.runtime.clock import SystemClock
from secagg.runtime.garbage import keep_what_is_loaded
from secagg.server.http_edge.listener import (
    EdgeOptions,
    check_origins,
    edge_packages,
    host_of,
)
from secagg.server.released_sum import ReleasedSum
from secagg.server.rpc.grpc_server import run_until_signalled
from secagg.server.server import SETTLE_SECONDS, RunningTask, Server
from secagg.server.session.progress import SessionProgress
from secagg.server.session.receipt import SessionReceipt
from secagg.server.session.timeouts import until
from secagg.server.storage import open_storage
from secagg.server.task.setup import PreparedTask, settle_task
from secagg.storage.rows import Retention
from secagg.transport.address import Address
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity

_Server = TypeVar("_Server", bound=Server)


@dataclass(frozen=True, slots=True)
class Observer:
    """Who is told what happens.

    Attributes:
        listening: Called once with the address, when clients can connect.
        progress: Called with every change of a session.
        nothing_to_do: Called with a sentence when the task has all its sums and the
            port opens only for clients that missed the last one.
    """

    listening: Callable[[Address], None]
    progress: Callable[[SessionProgress], None]
    nothing_to_do: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServedTask:
    """What became of the task in this process.

    Attributes:
        receipts: Sessions that released a sum, in order.
        is_complete: Whether the task has all its sums; False after a signal.
    """

    receipts: tuple[SessionReceipt, ...]
    is_complete: bool


async def plan_task(
    settings: ServerSettings, *, accept_restored: bool = False
) -> PreparedTask:
    """Plan the task of `settings`, or recall what it was first planned to be.

    Args:
        settings: Of the server.
        accept_restored: Somebody accepts, this once, that the state may have been put
            back: sessions that are open in it end, and their inputs count as summed.

    Raises:
        ServiceError: BAD_SETTINGS, INFEASIBLE, STORAGE_FAILED, STATE_DAMAGED, or
            RESTORED_STATE for a state that was put back.
    """
    storage = await open_storage(
        settings.server.state_dir,
        store_url=settings.server.store,
        mark=settings.server.rollback_mark,
        accept_restored=accept_restored,
        blobs=settings.server.blobs,
    )
    try:
        return await settle_task(
            settings.own_task, storage.store, reports=settings.server.state_dir
        )
    finally:
        await storage.close()


async def serve(  # noqa: PLR0913 - who is told what, and what is run
    settings: ServerSettings,
    prepared: PreparedTask,
    *,
    on_sum: Callable[[ReleasedSum], Awaitable[None]],
    observer: Observer,
    on_aborted: Callable[[SessionDescriptor, bytes], Awaitable[None]] | None = None,
    payload: Callable[[int], bytes] | None = None,
) -> ServedTask:
    """Run the task of `settings` to its end.

    Args:
        settings: Where to listen, where to store, whom to invite.
        prepared: What the task runs, from `plan_task`.
        on_sum: Called with each sum; repeated with the same session after a crash.
        observer: Told what happens.
        on_aborted: As for `Server`.
        payload: As in `Server.add_task`.

    Returns:
        The sessions of this process.

    Raises:
        ServiceError: BAD_CERTIFICATE, PORT_IN_USE, STORAGE_FAILED, or TASK_OVER for a
            task that had released all its sums before; clients that had missed the
            last one were told it first.
        SessionAbortedError: Too many attempts at one sum failed; or the end date came
            first: ROSTER_TOO_SMALL if a session was waiting for clients, else
            TASK_OVER.
    """
    server = server_of(
        Server, settings.host, on_progress=observer.progress, on_aborted=on_aborted
    )
    async with server:
        keep_what_is_loaded()
        task = await server.add_task(
            settings.task.id,
            prepared,
            steps=settings.task.steps,
            payload=payload,
            invited=frozenset(settings.task.invited) or None,
            attempts=settings.task.attempts,
        )
        if server.transport is None:
            raise InternalError("a server with an address listens")
        is_over = task.released_before >= settings.task.steps
        spent = f"task {task.task_id!r} has released its {task.released_before} sums"
        if is_over:
            server.settle_seconds = min(server.settle_seconds, SETTLE_SECONDS)
            observer.nothing_to_do(
                f"{spent}; waiting at most {server.settle_seconds:g} seconds for "
                "clients that missed the last one"
            )
        receipts: list[SessionReceipt] = []

        async def take(released: ReleasedSum) -> None:
            await on_sum(released)
            receipts.append(released.receipt)

        ending = asyncio.create_task(_end_in_time(settings, server))
        try:
            is_complete = await run_until_signalled(
                server.transport,
                _finish(server, task, take, observer),
                drain=lambda: _drain(server),
                grace_seconds=settings.server.drain_seconds,
            )
        finally:
            ending.cancel()
            await asyncio.wait({ending})
        server.drain()  # the transport has stopped: nobody is waited for
        if is_over:
            raise ErrorCode.TASK_OVER.error(
                f"{spent}; its budget is spent",
                fix="Choose a new task.id for a new series of sums.",
            )
        return ServedTask(tuple(receipts), is_complete)


def server_of(
    kind: type[_Server],
    settings: HostSettings,
    *,
    accept_restored: bool = False,
    on_progress: Callable[[SessionProgress], None] | None = None,
    on_aborted: Callable[[SessionDescriptor, bytes], Awaitable[None]] | None = None,
) -> _Server:
    """Return the server that settings describe, not yet open.

    Args:
        kind: Its class.
        settings: Where to listen, where to store.
        accept_restored: As for `Server`.
        on_progress: As for `Server`.
        on_aborted: As for `Server`.

    Raises:
        ServiceError: BAD_CERTIFICATE or BAD_SETTINGS.
    """
    return kind(
        settings.server.listen,
        identity=TLSIdentity.load(
            certificate=settings.tls.certificate,
            private_key=settings.tls.key,
            authority=settings.tls.ca,
            role=Role.SERVER,
        ),
        state_dir=settings.server.state_dir,
        store=settings.server.store,
        engine=settings.server.engine,
        blobs=settings.server.blobs,
        rollback_mark=settings.server.rollback_mark,
        accept_restored=accept_restored,
        health_listen=settings.server.health_listen,
        admission=settings.admission.limits(),
        revoked=settings.server.revoked,
        edge=edge_options(settings),
        grace_seconds=settings.server.drain_seconds,
        keep_seconds=settings.server.keep_seconds,
        retention=Retention(
            keep_receipts_days=settings.server.keep_receipts_days,
            keep_receipts=settings.server.keep_receipts,
        ),
        on_progress=on_progress,
        on_aborted=on_aborted,
    )


def edge_options(settings: HostSettings) -> EdgeOptions | None:
    """Return what settings say of the HTTP edge; None without [edge].

    Raises:
        ServiceError: BAD_SETTINGS, naming the key that is missing or wrong; or
            MISSING_EXTRA.
    """
    edge, enrolment = settings.edge, settings.enrolment
    if edge.listen is None:
        return None
    edge_packages()
    if enrolment.enrolment_key is None:
        raise _incomplete(
            "enrolment.enrolment_key", "what `secagg pki enrol list` of the issuer says"
        )
    if edge.authority is None:
        raise _incomplete("edge.authority", "the host name by which clients call it")
    if edge.certificate is None or edge.private_key is None:
        key = "private_key" if edge.certificate else "certificate"
        raise _incomplete(f"edge.{key}", "a file of the certificate for that host name")
    Address.parse(edge.listen, name="edge.listen")
    host_of(edge.authority)
    check_origins(edge.origins)
    return EdgeOptions(
        listen=edge.listen,
        authority=edge.authority,
        certificate=edge.certificate,
        private_key=edge.private_key,
        trust_domain=enrolment.trust_domain,
        enrolment_key=parse_key(enrolment.enrolment_key),
        revocations=enrolment.revocations,
        origins=edge.origins,
        behind_proxy=edge.behind_proxy,
    )


def _incomplete(key: str, value: str) -> SecAggError:
    return ErrorCode.BAD_SETTINGS.error(
        f"{key} is missing, and edge.listen opens an HTTP edge",
        fix=f"Set it to {value}, or leave edge.listen out.",
    )


async def _finish(
    server: Server,
    task: RunningTask,
    on_sum: Callable[[ReleasedSum], Awaitable[None]],
    observer: Observer,
) -> None:
    observer.listening(server.address)  # now, and not before, a signal drains
    try:
        async for released in task.sums():
            await on_sum(released)
    except SecAggError as error:
        if isinstance(error, ServiceError):
            # The session is not over; it goes on after a restart, which must not wait.
            server.settle_seconds = min(server.settle_seconds, SETTLE_SECONDS)
        await server.settle()
        raise
    await server.settle()  # a signal that ends the loop skips this


async def _end_in_time(settings: ServerSettings, server: Server) -> None:
    """End the task at its end date, if it has one."""
    moment = end_of_task(settings.task)
    if moment is not None:
        await until(
            moment,
            lambda: server.end_task(
                settings.task.id, f"the end date of the task has come ({moment})"
            ),
            clock=SystemClock(),
        )


async def _drain(server: Server) -> None:
    server.drain()
