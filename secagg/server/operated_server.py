"""A server with what its operator wants to see and to say while it runs.

What programs build on is `secagg.server.server`; this is for `secagg.server.service`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import cached_property
from pathlib import Path

from secagg.runtime.metrics import Meter
from secagg.server.admin.views import StoreViews
from secagg.server.server import RunningTask, Server
from secagg.server.session.progress import LiveSession, SessionProgress
from secagg.server.storage import ServerStorage
from secagg.server.task.definition import OnAttemptsExhausted
from secagg.server.task.pending_writes import PendingWrites
from secagg.server.task.schedule import TaskSchedule
from secagg.server.task.setup import PreparedTask
from secagg.storage.store import Store
from secagg.transport.tls import TLSIdentity


class OperatedServer(Server):
    """A server whose tasks open by their gates, and can be paused."""

    async def add_gated_task(  # noqa: PLR0913 - one argument per decision
        self,
        task_id: str,
        prepared: PreparedTask,
        *,
        steps: int,
        payload: Callable[[int], bytes] | None,
        invited: frozenset[str] | None,
        attempts: int,
        gate: TaskSchedule,
        on_attempts_exhausted: OnAttemptsExhausted,
    ) -> RunningTask:
        """Run a task, or go on with one that an earlier process began.

        It opens no port: nobody shall ask for a task that is not there yet.

        Args:
            task_id: As for `Server.add_task`.
            prepared: Ditto.
            steps: Ditto.
            payload: Ditto.
            invited: Ditto.
            attempts: Ditto.
            gate: When sessions open.
            on_attempts_exhausted: Told when that many attempts have failed; the task
                goes on once its gate opens.

        Raises:
            LocalProtocolError: As `Server.add_task`.
            ServiceError: STORAGE_FAILED.
        """
        return await self._add_task(
            task_id,
            prepared,
            steps=steps,
            payload=payload,
            invited=invited,
            attempts=attempts,
            gate=gate,
            on_attempts_exhausted=on_attempts_exhausted,
        )

    async def pause_task(self, task_id: str, reason: str) -> None:
        """Offer no session of a task until `resume_task`.

        A session that still waits for clients ends without a sum; one whose cohort is
        complete goes on to its own end.  Nothing happens if the task does not run.

        Args:
            task_id: Which.
            reason: Why, in words for the clients.
        """
        await self._opened().aggregator.pause_task(task_id, reason)

    def resume_task(self, task_id: str) -> None:
        """Offer sessions of a task again; nothing happens if it does not run."""
        self._opened().aggregator.resume_task(task_id)

    def hold_task(self, task_id: str) -> None:
        """Tell clients of a task that does not run to come back.

        Args:
            task_id: Which.
        """
        self._opened().aggregator.hold_task(task_id)

    def end_clients(self, is_unwelcome: Callable[[str], bool]) -> None:
        """End open calls and connections of clients who were welcome before.

        Args:
            is_unwelcome: Judges a client's name.
        """
        if self.transport is not None:
            self.transport.end_clients(is_unwelcome)
        if self.edge is not None:
            self.edge.end_connections(is_unwelcome)

    async def wait_for_store(self) -> None:
        """Wait until the book can be written, which may take minutes.

        Raises:
            ServiceError: It has come back otherwise than it went.
        """
        await self._opened().aggregator.wait_for_store()

    @cached_property
    def pending_writes(self) -> PendingWrites:
        """What writes the files of sums, and knows which the disk refuses."""
        return PendingWrites()

    def follow_with(self, then: Callable[[], Awaitable[None]]) -> None:
        """Have somebody told when another server may have changed a task."""
        self._opened().aggregator.when_changed(then)

    def measure_with(self, meter: Meter) -> None:
        """Have what happens measured; before the server is opened."""
        self._meter = meter

    def runs_a_task(self) -> bool:
        """Whether sessions may open, now or when a task's gate lets them."""
        is_any = any(not task.is_done for task in self._tasks.values())
        return is_any and not self._is_draining

    def live(self) -> tuple[LiveSession, ...]:
        """Return the sessions that are not over, as they stand now."""
        return self._opened().aggregator.live()

    def refused(self) -> dict[str, int]:
        """Return how many calls were refused in the last hour, by name of the code."""
        return self._opened().aggregator.refused()

    def progress(
        self, at_first: Iterable[SessionProgress] = ()
    ) -> AsyncIterator[SessionProgress]:
        """Watch all sessions; ends with the server.

        Args:
            at_first: As for `ProgressFeed.watch`.
        """
        return self._opened().aggregator.progress(at_first)

    async def abort_session(self, session_id: bytes, reason: str) -> None:
        """End a session without a sum; nothing happens if it is over.

        Raises:
            ServiceError: UNKNOWN_SESSION; it does not run here.
            LocalProtocolError: Its sum is being computed.
        """
        await self._opened().aggregator.abort(session_id, reason)

    @property
    def storage(self) -> ServerStorage:
        """Where the server keeps what it knows."""
        return self._opened().storage

    @property
    def stores(self) -> tuple[Store, ...]:
        """See `ServedAggregator.stores`."""
        return (self.storage.store,)

    def views(self, state_dir: Path) -> StoreViews:
        """See `ServedAggregator.views`."""
        store = self.storage.store
        return StoreViews(
            store, state_dir, self.live, lambda: self.pending_writes.refused
        )

    @property
    def identity(self) -> TLSIdentity | None:
        """The aggregator's certificate, as it is now."""
        return self._identity if self.transport is None else self.transport.identity

    @property
    def is_draining(self) -> bool:
        """Whether no further session is offered."""
        return self._is_draining
