"""Programs for sums between two aggregators: leader, helper and client.

Rule 1: either aggregator may stop at any time, and resumes from its last record: its
        answers are in its store. A sum that was released but not written is written
        when the leader starts again.
Rule 2: a session without a sum ends neither program. The leader reports the reason and
        opens the next session after a pause, while the budget lasts. An invalid answer
        of the helper ends the leader, because an operator has to investigate.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy.typing as npt

from secagg.client.grpc_connection import GrpcConnection
from secagg.config.common import TLSSection, total_budget
from secagg.config.files import identity_of
from secagg.config.policy import suites_of
from secagg.config.two_aggregators import (
    HelperSettings,
    LeaderSettings,
    OtherSection,
    PartySection,
    PartySettings,
    SharedTaskSection,
    SharingClientSettings,
    tasks_of_party,
)
from secagg.distributed_dp import AggregatorNoise, DPNoiseError, fixed_point_parameters
from secagg.errors import ErrorCode, SecAggError, ServiceError, SessionAbortedError
from secagg.pki.certificate_revocations import revocation_file
from secagg.pki.key_files import key_text, parse_key
from secagg.protocol.policy import ClientPolicy, PrivacyLimits
from secagg.runtime.clock import Clock, SystemClock
from secagg.runtime.metrics import Meter
from secagg.runtime.vector_files import write_json, write_vector
from secagg.runtime.workers import Workers
from secagg.server.admin.operations import View
from secagg.server.service import Service, ServiceManager, run_process
from secagg.server.storage import open_storage as open_server_storage
from secagg.server.task.outputs import store_receipt
from secagg.server.task.stored import folder_of
from secagg.storage.directories import STORE_FILE, state_directory
from secagg.storage.open_store import open_reader, store_exists
from secagg.storage.rows import Retention
from secagg.transport.address import Address
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity
from secagg.two_aggregators.client import SharedContribution, TwoAggregatorClient
from secagg.two_aggregators.helper import Helper
from secagg.two_aggregators.leader import Leader
from secagg.two_aggregators.leader_outcome import TwoAggregatorSum
from secagg.two_aggregators.offers import cohort_parameters
from secagg.two_aggregators.party import PartyOptions, receipt_key_in
from secagg.two_aggregators.party_server import PartyServer, PartyTask, PartyViews

_PAUSE_SECONDS: Final = 5.0
"""Pause after a session without a sum."""

_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class WrittenSum:
    """A sum on disk.

    Attributes:
        task: Name of the task.
        session_number: Number of the leader's session.
        inputs: Number of vectors in the sum.
        path: File of the estimate, in NumPy's format.
    """

    task: str
    session_number: int
    inputs: int
    path: Path


def noise_of(task: SharedTaskSection) -> AggregatorNoise:
    """Return the noise of the task that the settings describe.

    Raises:
        ServiceError: BAD_SETTINGS; a number is out of range, or the noise that rho
            yields does not achieve epsilon.
        RemoteProtocolError: BAD_CONFIG; the numbers describe no task.
    """
    participations = task.sums_of_one_client
    if participations > task.steps:
        raise _bad_task(
            f"task.participations is {participations}, but the task releases "
            f"{task.steps} sums: the extra noise would have no use",
            "Lower task.participations to at most task.steps, at both aggregators.",
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
        raise _bad_task(str(error), "Correct [task] at both aggregators.") from None
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
        spare=task.spare_sessions,
    )
    found = noise.report().aggregator.epsilon
    if found > task.epsilon:
        charges = noise.budget.charges
        raise _bad_task(
            f"with rho = {task.rho:g}, {charges} sessions have epsilon {found:.9g} "
            f"against an aggregator, but task.epsilon is {task.epsilon:.9g}",
            "Lower task.rho or raise task.epsilon, at both aggregators.",
        )
    return noise


def _bad_task(complaint: str, remedy: str) -> SecAggError:
    return ErrorCode.BAD_SETTINGS.error(complaint, fix=remedy)


def state_of(server: PartySection, task: str) -> tuple[Path, Path | None]:
    """Return state directory and rollback mark of a task; None for the default mark.

    Each task has its own, because a party deletes other sessions from its spool.
    """
    folder, mark = folder_of(task), server.rollback_mark
    named = None if mark is None else mark.with_name(f"{mark.name}.{folder}")
    return server.state_dir / "tasks" / folder, named


def sums_of(settings: LeaderSettings, task: str) -> Path:
    """Return the directory of a task's sums."""
    folder = settings.server.output_dir
    return folder if task == settings.task.id else folder / folder_of(task)


class ReleasingLeader:
    """The loop of a leader: runs its sessions, and writes their results.

    Args:
        leader: The leader.
        folder: Directory of sums, reports and receipts.
        clock: Source of time.
    """

    def __init__(self, leader: Leader, folder: Path, clock: Clock) -> None:
        self._leader = leader
        self._folder = folder
        self._clock = clock
        self._is_writing = False

    @property
    def is_busy(self) -> bool:
        """Whether a session is open, or its results are being written."""
        return self._leader.is_working or self._is_writing

    async def release(
        self,
        *,
        written: Callable[[WrittenSum], None],
        failed: Callable[[SecAggError], None],
    ) -> None:
        """Run sessions until the task can release no further sum.

        It writes each sum with its report, and the receipt of every session.

        Args:
            written: Called for every sum, once it is on disk.
            failed: Called for every session that ended without a sum.

        Raises:
            ServiceError: STORAGE_FAILED.
            RemoteProtocolError: The helper's answer is invalid.
        """
        await self._write_receipt()
        last = await self._leader.last_sum()
        if last is not None and not self._sum_path(last).exists():
            written(await self._write_sum(last))
        while True:
            self._is_writing = False
            try:
                released = await self._leader.next_sum()
            except SessionAbortedError as error:
                self._is_writing = True
                await self._write_receipt()
                self._is_writing = False
                failed(error)
                if not self._leader.may_serve:
                    return
            except ServiceError as error:
                if error.code is ErrorCode.TASK_OVER:
                    return
                raise
            else:
                self._is_writing = True
                await self._write_receipt()
                written(await self._write_sum(released))
                continue
            await self._clock.sleep_until(self._clock.now() + _PAUSE_SECONDS)

    async def _write_receipt(self) -> None:
        """Write the receipt of the last session, before the session is reported."""
        last = await self._leader.last_receipt()
        if last is not None:
            store_receipt(self._folder, *last)

    def _sum_path(self, released: TwoAggregatorSum) -> Path:
        """Return the file of a released sum."""
        return self._folder / f"sum-{released.session_number}.npy"

    async def _write_sum(self, released: TwoAggregatorSum) -> WrittenSum:
        """Write a sum, after its report: every sum on disk has a report."""
        number, path = released.session_number, self._sum_path(released)
        report = {
            **await self._leader.describe(released),
            "file": path.name,
            "receipt": f"receipt-{number}.bin",
        }
        write_json(self._folder / f"report-{number}.json", report)
        write_vector(path, released.values)
        return WrittenSum(self._leader.task, number, released.inputs, path)


class PartyProgram(PartyServer):
    """The parties that a settings file describes, and the loops of leaders.

    Args:
        parties: As for `PartyServer`.
        settings: Settings of the aggregator.
        receipt_key: Their public receipt key, 32 bytes.
        written: Called for every sum, once it is on disk.
        failed: Called for every session that ended without a sum.
        clock: Source of time.
    """

    def __init__(  # noqa: PLR0913 - an aggregator, and callbacks for its events
        self,
        parties: Sequence[Leader] | Sequence[Helper],
        settings: PartySettings,
        receipt_key: bytes,
        *,
        written: Callable[[WrittenSum], None],
        failed: Callable[[SecAggError], None],
        clock: Clock,
    ) -> None:
        own, health = settings.server, settings.server.health_listen
        super().__init__(
            parties,
            Address.parse(own.listen, name="server.listen"),
            _own_identity(own, settings.tls),
            health_address=None
            if health is None
            else Address.parse(health, name="server.health_listen"),
            admission=settings.admission.limits(),
            revoked=revocation_file(
                own.revoked, own.max_revocation_days, own.state_dir
            ),
            clock=clock,
        )
        self.receipt_key: Final = receipt_key
        self._written, self._failed = written, failed
        self._loops: list[asyncio.Task[None]] = []
        self._releasing = [
            ReleasingLeader(each, sums_of(settings, each.task), clock)
            for each in parties
            if isinstance(each, Leader) and isinstance(settings, LeaderSettings)
        ]

    async def start(self) -> None:
        """Listen, and at a leader start the sessions of each task.

        Raises:
            ServiceError: As `listen`.
        """
        await self.listen()
        for each in self._releasing:
            loop = each.release(written=self._written, failed=self._failed)
            self._loops.append(asyncio.ensure_future(loop))

    async def released(self) -> None:
        """Wait until the leader's tasks can release no further sum.

        Raises:
            SecAggError: As `ReleasingLeader.release`.
        """
        await asyncio.gather(*self._loops)

    async def settle(self) -> None:
        """Wait until the sums of this process are written."""
        while any(each.is_busy for each in self._releasing):
            await self._clock.sleep_until(self._clock.now() + _POLL_SECONDS)

    async def close(self) -> None:
        """Stop the loops; open sessions stay in the store."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)


@asynccontextmanager
async def opened_parties(  # noqa: PLR0913 - an aggregator, and callbacks for its events
    settings: PartySettings,
    *,
    accept_restored: bool = False,
    clock: Clock | None = None,
    meter: Meter | None = None,
    written: Callable[[WrittenSum], None] = lambda _: None,
    failed: Callable[[SecAggError], None] = lambda _: None,
) -> AsyncIterator[PartyProgram]:
    """Open the states of an aggregator's tasks, and load them.

    Args:
        settings: Settings of the leader or the helper.
        accept_restored: Accept restored states, and end the sessions open in them.
        clock: Source of time; the system clock by default.
        meter: Receives measurements; by default they are discarded.
        written: Called for every sum of a leader, once it is on disk.
        failed: Called for every session of a leader that ended without a sum.

    Yields:
        The aggregator; `start` makes it serve.

    Raises:
        ServiceError: BAD_SETTINGS, BAD_CERTIFICATE, BAD_CREDENTIAL, STORAGE_FAILED,
            STATE_DAMAGED or RESTORED_STATE.
        RemoteProtocolError: BAD_CONFIG; the settings describe no task.
    """
    own, clock = settings.server, clock or SystemClock()
    tasks = [(each, noise_of(each)) for each in tasks_of_party(settings)]
    async with AsyncExitStack() as stack:
        key, workers = receipt_key_in(state_directory(own.state_dir)), Workers()
        stack.callback(workers.close)

        async def options(task: SharedTaskSection) -> PartyOptions:
            directory, mark = state_of(own, task.id)
            storage = await open_server_storage(
                directory, mark=mark, accept_restored=accept_restored
            )
            stack.push_async_callback(storage.close)
            return {
                "steps": task.steps,
                "name": own.name,
                "storage": storage,
                "receipt_key": key,
                "retention": Retention(
                    keep_receipts_days=own.keep_receipts_days,
                    keep_receipts=own.keep_receipts,
                ),
                "clock": clock,
                "workers": workers,
                "meter": meter,
            }

        parties: list[Leader] | list[Helper]
        if isinstance(settings, HelperSettings):
            leader = settings.leader.name
            parties = [
                Helper(task.id, noise, leader=leader, **await options(task))
                for task, noise in tasks
            ]
        else:
            helper_key = receipt_key_of("helper", settings.helper)
            opening = _connection_to("helper", settings.helper)
            connection = await stack.enter_async_context(opening)
            check_name(own, connection.identity, settings.helper.certificate)
            parties = [
                Leader(
                    task.id,
                    noise,
                    helper=connection,
                    helper_key=helper_key,
                    **await options(task),
                )
                for task, noise in tasks
            ]
        program = PartyProgram(
            parties,
            settings,
            key.public_bytes,
            written=written,
            failed=failed,
            clock=clock,
        )
        yield await stack.enter_async_context(program)


@asynccontextmanager
async def stored_views(settings: PartySettings) -> AsyncIterator[PartyViews]:
    """Read the stores of an aggregator that does not run.

    Args:
        settings: Settings of the aggregator.

    Yields:
        The views of its tasks, without those that have not run yet.

    Raises:
        StoreNotFoundError: No task has run yet.
        ServiceError: STORAGE_FAILED or BAD_SETTINGS.
    """
    is_leader = isinstance(settings, LeaderSettings)
    states = [
        (task, state_of(settings.server, task.id)[0])
        for task in tasks_of_party(settings)
    ]
    existing = [each for each in states if store_exists(each[1] / STORE_FILE)]
    async with AsyncExitStack() as stack:
        found = []
        for task, directory in existing or states[:1]:
            store = await stack.enter_async_context(open_reader(directory))
            noise = noise_of(task)
            found.append(PartyTask(task.id, noise, task.steps, is_leader, store))
        yield PartyViews(found)


async def run_parties(  # noqa: PLR0913 - an aggregator, and callbacks for its events
    settings: PartySettings,
    *,
    listening: Callable[[Address], None],
    notify: Callable[[str], None],
    written: Callable[[WrittenSum], None],
    failed: Callable[[SecAggError], None],
    manager: ServiceManager | None = None,
    accept_restored: bool = False,
) -> list[View]:
    """Run a leader or a helper until its operator or the system stops it.

    Args:
        settings: As for `opened_parties`.
        listening: Called once with the address, when clients can connect.
        notify: Called with sentences for the operator.
        written: As for `opened_parties`.
        failed: As for `opened_parties`.
        manager: Service manager to notify of the state of the process, if any.
        accept_restored: As for `opened_parties`.

    Returns:
        The final views of the tasks.

    Raises:
        SecAggError: As `opened_parties` and `ReleasingLeader.release`.
    """

    @asynccontextmanager
    async def opened(meter: Meter) -> AsyncIterator[Service]:
        async with opened_parties(
            settings,
            accept_restored=accept_restored,
            meter=meter,
            written=written,
            failed=failed,
        ) as program:
            notify(f"signs receipts as {key_text(program.receipt_key)}")

            async def ended() -> None:
                await program.released()
                if isinstance(settings, LeaderSettings):
                    notify("there will be no more sums; clients can fetch the last")
                await asyncio.Event().wait()

            yield Service(
                program,
                program,
                start=program.start,
                failed=ended,
                close=program.close,
            )

    return await run_process(
        settings.server, opened, listening=listening, notify=notify, manager=manager
    )


def sharing_limits(settings: SharingClientSettings) -> PrivacyLimits:
    """Return the privacy limits of a client's settings."""
    policy = settings.policy
    return PrivacyLimits(
        max_epsilon=policy.max_epsilon,
        max_delta=policy.max_delta,
        statuses=frozenset(policy.grounds),
    )


def sharing_cohort(settings: SharingClientSettings) -> ClientPolicy:
    """Return the limits on cohorts of a client's settings.

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


async def contribute_vector(
    settings: SharingClientSettings,
    vector: npt.ArrayLike,
    *,
    accept_restored: bool = False,
) -> SharedContribution:
    """Contribute one vector to one session, as its client.

    Args:
        settings: Both aggregators and the client's limits.
        vector: Real numbers of shape (dim,), caller's units.
        accept_restored: Accept a client's state that was restored from a backup.

    Raises:
        InputError: The vector cannot be encoded; nothing of it was sent.
        SecAggError: As `TwoAggregatorClient.contribute`.
    """
    own = settings.client
    leader_key = receipt_key_of("leader", settings.leader)
    helper_key = receipt_key_of("helper", settings.helper)
    async with AsyncExitStack() as stack:
        to_leader = await stack.enter_async_context(
            _connection_to("leader", settings.leader)
        )
        to_helper = await stack.enter_async_context(
            _connection_to("helper", settings.helper)
        )
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
            state_dir=own.state_dir,
            rollback_mark=own.rollback_mark,
            accept_restored=accept_restored,
            total=total_budget(settings.policy),
        )
        await stack.enter_async_context(client)
        return await client.contribute(vector)


def receipt_key_of(section: str, other: OtherSection) -> bytes:
    """Return the receipt key that the settings state for the other aggregator.

    Raises:
        ServiceError: The text of the key is invalid.
    """
    try:
        return parse_key(other.receipt_key)
    except ServiceError as error:
        raise error.code.error(
            f"{section}.receipt_key: {error}",
            kind=ServiceError,
            fix="Ask the aggregator's operator for its receipt key.",
        ) from None


def _connection_to(section: str, other: OtherSection) -> GrpcConnection:
    """Return the connection to the other aggregator."""
    return GrpcConnection(
        Address.parse(other.address, name=f"{section}.address"),
        identity=identity_of(other, Role.CLIENT),
        aggregator=other.name,
    )


def _own_identity(own: PartySection, files: TLSSection) -> TLSIdentity:
    """Load the certificate of an aggregator, which must have its name."""
    identity = identity_of(files, Role.SERVER)
    check_name(own, identity.identity.name, files.certificate)
    return identity


def check_name(own: PartySection, found: str, certificate: Path) -> None:
    """Refuse a certificate with another name, which every peer would reject.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    if found != own.name:
        raise ErrorCode.BAD_SETTINGS.error(
            f"{certificate} is a certificate for {found!r}, but server.name is "
            f"{own.name!r}",
            fix="Use a certificate for server.name: the helper accepts no other "
            "leader, and clients accept no other offer.",
        )
