import asyncio
import pickle
import tracemalloc

import numpy as np
import pytest
from secagg_testing.counting_meter import CountingMeter
from secagg_testing.manual_clock import inline_engine
from secagg_testing.summing import expected_sum, spool_uploads, summing_session

from secagg.crypto.modular import BadVectorError, word_dtype
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.packing import pack, removal_masks, unpack
from secagg.runtime.workers import Workers
from secagg.server.engine.engine import Engine, EngineLostError
from secagg.server.engine.mask_removal import MaskExecutor, check_packed_vector
from secagg.storage.blobs import FileBlobs, MemoryBlobs
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite.executor import InlineExecutor


def compute(engine, job, spool, **options):
    masks = MaskExecutor(Workers(general=InlineExecutor()), engine, **options)
    return asyncio.run(masks.compute_sum(job, spool))


@pytest.mark.parametrize("parts", [1, 2, 3, 50])
@pytest.mark.parametrize("modulus", [2, 1 << 20, 1 << 62, 1_000_003])
def test_any_partition_gives_the_sum_of_the_survivors(modulus, parts):
    session, job = summing_session(modulus)
    spool = UploadSpool(MemoryBlobs())
    spool_uploads(session, job, spool)
    packed = compute(inline_engine(parts), job, spool, min_work_per_part=1)
    total = unpack(packed, 40, session.parameters.bits, modulus)
    np.testing.assert_array_equal(total, expected_sum(session.parameters, (0, 1, 3, 5)))


def test_small_jobs_are_not_split_and_use_no_engine():
    session, job = summing_session(1 << 20)
    spool = UploadSpool(MemoryBlobs())
    spool_uploads(session, job, spool)
    # 4 uploads, 4 self masks and 2 * 4 pair masks over 40 coordinates
    for least, parts in ((16 * 40, 0), (16 * 20, 2), (100, 6), (1, 8)):
        engine = Spy(8)
        compute(engine, job, spool, min_work_per_part=least)
        assert len(engine.shipped) == parts


def test_a_missing_upload_is_a_storage_error():
    session, job = summing_session(1 << 20)
    spool = UploadSpool(MemoryBlobs())
    spool_uploads(session, job, spool)
    spool.discard(job.session_id, "0", job.uploads[0][1])
    with pytest.raises(ServiceError) as caught:
        compute(None, job, spool)
    assert caught.value.code is ErrorCode.STORAGE_FAILED


@pytest.mark.parametrize("result", ["done", "lost"])
def test_masks_and_results_of_parts_are_counted(result):
    session, job = summing_session(1 << 20)
    spool = UploadSpool(MemoryBlobs())
    spool_uploads(session, job, spool)
    engine, meter = Spy(2), CountingMeter()
    engine.is_lost = result == "lost"
    compute(engine, job, spool, min_work_per_part=1, meter=meter)
    assert meter.total == {
        ("secagg_mask_coordinates_total",): len(removal_masks(job)) * 40,
        ("secagg_engine_jobs_total", "spy", result): 2,
    }


class Spy(Engine):
    """Computes at once, and remembers what each worker was handed."""

    def __init__(self, parts):
        super().__init__("spy:there", inline_engine(parts)._open_pool)
        self.shipped = []
        self.is_lost = False

    async def run(self, call, part, *rest):
        self.shipped.append(part)
        if self.is_lost:
            raise EngineLostError("gone", code=ErrorCode.INTERNAL)
        return await super().run(call, part, *rest)


def shipped_parts(parts):
    session, job = summing_session(1 << 20)
    spool = UploadSpool(MemoryBlobs())
    spool_uploads(session, job, spool)
    engine = Spy(parts)
    compute(engine, job, spool, min_work_per_part=1)
    return job, engine.shipped


def test_no_secret_appears_in_the_repr_of_a_shipped_part():
    _, shipped = shipped_parts(2)
    text = " ".join(map(repr, shipped))
    for key, iv, _ in (mask for part in shipped for mask in part.masks):
        assert repr(key)[2:-1] not in text
        assert repr(iv)[2:-1] not in text


def test_a_part_receives_mask_keys_and_no_client_key():
    job, shipped = shipped_parts(3)
    sent = sorted(mask for part in shipped for mask in part.masks)
    own = sorted((m.key.reveal(), m.iv, m.sign) for m in removal_masks(job))
    assert sent == own
    assert max(len(part.masks) for part in shipped) == 4  # of twelve, in three parts
    packed = b"".join(map(pickle.dumps, shipped))
    for secret in job.survivor_seeds:
        assert secret.seed.reveal() not in packed
    for lost in job.dropped_keys:
        assert lost.private_key.reveal() not in packed


def test_memory_does_not_grow_with_the_number_of_clients(tmp_path):
    dimension = 1 << 17
    peaks = {}
    for clients in (4, 16):
        session, job = summing_session(
            1 << 32, dimension=dimension, clients=clients, lost=()
        )
        spool = UploadSpool(FileBlobs(tmp_path / str(clients)), min_free_bytes=0)
        spool_uploads(session, job, spool)
        del session
        tracemalloc.start()
        compute(None, job, spool)
        peaks[clients] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[16] - peaks[4] < 4 * dimension  # one vector


@pytest.mark.parametrize("modulus", [1 << 20, 1_000_003, (1 << 16) - 1])
def test_packed_vectors_are_checked_to_the_last_bit(modulus):
    bits = (modulus - 1).bit_length()
    vector = np.full(77, modulus - 1, word_dtype(modulus))
    good = pack(vector, bits)

    def check(packed):
        check_packed_vector(
            lambda offset, size: packed[offset : offset + size], 77, modulus
        )

    check(good)
    if modulus != 1 << bits:
        vector[13] = modulus
        with pytest.raises(BadVectorError):
            check(pack(vector, bits))
    if 77 * bits % 8:
        with pytest.raises(BadVectorError):
            check(good[:-1] + bytes([good[-1] | 0x80]))
