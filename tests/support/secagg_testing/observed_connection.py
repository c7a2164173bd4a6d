"""Connections that record all messages of clients in a knowledge ledger.

Rule 1: it stands next to its client, behind all faults and lies: it sees what the
        client was told in the end, whichever party made it.
Rule 2: what a client sends counts as received, also when it is lost later: the
        adversary may be the one who loses it.
Rule 3: a corrupt client runs as the others do; the adversary has its seeds.

Rule 4: what names a session that was never offered is passed over: only a client
        whose disk was damaged says it, and no other party has keys for it.
"""

from collections.abc import AsyncIterator, Collection
from hashlib import sha256
from typing import Any, TypeVar

from secagg.crypto.entropy import SEED_SIZE, Entropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import LocalProtocolError, ServiceError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Envelope
from secagg.protocol.packing import unpack
from secagg.testbed.connections import ConnectionAround
from secagg.transport.connection import AggregatorConnection
from secagg.wire.calls import (
    Blob,
    BlobChunk,
    FetchChunk,
    Reference,
    Request,
    SendMessage,
    UploadChunk,
    Wait,
    WatchSession,
)
from secagg_testing.knowledge.facts import Facts

_Answer = TypeVar("_Answer")


class TaskObserver:
    """Sees all sessions of a task, over the connections of all its clients.

    Args:
        honest: The aggregators that are not the adversary's, by name.

    Attributes:
        facts: What the adversary sees.
        masked: The sessions for which each client has masked an input, by its name.
    """

    def __init__(self, *, honest: Collection[str] = ()) -> None:
        self.facts = Facts(honest=honest)
        self.masked: dict[str, set[bytes]] = {}
        self._offered: dict[bytes, SessionDescriptor] = {}
        self._uploads: dict[tuple[bytes, str, bytes, str], bytearray] = {}
        # Messages that were only referred to, and what was fetched of them so far.
        self._referred: dict[tuple[bytes, str, Blob], tuple[Reference, bytearray]] = {}

    def on_request(self, sender: str, request: Request[Any], *, by: str = "") -> None:
        """Record a request of a client.

        Args:
            sender: Which client.
            request: What.
            by: The aggregator that receives it; "" is the one of the session's offer.
        """
        session_id: bytes = getattr(request, "session_id", b"")
        if session_id not in self._offered:
            return  # rule 4
        if by:
            self.facts.named(session_id, sender, by)
        match request:
            case SendMessage(_, message):
                envelope = Envelope(request.KIND, message)
                self.facts.on_request(session_id, sender, envelope, by=by)
            case UploadChunk():
                self.masked.setdefault(sender, set()).add(session_id)
                self._on_chunk(sender, request, by)

    def on_update(self, receiver: str, request: Request[Any], answer: object) -> None:
        """Record an update to a client."""
        if isinstance(answer, SessionDescriptor):
            self._offered[answer.session_id] = answer
            self.facts.session(answer)
        session_id = getattr(request, "session_id", None)
        if session_id not in self._offered:
            return  # rule 4
        match answer:
            case Envelope():
                self.facts.on_update(session_id, receiver, answer)
            case Reference():
                key = (session_id, receiver, answer.blob)
                self._referred[key] = (answer, bytearray())
            case BlobChunk(data) if isinstance(request, FetchChunk):
                self._on_piece(receiver, request, data)

    def _on_piece(self, receiver: str, piece: FetchChunk, data: bytes) -> None:
        """Put the pieces of a large message together, and read it when it is whole."""
        key = (piece.session_id, receiver, piece.blob)
        if key not in self._referred:
            return  # a payload, or the sum
        reference, fetched = self._referred[key]
        fetched[piece.offset :] = data
        if sha256(fetched).digest() == reference.digest:
            envelope = Envelope(reference.kind, bytes(fetched))
            self.facts.on_update(piece.session_id, receiver, envelope)

    def _on_chunk(self, sender: str, chunk: UploadChunk, by: str) -> None:
        """Put the pieces of an upload together, and read it when it is whole."""
        key = (chunk.session_id, sender, chunk.digest, by)
        stored = self._uploads.setdefault(key, bytearray(chunk.total_size))
        stored[chunk.offset : chunk.offset + len(chunk.data)] = chunk.data
        if sha256(stored).digest() == chunk.digest:
            of = self._offered[chunk.session_id].parameters
            vector = unpack(bytes(stored), of.dimension, of.bits, of.modulus)
            self.facts.on_vector(chunk.session_id, sender, vector, by=by)


class ObservedConnection(ConnectionAround):
    """An `AggregatorConnection` under observation.

    Args:
        inner: Where calls go.
        observer: Records them.
    """

    def __init__(self, inner: AggregatorConnection, observer: TaskObserver) -> None:
        super().__init__(inner)
        self._observer = observer

    def _listener(self) -> str:
        """Return the aggregator of the next call; "" while none listens."""
        try:
            return self._inner.aggregator
        except (LocalProtocolError, ServiceError):
            return ""

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Make the call, and record request and answer."""
        self._observer.on_request(self.identity, request, by=self._listener())
        answer = await self._inner.call(request)
        self._observer.on_update(self.identity, request, answer)
        return answer

    async def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Watch, and record every update."""
        self._observer.on_request(self.identity, request, by=self._listener())
        async for update in self._inner.watch(request):
            self._observer.on_update(self.identity, request, update)
            yield update


class CorruptEntropy:
    """The entropy of a corrupt client: the adversary sees each seed that is drawn."""

    def __init__(self, inner: Entropy, identity: str, facts: Facts) -> None:
        self._inner = inner
        self._identity = identity
        self._facts = facts

    def token(self, size: int, /) -> bytes:
        """Draw from the inner source."""
        drawn = self._inner.token(size)
        if size == SEED_SIZE:
            self._facts.corrupt(self._identity, SecretBytes(drawn))
        return drawn
