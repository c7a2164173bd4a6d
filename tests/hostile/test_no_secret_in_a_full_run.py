"""A39: a whole deployment at DEBUG, with failures in every part, shows no secret.

In every profile.

Real clients and a real aggregator over mutual TLS, journals in SQLite, uploads on disk,
noise from the real sampler; asyncio in debug mode describes every callback.  Everything
that an attacker could read afterwards is gathered: log records with tracebacks,
standard output and error, errors and their next steps, representations of whatever the
programs hand to the application, receipts.  Then every secret that ever existed is
rebuilt from the journals and searched for.
"""

import asyncio
import base64
import contextlib
import dataclasses
import logging
import os
import time
import traceback
from unittest import mock

import numpy as np
import pytest
from secagg_testing.client_state import LastingStore, client_over
from secagg_testing.crash_points import CrashingStore, CrashSwitch
from secagg_testing.inline_store import answer_of, inline_store
from secagg_testing.lying_connection import LyingConnection
from secagg_testing.manual_clock import ManualClock

from secagg.client.contribution import SessionOutcome
from secagg.client.enrolment import EnrolledClient
from secagg.client.grpc_connection import GrpcConnection
from secagg.client.session_driver import SessionSettings
from secagg.crypto.key_derivation import noise_seed
from secagg.crypto.shamir import SHARE_SIZE
from secagg.distributed_dp import NoisyTask, plan, read_noise_terms
from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.pki.certificate_authority import CertificateAuthority
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.client.handlers import _own_secrets
from secagg.protocol.client.states import ReadyForInput
from secagg.protocol.messages import Round
from secagg.protocol.packing import input_masks
from secagg.protocol.parameters import Graph
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.profiles import Profile
from secagg.runtime import log_events as telemetry
from secagg.runtime.workers import Workers
from secagg.server.aggregator import Aggregator
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.server.task.definition import TaskDefinition
from secagg.server.task.setup import Cohort
from secagg.simulation.driver import (
    TRUST_DOMAIN,
    identity_in_simulation,
    published_in_simulation,
)
from secagg.storage.blobs import FileBlobs
from secagg.storage.change import Change, Record
from secagg.storage.journal import decode_client_event, decode_offer
from secagg.storage.spool import UploadSpool
from secagg.transport.address import Address
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity
from secagg.wire.calls import (
    AdvertiseKeys,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    RevealShares,
    ShareKeys,
    UploadChunk,
)

CLIENTS, DIM = 4, 24
LOST = 3  # fails before its upload
UPLOADING = Round.MASKED_INPUT_COLLECTION
POLICY = ClientPolicy(
    profiles=frozenset(Profile),
    graphs=frozenset(Graph),
    min_graph_bits=1,
    min_survivors=3,
    min_clients=3,
)


class RecordingHandler(logging.Handler):
    """Keeps every record as a person would read it, traceback included."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))
        self.text = []

    def emit(self, record):
        self.text += [self.format(record), repr(record.args), repr(record.exc_info)]

    def exception(self, error):
        self.text += traceback.format_exception(error)
        self.text += [repr(error), str(error), getattr(error, "next_step", "")]


class Recording:
    """Remembers what was stored, because the end of a session scrubs it."""

    stored = ()
    failures = 0

    async def commit(self, change):
        if not isinstance(change, Change):
            return await super().commit(change)
        if change.create is not None:
            self.stored += (change.create.header,)
        if self.failures and change.records:
            self.failures -= 1
            with self._sqlite._mapping_failures():
                raise OSError("database or disk is full")
        self.stored += tuple(change.records)
        return await super().commit(change)


class RecordingStore(Recording, CrashingStore):
    """Of the server."""

    def __init__(self, path):
        self.file = inline_store(path)
        super().__init__(self.file, CrashSwitch())

    @property
    def _sqlite(self):
        return self.file.engine.transactions.file


class RecordingClientStore(Recording, LastingStore):
    """Of a client."""

    @property
    def _sqlite(self):
        return self._transactions.file


class ClumsyService:
    """An aggregator with a defect: it raises, with a client's message in its hands."""

    def __init__(self, aggregator):
        self._aggregator = aggregator
        self.defects = {ShareKeys: 1, RevealShares: 1, UploadChunk: 1}
        self.watch = aggregator.watch
        self.record_refusal = aggregator.record_refusal

    async def answer(self, identity, request):
        if identity == "c2" and self.defects.get(type(request)):
            self.defects[type(request)] -= 1
            raise RuntimeError(f"a defect in {type(request).__name__}")
        return await self._aggregator.answer(identity, request)


class CorruptingLink(LyingConnection):
    """Damages the first chunk that passes."""

    def __init__(self, inner):
        super().__init__(inner, {})
        self.is_spent = False

    async def call(self, request):
        if isinstance(request, UploadChunk) and not self.is_spent:
            self.is_spent = True
            data = bytes([request.data[0] ^ 1]) + request.data[1:]
            request = dataclasses.replace(request, data=data)
        return await super().call(request)


@pytest.fixture(name="identities", scope="module")
def _identities(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pki")
    authority = CertificateAuthority.create(TRUST_DOMAIN)
    authority.issued().write(directory, "ca")
    authority.issue_server("aggregator", ["127.0.0.1"]).write(directory, "server")
    for number in range(CLIENTS):
        authority.issue_client(f"c{number}").write(directory, f"c{number}")
    roles = {"server": Role.SERVER} | {f"c{n}": Role.CLIENT for n in range(CLIENTS)}
    return directory, {
        stem: TLSIdentity.load(
            certificate=directory / f"{stem}.pem",
            private_key=directory / f"{stem}.key",
            authority=directory / "ca.pem",
            role=role,
        )
        for stem, role in roles.items()
    }


def noised_task(profile):
    made = plan(
        clients=CLIENTS,
        dimension=DIM,
        l2_clip=1.0,
        epsilon=8.0,
        delta=1e-4,
        bits=20,
        mechanism="skellam",
        min_survivors=3,
    )
    return NoisyTask.from_plan(
        made,
        Cohort(
            profile=profile,
            enrolment=published_in_simulation() if profile.has_identities else None,
            degree=3 if profile is Profile.MALICIOUS_SERVER_SPARSE else 0,
            graph_bits=1,
            min_clients=CLIENTS,
            max_clients=CLIENTS,
            min_survivors=3,
        ).parameters(dimension=1, modulus=4),
    )


def vector_of(number):
    vector = np.cos(np.arange(DIM) + 100.0 * number)
    return vector / np.linalg.norm(vector)


class Run:
    """One deployment, and everything that it showed."""

    def __init__(self, directory, identities, profile):
        self.directory, self.identities = directory, identities
        self.profile = profile
        self.heard, self.clock = RecordingHandler(), ManualClock(date=time.time())
        self.task = noised_task(profile)
        self.stores = {
            n: RecordingClientStore.make(directory / f"client {n}.db")
            for n in range(CLIENTS)
        }
        self.encoded, self.endings, self.sums = {}, {}, []

    def go(self):
        root = logging.getLogger()
        before = root.level
        root.addHandler(self.heard)
        root.setLevel(logging.DEBUG)
        try:
            asyncio.run(self.main(), debug=True)
        finally:
            root.setLevel(before)
            root.removeHandler(self.heard)
            for store in self.stores.values():
                store.end()

    async def main(self):
        self.is_offered, self.others_are_in = asyncio.Event(), asyncio.Event()
        asyncio.get_running_loop().slow_callback_duration = 0.0
        store = RecordingStore(self.directory / "server.db")
        workers = Workers()
        aggregator = Aggregator(
            store,
            UploadSpool(FileBlobs(self.directory / "spool"), min_free_bytes=0),
            clock=self.clock,
            workers=workers,
        )
        watching = asyncio.create_task(self.watch(aggregator))
        task = TaskDefinition(task_id="sum", parameters=self.task.parameters)
        running = asyncio.create_task(
            aggregator.run_task(
                task, next_payload=self.next_payload, on_sum=self.on_sum
            )
        )
        async with await GrpcServer.start(
            ClumsyService(aggregator),
            Address("127.0.0.1", 0),
            identity=self.identities["server"],
        ) as server:
            self.server_store = store
            await self.is_offered.wait()  # probes need a session
            await asyncio.gather(
                *(self.take_part(n, server.address) for n in range(CLIENTS))
            )
            await running
        await aggregator.close()
        await watching
        await store.file.close()

    async def next_payload(self, _count):
        return b"a public model"

    async def on_sum(self, released):
        self.sums.append(released)

    async def watch(self, aggregator):
        async for progress in aggregator.progress():
            self.heard.text.append(repr(progress))
            self.is_offered.set()
            if progress.answered == 3 and progress.round is UPLOADING:
                self.others_are_in.set()

    async def take_part(self, number, address):
        async with GrpcConnection(
            address, identity=self.identities[f"c{number}"]
        ) as connection:
            await self.probe(connection)
            for _ in range(20):  # a bound that is never reached
                link = CorruptingLink(connection) if number == 0 else connection
                runner = client_over(
                    connection.identity,
                    link,
                    self.stores[number],
                    policy=POLICY,
                    make_input=lambda *args: self.make_input(number, *args),
                    settings=SessionSettings(watch=number % 2 == 0),
                    enrolment=self.enrolled(number),
                    on_progress=lambda p: self.heard.text.append(repr(p)),
                )
                try:
                    ending = await runner.run_session("sum")
                except (SecAggError, RuntimeError) as error:
                    self.heard.exception(error)
                    if number == LOST and isinstance(error, RuntimeError):
                        await self.others_are_in.wait()
                        self.clock.advance(self.task.parameters.deadlines.masked_input)
                        break
                    self.stores[number].failures = 0
                else:
                    self.endings[number] = ending
                    self.heard.text += [repr(ending), repr(runner)]
                    break

    def enrolled(self, number):
        if not self.profile.has_identities:
            return None
        return EnrolledClient(identity_in_simulation(f"c{number}", number + 1))

    async def probe(self, connection):
        """Calls that are refused, one of each kind."""
        offered = await connection.call(GetOffer("sum", after_session=0))
        for call in (
            connection.call(AdvertiseKeys(offered.session_id, b"\x00" * 200)),
            connection.call(GetOffer("another task", after_session=0)),
            connection.call(AdvertiseKeys(bytes(32), b"garbage")),
            connection.call(GetUploadStatus(b"short")),
            connection.call(GetUpdate(bytes(32), after=None)),
        ):
            try:
                await call
            except SecAggError as error:
                self.heard.exception(error)

    def make_input(self, number, descriptor, payload, secrets):
        assert payload == b"a public model"
        if number == LOST:
            raise RuntimeError("the application has a defect")
        if number == 1 and number not in self.encoded:
            self.encoded[number] = None
            bad = vector_of(number)
            bad[5] = np.nan
            return self.encode(bad, descriptor, secrets)
        if number == 1 and self.encoded[number] is None:
            self.stores[number].failures = 1  # when the input is to be bound
        self.encoded[number] = self.encode(vector_of(number), descriptor, secrets)
        return self.encoded[number]

    def encode(self, vector, descriptor, secrets):
        offered = NoisyTask.from_parameters(descriptor.parameters)
        return offered.encode(
            vector, session_id=descriptor.session_id, secrets=secrets
        ).vector

    # --- what must not be seen --------------------------------------------------------

    def secrets(self):
        found = {}
        for number in range(CLIENTS):
            found |= {
                f"{name} of client {number}": secret
                for name, secret in self.secrets_of(number)
            }
            if self.profile.has_identities:
                key = self.enrolled(number).identity.key
                found[f"identity key of client {number}"] = key.seed().reveal()
        for path in sorted(self.identities_directory.glob("*.key")):
            lines = path.read_text().splitlines()[1:-1]
            found[f"private key {path.stem}"] = base64.b64decode("".join(lines))[-32:]
        return found

    def secrets_of(self, number):
        header, *records = self.stores[number].stored
        own = self.enrolled(number)
        files = None if own is None else own.identity
        offered = decode_offer(header).resumed(files, None)
        yield "seed", offered.seed.reveal()
        state = client_machine.start(read_noise_terms)
        for event in (offered, *map(decode_client_event, records)):
            state = client_machine.step(state, event, policy=POLICY).state
            if isinstance(state, client.Advertised):
                for name, secret in zip(
                    ("encryption key", "masking key", "self-mask seed"),
                    _own_secrets(state.facts, state.seed),
                    strict=True,
                ):
                    revealed = getattr(secret, "private_bytes", secret).reveal()
                    yield name, revealed
            if isinstance(state, client.Shared):
                for peer, secret in state.channels.items():
                    yield f"channel to {peer}", secret.reveal()
            if isinstance(state, ReadyForInput):
                delivered = state.delivered
                suite = state.facts.parameters.suite
                seed = noise_seed(
                    offered.seed, context=delivered.ctx2, component=0, suite=suite
                )
                yield "noise seed", seed.reveal()
                for place, mask in enumerate(input_masks(delivered.job)):
                    yield f"mask {place}", mask.key.reveal()
                for dealer, pair in zip(
                    delivered.held.dealers, delivered.held.pairs, strict=True
                ):
                    yield f"key share from {dealer}", pair[:SHARE_SIZE]
                    yield f"seed share from {dealer}", pair[SHARE_SIZE:]
        yield "vector", vector_of(number).tobytes()
        if self.encoded.get(number) is not None:
            yield "encoded vector", self.encoded[number].residues.tobytes()


def renderings(secret):
    """Return the ways in which the first bytes of a secret may end up in text."""
    head = secret[:9]  # nine bytes are twelve characters of base64
    return {
        head.hex(),
        head.hex().upper(),
        head.hex(" "),
        base64.b64encode(head).decode(),
        base64.urlsafe_b64encode(head).decode(),
        repr(head)[2:-1],
        str(list(head))[1:-1],
        str(int.from_bytes(secret[:32], "big")),
        str(int.from_bytes(secret[:32], "little")),
    }


def assert_clean(text, secrets):
    for name, secret in secrets.items():
        for rendering in renderings(secret):
            assert rendering not in text, name


@pytest.fixture(name="run", scope="module", params=Profile, ids=lambda p: p.label)
def _run(request, identities, tmp_path_factory):
    directory, loaded = identities
    run = Run(tmp_path_factory.mktemp("state"), loaded, request.param)
    run.identities_directory = directory
    with (
        printed_to(directory / f"printed {request.param}") as path,
        # Every refusal has its line.
        mock.patch("secagg.server.call_guards._LINE_SECONDS", 0.0),
    ):
        os.write(2, b"heard on descriptor 2")
        run.go()
    run.printed = path.read_text()
    return run


@contextlib.contextmanager
def printed_to(path):
    """Send whatever the process writes to its standard streams to a file."""
    kept = [os.dup(1), os.dup(2)]
    with path.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield path
    finally:
        for descriptor, stream in enumerate(kept, 1):
            os.dup2(stream, descriptor)
            os.close(stream)


def test_the_recorded_run_released_a_sum(run):
    assert len(run.sums) == 1
    assert run.sums[0].survivors == CLIENTS - 1
    assert set(run.endings) == {0, 1, 2}
    assert all(isinstance(e, SessionOutcome) for e in run.endings.values())


def test_every_component_failed_and_logged_it(run):
    text = "\n".join(run.heard.text)
    for words in (
        "a defect in ShareKeys",
        "a defect in RevealShares",
        "the application has a defect",
        "NaN",
        "disk is full",
        telemetry.MESSAGE_REFUSED,
        ErrorCode.UPLOAD_CORRUPT.name,
        "secagg.",
        "asyncio",
    ):
        assert words in text, words


def test_no_output_contains_a_secret(run):
    secrets = run.secrets()
    kinds = {name.split(" of ")[0].split(" from ")[0] for name in secrets}
    assert {"seed", "masking key", "noise seed", "key share", "encoded vector"} <= kinds
    assert ("identity key" in kinds) is run.profile.has_identities
    assert len(secrets) > 20 * CLIENTS
    text = "\n".join(run.heard.text)
    receipts = [each.receipt for each in run.sums]
    assert receipts
    text += "\n".join(repr(receipt) + str(receipt.to_dict()) for receipt in receipts)
    text += repr(run.sums) + repr(run.stores) + repr(run.server_store)
    assert_clean(text, secrets)


def test_standard_output_and_error_hold_no_secret(run):
    # Below Python too: gRPC's core and SQLite write to the descriptors themselves.
    assert "heard on descriptor 2" in run.printed
    assert_clean(run.printed, run.secrets())


@pytest.mark.parametrize("name", ["seed of client 0", "noise seed of client 2"])
def test_the_search_would_find_a_secret(run, name):
    secrets = run.secrets()
    with pytest.raises(AssertionError, match=name):
        assert_clean(f"debug: {secrets[name].hex()}", secrets)


def test_an_error_of_the_storage_names_the_file_and_no_content(tmp_path):
    store = RecordingStore(tmp_path / "x.db")
    change = Change(key="no session", records=(Record(1, None, b"a secret record"),))
    with pytest.raises(ServiceError) as caught:
        answer_of(store.commit(change))
    assert "secret" not in repr(caught.value) + str(caught.value) + repr(change)
    answer_of(store.file.close())
