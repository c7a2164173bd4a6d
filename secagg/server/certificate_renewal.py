"""A server's certificate that is renewed on disk while the server runs.

Rule 1: files are looked at when a client connects, and read again only when one of
        them has changed.
Rule 2: what cannot be used is refused with a log line, once, and the present
        certificate stays in use; half-copied files repair themselves with the rest.
Rule 3: a renewed certificate names the same server.  A new name needs a restart.

Connections that are open keep what they have; they are renewed by their age.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final, cast

import grpc

from secagg.errors import ErrorCode, ServiceError
from secagg.telemetry import (
    CERTIFICATE_REFUSED,
    CERTIFICATE_RENEWED,
    TRANSPORT_LOGGER,
    log_event,
)
from secagg.transport.tls import TLSIdentity

__all__ = ["CertificateRenewal", "server_credentials"]

_LOG: Final = logging.getLogger(TRANSPORT_LOGGER)


class CertificateRenewal:
    """Watches the files of one identity; gRPC's threads call `fetch`.

    Args:
        identity: What was loaded at start.
    """

    def __init__(self, identity: TLSIdentity) -> None:
        self._identity = identity
        self._lock = threading.Lock()
        self._stamp = self._look()

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return a renewed configuration, or None to keep the present one."""
        with self._lock:
            stamp = self._look()
            if stamp == self._stamp:
                return None
            # Remembered even when the files are of no use: one log line for each
            # change, and not for each client that connects.
            self._stamp = stamp
            try:
                renewed = self._load()
            except ServiceError as error:
                log_event(_LOG, logging.WARNING, CERTIFICATE_REFUSED, reason=error)
                return None
            self._identity = renewed
            log_event(
                _LOG,
                logging.INFO,
                CERTIFICATE_RENEWED,
                not_valid_after=renewed.not_valid_after.isoformat(),
            )
            return renewed.server_configuration()

    def _load(self) -> TLSIdentity:
        present, files = self._identity, self._identity.files
        renewed = TLSIdentity.load(
            certificate=files.certificate,
            private_key=files.private_key,
            authority=files.authority,
            role=present.identity.role,
        )
        if renewed.identity != present.identity:
            raise ServiceError(
                f"{files.certificate} now names {renewed.identity.uri} "
                f"and not {present.identity.uri}",
                code=ErrorCode.BAD_CERTIFICATE,
                next_step="Restart the server if the new name is meant.",
            )
        return renewed

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        """Return what changes when a file is replaced; zeros for one that is gone."""
        files = self._identity.files
        stamps = []
        for path in (files.certificate, files.private_key, files.authority):
            try:
                found = path.stat()
            except OSError:
                stamps.append((0, 0, 0))
            else:
                stamps.append((found.st_mtime_ns, found.st_ino, found.st_size))
        return tuple(stamps)


def server_credentials(identity: TLSIdentity) -> grpc.ServerCredentials:
    """Return credentials that demand a certificate from every client.

    The server's own certificate, and the authorities it trusts, follow their files.
    """
    fetch = CertificateRenewal(identity).fetch
    return grpc.dynamic_ssl_server_credentials(
        identity.server_configuration(),
        # gRPC keeps the present configuration on None; its type stubs do not say so.
        cast("Callable[[], grpc.ServerCertificateConfiguration]", fetch),
        require_client_authentication=True,
    )
