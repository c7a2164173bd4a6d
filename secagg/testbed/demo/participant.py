"""One client process of the demo: a `secagg.Client` whose vector is a training step.

Run as ``python -m secagg.testbed.demo.participant DIRECTORY NAME SERVER``.

Rule 1: it is the product's own client; its limits are real, and it computes epsilon
        itself before it joins.
Rule 2: for the demo's check of exactness it writes the integers that it is about to
        mask into a private file.  This is the only program that does so; the product
        has no switch for it.  Never use it with vectors that matter: it discloses what
        masks exist to hide.
Rule 3: a client that is to drop out stops before the given message, reports it, and
        waits to be killed.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg import ClientPolicy, ErrorCode, PrivacyLimits, ServiceError, SessionInfo
from secagg.advanced import Address, GrpcConnection
from secagg.client.client import Client
from secagg.client.open_client import EncodedInput, GivenVector
from secagg.client.session import ClientSession
from secagg.protocol.noise_terms import NoiseSecrets
from secagg.protocol.share_bundles import NOISE_SEED_BYTES
from secagg.runtime.vector_files import write_vector
from secagg.testbed.child_process import report, run_process
from secagg.testbed.connections import PausingConnection
from secagg.testbed.demo.layout import TASK_ID, DemoLayout, DemoPlan
from secagg.testbed.demo.model import DIMENSION, SoftmaxModel, load_shard

# Called with the number of the session, the residues, and the secrets of their noise;
# on a thread.
Record = Callable[[int, npt.NDArray[np.unsignedinteger[Any]], NoiseSecrets], None]


class RecordingClient(Client):
    """A `Client` that records its integers, noise included, before it masks them.

    Attributes:
        record: Receives the integers; until it is set, they are dropped.
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
# Sessions in a row that release no sum: the aggregator ends the task long before.
_ATTEMPTS: Final = 100


async def participate(layout: DemoLayout, name: str, server: Address) -> None:
    """Take part until the task is over.

    Args:
        layout: The files of the demo.
        name: Of the client.
        server: Address of the aggregator.
    """
    shard, planned = load_shard(layout.shard(name)), DemoPlan.read(layout)
    # A client that finds its state has stopped before, and was started again.
    is_new = not layout.client_state(name).exists()
    losses = planned.losses if is_new else {}
    pause, before = losses.get(name, (0, "upload"))

    def accept(session: SessionInfo) -> None:
        if session.dimension != DIMENSION:
            raise ErrorCode.BAD_INPUT.error(
                f"this model has {DIMENSION} weights, not {session.dimension}"
            )

    def update(session: SessionInfo) -> npt.NDArray[Any]:
        return SoftmaxModel.from_bytes(session.payload).update_on(shard)

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
        client = RecordingClient(
            PausingConnection(
                connection,
                session_number=pause,
                before=before,
                on_pause=lambda: report("paused", session=pause, before=before),
            ),
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
            attempts=_ATTEMPTS,
            wait_seconds=_WAIT_SECONDS,
            fetch_sum=False,
        )
        client.record = record
        async with client:
            try:
                async for done in client.contributions(update, accept=accept):
                    report("completed", session=done.session_number)
            except ServiceError as error:
                if error.code is not ErrorCode.UNREACHABLE:
                    raise  # else the aggregator has ended, and with it the task


if __name__ == "__main__":
    _, root, this, address = sys.argv
    work = participate(DemoLayout(Path(root)), this, Address.parse(address))
    sys.exit(run_process(work))
