"""The programs of sums between two aggregators, as their settings describe them.

Rule 1: either aggregator is stopped at any time and goes on where it stood: what it has
        answered is in its book. A sum that was released and not yet written is written
        when the leader starts again.
Rule 2: a session that releases nothing ends neither program. The leader says why and
        opens the next one, after a pause, as long as there is budget. An answer of the
        helper's that cannot be true ends the leader: somebody has to look.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import (
    AsyncExitStack,
    asynccontextmanager,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy.typing as npt

from secagg.client.grpc_connection import GrpcConnection
from secagg.client.open_storage import open_storage as open_client_storage
from secagg.client.program import suites_of
from secagg.config.program import TLSSection
from secagg.config.total_budget import total_budget
from secagg.config.two_aggregators import (
    AggregatorSection,
    HelperSettings,
    LeaderSettings,
    OtherSection,
    SharedTaskSection,
    SharingClientSettings,
)
from secagg.distributed_dp import (
    AggregatorNoise,
    DPNoiseError,
    fixed_point_parameters,
)
from secagg.errors import ErrorCode, SecAggError, ServiceError, SessionAbortedError
from secagg.pki.key_files import parse_key
from secagg.protocol.policy import ClientPolicy, PrivacyLimits
from secagg.runtime.clock import Clock, SystemClock
from secagg.runtime.vector_files import write_bytes, write_json, write_vector
from secagg.runtime.workers import Workers
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.storage import ServerStorage
from secagg.server.storage import open_storage as open_server_storage
from secagg.server.telemetry.prometheus import PrometheusMeter
from secagg.transport.address import Address
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity
from secagg.two_aggregators.client import (
    SharedContribution,
    TwoAggregatorClient,
    total_between_two,
)
from secagg.two_aggregators.helper import Helper
from secagg.two_aggregators.leader import Leader
from secagg.two_aggregators.offers import cohort_parameters
from secagg.two_aggregators.receipt_key import receipt_key_in
from secagg.two_aggregators.serving import serving
from secagg.two_aggregators.shared_sum import TwoAggregatorSum
from secagg.two_aggregators.watching import watching

_PAUSE_SECONDS: Final = 5.0
"""Before the next session, after one that has released nothing."""


@dataclass(frozen=True, slots=True)
class WrittenSum:
    """A sum on disk.

    Attributes:
        session_number: Of the leader's session.
        inputs: How many vectors it adds up.
        path: Of the estimate, in numpy's format.
    """

    session_number: int
    inputs: int
    path: Path


def noise_of(task: SharedTaskSection) -> AggregatorNoise:
    """Return the task that the settings describe.

    Raises:
        ServiceError: BAD_SETTINGS; a number is out of range, or the noise that rho asks
            for does not keep epsilon.
        RemoteProtocolError: BAD_CONFIG; the numbers make no task.
    """
    participations = task.participations or task.steps
    if participations > task.steps:
        raise _bad_task(
            f"task.participations is {participations}, and the task releases "
            f"{task.steps} sums: noise would be paid for and not used",
            "Lower task.participations to at most task.steps; at both.",
        )
    try:
        chosen = fixed_point_parameters(
            dim=task.dimension,
            fixed_point_bits=task.fixed_point_bits,
            rho=task.rho,
            clients=task.max_clients,
            min_survivors=task.min_survivors,
            l2_clip=task.l2_clip,
            aggregators=2,
        )
    except DPNoiseError as error:
        raise _bad_task(str(error), "Correct it in [task], at both.") from None
    noise = AggregatorNoise.joined(
        chosen,
        cohort_parameters(
            min_survivors=task.min_survivors,
            max_clients=task.max_clients,
            collect_seconds=task.collect_seconds,
            agree_seconds=task.agree_seconds,
        ),
        epsilon=task.epsilon,
        delta=task.delta,
        participations=participations,
        spare=task.spare,
    )
    found = noise.report().aggregator.epsilon
    if found > task.epsilon:
        charges = noise.budget.charges
        raise _bad_task(
            f"with rho = {task.rho:g} {charges} sessions have epsilon {found:.9g} "
            f"against an aggregator, and task.epsilon claims {task.epsilon:.9g}",
            "Lower task.rho, or state the larger epsilon; at both.",
        )
    return noise


def _bad_task(complaint: str, remedy: str) -> ServiceError:
    return ServiceError(complaint, code=ErrorCode.BAD_SETTINGS, next_step=remedy)


@dataclass(frozen=True, slots=True)
class ServedHelper:
    """A helper that is being served; made by `helping`.

    Attributes:
        server: What answers; its `address` has the real port.
        receipt_key: What it signs receipts with, 32 bytes, public.
        metrics: Where /metrics is, with the real port; None if nowhere.
    """

    server: GrpcServer
    receipt_key: bytes
    metrics: Address | None


@asynccontextmanager
async def helping(
    settings: HelperSettings, *, accept_restored: bool = False
) -> AsyncIterator[ServedHelper]:
    """Run the helper.

    Args:
        settings: What it is.
        accept_restored: Its state may have been put back; sessions open in it end.

    Yields:
        The helper, serving.

    Raises:
        ServiceError: BAD_SETTINGS, BAD_CERTIFICATE, BAD_CREDENTIAL, PORT_IN_USE,
            STORAGE_FAILED, STATE_DAMAGED or RESTORED_STATE.
        RemoteProtocolError: BAD_CONFIG; the task is none.
    """
    own = settings.aggregator
    noise, identity = noise_of(settings.task), _own_identity(own, settings.tls)
    async with AsyncExitStack() as stack:
        storage = await open_server_storage(
            own.state_dir, mark=own.rollback_mark, accept_restored=accept_restored
        )
        stack.push_async_callback(storage.close)
        key, meter = receipt_key_in(own.state_dir), _meter_of(own)
        helper = Helper(
            settings.task.id,
            noise,
            steps=settings.task.steps,
            name=own.name,
            leader=settings.leader.name,
            storage=storage,
            receipt_key=key,
            meter=meter,
        )
        server, watched = await stack.enter_async_context(
            _serving(helper, own, identity, storage, meter=meter, clock=SystemClock())
        )
        yield ServedHelper(server, key.public_bytes, watched)


@dataclass(frozen=True, slots=True)
class ReleasingLeader:
    """A leader that is being served; made by `leading`.

    Attributes:
        server: What answers its clients.
        receipt_key: What it signs receipts with, 32 bytes, public.
        metrics: Where /metrics is, with the real port; None if nowhere.
    """

    server: GrpcServer
    receipt_key: bytes
    metrics: Address | None
    _leader: Leader
    _folder: Path
    _clock: Clock

    async def release(
        self,
        *,
        written: Callable[[WrittenSum], None],
        failed: Callable[[SecAggError], None],
    ) -> None:
        """Run sessions until there will be no more sums of the task.

        Each sum is written with its report, and of every session the receipt.

        Args:
            written: Told of every sum that is on disk.
            failed: Told of every session that ended without one.

        Raises:
            ServiceError: STORAGE_FAILED.
            RemoteProtocolError: What the helper says cannot be true.
        """
        await self._keep_receipt()
        last = await self._leader.last_sum()
        if last is not None and not self._path(last).exists():
            written(await self._write(last))
        while True:
            try:
                released = await self._leader.next_sum()
            except SessionAbortedError as error:
                await self._keep_receipt()
                failed(error)
                if not self._leader.may_serve:
                    return
            except ServiceError as error:
                if error.code is ErrorCode.TASK_OVER:
                    return
                raise
            else:
                await self._keep_receipt()
                written(await self._write(released))
                continue
            await self._clock.sleep_until(self._clock.now() + _PAUSE_SECONDS)

    async def _keep_receipt(self) -> None:
        """Write the receipt of the last session, before anything else is told of it."""
        last = await self._leader.last_receipt()
        if last is not None:
            write_bytes(self._folder / _receipt_name(last[0]), last[1])

    def _path(self, released: TwoAggregatorSum) -> Path:
        return self._folder / f"sum-{released.session_number}.npy"

    async def _write(self, released: TwoAggregatorSum) -> WrittenSum:
        """Write the report first: where there is a sum, there is its report."""
        number, path = released.session_number, self._path(released)
        report = {
            **await self._leader.describe(released),
            "file": path.name,
            "receipt": _receipt_name(number),
        }
        write_json(self._folder / f"report-{number}.json", report)
        write_vector(path, released.values)
        return WrittenSum(number, released.inputs, path)


@asynccontextmanager
async def leading(
    settings: LeaderSettings,
    *,
    accept_restored: bool = False,
    clock: Clock | None = None,
) -> AsyncIterator[ReleasingLeader]:
    """Run the leader; call `release` of what this yields.

    Args:
        settings: What it is, and where the helper is.
        accept_restored: As for `helping`.
        clock: Time; the machine's by default.

    Yields:
        The leader, serving its clients.

    Raises:
        ServiceError: As for `helping`.
        RemoteProtocolError: BAD_CONFIG; the task is none.
    """
    own, helper_key = settings.aggregator, receipt_key_of("helper", settings.helper)
    noise, identity = noise_of(settings.task), _own_identity(own, settings.tls)
    async with AsyncExitStack() as stack:
        storage = await open_server_storage(
            own.state_dir, mark=own.rollback_mark, accept_restored=accept_restored
        )
        stack.push_async_callback(storage.close)
        key, meter = receipt_key_in(own.state_dir), _meter_of(own)
        way = await stack.enter_async_context(_way_to("helper", settings.helper))
        check_name(own, way.identity, settings.helper.certificate)
        leader = Leader(
            settings.task.id,
            noise,
            steps=settings.task.steps,
            name=own.name,
            helper=way,
            storage=storage,
            receipt_key=key,
            helper_key=helper_key,
            clock=clock,
            meter=meter,
        )
        clock = clock or SystemClock()
        server, watched = await stack.enter_async_context(
            _serving(leader, own, identity, storage, meter=meter, clock=clock)
        )
        yield ReleasingLeader(
            server, key.public_bytes, watched, leader, own.sums_dir, clock
        )


def sharing_limits(settings: SharingClientSettings) -> PrivacyLimits:
    """Return the privacy that a client's settings insist on."""
    policy = settings.policy
    return PrivacyLimits(
        max_epsilon=policy.max_epsilon,
        max_delta=policy.max_delta,
        statuses=frozenset(policy.grounds),
    )


def sharing_cohort(settings: SharingClientSettings) -> ClientPolicy:
    """Return what a client's settings accept of a cohort.

    Raises:
        ServiceError: BAD_SETTINGS for an unknown suite.
    """
    policy = settings.policy
    return ClientPolicy(
        suites=suites_of(policy.suites),
        min_clients=policy.min_survivors,  # the same number between two
        max_clients=policy.max_clients,
        min_survivors=policy.min_survivors,
        max_dimension=policy.max_dimension,
        max_modulus_bits=policy.max_modulus_bits,
    )


async def give_vector(
    settings: SharingClientSettings,
    vector: npt.ArrayLike,
    *,
    accept_restored: bool = False,
) -> SharedContribution:
    """Be one client of one session.

    Args:
        settings: Both aggregators and the client's floors.
        vector: Real numbers, caller's units.
        accept_restored: The client's state may have been put back.

    Raises:
        InputError: The vector cannot be encoded; nothing of it was sent.
        SecAggError: As `TwoAggregatorClient.contribute`.
    """
    own, policy = settings.client, settings.policy
    leader_key = receipt_key_of("leader", settings.leader)
    helper_key = receipt_key_of("helper", settings.helper)
    async with AsyncExitStack() as stack:
        to_leader = await stack.enter_async_context(_way_to("leader", settings.leader))
        to_helper = await stack.enter_async_context(_way_to("helper", settings.helper))
        storage = await open_client_storage(
            own.state_dir, mark=own.rollback_mark, accept_restored=accept_restored
        )
        stack.push_async_callback(storage.close)
        workers, budget = Workers(), total_budget(policy)
        stack.callback(workers.close)
        total = None
        if budget is not None:
            total = total_between_two(budget, storage, workers)
            await total.open()
        client = TwoAggregatorClient(
            to_leader,
            to_helper,
            task=own.task,
            leader_name=settings.leader.name,
            helper_name=settings.helper.name,
            leader_key=leader_key,
            helper_key=helper_key,
            privacy_limits=sharing_limits(settings),
            cohort=sharing_cohort(settings),
            storage=storage,
            total=total,
            workers=workers,
        )
        return await client.contribute(vector)


@asynccontextmanager
async def _serving(  # noqa: PLR0913 - a party, and what it was made of
    party: Helper | Leader,
    own: AggregatorSection,
    identity: TLSIdentity,
    storage: ServerStorage,
    *,
    meter: PrometheusMeter | None,
    clock: Clock,
) -> AsyncIterator[tuple[GrpcServer, Address | None]]:
    """Serve clients, and whoever watches; yield both ports."""
    health, metrics = (
        None if given is None else Address.parse(given, name=f"aggregator.{name}")
        for name, given in (
            ("health_listen", own.health_listen),
            ("metrics_listen", own.metrics_listen),
        )
    )
    async with (
        serving(
            party,
            Address.parse(own.listen, name="aggregator.listen"),
            identity,
            health_address=health,
            revoked=own.revoked,
        ) as server,
        watching(
            party,
            server,
            storage=storage,
            state_dir=own.state_dir,
            listen=metrics,
            meter=meter,
            clock=clock,
        ) as watched,
    ):
        yield server, watched


def _meter_of(own: AggregatorSection) -> PrometheusMeter | None:
    return None if own.metrics_listen is None else PrometheusMeter()


def _receipt_name(number: int) -> str:
    return f"receipt-{number}.bin"


def receipt_key_of(section: str, other: OtherSection) -> bytes:
    """Return the key that an aggregator signs with."""
    try:
        return parse_key(other.receipt_key)
    except ServiceError as error:
        raise ServiceError(
            f"{section}.receipt_key: {error}",
            code=error.code,
            next_step="Copy it as the aggregator prints it at its start, from its "
            "operator.",
        ) from None


def _way_to(section: str, other: OtherSection) -> GrpcConnection:
    return GrpcConnection(
        Address.parse(other.address, name=f"{section}.address"),
        identity=_identity(other, Role.CLIENT),
        aggregator=other.name,
    )


def _own_identity(own: AggregatorSection, files: TLSSection) -> TLSIdentity:
    """Return the certificate of an aggregator, which has to bear its name."""
    identity = _identity(files, Role.SERVER)
    check_name(own, identity.identity.name, files.certificate)
    return identity


def check_name(own: AggregatorSection, found: str, certificate: Path) -> None:
    """Refuse a certificate for somebody else: nobody would believe this aggregator."""
    if found != own.name:
        raise ServiceError(
            f"{certificate} is a certificate for {found!r}, and aggregator.name is "
            f"{own.name!r}",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Have a certificate issued for that name: the helper takes "
            "nobody else for its leader, and clients believe no other offer.",
        )


def _identity(files: TLSSection, role: Role) -> TLSIdentity:
    return TLSIdentity.load(
        certificate=files.certificate,
        private_key=files.key,
        authority=files.ca,
        role=role,
    )
