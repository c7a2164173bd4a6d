"""One TLS handshake with the aggregator: its identity, or the reason of a failure.

Rule 1: only the handshake is sent.  TLS 1.3 proves the aggregator before a client shows
        its own certificate.  A probe for the identity ends there and costs the
        aggregator no verification.  A search for a fault continues until the first
        bytes of the answer show whether the client's certificate was accepted.
Rule 2: every failure has a sentence and a next step of its own, made from the reports
        of the system and the TLS library and never from a text of gRPC.
Rule 3: a failure that would repeat (certificates, a port without TLS) is
        BAD_CERTIFICATE; one that may pass (names, links, restarts) is UNREACHABLE.

A later connection may lead to another peer.  Its own handshake proves that peer:
`secagg.transport.grpc_channel`.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from cryptography import x509

from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.runtime.clock import Clock, finish_before
from secagg.transport.address import Address
from secagg.transport.peer_identity import PeerIdentity, Role
from secagg.transport.tls import TLSIdentity, identity_of

_Result = TypeVar("_Result")

# A handshake takes two round trips: slow mobile links need a second of it.
HANDSHAKE_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0

# The largest record of TLS and its frame.
_RECORD_BYTES: Final = (1 << 14) + 261

# Numbers of X509_V_ERR_... that OpenSSL never changes.
_NOT_YET_VALID, _EXPIRED = 9, 10
_WRONG_PURPOSE = 26
_OTHER_HOST = frozenset({62, 64})


class UnexpectedPeerError(ServiceError):
    """The peer holds a certificate of the trusted authority, but of another party.

    Only the authority can cause this; any party on the path can cause the other
    failures.
    """

    def __init__(self, complaint: str, next_step: str) -> None:
        super().__init__(complaint, code=ErrorCode.BAD_CERTIFICATE, next_step=next_step)


@dataclass(frozen=True, slots=True)
class Expected:
    """The aggregator that a client accepts.

    Attributes:
        trust_domain: The client's own.
        name: The one aggregator that is accepted; None for the one with the address's
            host in its certificate.
    """

    trust_domain: str
    name: str | None = None

    def check(self, peer: PeerIdentity) -> None:
        """Refuse any other peer (R10.1-3).

        Raises:
            UnexpectedPeerError: BAD_CERTIFICATE; names the peer and the expected one.
        """
        if peer.role is not Role.SERVER:
            raise UnexpectedPeerError(
                f"the peer is not an aggregator: its certificate is {peer.uri}",
                "Do not use this address; tell the operator: that key may be stolen.",
            )
        if peer.trust_domain != self.trust_domain:
            raise UnexpectedPeerError(
                f"the aggregator belongs to trust domain {peer.trust_domain}, this "
                f"client to {self.trust_domain}",
                "Check client.server; certificates of both sides must name one trust "
                "domain.",
            )
        if self.name is not None and peer.name != self.name:
            raise UnexpectedPeerError(
                f"the peer is the aggregator {peer.name!r}, this client accepts only "
                f"{self.name!r}",
                "Check client.server; set client.aggregator to the new name only if "
                "the operator confirms it.",
            )


async def probe(
    address: Address,
    identity: TLSIdentity,
    expected: Expected,
    clock: Clock,
    *,
    as_ourselves: bool = False,
) -> PeerIdentity:
    """Return the peer that listens at an address, if it is the expected one.

    Args:
        address: The aggregator's.
        identity: The client's.
        expected: The peer to accept.
        clock: For the limit of `HANDSHAKE_SECONDS`.
        as_ourselves: Show the client's certificate to the proven peer, and wait whether
            it is accepted.  Otherwise no peer learns more of the client than its
            address.

    Raises:
        ServiceError: BAD_CERTIFICATE or UNREACHABLE; states the fault and the next
            step.
    """
    identity.check_validity(datetime.fromtimestamp(clock.date(), UTC))
    context = _context(identity, checks_host=expected.name is None)
    if as_ourselves:
        _present(context, identity)

    async def read_peer() -> PeerIdentity:
        with await connect(address, clock) as connected:
            conversation = _Conversation(address, connected, context)
            peer = await conversation.peer(expected)
            if as_ourselves:
                await conversation.await_acceptance()
            return peer

    try:
        return await finish_before(clock, clock.now() + HANDSHAKE_SECONDS, read_peer())
    except TimeoutError:
        raise unreachable(
            f"nothing answers at {address}: no handshake within "
            f"{HANDSHAKE_SECONDS:g} seconds",
            "Check the address, and that firewalls and port forwarding let this "
            "client through.",
        ) from None


class _Conversation:
    """TLS on one connected socket, step by step, which controls what is sent."""

    def __init__(
        self, address: Address, connected: socket.socket, context: ssl.SSLContext
    ) -> None:
        self._address = address
        self._socket = connected
        self._received, self._unsent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._received, self._unsent, server_hostname=address.host
        )

    async def peer(self, expected: Expected) -> PeerIdentity:
        """Do the handshake; return the peer that the verified certificate names.

        The client's own last message of the handshake is made, and not sent.
        """
        try:
            await self._run_step(self._tls.do_handshake)
        except OSError as error:  # of which ssl.SSLError is one
            raise _why_no_handshake(self._address, error) from None
        peer = _named_in(self._tls.getpeercert(binary_form=True))
        expected.check(peer)
        return peer

    async def await_acceptance(self) -> None:
        """Show the client's certificate, and wait for the aggregator's first frame.

        In TLS 1.3 a client's handshake is done before the server has verified the
        client's certificate; a refusal appears only in the next message.
        """
        try:
            await self._send_unsent()
            first = await self._run_step(lambda: self._tls.read(1))
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            first = b""
        except ssl.SSLError:
            raise _certificate_error(
                "the aggregator refuses this client's certificate",
                "Ask its operator which authority and trust domain it accepts.",
            ) from None
        except OSError:
            first = b""
        if not first:
            raise unreachable(
                f"{self._address} closed the connection when it saw this client's "
                "certificate",
                "Unless it was stopping: check that the aggregator trusts the "
                "authority of this certificate; its log may say more.",
            )

    async def _run_step(self, step: Callable[[], _Result]) -> _Result:
        """Do a step of TLS as soon as enough bytes have arrived for it."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                await self._send_unsent()
            data = await loop.sock_recv(self._socket, _RECORD_BYTES)
            if data:
                self._received.write(data)
            else:
                self._received.write_eof()

    async def _send_unsent(self) -> None:
        if self._unsent.pending:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(self._socket, self._unsent.read())


def _context(identity: TLSIdentity, *, checks_host: bool) -> ssl.SSLContext:
    """Return the trust settings of the transport itself (R10.1-1)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = checks_host
    # As gRPC: an intermediate may be the trusted authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=identity.authorities.decode("ascii"))
    return context


def _present(context: ssl.SSLContext, identity: TLSIdentity) -> None:
    """Show the certificate that the transport itself would present."""
    files = identity.files
    try:
        # Python's TLS reads keys from files only.  The password is for a key that was
        # replaced by an encrypted one: without it, OpenSSL prompts at the terminal.
        context.load_cert_chain(files.certificate, files.private_key, password=b"")
    except OSError as error:
        raise _certificate_error(
            f"{files.certificate} and {files.private_key} can no longer be used: "
            f"{error.strerror}",
            "Restore the files, or start again with the new ones.",
        ) from None


async def resolve(address: Address) -> list[tuple[Any, ...]]:
    """Return the addresses of a host, as `socket.getaddrinfo` does.

    Raises:
        ServiceError: UNREACHABLE; the name is unknown.
    """
    try:
        return await asyncio.get_running_loop().getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )
    except (socket.gaierror, UnicodeError):
        raise unreachable(
            f"the host name {address.host!r} is not known to the name service",
            "Check the spelling of client.server and the DNS of this host.",
        ) from None


async def connect(address: Address, clock: Clock) -> socket.socket:
    """Return a connected socket; the first of the host's addresses that answers.

    Raises:
        ServiceError: UNREACHABLE.
        TimeoutError: Nothing answers within `HANDSHAKE_SECONDS`.
    """
    loop = asyncio.get_running_loop()
    found = await resolve(address)
    failure: OSError | None = None
    # An address that does not answer, such as IPv6 without a route, leaves time for the
    # others.
    share = HANDSHAKE_SECONDS / max(1, len(found))
    for family, kind, protocol, _, where in found:
        attempt = socket.socket(family, kind, protocol)
        with ExitStack() as undo:
            undo.callback(attempt.close)
            attempt.settimeout(0.0)
            try:
                await finish_before(
                    clock, clock.now() + share, loop.sock_connect(attempt, where)
                )
            except OSError as error:
                failure = error
            else:
                undo.pop_all()
                return attempt
    if isinstance(failure, TimeoutError):
        raise failure
    if isinstance(failure, ConnectionRefusedError):
        raise unreachable(
            f"{address} refuses connections: nothing listens there",
            "Start the aggregator, or correct the port in client.server.",
        )
    reason = failure.strerror if failure is not None else "it has no address"
    raise unreachable(
        f"there is no way to {address}: {reason}",
        "Check network, VPN and routes of this host.",
    )


def _why_no_handshake(address: Address, error: OSError) -> SecAggError:
    """Return the error for a TLS handshake that has failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _verification_error(error.verify_code)
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        if "ALERT" in (error.reason or ""):
            return _certificate_error(
                f"{address} refuses the TLS handshake",
                "Check that it is the aggregator's address; aggregators speak TLS 1.3.",
            )
        return _certificate_error(
            f"what listens at {address} does not speak TLS",
            "Check the address and the port.",
        )
    return unreachable(
        f"{address} closed the connection during the TLS handshake",
        "Check the address, and that nothing on the path ends TLS; try again.",
    )


def _verification_error(verify_code: int) -> SecAggError:
    """Return the error for a certificate that OpenSSL has refused."""
    if verify_code == _EXPIRED:
        return _certificate_error(
            "the aggregator's certificate has expired",
            "Tell the operator to renew it; check the clock of this host.",
        )
    if verify_code == _NOT_YET_VALID:
        return ErrorCode.BAD_CLOCK.error(
            "the aggregator's certificate is not valid yet by the clock of this host",
            fix="Check the clocks of both hosts.",
        )
    if verify_code == _WRONG_PURPOSE:
        return _certificate_error(
            "the peer shows a certificate that is not for servers, such as a client's",
            "Check the address; the aggregator needs a certificate for servers.",
        )
    if verify_code in _OTHER_HOST:
        return _certificate_error(
            "the aggregator's certificate was not issued for this address",
            "Connect to a host in its certificate, issue one for this address, or "
            "name the aggregator in client.aggregator.",
        )
    return _certificate_error(
        "the aggregator's certificate comes from another authority",
        "Check that tls.ca is the authority that issued it.",
    )


def _named_in(certificate: bytes | None) -> PeerIdentity:
    """Return the party that a verified certificate names."""
    try:
        return identity_of(x509.load_der_x509_certificate(certificate or b""))
    except ValueError:
        raise UnexpectedPeerError(
            "the aggregator's certificate is malformed",
            "Tell the operator to issue it again.",
        ) from None
    except ServiceError as error:
        raise UnexpectedPeerError(
            f"the peer is not an aggregator to this client: {error}",
            f"Check the address, or tell the operator: {error.next_step}",
        ) from None


def _certificate_error(complaint: str, next_step: str) -> SecAggError:
    """Return the error of a handshake that proves no identity."""
    return ErrorCode.BAD_CERTIFICATE.error(complaint, fix=next_step)


def unreachable(complaint: str, next_step: str) -> SecAggError:
    """Return the error for a connection that may succeed later."""
    return ErrorCode.UNREACHABLE.error(
        complaint, fix=next_step, retry_after_seconds=_RETRY_SECONDS
    )
