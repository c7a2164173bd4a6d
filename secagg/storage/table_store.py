"""A store in the tables of a database: the one implementation, over two engines.

Its rules stand in `secagg.storage.changes` and `secagg.storage.queries`.  An engine
runs them in transactions: `secagg.storage.sqlite.executor` and
`secagg.storage.postgres.executor`.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast

from secagg.errors import ErrorCode
from secagg.storage.change import Change, Command, Outcome, Query, Update

_Answer = TypeVar("_Answer")


class Engine(Protocol):
    """A database that holds the tables of one store.

    Attributes:
        keeps_what_is_erased: Row versions, a log or backups hold what was erased.
    """

    keeps_what_is_erased: ClassVar[bool]

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write to it at the same time."""
        ...

    async def apply(self, change: Change) -> Outcome:
        """Apply a change; see `secagg.storage.changes.apply_change`."""
        ...

    async def write(self, update: Update[_Answer]) -> _Answer:
        """Run an update in a transaction."""
        ...

    async def read(self, query: Query[_Answer]) -> _Answer:
        """Run a query on one snapshot."""
        ...

    def hints(self) -> AsyncGenerator[None]:
        """Yield whenever another process may have written."""
        ...

    async def close(self) -> None:
        """Finish what is under way and release the database."""
        ...


class TableStore:
    """Implements `secagg.storage.store.Store`; belongs to one event loop at a time.

    Args:
        engine: The database.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine: Final = engine
        self._is_closed = False

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write to it at the same time."""
        return self.engine.is_shared

    @property
    def keeps_what_is_erased(self) -> bool:
        """Whether row versions, a log or backups hold what was erased."""
        return self.engine.keeps_what_is_erased

    async def commit(self, command: Command[_Answer]) -> _Answer:
        """Write what a command says."""
        self._check_open()
        if isinstance(command, Change):
            return cast(_Answer, await self.engine.apply(command))
        update: Update[Any] = cast("Update[_Answer]", command)
        return cast(_Answer, await self.engine.write(update))

    async def read(self, query: Query[_Answer]) -> _Answer:
        """Return the answer to a query."""
        self._check_open()
        return await self.engine.read(query)

    async def changes(self) -> AsyncIterator[None]:
        """Yield whenever other processes may have written."""
        async with aclosing(self.engine.hints()) as hints:
            async for _ in hints:
                if self._is_closed:
                    return
                yield

    async def close(self) -> None:
        """Finish what is under way and release the database; twice is allowed."""
        if not self._is_closed:
            self._is_closed = True
            await self.engine.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ErrorCode.STORAGE_FAILED.error(
                "the store is closed",
                fix="Open it again.",
            )
