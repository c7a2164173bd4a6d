"""Large bytes on disk: uploads in progress, stored uploads, payloads and sums.

Rule 1: an upload belongs to one sender and one digest.  Chunks may be repeated; a gap,
        another size or another digest is refused.
Rule 2: an upload becomes visible in one step: all bytes are on the disk, their digest
        has matched, and the file gets its final name, which is the digest.
Rule 3: no name on the disk is made of bytes that a peer chose.
Rule 4: a blob is read in pieces; nothing here holds a vector.
Rule 5: a disk that is nearly full refuses new uploads, as STORAGE_FAILED with a hint
        when to come back, so that the journal beside it can still be written.

Whether the bytes are a vector is checked by `secagg.runtime`, who may join a session by
`secagg.protocol`.  Calls block: run them on threads.
"""

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from secagg import telemetry
from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError

__all__ = [
    "HASH_BLOCK_BYTES",
    "MIN_FREE_BYTES",
    "PAYLOAD",
    "SUM",
    "MemorySpool",
    "Spool",
    "UploadSpool",
]

_LOG: Final = logging.getLogger(telemetry.SERVER_LOGGER)
_SESSION_NAME: Final = re.compile("[0-9a-f]{64}")

PAYLOAD: Final = "payload"
SUM: Final = "sum"

# Large enough to hide the cost of a call, small beside a vector.
HASH_BLOCK_BYTES: Final = 1 << 20
# Room for journals, logs and the sum when uploads have filled the rest.
MIN_FREE_BYTES: Final = 64 << 20
DISK_RETRY_SECONDS: Final = 30.0


class Spool(Protocol):
    """Blobs of sessions, by session id and name; resumable uploads by sender."""

    def received(self, session_id: bytes, sender: str) -> int:
        """Return how many bytes of a sender's unfinished upload have arrived."""
        ...

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
        """Add a chunk; bytes that are there already are skipped.

        Returns:
            How many bytes have arrived.

        Raises:
            RemoteProtocolError: UPLOAD_CORRUPT for a chunk beyond the total size;
                EQUIVOCATION while another upload of the sender is in progress.
            ServiceError: UPLOAD_CORRUPT for a gap: ask where to go on.
                STORAGE_FAILED when the disk is full.
        """
        ...

    def commit(self, session_id: bytes, sender: str, digest: bytes) -> None:
        """Check the digest of a complete upload and make it visible, durably.

        Raises:
            ServiceError: UPLOAD_CORRUPT when the digest differs; what has arrived is
                discarded and the upload begins again.  STORAGE_FAILED.
        """
        ...

    def discard(self, session_id: bytes, sender: str, digest: bytes) -> None:
        """Forget an upload in progress or stored; nothing happens if there is none."""
        ...

    def has_upload(self, session_id: bytes, digest: bytes) -> bool:
        """Whether an upload with this digest is stored."""
        ...

    def read_upload(
        self, session_id: bytes, digest: bytes, offset: int, size: int
    ) -> bytes:
        """Read exactly `size` bytes of a stored upload.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        ...

    def put(self, session_id: bytes, name: str, data: bytes) -> None:
        """Store a payload or a sum under its name, durably and in one step."""
        ...

    def read(
        self, session_id: bytes, name: str, offset: int, max_bytes: int | None = None
    ) -> tuple[bytes, int] | None:
        """Return a piece of a payload or sum and its total size, or None."""
        ...

    def drop_uploads(self, session_id: bytes) -> None:
        """Remove all uploads of a session: nobody may need or read them again."""
        ...

    def remove(self, session_id: bytes) -> None:
        """Remove everything of a session."""
        ...

    def session_ids(self) -> tuple[bytes, ...]:
        """Return the sessions that something is stored of."""
        ...


class UploadSpool:
    """Implements `Spool` in a directory; instances can be sent to other processes.

    Args:
        directory: Made, with mode 0700, when it does not exist.
        min_free_bytes: Uploads are refused when fewer bytes would be left.

    Raises:
        ServiceError: STORAGE_FAILED when the directory cannot be made.
    """

    def __init__(
        self, directory: Path, *, min_free_bytes: int = MIN_FREE_BYTES
    ) -> None:
        self._directory = directory
        self._min_free_bytes = min_free_bytes
        with self._failures():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def __repr__(self) -> str:
        return f"UploadSpool({str(self._directory)!r})"

    def received(self, session_id: bytes, sender: str) -> int:
        """Return how many bytes of a sender's unfinished upload have arrived."""
        with self._failures():
            try:
                return self._partial(session_id, sender).stat().st_size
            except FileNotFoundError:
                return 0

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
        """Add a chunk; bytes that are there already are skipped."""
        path = self._partial(session_id, sender)
        received = self.received(session_id, sender)
        fresh = _fresh_bytes(received, offset, total_size, data)
        with self._failures():
            if received == 0:
                self._check_free_space(total_size)
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.with_suffix(".digest").write_bytes(digest)
            elif path.with_suffix(".digest").read_bytes() != digest:
                raise _second_upload(sender)
            with path.open("ab") as file:
                try:
                    file.write(fresh)
                    file.flush()
                except OSError:
                    file.truncate(received)
                    raise
        return received + len(fresh)

    def commit(self, session_id: bytes, sender: str, digest: bytes) -> None:
        """Check the digest of a complete upload and make it visible, durably."""
        path = self._partial(session_id, sender)
        if not path.exists() and self.has_upload(session_id, digest):
            return  # committed before
        with self._failures():
            # Also where equal bytes are stored: these may be others.
            hasher = hashlib.sha256()
            with path.open("rb+") as file:
                while block := file.read(HASH_BLOCK_BYTES):
                    hasher.update(block)
                if hasher.digest() == digest:
                    os.fsync(file.fileno())
            if hasher.digest() != digest:
                path.unlink()
                raise _digest_differs()
            path.rename(self._upload(session_id, digest))
            _sync_directory(path.parent)

    def discard(self, session_id: bytes, sender: str, digest: bytes) -> None:
        """Forget an upload in progress or stored."""
        with self._failures():
            self._partial(session_id, sender).unlink(missing_ok=True)
            self._upload(session_id, digest).unlink(missing_ok=True)

    def has_upload(self, session_id: bytes, digest: bytes) -> bool:
        """Whether an upload with this digest is stored."""
        with self._failures():
            return self._upload(session_id, digest).exists()

    def read_upload(
        self, session_id: bytes, digest: bytes, offset: int, size: int
    ) -> bytes:
        """Read exactly `size` bytes of a stored upload."""
        with self._failures(), self._upload(session_id, digest).open("rb") as file:
            file.seek(offset)
            data = file.read(size)
        return _exactly(data, size)

    def put(self, session_id: bytes, name: str, data: bytes) -> None:
        """Store a payload or a sum under its name, durably and in one step."""
        path = self._home(session_id) / name
        with self._failures():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = path.with_suffix(".part")
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(path)
            _sync_directory(path.parent)
            _sync_directory(self._directory)

    def read(
        self, session_id: bytes, name: str, offset: int, max_bytes: int | None = None
    ) -> tuple[bytes, int] | None:
        """Return a piece of a payload or sum and its total size, or None."""
        path = self._home(session_id) / name
        with self._failures():
            try:
                with path.open("rb") as file:
                    total_size = os.fstat(file.fileno()).st_size
                    file.seek(min(offset, total_size))
                    return file.read(max_bytes), total_size
            except FileNotFoundError:
                return None

    def drop_uploads(self, session_id: bytes) -> None:
        """Remove all uploads of a session."""
        with self._failures():
            _remove_tree(self._home(session_id) / "uploads")

    def remove(self, session_id: bytes) -> None:
        """Remove everything of a session."""
        with self._failures():
            _remove_tree(self._home(session_id))

    def session_ids(self) -> tuple[bytes, ...]:
        """Return the sessions that something is stored of."""
        with self._failures():
            names = sorted(path.name for path in self._directory.iterdir())
        ours = tuple(name for name in names if _SESSION_NAME.fullmatch(name))
        if len(ours) < len(names):
            telemetry.log_event(
                _LOG,
                logging.WARNING,
                telemetry.SPOOL_FOREIGN,
                name=min(set(names) - set(ours)),
                reason="none of the spool's sessions, left alone",
            )
        return tuple(map(bytes.fromhex, ours))

    def _home(self, session_id: bytes) -> Path:
        return self._directory / session_id.hex()

    def _partial(self, session_id: bytes, sender: str) -> Path:
        name = hashlib.sha256(sender.encode()).hexdigest()
        return self._home(session_id) / "uploads" / f"{name}.part"

    def _upload(self, session_id: bytes, digest: bytes) -> Path:
        return self._home(session_id) / "uploads" / digest.hex()

    def _check_free_space(self, total_size: int) -> None:
        free = shutil.disk_usage(self._directory).free
        if free - total_size < self._min_free_bytes:
            raise ServiceError(
                f"the disk under {self._directory} has {free} bytes left, an upload "
                f"of {total_size} bytes does not fit",
                code=ErrorCode.STORAGE_FAILED,
                next_step="Free disk space on the aggregator; uploads then go on.",
                retry_after_seconds=DISK_RETRY_SECONDS,
            )

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ServiceError(
                f"the spool {self._directory} cannot be used: {error.strerror}",
                code=ErrorCode.STORAGE_FAILED,
                next_step="Check free space and permissions of the spool directory.",
                retry_after_seconds=DISK_RETRY_SECONDS,
            ) from None


class MemorySpool:
    """Implements `Spool` in memory, for simulations; O(n·d) by its nature."""

    def __init__(self) -> None:
        self._partials: dict[bytes, dict[str, tuple[bytes, bytearray]]] = {}
        self._uploads: dict[bytes, dict[bytes, bytes]] = {}
        self._blobs: dict[bytes, dict[str, bytes]] = {}

    def received(self, session_id: bytes, sender: str) -> int:
        """Return how many bytes of a sender's unfinished upload have arrived."""
        partial = self._partials.get(session_id, {}).get(sender)
        return 0 if partial is None else len(partial[1])

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
        """Add a chunk; bytes that are there already are skipped."""
        received = self.received(session_id, sender)
        fresh = _fresh_bytes(received, offset, total_size, data)
        partials = self._partials.setdefault(session_id, {})
        bound, partial = partials.setdefault(sender, (digest, bytearray()))
        if bound != digest:
            raise _second_upload(sender)
        partial.extend(fresh)
        return received + len(fresh)

    def commit(self, session_id: bytes, sender: str, digest: bytes) -> None:
        """Check the digest of a complete upload and make it visible."""
        partial = self._partials.get(session_id, {}).pop(sender, None)
        if partial is None and self.has_upload(session_id, digest):
            return  # committed before
        _, data = partial or (b"", bytearray())
        if hashlib.sha256(data).digest() != digest:
            raise _digest_differs()
        self._uploads.setdefault(session_id, {})[digest] = bytes(data)

    def discard(self, session_id: bytes, sender: str, digest: bytes) -> None:
        """Forget an upload in progress or stored."""
        self._partials.get(session_id, {}).pop(sender, None)
        self._uploads.get(session_id, {}).pop(digest, None)

    def has_upload(self, session_id: bytes, digest: bytes) -> bool:
        """Whether an upload with this digest is stored."""
        return digest in self._uploads.get(session_id, {})

    def read_upload(
        self, session_id: bytes, digest: bytes, offset: int, size: int
    ) -> bytes:
        """Read exactly `size` bytes of a stored upload."""
        upload = self._uploads.get(session_id, {}).get(digest, b"")
        return _exactly(upload[offset : offset + size], size)

    def put(self, session_id: bytes, name: str, data: bytes) -> None:
        """Store a payload or a sum under its name."""
        self._blobs.setdefault(session_id, {})[name] = data

    def read(
        self, session_id: bytes, name: str, offset: int, max_bytes: int | None = None
    ) -> tuple[bytes, int] | None:
        """Return a piece of a payload or sum and its total size, or None."""
        blob = self._blobs.get(session_id, {}).get(name)
        if blob is None:
            return None
        end = len(blob) if max_bytes is None else offset + max_bytes
        return blob[offset:end], len(blob)

    def drop_uploads(self, session_id: bytes) -> None:
        """Remove all uploads of a session."""
        self._partials.pop(session_id, None)
        self._uploads.pop(session_id, None)

    def remove(self, session_id: bytes) -> None:
        """Remove everything of a session."""
        self.drop_uploads(session_id)
        self._blobs.pop(session_id, None)

    def session_ids(self) -> tuple[bytes, ...]:
        """Return the sessions that something is stored of."""
        return tuple(sorted({*self._partials, *self._uploads, *self._blobs}))


def _fresh_bytes(received: int, offset: int, total_size: int, data: bytes) -> bytes:
    """Return the bytes of a chunk that are new."""
    if offset + len(data) > total_size:
        raise RemoteProtocolError(
            f"a chunk ends at byte {offset + len(data)} of an upload of {total_size}",
            code=ErrorCode.UPLOAD_CORRUPT,
        )
    if offset > received:
        raise ServiceError(
            f"a chunk begins at byte {offset}, but only {received} have arrived",
            code=ErrorCode.UPLOAD_CORRUPT,
            next_step=f"Go on with byte {received}.",
            retry_after_seconds=0.0,
            next_offset=received,
        )
    return data[received - offset :]


def _second_upload(sender: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        "an upload with another digest is in progress",
        code=ErrorCode.EQUIVOCATION,
        sender=sender,
    )


def _digest_differs() -> ServiceError:
    return ServiceError(
        "the upload does not have the digest that was announced",
        code=ErrorCode.UPLOAD_CORRUPT,
        next_step="Send it again from the beginning.",
        retry_after_seconds=0.0,
        next_offset=0,
    )


def _exactly(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ServiceError(
            f"an upload in the spool ends early: {len(data)} of {size} bytes",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Do not touch the spool directory while sessions run.",
        )
    return data


def _sync_directory(directory: Path) -> None:
    """Make a rename durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_tree(directory: Path) -> None:
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return
