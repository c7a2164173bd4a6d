"""Disputes: no honest client is ever proven corrupt, and at most c are lost."""

from hypothesis import given
from hypothesis import strategies as st

from secagg.protocol.membership import excluded


@st.composite
def histories(draw):
    """Attempts of a task; in each, corrupt clients say and provoke what they like."""
    colluders = draw(st.integers(0, 4))
    corrupt = {f"x{i}" for i in range(colluders)}
    honest = {f"h{i}" for i in range(draw(st.integers(2, 14)))}
    names = sorted(corrupt | honest)
    pair = st.tuples(st.sampled_from(names), st.sampled_from(names)).filter(
        lambda p: p[0] != p[1] and not honest.issuperset(p)
    )
    attempts = draw(st.lists(st.lists(pair, min_size=1, max_size=12), max_size=8))
    return colluders, corrupt, honest, attempts


def played(history):
    """Yield who is out after each attempt; those who are out complain no more."""
    colluders, _, _, attempts = history
    said, out = set(), frozenset()
    for attempt in attempts:
        fresh = {pair for pair in attempt if out.isdisjoint(pair)}
        if fresh:
            said |= fresh
            before, out = out, excluded(said, colluders=colluders, already=out)
            yield before, fresh, out


@given(histories())
def test_at_most_c_honest_clients_and_c_attempts_are_lost(history):
    # R5-4
    colluders, corrupt, honest, _ = history
    costly = 0
    for before, fresh, out in played(history):
        costly += 1
        assert before <= out
        assert all(not out.isdisjoint(pair) for pair in fresh)
        assert len(out & honest) <= colluders
        # Every attempt that complaints ended has cost the adversary a client.
        assert len(out & corrupt) > len(before & corrupt)
    assert costly <= colluders


@given(histories())
def test_an_honest_client_is_excluded_only_together_with_a_corrupt_one(history):
    _, corrupt, honest, _ = history
    for before, _, out in played(history):
        newly = out - before
        assert len(newly & honest) <= len(newly & corrupt)


def test_more_disputes_than_colluders_exclude_only_the_accuser():
    complaints = {("x", f"h{i}") for i in range(4)}
    assert excluded(complaints, colluders=3) == {"x"}
    assert excluded(complaints, colluders=4) == {"x", "h0"}


def test_exactly_both_ends_of_a_matched_pair_are_excluded():
    said = [("a", "b"), ("b", "c"), ("c", "d")]
    assert excluded(said, colluders=2) == {"a", "b", "c", "d"}
    assert excluded([("a", "b"), ("c", "b")], colluders=2) == {"a", "b"}


def test_the_order_of_complaints_does_not_matter():
    said = [("c", "b"), ("a", "b"), ("d", "a")]
    assert excluded(said, colluders=3) == excluded(said[::-1], colluders=3)
    assert excluded([], colluders=3, already={"z"}) == {"z"}
    # What is out is in no new pair: its opponents stay.
    assert excluded([("z", "b")], colluders=3, already={"z"}) == {"z"}


@given(histories(), st.integers(0, 4))
def test_corrupt_clients_exclude_at_most_one_other_client_each(history, stated):
    actual, _, _, attempts = history
    for said in attempts:
        out = excluded(said, colluders=min(stated, actual))
        assert len(out) <= 2 * actual
        assert all(not out.isdisjoint(pair) for pair in said)


def test_a_client_that_accuses_many_invalid_dealers_is_not_excluded():
    for dealers in (1, 2, 5):
        garbage = {(f"h{i}", f"x{k}") for i in range(9) for k in range(dealers)}
        out = excluded(garbage, colluders=0)
        assert out == {f"x{k}" for k in range(dealers)}


def test_a_client_in_more_disputes_than_colluders_is_excluded_alone():
    # One client with two opponents is the one colluder; no other one is excluded.
    assert excluded({("x", "h0"), ("x", "h1")}, colluders=1) == {"x"}
