"""A client that computes another ctx2 is refused by name, and the sum is of the others.

Its masks would cancel with no others: one build of the sampler with other tables, or
another U2 told, would make the sum of all garbage, and nothing would show it
(R5.3-14).  And what is left of that where the view has agreed and the signature over
the sets does not hold (R5.4-7).
"""

import asyncio
import logging
from contextvars import ContextVar
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.client_state import LastingStore, client_over
from secagg_testing.cohorts import parameters_for, signing_parameters_for, with_noise
from secagg_testing.deployment import TASK_ID, Deployment, one_hot_input
from secagg_testing.inline_store import inline_store
from secagg_testing.lossy_connection import Fault
from secagg_testing.lying_connection import LyingConnection
from secagg_testing.replicas import Replicas
from secagg_testing.tls_deployment import TLSDeployment

from secagg.client import session as client_session
from secagg.client.client import Client
from secagg.client.grpc_connection import GrpcConnection
from secagg.client.session_driver import SessionSettings
from secagg.crypto.modular import zeros
from secagg.distributed_dp import read_noise_terms, table_hashes
from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError
from secagg.protocol.policy import PrivacyLimits
from secagg.protocol.profiles import RoundDeadlines
from secagg.protocol.rounds import DropReason
from secagg.runtime.workers import Workers
from secagg.server.aggregator import Aggregator
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.session.report import report_of
from secagg.server.task.definition import TaskDefinition
from secagg.simulation import identity_of
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.budget_ledger import ChargeState
from secagg.storage.queries import ListCharges
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.transport.address import Address
from secagg.wire.calls import GetUploadStatus, SignConsistency, UploadChunk

CLIENTS, ODD = 4, 1
DIMENSION = 9
PARAMETERS = with_noise(parameters_for(CLIENTS, dimension=DIMENSION, threshold=3))
# Which tables the client of this task or thread of execution has.
_HAS_OTHER_TABLES = ContextVar("_HAS_OTHER_TABLES", default=False)


@pytest.fixture(autouse=True)
def tables_by_client(monkeypatch):
    """Make one client draw its noise with different tables."""

    def read(parameters, share_holders):
        terms = read_noise_terms(parameters, share_holders)
        if not _HAS_OTHER_TABLES.get():
            return terms
        return replace(terms, context=sha256(terms.context).digest())

    monkeypatch.setattr(client_session, "read_noise_terms", read)


async def oddly(work):
    _HAS_OTHER_TABLES.set(True)
    return await work


def run(parameters=PARAMETERS, *, odd=(ODD,), **options):
    """Run a task in which some clients have other tables."""

    async def main(clock):
        deployment = Deployment(clock, parameters, CLIENTS, max_attempts=1, **options)
        serving = asyncio.ensure_future(deployment.serve())
        endings = await asyncio.gather(
            *(
                asyncio.ensure_future(
                    oddly(deployment.take_part(number))
                    if number in odd
                    else deployment.take_part(number)
                )
                for number in range(CLIENTS)
            )
        )
        await serving
        return deployment, endings

    return manual_clock.run(main)


def sum_without(number, parameters=PARAMETERS):
    """Return the exact sum of all but one: these clients add no noise."""
    total = zeros(parameters.dimension, parameters.modulus)
    for other in range(CLIENTS):
        if other != number:
            total = (total + one_hot_input(other, parameters)) % parameters.modulus
    return total.tolist()


def lost_answer(number, call, count):
    is_first = number == ODD and call is GetUploadStatus and count == 0
    return Fault.LOSE_ANSWER if is_first else Fault.NONE


@pytest.mark.parametrize("watch", [True, False], ids=["streams", "polls"])
@pytest.mark.parametrize(
    "faults", [{}, {"fault_of": lost_answer}], ids=["", "its answer is lost"]
)
@pytest.mark.parametrize("is_signed", [False, True], ids=["profile 1", "profile 2"])
def test_a_client_with_a_different_view_is_excluded_and_named(
    watch, faults, is_signed, caplog
):
    caplog.set_level(logging.WARNING, logger="secagg.server")
    parameters = PARAMETERS
    if is_signed:
        parameters = with_noise(signing_parameters_for(CLIENTS, dimension=DIMENSION))
    settings = SessionSettings(offer_seconds=600.0, watch=watch)
    deployment, endings = run(parameters, settings=settings, **faults)
    name = identity_of(ODD)
    refused = endings[ODD]
    assert isinstance(refused, RemoteProtocolError)
    assert refused.code is ErrorCode.VIEW_DIFFERS
    assert name in str(refused)
    assert "release" in refused.next_step
    (released,) = deployment.sums
    assert released.residues.tolist() == sum_without(ODD, parameters)
    assert [each.survivors for n, each in enumerate(endings) if n != ODD] == [3] * 3
    # Nothing was bound: not even a profile that gives nothing back charges it.
    charged = asyncio.run(deployment.charged())
    assert charged[name] == 0
    # Report and log say why it is lost.
    (lost,) = released.receipt.lost
    assert lost[0] == name
    assert lost[2] == DropReason.OTHER_VIEW.value
    (line,) = [r for r in caplog.records if r.event == "view_differs"]
    assert line.facts["sender"] == name


def test_if_most_clients_differ_the_log_says_the_server_may_be_wrong(caplog):
    caplog.set_level(logging.WARNING, logger="secagg.server")
    deployment, endings = run(odd=(0, 1, 2))
    assert not deployment.sums
    assert [each.code for each in endings[:3]] == [ErrorCode.VIEW_DIFFERS] * 3
    (line,) = [r for r in caplog.records if r.event == "tables_differ"]
    assert "this server, or most clients" in line.facts["reason"]
    for digest in table_hashes(PARAMETERS, CLIENTS):
        assert digest.hex() in line.facts["tables"]


@pytest.mark.parametrize("is_signed", [False, True], ids=["profile 1", "profile 2"])
def test_a_client_restarted_with_other_tables_keeps_its_charge_until_the_fate(
    is_signed,
):
    """The refusal settles no charge: the ending does (R5.6-3)."""
    parameters = PARAMETERS
    if is_signed:
        parameters = with_noise(signing_parameters_for(CLIENTS, dimension=DIMENSION))
    store, uploads = LastingStore.make(), []

    class Dying(LyingConnection):
        async def call(self, request):
            if isinstance(request, UploadChunk):
                raise asyncio.CancelledError
            return await super().call(request)

    class Counting(LyingConnection):
        async def call(self, request):
            if isinstance(request, UploadChunk):
                uploads.append(request)
            return await super().call(request)

    async def main(clock):
        deployment = Deployment(clock, parameters, CLIENTS, max_attempts=1)

        def runner(connection):
            return client_over(
                identity_of(ODD),
                connection(deployment._link(ODD), {}),
                store,
                make_input=deployment._input(ODD),
                enrolment=deployment._enrolment(ODD),
                clock=clock,
            )

        serving = asyncio.ensure_future(deployment.serve())
        others = [
            asyncio.ensure_future(deployment.take_part(number))
            for number in range(CLIENTS)
            if number != ODD
        ]
        with pytest.raises(asyncio.CancelledError):
            await runner(Dying).run_session(TASK_ID)
        with pytest.raises(RemoteProtocolError) as caught:
            await asyncio.ensure_future(oddly(runner(Counting).run_session(TASK_ID)))
        assert caught.value.code is ErrorCode.VIEW_DIFFERS
        await asyncio.gather(*others)
        await serving
        return deployment

    deployment = manual_clock.run(main)
    assert not uploads
    (released,) = deployment.sums
    assert released.residues.tolist() == sum_without(ODD, parameters)
    (charge,) = asyncio.run(store.read(ListCharges(TASK_ID)))
    assert charge.state is (ChargeState.KEPT if is_signed else ChargeState.VOID)


# --- the report, whichever process writes it ------------------------------------------


class Dying(LyingConnection):
    """Leads to a process that ends as soon as it has refused a client by some code."""

    def __init__(self, connection, code, kill, *, forges=False):
        super().__init__(connection, {})
        self.code, self.kill, self.forges = code, kill, forges

    async def call(self, request):
        if self.forges and isinstance(request, SignConsistency):
            request = replace(request, message=bytes(64))
        try:
            return await super().call(request)
        except RemoteProtocolError as error:
            if error.code is self.code:
                self.kill()
            raise


def run_with_deaths(kind, code, parameters, *, clients, **options):
    """Run a task of which each process ends that refuses the odd client."""
    killed = []

    async def main(clock):
        def tamper(number, connection):
            if number != ODD:
                return connection

            def kill():
                if kind is Deployment:
                    switch = deployment.server_process
                else:
                    service = connection._inner._service
                    (switch,) = (
                        switch
                        for aggregator, switch in deployment.alive.values()
                        if aggregator is service
                    )
                killed.append(switch)
                switch.kill()

            forges = code is ErrorCode.BAD_SIGNATURE
            return Dying(connection, code, kill, forges=forges)

        if kind is Replicas:
            options["server_store"] = inline_store(now=clock.date)
        deployment = kind(
            clock, parameters, clients, tamper=tamper, max_attempts=1, **options
        )
        serving = asyncio.ensure_future(deployment.serve())
        await asyncio.gather(
            *(
                asyncio.ensure_future(
                    oddly(deployment.take_part(number))
                    if number == ODD and code is ErrorCode.VIEW_DIFFERS
                    else deployment.take_part(number)
                )
                for number in range(clients)
            )
        )
        await serving
        return deployment

    deployment = manual_clock.run(main)
    assert killed
    (released,) = deployment.sums
    return released.receipt


EACH_WAY = pytest.mark.parametrize(
    ("kind", "seed"),
    [(Deployment, None), *((Replicas, str(seed)) for seed in range(3))],
    ids=["restarted", *(f"two replicas {seed}" for seed in range(3))],
)


def seeded(seed):
    return {} if seed is None else {"seed": seed}


@EACH_WAY
def test_a_client_rejected_for_its_view_is_known_after_a_restart(kind, seed):
    receipt = run_with_deaths(
        kind, ErrorCode.VIEW_DIFFERS, PARAMETERS, clients=CLIENTS, **seeded(seed)
    )
    (lost,) = (each for each in receipt.lost if each[0] == identity_of(ODD))
    assert lost[2] == DropReason.OTHER_VIEW.value


@EACH_WAY
def test_an_unconfirmed_client_is_known_after_a_restart(kind, seed):
    receipt = run_with_deaths(
        kind,
        ErrorCode.BAD_SIGNATURE,
        with_noise(signing_parameters_for(5, dimension=DIMENSION)),
        clients=5,
        **seeded(seed),
    )
    assert receipt.unconfirmed == (identity_of(ODD),)
    assert "may be wrong" in receipt.warning


async def test_over_tls_a_client_with_other_tables_is_rejected(tmp_path, monkeypatch):
    # Threads would not know which tables the client of their task has.
    inline = Workers(general=InlineExecutor())
    monkeypatch.setattr(Workers, "of_process", lambda: inline)
    certificates = TLSDeployment(tmp_path)
    parameters = with_noise(
        parameters_for(
            CLIENTS,
            dimension=DIMENSION,
            threshold=3,
            deadlines=RoundDeadlines(masked_input=5),
        )
    )
    aggregator, sums = Aggregator(inline_store(), UploadSpool(MemoryBlobs())), []

    async def payload(_):
        return b""

    async def on_sum(released):
        sums.append(released)

    running = asyncio.create_task(
        aggregator.run_task(
            TaskDefinition(task_id="t", parameters=parameters),
            next_payload=payload,
            on_sum=on_sum,
        )
    )
    await asyncio.sleep(0)
    aggregator_identity = certificates.server(name="aggregator")
    async with await GrpcServer.start(
        aggregator, Address("127.0.0.1", 0), identity=aggregator_identity
    ) as server:

        async def give(name):
            identity = certificates.client(name)
            async with (
                GrpcConnection(server.address, identity=identity) as connection,
                Client(
                    connection,
                    task="t",
                    privacy_limits=PrivacyLimits(max_epsilon=8.0, max_delta=1e-5),
                    attempts=1,
                ) as one,
            ):
                return await one.contribute(np.ones(DIMENSION))

        results = await asyncio.gather(
            *(
                asyncio.ensure_future(
                    oddly(give(name)) if name == "bob" else give(name)
                )
                for name in ("alice", "bob", "carol", "dave")
            ),
            return_exceptions=True,
        )
        await running  # the sum has been taken
        odd = results.pop(1)
        assert isinstance(odd, SecAggError)
        assert odd.code is ErrorCode.VIEW_DIFFERS
        assert "'bob'" in str(odd)
        assert [each.inputs for each in results] == [3, 3, 3]
    assert [name for name, _, _ in sums[0].receipt.lost] == ["bob"]


class Ended:
    """What a report asks of the progress of a session that is over."""

    excluded = ()
    upload_bytes = 0


# --- where a signature over the sets does not hold -----------------------------------


def test_an_invalid_signature_is_reported_and_does_not_end_the_session():
    clients = 5
    parameters = with_noise(signing_parameters_for(clients, dimension=DIMENSION))

    class Forging(LyingConnection):
        async def call(self, request):
            if isinstance(request, SignConsistency):
                request = replace(request, message=bytes(64))
            return await super().call(request)

    def tamper(number, connection):
        return Forging(connection, {}) if number == ODD else connection

    async def main(clock):
        deployment = Deployment(
            clock, parameters, clients, tamper=tamper, max_attempts=1
        )
        serving = asyncio.ensure_future(deployment.serve())
        endings = await asyncio.gather(*map(deployment.take_part, range(clients)))
        await serving
        return deployment, endings

    deployment, endings = manual_clock.run(main)
    assert endings[ODD].code is ErrorCode.BAD_SIGNATURE
    (released,) = deployment.sums
    assert released.survivors == clients
    receipt = released.receipt
    assert receipt.unconfirmed == (identity_of(ODD),)
    assert type(receipt).decode(receipt.encode()).unconfirmed == receipt.unconfirmed
    written = report_of(receipt, Ended(), opened=0.0, ended=1.0)
    assert written["unconfirmed"] == [identity_of(ODD)]
    assert "may be wrong" in written["warning"]
    sound = report_of(replace(receipt, unconfirmed=()), Ended(), opened=0.0, ended=1.0)
    assert sound["unconfirmed"] == []
    assert "warning" not in sound
