"""What a server leaves of its sessions for any reader to check."""

import asyncio
import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from secagg_testing.cohorts import (
    parameters_for,
    signing_parameters_for,
    sparse_parameters_for,
    with_noise,
)

from secagg.cli import main
from secagg.cli.failures import EXIT_OK, exit_code_of
from secagg.client.client import Client
from secagg.conformance import read_vectors
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import NoisyTask, TaskNoiseVerifier, certify
from secagg.errors import ErrorCode, LocalProtocolError
from secagg.pki.key_files import key_text
from secagg.protocol.client import machine as client
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import read_revocations
from secagg.protocol.events import (
    AbortRequested,
    InputReady,
    Received,
    RoundClosed,
    SumComputed,
)
from secagg.protocol.messages import Complaint, Envelope, Round, Upload
from secagg.protocol.packing import packed_size
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
)
from secagg.protocol.profiles import HonestCuriousParameters
from secagg.protocol.receipts.receipt import AuditReceipt, Outcome, WrittenBy
from secagg.protocol.receipts.verifier import (
    Finding,
    ReceiptError,
    VerificationStep,
    verify_receipt,
)
from secagg.protocol.rounds import ROUNDS, rounds_of
from secagg.protocol.server import machine as server
from secagg.server.server import Server
from secagg.server.session.report import SessionFacts
from secagg.server.task.setup import Cohort, PreparedTask
from secagg.simulation import InProcessSession, identity_of, run_session

NOISE = TaskNoiseVerifier()
# The block of the session with noise describes no mechanism that we could draw.
SESSIONS = [one for one in read_vectors("sessions")["sessions"] if one["noise"] is None]
FIELDS = dict(
    zip(
        range(1, 7),
        ("advert", "edges", "bundles", "upload", "signature", "answer"),
        strict=True,
    )
)


class Run:
    """Our server with the messages of a recorded session, and its facts."""

    def __init__(self, session):
        self.session = session
        self.descriptor = SessionDescriptor.decode(bytes.fromhex(session["offer"]))
        parameters = self.descriptor.parameters
        self.trust = (
            None
            if isinstance(parameters.tail, HonestCuriousParameters)
            else parameters.tail.trust
        )
        revoked = frozenset()
        if self.trust is not None:
            listed = bytes.fromhex(session["revocations"])
            revoked = frozenset(read_revocations(listed, self.trust).serials)
        self.state = server.start(
            self.descriptor,
            packed_bytes=packed_size(parameters.dimension, parameters.bits),
            revoked=revoked,
        )
        self.facts = SessionFacts(self.descriptor, frozenset())

    def step(self, event):
        before, result = self.state, server.step(self.state, event)
        self.state = result.state
        if type(before) is not type(self.state):
            self.facts.enter(before, self.state, result.outputs, seconds=1.0)

    def receive(self, which, row):
        message = bytes.fromhex(row[FIELDS[which]])
        envelope = Envelope(ROUNDS[which].message, message)
        if which == Round.MASKED_INPUT_COLLECTION:
            view = bytes.fromhex(self.session["view"])
            upload = Upload(len(message), hashlib.sha256(message).digest(), view)
            envelope = Envelope.of(upload)
        self.step(Received(envelope, row["identity"]))

    def play(self, *, without=0):
        """Play all rounds; leave `without` answers out."""
        for which in rounds_of(self.descriptor.parameters.profile):
            rows = [r for r in self.session["clients"] if r[FIELDS[which]] is not None]
            last = len(rows) - (without if which == Round.UNMASKING else 0)
            for row in rows[:last]:
                self.receive(which, row)
            seed = bytes.fromhex(self.session["graph_seed"])
            self.step(RoundClosed(which, graph_seed=seed if which == 1 else b""))
        return self

    def verdict(self):
        key = None if self.trust is None else self.trust.enrolment_key
        data = self.facts.audit(self.state).encode()
        return verify_receipt(data, enrolment_key=key)


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session["name"])
def test_a_released_session_leaves_a_valid_receipt(session):
    run = Run(session).play()
    packed = bytes.fromhex(session["packed_sum"])
    run.step(SumComputed(hashlib.sha256(packed).digest(), len(packed)))
    verdict = run.verdict()
    signed = session["quorum"] is not None
    assert verdict.finding is (Finding.AGREED if signed else Finding.STATED)
    receipt = verdict.receipt
    assert receipt.view == bytes.fromhex(session["roster"])
    assert receipt.share_holders.hex() == session["u2"]
    assert receipt.survivors.hex() == session["u3"]
    assert receipt.quorum.hex() == (session["quorum"] or "")
    assert receipt.edge_root.hex() == (session["edge_root"] or "")
    assert receipt.sum_hash == hashlib.sha256(packed).digest()
    liars = [] if session["lying"] is None else [session["lying"]]
    assert sorted({row.accused for row in receipt.disputes}) == liars


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session["name"])
def test_an_aborted_session_leaves_a_valid_receipt(session):
    run = Run(session).play(without=9)
    verdict = run.verdict()
    assert verdict.receipt.outcome is Outcome.ABORTED
    assert verdict.receipt.code == ErrorCode.TOO_FEW_ANSWERS
    assert verdict.survivors


def test_a_session_without_a_roster_leaves_a_valid_receipt():
    run = Run(SESSIONS[0])
    run.step(AbortRequested(ErrorCode.CANCELLED, "enough"))
    assert run.verdict().finding is Finding.NO_SUM


def complained(name):
    """A session in which one client complains about another."""
    run = Run(next(one for one in SESSIONS if one["name"] == name))
    for which in rounds_of(run.descriptor.parameters.profile):
        if which == Round.MASKED_INPUT_COLLECTION:
            break
        rows = [r for r in run.session["clients"] if r[FIELDS[which]] is not None]
        for row in rows:
            run.receive(which, row)
        run.step(RoundClosed(which))
    share_holders = [row for row in run.session["clients"] if row["upload"] is not None]
    graph = run.state.cohort.graph
    accuser = share_holders[0]
    accused = next(
        row["index"]
        for row in share_holders
        if row["index"] in graph.senders(accuser["index"])
    )
    complaint = Complaint(ErrorCode.BAD_SHARE_CIPHERTEXT, accused)
    run.step(Received(Envelope.of(complaint), accuser["identity"]))
    run.step(AbortRequested(ErrorCode.CANCELLED, "enough"))
    return run, accuser["index"], accused


@pytest.mark.parametrize("name", ["complete", "signed", "sparse"])
def test_a_dispute_includes_the_signed_messages_of_its_dealer(name):
    run, accuser, accused = complained(name)
    (dispute,) = run.verdict().receipt.disputes
    assert (dispute.accuser, dispute.accused, dispute.dealer) == (
        accuser,
        accused,
        accused,
    )
    assert bool(dispute.evidence) is (run.trust is not None)
    if run.trust is None:
        return
    # Neither without it nor with that of the other one of the two.
    receipt = run.facts.audit(run.state)
    swapped = replace(dispute, accuser=accused, accused=accuser)
    for other in (replace(dispute, evidence=b""), swapped):
        forged = replace(receipt, disputes=(other,))
        with pytest.raises(ReceiptError) as refused:
            verify_receipt(forged.encode(), enrolment_key=run.trust.enrolment_key)
        assert refused.value.step is VerificationStep.OUTCOME


# --- the server of a task, and the command --------------------------------------------

WAIVER = ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT)
COHORT = Cohort(min_clients=2, max_clients=2, min_survivors=2)
PAIR = ClientPolicy(min_clients=2, min_survivors=2, require_noise=False)


async def released_sum():
    async def give(name):
        async with Client(
            running.connection(name), task="t", privacy_limits=WAIVER, cohort=PAIR
        ) as client:
            await client.contribute([1, 2])

    async with Server(None) as running:
        task = await running.add_task(
            "t", PreparedTask.exact(WAIVER, COHORT, dimension=2)
        )
        _, _, released = await asyncio.gather(give("a"), give("b"), task.next_sum())
    return released


async def test_every_released_sum_includes_its_receipt():
    released = await released_sum()
    verdict = verify_receipt(released.audit)
    assert verdict.finding is Finding.STATED
    assert verdict.names == ("a", "b")
    assert verdict.receipt.outcome is Outcome.RELEASED


def signed_receipt(tmp_path, name="signed"):
    session = next(one for one in SESSIONS if one["name"] == name)
    run = Run(session).play()
    packed = bytes.fromhex(session["packed_sum"])
    run.step(SumComputed(hashlib.sha256(packed).digest(), len(packed)))
    path = tmp_path / "receipt-1.bin"
    path.write_bytes(run.facts.audit(run.state).encode())
    listed = tmp_path / "revocations.bin"
    listed.write_bytes(bytes.fromhex(session["revocations"]))
    return path, listed, key_text(run.trust.enrolment_key)


@pytest.mark.parametrize("name", ["signed", "sparse"])
def test_sessions_verify_prints_the_verdict(tmp_path, capsys, name, json_answer):
    path, listed, key = signed_receipt(tmp_path, name)
    words = ["sessions", "verify", str(path), "--enrolment", key]
    assert main([*words, "--revocations", str(listed)]) == EXIT_OK
    assert "a quorum of enrolled clients has signed" in capsys.readouterr().out
    assert main([*words, "--json"]) == EXIT_OK
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    json_answer(f"sessions verify {name}", facts)
    assert (facts["valid"], facts["reason"]) == (True, "")
    assert facts["finding"] == "agreed"
    assert facts["signed"] >= 5
    assert facts["epsilon_server"] is None
    receipt = AuditReceipt.decode(path.read_bytes())
    offer = SessionDescriptor.decode(receipt.offer)
    assert facts["session_id"] == offer.session_id.hex()
    assert facts["profile"] == offer.parameters.profile.label
    assert facts["survivors"] == int.from_bytes(receipt.survivors, "big").bit_count()


def test_sessions_verify_json_states_why_a_receipt_is_invalid(tmp_path, capsys):
    path, _, key = signed_receipt(tmp_path)
    other = key_text(bytes(range(32)))
    assert key != other
    words = ["sessions", "verify", str(path), "--enrolment", other, "--json"]
    assert main(words) == exit_code_of(ErrorCode.BAD_CREDENTIAL)
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["valid"] is False
    assert facts["name"] == "BAD_CREDENTIAL"
    assert facts["reason"].startswith("credentials: ")


def test_the_command_names_the_step_that_fails(tmp_path, capsys):
    path, _, _ = signed_receipt(tmp_path)
    assert main(["sessions", "verify", str(path)]) == exit_code_of(
        ErrorCode.BAD_CREDENTIAL
    )
    assert "credentials" in capsys.readouterr().err
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    assert main(["sessions", "verify", str(path)]) == exit_code_of(
        ErrorCode.BAD_ENCODING
    )
    assert "encoding" in capsys.readouterr().err
    path.unlink()
    assert main(["sessions", "verify", str(path)]) == exit_code_of(
        ErrorCode.BAD_SETTINGS
    )


def test_a_receipt_has_only_public_fields():
    """Roster, sets and signatures were sent to all clients; nothing else is in it."""
    fields = set(AuditReceipt.__dataclass_fields__)
    assert fields == {
        *(
            "writer",
            "offer",
            "view",
            "edge_root",
            "share_holders",
            "survivors",
            "quorum",
        ),
        *("outcome", "code", "sum_hash", "size", "certificate", "disputes"),
    }


class SessionWithFacts(InProcessSession):
    """A session and the facts of its server."""

    def __post_init__(self):
        super().__post_init__()
        self.facts = SessionFacts(self.descriptor, frozenset())

    def step_server(self, event):
        before, outputs = self.server_state, super().step_server(event)
        if type(before) is not type(self.server_state):
            self.facts.enter(before, self.server_state, outputs, seconds=1.0)
        return outputs


@pytest.mark.parametrize(
    ("silent_in", "lost_in"),
    [
        # Who has not signed has not seen U3 by itself, and does not answer a quorum.
        ({Round.CONSISTENCY_CHECK}, Round.UNMASKING),
        ({Round.UNMASKING}, Round.UNMASKING),
        ({Round.CONSISTENCY_CHECK, Round.UNMASKING}, Round.UNMASKING),
    ],
)
def test_a_client_that_stays_silent_is_recorded_as_lost_once(silent_in, lost_in):
    parameters = signing_parameters_for(5, dimension=2)
    session = SessionWithFacts(parameters, [np.zeros(2, np.uint32)] * 5)
    for which in rounds_of(parameters.profile):
        session.play(which, range(1 if which in silent_in else 0, 5))
        session.close(which)
    assert session.total is not None
    lost = [(each.identity, each.round) for each in session.facts.dropped]
    assert lost == [(identity_of(0), lost_in)]


class SessionWithLayers(SessionWithFacts):
    """Clients that take back noise."""

    def __init__(self, clients):
        self.task = NoisyTask.from_parameters(self.parameters_of(clients))
        super().__init__(self.task.parameters, [None] * clients)

    def parameters_of(self, clients):
        plain = parameters_for(clients, dimension=8, threshold=4, min_survivors=4)
        return with_noise(plain, ladder=2)

    def supply_input(self, number):
        seed = SecretBytes(self.seed_of(number))
        secrets = client.noise_secrets(self.clients[number], seed)
        made = self.task.encode(
            np.zeros(8), session_id=self.descriptor.session_id, secrets=secrets
        )
        return self.to_client(number, InputReady(made.vector))


@pytest.fixture(name="layered", scope="module")
def _layered():
    session = SessionWithLayers(8)
    run_session(session, {3: Round.MASKED_INPUT_COLLECTION, 4: Round.UNMASKING})
    return session.facts.audit(session.server_state)


def test_sessions_verify_states_the_privacy_claim_of_the_offer(
    tmp_path, capsys, layered, json_answer
):
    path = tmp_path / "receipt.bin"
    path.write_bytes(layered.encode())
    assert main(["sessions", "verify", str(path), "--json"]) == EXIT_OK
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    json_answer("sessions verify with noise", facts)
    parameters = SessionDescriptor.decode(layered.offer).parameters
    task = NoisyTask.from_parameters(parameters)
    assert facts["epsilon_server"] == task.report().server.epsilon
    assert facts["epsilon_server"] > 0.0
    stated = task.report().server
    assert (facts["status"], facts["proof"]) == (stated.status, stated.proof)
    assert facts["proof"] == "own"


class DrawnSessionWithLayers(SessionWithLayers):
    """The same where clients draw, and one may be missing unseen."""

    def parameters_of(self, clients):
        plain = sparse_parameters_for(
            clients, dimension=8, degree=4, losses=4, colluders=0
        )
        return with_noise(plain, ladder=2)


def test_a_noise_certificate_counts_survivors_that_may_be_missing():
    # R5.9-13
    session = DrawnSessionWithLayers(14)
    run_session(session, {3: Round.MASKED_INPUT_COLLECTION})
    receipt = session.facts.audit(session.server_state)
    stated = json.loads(receipt.certificate)
    assert (stated["losses"], stated["unseen"]) == (1, 1)
    assert stated["given"] == [13] * len(stated["removed"])
    key = session.parameters.trust.enrolment_key
    verdict = verify_receipt(receipt.encode(), enrolment_key=key, noise=NOISE)
    assert verdict.finding is Finding.AGREED
    # As if no client could be missing: layers less, and more noise than there may be.
    bold = session.task.session_noise(14).removed_layers(1)
    assert list(bold) != stated["removed"]
    for lie in ({"unseen": 0}, {"removed": list(bold), "given": [13] * len(bold)}):
        claimed = replace(receipt, certificate=stating(receipt.certificate, **lie))
        with pytest.raises(ReceiptError) as refused:
            verify_receipt(claimed.encode(), enrolment_key=key, noise=NOISE)
        assert refused.value.step is VerificationStep.CERTIFICATE


def layered_parameters(receipt):
    return SessionDescriptor.decode(receipt.offer).parameters


def test_a_noise_certificate_is_recomputed(layered):
    stated = json.loads(layered.certificate)
    assert stated["survivors"] == 7
    assert stated["removed"]
    assert stated["given"] == [6] * len(stated["removed"])
    assert verify_receipt(layered.encode(), noise=NOISE).receipt == layered
    # A client writes what it knows: all but what was subtracted.
    unknown = certify(layered_parameters(layered), 8, 8, 7)
    assert unknown.given is None
    of_client = replace(layered, writer=WrittenBy.CLIENT, certificate=unknown.encode())
    assert verify_receipt(of_client.encode(), noise=NOISE).receipt == of_client
    bare = replace(of_client, certificate=b"")
    assert verify_receipt(bare.encode(), noise=NOISE).finding is Finding.STATED


def test_a_released_sum_with_noise_requires_a_certificate(layered):
    """R5.8-1: leaving the certificate out would leave its step out."""
    claimed = certify(layered_parameters(layered), 8, 8, 7).encode()
    for certificate in (b"", claimed):  # the second counts nothing, as a client's
        data = replace(layered, certificate=certificate).encode()
        with pytest.raises(ReceiptError) as refused:
            verify_receipt(data, noise=NOISE)
        assert refused.value.step is VerificationStep.CERTIFICATE
    counted = replace(layered, writer=WrittenBy.CLIENT)  # what no client is told
    with pytest.raises(ReceiptError) as refused:
        verify_receipt(counted.encode(), noise=NOISE)
    assert refused.value.step is VerificationStep.CERTIFICATE
    discarded = {"outcome": Outcome.DISCARDED, "code": 49, "size": 0}
    kept = replace(layered, certificate=b"", sum_hash=bytes(32), **discarded)
    assert verify_receipt(kept.encode(), noise=NOISE).finding is Finding.STATED


def test_a_receipt_with_noise_requires_a_noise_verifier(layered):
    early = {"survivors": b"", "certificate": b"", "outcome": Outcome.ABORTED}
    nothing = replace(layered, **early, code=16, size=0, sum_hash=bytes(32))
    for receipt in (layered, replace(layered, certificate=b""), nothing):
        with pytest.raises(LocalProtocolError, match="no noise verifier was given"):
            verify_receipt(receipt.encode())


def stating(certificate, **lies):
    return json.dumps(
        json.loads(certificate) | lies, sort_keys=True, separators=(",", ":")
    ).encode()


@pytest.mark.parametrize(
    "lies",
    [
        {"noise_present": "1000000/1"},
        {"noise_required": "1/1"},
        {"colluders": 0, "noise_total": "1000000/1"},
        {"removed": [], "given": []},
        {"given": []},
        {"given": 7},
        {"given": None},
        {"share_holders": 7},
    ],
    ids=str,
)
def test_a_certificate_with_false_claims_is_rejected(layered, lies):
    """R5.8-1: whatever the writer claims of its noise follows, or is refused."""
    claimed = stating(layered.certificate, **lies)
    assert claimed != layered.certificate
    with pytest.raises(ReceiptError) as refused:
        verify_receipt(replace(layered, certificate=claimed).encode(), noise=NOISE)
    assert refused.value.step is VerificationStep.CERTIFICATE


@pytest.mark.parametrize(
    ("count", "holds"), [(0, True), (7, True), (8, False), (-1, False), (True, False)]
)
def test_a_layer_is_subtracted_exactly_once_per_survivor(layered, count, holds):
    made = certify(layered_parameters(layered), 8, 8, 7)
    # All that follows from the count is as it says.
    claimed = replace(made, given=(count,) * len(made.removed)).encode()
    data = replace(layered, certificate=claimed).encode()
    if holds:
        assert verify_receipt(data, noise=NOISE).receipt.certificate == claimed
        return
    with pytest.raises(ReceiptError, match="more than 7 survivors") as refused:
        verify_receipt(data, noise=NOISE)
    assert refused.value.step is VerificationStep.CERTIFICATE


@pytest.mark.parametrize("junk", [b"x", b"[]", b"{}", b"1" * 5000, b"[" * 60000])
def test_junk_is_no_certificate(layered, junk):
    with pytest.raises(ReceiptError) as refused:
        verify_receipt(replace(layered, certificate=junk).encode(), noise=NOISE)
    assert refused.value.step is VerificationStep.CERTIFICATE


def test_a_session_aborted_before_u3_needs_no_certificate(layered):
    early = replace(
        layered,
        survivors=b"",
        outcome=Outcome.ABORTED,
        code=16,
        size=0,
        sum_hash=bytes(32),
    )
    with pytest.raises(ReceiptError, match="no U3"):
        verify_receipt(early.encode(), noise=NOISE)


class SessionWithoutLayers(SessionWithLayers):
    """Clients whose noise all stays."""

    def parameters_of(self, clients):
        return with_noise(parameters_for(clients, dimension=8, threshold=4))


@pytest.mark.parametrize("writer", WrittenBy)
def test_noise_without_layers_has_no_certificate_to_state(writer):
    session = SessionWithoutLayers(8)
    run_session(session)
    receipt = replace(session.facts.audit(session.server_state), writer=writer)
    assert verify_receipt(receipt.encode(), noise=NOISE).receipt == receipt
    true = certify(session.parameters, 8, 8, 8)
    given = () if writer is WrittenBy.SERVER else None
    claimed = replace(receipt, certificate=replace(true, given=given).encode())
    with pytest.raises(ReceiptError, match="no noise is removed") as refused:
        verify_receipt(claimed.encode(), noise=NOISE)
    assert refused.value.step is VerificationStep.CERTIFICATE
