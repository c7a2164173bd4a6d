"""A sum that kills the process that computes it, as an oversized one does."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final
from unittest import mock

from secagg.protocol.events import ComputeSum
from secagg.server.engine.mask_removal import MaskExecutor, UploadReader
from secagg_testing.world.loop import own_process
from secagg_testing.world.servers_seen import ServersSeen


class Poison:
    """Kills processes that compute the first sum.

    Args:
        fatal: How many of them.
        seen: Called with each.
        kill: Kills a process, by name, as soon as it is idle.
    """

    def __init__(
        self, fatal: int, seen: ServersSeen, kill: Callable[[str], None]
    ) -> None:
        self._fatal: Final = fatal
        self._seen: Final = seen
        self._kill: Final = kill
        self._first: bytes | None = None

    def in_the_first_sum(self) -> AbstractContextManager[object]:
        """Replace the computation of sums while the context lasts."""
        compute = MaskExecutor.compute_sum

        async def compute_sum(
            masks: MaskExecutor, job: ComputeSum, uploads: UploadReader
        ) -> bytes:
            process, self._first = own_process(), self._first or job.session_id
            is_first = job.session_id == self._first
            if (
                is_first
                and process is not None
                and self._seen.poisoned[self._first] < self._fatal
            ):
                self._seen.ends_by(process, self._first)
                self._kill(process.name)
                await asyncio.Event().wait()
            return await compute(masks, job, uploads)

        return mock.patch.object(MaskExecutor, "compute_sum", compute_sum)
