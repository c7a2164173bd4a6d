"""Our division of noise against the vectors of `secagg.conformance`.

The vectors come from a reference that was written from the specification alone.
"""

from fractions import Fraction

import pytest

from dpnoise.errors import ParameterError
from dpnoise.mechanisms import NoiseRule
from secagg.conformance import read_vectors
from secagg.primitives.cipher_suite import CipherSuite
from secagg.primitives.secret_bytes import SecretBytes
from secagg.protocol.noise_terms import layer_secret

NOISE = read_vectors("noise")
RULES = NOISE["rules"]
by_rule = pytest.mark.parametrize("row", RULES, ids=lambda row: row["name"])


@by_rule
def test_shares_and_what_is_taken_back(row):
    rule = NoiseRule.from_dict(row["noise"])
    assert rule.to_dict() == row["noise"]
    if "sessions" not in row:
        # R3.5-1
        with pytest.raises(ParameterError):
            rule.session(row["sharers"])
        return
    for expected in row["sessions"]:
        session = rule.session(expected["sharers"])
        assert session.base == Fraction(expected["base"])
        assert list(session.layers) == [Fraction(part) for part in expected["layers"]]
        assert session.tolerated_losses + 1 == len(expected["taken_back"])
        for lost, chosen in enumerate(expected["taken_back"]):
            assert list(session.removed_layers(lost)) == chosen
        with pytest.raises(ParameterError):
            session.removed_layers(session.tolerated_losses + 1)


@pytest.mark.parametrize("row", NOISE["layer_keys"])
def test_what_a_layer_is_drawn_from(row):
    found = layer_secret(
        SecretBytes(bytes.fromhex(row["noise_seed"])),
        row["layer"],
        context=bytes.fromhex(row["ctx2"]),
        suite=CipherSuite(row["suite"]),
    )
    assert found == SecretBytes(bytes.fromhex(row["key"]))
