"""Where log lines go: standard error, one line each (names: `secagg.telemetry`)."""

import logging
import sys

__all__ = ["log_to_stderr"]


def log_to_stderr(level: str) -> None:
    """Send the log lines of this package to standard error.

    Args:
        level: Least severe level: debug, info, warning or error.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    )
    logger = logging.getLogger("secagg")
    logger.addHandler(handler)
    logger.setLevel(level.upper())
