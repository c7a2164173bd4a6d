"""Every bound of an offer and of a client's policy, from both sides.

A row has the last valid value, the first invalid one, and their rule.
"""

import math
from dataclasses import replace

import pytest
from secagg_testing.cohorts import offer_of

from secagg.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from secagg.protocol import parameters as module
from secagg.protocol.descriptor import MAX_COUNT
from secagg.protocol.graphs.bounds import EdgeBound, bits_of, log_corrupt_holders
from secagg.protocol.parameters import (
    MAX_CLIENTS,
    MAX_DIMENSION,
    MAX_NOISE_BLOCK_BYTES,
    MAX_NOISE_LAYERS,
    MAX_SPARSE_CLIENTS,
    Graph,
    ProtocolParameters,
)
from secagg.protocol.policy import ClientPolicy, ExactSumWaiver, PrivacyLimits
from secagg.protocol.profiles import (
    MAX_DEADLINE_SECONDS,
    HonestCuriousParameters,
    MaliciousParameters,
    Profile,
    RoundDeadlines,
    SparseParameters,
    Trust,
)

TRUST = Trust("sums.example", b"\7" * 32, 3, b"\1" * 32)
COMPLETE = ProtocolParameters(
    modulus=1 << 20,
    dimension=4,
    min_clients=10,
    max_clients=20,
    threshold=5,
    min_survivors=6,
    max_dropouts=3,
    max_losses=4,
    colluders=0,
)
NOISED = replace(COMPLETE, noise_block=b"{}")
RING = replace(COMPLETE, degree=6, tail=HonestCuriousParameters(40))
SIGNED = replace(
    COMPLETE,
    threshold=12,
    min_survivors=13,
    min_clients=14,
    tail=MaliciousParameters(TRUST),
    deadlines=RoundDeadlines(consistency=60),
)
SPARSE = replace(
    COMPLETE,
    degree=8,
    min_clients=14,
    tail=SparseParameters(TRUST, graph_bits=40, in_cap=10, quorum=12),
    deadlines=RoundDeadlines(choose_edges=60, consistency=60),
)


def sparse(**changes):
    return {"tail": replace(SPARSE.tail, **changes)}


def trust(**changes):
    return {"tail": MaliciousParameters(replace(TRUST, **changes))}


def seconds(**changes):
    return {"deadlines": RoundDeadlines(**changes)}


BOUNDS = [
    # R3.2-3
    (COMPLETE, {"modulus": 2}, {"modulus": 1}, "modulus"),
    (COMPLETE, {"modulus": 1 << 62}, {"modulus": (1 << 62) + 1}, "modulus"),
    (COMPLETE, {"dimension": 1}, {"dimension": 0}, "dimension"),
    (
        COMPLETE,
        {"dimension": MAX_DIMENSION},
        {"dimension": MAX_DIMENSION + 1},
        "dimension",
    ),
    (
        replace(COMPLETE, threshold=2, min_survivors=2),
        {"min_clients": 2},
        {"min_clients": 1},
        "2 <= min_clients",
    ),
    (COMPLETE, {"min_clients": 20}, {"min_clients": 21}, "<= max_clients"),
    (
        COMPLETE,
        {"max_clients": MAX_CLIENTS},
        {"max_clients": MAX_CLIENTS + 1},
        f"<= {MAX_CLIENTS}",
    ),
    (COMPLETE, {"colluders": 0}, {"colluders": -1}, "colluders must be at least 0"),
    (NOISED, {"noise_layers": 2}, {"noise_layers": 1}, "noise_layers"),
    (
        NOISED,
        {"noise_layers": MAX_NOISE_LAYERS},
        {"noise_layers": MAX_NOISE_LAYERS + 1},
        "noise_layers",
    ),
    (COMPLETE, {"noise_layers": 0}, {"noise_layers": -1}, "noise_layers"),
    (
        COMPLETE,
        {"noise_block": bytes(MAX_NOISE_BLOCK_BYTES)},
        {"noise_block": bytes(MAX_NOISE_BLOCK_BYTES + 1)},
        "noise block",
    ),
    (SIGNED, trust(trust_domain="d"), trust(trust_domain=""), "trust_domain"),
    (
        SIGNED,
        trust(trust_domain="d" * 255),
        trust(trust_domain="d" * 256),
        "trust_domain",
    ),
    (
        SIGNED,
        trust(revocation_number=1),
        trust(revocation_number=0),
        "revocation_hash",
    ),
    # R3.2-4
    (COMPLETE, seconds(unmasking=1), seconds(unmasking=0), "unmasking"),
    (
        COMPLETE,
        seconds(unmasking=MAX_DEADLINE_SECONDS),
        seconds(unmasking=MAX_DEADLINE_SECONDS + 1),
        "unmasking",
    ),
    (COMPLETE, seconds(consistency=0), seconds(consistency=1), "no round"),
    # R3.2-5
    (COMPLETE, {"threshold": 2}, {"threshold": 1}, "threshold must be at least 2"),
    (COMPLETE, {"threshold": 6}, {"threshold": 7}, "threshold <= min_survivors"),
    (COMPLETE, {"min_survivors": 10}, {"min_survivors": 11}, "<= min_clients"),
    (COMPLETE, {"colluders": 4}, {"colluders": 5}, "min_survivors must be at least 7"),
    (COMPLETE, {"max_dropouts": 0}, {"max_dropouts": -1}, "max_dropouts"),
    (COMPLETE, {"max_dropouts": 4}, {"max_dropouts": 5}, "max_dropouts"),
    (COMPLETE, {"max_losses": 15}, {"max_losses": 16}, "max_losses"),
    # R3.2-6
    (
        COMPLETE,
        {"tail": HonestCuriousParameters(0)},
        {"tail": HonestCuriousParameters(1)},
        "graph_bits must be 0",
    ),
    (
        replace(COMPLETE, min_survivors=8),
        {"colluders": 4},
        {"colluders": 5},
        "more than the 5 colluders",
    ),
    # R3.2-7
    (
        RING,
        {"tail": HonestCuriousParameters(1)},
        {"tail": HonestCuriousParameters(0)},
        "graph_bits",
    ),
    (
        RING,
        {"tail": HonestCuriousParameters(128)},
        {"tail": HonestCuriousParameters(129)},
        "graph_bits",
    ),
    (replace(RING, threshold=6), {"degree": 6}, {"degree": 4}, "an even number"),
    (RING, {"degree": 8}, {"degree": 10}, "an even number"),
    (RING, {"degree": 6}, {"degree": 7}, "an even number"),
    # R3.2-8
    (SIGNED, {"degree": 0}, {"degree": 6}, "degree must be 0"),
    (SIGNED, {"colluders": 3}, {"colluders": 4}, "more than half"),
    # R3.2-9
    (SPARSE, sparse(graph_bits=1), sparse(graph_bits=0), "graph_bits"),
    (SPARSE, sparse(graph_bits=128), sparse(graph_bits=129), "graph_bits"),
    (
        replace(SPARSE, min_clients=6000, **sparse(quorum=6000)),
        {"max_clients": MAX_SPARSE_CLIENTS},
        {"max_clients": MAX_SPARSE_CLIENTS + 1},
        "max_clients must be at most",
    ),
    (SPARSE, {"degree": 5}, {"degree": 4}, "degree must be between"),
    (
        replace(SPARSE, **sparse(in_cap=14)),
        {"degree": 13},
        {"degree": 14},
        "degree must be between",
    ),
    (SPARSE, sparse(in_cap=8), sparse(in_cap=7), "in_cap"),
    (SPARSE, sparse(in_cap=24), sparse(in_cap=25), "in_cap"),
    (SPARSE, sparse(quorum=11), sparse(quorum=10), "quorum must be between 11"),
    (SPARSE, sparse(quorum=14), sparse(quorum=15), "quorum must be between"),
    (
        replace(SPARSE, min_survivors=13),
        sparse(quorum=13),
        sparse(quorum=12),
        "quorum must be between 13",
    ),
]


@pytest.fixture
def no_odds(monkeypatch):
    """Every drawn graph holds together; what follows by chance is tried below."""
    judged = EdgeBound(corrupt_holders=0, set_apart=0, cut_bits=math.inf)
    monkeypatch.setattr(module, "edge_bound", lambda **_: judged)


@pytest.mark.usefixtures("no_odds")
@pytest.mark.parametrize(("base", "possible", "impossible", "complaint"), BOUNDS)
def test_a_bound_of_the_offer_lies_at_the_documented_value(
    base, possible, impossible, complaint
):
    replace(base, **possible).check_possible()
    with pytest.raises(RemoteProtocolError) as caught:
        replace(base, **impossible).check_possible()
    assert caught.value.code is ErrorCode.BAD_CONFIG
    assert complaint in str(caught.value)


def test_failure_bounds_of_a_ring_are_accepted_up_to_the_demand():
    # R3.2-7, on the smallest roster
    ring = replace(RING, colluders=4, threshold=4)
    bits = bits_of(log_corrupt_holders(clients=10, degree=6, threshold=4, colluders=4))
    ring.check_possible(demanded_bits=lambda _: bits)
    with pytest.raises(RemoteProtocolError, match="reach a threshold") as caught:
        ring.check_possible(demanded_bits=lambda _: math.nextafter(bits, math.inf))
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_separated_clients_count_towards_threshold_and_quorum(monkeypatch):
    # R3.2-9, on the smallest roster and on the largest
    asked = []

    def judge(**situation):
        asked.append(situation)
        return EdgeBound(corrupt_holders=1, set_apart=apart, cut_bits=math.inf)

    monkeypatch.setattr(module, "edge_bound", judge)
    apart = 5
    least = judge().least_threshold
    asked.clear()
    possible = replace(
        SPARSE, threshold=least, min_survivors=max(least, 7), max_losses=8
    )
    exact = replace(possible, **sparse(quorum=possible.min_survivors + apart))
    exact.check_possible()
    assert [(each["clients"], each["losses"]) for each in asked] == [(14, 7), (20, 8)]
    for wrong in (
        replace(exact, threshold=least - 1),
        replace(exact, **sparse(quorum=exact.tail.quorum - 1)),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            wrong.check_possible()
        assert caught.value.code is ErrorCode.BAD_CONFIG


OFFER = offer_of(COMPLETE)


@pytest.mark.parametrize(
    ("possible", "impossible"),
    [
        ({"aggregator": "a"}, {"aggregator": ""}),
        ({"aggregator": "a" * 255}, {"aggregator": "a" * 256}),
        ({"aggregator": "a"}, {"aggregator": "a\0"}),
        ({"task_id": "t"}, {"task_id": ""}),
        ({"task_id": "t" * 256}, {"task_id": "t" * 257}),
        ({"session_number": 0}, {"session_number": -1}),
        ({"session_number": MAX_COUNT}, {"session_number": MAX_COUNT + 1}),
        ({"session_end": 0}, {"session_end": -1}),
        ({"session_end": MAX_COUNT}, {"session_end": MAX_COUNT + 1}),
        ({"payload_hash": bytes(32)}, {"payload_hash": bytes(31)}),
        ({"parameters": COMPLETE}, {"parameters": replace(COMPLETE, modulus=1)}),
    ],
)
def test_a_bound_of_the_descriptor_lies_at_the_documented_value(possible, impossible):
    replace(OFFER, **possible).validate()
    with pytest.raises(RemoteProtocolError) as caught:
        replace(OFFER, **impossible).validate()
    assert caught.value.code is ErrorCode.BAD_CONFIG


LIMITS = ClientPolicy(
    profiles=frozenset(Profile),
    graphs=frozenset(Graph),
    min_graph_bits=1,
    min_clients=2,
    max_clients=20,
    min_survivors=2,
    require_majority=False,
    require_noise=False,
)


@pytest.mark.parametrize("name", ["require_majority", "whole_roster", "require_noise"])
def test_a_switch_of_a_policy_is_true_or_false(name):
    with pytest.raises(LocalProtocolError, match=name):
        ClientPolicy(**{name: None})


@pytest.mark.parametrize(
    ("parameters", "accepts", "refuses", "complaint"),
    [
        (
            RING,
            {"graphs": frozenset({Graph.RING})},
            {"graphs": frozenset({Graph.COMPLETE})},
            "graph is not",
        ),
        (RING, {"min_graph_bits": 40}, {"min_graph_bits": 41}, "graph_bits is 40"),
        (COMPLETE, {"min_clients": 10}, {"min_clients": 11}, "min_clients is 10"),
        (COMPLETE, {"max_clients": 20}, {"max_clients": 19}, "max_clients is 20"),
        (COMPLETE, {"min_survivors": 6}, {"min_survivors": 7}, "min_survivors is 6"),
        (COMPLETE, {"max_dropouts": 3}, {"max_dropouts": 2}, "max_dropouts is 3"),
        (COMPLETE, {"min_colluders": 0}, {"min_colluders": 1}, "colluders is 0"),
        (COMPLETE, {"max_dimension": 4}, {"max_dimension": 3}, "dimension is 4"),
        (COMPLETE, {"max_modulus_bits": 20}, {"max_modulus_bits": 19}, "20 bits"),
        (
            COMPLETE,
            {"require_majority": False},
            {"require_majority": True},
            "no majority of 20",
        ),
    ],
)
def test_a_limit_of_the_client_lies_at_the_documented_value(
    parameters, accepts, refuses, complaint
):
    offer = replace(OFFER, parameters=parameters)
    replace(LIMITS, **accepts).check(offer)
    with pytest.raises(RemoteProtocolError) as caught:
        replace(LIMITS, **refuses).check(offer)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert complaint in str(caught.value)


def test_a_majority_is_required_on_the_complete_graph_only():
    policy = replace(LIMITS, require_majority=True)

    def offered(base, threshold):
        return replace(OFFER, parameters=replace(base, threshold=threshold))

    policy.check(offered(COMPLETE, 11))
    policy.check(offered(RING, 5))
    with pytest.raises(RemoteProtocolError, match="at least 11"):
        policy.check(offered(COMPLETE, 10))


def test_colluders_are_assumed_where_the_server_may_create_clients():
    privacy_limits = PrivacyLimits(max_epsilon=1.0, max_delta=1e-6)
    assert privacy_limits.colluder_fraction(Profile.HONEST_CURIOUS_SERVER) == 0
    assert privacy_limits.colluder_fraction(Profile.MALICIOUS_SERVER) > 0
    said = replace(privacy_limits, min_colluder_fraction=0.25)
    assert {said.colluder_fraction(profile) for profile in Profile} == {0.25}


def test_an_exact_sum_waiver_requires_the_exact_sentence():
    with pytest.raises(LocalProtocolError, match="one sentence and no other"):
        ExactSumWaiver("I understand")


def test_a_profile_has_one_label():
    assert [Profile.from_label(profile.label) for profile in Profile] == list(Profile)
    with pytest.raises(ValueError, match="malicious-server-sparse"):
        Profile.from_label("honest")
