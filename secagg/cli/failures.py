"""What a command that failed says, for people and for programs.

Rule 1: a failure names what happened and the next step, in either form, and never
        more than the exception itself says.
Rule 2: what nobody can be told is lost; the exit code stays what it is.

Nothing heavy is imported here: a command may fail before its libraries are loaded.
"""

import json
import math
import os
import sys
from collections.abc import Mapping
from typing import IO


def give_up(stream: IO[str]) -> None:
    """Write nothing more to a stream that has failed: it would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write_failure(  # noqa: PLR0913 - one argument per key of the JSON object
    message: str,
    *,
    next_step: str = "",
    code: int = 0,
    name: str,
    exit_code: int,
    as_json: bool,
) -> None:
    """Print a failure of any kind to standard error, and as JSON if asked to.

    Args:
        message: What happened.
        next_step: What to do now.
        code: Number of the `ErrorCode`; 0 when it is none.
        name: Of the code, or of the kind of failure.
        exit_code: What the process ends with.
        as_json: Whether standard output gets one JSON object as well.
    """
    label = f"error {exit_code} ({name})" if code else "error"
    step = f"next step: {next_step}\n" if next_step else ""
    _say(sys.stderr, f"{label}: {message}\n{step}")
    if as_json:
        error = {
            "code": code,
            "name": name,
            "exit_code": exit_code,
            "message": message,
            "next_step": next_step,
        }
        _say(sys.stdout, to_json_line({"error": error}) + "\n")


def _say(stream: IO[str], text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        give_up(stream)


def to_json_line(payload: Mapping[str, object]) -> str:
    """Return one line of strict JSON; numbers that JSON lacks become null."""
    return json.dumps(_strict(payload), allow_nan=False, ensure_ascii=False)


def _strict(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _strict(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    return value
