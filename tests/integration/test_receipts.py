"""Receipts of clients: what each can prove, independently of its server."""

import asyncio
import json
from dataclasses import replace

import pytest
from secagg_testing import manual_clock
from secagg_testing.client_state import LastingStore
from secagg_testing.cohorts import (
    LENIENT_POLICY,
    parameters_for,
    signing_parameters_for,
    with_noise,
)
from secagg_testing.crash_points import CrashingStore, CrashSwitch
from secagg_testing.deployment import TASK_ID, Deployment
from secagg_testing.inline_store import answer_of
from secagg_testing.lossy_connection import Fault
from secagg_testing.lying_connection import LyingConnection, instead

from secagg.client.contribution import (
    SessionOutcome,
    completed,
    offer_receipt,
    receipt_of,
)
from secagg.distributed_dp import TaskNoiseVerifier, certify
from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.protocol import context, refund
from secagg.protocol.client.states import Completed
from secagg.protocol.events import Received
from secagg.protocol.messages import (
    Aborted,
    Delivery,
    Fate,
    Quorum,
    Released,
    RosterFrame,
)
from secagg.protocol.noise_terms import NoiseCertificate
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.profiles import HonestCuriousParameters, MaliciousParameters
from secagg.protocol.receipts.receipt import (
    AuditReceipt,
    Outcome,
    RosterCommitment,
    WrittenBy,
)
from secagg.protocol.receipts.verifier import (
    Finding,
    ReceiptError,
    VerificationStep,
    check_one_session,
    facts_in,
    verify_receipt,
)
from secagg.server.task.outputs import SumWriter
from secagg.server.task.setup import PreparedTask
from secagg.simulation.driver import published_in_simulation
from secagg.storage.change import Change
from secagg.storage.journal import decode_client_event, decode_offer
from secagg.wire.calls import GetUpdate, UploadChunk, WatchSession
from tests.cases import recorded_points

CLIENTS = 12
VICTIM = 2
POLICY: ClientPolicy = replace(LENIENT_POLICY, min_graph_bits=1)
PUBLISHED = published_in_simulation()
COMPLETE = parameters_for(CLIENTS, dimension=7, threshold=6, colluders=1)
RING = replace(
    parameters_for(
        CLIENTS, dimension=4, threshold=6, min_clients=CLIENTS, min_survivors=10
    ),
    degree=4,
    threshold=4,
    tail=HonestCuriousParameters(40),
    colluders=1,
)
SIGNED = signing_parameters_for(
    5, dimension=7, colluders=1, tail=MaliciousParameters(PUBLISHED.trust)
)
SESSIONS = pytest.mark.parametrize(
    ("parameters", "clients"),
    [(COMPLETE, CLIENTS), (RING, CLIENTS), (SIGNED, 5)],
    ids=["complete", "ring", "signed"],
)


def run(parameters, clients, **options):
    async def main(clock):
        deployment = Deployment(
            clock,
            parameters,
            clients,
            policy=POLICY,
            revocations=PUBLISHED.revocations,
            **options,
        )
        return deployment, await deployment.run()

    return manual_clock.run(main)


def verified(data):
    return verify_receipt(data, enrolment_key=PUBLISHED.enrolment_key)


def stored_receipt(deployment, number=VICTIM):
    return answer_of(receipt_of(deployment.client_stores[number], TASK_ID, 1))


def commitment_to(verdict):
    """What a client with the whole roster commits to."""
    descriptor, roster = verdict.descriptor, RosterFrame.decode(verdict.receipt.view)
    tree = context.roster_tree(
        context.session_context(descriptor), roster, descriptor.parameters.suite
    )
    return RosterCommitment(roster.size, tree.top, roster.graph_seed)


@SESSIONS
def test_every_client_receipt_agrees_with_that_of_the_server(parameters, clients):
    deployment, endings = run(parameters, clients)
    (released,) = deployment.sums
    for number, ending in endings.items():
        assert ending.audit == stored_receipt(deployment, number)
        own, server = verified(ending.audit), verified(released.audit)
        assert own.descriptor == server.descriptor
        assert own.finding is server.finding
        assert (own.clients, own.share_holders, own.survivors, own.signers) == (
            server.clients,
            server.share_holders,
            server.survivors,
            server.signers,
        )
        if parameters is RING:
            # Which of both views a client has does not change what was committed.
            assert own.receipt.view == commitment_to(server)
        assert own.receipt.writer is WrittenBy.CLIENT
        shown = replace(own.receipt, writer=WrittenBy.SERVER, view=server.receipt.view)
        assert shown == server.receipt
        check_one_session([facts_in(own, source="own"), facts_in(server, source="")])
    assert verified(released.audit).finding is (
        Finding.AGREED if parameters is SIGNED else Finding.STATED
    )


def test_a_client_that_reads_the_whole_roster_of_a_ring_stores_it():
    whole = replace(POLICY, whole_roster=True)

    async def main(clock):
        deployment = Deployment(clock, RING, CLIENTS, policy=whole)
        return deployment, await deployment.run()

    deployment, endings = manual_clock.run(main)
    (own,) = {each.audit for each in endings.values()}
    shown = replace(AuditReceipt.decode(own), writer=WrittenBy.SERVER)
    assert shown.encode() == deployment.sums[0].audit


@SESSIONS
def test_every_flipped_byte_is_refused(parameters, clients):
    _, endings = run(parameters, clients)
    data = endings[VICTIM].audit
    verified(data)
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        with pytest.raises(ReceiptError):
            verified(bytes(flipped))


def test_a_signed_set_cannot_be_replaced_in_a_receipt():
    _, endings = run(SIGNED, 5)
    receipt = AuditReceipt.decode(endings[VICTIM].audit)
    others = (
        replace(receipt, survivors=bytes([receipt.survivors[0] ^ 1])),
        replace(
            receipt,
            share_holders=bytes([receipt.share_holders[0] ^ 1]),
            survivors=bytes([receipt.survivors[0] ^ 1]),
        ),
    )
    for other in others:
        with pytest.raises(ReceiptError) as caught:
            verified(other.encode())
        assert caught.value.step is VerificationStep.QUORUM
    quorum = bytearray(receipt.quorum)
    quorum[-1] ^= 1
    with pytest.raises(ReceiptError) as caught:
        verified(replace(receipt, quorum=bytes(quorum)).encode())
    assert caught.value.step is VerificationStep.QUORUM


# --- restarts -------------------------------------------------------------------------


def each_point(name):
    return pytest.mark.parametrize(
        "at",
        [
            pytest.param(at, id=f"{at} {point}")
            for at, point in enumerate(recorded_points(name))
        ],
    )


def test_the_points_of_a_client_on_a_ring_are_those_recorded(golden):
    switch = CrashSwitch()
    run(RING, CLIENTS, client_crash={VICTIM: switch})
    golden("points/client-on-a-ring.txt", "\n".join(switch.points) + "\n")


@each_point("client-on-a-ring")
def test_the_receipt_does_not_depend_on_when_its_client_was_killed(at):
    """On a ring, where a client has no whole roster; else see test_crash_matrix.py."""
    switch = CrashSwitch(at)
    deployment, endings = run(RING, CLIENTS, client_crash={VICTIM: switch})
    assert switch.is_dead
    (other,) = {ending.audit for number, ending in endings.items() if number != VICTIM}
    # A client that died after its last word has no outcome, its store has the receipt.
    assert stored_receipt(deployment) == other
    if isinstance(endings[VICTIM], SessionOutcome):
        assert endings[VICTIM].audit == other


# --- lies -----------------------------------------------------------------------------


def both(lie):
    return {GetUpdate: lie, WatchSession: lie}


def run_tampered(kind, lie, parameters, clients):
    changes = both(instead(kind, lie))

    def tamper(number, connection):
        return LyingConnection(connection, changes) if number == VICTIM else connection

    return run(parameters, clients, tamper=tamper, max_attempts=1)


def test_a_wrong_number_of_survivors_contradicts_the_receipt_of_the_client():
    deployment, endings = run_tampered(
        Released, lambda it: replace(it, survivors=it.survivors - 1), SIGNED, 5
    )
    assert isinstance(endings[VICTIM], RemoteProtocolError)
    own = verified(stored_receipt(deployment))
    true = verified(deployment.sums[0].audit)
    assert own.receipt.outcome is Outcome.ABORTED
    assert own.receipt.code == ErrorCode.U3_INVALID
    assert own.finding is Finding.AGREED
    assert (own.survivors, own.receipt.quorum) == (true.survivors, true.receipt.quorum)


def test_a_server_that_denies_a_signed_set_is_at_fault():
    denied = Aborted(Fate.NOT_INCLUDED, ErrorCode.CANCELLED, "no sum")
    _, endings = run_tampered(Released, lambda _: denied, SIGNED, 5)
    assert isinstance(endings[VICTIM], RemoteProtocolError)
    assert endings[VICTIM].code is ErrorCode.U3_INVALID


def test_a_wrong_sum_hash_is_recorded_in_the_receipt_of_the_client():
    deployment, endings = run_tampered(
        Released, lambda it: replace(it, sum_hash=b"\x07" * 32), SIGNED, 5
    )
    assert not isinstance(endings[VICTIM], SessionOutcome)  # no such sum is fetched
    own = AuditReceipt.decode(stored_receipt(deployment))
    true = AuditReceipt.decode(deployment.sums[0].audit)
    assert own.sum_hash == b"\x07" * 32
    assert replace(own, sum_hash=true.sum_hash, writer=WrittenBy.SERVER) == true


def test_a_receipt_keeps_the_signed_set_and_omits_a_rejected_quorum():
    deployment, endings = run_tampered(
        Quorum, lambda it: Quorum(it.signatures[:1]), SIGNED, 5
    )
    assert endings[VICTIM].code is ErrorCode.NO_QUORUM
    own = verified(stored_receipt(deployment))
    assert own.finding is Finding.STATED
    assert own.receipt.code == ErrorCode.NO_QUORUM
    assert own.receipt.quorum == b""
    assert own.survivors == frozenset(range(5))


def test_an_aborted_session_leaves_a_receipt_with_its_last_round():
    deployment, endings = run_tampered(
        Delivery, lambda it: replace(it, share_holders=b"\x00"), SIGNED, 5
    )
    assert not isinstance(endings[VICTIM], SessionOutcome)
    own = verified(stored_receipt(deployment))
    assert own.finding is Finding.NO_SUM
    assert own.receipt.outcome is Outcome.ABORTED
    assert own.receipt.code == endings[VICTIM].code
    assert (own.clients, own.receipt.share_holders) == (5, b"")


def test_a_client_that_has_not_answered_writes_a_receipt_without_a_sum():
    _, endings = run(SIGNED, 5)
    whole = AuditReceipt.decode(endings[VICTIM].audit)
    descriptor = endings[VICTIM].descriptor
    released = Released(Fate.INCLUDED, bytes(32), whole.size, 5, 1_800_000_000)
    ended = Completed(released, refund.ChargeOutcome.KEPT)
    seen = replace(
        offer_receipt(descriptor), view=whole.view, share_holders=whole.share_holders
    )
    own = completed(seen, descriptor, ended, has_answered=False)
    assert (own.outcome, own.code) == (Outcome.ABORTED, ErrorCode.SESSION_OVER)
    assert verified(own.encode()).finding is Finding.NO_SUM


def test_a_client_computes_its_own_noise_certificate():
    parameters = with_noise(COMPLETE, ladder=2)
    _, endings = run(COMPLETE, CLIENTS)
    whole = AuditReceipt.decode(endings[VICTIM].audit)
    descriptor = replace(endings[VICTIM].descriptor, parameters=parameters)
    seen = replace(
        offer_receipt(descriptor),
        view=whole.view,
        share_holders=b"\x0f\xff",
        survivors=b"\x0f\xf7",
    )
    released = Released(Fate.INCLUDED, whole.sum_hash, whole.size, 11, 1_800_000_000)
    ended = Completed(released, refund.ChargeOutcome.KEPT)
    own = completed(seen, descriptor, ended, has_answered=True)
    stated = NoiseCertificate.from_dict(json.loads(own.certificate))
    assert stated == certify(parameters, 12, 12, 11)
    assert stated.given is None  # only the server knows what it has subtracted
    assert stated.removed


LAYERED = with_noise(
    parameters_for(5, dimension=8, threshold=3, min_survivors=3), ladder=2
)


def loses_one(number, call, _count):
    return Fault.LOSE_REQUEST if (number, call) == (4, UploadChunk) else Fault.NONE


def test_the_points_of_a_server_that_removes_noise_are_those_recorded(golden):
    switch = CrashSwitch()
    run(LAYERED, 5, fault_of=loses_one, max_attempts=1, server_crash=switch)
    golden("points/server-with-layers.txt", "\n".join(switch.points) + "\n")


@each_point("server-with-layers")
def test_both_sides_certify_a_sum_wherever_the_server_was_killed(at):
    """R5.8-1: a server that continues with a session knows what it has subtracted."""
    deployment, endings = run(
        LAYERED, 5, fault_of=loses_one, max_attempts=1, server_crash=CrashSwitch(at)
    )
    for released in deployment.sums:
        verdict = verify_receipt(released.audit, noise=TaskNoiseVerifier())
        stated = NoiseCertificate.from_dict(json.loads(verdict.receipt.certificate))
        assert stated.removed
        assert stated.given == (4,) * len(stated.removed)
    judged = [
        verify_receipt(ending.audit, noise=TaskNoiseVerifier())
        for ending in endings.values()
        if isinstance(ending, SessionOutcome)
    ]
    assert {each.receipt.writer for each in judged} == {WrittenBy.CLIENT}
    assert len(judged) == 4
    check_one_session(facts_in(each, source="") for each in judged)


# --- secrets --------------------------------------------------------------------------


class Disk(CrashingStore):
    """A store that records what it stores, and when it is replaced."""

    def __init__(self):
        super().__init__(LastingStore.make(), CrashSwitch())
        self.secrets = []
        self.left = []

    async def commit(self, change):
        if not isinstance(change, Change):
            return await super().commit(change)
        if change.create is not None:
            seed = decode_offer(change.create.header).offered.seed
            self.secrets.append(seed.reveal())
        for record in change.records:
            event = decode_client_event(record)
            if isinstance(event, Received) and event.envelope.kind is Delivery:
                self.secrets.append(Delivery.decode(event.envelope.data).bundles)
        if change.reseal is not None:
            bodies = (record.body for record in change.reseal.records)
            self.left.append(change.reseal.header + b"".join(bodies))
        if change.end is not None:
            self.left.append(change.end)
        return await super().commit(change)


@SESSIONS
def test_the_stored_receipt_data_contains_no_seed_and_no_bundle(parameters, clients):
    disk = Disk()
    _, endings = run(parameters, clients, client_stores={VICTIM: disk})
    seed, bundles = disk.secrets
    answered, ended = disk.left
    assert endings[VICTIM].audit in ended
    for left in (answered, ended):
        assert seed not in left
        for start in range(0, len(bundles), 16):
            assert bundles[start : start + 16] not in left


# --- the server's receipts of sessions without a sum ----------------------------------


def no_client_uploads(_number, call, _count):
    return Fault.LOSE_REQUEST if call is UploadChunk else Fault.NONE


@SESSIONS
def test_the_server_writes_a_receipt_for_an_aborted_session(parameters, clients):
    deployment, _ = run(parameters, clients, fault_of=no_client_uploads, max_attempts=1)
    assert deployment.sums == []
    server = verified(deployment.aborted[1])
    assert server.finding is Finding.NO_SUM
    assert server.receipt.outcome is Outcome.ABORTED
    assert server.receipt.code == ErrorCode.U3_TOO_SMALL
    own = verified(stored_receipt(deployment))
    assert own.descriptor == server.descriptor
    assert (own.clients, own.share_holders) == (server.clients, server.share_holders)


def test_a_killed_server_writes_the_same_receipt_again():
    def ended(**options):
        deployment, _ = run(
            SIGNED, 5, fault_of=no_client_uploads, max_attempts=1, **options
        )
        return deployment.aborted[1]

    switch = CrashSwitch()
    whole = ended(server_crash=switch)
    last = max(i for i, name in enumerate(switch.points) if name == "before end")
    again = ended(server_crash=CrashSwitch(last))
    assert verified(again).receipt == verified(whole).receipt


def test_a_receipt_without_a_sum_is_written_to_its_own_file(tmp_path):
    deployment, _ = run(SIGNED, 5, fault_of=no_client_uploads, max_attempts=1)
    data = deployment.aborted[1]
    written = []
    prepared = PreparedTask(SIGNED, None, None)
    files = SumWriter(tmp_path, prepared, notify=written.append)
    descriptor = verified(data).descriptor
    asyncio.run(files.write_aborted(descriptor, data))
    assert written == [tmp_path / "receipt-1.bin"]
    asyncio.run(files.write_aborted(descriptor, data))  # again, as after a crash
    # A task of another name that is given the same folder has a session 1, too.
    with pytest.raises(ServiceError, match="another") as caught:
        asyncio.run(files.write_aborted(replace(descriptor, task_id="another"), b"no"))
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert (tmp_path / "receipt-1.bin").read_bytes() == data
