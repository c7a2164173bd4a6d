"""The state of one session: no caller waits for ever, and nothing is taken twice."""

import asyncio

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for
from secagg_testing.counting_meter import CountingMeter
from secagg_testing.inline_store import inline_store

from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.protocol.events import RoundClosed
from secagg.protocol.messages import Round
from secagg.runtime.metrics import SilentMeter
from secagg.runtime.workers import Workers
from secagg.server.session.state import DurableState, JournalPosition
from secagg.simulation import InProcessSession, identity_of
from secagg.storage.change import Change, NewSession, Side
from secagg.storage.queries import LoadSession, ReadMissed
from secagg.storage.sqlite.executor import InlineExecutor

CLIENTS = 3


class HeldStore:
    """Commits when it is told to."""

    def __init__(self, store):
        self._store = store
        self.asked, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def commit(self, change):
        answer = await self._store.commit(change)
        self.asked.set()
        await self.may_go_on.wait()
        return answer


async def opened(clock, clients=CLIENTS):
    """Return a session's state, its store, and the adverts of all clients."""
    parameters = parameters_for(clients, dimension=4, threshold=2)
    session = InProcessSession(parameters, [np.zeros(4, np.uint32)] * clients)
    inner = inline_store()
    new = NewSession(role=Side.SERVER, task="t", number=1, header=b"")
    begun = await inner.commit(Change(key="s", create=new))
    store, taken = HeldStore(inner), []
    durable = DurableState(
        session.server_state,
        "s",
        JournalPosition(begun.sequence, begun.chain),
        store=store,
        workers=Workers(general=InlineExecutor()),
        clock=clock,
        meter=SilentMeter(),
        on_messages=lambda batch: taken.extend(event.sender for event in batch),
        on_round=lambda *_: None,
    )
    adverts = [
        session.message(number, output)
        for number in range(clients)
        for output in session.offer(number)
    ]
    return durable, store, [each for each in adverts if each], taken


@pytest.mark.parametrize("when", ["before it begins", "while it writes"])
def test_a_cancelled_check_does_not_block_other_callers(when):
    async def main(clock):
        durable, store, adverts, taken = await opened(clock)
        sending = [asyncio.ensure_future(durable.submit(adverts[0]))]
        await asyncio.sleep(0)
        if when == "while it writes":
            await store.asked.wait()
            sending.append(asyncio.ensure_future(durable.submit(adverts[1])))
            await asyncio.sleep(0)
        durable._committing.cancel()
        answers = await asyncio.gather(*sending, return_exceptions=True)
        assert {type(each) for each in answers} == {ServiceError}
        assert {each.code for each in answers} == {ErrorCode.STORAGE_FAILED}
        # A repeated message is answered, stored before or not; none is taken twice.
        store.may_go_on.set()
        again = await asyncio.gather(*map(durable.submit, adverts))
        assert again.count(True) == CLIENTS - (when == "while it writes")
        assert sorted(taken) == [identity_of(number) for number in range(CLIENTS)]
        assert durable.state.ROUND is Round.ADVERTISE_KEYS
        assert len(durable.state.adverts) == CLIENTS

    manual_clock.run(main)


def test_messages_that_arrive_during_a_commit_are_checked_together():
    async def main(clock):
        durable, store, adverts, taken = await opened(clock)
        sending = [asyncio.ensure_future(durable.submit(each)) for each in adverts[:1]]
        await store.asked.wait()
        assert not taken
        sending += [asyncio.ensure_future(durable.submit(each)) for each in adverts[1:]]
        await asyncio.sleep(0)
        store.asked.clear()
        store.may_go_on.set()
        assert all(await asyncio.gather(*sending))
        assert await durable.submit(adverts[0]) is False
        assert durable._position.sequence == CLIENTS

    manual_clock.run(main)


class HeldOpenStore:
    """A store that others may write to."""

    is_shared = True

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)


def test_a_timer_rejected_by_the_store_closes_nothing():
    async def main(clock):
        durable, _, adverts, _ = await opened(clock)
        inner = inline_store(now=clock.date)
        new = NewSession(role=Side.SERVER, task="t", number=1, header=b"")
        begun = await inner.commit(Change(key="s", create=new))
        meter = CountingMeter()
        one = DurableState(
            durable.state,
            "s",
            JournalPosition(begun.sequence, begun.chain),
            store=HeldOpenStore(inner),
            workers=Workers(general=InlineExecutor()),
            clock=clock,
            meter=meter,
            on_messages=lambda _: None,
            on_round=lambda *_: None,
        )
        for advert in adverts[:-1]:
            assert await one.submit(advert)
        at = await inner.read(ReadMissed("s", expect=0, previous=begun.chain))
        first = clock.now() + at.seconds_left
        assert one.deadline == first
        # Another aggregator has given the round more time, and this one has not heard.
        await inner.commit(
            Change(
                key="s",
                expect=at.sequence,
                previous=at.chain,
                deadline_seconds=500.0 + at.seconds_left,
                extend=True,
            )
        )

        async def close():
            await one.advance(lambda _: RoundClosed(Round.ADVERTISE_KEYS, bytes(32)))
            return one.state.ROUND

        await clock.sleep_until(first)
        assert await close() is Round.ADVERTISE_KEYS
        assert meter.total["secagg_store_conflicts_total",] == 1
        assert meter.total["secagg_store_batch_records",] == len(adverts) - 1
        assert one.deadline == first + 500.0
        await clock.sleep_until(first + 499.0)
        assert await close() is Round.ADVERTISE_KEYS
        await clock.sleep_until(first + 500.0)
        assert await close() is not Round.ADVERTISE_KEYS
        # What it has missed meanwhile is applied, and a look that finds nothing harms
        # nothing.
        await one.refresh()
        assert (await inner.read(LoadSession("s"))).sequence == one.sequence

    manual_clock.run(main)


def test_a_session_ended_by_another_process_accepts_no_messages():
    async def main(clock):
        durable, store, adverts, taken = await opened(clock)
        ended = []
        one = DurableState(
            durable.state,
            "s",
            durable._position,
            store=HeldOpenStore(store._store),
            workers=Workers(general=InlineExecutor()),
            clock=clock,
            meter=SilentMeter(),
            on_messages=taken.extend,
            on_round=lambda *_: None,
            on_end=lambda: ended.append(True),
        )
        at = durable._position
        await store._store.commit(
            Change(key="s", expect=at.sequence, previous=at.chain, end=b"receipt")
        )
        with pytest.raises(RemoteProtocolError) as caught:
            await one.submit(adverts[0])
        assert caught.value.code is ErrorCode.SESSION_OVER
        assert (one.receipt, one.is_over, ended, taken) == (
            b"receipt",
            True,
            [True],
            [],
        )

    manual_clock.run(main)


class SlowStore:
    """A store that takes a while for every commit, and remembers how many records."""

    def __init__(self, store, clock):
        self._store, self._clock = store, clock
        self.is_shared = False
        self.commits = []

    async def commit(self, change):
        await self._clock.sleep_until(self._clock.now() + 0.01)
        self.commits.append(len(change.records))
        return await self._store.commit(change)


def test_messages_soon_after_a_commit_share_the_next_one():
    async def main(clock):
        durable, held, adverts, _ = await opened(clock, clients=6)
        store = durable._store = SlowStore(held._store, clock)
        began = clock.now()

        async def answered(advert, *, sent):
            await clock.sleep_until(began + sent)
            await durable.submit(advert)
            return round(clock.now() - began, 3)

        assert await asyncio.gather(
            answered(adverts[0], sent=0.0),
            answered(adverts[1], sent=0.02),
            answered(adverts[2], sent=0.04),
        ) == [0.01, 0.06, 0.06]
        # The last one that can come holds no caller up.
        assert await asyncio.gather(
            answered(adverts[3], sent=0.06),
            answered(adverts[4], sent=0.07),
            answered(adverts[5], sent=0.08),
        ) == [0.09, 0.09, 0.09]
        # Long after a commit no caller is waited for.
        assert await answered(adverts[0], sent=1.0) == 1.0
        assert store.commits == [1, 2, 3]

    manual_clock.run(main)


def test_messages_waiting_at_the_close_of_a_round_are_checked_first():
    async def main(clock):
        durable, held, adverts, taken = await opened(clock, clients=6)
        store = durable._store = SlowStore(held._store, clock)
        began = clock.now()
        await durable.submit(adverts[0])
        waiting = asyncio.ensure_future(durable.submit(adverts[1]))
        await clock.sleep_until(began + 0.02)
        closed = RoundClosed(Round.ADVERTISE_KEYS, bytes(32))
        await durable.advance(lambda _: closed)
        assert await waiting
        assert len(taken) == 2
        assert durable.state.ROUND is not Round.ADVERTISE_KEYS
        # Neither has waited until the others would have come.
        assert (store.commits, round(clock.now() - began, 3)) == ([1, 1, 1], 0.04)

    manual_clock.run(main)
