"""A total over tasks: claimed once and whole, before anything leaves."""

import asyncio
import math
import re
import shutil
import time
from dataclasses import replace
from functools import partial
from statistics import NormalDist

import numpy as np
import pytest
from secagg_testing.client_state import LastingStore, client_over
from secagg_testing.cohorts import offer_of, parameters_for, with_noise
from secagg_testing.crash_points import CrashingStore, CrashSwitch, SimulatedCrashError
from secagg_testing.inline_store import inline_store
from secagg_testing.offers_only import OffersOnly

from dpnoise.accounting.catalogue import CATALOGUE, Form, accountant_class
from dpnoise.accounting.cross_task import GAUSSIAN_PROOF, GAUSSIAN_STATUS
from secagg.cli.budget import read_data_usage
from secagg.client.budget import (
    TotalBudgetExceededError,
    claim_for,
    loss_of_session,
    use_of,
)
from secagg.client.client import Client
from secagg.client.durable_client import ClientStorage
from secagg.client.gate import check_claim
from secagg.client.session import ClientSession
from secagg.client.total_ledger import TotalLedger
from secagg.crypto.entropy import SeededEntropy, SystemEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import GaussianLoss, NoisyTask, TaskLoss
from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
)
from secagg.protocol.policy import ClientPolicy, PrivacyLimits, TotalBudget
from secagg.protocol.profiles import HonestCuriousParameters
from secagg.server.aggregator import Aggregator
from secagg.server.task.definition import TaskDefinition
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.budget_ledger import BudgetKey, Claim, ClaimAdversary, ClaimRow
from secagg.storage.client_store import ClientStore
from secagg.storage.queries import ListClaims, LoadSession
from secagg.storage.spool import UploadSpool
from secagg.transport.connection import InMemoryConnection

NAMES = ("alice", "bob", "carol")
DIMENSION = 4
NORMAL = NormalDist()


def parameters(**budget):
    cohort = parameters_for(3, dimension=DIMENSION, threshold=3)
    return with_noise(cohort, **budget)


def budget(epsilon=10.0, delta=1e-4, **more):
    return TotalBudget(data="patients", epsilon=epsilon, delta=delta, **more)


def stated(offered):
    return NoisyTask.from_parameters(offered.parameters).report().server


def total_on(
    store, owners=None, *, loss_of=None, against=ClaimAdversary.SERVER, limits=None
):
    storage = ClientStorage(store, None)
    return TotalLedger(
        owners or budget(),
        storage,
        against=against,
        loss_of=loss_of
        or partial(loss_of_session, report_of=storage.report_of, against=against),
        limits=limits,
    )


def stored_at(directory, *, accept_restored=False):
    store = ClientStore.open(
        directory,
        mark=None,
        accept_restored=accept_restored,
        lock_seconds=0.0,
        entropy=SystemEntropy(),
        now=time.time,
    )
    return ClientStorage(store, directory)


async def check(total, offered):
    """Check a task as the gate does, and write nothing."""
    holder = await total.holder()
    claim = claim_for(total.rules, offered, trust_domain=None, holder=holder)
    check_claim(total.rules.budget, await total.claims(), claim)


@pytest.fixture(name="offers", scope="module")
def _offers():
    """Offers of five tasks, of epsilon 2 to 6."""
    return {
        epsilon: offer_of(
            parameters(epsilon=float(epsilon), steps=2, spare=1),
            task_id=f"task {epsilon}",
        )
        for epsilon in range(2, 7)
    }


# --- what is claimed ------------------------------------------------------------------


async def test_a_claim_equals_the_report_computed_by_the_client(offers):
    store = inline_store()
    await total_on(store).claim(offers[4])
    (row,) = await store.read(ListClaims())
    report = stated(offers[4])  # over three sessions, one of them spare
    assert (row.claim.epsilon, row.claim.delta) == (report.epsilon, report.delta)
    assert 3.9 < row.claim.epsilon <= 4.0
    assert row.claim.shift is not None
    assert (row.claim.data, row.claim.budget.task) == ("patients", "task 4")


async def test_a_task_joined_again_is_claimed_once(offers):
    store = inline_store()
    total = total_on(store)
    for number in (1, 2, 3):
        await total.claim(replace(offers[4], session_number=number))
    assert len(await store.read(ListClaims())) == 1


async def test_different_noise_under_the_same_task_name_is_a_separate_claim(offers):
    store = inline_store()
    total = total_on(store)
    await total.claim(offers[2])
    await total.claim(replace(offers[3], task_id="task 2"))
    assert [round(row.claim.epsilon) for row in await store.read(ListClaims())] == [
        2,
        3,
    ]


async def test_a_different_graph_is_a_separate_claim(offers):
    store = inline_store()
    total = total_on(store)
    ring = replace(offers[2].parameters, degree=2, tail=HonestCuriousParameters(40))
    await total.claim(offers[2])
    await total.claim(replace(offers[2], parameters=ring))
    plain, cut = (row.claim for row in await store.read(ListClaims()))
    assert plain.added_delta == 0.0
    assert cut.added_delta == 30 * 2.0**-40  # ten rosters for each of three sessions
    assert cut.delta == plain.delta + cut.added_delta


async def test_a_check_makes_no_claim(offers):
    store = inline_store()
    total = total_on(store, budget(epsilon=3.0))
    await check(total, offers[2])
    with pytest.raises(TotalBudgetExceededError):
        await check(total, offers[4])
    with pytest.raises(TotalBudgetExceededError):
        await total.claim(offers[4])
    assert await store.read(ListClaims()) == ()


async def test_each_data_name_has_a_separate_total(offers):
    store = inline_store()
    for name in ("patients", "cars"):
        owners = TotalBudget(data=name, epsilon=5.0, delta=1e-4)
        await total_on(store, owners).claim(offers[4])
        assert len((await total_on(store, owners).use()).claims) == 1


# --- what fits ------------------------------------------------------------------------


async def test_a_second_task_that_does_not_fit_is_rejected_with_the_remaining_budget(
    offers,
):
    store = inline_store()
    total = total_on(store, budget(epsilon=5.0))
    await total.claim(offers[4])
    with pytest.raises(TotalBudgetExceededError) as caught:
        await total.claim(offers[6])
    error = caught.value
    assert error.code is ErrorCode.POLICY_VIOLATION
    assert "task 6" in str(error)
    assert "of 5" in str(error)
    assert "'patients'" in str(error)
    assert "policy.total_epsilon" in error.next_step
    assert "policy.total_delta" not in error.next_step
    assert "noise.epsilon" in error.next_step
    # What it says would fit does, and what it says the total must be does.
    words = error.next_step.split()
    nearest = float(words[words.index("about") + 1])
    needed = float(words[words.index("least") + 1])
    fitting = offer_of(
        parameters(epsilon=nearest * 0.99, steps=2, spare=1), task_id="smaller"
    )
    await check(total, fitting)
    await check(total_on(store, budget(epsilon=needed)), offers[6])
    with pytest.raises(TotalBudgetExceededError):
        await check(total_on(store, budget(epsilon=needed * 0.99)), offers[6])


async def test_an_excess_of_delta_names_delta(offers):
    lost = TaskLoss(epsilon=0.1, delta=1e-3)
    total = total_on(inline_store(), loss_of=lambda _: lost)
    with pytest.raises(TotalBudgetExceededError) as caught:
        await check(total, offers[2])
    assert "policy.total_delta of at least 0.001" in caught.value.next_step
    assert "policy.total_epsilon" not in caught.value.next_step
    assert "smaller one" in caught.value.next_step


async def test_a_task_that_no_total_admits_is_reported_as_such():
    lost = TaskLoss(epsilon=0.1, delta=1.0)
    total = total_on(inline_store(), loss_of=lambda _: lost)
    with pytest.raises(TotalBudgetExceededError) as caught:
        await check(total, offer_of(parameters()))
    assert "no other takes this one" in caught.value.next_step


async def test_an_excess_of_both_names_sufficient_values_for_both(offers):
    losses = iter(
        (TaskLoss(epsilon=0.9, delta=4e-7), TaskLoss(epsilon=0.9, delta=1e-6))
    )
    lost = {offers[each].task_id: next(losses) for each in (2, 3)}
    store = inline_store()

    def total(epsilon, delta):
        return total_on(
            store,
            budget(epsilon=epsilon, delta=delta),
            loss_of=lambda offered: lost[offered.task_id],
        )

    await total(1.0, 1e-6).claim(offers[2])
    with pytest.raises(TotalBudgetExceededError) as caught:
        await check(total(1.0, 1e-6), offers[3])
    delta, epsilon = re.findall(r"of at least (\S+)", caught.value.next_step)
    assert "policy.total_delta of at least 1.4e-06 and" in caught.value.next_step
    for enough in ((1.0, float(delta)), (float(epsilon), 1e-6)):
        with pytest.raises(TotalBudgetExceededError):
            await check(total(*enough), offers[3])
    await check(total(float(epsilon), float(delta)), offers[3])


async def test_a_total_lowered_below_its_claims_rejects_further_tasks(offers):
    store = inline_store()
    await total_on(store).claim(offers[4])
    with pytest.raises(TotalBudgetExceededError, match="come to epsilon") as caught:
        await total_on(store, budget(epsilon=3.0)).claim(offers[4])
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert "was lowered" in caught.value.next_step


async def test_a_task_without_noise_is_rejected_by_a_total(offers):
    exact = replace(offers[2].parameters, noise_block=b"")
    with pytest.raises(RemoteProtocolError, match="without noise") as caught:
        await check(total_on(inline_store()), replace(offers[2], parameters=exact))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


def textbook_epsilon(shift, delta):
    low, high = 0.0, 100.0
    for _ in range(80):
        middle = (low + high) / 2
        first = NORMAL.cdf(shift / 2 - middle / shift)
        second = math.exp(middle) * NORMAL.cdf(-shift / 2 - middle / shift)
        low, high = (low, middle) if first - second <= delta else (middle, high)
    return high


@pytest.mark.parametrize("seed", range(6))
async def test_admitted_tasks_agree_with_an_independent_composition(offers, seed):
    """Random tasks, until twenty were offered; the limit is never passed."""
    random = np.random.default_rng(seed)  # noqa: TID251 - tasks, not secrets
    is_gaussian = random.random(20) < (1.0, 0.5)[seed % 2]
    owners, store = budget(epsilon=3.0, delta=1e-5), inline_store()
    let_in = []
    for number in range(20):
        epsilon, delta = random.uniform(0.1, 1.0), 10.0 ** random.uniform(-8, -6)
        shift = epsilon / 3.0 if is_gaussian[number] else None
        let_in.append((epsilon, delta, shift))
        share = 1e-5
        if len(let_in) > 1 and let_in[0][2] is not None:
            share /= 2
        shifts = [each[2] for each in let_in]
        fits = (
            sum(each[0] for each in let_in) <= 3.0
            and sum(each[1] for each in let_in) <= share
        ) or (
            None not in shifts and textbook_epsilon(math.hypot(*shifts), share) <= 3.0
        )
        loss = TaskLoss(
            epsilon=epsilon,
            delta=delta,
            gaussian=None if shift is None else GaussianLoss(shift, 0.0),
        )
        total = total_on(store, owners, loss_of=lambda _, loss=loss: loss)
        offered = replace(offers[2], task_id=f"number {number}")
        if fits:
            await total.claim(offered)
        else:
            let_in.pop()
            with pytest.raises(TotalBudgetExceededError):
                await total.claim(offered)
    assert 0 < len(let_in) < 20
    use = await total.use()
    assert len(use.claims) == len(let_in)
    assert use.spent_epsilon <= 3.0


# --- crashes, copies, company ---------------------------------------------------------


async def begin(store, offered, total, *, now=1_800_000_000):
    return await ClientSession.begin(
        offered,
        "alice",
        aggregator="aggregator",
        trust_domain=None,
        store=store,
        policy=ClientPolicy(),
        entropy=SeededEntropy(SecretBytes(bytes(32)), b"a test"),
        now=now,
        total=total,
    )


async def test_a_crash_at_any_point_leaves_at_most_one_claim(
    offers,
):
    died_at = []
    for point in range(10):
        store, switch = inline_store(), CrashSwitch(point)
        dying = CrashingStore(store, switch)
        try:
            await begin(dying, offers[4], total_on(dying))
        except SimulatedCrashError:
            died_at.append(switch.points[-1])
        sessions, claims = (
            await store.read(LoadSession(_key(offers[4]))),
            await store.read(ListClaims()),
        )
        assert not (sessions is not None and not claims)
        if sessions is None:
            await begin(store, offers[4], total_on(store))
        assert len(await store.read(ListClaims())) == 1
    assert died_at == [
        "before put claim",
        "after put claim",
        "before create",
        "after create",
    ]


def _key(offered):
    return f"client/alice/{offered.session_id.hex()}"


async def test_a_resumed_session_is_claimed_only_once(offers, monkeypatch):
    """Shared claims are read in turn: what is claimed already takes one turn."""
    store, turns = LastingStore.make(), []
    now = int(time.time())
    offer = replace(offers[2], session_end=now + 300)
    await begin(store, offer, total_on(store), now=now)
    honest, claims = total_on(store), TotalLedger.claims

    async def read(self):
        turns.append("claims")
        return await claims(self)

    async def claim(*_, **__):
        turns.append("claim")

    monkeypatch.setattr(TotalLedger, "claims", read)
    monkeypatch.setattr(TotalLedger, "claim", claim)
    monkeypatch.setattr(
        "secagg.client.total_ledger.loss_of_session",
        lambda offered, **_: honest.rules.loss_of(offered),
    )
    runner = client_over(
        "alice", InMemoryConnection(None, "alice"), store, total=budget(epsilon=0.1)
    )
    with pytest.raises(TotalBudgetExceededError):
        await runner.run_session(offer.task_id)
    assert turns == ["claims"]


@pytest.mark.parametrize("was_stricter", [True, False])
async def test_a_client_of_published_theorems_adds_no_gaussians_by_an_own_one(
    offers, was_stricter
):
    """The tasks fit as Gaussians alone, which is a theorem of this project."""
    published = PrivacyLimits(
        max_epsilon=10.0, max_delta=1e-3, statuses=frozenset({"published"})
    )
    store, owners = inline_store(), budget(epsilon=8.5)
    lax, strict = (total_on(store, owners, limits=each) for each in (None, published))
    await (strict if was_stricter else lax).claim(offers[4])
    with pytest.raises(TotalBudgetExceededError):
        await strict.claim(offers[5])
    if not was_stricter:
        await lax.claim(offers[5])
        with pytest.raises(TotalBudgetExceededError):
            await check(strict, offers[5])
        await check(lax, offers[5])


def test_all_gaussian_releases_are_known_alike():
    closed = [each for each in CATALOGUE if each.form is Form.CLOSED]
    for name in (each.name for each in closed if each.is_default):
        found = accountant_class(name)
        assert found.status_of_theorem is GAUSSIAN_STATUS
        assert found.proof_of_theorem is GAUSSIAN_PROOF


async def test_a_rejected_claim_begins_no_session(offers):
    store = inline_store()
    with pytest.raises(TotalBudgetExceededError):
        await begin(store, offers[4], total_on(store, budget(epsilon=3.0)))
    assert await store.read(LoadSession(_key(offers[4]))) is None


async def test_clients_with_one_claims_directory_share_the_total(offers, tmp_path):
    """Concurrently, with separate states: one of two that fit alone is admitted."""
    owners = budget(epsilon=5.0, directory=tmp_path / "claims")
    storages = [stored_at(tmp_path / name) for name in NAMES[:2]]
    totals = [
        TotalLedger(
            owners,
            storage,
            against=ClaimAdversary.SERVER,
            loss_of=partial(
                loss_of_session,
                report_of=storage.report_of,
                against=ClaimAdversary.SERVER,
            ),
            limits=None,
        )
        for storage in storages
    ]
    found = await asyncio.gather(
        totals[0].claim(offers[4]),
        totals[1].claim(offers[5]),
        return_exceptions=True,
    )
    assert {type(each) for each in found} == {type(None), TotalBudgetExceededError}
    assert len((await totals[0].use()).claims) == 1
    assert (await totals[0].use()).kept_in == tmp_path / "claims"
    for storage in storages:
        assert await storage.store.read(ListClaims()) == ()
        await storage.store.close()
    # The same is read when no client runs.
    assert len((await read_data_usage(owners, tmp_path / "alice")).claims) == 1


async def test_claims_can_be_stored_in_the_state_directory(offers, tmp_path):
    storage = stored_at(tmp_path)
    total = TotalLedger(
        budget(directory=tmp_path / "below" / ".."),
        storage,
        against=ClaimAdversary.SERVER,
        loss_of=lambda _: TaskLoss(epsilon=1.0, delta=1e-6),
        limits=None,
    )
    await total.claim(offers[2])
    assert len(await storage.store.read(ListClaims())) == 1
    await storage.store.close()


async def test_the_same_task_in_two_states_is_claimed_twice(offers, tmp_path):
    """Each state counts its own sessions, so that both may use the whole number."""
    owners = budget(epsilon=20.0, directory=tmp_path / "claims")
    for _ in NAMES[:2]:
        total = total_on(inline_store(), owners)
        await total.claim(offers[4])
        await total.claim(offers[4])
    assert len((await total.use()).claims) == 2


async def test_a_restored_state_claims_its_tasks_again(offers, tmp_path):
    """Once accepted, it may have lost charges: a repeated input is claimed again."""
    first = stored_at(tmp_path / "state")
    await total_on(first.store).claim(offers[2])
    await first.store.close()
    shutil.copytree(tmp_path / "state", tmp_path / "backup")
    second = stored_at(tmp_path / "state")
    await total_on(second.store).claim(offers[3])
    await second.store.close()
    shutil.rmtree(tmp_path / "state")
    shutil.copytree(tmp_path / "backup", tmp_path / "state")
    for place in ("state", "backup"):
        with pytest.raises(ServiceError) as caught:
            stored_at(tmp_path / place)
        assert caught.value.code is ErrorCode.RESTORED_STATE
    third = stored_at(tmp_path / "state", accept_restored=True)
    total = total_on(third.store)
    for _ in range(2):
        await total.claim(offers[2])
    assert [row.claim.budget.task for row in await third.store.read(ListClaims())] == [
        "task 2"
    ] * 2
    await third.store.close()


async def test_restored_shared_claims_are_always_rejected(aggregator, offers, tmp_path):
    mark = tmp_path / "mark"
    owners = budget(directory=tmp_path / "claims", rollback_mark=mark)
    store = inline_store()
    await total_on(store, owners).claim(offers[2])
    shutil.copytree(tmp_path / "claims", tmp_path / "backup")
    await total_on(store, owners).claim(offers[3])
    shutil.rmtree(tmp_path / "claims")
    shutil.copytree(tmp_path / "backup", tmp_path / "claims")
    with pytest.raises(ServiceError) as caught:
        await total_on(store, owners).claim(offers[3])
    assert caught.value.code is ErrorCode.RESTORED_STATE
    assert mark.exists()
    # What one client's owner accepts for its own state lets in no claims of all.
    accepting = Client(
        InMemoryConnection(aggregator, "alice"),
        task="task 3",
        privacy_limits=PrivacyLimits(max_epsilon=8.0, max_delta=1e-5),
        total=owners,
        state_dir=tmp_path / "state",
        accept_restored=True,
    )
    with pytest.raises(ServiceError) as caught:
        async with accepting:
            pass
    assert caught.value.code is ErrorCode.RESTORED_STATE
    assert "Put the newest claims back" in caught.value.next_step
    assert "start again" not in caught.value.next_step
    # It stays so: nothing of the mark was changed.
    with pytest.raises(ServiceError, match="what is left of the total is not known"):
        await total_on(store, owners).use()


# --- the adversary that the policy names ----------------------------------------------


async def test_against_broken_masks_the_randomiser_level_is_claimed(offers):
    level = TaskLoss(epsilon=30.0, delta=0.0)
    store, owners = inline_store(), budget(epsilon=70.0)
    total = total_on(
        store, owners, loss_of=lambda _: level, against=ClaimAdversary.BROKEN_MASKS
    )
    await total.claim(offers[2])
    await total.claim(offers[3])
    with pytest.raises(TotalBudgetExceededError):
        await total.claim(offers[4])
    use = await total.use()
    assert use.spent_epsilon == 60.0
    # What is known against the stronger adversary holds against the weaker one, but
    # not the other way round.
    await total_on(store, owners).claim(offers[5])
    with pytest.raises(TotalBudgetExceededError, match="breaks the masks") as caught:
        await total.claim(offers[2])
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


async def test_against_broken_masks_a_task_without_a_randomiser_is_rejected(offers):
    total = total_on(inline_store(), against=ClaimAdversary.BROKEN_MASKS)
    with pytest.raises(RemoteProtocolError, match="no local randomiser"):
        await check(total, offers[2])


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": math.inf},
        {"epsilon": 0.0},
        {"delta": 0.0},
        {"delta": 1.0},
        {"data": ""},
        {"data": "a\nb"},
        {"data": "a" * 201},
    ],
)
def test_an_invalid_total_budget_is_rejected(wrong):
    with pytest.raises(LocalProtocolError):
        TotalBudget(**{"data": "patients", "epsilon": 1.0, "delta": 1e-5, **wrong})
    assert TotalBudget(data="a" * 200, epsilon=1.0, delta=1e-5).data == "a" * 200


# --- clients and an aggregator --------------------------------------------------------


@pytest.fixture
async def aggregator():
    made = Aggregator(inline_store(), UploadSpool(MemoryBlobs()))
    yield made
    await made.close()


async def start(aggregator, task_id, **budget_of_task):
    async def no_payload(_):
        return b""

    async def ignore(_):
        return None

    task = TaskDefinition(
        task_id=task_id, parameters=parameters(**budget_of_task), sessions=1
    )
    running = asyncio.create_task(
        aggregator.run_task(task, next_payload=no_payload, on_sum=ignore)
    )
    await asyncio.sleep(0)  # one turn of the loop: the task is known
    return running


def client(connection, task_id, state_dir, total):
    return Client(
        connection,
        task=task_id,
        privacy_limits=PrivacyLimits(max_epsilon=8.0, max_delta=1e-5),
        total=total,
        state_dir=state_dir,
    )


async def test_a_client_contributes_to_the_first_task_but_not_beyond_its_total(
    aggregator, tmp_path, caplog, monkeypatch
):
    """They would fit alone; the second is refused before a key is made."""
    first = await start(aggregator, "first", epsilon=5.0)
    total = budget(epsilon=7.0, delta=1e-4)

    async def give(name):
        connection = InMemoryConnection(aggregator, name)
        async with client(connection, "first", tmp_path / name, total) as one:
            before = await one.data_use()
            given = await one.contribute(np.ones(DIMENSION))
            return before, given, await one.data_use()

    with caplog.at_level("INFO", logger="secagg.client"):
        found = await asyncio.gather(*map(give, NAMES))
    await first
    for before, given, after in found:
        assert given.inputs == 3
        assert before.claims == ()
        assert (before.remaining_epsilon, before.remaining_delta) == (7.0, 1e-4)
        (claimed,) = after.claims
        assert claimed.epsilon == given.privacy.server.epsilon
        assert after.remaining_epsilon == pytest.approx(7.0 - claimed.epsilon)
    lines = [record.getMessage() for record in caplog.records]
    claimed = [line for line in lines if line.startswith("data_claimed")]
    assert len(claimed) == 3
    assert "data=patients task=first epsilon=" in claimed[0]

    second = await start(aggregator, "second", epsilon=6.0)
    looking = OffersOnly(aggregator, "alice")
    # Without the first one it is let in.
    async with client(looking, "second", tmp_path / "new", total) as one:
        with pytest.raises(AssertionError, match="calls"):
            await one.contribute(np.ones(DIMENSION))
    monkeypatch.setattr(ClientSession, "begin", None)
    async with client(looking, "second", tmp_path / "alice", total) as one:
        with pytest.raises(TotalBudgetExceededError, match="'second'"):
            await one.contribute(np.ones(DIMENSION))
        assert await one.data_use() == found[0][2]
    second.cancel()
    await asyncio.wait({second})


async def test_a_client_without_a_total_makes_no_claims(aggregator, tmp_path):
    running = await start(aggregator, "first", epsilon=5.0)

    async def give(name):
        connection = InMemoryConnection(aggregator, name)
        async with client(connection, "first", tmp_path / name, None) as one:
            await one.contribute(np.ones(DIMENSION))
            return await one.data_use()

    assert await asyncio.gather(*map(give, NAMES)) == [None] * 3
    await running


def claimed(task, epsilon, delta, shift=None):
    """Return a claim of a task that costs so much."""
    return ClaimRow(
        Claim(
            data="patients",
            holder=bytes(16),
            budget=BudgetKey(trust_domain="", aggregator="hub", task=task),
            noise_digest=bytes(32),
            against=ClaimAdversary.SERVER,
            epsilon=epsilon,
            delta=delta,
            shift=shift,
            distance=0.0,
            added_delta=0.0,
        ),
        0.0,
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(20.0, 0.0), (1.0, 2e-4)])
def test_an_exceeded_total_leaves_nothing(epsilon, delta):
    use = use_of(budget(), [claimed("a", epsilon, delta)], None)
    assert not use.fits
    assert use.remaining_epsilon == 0.0
    assert 0.0 <= use.remaining_delta <= 1e-4


def test_no_gaussian_remainder_is_stated_beside_a_claim_without_a_gaussian():
    plain, gaussian = claimed("a", 1.0, 0.0), claimed("b", 1.0, 1e-6, shift=0.1)
    assert use_of(budget(), [gaussian], None).remaining_gaussian_epsilon > 1.0
    assert use_of(budget(), [plain, gaussian], None).remaining_gaussian_epsilon is None
