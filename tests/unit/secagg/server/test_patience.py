from datetime import UTC, datetime, timedelta

from secagg.server.patience import until
from secagg.testing import manual_clock

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


def test_a_date_that_has_passed_ends_it_at_once():
    start = MOMENT + timedelta(days=1)
    assert acts_at(start) == start


def test_a_date_that_is_set_right_meanwhile_counts():
    late = acts_at(MOMENT - timedelta(hours=5), jump=timedelta(hours=3))
    assert MOMENT <= late < MOMENT + timedelta(minutes=1)
    early = acts_at(MOMENT - timedelta(hours=5), jump=timedelta(hours=-3))
    assert early == MOMENT
