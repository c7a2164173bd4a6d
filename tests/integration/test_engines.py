"""One suite for all engines that remove masks.

Threads, processes and a Dask cluster of two workers always; `make engines` adds Ray.
"""

import logging
import os
from contextlib import asynccontextmanager, contextmanager, nullcontext

import numpy as np
import pytest
from secagg_testing.deadly_reader import DeadlyReader
from secagg_testing.summing import expected_sum, spool_uploads, summing_session

from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.packing import unpack
from secagg.runtime.workers import Workers
from secagg.server.engine.engine import Engine
from secagg.server.engine.mask_removal import MaskExecutor
from secagg.server.engine.opening import open_engine
from secagg.storage.blobs import FileBlobs
from secagg.storage.spool import UploadSpool

ENGINES = os.environ.get("SECAGG_ENGINES", "threads processes dask").split()


@contextmanager
def dask_cluster():
    from distributed import LocalCluster  # noqa: PLC0415 - where it is asked for

    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address=None,
        silence_logs=logging.CRITICAL,
    ) as cluster:
        yield f"dask:{cluster.scheduler_address}"


@contextmanager
def ray_cluster():
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - where it is asked for

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        yield f"ray:{cluster.address}"
    finally:
        cluster.shutdown()


@contextmanager
def this_machine(setting):
    yield setting


CLUSTERS = {"dask": dask_cluster, "ray": ray_cluster}


@pytest.fixture(scope="module", params=ENGINES)
def setting(request):
    opened = CLUSTERS.get(request.param)
    with opened() if opened else this_machine(request.param) as address:
        yield address


@asynccontextmanager
async def masks_on(engine):
    workers = Workers()
    try:
        async with engine:
            yield MaskExecutor(workers, engine, min_work_per_part=1)
    finally:
        workers.close()


async def test_every_engine_computes_the_sum_of_the_survivors(
    setting, tmp_path, caplog
):
    spool = UploadSpool(FileBlobs(tmp_path), min_free_bytes=0)
    async with masks_on(open_engine(setting)) as masks:
        for modulus in (1 << 20, 1_000_003):
            session, job = summing_session(modulus)
            spool_uploads(session, job, spool)
            packed = await masks.compute_sum(job, spool)
            total = unpack(packed, 40, session.parameters.bits, modulus)
            np.testing.assert_array_equal(
                total, expected_sum(session.parameters, (0, 1, 3, 5))
            )
        spool.drop_uploads(job.session_id)
        with pytest.raises(ServiceError) as caught:  # an answer, and no lost engine
            await masks.compute_sum(job, spool)
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert "engine_lost" not in caplog.text


async def test_a_worker_that_dies_costs_no_sum(setting, tmp_path, caplog):
    session, job = summing_session(1 << 20)
    spool = UploadSpool(FileBlobs(tmp_path / "spool"), min_free_bytes=0)
    spool_uploads(session, job, spool)
    marker = tmp_path / "died"
    deadly = DeadlyReader(spool, marker, os.getpid())
    async with masks_on(open_engine(setting)) as masks:
        for _ in range(2):  # the second time the engine must be there again
            packed = await masks.compute_sum(job, deadly)
            total = unpack(packed, 40, session.parameters.bits, 1 << 20)
            np.testing.assert_array_equal(
                total, expected_sum(session.parameters, (0, 1, 3, 5))
            )
    assert marker.exists() == (setting != "threads")
    # A cluster runs it again by itself; a broken pool of processes is replaced.
    assert ("engine_lost" in caplog.text) == (setting == "processes")


async def test_without_its_engine_the_aggregator_computes_by_itself(tmp_path, caplog):
    session, job = summing_session(1 << 20)
    spool = UploadSpool(FileBlobs(tmp_path), min_free_bytes=0)
    spool_uploads(session, job, spool)

    async def fail():
        raise ConnectionRefusedError

    async with masks_on(Engine("gone", fail)) as masks:
        packed = await masks.compute_sum(job, spool)
    np.testing.assert_array_equal(
        unpack(packed, 40, 20, 1 << 20),
        expected_sum(session.parameters, (0, 1, 3, 5)),
    )
    (line,) = [r for r in caplog.records if "engine_lost" in r.getMessage()]
    assert line.levelno == logging.WARNING
    assert "gone" in line.getMessage()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("dask:tcp://10.0.0.1:8786", "TLS"),
        ("dask:tcp://scheduler:8786", "TLS"),
        ("dask:10.0.0.1:8786", "TLS"),
        ("dask:", "no engine"),
        ("thread", "no engine"),
        ("", "no engine"),
        ("processes:4", "no engine"),
    ],
)
def test_keys_cross_no_network_in_the_clear(setting, words):
    with pytest.raises(ServiceError, match=words) as caught:
        open_engine(setting)
    assert caught.value.code is ErrorCode.BAD_SETTINGS


@pytest.mark.services
@pytest.mark.parametrize(
    ("worker", "is_refused"),
    [
        ("tcp://127.0.0.1:4000", False),
        ("tls://192.0.2.1:4000", False),
        ("tcp://192.0.2.1:4000", True),
        ("tcp://worker:4000", True),
    ],
)
def test_a_local_scheduler_sends_keys_to_no_remote_worker(worker, is_refused):
    from secagg.server.engine.dask import _DaskExecutor  # noqa: PLC0415 - an extra

    class Cluster:
        """A client of a scheduler that a worker has joined."""

        def nthreads(self):
            return {worker: 1}

        def get_executor(self, **_):
            return self

        def submit(self, call):
            return call()

    handed = []
    executor = _DaskExecutor(Cluster())
    with pytest.raises(ServiceError, match="TLS") if is_refused else nullcontext():
        executor.submit(lambda: handed.append(worker))
    assert bool(handed) is not is_refused


@pytest.mark.services
@pytest.mark.parametrize(
    "setting", ["dask:tls://scheduler:8786", "dask:tcp://127.0.0.1:8786"]
)
def test_a_cluster_with_tls_or_on_this_machine_is_accepted(setting):
    assert open_engine(setting).name == setting
