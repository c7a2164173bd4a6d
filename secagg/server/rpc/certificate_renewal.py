"""Credentials of a gRPC server that follow their files.

Whoever connects meets the newest certificate.  Connections that are open keep what they
have; they are renewed by their age.
"""

from collections.abc import Callable
from typing import cast

import grpc

from secagg.transport.reloading_identity import ReloadingIdentity


def server_credentials(followed: ReloadingIdentity) -> grpc.ServerCredentials:
    """Return credentials that demand a certificate from every client.

    The server's own certificate, and the authorities it trusts, follow their files.
    gRPC's threads look at these with every connection.
    """
    given = followed.identity

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        newest = followed.look()
        if newest is given:
            return None  # gRPC keeps what it has
        given = newest
        return newest.server_configuration()

    return grpc.dynamic_ssl_server_credentials(
        given.server_configuration(),
        # gRPC's type stubs do not say that None is allowed.
        cast("Callable[[], grpc.ServerCertificateConfiguration]", fetch),
        require_client_authentication=True,
    )
