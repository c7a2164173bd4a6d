"""The one connection between a store and its PostgreSQL database.

Rule 1: one connection does everything, in the order of the calls. It holds the store by
        a session-level advisory lock, alone or together with replicas that state at
        their start that they share it.  Any other process is refused.  The lock lasts
        exactly as long as the connection, so every writer holds it.
Rule 2: a connection that failed is closed, and the next call makes another.  The store
        must then be the same, and not have been restored from a backup meanwhile.
Rule 3: a transaction counts as committed when it is on the database's disk: a server
        that does not wait for its disk is refused.
Rule 4: every commit raises the generation, and the rollback mark follows before the
        caller gets its answer.
Rule 5: with every connection, sessions of an older timeline count as restored: after a
        fail-over the new primary may have forgotten what was sent.
Rule 6: a database that cannot be reached is unavailable (`StoreUnavailableError`), for
        every call within a second of the attempt: no call queues for it.
Rule 7: a network that drops everything is noticed within seconds, at both ends
        (`_set_keepalive`): neither waits for a dead connection.
Rule 8: tables are created and migrated by a process that is alone.  A machine without a
        mark may join a store in use: the replicas that use it would have noticed a
        restore.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial
from typing import Final, TypeVar

import asyncpg

from secagg.crypto.entropy import Entropy
from secagg.errors import ErrorCode, ServiceError
from secagg.runtime.log_events import (
    SERVER_LOGGER,
    STORAGE_WRITE_FAILED,
    STORE_RECONNECTED,
    log_event,
)
from secagg.storage.changes import mark_restored, skip_numbers
from secagg.storage.postgres.migrations import (
    SCHEMA,
    Database,
    migrate,
    refuse_other_schema,
)
from secagg.storage.postgres.notifications import CHANNEL, PostgresSharing
from secagg.storage.postgres.statements import PostgresConnection, count_commit
from secagg.storage.queries import ReadMark
from secagg.storage.rollback_mark import (
    STORE_ID_BYTES,
    Mark,
    RollbackMark,
    refuse_restored,
)
from secagg.storage.store import (
    STORE_RETRY_SECONDS,
    StateDamagedError,
    StoreUnavailableError,
)

_LOG: Final = logging.getLogger(SERVER_LOGGER)

_Result = TypeVar("_Result")

# Long enough for a predecessor that drains, or whose end the database has yet to see.
LOCK_TIMEOUT_SECONDS: Final = 10.0
_LOCK_POLL_SECONDS: Final = 0.2

# "secA", as in the file of a store.
_LOCK: Final = 0x73656341

_CONNECT_SECONDS: Final = 10.0
# How long a start waits for a database that is unavailable: as long as a restart or a
# fail-over may take.
START_SECONDS: Final = 600.0
# How long a machine without a mark waits for another aggregator of the store.  They
# reconnect within seconds.
NEWCOMER_SECONDS: Final = 15.0
# Between two attempts to reach a database that is away.
_RECONNECT_SECONDS: Final = 1.0
# A replica refreshes after so long, even without a notification.
_HINT_SECONDS: Final = 2.0
# Above what a synchronous standby takes to answer: an earlier time-out cancels a
# commit that has happened.
_COMMAND_SECONDS: Final = 60.0

# A connection on which nothing is sent is probed after so long, so often.
IDLE_SECONDS: Final = 4
_PROBE_SECONDS: Final = 2
_PROBES: Final = 3
# One on which something is sent ends when it was not acknowledged for so long.
UNHEARD_MILLISECONDS: Final = 1000 * (IDLE_SECONDS + _PROBE_SECONDS * _PROBES)

_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": IDLE_SECONDS,
    "TCP_KEEPINTVL": _PROBE_SECONDS,
    "TCP_KEEPCNT": _PROBES,
    "TCP_USER_TIMEOUT": UNHEARD_MILLISECONDS,
}


def session_settings() -> dict[str, str]:
    """Return what every connection to a store asks of the server."""
    return {
        "application_name": "secagg",
        "search_path": SCHEMA,
        "statement_timeout": "50s",
        "lock_timeout": "10s",
        "idle_in_transaction_session_timeout": "5s",
        "default_transaction_isolation": "read committed",
        # A server that a broken network has disconnected releases the store within ten
        # seconds. Else the next connection would wait for the dead one of the same
        # process.
        "tcp_keepalives_idle": str(IDLE_SECONDS),
        "tcp_keepalives_interval": str(_PROBE_SECONDS),
        "tcp_keepalives_count": str(_PROBES),
        "tcp_user_timeout": str(UNHEARD_MILLISECONDS),
    }


class PostgresLink:
    """A connection that holds a store; make it with `open`."""

    def __init__(
        self, address: str, mark: RollbackMark | None, *, is_shared: bool
    ) -> None:
        self._address: Final = address
        self.is_shared: Final = is_shared
        self._mark: Final = mark
        self._marked: Mark | None = None
        self._state: Mark | None = None
        self._turn: Final = asyncio.Lock()
        # Calls of the mark, in order: a call whose caller was cancelled ends before the
        # mark is released.
        self._mark_thread: Final = ThreadPoolExecutor(1, "secagg-mark")
        self._connection: Database = None
        self._outage: StoreUnavailableError | None = None
        self._next_attempt = 0.0

    def __repr__(self) -> str:
        return "PostgresLink()"

    @classmethod
    async def open(  # noqa: PLR0913 - every part can be exchanged
        cls,
        address: str,
        *,
        mark: RollbackMark | None,
        accept_restored: bool,
        entropy: Entropy,
        is_shared: bool,
        instant: int | None,
    ) -> "PostgresLink":
        """Connect, take the store and make or migrate its tables.

        A database that is unavailable is waited for, `START_SECONDS` in all.  A machine
        without a mark waits `NEWCOMER_SECONDS` for another aggregator of the store: all
        of them may be reconnecting.

        Args:
            address: An address that `secagg.storage.postgres.address` has checked.
            mark: The rollback mark; None for a store that has none.
            accept_restored: The operator accepts that the store may be restored.
            entropy: Draws the name of a new store.
            is_shared: Others may use the store at the same time.
            instant: A test's clock in milliseconds, or None for the database's.

        Raises:
            StoreUnavailableError: The database was unavailable for `START_SECONDS`.
            ServiceError: RESTORED_STATE when store and mark do not fit; STORAGE_FAILED
                when the database cannot be used or another process holds the store.
        """
        loop = asyncio.get_running_loop()
        began, newcomer_since, is_waiting = loop.time(), None, False
        while True:
            link = cls(address, mark, is_shared=is_shared)
            try:
                await link._open_once(
                    entropy, instant=instant, accept_restored=accept_restored
                )
            except StoreUnavailableError as error:
                if loop.time() - began >= START_SECONDS:
                    raise
                if not is_waiting:
                    is_waiting = True
                    log_event(_LOG, logging.WARNING, STORAGE_WRITE_FAILED, reason=error)
            except ServiceError as error:
                if error.code is not ErrorCode.RESTORED_STATE or not link._is_unmarked:
                    raise
                newcomer_since = newcomer_since or loop.time()
                if loop.time() - newcomer_since >= NEWCOMER_SECONDS:
                    raise
            else:
                if is_waiting:
                    seconds = round(loop.time() - began, 1)
                    log_event(_LOG, logging.WARNING, STORE_RECONNECTED, seconds=seconds)
                return link
            await asyncio.sleep(STORE_RETRY_SECONDS)

    async def _open_once(
        self, entropy: Entropy, *, instant: int | None, accept_restored: bool
    ) -> None:
        """Open the store once; see `open`."""
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self.close)
            with mapped_failures():
                is_alone = await self._connect()
                if is_alone:
                    await migrate(self._connection)
                    await self._sharing(instant).free_leases(is_shared=self.is_shared)
                else:
                    await refuse_other_schema(self._connection)
                # They need not be connected this very moment: all may be starting.
                is_known = (
                    self.is_shared and await self._sharing(instant).was_attended()
                )
                await self._check_mark(
                    entropy,
                    accept_restored=accept_restored,
                    is_alone=is_alone,
                    is_known=is_known,
                )
                if is_alone and self.is_shared:
                    await self._share_lock(instant)
            undo.pop_all()

    @property
    def _is_unmarked(self) -> bool:
        """Whether this machine has no mark of a store that others may share."""
        return self.is_shared and self._marked is None

    @asynccontextmanager
    async def using(self) -> AsyncIterator[Database]:
        """Give out the database for one call.

        Raises:
            StoreUnavailableError: The database cannot be reached.
            ServiceError: STORAGE_FAILED; whether anything was written is not known.
                Also while the mark is behind: what is read might be sent.
        """
        async with self._turn:
            with mapped_failures():
                try:
                    await self._ready()
                    yield self._connection
                except (
                    OSError,
                    TimeoutError,
                    asyncpg.InterfaceError,
                    asyncpg.InternalClientError,
                    asyncpg.PostgresConnectionError,
                    asyncio.CancelledError,
                ):
                    # It is not known what is under way on it.
                    self._terminate_connection()
                    raise
                await self._write_mark()

    async def hints(self) -> AsyncIterator[None]:
        """Yield whenever others may have written; until the caller has enough.

        A connection of its own listens.  While it cannot be had, time alone hints.
        """
        hint = asyncio.Event()
        listener: Database = None
        try:
            while True:
                if listener is None or listener.is_closed():
                    listener = await self._listener(hint)
                with suppress(TimeoutError):
                    # Not `wait_for`, which forgets a cancellation that comes together
                    # with the hint: a caller that closes the store would wait for ever.
                    async with asyncio.timeout(_HINT_SECONDS):
                        await hint.wait()
                hint.clear()
                yield
        finally:
            if listener is not None:
                listener.terminate()

    async def _listener(self, hint: asyncio.Event) -> Database:
        """Return a connection that listens, or None if none can be made."""
        listener: Database = None
        try:
            with mapped_failures():
                listener = await asyncpg.connect(
                    self._address,
                    timeout=_CONNECT_SECONDS,
                    server_settings=session_settings(),
                )
                _set_keepalive(listener)
                await listener.add_listener(CHANNEL, lambda *_: hint.set())
        except BaseException as error:
            if listener is not None:
                listener.terminate()
            if not isinstance(error, ServiceError):
                raise
            return None  # the next call of the store reports it
        return listener

    def committed(self, generation: int) -> None:
        """Note a commit of the call that is under way; its mark follows."""
        if self._state is not None:
            self._state = Mark(self._state.store_id, generation)

    async def close(self) -> None:
        """Let go of the store and of the mark."""
        connection, self._connection = self._connection, None
        try:
            if connection is not None:
                with suppress(
                    OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresError
                ):
                    await connection.close(timeout=_CONNECT_SECONDS)
        finally:
            releasing = None
            if self._mark is not None:
                releasing = asyncio.get_running_loop().run_in_executor(
                    self._mark_thread, self._mark.release
                )
            self._mark_thread.shutdown(wait=False)
            if releasing is not None:
                await asyncio.shield(releasing)

    # --- the connection ---------------------------------------------------------------

    async def _ready(self) -> None:
        """Have a connection that holds the same store, and a current mark."""
        if self._connection is None or self._connection.is_closed():
            self._terminate_connection()
            await self._reconnect()
        await self._write_mark()

    async def _reconnect(self) -> None:
        """Connect again, at most once in a few seconds."""
        loop = asyncio.get_running_loop()
        if self._outage is not None and loop.time() < self._next_attempt:
            raise StoreUnavailableError(
                str(self._outage), next_step=self._outage.next_step
            )
        try:
            with mapped_failures():
                await self._connect_again()
        except StoreUnavailableError as error:
            self._outage, self._next_attempt = error, loop.time() + _RECONNECT_SECONDS
            raise
        self._outage = None

    async def _connect_again(self) -> None:
        """Connect to the same store, in which nothing that was said is forgotten."""
        await self._connect()
        with ExitStack() as undo:
            # The next call must check the session again.
            undo.callback(self._terminate_connection)
            found = await self._read_state()
            if self._state is not None:
                _refuse_exchanged(found, self._state)
            await self._record_failover()
            undo.pop_all()
        self._state = found

    async def _connect(self) -> bool:
        """Connect and lock the store; return whether this process is alone."""
        connection = await asyncpg.connect(
            self._address,
            timeout=_CONNECT_SECONDS,
            command_timeout=_COMMAND_SECONDS,
            server_settings=session_settings(),
        )
        self._connection = connection
        _set_keepalive(connection)
        with ExitStack() as undo:
            undo.callback(self._terminate_connection)
            await self._refuse_forgetful()
            is_alone = await self._acquire_lock()
            undo.pop_all()
        return is_alone

    async def _refuse_forgetful(self) -> None:
        """Refuse a server on which a commit may be lost that was acknowledged."""
        for name in ("fsync", "full_page_writes", "synchronous_commit"):
            value = await self._connection.fetchval(f"SHOW {name}")
            if value == "off":
                raise ErrorCode.STORAGE_FAILED.error(
                    f"the PostgreSQL server runs with {name} = off: what it "
                    "acknowledges may be lost",
                    fix=f"Set {name} = on for this database; a lost step could "
                    "be answered a second time, and otherwise.",
                )

    async def _acquire_lock(self) -> bool:
        """Lock the store, alone or shared; return whether alone."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LOCK_TIMEOUT_SECONDS
        while True:
            # Alone first: who comes first prepares the store for the others.
            may_prepare = self._state is None or not self.is_shared
            if may_prepare and await self._locked("pg_try_advisory_lock"):
                return True
            if self.is_shared and await self._locked("pg_try_advisory_lock_shared"):
                return False
            if loop.time() >= deadline:
                raise ErrorCode.STORAGE_FAILED.error(
                    "another process uses the store in this database: one aggregator "
                    "at a time, unless all share their blobs",
                    fix="Stop the other aggregator, or give this one a database "
                    "of its own. For several, set server.blobs to the same store.",
                )
            await asyncio.sleep(_LOCK_POLL_SECONDS)

    async def _share_lock(self, instant: int | None) -> None:
        """Share the store that was prepared alone; later replicas find one alive."""
        async with self._connection.transaction():
            await self._sharing(instant).add_downtime()
        await self._locked("pg_try_advisory_lock_shared")
        await self._locked("pg_advisory_unlock")

    async def _locked(self, function: str) -> bool:
        return bool(await self._connection.fetchval(f"SELECT {function}($1)", _LOCK))

    async def _record_failover(self) -> None:
        """Mark the sessions that the database may have lost records of."""
        async with self._connection.transaction():
            connection = PostgresConnection(self._connection, None)
            if await mark_restored(connection, everything=False):
                await count_commit(self._connection)
                await connection.notify()

    def _sharing(self, instant: int | None) -> PostgresSharing:
        return PostgresSharing(self._connection, instant)

    def _terminate_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    # --- generation and mark ----------------------------------------------------------

    async def _check_mark(
        self,
        entropy: Entropy,
        *,
        accept_restored: bool,
        is_alone: bool,
        is_known: bool,
    ) -> None:
        """Check the mark, and mark the sessions that were open before a fail-over.

        Args:
            entropy: Draws the name of a new store.
            accept_restored: The operator accepts that the store may be restored.
            is_alone: No other process has the store.
            is_known: Others were at work a moment ago, whose marks fit.
        """
        database = self._connection
        connection = PostgresConnection(database, None)
        await database.execute(
            "INSERT INTO store SELECT $1, 0 WHERE NOT EXISTS (SELECT 1 FROM store)",
            entropy.token(STORE_ID_BYTES),
        )
        self._state = await self._read_state()
        if self._mark is not None:
            await self._on_mark_thread(
                partial(self._mark.hold, wait_seconds=LOCK_TIMEOUT_SECONDS)
            )
            self._marked = await self._on_mark_thread(self._mark.read)
        if accept_restored and is_alone:
            # A new name: copies of the old store never fit the mark again.
            async with database.transaction():
                await database.execute(
                    "UPDATE store SET store_id = $1", entropy.token(STORE_ID_BYTES)
                )
                await mark_restored(connection, everything=True)
                await skip_numbers(connection)
                await count_commit(database)
        else:
            # Where others vouch for the store, the mark of this machine follows.
            is_let_in = accept_restored or (is_known and self._marked is None)
            if self._mark is not None and not is_let_in:
                refuse_restored(self._state, self._marked, self._mark.path)
            async with database.transaction():
                if await mark_restored(connection, everything=False):
                    await count_commit(database)
        self._state = await self._read_state()
        await self._write_mark()

    async def _read_state(self) -> Mark:
        """Read the mark that the database holds."""
        mark = await ReadMark().run(PostgresConnection(self._connection, None))
        if mark is None:
            raise StateDamagedError("the database does not say which store it is")
        return mark

    async def _write_mark(self) -> None:
        """Write the rollback mark, where the state has changed since."""
        if self._mark is not None and self._state is not None:
            mark, state = self._mark, self._state
            if self._marked != state:
                await self._on_mark_thread(partial(mark.write, state))
                self._marked = state

    async def _on_mark_thread(self, call: Callable[[], _Result]) -> _Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._mark_thread, call)


def _refuse_exchanged(found: Mark, known: Mark) -> None:
    """Refuse a store that is no longer the one that this process has written."""
    if found.store_id != known.store_id or found.generation < known.generation:
        raise ErrorCode.RESTORED_STATE.error(
            "the database came back with another store, or with an older state of "
            "this one: the records since then are lost",
            fix="Bring the newest state back. Or restart this aggregator and "
            "accept the risk explicitly, once: open sessions then end, and their "
            "inputs count as summed.",
        )


def _set_keepalive(connection: Database) -> None:
    """Have the system end a connection whose other end does not acknowledge any more.

    Nothing reports that such a connection is gone: by default the system sends again
    for a quarter of an hour.  A slow database acknowledges at once what it answers
    later.  Not every system has the option, and a socket of this machine needs no
    network. There a command's own time limit ends the connection.

    Args:
        connection: Just made.
    """
    # asyncpg returns its socket nowhere; a test sees that this is one.
    transport = connection._transport  # noqa: SLF001 - see the line before
    link: socket.socket = transport.get_extra_info("socket")
    if link.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            link.setsockopt(socket.IPPROTO_TCP, option, value)


# --- failures -------------------------------------------------------------------------


@contextmanager
def mapped_failures() -> Iterator[None]:
    """Turn every failure of the machinery into one that says what to do.

    Raises:
        StoreUnavailableError: The database cannot be reached, or takes no writes.
        ServiceError: STORAGE_FAILED.
    """
    try:
        yield
    except asyncpg.PostgresError as error:
        # The first line only: details repeat what was to be stored.
        told = getattr(error, "message", None) or type(error).__name__
        state = error.sqlstate or ""
        step = _NEXT_STEPS.get(state) or _NEXT_STEPS.get(state[:2], _CHECK_SERVER)
        complaint = f"{_CANNOT}: {told} ({state})"
        if state in _AWAY or state[:2] in _AWAY:
            raise StoreUnavailableError(complaint, next_step=step) from None
        raise ErrorCode.STORAGE_FAILED.error(complaint, fix=step) from None
    except asyncpg.exceptions.ClientConfigurationError:
        # Its words may repeat the address.
        raise ErrorCode.STORAGE_FAILED.error(
            f"{_CANNOT}: its address, or a file that this names, is invalid",
            fix="Correct server.store: host, port, passfile, sslmode, sslrootcert.",
        ) from None
    except (
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,  # an answer that came when none was awaited
        TimeoutError,
        OSError,
    ) as error:
        complaint = f"{_CANNOT}: {_cause_of(error)}"
        raise StoreUnavailableError(complaint, next_step=_CHECK_SERVER) from None


def _cause_of(error: Exception) -> str:
    """Say why a connection failed; its own words may repeat what was to be stored."""
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    if isinstance(error, OSError):
        return error.strerror or "the connection to the server failed"
    if isinstance(error, asyncpg.InterfaceError):
        return "the connection to the server was lost"
    return "the server sent an answer that was not expected"


_CANNOT: Final = "the PostgreSQL store cannot be used"


_CHECK_SERVER: Final = (
    "Check that the database server runs and that this machine reaches it."
)
_CREDENTIALS: Final = "Check the user of the address, and passfile= or PGPASSFILE."
_PRIMARY: Final = "Point the address at the primary: this server takes no writes."
# It starts or stops, is a standby that was not promoted yet, or has no connection left.
_AWAY: Final = frozenset({"08", "57P01", "57P02", "57P03", "25006", "55000", "53300"})
_NEXT_STEPS: Final = {
    "28": _CREDENTIALS,
    "3D": "Create the database, or correct its name in the address.",
    "25006": _PRIMARY,
    "55000": _PRIMARY,
    "42501": "Grant the user CREATE on the database, for the schema secagg.",
    "53100": "Free disk space on the database server; no session data is lost.",
    "53300": "The database server has no connection left: raise max_connections.",
    "42": "The tables are not those of this release; restore them, do not edit them.",
}
