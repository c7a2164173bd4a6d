"""Directed worlds: one restart at a chosen place, after a chosen number of losses.

Chance restarts most processes while a session waits for clients.  A directed world
restarts one inside a round instead: nothing else goes wrong in it.
"""

from collections.abc import Callable
from typing import Final

from secagg.protocol.messages import Round
from secagg.storage.change import Change
from secagg.storage.rows import Task
from secagg.wire.calls import UploadStatus
from secagg_testing.world.machines import Disk
from secagg_testing.world.plan import Direction

# Longer than all rounds of a session take, extensions included.
LOST_SECONDS: Final = 2000.0


class Directed:
    """Carries out one direction, triggered by commits and received messages.

    Args:
        direction: What to do.
        server: Owner of the disk of the aggregators.
        clients: By name, in their order.
        lose: Cuts a client off for `LOST_SECONDS`.
        restart: Kills a process, by name; another one is started.

    Attributes:
        is_done: Whether the restart has come.
    """

    def __init__(
        self,
        direction: Direction,
        *,
        server: str,
        clients: tuple[str, ...],
        lose: Callable[[str], None],
        restart: Callable[[str], None],
    ) -> None:
        self._direction = direction
        self._server = server
        # The last ones: who has computed a sum, or opened a session, is any of them.
        count = len(clients) - direction.losses
        self._kept, self._lost = frozenset(clients[:count]), clients[count:]
        self._lose = lose
        self._restart = restart
        self._opened = Round.ADVERTISE_KEYS
        self.is_done = False

    def begin(self) -> None:
        """Cut off clients that never join."""
        self._lose_at(Round.ADVERTISE_KEYS)

    def committed(self, disk: Disk, change: Change | Task) -> None:
        """Act on a commit."""
        if self.is_done or isinstance(change, Task):
            return
        if disk.owner == self._server and change.round is not None:
            self._opened = Round(change.round)
            self._lose_at(self._opened)
        if self._opened is self._direction.round and self._is_inside(disk, change):
            self.is_done = True
            on_server = disk.owner == self._server
            self._restart(self._direction.server if on_server else disk.owner)

    def on_received(self, client: str, answer: object) -> None:
        """Act on a message from an aggregator to a client."""
        if self.is_done or not self._direction.after_chunk:
            return
        match answer:
            case UploadStatus(next_offset=arrived, complete=False) if arrived:
                self.is_done = True
                self._restart(client)
            case _:
                pass

    def _is_inside(self, disk: Disk, change: Change) -> bool:
        """Whether a change shows that its party has entered the open round."""
        if self._direction.restarts_server:
            has_message = any(each.sender is not None for each in change.records)
            is_entry = change.round is not None and not self._direction.after_message
            return disk.owner == self._server and (has_message or is_entry)
        is_entry = change.end is None and not self._direction.after_chunk
        return disk.owner in self._kept and is_entry

    def _lose_at(self, opened: Round) -> None:
        if opened is min(self._direction.round, Round.MASKED_INPUT_COLLECTION):
            for name in self._lost:
                self._lose(name)
