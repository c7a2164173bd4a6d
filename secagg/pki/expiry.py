"""Warnings about certificates that expire soon, with rising severity.

It renews nothing (`secagg.transport.tls`) and refuses nothing.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from cryptography import x509

from secagg.runtime.log_events import CERTIFICATE_EXPIRES, TRANSPORT_LOGGER, log_event
from secagg.transport.tls import TLSIdentity

_LOG: Final = logging.getLogger(TRANSPORT_LOGGER)

# Covers a holiday and the queue of another department.
WARNED_BEFORE: Final = timedelta(days=30)
# The operator has to act this week.
_URGENT_BEFORE: Final = timedelta(days=7)
_SAID_EVERY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Expiry:
    """The end of one file of an identity.

    Attributes:
        which: "own" certificate or credential, or the "ca" that is trusted.
        path: The file.
        moment: The earliest end of its certificates.
    """

    which: Literal["own", "ca"]
    path: Path
    moment: datetime


def expiries_of(identity: TLSIdentity) -> Iterator[Expiry]:
    """Yield the ends of an identity's files: its own chain, and its authorities.

    Of several authorities the last one counts: an old one expires beside its successor.
    """
    chain = x509.load_pem_x509_certificates(identity.certificate_chain)
    trusted = x509.load_pem_x509_certificates(identity.authorities)
    own = min(each.not_valid_after_utc for each in chain)
    last = max(each.not_valid_after_utc for each in trusted)
    yield Expiry("own", identity.files.certificate, own)
    yield Expiry("ca", identity.files.authority, last)


def level_of(moment: datetime, now: datetime) -> int:
    """Return the level of `logging` of an expiry; NOTSET for no message."""
    left = moment - now
    if left < _URGENT_BEFORE:
        return logging.ERROR
    return logging.WARNING if left < WARNED_BEFORE else logging.NOTSET


@dataclass(slots=True)
class ExpiryWarnings:
    """Logs files that expire soon: at once, once a day, and when it becomes urgent."""

    _logged: dict[Path, tuple[int, datetime]] = field(default_factory=dict)
    _known: tuple[TLSIdentity | None, tuple[Expiry, ...]] = (None, ())

    def warn(self, identity: TLSIdentity, now: datetime | None = None) -> None:
        """Log every certificate of a process, authorities included, that expires soon.

        Args:
            identity: The process's identity.
            now: The present by default.
        """
        if self._known[0] is not identity:  # reading certificates takes time
            self._known = (identity, tuple(expiries_of(identity)))
        for expiry in self._known[1]:
            self.log(expiry, now or datetime.now(UTC))

    def log(self, expiry: Expiry, now: datetime) -> None:
        """Log one file that expires soon, unless that was logged recently.

        Args:
            expiry: The file, and its end.
            now: The present.
        """
        level = level_of(expiry.moment, now)
        before, when = self._logged.get(expiry.path, (logging.NOTSET, now))
        if level <= before and now - when < _SAID_EVERY:
            return
        self._logged[expiry.path] = (level, now)
        if level == logging.NOTSET:
            return
        log_event(
            _LOG,
            level,
            CERTIFICATE_EXPIRES,
            path=expiry.path,
            days=max(0, (expiry.moment - now).days),
            not_valid_after=expiry.moment.isoformat(),
            next_step="replace the file under the same name; no restart is needed",
        )
