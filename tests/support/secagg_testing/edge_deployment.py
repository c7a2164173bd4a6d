"""An HTTP edge on loopback, and clients of it over TLS.

Test support.
"""

import asyncio
import socket
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from secagg.client.edge_connection import EdgeConnection
from secagg.protocol.enrolment import ClientIdentity
from secagg.runtime.clock import Clock, SystemClock
from secagg.server.call_guards import CallGuards, CallLimits
from secagg.server.http_edge.listener import EdgeOptions, HttpEdge
from secagg.storage.store import Store
from secagg.transport.address import Address
from secagg.transport.handshake_limits import AdmissionLimits
from secagg_testing.edge_requests import EdgeIssuer, EdgeRequest
from secagg_testing.inline_store import inline_store
from secagg_testing.tls_deployment import TLSDeployment

AUTHORITY = "edge.example"


@dataclass(slots=True)
class EdgeDeployment:
    """The files of an edge and its clients.

    Attributes:
        tls: Its authorities.
        issuer: Of the credentials.
        options: Settings of the operator.
    """

    tls: TLSDeployment
    issuer: EdgeIssuer
    options: EdgeOptions

    @classmethod
    def create(cls, directory: Path, *, now: int, **changes: Any) -> "EdgeDeployment":
        """Make certificates for `AUTHORITY`, and an issuer whose time is now."""
        tls, issuer = TLSDeployment(directory), EdgeIssuer(now=now)
        web = tls.server(AUTHORITY).files
        options = EdgeOptions(
            listen="127.0.0.1:0",
            authority=AUTHORITY,
            certificate=web.certificate,
            private_key=web.private_key,
            trust_domain="ours.example",
            enrolment_key=issuer.key.public_bytes,
        )
        return cls(tls, issuer, replace(options, **changes))

    async def start(
        self,
        service: Any,
        *,
        admission: AdmissionLimits | None = None,
        clock: Clock | None = None,
        limits: CallLimits | None = None,
        store: Store | None = None,
    ) -> HttpEdge:
        """Start an edge in front of a service."""
        clock = clock or SystemClock()
        return await HttpEdge.start(
            service,
            self.options,
            guards=CallGuards(limits or CallLimits(), clock.now),
            admission=admission or AdmissionLimits(),
            store=store or inline_store(),
            clock=clock,
        )

    def connection(
        self, address: Address, identity: ClientIdentity, **changes: Any
    ) -> EdgeConnection:
        """Return a client's connection to it."""
        return EdgeConnection(
            AUTHORITY,
            identity=identity,
            aggregator="agg",
            authorities=self.tls.directory / "ours.pem",
            address=address,
            **changes,
        )

    async def raw(
        self, address: Address, *, sock: socket.socket | None = None
    ) -> "RawLink":
        """Return a TLS connection that sends any bytes.

        Args:
            address: Where to connect.
            sock: What is connected already; by default a new one is.
        """
        context = ssl.create_default_context(cafile=self.tls.directory / "ours.pem")
        where = {"host": address.host, "port": address.port}
        reader, writer = await asyncio.open_connection(
            **(where if sock is None else {"sock": sock}),
            ssl=context,
            server_hostname=AUTHORITY,
        )
        return RawLink(reader, writer)


@dataclass(frozen=True, slots=True)
class RawLink:
    """One TLS connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Send bytes until the peer closes the connection."""
        self.writer.write(data)
        await self.writer.drain()

    async def request(self, request: EdgeRequest) -> tuple[int, bytes]:
        """Send a whole request and return status and body."""
        await self.send(request.head(AUTHORITY) + request.body)
        return await self.answer()

    async def answer(self) -> tuple[int, bytes]:
        """Return status and body of the next answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = head.lower().partition("content-length: ")[2].split("\r\n")[0]
        body = await self.reader.readexactly(int(length or 0))
        return int(head.split(" ")[1]), body

    async def rest(self) -> bytes:
        """Return all bytes until the peer closes the connection, in any way."""
        try:
            return await self.reader.read()
        except (OSError, ssl.SSLError):
            return b""

    def close(self) -> None:
        """Drop it."""
        self.writer.transport.abort()
