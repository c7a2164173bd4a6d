"""The aggregator process of a load test: `secagg server`, which reports its costs.

Run as ``python -m secagg.testbed.load.aggregator DIRECTORY NAME``.

CPU is what the system has charged this process for, all threads, in user and kernel
mode.  It is counted from the moment the port is open until every client knows how its
session ended.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Final

from secagg.protocol.messages import Round
from secagg.runtime.garbage import peak_rss_bytes
from secagg.runtime.vector_files import write_vector
from secagg.server.session.events import SessionProgress
from secagg.server.task.outputs import ReleasedSum
from secagg.testbed.aggregator import report_progress, serve_run
from secagg.testbed.child_process import report, run_process
from secagg.testbed.load.result import LoadLayout
from secagg.transport.address import Address

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
        self._last_reported: tuple[object, ...] = ()

    def start(self, address: Address) -> None:
        """Count from now on: the port is open."""
        self.at_start = time.process_time()
        self._opened = (time.monotonic(), self.at_start)
        report("listening", address=str(address), start_cpu_seconds=self.at_start)

    async def sample(self) -> None:
        """Take samples until cancelled."""
        while True:
            self._samples.append((time.monotonic(), time.process_time()))
            await asyncio.sleep(_SAMPLE_SECONDS)

    def report(self, progress: SessionProgress) -> None:
        """Report the session's progress, and the cost of a closed round."""
        if progress.round is not self._round:
            now = (time.monotonic(), time.process_time())
            if self._round is not None:
                self._report_closed(self._round, now)
            self._round, self._opened = progress.round, now
        # Reports cost CPU too, which would count as the aggregator's.
        told = (progress.round, progress.phase, progress.joined // _TOLD_EVERY)
        if told != self._last_reported:
            self._last_reported = told
            report_progress(progress)

    def _report_closed(self, closed: Round, now: tuple[float, float]) -> None:
        """Report the cost of a round, and that of its second half alone.

        No client uploads in the second half of a round that waits for dropouts alone.
        """
        middle = (self._opened[0] + now[0]) / 2
        late = [each for each in self._samples if each[0] >= middle]
        begin = late[0] if late else now
        report(
            "closed",
            name=closed.name,
            seconds=now[0] - self._opened[0],
            cpu_seconds=now[1] - self._opened[1],
            late_seconds=now[0] - begin[0],
            late_cpu_seconds=now[1] - begin[1],
        )


async def serve_and_measure(layout: LoadLayout, name: str) -> None:
    """Serve one session and report its cost.

    Args:
        layout: The files of the load test.
        name: Of this aggregator's settings.
    """
    meter = _Meter()

    async def write_sum(released: ReleasedSum) -> None:
        write_vector(layout.released, released.residues)
        report("sum", included=list(released.receipt.survivors))

    sampling = asyncio.create_task(meter.sample())
    try:
        await serve_run(
            layout.settings(name),
            take_sum=write_sum,
            listening=meter.start,
            progress=meter.report,
        )
    finally:
        sampling.cancel()
    report(
        "done",
        cpu_seconds=time.process_time() - meter.at_start,
        peak_rss_bytes=peak_rss_bytes(),
    )


if __name__ == "__main__":
    _, root, this = sys.argv
    sys.exit(run_process(serve_and_measure(LoadLayout(Path(root)), this)))
