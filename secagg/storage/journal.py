"""Events as records: what a journal holds.

Rule 1: the record of a message is its number, its sender and its own canonical bytes,
        as they were received.
Rule 2: the other events have layouts of their own, with kinds from 64 up.  No number is
        ever given a second meaning.
Rule 3: vectors are not journalled.  Of a client's input only the digest is
        (`InputBound`), of an upload sender, digest and size.
Rule 4: a record that cannot be read is a failure of the storage, not of a peer.
Rule 5: the seed of a session is stored. A client's identity key is not: it has a file
        of its own, and outlives every session.

The runtimes of client and server decide which events are journalled, and when.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from secagg.crypto.canonical import Reader, Writer
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode, RemoteProtocolError, printable
from secagg.protocol.client.machine import resume_answered
from secagg.protocol.client.states import Answered, Completed, Failed
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import ClientIdentity, Credential, VerifiedCredentials
from secagg.protocol.events import (
    AbortRequested,
    ClientEvent,
    InputBound,
    Received,
    RoundClosed,
    ServerEvent,
    SessionOffered,
    SumComputed,
)
from secagg.protocol.membership import Membership
from secagg.protocol.messages import (
    DIGEST_BYTES,
    KINDS,
    MAX_REASON_BYTES,
    Aborted,
    Complaint,
    Envelope,
    Message,
    Released,
    Round,
)
from secagg.protocol.receipts.receipt import AuditReceipt
from secagg.protocol.refund import ChargeOutcome
from secagg.protocol.rounds import FROM_CLIENTS, FROM_SERVER
from secagg.storage.change import Record

# The journal is written by this program: the limit only stops a damaged length from
# taking all memory.
_MAX_FIELD_BYTES: Final = (1 << 32) - 1
_SEED_BYTES: Final = 32

# 1 to 63 are the numbers of messages (`KINDS`).
_ROUND_CLOSED: Final = 64
_SUM_COMPUTED: Final = 65
_ABORT_REQUESTED: Final = 66
_SESSION_OFFERED: Final = 67
_INPUT_BOUND: Final = 68
_ANSWERED: Final = 69
_EVIDENCE: Final = 70
_SUM_ATTEMPT: Final = 71
_VIEW_REFUSED: Final = 72
_SIGNATURE_REFUSED: Final = 73


@dataclass(frozen=True, slots=True)
class SumAttempt:
    """Records that an aggregator begins to compute a sum, or takes the start back.

    The state machine ignores it. Other replicas learn from it that a sum was begun and
    never completed.

    Attributes:
        is_begun: Whether the sum begins; False takes a start back.
    """

    is_begun: bool


@dataclass(frozen=True, slots=True)
class RefusalNoted:
    """Records that a client was refused for a reason that the session's report states.

    The state machine ignores it: a refused message changes no state.  A session holds
    at most one such record of each client and code.

    Attributes:
        client: Name of the client.
        code: VIEW_DIFFERS (R5.3-14), or BAD_SIGNATURE over the sets (R5.4-7).
    """

    client: str
    code: ErrorCode


StoredEvent = ServerEvent | SumAttempt | RefusalNoted

_REFUSALS: Final[Mapping[ErrorCode, int]] = {
    ErrorCode.VIEW_DIFFERS: _VIEW_REFUSED,
    ErrorCode.BAD_SIGNATURE: _SIGNATURE_REFUSED,
}

_Event = TypeVar("_Event")
_Readers = Mapping[int, Callable[[Reader, str], _Event]]


def record_of(event: StoredEvent | ClientEvent) -> Record:
    """Return the record of an event.

    Raises:
        TypeError: The event holds a vector, whose `InputBound` is journalled instead;
            or it begins a session, which is a header and no record.
    """
    match event:
        case Received() if event.envelope.kind is Complaint:
            # One sender may complain about several dealers: the store, which accepts
            # one record of a kind from each sender, does not check these.
            kind = Complaint.KIND
            body = Writer().text(event.sender).fixed(event.envelope.data)
        case Received():
            kind, sender = event.envelope.kind.KIND, event.sender or None
            return Record(kind, sender, event.envelope.data)
        case RoundClosed():
            kind = _ROUND_CLOSED
            body = Writer().u8(event.round).blob(event.graph_seed)
            body.u32(len(event.missing))
            for index in event.missing:
                body.u32(index)
        case SumComputed():
            kind = _SUM_COMPUTED
            body = Writer().fixed(event.sum_hash)
            body.u64(event.size).u64(event.kept_until)
        case AbortRequested():
            kind = _ABORT_REQUESTED
            body = Writer().u16(event.code).text(_printable_reason(event.reason))
            body.flag(event.discard_unmasked)
        case SumAttempt():
            kind = _SUM_ATTEMPT
            body = Writer().flag(event.is_begun)
        case RefusalNoted():
            return Record(_REFUSALS[event.code], event.client, b"")
        case InputBound():
            kind = _INPUT_BOUND
            body = Writer().fixed(event.digest)
        case _:
            raise TypeError(f"{type(event).__name__} is not journalled")
    return Record(kind, None, body.getvalue())


def decode_server_event(record: Record) -> StoredEvent:
    """Decode what `record_of` wrote of a server's event.

    Raises:
        ServiceError: STORAGE_FAILED; the journal is damaged or of another release.
    """
    return _decode_record(record, "event of a server", _SERVER_EVENTS)


def sums_begun(events: Iterable[StoredEvent]) -> int:
    """Return how often the sum of a session was begun, less the starts taken back."""
    return sum(
        1 if event.is_begun else -1 for event in events if isinstance(event, SumAttempt)
    )


def decode_client_event(record: Record) -> ClientEvent:
    """Decode what `record_of` wrote of a client's event.

    Raises:
        ServiceError: STORAGE_FAILED; the journal is damaged or of another release.
    """
    return _decode_record(record, "event of a client", _CLIENT_EVENTS)


def encode_offer(offered: SessionOffered) -> bytes:
    """Return the header of a client's session; it holds the seed."""
    writer = Writer().u16(_SESSION_OFFERED).blob(offered.descriptor.encode())
    writer.text(offered.identity).text(offered.aggregator)
    writer.fixed(offered.seed.reveal()).u64(offered.now)
    # Trust domain and pinned key are those of the offer: it was accepted.
    membership = offered.membership
    writer.flag(membership is not None)
    if membership is not None:
        membership.credential.encode_into(writer)
        writer.flag(membership.list_made_at is not None)
        if membership.list_made_at is not None:
            writer.u64(membership.list_made_at)
        writer.u32(len(membership.revoked))
        for serial in sorted(membership.revoked):
            writer.u32(serial)
    return writer.getvalue()


@dataclass(frozen=True, slots=True)
class StoredOffer:
    """Holds the stored offer of a client's session.

    Attributes:
        offered: The offer, without the client's place among the enrolled.
        credential: The credential that proved it; None where none is required.
        revoked: Serials of the list that the offer names.
        list_made_at: Date of that list, in Unix seconds; None for no list.
    """

    offered: SessionOffered
    credential: Credential | None = None
    revoked: frozenset[int] = field(default=frozenset(), repr=False)
    list_made_at: int | None = None

    def fits(self, own: ClientIdentity | None) -> bool:
        """Whether a client's identity is still that of the session."""
        return self.credential is None or (
            own is not None and own.key.public_bytes == self.credential.identity_key
        )

    def resumed(
        self, own: ClientIdentity | None, verified: VerifiedCredentials | None
    ) -> SessionOffered:
        """Return the offer as it was accepted.

        Args:
            own: The client's identity, which fits.
            verified: Credentials that earlier sessions verified.
        """
        if self.credential is None or own is None:
            return self.offered
        membership = Membership(
            trust_domain=own.issued.trust_domain,
            enrolment_key=own.enrolment_key,
            key=own.key,
            credential=self.credential,
            revoked=self.revoked,
            list_made_at=self.list_made_at,
            verified=verified,
        )
        return replace(self.offered, membership=membership)


def decode_offer(header: bytes) -> StoredOffer:
    """Decode what `encode_offer` wrote.

    Raises:
        ServiceError: STORAGE_FAILED; the header is damaged or of another release.
    """
    return _decode_record(_tagged(header), "offer", _OFFERS)


def encode_answered(descriptor: SessionDescriptor, state: Answered) -> bytes:
    """Return the header of a client's session that has answered; it holds no secret.

    It replaces header and records. The client can then send the answer again, check how
    the session ends and show what it was (`evidence_of`), and nothing else (PROTOCOL
    §12).
    """
    writer = Writer().u16(_ANSWERED).blob(descriptor.encode())
    writer.text(state.facts.identity).u8(len(state.accepted))
    for opened, digest in sorted(state.accepted.items()):
        writer.u8(opened).fixed(digest)
    writer.u32(state.share_holders).blob(state.survivors)
    return writer.blob(state.answer).getvalue()


def is_answered(header: bytes) -> bool:
    """Whether a header is one of `encode_answered`."""
    return _tagged(header).kind == _ANSWERED


def decode_answered(header: bytes) -> tuple[SessionDescriptor, Answered]:
    """Decode what `encode_answered` wrote.

    Raises:
        ServiceError: STORAGE_FAILED; the header is damaged or of another release.
    """
    return _decode_record(_tagged(header), "answer", {_ANSWERED: _read_answered})


def _read_answered(reader: Reader, _: str) -> tuple[SessionDescriptor, Answered]:
    """Read the state of a client that has answered the last round."""
    descriptor = SessionDescriptor.decode(_read_blob(reader))
    identity = _read_text(reader)
    accepted = {
        Round(reader.u8()): reader.fixed(DIGEST_BYTES) for _ in range(reader.u8())
    }
    return descriptor, resume_answered(
        descriptor,
        identity,
        accepted=accepted,
        share_holders=reader.u32(),
        survivors=_read_blob(reader),
        answer=_read_blob(reader),
    )


def evidence_of(seen: AuditReceipt) -> Record:
    """Return the record of a client's evidence about a session that it answered."""
    return Record(_EVIDENCE, None, seen.encode())


def decode_evidence(record: Record) -> AuditReceipt:
    """Decode what `evidence_of` wrote.

    Raises:
        ServiceError: STORAGE_FAILED; the journal is damaged or of another release.
    """
    return _decode_record(record, "evidence", {_EVIDENCE: _read_evidence})


def _read_evidence(reader: Reader, _: str) -> AuditReceipt:
    """Read the receipt that a client keeps."""
    return AuditReceipt.decode(reader.fixed(reader.remaining))


@dataclass(frozen=True, slots=True)
class Ending:
    """Holds what remains of a client's session.

    Attributes:
        state: How it ended.
        audit: Bytes of this client's receipt (`secagg.protocol.receipts`).
    """

    state: Completed | Failed
    audit: bytes = field(repr=False)


def encode_ending(ending: Ending) -> bytes:
    """Return the bytes that a client's store keeps of a session that is over."""
    ended = ending.state
    writer = Writer()
    match ended:
        case Completed():
            writer.u16(Released.KIND).text(ended.charge)
            writer.blob(ended.outcome.encode())
        case Failed():
            writer.u16(Aborted.KIND).text(ended.charge)
            writer.u16(ended.code).text(_printable_reason(ended.reason))
    return writer.blob(ending.audit).getvalue()


def decode_ending(receipt: bytes) -> Ending:
    """Decode what `encode_ending` wrote.

    Raises:
        ServiceError: STORAGE_FAILED; the journal is damaged or of another release.
    """
    return _decode_record(_tagged(receipt), "ending of a session", _ENDINGS)


def _tagged(data: bytes) -> Record:
    """Split bytes that begin with their kind."""
    return Record(int.from_bytes(data[:2], "big"), None, data[2:])


def _decode_record(record: Record, what: str, readers: _Readers[_Event]) -> _Event:
    """Decode a record by the reader of its kind."""
    reader = Reader(record.body, "journal record")
    try:
        event = readers[record.kind](reader, record.sender or "")
        reader.end()
    except (KeyError, ValueError, RemoteProtocolError) as error:
        raise ErrorCode.STORAGE_FAILED.error(
            f"a stored record is no {what}: {error}",
            fix="Use the release that wrote it, or discard the session's state.",
        ) from None
    return event


def _printable_reason(reason: str) -> str:
    return printable(reason, max_bytes=MAX_REASON_BYTES)


def _read_text(reader: Reader) -> str:
    """Read a text of a record."""
    return reader.text(max_bytes=_MAX_FIELD_BYTES)


def _read_blob(reader: Reader) -> bytes:
    """Read a byte string of a record."""
    return reader.blob(max_bytes=_MAX_FIELD_BYTES)


def _received(kind: type[Message]) -> Callable[[Reader, str], Received]:
    """Return the reader of messages of a kind."""

    def read(reader: Reader, sender: str) -> Received:
        return Received(Envelope(kind, reader.fixed(reader.remaining)), sender)

    return read


def _complaint(reader: Reader, _: str) -> Received:
    sender = _read_text(reader)
    return Received(Envelope(Complaint, reader.fixed(reader.remaining)), sender)


def _refusal(code: ErrorCode) -> Callable[[Reader, str], RefusalNoted]:
    """Return the reader of a refusal with a code."""

    def read(_: Reader, client: str) -> RefusalNoted:
        if not client:
            raise ValueError("it names no client")
        return RefusalNoted(client, code)

    return read


def _message_readers(kinds: frozenset[type[Message]]) -> _Readers[Received]:
    """Return the readers of messages of some kinds, by tag."""
    return {tag: _received(kind) for tag, kind in KINDS.items() if kind in kinds}


# Arguments are evaluated from left to right, which is the order of the fields.
_SERVER_EVENTS: Final[_Readers[StoredEvent]] = {
    **_message_readers(FROM_CLIENTS),
    Complaint.KIND: _complaint,
    _ROUND_CLOSED: lambda r, _: RoundClosed(
        Round(r.u8()), _read_blob(r), tuple(r.u32() for _ in range(r.u32()))
    ),
    _SUM_COMPUTED: lambda r, _: SumComputed(r.fixed(DIGEST_BYTES), r.u64(), r.u64()),
    _ABORT_REQUESTED: lambda r, _: AbortRequested(
        ErrorCode(r.u16()), _read_text(r), r.flag()
    ),
    _SUM_ATTEMPT: lambda r, _: SumAttempt(r.flag()),
    **{tag: _refusal(code) for code, tag in _REFUSALS.items()},
}

_CLIENT_EVENTS: Final[_Readers[ClientEvent]] = {
    **_message_readers(FROM_SERVER),
    _INPUT_BOUND: lambda r, _: InputBound(r.fixed(DIGEST_BYTES)),
}


def _read_offer(reader: Reader, _: str) -> StoredOffer:
    """Read the offer that a client has accepted, with its credential."""
    offered = SessionOffered(
        SessionDescriptor.decode(_read_blob(reader)),
        _read_text(reader),
        _read_text(reader),
        SecretBytes(reader.fixed(_SEED_BYTES)),
        reader.u64(),
    )
    if not reader.flag():
        return StoredOffer(offered)
    credential = Credential.decode_from(reader, name=offered.identity)
    list_made_at = reader.u64() if reader.flag() else None
    revoked = frozenset(reader.u32() for _ in range(reader.u32()))
    return StoredOffer(offered, credential, revoked, list_made_at)


_OFFERS: Final[_Readers[StoredOffer]] = {_SESSION_OFFERED: _read_offer}


def _read_completed(reader: Reader, _: str) -> Ending:
    """Read the state of a client whose session released a sum."""
    charge = ChargeOutcome(_read_text(reader))
    return Ending(
        Completed(Released.decode(_read_blob(reader)), charge), _read_blob(reader)
    )


def _read_failed(reader: Reader, _: str) -> Ending:
    """Read the state of a client whose session ended without a sum."""
    charge = ChargeOutcome(_read_text(reader))
    state = Failed(ErrorCode(reader.u16()), _read_text(reader), charge)
    return Ending(state, _read_blob(reader))


_ENDINGS: Final[_Readers[Ending]] = {
    Released.KIND: _read_completed,
    Aborted.KIND: _read_failed,
}
