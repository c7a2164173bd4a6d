"""What a book needs of a PostgreSQL connection, with types.

asyncpg brings none; whatever fits these protocols can be used in its place.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeAlias

Row: TypeAlias = Sequence[Any]
"""The columns of one row, in the order in which they were asked for."""


class Database(Protocol):
    """One connection; a call at a time."""

    async def execute(self, query: str, *arguments: object) -> str:
        """Run a statement."""
        ...

    async def executemany(
        self, query: str, arguments: Iterable[Sequence[object]]
    ) -> None:
        """Run a statement once for each sequence of arguments."""
        ...

    async def fetch(self, query: str, *arguments: object) -> list[Row]:
        """Return the rows of a query."""
        ...

    async def fetchrow(self, query: str, *arguments: object) -> Row | None:
        """Return the first row of a query, or None."""
        ...

    def transaction(
        self, *, isolation: str | None = None, readonly: bool = False
    ) -> AbstractAsyncContextManager[object]:
        """Run a block as one transaction; an exception rolls it back."""
        ...
