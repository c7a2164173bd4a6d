import pytest

from secagg.config.task import Schedule, Slot, seconds_of
from secagg.errors import ErrorCode, ServiceError


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1), ("30m", 1800), (" 2h ", 7200), ("366d", 31622400)]
)
def test_durations_are_a_number_and_a_unit(text, seconds):
    assert seconds_of(text, "task.window") == seconds


@pytest.mark.parametrize("text", ["", "30", "m", "0s", "-1h", "1.5h", "367d", "1h30m"])
def test_invalid_durations_are_rejected(text):
    with pytest.raises(ServiceError, match=r"task\.window is no duration") as caught:
        seconds_of(text, "task.window")
    assert caught.value.code is ErrorCode.BAD_SETTINGS


@pytest.mark.parametrize(
    ("schedule", "window", "complaint"),
    [
        ("daily 02:00", None, "neither continuous nor every"),
        ("every", None, "neither continuous nor every"),
        ("every now and then", None, "is no duration"),
        ("every 1h", "61m", "longer than the schedule"),
        ("every 1h", "soon", "is no duration"),
        ("continuous", "5m", "needs a schedule"),
    ],
)
def test_an_invalid_schedule_names_its_setting(schedule, window, complaint):
    with pytest.raises(ServiceError, match=complaint) as caught:
        Schedule.parse(schedule, window)
    assert str(caught.value).startswith("task.")


def test_slots_are_counted_from_1970_so_that_restarts_agree():
    hourly = Schedule.parse("every 1h", "10m")
    assert hourly.slot(7200.0) == Slot(7200, 7800, 10800)
    assert hourly.slot(10799.9) == Slot(7200, 7800, 10800)
    assert Schedule.parse("every 1d", None).slot(86401.0) == Slot(86400, 172800, 172800)
    assert Schedule.parse("continuous", None).slot(5.0) is None
