"""What durability costs, and what a second worker saves."""

import asyncio
import hashlib
import sys
import tempfile
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measurement import emit

from secagg.primitives.cipher_suite import CipherSuite
from secagg.primitives.entropy import SystemEntropy
from secagg.primitives.modular import zeros
from secagg.primitives.secret_bytes import SecretBytes
from secagg.protocol.outputs import ComputeSum, SurvivorSeed
from secagg.runtime.journal_writer import JournalWriter
from secagg.runtime.workers import Workers
from secagg.server.mask_executor import MaskExecutor
from secagg.storage.base import Role
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite import SQLiteSessionStore
from secagg.wire.packing import pack


def main(*, tiny: bool = False) -> None:
    """Measure group commit of the journal and the parallel removal of masks."""
    with tempfile.TemporaryDirectory() as directory:
        _journal(Path(directory), records=50 if tiny else 2000)
        _masks(
            Path(directory),
            survivors=4 if tiny else 100,
            dimension=1 << 12 if tiny else 1 << 20,
        )


def _journal(directory: Path, *, records: int) -> None:
    record = bytes(200)
    plain = SQLiteSessionStore(directory / "plain.db")
    plain.create("s", Role.SERVER, b"")
    begin = time.perf_counter()
    for number in range(records):
        plain.append("s", number, [record])
    one_by_one = time.perf_counter() - begin
    plain.close()

    grouped_store = SQLiteSessionStore(directory / "grouped.db")
    grouped_store.create("s", Role.SERVER, b"")

    async def together() -> None:
        workers = Workers()
        writer = JournalWriter(grouped_store, workers, "s")

        async def one() -> None:
            writer.append(record)
            await writer.durable()

        await asyncio.gather(*(one() for _ in range(records)))
        workers.close()

    grouped = _seconds(together())
    grouped_store.close()
    emit(
        "runtime/journal",
        parameters={"records": records, "bytes": len(record)},
        value=1e6 * grouped / records,
        unit="µs per durable record",
        baseline="one transaction per record",
        ratio=one_by_one / grouped,
    )


def _masks(directory: Path, *, survivors: int, dimension: int) -> None:
    entropy, modulus = SystemEntropy(), 1 << 20
    spool = UploadSpool(directory / "spool", min_free_bytes=0)
    packed = pack(zeros(dimension, modulus), 20)
    digest, session_id = hashlib.sha256(packed).digest(), entropy.token(32)
    for offset in range(0, len(packed), 1 << 20):
        spool.append(
            session_id,
            "u",
            digest,
            offset=offset,
            total_size=len(packed),
            data=packed[offset : offset + (1 << 20)],
        )
    spool.commit(session_id, "u", digest)
    job = ComputeSum(
        session_id=session_id,
        mask_context=bytes(32),
        modulus=modulus,
        dimension=dimension,
        suite=CipherSuite.AES_256_CTR,
        uploads=tuple((index, digest) for index in range(survivors)),
        survivor_seeds=tuple(
            SurvivorSeed(index, SecretBytes(entropy.token(32)))
            for index in range(survivors)
        ),
        dropped_keys=(),
    )
    seconds, sums = {}, []
    for parts in (1, 1, 2):  # the first round warms up
        with ThreadPoolExecutor(parts) as threads:
            workers = Workers()
            masks = MaskExecutor(threads, workers, parts=parts, min_work_per_part=1)
            begin = time.perf_counter()
            sums.append(asyncio.run(masks.compute_sum(job, spool)))
            seconds[parts] = time.perf_counter() - begin
            workers.close()
    if len(set(sums)) != 1:
        raise RuntimeError("two workers gave another sum than one")
    emit(
        "runtime/remove masks, 2 threads",
        parameters={"survivors": survivors, "dimension": dimension, "bits": 20},
        value=1e9 * seconds[2] / (survivors * dimension),
        unit="ns per upload and coordinate, wall",
        baseline="one thread",
        ratio=seconds[1] / seconds[2],
    )


def _seconds(work: Coroutine[None, None, None]) -> float:
    begin = time.perf_counter()
    asyncio.run(work)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv)
