"""The state of one session: nobody waits for ever, and nothing is taken twice."""

import asyncio

import numpy as np
import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.messages import Round
from secagg.metrics import SilentMeter
from secagg.runtime.workers import Workers
from secagg.server.durable_state import DurableState, Position
from secagg.simulation import InProcessSession, identity_of
from secagg.storage.change import Change, NewSession, Role
from secagg.testing import manual_clock
from secagg.testing.cohorts import parameters_for
from secagg.testing.inline_book import inline_book
from secagg.testing.manual_clock import InlineExecutor

CLIENTS = 3


class HeldBook:
    """Commits when it is told to."""

    def __init__(self, book):
        self._book = book
        self.asked, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def commit(self, change):
        answer = await self._book.commit(change)
        self.asked.set()
        await self.may_go_on.wait()
        return answer


async def opened(clock):
    """Return a session's state, its book, and the adverts of all clients."""
    parameters = parameters_for(CLIENTS, dimension=4, threshold=2)
    session = InProcessSession(parameters, [np.zeros(4, np.uint32)] * CLIENTS)
    store = inline_book()
    new = NewSession(role=Role.SERVER, task="t", number=1, header=b"")
    begun = await store.commit(Change(key="s", create=new))
    book, taken = HeldBook(store), []
    durable = DurableState(
        session.server_state,
        "s",
        Position(begun.sequence, begun.chain),
        book=book,
        workers=Workers(general=InlineExecutor()),
        clock=clock,
        meter=SilentMeter(),
        on_message=lambda event: taken.append(event.sender),
        on_round=lambda *_: None,
    )
    adverts = [
        session.message(number, output)
        for number in range(CLIENTS)
        for output in session.offer(number)
    ]
    return durable, book, [each for each in adverts if each], taken


@pytest.mark.parametrize("when", ["before it begins", "while it writes"])
def test_a_judge_that_is_cancelled_leaves_nobody_waiting(when):
    async def main(clock):
        durable, book, adverts, taken = await opened(clock)
        sending = [asyncio.ensure_future(durable.submit(adverts[0]))]
        await asyncio.sleep(0)
        if when == "while it writes":
            await book.asked.wait()
            sending.append(asyncio.ensure_future(durable.submit(adverts[1])))
            await asyncio.sleep(0)
        durable._judging.cancel()
        answers = await asyncio.gather(*sending, return_exceptions=True)
        assert {type(each) for each in answers} == {ServiceError}
        assert {each.code for each in answers} == {ErrorCode.STORAGE_FAILED}
        # Whoever sends again is served, stored before or not; nothing is taken twice.
        book.may_go_on.set()
        again = await asyncio.gather(*map(durable.submit, adverts))
        assert again.count(True) == CLIENTS - (when == "while it writes")
        assert sorted(taken) == [identity_of(number) for number in range(CLIENTS)]
        assert durable.state.ROUND is Round.ADVERTISE_KEYS
        assert len(durable.state.adverts) == CLIENTS

    manual_clock.run(main)


def test_messages_that_arrive_during_a_commit_are_judged_together():
    async def main(clock):
        durable, book, adverts, taken = await opened(clock)
        sending = [asyncio.ensure_future(durable.submit(each)) for each in adverts[:1]]
        await book.asked.wait()
        assert not taken
        sending += [asyncio.ensure_future(durable.submit(each)) for each in adverts[1:]]
        await asyncio.sleep(0)
        book.asked.clear()
        book.may_go_on.set()
        assert all(await asyncio.gather(*sending))
        assert await durable.submit(adverts[0]) is False
        assert durable._position.sequence == CLIENTS

    manual_clock.run(main)
