"""A client's gRPC connection to an aggregator.

Rule 1: every call has a deadline, so that a silent network ends in an error.
Rule 2: every failure arrives as an error of `secagg.errors`; nothing of gRPC gets out.
Rule 3: what is too large for one message is fetched in chunks and compared with its
        announced digest before it is handed on.

It keeps no protocol state and repeats nothing on its own beyond gRPC's few attempts
at UNAVAILABLE: all calls are idempotent, and whoever knows the round's deadline
(`secagg.runtime`) decides about the rest.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import grpc
import grpc.aio

from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
)
from secagg.messages import ServerUpdate
from secagg.parameters import SessionDescriptor
from secagg.protocol.rounds import Round
from secagg.runtime.connection import (
    Blob,
    BlobChunk,
    UploadStatus,
    Wait,
    opened_round,
)
from secagg.transport.address import Address
from secagg.transport.aggregator_channel import AggregatorChannel
from secagg.transport.identity import PeerIdentity, Role
from secagg.transport.interceptors import SERVICE, TEST_IDENTITY_KEY
from secagg.transport.tls import TLSIdentity
from secagg.wire import answers, requests
from secagg.wire.limits import MAX_CHUNK_BYTES
from secagg.wire.status import decode_error

__all__ = ["CallDeadlines", "GrpcConnection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDeadlines:
    """How long a client waits for the answer to one call, in seconds.

    Attributes:
        small: Calls of a few hundred bytes either way.
        large: Calls with up to 4 MiB: at 0.5 Mbit/s, a poor mobile link, 64 s.
        stream: One stream of `watch`; it is opened again until the session ends.
    """

    small: float = 15.0
    large: float = 90.0
    stream: float = 900.0


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

    Raises:
        LocalProtocolError: Neither, or both, of TLS and plaintext are asked for.
        ServiceError: BAD_SETTINGS; no aggregator can be named `aggregator`.
    """

    def __init__(
        self,
        address: Address,
        *,
        identity: TLSIdentity | None = None,
        insecure_for_tests: str | None = None,
        aggregator: str | None = None,
        deadlines: CallDeadlines | None = None,
    ) -> None:
        self._deadlines = deadlines or CallDeadlines()
        self._address = address
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
            raise LocalProtocolError(
                "a connection needs a TLS identity, or plaintext for tests on "
                "loopback, and not both"
            )
        self._channel = AggregatorChannel(address, identity, aggregator=aggregator)

    @property
    def aggregator(self) -> str:
        """Name of the aggregator, proven by its certificate; after the first call."""
        return self._channel.aggregator

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the connection; harmless when repeated."""
        await self._channel.close()

    async def offer(
        self, task_id: str, *, after_session: int
    ) -> SessionDescriptor | Wait:
        """See `AggregatorConnection.offer`."""
        data = await self._call(
            "GetOffer",
            requests.GetOffer(task_id, after_session).encode(),
            self._deadlines.small,
        )
        answer = answers.decode_offer(data)
        if isinstance(answer, answers.Retry):
            return Wait(answer.after_seconds)
        return SessionDescriptor.decode(answer)

    async def advertise(self, session_id: bytes, advert: bytes) -> None:
        """See `AggregatorConnection.advertise`."""
        request = requests.AdvertiseKeys(session_id, advert)
        answers.decode_nothing(
            await self._call("AdvertiseKeys", request.encode(), self._deadlines.small)
        )

    async def share(self, session_id: bytes, bundles: bytes) -> None:
        """See `AggregatorConnection.share`."""
        request = requests.ShareKeys(session_id, bundles)
        answers.decode_nothing(
            await self._call("ShareKeys", request.encode(), self._deadlines.large)
        )

    async def upload_status(self, session_id: bytes) -> UploadStatus:
        """See `AggregatorConnection.upload_status`."""
        request = requests.GetUploadStatus(session_id)
        data = await self._call(
            "GetUploadStatus", request.encode(), self._deadlines.small
        )
        progress = answers.decode_upload_progress(data)
        return UploadStatus(progress.next_offset, progress.complete)

    async def upload_chunk(
        self,
        session_id: bytes,
        *,
        offset: int,
        total_size: int,
        digest: bytes,
        data: bytes,
    ) -> UploadStatus:
        """See `AggregatorConnection.upload_chunk`."""
        request = requests.UploadChunk(session_id, offset, total_size, digest, data)
        answer = await self._call(
            "UploadChunk", request.encode(), self._deadlines.large
        )
        progress = answers.decode_upload_progress(answer)
        return UploadStatus(progress.next_offset, progress.complete)

    async def reveal(self, session_id: bytes, shares: bytes) -> None:
        """See `AggregatorConnection.reveal`."""
        request = requests.RevealShares(session_id, shares)
        answers.decode_nothing(
            await self._call("RevealShares", request.encode(), self._deadlines.large)
        )

    async def update(
        self, session_id: bytes, *, after: Round | None
    ) -> ServerUpdate | Wait:
        """See `AggregatorConnection.update`."""
        request = requests.GetUpdate(session_id, after)
        data = await self._call("GetUpdate", request.encode(), self._deadlines.large)
        answer = answers.decode_update(data)
        if isinstance(answer, answers.Retry):
            return Wait(answer.after_seconds)
        return await self._completed(session_id, answer)

    async def watch(
        self, session_id: bytes, *, after: Round | None
    ) -> AsyncIterator[ServerUpdate]:
        """See `AggregatorConnection.watch`.

        A stream that ends by its own deadline is opened again from the last update.
        """
        while after is not Round.FINISHED:
            watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
            request = requests.WatchSession(session_id, after).encode()
            call = None
            try:
                channel = await self._channel.open()
                watch = channel.unary_stream(f"/{SERVICE}/WatchSession")
                call = watch(
                    request, timeout=self._deadlines.stream, metadata=self._metadata
                )
                async for data in call:
                    update = await self._completed(
                        session_id, answers.decode_watched(data)
                    )
                    after = opened_round(update)
                    yield update
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise await self._error(error) from None
            except grpc.aio.UsageError:
                raise self._closed() from None
            else:
                return
            finally:
                if call is not None:
                    call.cancel()

    async def fetch(
        self, session_id: bytes, *, blob: Blob, offset: int, max_bytes: int
    ) -> BlobChunk:
        """See `AggregatorConnection.fetch`."""
        chunk = await self._fetch(session_id, blob, offset, max_bytes)
        return BlobChunk(chunk.data, chunk.total_size)

    async def _fetch(
        self, session_id: bytes, blob: int, offset: int, max_bytes: int
    ) -> answers.ObjectChunk:
        request = requests.FetchChunk(session_id, blob, offset, max_bytes)
        data = await self._call("FetchChunk", request.encode(), self._deadlines.large)
        chunk = answers.decode_fetched(data)
        if len(chunk.data) > max_bytes:
            raise RemoteProtocolError(
                f"asked for {max_bytes} bytes, {len(chunk.data)} came",
                code=ErrorCode.BAD_ENCODING,
            )
        return chunk

    async def _completed(
        self, session_id: bytes, update: ServerUpdate | answers.DeferredUpdate
    ) -> ServerUpdate:
        """Fetch what the update only refers to, if anything."""
        if not isinstance(update, answers.DeferredUpdate):
            return update
        whole = bytearray()
        while len(whole) < update.size:
            chunk = await self._fetch(
                session_id,
                update.blob,
                len(whole),
                min(MAX_CHUNK_BYTES, update.size - len(whole)),
            )
            if not chunk.data:
                break  # `complete` says that it is not what was announced
            whole += chunk.data
        return update.complete(bytes(whole))

    async def _call(self, method: str, request: bytes, seconds: float) -> bytes:
        """Make one call; raise an error of ours when it fails."""
        try:
            call = self._unary.get(method)
            if call is None:
                channel = await self._channel.open()
                call = channel.unary_unary(f"/{SERVICE}/{method}")
                self._unary[method] = call
            return await call(request, timeout=seconds, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise await self._error(error) from None
        except grpc.aio.UsageError:
            raise self._closed() from None

    async def _error(self, error: grpc.aio.AioRpcError) -> SecAggError:
        return await self._channel.explain(
            decode_error(
                error.code(),
                error.details() or "",
                tuple(error.trailing_metadata() or ()),
            )
        )

    def _closed(self) -> ServiceError:
        return ServiceError(
            f"the connection to {self._address} is closed",
            code=ErrorCode.CANCELLED,
            next_step="Open a new connection.",
        )
