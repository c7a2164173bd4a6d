"""The input of `secagg client`: vectors from files, and payloads into them.

Rule 1: one file serves every session only if its owner says so; a path with
        ``{session}`` names another file for each.
Rule 2: a file is read once per session and process, so that a later change of it is
        harmless.
Rule 3: a file that cannot be used is an error before a session is joined, and zeros in
        one that was joined by an earlier process (R3.5-5).

Which file was given to which session is kept for the next process:

Rule 4: a client that is started again when its task is over has done its work if its
        input is the file that it gave.  The next file must not be taken for that one: a
        program that moves inputs away after success would lose it.
Rule 5: what is kept is what the file system says of a file, never a word or a hash of
        what is in it.  It is on the disk before the vector leaves.
"""

import json
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

from secagg.client.client import check_encodable
from secagg.client.gate import SessionInfo
from secagg.errors import ErrorCode
from secagg.runtime.files import SessionPath
from secagg.runtime.vector_files import load_vector, write_bytes, write_json

_NAME: Final = "given-files.json"
# Sessions follow one another: only the latest ones can be the last that gave a sum.
_KEPT: Final = 64


def check_reuse(
    *, sessions: int, source: Path, targets: dict[str, Path], same_input_again: bool
) -> None:
    """Refuse to give one vector to several sessions, or to overwrite what they gave.

    Args:
        sessions: How many the client takes part in.
        source: Path of the input.
        targets: Paths to be written in every session, by the option that names them.
        same_input_again: Whether the owner has said that one vector may serve all.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    if sessions == 1:
        return
    if not SessionPath(source).is_pattern and not same_input_again:
        raise ErrorCode.BAD_SETTINGS.error(
            f"client.sessions is {sessions}, and --input {source} is one vector: every "
            "session would spend budget on it again",
            fix="Name one file per session, for example --input "
            f"'{source.stem}-{{session}}{source.suffix}', or say --same-input-again.",
        )
    for option, path in targets.items():
        if not SessionPath(path).is_pattern:
            raise ErrorCode.BAD_SETTINGS.error(
                f"client.sessions is {sessions}, and {option} {path} is one file: "
                "every session would overwrite it",
                fix=f"Give {option} a name with {{session}} in it, for example "
                f"'{path.stem}-{{session}}{path.suffix}'.",
            )


class FileInput:
    """Supplies a vector to each session, and keeps the session's payload.

    Args:
        source: Path of the vector, with ``{session}`` for one file per session.
        payload_path: Where to write payloads, likewise; None to ignore them.
        state_dir: Of the client, where it keeps in mind which file it has given; None
            for a caller that only reads the file.
    """

    def __init__(
        self,
        source: Path,
        *,
        payload_path: Path | None = None,
        state_dir: Path | None = None,
    ) -> None:
        self._source = SessionPath(source)
        self._given = None if state_dir is None else InputAssignments(state_dir)
        self._marks: dict[Path, str] = {}
        self._payload = None if payload_path is None else SessionPath(payload_path)
        self._vectors: dict[Path, npt.NDArray[Any]] = {}

    def __str__(self) -> str:
        """Return the path as it was given."""
        return str(self._source)

    def describe(self) -> str:
        """Say what the input is, in a few words."""
        if self._source.is_pattern:
            return f"one file per session, {self._source}"
        vector = self._load_vector(self._source.path)
        return f"{len(vector)} entries of {vector.dtype}"

    def ready(self) -> None:
        """Refuse the one file of all sessions, before the first call.

        Raises:
            InputError: It cannot be used; see `load_vector`.
        """
        if not self._source.is_pattern:
            self._load_vector(self._source.path)

    def check(self, session: SessionInfo) -> None:
        """Refuse a session that cannot take its vector, before others wait for it.

        Raises:
            InputError: The file cannot be used, has another dimension, or does not
                hold what the task adds up.
        """
        path = self._source.of(session.session_number)
        check_encodable(self._load_vector(path), session, name=str(path))

    def vector(self, session: SessionInfo) -> npt.NDArray[Any]:
        """Write the payload if it is wanted, and return the session's vector.

        Only a vector that the session can encode is noted as given to it.

        Raises:
            InputError: As `check`.
            ServiceError: STORAGE_FAILED; the payload cannot be written.
        """
        if self._payload is not None:
            write_bytes(self._payload.of(session.session_number), session.payload)
        self.check(session)
        path = self._source.of(session.session_number)
        vector = self._load_vector(path)
        if self._given is not None:
            self._given.record(session.task, session.session_number, self._marks[path])
        return vector

    def was_assigned(self, task: str, session_number: int) -> bool:
        """Return whether the vector that lies there is the one a session was given.

        Where every session has a file of its own, a file that is gone was given, too.
        """
        path = self._source.of(session_number)
        if self._given is None:
            return False
        if self._source.is_pattern and not path.exists():
            return True
        self._load_vector(path)
        return self._given.has(task, session_number, self._marks[path])

    def _load_vector(self, path: Path) -> npt.NDArray[Any]:
        """Return the vector of a file; the last one read stays in memory."""
        if path not in self._vectors:
            # Before it is read: a later change gives another one.
            mark = _file_mark(path)
            self._vectors = {path: load_vector(path)}  # sessions follow one another
            self._marks = {path: mark}
        return self._vectors[path]


def _file_mark(path: Path) -> str:
    """Return what tells a changed file; "" for one that cannot be read."""
    try:
        return mark_of(path)
    except OSError:
        return ""  # reading it says what is wrong


class InputAssignments:
    """The files that one client has given.

    Args:
        state_dir: The client's.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / _NAME

    def record(self, task: str, session_number: int, mark: str) -> None:
        """Write down what was given to a session.

        Args:
            task: Its task.
            session_number: Its number.
            mark: `mark_of` the file, when it was read.

        Raises:
            ServiceError: STORAGE_FAILED; nothing may be given.
        """
        known, key = self._read_assignments(), _session_key(task, session_number)
        if known.pop(key, None) == mark:
            return
        newest = [*known.items(), (key, mark)][-_KEPT:]
        write_json(self._path, dict(newest))

    def has(self, task: str, session_number: int, mark: str) -> bool:
        """Return whether this very file was given to a session."""
        return self._read_assignments().get(_session_key(task, session_number)) == mark

    def _read_assignments(self) -> dict[str, str]:
        """Return the recorded files; none where the record is missing or damaged."""
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


def _session_key(task: str, session_number: int) -> str:
    """Return the key of a session in the record."""
    return f"{task}/{session_number}"
