"""A certificate, its key and its authorities that are renewed on disk in a process.

Rule 1: files are compared by what is in them, and read when their dates have changed.
        Whoever replaces them needs no order and tells nobody.
Rule 2: what cannot be used is refused with a log line, once, and the present identity
        stays in use.  It is tried again with every look: half-copied files repair
        themselves with the rest, and one that is not valid yet becomes valid.
Rule 3: a renewed certificate names the same holder.  A new name needs a restart.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm

from secagg.errors import ErrorCode, ServiceError
from secagg.runtime.log_events import (
    CERTIFICATE_REFUSED,
    CERTIFICATE_RENEWED,
    TRANSPORT_LOGGER,
    log_event,
)
from secagg.transport.tls import MAX_PEM_BYTES, TLSIdentity

_LOG: Final = logging.getLogger(TRANSPORT_LOGGER)


class ReloadingIdentity:
    """Watches the files of one identity; any thread may look.

    Args:
        identity: What was loaded at start.
        date: The present in Unix seconds; the machine's by default.
    """

    def __init__(
        self, identity: TLSIdentity, date: Callable[[], float] = time.time
    ) -> None:
        self._identity = identity
        self._date = date
        self._lock = threading.Lock()
        # The first look reads: files may have changed since `identity` was loaded.
        self._dates: list[tuple[int, int, int]] = []
        self._read = b""
        self._complaint = ""

    @property
    def identity(self) -> TLSIdentity:
        """What is in use now."""
        return self._identity

    def look(self) -> TLSIdentity:
        """Read the files if they hold anything else, and return what is in use."""
        with self._lock:
            dates = self._look_at_dates()
            if dates != self._dates or self._complaint:
                self._dates = dates  # before they are read: a later change is seen
                found = self._digest()
                if found != self._read or self._complaint:
                    self._read = found
                    self._take()
            return self._identity

    def _take(self) -> None:
        try:
            renewed = self._load()
        # What is no certificate at all, or is gone while it is read, is refused too.
        except (ServiceError, OSError, ValueError, UnsupportedAlgorithm) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log_event(_LOG, logging.WARNING, CERTIFICATE_REFUSED, reason=error)
            return
        self._complaint = ""
        if renewed != self._identity:
            self._identity = renewed
            log_event(
                _LOG,
                logging.INFO,
                CERTIFICATE_RENEWED,
                path=renewed.files.certificate,
                not_valid_after=renewed.not_valid_after.isoformat(),
            )

    def _load(self) -> TLSIdentity:
        present, files = self._identity, self._identity.files
        renewed = TLSIdentity.load(
            certificate=files.certificate,
            private_key=files.private_key,
            authority=files.authority,
            role=present.identity.role,
            now=datetime.fromtimestamp(self._date(), UTC),
        )
        if renewed.identity != present.identity:
            raise ServiceError(
                f"{files.certificate} now names {renewed.identity.uri} "
                f"and not {present.identity.uri}",
                code=ErrorCode.BAD_CERTIFICATE,
                next_step="Restart the process if the new name is meant.",
            )
        return renewed

    @property
    def _paths(self) -> tuple[Path, ...]:
        files = self._identity.files
        return files.certificate, files.private_key, files.authority

    def _look_at_dates(self) -> list[tuple[int, int, int]]:
        """Return what changes when a file is replaced or written."""
        dates = []
        for path in self._paths:
            try:
                found = path.stat()
            except OSError:
                dates.append((0, 0, 0))
            else:
                dates.append((found.st_mtime_ns, found.st_ino, found.st_size))
        return dates

    def _digest(self) -> bytes:
        """Return what changes with a file; one that cannot be read counts as empty."""
        digest = hashlib.sha256()
        for path in self._paths:
            try:
                with path.open("rb") as stream:
                    data = stream.read(MAX_PEM_BYTES)
            except OSError:
                data = b""
            digest.update(len(data).to_bytes(4, "big") + data)
        return digest.digest()
