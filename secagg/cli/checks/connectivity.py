"""Connectivity checks: every step from a client to its aggregator."""

import asyncio
import ssl
import time
from typing import Final

from secagg.cli.checks.preflight import Caution
from secagg.client.enrolment_files import read_enrolled
from secagg.client.gate import (
    GateRequest,
    GateStage,
    KnownFacts,
    Need,
    OwnEnrolment,
    OwnRules,
    admit,
)
from secagg.client.grpc_connection import GrpcConnection
from secagg.client.program import client_enrolment, client_policy
from secagg.config import ClientSettings
from secagg.config.files import identity_of
from secagg.config.policy import privacy_limits_of
from secagg.errors import ErrorCode, printable
from secagg.protocol.descriptor import SessionDescriptor
from secagg.runtime.clock import SystemClock
from secagg.transport.address import Address
from secagg.transport.handshake import (
    HANDSHAKE_SECONDS,
    Expected,
    connect,
    probe,
    resolve,
    unreachable,
)
from secagg.transport.peer_identity import PeerIdentity, Role
from secagg.wire.calls import GetOffer, Wait

_ANSWER_SECONDS: Final = 5.0


class ConnectivityCheck:
    """Checks each step towards the offer of a client's task, in order.

    Each check returns what it has found, or raises the `SecAggError` that the
    client would meet.

    Args:
        settings: Of the client.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._address: Address | None = None
        self._offer: SessionDescriptor | Wait | None = None
        self._aggregator: str | None = None

    @property
    def _server_address(self) -> Address:
        if self._address is None:
            self._address = Address.parse(self._settings.client.server)
        return self._address

    async def resolve(self) -> str:
        """Resolve the host name of the aggregator."""
        found = await resolve(self._server_address)
        places = sorted({str(each[4][0]) for each in found})
        return f"{self._server_address.host} has the address {', '.join(places)}"

    async def connect(self) -> str:
        """Open a connection and close it."""
        try:
            with await connect(self._server_address, SystemClock()):
                pass
        except TimeoutError:
            raise unreachable(
                f"{self._server_address} does not answer within {HANDSHAKE_SECONDS:g} "
                "seconds: packets are lost or filtered on the way",
                "Check firewalls, port forwarding and VPN between the two machines.",
            ) from None
        return f"{self._server_address} accepts connections"

    async def speaks_tls(self) -> str:
        """Perform a TLS handshake without verification; the next step verifies."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        files = self._settings.tls
        context.load_cert_chain(files.certificate, files.key, password=b"")
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                _, writer = await asyncio.open_connection(
                    self._server_address.host, self._server_address.port, ssl=context
                )
        except (OSError, TimeoutError):  # an ssl.SSLError is an OSError
            raise ErrorCode.BAD_CERTIFICATE.error(
                f"what listens at {self._server_address} does not speak TLS 1.3",
                fix="Check the address and the port; no proxy on the way may end TLS.",
            ) from None
        spoken = writer.get_extra_info("ssl_object")
        protocol = spoken.selected_alpn_protocol()
        writer.transport.abort()
        if protocol != "h2":
            raise ErrorCode.BAD_CERTIFICATE.error(
                f"what listens at {self._server_address} speaks TLS, but not HTTP/2",
                fix="Check the address; a proxy on the way must pass TLS on.",
            )
        return f"{spoken.version()} with HTTP/2"

    async def perform_handshake(self) -> str:
        """Perform the mutual TLS handshake as this client."""
        identity = identity_of(self._settings.tls, Role.CLIENT, quiet=True)
        expected = Expected(
            identity.identity.trust_domain, self._settings.client.aggregator
        )
        peer = await probe(
            self._server_address, identity, expected, SystemClock(), as_ourselves=True
        )
        return f"{peer.uri}, and it accepts this client's certificate"

    async def request_offer(self) -> str | Caution:
        """Request an offer of the task."""
        client = self._settings.client
        identity = identity_of(self._settings.tls, Role.CLIENT, quiet=True)
        async with GrpcConnection(
            self._server_address, identity=identity, aggregator=client.aggregator
        ) as connection:
            # Between two sessions a task has no offer for a moment.
            clock = SystemClock()
            deadline = clock.now() + _ANSWER_SECONDS
            while True:
                self._offer = await connection.call(GetOffer(client.task, 0))
                if not isinstance(self._offer, Wait) or clock.now() >= deadline:
                    break
                await clock.sleep_until(clock.now() + 1.0)
            self._aggregator = connection.aggregator
        if isinstance(self._offer, Wait):
            return Caution(
                f"task {client.task!r} exists, but no session of it accepts clients "
                "now",
                "Nothing to do: the client waits for one. Its policy could not be "
                "compared.",
            )
        number = self._offer.session_number
        return f"task {client.task!r} exists, session {number} accepts clients"

    def clock(self) -> str:
        """Compare the clock of this machine with the session that is offered."""
        if not isinstance(self._offer, SessionDescriptor):
            return "cannot be compared without an offer"
        self._offer.check_clock(int(time.time()))
        return "fits the session that is offered"

    def accepts_offer(self) -> str:
        """Check the offer as the client would."""
        if not isinstance(self._offer, SessionDescriptor):
            return "cannot be compared without an offer"
        offer = self._offer
        identity = identity_of(self._settings.tls, Role.CLIENT, quiet=True).identity
        admitted = admit(
            GateRequest(
                offer=offer,
                stage=GateStage.OFFER,
                aggregator=self._aggregator or offer.aggregator,
                trust_domain=identity.trust_domain,
                now=int(time.time()),
                own=OwnRules(
                    limits=privacy_limits_of(self._settings.policy),
                    cohort=client_policy(self._settings),
                    enrolment=self._read_enrolment(identity),
                ),
                # Other checks read the state; the client may have it open.
                known=KnownFacts(),
            )
        )
        if isinstance(admitted, Need):
            return "fits, as far as it can be compared without the revocation list"
        session = admitted.info
        task = printable(session.task, max_bytes=256)
        if session.privacy is None:
            return f"takes part in {task!r}: exact sums, which it accepts"
        spent = session.privacy.server.figures()
        return f"takes part in {task!r}: {spent} for the whole task"

    def _read_enrolment(self, identity: PeerIdentity) -> OwnEnrolment | None:
        """Return the rules of the client's enrolment; None for a client without one."""
        files = client_enrolment(self._settings)
        if files is None:
            return None
        return read_enrolled(
            files, name=identity.name, trust_domain=identity.trust_domain
        ).rules()
