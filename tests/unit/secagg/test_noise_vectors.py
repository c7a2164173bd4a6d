"""Our division of noise against the vectors of `secagg.conformance`.

The vectors come from a reference that was written from the specification alone.
"""

from fractions import Fraction

import pytest

from dpnoise.errors import ParameterError
from dpnoise.mechanisms import NoiseRule
from secagg.conformance import read_vectors

RULES = read_vectors("noise")["rules"]
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
