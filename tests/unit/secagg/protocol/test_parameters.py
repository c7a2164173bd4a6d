"""Which sessions are possible: the rules of PROTOCOL §3.2, and the clock of §5.0."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from secagg_testing.cohorts import offer_of

from secagg.crypto.canonical import CanonicalEncodingError, Reader
from secagg.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from secagg.protocol.descriptor import MAX_NOISE_TERMS_BYTES, SessionDescriptor
from secagg.protocol.parameters import Graph, ProtocolParameters
from secagg.protocol.profiles import (
    SUPPORTED_PROFILES,
    HonestCuriousParameters,
    MaliciousParameters,
    Profile,
    RoundDeadlines,
    SparseParameters,
    Trust,
)

TRUST = Trust("sums.example", b"\7" * 32, 3, b"\1" * 32)
COMMON = {
    "modulus": 1 << 20,
    "dimension": 100,
    "min_clients": 40,
    "max_clients": 50,
    "threshold": 30,
    "min_survivors": 32,
    "max_dropouts": 5,
    "max_losses": 8,
    "colluders": 5,
}
HONEST = ProtocolParameters(**COMMON)
RING = ProtocolParameters(
    **COMMON | {"tail": HonestCuriousParameters(40), "degree": 32}
)
MALICIOUS = ProtocolParameters(
    **COMMON, tail=MaliciousParameters(TRUST), deadlines=RoundDeadlines(consistency=60)
)
SPARSE = ProtocolParameters(
    **COMMON | {"degree": 35},
    tail=SparseParameters(TRUST, graph_bits=40, in_cap=70, quorum=36),
    deadlines=RoundDeadlines(choose_edges=60, consistency=60),
)
EVERY = pytest.mark.parametrize(
    "parameters", [HONEST, RING, MALICIOUS, SPARSE], ids=lambda p: p.graph.value
)


def offer(parameters=HONEST, **changes):
    return offer_of(parameters, **changes)


def refusal(parameters):
    with pytest.raises(RemoteProtocolError) as caught:
        parameters.check_possible()
    assert caught.value.code is ErrorCode.BAD_CONFIG
    return str(caught.value)


@EVERY
def test_valid_parameters_are_accepted_in_every_profile(parameters):
    assert parameters.check_possible() is parameters


def test_the_tail_determines_the_profile_and_profile_and_degree_the_graph():
    assert [p.profile for p in (HONEST, RING, MALICIOUS, SPARSE)] == [1, 1, 2, 3]
    graphs = [p.graph for p in (HONEST, RING, MALICIOUS, SPARSE)]
    assert graphs == [Graph.COMPLETE, Graph.RING, Graph.COMPLETE, Graph.K_OUT]


@EVERY
def test_the_fixed_part_has_87_bytes_in_every_profile(parameters):
    tail = parameters.tail.encode()
    assert len(parameters.encode()) == 87 + len(tail)
    assert len(replace(parameters, noise_block=b"x" * 9).encode()) == 96 + len(tail)


def test_an_unsupported_profile_is_rejected_by_name(monkeypatch):
    # R2-1
    assert frozenset(Profile) == SUPPORTED_PROFILES
    others = SUPPORTED_PROFILES - {SPARSE.profile}
    monkeypatch.setattr("secagg.protocol.profiles.SUPPORTED_PROFILES", others)
    with pytest.raises(RemoteProtocolError, match="is not part") as caught:
        ProtocolParameters.decode_from(Reader(SPARSE.encode(), "parameters"))
    assert caught.value.code is ErrorCode.BAD_CONFIG
    assert SPARSE.profile.label in str(caught.value)


def test_exactly_one_profile_is_experimental():
    assert [each for each in Profile if each.is_experimental] == [SPARSE.profile]


def test_under_changes_only_the_trust_of_the_parameters():
    trust = Trust("example.org", bytes(32), 3, bytes([3]) * 32)
    newer = MALICIOUS.under(trust)
    assert newer.trust == trust
    assert newer != MALICIOUS
    assert MALICIOUS.trust is not None
    assert newer.under(MALICIOUS.trust) == MALICIOUS
    with pytest.raises(LocalProtocolError, match="no credentials"):
        HONEST.under(trust)


@EVERY
def test_an_offer_of_every_profile_survives_encoding(parameters):
    original = offer(parameters, payload_hash=b"\2" * 32)
    assert SessionDescriptor.decode(original.encode()) == original


@EVERY
def test_a_tail_of_wrong_length_is_rejected(parameters):
    encoded, tail = parameters.encode(), parameters.tail.encode()
    head = encoded[: -len(tail) - 4]
    for wrong in (tail + b"\0", tail[:-1], b""):
        data = head + len(wrong).to_bytes(4, "big") + wrong
        with pytest.raises(CanonicalEncodingError):
            ProtocolParameters.decode_from(Reader(data, "parameters"))


NUMBERS = st.fixed_dictionaries(
    {
        "max_losses": st.integers(0, 2**32 - 1),
        "noise_layers": st.integers(0, 255),
        "noise_block": st.binary(max_size=40),
        "deadlines": st.builds(RoundDeadlines, *[st.integers(0, 2**32 - 1)] * 6),
    }
)


@given(changes=NUMBERS)
def test_different_parameters_have_different_encodings(changes):
    other = replace(HONEST, **changes)
    assert (other.encode() == HONEST.encode()) == (other == HONEST)


@pytest.mark.parametrize(
    ("base", "change", "says"),
    [
        # R3.2-3
        (HONEST, {"noise_layers": 1}, "noise_layers must be 0, or between 2 and 17"),
        (HONEST, {"noise_layers": 18}, "noise_layers"),
        (HONEST, {"noise_layers": 3}, "0 without a noise block, not 3"),
        (
            MALICIOUS,
            {"tail": MaliciousParameters(replace(TRUST, trust_domain=""))},
            "1 to",
        ),
        (
            MALICIOUS,
            {"tail": MaliciousParameters(replace(TRUST, revocation_number=0))},
            "revocation_hash must be zero",
        ),
        # R3.2-4
        (HONEST, {"deadlines": RoundDeadlines(consistency=1)}, "no round consistency"),
        (HONEST, {"deadlines": RoundDeadlines(choose_edges=1)}, "choose_edges"),
        (HONEST, {"deadlines": RoundDeadlines(unmasking=0)}, "round unmasking must be"),
        (HONEST, {"deadlines": RoundDeadlines(share_keys=604_801)}, "604800"),
        (MALICIOUS, {"deadlines": RoundDeadlines()}, "consistency must be between"),
        (
            MALICIOUS,
            {"deadlines": RoundDeadlines(choose_edges=1, consistency=1)},
            "no round choose_edges",
        ),
        (SPARSE, {"deadlines": RoundDeadlines(consistency=1)}, "choose_edges must be"),
        # R3.2-5
        (HONEST, {"max_dropouts": 9}, "between 0 and max_losses = 8, not 9"),
        (HONEST, {"max_losses": 21}, "max_losses must be at most 20"),
        (HONEST, {"min_survivors": 29}, "threshold <= min_survivors"),
        # R3.2-6
        (HONEST, {"tail": HonestCuriousParameters(1)}, "graph_bits must be 0"),
        # R3.2-7
        (RING, {"tail": HonestCuriousParameters(0)}, "between 1 and 128 on a ring"),
        (RING, {"tail": HonestCuriousParameters(129)}, "between 1 and 128 on a ring"),
        (RING, {"degree": 33}, "even"),
        # R3.2-8: half of clients and colluders is not enough
        (MALICIOUS, {"threshold": 27}, "threshold must be at least 28"),
        (MALICIOUS, {"degree": 32}, "degree must be 0"),
        # R3.2-9
        (SPARSE, {"max_clients": 10_001, "max_losses": 8}, "at most 10000"),
        (SPARSE, {"degree": 29}, "degree must be between the threshold 30 and"),
        (SPARSE, {"tail": replace(SPARSE.tail, graph_bits=0)}, "graph_bits"),
        (SPARSE, {"tail": replace(SPARSE.tail, in_cap=106)}, "in_cap"),
        (SPARSE, {"tail": replace(SPARSE.tail, in_cap=34)}, "in_cap"),
        (
            SPARSE,
            {"tail": replace(SPARSE.tail, quorum=31)},
            "quorum must be between 32",
        ),
        (SPARSE, {"tail": replace(SPARSE.tail, quorum=41)}, "min_clients = 40"),
    ],
)
def test_impossible_values_are_rejected_by_name(base, change, says):
    assert says in refusal(replace(base, **change))


def test_two_quorums_of_the_malicious_profile_share_an_honest_client():
    """R3.2-8 at its edge: 2t = n + c is refused, one more passes."""
    edge = replace(MALICIOUS, max_clients=51, threshold=28)
    assert "at least 29" in refusal(edge)
    assert replace(edge, threshold=29).check_possible()


def test_deadlines_require_a_profile():
    with pytest.raises(LocalProtocolError, match="a member of Profile") as caught:
        RoundDeadlines.of("malicious-server")
    assert "Profile.MALICIOUS_SERVER?" in caught.value.next_step


@pytest.mark.parametrize("field", ["session_number", "session_end"])
def test_counts_are_limited_to_63_bits(field):
    assert offer(**{field: (1 << 63) - 1}).validate()
    with pytest.raises(RemoteProtocolError, match=field) as caught:
        offer(**{field: 1 << 63}).validate()
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_the_session_id_depends_on_the_session_end():
    assert offer().session_id != offer(session_end=1_800_000_601).session_id


def test_an_offer_is_rejected_after_its_end_and_long_before():
    """R5.0-2: the rounds, one extension of the third, and an hour for the clocks."""
    end, longest = 1_800_000_600, 60 + 60 + 300 + 60 + 300
    assert HONEST.deadlines.longest_session == longest
    for left in (1, longest + 3600):
        offer().check_clock(end - left)
    for left in (0, -1, longest + 3601):
        with pytest.raises(RemoteProtocolError, match="clock") as caught:
            offer().check_clock(end - left)
        assert caught.value.code is ErrorCode.BAD_CLOCK


@pytest.mark.parametrize(
    ("end", "now", "words"),
    [
        (253_402_300_799, 0, "9999-12-31 23:59:59 UTC"),
        (253_402_300_800, 0, "253402300800 Unix seconds"),
        ((1 << 63) - 1, 0, "9223372036854775807 Unix seconds"),
        (1_800_000_600, 0, "this host reads 1970-01-01 00:00:00 UTC"),
        (1_800_000_600, -1, "this host reads -1 Unix seconds"),
    ],
)
def test_a_time_outside_the_calendar_is_rejected(end, now, words):
    with pytest.raises(RemoteProtocolError, match=words) as caught:
        offer(session_end=end).check_clock(now)
    assert caught.value.code is ErrorCode.BAD_CLOCK


def test_the_size_of_noise_terms_is_limited():
    noised = replace(HONEST, noise_block=b"{}")
    offered = offer(noised, noise_terms=bytes(MAX_NOISE_TERMS_BYTES))
    assert offered.validate() == offered
    for parameters, size in ((noised, MAX_NOISE_TERMS_BYTES + 1), (HONEST, 1)):
        with pytest.raises(RemoteProtocolError, match=r"noise.terms") as caught:
            offer(parameters, noise_terms=bytes(size)).validate()
        assert caught.value.code is ErrorCode.BAD_CONFIG


@pytest.mark.parametrize(
    "lie", [{"noise_terms": b"{}"}, {"parameters": replace(HONEST, noise_layers=3)}]
)
def test_an_offer_with_noise_terms_but_without_a_noise_block_is_rejected(lie):
    """R3.2-10: as far as it needs no reader of noise blocks."""
    data = replace(offer(), **lie).encode()
    with pytest.raises(RemoteProtocolError, match="without a noise block") as caught:
        SessionDescriptor.decode(data)
    assert caught.value.code is ErrorCode.BAD_CONFIG
