"""Which file a client has given to which session, for its next process.

A client that is started again when its task is over has done its work if its input is
the file that it gave.  The next file must not be taken for that one: a program that
moves inputs away after success would lose it.

Rule 1: what is kept is what the file system says of a file, never a word or a hash of
        what is in it.
Rule 2: it is on the disk before the vector leaves.
"""

import json
from pathlib import Path
from typing import Final

from secagg.runtime.vector_files import write_json

_NAME: Final = "given-files.json"
# Sessions follow one another: only the latest ones can be the last that gave a sum.
_KEPT: Final = 64


class InputAssignments:
    """The files that one client has given.

    Args:
        state_dir: The client's.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / _NAME

    def note(self, task: str, session_number: int, mark: str) -> None:
        """Write down what was given to a session.

        Args:
            task: Its task.
            session_number: Its number.
            mark: `mark_of` the file, when it was read.

        Raises:
            ServiceError: STORAGE_FAILED; nothing may be given.
        """
        known, key = self._read(), _key(task, session_number)
        if known.pop(key, None) == mark:
            return
        newest = [*known.items(), (key, mark)][-_KEPT:]
        write_json(self._path, dict(newest))

    def has(self, task: str, session_number: int, mark: str) -> bool:
        """Return whether this very file was given to a session."""
        return self._read().get(_key(task, session_number)) == mark

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}  # as good as never written: then nothing passes for given
        return found if isinstance(found, dict) else {}


def mark_of(path: Path) -> str:
    """Return what tells a file from another one, and from itself after a change.

    Raises:
        OSError: There is no such file.
    """
    about = path.stat()
    return f"{about.st_ino}:{about.st_size}:{about.st_mtime_ns}"


def _key(task: str, session_number: int) -> str:
    return f"{task}/{session_number}"
