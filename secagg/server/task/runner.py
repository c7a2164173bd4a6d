"""Runs the sessions of one task, one after another, each until it has released a sum.

Rule 1: a session opens when the task's gate opens, unless one is open elsewhere. Each
        aggregator joins a session that another one has opened.
Rule 2: a session without a sum is followed by another attempt at the same sum, until
        the task's attempts are used up.
Rule 3: the runner waits for an unavailable store, and resumes after a fail-over of the
        store as after a restart.
Rule 4: a task that was ended opens no session.  A session that waits for clients ends
        with it, one that has its cohort continues.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from secagg.errors import ErrorCode, SessionAbortedError
from secagg.protocol.messages import Aborted, Released
from secagg.server.dependencies import ServerDependencies
from secagg.server.session.registry import SessionRegistry
from secagg.server.session.runner import SessionRunner
from secagg.server.session.state import log_refused, retrying
from secagg.server.task.definition import NextPayload, OnSum, TaskDefinition
from secagg.storage.change import Side
from secagg.storage.queries import ListSessions
from secagg.storage.rows import SessionState
from secagg.storage.store import StoreFailoverError, StoreUnavailableError

_Result = TypeVar("_Result")

# How long to wait for an operator's action that another aggregator has received.
_OVERTAKEN_SECONDS: Final = 1.0


class TaskRunner:
    """Runs one task.

    Args:
        task: The task.
        sessions: Opens, finds and closes its sessions.
        context: What all sessions of the aggregator share.
        stopping: Set when the aggregator opens no more sessions.
        wait_for_store: Waits until an unavailable store accepts writes again.
        offering: Called when a session can be offered.
        next_payload: Returns the payload of the next session; b"" for none.
        on_sum: Receives each sum.

    Attributes:
        task: The task.
    """

    def __init__(  # noqa: PLR0913 - a task, and all that its sessions need
        self,
        task: TaskDefinition,
        sessions: SessionRegistry,
        context: ServerDependencies,
        *,
        stopping: asyncio.Event,
        wait_for_store: Callable[[], Awaitable[None]],
        offering: Callable[[], None],
        next_payload: NextPayload,
        on_sum: OnSum,
    ) -> None:
        self.task: Final = task
        self._sessions = sessions
        self._store = context.store
        self._clock = context.clock
        self._stopping = stopping
        self._wait_for_store = wait_for_store
        self._offering = offering
        self._next_payload = next_payload
        self._on_sum = on_sum
        # Why the task was ended; None while it runs.
        self._ending: str | None = task.gate.ended

    async def end(self, reason: str) -> None:
        """Open no further session (rule 4).

        Args:
            reason: Why, in words for the clients.
        """
        self._ending = reason
        self.task.gate.wake()
        await self.stop_waiting(reason)

    async def stop_waiting(self, reason: str) -> None:
        """End the session that still waits for clients, if one does."""
        for runner in self._sessions.running(self.task.task_id):
            await runner.stop_waiting(reason)

    async def run(self) -> None:
        """Run sessions; after an outage or fail-over of the store, resume.

        A write that was in flight may be lost, and the open round needs its time again.

        Raises:
            SecAggError: See `Aggregator.run_task`.
        """
        while True:
            try:
                await self._run_sessions()
            except StoreUnavailableError as error:
                log_refused(error)
                await self._wait_for_store()
            except StoreFailoverError as error:
                log_refused(error)
                if not await self._resume_sessions():
                    raise  # a second attempt would fail, too
            else:
                return

    async def _resume_sessions(self) -> bool:
        """Resume the open sessions of the task, once the store is there."""
        while True:
            try:
                return await self._sessions.resume_sessions(self.task.task_id)
            except StoreUnavailableError:
                await self._wait_for_store()

    async def _run_sessions(self) -> None:
        """Run sessions until the task has its sums, or none may open any more."""
        task = self.task
        runner = await self._retrying(lambda: self._sessions.resumable(task))
        while True:
            sums = await self._sums_released()
            if task.sessions is not None and sums >= task.sessions:
                break
            if runner is None:
                await self._may_open()
                self._check_not_ended(sums)
                if self._stopping.is_set():
                    break
                payload = await self._next_payload(sums)
                if payload is None or self._stopping.is_set():
                    break
                if await self._sums_released() != sums:
                    await self._retrying(self._load_missed_sum)
                    continue
                runner = await self._open_session(payload, attempt=1)
            if runner is not None:
                payload_again = partial(self._next_payload, sums)
                await self._sum_from(runner, payload_again)
            runner = None
        if runner is not None:  # fewer sums are wanted than when it was opened
            await runner.abort(
                ErrorCode.CANCELLED,
                "the task has all its sums",
                discard_unmasked=True,
            )
            await self._sessions.close(runner)

    async def _retrying(self, call: Callable[[], Awaitable[_Result]]) -> _Result:
        """Read or write the store; retry for a while when it refuses."""
        return await retrying(self._clock, call)

    async def _load_missed_sum(self) -> None:
        """Load a sum of another aggregator that this process does not know."""
        latest = await self._store.read(
            ListSessions(
                role=Side.SERVER,
                task=self.task.task_id,
                state=SessionState.ALL,
                limit=1,
            )
        )
        if latest:
            self.task.gate.record_opened(latest[0].born)
            self.task.gate.record_sum()

    async def _sums_released(self) -> int:
        """Return how many sums the task has released, at all replicas."""
        task_id = self.task.task_id
        facts = await self._retrying(lambda: self._sessions.facts(task_id, newest=True))
        return facts.sums

    async def _open_session(
        self, payload: bytes, *, attempt: int
    ) -> SessionRunner | None:
        """Open a session, or find the one that another aggregator has opened.

        Returns:
            None when the task's history has changed: the caller starts again.
        """
        runner = self._open_elsewhere()
        if runner is None:
            runner = await self._retrying(
                lambda: self._open_one(payload, attempt=attempt)
            )
        if runner is None:
            await self._retrying(self._sessions.refresh)
            runner = self._open_elsewhere()
        if runner is None:  # a change that its supervisor is about to load
            await self._clock.sleep_until(self._clock.now() + _OVERTAKEN_SECONDS)
        return runner

    async def _open_one(self, payload: bytes, *, attempt: int) -> SessionRunner | None:
        """Continue an open session of the task, or open one here."""
        # An earlier attempt may have succeeded although the store refused.
        await self._sessions.load_sessions(self.task.task_id)
        found = self._open_elsewhere()
        if found is not None:
            return found
        if self._stopping.is_set():  # the stored one is of an earlier, refused attempt
            return None
        return await self._sessions.open(self.task, payload, attempt=attempt)

    def _open_elsewhere(self) -> SessionRunner | None:
        """Return the task's open session that this call of `_open_one` did not open.

        Return only a session that fits the task's definition here; a replica that knows
        another definition runs its own.
        """
        for runner in self._sessions.running(self.task.task_id):
            if runner.can_continue_under(self.task.parameters):
                self.task.gate.record_opened(runner.opened)
                return runner
        return None

    async def _sum_from(
        self,
        runner: SessionRunner,
        payload_again: Callable[[], Awaitable[bytes | None]],
    ) -> None:
        """Run sessions until one releases a sum, or none is open here."""
        task = self.task
        while True:
            self._offering()
            if self._ending is not None:  # asked for while it was being opened
                await runner.stop_waiting(self._ending)
            elif task.gate.is_paused:  # then, or by an earlier process
                await runner.stop_waiting("the task is paused")
            outcome = await self._run_in_window(runner)
            if isinstance(outcome, Released):
                task.gate.record_sum()
                await self._sessions.close(runner, self._on_sum)
                return
            attempt = await self._next_attempt(runner)
            error = outcome.code.error(
                f"session {runner.descriptor.session_number} of task "
                f"{task.task_id!r} was aborted: {outcome.reason}",
                kind=SessionAbortedError,
                fix="See the receipt; run the task again when the cause is gone.",
            )
            if attempt > task.max_attempts:
                if task.on_attempts_exhausted is None:
                    raise error
                await task.on_attempts_exhausted(error)
                attempt = 1
            may_open = await self._may_open()
            if not may_open and self._open_elsewhere() is None:
                raise error
            # The payload is read again: an operator may have paused the task because it
            # was wrong.
            payload = await payload_again()
            if payload is None:
                raise error
            if (another := await self._open_session(payload, attempt=attempt)) is None:
                return
            runner = another

    async def _next_attempt(self, runner: SessionRunner) -> int:
        """Close a session without a sum; return the number of the next attempt."""
        task_id = runner.descriptor.task_id
        known = await self._retrying(lambda: self._sessions.facts(task_id))
        receipt = await self._sessions.close(runner)
        facts = await self._retrying(lambda: self._sessions.facts(task_id))
        # A session that waited for clients without success is not an attempt. A session
        # that excludes a corrupt client happens at most c times (PROTOCOL §5.7).
        is_counted = receipt.members and facts.excluded == known.excluded
        return runner.record.attempt + bool(is_counted)

    async def _run_in_window(self, runner: SessionRunner) -> Released | Aborted:
        """Run a session; it stops waiting for clients when its window closes."""

        async def close_in_time() -> None:
            await self.task.gate.window_closes(self._clock)
            await runner.stop_waiting("the time in which clients may join is over")

        closing = asyncio.ensure_future(close_in_time())
        try:
            return await runner.run()
        finally:
            closing.cancel()
            await asyncio.wait({closing})
            if not closing.cancelled() and closing.exception() is not None:
                # A disk that refuses: the session itself gets the error, too.
                log_refused(closing.exception())

    async def _may_open(self) -> bool:
        """Wait until a session may open; return False when none will any more."""
        return await self.task.gate.wait(
            self._clock,
            is_futile=lambda: (
                self._stopping.is_set()
                or self._ending is not None
                or self._open_elsewhere() is not None
            ),
        )

    def _check_not_ended(self, sums: int) -> None:
        """Refuse to open another session of a task that was ended."""
        if self._ending is not None:
            raise ErrorCode.TASK_OVER.error(
                f"task {self.task.task_id!r} ended after {sums} sum(s): {self._ending}",
                kind=SessionAbortedError,
                fix="Choose a new task.id for a new series of sums.",
            )
