"""What the disk refuses, in words: small files that people name, read and written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from secagg.errors import ErrorCode, ServiceError

SESSION_PLACE: Final = "{session}"
"""What stands for the number of a session in the name of a file."""


def nearest_place(path: Path) -> Path:
    """Return the path itself, or the closest place above it that exists.

    A link that leads nowhere exists: nothing can be made in its place.
    """
    here = path.absolute()
    return next(each for each in (here, *here.parents) if _exists(each))


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except OSError:  # also a place that this user may not look into
        return False
    return True


@contextmanager
def disk(path: Path, *, if_exists: str = "Choose another directory.") -> Iterator[None]:
    """Turn what the disk refuses into an error that says what to do.

    Args:
        path: What is made, written or opened.
        if_exists: What to do when it must not be there and is.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    try:
        yield
    except FileExistsError:
        raise ServiceError(
            f"{path} exists already",
            code=ErrorCode.STORAGE_FAILED,
            next_step=if_exists,
        ) from None
    except OSError as error:
        raise ServiceError(
            f"{path} cannot be used: {error.strerror}",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Check the directory, its owner and the free space.",
        ) from None


def read_small(  # noqa: PLR0913 - a file, and what to say of it
    path: Path,
    *,
    most: int,
    code: ErrorCode,
    what: str = "",
    if_unreadable: str = "Check the path and who may read it.",
    if_large: str,
) -> bytes:
    """Read a file whole that somebody may have named by mistake.

    Args:
        path: Where it lies.
        most: Bytes that such a file may have; never more than one above is read.
        code: Under which it is refused.
        what: What it should be, for the message; its path alone by default.
        if_unreadable: What to do when it cannot be read.
        if_large: What to do when it is larger.

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
