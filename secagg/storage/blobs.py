"""Immutable objects by name: the interface, in files and in memory.

Rule 1: an object appears whole or not at all, under a name that was not taken. It is
        never changed, so any number of processes may write concurrently.
Rule 2: a name is made of session ids, digests and integers, never of a peer's bytes. It
        has up to five parts of small letters, digits, dots and dashes, joined by "/".
        The first part is the object's home: a session.
Rule 3: nothing that was stored before `sync` returned is lost.

Calls block: run them on threads.  Each implementation of `Blobs` can be sent to worker
processes, and holds no secret that a worker must not have.
"""

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from secagg.errors import ErrorCode

RETRY_SECONDS: Final = 30.0
"""When to come back after a store has refused."""

STORE_HOME: Final = "store"
"""The home of the one object that says whose store this is; no session's."""

_NAME: Final = re.compile(r"[0-9a-z][0-9a-z.-]*(/[0-9a-z][0-9a-z.-]*){0,4}")


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """Describes one object of a listing.

    Attributes:
        name: Its whole name.
        size: Its size in bytes.
    """

    name: str
    size: int


class Blobs(Protocol):
    """Stores immutable objects."""

    def create(self, name: str, data: bytes) -> bool:
        """Store an object under a name that is free.

        Returns:
            False, without a change, when the name is taken by any object.

        Raises:
            ServiceError: STORAGE_FAILED; it is not known whether the object was stored.
        """

    def sync(self, prefix: str) -> None:
        """Wait until all objects below a prefix are on the disk.

        Args:
            prefix: A home, or the first parts of a name.

        Raises:
            ServiceError: STORAGE_FAILED.
        """

    def read(
        self, name: str, offset: int = 0, max_bytes: int | None = None
    ) -> tuple[bytes, int] | None:
        """Return a piece of an object and the size of the whole, or None.

        After its end there are no bytes.

        Raises:
            ServiceError: STORAGE_FAILED.
        """

    def list_prefix(self, prefix: str) -> tuple[StoredBlob, ...]:
        """Return the objects whose names begin with these parts, by name.

        Raises:
            ServiceError: STORAGE_FAILED.
        """

    def first_parts(self) -> tuple[str, ...]:
        """Return the first parts of all names, in order.

        Foreign objects may be among them.

        Raises:
            ServiceError: STORAGE_FAILED.
        """

    def age_seconds(self, home: str) -> float:
        """Return how long ago an object was stored in a home, by the store's clock.

        A home that is gone counts as young: another process removes it.

        Raises:
            ServiceError: STORAGE_FAILED.
        """

    def remove(self, prefix: str) -> None:
        """Remove the objects whose names begin with these parts; there may be none.

        Raises:
            ServiceError: STORAGE_FAILED; some may be removed.
        """

    def free_bytes(self) -> int | None:
        """Return how many bytes fit yet; None where that is unknown.

        Raises:
            ServiceError: STORAGE_FAILED.
        """


def checked_name(name: str) -> str:
    """Return a name, or refuse one that could leave its place.

    Raises:
        InternalError: The name is invalid; the calling program is at fault.
    """
    if not _NAME.fullmatch(name):
        raise ErrorCode.INTERNAL.error(f"{name!r} cannot name an object")
    return name


@dataclass(frozen=True, slots=True)
class FileBlobs:
    """Implements `Blobs` in a directory, which several machines may share.

    The directory's file system must have hard links and a working `fsync`.

    Attributes:
        directory: The directory, made with mode 0700 when it does not exist.

    Raises:
        ServiceError: STORAGE_FAILED when the directory cannot be made.
    """

    directory: Path
    # Directories that are durable: their parents need no further `fsync`.
    _lasting: set[str] = field(default_factory=set, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make the directory."""
        with self._mapping_failures():
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def __reduce__(self) -> tuple[type["FileBlobs"], tuple[Path]]:
        """Pickle the object without its cache."""
        return FileBlobs, (self.directory,)

    def create(self, name: str, data: bytes) -> bool:
        """Store an object under a name that is free."""
        path = self._blob_path(name)
        # Of this thread alone: two may store the same object at the same time.
        partial = path.with_name(
            f".{path.name}.{os.getpid()}.{threading.get_ident()}.partial"
        )
        with self._mapping_failures():
            descriptor = _new_file(partial)
            try:
                try:
                    _write_all(descriptor, data)
                    # This precedes its name: a power cut leaves no empty object.
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                # A link, unlike a rename, never replaces another object.
                os.link(partial, path)
            except FileExistsError:
                return False
            finally:
                with suppress(OSError):
                    partial.unlink()
        return True

    def sync(self, prefix: str) -> None:
        """Wait until all objects below a prefix are on the disk."""
        place = self._blob_path(prefix)
        with self._mapping_failures():
            is_directory = place.is_dir()
            for directory, _, _ in os.walk(place) if is_directory else ():
                _sync(directory)
            # An entry is durable when its directory has been synced.
            while place != self.directory and str(place) not in self._lasting:
                _sync(place.parent)
                if is_directory:
                    self._lasting.add(str(place))
                place, is_directory = place.parent, True

    def read(
        self, name: str, offset: int = 0, max_bytes: int | None = None
    ) -> tuple[bytes, int] | None:
        """Return a piece of an object and the size of the whole, or None."""
        with self._mapping_failures():
            try:
                descriptor = os.open(self._blob_path(name), os.O_RDONLY)
            except FileNotFoundError:
                return None
            try:
                size = os.fstat(descriptor).st_size
                rest = max(0, size - offset)
                wanted = rest if max_bytes is None else min(rest, max_bytes)
                return _read_range(descriptor, offset, wanted), size
            finally:
                os.close(descriptor)

    def list_prefix(self, prefix: str) -> tuple[StoredBlob, ...]:
        """Return the objects whose names begin with these parts, by name."""
        with self._mapping_failures():
            return tuple(sorted(self._below(prefix), key=lambda blob: blob.name))

    def first_parts(self) -> tuple[str, ...]:
        """Return the first parts of all names, in order."""
        with self._mapping_failures():
            return tuple(sorted(entry.name for entry in os.scandir(self.directory)))

    def age_seconds(self, home: str) -> float:
        """Return how long ago an object was stored in a home."""
        with self._mapping_failures():
            # A new file has a time of the same clock as the home.
            probe = self.directory / f".{os.getpid()}.{threading.get_ident()}.clock"
            try:
                probe.write_bytes(b"")
                return probe.stat().st_mtime - self._blob_path(home).stat().st_mtime
            except FileNotFoundError:
                return 0.0
            finally:
                probe.unlink(missing_ok=True)

    def remove(self, prefix: str) -> None:
        """Remove the objects whose names begin with these parts."""
        path = self._blob_path(prefix)
        self._lasting.difference_update(
            [each for each in tuple(self._lasting) if each.startswith(str(path))]
        )
        with self._mapping_failures(), suppress(FileNotFoundError):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def free_bytes(self) -> int | None:
        """Return how many bytes fit yet."""
        with self._mapping_failures():
            return shutil.disk_usage(self.directory).free

    def _below(self, prefix: str) -> Iterator[StoredBlob]:
        """Yield all files below a directory, at any depth."""
        try:
            entries = list(os.scandir(self._blob_path(prefix)))
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.is_dir():
                yield from self._below(f"{prefix}/{entry.name}")
            elif not entry.name.startswith("."):
                yield StoredBlob(f"{prefix}/{entry.name}", entry.stat().st_size)

    def _blob_path(self, name: str) -> Path:
        """Return the file of a blob."""
        return self.directory / checked_name(name)

    @contextmanager
    def _mapping_failures(self) -> Iterator[None]:
        """Turn a failure of the disk into an error with the next step."""
        try:
            yield
        except OSError as error:
            raise ErrorCode.STORAGE_FAILED.error(
                f"the spool {self.directory} cannot be used: {error.strerror}",
                fix="Check free space and permissions of the spool directory.",
                retry_after_seconds=RETRY_SECONDS,
            ) from None


@dataclass(frozen=True, slots=True)
class MemoryBlobs:
    """Implements `Blobs` in memory, for simulations; belongs to one process."""

    _objects: dict[str, tuple[bytes]] = field(default_factory=dict, repr=False)

    def create(self, name: str, data: bytes) -> bool:
        """Store an object under a name that is free."""
        stored = (data,)
        return self._objects.setdefault(checked_name(name), stored) is stored

    def sync(self, prefix: str) -> None:
        """Do nothing: objects in memory need no sync."""

    def read(
        self, name: str, offset: int = 0, max_bytes: int | None = None
    ) -> tuple[bytes, int] | None:
        """Return a piece of an object and the size of the whole, or None."""
        found = self._objects.get(name)
        if found is None:
            return None
        (data,) = found
        end = len(data) if max_bytes is None else offset + max_bytes
        return data[offset:end], len(data)

    def list_prefix(self, prefix: str) -> tuple[StoredBlob, ...]:
        """Return the objects whose names begin with these parts, by name."""
        return tuple(
            StoredBlob(n, len(self._objects[n][0])) for n in self._names_below(prefix)
        )

    def first_parts(self) -> tuple[str, ...]:
        """Return the first parts of all names, in order."""
        return tuple(sorted({name.partition("/")[0] for name in tuple(self._objects)}))

    def age_seconds(self, home: str) -> float:  # noqa: ARG002 - as the protocol says
        """Return 0: no object here is old."""
        return 0.0

    def remove(self, prefix: str) -> None:
        """Remove the objects whose names begin with these parts."""
        for name in self._names_below(prefix):
            self._objects.pop(name, None)

    def free_bytes(self) -> int | None:
        """Return None: a bucket states no limit."""
        return None

    def _names_below(self, prefix: str) -> list[str]:
        """Return the names of the objects below a prefix, in order."""
        names = tuple(self._objects)
        return sorted(n for n in names if n == prefix or n.startswith(f"{prefix}/"))


def _new_file(path: Path) -> int:
    """Open a new file; make its directory if it is missing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        # A leftover of another process may be a second name of a stored object.
        path.unlink()
    return os.open(path, flags, 0o600)


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, in as many calls as that takes."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read_range(descriptor: int, offset: int, size: int) -> bytes:
    """Read a range of a file, as far as it exists."""
    pieces, end = [], offset + size
    while offset < end and (piece := os.pread(descriptor, end - offset, offset)):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)


def _sync(path: str | Path) -> None:
    """Flush a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
