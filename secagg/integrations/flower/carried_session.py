"""One session at the server, as requests to nodes and what they reply.

Rule 1: the model leaves with one request to a node, after its view was compared
        (R5.3-14), and the update comes back masked with the reply to that.
Rule 2: a reply that cannot be used concerns its node alone.
Rule 3: a stage ends when every node that can answer has, or its time is up.

Flower's own classes are not imported.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from secagg.errors import RemoteProtocolError
from secagg.protocol.messages import Round
from secagg.protocol.rounds import ROUNDS
from secagg.server.step_server import StepServer


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """What is sent to one node.

    Attributes:
        name: Of the node.
        update: News for it.
        with_model: Whether the model goes with it.
    """

    name: str
    update: bytes = field(repr=False)
    with_model: bool = False


class CarriedSession:
    """Drives a `StepServer` by the replies of nodes.

    Args:
        server: A session that has just begun.
        names: Names of the nodes that are asked.

    Attributes:
        refused: Why a node was refused, or has refused, by its name; the first reason.
        silent: Nodes that have left a request without an answer.
    """

    def __init__(self, server: StepServer, names: Iterable[str]) -> None:
        self._server = server
        self._names = tuple(names)
        self.refused: dict[str, str] = {}
        self.silent: set[str] = set()
        self._joined: set[str] = set()

    @property
    def is_over(self) -> bool:
        """Whether no further stage follows."""
        return self._server.is_over

    @property
    def stage_seconds(self) -> float:
        """How long the open stage may last; after the end, as long as the last one."""
        row = ROUNDS[Round.UNMASKING if self.is_over else self._server.round]
        return float(row.seconds(self._server.descriptor.parameters.deadlines))

    @property
    def is_stage_full(self) -> bool:
        """Whether every node that can answer in this stage has."""
        return not self.is_over and self._server.is_round_full

    def requests(self) -> list[NodeRequest]:
        """Return what each node is sent at the start of a stage."""
        if self._server.round is Round.ADVERTISE_KEYS:
            return [NodeRequest(name, b"") for name in self._names]
        asked = [name for name in self._names if name in self._joined]
        updates = {name: self._server.update_for(name) for name in asked}
        return [NodeRequest(name, update) for name, update in updates.items() if update]

    def accept(
        self, name: str, messages: Iterable[bytes], view: bytes
    ) -> NodeRequest | None:
        """Take what a node has replied.

        Args:
            name: Of the node, as the carrier proves it.
            messages: Of the protocol, in order.
            view: That it shows before it is given the model; b"" for none.

        Returns:
            What it is sent next in the same stage; None for nothing.
        """
        try:
            for message in messages:
                self._server.receive(name, message)
                self._joined.add(name)
            if not view:
                return None
            self._server.check_view(name, view)
        except RemoteProtocolError as error:
            self.record_refusal(name, error.code.name)
            return None
        update = self._server.update_for(name)
        return None if update is None else NodeRequest(name, update, with_model=True)

    def record_refusal(self, name: str, reason: str) -> None:
        """Note why a node does not take part.

        Args:
            name: Of the node.
            reason: One line; shown in logs.
        """
        self.refused.setdefault(name, reason)  # what follows from it says less

    def close_stage(self) -> None:
        """End the open stage with what is in."""
        self._server.close_round()
