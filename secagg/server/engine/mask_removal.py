"""Removes the masks from a sum: the heavy work of a session.

Rule 1: memory is O(parts · d).  Uploads are read chunk by chunk and never held.
Rule 2: the work is split by uploads and masks. Every part adds its own share into a
        vector of its own, and the vectors are added in the end.  That scales key
        agreement as well as mask expansion, at any modulus.
Rule 3: a part is a plain function of plain values, so threads, processes and clusters
        run the same one.  It receives the keys of its own share of the masks, each
        valid for one stream of this session, and no key of a client.
Rule 4: lost workers cost time only: the aggregator computes by itself what they did
        not.
Rule 5: noise layers whose seeds the survivors revealed are regenerated and subtracted
        here, bit for bit what the clients added.

Source:
    PROTOCOL §6: what remains of the masks in a sum over U3.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from secagg.crypto.modular import (
    UnsignedArray,
    add_into,
    bit_width,
    reduce_in_place,
    zeros,
)
from secagg.crypto.prg import Mask, add_masks
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import subtract_layers
from secagg.errors import ErrorCode
from secagg.protocol.events import ComputeSum, NoiseRemoval
from secagg.protocol.packing import chunks, pack, removal_masks, unpack
from secagg.runtime import log_events as telemetry
from secagg.runtime.metrics import ENGINE_JOBS, MASK_COORDINATES, Meter, SilentMeter
from secagg.runtime.workers import Workers
from secagg.server.engine.engine import Engine, EngineLostError

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)

# Below this many (mask, coordinate) pairs, about 50 ms of work, a second worker costs
# more than it saves.
_MIN_WORK_PER_PART: Final = 1 << 26
_MASKS_PER_LAYER: Final = 8  # the cost of a draw, in coordinates of a mask


class UploadReader(Protocol):
    """Reads stored uploads; `secagg.storage.spool.UploadSpool` is one."""

    def read_upload(
        self, session_id: bytes, digest: bytes, offset: int, size: int, /
    ) -> bytes:
        """Read exactly `size` bytes of a stored upload."""


@dataclass(frozen=True, slots=True)
class _SumPart:
    """Holds a part of a `ComputeSum` in plain values, which any executor can ship."""

    session_id: bytes
    modulus: int
    dimension: int
    uploads: tuple[bytes, ...]
    masks: tuple[tuple[bytes, bytes, int], ...] = field(repr=False)
    noise_block: bytes
    share_holders: int
    layers: tuple[tuple[int, bytes], ...] = field(repr=False)


class MaskExecutor:
    """Computes the unmasked sum of a session.

    Args:
        workers: Threads of this process, for small jobs, and whenever the engine fails.
        engine: Workers for large jobs, which can read the spool; None for `workers`.
        min_work_per_part: Smaller jobs are split into fewer parts.
        meter: Counts masks, and the results of the engine's parts.
    """

    def __init__(
        self,
        workers: Workers,
        engine: Engine | None = None,
        *,
        min_work_per_part: int = _MIN_WORK_PER_PART,
        meter: Meter | None = None,
    ) -> None:
        self._meter = meter or SilentMeter()
        self._workers = workers
        self._engine = engine
        self._min_work_per_part = min_work_per_part

    async def compute_sum(self, job: ComputeSum, uploads: UploadReader) -> bytes:
        """Add the uploads of U3, remove masks and noise layers, pack the sum.

        Args:
            job: The request of the state machine.
            uploads: Reads the uploads.

        Returns:
            The packed sum of the survivors' inputs.

        Raises:
            ServiceError: STORAGE_FAILED when an upload cannot be read.
        """
        masks = await self._workers.run(removal_masks, job)
        parts = await self._count_parts(job, len(masks))
        self._meter.add(MASK_COORDINATES, len(masks) * job.dimension)
        partial_sums = await asyncio.gather(
            *(
                self._add_up(_part_of_job(job, masks, part, parts), uploads, parts)
                for part in range(parts)
            )
        )
        return await self._workers.run(_merge, partial_sums, job.dimension, job.modulus)

    async def _count_parts(self, job: ComputeSum, masks: int) -> int:
        """Return the number of parts of a job."""
        layers = len(job.noise.seeds) if job.noise else 0
        work = (masks + len(job.uploads) + layers * _MASKS_PER_LAYER) * job.dimension
        most = work // self._min_work_per_part
        if self._engine is None or most <= 1:
            return 1  # no engine is asked
        try:
            return min(await self._engine.parts(), most)
        except EngineLostError as error:
            self._warn_of_lost_workers(error)
            return 1

    async def _add_up(
        self, work: _SumPart, uploads: UploadReader, parts: int
    ) -> UnsignedArray:
        """Add up one part of a sum, on the engine or on a thread."""
        if self._engine is not None and parts > 1:
            kind = self._engine.name.partition(":")[0]
            try:
                partial = await self._engine.run(_partial_sum, work, uploads)
            except EngineLostError as error:
                self._meter.add(ENGINE_JOBS, engine=kind, result="lost")
                self._warn_of_lost_workers(error)
            else:
                self._meter.add(ENGINE_JOBS, engine=kind, result="done")
                return partial
        return await self._workers.run(_partial_sum, work, uploads)

    def _warn_of_lost_workers(self, error: EngineLostError) -> None:
        """Log that the engine's workers have failed."""
        telemetry.log_event(
            _LOG,
            logging.WARNING,
            telemetry.ENGINE_LOST,
            reason=str(error),
            next_step=error.next_step,
        )


def check_packed_vector(
    read: Callable[[int, int], bytes], dimension: int, modulus: int
) -> None:
    """Check that packed bytes are a vector over Z_m, chunk by chunk (R5.3-8).

    Args:
        read: Returns `size` bytes from an offset; the total size was checked before.
        dimension: d.
        modulus: m.

    Raises:
        BadVectorError: An entry is not below m, or padding is not zero.
    """
    bits = bit_width(modulus)
    every_word_is_legal = modulus == 1 << bits
    for chunk in chunks(dimension, bits):
        # With m = 2^b only the padding after the last entry can be wrong.
        if every_word_is_legal and chunk.start + chunk.values < dimension:
            continue
        unpack(read(chunk.offset, chunk.nbytes), chunk.values, bits, modulus)


def _part_of_job(job: ComputeSum, masks: list[Mask], part: int, parts: int) -> _SumPart:
    """Return one part: its uploads, and the keys of its masks, no others."""
    return _SumPart(
        session_id=job.session_id,
        modulus=job.modulus,
        dimension=job.dimension,
        uploads=tuple(digest for _, digest in job.uploads[part::parts]),
        masks=tuple((m.key.reveal(), m.iv, m.sign) for m in masks[part::parts]),
        noise_block=job.noise.noise_block if job.noise else b"",
        share_holders=job.noise.share_holders if job.noise else 0,
        layers=tuple(
            (layer, seed.reveal())
            for layer, seed in (job.noise.seeds if job.noise else ())[part::parts]
        ),
    )


def _partial_sum(work: _SumPart, uploads: UploadReader) -> UnsignedArray:
    """Add one part's uploads and masks; runs on a worker."""
    bits = bit_width(work.modulus)
    total = zeros(work.dimension, work.modulus)
    for chunk in chunks(work.dimension, bits):
        target = total[chunk.start : chunk.start + chunk.values]
        for digest in work.uploads:
            packed = uploads.read_upload(
                work.session_id, digest, chunk.offset, chunk.nbytes
            )
            add_into(
                target, unpack(packed, chunk.values, bits, work.modulus), work.modulus
            )
    masks = [Mask(SecretBytes(key), iv, sign) for key, iv, sign in work.masks]
    add_masks(total, masks, work.modulus)
    noise = NoiseRemoval(
        noise_block=work.noise_block,
        share_holders=work.share_holders,
        seeds=tuple((layer, SecretBytes(seed)) for layer, seed in work.layers),
    )
    subtract_layers(total, noise)
    return total


def _merge(partial_sums: list[UnsignedArray], dimension: int, modulus: int) -> bytes:
    """Add the workers' results, which must have one shape; they are not modified."""
    total = zeros(dimension, modulus)
    for partial in partial_sums:
        if partial.shape != total.shape or partial.dtype != total.dtype:
            raise ErrorCode.INTERNAL.error("a worker returned no valid part of a sum")
        add_into(total, partial, modulus)
    return pack(reduce_in_place(total, modulus), bit_width(modulus))
