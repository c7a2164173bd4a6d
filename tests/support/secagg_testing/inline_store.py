"""A durable store without threads, for programs whose time is a `ManualClock`."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

from secagg.crypto.entropy import SystemEntropy
from secagg.storage.rollback_mark import RollbackMark
from secagg.storage.sqlite.executor import InlineExecutor, SQLiteExecutor
from secagg.storage.sqlite.file import SQLiteFile, SQLiteTransactions
from secagg.storage.store import TableStore

_Answer = TypeVar("_Answer")


def inline_file(
    path: Path | None, *, mark: Path | None, accept_restored: bool
) -> SQLiteFile:
    """Open the file of a store; the arguments are those of `inline_store`."""
    return SQLiteFile(
        path,
        mark=None if mark is None else RollbackMark(mark),
        accept_restored=accept_restored,
        entropy=SystemEntropy(),
    )


def inline_store(
    path: Path | None = None,
    *,
    mark: Path | None = None,
    accept_restored: bool = False,
    thread: Executor | None = None,
    now: Callable[[], float] = lambda: 1_000_000.0,
) -> TableStore:
    """Open a store at once.

    Args:
        path: Its file; None for memory.
        mark: Its rollback mark; None for none.
        accept_restored: Whether it may have been restored from a backup.
        thread: Runs its calls; default: the caller's own thread.
        now: Its clock, in Unix seconds; default: one that stands still.
    """
    file = inline_file(path, mark=mark, accept_restored=accept_restored)
    transactions = SQLiteTransactions(file, now)
    return TableStore(
        SQLiteExecutor(transactions, thread or InlineExecutor(), owns_thread=False)
    )


def answer_of(question: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Return the answer of such a store where no event loop runs."""
    return asyncio.run(question)
