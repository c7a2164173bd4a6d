"""A grid of Flower in one process: each message calls the client app at once.

Without Ray, without a port and without a process per message, so that a test can lose a
node in any stage, copy its state, and read every byte between the two sides.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.app.message import Message as _Sent
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

_FIRST_NODE = 1000


class LoopGrid(Grid):
    """Connects one client app with the nodes that run it.

    Args:
        app: The client app of all nodes.
        nodes: How many there are.
        config: Returns `node_config` of a node.

    Attributes:
        contexts: Of the nodes, by their numbers.
        is_lost: Returns whether a message to a node is lost.
        down: What was sent, by the numbers of the nodes.
        up: What was replied.
    """

    def __init__(
        self,
        app: Callable[[Message, Context], Message],
        nodes: int,
        config: Callable[[int], Mapping[str, Any]],
    ) -> None:
        self._app = app
        self._numbers = itertools.count(1)
        self._replies: dict[str, Message] = {}
        self.contexts = {
            node: Context(1, node, dict(config(node)), RecordDict(), {})
            for node in range(_FIRST_NODE, _FIRST_NODE + nodes)
        }
        self.is_lost: Callable[[Message], bool] = lambda _: False
        self.down: list[tuple[int, Message]] = []
        self.up: list[tuple[int, Message]] = []
        # Flower makes no message in a process that runs no task.
        TaskIdentity.task_id = TaskIdentity.run_id = 1
        TaskIdentity.node_id = 0

    run = None

    def set_run(self, run: Any) -> None:
        """Flower's; there is one run."""

    def create_message(self, *_args: Any, **_named: Any) -> Message:
        """Flower's; no strategy calls it."""
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        """Return the numbers of the nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Have each node answer at once; a lost message has no answer."""
        numbers = []
        for message in messages:
            number = f"message-{next(self._numbers)}"
            numbers.append(number)
            node = message.metadata.dst_node_id
            self.down.append((node, message))
            if not self.is_lost(message):
                self._replies[number] = self._answered(message, number)
        return numbers

    def _answered(self, message: Message, number: str) -> Message:
        node = message.metadata.dst_node_id
        message = _carried(message)
        message.metadata.__dict__["_message_id"] = number
        reply = _carried(self._app(message, self.contexts[node]))
        self.up.append((node, reply))
        return reply

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to these messages that were not taken yet."""
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Return the replies of all nodes that have answered."""
        del timeout
        return self.pull_messages(self.push_messages(messages))


def _carried(message: Message) -> Message:
    """Return a message as it arrives: neither side sees objects of the other."""
    from flwr.common.serde import message_from_proto, message_to_proto  # noqa: PLC0415

    sent = message_to_proto(message)
    arrived: _Sent = message_from_proto(type(sent).FromString(sent.SerializeToString()))
    return arrived
