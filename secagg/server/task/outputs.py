"""The files that an aggregator writes for each sum: the sum and its cost.

Rule 1: files are named by session number, so repeating a write after a crash replaces a
        file by the same one.
Rule 2: files of another task are never replaced, whatever folder the settings name.
        Every session has a receipt: it is written first, once their owner is checked.
Rule 3: the report states completely what was released under which guarantee; a reader
        needs no other file.
Rule 4: a required write is retried without limit, here or by another replica of the
        store (`DeliveryDeferredError`).  Until it succeeds, the session is not over in
        the store. A process that ends meanwhile leaves the write pending, and the task
        opens no further session.
Rule 5: other tasks do not wait, and no process ends by it.  The operator sees it at
        once and repeatedly in the log, and wherever the task is shown.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.distributed_dp import EXACT, NoisyTask, PrivacyReport, SumError, SumEstimate
from secagg.distributed_dp.units import decode_integers
from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.graphs.choice import failure_bounds_of
from secagg.protocol.graphs.ring_safety import RingRisk
from secagg.protocol.receipts.receipt import offer_in
from secagg.runtime import log_events as telemetry
from secagg.runtime.clock import Clock, SystemClock
from secagg.runtime.vector_files import write_bytes, write_json, write_vector
from secagg.server.session.report import SessionReceipt
from secagg.server.task.definition import DeliveryDeferredError
from secagg.server.task.setup import PreparedTask
from secagg.wire.calls import MAX_DESCRIPTOR_BYTES

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

# A process that frees space may notice the files at this interval.
RETRY_SECONDS: Final = 5.0
# The log may lie on the same disk and must not fill it.
SAY_EVERY_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True, eq=False)
class ReleasedSum(SumEstimate):
    """Holds the sum of one session, with its error.

    Example:
        total = await task.next_sum()
        print(total)                        # its first entries, each with ±
        lowest, highest = total.interval(0.95)
        print(total.mean, "±", total.standard_error / total.inputs)

    Attributes:
        session_number: Number of the session.
        inputs: Number of vectors in the sum.
        values: The sum, shape (d,): floats in the caller's units, or integers from a
            task without noise.  With secret selection it is the estimate of the sum of
            all vectors; divided by `inputs` it is their mean.
        privacy: Privacy cost of the whole task; None for exact sums.
        l2_clip: Largest norm that was not scaled down, caller's units; None for exact
            sums.  In tasks with adaptive clipping it changes from sum to sum.
        fitted: Released estimate of the fraction of vectors that were not scaled down;
            None where it is not stated.
        error: Error of `values` as an estimate of the sum of the vectors;
            `standard_error`, `interval` and `str` follow from it.
        residues: The sum as it was released, modulo m.
        receipt: The public facts of the session.
        audit: The bytes that `secagg sessions verify` verifies: any reader can
            recompute from them which clients agreed to the sets that were summed.
        shortened: Number of vectors that were longer than `l2_clip` and were scaled
            down; None where the clients are not in this process (`secagg.local`).
        replaced: Number of vectors that were replaced by zeros; None likewise.
    """

    session_number: int
    inputs: int
    values: npt.NDArray[Any] = field(repr=False)
    privacy: PrivacyReport | None
    l2_clip: float | None
    fitted: float | None
    error: SumError = field(repr=False)
    residues: npt.NDArray[np.unsignedinteger[Any]] = field(repr=False)
    receipt: SessionReceipt = field(repr=False)
    audit: bytes = field(repr=False)
    shortened: int | None = None
    replaced: int | None = None

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """Clients in the sum that sent an invalid signature over its sets.

        By name.  In a task with noise the sum may then be wrong.
        """
        return self.receipt.unconfirmed


def released_sum(
    descriptor: SessionDescriptor,
    residues: npt.NDArray[np.unsignedinteger[Any]],
    *,
    privacy: PrivacyReport | None,
    receipt: SessionReceipt,
    audit: bytes,
) -> ReleasedSum:
    """Return a sum in the units of its callers.

    Args:
        descriptor: The session.
        residues: The sum modulo m, shape (d,).
        privacy: Privacy cost of the task; None for exact sums.
        receipt: Receipt of the session, which has released a sum.
        audit: The audit receipt, for verifiers.
    """
    parameters, inputs = descriptor.parameters, len(receipt.survivors)
    values: npt.NDArray[Any]
    clip = fitted = None
    error = EXACT
    if not parameters.noise_block:
        values = decode_integers(residues, parameters.modulus)
    else:
        task = NoisyTask.of_session(descriptor)
        values = task.decode(residues, session_id=descriptor.session_id)
        clip = task.l2_clip
        fitted = task.fitted(residues, inputs=inputs)
        error = task.sum_error(inputs=inputs, certificate=receipt.noise)
        if receipt.unconfirmed:
            error = error.with_flaw(_unconfirmed(receipt.unconfirmed))
    return ReleasedSum(
        session_number=descriptor.session_number,
        inputs=inputs,
        values=values,
        l2_clip=clip,
        fitted=fitted,
        error=error,
        privacy=privacy,
        residues=residues,
        receipt=receipt,
        audit=audit,
    )


def _unconfirmed(names: tuple[str, ...]) -> str:
    """Return the warning of clients that signed other sets."""
    return (
        f"{', '.join(names)} signed other sets of clients, so the sum itself may be "
        "wrong"
    )


class SumWriter:
    """Writes ``sum-<n>.npy``, ``report-<n>.json`` and ``receipt-<n>.bin``.

    For a session that was aborted, it writes a receipt alone.

    Args:
        directory: The directory of the files.
        prepared: The task's parameters.
        notify: Called with every file that was written.
    """

    def __init__(
        self,
        directory: Path,
        prepared: PreparedTask,
        *,
        notify: Callable[[Path], object] = lambda _: None,
    ) -> None:
        self._directory = directory
        self._prepared = prepared
        self._notify = notify

    async def write(self, released: ReleasedSum) -> None:
        """Write the files of one sum.

        Raises:
            ServiceError: STORAGE_FAILED; the session stays open in the store.
        """
        await asyncio.to_thread(self._write_sum, released)

    async def write_aborted(self, session: SessionDescriptor, audit: bytes) -> None:
        """Write the receipt of a session that released no sum.

        Raises:
            ServiceError: STORAGE_FAILED; the session stays open in the store.
        """
        written = asyncio.to_thread(store_receipt, self._directory, session, audit)
        self._notify(await written)

    def _write_sum(self, released: ReleasedSum) -> None:
        """Write the files of one released sum, the report last."""
        number, values = released.session_number, released.values
        sum_path = self._directory / f"sum-{number}.npy"
        report_path = self._directory / f"report-{number}.json"
        descriptor = released.receipt.descriptor
        receipt_path = store_receipt(self._directory, descriptor, released.audit)
        write_vector(sum_path, values)
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
            self._notify(path)

    def _privacy(self, ring: RingRisk | None) -> dict[str, object] | None:
        """Return the privacy section of a report; None for exact sums."""
        noised, report = self._prepared.noised, self._prepared.report
        if noised is None or report is None:
            return None
        return {
            **report.to_dict(),
            "grounds_of_session": report.grounds(graph_delta=self._added_by(ring)),
            "budget_epsilon": noised.budget.epsilon,
            "budget_delta": noised.budget.delta,
            "charges_in_budget": noised.budget.charges,
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
        """Return the section of a report about the graph of masks."""
        parameters = self._prepared.parameters
        return {
            "kind": str(parameters.graph),
            "degree": parameters.degree,
            "threshold": parameters.threshold,
            "graph_bits": parameters.graph_bits,
            **failure_bounds_of(parameters).to_dict(),
        }


def store_receipt(directory: Path, session: SessionDescriptor, data: bytes) -> Path:
    """Write the receipt of a session, before all its other files (rule 2).

    Returns:
        Its file.

    Raises:
        ServiceError: STORAGE_FAILED; also where the files of this number are of another
            task.
    """
    path = directory / f"receipt-{session.session_number}.bin"
    owner = _owner_of(directory / f"report-{session.session_number}.json", path)
    if owner not in (None, session.task_id):
        raise ErrorCode.STORAGE_FAILED.error(
            f"{directory} has files of session {session.session_number} of the task "
            f"{owner!r}, which those of {session.task_id!r} would replace",
            fix="Move the files of that task away, or set server.output_dir to "
            "another folder; the sum is kept until it can be written.",
        )
    write_bytes(path, data)
    return path


def _owner_of(report: Path, receipt: Path) -> str | None:
    """Return the task whose files have a number in a folder; None without files."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        return str(json.loads(report.read_bytes())["task"])
    # A session without a sum has no report.
    with suppress(OSError, ValueError, RemoteProtocolError), receipt.open("rb") as file:
        offer = offer_in(file.read(2 * MAX_DESCRIPTOR_BYTES))  # and the first bytes
        return SessionDescriptor.decode(offer).task_id
    return None


@dataclass(slots=True)
class _Refusal:
    """Records that a disk refuses the files of a task.

    Attributes:
        began: When the disk first refused.
        log_next: When it is logged again.
    """

    began: float
    log_next: float


class PendingWrites:
    """Writes files, and records which writes are pending.

    Args:
        clock: Time; it measures how long a disk has refused.

    Attributes:
        refused: Why the files of a task's latest session could not be written, by task;
            empty without failures.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._refusals: dict[str, _Refusal] = {}
        self.refused: Final[dict[str, str]] = {}

    async def write(self, task_id: str, write: Callable[[], Awaitable[object]]) -> None:
        """Write a task's files.

        Args:
            task_id: The task.
            write: Writes the files; repeating it must be harmless.

        Raises:
            DeliveryDeferredError: The disk refuses them, for now.
            ServiceError: Not STORAGE_FAILED: errors that no retry repairs.
        """
        try:
            await write()
        except ServiceError as error:
            if error.code is not ErrorCode.STORAGE_FAILED:
                raise
            self._record_refusal(task_id, error)
            raise DeliveryDeferredError(
                error,
                retry_after_seconds=RETRY_SECONDS,
                settle=lambda: self._settle(task_id),
            ) from None
        refusal = self._refusals.get(task_id)
        self._settle(task_id)
        if refusal is not None:
            self._log_written(task_id, self._clock.now() - refusal.began)

    def _record_refusal(self, task_id: str, error: ServiceError) -> None:
        """Record that the disk refuses a task's files, and log it now and then."""
        now = self._clock.now()
        self.refused[task_id] = str(error)
        refusal = self._refusals.setdefault(task_id, _Refusal(now, now))
        if now >= refusal.log_next:
            refusal.log_next = now + SAY_EVERY_SECONDS
            self._log_refused(task_id, error)

    def _settle(self, task_id: str) -> None:
        """Record that no write of a task is pending here."""
        self.refused.pop(task_id, None)
        self._refusals.pop(task_id, None)

    def _log_refused(self, task_id: str, error: ServiceError) -> None:
        """Log that a task waits for a disk that refuses its files."""
        telemetry.log_event(
            _LOG,
            logging.ERROR,
            telemetry.OUTPUT_WRITE_FAILED,
            task=task_id,
            reason=error,
            next_step=f"{error.next_step} The write is repeated every "
            f"{RETRY_SECONDS:g} seconds; the task waits for it. Another aggregator of "
            "the same store writes it, if its disk has room.",
        )

    def _log_written(self, task_id: str, seconds: float) -> None:
        """Log that a pending write has succeeded."""
        telemetry.log_event(
            _LOG,
            logging.WARNING,
            telemetry.OUTPUT_WRITTEN,
            task=task_id,
            seconds=round(seconds, 1),
        )
