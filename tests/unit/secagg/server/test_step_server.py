"""What `StepServer` takes, adds up and says, in every profile and on every graph."""

import tracemalloc
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from secagg_testing.carrier import NOW, Carrier, enrolled, prepared
from secagg_testing.cohorts import (
    parameters_for,
    signing_parameters_for,
    sparse_parameters_for,
    with_noise,
)

from secagg.distributed_dp import certify, plan
from secagg.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from secagg.protocol.membership import Membership
from secagg.protocol.messages import Aborted, Envelope, Quorum, Round, Survivors, Upload
from secagg.protocol.packing import packed_size
from secagg.protocol.receipts.receipt import AuditReceipt, Outcome
from secagg.protocol.rounds import rounds_of
from secagg.server.step_server import StepServer, next_session_number
from secagg.server.task.setup import PreparedTask
from secagg.simulation.driver import published_in_simulation

NAMES = ("ann", "bob", "cleo", "dan")
DIMENSION = 5
EXACT = parameters_for(4, dimension=DIMENSION, threshold=3)
SIGNED = signing_parameters_for(4, dimension=DIMENSION)


def server_of(parameters=EXACT, **options):
    arguments = {"aggregator": "hub", "task_id": "sums", "session_number": 1}
    return StepServer(prepared(parameters), **(arguments | {"now": NOW} | options))


def rounds(session, count, names=NAMES):
    for _ in range(count):
        for name in names:
            session.deliver_update(name)
        session.server.close_round()


@pytest.mark.parametrize("parameters", [EXACT, SIGNED], ids=["believed", "signed"])
@pytest.mark.parametrize("lost_in", [2, 3])
def test_a_client_that_drops_out_is_not_included(parameters, lost_in):
    session = Carrier(parameters, NAMES, often=2)
    session.run({"dan": lost_in})
    is_in = lost_in == 3
    result = session.server.result
    assert result.inputs == 3 + is_in
    np.testing.assert_array_equal(result.values, [3 + 3 * is_in] * DIMENSION)
    assert ("dan" in result.receipt.survivors) == is_in


@pytest.mark.parametrize("losses", [0, 1])
def test_the_noise_certificate_matches_the_survivor_sets(losses):
    parameters = with_noise(
        parameters_for(6, dimension=DIMENSION, threshold=4), ladder=2
    )
    names = (*NAMES, "eve", "fay")
    session = Carrier(parameters, names)
    session.run({"fay": 2} if losses else {})
    result = session.server.result
    of_sets = certify(parameters, 6, 6, 6 - losses)
    assert replace(result.receipt.noise, given=None) == of_sets
    assert result.receipt.noise.given == (6 - losses,) * len(of_sets.removed)
    assert AuditReceipt.decode(result.audit).outcome is Outcome.RELEASED
    assert result.privacy is not None
    ann = session.last["ann"].contribution
    assert ann.noise == of_sets


def test_the_server_holds_one_vector_and_the_largest_upload():
    dimension, count = 100_000, 20
    parameters = parameters_for(count, dimension=dimension, threshold=11)
    names = tuple(f"client-{n:02d}" for n in range(count))
    session = Carrier(parameters, names)
    rounds(session, 2, names)
    messages = []
    for name in names:
        update = session.server.update_for(name)
        messages += [(name, m) for m in session.hand(name, update).messages]
    upload = packed_size(dimension, parameters.bits)
    tracemalloc.start()
    for name, message in messages:
        session.server.receive(name, message)
        session.server.receive(name, message)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A vector of residues of 32 bits, and what is received; not twenty of them.
    assert peak < 2 * 4 * dimension + 2 * upload
    session.server.close_round()
    rounds(session, 1, names)
    assert session.server.result.values[0] == sum(range(count))


def test_an_invalid_message_affects_its_sender_only():
    session = Carrier(EXACT, NAMES)
    rounds(session, 2)
    session.deliver_update("bob")
    (upload,) = session.said["bob"][-1:]
    for data, code in (
        (b"", ErrorCode.BAD_ENCODING),
        (b"\x00", ErrorCode.BAD_ENCODING),
        (upload[:-1], ErrorCode.UPLOAD_CORRUPT),
        (upload[:-1] + bytes([upload[-1] ^ 1]), ErrorCode.UPLOAD_CORRUPT),
        (bytes([Upload.KIND]), ErrorCode.BAD_ENCODING),
        (session.said["bob"][0], ErrorCode.EQUIVOCATION),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            session.server.receive("ann", data)
        assert caught.value.code is code
    with pytest.raises(RemoteProtocolError):  # not in the session at all
        session.server.receive("eve", upload)
    rounds(session, 1)
    rounds(session, 1)
    np.testing.assert_array_equal(session.server.result.values, [6] * DIMENSION)


def test_a_second_different_upload_is_rejected_and_not_added():
    session = Carrier(EXACT, NAMES)
    rounds(session, 2)
    session.deliver_update("ann")
    (upload,) = session.said["ann"][-1:]
    size = packed_size(DIMENSION, EXACT.bits)
    other = bytes(size)
    named = replace(
        Upload.decode(upload[1:-size]), digest=sha256(other).digest()
    ).encode()
    with pytest.raises(RemoteProtocolError) as caught:
        session.server.receive("ann", bytes([Upload.KIND]) + named + other)
    assert caught.value.code is ErrorCode.EQUIVOCATION
    rounds(session, 1)
    rounds(session, 1)
    np.testing.assert_array_equal(session.server.result.values, [6] * DIMENSION)


def test_a_client_with_another_view_is_excluded_and_named():
    # R5.3-14
    session = Carrier(EXACT, NAMES)
    with pytest.raises(RemoteProtocolError) as caught:
        session.server.check_view("ann", bytes(32))
    assert caught.value.code is ErrorCode.UNEXPECTED_MESSAGE
    rounds(session, 2)
    with pytest.raises(RemoteProtocolError, match="'bob' has another view") as caught:
        session.server.check_view("bob", bytes(32))
    assert caught.value.code is ErrorCode.VIEW_DIFFERS
    with pytest.raises(RemoteProtocolError):
        session.server.check_view("eve", bytes(32))
    rounds(session, 1, ("ann", "cleo", "dan"))
    with pytest.raises(RemoteProtocolError) as caught:
        session.server.check_view("ann", bytes(32))
    assert caught.value.code is ErrorCode.DEADLINE
    rounds(session, 1, ("ann", "cleo", "dan"))
    result = session.server.result
    np.testing.assert_array_equal(result.values, [5] * DIMENSION)
    lost = {name: reason for name, _, reason in result.receipt.lost}
    assert "view" in lost["bob"]


def test_an_invalid_confirmation_signature_is_reported_and_the_session_continues():
    # R5.4-7
    session = Carrier(SIGNED, NAMES)
    rounds(session, 3)
    for name in NAMES:
        done = session.hand(name, session.server.update_for(name))
        if name == "bob":
            (message,) = done.messages
            forged = message[:-1] + bytes([message[-1] ^ 1])
            with pytest.raises(RemoteProtocolError) as caught:
                session.server.receive("bob", forged)
            assert caught.value.code is ErrorCode.BAD_SIGNATURE
        else:
            session.send(name, done)
    session.server.close_round()
    rounds(session, 1)
    assert session.server.result.unconfirmed == ("bob",)


def test_a_client_absent_from_signing_receives_the_sets_first():
    session = Carrier(SIGNED, NAMES)
    rounds(session, 3)
    rounds(session, 1, NAMES[:3])  # these sign
    shown = session.server.update_for("dan", after=Round.MASKED_INPUT_COLLECTION)
    assert shown[0] == Survivors.KIND
    assert session.server.update_for("dan")[0] == Quorum.KIND
    assert Envelope(Quorum, session.server.update_for("dan")[1:]).open()
    late = session.hand("dan", shown)
    with pytest.raises(RemoteProtocolError) as caught:
        session.send("dan", late)  # its signature comes too late, and it continues
    assert caught.value.code is ErrorCode.DEADLINE
    session.deliver_update("dan")
    assert session.last["dan"].round is Round.UNMASKING


@pytest.mark.parametrize("graph", ["ring", "drawn"])
def test_a_sparse_graph_is_sent_whole_on_request(graph):
    if graph == "ring":
        parameters = parameters_for(
            6, dimension=DIMENSION, threshold=4, degree=4, min_clients=6, colluders=1
        )
        parameters = replace(parameters, min_survivors=5, max_dropouts=1, max_losses=1)
    else:
        parameters = sparse_parameters_for(6, dimension=DIMENSION, degree=4)
    names = (*NAMES, "eve", "fay")
    session = Carrier(parameters, names)
    known = rounds_of(parameters.profile).index(Round.SHARE_KEYS)
    rounds(session, known, names)
    sizes = {}
    for whole in (False, True):
        update = session.server.update_for("ann", whole=whole)
        sizes[whole] = len(update)
    assert (sizes[True] > sizes[False]) == (graph == "ring")
    assert session.server.update_for("zoe", whole=True)[0] == Aborted.KIND
    for name in names:
        update = session.server.update_for(name, whole=True)
        session.send(name, session.hand(name, update))
    session.server.close_round()
    while not session.server.is_over:
        rounds(session, 1, names)
    np.testing.assert_array_equal(session.server.result.values, [15] * DIMENSION)


def test_missing_clients_are_named_in_every_round():
    session = Carrier(SIGNED, NAMES, options={"invited": (*NAMES, "eve")})
    expected = {*NAMES, "eve"}
    while not session.server.is_over:
        assert session.server.missing == expected
        for name in NAMES[:3]:
            session.deliver_update(name)
        assert session.server.missing == expected - set(NAMES[:3])
        assert not session.server.is_round_full
        session.deliver_update("dan")
        session.server.close_round()
        expected = set(NAMES)
    assert session.server.missing == frozenset()
    assert session.server.round is Round.FINISHED


def test_invited_names_take_part_and_no_others():
    session = Carrier(EXACT, NAMES, options={"invited": NAMES[:3]})
    with pytest.raises(RemoteProtocolError):
        rounds(session, 1)


def test_a_revoked_serial_is_not_admitted(monkeypatch):
    """By the list that the task publishes: its clients are told of no other."""
    serial = enrolled("ann", SIGNED).identity.issued.credential.serial
    listed = published_in_simulation(1, serial)
    tail = replace(SIGNED.tail, trust=listed.trust)
    task = PreparedTask(replace(SIGNED, tail=tail), None, None, enrolment=listed)
    named = {"aggregator": "hub", "task_id": "sums", "session_number": 1, "now": NOW}
    server = StepServer(task, **named)
    # Ann does not look for herself on the list.
    monkeypatch.setattr(
        "secagg.client.gate.Membership",
        lambda **given: Membership(**given | {"revoked": frozenset()}),
    )
    session = Carrier(SIGNED, NAMES)
    bob, ann = (
        session.client(name).step(server.offer, revocations=listed.revocations)
        for name in ("bob", "ann")
    )
    server.receive("bob", bob.messages[0])
    with pytest.raises(RemoteProtocolError) as caught:
        server.receive("ann", ann.messages[0])
    assert caught.value.code is ErrorCode.BAD_CREDENTIAL
    for other in (None, published_in_simulation(2, serial)):
        with pytest.raises(RemoteProtocolError) as caught:
            StepServer(replace(task, enrolment=other), **named)
        assert caught.value.code is ErrorCode.BAD_CREDENTIAL


def test_a_session_without_a_sum_has_a_reason_and_a_receipt():
    session = Carrier(EXACT, NAMES)
    session.server.close_round()
    assert session.server.is_over
    assert session.server.result is None
    assert session.server.packed_sum is None
    assert session.server.failure.code is ErrorCode.ROSTER_TOO_SMALL
    assert session.server.receipt.outcome_name == "ROSTER_TOO_SMALL"
    with pytest.raises(LocalProtocolError, match="over"):
        session.server.close_round()
    assert server_of().receipt is None
    assert server_of().failure is None


def test_noise_terms_are_carried_from_session_to_session():
    session = Carrier(EXACT, NAMES)
    session.run()
    assert session.server.next_noise_terms == b""


def test_a_plan_can_be_used_as_a_task():
    made = plan(
        clients=4,
        min_survivors=3,
        dimension=DIMENSION,
        l2_clip=1.0,
        epsilon=8.0,
        delta=1e-5,
        mechanism="skellam",
        scale_factor=64.0,
    )
    server = StepServer(made, aggregator="hub", task_id="t", session_number=1)
    assert server.descriptor.parameters.noise_block
    assert server.descriptor.encode() == server.offer


def test_invalid_parameters_are_rejected():
    with pytest.raises(RemoteProtocolError) as caught:
        server_of(replace(EXACT, threshold=0))
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_session_numbers_increase_whatever_the_clock_reads():
    assert next_session_number(7, now=0.0) == 8
    assert next_session_number(now=2.5) == 2500
    assert next_session_number(2500, now=2.5) == 2501
