"""A client's gRPC connection to an aggregator.

Rule 1: every call has a deadline, so that a silent network ends in an error.
Rule 2: a certificate that is renewed in its files is presented before the next session
        is asked for, and never within one.
Rule 3: every failure arrives as an error of `secagg.errors`; nothing of gRPC gets out.

It keeps no protocol state and repeats nothing on its own beyond gRPC's few attempts
at UNAVAILABLE: all calls are idempotent, and the caller that knows the round's deadline
(`secagg.runtime`) decides about the rest.
"""

from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Self, TypeVar, cast

import grpc
import grpc.aio

from secagg.errors import ErrorCode, SecAggError
from secagg.pki.expiry import ExpiryWarnings
from secagg.protocol.arguments import says_how_to_open
from secagg.protocol.messages import Envelope, Round
from secagg.transport.address import Address
from secagg.transport.channel_options import SERVICE, TEST_IDENTITY_KEY
from secagg.transport.connection import CallDeadlines
from secagg.transport.grpc_channel import AggregatorChannel
from secagg.transport.peer_identity import PeerIdentity, Role
from secagg.transport.status import error_of
from secagg.transport.tls import ReloadingIdentity, TLSIdentity
from secagg.wire.calls import (
    CALLS,
    Call,
    GetOffer,
    Reference,
    Request,
    Wait,
    WatchSession,
)

_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class Traffic:
    """What went over a connection under one name of a call, before TLS and HTTP/2.

    Attributes:
        calls: How often it was made; a stream counts whenever it is opened.
        bytes_sent: Size of all requests.
        bytes_received: Size of all answers and updates.
    """

    calls: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


@says_how_to_open
class GrpcConnection:
    """An `AggregatorConnection` over gRPC.  Open it inside a running event loop.

    Use it as an asynchronous context manager, or call `close`.

    Args:
        address: The aggregator's.
        identity: The client's certificate.
        insecure_for_tests: A name under which to call a server that serves
            plaintext for tests.  Only without `identity`, only on loopback.
        aggregator: Name of the one aggregator to accept.  Without it, the one whose
            certificate has the address's host; either must have the role server and
            the client's own trust domain.
        deadlines: Per call; sensible values by default.

    Attributes:
        traffic: What was sent and received so far, by name of the call.
        is_direct: True: the certificate that TLS shows names the aggregator.

    Raises:
        LocalProtocolError: Neither, or both, of TLS and plaintext are asked for.
        ServiceError: BAD_SETTINGS; no aggregator can be named `aggregator`.
    """

    is_direct: Final = True

    def __init__(
        self,
        address: Address,
        *,
        identity: TLSIdentity | None = None,
        insecure_for_tests: str | None = None,
        aggregator: str | None = None,
        deadlines: CallDeadlines | None = None,
    ) -> None:
        self._followed = None if identity is None else ReloadingIdentity(identity)
        self._warnings = ExpiryWarnings()
        self._deadlines = deadlines or CallDeadlines()
        self._address = address
        self.traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        self._unary: dict[str, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}
        if identity is not None and insecure_for_tests is None:
            self.identity = identity.identity.name
            self._metadata: tuple[tuple[str, str], ...] = ()
        elif (
            identity is None and insecure_for_tests is not None and address.is_loopback
        ):
            self.identity = PeerIdentity("tests", Role.CLIENT, insecure_for_tests).name
            self._metadata = ((TEST_IDENTITY_KEY, insecure_for_tests),)
        else:
            raise ErrorCode.LOCAL_MISUSE.error(
                "a connection needs a TLS identity, or plaintext for tests on "
                "loopback, and not both"
            )
        self._channel = AggregatorChannel(address, identity, aggregator=aggregator)

    @property
    def aggregator(self) -> str:
        """Name of the aggregator, proven by its certificate; once met or called."""
        return self._channel.aggregator

    async def probe(self) -> str:
        """Identify the aggregator by a TLS handshake, without a call."""
        try:
            return await self._channel.probe()
        except grpc.aio.UsageError:
            raise self._closed_error() from None

    @property
    def trust_domain(self) -> str | None:
        """Of the client, which the aggregator's certificate must share."""
        followed = self.certificate
        return None if followed is None else followed.identity.trust_domain

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the connection; harmless when repeated."""
        await self._channel.close()

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Send a request and return the aggregator's answer."""
        row = CALLS[type(request)]
        if isinstance(request, GetOffer):
            await self._reload_identity()
        try:
            method = self._unary.get(row.name)
            if method is None:
                channel = await self._channel.open()
                method = channel.unary_unary(f"/{SERVICE}/{row.name}")
                self._unary[row.name] = method
            body = request.encode()
            self._count_traffic(row, body)
            data = await method(
                body,
                timeout=self._deadlines.of(type(request)),
                metadata=self._metadata,
            )
        except grpc.aio.AioRpcError as error:
            raise await self._error(error) from None
        except grpc.aio.UsageError:
            raise self._closed_error() from None
        self._channel.record_answered()
        self.traffic[row.name].bytes_received += len(data)
        return cast("_Answer", row.decode(data))

    async def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Yield the updates of a session as the aggregator streams them.

        A stream that ends by its own deadline is opened again from the last update.
        """
        row, after = CALLS[WatchSession], request.after
        while after is not Round.FINISHED:
            stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
            call = None
            try:
                channel = await self._channel.open()
                stream = channel.unary_stream(f"/{SERVICE}/{row.name}")
                body = WatchSession(request.session_id, after).encode()
                self._count_traffic(row, body)
                call = stream(
                    body,
                    timeout=self._deadlines.of(WatchSession),
                    metadata=self._metadata,
                )
                async for data in call:
                    self.traffic[row.name].bytes_received += len(data)
                    update: Envelope | Reference | Wait = row.decode(data)
                    if not isinstance(update, Wait):
                        after = update.kind.ROUND
                    yield update
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise await self._error(error) from None
            except grpc.aio.UsageError:
                raise self._closed_error() from None
            else:
                return
            finally:
                if call is not None:
                    call.cancel()

    def _count_traffic(self, row: Call, body: bytes) -> None:
        """Count a call and the bytes that it sends."""
        traffic = self.traffic[row.name]
        traffic.calls += 1
        traffic.bytes_sent += len(body)

    @property
    def certificate(self) -> TLSIdentity | None:
        """What is presented now; None in plaintext."""
        return None if self._followed is None else self._followed.identity

    async def _reload_identity(self) -> None:
        """Take renewed files, between sessions: no session is open then."""
        if self._followed is None:
            return
        before = self._followed.identity
        newest = self._followed.refresh()
        if newest is not before:
            self._unary.clear()
            await self._channel.renew(newest)
        self._warnings.warn(newest)

    async def _error(self, error: grpc.aio.AioRpcError) -> SecAggError:
        """Return the error of a failed call, with its cause where it is known."""
        return await self._channel.explain(
            error_of(
                error.code(),
                error.details() or "",
                tuple(error.trailing_metadata() or ()),
            )
        )

    def _closed_error(self) -> SecAggError:
        """Return the error of a call on a closed connection."""
        return ErrorCode.CANCELLED.error(
            f"the connection to {self._address} is closed", fix="Open a new connection."
        )
