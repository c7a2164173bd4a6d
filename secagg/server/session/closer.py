"""The last steps of a session that is over, here or elsewhere.

Rule 1: its sum is given first.  What ended by a refusal is begun again, and gives no
        sum twice that this process has given.
Rule 2: a session leaves its receipt, and in the same commit what it tells its task
        (`TaskHistory`).
Rule 3: each step may be taken again: it writes the same once more.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from secagg.distributed_dp import following_terms
from secagg.errors import ErrorCode
from secagg.protocol.messages import Released
from secagg.protocol.packing import unpack
from secagg.runtime import log_events as telemetry
from secagg.runtime import metrics
from secagg.server.dependencies import ServerDependencies
from secagg.server.session.runner import SessionRunner
from secagg.server.session.state import patiently
from secagg.server.task.definition import OnAborted, OnEnded, OnSum, SessionSum
from secagg.server.task.history import TaskHistory
from secagg.storage.spool import SUM


class _AsksFacts(Protocol):
    """Says what a task knows from its sessions."""

    async def __call__(self, task_id: str, *, newest: bool) -> TaskHistory:
        """Return it; `newest` asks the book, where others share it."""
        ...


class SessionCloser:
    """Takes the last steps of sessions, for whoever has the right to.

    Args:
        context: What all sessions share.
        facts: Says what a task knows.
        learn: Is told what it knows now.
        on_aborted: Takes the audit receipts of sessions without a sum; None drops them.
        on_ended: Takes what is known of every session at its end; None drops it.
    """

    def __init__(
        self,
        context: ServerDependencies,
        *,
        facts: _AsksFacts,
        learn: Callable[[str, TaskHistory], None],
        on_aborted: OnAborted | None,
        on_ended: OnEnded | None,
    ) -> None:
        self._context = context
        self._workers = context.workers
        self._facts = facts
        self._learn = learn
        self._on_aborted = on_aborted
        self._on_ended = on_ended

    async def take(self, runner: SessionRunner, give: OnSum | None) -> None:
        """Take them all, waiting for a disk or a book that refuses for a moment.

        Args:
            runner: The session.
            give: Takes its sum, if it has one; None where nobody wants it.

        Raises:
            DeliveryDeferredError: Its sum, or its receipt, cannot be put to use here
            for now. ServiceError: STORAGE_FAILED.
        """
        clock, outcome = self._context.clock, runner.outcome()
        if isinstance(outcome, Released) and give is not None:
            await self._give_once(runner, outcome, give)
        await patiently(clock, lambda: self._report(runner))
        known, facts = await patiently(clock, lambda: self._scrub(runner))
        self._note_end(runner, known, facts)
        spool = self._context.spool
        await patiently(
            clock,
            lambda: self._workers.run(spool.drop_uploads, runner.session_id),
        )

    async def _give_once(
        self, runner: SessionRunner, outcome: Released, give: OnSum
    ) -> None:
        """Give a sum, unless this process has done so and then met a refusal."""
        if not runner.is_delivered:
            total = await patiently(
                self._context.clock, lambda: self._load_sum(runner, outcome)
            )
            await give(total)
            runner.is_delivered = True

    async def _report(self, runner: SessionRunner) -> None:
        """Tell those who were promised it what became of a session."""
        if self._on_aborted is not None and not isinstance(runner.outcome(), Released):
            await self._on_aborted(runner.descriptor, runner.audit().encode())
        if self._on_ended is not None:
            await self._on_ended(runner.receipt(), runner.progress())

    async def _scrub(self, runner: SessionRunner) -> tuple[TaskHistory, TaskHistory]:
        """Scrub a session that is over, and leave its receipt and what it tells.

        Returns:
            What its task knew, and what it knows now.
        """
        known = await self._facts(runner.descriptor.task_id, newest=True)
        facts = await self._workers.run(known.after, runner.receipt())
        facts = replace(facts, noise_terms=await self._terms_after(runner, known))
        await runner.finish(facts.encode())
        return known, facts

    def _note_end(
        self, runner: SessionRunner, known: TaskHistory, facts: TaskHistory
    ) -> None:
        self._measure(runner)
        self._learn(runner.descriptor.task_id, facts)
        for identity in sorted(facts.left_out - known.left_out):
            runner.log.write(telemetry.CLIENT_EXCLUDED, sender=identity)

    def _measure(self, runner: SessionRunner) -> None:
        meter, task_id = self._context.meter, runner.descriptor.task_id
        outcome = runner.receipt().outcome_name
        meter.add(metrics.SESSIONS, task=task_id, outcome=outcome)
        for lost in runner.progress().dropped:
            meter.add(
                metrics.CLIENTS_LOST, round=lost.round.name, reason=str(lost.reason)
            )

    async def _terms_after(self, runner: SessionRunner, known: TaskHistory) -> bytes:
        """Return what the next offer says of its noise, from what was released."""
        outcome, descriptor = runner.outcome(), runner.descriptor
        if not isinstance(outcome, Released) or not descriptor.noise_terms:
            return known.noise_terms
        released = await self._load_sum(runner, outcome)
        return await self._workers.run(
            following_terms, descriptor, released.residues, inputs=outcome.survivors
        )

    async def _load_sum(self, runner: SessionRunner, outcome: Released) -> SessionSum:
        """Return the sum of a session that released one."""
        descriptor = runner.descriptor
        parameters = descriptor.parameters
        packed = await self._load(descriptor.session_id, SUM, outcome.sum_hash)
        residues = await self._workers.run(
            unpack, packed, parameters.dimension, parameters.bits, parameters.modulus
        )
        return SessionSum(
            descriptor,
            residues,
            outcome.survivors,
            runner.receipt(),
            runner.audit().encode(),
        )

    async def _load(self, session_id: bytes, name: str, digest: bytes) -> bytes:
        found = await self._workers.run(self._context.spool.read, session_id, name, 0)
        data = b"" if found is None else found[0]
        if await self._workers.sha256(data) != digest:
            raise ErrorCode.STORAGE_FAILED.error(
                f"the {name} of a session is missing or damaged in the spool",
                fix="Do not touch the spool directory while sessions run.",
            )
        return data
