"""The division of noise: known values, every edge, and the promise it all serves."""

import dataclasses
import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpnoise.errors import ParameterError
from dpnoise.mechanisms import NoiseRule

GOOD = NoiseRule(
    counted_variance=Fraction(225),
    min_survivors=60,
    loss_fraction=Fraction(3, 10),
    colluders=5,
    colluder_fraction=Fraction(1, 10),
    share_bits=12,
)


@pytest.mark.parametrize(
    ("variance", "roster", "rule", "expected"),
    [
        ("225", 100, (60, "3/10", 0, "0", 12), (30, 0, "13357/4096")),
        ("225", 100, (60, "3/10", 5, "1/10", 12), (30, 10, "15621/4096")),
        ("225", 75, (60, "3/10", 5, "1/10", 12), (15, 8, "18071/4096")),
        ("225", 60, (60, "3/10", 0, "0", 12), (0, 0, "15621/4096")),
        ("7/3", 20, (15, "1/10", 1, "0", 20), (2, 1, "76459/524288")),
    ],
)
def test_noise_shares_match_known_values(variance, roster, rule, expected):
    survivors, losses, colluders, colluding, bits = rule
    session = NoiseRule(
        counted_variance=Fraction(variance),
        min_survivors=survivors,
        loss_fraction=Fraction(losses),
        colluders=colluders,
        colluder_fraction=Fraction(colluding),
        share_bits=bits,
    ).session(roster)
    tolerated, counted, share = expected
    assert (session.tolerated_losses, session.colluders) == (tolerated, counted)
    assert (
        session.base
        == session.upload
        == session.remaining(tolerated)
        == Fraction(share)
    )
    assert session.layers == ()
    assert session.removed_layers(0) == ()


def test_a_ladder_with_known_layers():
    session = dataclasses.replace(
        GOOD, colluders=0, colluder_fraction=Fraction(0), ladder=4
    ).session(100)
    unit = Fraction(253, 4096)
    assert session.base == Fraction(4655, 2048)
    assert session.layers == (unit, unit, 2 * unit, 4 * unit, 8 * unit)
    for losses, removed, kept in (
        (0, (0, 1, 2, 3, 4), "4655/2048"),
        (1, (0, 2, 3, 4), "9563/4096"),
        (15, (0, 4), "11081/4096"),
        (30, (), "6679/2048"),
    ):
        assert session.removed_layers(losses) == removed
        assert session.remaining(losses) == Fraction(kept)


@pytest.mark.parametrize(
    ("rungs", "roster", "losses", "surplus"),
    [
        (4, 100, 30, "1.025"),
        (4, 20, 6, "1.025"),
        (4, 1000, 300, "1.027"),
        (5, 100, 30, "1.012"),
        (8, 100, 30, "1.002"),
        (1, 100, 1, "1.0001"),
    ],
)
def test_the_ladder_keeps_little_more_noise_than_required(
    rungs, roster, losses, surplus
):
    session = NoiseRule(
        counted_variance=Fraction(225),
        min_survivors=roster - losses,
        loss_fraction=Fraction(losses, roster),
        ladder=rungs,
    ).session(roster)
    assert session.tolerated_losses == losses
    for lost in range(losses + 1):
        needed = Fraction(225) / (roster - lost - 1)
        assert session.needed(lost) == needed
        assert needed <= session.remaining(lost) <= needed * Fraction(surplus)


@pytest.mark.parametrize(
    ("part", "ladder", "most"),
    [
        # What settings, `secagg plan --help` and docs/mechanisms.md say.
        (Fraction(1, 10), 4, 1.01),
        (Fraction(3, 10), 4, 1.03),
        (Fraction(1, 2), 4, 1.065),
        (Fraction(1, 3), 8, 1.002),
    ],
)
def test_the_surplus_of_a_ladder_depends_on_the_tolerated_losses(part, ladder, most):
    lost = math.floor(part * 1000)
    session = NoiseRule(
        counted_variance=Fraction(154),
        min_survivors=1000 - lost,
        loss_fraction=part,
        ladder=ladder,
    ).session(1000)
    surplus = max(session.remaining(d) / session.needed(d) for d in range(lost + 1))
    assert surplus <= 1 + Fraction(lost, 1000 - lost - 1) / 2**ladder + Fraction(
        1, 1000
    )
    assert float(surplus) <= most


def test_without_tolerated_losses_there_is_no_ladder():
    rule = dataclasses.replace(GOOD, ladder=4)
    assert rule.session(60).tolerated_losses == 0
    assert rule.session(60).layers == ()
    assert rule.session(60).base == GOOD.session(60).base


def test_a_ladder_without_distinct_layers_is_empty():
    """v/998 and v/999 are one multiple of 2^-12: nothing may be divided by zero."""
    rule = NoiseRule(
        counted_variance=Fraction(15),
        min_survivors=999,
        loss_fraction=Fraction(1, 1000),
        share_bits=12,
        ladder=4,
    )
    session = rule.session(1000)
    assert (session.tolerated_losses, session.layers) == (1, ())
    assert (
        session.base
        == session.remaining(0)
        == session.remaining(1)
        == Fraction(31, 2048)
    )


def test_more_losses_than_tolerated_are_rejected():
    session = dataclasses.replace(GOOD, ladder=4).session(100)
    for question in (session.needed, session.removed_layers, session.remaining):
        with pytest.raises(ParameterError) as caught:
            question(31)
        assert (caught.value.parameter, caught.value.nearest) == ("losses", "30")


@pytest.mark.parametrize("roster", [59, (1 << 24) + 1])
def test_a_roster_outside_the_rule_is_refused(roster):
    with pytest.raises(ParameterError) as caught:
        GOOD.session(roster)
    assert caught.value.parameter == "roster"


def test_a_roster_without_counted_shares_is_rejected():
    rule = dataclasses.replace(GOOD, colluder_fraction=Fraction(7, 10))
    # Of 200 clients 140 collude and 60 may be lost.
    for question in (
        rule.session,
        rule.smallest_counted_shares,
        rule.largest_counted_shares,
        rule.largest_total,
    ):
        with pytest.raises(ParameterError, match="leaves no other client") as caught:
            question(200)
        assert caught.value.parameter == "min_survivors"
    # Where all but none collude, more survivors do not help.
    crowded = dataclasses.replace(GOOD, colluder_fraction=Fraction(999, 1000))
    with pytest.raises(ParameterError, match="leaves no other client") as caught:
        crowded.session(200)
    assert caught.value.parameter == "colluder_fraction"
    assert caught.value.nearest == "0.69"
    fewer = dataclasses.replace(GOOD, colluder_fraction=Fraction("0.69"))
    assert dataclasses.replace(fewer, min_survivors=140).counted_shares(200) == 1
    assert dataclasses.replace(GOOD, colluders=58).counted_shares(60) == 1


def test_the_most_noise_can_arrive_at_an_intermediate_roster():
    rule = NoiseRule(
        counted_variance=Fraction(225),
        min_survivors=20,
        loss_fraction=Fraction(1, 4),
        colluders=2,
        colluder_fraction=Fraction(1, 20),
    )
    totals = {n: n * rule.session(n).upload for n in range(20, 41)}
    assert max(totals, key=totals.__getitem__) == 28
    assert rule.largest_total(40) == totals[28] == 350
    assert totals[26] < 345
    assert rule.largest_surplus(40) == pytest.approx(350 / 225)


def test_the_least_noise_of_a_client_is_the_minimum_over_all_rosters():
    rule = dataclasses.replace(GOOD, share_bits=20)
    shares = {n: rule.session(n) for n in range(60, 76)}
    # Colluders grow while the losses bend: not the largest roster.
    assert rule.least_variance(75) == min(s.base for s in shares.values())
    assert float(rule.least_variance(75)) == pytest.approx(225 / 53, rel=1e-5)
    assert float(shares[75].base) == pytest.approx(225 / 51, rel=1e-5)
    ladder = dataclasses.replace(rule, ladder=4)
    assert ladder.least_variance(75) == min(
        ladder.session(n).base for n in range(60, 76)
    )
    assert rule.largest_share(75) == max(s.base for s in shares.values())


@st.composite
def rules(draw):
    survivors = draw(st.integers(2, 60))
    variance = draw(
        st.fractions(min_value=Fraction(1, 10**6), max_value=10**6).filter(bool)
    )
    denominator = draw(st.integers(1, 60))
    return NoiseRule(
        counted_variance=variance,
        min_survivors=survivors,
        loss_fraction=Fraction(draw(st.integers(0, denominator - 1)), denominator),
        colluders=draw(st.integers(0, survivors - 2)),
        colluder_fraction=Fraction(
            draw(st.integers(0, max(0, denominator // 2 - 1))), denominator
        ),
        share_bits=draw(st.integers(0, 24)),
        ladder=draw(st.integers(0, 8)),
    )


@given(rules(), st.integers(0, 60))
def test_the_other_honest_clients_hold_the_counted_variance_after_any_losses(
    rule, more
):
    """(n - d - c - 1) * kept(d) >= v for every tolerated d: what the rule is for."""
    roster = rule.min_survivors + more
    shares = rule.counted_shares(roster)
    if shares < 1:
        with pytest.raises(ParameterError):
            rule.session(roster)
        return
    session = rule.session(roster)
    grid = 1 << rule.share_bits
    for variance in (session.base, *session.layers):
        assert variance > 0
        assert (variance * grid).denominator == 1
    assert session.upload >= rule.counted_variance / shares
    for lost in range(session.tolerated_losses + 1):
        removed = session.removed_layers(lost)
        kept = session.upload - sum(session.layers[layer] for layer in removed)
        assert kept == session.remaining(lost)
        assert session.base <= kept <= session.upload
        left = roster - lost - session.colluders - 1
        assert left * kept >= rule.counted_variance
    kept = [session.remaining(lost) for lost in range(session.tolerated_losses + 1)]
    assert kept == sorted(kept)
    assert kept[-1] >= rule.counted_variance / shares


@given(rules(), st.integers(0, 40))
def test_figures_over_all_rosters_are_those_of_the_worst_roster(rule, more):
    most = rule.min_survivors + more
    rosters = range(rule.min_survivors, most + 1)
    counted = [rule.counted_shares(roster) for roster in rosters]
    if min(counted) < 1:
        with pytest.raises(ParameterError):
            rule.smallest_counted_shares(most)
        return
    sessions = [rule.session(roster) for roster in rosters]
    assert rule.smallest_counted_shares(most) == min(counted)
    assert rule.largest_counted_shares(most) == max(counted)
    assert rule.least_variance(most) <= min(session.base for session in sessions)
    assert rule.largest_share(most) >= max(session.base for session in sessions)
    totals = [session.roster * session.upload for session in sessions]
    assert rule.largest_total(most) == max(totals)


def test_rounded_shares_are_counted_as_drawn():
    """Shares of a half each: twice the clients bring twice the noise."""
    rule = NoiseRule(counted_variance=Fraction(10), min_survivors=50, share_bits=1)
    assert {rule.session(n).upload for n in range(50, 101)} == {Fraction(1, 2)}
    assert rule.largest_total(100) == 50
    ladder = dataclasses.replace(rule, loss_fraction=Fraction(1, 2), ladder=8)
    assert ladder.session(100).upload == Fraction(1, 2)
    ladder = dataclasses.replace(ladder, counted_variance=Fraction(49))
    assert ladder.session(50).upload == 1
    assert ladder.session(100).upload == Fraction(1, 2) + 128
    assert ladder.largest_total(100) == max(
        n * ladder.session(n).upload for n in range(50, 101)
    )


def test_the_dictionary_survives_json_without_loss():
    assert NoiseRule.from_dict(json.loads(json.dumps(GOOD.to_dict()))) == GOOD
    assert GOOD.to_dict()["loss_fraction"] == "3/10"
    assert GOOD.to_dict()["counted_variance"] == "225/1"


@pytest.mark.parametrize(("ladder", "variance"), [(0, Fraction(7, 3)), (5, 10**9)])
def test_the_worst_of_many_rosters_is_found_wherever_it_lies(ladder, variance):
    """In whole numbers of Python, one roster after the other."""
    rule = NoiseRule(
        counted_variance=Fraction(variance),
        min_survivors=40_000,
        loss_fraction=Fraction(3, 7),
        colluders=9_000,
        colluder_fraction=Fraction(123, 1009),
        share_bits=12,
        ladder=ladder,
    )
    most = 75_000
    sizes = range(rule.min_survivors, most + 1)
    counted = [rule.counted_shares(n) for n in sizes]
    assert rule.smallest_counted_shares(most) == min(counted)
    assert rule.largest_counted_shares(most) == max(counted)
    units = -(-variance * (1 << 12) // 1)
    totals = []
    for n, shares in zip(sizes, counted, strict=True):
        upload = -(-units // shares)
        base = -(-units // (shares + rule.tolerated_losses(n)))
        step = -(-(upload - base) // (1 << ladder))
        totals.append(n * (base + (step << ladder) if ladder and step else upload))
    assert rule.largest_total(most) == Fraction(max(totals), 1 << 12)
    worst = max(n / shares for n, shares in zip(sizes, counted, strict=True))
    assert rule.largest_surplus(most) == worst


def test_a_cohort_may_have_any_size_up_to_the_largest():
    rule = NoiseRule(counted_variance=Fraction(1), min_survivors=2)
    assert rule.smallest_counted_shares(1 << 24) == 1
    assert rule.largest_counted_shares(1 << 24) == (1 << 24) - 1


@pytest.mark.parametrize(
    "text", ["1/0", "-1/2", "1e3", "1.5", "", "/", "1/2/3", "٣/4", "9" * 500]
)
@pytest.mark.parametrize("name", ["counted_variance", "loss_fraction"])
def test_a_fraction_that_is_not_plain_digits_is_refused(name, text):
    with pytest.raises(ParameterError, match=name):
        NoiseRule.from_dict(GOOD.to_dict() | {name: text})


def test_an_unknown_or_missing_key_is_rejected():
    with pytest.raises(ParameterError) as caught:
        NoiseRule.from_dict(GOOD.to_dict() | {"min_survivers": 3})
    assert caught.value.parameter == "min_survivers"
    assert caught.value.nearest == "min_survivors"
    entries = GOOD.to_dict()
    del entries["min_survivors"]
    with pytest.raises(ParameterError, match="min_survivors"):
        NoiseRule.from_dict(entries)


@pytest.mark.parametrize(
    ("field", "value", "nearest"),
    [
        ("counted_variance", 1.75, "Fraction(1.75)"),
        ("counted_variance", Fraction(0), None),
        ("counted_variance", Fraction(1, 1 << 600), None),
        ("counted_variance", Fraction(1 << 89), str(1 << 88)),
        ("min_survivors", 6, "7"),
        ("min_survivors", (1 << 24) + 1, str(1 << 24)),
        ("colluders", -1, "0"),
        ("colluders", 59, None),
        ("loss_fraction", Fraction(1), None),
        ("loss_fraction", Fraction(-1, 2), "0/1"),
        ("loss_fraction", 0.25, None),
        ("loss_fraction", Fraction(1, (1 << 24) + 1), None),
        ("colluder_fraction", Fraction(3, 2), None),
        ("share_bits", -1, "0"),
        ("share_bits", 65, "64"),
        ("share_bits", True, None),
        ("ladder", 9, "8"),
        ("ladder", -1, "0"),
    ],
)
def test_a_value_that_cannot_work_is_named_with_the_nearest_that_does(
    field, value, nearest
):
    with pytest.raises(ParameterError) as caught:
        dataclasses.replace(GOOD, **{field: value})
    assert caught.value.parameter in {field, "min_survivors"}
    if nearest is not None:
        assert caught.value.parameter == field
        assert caught.value.nearest == nearest
