"""The stored form of one session on the server.

Rule 1: a header holds the parameters of the session; the records after it are accepted
        events.  Both together rebuild the state.
Rule 2: the payload lies in the spool, not here.  The revocation list lies here: a
        session ends under the list that it began with, whatever is published later.
"""

from dataclasses import dataclass, field
from typing import Final, Self

from secagg.crypto.canonical import Reader, Writer
from secagg.distributed_dp import read_noise_terms
from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import (
    MAX_REVOCATION_BYTES,
    VerifiedCredentials,
    read_revocations,
)
from secagg.protocol.messages import MAX_IDENTITY_BYTES
from secagg.protocol.packing import packed_size
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.storage.journal import StoredEvent, decode_server_event
from secagg.storage.rows import StoredSession

_VERSION: Final = 2
_MAX_DESCRIPTOR_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """Holds a session's parameters and what has happened since it was opened.

    Attributes:
        descriptor: The session as it is offered.
        invited: Clients that may take part; None for every authenticated client.
        excluded: Clients excluded because of earlier sessions of the task.
        finished: Invited clients that have used all their participations.
        attempt: Number of this attempt of the task at the same payload, from 1.
        revocations: The list that the offer names, in the issuer's bytes; b"" for none.
        events: Accepted events, from the journal.
    """

    descriptor: SessionDescriptor
    invited: frozenset[str] | None
    excluded: frozenset[str] = frozenset()
    finished: frozenset[str] = frozenset()
    attempt: int = 1
    revocations: bytes = field(default=b"", repr=False)
    events: tuple[StoredEvent, ...] = ()

    @property
    def session_key(self) -> str:
        """The session's name in the store."""
        return f"server/{self.descriptor.session_id.hex()}"

    def start(self, verified: VerifiedCredentials | None = None) -> server.ServerState:
        """Return the state before any event.

        Args:
            verified: Credentials that earlier sessions verified.

        Raises:
            RemoteProtocolError: BAD_CONFIG, or BAD_CREDENTIAL for a list that the offer
                does not name; no such session can exist.
        """
        parameters = self.descriptor.parameters
        return server_machine.start(
            self.descriptor,
            packed_bytes=packed_size(parameters.dimension, parameters.bits),
            invited=self.invited,
            # The session waits for no advert of these clients.
            excluded=self.excluded | self.finished,
            revoked=self._revoked(),
            verified=verified,
            read_noise=read_noise_terms,
        )

    def _revoked(self) -> frozenset[int]:
        trust = self.descriptor.parameters.trust
        found = None if trust is None else read_revocations(self.revocations, trust)
        return frozenset() if found is None else frozenset(found.serials)

    def encode_header(self) -> bytes:
        """Return the header to store."""
        writer = Writer().u16(_VERSION).blob(self.descriptor.encode())
        writer.u32(self.attempt).flag(self.invited is not None)
        for names in (self.invited or frozenset(), self.excluded, self.finished):
            writer.u32(len(names))
            for identity in sorted(names):
                writer.text(identity)
        return writer.blob(self.revocations).getvalue()

    @classmethod
    def decode(cls, stored: StoredSession) -> Self:
        """Decode a stored session that has not ended.

        Raises:
            ServiceError: STORAGE_FAILED; the bytes are damaged or of another release.
        """
        reader = Reader(stored.header, "session header")
        try:
            version = reader.u16()
            if version != _VERSION:
                raise _unreadable(f"version {version} is unknown")
            descriptor = SessionDescriptor.decode(
                reader.blob(max_bytes=_MAX_DESCRIPTOR_BYTES)
            )
            attempt, restricted = reader.u32(), reader.flag()
            names, excluded = _read_names(reader), _read_names(reader)
            finished = _read_names(reader)
            revocations = reader.blob(max_bytes=MAX_REVOCATION_BYTES)
            reader.end()
        except (ValueError, RemoteProtocolError) as error:
            raise _unreadable(str(error)) from None
        events = tuple(decode_server_event(record) for record in stored.records)
        invited = names if restricted else None
        return cls(
            descriptor, invited, excluded, finished, attempt, revocations, events
        )


def _read_names(reader: Reader) -> frozenset[str]:
    return frozenset(
        reader.text(max_bytes=MAX_IDENTITY_BYTES) for _ in range(reader.u32())
    )


def _unreadable(complaint: str) -> SecAggError:
    return ErrorCode.STORAGE_FAILED.error(
        f"a stored session cannot be read: {complaint}",
        fix="Use the release that wrote it, or delete the session's state.",
    )
