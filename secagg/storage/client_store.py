"""The store of one client that answers at once: for programs without an event loop.

Rule 1: it holds the tables of every store, in one file or in memory. One process at a
        time has it open; the next one waits, and is then told which process it is.
Rule 2: calls come one after the other; `secagg.client.step_client` ensures that.
Rule 3: a masked input lies in a file of its own, whole or not at all.  It is written
        before the change that binds the input, and its name contains the digest: a file
        of another input is never sent.  It is deleted after the seed of its session.
Rule 4: no other process writes to the file, so an answer stays true until the next
        command. It is read once, and forgotten before the command is executed.
"""

from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar, cast

from secagg.crypto.entropy import Entropy
from secagg.runtime.files import disk, replace_file, sync_directory
from secagg.storage.change import Change, Command, Query, StoreUpdate
from secagg.storage.directories import (
    STORE_FILE,
    check_mark_place,
    open_lock,
    state_directory,
)
from secagg.storage.queries import ListCharges, ListSessions, LoadSession, ReadTally
from secagg.storage.rollback_mark import RollbackMark, default_mark
from secagg.storage.sqlite.file import SQLiteFile, SQLiteTransactions
from secagg.storage.store import StoreReader

_Answer = TypeVar("_Answer")

_LOCK_FILE: Final = "client.lock"
_UPLOAD: Final = "upload-"
_PRIVATE: Final = 0o600
_DIGEST_BYTES: Final = 32
# Their answers depend on no clock: a client's session has no deadline in the store.
_LASTING: Final = (ListCharges, ListSessions, LoadSession, ReadTally)
# A session asks for fewer; a server that lies chooses which sessions are asked for.
_MOST_ANSWERS: Final = 32


class ClientRecords(StoreReader, Protocol):
    """Executes a client's commands, on an event loop or not.

    `secagg.storage.store.Store` describes the methods.
    """

    async def commit(self, command: Command[_Answer]) -> _Answer:
        """Execute a command, whole or not at all."""

    async def close(self) -> None:
        """Release the store."""


class ClientStore:
    """Implements `ClientRecords` without waiting; make it with `open`.

    Attributes:
        directory: The directory of the store; None for memory.
    """

    def __init__(
        self,
        file: SQLiteFile,
        directory: Path | None,
        now: Callable[[], float],
        release: ExitStack,
    ) -> None:
        self._transactions: Final = SQLiteTransactions(file, now)
        self.directory: Final = directory
        self._release: Final = release
        self._answers: dict[Query[Any], Any] = {}
        self._uploads: dict[str, bytes] = {}  # of a store in memory

    @classmethod
    def open(  # noqa: PLR0913 - every part can be exchanged
        cls,
        directory: Path | None,
        *,
        mark: Path | None,
        accept_restored: bool,
        lock_seconds: float,
        entropy: Entropy,
        now: Callable[[], float],
    ) -> Self:
        """Open the store of one client, and make it if it does not exist.

        Args:
            directory: The directory of the store; None keeps it in memory.
            mark: File of the rollback mark, outside the directory; None for one under
                the user's persistent state.
            accept_restored: As for `secagg.storage.open_store.open_store`.
            lock_seconds: How long another process may keep the directory.
            entropy: Source of a new store's name.
            now: The clock, in Unix seconds.

        Raises:
            LocalProtocolError: BAD_SETTINGS; the mark lies in the directory.
            StateDamagedError: Stored data contradict each other.
            ServiceError: STORAGE_FAILED, also when another process keeps the directory;
                RESTORED_STATE for a state that was restored, copied or emptied.
        """
        with ExitStack() as held:
            path, memory = None, None
            if directory is not None:
                directory = state_directory(directory)
                path = directory / STORE_FILE
                place = default_mark(directory) if mark is None else mark
                check_mark_place(place, path)
                memory = RollbackMark(place)
                lock = held.enter_context(open_lock(directory / _LOCK_FILE))
                lock.wait(lock_seconds)
            file = SQLiteFile(
                path, mark=memory, accept_restored=accept_restored, entropy=entropy
            )
            return cls(file, directory, now, held.pop_all())

    async def close(self) -> None:
        """Release the directory."""
        self._answers.clear()
        with self._release:
            self._transactions.file.close()

    async def commit(self, command: Command[_Answer]) -> _Answer:
        """Execute a command, whole or not at all."""
        self._answers.clear()
        if not isinstance(command, Change):
            update: StoreUpdate[Any] = cast("StoreUpdate[_Answer]", command)
            return cast(_Answer, self._transactions.write(update))
        (outcome,) = self._transactions.apply((command,))
        if isinstance(outcome, Exception):
            raise outcome
        return cast(_Answer, outcome)

    async def read(self, query: Query[_Answer]) -> _Answer:
        """Return the answer to a query."""
        if query in self._answers:
            with self._transactions.file.reading():  # refuses a fork
                return cast(_Answer, self._answers[query])
        answer = self._transactions.read(query)
        if isinstance(query, _LASTING) and len(self._answers) < _MOST_ANSWERS:
            self._answers[query] = answer
        return answer

    # --- masked inputs ----------------------------------------------------------------

    def store_upload(self, session_id: bytes, bound: bytes, message: bytes) -> None:
        """Store the message with a masked input; return when it is on the disk.

        Args:
            session_id: Id of the session.
            bound: Digest of the input, 32 bytes.
            message: The message.

        Raises:
            ServiceError: STORAGE_FAILED; the input must not be bound.
        """
        name, content = _UPLOAD + session_id.hex(), bound + message
        data = content + sha256(content).digest()
        if self.directory is None:
            self._uploads[name] = data
            return
        with disk(self.directory / name):
            replace_file(self.directory / name, data, mode=_PRIVATE)

    def upload(self, session_id: bytes, bound: bytes) -> bytes | None:
        """Return the message with a masked input, if it is whole and of this input.

        Args:
            session_id: Id of the session.
            bound: Digest of the input that the session has bound.
        """
        name = _UPLOAD + session_id.hex()
        if self.directory is None:
            data = self._uploads.get(name, b"")
        else:
            try:
                data = (self.directory / name).read_bytes()
            except OSError:
                return None
        content, check = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        if check != sha256(content).digest() or content[:_DIGEST_BYTES] != bound:
            return None
        return content[_DIGEST_BYTES:]

    def delete_other_uploads(self, sessions: Collection[bytes]) -> None:
        """Delete the masked inputs of all other sessions.

        Raises:
            ServiceError: STORAGE_FAILED; one could not be deleted.
        """
        kept = {_UPLOAD + session_id.hex() for session_id in sessions}
        self._uploads = {n: data for n, data in self._uploads.items() if n in kept}
        if self.directory is None:
            return
        removed = False
        with disk(self.directory):
            for path in self.directory.iterdir():
                # Also leftovers of a process that died while it wrote one.
                is_upload = path.name.lstrip(".").startswith(_UPLOAD)
                if is_upload and path.name not in kept:
                    with suppress(FileNotFoundError):
                        path.unlink()
                    removed = True
            if removed:
                sync_directory(self.directory)
