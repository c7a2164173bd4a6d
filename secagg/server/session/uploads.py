"""Receives the chunks of one session's uploads.

Rule 1: only a client of U2 may upload, one vector, of exactly the packed size, one
        chunk at a time.
Rule 2: an upload counts when its bytes are durable, its digest matches and it is a
        vector over Z_m. Only then does the state machine receive it.
Rule 3: a repeated chunk, also one of a finished upload, is answered like the first.
Rule 4: a chunk is processed to the end even when its sender hangs up. A later call of
        the client must not write beside it.
Rule 5: only invalid bytes are deleted.  A refused upload stays: another aggregator of
        the same session may have accepted it.
Rule 6: uploads that another process received are compared with their digests before
        they are summed: the disk may have changed meanwhile.
Rule 7: an accepted upload whose bytes are gone is requested again, under its digest.
        Its sender is dropped if it does not send them before the round is closed.

Source:
    PROTOCOL §5.3 and §8; limits in PROTOCOL §10.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from hashlib import sha256

from secagg.crypto.modular import BadVectorError
from secagg.errors import ErrorCode
from secagg.protocol.messages import Envelope, Upload
from secagg.protocol.packing import packed_size
from secagg.protocol.parameters import ProtocolParameters
from secagg.runtime.workers import Workers
from secagg.server.engine.mask_removal import check_packed_vector
from secagg.server.rpc.limits import RETRY_SECONDS, UploadSlots
from secagg.storage.spool import HASH_BLOCK_BYTES, UploadSpool
from secagg.wire.calls import UploadChunk, UploadStatus


class UploadReceiver:
    """Receives the uploads of one session.

    Args:
        session_id: The session.
        parameters: Its configuration.
        spool: Stores the bytes.
        workers: Runs the blocking calls.
        slots: Shared by all sessions.
        arrived: Called whenever bytes have arrived, before they are checked.
        accept: Receives sender and `Upload` for the session; raises when it is refused.
        returned: Called when a missing upload has been sent again.

    Attributes:
        missing: Clients whose accepted upload the last search did not find, and that
            have not sent it again.
        received_bytes: Bytes that this process has received.
    """

    def __init__(  # noqa: PLR0913 - it connects as many parts
        self,
        session_id: bytes,
        parameters: ProtocolParameters,
        *,
        spool: UploadSpool,
        workers: Workers,
        slots: UploadSlots,
        arrived: Callable[[], None],
        accept: Callable[[str, Envelope], Awaitable[None]],
        returned: Callable[[], None] = lambda: None,
    ) -> None:
        self._returns = returned
        self._session_id = session_id
        self._parameters = parameters
        self._spool = spool
        self._workers = workers
        self._slots = slots
        self._arrived = arrived
        self._accept = accept
        self._size = packed_size(parameters.dimension, parameters.bits)
        self._busy: set[str] = set()
        self._in_work: set[asyncio.Future[UploadStatus]] = set()
        self._searching = asyncio.Lock()
        self._returned: set[str] = set()  # while a search is running
        self.missing: frozenset[str] = frozenset()
        self.received_bytes = 0

    async def status(self, sender: str) -> UploadStatus:
        """Return where an unfinished upload continues."""
        received = await self._workers.run(
            self._spool.received, self._session_id, sender
        )
        # All bytes are there but unchecked. The client sends the last byte again,
        # because only a chunk starts the check.
        return UploadStatus(min(received, self._size - 1))

    def finished(self) -> UploadStatus:
        """Return the answer to a client that has finished its upload."""
        return UploadStatus(self._size, complete=True)

    async def receive(self, sender: str, chunk: UploadChunk) -> UploadStatus:
        """Receive one chunk of a client that may upload now.

        Raises:
            RemoteProtocolError: The chunk is refused; the client is at fault.
            ServiceError: UPLOAD_CORRUPT, OVERLOADED or STORAGE_FAILED; try again.
        """
        if chunk.total_size != self._size:
            raise ErrorCode.BAD_VECTOR.error(
                f"{sender!r} uploads {chunk.total_size} bytes, a packed vector has "
                f"{self._size}",
                sender=sender,
            )
        work = asyncio.ensure_future(self._write_chunk(sender, chunk))
        self._in_work.add(work)
        work.add_done_callback(self._discard_work)
        return await asyncio.shield(work)

    def _discard_work(self, work: "asyncio.Future[UploadStatus]") -> None:
        """Forget a write that has ended."""
        self._in_work.discard(work)
        if not work.cancelled():
            work.exception()  # the sender of the chunk may have hung up

    async def search(self, uploads: Mapping[str, bytes]) -> frozenset[str]:
        """Search accepted uploads by their size, and set `missing`.

        Args:
            uploads: Digests by sender.

        Returns:
            Senders that were not missing before.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        async with self._searching:
            self._returned.clear()
            lost = await self._workers.run(
                self._spool.missing_uploads,
                self._session_id,
                frozenset(uploads.values()),
                self._size,
            )
            before = self.missing
            found = {sender for sender, digest in uploads.items() if digest in lost}
            self.missing = frozenset(found - self._returned)
            return self.missing - before

    async def check_stored(self, digests: Iterable[bytes]) -> None:
        """Compare stored uploads with their digests.

        Raises:
            ServiceError: STORAGE_FAILED; an upload of the session is lost.
        """
        for digest in digests:
            await self._workers.run(
                _check_digest, self._spool, self._session_id, digest, self._size
            )

    async def _write_chunk(self, sender: str, chunk: UploadChunk) -> UploadStatus:
        """Store one chunk; with the last one, submit the upload as a message."""
        with self._exclusive_chunk(sender):
            async with self._slots.slot(len(chunk.data)):
                received = await self._write_now(sender, chunk)
            self.received_bytes += len(chunk.data)
            if received < chunk.total_size:
                return UploadStatus(received)
            named = Upload(self._size, chunk.digest, chunk.view)
            await self._accept(sender, Envelope.of(named))
            self._returned.add(sender)
            if sender in self.missing:
                self.missing -= {sender}
                self._returns()
            return self.finished()

    async def _write_now(self, sender: str, chunk: UploadChunk) -> int:
        """Store one chunk on a worker; delete an upload that is not a vector."""
        self._arrived()
        spool, session_id = self._spool, self._session_id
        try:
            return await self._workers.run(self._append_chunk, sender, chunk)
        except BadVectorError as error:
            await self._workers.run(spool.discard, session_id, sender, chunk.digest)
            raise ErrorCode.BAD_VECTOR.error(
                f"the upload of {sender!r} is not a vector of the session: {error}",
                sender=sender,
            ) from None

    def _append_chunk(self, sender: str, chunk: UploadChunk) -> int:
        """Add a chunk and return how many bytes have arrived; called on a worker.

        After the last chunk the upload is made durable and its entries are checked.
        """
        received = self._spool.append(
            self._session_id,
            sender,
            chunk.digest,
            offset=chunk.offset,
            total_size=chunk.total_size,
            data=chunk.data,
        )
        if received == chunk.total_size:
            self._spool.commit(self._session_id, sender, chunk.digest)
            check_packed_vector(
                partial(self._spool.read_upload, self._session_id, chunk.digest),
                self._parameters.dimension,
                self._parameters.modulus,
            )
        return received

    @contextmanager
    def _exclusive_chunk(self, sender: str) -> Iterator[None]:
        """Refuse a second chunk of a client while its first is being received."""
        if sender in self._busy:
            raise ErrorCode.OVERLOADED.error(
                f"another chunk of {sender!r} is being received",
                fix="Send chunks one after the other.",
                retry_after_seconds=RETRY_SECONDS,
            )
        self._busy.add(sender)
        try:
            yield
        finally:
            self._busy.discard(sender)


def _check_digest(
    spool: UploadSpool, session_id: bytes, digest: bytes, size: int
) -> None:
    """Refuse an upload whose stored bytes do not have its digest."""
    hasher = sha256()
    for offset in range(0, size, HASH_BLOCK_BYTES):
        piece = min(HASH_BLOCK_BYTES, size - offset)
        hasher.update(spool.read_upload(session_id, digest, offset, piece))
    if hasher.digest() != digest:
        raise ErrorCode.STORAGE_FAILED.error(
            "an upload in the spool is not what its client sent",
            fix="Leave the spool directory alone while sessions run.",
        )
