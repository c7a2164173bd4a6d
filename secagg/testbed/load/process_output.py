"""What the processes of a load test have said, and what is told of it to people."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from secagg.protocol.messages import Round
from secagg.testbed.load.result import ClosedRound
from secagg.testbed.run_folder import client_name

# A cohort is told of this often while it gathers.
_TELL_PARTS: Final = 10


@dataclass(slots=True)
class HeardServer:
    """What one aggregator has said.

    Attributes:
        listening: What it said when its port was open.
        done: What it said at its end.
        failed: Why it stopped, if it did.
        rounds: What each closed round cost it.
    """

    listening: asyncio.Future[Mapping[str, Any]]
    done: Mapping[str, Any] | None = None
    failed: Mapping[str, Any] | None = None
    rounds: list[ClosedRound] = field(default_factory=list)


class Heard:
    """Reads the output of all processes of one load test.

    Args:
        tell: Receives the events, in lines for people.
        servers: How many aggregators there are.

    Attributes:
        servers: The reports of each aggregator.
        clients: The last report of each client that has ended, by its number.
        included: Whose inputs the released sum holds.
        reason: Why a session was aborted, if known.
    """

    def __init__(self, tell: Callable[[str], None], servers: int) -> None:
        loop = asyncio.get_running_loop()
        self._tell = tell
        self._place = (-1, 0)
        self.servers = [HeardServer(loop.create_future()) for _ in range(servers)]
        self.clients: dict[int, Mapping[str, Any]] = {}
        self.included: list[str] = []
        self.reason = ""

    def rounds(self) -> tuple[ClosedRound, ...]:
        """Return what each round cost all aggregators together, in order."""
        found: dict[str, ClosedRound] = {}
        for server in self.servers:
            for each in server.rounds:
                known = found.get(each.name)
                found[each.name] = each if known is None else known.with_another(each)
        return tuple(found.values())

    def hear_server(self, index: int, said: Mapping[str, Any]) -> None:
        """Take what an aggregator says."""
        server = self.servers[index]
        match said["event"]:
            case "listening":
                server.listening.set_result(said)
            case "progress":
                self._show(said)
            case "closed":
                server.rounds.append(
                    ClosedRound(
                        said["round"],
                        said["seconds"],
                        said["cpu_seconds"],
                        said["late_seconds"],
                        said["late_cpu_seconds"],
                    )
                )
            case "sum":
                self.included = list(said["included"])
            case "done":
                server.done = said
            case "failed":
                server.failed = said

    def hear_clients(self, said: Mapping[str, Any]) -> None:
        """Take what a process full of clients says."""
        if said["event"] == "failed":
            name = client_name(said["number"])
            self._tell(f"{name} has failed: {said['message']}")
        self.clients[said["number"]] = said

    def ended(self, event: str) -> list[Mapping[str, Any]]:
        """Return the last words of the clients that have ended in one way."""
        return [each for each in self.clients.values() if each["event"] == event]

    def _show(self, said: Mapping[str, Any]) -> None:
        """Report a new round, and every tenth part of a cohort that gathers.

        Aggregators that share a store report both one after the other: it is shown
        once.
        """
        self.reason = said["reason"] or self.reason
        entered = Round[said["round"]]
        gathering = entered is Round.ADVERTISE_KEYS
        part = _TELL_PARTS * said["joined"] // said["needed"] if gathering else 0
        if (int(entered), part) <= self._place:
            return
        self._place = (int(entered), part)
        self._tell(
            f"{said['round'].lower().replace('_', ' ')}: {said['joined']} joined, "
            f"{said['lost']} lost"
        )
