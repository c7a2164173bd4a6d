"""A lock on a directory that several processes open for a moment each.

A store in a file belongs to the process that has it open, and two that open it at the
same instant would each wait for the other to let go.  So they take turns before they
open it.  The operating system gives the turn of a process that dies to the next one.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from secagg.errors import ErrorCode, SecAggError

TURN_SECONDS: Final = 30.0
"""How long others may take: a turn takes some milliseconds, and a hundred may wait."""
POLL_SECONDS: Final = 0.02

# "process 4294967295": a number in a file that any program may have written.
_MAX_HOLDER_BYTES: Final = 32


class FileLock:
    """A lock that one process at a time has; made by `open_lock`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path: Final = path
        self._descriptor = descriptor

    def take(self) -> bool:
        """Take the lock if it is free, and say in its file which process has it.

        Raises:
            ServiceError: STORAGE_FAILED; it cannot be locked.
        """
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise _refused(self.path, f"cannot be locked: {error.strerror}") from None
        with contextlib.suppress(OSError):  # it only helps a person
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)
        return True

    def wait(self, seconds: float) -> None:
        """Take the lock, and block until it is free.

        Raises:
            ServiceError: STORAGE_FAILED; it cannot be locked, or others keep it.
        """
        deadline = time.monotonic() + seconds
        while not self.take():
            if time.monotonic() >= deadline:
                raise self.held()
            time.sleep(POLL_SECONDS)  # noqa: TID251 - no event loop is blocked

    def held(self) -> SecAggError:
        """Build the error for a lock that another process keeps."""
        with contextlib.suppress(OSError):
            holder = os.pread(self._descriptor, _MAX_HOLDER_BYTES, 0)
            if holder.isdigit():
                return _refused(self.path, f"is held by process {int(holder)}")
        return _refused(self.path, "is held by another process")


@contextmanager
def open_lock(path: Path) -> Iterator[FileLock]:
    """Give out the lock in a file, not taken yet; it is free after the block.

    Args:
        path: The file; its directory is made, readable by its owner only.

    Raises:
        ServiceError: STORAGE_FAILED; it cannot be made.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _refused(path, f"cannot be made: {error.strerror}") from None
    try:
        yield FileLock(path, descriptor)
    finally:
        os.close(descriptor)


def claims_lock(directory: Path) -> Path:
    """Return the file whose lock keeps others away from claims that clients share."""
    return directory / "turn.lock"


def _refused(path: Path, complaint: str) -> SecAggError:
    return ErrorCode.STORAGE_FAILED.error(
        f"{path} {complaint}",
        fix="Check that the directory is on a disk of this machine, that its "
        "owner can write, and that no other program keeps it.",
    )
