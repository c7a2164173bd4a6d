from secagg.errors import ErrorCode
from secagg.server.refusals import RefusalCounts
from secagg.testing.manual_clock import ManualClock


def test_refusals_are_counted_by_code_for_an_hour():
    clock = ManualClock()
    counts = RefusalCounts(clock)
    counts.note(ErrorCode.NOT_INVITED)
    clock.advance(1800)
    for _ in range(3):
        counts.note(ErrorCode.DEADLINE)
    assert list(counts.of_last_hour().items()) == [("DEADLINE", 3), ("NOT_INVITED", 1)]
    clock.advance(1800)
    assert counts.of_last_hour() == {"DEADLINE": 3}
    clock.advance(3600)
    assert counts.of_last_hour() == {}


def test_however_many_refusals_take_no_room():
    clock = ManualClock()
    counts = RefusalCounts(clock)
    for _ in range(10_000):
        clock.advance(7)
        counts.note(ErrorCode.OVERLOADED)
    assert len(counts._slices) <= 61
