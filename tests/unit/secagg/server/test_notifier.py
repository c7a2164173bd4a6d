"""A notifier wakes all subscribers, in time, with one timer for all."""

import asyncio

from secagg_testing import manual_clock

from secagg.server.notifier import Notifier


def listening(notifier, clock, heard, seconds):
    async def listen():
        await notifier.wait(notifier.subscribe(), seconds)
        heard.append(clock.now())

    return asyncio.ensure_future(listen())


def test_all_subscribers_are_notified_at_the_earliest_deadline():
    async def main(clock):
        notifier, heard, begun = Notifier(clock), [], clock.now()
        first = [listening(notifier, clock, heard, seconds) for seconds in (60, 15, 30)]
        await clock.sleep_until(begun + 10)
        late = listening(notifier, clock, heard, 100)
        await asyncio.wait({*first, late})
        assert heard == [begun + 15] * 4
        await clock.sleep_until(begun + 1000)
        assert len(asyncio.all_tasks()) == 1  # no subscriber waits: no timer either

    manual_clock.run(main)


def test_a_subscriber_before_the_notification_receives_it():
    async def main(clock):
        notifier, begun = Notifier(clock), clock.now()
        ringing = notifier.subscribe()
        notifier.notify_all()
        await notifier.wait(ringing, 60)
        assert clock.now() == begun
        again = asyncio.ensure_future(notifier.wait(notifier.subscribe(), 60))
        await clock.sleep_until(begun + 1)
        notifier.notify_all()
        await again
        assert clock.now() == begun + 1

    manual_clock.run(main)
