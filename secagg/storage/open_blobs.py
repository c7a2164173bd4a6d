"""The one way to a store of blobs: by URL, and bound to one store of sessions."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.errors import ErrorCode, LocalProtocolError, SecAggError
from secagg.runtime.vector_files import write_bytes
from secagg.storage.blobs import STORE_HOME, Blobs, FileBlobs
from secagg.storage.s3_blobs import S3Blobs

_FILE: Final = "file:"
_BUCKET: Final = "s3:"
_NAME_BYTES: Final = 16
_NAME_FILE: Final = "blobs-name"
_OWNER: Final = f"{STORE_HOME}/owner"


def open_blobs(url: str) -> Blobs:
    """Open a store of blobs, and make it if it does not exist.

    Args:
        url: `file:/absolute/directory` or `s3://bucket/prefix`, either of which several
            machines may share.

    Raises:
        LocalProtocolError: BAD_SETTINGS; the URL cannot be used, or the store does not
            keep what `Blobs` promises.
        ServiceError: STORAGE_FAILED; it cannot be opened.
    """
    if url.startswith(_BUCKET):
        bucket = S3Blobs(url)
        bucket.check()
        return bucket
    path = directory_of(url)
    if not path:
        scheme = url.partition(":")[0]
        complaint = (
            "needs an absolute path"
            if scheme == "file"
            else f"names a store, {scheme!r}, that this release does not have"
        )
        raise ErrorCode.BAD_SETTINGS.error(
            f"the address of the blobs {complaint}",
            kind=LocalProtocolError,
            fix=f"Write {_FILE}/absolute/directory or s3://bucket/prefix "
            "in server.blobs.",
        )
    return FileBlobs(path)


def directory_of(url: str) -> Path | None:
    """Return the directory of a store of blobs; None for a bucket, or no store."""
    path = Path(url.removeprefix(_FILE))
    return path if url.startswith(_FILE) and path.is_absolute() else None


class BlobBindingFile:
    """Remembers the name of the blobs of a store that one aggregator uses alone.

    Args:
        directory: The aggregator's state directory, which no other process writes.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _NAME_FILE

    async def bind(self, name: bytes | None) -> bytes | None:
        """Return the name; see `secagg.storage.leases.BindBlobs`."""
        if name is not None and not self._path.exists():
            write_bytes(self._path, name)
        return self._path.read_bytes() if self._path.exists() else None


async def refuse_other_blobs(
    blobs: Blobs,
    bind: Callable[[bytes | None], Awaitable[bytes | None]],
    entropy: Entropy | None = None,
) -> None:
    """Refuse blobs that belong to another store.

    A replica with other blobs than the others would lose the uploads of their sessions.
    And a starting replica deletes what belongs to no session of its store.

    Args:
        blobs: The store.
        bind: Reads or sets the name of the blobs in the store.
        entropy: Names a new store; the operating system's by default.

    Raises:
        ServiceError: BAD_SETTINGS; it is another one. STORAGE_FAILED.
    """
    # The owner is written after its store has recorded the name: a store without a name
    # is not the owner.
    owner = blobs.read(_OWNER)
    if owner is not None and await bind(None) is None:
        raise _foreign_store_error()
    name = (entropy or SystemEntropy()).token(_NAME_BYTES)
    # This precedes the record in the store, so a recorded name can always be found.
    blobs.create(_place_of(name), b"")
    known = await bind(name)
    if known == name:
        blobs.sync(_place_of(name))
    else:
        blobs.remove(_place_of(name))
    if known is None or blobs.read(_place_of(known)) is None:
        raise ErrorCode.BAD_SETTINGS.error(
            "server.blobs does not hold the uploads of this store",
            fix="Set it to that one on every machine; a directory must be the "
            "same one, mounted on all of them.",
        )
    if blobs.create(_OWNER, known):
        blobs.sync(_OWNER)
    elif blobs.read(_OWNER) != (known, len(known)):
        raise _foreign_store_error()


def _place_of(name: bytes) -> str:
    return f"{STORE_HOME}/{name.hex()}"


def _foreign_store_error() -> SecAggError:
    """Return the error of blobs that belong to another store."""
    return ErrorCode.BAD_SETTINGS.error(
        "server.blobs belongs to another store",
        fix="Give each store a directory or a prefix of its own.  If the other store "
        f"is gone for good, remove the object {_OWNER!r} from the blobs.",
    )
