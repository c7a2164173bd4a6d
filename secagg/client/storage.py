"""The store of a client, and what its tasks cost as it has computed that itself.

Rule 1: a computation may take many seconds, so none is made while a call has the state:
        the call ends before it has changed anything, and begins again with the figure.
Rule 2: one is made at a time, and once for all calls that need it: the cache on the
        disk has one writer.
"""

from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Final

from secagg.distributed_dp import NoisyTask, PrivacyReport
from secagg.distributed_dp.report_cache import privacy_report
from secagg.errors import SecAggError
from secagg.storage.client_store import ClientRecords

# A peer that offers more noise blocks has them computed again.
_KEPT: Final = 64


class ReportNeededError(Exception):
    """A call needs a figure that is not computed yet; it has changed nothing.

    Args:
        storage: Of the client.
        task: Whose cost is needed.
    """

    def __init__(self, storage: "ClientStorage", task: NoisyTask) -> None:
        super().__init__()
        self._storage, self._task = storage, task

    def compute(self) -> None:
        """Compute it; takes up to seconds, on any thread."""
        self._storage.compute(self._task)


@dataclass(slots=True)
class ClientStorage:
    """The storage of one client.

    Attributes:
        store: Sessions, their numbers, and what this client has given to each task.
        directory: Where it is kept; None for memory.
        defers: Raise `ReportNeededError` in place of computing a figure.
    """

    store: ClientRecords
    directory: Path | None
    defers: bool = False
    _known: dict[bytes, PrivacyReport | SecAggError] = field(
        default_factory=dict, init=False, repr=False
    )
    _computing: Lock = field(default_factory=Lock, init=False, repr=False)

    def report_of(self, task: NoisyTask) -> PrivacyReport:
        """Return what a task costs, as this client has computed it itself.

        Raises:
            ReportNeededError: With `defers`; it is not computed yet.
            RemoteProtocolError: BAD_CONFIG; its noise has no figures.
        """
        known = self._known.get(task.parameters.noise_block)
        if known is None:
            if self.defers:
                raise ReportNeededError(self, task)
            known = self.compute(task)
        if isinstance(known, SecAggError):
            raise copy(known)  # the frames of a call hold its vector
        # The graph is not part of the noise block, and costs nothing to check again.
        return replace(known, graph_delta=task.graph_delta)

    def compute(self, task: NoisyTask) -> PrivacyReport | SecAggError:
        """Compute what a task costs, or why it has no figures; takes up to seconds."""
        place, block = self.directory, task.parameters.noise_block
        with self._computing:
            found = self._known.get(block)
            if found is not None:  # another call has needed it, too
                return found
            try:
                found = task.report() if place is None else privacy_report(task, place)
            except SecAggError as error:  # raised where the figure is asked for
                found = error.with_traceback(None)
            for oldest in tuple(self._known)[: -(_KEPT - 1)]:
                self._known.pop(oldest, None)
            self._known[block] = found
        return found
