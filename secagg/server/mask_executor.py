"""Removes the masks from a sum: the heavy work of a session.

Rule 1: memory is O(parts · d).  Uploads are read chunk by chunk and never held.
Rule 2: the work is split by uploads and masks: every part adds up its own share into
        a vector of its own, and the vectors are added in the end.  That scales key
        agreement as well as mask expansion, at any modulus.
Rule 3: a part is a plain function of plain values, so that threads, processes and
        clusters run the same one.  It receives the self-mask seeds of its own share of
        the survivors and the keys of lost clients whose masks it removes: use only
        workers that you trust like the server.
Rule 4: layers of noise that survivors have given away are regenerated and subtracted
        here, to the last bit what the clients have added.

Source:
    PROTOCOL §6: what remains of the masks in a sum over U3.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, Protocol

from secagg.distributed_dp import subtract_layers
from secagg.primitives.cipher_suite import CipherSuite
from secagg.primitives.modular import (
    UnsignedArray,
    add_into,
    bit_width,
    reduce_in_place,
    zeros,
)
from secagg.primitives.prg import add_masks
from secagg.primitives.secret_bytes import SecretBytes
from secagg.protocol.masking import removal_masks
from secagg.protocol.outputs import (
    ComputeSum,
    DroppedKey,
    NoiseRemoval,
    SurvivorSeed,
)
from secagg.runtime.workers import Workers
from secagg.wire.packing import chunks, pack, unpack

__all__ = ["MaskExecutor", "UploadReader", "check_packed_vector"]

# Below this many (mask, coordinate) pairs, about 50 ms of work, a second worker costs
# more than it saves.
MIN_WORK_PER_PART: Final = 1 << 26
_MASKS_PER_LAYER: Final = 8  # what a draw costs, in coordinates of a mask


class UploadReader(Protocol):
    """Reads stored uploads; `secagg.storage.spool.Spool` is one."""

    def read_upload(
        self, session_id: bytes, digest: bytes, offset: int, size: int, /
    ) -> bytes:
        """Read exactly `size` bytes of a stored upload."""
        ...


@dataclass(frozen=True, slots=True)
class _SumPart:
    """A part of a `ComputeSum` in plain values, which any executor can ship."""

    session_id: bytes
    mask_context: bytes
    modulus: int
    dimension: int
    suite: int
    uploads: tuple[tuple[int, bytes], ...]
    seeds: tuple[tuple[int, bytes], ...] = field(repr=False)
    keys: tuple[tuple[int, bytes, tuple[tuple[int, bytes], ...]], ...] = field(
        repr=False
    )
    noise_block: bytes
    sharers: int
    layers: tuple[tuple[int, bytes], ...] = field(repr=False)


class MaskExecutor:
    """Computes the clean sum of a session.

    Args:
        executor: Any `concurrent.futures.Executor`: threads, processes, a cluster.
            Processes must be spawned, not forked, and can read only spools on disk.
        workers: Threads of this process, for the last addition.
        parts: Into how many parts large jobs are split; the number of workers.
        min_work_per_part: Smaller jobs are split into fewer parts.
    """

    def __init__(
        self,
        executor: Executor,
        workers: Workers,
        *,
        parts: int = 1,
        min_work_per_part: int = MIN_WORK_PER_PART,
    ) -> None:
        self._executor = executor
        self._workers = workers
        self._parts = parts
        self._min_work_per_part = min_work_per_part

    async def compute_sum(self, job: ComputeSum, uploads: UploadReader) -> bytes:
        """Add the uploads of U3, remove masks and noise layers, pack the sum.

        Args:
            job: What the state machine put out.
            uploads: Where the uploads are.

        Returns:
            The packed sum of the survivors' inputs.

        Raises:
            ServiceError: STORAGE_FAILED when an upload cannot be read.
        """
        loop = asyncio.get_running_loop()
        parts = self.parts_for(job)
        partial_sums = await asyncio.gather(
            *(
                loop.run_in_executor(
                    self._executor, _partial_sum, _plain(job, part, parts), uploads
                )
                for part in range(parts)
            )
        )
        return await self._workers.run(_merge, partial_sums, job.modulus)

    def parts_for(self, job: ComputeSum) -> int:
        """Return into how many parts a job is split."""
        masks = len(job.survivor_seeds) + sum(len(k.peers) for k in job.dropped_keys)
        layers = len(job.noise.seeds) if job.noise else 0
        work = (masks + len(job.uploads) + layers * _MASKS_PER_LAYER) * job.dimension
        return max(1, min(self._parts, work // self._min_work_per_part))


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
        # With m = 2^b only the padding behind the last entry can be wrong.
        if every_word_is_legal and chunk.start + chunk.values < dimension:
            continue
        unpack(read(chunk.offset, chunk.nbytes), chunk.values, bits, modulus)


def _plain(job: ComputeSum, part: int, parts: int) -> _SumPart:
    """Cut out one part: its uploads, and the secrets of its masks, no others."""
    return _SumPart(
        session_id=job.session_id,
        mask_context=job.mask_context,
        modulus=job.modulus,
        dimension=job.dimension,
        suite=job.suite,
        uploads=job.uploads[part::parts],
        seeds=tuple(
            (s.index, s.seed.reveal()) for s in job.survivor_seeds[part::parts]
        ),
        keys=tuple(
            (k.index, k.private_key.reveal(), k.peers[part::parts])
            for k in job.dropped_keys
            if k.peers[part::parts]
        ),
        noise_block=job.noise.noise_block if job.noise else b"",
        sharers=job.noise.sharers if job.noise else 0,
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
        for _, digest in work.uploads:
            packed = uploads.read_upload(
                work.session_id, digest, chunk.offset, chunk.nbytes
            )
            add_into(
                target, unpack(packed, chunk.values, bits, work.modulus), work.modulus
            )
    job = ComputeSum(
        session_id=work.session_id,
        mask_context=work.mask_context,
        modulus=work.modulus,
        dimension=work.dimension,
        suite=CipherSuite(work.suite),
        uploads=work.uploads,
        survivor_seeds=tuple(SurvivorSeed(i, SecretBytes(s)) for i, s in work.seeds),
        dropped_keys=tuple(DroppedKey(i, SecretBytes(k), p) for i, k, p in work.keys),
        noise=NoiseRemoval(
            noise_block=work.noise_block,
            sharers=work.sharers,
            seeds=tuple((layer, SecretBytes(seed)) for layer, seed in work.layers),
        ),
    )
    add_masks(total, removal_masks(job), work.modulus)
    subtract_layers(total, job.noise)
    return total


def _merge(partial_sums: list[UnsignedArray], modulus: int) -> bytes:
    total = partial_sums[0]
    for other in partial_sums[1:]:
        add_into(total, other, modulus)
    return pack(reduce_in_place(total, modulus), bit_width(modulus))
