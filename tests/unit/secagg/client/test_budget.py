"""The charge of an input: written with the input, settled with the session."""

from dataclasses import replace

import pytest
from secagg_testing.cohorts import offer_of, parameters_for, with_noise
from secagg_testing.inline_store import inline_store

from secagg.client.budget import charge_of, max_rosters_of, settlement_of
from secagg.client.gate import check_budget
from secagg.errors import ErrorCode
from secagg.protocol.profiles import HonestCuriousParameters
from secagg.protocol.refund import ChargeOutcome
from secagg.storage.budget_ledger import (
    BudgetSpentError,
    ChargeState,
    NoiseChangedError,
    Settlement,
)
from secagg.storage.change import Change, NewSession, Side
from secagg.storage.queries import ListCharges, LoadSession


def noised(epsilon=8.0):
    cohort = parameters_for(3, dimension=4, threshold=3)
    return with_noise(cohort, steps=2, spare=1, epsilon=epsilon)


@pytest.fixture(name="offered", scope="module")
def _offered():
    return offer_of(noised())


async def charged(store, descriptor):
    new = NewSession(
        role=Side.CLIENT, task="t", number=descriptor.session_number, header=b""
    )
    key = descriptor.session_id.hex()
    await store.commit(Change(key=key, create=new, charge=charge(descriptor)))


def charge(descriptor, domain="domain"):
    return charge_of(descriptor, trust_domain=domain)


async def judged(store, descriptor):
    check_budget(charge(descriptor), await store.read(ListCharges(descriptor.task_id)))


def test_a_session_without_noise_costs_nothing(offered):
    exact = replace(offered.parameters, noise_block=b"")
    assert charge(replace(offered, parameters=exact)) is None


def test_a_ring_allows_ten_rosters_per_session_of_the_budget(offered):
    assert max_rosters_of(offered) is None  # the complete graph
    ring = replace(offered.parameters, degree=2, tail=HonestCuriousParameters(40))
    assert max_rosters_of(replace(offered, parameters=ring)) == 10 * 3
    exact = replace(ring, noise_block=b"")
    assert max_rosters_of(replace(offered, parameters=exact)) is None


async def test_a_task_may_charge_its_claimed_and_spare_sessions(offered):
    store = inline_store()
    sessions = [replace(offered, session_number=n) for n in (1, 2, 3, 4)]
    assert (charge(offered).allowed, charge(offered).refunds) == (3, 2)
    for session in sessions[:3]:
        await judged(store, session)
        await charged(store, session)
    with pytest.raises(BudgetSpentError, match="covers 3") as caught:
        await judged(store, sessions[3])
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    # An interrupted session continues: it is charged already.
    await judged(store, sessions[0])
    key = sessions[0].session_id.hex()
    stored = await store.read(LoadSession(key))
    void = settlement_of(sessions[0], ChargeOutcome.GIVEN_BACK)
    at = {"expect": stored.sequence, "previous": stored.chain}
    await store.commit(Change(key=key, **at, settle=void, end=b""))
    await judged(store, sessions[3])
    # Of a session that was given back not the budget checks, but its number.
    await judged(store, sessions[0])


async def test_a_task_cannot_change_its_noise(offered):
    store = inline_store()
    await charged(store, offered)
    other = replace(offered, session_number=2, parameters=noised(epsilon=7.0))
    with pytest.raises(NoiseChangedError):
        await judged(store, other)


@pytest.mark.parametrize("outcome", ChargeOutcome)
def test_only_refunded_sessions_are_void(offered, outcome):
    is_void = outcome is ChargeOutcome.GIVEN_BACK
    assert settlement_of(offered, outcome) == Settlement(
        task="t",
        session_id=offered.session_id,
        state=ChargeState.VOID if is_void else ChargeState.KEPT,
    )
