"""Checks whether an aggregator can serve clients now, by trying.

Rule 1: ready means that a change reaches the disk within two seconds, uploads have
        space, and a task runs.  No earlier result is assumed.
Rule 2: however many callers ask, one check runs at a time, and its result is valid for
        a moment.
Rule 3: a clock behind the newest commit of the store delays the start, ten minutes at
        most: that commit may have the wrong time.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from secagg.errors import SecAggError
from secagg.runtime import log_events as telemetry
from secagg.runtime.clock import Clock, finish_before
from secagg.storage.change import Side
from secagg.storage.changes import Touch
from secagg.storage.queries import ListSessions, ReadClock
from secagg.storage.rows import SessionState
from secagg.storage.spool import MIN_FREE_BYTES
from secagg.storage.store import Store

PROBE_EVERY_SECONDS: Final = 5.0
_CLOCK_BEHIND_SECONDS: Final = 60.0
"""How far the clock may be behind the newest commit of the store."""

_CLOCK_WAIT_SECONDS: Final = 600.0
"""How long such a clock is waited for."""

_WRITE_SECONDS: Final = 2.0
_LATEST_SESSIONS: Final = 64
_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)


class Readiness:
    """Checks whether an aggregator can serve.

    Args:
        stores: The stores of its sessions.
        state_dir: Directory of its uploads.
        runs_tasks: Returns whether sessions may open.
        clock: Time.
        is_store_elsewhere: Whether the store is on another machine: when it hangs,
            another process would hang in the same way.

    Attributes:
        store_answers: Whether the store answered the last check, if only to refuse; one
            on another machine is not considered.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        state_dir: Path,
        runs_tasks: Callable[[], bool],
        clock: Clock,
        *,
        is_store_elsewhere: bool = False,
    ) -> None:
        self._stores = stores
        self._state_dir = state_dir
        self._runs_tasks = runs_tasks
        self._clock = clock
        self._is_store_elsewhere = is_store_elsewhere
        self._one_at_a_time = asyncio.Lock()
        self._probed_at = -PROBE_EVERY_SECONDS
        self._disk = ""
        # The newest commit of earlier processes, in Unix seconds; None after the clock
        # has passed it, or the wait has ended.
        self._newest: float | None = None
        self._clock_until: float | None = None
        self.store_answers = True

    async def complaint(self) -> str:
        """Return what prevents serving clients, in words; empty if nothing does."""
        async with self._one_at_a_time:
            now = self._clock.now()
            if now >= self._probed_at + PROBE_EVERY_SECONDS:
                self._disk = await self._complaint_of_disk()
                if not self._disk:
                    self._disk = await self._complaint_of_clock()
                self._probed_at = self._clock.now()
        if self._disk:
            return self._disk
        return "" if self._runs_tasks() else "no task runs"

    async def _complaint_of_disk(self) -> str:
        """Return why the storage cannot be used; "" where it can."""
        self.store_answers = True
        try:
            deadline = self._clock.now() + _WRITE_SECONDS
            for store in self._stores:
                await finish_before(self._clock, deadline, store.commit(Touch()))
            free = shutil.disk_usage(self._state_dir).free
        except TimeoutError:
            self.store_answers = self._is_store_elsewhere
            return f"the store took longer than {_WRITE_SECONDS:g} s to write"
        except (SecAggError, OSError) as error:
            return f"the storage refuses: {error}"
        if free < MIN_FREE_BYTES:
            return f"{free >> 20} MiB of disk are free, {MIN_FREE_BYTES >> 20} needed"
        return ""

    async def _complaint_of_clock(self) -> str:
        """Compare this machine's clock with the store, at the start."""
        if self._clock_until is None:
            try:
                await self._compare_with_store()
            except SecAggError as error:
                return f"the storage refuses: {error}"
            self._clock_until = self._clock.now() + _CLOCK_WAIT_SECONDS
        if self._newest is None:
            return ""
        behind = self._newest - self._clock.date()
        if behind <= _CLOCK_BEHIND_SECONDS:
            self._newest = None
            return ""
        if self._clock.now() < self._clock_until:
            return (
                f"this machine's clock is {behind:.0f} s behind the newest commit of "
                "its store"
            )
        self._newest = None
        telemetry.log_event(
            _LOG,
            logging.WARNING,
            telemetry.CLOCK_BEHIND,
            seconds=round(behind),
            next_step="Compare this machine's clock with the right time: clients "
            "refuse sessions of a wrong one.",
        )
        return ""

    async def _compare_with_store(self) -> None:
        """Read the newest date of the store, or compare the database's clock."""
        if not self._is_store_elsewhere:
            dates = [
                row.ended or row.born
                for store in self._stores
                for row in await store.read(
                    ListSessions(
                        role=Side.SERVER, state=SessionState.ALL, limit=_LATEST_SESSIONS
                    )
                )
            ]
            self._newest = max(dates, default=None)
            return
        # The database counts for deadlines; this clock is used for the log alone.
        differ = await self._stores[0].read(ReadClock()) - self._clock.date()
        if abs(differ) > _CLOCK_BEHIND_SECONDS:
            telemetry.log_event(
                _LOG,
                logging.WARNING,
                telemetry.CLOCK_DIFFERS,
                seconds=round(differ),
                next_step="Compare the clocks of this machine and of the database.",
            )
