"""What an aggregator checks once a minute about certificates.

Rule 1: its certificate, its key, the authorities that it trusts and their revocation
        lists follow their files without a restart.  Open connections keep what they
        have; they are renewed by their age.
Rule 2: a revoked certificate is refused with its next call. Its open calls end and its
        connections are dropped, at the latest a minute after the file changed. The same
        holds for an expired one: TLS verifies it only when the connection is made. When
        a revocation list has expired, it holds for all.
Rule 3: an expiry is announced while it can still be prevented.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, cast

import grpc

from secagg.pki.certificate_revocations import CertificateRevocations
from secagg.pki.expiry import ExpiryWarnings
from secagg.runtime.clock import Clock
from secagg.runtime.log_events import MONITORING_FAILED, TRANSPORT_LOGGER, log_defect
from secagg.transport.tls import ReloadingIdentity

_LOG: Final = logging.getLogger(TRANSPORT_LOGGER)

# What was changed is in force within a minute: five seconds are for reading it.
LOOK_EVERY_SECONDS: Final = 55.0


def server_credentials(followed: ReloadingIdentity) -> grpc.ServerCredentials:
    """Return credentials that demand a certificate from every client.

    The server's certificate, and the authorities that it trusts, follow their files.
    gRPC's threads read these with every connection.
    """
    given = followed.identity

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        newest = followed.refresh()
        if newest is given:
            return None  # gRPC keeps its present configuration
        given = newest
        return newest.server_configuration()

    return grpc.dynamic_ssl_server_credentials(
        given.server_configuration(),
        # gRPC's type stubs do not say that None is allowed.
        cast("Callable[[], grpc.ServerCertificateConfiguration]", fetch),
        require_client_authentication=True,
    )


class CertificateWatch:
    """Reads the files of certificates at regular intervals.

    Args:
        followed: The aggregator's own certificate.
        revoked: The lists in force.
        clock: Time.
        end_unwelcome: Ends calls and connections of invalid certificates; called with
            every check.
    """

    def __init__(
        self,
        followed: ReloadingIdentity,
        revoked: CertificateRevocations,
        clock: Clock,
        end_unwelcome: Callable[[], None],
    ) -> None:
        self._followed = followed
        self._revoked = revoked
        self._clock = clock
        self._end_unwelcome = end_unwelcome
        self._warnings = ExpiryWarnings()
        self._warn_before_expiry()

    async def run(self) -> None:
        """Check once a minute, until cancelled."""
        while True:
            await self._clock.sleep_until(self._clock.now() + LOOK_EVERY_SECONDS)
            try:
                self._refresh()
            except Exception:  # noqa: BLE001 - a defect must not end the watch unseen
                log_defect(_LOG, MONITORING_FAILED)

    def _refresh(self) -> None:
        """Read certificates and lists, and end connections that they refuse."""
        self._followed.refresh()  # first: it says whose lists are accepted
        self._revoked.refresh()
        self._end_unwelcome()
        self._warn_before_expiry()

    def _warn_before_expiry(self) -> None:
        now = datetime.fromtimestamp(self._clock.date(), UTC)
        self._warnings.warn(self._followed.identity, now)
