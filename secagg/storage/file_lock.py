"""One at a time at a book that several processes open for a moment each.

A book in a file belongs to whoever has it open, and two that open it at the same
instant would each wait for the other to let go.  So they take turns before they open
it.  The operating system gives the turn of a process that dies to the next one.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from secagg.errors import ErrorCode, ServiceError

# A turn takes some milliseconds; a hundred may wait for theirs.
_WAIT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.02


@asynccontextmanager
async def in_turn(
    directory: Path, *, wait_seconds: float = _WAIT_SECONDS
) -> AsyncIterator[None]:
    """Keep others away from a directory that they come to by this, too.

    Args:
        directory: Made, readable by its owner only, when it does not exist.
        wait_seconds: How long others may take.

    Raises:
        ServiceError: STORAGE_FAILED; it cannot be made or locked, or others keep it.
    """
    path = directory / "turn.lock"
    with contextlib.ExitStack() as stack:
        lock = _made(path)
        stack.callback(os.close, lock)
        await _taken(lock, path, wait_seconds)
        yield


def _made(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _refused(path, f"cannot be made: {error.strerror}") from None


async def _taken(lock: int, path: Path, wait_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if loop.time() >= deadline:
                raise _refused(path, "is held by another process") from None
            await asyncio.sleep(_POLL_SECONDS)
        except OSError as error:
            raise _refused(path, f"cannot be locked: {error.strerror}") from None
        else:
            return


def _refused(path: Path, complaint: str) -> ServiceError:
    return ServiceError(
        f"{path} {complaint}",
        code=ErrorCode.STORAGE_FAILED,
        next_step="Check that the directory is on a disk of this machine, that its "
        "owner can write, and that no other program keeps it.",
    )
