"""`StepServer` as an aggregator under test by the kit; experimental."""

import json
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from secagg.crypto.canonical import Reader
from secagg.errors import RemoteProtocolError
from secagg.protocol.parameters import ProtocolParameters
from secagg.server.step_server import StepServer
from secagg.server.task.setup import PreparedTask


class ServerDriver:
    """Answers the kit's lines with a `StepServer`."""

    def __init__(self) -> None:
        self._server: StepServer | None = None

    def answer(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one line."""
        does: dict[str, Callable[[], dict[str, Any]]] = {
            "hello": self.hello,
            "open": lambda: self.open(line),
            "receive": lambda: self.receive(
                line["sender"], bytes.fromhex(line["message"])
            ),
            "close_round": self.close_round,
            "update_for": lambda: self.update_for(line["name"]),
            "total": self.total,
        }
        return does[line["do"]]()

    @staticmethod
    def hello() -> dict[str, Any]:
        """Say what this aggregator can do."""
        return {
            "name": "secagg.StepServer",
            "version": metadata.version("secagg"),
            "profiles": [1, 2],
            "graphs": ["complete", "ring"],
            "mechanisms": [],
            "restart": None,
        }

    @property
    def server(self) -> StepServer:
        """The session's server."""
        if self._server is None:
            raise ValueError("no session is open")
        return self._server

    def open(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Open a session."""
        encoded = Reader(bytes.fromhex(line["parameters"]), "parameters")
        parameters = ProtocolParameters.decode_from(encoded)
        self._server = StepServer(
            PreparedTask(parameters, None, None),
            aggregator=line["aggregator"],
            task_id=line["task"],
            session_number=line["session_number"],
            now=line["now"],
        )
        return {"offer": self._server.offer.hex()}

    def receive(self, sender: str, message: bytes) -> dict[str, Any]:
        """Take a message of a client."""
        try:
            self.server.receive(sender, message)
        except RemoteProtocolError as error:
            return {"refused": error.code.name}
        return {}

    def close_round(self) -> dict[str, Any]:
        """End the open round."""
        if not self.server.is_over:
            self.server.close_round()
        return {"over": self.server.is_over}

    def update_for(self, name: str) -> dict[str, Any]:
        """Say what a client may know now."""
        return {"update": (self.server.update_for(name) or b"").hex()}

    def total(self) -> dict[str, Any]:
        """Release the sum, or say why there is no sum."""
        failure = self.server.failure
        if failure is not None:
            return {"failed": failure.code.name}
        return {"packed": (self.server.packed_sum or b"").hex()}


def main() -> None:
    """Answer line after line until the input ends."""
    driver = ServerDriver()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(driver.answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
