"""The rollback mark: it detects a store that was restored from a backup.

A backup, a snapshot or a copied machine restores a store that lacks what was sent
since.  Its owner would answer twice in two ways, reopen a closed round or spend a
budget again.  So a store counts its commits. The count is kept a second time, in a file
outside the store's directory and its backups.

Rule 1: the order is commit, mark, send.  A crash in between leaves the store ahead of
        the mark, which is harmless: nothing of that commit was sent.
Rule 2: a mark ahead of the store, the mark of another store and a missing mark are
        refused.  The lost records cannot be recovered: only a person can decide.
Rule 3: the mark reaches the disk before `write` returns.  It is written once for each
        transaction of the store, however many callers share the transaction. A later
        mark for several transactions would not detect a restore to the last of those
        whose answers were sent.
Rule 4: one running store per mark.  A copy of the store fits the mark as well as the
        original does, until one of the two commits. So a lock is held while the store
        is open, and a mark that another process has replaced is never replaced again.

The file has two slots of `SLOT_BYTES`, each a block of the disk of its own.  A slot
holds one mark, 32 bytes, the rest is zero:

    0   8   store_id
    8   8   generation, big-endian
    16  16  the first half of SHA-256("secagg rollback mark v1" || bytes 0 to 15)

The higher generation counts.  A mark is written in place over the slot that does *not*
count, and the slots change roles when it is on the disk. No file is made, renamed or
removed, which would cost more than the write itself.  A power cut leaves one of these:

* nothing of the new mark is on the disk: the old one counts, as if the crash had come
  before the write (rule 1);
* the new mark is there as a whole: it counts;
* anything else is not a mark.  The old one is whole, in the other slot. The interrupted
  write came after a commit, so the store is ahead of it by at least one commit.  So a
  damaged, short or unreadable slot adds one to the generation of the other slot.  A
  disk that later loses the newer slot accepts no restored store. One that loses the
  older slot has the store refused, since it is unknown which slot was older.

Both slots are made at once, with the same mark, in a new file that takes its name when
it is on the disk.  The first mark that a process writes is made in the same way. After
a disk error the mark that it read may be in memory only. The older one must not be
overwritten before a newer one is on the disk.  A mark that does not continue the one
before, of a renamed store, is made in the same way, too.  Valid are only two slots of
one store, of which at least one is whole.

It detects nothing where store and mark are restored together, as from a snapshot of a
whole machine.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from secagg.errors import ErrorCode, SecAggError
from secagg.runtime.files import sync_directory
from secagg.storage.directories import open_lock

STORE_ID_BYTES: Final = 8
SLOT_BYTES: Final = 4096
"""What a disk writes at once: a write that is cut touches nothing of the other slot."""

_GENERATION_BYTES: Final = 8
_CHECK_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Mark:
    """States how many commits a store has seen.

    Attributes:
        store_id: `STORE_ID_BYTES` random bytes, drawn when the store was made.
        generation: Number of its commits.
    """

    store_id: bytes
    generation: int

    def encode(self) -> bytes:
        """Return the bytes of a slot: id, generation as u64, checksum."""
        data = self.store_id + self.generation.to_bytes(_GENERATION_BYTES, "big")
        return data + _check(data)

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """Decode what `encode` wrote; return None for anything else."""
        content, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
        if len(content) != STORE_ID_BYTES + _GENERATION_BYTES:
            return None
        if check != _check(content):
            return None
        generation = int.from_bytes(content[STORE_ID_BYTES:], "big")
        return cls(content[:STORE_ID_BYTES], generation)

    def follows(self, earlier: "Mark") -> bool:
        """Whether this mark is of the same store, and not older."""
        return (
            self.store_id == earlier.store_id and self.generation > earlier.generation
        )


_RECORD_BYTES: Final = STORE_ID_BYTES + _GENERATION_BYTES + _CHECK_BYTES


@dataclass(frozen=True, slots=True)
class _Slots:
    """Holds the marks in the two slots of a file; None for an invalid one.

    Attributes:
        newest: The mark that counts; None for a file that is damaged as a whole.
        place: Slot of that mark, 0 or 1.
        other: The mark of the other slot.
    """

    newest: Mark | None
    place: int = 0
    other: Mark | None = None

    @classmethod
    def of(cls, first: Mark | None, second: Mark | None) -> Self:
        """Return the slots that were read."""
        if first is None:
            return cls(second, 1, None)
        if second is None:
            return cls(first, 0, None)
        if first.store_id != second.store_id:
            return cls(None)
        if second.generation > first.generation:
            return cls(second, 1, first)
        return cls(first, 0, second)

    def least(self) -> Mark | None:
        """Return the least number of commits of the store; None when it is unknown."""
        if self.newest is None or self.other is not None:
            return self.newest
        return Mark(self.newest.store_id, self.newest.generation + 1)


def mark_in(rows: Iterable[Sequence[object]]) -> Mark | None:
    """Return the mark in a store's one row; None for anything else.

    Args:
        rows: Identifier and generation, as stored.
    """
    match [tuple(row) for row in rows]:
        case [(bytes() as store_id, int() as generation)] if (
            len(store_id) == STORE_ID_BYTES and generation >= 0
        ):
            return Mark(store_id, generation)
    return None


class RollbackMark:
    """Reads and writes the file with the mark of one store.

    Args:
        path: The file.  Its directory is made, for its owner only, when it is missing.
            Beside it lies a lock, a file with ``.lock`` added to the name.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._held = contextlib.ExitStack()
        # The last mark that this object has read or written, and tried to write since.
        self._slots: _Slots | None = None
        self._tried: set[Mark] = set()
        # Whether the last known mark was on the disk when it was written.
        self._lasts = False

    def __repr__(self) -> str:
        return f"RollbackMark({str(self.path)!r})"

    def hold(self, *, wait_seconds: float) -> None:
        """Lock the mark against all other stores until `release`.

        The operating system drops the lock when the process dies.

        Args:
            wait_seconds: How long to wait for another holder of the lock.

        Raises:
            ServiceError: STORAGE_FAILED; another store is open under this mark, or the
                files cannot be made or read.
        """
        with contextlib.ExitStack() as held:
            lock = held.enter_context(open_lock(lock_of(self.path)))
            if not lock.acquire_within(wait_seconds):
                raise ErrorCode.STORAGE_FAILED.error(
                    f"the rollback mark {self.path} is in use: another process runs "
                    "with this state, with a copy of it, or with another state",
                    fix="Stop the other process. Of a state and its copies only one "
                    "may ever run: keep the one that ran last, and remove the others. "
                    "Different states need different rollback marks.",
                )
            self._cache_slots(self._read_file(), lasts=False)
            self._held = held.pop_all()

    def release(self) -> None:
        """Release the lock; harmless when repeated."""
        self._held.close()

    def delete_mark(self, *, check: Callable[[], None] = lambda: None) -> bool:
        """Delete the mark; return whether one existed.

        The lock beside it stays. A process that waits for a lock whose file is removed
        would hold another one than the process that comes next.

        Args:
            check: Raises if the mark must not be deleted; called while no other process
                holds the lock.

        Raises:
            ServiceError: STORAGE_FAILED; a process holds it, or the disk refuses.
        """
        if not self._read_file():
            return False
        self.hold(wait_seconds=0.0)
        try:
            check()
            self.path.unlink()
            sync_directory(self.path.parent)
        except OSError as error:
            raise self._failure("removed", error) from None
        finally:
            self.release()
        return True

    def read(self) -> Mark | None:
        """Return the least number of commits of the store; None without a mark.

        Raises:
            ServiceError: STORAGE_FAILED when the file cannot be read; RESTORED_STATE
                when it holds no mark.
        """
        found = self._read_file()
        self._cache_slots(found, lasts=False)
        if found is None:
            return None
        mark = found.least()
        if mark is None:
            raise _restored(f"the rollback mark {self.path} is damaged", self.path)
        return mark

    def write(self, mark: Mark) -> None:
        """Replace the mark; return when it is on the disk.

        Raises:
            ServiceError: STORAGE_FAILED; the old mark may still be there.
                RESTORED_STATE when the file is no longer what this object has read or
                written last: another store writes it, or it was restored.
        """
        known = self._slots
        if (
            not self._lasts
            or known is None
            or known.newest is None
            or not mark.follows(known.newest)
        ):
            self._make(mark)
            return
        try:
            # One call puts the bytes on the disk: the file does not grow.
            descriptor = os.open(self.path, os.O_RDWR | os.O_DSYNC)
            with contextlib.ExitStack() as stack:
                stack.callback(os.close, descriptor)
                self._refuse_replaced(_slots_in(descriptor))
                self._tried.add(mark)
                _write_slot(descriptor, 1 - known.place, mark)
        except FileNotFoundError:
            raise self._replaced() from None
        except OSError as error:
            raise self._failure("written", error) from None
        self._cache_slots(_Slots(mark, 1 - known.place, known.newest), lasts=True)

    def _make(self, mark: Mark) -> None:
        """Make a file whose slots both hold a mark, in place of any other."""
        self._refuse_replaced(self._read_file())
        temporary = self.path.with_name(f".{self.path.name}.partial")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_durably(temporary, 2 * _slot(mark))
            self._tried.add(mark)
            temporary.replace(self.path)
            sync_directory(self.path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise self._failure("written", error) from None
        self._cache_slots(_Slots(mark, 0, mark), lasts=True)

    def _cache_slots(self, slots: _Slots | None, *, lasts: bool) -> None:
        self._slots, self._lasts = slots, lasts
        self._tried.clear()

    def _refuse_replaced(self, found: _Slots | None) -> None:
        """Refuse a file that differs from what this object has written."""
        known = self._slots
        if found == known:
            return
        if found is not None and found.newest in self._tried:
            return  # the write succeeded, although the disk has reported a failure
        # A failed write may have left half a mark in the slot that does not count.
        if (
            self._tried
            and found is not None
            and known is not None
            and known.newest is not None
            and (found.newest, found.place) == (known.newest, known.place)
        ):
            return
        raise self._replaced()

    def _replaced(self) -> SecAggError:
        """Return the error of a mark that was replaced during its use."""
        return _restored(
            f"the rollback mark {self.path} was replaced while the state was in use: "
            "by a copy of the state that runs elsewhere, or by hand",
            self.path,
        )

    def _read_file(self) -> _Slots | None:
        """Return what the mark's file holds; None without a file."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
            with contextlib.ExitStack() as stack:
                stack.callback(os.close, descriptor)
                return _slots_in(descriptor)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failure("read", error) from None

    def _failure(self, verb: str, error: OSError) -> SecAggError:
        """Return the error of a mark that the disk refuses."""
        return ErrorCode.STORAGE_FAILED.error(
            f"the rollback mark {self.path} cannot be {verb}: {error.strerror}",
            fix="Check its directory, the owner and the free space. Do not "
            "delete it: without it the state beside it is refused.",
        )


def default_mark(state_dir: Path) -> Path:
    """Return the default place of the mark of a state directory.

    Under the user's persistent state (`XDG_STATE_HOME`, else ``~/.local/state``), named
    after the directory: a copy of the directory does not take it along.
    """
    home = os.environ.get("XDG_STATE_HOME")
    base = Path(home) if home else Path.home() / ".local" / "state"
    name = sha256(os.fsencode(state_dir.resolve())).hexdigest()[:32]
    return base / "secagg" / f"{name}.mark"


def lock_of(mark: Path) -> Path:
    """Return the empty file beside a mark whose lock keeps other processes away."""
    return mark.with_name(f"{mark.name}.lock")


def refuse_restored(store: Mark, mark: Mark | None, path: Path) -> None:
    """Refuse a store that does not fit the mark.

    Args:
        store: The mark that the store states.
        mark: The mark in the file; None without one.
        path: The file, for the message.

    Raises:
        ServiceError: RESTORED_STATE.
    """
    if mark is None:
        if store.generation > 0:
            raise _restored(
                f"the state has seen {store.generation} commits, but its rollback mark "
                f"{path} is missing: the state was copied or restored",
                path,
            )
    elif mark.store_id != store.store_id:
        raise _restored(
            f"the rollback mark {path} belongs to another state than the one opened: "
            "the state was exchanged, or deleted and started again",
            path,
        )
    elif mark.generation > store.generation:
        raise _restored(
            f"the state has seen {store.generation} commits and its rollback mark "
            f"{path} {mark.generation}: an older state was restored, or half of the "
            "mark is damaged",
            path,
        )


_ONCE: Final = (
    ": open sessions then end, their inputs count as summed, and claims on data that "
    "were made since stay forgotten."
)


def _restored(complaint: str, path: Path) -> SecAggError:
    """Return the error for a state older than its mark."""
    return ErrorCode.RESTORED_STATE.error(
        f"{complaint}. The cause lies on this machine, with no peer. The records since "
        "then are lost: continuing could send a second answer, or spend a privacy "
        "budget twice",
        fix=f"Restore the newest state. Or start again: remove the state, and {path}, "
        "its mark. Or accept the risk explicitly, once, with "
        f"accept_restored=True{_ONCE}",
        at_command="Restore the newest state. Or start again: remove the state, then "
        f"`secagg state forget DIR --config FILE`, which removes {path} and says what "
        "a server and a client need then. Or accept the risk explicitly, once, with "
        f"--restored{_ONCE}",
    )


def _check(data: bytes) -> bytes:
    return sha256(b"secagg rollback mark v1" + data).digest()[:_CHECK_BYTES]


def _slots_in(descriptor: int) -> _Slots:
    return _Slots.of(_read_slot(descriptor, 0), _read_slot(descriptor, 1))


def _read_slot(descriptor: int, place: int) -> Mark | None:
    """Read one of the two slots of a mark; None for one that is damaged."""
    try:
        return Mark.decode(os.pread(descriptor, _RECORD_BYTES, place * SLOT_BYTES))
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None  # a power cut may leave a block that no disk can read


def _slot(mark: Mark) -> bytes:
    return mark.encode().ljust(SLOT_BYTES, b"\0")


def _write_slot(descriptor: int, place: int, mark: Mark) -> None:
    # The whole block is written: no old byte has to be read for it.
    data = _slot(mark)
    if os.pwrite(descriptor, data, place * SLOT_BYTES) < len(data):
        raise OSError(errno.EIO, "a block was written in part")


def _write_durably(path: Path, data: bytes) -> None:
    """Write a file, and flush it to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
