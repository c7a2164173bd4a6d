"""What must hold in every run, checked as it happens by code that trusts no party.

1. A round of a session closes once, not before its deadline unless all clients have
   answered, and holds one message of each sender.  Time without any server counts for
   no deadline (`uptime`).
2. What a server answers follows from what is on its disk at that moment.
3. A client says nothing that its disk does not know, and never two different things
   for one round.
4. A session number is used once.
5. An input leaves only when it is charged; a task is never charged more often than its
   budget covers, neither at a client nor at the servers; a client sees no more rings
   than were counted; no released sum holds an input whose charge was given back.
6. A released sum is exact over the clients that its receipt names, and the same
   whichever client is told it, however often.
7. An honest client is never called anything worse than late.
8. Nothing escapes that is no typed error.
9. A task that is paused or stopped begins no session; an aggregator that is drained
   begins none either.  What an operator was told is what every view shows.
10. Receipts hold, name the sets that are on the disk, and say that a quorum has agreed
    only where it has signed (`receipts`).
11. Noise is given back as the ladder allows and no further: what is left suffices.
12. What was acknowledged of an upload is asked for by no aggregator again, and sent by
    no client that has heard so, unless a kill has dropped it before it was synced.  Of
    what the store names a kill drops nothing.
13. What a client sends whose certificate was taken back is not stored any more once
    aggregators had a minute to notice.
14. A sum that ends its aggregators ends three of them at most.

The knowledge ledger checks beside all this what server and corrupt clients could
compute (`secagg_testing.knowledge`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import numpy as np

from secagg.client.contribution import Contribution
from secagg.protocol.rounds import rounds_of
from secagg.server.task.outputs import ReleasedSum
from secagg.storage.change import Change, Side
from secagg.storage.rows import Task, TaskState
from secagg_testing.knowledge.claims import check
from secagg_testing.knowledge.facts import Facts
from secagg_testing.observed_connection import TaskObserver
from secagg_testing.world.clients_seen import ClientsSeen
from secagg_testing.world.inputs import Inputs
from secagg_testing.world.machines import Disk
from secagg_testing.world.notes import Notes, short
from secagg_testing.world.receipts import complaints
from secagg_testing.world.servers_seen import ServersSeen
from secagg_testing.world.tasks import WorldTask
from secagg_testing.world.watched import Watched


class Witness(Notes):
    """Observes all of one run.

    Args:
        tasks: All tasks.
        now: The time, in seconds since the world began.
        on_step: Called with the number of every step of the run.
        keep_trace: Whether the lines of the trace are kept.

    Attributes:
        inputs: What clients have given.
        servers: Checks of servers.
        clients: Checks of clients.
    """

    def __init__(
        self,
        tasks: Sequence[WorldTask],
        *,
        now: Callable[[], float],
        on_step: Callable[[int], None],
        keep_trace: bool,
    ) -> None:
        super().__init__(now=now, on_step=on_step, keep_trace=keep_trace)
        self._tasks: Final = {
            task.name: Watched(task, TaskObserver(), rounds_of(task.parameters.profile))
            for task in tasks
        }
        self._task_of: Final = {
            name: self._tasks[task.name] for task in tasks for name in task.clients
        }
        self.inputs: Final = Inputs()
        self.servers: Final = ServersSeen(self, self._tasks, self.inputs)
        self.clients: Final = ClientsSeen(self, self._task_of, self.servers.journals)

    def committed(self, disk: Disk, change: Change | Task) -> None:
        """Check a commit."""
        if isinstance(change, Task):
            self.write(disk.owner, f"disk: {change.task_id} is {change.state}")
            self._tasks[change.task_id].words.append(change.state)
            return
        session_id = bytes.fromhex(change.key.rpartition("/")[2])
        self.write(disk.owner, f"disk: {_shown_change(change)} {short(session_id)}")
        if change.key.startswith(f"{Side.SERVER}/"):
            self.servers.committed(session_id, change, disk)
        else:
            self.clients.committed(disk.owner, session_id, change)

    def dropped(self, names: Collection[str]) -> None:
        """Record what a kill dropped from the servers' spool."""
        for name, session_id in self.servers.dropped(names):
            self.clients.must_repeat(name, session_id)

    def words_of(self, task: str) -> Sequence[TaskState]:
        """Return the operator commands for a task that were on the disk, in order."""
        return self._tasks[task].words

    def check_contributions(self, *, is_complete: bool) -> None:
        """Compare the results of clients with the sums delivered to the operator.

        Args:
            is_complete: No fault was injected: all clients of a task without an
                operator are in every sum, and each client in one has it.
        """
        if is_complete:
            told = {(name, given.session_number) for name, given in self.clients.told}
            for (task, number), total in self.servers.sums.items():
                who = self._tasks[task].task.clients
                if self._tasks[task].words:  # it may begin before all are there
                    who = total.receipt.survivors
                without = {name for name in who if (name, number) not in told}
                self.must(not without, f"{without} have no sum of session {number}")
        for name, given in self.clients.told:
            found = self.servers.sums.get(
                (self._task_of[name].task.name, given.session_number)
            )
            if found is not None:
                self._check_contribution(name, given, found)
            elif not self.servers.has_forgotten:  # or the operator was about to be told
                self.fault(f"{name} has a sum that the operator has not")

    def _check_contribution(
        self, name: str, given: Contribution, total: ReleasedSum
    ) -> None:
        self.must(
            total.inputs == given.inputs
            and name in total.receipt.survivors
            and given.values is not None
            and np.array_equal(total.values, given.values),
            f"{name} was told another sum of session {given.session_number}",
        )
        session_id = total.receipt.descriptor.session_id
        if self.clients.has_answered(name, session_id):  # else it vouches for nothing
            for complaint in complaints(given.audit, self.servers.journals[session_id]):
                self.fault(f"the receipt of {name}: {complaint}")

    def check_views(self, views: Iterable[Mapping[str, Any]]) -> None:
        """Compare the operator's views of tasks with the recorded events.

        Args:
            views: As `secagg tasks list` has them.
        """
        shown = {view["task"]: view for view in views}
        known = {name for name, each in self._tasks.items() if each.state is not None}
        self.must(shown.keys() == known, f"the operator is shown {sorted(shown)}")
        for name in known & shown.keys():
            view, watched = shown[name], self._tasks[name]
            sums = sum(task == name for task, _ in self.servers.sums)
            stored = sum(
                each.task == name and each.has_sum
                for each in self.servers.journals.values()
            )
            is_done = sums >= watched.task.sums
            state = "done" if is_done else str(watched.state)
            if watched.state is TaskState.STOPPED:
                state = "stopped"
            self.must(
                (view["sums"], view["state"]) == (sums, state) and sums == stored,
                f"of {name} the operator is shown {view['sums']} sums, {view['state']};"
                f" there are {sums}, {stored} stored, and it is {state}",
            )

    def check_knowledge(self, task: WorldTask, charges: Mapping[str, int]) -> None:
        """Check with the ledger what servers and corrupt clients could compute.

        Args:
            task: Which.
            charges: How many sessions clients have paid for by their own ledgers; of
                those without one, what has left them counts.

        Raises:
            ForbiddenKnowledgeError: More than was promised.
        """
        observer = self._tasks[task.name].observer
        charged = {name: len(known) for name, known in observer.masked.items()}
        check(observer.facts, charged=charged | dict(charges))

    def facts_of(self, name: str) -> Facts:
        """Return what the adversary sees of a client's task."""
        return self._task_of[name].observer.facts


def _shown_change(change: Change) -> str:
    parts = []
    if change.create is not None:
        parts.append(f"session {change.create.number} of {change.create.task}")
    for record in change.records:
        sender = "" if record.sender is None else f" of {record.sender}"
        digest = sha256(record.body).hexdigest()[:6]
        parts.append(f"record {record.kind}{sender} {digest}")
    for name in ("round", "deadline_seconds", "charge", "settle"):
        value = getattr(change, name)
        if value is not None and name in {"charge", "settle"}:
            parts.append(name)
        elif value is not None:
            parts.append(f"{name} {value:g}")
    if change.reseal is not None:
        parts.append("answered")
    if change.end is not None:
        parts.append("end")
    return ", ".join(parts)
