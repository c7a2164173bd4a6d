"""Measuring and reporting, shared by all benchmarks: one JSON line per result.

* Time is CPU time of the process, the minimum of several runs, with warm caches.
* A result carries its ratio to a baseline that the same run measured; absolute figures
  do not carry over from one machine to another.
* A line also says what the machine was: CPU flags, versions, threads, load, commit.
"""

import functools
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import cryptography
import numpy as np

_FLAGS_OF_INTEREST = ("aes", "vaes", "avx2", "avx512f")
_BROKEN_PROMISES: list[str] = []
_ROWS: list[tuple[str, str, str, str, str]] = []


def cpu_seconds(function: Callable[[], object], *, repeats: int = 5) -> float:
    """The least CPU time of one call, in seconds, after one call to warm up."""
    function()
    best = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        function()
        best = min(best, time.process_time() - begin)
    return best


def emit(  # noqa: PLR0913 - the columns of one result
    name: str,
    *,
    parameters: dict[str, object],
    value: float,
    unit: str,
    baseline: str,
    ratio: float,
    target_met: bool | None = None,
) -> None:
    """Print one result.

    Args:
        name: What was measured.
        parameters: Sizes and settings.
        value: The measurement.
        unit: Its unit.
        baseline: What the ratio compares with.
        ratio: How many times faster than the baseline this is.
        target_met: Whether a speed target is met; None without a target.
    """
    if target_met is False:
        _BROKEN_PROMISES.append(name)
    line = {
        "name": name,
        "parameters": parameters,
        "value": float(f"{value:.4g}"),
        "unit": unit,
        "baseline": baseline,
        "ratio": float(f"{ratio:.4g}"),
        "target_met": target_met,
        "environment": {**_environment(), "load": os.getloadavg()[0]},
    }
    sizes = ", ".join(f"{key} {given}" for key, given in parameters.items())
    promise = {None: "", True: "kept", False: "BROKEN"}[target_met]
    measured = f"{value:.4g} {unit}"
    _ROWS.append((name, sizes, measured, f"{ratio:.3g} x {baseline}", promise))
    print(json.dumps(line, ensure_ascii=False), flush=True)


def broken_promises() -> list[str]:
    """Names of the results so far that missed their target, for `run.py --check`."""
    return list(_BROKEN_PROMISES)


def table() -> list[str]:
    """Return the results so far as aligned lines of text."""
    heads = ("what", "sizes", "measured", "speed", "promise")
    rows = [heads, *_ROWS]
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    return [
        "  ".join(
            text.ljust(width) for text, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


@functools.cache
def _environment() -> dict[str, object]:
    """Return the properties of the machine that do not change during a run."""
    cpu_info = Path("/proc/cpuinfo")
    flags = cpu_info.read_text(encoding="ascii").split() if cpu_info.exists() else []
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607 - git as found
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "cpu_flags": [flag for flag in _FLAGS_OF_INTEREST if flag in flags],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cryptography": cryptography.__version__,
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "default"),
        "commit": commit or "unknown",
    }
