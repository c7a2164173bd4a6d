"""Verifies what a party keeps on its disk, while nobody has it open.

Rule 1: the book is verified and never repaired: what was said cannot be guessed.
Rule 2: of the spool, what belongs to no session and what does not have its digest may
        be moved aside, into `quarantine`, and is never removed: a person looks first.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.errors import ErrorCode, ServiceError
from secagg.storage.book_reader import ReadsBook
from secagg.storage.change import Role
from secagg.storage.spool import HASH_BLOCK_BYTES, SENDER_SUFFIX
from secagg.storage.stored import SessionState

__all__ = ["QUARANTINE", "StateFault", "find_state_faults", "set_aside"]

QUARANTINE: Final = "quarantine"
_NAME: Final = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class StateFault:
    """Something that does not belong where it lies, or is not what it was.

    Attributes:
        where: A session, a file, or "" for the book as a whole.
        complaint: What is wrong.
        is_damage: Something is lost; else it only lies there.
        path: What may be moved aside; None for what lies in the book.
    """

    where: str
    complaint: str
    is_damage: bool
    path: Path | None = None


async def find_state_faults(book: ReadsBook, directory: Path) -> list[StateFault]:
    """Verify a book and the spool beside it.

    Args:
        book: Of the directory; as long as it is read nobody can open it.
        directory: Of the party's state.

    Raises:
        ServiceError: STORAGE_FAILED; a file cannot be read.
    """
    faults = [
        StateFault(found.key, found.complaint, is_damage=True)
        for found in await book.check()
    ]
    rows = await book.sessions(role=Role.SERVER, state=SessionState.ALL)
    known = {row.key.rpartition("/")[2] for row in rows}
    try:
        return faults + list(_spool_faults(directory / "spool", known))
    except OSError as error:
        raise ServiceError(
            f"the spool of {directory} cannot be read: {error.strerror}",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Check the owner of its files, and the disk.",
        ) from None


def set_aside(directory: Path, faults: list[StateFault]) -> list[Path]:
    """Move what can be moved into the quarantine; return where it lies now.

    Args:
        directory: Of the party's state, whose book is being read.
        faults: What `find_state_faults` has found.

    Raises:
        ServiceError: STORAGE_FAILED; some of it may have been moved.
    """
    place, moved = directory / QUARANTINE, []
    try:
        for fault in faults:
            if fault.path is None:
                continue
            target = place / fault.path.relative_to(directory)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            count = 0
            while target.exists():  # from an earlier time
                count += 1
                target = target.with_name(f"{fault.path.name}.{count}")
            fault.path.rename(target)
            moved.append(target)
    except OSError as error:
        raise ServiceError(
            f"{place} cannot be written: {error.strerror}",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Check its owner and the free space.",
        ) from None
    return moved


def _spool_faults(spool: Path, known: set[str]) -> Iterator[StateFault]:
    if not spool.is_dir():
        return
    for home in sorted(spool.iterdir()):
        name = f"spool/{home.name}"
        if not _NAME.fullmatch(home.name) or not home.is_dir():
            complaint = "is none of the spool's; the aggregator leaves it alone"
            yield StateFault(name, complaint, is_damage=False, path=home)
        elif home.name not in known:
            complaint = "belongs to no session of the book; the next start removes it"
            yield StateFault(name, complaint, is_damage=False, path=home)
        else:
            yield from _upload_faults(home)


def _upload_faults(home: Path) -> Iterator[StateFault]:
    uploads = home / "uploads"
    # What has not been checked yet has no such file: its sender goes on with it.
    for named in sorted(uploads.glob(f"*{SENDER_SUFFIX}")):
        digest = named.name.removesuffix(SENDER_SUFFIX)
        stored = uploads / named.read_text(encoding="ascii") / digest
        if _digest(stored) != digest:
            where = f"spool/{home.name}/uploads/{stored.parent.name}/{digest}"
            complaint = "does not have its digest: its session ends without a sum"
            yield StateFault(where, complaint, is_damage=True, path=stored)


def _digest(stored: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(stored.glob("*")):
        with path.open("rb") as stream:
            while block := stream.read(HASH_BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()
