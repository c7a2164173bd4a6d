"""A session store in memory: the twin of `secagg.storage.sqlite`.

It passes the same tests, but "durable" lasts only as long as the object, which is what
simulations want and deployments must not use.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from secagg.errors import ErrorCode, ServiceError
from secagg.storage.base import (
    NumberClaim,
    Role,
    StoredSession,
    already_claimed,
    out_of_step,
    unknown_session,
)

__all__ = ["MemorySessionStore"]


@dataclass(slots=True)
class _Entry:
    role: Role
    header: bytes = field(repr=False)
    records: list[bytes] = field(default_factory=list, repr=False)
    summary: bytes | None = None


class MemorySessionStore:
    """Implements `SessionStore`; safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[str, _Entry] = {}
        self._counters: dict[str, int] = {}

    def create(
        self,
        session_key: str,
        role: Role,
        header: bytes,
        *,
        claim: NumberClaim | None = None,
    ) -> None:
        """Begin the records of a session."""
        with self._lock:
            if session_key in self._sessions:
                raise ServiceError(
                    f"session {session_key} exists already",
                    code=ErrorCode.STORAGE_FAILED,
                )
            if claim is not None:
                highest = self._counters.get(claim.counter, 0)
                if claim.number <= highest:
                    raise already_claimed(claim, highest=highest)
                self._counters[claim.counter] = claim.number
            self._sessions[session_key] = _Entry(role, header)

    def append(
        self, session_key: str, first_sequence: int, records: Sequence[bytes]
    ) -> None:
        """Append records in one atomic write."""
        with self._lock:
            entry = self._sessions.get(session_key)
            if entry is None or entry.summary is not None:
                raise unknown_session(session_key)
            if first_sequence != len(entry.records):
                raise out_of_step(
                    session_key, expected=len(entry.records), found=first_sequence
                )
            entry.records.extend(records)

    def load(self, session_key: str) -> StoredSession | None:
        """Return what is stored about a session, or None."""
        with self._lock:
            entry = self._sessions.get(session_key)
            if entry is None:
                return None
            return StoredSession(
                session_key, entry.header, tuple(entry.records), entry.summary
            )

    def end(self, session_key: str, summary: bytes) -> None:
        """Scrub a session and leave `summary`."""
        with self._lock:
            entry = self._sessions.get(session_key)
            if entry is None:
                raise unknown_session(session_key)
            if entry.summary is None:
                self._sessions[session_key] = _Entry(entry.role, b"", [], summary)

    def sessions(self, role: Role, *, include_ended: bool = False) -> tuple[str, ...]:
        """Return the keys of a role's sessions, oldest first."""
        with self._lock:
            return tuple(
                key
                for key, entry in self._sessions.items()
                if entry.role == role and (include_ended or entry.summary is None)
            )

    def highest_session_number(self, counter: str) -> int:
        """Return the highest number claimed under a counter, or 0."""
        with self._lock:
            return self._counters.get(counter, 0)

    def forget(self, session_key: str) -> None:
        """Remove the tombstone of a session that has ended."""
        with self._lock:
            entry = self._sessions.get(session_key)
            if entry is None or entry.summary is None:
                raise unknown_session(session_key)
            del self._sessions[session_key]

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
