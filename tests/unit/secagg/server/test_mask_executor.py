import asyncio
import tracemalloc
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.messages import Round
from secagg.primitives.modular import BadVectorError, word_dtype
from secagg.runtime.workers import Workers
from secagg.server.mask_executor import MaskExecutor, check_packed_vector
from secagg.simulation import InProcessSession
from secagg.storage.blobs import FileBlobs, MemoryBlobs
from secagg.storage.spool import UploadSpool
from secagg.testing.cohorts import one_hot, parameters_for
from secagg.testing.manual_clock import InlineExecutor
from secagg.wire.packing import pack, unpack


def summing_session(modulus, *, dimension=40, clients=6, lost=(2, 4)):
    """Run the cores up to the sum and return the session and its job."""
    parameters = parameters_for(
        clients, dimension=dimension, threshold=3, modulus=modulus
    )
    inputs = [one_hot(n, dimension, modulus) for n in range(clients)]
    session = InProcessSession(parameters, inputs)
    jobs = []

    def keep(job):
        jobs.append(job)
        return np.zeros(dimension, word_dtype(modulus))

    session.compute_sum = keep
    survivors = sorted(set(range(clients)) - set(lost))
    for which in (Round.ADVERTISE_KEYS, Round.SHARE_KEYS):
        session.play(which)
        session.close(which)
    for which in (Round.MASKED_INPUT_COLLECTION, Round.UNMASKING):
        session.play(which, survivors)
        session.close(which)
    return session, jobs[0]


def spooled(session, job, spool):
    """Put the session's uploads into a spool."""
    for index, digest in job.uploads:
        packed = session.uploads[digest]
        spool.append(
            job.session_id,
            str(index),
            digest,
            offset=0,
            total_size=len(packed),
            data=packed,
        )
        spool.commit(job.session_id, str(index), digest)


def expected(parameters, survivors):
    total = np.zeros(parameters.dimension, object)
    for number in survivors:
        total += one_hot(number, parameters.dimension, parameters.modulus).astype(
            object
        )
    return total % parameters.modulus


def compute(executor, job, spool, **options):
    workers = Workers(general=InlineExecutor())
    masks = MaskExecutor(executor, workers, **options)
    return asyncio.run(masks.compute_sum(job, spool))


@pytest.mark.parametrize("parts", [1, 2, 3, 50])
@pytest.mark.parametrize("modulus", [2, 1 << 20, 1 << 62, 1_000_003])
def test_any_split_gives_the_sum_of_the_survivors(modulus, parts):
    session, job = summing_session(modulus)
    spool = UploadSpool(MemoryBlobs())
    spooled(session, job, spool)
    with ThreadPoolExecutor(2) as threads:
        packed = compute(threads, job, spool, parts=parts, min_work_per_part=1)
    total = unpack(packed, 40, session.parameters.bits, modulus)
    np.testing.assert_array_equal(total, expected(session.parameters, (0, 1, 3, 5)))


def test_processes_give_the_same_sum(tmp_path):
    session, job = summing_session(1 << 20)
    spool = UploadSpool(FileBlobs(tmp_path), min_free_bytes=0)
    spooled(session, job, spool)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        packed = compute(processes, job, spool, parts=2, min_work_per_part=1)
    total = unpack(packed, 40, 20, 1 << 20)
    np.testing.assert_array_equal(total, expected(session.parameters, (0, 1, 3, 5)))


def test_small_jobs_are_not_split():
    _, job = summing_session(1 << 20)
    workers = Workers(general=InlineExecutor())
    masks = MaskExecutor(InlineExecutor(), workers, parts=8)
    assert masks.parts_for(job) == 1
    eager = MaskExecutor(InlineExecutor(), workers, parts=8, min_work_per_part=100)
    # 4 uploads, 4 self masks and 2 * 4 pair masks over 40 coordinates
    assert eager.parts_for(job) == 6


def test_a_missing_upload_is_a_failure_of_the_storage():
    session, job = summing_session(1 << 20)
    spool = UploadSpool(MemoryBlobs())
    spooled(session, job, spool)
    spool.discard(job.session_id, "0", job.uploads[0][1])
    with pytest.raises(ServiceError) as caught:
        compute(InlineExecutor(), job, spool)
    assert caught.value.code is ErrorCode.STORAGE_FAILED


def shipped_parts(job, **options):
    """Return what each worker is handed."""
    shipped = []

    class Spy(InlineExecutor):
        def submit(self, _fn, /, part, *_):
            shipped.append(part)
            return super().submit(lambda: np.zeros(40, np.uint32))

    compute(Spy(), job, UploadSpool(MemoryBlobs()), **options)
    return shipped


def test_no_secret_shows_in_a_shipped_part():
    _, job = summing_session(1 << 20)
    text = " ".join(map(repr, shipped_parts(job)))
    for secret in job.survivor_seeds:
        assert repr(secret.seed.reveal())[2:-1] not in text
    for secret in job.dropped_keys:
        assert repr(secret.private_key.reveal())[2:-1] not in text


def test_a_part_receives_its_own_seeds_and_neighbours_and_no_others():
    _, job = summing_session(1 << 20)
    parts = shipped_parts(job, parts=3, min_work_per_part=1)
    seeds = [seed for part in parts for seed in part.seeds]
    assert sorted(seeds) == [(s.index, s.seed.reveal()) for s in job.survivor_seeds]
    assert max(len(part.seeds) for part in parts) == 2  # of four, in three parts
    for lost in job.dropped_keys:
        peers = [
            peer
            for part in parts
            for index, _, some in part.keys
            if index == lost.index
            for peer in some
        ]
        assert sorted(peers) == sorted(lost.peers)


def test_memory_does_not_grow_with_the_number_of_clients(tmp_path):
    dimension = 1 << 17
    peaks = {}
    for clients in (4, 16):
        session, job = summing_session(
            1 << 32, dimension=dimension, clients=clients, lost=()
        )
        spool = UploadSpool(FileBlobs(tmp_path / str(clients)), min_free_bytes=0)
        spooled(session, job, spool)
        del session
        tracemalloc.start()
        compute(InlineExecutor(), job, spool)
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
