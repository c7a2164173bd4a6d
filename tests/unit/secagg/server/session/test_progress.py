"""A watcher of sessions misses no change of any."""

import asyncio

from secagg.protocol.messages import Round
from secagg.server.session.events import ProgressFeed, SessionPhase, SessionProgress


def at(number, opened):
    return SessionProgress(
        bytes(32), "t", number, SessionPhase.COLLECTING, opened, 1, 1, 2, 2
    )


async def test_no_change_is_lost_between_the_first_state_and_the_updates():
    feed = ProgressFeed()

    def standing():
        yield at(1, Round.SHARE_KEYS)  # read when the watch begins, and not before
        yield at(2, Round.ADVERTISE_KEYS)

    watching = feed.watch(standing())
    feed.publish(at(1, Round.ADVERTISE_KEYS))
    first = await anext(watching)
    feed.publish(at(2, Round.SHARE_KEYS))
    feed.close()
    seen = [first, *[each async for each in watching]]
    assert seen == [
        at(1, Round.SHARE_KEYS),
        at(2, Round.ADVERTISE_KEYS),
        at(2, Round.SHARE_KEYS),
    ]
    await asyncio.sleep(0)
    assert not feed._watchers
