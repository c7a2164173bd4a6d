"""Operator's views of a leader or a helper: tasks, sessions and budgets.

Rule 1: the views come from the store of each task, whether the aggregator runs or not.
        A running process adds its own facts under `live`.
Rule 2: a helper does not learn what was released: its sums are its answers.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from secagg.config.task import CONTINUOUS
from secagg.distributed_dp import AggregatorNoise
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.messages import Aborted
from secagg.server.admin.operations import SessionFilter, View
from secagg.server.admin.views import (
    found_session,
    running_view,
    sessions_view,
    unknown_task,
)
from secagg.server.session.events import LiveSession
from secagg.server.task.history import TaskHistory
from secagg.server.task.stored import row_of
from secagg.server.telemetry.measures import GaugeSample
from secagg.storage.change import Side
from secagg.storage.queries import ListSessions, ReadTally
from secagg.storage.rows import SessionTally, TaskState
from secagg.storage.store import StoreReader
from secagg.two_aggregators.helper import Helper
from secagg.two_aggregators.leader import Leader, history_in
from secagg.two_aggregators.leader_outcome import LeaderOutcome

_PROFILE: Final = "two-aggregators"


@dataclass(frozen=True, slots=True)
class PartyTask:
    """A task of a leader or a helper, with its store.

    Attributes:
        task: Name of the task.
        noise: The task, with the noise of one aggregator.
        steps: Number of sums of the task.
        is_leader: Whether the store is the leader's.
        store: Store of the task.
        party: The running party; None when the aggregator does not run.
    """

    task: str
    noise: AggregatorNoise
    steps: int
    is_leader: bool
    store: StoreReader
    party: Leader | Helper | None = None

    @classmethod
    def of(cls, party: Leader | Helper) -> "PartyTask":
        """Return the task that a party runs."""
        return cls(
            party.task, party.noise, party.steps, party.is_leader, party.store, party
        )

    def history(self, tally: SessionTally) -> TaskHistory:
        """Return the sums of the task and, at the leader, the clients in them."""
        return history_in(tally) if self.is_leader else TaskHistory(sums=tally.spent)

    def ended(self, receipt: bytes) -> View:
        """Return the view of an ended session."""
        joined: int | None
        inputs: int | None
        if self.is_leader:
            result = LeaderOutcome.decode(receipt)
            outcome, names = result.outcome, result.included.names
            joined, inputs = len(result.held.names), len(names)
            code = outcome.code if isinstance(outcome, Aborted) else None
            reason = outcome.reason if isinstance(outcome, Aborted) else ""
        else:
            joined = inputs = None  # erased with the seeds
            code = None if receipt else ErrorCode.CANCELLED
            reason = "" if receipt else "the helper gave no answer"
        return {
            "outcome": "released" if code is None else ErrorCode(code).name,
            "reason": reason,
            "joined": joined,
            "inputs": inputs,
            "next_step": "",
        }

    def live(self) -> tuple[LiveSession, ...]:
        """Return the open session of a running party."""
        return () if self.party is None else self.party.live()

    async def view(self) -> View:
        """Return the view of the task."""
        tally = await self.store.read(ReadTally(Side.SERVER, self.task))
        row = await row_of(self.store, self.task)
        open_rows = await self.store.read(
            ListSessions(role=Side.SERVER, task=self.task)
        )
        live = {each.progress.session_number: each for each in self.live()}
        history, budget = self.history(tally), self.noise.budget
        most = budget.max_sessions(self.steps)
        is_over = history.sums >= self.steps or tally.spent >= most
        # Only the process that asked the helper knows of a final refusal.
        is_over |= self.party is not None and not self.party.may_serve
        state = TaskState.RUNNING if row is None else row.task.state
        finished = history.finished(budget.participations)
        return {
            "task": self.task,
            "state": "done" if is_over else state.value,
            "reason": "" if row is None else row.task.reason,
            "unwritten": "",
            "version": 0 if row is None else row.version,
            "profile": _PROFILE,
            "schedule": CONTINUOUS,
            "window": None,
            "ends": None,
            "sums": history.sums,
            "sums_wanted": self.steps,
            "sessions_opened": tally.highest_number,
            "sessions_spent": tally.spent,
            "sessions_left": max(0, most - tally.spent),
            "participations": budget.participations,
            "clients_finished": len(finished),
            "short_of_clients": "",
            "running": [
                running_view(each, live.get(each.number)) for each in open_rows
            ],
        }

    async def budget(self) -> View:
        """Return the view of the task's budget."""
        tally = await self.store.read(ReadTally(Side.SERVER, self.task))
        running = await self.store.read(ListSessions(role=Side.SERVER, task=self.task))
        report, budget = self.noise.report(), self.noise.budget
        history, sessions = self.history(tally), budget.max_sessions(self.steps)
        left = max(0, sessions - tally.spent)
        # An open session of a leader may still release a sum; a helper has counted it.
        paid = sum(each.spent for each in running) if self.is_leader else 0
        missing = max(0, self.steps - history.sums - paid)
        return {
            "task": self.task,
            "epsilon_server": report.aggregator.epsilon,
            "epsilon_model_reader": report.reader.epsilon,
            "delta": budget.delta,
            "grounds": report.aggregator.grounds,
            "sums": history.sums,
            "privacy_unit": report.privacy_unit,
            "sums_planned": self.steps,
            "participations": budget.participations,
            "charges": budget.charges,
            "clients_finished": len(history.finished(budget.participations)),
            "spare_planned": sessions - self.steps,
            "spent": tally.spent,
            "left": left,
            "spare_left": max(0, left - missing),
            "is_short": left < missing,
        }


@dataclass(frozen=True, slots=True)
class PartyViews:
    """The views of a leader or a helper; implements `OperatorViews`.

    Attributes:
        of: The tasks of the aggregator.
    """

    of: Sequence[PartyTask]

    def _chosen(self, task: str | None) -> list[PartyTask]:
        found = [each for each in self.of if task in (None, each.task)]
        if task is not None and not found:
            raise unknown_task(task, (each.task for each in self.of))
        return sorted(found, key=lambda each: each.task)

    async def tasks(self) -> list[View]:
        """See `OperatorViews.tasks`."""
        return [await each.view() for each in self._chosen(None)]

    async def task(self, task_id: str) -> View:
        """See `OperatorViews.task`."""
        (found,) = self._chosen(task_id)
        return await found.view()

    async def sessions(self, chosen: SessionFilter) -> list[View]:
        """See `OperatorViews.sessions`."""
        found: list[View] = []
        for each in self._chosen(chosen.task):
            found += await sessions_view(
                each.store, chosen, live=each.live, ended=each.ended
            )
        found.sort(key=lambda view: str(view["opened"]), reverse=True)
        return found[: chosen.limit]

    async def session(self, task_id: str, number: int) -> View:
        """See `OperatorViews.session`."""
        (task,) = self._chosen(task_id)
        view, receipt = await found_session(
            task.store, task_id, number, task.live, task.ended
        )
        if task.is_leader and receipt:
            result = LeaderOutcome.decode(receipt)
            view["shares_of"] = list(result.held.names)
            view["in_the_sum"] = list(result.included.names)
        return view

    async def budgets(self, *, task: str | None = None) -> list[View]:
        """See `OperatorViews.budgets`."""
        return [await each.budget() for each in self._chosen(task)]

    async def replicas(self) -> list[View]:
        """See `OperatorViews.replicas`."""
        return []

    async def readings(self) -> list[GaugeSample]:
        """See `OperatorViews.readings`."""
        found: dict[object, GaugeSample] = {}
        for each in self.of:
            if each.party is not None:
                with suppress(ServiceError):
                    for metric, value, labels in await each.party.readings():
                        # Several leaders ask one helper; the worst value counts.
                        key = metric.name, tuple(sorted(labels.items()))
                        least = min(value, found.get(key, (metric, value, {}))[1])
                        found[key] = metric, least, labels
        return list(found.values())
