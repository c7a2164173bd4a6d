"""The store of a client: its sessions and what it has spent."""

from dataclasses import dataclass, field
from pathlib import Path

from secagg.distributed_dp import NoisyTask, PrivacyReport
from secagg.distributed_dp.report_cache import privacy_report
from secagg.protocol.parameters import ProtocolParameters
from secagg.storage.client_store import ClientRecords


@dataclass(slots=True)
class ClientStorage:
    """The storage of one client.

    Attributes:
        store: Sessions, their numbers, and what this client has given to each task.
        directory: Where it is kept; None for memory.
    """

    store: ClientRecords
    directory: Path | None
    _last: tuple[ProtocolParameters, PrivacyReport] | None = field(
        default=None, init=False, repr=False
    )

    def report_of(self, task: NoisyTask) -> PrivacyReport:
        """Return what a task costs, as this client has computed it itself."""
        if self.directory is not None:
            return privacy_report(task, self.directory)
        if self._last is None or self._last[0] != task.parameters:
            self._last = task.parameters, task.report()
        return self._last[1]
