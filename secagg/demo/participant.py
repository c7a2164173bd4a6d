"""One client process of the demo: `secagg client`, with a training step for an input.

Run as ``python -m secagg.demo.participant DIRECTORY NAME SERVER ...``.

Rule 1: it is the product's own client; its floors are real, and it computes epsilon
        itself before it joins.
Rule 2: for the demo's check of exactness it writes the integers that it is about to
        mask into a private file.  This is the only program that does so, and it does
        it by standing between its application and the core, not by a switch.
Rule 3: a client that is to be lost stops before the message it was told, says so, and
        waits to be killed.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy.typing as npt

from secagg.client.program import contributor
from secagg.client.runner import MakeInput
from secagg.config import ClientSettings
from secagg.config.settings import ClientSection, PolicySection, TLSSection
from secagg.demo.digits import Shard, load_shard
from secagg.demo.layout import TASK_ID, DemoLayout
from secagg.demo.reports import say
from secagg.demo.softmax_model import DIMENSION, SoftmaxModel
from secagg.errors import (
    ErrorCode,
    InputError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.messages import Envelope
from secagg.parameters import SessionDescriptor
from secagg.protocol.events import NoisedVector, PlainVector
from secagg.runtime.connection import AggregatorConnection
from secagg.storage.vector_files import write_vector
from secagg.wire.calls import (
    Reference,
    Request,
    RevealShares,
    ShareKeys,
    UploadChunk,
    WatchSession,
)

__all__ = ["main"]

_Answer = TypeVar("_Answer")

# What a client of the demo waits for the next step while others are being restarted.
_WAIT_SECONDS: Final = 60.0
# Codes that say that the task is over, not that something is wrong.
_TASK_OVER: Final = frozenset({ErrorCode.SESSION_OVER, ErrorCode.UNREACHABLE})
# Codes that say that one session went on without this client.
_LEFT_OUT: Final = frozenset({ErrorCode.SESSION_OVER, ErrorCode.UNEXPECTED_MESSAGE})


class DigitsApplication:
    """Trains the payload on one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def check(self, offered: SessionDescriptor, dimension: int) -> None:
        """Refuse a task that trains another model."""
        del offered
        if dimension != DIMENSION:
            raise InputError(f"this model has {DIMENSION} weights, not {dimension}")

    def vector(self, descriptor: SessionDescriptor, payload: bytes) -> npt.NDArray[Any]:
        """Return the update that the model in the payload gets from this shard."""
        del descriptor
        return SoftmaxModel.from_bytes(payload).update_on(self._shard)


# Before which call a client may be told to stop, by the name of the message.
_CALLS: Final[dict[str, type[Request[Any]]]] = {
    "share": ShareKeys,
    "upload": UploadChunk,
    "reveal": RevealShares,
}


class PausingConnection:
    """Stops for ever before one kind of message of one session.

    Args:
        connection: Where calls go.
        session_number: In which session to stop; 0 for never.
        before: "share", "upload" or "reveal".
    """

    def __init__(
        self, connection: AggregatorConnection, *, session_number: int, before: str
    ) -> None:
        self._connection = connection
        self._session_number = session_number
        self._before = before
        self._current = 0
        self.identity: Final = connection.identity

    @property
    def aggregator(self) -> str:
        """See `AggregatorConnection.aggregator`."""
        return self._connection.aggregator

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Take note of the session, and stop at the chosen call."""
        is_chosen = isinstance(request, _CALLS[self._before])
        if is_chosen and self._current == self._session_number:
            say("paused", session=self._current, before=self._before)
            await asyncio.Event().wait()
        answer = await self._connection.call(request)
        if isinstance(answer, SessionDescriptor):
            self._current = answer.session_number
        return answer

    def watch(self, request: WatchSession) -> AsyncIterator[Envelope | Reference]:
        """See `AggregatorConnection.watch`."""
        return self._connection.watch(request)


def main(arguments: Sequence[str]) -> int:
    """Take part until the task is over."""
    parser = argparse.ArgumentParser(prog="secagg.demo.participant")
    parser.add_argument("directory", type=Path)
    parser.add_argument("name")
    parser.add_argument("server")
    parser.add_argument("--max-epsilon", type=float, required=True)
    parser.add_argument("--max-delta", type=float, required=True)
    parser.add_argument("--min-survivors", type=int, required=True)
    parser.add_argument("--pause-in-session", type=int, default=0)
    parser.add_argument("--pause-before", default="upload", choices=_CALLS)
    given = parser.parse_args(arguments)
    layout = DemoLayout(given.directory)
    settings = ClientSettings(
        client=ClientSection(
            server=given.server,
            task=TASK_ID,
            state_dir=layout.client_state(given.name),
            wait_seconds=_WAIT_SECONDS,
        ),
        tls=TLSSection(
            ca=layout.pki / "ca.pem",
            certificate=layout.pki / f"{given.name}.pem",
            key=layout.pki / f"{given.name}.key",
        ),
        policy=PolicySection(
            min_clients=given.min_survivors,
            min_survivors=given.min_survivors,
            max_epsilon=given.max_epsilon,
            max_delta=given.max_delta,
        ),
    )
    return asyncio.run(
        _take_part(
            settings,
            layout,
            given.name,
            pause_in_session=given.pause_in_session,
            pause_before=given.pause_before,
        )
    )


async def _take_part(
    settings: ClientSettings,
    layout: DemoLayout,
    name: str,
    *,
    pause_in_session: int,
    pause_before: str,
) -> int:
    def audited(make_input: MakeInput) -> MakeInput:
        def make(
            descriptor: SessionDescriptor, payload: bytes, seed: bytes
        ) -> PlainVector | NoisedVector:
            made = make_input(descriptor, payload, seed)
            path = layout.audit(name, descriptor.session_number)
            write_vector(path, made.residues)
            return made

        return make

    application = DigitsApplication(load_shard(layout.shard(name)))
    async with contributor(
        settings,
        application,
        fetch_sum=False,
        around_input=audited,
        through=lambda connection: PausingConnection(
            connection, session_number=pause_in_session, before=pause_before
        ),
    ) as one:
        while True:
            try:
                result = await one.take_part()
                say("completed", session=result.outcome.descriptor.session_number)
            except SecAggError as error:
                if isinstance(error, ServiceError) and error.code in _TASK_OVER:
                    return 0
                if isinstance(error, SessionAbortedError) or error.code in _LEFT_OUT:
                    say("aborted", code=error.code.name, message=str(error))
                    continue
                say(
                    "failed",
                    code=error.code.name,
                    message=str(error),
                    next_step=error.next_step,
                )
                return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
