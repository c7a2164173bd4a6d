"""A file of JSON objects, one a line, that only grows: the record of an issuer.

Rule 1: a line has reached the disk when `append` returns.
Rule 2: opening reads the whole file.  Every line must be in canonical form, with sorted
        keys.
Rule 3: one process at a time, or two would issue the same number.
"""

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Final, Self

from secagg.errors import ErrorCode, SecAggError
from secagg.runtime.files import create_file, disk


class DurableLines:
    """Such a file, open; make it with `create` and `open`.

    Attributes:
        path: Where it is.
    """

    def __init__(self, path: Path, stream: FileIO, next_step: str) -> None:
        self.path: Final = path
        self._stream: Final = stream
        self._next_step: Final = next_step

    @staticmethod
    def create(path: Path, row: Mapping[str, object]) -> None:
        """Begin a file with its first line, readable by its owner only.

        Raises:
            ServiceError: STORAGE_FAILED; there is one, or it cannot be written.
        """
        with disk(path):
            create_file(path, _line(row), mode=0o600)

    @classmethod
    @contextmanager
    def open(cls, path: Path, *, next_step: str) -> Iterator[Self]:
        """Open a file for this process alone.

        Args:
            path: Where it is.
            next_step: The next step for a damaged file.

        Raises:
            ServiceError: STORAGE_FAILED; it is in use, or cannot be read.
        """
        with disk(path):
            stream = FileIO(path, "r+")
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ErrorCode.STORAGE_FAILED.error(
                    f"{path} is in use by another process",
                    fix="Wait for the other command to end.",
                ) from None
            yield cls(path, stream, next_step)

    def append(self, row: Mapping[str, object]) -> None:
        """Append a line.

        Raises:
            ServiceError: STORAGE_FAILED; what it records must not leave.
        """
        line = _line(row)
        with disk(self.path):
            end = self._stream.seek(0, os.SEEK_END)
            try:
                self._write_whole(line)
                os.fsync(self._stream.fileno())
            except OSError:
                # Half a line would stop the next command.
                with suppress(OSError):
                    self._stream.truncate(end)
                raise

    def _write_whole(self, line: bytes) -> None:
        if self._stream.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read(self, take: Callable[[int, dict[str, Any]], None]) -> None:
        """Read the file, which was just opened.

        Args:
            take: Called with the number and the object of each line; raises
                LookupError, TypeError or ValueError for an impossible one.

        Raises:
            ServiceError: STORAGE_FAILED when it cannot be read; STATE_DAMAGED, naming
                the line.
        """
        with disk(self.path):
            lines = self._stream.readall().split(b"\n")
        if lines.pop():
            raise self._damaged(
                len(lines) + 1,
                "it is incomplete: its record never left, so it may be removed",
            )
        if not lines:
            raise self._damaged(1, "it is missing")
        for number, line in enumerate(lines, 1):
            try:
                take(number, _row(line))
            except (LookupError, TypeError, ValueError) as error:
                raise self._damaged(number, str(error)) from None

    def _damaged(self, number: int, complaint: str) -> SecAggError:
        return ErrorCode.STATE_DAMAGED.error(
            f"{self.path}, line {number}: {complaint}",
            fix=self._next_step,
        )


def _row(line: bytes) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict) or _line(row) != line + b"\n":
        raise ValueError("it is not in canonical form")
    return row


def _line(row: Mapping[str, object]) -> bytes:
    return json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n"
