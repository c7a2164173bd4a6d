"""The tasks that an aggregator runs, and what became of those that it does not run.

A client that asks for a task hears one of three things: a session, that the task is
over, or that it should come back.  The last is said of every task that ended otherwise
than by its own end: a restart goes on with it.
"""

from secagg.errors import ErrorCode, LocalProtocolError, SecAggError, ServiceError
from secagg.server.task.runner import TaskRunner


class KnownTasks:
    """The tasks of one aggregator."""

    def __init__(self) -> None:
        self._running: dict[str, TaskRunner] = {}
        # Whether one that does not run is over, and not only interrupted.
        self._is_over: dict[str, bool] = {}

    def begin(self, run: TaskRunner) -> None:
        """Note that a task runs.

        Raises:
            LocalProtocolError: It runs already.
        """
        task_id = run.task.task_id
        if task_id in self._running:
            raise LocalProtocolError(f"task {task_id!r} runs already")
        self._running[task_id] = run
        self._is_over.pop(task_id, None)

    def end(self, task_id: str, *, is_over: bool) -> None:
        """Note that a task does not run.

        Args:
            task_id: Which.
            is_over: It will not run again; else its clients are told to come back.
        """
        self._running.pop(task_id, None)
        self._is_over[task_id] = is_over

    def get(self, task_id: str) -> TaskRunner | None:
        """Return a task that runs; None for any other."""
        return self._running.get(task_id)

    def find(self, task_id: str, *, back_in_seconds: float) -> TaskRunner:
        """Return a task that runs, for a client that asks for its sessions.

        Args:
            task_id: Which.
            back_in_seconds: When to ask again for one that was interrupted.

        Raises:
            ServiceError: SHUTTING_DOWN, TASK_OVER or UNKNOWN_SESSION.
        """
        run, is_over = self._running.get(task_id), self._is_over.get(task_id)
        if run is not None:
            return run
        if is_over is False:
            raise shutting_down(back_in_seconds)
        raise ServiceError(
            "the task has ended" if is_over else "there is no such task here",
            code=ErrorCode.TASK_OVER if is_over else ErrorCode.UNKNOWN_SESSION,
            next_step="Ask the operator which tasks run and what their names are.",
        )

    def wake(self) -> None:
        """Have every task look again at whether it may open a session."""
        for run in self._running.values():
            run.task.gate.wake()


def shutting_down(retry_after_seconds: float) -> SecAggError:
    """Return what clients are told that should come back."""
    return ErrorCode.SHUTTING_DOWN.error(
        "the aggregator is shutting down",
        fix="Ask again when it is back.",
        retry_after_seconds=retry_after_seconds,
    )
