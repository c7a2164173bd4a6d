"""An aggregator that answers calls from a script: for tests of transports.

It follows no protocol.  A script says, for each class of requests, what to answer: a
value, an exception to raise, or an asynchronous function to call with the same
arguments.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from secagg.errors import ErrorCode
from secagg.protocol.messages import Envelope
from secagg.wire.calls import Reference, Request, Wait, WatchSession

_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class ScriptedService:
    """An `AggregatorService` that records every call and answers from `script`.

    Attributes:
        script: Answers by class of request; one that is missing answers None.
        updates: What `watch` yields.
        hold: If set, `watch` waits for it before it ends.
        calls: Every call so far: who, and the request.
        refusals: Codes of the calls that were refused.
        ended_watches: How many streams have come to an end, for whatever reason.
        watch_ended: Set when the first of them has.
    """

    script: dict[type[Request[Any]], Any] = field(default_factory=dict)
    updates: Sequence[Envelope | Reference | Wait | BaseException] = ()
    hold: asyncio.Event | None = None
    calls: list[tuple[str, Request[Any]]] = field(default_factory=list)
    refusals: list[ErrorCode] = field(default_factory=list)
    ended_watches: int = 0
    watch_ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, identity: str, request: Request[_Answer]) -> _Answer:
        """Record the call and answer from the script."""
        self.calls.append((identity, request))
        scripted = self.script.get(type(request))
        if isinstance(scripted, BaseException):
            raise scripted
        if callable(scripted):
            scripted = await scripted(identity, request)
        return cast("_Answer", scripted)  # the script may hold anything

    def record_refusal(self, code: ErrorCode) -> None:
        """Record a refused call."""
        self.refusals.append(code)

    async def watch(
        self, identity: str, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Record the call, yield `updates`, wait for `hold`."""
        self.calls.append((identity, request))
        try:
            for update in self.updates:
                if isinstance(update, BaseException):
                    raise update
                yield update
            if self.hold is not None:
                await self.hold.wait()
        finally:
            self.ended_watches += 1
            self.watch_ended.set()
