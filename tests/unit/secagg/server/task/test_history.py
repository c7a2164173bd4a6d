"""What sessions tell their task."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from secagg_testing.cohorts import offer_of, parameters_for

from secagg.errors import ErrorCode, ServiceError, SessionAbortedError
from secagg.protocol.messages import Aborted, Fate, Released
from secagg.server.session.report import SessionReceipt
from secagg.server.task.history import TaskHistory

COLLUDERS = 2
DESCRIPTOR = offer_of(
    parameters_for(9, dimension=1, threshold=4, colluders=COLLUDERS), task_id="task"
)
FAILED = SessionReceipt(
    descriptor=DESCRIPTOR,
    outcome=Aborted(Fate.NEVER_FIXED, ErrorCode.DISPUTED, "why"),
    members=("a", "b", "c", "d", "e"),
)
SUM = replace(FAILED, outcome=Released(Fate.INCLUDED, bytes(32), 1, 5, 0))


def disputing(*pairs):
    return replace(FAILED, disputes=tuple((a, b, 10) for a, b in pairs))


def test_only_released_sums_are_counted():
    facts = TaskHistory().after_session(SUM).after_session(FAILED).after_session(SUM)
    assert facts == TaskHistory(sums=2)


def test_disputes_add_up_over_sessions():
    facts = TaskHistory().after_session(disputing(("a", "b")))
    assert facts.excluded == {"a", "b"}
    facts = facts.after_session(SUM).after_session(disputing(("c", "a"), ("c", "b")))
    assert facts.excluded == {"a", "b"}  # c is in no pair with an included client
    facts = facts.after_session(disputing(("c", "d")))
    # Three opponents, two colluders: c is proven corrupt, and d stays.
    assert facts.excluded == {"a", "b", "c"}


def test_disputes_without_further_effect_are_dropped():
    facts = TaskHistory().after_session(disputing(("a", "b"), ("a", "c")))
    assert facts.excluded == {"a", "b"}
    assert facts.disputes == {("a", "c")}


@pytest.mark.parametrize("is_proven", [False, True])
def test_a_dealer_is_excluded_permanently_only_with_proof(is_proven):
    failed = replace(FAILED, failed_dealer="a", is_failure_proven=is_proven)
    facts = TaskHistory().after_session(failed)
    assert facts.excluded == ({"a"} if is_proven else set())
    assert facts.suspended == (set() if is_proven else {"a"})
    no_client_came = replace(FAILED, members=())
    assert facts.after_session(no_client_came) == facts  # that was no attempt
    assert facts.after_session(FAILED).suspended == frozenset()


def test_a_task_ends_if_too_few_clients_remain_but_not_for_suspects():
    invited = frozenset("abcde")
    facts = TaskHistory(excluded=frozenset("a"), suspended=frozenset("b"))
    assert facts.absent_from_next(None, min_clients=9) == {"a", "b"}
    assert facts.absent_from_next(invited, min_clients=3) == {"a", "b"}
    assert facts.absent_from_next(invited, min_clients=4) == {"a"}
    # A task that invites too few waits for them: no client is in dispute.
    assert TaskHistory().absent_from_next(frozenset("a"), min_clients=2) == set()
    with pytest.raises(SessionAbortedError, match=r"4 of the invited.*: a\n") as error:
        facts.absent_from_next(invited, min_clients=5)
    assert error.value.code is ErrorCode.DISPUTED


NAMES = st.sets(st.sampled_from("abcdefü"), max_size=4).map(frozenset)
PAIRS = st.sets(st.tuples(st.sampled_from("abü"), st.sampled_from("xyz")), max_size=5)


@given(st.integers(0, 99), PAIRS.map(frozenset), NAMES, NAMES)
def test_the_history_survives_encoding(sums, pairs, out, suspended):
    facts = TaskHistory(sums, sums + 1, pairs, out, suspended)
    assert TaskHistory.decode(facts.encode()) == facts


def test_an_empty_history_decodes_and_a_damaged_one_is_an_error():
    assert TaskHistory.decode(b"") == TaskHistory()
    stored = TaskHistory(sums=1, excluded=frozenset("a")).encode()
    for damaged in (stored[:-1], stored + b"x", b"\xff" + stored[1:]):
        with pytest.raises(ServiceError) as error:
            TaskHistory.decode(damaged)
        assert error.value.code is ErrorCode.STORAGE_FAILED
