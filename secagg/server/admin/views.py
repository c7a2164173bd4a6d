"""What operators see of tasks and sessions, the same from every command and page.

Rule 1: a view is made from the rows of the store. An aggregator that runs sends it over
        its socket; else a command reads the store. What only a process knows (which
        clients have joined) is added under `live`.
Rule 2: only names, counts, dates, codes and digests; never a key, a share or an entry.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.config import TaskSettings
from secagg.config.task import Schedule
from secagg.distributed_dp import NoiseBudget, NoisyTask
from secagg.distributed_dp.report_cache import privacy_report
from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.protocol.messages import Round
from secagg.protocol.profiles import Profile
from secagg.protocol.rounds import ROUNDS
from secagg.runtime import metrics
from secagg.server.admin.operations import SessionFilter, View
from secagg.server.session.events import LiveSession, SessionPhase, SessionProgress
from secagg.server.session.report import (
    SessionReceipt,
    iso_date,
    next_step_after,
    reports_in,
)
from secagg.server.task.history import TaskHistory
from secagg.server.task.stored import StoredTask, decode_settings, privacy_folder_of
from secagg.server.telemetry.measures import GaugeSample
from secagg.storage.change import Side
from secagg.storage.queries import ListReplicas, ListSessions, ListTasks, LoadSession
from secagg.storage.rows import (
    SessionRow,
    SessionState,
    SessionTally,
    TaskRow,
    TaskState,
)
from secagg.storage.store import StoreReader

Live = Callable[[], Iterable[LiveSession]]

# More receipts of one task are seldom kept (server.keep_receipts).
_MAX_LOOKED_AT: Final = 10_000

# A replica that was not seen for so long has left, and needs no attention.
_GONE_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class StoreViews:
    """Makes the views of an aggregator whose tasks are rows of its store.

    Attributes:
        store: The aggregator's store.
        state_dir: State directory of the aggregator, with privacy and session reports.
        live: Returns the sessions that a process knows to be open.
        refused: Returns why the disk refuses files of a session, by task.
    """

    store: StoreReader
    state_dir: Path
    live: Live = tuple
    refused: Callable[[], Mapping[str, str]] = dict

    async def tasks(self) -> list[View]:
        """Return all tasks; see `OperatorViews.tasks`."""
        running = await self.store.read(ListSessions(role=Side.SERVER))
        rows = await self.store.read(ListTasks())
        known, unwritten = tuple(self.live()), self.refused()
        return [_task_view(row, running, known, unwritten) for row in rows]

    async def task(self, task_id: str) -> View:
        """Return one task; see `OperatorViews.task`."""
        row = await find_task(self.store, task_id)
        running = await self.store.read(ListSessions(role=Side.SERVER, task=task_id))
        return _task_view(row, running, self.live(), self.refused())

    async def sessions(self, chosen: SessionFilter) -> list[View]:
        """Return the selected sessions; see `OperatorViews.sessions`.

        Raises:
            ServiceError: UNKNOWN_SESSION for an unknown task.
        """
        if chosen.task is not None:
            await find_task(self.store, chosen.task)
        return await sessions_view(self.store, chosen, live=self.live)

    async def session(self, task_id: str, number: int) -> View:
        """Return one session; see `OperatorViews.session`.

        A session that is over also states which clients took part, and which invited
        clients did not. The participants are all of the roster, or those that had
        joined if it ended before. The invitations are those of the task now; None where
        all clients may join.
        """
        task = await find_task(self.store, task_id)
        view, data = await found_session(
            self.store, task_id, number, self.live, _receipt_view
        )
        if data is not None:
            receipt = SessionReceipt.decode(data)
            came = receipt.members or receipt.finishers
            invited = decode_settings(task.task).task.invited
            reports = reports_in(self.state_dir)
            view["came"] = list(came)
            view["did_not_come"] = sorted(set(invited) - set(came)) if invited else None
            view["receipt"] = receipt.to_dict()
            view["report"] = await asyncio.to_thread(reports.read, task_id, number)
        return view

    async def budgets(self, *, task: str | None = None) -> list[View]:
        """Return the costs of tasks with noise; see `OperatorViews.budgets`.

        It takes seconds where a privacy report was not computed before.
        """
        # This order raises no alarm for a session that ends between the two reads.
        running = await self.store.read(ListSessions(role=Side.SERVER))
        rows = (
            await self.store.read(ListTasks())
            if task is None
            else (await find_task(self.store, task),)
        )
        views = [
            await asyncio.to_thread(_budget_view, row, running, self.state_dir)
            for row in rows
        ]
        return [view for view in views if view is not None]

    async def replicas(self) -> list[View]:
        """Return the replicas of the store; see `OperatorViews.replicas`."""
        return [
            {
                "name": row.replica.name,
                "address": row.replica.address,
                "version": row.replica.version,
                "started": iso_date(row.started),
                "silent_seconds": round(row.silent_seconds, 1),
            }
            for row in await self.store.read(ListReplicas())
            if row.silent_seconds < _GONE_SECONDS
        ]

    async def readings(self) -> list[GaugeSample]:
        """Return the present gauges; see `OperatorViews.readings`.

        Gauges that need an unavailable store are missing.
        """
        found: list[GaugeSample] = []
        with suppress(ServiceError):
            found += await self._of_tasks()
        return found + _of_sessions(self.live())

    async def _of_tasks(self) -> list[GaugeSample]:
        """Return the gauges of all tasks and their budgets."""
        found: list[GaugeSample] = []
        for row in await self.store.read(ListTasks()):
            task, settings = {"task": row.task.task_id}, decode_settings(row.task)
            runs = state_of(row, settings) == TaskState.RUNNING.value
            sums = TaskHistory.decode(row.tally.facts).sums
            missing = max(0, settings.task.steps - sums)
            schedule = Schedule.parse(settings.task.schedule, settings.task.window)
            slot = float(schedule.period or 1) if runs else 0.0
            found.append((metrics.TASK_SLOT, slot, task))
            unwritten = row.task.task_id in self.refused()
            found.append((metrics.TASK_UNWRITTEN, float(unwritten), task))
            found.append((metrics.TASK_SUMS_LEFT, float(missing), task))
        for budget in await self.budgets():
            task = {"task": str(budget["task"])}
            for metric, name in (
                (metrics.TASK_SESSIONS_LEFT, "left"),
                (metrics.TASK_SPARE_LEFT, "spare_left"),
            ):
                found.append((metric, float(str(budget[name])), task))
            for against in ("server", "model_reader"):
                epsilon = float(str(budget[f"epsilon_{against}"]))
                labels = {**task, "against": against}
                found.append((metrics.TASK_EPSILON, epsilon, labels))
        return found


def _of_sessions(sessions: Iterable[LiveSession]) -> list[GaugeSample]:
    """Return the gauges of the running sessions."""
    found: list[GaugeSample] = []
    counted: Counter[str] = Counter()
    for live in sessions:
        progress = live.progress
        task = {"task": progress.task_id}
        counted[progress.task_id] += 1
        number = float(counted[progress.task_id])
        found.append((metrics.SESSIONS_OPEN, number, task))
        found.append((metrics.ROUND_ANSWERED, float(progress.answered), task))
        found.append((metrics.ROUND_EXPECTED, float(progress.expected), task))
    return found


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """Holds what an aggregator's store has of one task, for all views of it.

    Attributes:
        task: Name of the task.
        steps: Number of sums of the task.
        tally: What its sessions left behind.
        history: Its sums, and the clients in them.
        budget: The claim of its noise; None for exact sums.
    """

    task: str
    steps: int
    tally: SessionTally
    history: TaskHistory
    budget: NoiseBudget | None

    @property
    def participations(self) -> int | None:
        """Most sums that hold the data of one client; None for no limit."""
        return None if self.budget is None else self.budget.participations

    @property
    def finished(self) -> frozenset[str]:
        """The clients that have used all their participations."""
        return self.history.finished(self.participations)

    @property
    def sessions_left(self) -> int | None:
        """How many sessions may still be spent; None for no limit."""
        if self.budget is None:
            return None
        return max(0, self.budget.max_sessions(self.steps) - self.tally.spent)

    def progress_of(
        self, running: Iterable[SessionRow], live: Iterable[LiveSession]
    ) -> View:
        """Return how far the task has come, as JSON values.

        Args:
            running: The sessions of the store that are not over, of any task.
            live: The same sessions in the process; empty where none runs.
        """
        by_number = {
            each.progress.session_number: each
            for each in live
            if each.progress.task_id == self.task
        }
        return {
            "sums": self.history.sums,
            "sums_wanted": self.steps,
            "sessions_opened": self.tally.highest_number,
            "sessions_spent": self.tally.spent,
            "sessions_left": self.sessions_left,
            "participations": self.participations,
            "clients_finished": len(self.finished),
            "excluded": sorted(self.history.excluded),
            "running": [
                running_view(each, by_number.get(each.number))
                for each in running
                if each.task == self.task
            ],
        }

    def spending_of(self, budget: NoiseBudget, paid: int) -> View:
        """Return what the task has spent of its budget, as JSON values.

        Args:
            budget: The claim of its noise.
            paid: Open sessions that have been charged and have not failed.
        """
        sessions, spent = budget.max_sessions(self.steps), self.tally.spent
        left = max(0, sessions - spent)
        missing = max(0, self.steps - self.history.sums - paid)
        return {
            "delta": budget.delta,
            "sums": self.history.sums,
            "privacy_unit": budget.privacy_unit,
            "sums_planned": self.steps,
            "participations": budget.participations,
            "charges": budget.charges,
            "clients_finished": len(self.finished),
            "spare_planned": sessions - self.steps,
            "spent": spent,
            "left": left,
            "spare_left": max(0, left - missing),
            "is_short": left < missing,
        }


def _facts_in(row: TaskRow, settings: TaskSettings) -> TaskFacts:
    """Return the facts of a task that are in its row."""
    noisy = _noisy_task(row)
    return TaskFacts(
        row.task.task_id,
        settings.task.steps,
        row.tally,
        TaskHistory.decode(row.tally.facts),
        None if noisy is None else noisy.budget,
    )


def state_of(row: TaskRow, settings: TaskSettings) -> str:
    """Return the state of a task: the one that its operator chose, or `done`.

    Args:
        row: The task's row.
        settings: The settings in the row.
    """
    is_done = TaskHistory.decode(row.tally.facts).sums >= settings.task.steps
    if is_done and row.task.state is not TaskState.STOPPED:
        return "done"
    return row.task.state.value


def _task_view(
    row: TaskRow,
    running: Iterable[SessionRow],
    live: Iterable[LiveSession],
    unwritten: Mapping[str, str],
) -> View:
    """Return one task.

    Args:
        row: The task's row.
        running: The sessions of the store that are not over, of any task.
        live: The same sessions in the process; empty where none runs.
        unwritten: Why the disk refuses the files of a task's latest session, by task.

    Raises:
        ServiceError: STORAGE_FAILED; the row is of another release.
    """
    settings = decode_settings(row.task)
    facts, task = _facts_in(row, settings), settings.task
    return {
        "task": task.id,
        "state": state_of(row, settings),
        "reason": row.task.reason,
        "unwritten": unwritten.get(task.id, ""),
        "short_of_clients": _short_of_clients(settings, facts),
        "version": row.version,
        "profile": Profile.from_label(task.profile).label,
        "schedule": task.schedule,
        "window": task.window,
        "ends": task.ends,
    } | facts.progress_of(running, live)


async def find_task(store: StoreReader, task_id: str) -> TaskRow:
    """Return the row of a task.

    Raises:
        ServiceError: UNKNOWN_SESSION; no task has this name.
    """
    rows = {row.task.task_id: row for row in await store.read(ListTasks())}
    if task_id not in rows:
        raise unknown_task(task_id, rows)
    return rows[task_id]


def _budget_view(
    row: TaskRow, running: Iterable[SessionRow], state_dir: Path
) -> View | None:
    """Return what a task costs and has spent; None for exact sums."""
    noisy, task_id = _noisy_task(row), row.task.task_id
    if noisy is None:
        return None
    folder = privacy_folder_of(state_dir, task_id)
    report = privacy_report(noisy, folder, keep=False)
    # A session whose survivors are fixed has been charged; it has not failed.
    paid = sum(each.spent for each in running if each.task == task_id)
    return {
        "task": task_id,
        "epsilon_server": report.server.epsilon,
        "epsilon_model_reader": report.model_reader.epsilon,
        "grounds": report.grounds(),
    } | _facts_in(row, decode_settings(row.task)).spending_of(noisy.budget, paid)


def short_of_budget(row: TaskRow) -> tuple[int, int] | None:
    """Return the sessions left, and those planned for faults, if sums use these.

    Args:
        row: The task's row.

    Raises:
        ServiceError: STORAGE_FAILED; the row is of another release.
    """
    facts = _facts_in(row, decode_settings(row.task))
    budget, left, steps = facts.budget, facts.sessions_left, facts.steps
    if budget is None or left is None:
        return None
    spare = budget.max_sessions(steps) - steps
    return (left, spare) if facts.history.sums < steps and left <= spare else None


def _short_of_clients(settings: TaskSettings, facts: TaskFacts) -> str:
    """Return why no further session can reach its smallest cohort; "" if one can.

    For a task without a list of invited clients, no aggregator knows which may still
    come.
    """
    task, needed, finished = settings.task, settings.cohort.min_clients, facts.finished
    if not task.invited or not finished or facts.history.sums >= task.steps:
        return ""
    able = set(task.invited) - finished - facts.history.excluded
    if len(able) >= needed:
        return ""
    done = len(finished.intersection(task.invited))
    return (
        f"{done} of {len(task.invited)} invited clients used their participations; "
        f"{len(able)} are left, and a session needs {needed}"
    )


def _noisy_task(row: TaskRow) -> NoisyTask | None:
    """Return the task of a row with its noise; None for exact sums."""
    parameters = StoredTask.decode(row.task.plan).parameters
    return NoisyTask.from_parameters(parameters) if parameters.noise_block else None


async def sessions_view(
    store: StoreReader,
    chosen: SessionFilter,
    *,
    live: Live = tuple,
    ended: Callable[[bytes], View] | None = None,
) -> list[View]:
    """Return sessions, the newest first.

    Args:
        store: The aggregator's store.
        chosen: Selects the sessions.
        live: Returns those that run; called after the rows were read.
        ended: Decodes a receipt; by default one of an aggregator without a second one.

    Raises:
        ServiceError: STORAGE_FAILED or STATE_DAMAGED.
    """
    found: list[View] = []
    limit, since, outcome = chosen.limit, chosen.since, chosen.outcome
    rows = await store.read(
        ListSessions(
            role=Side.SERVER,
            task=chosen.task,
            state=SessionState.ALL,
            limit=limit if outcome is None else _MAX_LOOKED_AT,
        )
    )
    by_id = {each.progress.session_id.hex(): each for each in live()}
    for row in rows:
        if len(found) == limit or (since is not None and row.born < since):
            break
        view = await _session_view(store, row, by_id, ended or _receipt_view)
        if outcome is None or view["outcome"] == outcome:
            found.append(view)
    return found


async def found_session(
    store: StoreReader,
    task_id: str,
    number: int,
    live: Live,
    ended: Callable[[bytes], View],
) -> tuple[View, bytes | None]:
    """Return one session by its number, and its receipt if it is over.

    Args:
        store: The aggregator's store.
        task_id: The session's task.
        number: The session's number.
        live: Returns those that run; called after the rows were read.
        ended: As for `sessions_view`.

    Raises:
        ServiceError: UNKNOWN_SESSION; its receipt was deleted, or it never existed.
    """
    rows = await store.read(
        ListSessions(role=Side.SERVER, task=task_id, state=SessionState.ALL)
    )
    for row in rows:
        if row.number == number:
            by_id = {each.progress.session_id.hex(): each for each in live()}
            view = await _session_view(store, row, by_id, ended)
            stored = await store.read(LoadSession(row.key))
            return view, None if stored is None else stored.receipt
    raise ErrorCode.UNKNOWN_SESSION.error(
        f"task {task_id!r} has no session {number} here",
        fix="`secagg sessions list` shows those whose receipts are kept.",
    )


def unknown_task(task_id: str, known: Iterable[str]) -> SecAggError:
    """Build the refusal of a task that does not run here."""
    return ErrorCode.UNKNOWN_SESSION.error(
        f"no task {task_id!r} exists here",
        fix=f"`secagg tasks list` shows them; known: "
        f"{', '.join(sorted(known)) or 'none'}.",
    )


async def _session_view(
    store: StoreReader,
    row: SessionRow,
    live: Mapping[str, LiveSession],
    ended: Callable[[bytes], View],
) -> View:
    """Return one session, running or over, as JSON values."""
    session_id = row.key.rpartition("/")[2]
    view: View = {
        "task": row.task,
        "number": row.number,
        "session_id": session_id,
        "opened": iso_date(row.born),
        "ended": None if row.ended is None else iso_date(row.ended),
    }
    stored = None if row.ended is None else await store.read(LoadSession(row.key))
    if stored is None or stored.receipt is None:
        running = running_view(row, live.get(session_id))
        return view | {"outcome": "running", "reason": ""} | running
    seconds = None if row.ended is None else round(row.ended - row.born, 3)
    return view | ended(stored.receipt) | {"seconds": seconds}


def _receipt_view(data: bytes) -> View:
    """Return the outcome that a receipt states."""
    receipt = SessionReceipt.decode(data)
    return {
        "outcome": receipt.outcome_name,
        "reason": getattr(receipt.outcome, "reason", ""),
        "joined": receipt.advertised,
        "inputs": receipt.uploaded,
        "next_step": next_step_after(receipt),
    }


def running_view(row: SessionRow, live: LiveSession | None) -> View:
    """Return the progress of a session that is not over."""
    view: View = {
        "number": row.number,
        "round": ROUNDS[Round(row.round)].title if row.round else "",
    }
    if live is None:
        return view
    progress = live.progress
    if progress.round is Round.FINISHED:  # clients know it, the store does not yet
        return view | {"round": ROUNDS[progress.round].title}
    return view | {
        "round": ROUNDS[progress.round].title,
        "live": {
            "phase": str(progress.phase),
            "joined": progress.joined,
            "needed": progress.needed,
            "answered": progress.answered,
            "expected": progress.expected,
            "missing": list(live.missing),
            "lost": [lost.identity for lost in progress.dropped],
            "seconds_left": None
            if live.seconds_left is None
            else round(live.seconds_left, 1),
        },
    }


def progress_view(progress: SessionProgress) -> View:
    """Return a session's progress as JSON values."""
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
