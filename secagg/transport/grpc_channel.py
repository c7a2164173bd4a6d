"""A gRPC channel that leads to one aggregator, or fails.

Rule 1: for every connection gRPC's TLS requires a certificate with the aggregator's
        reserved DNS name (`PeerIdentity.dns_name`).  It checks role, trust domain and
        name before this package sends a byte.
Rule 2: the settings name the aggregator.  Without them one handshake with the address
        does, whose host must then be in the certificate.  The aggregator is fixed when
        the first call is made; before that another one may answer a probe.
Rule 3: a handshake of this package comes first, which reads the whole certificate and
        ends before the client's own is shown.  Another one follows when a connection
        fails, to find the reason.
Rule 4: after one successful probe the settings are right.  A later fault (a captive
        portal, a proxy's error page, files in renewal) may pass. It is UNREACHABLE, so
        that no party on the path ends a session.  Another peer with a certificate of
        the trusted authority is no such accident.

gRPC shows a client no certificate; docs/decisions/0014 has the alternatives.
"""

import asyncio
from datetime import UTC, datetime

import grpc
import grpc.aio

from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.runtime.clock import Clock, SystemClock
from secagg.transport.address import Address
from secagg.transport.channel_options import CLIENT_OPTIONS
from secagg.transport.connection import UNCERTIFIED_AGGREGATOR
from secagg.transport.handshake import Expected, UnexpectedPeerError, probe, unreachable
from secagg.transport.peer_identity import PeerIdentity, Role
from secagg.transport.tls import TLSIdentity


def aggregator_named(name: str, *, trust_domain: str) -> PeerIdentity:
    """Return the aggregator that ``client.aggregator`` names.

    Raises:
        ServiceError: BAD_SETTINGS; no certificate can have that name.
    """
    try:
        return PeerIdentity(trust_domain, Role.SERVER, name)
    except ServiceError as error:
        raise ErrorCode.BAD_SETTINGS.error(
            f"client.aggregator: {error}",
            fix="Write the <name> of the aggregator's URI, "
            "secagg://<trust-domain>/server/<name>.",
        ) from None


class AggregatorChannel:
    """Opened at its first use, because that may take a handshake.

    Args:
        address: The aggregator's.
        identity: The client's certificate; None for plaintext, in tests only.
        aggregator: Name of the one aggregator to accept.
        clock: Limits handshakes; the host's by default.

    Raises:
        ServiceError: BAD_SETTINGS; no aggregator can have this name.
    """

    def __init__(
        self,
        address: Address,
        identity: TLSIdentity | None,
        *,
        aggregator: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._address = address
        self._identity = identity
        self._clock = clock or SystemClock()
        self._peer: PeerIdentity | None = None
        # Whether another aggregator is refused: the settings name this one, or a
        # channel to it was made.
        self._is_settled = identity is None or aggregator is not None
        self._channel: grpc.aio.Channel | None = None
        self._is_closed = False
        self._has_been_answered = False
        self._failures = 0  # in a row
        self._opening = asyncio.Lock()
        if identity is None:
            self._peer = PeerIdentity("tests", Role.SERVER, UNCERTIFIED_AGGREGATOR)
            return
        if aggregator is not None:
            self._peer = aggregator_named(
                aggregator, trust_domain=identity.identity.trust_domain
            )

    @property
    def aggregator(self) -> str:
        """Name of the aggregator, whose key authenticates all messages of this channel.

        Raises:
            LocalProtocolError: No call was made yet, and no name is required.
        """
        if self._peer is None:
            raise ErrorCode.LOCAL_MISUSE.error(
                "the aggregator's name is unknown before the first probe or call"
            )
        return self._peer.name

    async def probe(self) -> str:
        """Return the name of the aggregator that listens there.

        Only a handshake is sent.  While no channel was made and the settings name no
        aggregator, each call probes again and may find another one.

        Raises:
            ServiceError: BAD_CERTIFICATE or UNREACHABLE, as `handshake.probe`.
            grpc.aio.UsageError: It was closed.
        """
        async with self._opening:
            if self._is_closed:
                raise grpc.aio.UsageError("the channel is closed")
            if self._channel is None and self._identity is not None:
                self._peer = await self._probe_expected(self._identity)
            return self.aggregator

    async def open(self) -> grpc.aio.Channel:
        """Return the channel.

        Raises:
            ServiceError: BAD_CERTIFICATE or UNREACHABLE, as `handshake.probe`.
            grpc.aio.UsageError: It was closed.
        """
        async with self._opening:
            if self._is_closed:
                raise grpc.aio.UsageError("the channel is closed")
            if self._channel is None:
                self._channel = await self._open_channel()
            return self._channel

    async def _open_channel(self) -> grpc.aio.Channel:
        """Open a channel to the aggregator that the handshake has shown."""
        if self._identity is None:
            return grpc.aio.insecure_channel(str(self._address), options=CLIENT_OPTIONS)
        if self._peer is None or self._is_settled:
            self._peer = await self._probe_expected(self._identity)
        # A probed aggregator is not replaced: the first call must reach the one that
        # the caller was told of, and gRPC's TLS requires its name.
        self._is_settled = True
        return grpc.aio.secure_channel(
            str(self._address),
            self._identity.channel_credentials(),
            options=[
                *CLIENT_OPTIONS,
                ("grpc.ssl_target_name_override", self._peer.dns_name),
            ],
        )

    async def _probe_expected(self, identity: TLSIdentity) -> PeerIdentity:
        """Probe the peer; accept only the fixed aggregator, if there is one."""
        try:
            return await probe(
                self._address, identity, self._expected(identity), self._clock
            )
        except ServiceError as error:
            # A proxy may lead where no direct connection does.  gRPC's TLS checks a
            # fixed name by itself, and `explain` finds the fault.
            if (
                self._peer is None
                or not self._is_settled
                or error.code is not ErrorCode.UNREACHABLE
            ):
                raise
            return self._peer

    def record_answered(self) -> None:
        """Record that a call succeeded: the peer has accepted this client."""
        self._has_been_answered = True
        self._failures = 0

    async def renew(self, identity: TLSIdentity) -> None:
        """Present another certificate of the same client from the next call on.

        The aggregator stays the same.  Calls that are open end with the old channel.

        Args:
            identity: The certificate to present and the authorities to trust.
        """
        async with self._opening:
            self._identity = identity
            old, self._channel = self._channel, None
        if old is not None:
            await old.close()

    async def explain(self, error: SecAggError) -> SecAggError:
        """Return the reason why a call failed, if one can be found.

        An own certificate that has expired, and an impostor with a certificate of the
        authority, stay BAD_CERTIFICATE. Everything else is UNREACHABLE after the first
        probe.

        A probe costs the aggregator a handshake.  To spare a busy aggregator, a
        connected client does not probe.  Others probe after the first, second, fourth,
        eighth failure in a row.
        """
        if self._identity is None or error.code is not ErrorCode.UNREACHABLE:
            return error
        try:
            self._identity.check_validity(_today(self._clock))
        except ServiceError as expired:
            return expired
        self._failures += 1
        if self._is_connected() or self._failures & (self._failures - 1):
            return error
        expected = self._expected(self._identity)
        try:
            await probe(
                self._address,
                self._identity,
                expected,
                self._clock,
                as_ourselves=True,
            )
        except UnexpectedPeerError as unexpected:
            return unexpected
        except ServiceError as found:
            return (
                unreachable(str(found), found.next_step)
                if self._has_been_answered
                else found
            )
        self._has_been_answered = True  # as a call would have been
        return error

    def _is_connected(self) -> bool:
        return self._channel is not None and (
            self._channel.get_state() is grpc.ChannelConnectivity.READY
        )

    async def close(self) -> None:
        """Release the channel; harmless when repeated."""
        self._is_closed = True
        if self._channel is not None:
            await self._channel.close()

    def _expected(self, identity: TLSIdentity) -> Expected:
        name = self._peer.name if self._peer and self._is_settled else None
        return Expected(identity.identity.trust_domain, name)


def _today(clock: Clock) -> datetime:
    """Return the present date."""
    return datetime.fromtimestamp(clock.date(), UTC)
