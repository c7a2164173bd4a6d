"""Directories that programs make for themselves."""

from pathlib import Path
from typing import Final

from secagg.errors import ErrorCode, LocalProtocolError

STORE_FILE: Final = "store.sqlite3"
"""The store of a party that keeps its state in a directory."""


def new_directory(path: Path) -> Path:
    """Make a directory that was not there, readable by its owner only.

    Raises:
        ServiceError: STORAGE_FAILED; it exists and is not empty, or cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_empty = not any(path.iterdir())
    except OSError as error:
        raise ErrorCode.STORAGE_FAILED.error(
            f"{path} cannot be used: {error.strerror}",
            fix="Choose another directory.",
        ) from None
    if not is_empty:
        raise ErrorCode.STORAGE_FAILED.error(
            f"{path} is not empty",
            fix="Choose a directory that does not exist yet.",
        )
    return path


def state_directory(directory: Path) -> Path:
    """Return the directory of a party's state, made for its owner only.

    Raises:
        ServiceError: STORAGE_FAILED; it cannot be made.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return directory.resolve()
    except OSError as error:
        raise ErrorCode.STORAGE_FAILED.error(
            f"the state directory {directory} cannot be made: {error.strerror}",
            fix="Check the path and its owner, or set another state_dir.",
        ) from None


def check_mark_place(mark: Path, store: Path) -> None:
    """Refuse a rollback mark that would be restored together with its store.

    Raises:
        LocalProtocolError: BAD_SETTINGS.
    """
    if mark.resolve().is_relative_to(store.resolve().parent):
        raise ErrorCode.BAD_SETTINGS.error(
            f"the rollback mark {mark} lies in the directory of the state {store}: "
            "both would be restored together",
            kind=LocalProtocolError,
            fix="Choose a place that no backup of the state contains.",
        )
