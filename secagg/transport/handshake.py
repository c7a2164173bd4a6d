"""One TLS handshake with the aggregator: who it is, or why it cannot be reached.

Rule 1: nothing is sent but the handshake itself.  TLS 1.3 proves the aggregator before
        a client has to show its own certificate: whoever only wants to know who is
        there leaves then, and costs the aggregator no look at a certificate.  Whoever
        looks for a fault goes on, until the first bytes that come back tell whether
        our own certificate was accepted.
Rule 2: every way to fail has a sentence and a next step of its own, made from what the
        system and the TLS library report and never from a text of gRPC.
Rule 3: what would fail again in the same way (certificates, a port without TLS) is
        BAD_CERTIFICATE; what may pass (names, links, restarts) is UNREACHABLE.

A connection that is made later may lead to somebody else.  Who is at its other end is
settled by its own handshake: `secagg.transport.grpc_channel`.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from cryptography import x509

from secagg.errors import ErrorCode, ServiceError
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

# Numbers of X509_V_ERR_... that OpenSSL keeps for ever.
_NOT_YET_VALID, _EXPIRED = 9, 10
_WRONG_PURPOSE = 26
_OTHER_HOST = frozenset({62, 64})


class UnexpectedPeerError(ServiceError):
    """Whoever listens there holds a certificate of our authority, and is another.

    It takes the authority to cause this; everything else can come from anybody on the
    way.
    """

    def __init__(self, complaint: str, next_step: str) -> None:
        super().__init__(complaint, code=ErrorCode.BAD_CERTIFICATE, next_step=next_step)


@dataclass(frozen=True, slots=True)
class Expected:
    """Whom a client accepts as its aggregator.

    Attributes:
        trust_domain: The client's own.
        name: The one aggregator that is accepted; None for whichever has the
            address's host in its certificate.
    """

    trust_domain: str
    name: str | None = None

    def check(self, peer: PeerIdentity) -> None:
        """Refuse anybody else (R10.1-3).

        Raises:
            UnexpectedPeerError: BAD_CERTIFICATE; says who is there and who should be.
        """
        if peer.role is not Role.SERVER:
            raise UnexpectedPeerError(
                f"what listens there is not an aggregator: it shows the certificate "
                f"of {peer.uri}",
                "Do not use this address; tell the operator, that client's key may "
                "be in wrong hands.",
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
                f"the aggregator there is {peer.name!r}, this client accepts only "
                f"{self.name!r}",
                "Check client.server; only if the operator confirms the new name, set "
                "client.aggregator to it and start again.",
            )


async def meet(
    address: Address,
    identity: TLSIdentity,
    expected: Expected,
    clock: Clock,
    *,
    as_ourselves: bool = False,
) -> PeerIdentity:
    """Return who listens at an address, if it is whom the client expects.

    Args:
        address: The aggregator's.
        identity: The client's.
        expected: Whom to accept.
        clock: For the limit of `HANDSHAKE_SECONDS`.
        as_ourselves: Show the client's certificate to whoever has proven to be the
            expected one, and see whether it is accepted.  Otherwise nobody learns more
            of the client than its address.

    Raises:
        ServiceError: BAD_CERTIFICATE or UNREACHABLE; says what is wrong and what to do.
    """
    identity.check_validity(datetime.fromtimestamp(clock.date(), UTC))
    context = _context(identity, checks_host=expected.name is None)
    if as_ourselves:
        _present(context, identity)

    async def who() -> PeerIdentity:
        with await _connect(address, clock) as connected:
            conversation = _Conversation(address, connected, context)
            peer = await conversation.peer(expected)
            if as_ourselves:
                await conversation.see_whether_we_are_accepted()
            return peer

    try:
        return await finish_before(clock, clock.now() + HANDSHAKE_SECONDS, who())
    except TimeoutError:
        raise unreachable(
            f"nothing answers at {address}: no handshake within "
            f"{HANDSHAKE_SECONDS:g} seconds",
            "Check the address, and that firewalls and port forwarding let this "
            "client through.",
        ) from None


class _Conversation:
    """TLS on one connected socket, step by step: what leaves when is seen here."""

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
        """Shake hands; return whom the verified certificate at the other end names.

        The client's own last message of the handshake is made, and not sent.
        """
        try:
            await self._take(self._tls.do_handshake)
        except OSError as error:  # of which ssl.SSLError is one
            raise _why_no_handshake(self._address, error) from None
        peer = _named_in(self._tls.getpeercert(binary_form=True))
        expected.check(peer)
        return peer

    async def see_whether_we_are_accepted(self) -> None:
        """Show our certificate, and wait for the aggregator's first frame.

        In TLS 1.3 a client's handshake is done before the server has looked at the
        client's certificate; a refusal shows only in what comes next.
        """
        try:
            await self._send()
            first = await self._take(lambda: self._tls.read(1))
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            first = b""
        except ssl.SSLError:
            raise _refused(
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

    async def _take(self, step: Callable[[], _Result]) -> _Result:
        """Take a step of TLS as soon as enough has come for it."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                await self._send()
            data = await loop.sock_recv(self._socket, _RECORD_BYTES)
            if data:
                self._received.write(data)
            else:
                self._received.write_eof()

    async def _send(self) -> None:
        if self._unsent.pending:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(self._socket, self._unsent.read())


def _context(identity: TLSIdentity, *, checks_host: bool) -> ssl.SSLContext:
    """Return what the transport itself would trust (R10.1-1)."""
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
        # replaced by an encrypted one: without it, OpenSSL asks at the terminal.
        context.load_cert_chain(files.certificate, files.private_key, password=b"")
    except OSError as error:
        raise _refused(
            f"{files.certificate} and {files.private_key} cannot be used any more: "
            f"{error.strerror}",
            "Put them back, or start again with the new ones.",
        ) from None


async def _connect(address: Address, clock: Clock) -> socket.socket:
    """Return a connected socket; the first of the host's addresses that answers."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )
    except (socket.gaierror, UnicodeError):
        raise unreachable(
            f"the host name {address.host!r} is not known to the name service",
            "Check the spelling of client.server and this machine's DNS.",
        ) from None
    failure: OSError | None = None
    # Silence at one of them, as of IPv6 that leads nowhere, leaves time for the others.
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
        "Check this machine's network, VPN and routes.",
    )


def _why_no_handshake(address: Address, error: OSError) -> ServiceError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _verification_error(error.verify_code)
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        if "ALERT" in (error.reason or ""):
            return _refused(
                f"{address} refuses the TLS handshake",
                "Check that it is the aggregator's address; aggregators speak TLS 1.3.",
            )
        return _refused(
            f"what listens at {address} does not speak TLS",
            "Check the address and the port.",
        )
    return unreachable(
        f"{address} closed the connection during the TLS handshake",
        "Check that the address is the aggregator's and that nothing on the way ends "
        "TLS; try again.",
    )


def _verification_error(verify_code: int) -> ServiceError:
    if verify_code == _EXPIRED:
        return _refused(
            "the aggregator's certificate has expired",
            "Tell the operator to renew it; check this machine's clock.",
        )
    if verify_code == _NOT_YET_VALID:
        return ServiceError(
            "the aggregator's certificate is not valid yet by this machine's clock",
            code=ErrorCode.BAD_CLOCK,
            next_step="Check the clocks of both machines.",
        )
    if verify_code == _WRONG_PURPOSE:
        return _refused(
            "what listens there shows a certificate that may not serve, such as a "
            "client's",
            "Check the address; the aggregator needs a certificate for servers.",
        )
    if verify_code in _OTHER_HOST:
        return _refused(
            "the aggregator's certificate was not issued for this address",
            "Call it by a host in its certificate, issue one for this address, or "
            "name the aggregator in client.aggregator.",
        )
    return _refused(
        "the aggregator's certificate comes from another authority",
        "Check that tls.ca is the authority that issued it.",
    )


def _named_in(certificate: bytes | None) -> PeerIdentity:
    """Return whom a verified certificate names."""
    try:
        return identity_of(x509.load_der_x509_certificate(certificate or b""))
    except ValueError:
        raise UnexpectedPeerError(
            "the aggregator's certificate cannot be read",
            "Tell the operator to issue it again.",
        ) from None
    except ServiceError as error:
        raise UnexpectedPeerError(
            f"whoever listens there is no aggregator to this client: {error}",
            f"Check the address, or tell the operator: {error.next_step}",
        ) from None


def _refused(complaint: str, next_step: str) -> ServiceError:
    return ServiceError(complaint, code=ErrorCode.BAD_CERTIFICATE, next_step=next_step)


def unreachable(complaint: str, next_step: str) -> ServiceError:
    """Return the error for a way that may be open again later."""
    return ServiceError(
        complaint,
        code=ErrorCode.UNREACHABLE,
        next_step=next_step,
        retry_after_seconds=_RETRY_SECONDS,
    )
