"""Progress of sessions for people: clients that joined or dropped, bytes uploaded.

Rule 1: on a terminal one live line per session; in a pipe one plain line per round.
Rule 2: only numbers and names, never a message.
"""

from typing import Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from secagg.cli.output import Output
from secagg.protocol.messages import Round
from secagg.protocol.rounds import ROUNDS
from secagg.server.session.events import SessionPhase, SessionProgress


class SessionView:
    """Shows the progress of sessions; use it as a context manager.

    Args:
        output: Where.
        names_tasks: Whether lines say which task a session belongs to.
    """

    def __init__(self, output: Output, *, names_tasks: bool = False) -> None:
        self._output = output
        self._names_tasks = names_tasks
        self._bars: dict[bytes, TaskID] = {}
        self._lines: dict[bytes, tuple[Round, SessionPhase, int]] = {}
        self._lost: dict[bytes, int] = {}
        self._excluded: set[tuple[str, str]] = set()
        self._live = (
            Progress(
                TextColumn("{task.fields[name]}"),
                TextColumn("{task.description}", table_column=Column(width=13)),
                BarColumn(bar_width=20),
                TextColumn("{task.completed:.0f} of {task.total:.0f}"),
                TextColumn("{task.fields[detail]}", style="dim"),
                console=output.console,
            )
            if output.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: SessionProgress) -> None:
        """Bring one session up to date."""
        for identity in progress.excluded:
            if (progress.task_id, identity) not in self._excluded:
                self._excluded.add((progress.task_id, identity))
                self._output.line(
                    f"{self._session_title(progress)}: {identity} is excluded, "
                    "after a dispute in an earlier session",
                    style="yellow",
                )
        for lost in progress.dropped[self._lost.get(progress.session_id, 0) :]:
            self._output.line(
                f"{self._session_title(progress)}: {lost.identity} is lost: "
                f"{lost.reason}",
                style="yellow",
            )
        self._lost[progress.session_id] = len(progress.dropped)
        if self._live is None:
            self._show_line(progress)
        else:
            self._show_bar(self._live, progress)

    def _session_title(self, progress: SessionProgress) -> str:
        """Return the name of a session on a line."""
        name = f"session {progress.session_number}"
        return f"{progress.task_id} {name}" if self._names_tasks else name

    def _show_line(self, progress: SessionProgress) -> None:
        """Print one line for each change of a session, and each tenth that joins."""
        # Of a cohort that gathers, a line for each tenth of the clients needed.
        tenth = max(1, progress.needed // 10)
        gathering = progress.phase is SessionPhase.COLLECTING and (
            progress.round is Round.ADVERTISE_KEYS
        )
        steps = progress.joined // tenth if gathering else 0
        place = (progress.round, progress.phase, steps)
        if self._lines.get(progress.session_id) == place:
            return
        self._lines[progress.session_id] = place
        self._output.line(
            f"{self._session_title(progress)}: {_title(progress)}, {_detail(progress)}"
        )

    def _show_bar(self, live: Progress, progress: SessionProgress) -> None:
        """Move the progress bar of a session."""
        bar = self._bars.get(progress.session_id)
        if bar is None:
            bar = live.add_task("", name=self._session_title(progress), detail="")
            self._bars[progress.session_id] = bar
        live.update(
            bar,
            description=_title(progress),
            total=max(1, progress.expected),
            completed=progress.answered,
            detail=_detail(progress),
        )


def _title(progress: SessionProgress) -> str:
    """Return the phase or the round of a session."""
    if progress.phase in (SessionPhase.SUMMING, SessionPhase.ABORTED):
        return str(progress.phase)
    return ROUNDS[progress.round].title


def _detail(progress: SessionProgress) -> str:
    """Return how many clients joined and were lost, or why a session ended."""
    left = ""
    if progress.sessions_left is not None:
        left = f", {progress.sessions_left} session(s) left in the budget"
    if progress.reason:
        return progress.reason + left
    joined = f"{progress.joined} joined"
    if progress.round is Round.ADVERTISE_KEYS:
        joined = f"{progress.joined} joined, {progress.needed} needed{left}"
    detail = f"{joined}, {len(progress.dropped)} lost"
    if progress.upload_bytes:
        detail += f", {progress.upload_bytes:,} bytes"
    return detail
