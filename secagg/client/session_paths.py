"""Files of one session: a path in which ``{session}`` stands for its number.

Rule 1: the number is the session's own, the one in the server's ``sum-<n>.npy``.  It is
        the same after a restart, so that a session is always given the same input; a
        session that was aborted has a number too.
"""

from dataclasses import dataclass
from pathlib import Path

from secagg.runtime.files import SESSION_PLACE


@dataclass(frozen=True, slots=True)
class SessionPath:
    """A path as it was given, with or without a place for the number."""

    path: Path

    @property
    def is_pattern(self) -> bool:
        """Whether every session has a file of its own."""
        return SESSION_PLACE in str(self.path)

    def of(self, session_number: int) -> Path:
        """Return the file of one session."""
        return Path(str(self.path).replace(SESSION_PLACE, str(session_number)))

    def __str__(self) -> str:
        return str(self.path)
