"""What the time of a session's rounds asks of those who drive it."""

import asyncio
import types

import pytest
from secagg_testing.cohorts import parameters_for
from secagg_testing.manual_clock import ManualClock

from secagg.server.session.timer import RoundTimer


@pytest.mark.parametrize("is_shared", [False, True])
def test_only_the_first_and_last_message_of_a_round_wake_its_driver(is_shared):
    woken, size, messages = asyncio.Event(), 4, []
    offer = types.SimpleNamespace(
        parameters=parameters_for(size, dimension=1, threshold=3, colluders=1),
        session_end=1e9,
    )
    timer = RoundTimer(
        offer,
        "key",
        types.SimpleNamespace(state=None, deadline=None),
        is_shared=is_shared,
        clock=ManualClock(),
        date=0.0,
        woken=woken,
        is_full=lambda: len(messages) == size,
    )
    heard = []
    while len(messages) < size:
        messages.append("another one")
        timer.record_message()
        heard.append(woken.is_set())
        woken.clear()
    assert heard == [True, False, False, True]
