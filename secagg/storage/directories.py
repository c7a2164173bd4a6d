"""Directories of a program: made, on a disk of this machine, and used in turns.

A directory on another machine is no place for a store in a file.  SQLite needs locks
that hold and a log that is on the disk when it says so.  Network file systems promise
neither, and two machines that share one would both believe that they have the store
alone.

Several processes may open one directory for a moment each.  A store in a file belongs
to the process that has it open. Two processes that open it at the same instant would
each wait for the other.  So they lock a file of the directory before they open it.
When a process dies, the operating system passes the lock to the next one.
"""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from secagg.errors import ErrorCode, LocalProtocolError, SecAggError
from secagg.runtime.files import disk

STORE_FILE: Final = "store.sqlite3"
"""The store of a party that keeps its state in a directory."""


def new_directory(path: Path) -> Path:
    """Make a directory that was not there, readable by its owner only.

    Raises:
        ServiceError: STORAGE_FAILED; it exists and is not empty, or cannot be made.
    """
    with disk(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_empty = not any(path.iterdir())
    if not is_empty:
        raise ErrorCode.STORAGE_FAILED.error(
            f"{path} is not empty", fix="Choose a directory that does not exist yet."
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


_MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = frozenset(
    {
        *("afs", "ceph", "cifs", "lustre", "nfs", "nfs4", "smb3", "smbfs"),
        *("fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
    }
)
_MOUNT_POINT: Final = 4
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def refuse_network_disk(directory: Path) -> None:
    """Refuse a directory on a network file system; a system that says nothing passes.

    Args:
        directory: Of the store; what does not exist yet counts as what is above it.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    kind = _kind_of(directory.resolve())
    if kind in _NETWORK:
        raise ErrorCode.BAD_SETTINGS.error(
            f"{directory} is on a network file system ({kind}), where a store in a "
            "file is not safe",
            fix="Keep state_dir on a disk of this machine, even if your home "
            "directory is not on one; what `secagg server` keeps may be in a database "
            "instead (server.store).",
        )


def _kind_of(path: Path) -> str:
    """Return the file system of a path, as `proc(5)` names it; empty if unknown."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # another system than Linux
        return ""
    kind, depth = "", -1
    for line in lines:
        mounted, _, source = line.partition(" - ")
        escaped = mounted.split(" ")[_MOUNT_POINT]
        point = Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), escaped))
        # Of two at one place the later one hides the other.
        if path.is_relative_to(point) and len(point.parts) >= depth:
            kind, depth = source.partition(" ")[0], len(point.parts)
    return kind


TURN_SECONDS: Final = 30.0
"""How long others may take: a turn takes some milliseconds, and a hundred may wait."""
POLL_SECONDS: Final = 0.02

# "process 4294967295": a number in a file that any program may have written.
_MAX_HOLDER_BYTES: Final = 32


class FileLock:
    """Locks a directory for one process at a time; made by `open_lock`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path: Final = path
        self._descriptor = descriptor

    def acquire(self) -> bool:
        """Acquire the lock if it is free, and write the process id into its file.

        Raises:
            ServiceError: STORAGE_FAILED; the file cannot be locked.
        """
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise _lock_error(
                self.path, f"cannot be locked: {error.strerror}"
            ) from None
        with contextlib.suppress(OSError):  # the process id only helps a person
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)
        return True

    def wait(self, seconds: float) -> None:
        """Acquire the lock, and block until it is free.

        Raises:
            ServiceError: STORAGE_FAILED; the file cannot be locked, or other processes
                keep it.
        """
        if not self.acquire_within(seconds):
            raise self.held()

    def acquire_within(self, seconds: float) -> bool:
        """Acquire the lock, and block until it is free; return whether it was in time.

        Raises:
            ServiceError: STORAGE_FAILED; the file cannot be locked.
        """
        deadline = time.monotonic() + seconds
        while not self.acquire():
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)  # noqa: TID251 - no event loop is blocked
        return True

    def held(self) -> SecAggError:
        """Build the error for a lock that another process keeps."""
        with contextlib.suppress(OSError):
            holder = os.pread(self._descriptor, _MAX_HOLDER_BYTES, 0)
            if holder.isdigit():
                return _lock_error(self.path, f"is held by process {int(holder)}")
        return _lock_error(self.path, "is held by another process")


@contextmanager
def open_lock(path: Path) -> Iterator[FileLock]:
    """Yield the lock in a file, not acquired yet; it is released after the block.

    Args:
        path: The file; its directory is made, readable by its owner only.

    Raises:
        ServiceError: STORAGE_FAILED; the file cannot be made.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _lock_error(path, f"cannot be made: {error.strerror}") from None
    try:
        yield FileLock(path, descriptor)
    finally:
        os.close(descriptor)


def claims_lock(directory: Path) -> Path:
    """Return the file whose lock guards the claims that clients share."""
    return directory / "turn.lock"


def _lock_error(path: Path, complaint: str) -> SecAggError:
    """Return the error of a file that cannot be locked."""
    return ErrorCode.STORAGE_FAILED.error(
        f"{path} {complaint}",
        fix="Check that the directory is on a disk of this machine, that its "
        "owner can write, and that no other program keeps it.",
    )
