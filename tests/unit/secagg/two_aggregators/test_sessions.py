"""Whole sessions between two aggregators, in one process and on a clock by hand."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from secagg_testing.client_state import LastingStore
from secagg_testing.cohorts import offer_of
from secagg_testing.lying_connection import LyingConnection
from secagg_testing.manual_clock import run
from secagg_testing.two_aggregators import TASK, Between, TwoAggregators, noise_for

from secagg.client.budget import TotalBudgetExceededError
from secagg.distributed_dp import AggregatorNoise
from secagg.errors import (
    ErrorCode,
    InputError,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
    PrivacyLimits,
    TotalBudget,
)
from secagg.storage.budget_ledger import BudgetSpentError, ChargeState
from secagg.storage.change import SessionsSpentError, Side
from secagg.storage.queries import ListCharges, ListSessions, ReadTally
from secagg.two_aggregators.client import TwoAggregatorClient
from secagg.two_aggregators.offers import check_pair
from secagg.wire.calls import Blob, FetchChunk, GetOffer, UploadChunk, UploadStatus

VECTORS = [np.linspace(-0.3, 0.1 * k, 5) for k in range(1, 5)]


class LossyConnection(Between):
    """A way on which uploads are lost: noticed by their sender, or not."""

    def __init__(self, inner, *, silently=False):
        super().__init__(inner)
        self._silently = silently

    async def call(self, request):
        if not isinstance(request, UploadChunk):
            return await self._inner.call(request)
        if self._silently:
            return UploadStatus(request.total_size, complete=True)
        raise SessionAbortedError("lost", code=ErrorCode.CANCELLED)


def truncated(vectors):
    """Truncation to 8 bits of fixed point in this test's own words."""
    return sum(np.trunc(vector * 2**7).astype(np.int64) for vector in vectors)


def test_a_sum_consists_of_the_encoded_vectors_and_two_noises(drawn) -> None:
    async def main(clock):
        return await TwoAggregators(clock, noise_for()).give(VECTORS)

    released, contributions = run(main)
    assert released.inputs == 4
    assert len(drawn) == 2
    assert not np.array_equal(*drawn)
    expected = (truncated(VECTORS) + sum(drawn)) % noise_for().parameters.modulus
    np.testing.assert_array_equal(released.residues, expected)
    for given in contributions:
        assert given.is_included
        assert given.inputs == 4
        np.testing.assert_array_equal(given.values, released.values)


WRONG_TERMS = {
    "privacy_limits": [
        (None, "limits of privacy"),
        (ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT), "must be of class PrivacyLimits"),
    ],
    "cohort": [(None, "ClientPolicy"), (PrivacyLimits, "ClientPolicy")],
    "total": [(8.0, "TotalBudget")],
    "task": [("", "task"), (7, "task")],
}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [(name, *each) for name, cases in WRONG_TERMS.items() for each in cases],
)
def test_a_client_rejects_terms_of_another_kind_of_task(name, value, words) -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        with pytest.raises(LocalProtocolError, match=words):
            deployment.client("late", **{name: value})

    run(main)


@pytest.mark.parametrize("fails", [False, True])
def test_the_seed_is_overwritten_before_anything_is_charged(monkeypatch, fails) -> None:
    seeds, charged = [], []
    encode, charge = AggregatorNoise.encode, TwoAggregatorClient._charge

    def encoded(noise, vector, *, session_id, seed):
        seeds.append(seed)
        if fails:
            raise InputError("no", next_step="-")
        return encode(noise, vector, session_id=session_id, seed=seed)

    async def noted(one, client, joined):
        charged.append(one)
        assert any(each._wiped for each in seeds)
        await charge(one, client, joined)

    monkeypatch.setattr(AggregatorNoise, "encode", encoded)
    monkeypatch.setattr(TwoAggregatorClient, "_charge", noted)

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        if not fails:
            await deployment.give(VECTORS)
            return
        opening = asyncio.create_task(deployment.leader.next_sum())
        with pytest.raises(InputError):
            await deployment.client("late").contribute(VECTORS[0])
        opening.cancel()

    run(main)
    assert len(seeds) == (1 if fails else 4)
    assert all(each._wiped for each in seeds)
    assert len(charged) == (0 if fails else 4)


@pytest.mark.parametrize("lost", ["leader", "helper"])
def test_a_client_that_reaches_only_one_aggregator_is_in_no_sum(drawn, lost) -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        ways = {lost: LossyConnection(deployment.way_to(lost, "half"))}
        half = deployment.client("half", **ways)
        return await asyncio.gather(
            deployment.give(VECTORS[:3]),
            half.contribute(VECTORS[3]),
            return_exceptions=True,
        )

    (released, _), failed = run(main)
    assert isinstance(failed, SessionAbortedError)
    assert released.inputs == 3
    expected = (truncated(VECTORS[:3]) + sum(drawn)) % noise_for().parameters.modulus
    np.testing.assert_array_equal(released.residues, expected)


def test_below_min_survivors_nothing_is_released(drawn) -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        found = await asyncio.gather(
            deployment.leader.next_sum(),
            *(deployment.client(f"c{k}").contribute(VECTORS[k]) for k in range(2)),
            return_exceptions=True,
        )
        return found, await deployment.storages[1].store.read(
            ListSessions(role=Side.SERVER)
        )

    found, running = run(main)
    assert [error.code for error in found] == [ErrorCode.U3_TOO_SMALL] * 3
    assert not drawn
    assert len(running) == 1  # the helper was never asked


def test_the_helper_counts_the_intersection_against_min_survivors(drawn) -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        # The third client reaches the leader alone, and does not know.
        way = LossyConnection(deployment.way_to("helper", "c2"), silently=True)
        return await asyncio.gather(
            deployment.leader.next_sum(),
            deployment.client("c0").contribute(VECTORS[0]),
            deployment.client("c1").contribute(VECTORS[1]),
            deployment.client("c2", helper=way).contribute(VECTORS[2]),
            return_exceptions=True,
        )

    assert [error.code for error in run(main)] == [ErrorCode.U3_TOO_SMALL] * 4
    assert not drawn


def test_neither_aggregator_releases_more_sums_than_the_budget() -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for(participations=2))
        for _ in range(2):
            await deployment.give(VECTORS)
        with pytest.raises(ServiceError, match="all its sums"):
            await deployment.leader.next_sum()
        # A leader that forgets its own budget meets the helper's.
        with pytest.raises(SessionsSpentError):
            await deployment.helper.answer("leader", GetOffer(TASK, 2))

    run(main)


def test_a_client_contributes_to_no_more_sums_than_its_budget_allows() -> None:
    async def main(clock):
        store = LastingStore.make(now=clock.date)
        for turn in range(2):
            # Another pair of aggregators by the same names knows of no budget.
            deployment = TwoAggregators(clock, noise_for(participations=1))
            if turn:
                deployment.leader._storage.store.read = _behind(deployment)
            one = deployment.client("client-0", store=store)
            others = [deployment.client(f"client-{k}") for k in (1, 2, 3)]
            found = await asyncio.gather(
                deployment.leader.next_sum(),
                one.contribute(VECTORS[0]),
                *(each.contribute(VECTORS[1]) for each in others),
                return_exceptions=True,
            )
        return found

    def _behind(deployment):
        read = deployment.storages[0].store.read

        async def numbered(query):
            known = await read(query)
            if not isinstance(query, ReadTally):
                return known
            return replace(known, highest_number=known.highest_number + 5)

        return numbered

    found = run(main)
    assert isinstance(found[1], BudgetSpentError)
    assert found[0].inputs == 3


@pytest.mark.parametrize("limit", [8.5, 7.5])
def test_a_task_between_two_aggregators_is_charged_to_a_total_budget(limit) -> None:
    """Its whole loss is claimed before anything leaves, or nothing is."""

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for(participations=2))
        store = LastingStore.make(now=clock.date)
        budget = TotalBudget(data="patients", epsilon=limit, delta=1e-5)
        found = []
        for _ in range(2):
            others = [deployment.client(f"client-{k}") for k in (1, 2, 3)]
            found += await asyncio.gather(
                deployment.client("client-0", store=store, total=budget).contribute(
                    VECTORS[0]
                ),
                deployment.leader.next_sum(),
                *(each.contribute(VECTORS[1]) for each in others),
                return_exceptions=True,
            )
        state = deployment.client("client-0", store=store, total=budget)._state
        use = state.call(lambda client: client.data_use())
        return found, use, await store.read(ListCharges(TASK))

    found, use, charges = run(main)
    stated = noise_for(participations=2).report().aggregator
    if limit > stated.epsilon:
        assert found[0].is_included
        assert found[1].inputs == 4
        (claimed,) = use.claims  # two sessions, one claim
        assert (claimed.epsilon, claimed.delta) == (stated.epsilon, stated.delta)
        assert claimed.is_gaussian
        assert len(charges) == 2
    else:
        assert isinstance(found[0], TotalBudgetExceededError)
        assert found[1].inputs == 3
        assert use.claims == ()
        assert charges == ()


def test_a_session_left_open_by_a_crash_is_ended_and_stays_charged() -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for(participations=2))
        store = LastingStore.make(now=clock.date)
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        deaf = LossyConnection(deployment.way_to("helper", "c0"))
        client = deployment.client("c0", store=store, helper=deaf)

        async def died(*_):
            """Do nothing, as a process that has ended."""

        client._state._opened.end_shared = died
        with pytest.raises(SessionAbortedError, match="lost"):
            await client.contribute(VECTORS[0])
        open_before = await store.read(ListSessions(role=Side.CLIENT))
        deployment.client("c0", store=store)
        open_after = await store.read(ListSessions(role=Side.CLIENT))
        summing.cancel()
        await asyncio.wait({summing})
        return len(open_before), open_after, await store.read(ListCharges(TASK))

    was_open, is_open, charges = run(main)
    assert (was_open, is_open) == (1, ())
    assert [each.state for each in charges] == [ChargeState.KEPT]


# --- a client checks ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"privacy_limits": PrivacyLimits(max_epsilon=7.9, max_delta=1e-5)},
            "epsilon is 8",
        ),
        (
            {"privacy_limits": PrivacyLimits(max_epsilon=8.0, max_delta=1e-6)},
            "delta is",
        ),
        (
            {
                "privacy_limits": PrivacyLimits(
                    max_epsilon=8.0, max_delta=1e-5, min_local_noise_stddev=0.1
                )
            },
            "no client adds noise",
        ),
        (
            {
                "privacy_limits": PrivacyLimits(
                    max_epsilon=8.0, max_delta=1e-5, max_local_epsilon=9.0
                )
            },
            "no local randomiser",
        ),
        ({"cohort": ClientPolicy(min_survivors=4)}, "min_survivors is 3"),
        ({"cohort": ClientPolicy(max_dimension=4)}, "dimension is 5"),
        ({"helper_name": "other"}, "'other' is expected"),
        ({"leader_name": "other"}, "'other' is expected"),
    ],
)
def test_a_client_leaves_a_session_below_its_limits(changes, words) -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        client = deployment.client("client-0", **changes)
        with pytest.raises(RemoteProtocolError, match=words) as refused:
            await client.contribute(VECTORS[0])
        summing.cancel()
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        assert not await client._state.open_store().read(ListCharges(TASK))

    run(main)


def test_a_claim_the_noise_between_two_aggregators_does_not_satisfy_is_rejected() -> (
    None
):
    async def main(clock):
        deployment = TwoAggregators(
            clock, noise_for(epsilon=2.0)
        )  # rho = 1/2 gives more
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        with pytest.raises(RemoteProtocolError, match="the task claims 2"):
            await deployment.client("client-0").contribute(VECTORS[0])
        summing.cancel()

    run(main)


def offers():
    parameters = noise_for().parameters
    helper = offer_of(
        parameters, aggregator="helper", task_id=TASK, session_number=3, session_end=9
    )
    leader = replace(helper, aggregator="leader", server_nonce=helper.session_id)
    return leader, helper


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"aggregator": "helper"}, "both parts"),
        ({"task_id": "other"}, "tasks differ"),
        ({"parameters": noise_for(rho=50).parameters}, "parameters differ"),
        ({"server_nonce": bytes(32)}, "another session of the helper"),
        ({"payload_hash": bytes(32)}, "payload or a unit"),
        ({"noise_terms": b"x"}, "payload or a unit"),
    ],
)
def test_offers_that_do_not_match_are_rejected(change, words) -> None:
    leader, helper = offers()
    check_pair(leader, helper)
    with pytest.raises(RemoteProtocolError, match=words) as refused:
        check_pair(replace(leader, **change), helper)
    assert refused.value.code is ErrorCode.BAD_CONFIG


def test_a_client_checks_both_offers_together() -> None:
    """A helper that offers this client other noise than the leader does."""

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        weak = noise_for(rho=50).parameters
        await clock.sleep_until(clock.now() + 1.0)
        other = replace(deployment.helper._live.offer, parameters=weak)
        ways = {
            name: LyingConnection(deployment.way_to(name, "client-0"), {GetOffer: lie})
            for name, lie in (
                ("helper", lambda _: other),
                ("leader", lambda o: replace(o, server_nonce=other.session_id)),
            )
        }
        with pytest.raises(RemoteProtocolError, match="parameters differ"):
            await deployment.client("client-0", **ways).contribute(VECTORS[0])
        summing.cancel()

    run(main)


def test_offers_of_different_sessions_are_retried_and_never_combined() -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        past = LyingConnection(
            deployment.way_to("helper", "client-0"), {GetOffer: lambda _: offers()[1]}
        )
        client = deployment.client("client-0", helper=past)
        with pytest.raises(SessionAbortedError, match="offered no session"):
            await client.contribute(VECTORS[0])
        await asyncio.wait({summing})
        assert isinstance(summing.exception(), SessionAbortedError)
        assert not await client._state.open_store().read(ListCharges(TASK))

    run(main)


def test_terms_without_meaning_between_two_aggregators_are_rejected() -> None:
    noise = noise_for()
    odd = replace(noise, parameters=replace(noise.parameters, colluders=1))

    async def main(clock):
        with pytest.raises(RemoteProtocolError, match="a value without a meaning"):
            TwoAggregators(clock, odd)

    run(main)


# --- what the helper answers ----------------------------------------------------------


def test_the_helper_answers_only_one_set_and_repeats_its_answer(drawn) -> None:
    async def main(clock):
        kept = []

        class Recording(LyingConnection):
            async def call(self, request):
                if isinstance(request, UploadChunk):
                    kept.append(request)
                answer = await super().call(request)
                if isinstance(request, FetchChunk):
                    kept.append(answer)
                return answer

        deployment = TwoAggregators(
            clock, noise_for(), helper_way=lambda way: Recording(way, {})
        )
        await deployment.give(VECTORS)
        asked, answer = kept[0], kept[-1]
        again = await deployment.helper.answer("leader", asked)
        assert again.complete
        fetched = await deployment.helper.answer(
            "leader", FetchChunk(asked.session_id, Blob.SUM, 0)
        )
        assert fetched == answer
        other = replace(asked, digest=bytes(32))
        with pytest.raises(RemoteProtocolError) as refused:
            await deployment.helper.answer("leader", other)
        assert refused.value.code is ErrorCode.EQUIVOCATION
        # Only the leader reads the helper's part.
        with pytest.raises(RemoteProtocolError) as foreign:
            await deployment.helper.answer(
                "client-0", FetchChunk(asked.session_id, Blob.SUM, 0)
            )
        assert foreign.value.code is ErrorCode.UNEXPECTED_MESSAGE

    run(main)
    assert len(drawn) == 2


# --- vectors that cannot be used ------------------------------------------------------


class CountingConnection(Between):
    """A way that counts the calls on it."""

    def __init__(self, inner):
        super().__init__(inner)
        self.calls = []

    async def call(self, request):
        self.calls.append(type(request))
        return await self._inner.call(request)


@pytest.mark.parametrize(
    ("bad", "calls"),
    [
        (np.full(5, np.nan), []),
        ([0.0] * 4 + [np.inf], []),
        ("text", []),
        (None, []),
        (np.ones((5, 1)), []),
        ([1 << 60] * 5, []),
        (np.zeros(4), [GetOffer]),
    ],
    ids=["NaN", "infinite", "text", "none", "matrix", "large", "length"],
)
def test_a_vector_is_checked_before_an_aggregator_is_contacted(bad, calls):
    """R3.5-5: no offer decides whether a client with such a vector comes."""

    async def main(clock):
        both = TwoAggregators(clock, noise_for())
        ways = [
            CountingConnection(both.way_to(name, "dora"))
            for name in ("leader", "helper")
        ]
        serving = asyncio.ensure_future(both.leader.next_sum())
        with pytest.raises(InputError):
            await both.client("dora", leader=ways[0], helper=ways[1]).contribute(bad)
        serving.cancel()
        await asyncio.wait({serving})
        return [set(way.calls) for way in ways]

    assert run(main) == [set(calls)] * 2


def test_changing_a_vector_after_the_call_has_no_effect():
    """Not even to one that would keep its client away."""
    vectors = [each.copy() for each in VECTORS]

    class Spoiling(CountingConnection):
        async def call(self, request):
            vectors[0][:] = np.nan
            return await super().call(request)

    async def main(clock):
        both = TwoAggregators(clock, noise_for())
        way = Spoiling(both.way_to("leader", "client-0"))
        released, *_ = await asyncio.gather(
            both.leader.next_sum(),
            both.client("client-0", leader=way).contribute(vectors[0]),
            *(both.client(f"client-{n}").contribute(vectors[n]) for n in (1, 2, 3)),
        )
        return released

    assert run(main).inputs == 4
