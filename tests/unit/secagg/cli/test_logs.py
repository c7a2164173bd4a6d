import io
import json
import logging

import pytest

from secagg.cli.output import JSONLines, log_to_stderr
from secagg.runtime import log_events as telemetry

SESSION = {"task": "digits", "number": 7}


@pytest.fixture
def logger():
    logger = logging.getLogger("secagg.test_logs")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger
    logger.handlers.clear()


@pytest.fixture
def lines(logger):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JSONLines())
    logger.addHandler(handler)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_object_on_one_line(logger, lines):
    telemetry.log_event(
        logger, logging.WARNING, telemetry.SESSION_ABORTED, **SESSION, seconds=1.5
    )
    (line,) = lines()
    assert line.pop("ts").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "secagg.test_logs",
        "event": "session_aborted",
        "task": "digits",
        "number": 7,
        "seconds": 1.5,
    }


@pytest.mark.parametrize("form", [JSONLines(), logging.Formatter("%(message)s")])
def test_no_fact_breaks_the_log_line(form, logger, caplog):
    hostile = 'x\n2026-01-01 INFO secagg.server session_completed\u2028"}\r'
    logger.addHandler(caplog.handler)
    telemetry.log_event(
        logger, logging.INFO, telemetry.MESSAGE_REFUSED, sender=hostile, event=hostile
    )
    (record,) = caplog.records
    assert len(form.format(record).splitlines()) == 1
    if isinstance(form, JSONLines):
        line = json.loads(form.format(record))
        assert (line["event"], line["sender"]) == ("message_refused", hostile)


def test_only_facts_with_spaces_are_quoted(logger, caplog):
    logger.addHandler(caplog.handler)
    telemetry.log_event(
        logger, logging.INFO, telemetry.ROUND_CLOSED, round="UNMASKING", reason="a b"
    )
    assert caplog.messages == ["round_closed round=UNMASKING reason='a b'"]


def test_a_failure_is_logged_with_its_traceback_on_one_line(logger, lines):
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        telemetry.log_defect(logger, telemetry.CALL_FAILED)
    (line,) = lines()
    assert line["exception"].startswith("Traceback")


def test_a_line_of_another_library_keeps_its_text(logger, lines):
    logger.info("moved %d files", 3)
    assert lines()[0]["message"] == "moved 3 files"
    assert lines()[0]["event"] is None


@pytest.mark.parametrize(("style", "first"), [("json", "{"), ("text", "2")])
def test_the_setting_selects_the_log_format(style, first, capsys):
    logger = logging.getLogger("secagg")
    log_to_stderr("info", style)
    telemetry.log_event(logger, logging.INFO, telemetry.TRANSPORT_STARTED)
    telemetry.log_event(logger, logging.DEBUG, telemetry.MESSAGE_ACCEPTED)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(first)


def test_every_event_has_a_unique_name():
    names = [name for name in vars(telemetry) if name.isupper() and name[0] != "_"]
    values = [getattr(telemetry, name) for name in names]
    assert len(set(values)) == len(values)
