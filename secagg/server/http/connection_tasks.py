"""Conversations that a small listener has under way: they end with it."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class ConnectionTasks:
    """The callers of one listener."""

    def __init__(self) -> None:
        self._talking: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._talking)

    def begin(self, conversation: Coroutine[Any, Any, None]) -> None:
        """Talk to a caller until it is done, or `let_go` ends it."""
        caller = asyncio.create_task(conversation)
        self._talking.add(caller)
        caller.add_done_callback(self._talking.discard)

    async def let_go(self) -> None:
        """End all conversations; none is under way when this returns."""
        for caller in self._talking:
            caller.cancel()
        if self._talking:
            await asyncio.wait(self._talking)
