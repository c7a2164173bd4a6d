"""The server's share of a session: messages, reconstruction, and removing masks."""

import sys
import time

from measurement import emit
from secagg_testing.cohorts import one_hot, parameters_for

from secagg.crypto.modular import UnsignedArray
from secagg.protocol.events import (
    ComputeSum,
    Received,
    RoundClosed,
    ServerEvent,
    ServerOutput,
)
from secagg.protocol.messages import Advert, Bundles, Round, Shares, Upload
from secagg.simulation import InProcessSession, run_session

_NAME_OF = {
    Advert: "adverts",
    Bundles: "bundles",
    Upload: "uploads",
    Shares: "answers",
    RoundClosed: "close rounds and reconstruct",
}


def main(*, tiny: bool = False) -> None:
    """Measure the complete graph and a ring with 5 % of the clients lost."""
    sizes = (
        [(8, 64, 0), (8, 64, 4)]
        if tiny
        else [(100, 1 << 17, 0), (100, 1 << 17, 30), (300, 1 << 14, 40)]
    )
    for clients, dimension, degree in sizes:
        _measure(clients, dimension, degree)


def _measure(clients: int, dimension: int, degree: int) -> None:
    modulus = 1 << 20
    parameters = parameters_for(
        clients,
        dimension=dimension,
        threshold=degree // 2 if degree else 2 * clients // 3 + 1,
        degree=degree,
        min_clients=max(degree + 2, 2 * clients // 3 + 1),
    )
    lost = dict.fromkeys(range(max(1, clients // 20)), Round.MASKED_INPUT_COLLECTION)
    session = _Timed(
        parameters, [one_hot(n, dimension, modulus) for n in range(clients)]
    )
    result = run_session(session, lost)
    if result.total is None:
        raise RuntimeError("the session did not end with a sum")
    total = sum(session.seconds.values())
    for name, value in (*session.seconds.items(), ("all rounds", total)):
        emit(
            f"server/{name}",
            parameters={"clients": clients, "dimension": dimension, "degree": degree},
            value=1e3 * value,
            unit="ms",
            baseline="removing the masks, which nothing can avoid",
            ratio=session.seconds["remove masks"] / value,
        )


class _Timed(InProcessSession):
    """Adds up the server's CPU time by what it works on."""

    def __post_init__(self) -> None:
        self.seconds: dict[str, float] = {"remove masks": 0.0}
        super().__post_init__()

    def step_server(self, event: ServerEvent) -> tuple[ServerOutput, ...]:
        what = event.envelope.kind if isinstance(event, Received) else type(event)
        begin = time.process_time()
        outputs = super().step_server(event)
        name = _NAME_OF.get(what)
        if name is not None:
            spent = time.process_time() - begin
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
        return outputs

    def compute_sum(self, job: ComputeSum) -> UnsignedArray:
        begin = time.process_time()
        total = super().compute_sum(job)
        self.seconds["remove masks"] += time.process_time() - begin
        return total


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv)
