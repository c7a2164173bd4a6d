"""Small files that exist whole or not at all, also after a crash.

Rule 1: a file is written under a temporary name, reaches the disk, and is then renamed.
Rule 2: the caller translates errors: every function raises OSError.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

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
