"""Run many seeds, or replay one: ``python -m secagg_testing.world --help``."""

import argparse
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from secagg_testing.world.run import SERVER, Run, simulate

# Seeds between two lines of progress.
_TELL_EVERY: Final = 500
_SHOWN: Final = 10


def main() -> int:
    """Return 1 if a check failed."""
    parser = argparse.ArgumentParser(
        prog="python -m secagg_testing.world",
        description="Simulate the whole service, with everything that can go wrong.",
    )
    parser.add_argument("--seeds", type=int, default=10_000, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="replay this one, and show all of it")
    parser.add_argument("--processes", type=int, default=1, help="that share the work")
    asked = parser.parse_args()
    if asked.seed is not None:
        return _replay(asked.seed)
    seeds = range(asked.first, asked.first + asked.seeds)
    return _run_all(seeds, asked.processes)


def _replay(seed: int) -> int:
    run = simulate(seed, keep_trace=True)
    _print(str(run.plan))
    _print(*run.trace, sep="\n")
    endings = ", ".join(f"{name}: {end}" for name, end in sorted(run.endings.items()))
    _print(f"{run.sums} sums, {run.steps} steps, {run.seconds:.0f} s; {endings}")
    _print(f"digest {run.digest}")
    for fault in run.faults:
        _print(f"FAULT: {fault}")
    return bool(run.faults)


def _run_all(seeds: range, processes: int) -> int:
    began, failing, steps, seconds = time.monotonic(), list[int](), 0, 0.0
    tally: Counter[str] = Counter()
    for done, run in enumerate(_runs(seeds, processes), 1):
        steps, seconds = steps + run.steps, seconds + run.seconds
        ending = run.endings.get(f"{SERVER}-0", "no end")
        tally[
            f"{run.plan.kind}, servers: {run.plan.servers}, {ending}, {run.sums} sums"
        ] += 1
        if run.faults:
            failing.append(run.plan.seed)
            _print(f"seed {run.plan.seed}: {run.faults[0]}")
            _print(f"  make simulation SEED={run.plan.seed} replays it")
        if done % _TELL_EVERY == 0:
            _print(f"{done} runs, {len(failing)} with a fault")
    for what, count in sorted(tally.items()):
        _print(f"{count:6}  {what}")
    _print(
        f"{len(seeds)} runs from seed {seeds.start} on, {steps} steps, "
        f"{seconds / 3600:.0f} simulated hours in {time.monotonic() - began:.0f} s; "
        f"{len(failing)} with a fault {failing[:_SHOWN] or ''}"
    )
    return bool(failing)


def _runs(seeds: range, processes: int) -> Iterator[Run]:
    if processes == 1:
        yield from map(simulate, seeds)
        return
    with ProcessPoolExecutor(processes, initializer=_end_with_parent) as pool:
        yield from pool.map(simulate, seeds, chunksize=10)


def _end_with_parent() -> None:
    """End a worker together with its parent, also after SIGKILL.

    A worker waits on a pipe that other workers hold open: it would not end.
    """
    parent = multiprocessing.parent_process()

    def leave() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=leave, daemon=True).start()


def _print(*text: str, sep: str = " ") -> None:
    sys.stdout.write(sep.join(text) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
