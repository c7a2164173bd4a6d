"""What an aggregator leaves behind of each sum: the numbers and what they cost.

Rule 1: files are named by session number, so writing them again after a crash
        replaces a file by the same one.
Rule 2: sums of another task are never replaced, whatever the settings call the folder.
Rule 3: the report says what was released under which guarantee, in full; it needs no
        other file to be understood.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from secagg.errors import ErrorCode
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.graphs.choice import odds_of
from secagg.protocol.graphs.ring_safety import RingRisk
from secagg.runtime.vector_files import write_bytes, write_json, write_vector
from secagg.server.released_sum import ReleasedSum
from secagg.server.task.setup import PreparedTask


class SumWriter:
    """Writes ``sum-<n>.npy``, ``report-<n>.json`` and ``receipt-<n>.bin``.

    Of a session that was aborted there is a receipt alone.

    Args:
        directory: Where they go.
        prepared: What the task runs.
        tell: Told of every file that was written.
    """

    def __init__(
        self,
        directory: Path,
        prepared: PreparedTask,
        *,
        tell: Callable[[Path], object] = lambda _: None,
    ) -> None:
        self._directory = directory
        self._prepared = prepared
        self._tell = tell

    async def write(self, released: ReleasedSum) -> None:
        """Write the files of one sum.

        Raises:
            ServiceError: STORAGE_FAILED; the session stays open on the disk.
        """
        await asyncio.to_thread(self._write, released)

    async def write_aborted(self, session: SessionDescriptor, audit: bytes) -> None:
        """Write the receipt of a session that released no sum.

        Raises:
            ServiceError: STORAGE_FAILED; the session stays open on the disk.
        """
        self._tell(await write_receipt(self._directory, session, audit))

    def _write(self, released: ReleasedSum) -> None:
        number, values = released.session_number, released.values
        sum_path = self._directory / f"sum-{number}.npy"
        report_path = self._directory / f"report-{number}.json"
        receipt_path = _receipt_path(self._directory, number)
        _check_owner(report_path, released.receipt.descriptor.task_id)
        write_vector(sum_path, values)
        write_bytes(receipt_path, released.audit)
        write_json(
            report_path,
            {
                "task": released.receipt.descriptor.task_id,
                "profile": self._profile(),
                "session_number": number,
                "inputs": released.inputs,
                "file": sum_path.name,
                "audit_receipt": receipt_path.name,
                "dimension": int(values.shape[0]),
                "l2_clip": released.l2_clip,
                "fitted": released.fitted,
                "standard_error": released.standard_error,
                "no_interval": list(released.error.flaws),
                "unconfirmed": list(released.unconfirmed),
                "sessions_left_in_budget": released.receipt.sessions_left,
                "privacy": self._privacy(released.receipt.ring),
                "graph": self._graph(),
                "receipt": released.receipt.to_dict(),
            },
        )
        for path in (sum_path, report_path, receipt_path):
            self._tell(path)

    def _privacy(self, ring: RingRisk | None) -> dict[str, object] | None:
        noised, report = self._prepared.noised, self._prepared.report
        if noised is None or report is None:
            return None
        return {
            **report.to_dict(),
            "grounds_of_session": report.grounds(graph_delta=self._added_by(ring)),
            "budget_epsilon": noised.budget.epsilon,
            "budget_delta": noised.budget.delta,
            "charges_in_budget": noised.budget.charges,
            "expected_rmse": self._prepared.forecast_rmse,
            # It counts all layers that survivors may be asked to take back.
            "expected_rmse_is_upper_bound": noised.parameters.noise_layers > 0,
            "mechanism": noised.mechanism.parameters.to_dict(),
        }

    def _added_by(self, ring: RingRisk | None) -> float:
        """Return what the graph of one session adds to delta."""
        parameters = self._prepared.parameters
        is_certain = ring is not None and ring.worst_case_safe
        if parameters.is_complete_graph or is_certain:
            return 0.0
        return 2.0**-parameters.graph_bits

    def _profile(self) -> dict[str, object]:
        profile = self._prepared.parameters.profile
        return {"name": profile.label, "is_experimental": profile.is_experimental}

    def _graph(self) -> dict[str, object]:
        parameters = self._prepared.parameters
        return {
            "kind": str(parameters.graph),
            "degree": parameters.degree,
            "threshold": parameters.threshold,
            "graph_bits": parameters.graph_bits,
            **odds_of(parameters).to_dict(),
        }


def _check_owner(report_path: Path, task_id: str) -> None:
    """Refuse to replace the sum of another task.

    Raises:
        ServiceError: STORAGE_FAILED; the report that lies there is another task's.
    """
    try:
        owner = json.loads(report_path.read_bytes())["task"]
    except (OSError, ValueError, LookupError, TypeError):
        return  # nothing is there that anybody could miss
    if owner != task_id:
        raise ErrorCode.STORAGE_FAILED.error(
            f"{report_path} is about the task {owner!r}, not {task_id!r}",
            fix="Move the files of that task away, or set server.output_dir to "
            "another folder; the sum is kept until it can be written.",
        )


async def write_receipt(
    directory: Path, session: SessionDescriptor, audit: bytes
) -> Path:
    """Write the receipt of a session that released no sum, and return its file.

    Raises:
        ServiceError: STORAGE_FAILED; the session stays open on the disk.
    """
    path = _receipt_path(directory, session.session_number)
    await asyncio.to_thread(write_bytes, path, audit)
    return path


def _receipt_path(directory: Path, number: int) -> Path:
    return directory / f"receipt-{number}.bin"
