"""The clients of a world: the product's own, which record their inputs."""

from typing import Any, Final

import numpy as np

from secagg.client.client import Client
from secagg.client.enrolment import EnrolledClient
from secagg.client.gate import SessionInfo
from secagg.client.open_client import EncodedInput, GivenVector
from secagg.client.service import ClientService
from secagg.client.session import ClientSession
from secagg.crypto.modular import UnsignedArray, zeros
from secagg.errors import LocalProtocolError, SecAggError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import NoisyVector, PlainVector
from secagg.simulation.driver import identity_in_simulation
from secagg.transport.connection import AggregatorConnection
from secagg_testing.cohorts import LENIENT_POLICY
from secagg_testing.world.tasks import WorldTask, privacy_limits_of
from secagg_testing.world.witness import Witness

# A client that is no service ends after a while, and is started again.
_WAIT_SECONDS: Final = 900.0


class WorldClient(Client):
    """A client of a world.

    Args:
        connection: To the aggregators.
        number: Which of the clients of all tasks it is.
        task: In which it takes part.
        witness: Receives its inputs, and its results.
        is_service: It runs as a service does.
    """

    def __init__(
        self,
        connection: AggregatorConnection,
        number: int,
        *,
        task: WorldTask,
        witness: Witness,
        is_service: bool,
    ) -> None:
        super().__init__(
            connection,
            task=task.name,
            privacy_limits=privacy_limits_of(task.kind),
            cohort=LENIENT_POLICY,
            enrolment=EnrolledClient(
                identity_in_simulation(connection.identity, number + 1)
            )
            if task.parameters.profile.has_identities
            else None,
            attempts=5,
            wait_seconds=None if is_service else _WAIT_SECONDS,
        )
        self._number = number
        self._of = task
        self._witness = witness
        self._name = connection.identity
        self._is_service = is_service

    async def take_part(self) -> None:
        """Contribute to every session of the task, until its end.

        Raises:
            SecAggError: An operator or a supervisor has to act.
        """
        if self._is_service:
            await self._serve()
            return
        async for given in self.contributions(self._vector):
            self._witness.clients.contributed(self._name, given)

    async def _serve(self) -> None:
        async def failed(_: SecAggError) -> None:
            """Print nothing: the trace has it."""

        await ClientService(
            client=self,
            make=self._vector,
            accept=lambda _: None,
            on_done=lambda given: self._witness.clients.contributed(self._name, given),
            on_failed=failed,
        ).run()

    def _vector(self, session: SessionInfo) -> np.ndarray[Any, Any]:
        """Return the input of a task with noise: 1 at the client's own index."""
        if session.payload != self._of.payload:
            raise LocalProtocolError("another payload than the operator's")
        vector = np.zeros(self._of.kind.clients)
        vector[self._place] = 1.0
        return vector

    @property
    def _place(self) -> int:
        return self._number - self._of.first

    def _encode(
        self, session: ClientSession, given: GivenVector, bound: bytes
    ) -> EncodedInput:
        descriptor, secrets = session.descriptor, session.noise_secrets
        made: PlainVector | NoisyVector
        block = descriptor.parameters.noise_block
        if self._of.kind.has_noise:
            made = super()._encode(session, given, bound).vector
        elif block:  # noise of nothing, so that a sum says who is in it
            made = NoisyVector(self._one_hot(descriptor), block, secrets.context)
        else:
            made = PlainVector(self._one_hot(descriptor))
        if not self._witness.inputs.record(self._name, descriptor, made, secrets):
            self._witness.fault(f"{self._name} makes two inputs for one session")
        return EncodedInput(made)

    def _one_hot(self, descriptor: SessionDescriptor) -> UnsignedArray:
        parameters = descriptor.parameters
        vector = zeros(parameters.dimension, parameters.modulus)
        vector[self._place] = parameters.modulus - 1
        return vector
