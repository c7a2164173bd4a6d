"""One client process of the demo: a `secagg.Client` whose vector is a training step.

Run as ``python -m secagg.testbed.demo.participant DIRECTORY NAME SERVER [SESSION
MESSAGE]``.

Rule 1: it is the product's own client; its limits are real, and it computes epsilon
        itself before it joins.
Rule 2: for the demo's check of exactness it writes the integers that it is about to
        mask into a private file.  This is the only program that does so; the product
        has no switch for it.  Never use it with vectors that matter: it discloses what
        masks exist to hide.
Rule 3: a client that is to drop out stops before the given message, reports it, and
        waits to be killed.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from secagg import (
    ClientPolicy,
    ErrorCode,
    InputError,
    PrivacyLimits,
    SecAggError,
    ServiceError,
    SessionAbortedError,
    SessionInfo,
)
from secagg.advanced import Address, GrpcConnection
from secagg.client.client import Client
from secagg.client.open_client import EncodedInput, GivenVector
from secagg.client.session import ClientSession
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Envelope
from secagg.protocol.noise_terms import NoiseSecrets
from secagg.protocol.share_bundles import NOISE_SEED_BYTES
from secagg.runtime.vector_files import write_vector
from secagg.testbed.child_process import run_process, say
from secagg.testbed.demo.layout import TASK_ID, DemoLayout, DemoPlan
from secagg.testbed.demo.model import DIMENSION, SoftmaxModel, load_shard
from secagg.transport.connection import AggregatorConnection
from secagg.wire.calls import (
    ChooseEdges,
    Reference,
    Request,
    RevealShares,
    ShareKeys,
    SignConsistency,
    UploadChunk,
    Wait,
    WatchSession,
)

_Answer = TypeVar("_Answer")

# The calls before which a client can stop, by the name of the message.
PAUSES: Final[dict[str, type[Request[Any]]]] = {
    "choose": ChooseEdges,
    "share": ShareKeys,
    "upload": UploadChunk,
    "sign": SignConsistency,
    "reveal": RevealShares,
}


class PausingConnection:
    """Stops for ever before one kind of message of one session.

    Args:
        connection: Where calls go.
        session_number: In which session to stop; 0 for never.
        before: One of `PAUSES`.
        on_pause: Called once it has stopped.
    """

    def __init__(
        self,
        connection: AggregatorConnection,
        *,
        session_number: int,
        before: str,
        on_pause: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._session_number = session_number
        self._before = before
        self._on_pause = on_pause
        self._current = 0
        self.identity: Final = connection.identity

    @property
    def aggregator(self) -> str:
        """Return the aggregator of the connection."""
        return self._connection.aggregator

    async def meet(self) -> str:
        """Return the aggregator that answers now."""
        return await self._connection.meet()

    @property
    def trust_domain(self) -> str | None:
        """Return the trust domain of the connection."""
        return self._connection.trust_domain

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Record the session, and stop at the chosen call."""
        is_chosen = isinstance(request, PAUSES[self._before])
        if is_chosen and self._current == self._session_number:
            self._on_pause()
            await asyncio.Event().wait()
        answer = await self._connection.call(request)
        if isinstance(answer, SessionDescriptor):
            self._current = answer.session_number
        return answer

    def watch(
        self, request: WatchSession
    ) -> AsyncIterator[Envelope | Reference | Wait]:
        """Yield the updates of the connection."""
        return self._connection.watch(request)


# Called with the number of the session, the residues, and the secrets of their noise;
# on a thread.
Record = Callable[[int, npt.NDArray[np.unsignedinteger[Any]], NoiseSecrets], None]


class RecordingClient(Client):
    """A `Client` that records its integers, noise included, before it masks them.

    Attributes:
        record: Receives the integers; None until it is set.
    """

    record: Record = staticmethod(lambda _number, _residues, _secrets: None)

    def _encode(
        self, session: ClientSession, given: GivenVector, bound: bytes
    ) -> EncodedInput:
        made = super()._encode(session, given, bound)
        number = session.descriptor.session_number
        self.record(number, made.vector.residues, session.noise_secrets)
        return made


# How long a client of the demo waits for the next step while others are restarted.
_WAIT_SECONDS: Final = 60.0
# Codes of a task that is over, which are no failure.
_TASK_OVER: Final = frozenset({ErrorCode.TASK_OVER, ErrorCode.UNREACHABLE})
# Codes of a session that continued without this client.
_WITHOUT_US: Final = frozenset({ErrorCode.SESSION_OVER, ErrorCode.UNEXPECTED_MESSAGE})


def main(directory: str, name: str, server: str, *pause: str) -> int:
    """Take part until the task is over.

    Args:
        directory: Of the demo.
        name: Of the client.
        server: Address of the aggregator.
        pause: The session in which to stop, and before which message; none for never.
    """
    session, before = pause or ("0", "upload")
    return run_process(
        _take_part(
            DemoLayout(Path(directory)),
            name,
            Address.parse(server),
            session=int(session),
            before=before,
        )
    )


async def _take_part(
    layout: DemoLayout, name: str, server: Address, *, session: int, before: str
) -> int:
    shard = load_shard(layout.shard(name))

    def accept(offer: SessionInfo) -> None:
        if offer.dimension != DIMENSION:
            raise InputError(
                f"this model has {DIMENSION} weights, not {offer.dimension}"
            )

    def update(offer: SessionInfo) -> npt.NDArray[Any]:
        return SoftmaxModel.from_bytes(offer.payload).update_on(shard)

    def record(
        number: int,
        residues: npt.NDArray[np.unsignedinteger[Any]],
        secrets: NoiseSecrets,
    ) -> None:
        write_vector(layout.audit(name, number), residues)
        seeds = b"".join(seed.reveal() for seed in secrets.layers)
        write_vector(
            layout.layers(name, number),
            np.frombuffer(seeds, np.uint8).reshape(-1, NOISE_SEED_BYTES),
        )

    async with GrpcConnection(server, identity=layout.identity(name)) as connection:
        paused = PausingConnection(
            connection,
            session_number=session,
            before=before,
            on_pause=lambda: say("paused", session=session, before=before),
        )
        client = _client(layout, name, paused)
        client.record = record
        async with client:
            return await _contribute(client, update, accept)


def _client(
    layout: DemoLayout, name: str, connection: PausingConnection
) -> RecordingClient:
    planned = DemoPlan.read(layout)
    return RecordingClient(
        connection,
        task=TASK_ID,
        privacy_limits=PrivacyLimits(
            max_epsilon=planned.epsilon,
            max_delta=planned.delta + planned.graph_delta,
        ),
        enrolment=layout.enrolment(name, planned.enrolment_key),
        cohort=ClientPolicy(
            profiles=frozenset({planned.profile}),
            graphs=frozenset({planned.graph}),
            min_clients=planned.min_survivors,
            min_survivors=planned.min_survivors,
        ),
        state_dir=layout.client_state(name),
        rollback_mark=layout.client_state(name).with_suffix(".mark"),
        wait_seconds=_WAIT_SECONDS,
        fetch_sum=False,
    )


async def _contribute(
    client: RecordingClient,
    update: Callable[[SessionInfo], npt.NDArray[Any]],
    accept: Callable[[SessionInfo], None],
) -> int:
    """Contribute to one session after the other; return the process's exit status."""
    while True:
        try:
            done = await client.contribute(update, accept=accept)
            say("completed", session=done.session_number)
        except SecAggError as error:
            if isinstance(error, ServiceError) and error.code in _TASK_OVER:
                return 0
            if isinstance(error, SessionAbortedError) or error.code in _WITHOUT_US:
                say("aborted", code=error.code.name, message=str(error))
                continue
            raise


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
