"""The interface of durable session records.

Rule 1: a method returns when its effect is durable; either all of it is, or nothing.
Rule 2: the records of a session have consecutive numbers from 0.  Whoever appends
        with another number has lost track, because somebody else drives the same
        session; that is refused, never merged.
Rule 3: `end` scrubs header and records, which hold seeds and shares, and leaves a
        tombstone, so that a session number can never be used twice.
Rule 4: a number that was claimed stays claimed, whatever happens afterwards.
Rule 5: every failure of the machinery is `ServiceError` STORAGE_FAILED.

Stores do not look into headers, records and summaries.  Calls block: run them on a
thread of their own.  Vectors do not belong here but into `secagg.storage.spool`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum, unique
from typing import Protocol

from secagg.errors import ErrorCode, ServiceError

__all__ = [
    "NumberClaim",
    "Role",
    "SessionStore",
    "StoredSession",
    "already_claimed",
    "out_of_step",
    "unknown_session",
]


@unique
class Role(StrEnum):
    """Who keeps a session's records."""

    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class NumberClaim:
    """The use of a session number, once and for all.

    Attributes:
        counter: Names who counts and what, for example a task.
        number: Must exceed every number claimed under the same counter so far.
    """

    counter: str
    number: int


@dataclass(frozen=True, slots=True)
class StoredSession:
    """Everything stored about one session.

    Attributes:
        session_key: Its name, chosen by the caller.
        header: What the session was created with; empty when it has ended.
        records: In order of their numbers; empty when it has ended.
        summary: What was left behind at the end; None while the session runs.
    """

    session_key: str
    header: bytes = field(repr=False)
    records: tuple[bytes, ...] = field(repr=False)
    summary: bytes | None

    @property
    def ended(self) -> bool:
        """Whether only a tombstone is left."""
        return self.summary is not None


class SessionStore(Protocol):
    """Durable records of sessions, for either role."""

    def create(
        self,
        session_key: str,
        role: Role,
        header: bytes,
        *,
        claim: NumberClaim | None = None,
    ) -> None:
        """Begin the records of a session, and claim its number in the same instant.

        Raises:
            ServiceError: STORAGE_FAILED when the session exists, the number was
                claimed before, or the storage fails; nothing is changed.
        """
        ...

    def append(
        self, session_key: str, first_sequence: int, records: Sequence[bytes]
    ) -> None:
        """Append records in one atomic write.

        Args:
            session_key: A session that was created and has not ended.
            first_sequence: Number of the first record; the session must hold exactly
                this many records.
            records: One or more.

        Raises:
            ServiceError: STORAGE_FAILED; nothing is appended.
        """
        ...

    def load(self, session_key: str) -> StoredSession | None:
        """Return what is stored about a session, or None."""
        ...

    def end(self, session_key: str, summary: bytes) -> None:
        """Scrub a session and leave `summary`.  Ending twice changes nothing.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        ...

    def sessions(self, role: Role, *, include_ended: bool = False) -> tuple[str, ...]:
        """Return the keys of a role's sessions, oldest first."""
        ...

    def highest_session_number(self, counter: str) -> int:
        """Return the highest number claimed under a counter, or 0."""
        ...

    def forget(self, session_key: str) -> None:
        """Remove the tombstone of a session that has ended; numbers stay claimed.

        Raises:
            ServiceError: STORAGE_FAILED; also for a session that still runs.
        """
        ...

    def close(self) -> None:
        """Release the store; it must not be used afterwards."""
        ...


def out_of_step(session_key: str, *, expected: int, found: int) -> ServiceError:
    """Build the error for rule 2."""
    return ServiceError(
        f"session {session_key} holds {expected} records, a record numbered {found} "
        "cannot follow",
        code=ErrorCode.STORAGE_FAILED,
        next_step="Make sure that only one process uses this state, and restart it.",
    )


def unknown_session(session_key: str) -> ServiceError:
    """Build the error for a session that was never created or has ended."""
    return ServiceError(
        f"session {session_key} does not exist here or has ended",
        code=ErrorCode.STORAGE_FAILED,
        next_step="Do not delete or exchange the state of a running session.",
    )


def already_claimed(claim: NumberClaim, *, highest: int) -> ServiceError:
    """Build the error for rule 4."""
    return ServiceError(
        f"session number {claim.number} of {claim.counter} cannot be used: "
        f"numbers up to {highest} are taken",
        code=ErrorCode.STORAGE_FAILED,
        next_step="Wait for the next session.",
    )
