"""The store of one client that answers at once: for programs without an event loop.

Rule 1: it holds the tables of every store, in one file or in memory, and one process at
        a time has it open: the next one waits, and is then told which process it is.
Rule 2: calls come one after the other; `secagg.client.step_client` sees to that.
Rule 3: a masked input lies in a file of its own, whole or not at all.  It is written
        before the change that binds the input, and names it: a file that is not of the
        bound input is never sent.  It goes when the seed of its session has gone.
"""

from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol, Self

from secagg.crypto.entropy import Entropy
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.profiles import Trust
from secagg.runtime.durable_files import replace_file, sync_directory
from secagg.storage.budget_ledger import ChargeRow
from secagg.storage.change import Change, Committed, Ended, MissedRecords, Role
from secagg.storage.data_claims import Claim, ClaimRow
from secagg.storage.directories import STORE_FILE, check_mark_place, state_directory
from secagg.storage.file_lock import open_lock
from secagg.storage.reader_protocol import StoreQueries
from secagg.storage.rollback_mark import Mark, RollbackMark, default_mark
from secagg.storage.rows import (
    PurgeResult,
    Retention,
    SessionRow,
    SessionState,
    StoredSession,
    Tally,
)
from secagg.storage.session_columns import MILLISECONDS
from secagg.storage.sqlite import changes, queries
from secagg.storage.sqlite.file import SQLiteFile

_LOCK_FILE: Final = "client.lock"
_UPLOAD: Final = "upload-"
_PRIVATE: Final = 0o600
_DIGEST_BYTES: Final = 32


class ClientRecords(Protocol):
    """What a client asks of its store, be it on an event loop or not.

    `secagg.storage.store.Store` describes the methods.
    """

    async def commit(self, change: Change) -> Committed | MissedRecords | Ended:
        """Apply a change whole or not at all."""
        ...

    async def load(self, key: str, *, after: int = 0) -> StoredSession | None:
        """Return a session with its records."""
        ...

    async def sessions(
        self,
        *,
        role: Role,
        task: str | None = None,
        state: SessionState = SessionState.RUNNING,
    ) -> tuple[SessionRow, ...]:
        """Return sessions, the newest first."""
        ...

    async def tally(self, role: Role, task: str, *, peer: str = "") -> Tally:
        """Return what the sessions of a task leave behind for good."""
        ...

    async def charges(self, task: str) -> tuple[ChargeRow, ...]:
        """Return the charges of a task."""
        ...

    async def claims(self, data: str | None = None) -> tuple[ClaimRow, ...]:
        """Return the claims on data."""
        ...

    async def put_claim(self, claim: Claim, *, after: int) -> bool:
        """Add a claim, if its data have as many as the caller has seen."""
        ...

    async def mark(self) -> Mark | None:
        """Return name and generation of the store."""
        ...

    async def seen_revocations(
        self, enrolment_key: bytes, trust_domain: str
    ) -> Trust | None:
        """Return what names the newest revocation list that was read."""
        ...

    async def see_revocations(self, trust: Trust) -> None:
        """Remember a revocation list that was read whole."""
        ...

    async def purge(self, policy: Retention) -> PurgeResult:
        """Remove receipts that are not needed any more."""
        ...

    async def close(self) -> None:
        """Release the store."""
        ...


class ClientStore(StoreQueries):
    """Implements `ClientRecords` without waiting; make it with `open`.

    Attributes:
        directory: Where it is kept; None for memory.
    """

    def __init__(
        self,
        file: SQLiteFile,
        directory: Path | None,
        now: Callable[[], float],
        release: ExitStack,
    ) -> None:
        self._file: Final = file
        self.directory: Final = directory
        self._now: Final = now
        self._release: Final = release
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
            directory: Where it is kept; None keeps it in memory and forgets it.
            mark: File of the rollback mark, outside the directory; None for one under
                the user's persistent state.
            accept_restored: As for `secagg.storage.open_store.open_store`.
            lock_seconds: How long another process may keep the directory.
            entropy: Names a new store.
            now: The clock, in Unix seconds.

        Raises:
            LocalProtocolError: BAD_SETTINGS; the mark lies in the directory.
            StateDamagedError: What is stored does not fit together.
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
        with self._release:
            self._file.close()

    async def commit(self, change: Change) -> Committed | MissedRecords | Ended:
        """Apply a change whole or not at all."""
        with self._file.writing() as database:
            rows = changes.SessionRows(database)
            outcome = changes.apply_change(rows, change, now=self._now())
            rows.write()
        if change.end is not None or change.reseal is not None:
            self._file.scrub()
        return outcome

    async def put_claim(self, claim: Claim, *, after: int) -> bool:
        """Add a claim, if its data have as many as the caller has seen."""
        with self._file.writing() as database:
            return changes.put_claim(database, claim, after=after, now=self._now())

    async def seen_revocations(
        self, enrolment_key: bytes, trust_domain: str
    ) -> Trust | None:
        """Return what names the newest revocation list that was read."""
        with self._file.reading() as database:
            return queries.read_revocations(database, enrolment_key, trust_domain)

    async def see_revocations(self, trust: Trust) -> None:
        """Remember a revocation list that was read whole."""
        with self._file.writing() as database:
            changes.see_revocations(database, trust)

    async def purge(self, policy: Retention) -> PurgeResult:
        """Remove receipts, in transactions of bounded size."""
        keys: list[str] = []
        while True:
            with self._file.writing() as database:
                removed = changes.purge_receipts(database, policy, now=self._now())
            if not removed:
                return PurgeResult(tuple(keys))
            keys.extend(removed)

    def _instant(self) -> int:
        return int(self._now() * MILLISECONDS)

    async def _ask(self, query: str, *words: object, **more: object) -> Any:  # noqa: ANN401 - as the query says
        with self._file.reading() as database:
            return getattr(queries, query)(database, *words, **more)

    # --- masked inputs ----------------------------------------------------------------

    def put_upload(self, session_id: bytes, bound: bytes, message: bytes) -> None:
        """Keep the message with a masked input; returns when it is on the disk.

        Args:
            session_id: Of the session.
            bound: Digest of the input, 32 bytes.
            message: What is sent.

        Raises:
            ServiceError: STORAGE_FAILED; the input must not be bound.
        """
        name, content = _UPLOAD + session_id.hex(), bound + message
        data = content + sha256(content).digest()
        if self.directory is None:
            self._uploads[name] = data
            return
        try:
            replace_file(self.directory / name, data, mode=_PRIVATE)
        except OSError as error:
            raise ServiceError(
                f"{self.directory / name} cannot be written: {error.strerror}",
                code=ErrorCode.STORAGE_FAILED,
                next_step="Check the free space and the owner of the directory.",
            ) from None

    def upload(self, session_id: bytes, bound: bytes) -> bytes | None:
        """Return the message with a masked input, if it is whole and of this one.

        Args:
            session_id: Of the session.
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

    def keep_uploads(self, sessions: Collection[bytes]) -> None:
        """Remove the masked inputs of all sessions but these.

        Raises:
            ServiceError: STORAGE_FAILED; one is still there.
        """
        kept = {_UPLOAD + session_id.hex() for session_id in sessions}
        self._uploads = {n: data for n, data in self._uploads.items() if n in kept}
        if self.directory is None:
            return
        try:
            removed = False
            for path in self.directory.iterdir():
                # Also what a process left behind that died while it wrote one.
                is_upload = path.name.lstrip(".").startswith(_UPLOAD)
                if is_upload and path.name not in kept:
                    with suppress(FileNotFoundError):
                        path.unlink()
                    removed = True
            if removed:
                sync_directory(self.directory)
        except OSError as error:
            raise ServiceError(
                f"a masked input in {self.directory} cannot be removed: "
                f"{error.strerror}",
                code=ErrorCode.STORAGE_FAILED,
                next_step="Check the owner of the directory.",
            ) from None
