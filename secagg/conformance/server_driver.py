"""`StepServer` as an aggregator under test by the kit; experimental.

Rule 1: every line that has changed the session is on the disk before its answer leaves.
Rule 2: after a restart the stored lines are played again, with the same random bytes.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from secagg.conformance.driver import Driver, answer_lines
from secagg.crypto.canonical import Reader
from secagg.crypto.entropy import SEED_SIZE, SeededEntropy, SystemEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import NoisyTask
from secagg.errors import RemoteProtocolError
from secagg.protocol.parameters import ProtocolParameters
from secagg.server.step_server import StepServer
from secagg.server.task.setup import PreparedTask

_JOURNAL: Final = "session.jsonl"


class ServerDriver:
    """Answers the kit's lines with a `StepServer`.

    Args:
        state: Directory for the journal of the session.
    """

    def __init__(self, state: Path) -> None:
        self._journal = state / _JOURNAL
        self._server: StepServer | None = None

    def answer(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one line."""
        does: dict[str, Callable[[], dict[str, Any]]] = {
            "hello": self.hello,
            "open": lambda: self.open(line),
            "receive": lambda: self.receive(line),
            "close_round": lambda: self.close_round(line),
            "restart": self.restart,
            "update_for": lambda: self.update_for(line["name"]),
            "total": self.total,
        }
        return does[line["do"]]()

    @staticmethod
    def hello() -> dict[str, Any]:
        """Say what this aggregator can do."""
        own = {"name": "secagg.StepServer", "restart": "process"}
        return Driver.hello() | own

    @property
    def server(self) -> StepServer:
        """The session's server."""
        if self._server is None:
            raise ValueError("no session is open")
        return self._server

    def open(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Open a session, in place of the one before."""
        seeded = {**line, "seed": SystemEntropy().token(SEED_SIZE).hex()}
        self._server = self._opened(seeded)
        self._journal.unlink(missing_ok=True)
        self._store(seeded)
        return {"offer": self._server.offer.hex()}

    @staticmethod
    def _opened(line: Mapping[str, Any]) -> StepServer:
        """Return the server that the kit's line describes."""
        encoded = Reader(bytes.fromhex(line["parameters"]), "parameters")
        parameters = ProtocolParameters.decode_from(encoded)
        noised = report = None
        if parameters.noise_block:
            noised = NoisyTask.from_parameters(parameters)
            report = noised.report()
        seed = SecretBytes(bytes.fromhex(line["seed"]))
        return StepServer(
            PreparedTask(parameters, noised, report),
            aggregator=line["aggregator"],
            task_id=line["task"],
            session_number=line["session_number"],
            now=line["now"],
            entropy=SeededEntropy(seed, b"aggregator of the kit"),
        )

    def restart(self) -> dict[str, Any]:
        """Take up the stored session."""
        kept = self._journal.read_bytes()
        # A line without its end was cut off: no answer to it has left.
        first, *others = kept[: kept.rfind(b"\n") + 1].splitlines()
        self._server = self._opened(json.loads(first))
        for each in map(json.loads, others):
            if each["do"] == "receive":
                self._server.receive(each["sender"], bytes.fromhex(each["message"]))
            else:
                self._server.close_round()
        self._journal.write_bytes(b"".join(x + b"\n" for x in (first, *others)))
        return {"offer": self._server.offer.hex()}

    def _store(self, line: Mapping[str, Any]) -> None:
        """Write a line to the disk (rule 1)."""
        with self._journal.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def receive(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Take a message of a client."""
        try:
            self.server.receive(line["sender"], bytes.fromhex(line["message"]))
        except RemoteProtocolError as error:
            return {"refused": error.code.name}
        self._store(line)
        return {}

    def close_round(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """End the open round."""
        if not self.server.is_over:
            self.server.close_round()
            self._store(line)
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


if __name__ == "__main__":
    answer_lines(ServerDriver)
