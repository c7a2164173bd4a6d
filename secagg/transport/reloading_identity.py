"""A certificate, its key and its authorities, reloaded when they are renewed on disk.

Rule 1: files are compared by their content, and read when their dates have changed. The
        operator may replace them in any order and without a command.
Rule 2: an invalid file is refused with a log line, once, and the present identity stays
        in use.  Each check tries it again: half-copied files become whole, and one that
        is not valid yet becomes valid.
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
    """Watches the files of one identity; any thread may check them.

    Args:
        identity: The identity that was loaded at start.
        date: The present in Unix seconds; the host's by default.
    """

    def __init__(
        self, identity: TLSIdentity, date: Callable[[], float] = time.time
    ) -> None:
        self._identity = identity
        self._date = date
        self._lock = threading.Lock()
        # The first check reads: files may have changed since `identity` was loaded.
        self._dates: list[tuple[int, int, int]] = []
        self._read = b""
        self._complaint = ""

    @property
    def identity(self) -> TLSIdentity:
        """The identity in use."""
        return self._identity

    def look(self) -> TLSIdentity:
        """Read the files if their content has changed; return the identity in use."""
        with self._lock:
            dates = self._look_at_dates()
            if dates != self._dates or self._complaint:
                # before they are read, so that a later change is detected
                self._dates = dates
                found = self._digest()
                if found != self._read or self._complaint:
                    self._read = found
                    self._take()
            return self._identity

    def _take(self) -> None:
        try:
            renewed = self._load()
        # A file that is not a certificate, or vanishes while it is read, is refused
        # too.
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
            raise ErrorCode.BAD_CERTIFICATE.error(
                f"{files.certificate} now names {renewed.identity.uri} "
                f"and not {present.identity.uri}",
                fix="Restart the process if the new name is intended.",
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
        """Return a digest of a file; one that cannot be read counts as empty."""
        digest = hashlib.sha256()
        for path in self._paths:
            try:
                with path.open("rb") as stream:
                    data = stream.read(MAX_PEM_BYTES)
            except OSError:
                data = b""
            digest.update(len(data).to_bytes(4, "big") + data)
        return digest.digest()
