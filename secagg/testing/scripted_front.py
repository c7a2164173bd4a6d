"""An aggregator that answers calls from a script: for tests of transports.

It follows no protocol.  A script says, for each method, what to answer: a value, an
exception to raise, or an asynchronous function to call with the same arguments.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from secagg.messages import ServerUpdate
from secagg.parameters import SessionDescriptor
from secagg.protocol.rounds import Round
from secagg.runtime.connection import Blob, BlobChunk, UploadStatus, Wait

__all__ = ["ScriptedFront"]


@dataclass(slots=True)
class ScriptedFront:
    """An `AggregatorFront` that records every call and answers from `script`.

    Attributes:
        script: Answers by method name; a method that is missing answers None.
        updates: What `watch` yields.
        hold: If set, `watch` waits for it before it ends.
        calls: Every call so far, as method, identity and arguments.
        ended_watches: How many streams have come to an end, for whatever reason.
        watch_ended: Set when the first of them has.
    """

    script: dict[str, Any] = field(default_factory=dict)
    updates: Sequence[ServerUpdate | BaseException] = ()
    hold: asyncio.Event | None = None
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    ended_watches: int = 0
    watch_ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def offer(
        self, identity: str, task_id: str, *, after_session: int
    ) -> SessionDescriptor | Wait:
        """Record the call and answer from the script."""
        answer: SessionDescriptor | Wait = await self._answer(
            "offer", identity, task_id=task_id, after_session=after_session
        )
        return answer

    async def advertise(self, identity: str, session_id: bytes, advert: bytes) -> None:
        """Record the call and answer from the script."""
        await self._answer("advertise", identity, session_id=session_id, advert=advert)

    async def share(self, identity: str, session_id: bytes, bundles: bytes) -> None:
        """Record the call and answer from the script."""
        await self._answer("share", identity, session_id=session_id, bundles=bundles)

    async def upload_status(self, identity: str, session_id: bytes) -> UploadStatus:
        """Record the call and answer from the script."""
        answer: UploadStatus = await self._answer(
            "upload_status", identity, session_id=session_id
        )
        return answer

    async def upload_chunk(  # noqa: PLR0913 - one argument per field of the chunk
        self,
        identity: str,
        session_id: bytes,
        *,
        offset: int,
        total_size: int,
        digest: bytes,
        data: bytes,
    ) -> UploadStatus:
        """Record the call and answer from the script."""
        answer: UploadStatus = await self._answer(
            "upload_chunk",
            identity,
            session_id=session_id,
            offset=offset,
            total_size=total_size,
            digest=digest,
            data=data,
        )
        return answer

    async def reveal(self, identity: str, session_id: bytes, shares: bytes) -> None:
        """Record the call and answer from the script."""
        await self._answer("reveal", identity, session_id=session_id, shares=shares)

    async def update(
        self, identity: str, session_id: bytes, *, after: Round | None
    ) -> ServerUpdate | Wait:
        """Record the call and answer from the script."""
        answer: ServerUpdate | Wait = await self._answer(
            "update", identity, session_id=session_id, after=after
        )
        return answer

    async def watch(
        self, identity: str, session_id: bytes, *, after: Round | None
    ) -> AsyncIterator[ServerUpdate]:
        """Record the call, yield `updates`, wait for `hold`."""
        self.calls.append(
            ("watch", identity, {"session_id": session_id, "after": after})
        )
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

    async def fetch(
        self,
        identity: str,
        session_id: bytes,
        *,
        blob: Blob,
        offset: int,
        max_bytes: int,
    ) -> BlobChunk:
        """Record the call and answer from the script."""
        answer: BlobChunk = await self._answer(
            "fetch",
            identity,
            session_id=session_id,
            blob=blob,
            offset=offset,
            max_bytes=max_bytes,
        )
        return answer

    # The script may hold anything; the methods above say what it must be.
    async def _answer(self, method: str, identity: str, **arguments: object) -> Any:  # noqa: ANN401 - scripted
        self.calls.append((method, identity, arguments))
        scripted = self.script.get(method)
        if isinstance(scripted, BaseException):
            raise scripted
        if callable(scripted):
            return await scripted(identity, **arguments)
        return scripted
