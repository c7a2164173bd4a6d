"""One demo: its files, its processes, of which some are killed, and its checks.

Rule 1: the aggregator and every client are processes of their own; this one only
        prepares their files, watches, and compares at the end.
Rule 2: a client that is to drop out is killed with SIGKILL in the middle of a session
        and started again after it, with the same state on the disk.
Rule 3: exactness is checked from the outside: the released sum must equal the sum of
        the integers that the surviving clients report to have masked.
Rule 4: accuracy by step is drawn as SVG text, by the standard library alone: the demo
        must not need a library for plots. Equal results give equal text.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Final, Protocol

from secagg.crypto.entropy import SystemEntropy
from secagg.distributed_dp import Plan, PrivacyReport, central_gaussian_variance
from secagg.errors import ErrorCode
from secagg.protocol.parameters import ProtocolParameters
from secagg.server.service import plan_task
from secagg.server.task.setup import plan_noise
from secagg.testbed.child_process import Event
from secagg.testbed.demo.layout import DemoLayout, DemoPlan
from secagg.testbed.demo.model import Shard, reference_accuracies, save_shard, split
from secagg.testbed.demo.sum_check import SessionCheck, check_session
from secagg.testbed.director import ChildProgram, Director
from secagg.testbed.run_folder import client_name

# After the aggregator has ended, clients have nothing to wait for.
_FAREWELL_SECONDS: Final = 5.0
_PLACE: Final = {
    "choose": "before it has said which neighbours it drew",
    "share": "while sharing keys",
    "upload": "just before its upload",
    "sign": "after its upload, before it has signed who is in the sum",
    "reveal": "after its upload, before unmasking",
}


class DemoView(Protocol):
    """Shows a demo to people."""

    def show_line(self, line: str) -> None:
        """Show one line."""

    def stage(self, state: str) -> None:
        """Show what is being done now; shorter-lived than a line."""

    def references(self, nonprivate: list[float], baseline: list[float]) -> None:
        """Record the accuracies to compare with, step by step."""

    def progress(self, session: Event) -> None:
        """Show the progress of a session: round, answered, expected, dropped, ..."""

    def step(self, check: SessionCheck) -> None:
        """Show one training step."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The results of the demo."""

    planned: DemoPlan
    plan: Plan
    report: PrivacyReport
    checks: tuple[SessionCheck, ...]
    clients_lost: int
    baseline: list[float]
    nonprivate: list[float]
    wall_seconds: float

    @property
    def is_exact(self) -> bool:
        """Whether every decoded sum was exact."""
        return bool(self.checks) and all(check.is_exact for check in self.checks)


async def run_demo(planned: DemoPlan, directory: Path, view: DemoView) -> DemoResult:
    """Run the whole demo.

    Args:
        planned: Clients, steps, budget, losses.
        directory: An empty directory for all files.
        view: Receives the events.

    Returns:
        Accuracies, checks, report.

    Raises:
        ServiceError: A process cannot continue; the message is its own.
    """
    started = time.monotonic()
    layout = DemoLayout(directory)
    view.stage("dealing out the pictures, issuing certificates")
    shards, test = split(planned.clients)
    key = await asyncio.to_thread(_prepare_files, layout, shards)
    planned = replace(planned, enrolment_key=key)
    sizes = [len(shard) for shard in shards]
    view.show_line(
        f"{planned.clients} clients hold {min(sizes)} to {max(sizes)} pictures each; "
        f"{len(test)} pictures are kept for testing"
    )
    settings = layout.write_settings(planned.settings())
    view.stage("planning the noise")
    # The aggregator reads the plan from its store and does not plan again.
    prepared = await plan_task(settings)
    made = await asyncio.to_thread(plan_noise, settings)
    if prepared.report is None:
        raise ErrorCode.INTERNAL.error("the demo's own settings request no noise")
    planned = replace(planned, graph_delta=prepared.report.graph_delta)
    planned.write(layout)
    view.stage("training without privacy and with a trusted server, to compare with")
    nonprivate, baseline = await asyncio.to_thread(
        reference_accuracies,
        shards,
        test,
        steps=planned.steps,
        noise_stddev=math.sqrt(central_gaussian_variance(made)),
        entropy=SystemEntropy(),
    )
    view.references(nonprivate, baseline)
    async with Director(layout, view.show_line) as director:
        run = _Run(director, layout, planned, view, prepared.parameters, test)
        await run.serve()
    return DemoResult(
        planned=planned,
        plan=made,
        report=prepared.report,
        checks=tuple(run.checks),
        clients_lost=run.killed,
        baseline=baseline,
        nonprivate=nonprivate,
        wall_seconds=time.monotonic() - started,
    )


@dataclass(slots=True)
class _Run:
    """The sessions of one demo: what its processes report, and the clients it kills.

    Attributes:
        checks: Of the sessions that released a sum.
        killed: Clients that were killed in the middle of a session.
    """

    _director: Director
    _layout: DemoLayout
    _planned: DemoPlan
    _view: DemoView
    _parameters: ProtocolParameters
    _test: Shard
    checks: list[SessionCheck] = field(default_factory=list)
    killed: int = 0
    _ended: dict[int, Event] = field(default_factory=dict)
    _claimed: dict[int, Event] = field(default_factory=dict)
    _fallen: dict[int, list[ChildProgram]] = field(default_factory=dict)

    async def serve(self) -> None:
        """Run all sessions."""
        planned, view = self._planned, self._view
        view.stage("the aggregator starts")
        aggregator = ChildProgram(
            "aggregator", "secagg.testbed.demo.trainer", (), self._on_aggregator_event
        )
        (address,) = await self._director.start_servers([aggregator])
        await self._director.start_clients(
            [self._client(i, address) for i in range(1, planned.clients + 1)],
            needed=planned.min_survivors,
            started=lambda count: view.stage(
                f"{count} of {planned.clients} clients started"
            ),
        )
        view.stage(f"{planned.clients} clients load their libraries")
        await self._director.until_served()
        view.stage("clients learn that the task is over")
        await self._director.until_clients_end(_FAREWELL_SECONDS)

    def _client(self, number: int, address: str) -> ChildProgram:
        """Return a client's program, which is killed where it pauses."""
        name = client_name(number)

        def on_event(said: Event) -> None:
            if said["event"] == "paused":
                session, where = said["session"], _PLACE[said["before"]]
                self._view.show_line(f"session {session}: {name} is killed {where}")
                self._director.kill(name)
                self.killed += 1
                self._fallen.setdefault(session, []).append(program)
                if session in self._ended:  # without this client, which was slow
                    self._restart_killed(session)

        module = "secagg.testbed.demo.participant"
        program = ChildProgram(name, module, (name, address), on_event)
        return program

    def _on_aggregator_event(self, said: Event) -> None:
        """Show the aggregator's progress, and check its steps."""
        match said["event"]:
            case "progress":
                self._view.progress(said)
                if said["phase"] in ("completed", "aborted"):
                    self._end_session(said)
            case "step":
                self._claimed[said["session"]] = said
                self._check_if_known(said["session"])

    def _end_session(self, said: Event) -> None:
        """Note the end of a session once, and start its killed clients again."""
        number = said["session"]
        if number in self._ended:
            return
        self._ended[number] = said
        self._restart_killed(number)
        if said["phase"] == "aborted":
            self._view.show_line(f"session {number} was aborted: {said['reason']}")
        self._check_if_known(number)

    def _restart_killed(self, number: int) -> None:
        """Start the clients again that were killed in a session."""
        for program in self._fallen.pop(number, []):
            self._view.show_line(
                f"{program.name} is started again, with its state on the disk"
            )
            self._director.start_again(program)

    def _check_if_known(self, number: int) -> None:
        """Check a session as soon as its end and its sum are both known."""
        if number in self._ended and number in self._claimed:
            check = check_session(
                self._layout,
                number,
                clients=self._planned.clients,
                dropped=tuple(self._ended[number]["dropped"]),
                claimed=self._claimed[number],
                parameters=self._parameters,
                test=self._test,
            )
            self.checks.append(check)
            self._view.step(check)


def _prepare_files(layout: DemoLayout, shards: Sequence[Shard]) -> str:
    """Give every client its shard, certificate and credential.

    Returns:
        The enrolment key, as text.
    """
    for number, shard in enumerate(shards, start=1):
        path = layout.shard(client_name(number))
        path.parent.mkdir(parents=True)
        save_shard(shard, path)
    return layout.issue(len(shards))


# Colours that stay apart for colour-blind readers, after M. Okabe and K. Ito.
_LINES: Final = (
    ("no privacy", "#777777"),
    ("trusted server", "#009E73"),
    ("secagg", "#0072B2"),
)
_WIDTH, _HEIGHT = 600, 265
_LEFT, _TOP, _WIDE, _HIGH = 60.0, 40.0, 400.0, 190.0
_LABEL_HEIGHT: Final = 14.0


def demo_title(clients: int, epsilon: float, killed: int) -> str:
    """Return the heading of the picture of a run."""
    return f"Accuracy of the demo: {clients} clients, ε = {epsilon:g}, {killed} killed"


def accuracy_picture(
    title: str,
    *,
    private: Sequence[float],
    central: Sequence[float],
    nonprivate: Sequence[float],
) -> str:
    """Return a drawing of the accuracy over the steps of a demo.

    Args:
        title: Heading of the drawing.
        private: Accuracy after each step, 0 to 1; at least two steps.
        central: The same with noise that a trusted server adds.
        nonprivate: The same without noise.
    """
    curves = (nonprivate, central, private)
    lowest = min(min(each) for each in curves)
    floor = min(80, int(lowest * 5) * 20)  # percent, so that curves fill the frame

    def place(step: int, accuracy: float) -> tuple[float, float]:
        across = _LEFT + _WIDE * step / (len(private) - 1)
        part = (100.0 * accuracy - floor) / (100.0 - floor)
        return across, _TOP + _HIGH * (1.0 - part)

    parts = [
        _svg_text(_WIDTH / 2, 20, title, "text-anchor='middle' font-weight='bold'")
    ]
    for percent in range(floor, 101, 20):
        _, y = place(0, percent / 100)
        parts.append(
            f"<line x1='{_LEFT:g}' x2='{_LEFT + _WIDE:g}' y1='{y:.1f}' y2='{y:.1f}' "
            "stroke='#ddd'/>"
        )
        parts.append(_svg_text(_LEFT - 8, y + 4, f"{percent} %", "text-anchor='end'"))
    for (_, colour), curve in zip(_LINES, curves, strict=True):
        points = [place(step, each) for step, each in enumerate(curve)]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(
            f"<polyline points='{drawn}' fill='none' stroke='{colour}' "
            "stroke-width='2'/>"
        )
    labels = sorted(
        (place(len(curve) - 1, curve[-1])[1] + 4, name, colour)
        for (name, colour), curve in zip(_LINES, curves, strict=True)
    )
    last = 0.0
    for y, name, colour in labels:
        last = max(y, last + _LABEL_HEIGHT)  # no label hides another one
        parts.append(_svg_text(_LEFT + _WIDE + 10, last, name, f"fill='{colour}'"))
    for step in range(len(private)):
        x, _ = place(step, 1.0)
        label = f"step {step + 1}" if len(private) <= 8 else str(step + 1)  # noqa: PLR2004 - what the width holds
        parts.append(_svg_text(x, _TOP + _HIGH + 18, label, "text-anchor='middle'"))
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}' "
        f"width='{_WIDTH}' height='{_HEIGHT}' font-family='sans-serif' font-size='12' "
        f"fill='#222'>\n<title>{escape(title)}</title>\n"
        f"<rect width='{_WIDTH}' height='{_HEIGHT}' fill='#fff'/>\n{body}\n</svg>\n"
    )


def _svg_text(x: float, y: float, text: str, look: str) -> str:
    """Return a text of a picture."""
    return f"<text x='{x:.1f}' y='{y:.1f}' {look}>{escape(text)}</text>"
