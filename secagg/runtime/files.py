"""Small files that people name, and errors of the disk as texts."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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
