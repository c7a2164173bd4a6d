import logging

import pytest
from secagg_testing.manual_clock import ManualClock

from secagg.errors import ErrorCode
from secagg.server.call_guards import RefusalLog
from secagg.server.telemetry.measures import RefusalCounts


def test_rejections_are_counted_by_code_for_an_hour():
    clock = ManualClock()
    counts = RefusalCounts(clock)
    counts.count(ErrorCode.NOT_INVITED)
    clock.advance(1800)
    for _ in range(3):
        counts.count(ErrorCode.DEADLINE)
    assert list(counts.of_last_hour().items()) == [("DEADLINE", 3), ("NOT_INVITED", 1)]
    clock.advance(1800)
    assert counts.of_last_hour() == {"DEADLINE": 3}
    clock.advance(3600)
    assert counts.of_last_hour() == {}


def test_counts_of_rejections_use_bounded_memory():
    clock = ManualClock()
    counts = RefusalCounts(clock)
    for _ in range(10_000):
        clock.advance(7)
        counts.count(ErrorCode.OVERLOADED)
    assert len(counts._slices) <= 61


class Minutes:
    """Ends minutes of the log when a test says so."""

    def __init__(self):
        self.ends = []

    def __call__(self, seconds, end):
        assert seconds == 60.0
        self.ends.append(end)

    def pass_by(self):
        ends, self.ends = self.ends, []
        for end in ends:
            end()


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="secagg")
    return lambda: caplog.messages


def test_rejections_of_one_caller_are_logged_at_once_and_then_once_a_minute(lines):
    minutes = Minutes()
    log = RefusalLog(minutes)
    for _ in range(1179):
        log.write("/S/GetOffer", "a", ErrorCode.BAD_ENCODING)
    log.write("/S/GetOffer", "a", ErrorCode.OVERLOADED)
    (first,) = lines()
    assert all(word in first for word in ("call_refused", "GetOffer", "a"))
    minutes.pass_by()
    assert len(lines()) == 2
    for word in ("calls_refused", "count=1179", "BAD_ENCODING 1178, OVERLOADED 1"):
        assert word in lines()[1]
    minutes.pass_by()  # a quiet one: the next refusal has a line of its own
    assert not minutes.ends
    log.write("/S/GetOffer", "a", ErrorCode.DEADLINE)
    assert len(lines()) == 3
    assert "call_refused" in lines()[2]


def test_rejections_of_one_caller_do_not_hide_those_of_another(lines):
    log = RefusalLog(Minutes())
    for _ in range(10):
        log.write("/S/GetOffer", "loud", ErrorCode.BAD_ENCODING)
    log.write("/S/GetOffer", "quiet", ErrorCode.NOT_INVITED)
    assert ["identity=quiet" in each for each in lines()] == [False, True]


def test_callers_without_new_rejections_use_no_memory():
    minutes = Minutes()
    log = RefusalLog(minutes)
    for number in range(100):
        log.write("/S/GetOffer", f"client-{number}", ErrorCode.BAD_ENCODING)
    minutes.pass_by()
    assert not log._unwritten
