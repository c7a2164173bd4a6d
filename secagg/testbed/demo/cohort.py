"""The client processes of one demo: started together, some killed, then restarted."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from secagg.errors import ErrorCode, ServiceError
from secagg.testbed.child_process import ChildProcess, start_child
from secagg.testbed.demo.layout import DemoLayout, DemoPlan
from secagg.testbed.run_folder import client_name

# Starting an interpreter keeps a core busy; more at once only compete.
_STARTS_AT_ONCE = 4

_PLACE = {
    "choose": "before it has said which neighbours it drew",
    "share": "while sharing keys",
    "upload": "just before its upload",
    "sign": "after its upload, before it has signed who is in the sum",
    "reveal": "after its upload, before unmasking",
}


@dataclass(frozen=True, slots=True)
class Loss:
    """One client to be killed.

    Attributes:
        name: The client.
        session_number: The session.
        before: The message before which it is killed: "choose", "share", "upload",
            "sign" or "reveal".
    """

    name: str
    session_number: int
    before: str


class Cohort:
    """All clients of one demo.

    Attributes:
        killed: How many were killed in the middle of a session so far.
        failure: Why the latest failed client cannot continue; None while all can.
        is_stuck: Set when too few clients can continue: the aggregator would wait for
            the others for ever.
    """

    def __init__(  # noqa: PLR0913 - what one run tells its clients
        self,
        layout: DemoLayout,
        planned: DemoPlan,
        tell: Callable[[str], None],
        *,
        enrolment_key: str,
        max_delta: float,
        stage: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._layout = layout
        self._max_delta = max_delta
        self._enrolment_key = enrolment_key
        self._planned = planned
        self._tell = tell
        self._stage = stage
        self._address = ""
        self._children: dict[str, ChildProcess] = {}
        self._started: list[ChildProcess] = []  # including those that were killed
        self._fallen: dict[int, list[str]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self.killed = 0
        self.failure: ServiceError | None = None
        self.is_stuck = asyncio.Event()
        self._failed: set[str] = set()
        self._is_over = False

    async def start(self, address: str, losses: Mapping[str, Loss]) -> None:
        """Start every client, a few at a time."""
        self._address = address
        slots = asyncio.Semaphore(_STARTS_AT_ONCE)

        async def start_one(number: int) -> None:
            name = client_name(number)
            async with slots:
                await self._start(name, losses.get(name))
                self._stage(f"{len(self._started)} of {clients} clients started")

        clients = self._planned.clients
        async with asyncio.TaskGroup() as group:
            for number in range(1, clients + 1):
                group.create_task(start_one(number))
        self._stage(f"{clients} clients load their libraries")

    def session_over(self, session_number: int) -> None:
        """Restart the clients killed in a session; none once all are to end."""
        if self._is_over:
            return
        for name in self._fallen.pop(session_number, []):
            self._tell(f"{name} is started again, with its state on the disk")
            self._spawn(self._start(name, None))

    async def say_farewell(self, seconds: float) -> None:
        """Give clients a moment to learn that the task is over."""
        waiting = [
            asyncio.create_task(child.wait()) for child in self._children.values()
        ]
        if waiting:
            await asyncio.wait(waiting, timeout=seconds)
            for child in self._children.values():
                child.kill()
            await asyncio.wait(waiting)

    async def end(self) -> None:
        """End every client at once; all have ended when it returns."""
        # The aggregator still reports how sessions end: a client that was started again
        # now would never be ended.
        self._is_over = True
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await asyncio.gather(*(child.end() for child in self._started))

    async def _start(self, name: str, loss: Loss | None) -> None:
        planned = self._planned
        arguments = [
            str(self._layout.root),
            name,
            self._address,
            f"--max-epsilon={planned.epsilon}",
            f"--max-delta={self._max_delta}",
            f"--min-survivors={planned.min_survivors}",
            f"--profile={planned.profile.label}",
            f"--graph={planned.graph}",
            f"--enrolment-key={self._enrolment_key}",
        ]
        if loss is not None:
            arguments += [
                f"--pause-in-session={loss.session_number}",
                f"--pause-before={loss.before}",
            ]
        child = await start_child(
            name,
            "secagg.testbed.demo.participant",
            arguments,
            log=self._layout.log(name),
            listener=lambda said: self._hear(name, said),
        )
        self._children[name] = child
        self._started.append(child)
        self._spawn(self._watch(name, child))

    async def _watch(self, name: str, child: ChildProcess) -> None:
        """Detect a client that ends with a fault that it has not reported."""
        if await child.wait() > 0 and name not in self._failed:  # a kill is below zero
            self._fail(name, "it ended unexpectedly", ErrorCode.INTERNAL, "")

    def _fail(self, name: str, why: str, code: ErrorCode, next_step: str) -> None:
        self._tell(f"{name} cannot continue: {why}")
        self.failure = ServiceError(
            f"{name} cannot continue: {why}",
            code=code,
            next_step=next_step or f"See {self._layout.log(name)}.",
        )
        self._failed.add(name)
        if self._planned.clients - len(self._failed) < self._planned.min_survivors:
            self.is_stuck.set()

    def _hear(self, name: str, said: Mapping[str, Any]) -> None:
        match said["event"]:
            case "paused":
                session = int(said["session"])
                self._tell(
                    f"session {session}: {name} is killed {_PLACE[said['before']]}"
                )
                self._children[name].kill()
                self.killed += 1
                self._fallen.setdefault(session, []).append(name)
            case "failed":
                code = ErrorCode[str(said["code"])]
                self._fail(name, str(said["message"]), code, str(said["next_step"]))

    def _spawn(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
