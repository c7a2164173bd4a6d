import json
from dataclasses import replace

import pytest

from dpnoise.mechanisms import NoiseRule
from secagg.audit.receipt import AuditReceipt, Outcome
from secagg.audit.verifier import Finding, ReceiptError, Step, verify_receipt
from secagg.conformance import read_vectors
from secagg.errors import ErrorCode
from secagg.noise_certificate import NoiseCertificate
from secagg.parameters import SessionDescriptor
from secagg.primitives.transcript import hash_parts
from secagg.protocol.noise_terms import NoiseTerms

FILE = read_vectors("receipts")
KEY, LIST = bytes.fromhex(FILE["enrolment_key"]), bytes.fromhex(FILE["revocations"])
GOOD = [row for row in FILE["receipts"] if row["success"]]
BAD = [row for row in FILE["receipts"] if not row["success"]]
by_name = {"ids": lambda row: row["name"]}


def noise_of(row):
    """What reads the noise block of a row, whose samplers are made up."""
    if "tables" not in row:
        return {}
    suite = SessionDescriptor.decode(
        AuditReceipt.decode(data_of(row)).offer
    ).parameters.suite

    def session_of(parameters, sharers):
        rule = NoiseRule.from_dict(json.loads(parameters.noise_block)["noise"])
        return rule.session(sharers)

    def read_noise(parameters, sharers):
        noise = session_of(parameters, sharers)
        content = {
            "base": fraction(noise.base),
            "layers": [fraction(layer) for layer in noise.layers],
            "roster": sharers,
            "tables": row["tables"],
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        lost = range(noise.tolerated_losses + 1)
        return NoiseTerms(
            hash_parts("noise-context", text, suite=suite),
            noise.tolerated_losses,
            tuple(tuple(noise.removed_layers(each)) for each in lost),
        )

    def certify(parameters, clients, sharers, survivors):
        noise, unseen = (
            session_of(parameters, sharers),
            (parameters.most_set_apart(clients)),
        )
        return NoiseCertificate(
            sharers=sharers,
            survivors=survivors,
            unseen=unseen,
            colluders=noise.colluders,
            required=noise.counted_variance,
            base=noise.base,
            layers=noise.layers,
            removed=noise.removed_layers(sharers - survivors + unseen),
        )

    return {"read_noise": read_noise, "certify": certify}


def fraction(number):
    return f"{number.numerator}/{number.denominator}"


def data_of(row):
    return bytes.fromhex(row["receipt"])


def judged(data, **given):
    return verify_receipt(data, **({"enrolment_key": KEY, "revocations": LIST} | given))


def step_of(data, **given):
    with pytest.raises(ReceiptError) as refused:
        judged(data, **given)
    assert str(refused.value).startswith(refused.value.step)
    return refused.value.step


@pytest.mark.parametrize("row", GOOD, **by_name)
def test_what_a_receipt_shows(row):
    # R5.8-2
    verdict = judged(data_of(row), **noise_of(row))
    assert verdict.finding == Finding(row["says"])
    assert verdict.receipt == AuditReceipt.decode(data_of(row))
    assert verdict.survivors <= verdict.sharers <= set(range(verdict.clients))
    if verdict.finding is Finding.AGREED:
        assert verdict.signers <= verdict.survivors
        assert len(verdict.signers) >= verdict.descriptor.parameters.quorum
        assert len(verdict.names) == verdict.clients


@pytest.mark.parametrize("row", BAD, **by_name)
def test_the_first_step_that_fails_is_named(row):
    # R5.8-1
    assert step_of(data_of(row), **noise_of(row)) == Step(row["step"])


@pytest.mark.parametrize("row", GOOD, **by_name)
def test_every_byte_counts(row):
    data = data_of(row)
    for place in range(0, len(data), 11):
        broken = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
        assert step_of(broken) in {Step.ENCODING, Step.DIGEST}


def signed():
    return data_of(next(row for row in GOOD if row["says"] == "agreed"))


def test_a_session_of_enrolled_clients_is_judged_by_the_key_that_they_pin():
    for key in (None, bytes(32)):
        assert step_of(signed(), enrolment_key=key) is Step.CREDENTIALS


def test_without_the_list_revoked_credentials_pass_and_the_list_must_be_the_offers():
    assert judged(signed(), revocations=None).finding is Finding.AGREED
    assert step_of(signed(), revocations=LIST[:-1]) is Step.CREDENTIALS


def test_a_profile_without_identities_needs_no_key():
    stated = data_of(next(row for row in GOOD if row["says"] == "stated"))
    verdict = verify_receipt(stated)
    assert verdict.finding is Finding.STATED
    assert not verdict.signers


def test_signatures_are_about_a_set():
    receipt = AuditReceipt.decode(signed())
    over = {"outcome": Outcome.ABORTED, "code": 16, "size": 0, "sum_hash": bytes(32)}
    with pytest.raises(ReceiptError, match="a quorum and no U3"):
        judged(replace(receipt, survivors=b"", **over).encode())


def test_a_flaw_has_the_code_of_the_rule_that_is_broken():
    row = next(row for row in BAD if row["name"] == "one signature short")
    with pytest.raises(ReceiptError) as refused:
        judged(data_of(row))
    assert refused.value.code == ErrorCode.NO_QUORUM
