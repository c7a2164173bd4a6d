"""What every store promises, run against every implementation.

A further implementation adds its address to `address_of` and has to pass everything.
"""

import asyncio
import dataclasses
import itertools

import asyncpg
import pytest
from secagg_testing.cohorts import RecordedSession, one_hot, signing_parameters_for

from secagg.errors import (
    ErrorCode,
    InternalError,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
)
from secagg.protocol.messages import Round
from secagg.protocol.profiles import Trust
from secagg.protocol.rounds import rounds_of
from secagg.protocol.server import machine as server
from secagg.simulation import identity_of
from secagg.storage.budget_ledger import (
    Budget,
    BudgetKey,
    BudgetSpentError,
    Charge,
    ChargeState,
    Claim,
    ClaimAdversary,
    NoiseChangedError,
    Settlement,
    budget_of,
)
from secagg.storage.change import (
    Change,
    Committed,
    DuplicateRecordError,
    Ended,
    LeaseLostError,
    MissedRecords,
    NewSession,
    NumberTakenError,
    Record,
    RewrittenSession,
    SessionConflictError,
    SessionsSpentError,
    Side,
)
from secagg.storage.changes import (
    PurgeReceipts,
    PutClaim,
    PutFacts,
    PutTask,
    RecordRevocations,
    Touch,
)
from secagg.storage.journal import decode_server_event, record_of
from secagg.storage.leases import AcquireLease, ReleaseLease, RenewLease
from secagg.storage.open_store import open_store
from secagg.storage.queries import (
    FindFaults,
    ListCharges,
    ListClaims,
    ListSessions,
    ListTasks,
    LoadSession,
    ReadClock,
    ReadMissed,
    ReadRevocations,
    ReadTally,
)
from secagg.storage.rows import Retention, SessionState, SessionTally, Task, TaskState
from secagg.storage.tables import chain_next, chain_start

STORES = ("file", "memory", "postgresql")

ADVERT = 0x0101
CLOSED = 0x0105
NOISE = bytes(32)
KEY = BudgetKey(trust_domain="domain", aggregator="aggregator", task="task")


async def emptied(url):
    """Leave a database without a store, perhaps with tables for one."""
    database = await asyncpg.connect(url)
    if await database.fetchval("SELECT to_regclass('secagg.store')") is not None:
        tables = await database.fetch(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'secagg' "
            "AND tablename <> 'migration' ORDER BY tablename <> 'record'"
        )
        for (table,) in tables:
            await database.execute(f"DELETE FROM secagg.{table}")
    await database.close()


class Clock:
    """A clock that a test moves; a whole number, so that sums are exact."""

    def __init__(self):
        self.seconds = 1_000_000.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


async def address_of(kind, request):
    match kind:
        case "file":
            return f"sqlite:{request.getfixturevalue('tmp_path')}/store.db"
        case "memory":
            return "sqlite::memory:"
    url = request.getfixturevalue("postgres_url")
    await emptied(url)
    return url


@pytest.fixture(params=STORES)
async def store(request, clock):
    opened = await open_store(await address_of(request.param, request), now=clock)
    yield opened
    await opened.close()


def session(number=1, **facts):
    return NewSession(
        **{"role": Side.SERVER, "task": "task", "header": b"header"} | facts,
        number=number,
    )


def advert(sender, body=b"advert"):
    return Record(ADVERT, sender, body)


def closed(body=b""):
    return Record(CLOSED, None, body)


async def begin(store, key="a", number=1, **more):
    facts = {name: more.pop(name) for name in tuple(more) if name in FACTS}
    create = session(number, **facts)
    return await store.commit(Change(key=key, create=create, **more))


FACTS = ("role", "task", "header", "peer", "allowed", "alone", "task_version")


async def append(store, at, *records, key="a", **more):
    return await store.commit(
        Change(key=key, expect=at.sequence, previous=at.chain, records=records, **more)
    )


async def end(store, at, receipt=b"receipt", key="a", **more):
    return await append(store, at, key=key, end=receipt, **more)


def behind(at, *missed, **facts):
    """The answer to a writer that missed these records, the session being at `at`."""
    position = {"sequence": at.sequence, "chain": at.chain}
    usual = {"whole": False, "round": 0, "seconds_left": None}
    return MissedRecords(records=missed, **position, **(usual | facts))


async def bodies(store, key="a"):
    return [record.body for record in (await store.read(LoadSession(key))).records]


# --- 1: a change is stored whole, and an exception says nothing -----------------------


async def test_records_are_returned_in_order_with_their_senders(store):
    at = await begin(store)
    at = await append(store, at, advert("x", b"one"))
    at = await append(store, at, advert("y", b"two"), closed(b"three"))
    stored = await store.read(LoadSession("a"))
    assert stored.header == b"header"
    assert stored.records == (
        advert("x", b"one"),
        advert("y", b"two"),
        closed(b"three"),
    )
    assert (stored.role, stored.task, stored.number) == (Side.SERVER, "task", 1)
    assert (stored.sequence, stored.chain) == (at.sequence, at.chain) == (3, at.chain)
    assert not stored.ended


async def test_a_restarted_server_sends_the_same_quorum(store):
    """R5.3-13: with what a member of U3 has signed that signs nothing more."""
    parameters = signing_parameters_for(4, dimension=2)
    played = RecordedSession(parameters, [one_hot(n, 2, 1 << 20) for n in range(4)])
    started, at, stored = played.server_state, await begin(store), 0
    for which in rounds_of(parameters.profile)[:-1]:
        is_last = which is Round.CONSISTENCY_CHECK
        played.play(which, range(3 if is_last else 4))
        played.close(which)
        at = await append(store, at, *map(record_of, played.journal[stored:]))
        stored = len(played.journal)
        state = server.fork(started)
        for record in (await store.read(LoadSession("a"))).records:
            state = server.step(state, decode_server_event(record)).state
        shown = [server.update_for(state, identity_of(n)) for n in range(4)]
        assert shown == [played.fetch(number) for number in range(4)]
    (proof,) = shown[0].open().roster_proofs
    assert proof.index == 3


async def test_a_tail_can_be_loaded_on_its_own(store):
    at = await append(store, await begin(store), advert("x"), advert("y"), closed())
    for after in range(4):
        stored = await store.read(LoadSession("a", after=after))
        everything = (advert("x"), advert("y"), closed())
        assert stored.records == everything[after:]
        assert stored.sequence == at.sequence
    with pytest.raises(LocalProtocolError, match="none after 4"):
        await store.read(LoadSession("a", after=4))


async def test_an_unknown_session_loads_as_none_and_accepts_no_change(store):
    assert await store.read(LoadSession("a")) is None
    with pytest.raises(ServiceError, match="does not exist") as caught:
        await append(store, Committed(0, b"", None), advert("x"))
    assert caught.value.code is ErrorCode.STORAGE_FAILED


async def test_a_rejected_change_has_no_effects(store):
    await begin(store, number=5)
    with pytest.raises(DuplicateRecordError):
        await begin(
            store,
            key="b",
            number=6,
            records=(advert("x"), advert("x")),
            charge=Charge(
                budget=BudgetKey(
                    trust_domain="domain", aggregator="aggregator", task="task"
                ),
                session_id=b"s",
                noise_digest=NOISE,
                allowed=1,
                refunds=1,
            ),
            spend=True,
        )
    assert await store.read(LoadSession("b")) is None
    assert await store.read(ListCharges("task")) == ()
    assert await store.read(ReadTally(Side.SERVER, "task")) == SessionTally(5, 0)


@pytest.mark.parametrize(
    "facts",
    [
        {"create": session(), "expect": 1},
        {"create": session(), "previous": b"chain"},
        {"reseal": RewrittenSession(b""), "records": (advert("x"),)},
        {"end": b"", "records": (advert("x"),)},
        {"end": b"", "reseal": RewrittenSession(b"")},
        {"end": b"", "create": session()},
        {"settle": Settlement(task="t", session_id=b"", state=ChargeState.BOUND)},
    ],
)
def test_a_contradictory_change_is_a_caller_error(facts):
    with pytest.raises(LocalProtocolError):
        Change(key="a", **facts)


@pytest.mark.parametrize(("kind", "sender"), [(-1, None), (1 << 16, None), (1, "")])
def test_a_record_that_no_chain_can_hold_is_a_caller_error(kind, sender):
    with pytest.raises(LocalProtocolError):
        Record(kind, sender, b"")


# --- 2: the position is a count and a chain -------------------------------------------


async def test_a_replica_that_is_behind_receives_missed_records_and_writes_nothing(
    store, clock
):
    start = await begin(store, round=0, deadline_seconds=60.0)
    one = await append(store, start, advert("x"))
    # An aggregator names a round by a member of an enumeration.
    second = Round.CHOOSE_EDGES
    two = await append(store, one, closed(), round=second, deadline_seconds=30.0)
    clock.seconds += 10
    answer = await append(store, one, advert("late"))
    assert answer == behind(two, closed(), round=2, seconds_left=20.0)
    answer = await append(store, start, advert("late"))
    assert answer.records == (advert("x"), closed())
    assert not answer.whole
    assert await bodies(store) == [b"advert", b""]


async def test_another_history_of_the_same_length_is_not_continued(store):
    start = await begin(store)
    mine = chain_next(start.chain, 0, advert("mine"))
    theirs = await append(store, start, advert("theirs"))
    answer = await append(store, Committed(1, mine, None), closed())
    assert answer == behind(theirs, advert("theirs"), whole=True)
    assert await bodies(store) == [b"advert"]


async def test_a_writer_ahead_of_the_store_receives_the_whole_journal(store):
    at = await append(store, await begin(store), advert("x"))
    beyond = Committed(2, chain_next(at.chain, 1, closed()), None)
    answer = await append(store, beyond, advert("y"))
    assert (answer.whole, answer.records) == (True, (advert("x"),))


async def test_an_early_timer_receives_the_remaining_time_and_closes_nothing(
    store, clock
):
    at = await begin(store, round=0, deadline_seconds=60.0)
    clock.seconds += 40
    answer = await append(store, at, closed(), due=True)
    assert answer == behind(at, seconds_left=20.0)
    # An upload has moved the deadline meanwhile.
    await append(store, at, deadline_seconds=30.0)
    clock.seconds += 25
    assert isinstance(await append(store, at, closed(), due=True), MissedRecords)
    clock.seconds += 5
    assert isinstance(await append(store, at, closed(), due=True), Committed)


async def test_a_round_without_a_deadline_is_never_due(store):
    at = await begin(store)
    answer = await append(store, at, closed(), due=True)
    assert answer == behind(at)


async def test_a_change_that_is_not_due_based_may_close_a_round_early(store):
    at = await begin(store, round=0, deadline_seconds=60.0)
    assert isinstance(await append(store, at, closed()), Committed)


async def test_the_change_that_opens_a_round_sets_its_times(store, clock):
    at = await begin(store)
    stored = await store.read(LoadSession("a"))
    assert (stored.round, stored.opened, stored.deadline) == (0, None, None)
    clock.seconds += 1
    at = await append(store, at, round=1, deadline_seconds=60.0)
    assert at.seconds_left == 60.0
    clock.seconds += 5
    at = await append(store, at, advert("x"), deadline_seconds=80.0)
    stored = await store.read(LoadSession("a"))
    assert stored.round == 1
    assert stored.opened == 1_000_001.0  # an extension opens nothing
    assert stored.deadline == await store.read(ReadClock()) + 80.0
    assert stored.seconds_left == 80.0
    clock.seconds += 81
    assert (await store.read(LoadSession("a"))).seconds_left == -1.0


async def test_a_round_opens_again_without_a_record(store, clock):
    at = await begin(store, round=0, deadline_seconds=60.0)
    clock.seconds += 60
    at = await append(store, at, round=0, deadline_seconds=60.0, due=True)
    stored = await store.read(LoadSession("a"))
    assert (stored.opened, stored.seconds_left) == (clock.seconds, 60.0)
    assert at.sequence == 0


async def test_an_ended_session_answers_with_its_receipt(store):
    at = await begin(store)
    await end(store, at, b"how it ended")
    for position in (at, Committed(7, b"", None)):
        assert await append(store, position, advert("x")) == Ended(b"how it ended")


# --- 3: numbers -----------------------------------------------------------------------


async def test_a_session_number_is_claimed_once_and_only_upwards(store):
    assert await store.read(ReadTally(Side.SERVER, "task")) == SessionTally(0, 0)
    await begin(store, number=5)
    for number in (5, 4, 1):
        with pytest.raises(NumberTakenError) as caught:
            await begin(store, key=f"b{number}", number=number)
        assert caught.value.highest == 5
        assert await store.read(LoadSession(f"b{number}")) is None
    await begin(store, key="c", number=6)
    assert (await store.read(ReadTally(Side.SERVER, "task"))).highest_number == 6


async def test_session_numbers_are_counted_by_role_task_and_peer(store):
    await begin(store, number=5)
    await begin(store, key="b", number=1, task="other")
    await begin(store, key="c", number=1, role=Side.CLIENT)
    await begin(store, key="d", number=2, role=Side.CLIENT, peer="somewhere else")
    assert (await store.read(ReadTally(Side.CLIENT, "task"))).highest_number == 1
    assert (
        await store.read(ReadTally(Side.CLIENT, "task", peer="somewhere else"))
    ).highest_number == 2


async def test_a_session_number_stays_claimed_after_end_and_purge(store, clock):
    await end(store, await begin(store, number=5))
    clock.seconds += 1000 * 86400
    assert (await store.commit(PurgeReceipts(Retention()))) == ("a",)
    with pytest.raises(NumberTakenError):
        await begin(store, number=5)


async def test_a_session_is_created_once(store):
    await begin(store)
    with pytest.raises(InternalError, match="twice"):
        await begin(store, number=2, header=b"other")
    assert (await store.read(LoadSession("a"))).header == b"header"
    assert (await store.read(ReadTally(Side.SERVER, "task"))).highest_number == 1


# --- sessions that a task may spend ---------------------------------------------------


async def test_spent_sessions_are_counted_once_and_permanently(store, clock):
    at = await begin(store)
    at = await append(store, at, closed(), spend=True)
    at = await append(store, at, advert("x"), spend=True)
    assert await store.read(ReadTally(Side.SERVER, "task")) == SessionTally(1, 1)
    assert (await store.read(LoadSession("a"))).spent
    await end(store, at)
    clock.seconds += 1000 * 86400
    await store.commit(PurgeReceipts(Retention()))
    assert await store.read(ReadTally(Side.SERVER, "task")) == SessionTally(1, 1)


async def test_facts_of_a_task_are_stored_with_a_change_and_persist(store, clock):
    at = await begin(store, number=1)
    assert (await store.read(ReadTally(Side.SERVER, "task"))).facts == b""
    at = await append(store, at, facts=b"first", spend=True)
    await end(store, Committed(9, bytes(16), None), facts=b"not written")
    assert (await store.read(ReadTally(Side.SERVER, "task"))).facts == b"first"
    await end(store, at, facts=b"second")
    await begin(store, key="b", number=2)
    clock.seconds += 500 * 86400
    await store.commit(PurgeReceipts(Retention()))
    assert await store.read(ReadTally(Side.SERVER, "task")) == SessionTally(
        2, 1, b"second"
    )
    assert (await store.read(ReadTally(Side.SERVER, "another"))).facts == b""
    assert await store.commit(PutFacts("task", b"third", instead_of=b"second"))
    assert await store.commit(PutFacts("another", b"first", instead_of=b""))
    assert await store.read(ReadTally(Side.SERVER, "task")) == SessionTally(
        2, 1, b"third"
    )
    assert await store.read(ReadTally(Side.SERVER, "another")) == SessionTally(
        0, 0, b"first"
    )


async def test_a_task_opens_no_session_beyond_its_session_limit(store):
    for number in (1, 2):
        at = await begin(store, key=str(number), number=number, allowed=2)
        await end(store, at, key=str(number))  # ended before anything was spent
    for number in (3, 4):
        at = await begin(store, key=str(number), number=number, allowed=2)
        at = await append(store, at, key=str(number), spend=True)
        await end(store, at, key=str(number))
    with pytest.raises(SessionsSpentError, match="2 sessions") as caught:
        await begin(store, key="5", number=5, allowed=2)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert await store.read(ReadTally(Side.SERVER, "task")) == SessionTally(4, 2)
    assert await store.read(LoadSession("5")) is None
    await begin(store, key="5", number=5, allowed=3)


async def test_a_running_session_counts_as_possibly_spent(store):
    await begin(store, number=1, allowed=1)
    with pytest.raises(SessionsSpentError):
        await begin(store, key="b", number=2, allowed=1)
    await begin(store, key="c", number=1, allowed=1, task="another")


async def test_a_session_that_is_spent_and_running_counts_once(store):
    at = await begin(store, number=1, allowed=2)
    await append(store, at, spend=True)
    await begin(store, key="b", number=2, allowed=2)
    with pytest.raises(SessionsSpentError, match="used 2 sessions"):
        await begin(store, key="c", number=3, allowed=2)


async def test_a_session_limit_applies_to_one_aggregator(store):
    """Another one under the same name of a task cannot use it up."""
    for number, peer in enumerate(("a", "b", "b"), start=1):
        at = await begin(
            store,
            key=str(number),
            number=number,
            peer=peer,
            role=Side.CLIENT,
            allowed=2,
        )
        if number < 3:
            await append(store, at, key=str(number), spend=True)
    with pytest.raises(SessionsSpentError, match="used 2 sessions"):
        await begin(store, key="4", number=4, peer="b", role=Side.CLIENT, allowed=2)
    await begin(store, key="5", number=4, peer="c", role=Side.CLIENT, allowed=2)
    assert await store.read(ReadTally(Side.CLIENT, "task", peer="b")) == SessionTally(
        3, 1
    )


async def test_a_task_without_a_session_limit_opens_any_number(store):
    for number in range(1, 5):
        at = await begin(store, key=str(number), number=number)
        await append(store, at, key=str(number), spend=True)
    assert await store.read(ReadTally(Side.SERVER, "task")) == SessionTally(4, 4)


# --- 4: charges -----------------------------------------------------------------------


def charge(number, *, allowed=2, refunds=2, noise=NOISE, task="task"):
    return Charge(
        budget=dataclasses.replace(KEY, task=task),
        session_id=bytes([number]) * 32,
        noise_digest=noise,
        allowed=allowed,
        refunds=refunds,
    )


def settlement(number, state):
    return Settlement(task="task", session_id=bytes([number]) * 32, state=state)


async def client_session(store, number):
    return await begin(store, key=str(number), number=number, role=Side.CLIENT)


async def charged(store, number, **more):
    at = await client_session(store, number)
    return await append(
        store, at, closed(b"input"), key=str(number), charge=charge(number, **more)
    )


async def states(store):
    return [row.state for row in await store.read(ListCharges("task"))]


async def test_a_charge_and_its_record_are_stored_in_one_change(store, clock):
    await charged(store, 1)
    (row,) = await store.read(ListCharges("task"))
    assert row.session_id == bytes([1]) * 32
    assert row.noise_digest == NOISE
    assert row.state is ChargeState.BOUND
    assert row.refunds == 2
    assert row.at == clock.seconds
    assert await bodies(store, "1") == [b"input"]


async def test_charging_again_changes_nothing(store, clock):
    at = await charged(store, 1, allowed=1)
    before = await store.read(ListCharges("task"))
    clock.seconds += 5
    # The budget is spent, but this session is in it.
    answer = await append(store, at, key="1", charge=charge(1, allowed=1))
    assert isinstance(answer, Committed)
    assert await store.read(ListCharges("task")) == before


async def test_a_charge_beyond_the_budget_rejects_the_whole_change(store):
    await charged(store, 1)
    await charged(store, 2)
    with pytest.raises(BudgetSpentError, match="given 2 sessions") as caught:
        await charged(store, 3)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert (await store.read(LoadSession("3"))).records == ()
    assert await states(store) == [ChargeState.BOUND] * 2
    await client_session(store, 4)
    other = charge(4, task="another task")
    at = await store.read(LoadSession("4"))
    assert isinstance(await append(store, at, key="4", charge=other), Committed)


async def test_other_noise_under_the_same_task_name_is_rejected(store):
    await charged(store, 1)
    with pytest.raises(NoiseChangedError, match="changed its noise") as caught:
        await charged(store, 2, noise=b"\1" * 32)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert (await store.read(LoadSession("2"))).records == ()
    assert len(await store.read(ListCharges("task"))) == 1


async def test_other_noise_is_rejected_even_when_all_charges_are_void(store):
    at = await charged(store, 1)
    await end(store, at, key="1", settle=settlement(1, ChargeState.VOID))
    with pytest.raises(NoiseChangedError):
        await charged(store, 2, noise=b"\1" * 32)


async def test_a_void_charge_is_not_counted(store):
    for number in (1, 2):
        at = await charged(store, number)
        await end(
            store, at, key=str(number), settle=settlement(number, ChargeState.VOID)
        )
    await charged(store, 3)
    await charged(store, 4)
    with pytest.raises(BudgetSpentError):
        await charged(store, 5)
    charges = await store.read(ListCharges("task"))
    for allowed, left in ((1, 0), (2, 0), (5, 3)):
        found = budget_of(charges, KEY, allowed=allowed, refunds=2)
        assert found == Budget(given=2, void=2, left=left)
    found = budget_of(charges, KEY, allowed=5, refunds=1)
    assert found == Budget(given=3, void=1, left=2)


async def test_refunds_are_limited_to_the_number_of_sums(store):
    for number in (1, 2):
        at = await charged(store, number, allowed=1, refunds=1)
        void = settlement(number, ChargeState.VOID)
        await end(store, at, key=str(number), settle=void)
    with pytest.raises(BudgetSpentError):
        await charged(store, 3, allowed=1, refunds=1)


@pytest.mark.parametrize(
    ("first", "second"),
    list(itertools.product([ChargeState.KEPT, ChargeState.VOID], repeat=2)),
)
async def test_a_settled_charge_does_not_change(store, clock, first, second):
    at = await charged(store, 1)
    await append(store, at, key="1", settle=settlement(1, first))
    before = await store.read(ListCharges("task"))
    clock.seconds += 5
    await append(store, at, key="1", settle=settlement(1, second))
    assert await store.read(ListCharges("task")) == before
    assert await states(store) == [first]


async def test_a_kept_charge_is_counted(store):
    at = await charged(store, 1, allowed=1)
    await end(store, at, key="1", settle=settlement(1, ChargeState.KEPT))
    with pytest.raises(BudgetSpentError):
        await charged(store, 2, allowed=1)


async def test_a_voided_session_is_not_charged_again(store):
    at = await charged(store, 1)
    at = await append(store, at, key="1", settle=settlement(1, ChargeState.VOID))
    with pytest.raises(InternalError, match="given back"):
        await append(store, at, key="1", charge=charge(1))
    assert await states(store) == [ChargeState.VOID]


async def test_settling_an_uncharged_session_changes_nothing(store):
    at = await client_session(store, 1)
    await end(store, at, key="1", settle=settlement(1, ChargeState.VOID))
    assert await store.read(ListCharges("task")) == ()


async def test_a_late_change_charges_and_settles_nothing(store):
    at = await charged(store, 1)
    answer = await end(
        store,
        Committed(0, b"", None),
        key="1",
        settle=settlement(1, ChargeState.VOID),
    )
    assert isinstance(answer, MissedRecords)
    await end(store, at, key="1")
    answer = await append(store, at, key="1", charge=charge(9))
    assert isinstance(answer, Ended)
    assert await states(store) == [ChargeState.BOUND]


# --- claims ---------------------------------------------------------------------------


def claim(number, *, data="patients", **more):
    named = {
        "data": data,
        "holder": b"h" * 16,
        "budget": BudgetKey(
            trust_domain="domain", aggregator="aggregator", task=f"task {number}"
        ),
        "noise_digest": NOISE,
        "against": ClaimAdversary.SERVER,
        "epsilon": 0.1 * number,
        "delta": 1e-6,
        "shift": None,
        "distance": 0.0,
        "added_delta": 0.0,
    }
    return Claim(**named | more)


async def test_claims_are_stored_as_made(store, clock):
    first = claim(1)
    second = claim(2, shift=0.1 + 0.2, distance=1e-17, added_delta=5e-324)
    other = claim(3, data="others", against=ClaimAdversary.BROKEN_MASKS)
    for made, after in ((first, 0), (second, 1), (other, 0)):
        assert await store.commit(PutClaim(made, after=after))
    rows = await store.read(ListClaims("patients"))
    assert [row.claim for row in rows] == [first, second]
    assert {row.at for row in rows} == {clock()}
    assert [row.claim for row in await store.read(ListClaims())] == [
        first,
        second,
        other,
    ]


async def test_a_claim_checked_against_an_outdated_list_is_not_stored(store):
    assert await store.commit(PutClaim(claim(1), after=0))
    assert not await store.commit(PutClaim(claim(2), after=0))
    assert not await store.commit(PutClaim(claim(2), after=2))
    assert [row.claim for row in await store.read(ListClaims())] == [claim(1)]


async def test_of_two_concurrent_claims_one_is_stored(store):
    made = await asyncio.gather(
        *(store.commit(PutClaim(claim(number), after=0)) for number in (1, 2))
    )
    assert sorted(made) == [False, True]


async def test_claims_persist_after_end_and_purge(store, clock):
    await store.commit(PutClaim(claim(1), after=0))
    await end(store, await charged(store, 1), key="1")
    clock.seconds += 1000 * 86400
    await store.commit(PurgeReceipts(Retention()))
    assert len(await store.read(ListClaims())) == 1
    assert await store.read(FindFaults()) == ()


async def test_charges_persist_after_end_and_purge(store, clock):
    await end(store, await charged(store, 1), key="1")
    clock.seconds += 1000 * 86400
    assert (await store.commit(PurgeReceipts(Retention()))) == ("1",)
    assert len(await store.read(ListCharges("task"))) == 1


# --- 6: one message of each kind from each sender -------------------------------------


async def test_a_second_record_of_a_sender_is_rejected_and_named(store):
    at = await append(store, await begin(store), advert("x", b"first"))
    with pytest.raises(DuplicateRecordError, match="'x'") as caught:
        await append(store, at, advert("y"), advert("x", b"second"))
    assert caught.value.record == advert("x", b"second")
    assert await bodies(store) == [b"first"]
    # The others are committed without it, at the position that is still right.
    at = await append(store, at, advert("y"), Record(ADVERT + 1, "x", b"other kind"))
    assert at.sequence == 3


async def test_decisions_of_a_server_may_repeat(store):
    at = await append(store, await begin(store), closed(b"1"), closed(b"2"))
    assert at.sequence == 2


async def test_two_sessions_may_receive_records_of_the_same_sender(store):
    await append(store, await begin(store), advert("x"))
    at = await append(
        store, await begin(store, key="b", number=2), advert("x"), key="b"
    )
    assert at.sequence == 1


# --- 7: the chain ---------------------------------------------------------------------


async def test_the_chain_is_computed_from_name_header_and_records(store):
    start = await begin(store)
    assert start.chain == chain_start("a", session())
    at = await append(store, start, advert("x"), closed(b"1"))
    one = chain_next(start.chain, 0, advert("x"))
    assert at.chain == chain_next(one, 1, closed(b"1"))


def test_everything_stored_enters_the_chain():
    starts = [
        chain_start(key, session(number, **facts))
        for key, number, facts in [
            ("a", 1, {}),
            ("b", 1, {}),
            ("a", 2, {}),
            ("a", 1, {"header": b"other"}),
            ("a", 1, {"role": Side.CLIENT}),
            ("a", 1, {"task": "other"}),
            ("a", 1, {"peer": "other"}),
        ]
    ]
    assert len(set(starts)) == len(starts)
    nexts = [
        chain_next(*arguments)
        for arguments in [
            (bytes(16), 0, Record(1, "x", b"y")),
            (b"\1" * 16, 0, Record(1, "x", b"y")),
            (bytes(16), 1, Record(1, "x", b"y")),
            (bytes(16), 0, Record(2, "x", b"y")),
            (bytes(16), 0, Record(1, "xy", b"")),
            (bytes(16), 0, Record(1, None, b"xy")),
            (bytes(16), 0, Record(1, "x", b"z")),
        ]
    ]
    assert len(set(nexts)) == len(nexts)


# --- replacing what is no longer needed -----------------------------------------------


async def test_a_resealed_session_holds_only_its_new_content(store):
    start = await begin(store, header=b"seed")
    at = await append(store, start, advert("x"), closed(), round=2)
    resealed = await append(
        store, at, reseal=RewrittenSession(b"answer", (advert("x", b"sent"),))
    )
    assert resealed.sequence == 1
    stored = await store.read(LoadSession("a"))
    assert (stored.header, stored.records) == (b"answer", (advert("x", b"sent"),))
    assert (stored.chain, stored.round) == (resealed.chain, 2)
    start_of_new = chain_start("a", session(header=b"answer"))
    assert resealed.chain == chain_next(start_of_new, 0, advert("x", b"sent"))
    # It continues from there, and from nowhere else.
    old = await append(store, at, closed())
    assert (old.whole, old.records) == (True, (advert("x", b"sent"),))
    assert isinstance(await append(store, start, closed()), MissedRecords)
    assert (await append(store, resealed, closed())).sequence == 2


# --- 8: the end, and what stays -------------------------------------------------------


async def test_ending_a_session_erases_it_and_leaves_a_receipt(store):
    at = await append(store, await begin(store), advert("x"))
    assert isinstance(await end(store, at, b"receipt"), Committed)
    stored = await store.read(LoadSession("a"))
    assert (stored.header, stored.records) == (b"", ())
    assert stored.receipt == b"receipt"
    assert stored.ended


async def test_ending_twice_keeps_the_first_receipt(store):
    at = await begin(store)
    await end(store, at, b"first")
    assert await end(store, at, b"second") == Ended(b"first")
    assert (await store.read(LoadSession("a"))).receipt == b"first"


async def test_an_empty_receipt_still_ends_a_session(store):
    await end(store, await begin(store), b"")
    assert (await store.read(LoadSession("a"))).ended


async def test_a_replica_that_is_behind_ends_no_session(store):
    start = await begin(store)
    await append(store, start, advert("x"))
    assert isinstance(await end(store, start), MissedRecords)
    assert not (await store.read(LoadSession("a"))).ended


async def test_sessions_are_listed_by_role_task_and_state_newest_first(store, clock):
    for number, key in enumerate(("z", "a", "m"), 1):
        at = await begin(store, key=key, number=number)
        if key == "a":
            clock.seconds += 7
            await end(store, at, key="a")
    await begin(store, key="mine", number=1, role=Side.CLIENT)
    await begin(store, key="other", number=1, task="other")

    async def keys(**conditions):
        rows = await store.read(ListSessions(**{"role": Side.SERVER} | conditions))
        return [row.key for row in rows]

    assert await keys() == ["other", "m", "z"]
    assert await keys(task="task") == ["m", "z"]
    assert await keys(state=SessionState.ALL) == ["other", "m", "a", "z"]
    assert await keys(state=SessionState.ALL, limit=2) == ["other", "m"]
    assert await keys(role=Side.CLIENT) == ["mine"]
    (row,) = await store.read(ListSessions(role=Side.SERVER, state=SessionState.ENDED))
    assert (row.key, row.number, row.ended - row.born) == ("a", 2, 7.0)
    assert await keys(state=SessionState.ALL, before=row.position) == ["z"]


async def test_a_purge_removes_old_receipts_and_no_running_session(store, clock):
    for number in range(1, 4):
        await end(
            store, await begin(store, key=str(number), number=number), key=str(number)
        )
        clock.seconds += 86400
    running = await begin(store, key="running", number=9)
    await append(store, running, advert("x"), key="running")
    clock.seconds += 86400
    # They ended four, three and two days ago.
    assert (await store.commit(PurgeReceipts(Retention(keep_receipts_days=4.5)))) == ()
    assert (await store.commit(PurgeReceipts(Retention(keep_receipts_days=2.5)))) == (
        "1",
        "2",
    )
    assert await store.read(LoadSession("1")) is None
    assert (await store.read(LoadSession("3"))).ended
    clock.seconds += 1000 * 86400
    assert (await store.commit(PurgeReceipts(Retention()))) == ("3",)
    assert (await store.read(LoadSession("running"))).records == (advert("x"),)


async def test_a_purge_keeps_the_newest_receipts_of_each_task(store, monkeypatch):
    monkeypatch.setattr("secagg.storage.changes.PURGE_ROWS", 2)
    for number in range(1, 8):
        for task in ("task", "other"):
            key = f"{task}{number}"
            await end(
                store, await begin(store, key=key, number=number, task=task), key=key
            )
    purged = []
    while removed := await store.commit(PurgeReceipts(Retention(keep_receipts=3))):
        assert len(removed) <= 2
        purged += removed
    assert sorted(purged) == sorted(
        f"{task}{number}" for task in ("task", "other") for number in range(1, 5)
    )
    rows = await store.read(ListSessions(role=Side.SERVER, state=SessionState.ENDED))
    assert len(rows) == 6


async def test_a_purge_does_not_count_running_sessions(store):
    await begin(store, key="running", number=1)
    for number in (2, 3, 4):
        at = await begin(store, key=str(number), number=number)
        await end(store, at, key=str(number))
    assert (await store.commit(PurgeReceipts(Retention(keep_receipts=1)))) == ("2", "3")
    assert not (await store.read(LoadSession("running"))).ended


# --- tasks ----------------------------------------------------------------------------


async def test_a_task_is_stored_with_its_expected_version(store):
    task = Task("task", TaskState.RUNNING, '{"sessions": 3}', b"plan")
    assert await store.commit(PutTask(task, expect_version=0))
    assert not await store.commit(PutTask(task, expect_version=0))
    paused = Task("task", TaskState.PAUSED, '{"sessions": 3}', b"plan")
    assert not await store.commit(PutTask(paused, expect_version=2))
    assert await store.commit(PutTask(paused, expect_version=1))
    await store.commit(
        PutTask(Task("another", TaskState.STOPPED, "", b""), expect_version=0)
    )
    await begin(store, number=4, spend=True)
    another, row = await store.read(ListTasks())
    assert another.task.task_id == "another"
    assert (row.task, row.version, row.tally) == (paused, 2, SessionTally(4, 1))


# --- the newest revocation list -------------------------------------------------------


def seen(number, digest=b"a" * 32, key=b"k" * 32, domain="a.example"):
    return Trust(domain, key, number, digest)


async def test_the_newest_revocation_list_is_stored_per_key_and_domain(store):
    key = b"k" * 32
    assert await store.read(ReadRevocations(key, "a.example")) is None
    rows = [
        seen(3),
        seen(1, key=b"l" * 32),
        seen(2, domain="b.example"),
        seen(3),
        seen((1 << 32) - 1, b"b" * 32),
    ]
    for row in rows:
        await store.commit(RecordRevocations(row))
    assert await store.read(ReadRevocations(key, "a.example")) == rows[-1]
    assert await store.read(ReadRevocations(b"l" * 32, "a.example")) == rows[1]
    assert await store.read(ReadRevocations(key, "b.example")) == rows[2]
    assert await store.read(ReadRevocations(b"l" * 32, "b.example")) is None


@pytest.mark.parametrize("row", [seen(2), seen(3, b"b" * 32)], ids=["older", "other"])
async def test_an_older_or_different_revocation_list_is_rejected(store, row):
    await store.commit(RecordRevocations(seen(3)))
    with pytest.raises(RemoteProtocolError) as caught:
        await store.commit(RecordRevocations(row))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert await store.read(ReadRevocations(b"k" * 32, "a.example")) == seen(3)


# --- 9: many changes at once ----------------------------------------------------------


async def test_concurrent_changes_of_many_sessions_are_checked_individually(store):
    starts = [
        await begin(store, key=str(number), number=number) for number in range(1, 51)
    ]
    changes = []
    for number, at in enumerate(starts, 1):
        key = str(number)
        right = {"key": key, "expect": at.sequence, "previous": at.chain}
        changes += [
            Change(**right, records=(advert("x"),)),  # goes through
            Change(**right, records=(advert("y"),)),  # comes second
            Change(key=f"unknown {key}"),
            Change(key=f"again {key}", create=session(1)),
        ]
    answers = await asyncio.gather(*map(store.commit, changes), return_exceptions=True)
    for first, second, unknown, taken in zip(*[iter(answers)] * 4, strict=True):
        assert isinstance(first, Committed)
        assert isinstance(second, MissedRecords)
        assert second.records == (advert("x"),)
        assert "does not exist" in str(unknown)
        assert isinstance(taken, NumberTakenError)
    for number in range(1, 51):
        assert len((await store.read(LoadSession(str(number)))).records) == 1


async def test_steps_of_one_session_in_one_batch_are_applied_in_order(store):
    start = await begin(store)
    one = chain_next(start.chain, 0, advert("x"))
    answers = await asyncio.gather(
        append(store, start, advert("x"), round=3, deadline_seconds=60.0),
        append(store, Committed(1, one, None), closed()),
    )
    assert [answer.sequence for answer in answers] == [1, 2]
    stored = await store.read(LoadSession("a"))
    assert (stored.sequence, stored.round) == (2, 3)
    assert stored.seconds_left is not None


async def test_a_session_created_in_a_batch_sees_earlier_changes_of_the_batch(store):
    """Also where the next change of the batch is rejected, and rolled back."""
    at = await begin(store, key="1", number=1)
    end_it = Change(key="1", expect=0, previous=at.chain, end=b"receipt")
    first = (advert("w"),)
    alone = Change(key="2", create=session(2, alone=True), records=first)
    taken = Change(key="3", create=session(2))
    answers = await asyncio.gather(
        store.commit(end_it),
        store.commit(alone),
        store.commit(taken),
        store.commit(dataclasses.replace(end_it, end=b"another")),
        return_exceptions=True,
    )
    ended, begun, refused, late = answers
    assert isinstance(ended, Committed)
    assert isinstance(begun, Committed)
    assert isinstance(refused, NumberTakenError)
    assert late == Ended(b"receipt")
    assert (await store.read(LoadSession("1"))).receipt == b"receipt"
    assert (await append(store, begun, advert("x"), key="2")).sequence == 2
    assert await store.read(FindFaults()) == ()


async def test_a_cancelled_caller_does_not_cancel_its_change(store):
    start = await begin(store)
    waiting = asyncio.create_task(append(store, start, advert("x")))
    await asyncio.sleep(0)
    waiting.cancel()
    one = Committed(1, chain_next(start.chain, 0, advert("x")), None)
    assert (await append(store, one, closed())).sequence == 2


async def test_an_intact_store_has_no_faults(store):
    at = await charged(store, 1)
    await begin(store, key="b", number=2)
    await end(store, at, key="1")
    assert await store.read(FindFaults()) == ()


async def test_a_closing_store_finishes_pending_changes_and_rejects_new_ones(store):
    start = await begin(store)
    writing = asyncio.create_task(append(store, start, advert("x")))
    await asyncio.sleep(0)
    await store.close()
    assert isinstance(await writing, Committed)
    for call in (
        store.read(LoadSession("a")),
        append(store, start, advert("y")),
        store.read(ListTasks()),
    ):
        with pytest.raises(ServiceError, match="closed"):
            await call
    await store.close()


# --- whether it can be written --------------------------------------------------------


async def test_a_touch_changes_nothing(store):
    await store.commit(Change(key="s", create=session()))
    before = (
        await store.read(LoadSession("s")),
        await store.read(ReadTally(Side.SERVER, "task")),
    )
    await store.commit(Touch())
    assert (
        await store.read(LoadSession("s")),
        await store.read(ReadTally(Side.SERVER, "task")),
    ) == before


async def test_a_closed_store_cannot_be_touched(store):
    await store.close()
    with pytest.raises(ServiceError) as caught:
        await store.commit(Touch())
    assert caught.value.code is ErrorCode.STORAGE_FAILED


# --- several writers ------------------------------------------------------------------


async def test_missed_records_can_be_read_without_a_change(store):
    begun = await begin(store)
    at = await append(store, begun, advert("u"), advert("v"))
    missed = await store.read(ReadMissed("a", expect=0, previous=begun.chain))
    assert (missed.records, missed.whole) == ((advert("u"), advert("v")), False)
    assert (missed.sequence, missed.chain) == (2, at.chain)
    known = await store.read(ReadMissed("a", expect=2, previous=at.chain))
    assert (known.records, known.whole, known.chain) == ((), False, at.chain)
    other = await store.read(ReadMissed("a", expect=1, previous=bytes(16)))
    assert (other.records, other.whole) == (missed.records, True)
    await append(store, at, end=b"receipt")
    assert await store.read(ReadMissed("a", expect=2, previous=at.chain)) == Ended(
        b"receipt"
    )
    with pytest.raises(ServiceError, match="does not exist"):
        await store.read(ReadMissed("b", expect=0, previous=b""))


async def test_an_extension_never_shortens_a_deadline(store, clock):
    at = await begin(store, round=1, deadline_seconds=60.0)
    longer = await append(store, at, deadline_seconds=90.0, extend=True)
    assert longer.seconds_left == 90.0
    same = await append(store, at, deadline_seconds=30.0, extend=True)
    assert same.seconds_left == 90.0
    clock.seconds += 89
    early = await append(store, at, closed(), due=True)
    assert isinstance(early, MissedRecords)
    assert early.seconds_left == 1.0
    shorter = await append(store, at, deadline_seconds=0.0)
    assert shorter.seconds_left == 0.0
    assert isinstance(await append(store, at, closed(), due=True), Committed)


async def test_an_exclusive_session_is_the_only_open_one_of_its_task(store):
    at = await begin(store, alone=True)
    with pytest.raises(SessionConflictError, match="another one"):
        await begin(store, key="b", number=2, alone=True)
    # Nothing is spent yet, though no further one is allowed.
    with pytest.raises(SessionConflictError, match="another one"):
        await begin(store, key="b", number=2, alone=True, allowed=1)
    await begin(store, key="c", number=1, task="other", alone=True)
    await append(store, at, end=b"receipt")
    assert isinstance(await begin(store, key="b", number=2, alone=True), Committed)
    # The number of the refused one was not claimed.
    assert (await store.read(ReadTally(Side.SERVER, "task"))).highest_number == 2


async def test_a_session_opens_only_under_the_known_version_of_its_task(store):
    task = Task("task", TaskState.RUNNING, "settings", b"plan")
    with pytest.raises(SessionConflictError, match="was changed"):
        await begin(store, task_version=1)
    assert await store.commit(PutTask(task, expect_version=0))
    at = await begin(store, task_version=1)
    await append(store, at, end=b"receipt")
    assert await store.commit(PutTask(task, expect_version=1))
    with pytest.raises(SessionConflictError, match="was changed"):
        await begin(store, key="b", number=2, task_version=1)
    await begin(store, key="b", number=2, task_version=2)


async def test_facts_do_not_overwrite_concurrent_ones(store):
    assert await store.commit(PutFacts("task", b"one", instead_of=b""))
    assert not await store.commit(PutFacts("task", b"two", instead_of=b""))
    at = await begin(store)
    await append(store, at, end=b"receipt", facts=b"three")
    assert not await store.commit(PutFacts("task", b"four", instead_of=b"one"))
    assert (await store.read(ReadTally(Side.SERVER, "task"))).facts == b"three"


async def test_a_lease_can_be_acquired_after_expiry_or_release(store, clock):
    one = await store.commit(AcquireLease("sum/a", holder="A", seconds=10.0))
    assert await store.commit(AcquireLease("sum/a", holder="B", seconds=10.0)) is None
    clock.seconds += 9
    assert await store.commit(RenewLease(one, seconds=10.0))
    clock.seconds += 9
    assert await store.commit(AcquireLease("sum/a", holder="B", seconds=10.0)) is None
    clock.seconds += 1
    two = await store.commit(AcquireLease("sum/a", holder="B", seconds=10.0))
    assert two.token > one.token
    assert not await store.commit(RenewLease(one, seconds=10.0))
    await store.commit(ReleaseLease(one))  # a zombie's: of no effect
    assert await store.commit(AcquireLease("sum/a", holder="A", seconds=10.0)) is None
    await store.commit(ReleaseLease(two))
    three = await store.commit(AcquireLease("sum/a", holder="A", seconds=10.0))
    assert three.token > two.token
    # Who takes again what it holds gets a new token, and the old one is stale.
    four = await store.commit(AcquireLease("sum/a", holder="A", seconds=10.0))
    assert not await store.commit(RenewLease(three, seconds=1.0))
    assert await store.commit(RenewLease(four, seconds=1.0))


async def test_a_change_under_a_lost_lease_writes_nothing(store, clock):
    at = await begin(store)
    lease = await store.commit(AcquireLease("sum/a", holder="A", seconds=10.0))
    at = await append(store, at, advert("u"), lease=lease)
    clock.seconds += 10
    with pytest.raises(LeaseLostError):
        await append(store, at, advert("v"), lease=lease)
    await store.commit(AcquireLease("sum/a", holder="B", seconds=10.0))
    with pytest.raises(LeaseLostError):
        await append(store, at, advert("v"), lease=lease)
    assert (await store.read(LoadSession("a"))).records == (advert("u"),)
