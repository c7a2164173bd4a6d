"""Large bytes: uploads in progress, stored uploads, payloads and sums.

Rule 1: an upload belongs to one sender and one digest.  Chunks may be repeated, also at
        another process; a gap, another size or another digest is refused.
Rule 2: an upload becomes visible in one step: all bytes are on the disk, and their
        digest matches and is written with the name of the sender.  An upload in one
        chunk is compared with its digest before it touches the disk. It is one object,
        which belongs to any sender of these bytes.
Rule 3: a payload and a sum are written once.  A repeated write of the same bytes
        succeeds.
Rule 4: a blob is read in pieces; nothing here holds a vector.
Rule 5: a disk that is nearly full refuses new uploads, as STORAGE_FAILED with a hint
        when to come back. So the journal beside it can still be written.

`secagg.storage.blobs` keeps the bytes, in objects that are never changed.  A session's
home is its id, in hexadecimal, and contains

* ``uploads/<digest>.whole``, an upload that came in one chunk;
* ``uploads/<sender>/<digest>/<offset>``, a chunk of another one as it came, where the
  sender is the SHA-256 of its name;
* ``uploads/<digest>.sender``, the name of the client that sent all bytes of this
  digest, which was checked;
* ``payload`` and ``sum``.

`secagg.runtime` checks that the bytes are a vector, and `secagg.protocol` which clients
may join a session.  Calls block: run them on threads.
"""

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Final

from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.runtime import log_events as telemetry
from secagg.storage.blobs import RETRY_SECONDS, STORE_HOME, Blobs

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)
_SESSION_NAME: Final = re.compile("[0-9a-f]{64}")
_UPLOADS: Final = "uploads"
SENDER_SUFFIX: Final = ".sender"
"""Ends the name of what says who has sent the bytes of a digest."""

WHOLE_SUFFIX: Final = ".whole"
"""Ends the name of an upload that came in one chunk; before it stands the digest."""

PAYLOAD: Final = "payload"
SUM: Final = "sum"

# Large enough to hide the cost of a call, small beside a vector.
HASH_BLOCK_BYTES: Final = 1 << 20
# Room for journals, logs and the sum when uploads have filled the rest.
MIN_FREE_BYTES: Final = 64 << 20

MIN_CHUNK_BYTES: Final = 64 << 10
"""What a chunk brings at least, but for the last one and a few of each upload.

Every chunk is an object, and every call lists those of its upload: chunks of one byte
would cost the store as many objects as a vector has bytes, and calls by their square.
"""

# A chunk that was cut differently before its answer was lost may leave a short rest.
SHORT_CHUNKS: Final = 16

# Digits of an offset: enough for the largest vector, so that names sort.
_OFFSET_DIGITS: Final = 12


class UploadSpool:
    """Keeps uploads, payloads and sums of sessions over a store of blobs.

    It can be sent to other processes.

    Args:
        blobs: Keeps the bytes.  Several processes may share them.
        min_free_bytes: Uploads are refused when fewer bytes would be left.
    """

    def __init__(self, blobs: Blobs, *, min_free_bytes: int = MIN_FREE_BYTES) -> None:
        self._blobs = blobs
        self._min_free_bytes = min_free_bytes
        # Chunks of stored uploads by session and digest: they never change.
        self._chunks: dict[bytes, dict[bytes, tuple[_Chunk, ...]]] = {}
        # Whole uploads do not name their sender: one that sends them one after the
        # other would fill the disk.  Another process, or one after a restart, counts
        # from zero.
        self._brought: dict[bytes, dict[str, bytes]] = {}

    def __repr__(self) -> str:
        return f"UploadSpool({self._blobs!r})"

    def __reduce__(self) -> tuple[partial["UploadSpool"], tuple[Blobs]]:
        """Pickle the spool without its cache."""
        make = partial(UploadSpool, min_free_bytes=self._min_free_bytes)
        return make, (self._blobs,)

    def received(self, session_id: bytes, sender: str) -> int:
        """Return how many bytes of a sender's unfinished upload have arrived."""
        return _end_of_chunks(self._arrived(session_id, sender)[1])

    def append(  # noqa: PLR0913 - one chunk of one upload
        self,
        session_id: bytes,
        sender: str,
        digest: bytes,
        *,
        offset: int,
        total_size: int,
        data: bytes,
    ) -> int:
        """Add a chunk; bytes that were stored before are skipped.

        Returns:
            The number of bytes that have arrived.

        Raises:
            RemoteProtocolError: UPLOAD_CORRUPT for a chunk beyond the total size, and
                for too many that are short; EQUIVOCATION while another upload of the
                sender is in progress.
            ServiceError: UPLOAD_CORRUPT for a gap: the caller asks where to continue;
                for a whole upload also when the digest differs.  STORAGE_FAILED when
                the disk is full.
        """
        bound, chunks = self._arrived(session_id, sender)
        received = _end_of_chunks(chunks)
        fresh = _fresh_bytes(received, offset, total_size, data)
        if self._brought.get(session_id, {}).get(sender, digest) != digest:
            raise _second_upload(sender)
        if bound is None:
            self._check_free_space(total_size)
            if len(data) == total_size:
                self._store_whole(session_id, sender, digest, data)
                return total_size
        elif bound != digest:
            raise _second_upload(sender)
        if not fresh:
            return received
        is_last = received + len(fresh) == total_size
        if len(fresh) < MIN_CHUNK_BYTES and not is_last:
            _refuse_many_short(chunks, sender)
        home = _of_upload(session_id, _sender_digest(sender), digest)
        name = f"{home}/{received:0{_OFFSET_DIGITS}}"
        if self._blobs.create(name, fresh):
            return received + len(fresh)
        # The same chunk has come to another process, perhaps cut differently.
        return self.received(session_id, sender)

    def commit(self, session_id: bytes, sender: str, digest: bytes) -> None:
        """Check the digest of a complete upload and make it visible, durably.

        Raises:
            RemoteProtocolError: EQUIVOCATION; the sender has begun another upload.
            ServiceError: UPLOAD_CORRUPT when the digest differs; the received bytes are
                discarded and the upload begins again.  STORAGE_FAILED.
        """
        brought = self._brought.get(session_id, {}).get(sender)
        if brought == digest and digest in self._chunks.get(session_id, {}):
            self._blobs.sync(_whole_upload_name(session_id, digest))
            return
        bound, chunks = self._arrived(session_id, sender)
        stored = self._object_name(session_id, digest) if bound is None else None
        if stored is not None:
            self._blobs.sync(stored)  # the storing process may not have synced it
            return
        # Also where equal bytes are stored: these may differ.
        hasher = hashlib.sha256()
        home = _of_upload(session_id, _sender_digest(sender), digest)
        for chunk in chunks:
            hasher.update(_read_exactly(self._blobs.read(chunk.name), chunk.size))
        if bound is not None and bound != digest:
            raise _second_upload(sender)  # the accepted one stays
        if hasher.digest() != digest:
            self._blobs.remove(home)
            raise _digest_differs()
        self._blobs.sync(home)
        place = _of_digest(session_id, digest)
        # Of two clients that sent the same bytes, the first is named.
        self._blobs.create(place, _sender_digest(sender).encode("ascii"))
        self._blobs.sync(place)

    def discard(self, session_id: bytes, sender: str, digest: bytes) -> None:
        """Delete an upload whose bytes are invalid; do nothing without one."""
        self._blobs.remove(_whole_upload_name(session_id, digest))
        self._blobs.remove(_of_digest(session_id, digest))
        self._blobs.remove(_of_upload(session_id, _sender_digest(sender), digest))
        self._chunks.get(session_id, {}).pop(digest, None)
        self._brought.get(session_id, {}).pop(sender, None)

    def missing_uploads(
        self, session_id: bytes, digests: AbstractSet[bytes], size: int
    ) -> frozenset[bytes]:
        """Return the uploads that are not stored with all their bytes.

        Args:
            session_id: The session.
            digests: Digests of committed uploads.
            size: Bytes of each upload.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        sizes: dict[str, int] = {}
        ends: Counter[str] = Counter()
        for blob in self._blobs.list_prefix(f"{session_id.hex()}/{_UPLOADS}"):
            sizes[blob.name] = blob.size
            home, _, name = blob.name.rpartition("/")
            if name.isdecimal() and int(name) == ends[home]:
                ends[home] += blob.size

        def is_stored(digest: bytes) -> bool:
            if sizes.get(_whole_upload_name(session_id, digest)) == size:
                return True
            place = _of_digest(session_id, digest)
            found = self._blobs.read(place) if place in sizes else None
            if found is None:
                return False
            sender = found[0].decode("ascii", errors="replace")
            return ends[_of_upload(session_id, sender, digest)] == size

        missing = frozenset(each for each in digests if not is_stored(each))
        for digest in missing:
            self._chunks.get(session_id, {}).pop(digest, None)
        return missing

    def read_upload(
        self, session_id: bytes, digest: bytes, offset: int, size: int
    ) -> bytes:
        """Read exactly `size` bytes of a stored upload.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        pieces, end = [], offset + size
        for chunk in self._chunks_of(session_id, digest):
            if chunk.start < end and offset < chunk.end:
                skipped = max(0, offset - chunk.start)
                wanted = min(end, chunk.end) - chunk.start - skipped
                found = self._blobs.read(chunk.name, skipped, wanted)
                pieces.append(_read_exactly(found, wanted))
        data = b"".join(pieces)
        return _read_exactly((data, len(data)), size)

    def put(self, session_id: bytes, name: str, data: bytes) -> None:
        """Store a payload or a sum under its name, durably and in one step.

        Raises:
            ServiceError: STORAGE_FAILED; also where other bytes have this name.
        """
        place = f"{session_id.hex()}/{name}"
        if not self._blobs.create(place, data) and self._blobs.read(place) != (
            data,
            len(data),
        ):
            raise ErrorCode.STORAGE_FAILED.error(
                f"the {name} of a session was stored before, with other bytes",
                fix="Leave the spool alone while sessions run.",
            )
        self._blobs.sync(place)

    def read(
        self, session_id: bytes, name: str, offset: int, max_bytes: int | None = None
    ) -> tuple[bytes, int] | None:
        """Return a piece of a payload or sum and its total size, or None."""
        return self._blobs.read(f"{session_id.hex()}/{name}", offset, max_bytes)

    def drop_uploads(self, session_id: bytes) -> None:
        """Remove all uploads of a session: no party may need or read them again."""
        self._blobs.remove(f"{session_id.hex()}/{_UPLOADS}")
        self._discard(session_id)

    def remove(self, session_id: bytes) -> None:
        """Remove all objects of a session."""
        self._blobs.remove(session_id.hex())
        self._discard(session_id)

    def session_ids(self) -> tuple[bytes, ...]:
        """Return the sessions with stored objects."""
        homes = tuple(n for n in self._blobs.first_parts() if n != STORE_HOME)
        ours = tuple(name for name in homes if _SESSION_NAME.fullmatch(name))
        if len(ours) < len(homes):
            telemetry.log_event(
                _LOG,
                logging.WARNING,
                telemetry.SPOOL_MISMATCH,
                name=min(set(homes) - set(ours)),
                reason="not a session of the spool, left alone",
            )
        return tuple(map(bytes.fromhex, ours))

    def age_seconds(self, session_id: bytes) -> float:
        """Return how long ago an object was stored for a session."""
        return self._blobs.age_seconds(session_id.hex())

    def _arrived(
        self, session_id: bytes, sender: str
    ) -> tuple[bytes | None, tuple["_Chunk", ...]]:
        """Return the digest that a sender announced, and its received bytes."""
        home = f"{session_id.hex()}/{_UPLOADS}/{_sender_digest(sender)}"
        found = self._blobs.list_prefix(home)
        if not found:
            return None, ()
        # Of two digests that came at the same moment, the first by name counts.
        digest = bytes.fromhex(found[0].name.split("/")[-2])
        return digest, self._chunks_in(
            _of_upload(session_id, _sender_digest(sender), digest)
        )

    def _store_whole(
        self, session_id: bytes, sender: str, digest: bytes, data: bytes
    ) -> None:
        """Store an upload that came in one chunk, if its bytes have their digest."""
        if hashlib.sha256(data).digest() != digest:
            raise _digest_differs()
        name = _whole_upload_name(session_id, digest)
        self._brought.setdefault(session_id, {})[sender] = digest
        self._blobs.create(name, data)  # a taken name has equal bytes
        chunks = (_Chunk(name, 0, len(data)),)
        self._chunks.setdefault(session_id, {})[digest] = chunks

    def _object_name(self, session_id: bytes, digest: bytes) -> str | None:
        """Return the name of the object that makes an upload visible."""
        for name in (
            _whole_upload_name(session_id, digest),
            _of_digest(session_id, digest),
        ):
            if self._blobs.read(name, 0, 0) is not None:
                return name
        return None

    def _discard(self, session_id: bytes) -> None:
        self._chunks.pop(session_id, None)
        self._brought.pop(session_id, None)

    def _chunks_of(self, session_id: bytes, digest: bytes) -> tuple["_Chunk", ...]:
        """Return the stored chunks of an upload, in order."""
        known = self._chunks.setdefault(session_id, {})
        if digest not in known:
            name = _whole_upload_name(session_id, digest)
            whole = self._blobs.read(name, 0, 0)
            if whole is not None:
                known[digest] = (_Chunk(name, 0, whole[1]),)
                return known[digest]
            found = self._blobs.read(_of_digest(session_id, digest))
            if found is None:
                return ()
            sender = found[0].decode("ascii")
            known[digest] = self._chunks_in(_of_upload(session_id, sender, digest))
        return known[digest]

    def _chunks_in(self, home: str) -> tuple["_Chunk", ...]:
        """Return the chunks of an upload up to the first gap."""
        chunks, end = [], 0
        for blob in self._blobs.list_prefix(home):
            if int(blob.name.rpartition("/")[2]) != end:
                break
            chunks.append(_Chunk(blob.name, end, blob.size))
            end += blob.size
        return tuple(chunks)

    def _check_free_space(self, total_size: int) -> None:
        """Refuse an upload that would fill the disk."""
        free = self._blobs.free_bytes()
        if free is not None and free - total_size < self._min_free_bytes:
            raise ErrorCode.STORAGE_FAILED.error(
                f"{self._blobs!r} has {free} bytes left, an upload of {total_size} "
                "bytes does not fit",
                fix="Free disk space on the aggregator; uploads then continue.",
                retry_after_seconds=RETRY_SECONDS,
            )


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Describes a chunk of an upload: its object, and its place in the upload."""

    name: str
    start: int
    size: int

    @property
    def end(self) -> int:
        """The offset of its end in the upload."""
        return self.start + self.size


def _end_of_chunks(chunks: tuple[_Chunk, ...]) -> int:
    """Return how many bytes the chunks of an upload have."""
    return chunks[-1].end if chunks else 0


def _sender_digest(sender: str) -> str:
    """Return the name under which a sender's chunks lie."""
    return hashlib.sha256(sender.encode()).hexdigest()


def _of_upload(session_id: bytes, sender: str, digest: bytes) -> str:
    return f"{session_id.hex()}/{_UPLOADS}/{sender}/{digest.hex()}"


def _of_digest(session_id: bytes, digest: bytes) -> str:
    # Never the name of a sender, which has no dot.
    return f"{session_id.hex()}/{_UPLOADS}/{digest.hex()}{SENDER_SUFFIX}"


def _whole_upload_name(session_id: bytes, digest: bytes) -> str:
    """Return the name of a whole upload."""
    return f"{session_id.hex()}/{_UPLOADS}/{digest.hex()}{WHOLE_SUFFIX}"


def _fresh_bytes(received: int, offset: int, total_size: int, data: bytes) -> bytes:
    """Return the bytes of a chunk that are new."""
    if offset + len(data) > total_size:
        raise ErrorCode.UPLOAD_CORRUPT.error(
            f"a chunk ends at byte {offset + len(data)} of an upload of {total_size}"
        )
    if offset > received:
        raise ErrorCode.UPLOAD_CORRUPT.error(
            f"a chunk begins at byte {offset}, but only {received} have arrived",
            kind=ServiceError,
            fix=f"Continue with byte {received}.",
            retry_after_seconds=0.0,
            next_offset=received,
        )
    return data[received - offset :]


def _second_upload(sender: str) -> SecAggError:
    return ErrorCode.EQUIVOCATION.error(
        "an upload with another digest is in progress", sender=sender
    )


def _refuse_many_short(chunks: tuple[_Chunk, ...], sender: str) -> None:
    """Refuse another short chunk of an upload that has had too many."""
    if sum(chunk.size < MIN_CHUNK_BYTES for chunk in chunks) >= SHORT_CHUNKS:
        raise ErrorCode.UPLOAD_CORRUPT.error(
            f"{sender!r} cuts its upload into chunks of less than {MIN_CHUNK_BYTES} "
            "bytes",
            sender=sender,
        )


def _digest_differs() -> ServiceError:
    """Return the error for an upload that does not have its digest."""
    return ErrorCode.UPLOAD_CORRUPT.error(
        "the upload does not match the announced digest",
        kind=ServiceError,
        fix="Send it again from the beginning.",
        retry_after_seconds=0.0,
        next_offset=0,
    )


def _read_exactly(found: tuple[bytes, int] | None, size: int) -> bytes:
    """Return exactly that many stored bytes, or say that they are missing."""
    data = b"" if found is None else found[0]
    if len(data) != size:
        raise ErrorCode.STORAGE_FAILED.error(
            f"an upload in the spool ends early: {len(data)} of {size} bytes",
            fix="Leave the spool directory alone while sessions run.",
        )
    return data
