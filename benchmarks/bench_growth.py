"""The cost of a session against its cohort and its vectors, and its cost by round.

Whole sessions of the real state machines on a ring, the server's sum included, no
network.  A twentieth of the clients is lost before its upload.  A client's figures are
means over all clients; the server's are those of the whole session.  `cost_figures.py`
draws them, and `cost_tables.py` writes them into a page.
"""

import sys
from typing import Final

from measurement import emit
from secagg_testing.cohorts import parameters_for

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.protocol.messages import Round
from secagg.simulation import LossPlan, simulate_session
from secagg.simulation.measurement import CostReport

_BITS: Final = 32
_REPEATS: Final = 3


def main(*, tiny: bool = False) -> None:
    """Measure cohorts of several sizes, vectors of several lengths, and one by round.

    The baseline of a series is its first session. The ratio is its cost over another's:
    below 1 the other session is more expensive.
    """
    degree = 4 if tiny else 32
    cohorts = (6, 12) if tiny else (50, 100, 200, 500, 1000)
    lengths = (64, 256) if tiny else (1_000, 10_000, 100_000, 1_000_000)
    usual = (6, 64) if tiny else (100, 10_000)
    _series("clients", [(clients, usual[1]) for clients in cohorts], degree)
    _series("entries", [(usual[0], length) for length in lengths], degree)
    _rounds(6 if tiny else 100, 64 if tiny else 100_000, degree)


def _series(name: str, sizes: list[tuple[int, int]], degree: int) -> None:
    first: dict[str, float] = {}
    for clients, dimension in sizes:
        costs = _session(clients, dimension, degree)
        values = {
            "client": (1e3 * costs.client_cpu_seconds_mean, "ms"),
            "server": (1e3 * sum(costs.server_cpu_seconds.values()), "ms"),
            "up": (costs.bytes_up / clients, "bytes of a client"),
            "down": (costs.bytes_down / clients, "bytes of a client"),
        }
        for what, (value, unit) in values.items():
            emit(
                f"growth with {name}/{what}",
                parameters=_parameters(clients, dimension, degree),
                value=value,
                unit=unit,
                baseline="the first of its series",
                ratio=first.setdefault(what, value) / value,
            )


def _rounds(clients: int, dimension: int, degree: int) -> None:
    costs = _session(clients, dimension, degree)
    for name, each in costs.rounds.items():
        values = {
            "clients": (1e3 * each.client_cpu_seconds, "ms"),
            "server": (1e3 * each.server_cpu_seconds, "ms"),
            "up": (each.bytes_up, "bytes"),
            "down": (each.bytes_down, "bytes"),
        }
        whole = {
            "clients": 1e3 * sum(r.client_cpu_seconds for r in costs.rounds.values()),
            "server": 1e3 * sum(costs.server_cpu_seconds.values()),
            "up": costs.bytes_up,
            "down": costs.bytes_down,
        }
        for what, (value, unit) in values.items():
            emit(
                f"round {name}/{what}",
                parameters=_parameters(clients, dimension, degree),
                value=value,
                unit=unit,
                baseline="the whole session",
                ratio=whole[what] / value if value else 0.0,
            )


def _session(clients: int, dimension: int, degree: int) -> CostReport:
    """The cheapest of a few sessions: other processes can only add to the cost."""
    parameters = parameters_for(
        clients,
        dimension=dimension,
        threshold=degree // 2 + 1,
        degree=degree,
        min_clients=degree + 2,
        modulus=1 << _BITS,
    )
    lost = dict.fromkeys(
        range(0, clients, 20) if clients > degree + 2 else (),
        Round.MASKED_INPUT_COLLECTION,
    )

    def run() -> CostReport:
        session = simulate_session(
            parameters,
            clients=clients,
            losses=LossPlan(lost),
            entropy=SeededEntropy(SecretBytes(bytes(31) + b"\x09"), b"growth"),
        )
        if not session.is_exact:
            raise RuntimeError("the sum is wrong")
        return session.costs

    return min(
        (run() for _ in range(_REPEATS)),
        key=lambda each: (
            clients * each.client_cpu_seconds_mean
            + sum(each.server_cpu_seconds.values())
        ),
    )


def _parameters(clients: int, dimension: int, degree: int) -> dict[str, object]:
    return {
        "clients": clients,
        "dimension": dimension,
        "degree": degree,
        "bits": _BITS,
    }


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv)
