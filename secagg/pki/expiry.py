"""Certificates that will expire soon: said while there is time, and louder at the end.

It renews nothing (`secagg.transport.reloading_identity`) and refuses nothing.
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

# Enough for a holiday and a ticket in somebody else's queue.
WARNED_BEFORE: Final = timedelta(days=30)
# Somebody has to act this week.
URGENT_BEFORE: Final = timedelta(days=7)
_SAID_EVERY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Expiry:
    """When one file of an identity expires.

    Attributes:
        which: "own" certificate or credential, or the "ca" that is trusted.
        path: The file.
        moment: The end of the first of its certificates that ends.
    """

    which: Literal["own", "ca"]
    path: Path
    moment: datetime


def expiries_of(identity: TLSIdentity) -> Iterator[Expiry]:
    """Yield when the files of an identity expire: its own chain, and its authorities.

    Of several authorities the last one counts: an old one expires beside its successor.
    """
    chain = x509.load_pem_x509_certificates(identity.certificate_chain)
    trusted = x509.load_pem_x509_certificates(identity.authorities)
    own = min(each.not_valid_after_utc for each in chain)
    last = max(each.not_valid_after_utc for each in trusted)
    yield Expiry("own", identity.files.certificate, own)
    yield Expiry("ca", identity.files.authority, last)


def level_of(moment: datetime, now: datetime) -> int:
    """Return how loud to be about an expiry: a level of `logging`, NOTSET for not."""
    left = moment - now
    if left < URGENT_BEFORE:
        return logging.ERROR
    return logging.WARNING if left < WARNED_BEFORE else logging.NOTSET


@dataclass(slots=True)
class ExpiryWarnings:
    """Logs what expires soon: at once, once a day, and when it becomes urgent."""

    _said: dict[Path, tuple[int, datetime]] = field(default_factory=dict)
    _known: tuple[TLSIdentity | None, tuple[Expiry, ...]] = (None, ())

    def warn(self, identity: TLSIdentity, now: datetime | None = None) -> None:
        """Log every certificate of a process, authorities included, that expires soon.

        Args:
            identity: What the process uses.
            now: The present by default.
        """
        if self._known[0] is not identity:  # reading certificates takes its time
            self._known = (identity, tuple(expiries_of(identity)))
        for expiry in self._known[1]:
            self.say(expiry, now or datetime.now(UTC))

    def say(self, expiry: Expiry, now: datetime) -> None:
        """Log one file that expires soon, unless that was said lately.

        Args:
            expiry: The file, and its end.
            now: The present.
        """
        level = level_of(expiry.moment, now)
        before, when = self._said.get(expiry.path, (logging.NOTSET, now))
        if level <= before and now - when < _SAID_EVERY:
            return
        self._said[expiry.path] = (level, now)
        if level == logging.NOTSET:
            return
        log_event(
            _LOG,
            level,
            CERTIFICATE_EXPIRES,
            path=expiry.path,
            days=max(0, (expiry.moment - now).days),
            not_valid_after=expiry.moment.isoformat(),
            next_step="put a new one under the same file name; no restart is needed",
        )
