"""The one way to a store of blobs: by URL, whatever keeps them."""

from pathlib import Path
from typing import Final

from secagg.errors import ErrorCode, LocalProtocolError, ServiceError
from secagg.primitives.entropy import Entropy, SystemEntropy
from secagg.storage.blobs import STORE_HOME, Blobs, FileBlobs
from secagg.storage.book import Book
from secagg.storage.s3_blobs import S3Blobs

__all__ = ["open_blobs", "refuse_other_blobs"]

_FILE: Final = "file:"
_BUCKET: Final = "s3:"
_NAME_BYTES: Final = 16


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
    path = Path(url.removeprefix(_FILE))
    if not url.startswith(_FILE) or not path.is_absolute():
        scheme = url.partition(":")[0]
        complaint = (
            "needs an absolute path"
            if scheme == "file"
            else f"names a store, {scheme!r}, that this release does not have"
        )
        raise LocalProtocolError(
            f"the address of the blobs {complaint}",
            code=ErrorCode.BAD_SETTINGS,
            next_step=f"Write {_FILE}/absolute/directory or s3://bucket/prefix "
            "in server.blobs.",
        )
    return FileBlobs(path)


async def refuse_other_blobs(
    blobs: Blobs, book: Book, entropy: Entropy | None = None
) -> None:
    """Refuse a store that is not the one which a shared book's replicas use.

    Whoever would keep uploads elsewhere than the others would lose them their sessions.

    Args:
        blobs: The store.
        book: The book.
        entropy: Names a new store; the operating system's by default.

    Raises:
        ServiceError: BAD_SETTINGS; it is another one. STORAGE_FAILED.
    """
    name = (entropy or SystemEntropy()).token(_NAME_BYTES)
    # Before the book says so: a store that is named there can always be found.
    blobs.create(_place_of(name), b"")
    known = await book.blobs_name(name)
    if known == name:
        blobs.sync(_place_of(name))
        return
    blobs.remove(_place_of(name))
    if blobs.read(_place_of(known)) is None:
        raise ServiceError(
            "server.blobs is not the store that the other aggregators of this book use",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Set it to theirs on every machine; a directory must be the same "
            "one, mounted on all of them.",
        )


def _place_of(name: bytes) -> str:
    return f"{STORE_HOME}/{name.hex()}"
