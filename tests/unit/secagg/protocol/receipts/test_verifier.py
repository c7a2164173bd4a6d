import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from secagg_testing.cohorts import parameters_for, sparse_parameters_for

from secagg.cli import main
from secagg.cli.failures import exit_code_of
from secagg.conformance import read_vectors
from secagg.crypto.modular import zeros
from secagg.crypto.transcript import encode_set, hash_parts
from secagg.distributed_dp import NoisyTask, TaskNoiseVerifier
from secagg.distributed_dp.noise_block import bad_block
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.pki.key_files import key_text
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Roster, Round
from secagg.protocol.noise_terms import NoiseCost, NoiseTerms
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.receipts.receipt import AuditReceipt, Dispute, Outcome, WrittenBy
from secagg.protocol.receipts.verifier import (
    Finding,
    ReceiptError,
    VerificationStep,
    check_one_session,
    facts_in,
    verify_receipt,
)
from secagg.simulation.driver import InProcessSession

CLIENTS = 12
FILE = read_vectors("receipts")
KEY, LIST = bytes.fromhex(FILE["enrolment_key"]), bytes.fromhex(FILE["revocations"])
GOOD = [row for row in FILE["receipts"] if row["success"]]
NAMED = {row["name"]: row for row in GOOD}
BAD = [row for row in FILE["receipts"] if not row["success"]]
by_name = {"ids": lambda row: row["name"]}


class VectorNoise(TaskNoiseVerifier):
    """Judges the noise of a row, whose epsilon is made up."""

    def __init__(self, row):
        self.row = row

    def terms(self, parameters, share_holders):
        noise = NoisyTask.from_parameters(parameters).session_noise(share_holders)
        content = {
            "base": fraction(noise.base),
            "layers": [fraction(layer) for layer in noise.layers],
            "roster": share_holders,
            "tables": self.row["tables"],
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        lost = range(noise.tolerated_losses + 1)
        return NoiseTerms(
            hash_parts("noise-context", text, suite=parameters.suite),
            noise.tolerated_losses,
            tuple(tuple(noise.removed_layers(each)) for each in lost),
        )

    def cost(self, offer):
        block = json.loads(offer.parameters.noise_block)
        if block["noise_sampler"] != self.row["sampler"]:
            raise bad_block("its sampler is another one")
        epsilon, delta = self.row["epsilon"], block["delta"]
        stated = SimpleNamespace(epsilon=epsilon, delta=delta, status="proven")
        NoisyTask.of_session(offer).kept_claim(report=SimpleNamespace(server=stated))
        return NoiseCost(epsilon, delta, "proven", "published")


def noise_of(row):
    return {"noise": VectorNoise(row)} if "tables" in row else {}


def fraction(number):
    return f"{number.numerator}/{number.denominator}"


def data_of(row):
    return bytes.fromhex(row["receipt"])


def judged(data, **given):
    return verify_receipt(data, **({"enrolment_key": KEY, "revocations": LIST} | given))


def flaw_of(data, **given):
    with pytest.raises(ReceiptError) as refused:
        judged(data, **given)
    assert str(refused.value).startswith(refused.value.step)
    return refused.value


def step_of(data, **given):
    return flaw_of(data, **given).step


@pytest.mark.parametrize("row", GOOD, **by_name)
def test_each_valid_receipt_has_its_verdict(row):
    # R5.8-2
    verdict = judged(data_of(row), **noise_of(row))
    assert verdict.finding == Finding(row["says"])
    assert verdict.receipt == AuditReceipt.decode(data_of(row))
    assert verdict.survivors <= verdict.share_holders <= set(range(verdict.clients))
    if verdict.finding is Finding.AGREED:
        assert verdict.signers <= verdict.survivors
        assert len(verdict.signers) >= verdict.descriptor.parameters.quorum
        assert len(verdict.names) == verdict.clients


@pytest.mark.parametrize("row", BAD, **by_name)
def test_the_first_step_that_fails_is_named(row):
    # R5.8-1
    assert step_of(data_of(row), **noise_of(row)) == VerificationStep(row["step"])


@pytest.mark.parametrize("row", [row for row in BAD if "tables" not in row], **by_name)
def test_the_command_names_the_first_step_that_fails(row, tmp_path, capsys):
    path, listed = tmp_path / "receipt.bin", tmp_path / "revocations.bin"
    path.write_bytes(data_of(row))
    listed.write_bytes(LIST)
    words = ["sessions", "verify", str(path), "--revocations", str(listed)]
    code = flaw_of(data_of(row)).code
    assert main([*words, "--enrolment", key_text(KEY)]) == exit_code_of(code)
    assert f"{row['step']}: " in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("row", GOOD, **by_name)
def test_a_change_of_any_byte_is_rejected(row):
    data = data_of(row)
    for place in range(0, len(data), 11):
        broken = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
        flaw = flaw_of(broken)
        assert flaw.step in {VerificationStep.ENCODING, VerificationStep.DIGEST}
        assert flaw.code is ErrorCode.BAD_ENCODING


def signed():
    return data_of(next(row for row in GOOD if row["says"] == "agreed"))


def test_a_session_of_enrolled_clients_requires_the_pinned_key():
    for key in (None, bytes(32)):
        flaw = flaw_of(signed(), enrolment_key=key)
        assert flaw.step is VerificationStep.CREDENTIALS
        assert flaw.code is ErrorCode.BAD_CREDENTIAL


def ended_before_the_edges():
    """Return the receipt of an aborted session without a list, and its key."""
    parameters = sparse_parameters_for(5, dimension=1, degree=4)
    session = InProcessSession(parameters, [zeros(1, 1 << 20)] * 5)
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    over = AuditReceipt(
        writer=WrittenBy.SERVER,
        offer=session.descriptor.encode(),
        view=session.server_state.cohort.roster.encode(),
        outcome=Outcome.ABORTED,
        code=ErrorCode.CANCELLED,
    )
    return over, parameters.tail.trust.enrolment_key


def test_revocations_are_checked_only_with_the_list_of_the_offer():
    assert judged(signed(), revocations=None).finding is Finding.AGREED
    unlisted, key = ended_before_the_edges()
    for receipt, of in ((signed(), KEY), (unlisted.encode(), key)):
        flaw = flaw_of(receipt, enrolment_key=of, revocations=LIST[:-1])
        assert flaw.step is VerificationStep.CREDENTIALS
        assert flaw.next_step.startswith("Pass the list of that session")  # no operator


def test_a_profile_without_identities_requires_no_key():
    stated = data_of(next(row for row in GOOD if row["says"] == "stated"))
    verdict = verify_receipt(stated)
    assert verdict.finding is Finding.STATED
    assert not verdict.signers


def test_a_quorum_requires_u3():
    receipt = AuditReceipt.decode(signed())
    over = {"outcome": Outcome.ABORTED, "code": 16, "size": 0, "sum_hash": bytes(32)}
    with pytest.raises(ReceiptError, match="a quorum and no U3"):
        judged(replace(receipt, survivors=b"", **over).encode())


CODES = {
    "one signature short": ErrorCode.NO_QUORUM,
    "no quorum for a sum": ErrorCode.NO_QUORUM,
    "a quorum in a profile without signatures": ErrorCode.NO_QUORUM,
    "a quorum without U3": ErrorCode.NO_QUORUM,
    "U3 without U2": ErrorCode.BAD_ENCODING,
    "too few clients": ErrorCode.ROSTER_TOO_SMALL,
}


@pytest.mark.parametrize("name", CODES)
def test_a_flaw_has_the_code_of_its_rule(name):
    row = next(row for row in BAD if row["name"] == name)
    assert flaw_of(data_of(row)).code == CODES[name]


def promising(receipt, monkeypatch, **changes):
    """The same receipt of an offer without checks."""
    monkeypatch.setattr(ProtocolParameters, "check_possible", lambda self, **_: self)
    descriptor = SessionDescriptor.decode(receipt.offer)
    parameters = replace(descriptor.parameters, **changes)
    offer = replace(descriptor, parameters=parameters)
    return replace(receipt, offer=offer.encode()).encode()


def test_failure_bounds_and_quorums_are_recomputed(
    monkeypatch,
):
    # R5.2-8 and R5.2-7: R3.2-7 and R3.2-8 speak of every roster in range.
    ring = next(row for row in GOOD if row["name"] == "released, a neighbourhood")
    rigged = promising(
        AuditReceipt.decode(data_of(ring)), monkeypatch, threshold=2, colluders=6
    )
    flaw = flaw_of(rigged)
    assert (flaw.step, flaw.code) == (VerificationStep.VIEW, ErrorCode.POLICY_VIOLATION)
    # Two quorums of two among three clients, one of whom colludes.
    monkeypatch.setattr(
        "secagg.protocol.receipts.verifier.check_adverts", lambda *_, **__: None
    )
    few = promising(
        AuditReceipt.decode(signed()), monkeypatch, threshold=2, colluders=1
    )
    flaw = flaw_of(few)
    assert (flaw.step, flaw.code) == (
        VerificationStep.CREDENTIALS,
        ErrorCode.POLICY_VIOLATION,
    )


def test_a_set_of_clients_requires_a_roster():
    row = next(row for row in BAD if row["name"] == "U2 without a view")
    assert "no roster" in str(flaw_of(data_of(row)))


def test_an_advert_must_commit_to_the_layers_of_the_offer():
    # R5.2-1
    row = next(row for row in GOOD if row["name"] == "disputes")
    receipt = AuditReceipt.decode(data_of(row))
    first, *others = Roster.decode(receipt.view).adverts
    layered = replace(first, noise_commitments=(b"c" * 32,))
    view = Roster((layered, *others)).encode()
    flaw = flaw_of(replace(receipt, view=view).encode())
    assert (flaw.step, flaw.code) == (VerificationStep.VIEW, ErrorCode.BAD_ENCODING)


def test_an_edge_root_before_the_edge_round_is_rejected():
    over, key = ended_before_the_edges()
    pinned = {"enrolment_key": key, "revocations": None}
    assert judged(over.encode(), **pinned).finding is Finding.NO_SUM
    drawn = replace(over, share_holders=encode_set(range(5), 5))
    assert step_of(drawn.encode(), **pinned) is VerificationStep.VIEW


@pytest.mark.parametrize("pair", [(99, 0), (0, 99), (1, 1)])
def test_a_dispute_must_name_two_clients_of_the_roster(pair):
    row = next(row for row in GOOD if row["name"] == "disputes")
    receipt = AuditReceipt.decode(data_of(row))
    other = replace(receipt, disputes=(Dispute(*pair, 10),))
    assert flaw_of(other.encode()).step is VerificationStep.OUTCOME


@pytest.mark.parametrize("lost_neighbours", [3, 4])
def test_a_ring_disconnected_by_its_losses_is_rejected(lost_neighbours):
    # R5.3-9, and R5.8-1: the code that clients run
    parameters = parameters_for(
        CLIENTS,
        dimension=4,
        threshold=2,
        degree=4,
        min_clients=CLIENTS,
    )
    session = InProcessSession(parameters, [zeros(4, 1 << 20)] * CLIENTS)
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    cohort = session.server_state.cohort
    lost = frozenset(cohort.graph.mask_peers(0)[:lost_neighbours])
    all_clients = frozenset(range(CLIENTS))
    over = AuditReceipt(
        writer=WrittenBy.SERVER,
        offer=session.descriptor.encode(),
        view=cohort.roster.encode(),
        share_holders=encode_set(all_clients, CLIENTS),
        survivors=encode_set(all_clients - lost, CLIENTS),
        outcome=Outcome.ABORTED,
        code=ErrorCode.TOO_FEW_ANSWERS,
    )
    if lost_neighbours < 4:
        assert judged(over.encode()).survivors == all_clients - lost
        return
    flaw = flaw_of(over.encode())
    assert flaw.step is VerificationStep.SETS
    assert flaw.code is ErrorCode.TOO_MANY_DROPOUTS


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in order", "reversed"])
@pytest.mark.parametrize("row", FILE["comparisons"], **by_name)
def test_two_receipts_of_one_session_must_agree(row, order):
    # R5.8-3
    shown = [
        facts_in(judged(data_of(NAMED[row["pair"][which]])), source=name)
        for which, name in zip(order, ("one", "other"), strict=True)
    ]
    if row["success"]:
        check_one_session(shown)
        return
    with pytest.raises(RemoteProtocolError) as refused:
        check_one_session(shown)
    assert refused.value.code == row["code"]
    assert str(refused.value).startswith("one and other show session ")
    assert f" with another {row['differs']}: " in str(refused.value)
