"""What is said of a session on a ring: "certified" only where it could not be cut.

The same small cohort three times: all with all; on a ring that no one
colluder can cut; and on one that four might, with a chance that was accepted.
"""

import asyncio
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import LENIENT_POLICY, parameters_for, with_noise
from secagg_testing.crash_points import CrashSwitch
from secagg_testing.deployment import Deployment

from secagg.client.contribution import SessionOutcome
from secagg.distributed_dp import EXACT, NoisyTask
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.graphs.ring_safety import RingRisk
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.profiles import HonestCuriousParameters
from secagg.server.session.report import SessionReceipt
from secagg.server.task.outputs import ReleasedSum, SumWriter
from secagg.server.task.setup import PreparedTask

CLIENTS = 12
POLICY: ClientPolicy = replace(LENIENT_POLICY, min_graph_bits=1)
COMPLETE = parameters_for(
    CLIENTS, dimension=4, threshold=6, min_clients=CLIENTS, min_survivors=10
)
SAFE = replace(
    COMPLETE, degree=4, threshold=4, tail=HonestCuriousParameters(40), colluders=1
)
# C(12, 4) choices of colluders, 42 of which cut the ring: 2^-3.6 where 2^-3 is wanted.
DOUBTFUL = replace(SAFE, tail=HonestCuriousParameters(2), colluders=4)


def run(parameters, **options):
    async def main(clock):
        deployment = Deployment(
            clock, parameters, CLIENTS, policy=POLICY, max_attempts=1, **options
        )
        return deployment, await deployment.run()

    deployment, outcomes = manual_clock.run(main)
    assert all(isinstance(each, SessionOutcome) for each in outcomes.values())
    (released,) = deployment.sums
    return released.receipt, outcomes


@pytest.mark.parametrize(
    ("parameters", "is_certain"), [(COMPLETE, True), (SAFE, True), (DOUBTFUL, False)]
)
def test_server_and_clients_agree_on_the_ring_safety_of_a_session(
    parameters, is_certain
):
    receipt, outcomes = run(parameters)
    assert {each.is_certain for each in outcomes.values()} == {is_certain}
    if parameters is COMPLETE:
        assert receipt.ring is None
    else:
        assert receipt.ring.worst_case_safe is is_certain
    if parameters is DOUBTFUL:
        assert receipt.ring.cut_bits == pytest.approx(-math.log2(42 / 495))
    stored = SessionReceipt.decode(receipt.encode())
    assert stored.ring == receipt.ring


def test_a_restarted_client_that_has_answered_reports_no_ring_safety():
    """Once it has answered it keeps the answer only; a new process cannot check."""
    switch = CrashSwitch()
    run(SAFE, client_crash={3: switch})
    answer = max(i for i, point in enumerate(switch.points) if "RevealShares" in point)
    for at, known in ((answer - 1, False), (None, True)):
        _, outcomes = run(SAFE, client_crash={3: CrashSwitch(at)})
        assert outcomes[3].is_certain is known
        assert outcomes[4].is_certain


def test_a_sum_file_of_another_task_is_not_overwritten(tmp_path):
    prepared = PreparedTask(SAFE, None, None)
    receipt, _ = run(SAFE)
    residues = np.zeros(SAFE.dimension, np.uint64)
    released = ReleasedSum(
        session_number=1,
        inputs=CLIENTS,
        values=residues,
        privacy=None,
        residues=residues,
        receipt=receipt,
        audit=b"",
        l2_clip=None,
        fitted=None,
        error=EXACT,
    )
    files = SumWriter(tmp_path, prepared)
    asyncio.run(files.write(released))
    asyncio.run(files.write(released))  # the same again, as after a crash
    descriptor = replace(receipt.descriptor, task_id="another")
    other = replace(released, receipt=replace(receipt, descriptor=descriptor))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for write in (
        files.write(replace(other, values=residues + 1, audit=b"another")),
        files.write_aborted(descriptor, b"another"),
    ):
        with pytest.raises(ServiceError, match="another") as caught:
            asyncio.run(write)
        assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(("worst_case_safe", "ladder"), [(True, 0), (False, 2)])
def test_a_sum_report_is_not_certified_if_its_ring_can_be_cut(
    tmp_path, worst_case_safe, ladder
):
    noised = NoisyTask.from_parameters(with_noise(SAFE, ladder=ladder))
    prepared = PreparedTask(noised.parameters, noised, noised.report())
    receipt, _ = run(SAFE)
    ring = RingRisk(50.0, math.inf, worst_case_safe=worst_case_safe)
    residues = np.zeros(noised.parameters.dimension, np.uint64)
    released = ReleasedSum(
        session_number=1,
        inputs=CLIENTS,
        values=noised.decode(residues, session_id=bytes(32)),
        privacy=prepared.report,
        residues=residues,
        receipt=replace(receipt, ring=ring),
        audit=b"",
        l2_clip=1.0,
        fitted=None,
        error=EXACT,
    )
    asyncio.run(SumWriter(tmp_path, prepared).write(released))
    report = json.loads((tmp_path / "report-1.json").read_text())
    assert report["privacy"]["server"]["proof"] == "own"
    word = report["privacy"]["server"]["status"] + " (own proof)"
    assert report["privacy"]["graph_delta"] == 10 * 2.0**-40
    assert report["privacy"]["grounds"] == f"{word}, with 9.09e-12 added to delta"
    doubt = "" if worst_case_safe else ", with 9.09e-13 added to delta"
    assert report["privacy"]["grounds_of_session"] == word + doubt
    assert report["standard_error"] == 0.0
    assert report["receipt"]["ring"] == {
        "holder_bits": 50.0,
        "cut_bits": None,
        "worst_case_safe": worst_case_safe,
    }
    assert report["graph"]["kind"] == "ring"
    assert (report["graph"]["degree"], report["graph"]["graph_bits"]) == (4, 40)
    assert report["graph"]["holder_bits"] is None  # fewer colluders than a threshold
    assert report["graph"]["liveness_bits"] >= 0
