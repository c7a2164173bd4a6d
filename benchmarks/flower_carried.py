"""What a node pays for Flower: CPU of `secagg_mod` beside `StepClient` alone.

Run by the Python that has Flower (`make flower` makes one), never imported:
``python flower_carried.py CLIENTS DIMENSION``.  It prints one line of JSON.

* The same task, vectors and clients: once carried by calls, once through Flower's
  client app with the client kept open, once with a client opened for each message, as
  in a simulation.
* The CPU of a client is that of its calls, without the training.  Through Flower it is
  that of the app, without what Flower needs to write and read a message.
* The first session is not counted: it computes epsilon, which is stored.
* States lie in memory where there is such a place, so no disk is measured.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from secagg_testing.carrier import memory_directory
from secagg_testing.loop_grid import LoopGrid

import secagg
from secagg.advanced import Need
from secagg.integrations.flower import SecureGrid, SecureTask, secagg_mod
from secagg.integrations.flower.terms import NodeTerms, terms_of_simulation

SESSIONS, RUNS = 3, 3
_Asked = ParamSpec("_Asked")
_Result = TypeVar("_Result")
TERMS = """
[node]
tasks = ["cost"]
state_dir = "state"
rollback_mark = "mark"
[policy]
max_epsilon = 10.0
max_delta = 1e-5
"""


class Meter:
    """Adds up CPU seconds of what is called through it, for each session."""

    def __init__(self) -> None:
        self.seconds = [0.0]
        self._outside = 0.0

    def __call__(
        self,
        call: Callable[_Asked, _Result],
        *arguments: _Asked.args,
        **named: _Asked.kwargs,
    ) -> _Result:
        """Count one call."""
        before, self._outside = time.process_time(), 0.0
        try:
            return call(*arguments, **named)
        finally:
            self.seconds[-1] += time.process_time() - before - self._outside

    def leave_out(
        self,
        call: Callable[_Asked, _Result],
        *arguments: _Asked.args,
        **named: _Asked.kwargs,
    ) -> _Result:
        """Make a call within another that does not count."""
        before = time.process_time()
        try:
            return call(*arguments, **named)
        finally:
            self._outside += time.process_time() - before


def by_calls(
    task: SecureTask, terms: list[NodeTerms], vector: np.ndarray
) -> list[float]:
    """Return the CPU of all clients in each session, carried by calls."""
    meter = Meter()
    clients = {
        f"node-{number}": each.client(f"node-{number}").__enter__()
        for number, each in enumerate(terms)
    }
    for number in range(1, SESSIONS + 1):
        server = secagg.StepServer(
            task.prepared, aggregator="flower", task_id="cost", session_number=number
        )
        meter.seconds.append(0.0)
        while True:
            for name, client in clients.items():
                update = server.update_for(name) or b""
                done = meter(client.step, server.offer, update)
                if Need.VECTOR in done.needs:
                    done = meter(client.step, server.offer, vector=vector)
                for message in done.messages:
                    server.receive(name, message)
            if server.is_over:
                break
            server.close_round()
    for client in clients.values():
        client.close()
    return meter.seconds[2:]


def by_flower(
    task: SecureTask, home: Path, vector: np.ndarray, *, clients: int, simulated: bool
) -> list[float]:
    """Return the CPU of all clients in each session, through Flower's client app."""
    from flwr.serverapp.strategy import FedAvg  # noqa: PLC0415 - prints when imported

    meter = Meter()
    app = ClientApp(mods=[secagg_mod(simulation=home if simulated else None)])

    def trained(message: Message) -> Message:
        before = message.content["arrays"]["w"].numpy()
        arrays = ArrayRecord({"w": Array(before + vector)})
        metrics = MetricRecord({"num-examples": 1})
        return Message(
            RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message
        )

    @app.train()  # type: ignore[untyped-decorator,unused-ignore] # Flower's
    def train(message: Message, _: Context) -> Message:
        reply: Message = meter.leave_out(trained, message)
        return reply

    def config(node: int) -> dict[str, str]:
        if simulated:  # a node with terms of its own refuses such an app
            return {}
        place = home / f"own-{node}"
        place.mkdir(parents=True)
        (place / "terms.toml").write_text(TERMS)
        return {"secagg-terms": str(place / "terms.toml")}

    grid = LoopGrid(
        lambda message, context: meter(app, message, context), clients, config
    )
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=clients)
    secure = SecureGrid(grid, task, strategy)
    arrays = ArrayRecord({"w": Array(np.zeros(len(vector)))})
    for _ in range(SESSIONS):
        meter.seconds.append(0.0)
        messages = [
            Message(RecordDict({"arrays": arrays}), node, "train")
            for node in grid.get_node_ids()
        ]
        (_reply,) = secure.send_and_receive(messages)
    return meter.seconds[2:]


def main() -> None:
    """Measure all three by turns; print the cheapest session of each."""
    clients, dimension = map(int, sys.argv[1:3])
    vector = np.full(dimension, 0.1 / np.sqrt(dimension))
    task = SecureTask.planned(
        "cost",
        ArrayRecord({"w": Array(np.zeros(dimension))}),
        clients=clients,
        epsilon=10.0,
        delta=1e-5,
        rounds=SESSIONS,
        l2_clip=0.5,
    )
    found: dict[str, list[float]] = {"calls": [], "kept_open": [], "opened": []}
    for run in range(RUNS):
        with memory_directory() as home:
            for place in ("calls", "kept", "opened"):
                (home / place).mkdir()
                (home / place / "terms.toml").write_text(TERMS)
            terms = [
                terms_of_simulation(home / "calls", f"node-{number}")
                for number in range(clients)
            ]
            found["calls"] += by_calls(task, terms, vector)
            for name, simulated in (("kept_open", False), ("opened", True)):
                found[name] += by_flower(
                    task,
                    home / ("opened" if simulated else "kept"),
                    vector,
                    clients=clients,
                    simulated=simulated,
                )
        print(f"run {run + 1} of {RUNS}", file=sys.stderr)
    seconds = {name: min(each) / clients for name, each in found.items()}
    print(
        json.dumps(
            {
                "flower": version("flwr"),
                "secagg": version("secagg"),
                "clients": clients,
                "dimension": dimension,
                "client_cpu_ms": {k: round(1e3 * v, 2) for k, v in seconds.items()},
                "times_the_calls": {
                    k: round(v / seconds["calls"], 2) for k, v in seconds.items()
                },
            }
        )
    )


if __name__ == "__main__":
    main()
