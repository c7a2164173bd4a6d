"""Small files, whole or absent also after a crash, and files of lines that only grow.

Rule 1: a file is written under a temporary name, reaches the disk, and is then renamed.
Rule 2: functions that write raise OSError; the caller translates it.

The record of an issuer is a file of JSON objects, one a line, that only grows:

Rule 3: a line has reached the disk when `append` returns.
Rule 4: opening reads the whole file.  Every line must be in canonical form, with sorted
        keys.
Rule 5: one process at a time, or two would issue the same number.

In the path of a file of one session, ``{session}`` stands for its number:

Rule 6: the number is the session's own, the one in the server's ``sum-<n>.npy``.  It is
        the same after a restart, so that a session is always given the same input; a
        session that was aborted has a number too.
"""

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any, Final, Self

from secagg.errors import ErrorCode, SecAggError, ServiceError

SESSION_PLACE: Final = "{session}"
"""Replaced by the number of a session in the name of a file."""


def nearest_existing(path: Path) -> Path:
    """Return the path itself, or its closest existing parent.

    A broken link counts as existing: nothing can be made in its place.
    """
    here = path.absolute()
    return next(each for each in (here, *here.parents) if _exists(each))


def _exists(path: Path) -> bool:
    """Return whether a path exists, as a link too."""
    try:
        path.lstat()
    except OSError:  # also a place that this user may not read
        return False
    return True


@contextmanager
def disk(path: Path, *, if_exists: str = "Choose another directory.") -> Iterator[None]:
    """Turn an error of the disk into one with a next step.

    Args:
        path: The file to make, write or open.
        if_exists: The next step if it must not exist and does.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    try:
        yield
    except FileExistsError:
        raise ErrorCode.STORAGE_FAILED.error(
            f"{path} exists already", fix=if_exists
        ) from None
    except OSError as error:
        raise ErrorCode.STORAGE_FAILED.error(
            f"{path} cannot be used: {error.strerror}",
            fix="Check the directory, its owner and the free space.",
        ) from None


def read_small(  # noqa: PLR0913 - a file, and what to say of it
    path: Path,
    *,
    most: int,
    code: ErrorCode,
    what: str = "",
    if_unreadable: str = "Check the path and its permissions.",
    if_large: str,
) -> bytes:
    """Read a whole file that an operator may have named by mistake.

    Args:
        path: The file.
        most: Largest size of such a file; never more than one byte above is read.
        code: Code of the error.
        what: The kind of file, for the message; its path alone by default.
        if_unreadable: The next step when it cannot be read.
        if_large: The next step when it is larger.

    Raises:
        ServiceError: `code`; it cannot be read, or is larger.
    """
    named = f"{what} {path}".lstrip()
    try:
        with path.open("rb") as stream:
            data = stream.read(most + 1)
    except OSError as error:
        raise code.error(
            f"cannot read {named}: {error.strerror}",
            kind=ServiceError,
            fix=if_unreadable,
        ) from None
    if len(data) > most:
        raise code.error(
            f"{named} is larger than {most} bytes", kind=ServiceError, fix=if_large
        )
    return data


PUBLIC: Final = 0o644


def create_file(path: Path, data: bytes, *, mode: int) -> None:
    """Create a file that no other user can open before it has its mode.

    Raises:
        FileExistsError: There is one; it is not changed.
        OSError: It cannot be written; no part of it remains.
    """
    # Linking a second name is the one way of naming a file that fails if the name
    # exists.
    _write_then_name(path, lambda stream: stream.write(data), mode, os.link)


def replace_file(path: Path, data: bytes, *, mode: int = PUBLIC) -> None:
    """Write a file in place of one that may exist.

    Raises:
        OSError: It cannot be written; the old one still exists.
    """
    replace_with(path, lambda stream: stream.write(data), mode=mode)


def replace_with(
    path: Path, save: Callable[[IO[bytes]], object], *, mode: int = PUBLIC
) -> None:
    """Write a file that is too large to be made in memory, as `replace_file` does.

    Args:
        path: Where.
        save: Writes its bytes.
        mode: Its permissions.

    Raises:
        OSError: It cannot be written; the old one still exists.
    """
    _write_then_name(path, save, mode, os.replace)


def sync_directory(directory: Path) -> None:
    """Have the names in a directory reach the disk.

    Raises:
        OSError: The disk refuses.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_then_name(
    path: Path,
    save: Callable[[IO[bytes]], object],
    mode: int,
    take_name: Callable[[Path, Path], None],
) -> None:
    """Write a temporary file to the disk, then let it take the name."""
    temporary = path.with_name(f".{path.name}.partial")
    # Left by a process that died; a running process would lose only its own file.
    temporary.unlink(missing_ok=True)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as stream:
            save(stream)
            stream.flush()
            os.fsync(stream.fileno())
        take_name(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    sync_directory(path.parent)


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
            create_file(path, _encode_row(row), mode=0o600)

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
        line = _encode_row(row)
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
                take(number, _decode_row(line))
            except (LookupError, TypeError, ValueError) as error:
                raise self._damaged(number, str(error)) from None

    def _damaged(self, number: int, complaint: str) -> SecAggError:
        return ErrorCode.STATE_DAMAGED.error(
            f"{self.path}, line {number}: {complaint}", fix=self._next_step
        )


def _decode_row(line: bytes) -> dict[str, Any]:
    """Return the row of a line that is in canonical form."""
    row = json.loads(line)
    if not isinstance(row, dict) or _encode_row(row) != line + b"\n":
        raise ValueError("it is not in canonical form")
    return row


def _encode_row(row: Mapping[str, object]) -> bytes:
    """Return a row as its canonical line."""
    return json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class SessionPath:
    """A path as it was given, with or without a place for the number."""

    path: Path

    @property
    def is_pattern(self) -> bool:
        """Whether every session has a file of its own."""
        return SESSION_PLACE in str(self.path)

    def of(self, session_number: int) -> Path:
        """Return the file of one session."""
        return Path(str(self.path).replace(SESSION_PLACE, str(session_number)))

    def __str__(self) -> str:
        return str(self.path)
