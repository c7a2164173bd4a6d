from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for

from secagg.protocol.messages import Round
from secagg.protocol.profiles import RoundDeadlines
from secagg.server.session.timer import idle_timeout, keepalive_interval, until

MOMENT = datetime(2027, 1, 31, 18, tzinfo=UTC)


def acts_at(start, *, jump=timedelta(0)):
    """Return the date at which `until` acts, on a machine whose date may jump."""
    acted = []

    async def main(clock):
        begun = clock.now()

        def now():
            waited = timedelta(seconds=clock.now() - begun)
            return start + waited + (jump if waited >= timedelta(hours=1) else ZERO)

        async def act():
            acted.append(now())

        await until(MOMENT, act, clock=clock, now=now)

    manual_clock.run(main)
    (at,) = acted
    return at


ZERO = timedelta(0)


def test_a_task_ends_at_its_date_and_not_before():
    assert acts_at(MOMENT - timedelta(hours=5)) == MOMENT


def test_a_date_in_the_past_ends_the_task_at_once():
    start = MOMENT + timedelta(days=1)
    assert acts_at(start) == start


def test_a_correction_of_the_clock_moves_the_end_of_the_task():
    late = acts_at(MOMENT - timedelta(hours=5), jump=timedelta(hours=3))
    assert MOMENT <= late < MOMENT + timedelta(minutes=1)
    early = acts_at(MOMENT - timedelta(hours=5), jump=timedelta(hours=-3))
    assert early == MOMENT


@pytest.mark.parametrize(
    ("which", "quiet"),
    [
        pytest.param(Round.ADVERTISE_KEYS, 26, id="a third of the round that follows"),
        pytest.param(Round.SHARE_KEYS, 26, id="a third of the round"),
        pytest.param(Round.MASKED_INPUT_COLLECTION, 20, id="never at once"),
        pytest.param(Round.UNMASKING, 240, id="never much later"),
    ],
)
def test_a_stream_times_out_before_a_call_does(which, quiet):
    lasting = RoundDeadlines(
        advertise_keys=90, share_keys=78, masked_input=2000, unmasking=45
    )
    parameters = replace(parameters_for(3, dimension=9, threshold=2), deadlines=lasting)
    assert idle_timeout(which, parameters) == quiet
    assert 0.5 * quiet < keepalive_interval(quiet) < quiet
