"""Our session beside Flower's SecAgg+: the same cohort, vectors, neighbours, losses.

Both run in one process each and without a network; `flower_session.py` lists the parts
of Flower that are measured.  The two alternate, and the cheapest of a few runs counts.
Both add up modulo 2^32.

`SECAGG_FLOWER_PYTHON` names a Python that has Flower.  Without it the benchmark reports
that it compared nothing, which is not an error.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from measurement import emit
from secagg_testing.cohorts import parameters_for

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.protocol.messages import Round
from secagg.simulation import LossPlan, simulate_session

_SCRIPT: Final = Path(__file__).with_name("flower_session.py")
_PYTHON: Final = "SECAGG_FLOWER_PYTHON"
_REPEATS: Final = 2
# Flower quantises to 22 bits: this is the rounding error alone.
_MOST_ERROR: Final = 1e-4
_FIGURES: Final = {
    "client": ("client_cpu_seconds_mean", 1e3, "ms, mean of all clients"),
    "server": ("server_cpu_seconds", 1e3, "ms"),
    "up": ("bytes_up", 1.0, "bytes of all clients"),
    "down": ("bytes_down", 1.0, "bytes of all clients"),
}


def main(*, tiny: bool = False) -> None:
    """Measure both; the baseline is Flower."""
    python = os.environ.get(_PYTHON, "")
    if not python:
        print(f"flower: nothing is compared; {_PYTHON} is not set", file=sys.stderr)
        return
    # clients, entries, neighbours, threshold, lost
    sizes = (
        [(6, 64, 4, 3, 0)]
        if tiny
        else [
            (100, 10_000, 32, 17, 0),
            (100, 10_000, 32, 17, 5),
            (100, 100_000, 32, 17, 5),
            (200, 10_000, 32, 17, 10),
        ]
    )
    for size in sizes:
        _compare(python, *size)


def _compare(  # noqa: PLR0913, PLR0917 - the numbers of one session
    python: str, clients: int, dimension: int, degree: int, threshold: int, lost: int
) -> None:
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, Any]] = []
    for _ in range(_REPEATS):
        ours.append(_our_session(clients, dimension, degree, threshold, lost))
        theirs.append(
            _flower_session(python, clients, dimension, degree, threshold, lost)
        )
    for what, (key, factor, unit) in _FIGURES.items():
        own = min(each[key] for each in ours)
        other = min(each[key] for each in theirs)
        for whose, value in (("ours", own), ("Flower", other)):
            emit(
                f"flower/{what}, {whose}",
                parameters={
                    "clients": clients,
                    "dimension": dimension,
                    "degree": degree,
                    "threshold": threshold,
                    "lost": lost,
                },
                value=factor * value,
                unit=unit,
                baseline=f"Flower {theirs[0]['version']}, SecAgg+",
                ratio=other / value,
            )


def _our_session(
    clients: int, dimension: int, degree: int, threshold: int, lost: int
) -> dict[str, float]:
    parameters = parameters_for(
        clients,
        dimension=dimension,
        threshold=threshold,
        degree=degree,
        min_clients=degree + 2,
        modulus=1 << 32,
    )
    vanishing = [clients * number // lost for number in range(lost)] if lost else []
    session = simulate_session(
        parameters,
        clients=clients,
        losses=LossPlan(dict.fromkeys(vanishing, Round.MASKED_INPUT_COLLECTION)),
        entropy=SeededEntropy(SecretBytes(bytes(31) + b"\x0b"), b"flower"),
    )
    if not session.is_exact:
        raise RuntimeError("the sum is wrong")
    costs = session.costs
    return {
        "client_cpu_seconds_mean": costs.client_cpu_seconds_mean,
        "server_cpu_seconds": sum(costs.server_cpu_seconds.values()),
        "bytes_up": costs.bytes_up,
        "bytes_down": costs.bytes_down,
    }


def _flower_session(python: str, *numbers: int) -> dict[str, Any]:
    # Our path in its environment would make it import our libraries.
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }
    finished = subprocess.run(  # noqa: S603 - the Python that was asked for
        [python, str(_SCRIPT), *map(str, numbers)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if finished.returncode:
        raise RuntimeError(f"Flower's session failed: {finished.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    if not found["error"] < _MOST_ERROR:
        raise RuntimeError(f"Flower's mean is wrong by {found['error']}")
    return found


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv)
