"""The aggregator process of a load test: `secagg server`, which reports its costs.

Run as ``python -m secagg.testbed.load.aggregator DIRECTORY NUMBER``.

Rule 1: it is the product's own server with the product's own limits, complete and
        unchanged.
Rule 2: CPU is what the system has charged this process for, all threads, in user and
        kernel mode.  It is counted from the moment the port is open until every client
        knows how its session ended.
"""

import asyncio
import os
import resource
import sys
import time
from pathlib import Path
from typing import Final

from secagg.config import load_server_settings
from secagg.errors import SecAggError
from secagg.protocol.messages import Round
from secagg.runtime.vector_files import write_vector
from secagg.server.service import Observer, plan_task, serve
from secagg.server.session.events import SessionProgress
from secagg.server.task.outputs import ReleasedSum
from secagg.testbed.child_process import say, say_failed
from secagg.testbed.load.plan import LoadLayout

_SAMPLE_SECONDS: Final = 0.5
# The progress of a cohort that gathers is reported in steps of so many clients.
_TOLD_EVERY: Final = 32


class _Meter:
    """Samples this process's CPU, to tell waiting from work."""

    def __init__(self) -> None:
        self.at_start = 0.0
        self._samples: list[tuple[float, float]] = []
        self._round: Round | None = None
        self._opened = (0.0, 0.0)
        self._told: tuple[object, ...] = ()

    def start(self) -> None:
        """Count from now on."""
        self.at_start = time.process_time()
        self._opened = (time.monotonic(), self.at_start)

    async def sample(self) -> None:
        """Take samples until cancelled."""
        while True:
            self._samples.append((time.monotonic(), time.process_time()))
            await asyncio.sleep(_SAMPLE_SECONDS)

    def show(self, progress: SessionProgress) -> None:
        """Report the session's progress, and the cost of a closed round."""
        if progress.round is not self._round:
            now = (time.monotonic(), time.process_time())
            if self._round is not None:
                self._tell_closed(self._round, now)
            self._round, self._opened = progress.round, now
        # Reports cost CPU too, which would count as the aggregator's.
        told = (progress.round, progress.phase, progress.joined // _TOLD_EVERY)
        if told == self._told:
            return
        self._told = told
        say(
            "progress",
            phase=progress.phase,
            round=progress.round.name,
            joined=progress.joined,
            needed=progress.needed,
            answered=progress.answered,
            expected=progress.expected,
            lost=len(progress.dropped),
            reason=progress.reason,
        )

    def _tell_closed(self, closed: Round, now: tuple[float, float]) -> None:
        """Report the cost of a round, and that of its second half alone.

        No client uploads in the second half of a round that waits for dropouts alone.
        """
        middle = (self._opened[0] + now[0]) / 2
        late = [each for each in self._samples if each[0] >= middle]
        begin = late[0] if late else now
        say(
            "closed",
            round=closed.name,
            cpu_seconds=now[1] - self._opened[1],
            seconds=now[0] - self._opened[0],
            late_cpu_seconds=now[1] - begin[1],
            late_seconds=now[0] - begin[0],
        )


def main(directory: Path, number: int) -> int:
    """Serve one session and report its cost.

    Args:
        directory: Of the load test.
        number: Of this aggregator, counted from 1.
    """
    layout = LoadLayout(directory)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        asyncio.run(_serve(layout, number))
    except SecAggError as error:
        say_failed(error)
        return 1
    return 0


async def _serve(layout: LoadLayout, number: int) -> None:
    settings = load_server_settings(
        layout.settings_of(number), environment=os.environ
    ).settings
    prepared = await plan_task(settings)
    meter = _Meter()

    def listening(address: object) -> None:
        meter.start()
        say("listening", address=str(address), start_cpu_seconds=meter.at_start)

    async def take_sum(released: ReleasedSum) -> None:
        write_vector(layout.released, released.residues)
        say("sum", included=list(released.receipt.survivors))

    sampling = asyncio.create_task(meter.sample())
    try:
        await serve(
            settings,
            prepared,
            on_sum=take_sum,
            observer=Observer(
                listening=listening,
                progress=meter.show,
                nothing_to_do=lambda sentence: say("nothing_to_do", message=sentence),
            ),
        )
    finally:
        sampling.cancel()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    say(
        "done",
        cpu_seconds=time.process_time() - meter.at_start,
        peak_rss_bytes=_bytes_of(usage.ru_maxrss),
    )


def _bytes_of(ru_maxrss: int) -> int:
    """Return a peak of resident memory in bytes; Linux counts it in KiB."""
    return ru_maxrss if sys.platform == "darwin" else 1024 * ru_maxrss


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
