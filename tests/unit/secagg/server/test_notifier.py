"""A notifier wakes all subscribers, in time, with one timer for all."""

import asyncio

from secagg_testing import manual_clock

from secagg.server.notifier import Notifier


def listening(bell, clock, heard, seconds):
    async def listen():
        await bell.heard(bell.listen(), seconds)
        heard.append(clock.now())

    return asyncio.ensure_future(listen())


def test_it_rings_for_all_when_the_first_of_them_must_hear_it():
    async def main(clock):
        bell, heard, begun = Notifier(clock), [], clock.now()
        first = [listening(bell, clock, heard, seconds) for seconds in (60, 15, 30)]
        await clock.sleep_until(begun + 10)
        late = listening(bell, clock, heard, 100)
        await asyncio.wait({*first, late})
        assert heard == [begun + 15] * 4
        await clock.sleep_until(begun + 1000)
        assert len(asyncio.all_tasks()) == 1  # no subscriber waits: no timer either

    manual_clock.run(main)


def test_a_subscriber_before_the_notification_receives_it():
    async def main(clock):
        bell, begun = Notifier(clock), clock.now()
        ringing = bell.listen()
        bell.ring()
        await bell.heard(ringing, 60)
        assert clock.now() == begun
        again = asyncio.ensure_future(bell.heard(bell.listen(), 60))
        await clock.sleep_until(begun + 1)
        bell.ring()
        await again
        assert clock.now() == begun + 1

    manual_clock.run(main)
