"""Small files: whole or absent also after a crash, with errors of the disk as texts.

Rule 1: a file is written under a temporary name, reaches the disk, and is then renamed.
Rule 2: functions that write raise OSError; the caller translates it.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from secagg.errors import ErrorCode, ServiceError

SESSION_PLACE: Final = "{session}"
"""Replaced by the number of a session in the name of a file."""


def nearest_place(path: Path) -> Path:
    """Return the path itself, or its closest existing parent.

    A broken link counts as existing: nothing can be made in its place.
    """
    here = path.absolute()
    return next(each for each in (here, *here.parents) if _exists(each))


def _exists(path: Path) -> bool:
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
            f"{path} exists already",
            fix=if_exists,
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
        raise ServiceError(
            f"cannot read {named}: {error.strerror}", code=code, next_step=if_unreadable
        ) from None
    if len(data) > most:
        raise ServiceError(
            f"{named} is larger than {most} bytes", code=code, next_step=if_large
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
    _write(path, lambda stream: stream.write(data), mode, os.link)


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
    _write(path, save, mode, os.replace)


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


def _write(
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
