"""Immutable objects in a bucket of an S3-compatible store, through the library obstore.

Rule 1: an object is created under a condition (``If-None-Match: *``), which the store
        checks.  Some stores that claim to be compatible ignore it: `check` finds them.
Rule 2: secrets come from the environment of each process (``AWS_*``), never from the
        address, which travels to workers and into logs.
Rule 3: beyond this machine the store is reached over TLS.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from secagg.crypto.entropy import SystemEntropy
from secagg.errors import ErrorCode, LocalProtocolError
from secagg.storage.blobs import RETRY_SECONDS, StoredBlob, checked_name

_ADDRESS: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w.-]+)*")
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_OBJECTS: Final = "objects"
_PROBES: Final = "probes"  # apart, so no process mistakes them for a session
# A chunk waits for its answer no longer than a client waits for the aggregator.
_ANSWER_SECONDS: Final = 20
_TRIES: Final = 3
_PROBE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class S3Blobs:
    """Implements `Blobs` in a bucket, which several machines may share.

    A created object is durable when the store has answered.

    Attributes:
        address: ``s3://bucket/prefix``.

    Raises:
        LocalProtocolError: BAD_SETTINGS; the address is invalid, the connection is not
            private, or the library is not installed.
    """

    address: str

    def __post_init__(self) -> None:
        """Check the address; no server is called yet."""
        if not _ADDRESS.fullmatch(self.address):
            raise _blobs_error(
                f"{self.address!r} is not the address of a bucket",
                "Write s3://bucket/prefix; keys belong into the environment.",
            )
        if any(not _is_local_host(host) for host in _plain_endpoints()):
            raise _blobs_error(
                "the endpoint in the environment is on another machine, without TLS",
                "Use an address that begins with https://.",
            )
        _library()

    def check(self) -> None:
        """Check that the store can be used, and replaces no object.

        Raises:
            ServiceError: STORAGE_FAILED; it does not answer, or refuses.
            LocalProtocolError: BAD_SETTINGS; it lets an object be replaced.
        """
        name = f"{_PROBES}/{SystemEntropy().token(_PROBE_BYTES).hex()}"
        with self._mapping_failures() as obstore:
            try:
                obstore.put(self._bucket, name, b"1", mode="create")
                try:
                    obstore.put(self._bucket, name, b"2", mode="create")
                except obstore.exceptions.AlreadyExistsError:
                    return
            finally:
                obstore.delete(self._bucket, [name])
        raise _blobs_error(
            f"the store of {self.address} replaces objects that exist",
            "Choose one that supports If-None-Match, as Amazon's and MinIO do.",
        )

    def create(self, name: str, data: bytes) -> bool:
        """Store an object under a name that is free."""
        with self._mapping_failures() as obstore:
            try:
                obstore.put(self._bucket, _object_name(name), data, mode="create")
            except obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def sync(self, prefix: str) -> None:
        """Do nothing: created objects are durable."""

    def read(
        self, name: str, offset: int = 0, max_bytes: int | None = None
    ) -> tuple[bytes, int] | None:
        """Return a piece of an object and the size of the whole, or None."""
        with self._mapping_failures() as obstore:
            try:
                if max_bytes is None and not offset:
                    found = obstore.get(self._bucket, _object_name(name))
                    return bytes(found.bytes()), found.meta["size"]
                size: int = obstore.head(self._bucket, _object_name(name))["size"]
                end = size if max_bytes is None else min(size, offset + max_bytes)
                if offset >= end:
                    return b"", size
                piece = obstore.get_range(
                    self._bucket, _object_name(name), start=offset, end=end
                )
                return bytes(piece), size
            except FileNotFoundError:
                return None

    def list_prefix(self, prefix: str) -> tuple[StoredBlob, ...]:
        """Return the objects whose names begin with these parts, by name."""
        found = (
            StoredBlob(each["path"].removeprefix(f"{_OBJECTS}/"), each["size"])
            for each in self._listed(prefix)
        )
        return tuple(sorted(found, key=lambda blob: blob.name))

    def first_parts(self) -> tuple[str, ...]:
        """Return the first parts of all names, in order."""
        with self._mapping_failures() as obstore:
            found = obstore.list_with_delimiter(self._bucket, _OBJECTS)
            places = [*found["common_prefixes"], *(o["path"] for o in found["objects"])]
        return tuple(sorted(place.rpartition("/")[2] for place in places))

    def age_seconds(self, home: str) -> float:
        """Return how long ago something was stored in a home, to the second."""
        dates = [each["last_modified"] for each in self._listed(home)]
        if not dates:
            return 0.0
        name = f"{_PROBES}/{SystemEntropy().token(_PROBE_BYTES).hex()}"
        with self._mapping_failures() as obstore:
            obstore.put(self._bucket, name, b"")  # its time is of the same clock
            now = obstore.head(self._bucket, name)["last_modified"]
            obstore.delete(self._bucket, [name])
        age: timedelta = now - max(dates)
        return age.total_seconds()

    def remove(self, prefix: str) -> None:
        """Remove the objects whose names begin with these parts."""
        places = [
            _object_name(prefix),
            *(each["path"] for each in self._listed(prefix)),
        ]
        with self._mapping_failures() as obstore:
            obstore.delete(self._bucket, places)

    def free_bytes(self) -> int | None:
        """Return None: a bucket has no end."""
        return None

    @property
    def _bucket(self) -> Any:  # noqa: ANN401 - the library comes with an extra
        return _open_bucket(self.address, os.getpid())

    def _listed(self, prefix: str) -> list[Mapping[str, Any]]:
        with self._mapping_failures() as obstore:
            pieces = obstore.list(self._bucket, _object_name(prefix))
            return [each for piece in pieces for each in piece]

    @contextmanager
    def _mapping_failures(self) -> Iterator[Any]:
        """Turn a failure of the bucket into an error with the next step."""
        obstore = _library()
        try:
            yield obstore
        except (obstore.exceptions.BaseError, OSError) as error:
            # What the store says may quote headers of ours.
            raise ErrorCode.STORAGE_FAILED.error(
                f"the store of {self.address} cannot be used: {type(error).__name__}",
                fix="Check its state, and AWS_ACCESS_KEY_ID and its companions.",
                retry_after_seconds=RETRY_SECONDS,
            ) from None


def _object_name(name: str) -> str:
    """Return the key of a blob in its bucket."""
    return f"{_OBJECTS}/{checked_name(name)}"


def _plain_endpoints() -> list[str]:
    """Return the hosts that the environment has us reach without TLS."""
    named = [urlsplit(os.environ[name]) for name in _ENDPOINTS if name in os.environ]
    return [each.hostname or "" for each in named if each.scheme != "https"]


def _is_local_host(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _library() -> Any:  # noqa: ANN401 - the library comes with an extra
    """Return the library for buckets, or refuse without it."""
    try:
        import obstore  # noqa: PLC0415 - an extra
    except ImportError:
        raise _blobs_error(
            "the library for buckets is not installed", "Install secagg[objects]."
        ) from None
    return obstore


@lru_cache(maxsize=8)
def _open_bucket(address: str, _process: int) -> Any:  # noqa: ANN401 - as above
    """Return the store of an address: one in each process, never a parent's."""
    _library()
    from obstore.store import from_url  # noqa: PLC0415 - an extra

    return from_url(
        address,
        client_options={
            "allow_http": any(map(_is_local_host, _plain_endpoints())),
            "timeout": timedelta(seconds=_ANSWER_SECONDS),
        },
        retry_config={
            "max_retries": _TRIES,
            "retry_timeout": timedelta(seconds=_ANSWER_SECONDS),
        },
    )


def _blobs_error(complaint: str, next_step: str) -> LocalProtocolError:
    return ErrorCode.BAD_SETTINGS.error(
        f"server.blobs: {complaint}", kind=LocalProtocolError, fix=next_step
    )
