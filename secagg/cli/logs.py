"""Where log lines go: standard error, one line each (names: `runtime.log_events`)."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JSONLines(logging.Formatter):
    """Writes a record as one line of JSON.

    `ts` (UTC), `level`, `logger` and `event` are always there; an event's facts stand
    beside them under their own names, numbers as numbers.  A line that is no event of
    `secagg.runtime.log_events` has its text as `message`; a failure has its traceback
    as `exception`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        ts = datetime.fromtimestamp(record.created, UTC)
        event = getattr(record, "event", None)
        facts = getattr(record, "facts", {"message": record.getMessage()})
        line = {
            **facts,
            "ts": ts.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(level: str, style: str) -> None:
    """Send the log lines of this package to standard error.

    Args:
        level: Least severe level: debug, info, warning or error.
        style: text or json.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines() if style == "json" else logging.Formatter(_TEXT))
    # The handler's level too: others may listen to less severe lines.
    handler.setLevel(level.upper())
    logger = logging.getLogger("secagg")
    logger.addHandler(handler)
    logger.setLevel(level.upper())
