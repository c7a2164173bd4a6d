"""The client process: settings, certificates, storage and transport, put together.

Rule 1: an offer is judged before a key is made: by the client's policy, by the epsilon
        that this client computes itself, and by whether the input fits.
Rule 2: the vector becomes integers only inside a session, with noise if the session
        demands noise; nothing here can send it bare.
Rule 3: a task gets as many sessions of this client as its budget covers, counted and
        written down before an input leaves.
Rule 4: what a session released is decoded by the parameters of that session.

What is printed is decided by whoever calls.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from secagg.client.after_error import Attempts
from secagg.client.backoff import Backoff
from secagg.client.budget import check_budget
from secagg.client.grpc_connection import GrpcConnection
from secagg.client.offer_check import OfferCheckingConnection
from secagg.client.runner import (
    ClientProgress,
    ClientRunner,
    MakeInput,
    SessionOutcome,
)
from secagg.client.runner import ClientSettings as RunnerSettings
from secagg.config import ClientSettings
from secagg.distributed_dp import NoisedTask, NoisePolicy, PrivacyReport
from secagg.errors import (
    ErrorCode,
    InputError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.parameters import Profile, SessionDescriptor
from secagg.plain_sums import decode_integers, encode_integers
from secagg.policy import ClientPolicy
from secagg.primitives.entropy import SystemEntropy
from secagg.primitives.secret_bytes import SecretBytes
from secagg.protocol.events import NoisedVector, PlainVector
from secagg.report_cache import privacy_report
from secagg.runtime.connection import AggregatorConnection
from secagg.runtime.workers import Workers
from secagg.storage.open_book import open_state
from secagg.transport.address import Address
from secagg.transport.identity import Role
from secagg.transport.tls import TLSIdentity

__all__ = ["Application", "Contributor", "ReleasedSum", "contributor"]


class Application(Protocol):
    """What a client brings to a session."""

    def check(self, offered: SessionDescriptor, dimension: int) -> None:
        """Refuse a session whose vectors this application does not have.

        Args:
            offered: The session.
            dimension: Entries of one vector before any encoding.

        Raises:
            InputError: The input has another length, or cannot be encoded.
        """

    def vector(self, descriptor: SessionDescriptor, payload: bytes) -> npt.NDArray[Any]:
        """Return the input; the same one if a session asks again."""


@dataclass(frozen=True, slots=True, eq=False)
class ReleasedSum:
    """What a client gets for taking part.

    Attributes:
        outcome: The session and its released sum modulo m.
        values: The sum in the caller's units, or whole numbers without noise; None
            when it was not fetched.
        privacy: What the task costs each client; None without noise.
    """

    outcome: SessionOutcome
    values: npt.NDArray[Any] | None = field(repr=False)
    privacy: PrivacyReport | None


class Contributor:
    """One client, ready to take part in sessions; make it with `contributor`."""

    def __init__(
        self,
        runner: ClientRunner,
        connection: OfferCheckingConnection,
        settings: ClientSettings,
    ) -> None:
        self._runner = runner
        self._connection = connection
        self._settings = settings

    async def take_part(self) -> ReleasedSum:
        """Take part in one session that releases a sum.

        A session that was interrupted is finished first.  What follows an error says
        `secagg.client.after_error`.

        Raises:
            SecAggError: As `ClientRunner.run_session`; nothing is left to try, or as
                many attempts as the settings allow have failed.
        """
        attempts = Attempts(self._settings.client.attempts, Backoff(SystemEntropy()))
        while True:
            try:
                return await self._attempt()
            except SecAggError as error:
                pause = attempts.pause_after(error, self._runner.reach)
                if pause is None:
                    raise
                await asyncio.sleep(pause)

    async def _attempt(self) -> ReleasedSum:
        client = self._settings.client
        try:
            outcome = await self._runner.run_session(client.task)
        except SessionAbortedError as error:
            if error.code is ErrorCode.DEADLINE and not self._connection.has_answered:
                raise self._never_reached() from None
            raise
        return await self._decoded(outcome)

    def _never_reached(self) -> ServiceError:
        client, why = self._settings.client, self._connection.failure
        waited = f"gave up after {client.wait_seconds:g} seconds"
        if why is not None:
            return ServiceError(
                f"{waited}: {why}", code=why.code, next_step=why.next_step
            )
        return ServiceError(
            f"{waited}: nothing answers at {client.server}",
            code=ErrorCode.UNREACHABLE,
            next_step="Check client.server, and that firewalls and port forwarding let "
            "this client through; a longer client.wait_seconds helps with slow links.",
        )

    async def _decoded(self, outcome: SessionOutcome) -> ReleasedSum:
        parameters = outcome.descriptor.parameters
        if not parameters.noise_block:
            exact = (
                None
                if outcome.residues is None
                else decode_integers(outcome.residues, parameters.modulus)
            )
            return ReleasedSum(outcome, exact, None)
        task = NoisedTask.from_parameters(parameters)
        values = (
            None
            if outcome.residues is None
            else task.decode(outcome.residues, session_id=outcome.descriptor.session_id)
        )
        report = await asyncio.to_thread(
            privacy_report, task, self._settings.client.state_dir
        )
        return ReleasedSum(outcome, values, report)


@asynccontextmanager
async def contributor(  # noqa: PLR0913 - every seam can be used alone
    settings: ClientSettings,
    application: Application,
    *,
    fetch_sum: bool = True,
    on_progress: Callable[[ClientProgress], None] | None = None,
    through: Callable[[AggregatorConnection], AggregatorConnection] = lambda c: c,
    around_input: Callable[[MakeInput], MakeInput] = lambda make: make,
) -> AsyncIterator[Contributor]:
    """Open storage and connection of one client.

    Args:
        settings: Whom to talk to, as whom, under which floors.
        application: Supplies the input.
        fetch_sum: Whether the released sum is wanted.
        on_progress: Told what the client is doing.
        through: Puts something between the client and its connection.
        around_input: Puts something around the making of inputs.

    Yields:
        The client.

    Raises:
        ServiceError: BAD_CERTIFICATE, BAD_SETTINGS or STORAGE_FAILED.
    """
    policy, noise_policy = client_policy(settings), _noise_policy(settings)
    identity = TLSIdentity.load(
        certificate=settings.tls.certificate,
        private_key=settings.tls.key,
        authority=settings.tls.ca,
        role=Role.CLIENT,
    )
    address = Address.parse(settings.client.server)
    book = await open_state(settings.client.state_dir)
    workers = Workers()

    async def check(offered: SessionDescriptor) -> None:
        await asyncio.to_thread(
            _check_offer,
            offered,
            noise_policy,
            application,
            state_dir=settings.client.state_dir,
        )
        await check_budget(book, offered)

    try:
        async with GrpcConnection(
            address, identity=identity, aggregator=settings.client.aggregator
        ) as connection:
            checked = OfferCheckingConnection(through(connection), check)
            runner = ClientRunner(
                connection.identity,
                checked,
                book,
                policy=policy,
                make_input=around_input(
                    lambda descriptor, payload, seed: _make_input(
                        application.vector(descriptor, payload), descriptor, seed
                    )
                ),
                settings=RunnerSettings(
                    fetch_sum=fetch_sum, offer_seconds=settings.client.wait_seconds
                ),
                workers=workers,
                on_progress=on_progress,
            )
            yield Contributor(runner, checked, settings)
    finally:
        workers.close()
        await book.close()


def client_policy(settings: ClientSettings) -> ClientPolicy:
    """Return the floors of the settings as the core enforces them.

    Raises:
        ServiceError: BAD_SETTINGS for an unknown profile.
    """
    section = settings.policy
    try:
        profiles = frozenset(Profile.from_label(label) for label in section.profiles)
    except ValueError as error:
        raise ServiceError(
            f"policy.profiles: {error}",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Name only profiles of that list.",
        ) from None
    return ClientPolicy(
        profiles=profiles,
        min_clients=section.min_clients,
        max_clients=section.max_clients,
        min_survivors=section.min_survivors,
        max_dropouts=section.max_dropouts,
        min_colluders=section.min_colluders,
        require_majority=section.require_majority,
        max_dimension=section.max_dimension,
        max_modulus_bits=section.max_modulus_bits,
        require_noise=section.require_noise,
    )


def _noise_policy(settings: ClientSettings) -> NoisePolicy | None:
    section = settings.policy
    if section.max_epsilon is None or section.max_delta is None:
        return None  # the loader allows it only with require_noise = false
    return NoisePolicy(
        max_epsilon=section.max_epsilon,
        max_delta=section.max_delta,
        statuses=frozenset(section.grounds),
        min_local_noise_stddev=section.min_local_noise_stddev,
    )


def _check_offer(
    offered: SessionDescriptor,
    noise_policy: NoisePolicy | None,
    application: Application,
    *,
    state_dir: Path,
) -> None:
    parameters = offered.parameters
    if not parameters.noise_block:
        application.check(offered, parameters.dimension)
        return
    task = NoisedTask.from_parameters(parameters)
    if noise_policy is not None:
        task.check(noise_policy, report=privacy_report(task, state_dir))
    application.check(offered, task.dim)


def _make_input(
    vector: npt.NDArray[Any],
    descriptor: SessionDescriptor,
    seed: bytes,
) -> PlainVector | NoisedVector:
    parameters = descriptor.parameters
    if not parameters.noise_block:
        return encode_integers(vector, parameters)
    if vector.dtype.kind != "f":
        if np.abs(vector).max(initial=0) > 1 << 53:
            raise InputError(
                "the input has whole numbers that a float64 cannot hold",
                next_step="Scale it down before saving.",
            )
        vector = vector.astype(np.float64)
    task = NoisedTask.from_parameters(parameters)
    return task.encode(
        vector, session_id=descriptor.session_id, noise_seed=SecretBytes(seed)
    ).vector
