"""Directs one demo: prepares files, starts the processes, kills some, checks the rest.

Rule 1: the aggregator and every client are processes of their own; this one only
        prepares their files, watches, and compares at the end.
Rule 2: a client that is to drop out is killed with SIGKILL in the middle of a session
        and started again after it, with the same state on the disk.
Rule 3: exactness is checked from the outside: the released sum must equal the sum of
        the integers that the surviving clients report to have masked.
"""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from secagg.crypto.entropy import SystemEntropy
from secagg.distributed_dp import Plan, PrivacyReport, central_gaussian_variance
from secagg.errors import (
    ErrorCode,
    InternalError,
    SessionAbortedError,
)
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.profiles import Profile
from secagg.server.service import plan_task
from secagg.server.task.setup import plan_noise
from secagg.testbed.child_process import ChildProcess, start_child
from secagg.testbed.demo.cohort import Cohort, Loss
from secagg.testbed.demo.layout import DemoLayout, DemoPlan, write_server_settings
from secagg.testbed.demo.model import (
    Shard,
    central_gaussian_accuracies,
    deal_out,
    nonprivate_accuracies,
    save_shard,
)
from secagg.testbed.demo.sum_check import SessionCheck, check_session
from secagg.testbed.run_folder import client_name

# After the aggregator has ended, clients have nothing to wait for.
_FAREWELL_SECONDS: Final = 5.0


class DemoView(Protocol):
    """Shows a demo to people."""

    def tell(self, line: str) -> None:
        """Show one line."""

    def stage(self, state: str) -> None:
        """Show what is being done now; shorter-lived than a line."""

    def references(self, nonprivate: list[float], baseline: list[float]) -> None:
        """Record the accuracies to compare with, step by step."""

    def progress(self, session: Mapping[str, Any]) -> None:
        """Show the progress of a session: round, answered, expected, dropped, ..."""

    def step(self, check: SessionCheck) -> None:
        """Show one training step."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The results of the demo."""

    plan: Plan
    report: PrivacyReport
    checks: tuple[SessionCheck, ...]
    profile: Profile
    clients: int
    clients_lost: int
    baseline: list[float]
    nonprivate: list[float]
    wall_seconds: float

    @property
    def is_exact(self) -> bool:
        """Whether every decoded sum was exact."""
        return bool(self.checks) and all(check.is_exact for check in self.checks)


@dataclass(slots=True)
class _Watched:
    """The aggregator's reports so far."""

    address: asyncio.Future[str]
    ended: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    claimed: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    failure: Mapping[str, Any] | None = None


async def run_demo(
    planned: DemoPlan,
    directory: Path,
    *,
    losses: tuple[Loss, ...],
    view: DemoView,
) -> DemoResult:
    """Run the whole demo.

    Args:
        planned: Clients, steps, budget.
        directory: An empty directory for all files.
        losses: The clients to kill, by session; at most one per session.
        view: Receives the events.

    Returns:
        Accuracies, checks, report.

    Raises:
        ServiceError: A process could not do its work; the message is its own.
        SessionAbortedError: No session released a sum.
    """
    started = time.monotonic()
    layout = DemoLayout(directory)
    view.stage("dealing out the pictures, issuing certificates")
    shards, test = deal_out(planned.clients)
    enrolment_key = await asyncio.to_thread(_prepare_files, layout, shards)
    sizes = [len(shard) for shard in shards]
    view.tell(
        f"{planned.clients} clients hold {min(sizes)} to {max(sizes)} pictures each; "
        f"{len(test)} pictures are kept for testing"
    )
    settings = write_server_settings(layout, planned, enrolment_key=enrolment_key)
    view.stage("planning the noise")
    # The aggregator reads the plan from its store and does not plan again.
    prepared = await plan_task(settings)
    made = await asyncio.to_thread(plan_noise, settings)
    if prepared.report is None:
        raise InternalError("the demo's own settings request no noise")
    direction = _Direction(
        layout,
        planned,
        losses=losses,
        view=view,
        test=test,
        parameters=prepared.parameters,
        enrolment_key=enrolment_key,
        # The failure chance of drawn neighbours is added to that of the noise.
        max_delta=planned.delta + prepared.report.graph_delta,
    )
    view.stage("training without privacy and with a trusted server, to compare with")
    nonprivate, baseline = await asyncio.to_thread(
        _references, shards, test, planned.steps, made
    )
    view.references(nonprivate, baseline)
    await direction.run()
    return DemoResult(
        plan=made,
        report=prepared.report,
        checks=tuple(direction.checks),
        profile=planned.profile,
        clients=planned.clients,
        clients_lost=direction.killed,
        baseline=baseline,
        nonprivate=nonprivate,
        wall_seconds=time.monotonic() - started,
    )


class _Direction:
    """The processes of one run and their results."""

    def __init__(  # noqa: PLR0913 - one run has one of each
        self,
        layout: DemoLayout,
        planned: DemoPlan,
        *,
        losses: tuple[Loss, ...],
        view: DemoView,
        test: Shard,
        parameters: ProtocolParameters,
        enrolment_key: str,
        max_delta: float,
    ) -> None:
        self._layout = layout
        self._parameters = parameters
        self._planned = planned
        self._losses = losses
        self._view = view
        self._test = test
        self._watched = _Watched(asyncio.get_running_loop().create_future())
        self._cohort = Cohort(
            layout,
            planned,
            view.tell,
            enrolment_key=enrolment_key,
            max_delta=max_delta,
            stage=view.stage,
        )
        self.checks: list[SessionCheck] = []

    @property
    def killed(self) -> int:
        """Clients that were killed in the middle of a session."""
        return self._cohort.killed

    async def run(self) -> None:
        """Run all sessions; every process has ended when it returns."""
        aggregator: ChildProcess | None = None
        self._view.stage("the aggregator starts")
        try:
            aggregator = await start_child(
                "aggregator",
                "secagg.testbed.demo.trainer",
                [str(self._layout.root)],
                log=self._layout.log("aggregator"),
                listener=self._hear,
            )
            ended = asyncio.create_task(aggregator.wait())
            address = self._watched.address
            first: set[asyncio.Future[Any]] = {ended, address}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            self._check_failure()
            self._view.tell(f"the aggregator listens on {address.result()}")
            planned = {loss.name: loss for loss in self._losses}
            await self._cohort.start(address.result(), planned)
            stuck = asyncio.create_task(self._cohort.is_stuck.wait())
            await asyncio.wait({ended, stuck}, return_when=asyncio.FIRST_COMPLETED)
            stuck.cancel()
            if not ended.done() and self._cohort.failure is not None:
                raise self._cohort.failure
            self._check_failure()
            self._view.stage("clients learn that the task is over")
            await self._cohort.say_farewell(_FAREWELL_SECONDS)
        finally:
            try:
                await self._cohort.end()
            finally:
                if aggregator is not None:
                    await aggregator.end()

    def _check_failure(self) -> None:
        failure = self._watched.failure
        if failure is not None:
            code = ErrorCode[str(failure["code"])]
            raise SessionAbortedError(
                f"the aggregator stopped: {failure['message']}",
                code=code,
                next_step=str(failure["next_step"])
                or f"See {self._layout.log('aggregator')}.",
            )
        if not self._watched.address.done():
            raise ErrorCode.INTERNAL.error(
                "the aggregator ended before it listened",
                fix=f"See {self._layout.log('aggregator')}.",
            )

    # --- reports of the aggregator --------------------------------------------------

    def _hear(self, said: Mapping[str, Any]) -> None:
        match said["event"]:
            case "listening":
                self._watched.address.set_result(said["address"])
            case "progress":
                self._view.progress(said)
                if said["phase"] in ("completed", "aborted"):
                    self._end_session(said)
            case "step":
                self._watched.claimed[said["session"]] = said
                self._check_if_known(said["session"])
            case "failed":
                self._watched.failure = said

    def _end_session(self, said: Mapping[str, Any]) -> None:
        number = int(said["session"])
        if number in self._watched.ended:
            return
        self._watched.ended[number] = said
        self._cohort.session_over(number)
        if said["phase"] == "aborted":
            self._view.tell(f"session {number} was aborted: {said['reason']}")
        self._check_if_known(number)

    def _check_if_known(self, number: int) -> None:
        """Check a session as soon as its end and its sum are both known."""
        if number in self._watched.ended and number in self._watched.claimed:
            check = check_session(
                self._layout,
                number,
                clients=self._planned.clients,
                dropped=tuple(self._watched.ended[number]["dropped"]),
                claimed=self._watched.claimed[number],
                parameters=self._parameters,
                test=self._test,
            )
            self.checks.append(check)
            self._view.step(check)


def _prepare_files(layout: DemoLayout, shards: Sequence[Shard]) -> str:
    """Issue certificates and credentials, and give every client its shard.

    Returns:
        The enrolment key, as text.
    """
    names = [client_name(number) for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        layout.shard(name).parent.mkdir(parents=True)
        save_shard(shard, layout.shard(name))
    return layout.enrol(names, layout.issue_certificates(names))


def _references(
    shards: Sequence[Shard], test: Shard, steps: int, made: Plan
) -> tuple[list[float], list[float]]:
    """Return the accuracies of training without privacy and with central noise."""
    return (
        nonprivate_accuracies(shards, test, steps=steps),
        central_gaussian_accuracies(
            shards,
            test,
            steps=steps,
            noise_stddev=math.sqrt(central_gaussian_variance(made)),
            entropy=SystemEntropy(),
        ),
    )
