"""Whole tasks in memory: aggregator and clients, with losses, retries and deadlines."""

from dataclasses import replace

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import LENIENT_POLICY, parameters_for
from secagg_testing.crash_points import CrashSwitch
from secagg_testing.deployment import Deployment, one_hot_input
from secagg_testing.inline_store import answer_of
from secagg_testing.lossy_connection import Fault
from secagg_testing.lying_connection import LyingConnection

from secagg.client.contribution import SessionOutcome
from secagg.client.session_driver import SessionSettings
from secagg.errors import ErrorCode, SessionAbortedError
from secagg.protocol.events import PlainVector
from secagg.protocol.messages import Released
from secagg.server import aggregator as client_desk
from secagg.simulation import identity_of
from secagg.storage.change import Side
from secagg.storage.queries import ListSessions, LoadSession
from secagg.storage.rows import SessionState
from secagg.storage.spool import SUM
from secagg.wire.calls import (
    AdvertiseKeys,
    Blob,
    FetchChunk,
    GetUploadStatus,
    RevealShares,
    ShareKeys,
    UploadChunk,
    WatchSession,
)


def run(clients=5, *, absent=frozenset(), parameters=None, **options):
    parameters = parameters or parameters_for(clients, dimension=9, threshold=3)

    async def main(clock):
        deployment = Deployment(clock, parameters, clients, **options)
        return deployment, await deployment.run(absent=frozenset(absent))

    return manual_clock.run(main)


def assert_sum_of(deployment, numbers, *, index=0):
    expected = deployment.expected_sum(set(numbers))
    np.testing.assert_array_equal(deployment.sums[index].residues, expected)
    assert deployment.sums[index].survivors == len(set(numbers))


def test_all_clients_get_the_sum_of_all_vectors():
    deployment, endings = run(5)
    assert_sum_of(deployment, range(5))
    for ending in endings.values():
        assert isinstance(ending, SessionOutcome)
        np.testing.assert_array_equal(ending.residues, deployment.sums[0].residues)
    assert deployment.contradictions() == {}


@pytest.mark.parametrize("watch", [True, False], ids=["streams", "polls"])
def test_updates_sent_by_reference_lead_to_the_same_sum(monkeypatch, watch):
    monkeypatch.setattr(client_desk, "MAX_INLINE_BYTES", 100)
    settings = SessionSettings(watch=watch, offer_seconds=600.0)
    fetched = []

    def lose_some(_who, call, count):
        fetched.append(call)
        lost = call is FetchChunk and count % 2 == 0
        return Fault.LOSE_ANSWER if lost else Fault.NONE

    deployment, endings = run(5, settings=settings, fault_of=lose_some)
    assert_sum_of(deployment, range(5))
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())
    assert (
        fetched.count(FetchChunk) >= 5 * 3 * 2
    )  # roster, delivery and sum, each twice


def dead_from(methods):
    """Return a fault function: client n's link is dead from its first `method` on."""
    dead = set()

    def fault_of(number, method, _count):
        if methods.get(number) == method:
            dead.add(number)
        return Fault.LOSE_REQUEST if number in dead else Fault.NONE

    return fault_of


@pytest.mark.parametrize(
    ("method", "counted"),
    [
        (AdvertiseKeys, False),
        (ShareKeys, False),
        (UploadChunk, False),
        (RevealShares, True),
    ],
)
def test_clients_lost_at_any_point_leave_the_sum_of_the_others(method, counted):
    lost = {1: method, 4: method}
    deployment, endings = run(6, fault_of=dead_from(lost))
    assert_sum_of(deployment, [n for n in range(6) if counted or n not in lost])
    for number, ending in endings.items():
        assert isinstance(ending, SessionOutcome) == (number not in lost)
    # Who was silent before the session began may come back to it.
    code = ErrorCode.UNREACHABLE if method is AdvertiseKeys else ErrorCode.DEADLINE
    assert {endings[n].code for n in lost} == {code}


@pytest.mark.parametrize(
    ("point", "counted"), [("before UploadChunk", False), ("after UploadChunk", True)]
)
def test_clients_that_drop_out_after_a_restart_count_if_they_had_uploaded(
    point, counted
):
    whole = {n: CrashSwitch() for n in (1, 4)}
    run(6, client_crash=whole)
    crashes = {n: CrashSwitch(each.points.index(point)) for n, each in whole.items()}
    lost = dict.fromkeys(crashes, GetUploadStatus)
    dead = dead_from(lost)

    def fault_of(number, method, count):
        if number not in crashes or not crashes[number].is_dead:
            return Fault.NONE  # every client asks once before it uploads
        return dead(number, method, count)

    deployment, endings = run(6, fault_of=fault_of, client_crash=crashes)
    assert all(switch.is_dead for switch in crashes.values())
    assert_sum_of(deployment, [n for n in range(6) if counted or n not in lost])
    for number, ending in endings.items():
        assert isinstance(ending, SessionOutcome) == (number not in lost)
    assert {endings[n].code for n in lost} == {ErrorCode.DEADLINE}


def test_clients_lost_at_every_round_of_one_session():
    lost = {0: AdvertiseKeys, 2: ShareKeys, 4: UploadChunk, 6: RevealShares}
    deployment, _ = run(8, fault_of=dead_from(lost))
    assert_sum_of(deployment, [1, 3, 5, 6, 7])
    dropped = deployment.sums[0].receipt
    assert (dropped.advertised, dropped.shared) == (7, 6)
    assert (dropped.uploaded, dropped.revealed) == (5, 4)


@pytest.mark.parametrize("method", [ShareKeys, UploadChunk, RevealShares])
def test_too_many_losses_give_a_typed_abort_on_every_side(method):
    lost = dict.fromkeys(range(3), method)
    deployment, endings = run(5, fault_of=dead_from(lost), max_attempts=1)
    assert not deployment.sums
    assert isinstance(deployment.server_error, SessionAbortedError)
    expected = {
        ShareKeys: ErrorCode.U2_TOO_SMALL,
        UploadChunk: ErrorCode.U3_TOO_SMALL,
        RevealShares: ErrorCode.TOO_FEW_ANSWERS,
    }[method]
    assert deployment.server_error.code is expected
    for number in (3, 4):
        assert isinstance(endings[number], SessionAbortedError)
        assert endings[number].code is expected


def test_an_aborted_session_is_retried_with_the_remaining_clients():
    lost = dict.fromkeys([0, 1], UploadChunk)
    parameters = parameters_for(6, dimension=9, threshold=3, max_dropouts=1)
    deployment, _ = run(6, parameters=parameters, fault_of=dead_from(lost))
    assert deployment.server_error is None
    assert_sum_of(deployment, [2, 3, 4, 5])
    assert deployment.sums[0].descriptor.session_number == 2


def test_a_task_stops_retrying_after_its_last_attempt():
    lost = dict.fromkeys([0, 1], UploadChunk)
    parameters = parameters_for(6, dimension=9, threshold=3, max_dropouts=1)
    deployment, _ = run(
        6, parameters=parameters, fault_of=dead_from(lost), max_attempts=1
    )
    assert deployment.server_error.code is ErrorCode.TOO_MANY_DROPOUTS
    assert not deployment.sums


def test_repeated_calls_change_nothing():
    deployment, _ = run(5, fault_of=lambda *_: Fault.REPEAT)
    assert_sum_of(deployment, range(5))


def test_every_first_answer_may_be_lost():
    deployment, endings = run(
        5,
        fault_of=lambda _who, _method, n: Fault.LOSE_ANSWER if n == 0 else Fault.NONE,
    )
    assert_sum_of(deployment, range(5))
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())
    assert deployment.contradictions() == {}


def test_every_second_request_may_be_lost():
    deployment, _ = run(
        5,
        fault_of=lambda _who, _method, n: Fault.NONE if n % 2 else Fault.LOSE_REQUEST,
    )
    assert_sum_of(deployment, range(5))
    assert deployment.contradictions() == {}


def test_clients_that_cannot_stream_poll():
    deployment, endings = run(
        5,
        fault_of=lambda _who, method, _n: (
            Fault.LOSE_REQUEST if method is WatchSession else Fault.NONE
        ),
    )
    assert_sum_of(deployment, range(5))
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())


def test_absent_clients_cost_only_a_deadline():
    deployment, _ = run(5, absent={2, 3})
    assert_sum_of(deployment, [0, 1, 4])


def test_sessions_of_a_task_follow_one_another_with_growing_numbers():
    deployment, _ = run(4, sessions=3)
    assert [s.descriptor.session_number for s in deployment.sums] == [1, 2, 3]
    for index in range(3):
        assert_sum_of(deployment, range(4), index=index)
    nonces = {s.descriptor.server_nonce for s in deployment.sums}
    assert len(nonces) == 3


@pytest.mark.parametrize("modulus", [2, 256, 1 << 16, 1 << 32, 1 << 48, 1_000_003])
def test_any_modulus(modulus):
    parameters = parameters_for(4, dimension=70, threshold=3, modulus=modulus)
    deployment, _ = run(4, parameters=parameters, fault_of=dead_from({1: UploadChunk}))
    assert_sum_of(deployment, [0, 2, 3])


def test_a_ring_of_neighbours():
    parameters = parameters_for(
        9, dimension=11, threshold=3, degree=6, min_clients=8, min_survivors=5
    )
    deployment, _ = run(
        9, parameters=parameters, fault_of=dead_from({3: UploadChunk, 7: RevealShares})
    )
    assert_sum_of(deployment, [0, 1, 2, 4, 5, 6, 7, 8])


@pytest.mark.parametrize("whole", [False, True], ids=["neighbourhood", "whole"])
@pytest.mark.parametrize("inline", [100, 1 << 20], ids=["referred to", "inline"])
def test_a_client_on_a_ring_reads_the_part_of_the_roster_that_it_chooses(
    monkeypatch, whole, inline
):
    monkeypatch.setattr(client_desk, "MAX_INLINE_BYTES", inline)
    read = set()

    class Reading(LyingConnection):
        async def call(self, request):
            if isinstance(request, FetchChunk):
                read.add(request.blob)
            return await super().call(request)

    parameters = parameters_for(
        9, dimension=11, threshold=3, degree=6, min_clients=8, min_survivors=5
    )
    deployment, _ = run(
        9,
        parameters=parameters,
        policy=replace(LENIENT_POLICY, whole_roster=whole),
        tamper=lambda _, connection: Reading(connection, {}),
    )
    assert_sum_of(deployment, range(9))
    assert (Blob.ROSTER in read) is whole
    assert (Blob.NEIGHBOURHOOD in read) is (inline == 100)


def test_the_payload_reaches_the_application_bound_to_its_session():
    seen = {}

    def make_input(number):
        def make(descriptor, payload, secrets):
            seen[number] = (payload, secrets)
            return PlainVector(one_hot_input(number, descriptor.parameters))

        return make

    deployment, _ = run(4, payload=b"the model" * 300_000, make_input=make_input)
    assert_sum_of(deployment, range(4))
    assert {payload for payload, _ in seen.values()} == {b"the model" * 300_000}
    assert len({secrets.seed.reveal() for _, secrets in seen.values()}) == 4
    assert all(len(secrets.seed) == 32 for _, secrets in seen.values())
    assert all(secrets.share_holders == 4 for _, secrets in seen.values())


def test_nothing_secret_is_left_when_a_session_has_ended():
    deployment, _ = run(4)

    for store, role in (
        (deployment.server_store, Side.SERVER),
        *((store, Side.CLIENT) for store in deployment.client_stores.values()),
    ):
        (row,) = answer_of(store.read(ListSessions(role=role, state=SessionState.ALL)))
        stored = answer_of(store.read(LoadSession(row.key)))
        assert stored.ended
        assert (stored.header, stored.records) == (b"", ())
    released = deployment.sums[0]
    session_id = released.descriptor.session_id
    assert deployment.spool.read(session_id, SUM, 0) is not None
    for uploader in range(4):
        assert deployment.spool.received(session_id, identity_of(uploader)) == 0
    assert [
        blob.name
        for home in deployment.spool._blobs.first_parts()
        for blob in deployment.spool._blobs.list_prefix(home)
    ] == [f"{session_id.hex()}/{SUM}"]


def test_a_long_upload_is_sent_in_chunks_and_survives_lost_answers():
    parameters = parameters_for(3, dimension=450_000, threshold=2, modulus=1 << 32)
    deployment, _ = run(
        3,
        parameters=parameters,
        fault_of=lambda who, method, n: (
            Fault.LOSE_ANSWER
            if who == 1 and method is UploadChunk and n in {0, 1, 3}
            else Fault.NONE
        ),
    )
    assert deployment.sums[0].survivors == 3
    assert int(deployment.sums[0].residues[0]) == parameters.modulus - 1


def test_the_receipt_counts_clients_per_round():
    deployment, _ = run(5, fault_of=dead_from({2: UploadChunk}))
    receipt = deployment.sums[0].receipt
    assert isinstance(receipt.outcome, Released)
    assert (receipt.advertised, receipt.shared) == (5, 5)
    assert (receipt.uploaded, receipt.revealed) == (4, 4)
    assert len(receipt.members) == 5
    assert len(set(receipt.contexts)) == 4
    assert type(receipt).decode(receipt.encode()) == receipt
