"""Verifies what a party keeps on its disk, while no process has it open.

Rule 1: the store is verified and never repaired: lost records cannot be guessed.
Rule 2: every upload that an open session has accepted is searched by its digest. So is
        a sum that a peer may still fetch. What the store names and the spool lacks is
        lost.  Each party states what its sessions name, in `SpoolUse`.
Rule 3: of the spool, objects without a session and objects without their digest may be
        moved into `quarantine`. They are never deleted: a person checks them first.
        Objects in a bucket are named and stay.
"""

import hashlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.protocol.events import Received, SumComputed
from secagg.protocol.messages import Upload
from secagg.runtime.files import disk
from secagg.storage.blobs import STORE_HOME, Blobs, FileBlobs, StoredBlob
from secagg.storage.change import Side
from secagg.storage.journal import decode_server_event
from secagg.storage.queries import FindFaults, ListSessions, LoadSession
from secagg.storage.rows import SessionState, StoredSession
from secagg.storage.spool import SENDER_SUFFIX, SUM, WHOLE_SUFFIX
from secagg.storage.store import StoreReader

_QUARANTINE: Final = "quarantine"
_NAME: Final = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class StateFault:
    """Describes something that is misplaced or damaged.

    Attributes:
        where: A session, a file, or "" for the store as a whole.
        complaint: What is wrong.
        is_damage: Whether something is lost; else it is only misplaced.
        place: Place below the spool that may be moved; None for a part of the store.
    """

    where: str
    complaint: str
    is_damage: bool
    place: str | None = None


@dataclass(frozen=True, slots=True)
class SpoolUse:
    """States what the sessions of a party keep in its spool.

    Attributes:
        uploads: Returns the uploads that an open session needs, by sender.
        has_sum: Returns whether a session that is over states that its sum exists;
            called for the last one only.
        removes_sum_at_offer: Whether the next session removes that sum when it begins;
            else when it ends.
    """

    uploads: Callable[[StoredSession], Mapping[str, Upload]]
    has_sum: Callable[[StoredSession], bool] = lambda _: False
    removes_sum_at_offer: bool = False


def _uploads_of_aggregator(stored: StoredSession) -> Mapping[str, Upload]:
    """Return the uploads that an open session of an aggregator needs."""
    expected: dict[str, Upload] = {}
    for event in map(decode_server_event, stored.records):
        if isinstance(event, SumComputed):
            return {}  # needed for the sum; deleted at the session's end
        if isinstance(event, Received) and event.envelope.kind is Upload:
            expected[event.sender] = Upload.decode(event.envelope.data)
    return expected


USE_OF_AGGREGATOR: Final = SpoolUse(_uploads_of_aggregator)


async def find_state_faults(
    store: StoreReader, blobs: Blobs | None, *, use: SpoolUse | None = None
) -> list[StateFault]:
    """Verify a store, and the uploads of its sessions.

    Args:
        store: The party's store; while it is read, no process can open it.
        blobs: The blobs of its spool; None without a spool.
        use: What its sessions name of the spool; None where they name nothing, as a
            client's do.

    Raises:
        ServiceError: STORAGE_FAILED; something cannot be read.
    """
    faults = [
        StateFault(found.key, found.complaint, is_damage=True)
        for found in await store.read(FindFaults())
    ]
    rows = await store.read(ListSessions(role=Side.SERVER, state=SessionState.ALL))
    known = {row.key.rpartition("/")[2] for row in rows}
    if use is not None and not faults:  # a damaged record names nothing
        last = max(
            (r.position for r in rows if r.ended or use.removes_sum_at_offer), default=0
        )
        for row in rows:
            is_asked = not row.ended or row.position == last
            if is_asked and (stored := await store.read(LoadSession(row.key))):
                faults += _find_lost_objects(stored, blobs, use)
    return faults + ([] if blobs is None else list(_spool_faults(blobs, known)))


def _find_lost_objects(
    stored: StoredSession, blobs: Blobs | None, use: SpoolUse
) -> Iterator[StateFault]:
    """Search the objects that a session states to be in the spool."""
    home = stored.key.rpartition("/")[2]
    if stored.receipt and use.has_sum(stored):
        if blobs is None or not blobs.read(f"{home}/{SUM}", 0, 1):
            gone = "has a sum that its peers may fetch: it is gone"
            yield StateFault(stored.key, gone, is_damage=True)
        return
    expected = use.uploads(stored)
    present = _uploads_in(blobs, home) if blobs is not None and expected else {}
    for sender, upload in expected.items():
        found = present.get(upload.digest.hex())
        if found != upload.size:
            yield StateFault(
                stored.key,
                f"has accepted an upload of {sender!r}, {upload.size} bytes: "
                f"{_size_fault(found, upload.size)}",
                is_damage=True,
            )


def _size_fault(found: int | None, size: int) -> str:
    return "it is gone" if found is None else f"{found} of {size} are there"


def _uploads_in(blobs: Blobs, home: str) -> dict[str, int]:
    """Return how many bytes of each checked upload exist, by digest."""
    return {
        digest: sum(chunk.size for chunk in chunks)
        for digest, _, chunks in _uploads_of(blobs, home)
    }


def quarantine(
    directory: Path, blobs: Blobs | None, faults: list[StateFault]
) -> list[Path]:
    """Move what can be moved into the quarantine; return the new places.

    Args:
        directory: Directory of the party's state, whose store is being read.
        blobs: As for `find_state_faults`; of those in a bucket nothing is moved.
        faults: The faults of `find_state_faults`.

    Raises:
        ServiceError: STORAGE_FAILED; some of it may have been moved.
    """
    quarantine, moved = directory / _QUARANTINE / "spool", []
    if not isinstance(blobs, FileBlobs):
        return []
    with disk(quarantine):
        for fault in faults:
            if fault.place is None:
                continue
            target = quarantine / fault.place
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            count = 0
            while target.exists():  # from an earlier time
                count += 1
                target = target.with_name(f"{Path(fault.place).name}.{count}")
            shutil.move(blobs.directory / fault.place, target)
            moved.append(target)
    return moved


def _spool_faults(blobs: Blobs, known: set[str]) -> Iterator[StateFault]:
    """Yield folders of the spool that belong to no session, and wrong uploads."""
    for home in blobs.first_parts():
        if home == STORE_HOME:
            continue  # how replicas know that it is the same store
        if not _NAME.fullmatch(home):
            complaint = "does not belong to the spool; the aggregator leaves it alone"
        elif home not in known:
            complaint = "belongs to no session of the store; the next start deletes it"
        else:
            yield from _upload_faults(blobs, home)
            continue
        yield StateFault(f"spool/{home}", complaint, is_damage=False, place=home)


def _upload_faults(blobs: Blobs, home: str) -> Iterator[StateFault]:
    """Yield the uploads of a session that are damaged."""
    for digest, place, chunks in _uploads_of(blobs, home):
        if _digest_of_chunks(blobs, chunks) != digest:
            complaint = "does not have its digest: its session ends without a sum"
            yield StateFault(f"spool/{place}", complaint, is_damage=True, place=place)


def _uploads_of(
    blobs: Blobs, home: str
) -> Iterator[tuple[str, str, tuple[StoredBlob, ...]]]:
    """Yield digest, place and pieces of every upload that was checked."""
    uploads = f"{home}/uploads"
    # An unchecked upload has no such object: its sender continues it.
    for named in blobs.list_prefix(uploads):
        place, last = named.name, named.name.rpartition("/")[2]
        digest = last.removesuffix(WHOLE_SUFFIX)
        if last.endswith(SENDER_SUFFIX):
            digest = last.removesuffix(SENDER_SUFFIX)
            sender = blobs.read(place)
            name = sender[0].decode("ascii", "replace") if sender else ""
            place = f"{uploads}/{name}/{digest}"
            chunks = blobs.list_prefix(place) if _NAME.fullmatch(name) else ()
        elif last.endswith(WHOLE_SUFFIX):
            chunks = (named,)
        else:
            continue
        yield digest, place, tuple(chunks)


def _digest_of_chunks(blobs: Blobs, chunks: tuple[StoredBlob, ...]) -> str:
    """Return the digest of an upload in pieces."""
    digest = hashlib.sha256()
    for chunk in chunks:
        found = blobs.read(chunk.name)
        digest.update(found[0] if found else b"")
    return digest.hexdigest()
