"""The last step of a session's protocol: its masks are removed, its sum is released.

Rule 1: of those who share the book one computes the sum, by the session's lease; any
        other can, and would get the same bytes (`secagg.server.session.lease`).
Rule 2: the packed sum is in the spool before the session ends by it: another process
        may be asked for it.
Rule 3: a sum is stored as begun before it is.  One whose aggregators ended by it three
        times ends the session: else it would take down one after the other, for ever.
        Who is asked to end takes its beginning back.
Rule 4: what is away for a moment is waited for.  An upload that is gone, or a sum that
        cannot be computed, ends the session, whose inputs count as used.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.protocol.events import AbortRequested, SumComputed
from secagg.protocol.outputs import ComputeSum
from secagg.protocol.server import machine as server
from secagg.runtime import log_events as telemetry
from secagg.server.dependencies import ServerDependencies
from secagg.server.session.events import SessionLog
from secagg.server.session.lease import SessionLease
from secagg.server.session.state import DurableState, MakeEvent, patiently
from secagg.server.session.uploads import UploadReceiver
from secagg.storage.change import LeaseLostError
from secagg.storage.journal import SumAttempt
from secagg.storage.queries import ReadClock
from secagg.storage.spool import SUM

# How often a sum may take its aggregator down.  Once may be another program's fault,
# twice too little memory beside it; the third time it is the sum's.
MOST_ATTEMPTS: Final = 3


class SumRelease:
    """Computes the sum of one session and ends the session by it.

    Args:
        session_id: The session.
        context: What it shares with other sessions.
        durable: Its state.
        lease: The right to take its last steps.
        desk: Where its uploads came in.
        log: What the operator is told of it.
        is_resumed: Another process may have taken uploads: they are compared with
            their digests before they are summed.
    """

    def __init__(  # noqa: PLR0913 - the last step needs what the others have left
        self,
        session_id: bytes,
        context: ServerDependencies,
        *,
        durable: DurableState,
        lease: SessionLease,
        desk: UploadReceiver,
        log: SessionLog,
        is_resumed: bool,
    ) -> None:
        self._session_id = session_id
        self._context = context
        self._durable = durable
        self._lease = lease
        self._desk = desk
        self._log = log
        self._is_resumed = is_resumed
        self._has_begun = False

    async def release(self, job: ComputeSum) -> None:
        """Have the session end by its sum, unless somebody else does it.

        Raises:
            ServiceError: STORAGE_FAILED, again and again; a restart resumes it.
        """
        if not await self._lease.hold():
            return
        try:
            if await self._begin():
                await self._compute(job)
        except LeaseLostError:
            await self._lease.let_go()
        except asyncio.CancelledError:
            await self._leave()
            raise

    async def _begin(self) -> bool:
        """Store that the sum is begun, once; False when it was too often.

        Raises:
            LeaseLostError: Somebody else does the work.
        """
        if self._has_begun:  # a book that was away is no end of this process
            return True
        begun = self._durable.sums_begun
        if begun >= MOST_ATTEMPTS:
            failed = AbortRequested(
                ErrorCode.INTERNAL,
                f"the sum was begun {begun} times, and each time the aggregator that "
                "computed it ended before it was done",
                discard_unmasked=True,
            )
            await self._end(lambda _: failed)
            return False
        if begun:
            self._log.write(
                telemetry.SUM_RETRIED,
                level=logging.WARNING,
                attempt=begun + 1,
                of=MOST_ATTEMPTS,
            )
        await self._durable.note_attempt(
            SumAttempt(is_begun=True), lease=self._lease.held
        )
        self._has_begun = True
        return True

    async def _leave(self) -> None:
        """Take back that the sum was begun: this process is asked to end."""
        if self._has_begun:
            self._has_begun = False
            with suppress(SecAggError):  # then it counts
                await self._durable.note_attempt(SumAttempt(is_begun=False))

    async def _compute(self, job: ComputeSum) -> None:
        context = self._context
        try:
            packed = await self._computed(job)
        except ServiceError as error:
            # Gone for good, or for longer than clients wait: the budget is spent.
            reason = f"the sum could not be computed: {error}"
            failed = AbortRequested(error.code, reason, discard_unmasked=True)
            await self._end(lambda _: failed)
            return
        await patiently(
            context.clock,
            lambda: context.workers.run(
                context.spool.put, self._session_id, SUM, packed
            ),
        )
        digest = await context.workers.sha256(packed)
        await self._end(lambda kept: SumComputed(digest, len(packed), kept))

    async def _end(
        self, event_of: Callable[[int], SumComputed | AbortRequested]
    ) -> None:
        """End the session by its sum or without; nothing happens if somebody has.

        A process that was stopped, or too busy to renew its lease, takes it again and
        not its work: computed anew on the same machine, it would take as long.

        Args:
            event_of: Makes the last event, given until when a sum is kept.
        """
        while await self._lease.hold():
            event = event_of(await self._kept_until())
            try:
                await self._durable.advance(_last(event), lease=self._lease.held)
            except LeaseLostError:
                await self._lease.let_go()
            else:
                return

    async def _computed(self, job: ComputeSum) -> bytes:
        """Remove the masks, also where the store of uploads is away for a moment."""
        packed, lost = b"", None

        async def compute() -> None:
            nonlocal packed, lost
            try:
                if self._is_resumed:
                    await self._desk.check_stored(digest for _, digest in job.uploads)
                packed = await self._context.masks.compute_sum(job, self._context.spool)
            except ServiceError as error:
                if error.retry_after_seconds is not None:
                    raise
                lost = error  # no use in asking again

        await patiently(self._context.clock, compute)
        if lost is not None:
            raise lost
        return packed

    async def _kept_until(self) -> int:
        """Return until when the sum can be fetched at least, in Unix seconds."""
        kept = self._context.keep_seconds
        if not kept:
            return 0
        store = self._context.store
        now = await patiently(self._context.clock, lambda: store.read(ReadClock()))
        return int(now + kept)


def _last(event: SumComputed | AbortRequested) -> MakeEvent:
    """Return what makes an event, unless the session stands elsewhere by now."""
    return lambda state: event if isinstance(state, server.Summing) else None
