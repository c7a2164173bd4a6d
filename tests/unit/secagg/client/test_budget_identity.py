"""Whose budget is charged: that of one task of one aggregator of one trust domain."""

import asyncio
from dataclasses import fields, replace

import numpy as np
import pytest
from secagg_testing.cohorts import (
    lenient_rules,
    offer_of,
    parameters_for,
    signing_parameters_for,
    with_noise,
)
from secagg_testing.inline_store import inline_store

from secagg.client.budget import TotalBudgetExceededError, charge_of
from secagg.client.client import Client
from secagg.client.enrolment import EnrolledClient
from secagg.client.gate import GateRequest, GateStage, KnownFacts, admit
from secagg.errors import ErrorCode
from secagg.protocol.policy import ClientPolicy, PrivacyLimits, TotalBudget
from secagg.server.aggregator import Aggregator
from secagg.server.task.definition import TaskDefinition
from secagg.simulation.driver import identity_in_simulation
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.budget_ledger import (
    BudgetKey,
    BudgetSpentError,
    ChargeRow,
    ChargeState,
    Claim,
    NoiseChangedError,
    is_new_charge,
)
from secagg.storage.open_store import open_state
from secagg.storage.queries import ListCharges
from secagg.storage.spool import UploadSpool
from secagg.transport.connection import InMemoryConnection

NAMES = ("alice", "bob", "carol")
COHORT = parameters_for(3, dimension=4, threshold=3)
LIMITS = PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
TOTAL = TotalBudget(data="people", epsilon=20.0, delta=1e-4)


async def summed(place, *, aggregator, domain="domain", epsilon=8.0, total=TOTAL):
    """Run a session of the one task name; return what each client got, or its error."""

    async def no_payload(_):
        return b""

    async def ignore(_):
        return None

    made = Aggregator(inline_store(), UploadSpool(MemoryBlobs()), name=aggregator)
    task = TaskDefinition(
        task_id="t", parameters=with_noise(COHORT, epsilon=epsilon), sessions=1
    )
    running = asyncio.create_task(
        made.run_task(task, next_payload=no_payload, on_sum=ignore)
    )
    await asyncio.sleep(0)  # one turn of the loop: the task is known

    async def give(name):
        connection = InMemoryConnection(
            made, name, aggregator=aggregator, trust_domain=domain
        )
        async with Client(
            connection,
            task="t",
            privacy_limits=LIMITS,
            cohort=ClientPolicy(),
            total=total,
            state_dir=place / name,
            attempts=1,
            wait_seconds=5.0,
        ) as client:
            given = await client.contribute(np.ones(4))
            return given, await client.data_use()

    found = await asyncio.gather(*map(give, NAMES), return_exceptions=True)
    running.cancel()
    await asyncio.wait({running})
    await made.close()
    return found


async def charges(place):
    store = await open_state(place / "alice")
    rows = await store.read(ListCharges("t"))
    await store.close()
    return {row.budget for row in rows}, len(rows)


async def test_two_aggregators_with_one_task_name_have_separate_budgets_and_claims(
    tmp_path,
):
    """One domain, one task name, one noise: the total counts both."""
    for count, aggregator in enumerate(("one", "two"), start=1):
        for given, use in await summed(tmp_path, aggregator=aggregator):
            assert given.inputs == 3
            assert [claim.aggregator for claim in use.claims] == ["one", "two"][:count]
            assert {claim.task for claim in use.claims} == {"t"}
    spent = sum(claim.epsilon for claim in use.claims)
    assert use.remaining_epsilon == pytest.approx(20.0 - spent)
    keys, count = await charges(tmp_path)
    assert {key.aggregator for key in keys} == {"one", "two"}
    assert count == 2


async def test_a_total_used_up_by_one_aggregator_rejects_the_other(tmp_path):
    """One claim for both would let the second one in."""
    small = replace(TOTAL, epsilon=9.0)
    for given, _ in await summed(tmp_path, aggregator="one", total=small):
        assert given.inputs == 3
    for error in await summed(tmp_path, aggregator="two", total=small):
        assert isinstance(error, TotalBudgetExceededError)
        assert error.code is ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("was_signed", [True, False])
def test_credentials_give_no_second_budget_where_no_domain_is_proven(was_signed):
    """The aggregator chooses whether a session has them."""
    enrolled = EnrolledClient(identity_in_simulation("alice", 1))
    offered = offer_of(with_noise(COHORT))
    charge = charge_of(offered, trust_domain=None)
    domain = enrolled.identity.issued.trust_domain if was_signed else ""
    rows = [
        ChargeRow(
            budget=replace(charge.budget, trust_domain=domain),
            session_id=number.to_bytes(32, "big"),
            noise_digest=charge.noise_digest,
            state=ChargeState.KEPT,
            allowed=charge.allowed,
            refunds=charge.refunds,
            at=0.0,
        )
        for number in range(charge.allowed)
    ]
    request = GateRequest(
        offer=offered,
        stage=GateStage.OFFER,
        aggregator=offered.aggregator,
        trust_domain=None,
        now=offered.session_end - 1,
        own=replace(lenient_rules(), enrolment=enrolled.rules()),
        known=KnownFacts(charges=rows),
    )
    with pytest.raises(BudgetSpentError):
        admit(request)
    admit(replace(request, trust_domain="another.example"))


def test_a_trust_domain_has_separate_budgets():
    offered = offer_of(with_noise(COHORT))
    ours, theirs, unproven = (
        charge_of(offered, trust_domain=domain) for domain in ("ours", "theirs", None)
    )
    assert len({each.budget for each in (ours, theirs, unproven)}) == 3
    signed = offer_of(with_noise(signing_parameters_for(3, dimension=4)))
    proven = signed.parameters.trust.trust_domain
    # Credentials prove it, too: another carrier of bytes has no budget of its own.
    assert (
        charge_of(signed, trust_domain=None).budget
        == charge_of(signed, trust_domain=proven).budget
    )
    row = ChargeRow(
        budget=theirs.budget,
        session_id=bytes(32),
        noise_digest=bytes(32),
        state=ChargeState.KEPT,
        allowed=1,
        refunds=1,
        at=0.0,
    )
    assert is_new_charge([row], ours)
    with pytest.raises(NoiseChangedError, match="'t' of aggregator 'aggregator'"):
        is_new_charge([row], theirs)


async def test_an_aggregator_with_the_same_task_name_does_not_block_another(tmp_path):
    """With other noise under the same name: it would be NoiseChangedError for good."""
    for given, _ in await summed(tmp_path, aggregator="squatter", epsilon=7.0):
        assert given.inputs == 3
    for given, _ in await summed(tmp_path, aggregator="real"):
        assert given.inputs == 3


def test_the_key_of_a_claim_contains_the_key_of_a_budget():
    named = {each.name: each.name for each in fields(BudgetKey)}
    key = BudgetKey(**named)
    claim = Claim(
        data="d",
        holder=b"h",
        budget=key,
        noise_digest=b"n",
        against="server",
        epsilon=1.0,
        delta=0.0,
        shift=None,
        distance=0.0,
        added_delta=0.0,
    )
    assert key in claim.key
