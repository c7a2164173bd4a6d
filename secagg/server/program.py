"""The aggregator process: settings, certificates, storage and transport, put together.

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
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from secagg.config import ServerSettings, end_of_task
from secagg.errors import ErrorCode, ServiceError
from secagg.messages import Released
from secagg.runtime.clock import SystemClock
from secagg.runtime.workers import Workers
from secagg.server.aggregator import Aggregator
from secagg.server.grpc_server import GrpcServer, run_until_signalled
from secagg.server.limits import AggregatorLimits
from secagg.server.mask_executor import MaskExecutor
from secagg.server.patience import until
from secagg.server.progress import SessionProgress
from secagg.server.receipt import SessionReceipt
from secagg.server.task import NextPayload, OnSum, TaskDefinition
from secagg.server.task_setup import PreparedTask
from secagg.storage.book import Book, SessionState
from secagg.storage.book import Role as BookRole
from secagg.storage.open_book import open_state
from secagg.storage.spool import UploadSpool
from secagg.transport.address import Address
from secagg.transport.identity import Role
from secagg.transport.tls import TLSIdentity

__all__ = ["Observer", "ServedTask", "opened_book", "serve"]

# A client polls a few times a minute at most.  A server that is started again only for
# those that missed the last sum waits no longer for them.
_SETTLE_SECONDS: Final = 15.0


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


@asynccontextmanager
async def opened_book(settings: ServerSettings) -> AsyncIterator[Book]:
    """Open the server's durable book, and close it in the end.

    Raises:
        ServiceError: STORAGE_FAILED or STATE_DAMAGED.
    """
    book = await open_state(settings.server.state_dir)
    try:
        yield book
    finally:
        await book.close()


async def serve(  # noqa: PLR0913 - the parts of one process
    settings: ServerSettings,
    prepared: PreparedTask,
    book: Book,
    *,
    next_payload: NextPayload,
    on_sum: OnSum,
    observer: Observer,
) -> ServedTask:
    """Run the task of `settings` to its end.

    Args:
        settings: Where to listen, where to store, whom to invite.
        prepared: Parameters of the sessions, from `settle_task`.
        book: From `opened_book`.
        next_payload: Called before each session with the number of sums so far, those
            of earlier processes included.
        on_sum: Called with each sum; repeated with the same session after a crash.
        observer: Told what happens.

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
    address = Address.parse(settings.server.listen)
    identity = TLSIdentity.load(
        certificate=settings.tls.certificate,
        private_key=settings.tls.key,
        authority=settings.tls.ca,
        role=Role.SERVER,
    )
    spool = UploadSpool(settings.server.state_dir / "spool")
    released = await _sums_released(book, settings.task.id)
    missing = max(0, settings.task.sessions - released)
    spent = f"task {settings.task.id!r} has released its {released} sums"
    keep_seconds = settings.server.keep_seconds
    if not missing:
        keep_seconds = min(keep_seconds, _SETTLE_SECONDS)
        observer.nothing_to_do(
            f"{spent}; waiting at most {keep_seconds:g} seconds for clients "
            "that missed the last one"
        )
    noised = prepared.noised
    served = await _serve(
        settings,
        TaskDefinition(
            task_id=settings.task.id,
            parameters=prepared.parameters,
            invited=frozenset(settings.task.invited) or None,
            sessions=missing,
            allowed=None if noised is None else noised.budget.sessions,
            max_attempts=settings.task.attempts,
        ),
        address=address,
        identity=identity,
        book=book,
        spool=spool,
        next_payload=lambda count: next_payload(released + count),
        on_sum=on_sum,
        observer=observer,
        keep_seconds=keep_seconds,
    )
    if not missing:
        raise ServiceError(
            f"{spent}; its budget is spent",
            code=ErrorCode.TASK_OVER,
            next_step="Choose a new task.id for a new series of sums.",
        )
    return served


async def _serve(  # noqa: PLR0913 - the parts of one process
    settings: ServerSettings,
    task: TaskDefinition,
    *,
    address: Address,
    identity: TLSIdentity,
    book: Book,
    spool: UploadSpool,
    next_payload: NextPayload,
    on_sum: OnSum,
    observer: Observer,
    keep_seconds: float,
) -> ServedTask:
    workers, cores = Workers(), os.cpu_count() or 1
    with ThreadPoolExecutor(cores, "secagg-masks") as mask_threads:
        aggregator = Aggregator(
            book,
            spool,
            workers=workers,
            masks=MaskExecutor(mask_threads, workers, parts=cores),
            limits=AggregatorLimits(keep_seconds=settings.server.keep_seconds),
        )
        watching = asyncio.create_task(_watch(aggregator, observer))
        running: asyncio.Task[tuple[SessionReceipt, ...]] | None = None
        ending: asyncio.Task[None] | None = None
        try:
            await aggregator.recover()
            running = asyncio.create_task(
                aggregator.run_task(task, next_payload=next_payload, on_sum=on_sum)
            )
            await asyncio.sleep(0)  # the task is known before anybody can ask for it
            ending = asyncio.create_task(_end_in_time(settings, aggregator))
            health = settings.server.health_listen
            server = await GrpcServer.start(
                aggregator,
                address,
                identity=identity,
                health_address=None if health is None else Address.parse(health),
            )
            is_complete = await run_until_signalled(
                server,
                _finish(
                    aggregator,
                    running,
                    lambda: observer.listening(server.address),
                    keep_seconds=keep_seconds,
                ),
                drain=lambda: _drain(aggregator),
                grace_seconds=settings.server.drain_seconds,
            )
            receipts = running.result() if is_complete else ()
            return ServedTask(receipts, is_complete)
        finally:
            for each in (ending, running):
                if each is not None:
                    each.cancel()
                    await asyncio.wait({each})
            await aggregator.close()
            await watching


async def _finish(
    aggregator: Aggregator,
    running: asyncio.Task[tuple[SessionReceipt, ...]],
    announce: Callable[[], None],
    *,
    keep_seconds: float,
) -> None:
    announce()  # now, and not before, a signal drains
    await asyncio.wait({running})  # a signal that ends this wait skips the settling
    if not running.cancelled() and isinstance(running.exception(), ServiceError):
        # The session is not over; it goes on after a restart, which must not wait.
        keep_seconds = min(keep_seconds, _SETTLE_SECONDS)
    await aggregator.settle(at_most_seconds=keep_seconds)
    await running


async def _end_in_time(settings: ServerSettings, aggregator: Aggregator) -> None:
    """End the task at its end date, if it has one."""
    moment = end_of_task(settings.task)
    if moment is not None:
        await until(
            moment,
            lambda: aggregator.end_task(
                settings.task.id, f"the end date of the task has come ({moment})"
            ),
            clock=SystemClock(),
        )


async def _drain(aggregator: Aggregator) -> None:
    aggregator.drain()


async def _watch(aggregator: Aggregator, observer: Observer) -> None:
    async for progress in aggregator.progress():
        observer.progress(progress)


async def _sums_released(book: Book, task_id: str) -> int:
    """Count the sums of a task that earlier processes released."""
    count = 0
    for row in await book.sessions(
        role=BookRole.SERVER, task=task_id, state=SessionState.ENDED
    ):
        stored = await book.load(row.key)
        if stored is not None and stored.receipt is not None:
            receipt = SessionReceipt.decode(stored.receipt)
            count += isinstance(receipt.outcome, Released)
    return count
