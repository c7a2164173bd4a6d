"""The cost of durability, and the gain of a second worker."""

import asyncio
import hashlib
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Final

from measurement import emit

from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.entropy import SystemEntropy
from secagg.crypto.modular import zeros
from secagg.crypto.secret_bytes import SecretBytes
from secagg.protocol.events import ComputeSum, SurvivorSeed
from secagg.protocol.packing import pack
from secagg.runtime.workers import Workers
from secagg.server.engine.engine import thread_engine
from secagg.server.engine.mask_removal import MaskExecutor
from secagg.storage.blobs import FileBlobs
from secagg.storage.change import Change, Committed, NewSession, Record, Side
from secagg.storage.open_store import open_store
from secagg.storage.spool import UploadSpool

_RECORD_BYTES: Final = 200


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
    one_by_one = _seconds(_commit_all(directory / "plain.db", records, together=False))
    grouped = _seconds(_commit_all(directory / "grouped.db", records, together=True))
    emit(
        "runtime/store",
        parameters={"records": records, "bytes": _RECORD_BYTES},
        value=1e6 * grouped / records,
        unit="µs per durable record",
        baseline="one transaction per record",
        ratio=one_by_one / grouped,
    )


async def _commit_all(path: Path, records: int, *, together: bool) -> None:
    """Append one record to each of as many sessions, one by one or all at once."""
    store = await open_store(f"sqlite:{path}")
    changes = []
    for number in range(1, records + 1):
        new = NewSession(role=Side.SERVER, task="t", number=number, header=b"")
        changes.append(Change(key=str(number), create=new))
    begun = await asyncio.gather(*map(store.commit, changes))
    appended = [
        Change(
            key=change.key,
            previous=answer.chain,
            records=(Record(1, "client", bytes(_RECORD_BYTES)),),
        )
        for change, answer in zip(changes, begun, strict=True)
        if isinstance(answer, Committed)
    ]
    if together:
        await asyncio.gather(*map(store.commit, appended))
    else:
        for change in appended:
            await store.commit(change)
    await store.close()


def _masks(directory: Path, *, survivors: int, dimension: int) -> None:
    entropy, modulus = SystemEntropy(), 1 << 20
    spool = UploadSpool(FileBlobs(directory / "spool"), min_free_bytes=0)
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
        workers = Workers()
        masks = MaskExecutor(workers, thread_engine(parts), min_work_per_part=1)
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
