"""Our division of noise against the vectors of `secagg.conformance`.

The vectors come from a reference that was written from the specification alone.
"""

from fractions import Fraction

import pytest

from dpnoise.errors import ParameterError
from dpnoise.events import SkellamMixtureEvent
from dpnoise.mechanisms import NoiseRule
from secagg.conformance import read_vectors
from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import NoisyTask
from secagg.distributed_dp.noise_block import check_sampler, decode_block
from secagg.errors import RemoteProtocolError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.noise_terms import layer_secret

NOISE = read_vectors("noise")
RULES = NOISE["rules"]
by_rule = pytest.mark.parametrize("row", RULES, ids=lambda row: row["name"])


@by_rule
def test_noise_shares_and_removed_layers_match_the_vectors(row):
    rule = NoiseRule.from_dict(row["noise"])
    assert rule.to_dict() == row["noise"]
    if "sessions" not in row:
        # R3.5-1
        with pytest.raises(ParameterError):
            rule.session(row["share_holders"])
        return
    for expected in row["sessions"]:
        session = rule.session(expected["share_holders"])
        assert session.base == Fraction(expected["base"])
        assert list(session.layers) == [Fraction(part) for part in expected["layers"]]
        assert session.tolerated_losses + 1 == len(expected["taken_back"])
        for lost, chosen in enumerate(expected["taken_back"]):
            assert list(session.removed_layers(lost)) == chosen
        with pytest.raises(ParameterError):
            session.removed_layers(session.tolerated_losses + 1)


@pytest.mark.parametrize("row", NOISE["layer_keys"])
def test_layer_secrets_match_the_vectors(row):
    found = layer_secret(
        SecretBytes(bytes.fromhex(row["noise_seed"])),
        row["layer"],
        context=bytes.fromhex(row["ctx2"]),
        suite=CipherSuite(row["suite"]),
    )
    assert found == SecretBytes(bytes.fromhex(row["key"]))


@pytest.mark.parametrize("row", NOISE["blocks"], ids=lambda row: row["name"])
def test_a_noise_block_has_one_accepted_form(row):
    # R3.5-4, R3.2-10, R3.5-3
    session = SessionDescriptor.decode(bytes.fromhex(row["offer"]))
    block = row["noise_block"].encode()
    assert session.parameters.noise_block == block
    assert session.noise_terms == row["noise_terms"].encode()
    if row["success"]:
        assert decode_block(block).encode() == block
        NoisyTask.of_session(session)
    else:
        with pytest.raises(RemoteProtocolError) as refused:
            NoisyTask.of_session(session)
        assert refused.value.code == row["code"]


def offers_with_noise():
    offers = [
        (row["name"], row["offer"]) for row in read_vectors("encodings")["offers"]
    ]
    offers += [
        (row["name"], row["offer"]) for row in read_vectors("sessions")["sessions"]
    ]
    for name, offer in offers:
        session = SessionDescriptor.decode(bytes.fromhex(offer))
        if session.parameters.noise_block:
            yield pytest.param(session, id=name)


@pytest.mark.parametrize("session", list(offers_with_noise()))
def test_every_accepted_offer_has_a_matching_noise_block(session):
    # R3.5-4, R3.5-6: a strict reader refuses no offer that the vectors let pass.
    task = NoisyTask.of_session(session)
    assert task.budget.charges >= 1


def test_the_block_of_a_rule_is_a_valid_plan_block():
    (row,) = (
        row for row in read_vectors("accounting")["rules"] if "noise_block" in row
    )
    block = decode_block(row["noise_block"].encode())
    event = block.release
    assert event == SkellamMixtureEvent(
        row["dim"],
        Fraction(row["counted_variance"]),
        float(Fraction(row["l2_clip_squared_steps"])),
        float(Fraction(row["linf_bound"])),
        sampler_distance=event.sampler_distance,
    )
    assert block.budget.charges == row["releases"] == 3
    assert float(row["epsilon"]) <= block.budget.epsilon
    check_sampler(row["noise_block"].encode())
