"""The rollback mark: how a book that was set back is noticed.

A backup, a snapshot or a copied machine brings back a book that has forgotten what was
sent since.  Its owner would answer twice in two ways, reopen a closed round or spend a
budget again.  So a book counts its commits, and the count is kept a second time, in a
file that does not lie beside the book and is not part of its backups.

Rule 1: the order is commit, mark, send.  A crash in between leaves the book ahead of
        the mark, which is harmless: nothing of that commit was sent.
Rule 2: a mark ahead of the book, the mark of another book and a missing mark are
        refused.  What was forgotten cannot be found out: only a person can decide.
Rule 3: the mark is replaced by rename and reaches the disk before `write` returns.
Rule 4: one running book per mark.  A copy of the book beside it would fit the mark as
        well as the original does, until one of the two has moved on: so a lock is held
        for as long as the book is open, and a mark that somebody else has replaced is
        never replaced again.

It notices nothing where book and mark are set back together, as a snapshot of a whole
machine does.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from secagg.errors import ErrorCode, ServiceError

__all__ = [
    "BOOK_ID_BYTES",
    "Mark",
    "RollbackMark",
    "default_mark",
    "mark_in",
    "refuse_set_back",
]

BOOK_ID_BYTES: Final = 8
_GENERATION_BYTES: Final = 8
_CHECK_BYTES: Final = 16
_LOCK_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a book has come.

    Attributes:
        book_id: `BOOK_ID_BYTES` random bytes, drawn when the book was made.
        generation: How many commits it has seen.
    """

    book_id: bytes
    generation: int

    def encode(self) -> bytes:
        """Return the file's bytes: id, generation as u64, checksum."""
        data = self.book_id + self.generation.to_bytes(_GENERATION_BYTES, "big")
        return data + _check(data)

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """Read what `encode` wrote; None for anything else."""
        content, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
        if len(content) != BOOK_ID_BYTES + _GENERATION_BYTES:
            return None
        if check != _check(content):
            return None
        generation = int.from_bytes(content[BOOK_ID_BYTES:], "big")
        return cls(content[:BOOK_ID_BYTES], generation)


def mark_in(rows: Iterable[Sequence[object]]) -> Mark | None:
    """Return the mark that a book's one row holds; None for anything else.

    Args:
        rows: Identifier and generation, as stored.
    """
    match [tuple(row) for row in rows]:
        case [(bytes() as book_id, int() as generation)] if (
            len(book_id) == BOOK_ID_BYTES and generation >= 0
        ):
            return Mark(book_id, generation)
    return None


class RollbackMark:
    """The file that holds the mark of one book.

    Args:
        path: The file.  Its directory is made, for its owner only, when it is missing.
            Beside it lies a lock, an empty file with ``.lock`` added to the name.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._lock: int | None = None
        self._content: bytes | None = None

    def __repr__(self) -> str:
        return f"RollbackMark({str(self.path)!r})"

    def hold(self, *, wait_seconds: float) -> None:
        """Keep every other book away from the mark until `release`.

        The operating system drops the lock when the process dies.

        Args:
            wait_seconds: How long somebody who holds it may take to go.

        Raises:
            ServiceError: STORAGE_FAILED; another book is open under this mark, or the
                files cannot be made or read.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(
                self.path.with_name(f"{self.path.name}.lock"),
                os.O_RDWR | os.O_CREAT,
                0o600,
            )
        except OSError as error:
            raise self._failure("locked", error) from None
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, lock)
            self._take(lock, wait_seconds)
            self._content = self._read()
            undo.pop_all()
        self._lock = lock

    def release(self) -> None:
        """Let another book have the mark; harmless when repeated."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> Mark | None:
        """Return the mark, or None when there is none.

        Raises:
            ServiceError: STORAGE_FAILED when the file cannot be read; RESTORED_STATE
                when it holds no mark.
        """
        self._content = self._read()
        if self._content is None:
            return None
        mark = Mark.decode(self._content)
        if mark is None:
            raise _restored(f"the rollback mark {self.path} is damaged", self.path)
        return mark

    def write(self, mark: Mark) -> None:
        """Replace the mark; returns when it is on the disk.

        Raises:
            ServiceError: STORAGE_FAILED; the old mark may still be there.
                RESTORED_STATE when the file is no longer what this object has read or
                written last: another book moves it, or somebody put it back.
        """
        data = mark.encode()
        # The new one may be there already, when only its rename was not yet durable.
        if self._read() not in (self._content, data):
            raise _restored(
                f"the rollback mark {self.path} was replaced while the state was in "
                "use: by a copy of the state that runs elsewhere, or by hand",
                self.path,
            )
        temporary = self.path.with_name(f".{self.path.name}.partial")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_durably(temporary, data)
            temporary.replace(self.path)
            _sync_directory(self.path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise self._failure("written", error) from None
        self._content = data

    def _take(self, lock: int, wait_seconds: float) -> None:
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(_LOCK_POLL_SECONDS)  # noqa: TID251 - of the book's thread
            except OSError as error:
                raise self._failure("locked", error) from None
            else:
                return
        raise ServiceError(
            f"the rollback mark {self.path} is in use: a process runs with a copy of "
            "this state, or with another state",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Stop the other process. Of a state and its copies only one may "
            "ever run: keep the one that ran last, and remove the others. Different "
            "states need different rollback marks.",
        )

    def _read(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failure("read", error) from None

    def _failure(self, verb: str, error: OSError) -> ServiceError:
        return ServiceError(
            f"the rollback mark {self.path} cannot be {verb}: {error.strerror}",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Check its directory, the owner and the free space. Do not "
            "delete it: without it the state beside it is refused.",
        )


def default_mark(state_dir: Path) -> Path:
    """Return where the mark of a state directory is kept when nobody says where.

    Under the user's persistent state (`XDG_STATE_HOME`, else ``~/.local/state``), named
    after the directory: a copy of the directory does not take it along.
    """
    home = os.environ.get("XDG_STATE_HOME")
    base = Path(home) if home else Path.home() / ".local" / "state"
    name = sha256(os.fsencode(state_dir.resolve())).hexdigest()[:32]
    return base / "secagg" / f"{name}.mark"


def refuse_set_back(book: Mark, mark: Mark | None, path: Path) -> None:
    """Refuse a book that does not fit the mark.

    Args:
        book: How far the book says it has come.
        mark: What the file says; None when there is none.
        path: Of that file, for the message.

    Raises:
        ServiceError: RESTORED_STATE.
    """
    if mark is None:
        if book.generation > 0:
            raise _restored(
                f"the state has seen {book.generation} commits, but its rollback mark "
                f"{path} is missing: the state was copied or put back",
                path,
            )
    elif mark.book_id != book.book_id:
        raise _restored(
            f"the rollback mark {path} belongs to another state than the one opened: "
            "the state was exchanged, or deleted and begun anew",
            path,
        )
    elif mark.generation > book.generation:
        raise _restored(
            f"the state has seen {book.generation} commits and its rollback mark "
            f"{path} {mark.generation}: an older state was put back",
            path,
        )


def _restored(complaint: str, path: Path) -> ServiceError:
    return ServiceError(
        f"{complaint}. Whoever did that on this machine is the cause, no peer. What "
        "was sent since is forgotten: going on could send a second answer, or spend a "
        "privacy budget twice",
        code=ErrorCode.RESTORED_STATE,
        next_step="Put the newest state back. Or begin anew: remove the state and "
        f"{path}; a client then needs a new enrolment, a server a new task id. Or "
        "accept the risk explicitly, once: open sessions then end, and their inputs "
        "count as summed.",
    )


def _check(data: bytes) -> bytes:
    return sha256(b"secagg rollback mark v1" + data).digest()[:_CHECK_BYTES]


def _write_durably(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_directory(directory: Path) -> None:
    """Make a rename durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
