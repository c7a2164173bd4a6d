"""One SecAgg+ session of Flower in one process: its cost as one line of JSON.

Run by the Python that has Flower (`make bench` makes one), never imported:
``python flower_session.py CLIENTS DIMENSION NEIGHBOURS THRESHOLD LOST``.

* Client and server are Flower's own: `secaggplus_mod` on one side,
  `SecAggPlusWorkflow` on the other.  A grid between them passes messages on at once.
  Flower's network and processes are not measured.
* A message is serialised in transit, as in a deployment.  So its size is known, and
  neither side sees the other's objects.  The time of this is not counted.
* A client's CPU is the time inside its mod; the server's is the rest of the workflow.
  Making the model is not included: it exists before.
* Lost clients answer with an error when they are asked for their vector.
"""

import json
import logging
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import (
    Code,
    FitRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext, ServerConfig, SimpleClientManager
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.supercore.task_identity import TaskIdentity

EXAMPLES, CLIP = 1, 8.0
STAGES = ("setup", "share_keys", "collect_masked_vectors", "unmask")


@dataclass
class Node:
    """A client that the workflow can sample; it is called through the grid alone."""

    cid: str
    node_id: int


class Grid:
    """Passes messages between the workflow and the clients' mods."""

    def __init__(self, clients: int, dimension: int, lost: set[int]) -> None:
        self.contexts = {
            node: Context(1, node, {}, RecordDict(), {}) for node in clients_of(clients)
        }
        self.lost = lost
        self.stage = -1
        self.client_seconds = 0.0
        self.bytes_up = self.bytes_down = 0
        self.outside = 0.0
        generator = np.random.default_rng(1)
        self.vectors = {
            node: generator.uniform(-1, 1, dimension) for node in self.contexts
        }

    def send_and_receive(self, messages: list[Message], **_: object) -> list[Message]:
        """Let every client answer."""
        began = time.process_time()
        self.stage += 1
        answers = [self._answer(message) for message in messages]
        self.outside += time.process_time() - began
        return answers

    def _answer(self, message: Message) -> Message:
        name, node = STAGES[self.stage], message.metadata.dst_node_id
        sent = message_to_proto(message).SerializeToString()
        self.bytes_down += len(sent)
        received = message_from_proto(type(message_to_proto(message)).FromString(sent))
        if node in self.lost and name == "collect_masked_vectors":
            return gone(received)
        began = time.process_time()
        answer = secaggplus_mod(received, self.contexts[node], self._fit)
        self.client_seconds += time.process_time() - began
        data = message_to_proto(answer).SerializeToString()
        self.bytes_up += len(data)
        return message_from_proto(type(message_to_proto(answer)).FromString(data))

    def _fit(self, message: Message, _: Context) -> Message:
        vector = self.vectors[message.metadata.dst_node_id]
        result = FitRes(
            Status(Code.OK, ""), ndarrays_to_parameters([vector]), EXAMPLES, {}
        )
        content = compat.fitres_to_recorddict(result, keep_input=False)
        return Message(content, reply_to=message)


def clients_of(count: int) -> range:
    """Return the nodes' numbers; 0 is the server's."""
    return range(1, count + 1)


def gone(message: Message) -> Message:
    """Return the error that replaces the answer of a lost client."""
    return Message(Error(0, "gone"), reply_to=message)


def main() -> None:
    """Run one session and print its cost."""
    clients, dimension, neighbours, threshold, lost = map(int, sys.argv[1:6])
    logging.getLogger("flwr").setLevel(logging.ERROR)
    # Flower requires a node identity to create messages.
    TaskIdentity.task_id = TaskIdentity.run_id = 1
    TaskIdentity.node_id = 0
    step = clients / lost if lost else 0
    grid = Grid(clients, dimension, {1 + int(step * i) for i in range(lost)})
    manager = SimpleClientManager()
    for node in clients_of(clients):
        manager.register(Node(str(node), node))
    strategy = FedAvg(
        fraction_fit=1.0, min_fit_clients=clients, min_available_clients=clients
    )
    context = LegacyContext(
        Context(1, 0, {}, RecordDict(), {}), ServerConfig(), strategy, manager
    )
    # A model would be sent to every client; neither side counts it here.
    first = ndarrays_to_parameters([np.zeros(1)])
    context.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(
        first, keep_input=True
    )
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord(
        {Key.CURRENT_ROUND: 1}
    )
    workflow = SecAggPlusWorkflow(
        neighbours + 1, threshold, max_weight=EXAMPLES, clipping_range=CLIP
    )
    began = time.process_time()
    workflow(grid, context)
    server = time.process_time() - began - grid.outside
    record = context.state.array_records[MAIN_PARAMS_RECORD]
    (mean,) = parameters_to_ndarrays(
        compat.arrayrecord_to_parameters(record, keep_input=True)
    )
    expected = np.mean(
        [grid.vectors[node] for node in grid.contexts if node not in grid.lost], axis=0
    )
    print(
        json.dumps(
            {
                "version": version("flwr"),
                "stages": grid.stage + 1,
                "error": float(np.max(np.abs(mean - expected))),
                "client_cpu_seconds_mean": grid.client_seconds / clients,
                "server_cpu_seconds": server,
                "bytes_up": grid.bytes_up,
                "bytes_down": grid.bytes_down,
            }
        )
    )


if __name__ == "__main__":
    main()
