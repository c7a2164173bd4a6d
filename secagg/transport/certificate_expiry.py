"""Certificates that will expire soon: said once, at start, while there is time.

It renews nothing (`secagg.server.certificate_renewal`) and refuses nothing.
"""

import logging
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509

from secagg.telemetry import CERTIFICATE_EXPIRES, TRANSPORT_LOGGER, log_event
from secagg.transport.tls import TLSIdentity

__all__ = ["WARNED_BEFORE", "warn_before_expiry"]

_LOG: Final = logging.getLogger(TRANSPORT_LOGGER)

# Enough for a holiday and a ticket in somebody else's queue.
WARNED_BEFORE: Final = timedelta(days=14)


def warn_before_expiry(identity: TLSIdentity, now: datetime | None = None) -> None:
    """Log every certificate of a process, authorities included, that expires soon.

    Args:
        identity: What the process has loaded.
        now: The present by default.
    """
    soon = (now or datetime.now(UTC)) + WARNED_BEFORE
    for path, data in (
        (identity.files.certificate, identity.certificate_chain),
        (identity.files.authority, identity.authorities),
    ):
        for certificate in x509.load_pem_x509_certificates(data):
            if certificate.not_valid_after_utc < soon:
                log_event(
                    _LOG,
                    logging.WARNING,
                    CERTIFICATE_EXPIRES,
                    path=path,
                    not_valid_after=certificate.not_valid_after_utc.isoformat(),
                    next_step="issue a new one under the same file name",
                )
