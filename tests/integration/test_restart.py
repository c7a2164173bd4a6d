"""What a restarted aggregator finds, on real files."""

import asyncio
import base64
import logging

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.client_state import LastingStore
from secagg_testing.cohorts import parameters_for
from secagg_testing.crash_points import CrashingStore, CrashSwitch
from secagg_testing.deployment import TASK_ID, Deployment
from secagg_testing.inline_store import answer_of, inline_store
from secagg_testing.lossy_connection import Fault

from secagg.cli.output import JSONLines
from secagg.client.contribution import SessionOutcome
from secagg.client.session_driver import SessionSettings
from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.protocol.events import Received
from secagg.protocol.messages import Aborted, Bundles, Released, Round, Shares
from secagg.runtime.workers import Workers
from secagg.server.aggregator import Aggregator
from secagg.server.rpc.limits import AggregatorLimits
from secagg.server.task.definition import TaskDefinition
from secagg.simulation import identity_of
from secagg.storage.blobs import FileBlobs
from secagg.storage.change import Change, NewSession, Side
from secagg.storage.journal import decode_offer, decode_server_event
from secagg.storage.queries import ListSessions
from secagg.storage.rows import SessionState
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.wire.calls import (
    AdvertiseKeys,
    Blob,
    FetchChunk,
    GetOffer,
    GetUpdate,
    RevealShares,
    WatchSession,
)

PARAMETERS = parameters_for(4, dimension=9, threshold=3)
QUIET = 2.0


@pytest.fixture
def disk(tmp_path):
    store = inline_store(tmp_path / "state.db")
    yield store, UploadSpool(FileBlobs(tmp_path / "spool"), min_free_bytes=0)
    answer_of(store.close())


def run(disk, **options):
    store, spool = disk

    async def main(clock):
        deployment = Deployment(
            clock, PARAMETERS, 4, server_store=store, spool=spool, **options
        )
        return deployment, await deployment.run()

    return manual_clock.run(main)


def aggregator_on(disk, clock, **limits):
    inline = InlineExecutor()
    workers = Workers(general=inline)
    return Aggregator(
        *disk,
        clock=clock,
        workers=workers,
        limits=AggregatorLimits(**limits),
    )


def test_a_task_runs_on_files(disk):
    deployment, endings = run(disk, payload=b"query", sessions=2)
    for released in deployment.sums:
        np.testing.assert_array_equal(
            released.residues, deployment.expected_sum({0, 1, 2, 3})
        )
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())


def test_a_task_on_files_survives_crashes(tmp_path):
    switch = CrashSwitch()
    for at in range(0, 60, 7):
        home = tmp_path / str(at)
        home.mkdir()
        store = inline_store(home / "state.db")
        switch = CrashSwitch(at)
        deployment, _ = run(
            (store, UploadSpool(FileBlobs(home / "spool"), min_free_bytes=0)),
            server_crash=switch,
        )
        np.testing.assert_array_equal(
            deployment.sums[0].residues, deployment.expected_sum({0, 1, 2, 3})
        )
        assert deployment.contradictions() == {}
        answer_of(store.close())


def test_the_outcome_of_a_session_is_served_after_a_restart(disk):
    deployment, _ = run(disk)
    descriptor = deployment.sums[0].descriptor
    session_id = descriptor.session_id

    async def main(clock):
        aggregator = aggregator_on(disk, clock)
        await aggregator.recover()
        member = identity_of(1)
        update = await aggregator.answer(
            member, GetUpdate(session_id, after=Round.UNMASKING)
        )
        assert update.kind is Released
        streamed = [
            u
            async for u in aggregator.watch(
                member, WatchSession(session_id, after=Round.UNMASKING)
            )
        ]
        assert streamed == [update]
        with pytest.raises(RemoteProtocolError) as caught:
            await aggregator.answer(member, GetUpdate(session_id, after=Round.FINISHED))
        assert caught.value.code is ErrorCode.BAD_ENCODING
        chunk = await aggregator.answer(
            member, FetchChunk(session_id, blob=Blob.SUM, offset=0, max_bytes=1 << 20)
        )
        assert chunk.total_size == len(chunk.data) == update.open().size
        stranger = await aggregator.answer(
            "stranger", GetUpdate(session_id, after=None)
        )
        assert stranger.kind is Aborted
        for blob in Blob:
            with pytest.raises(RemoteProtocolError):
                await aggregator.answer(
                    "stranger", FetchChunk(session_id, blob=blob, offset=0, max_bytes=1)
                )
        with pytest.raises(RemoteProtocolError) as caught:
            await aggregator.answer(member, AdvertiseKeys(session_id, b""))
        assert caught.value.code is ErrorCode.SESSION_OVER

    manual_clock.run(main)


def seconds_of_settling(disk, *, back=()):
    """Let another process settle; some clients come back and ask for more."""

    async def main(clock):
        aggregator = aggregator_on(disk, clock, idle_timeout=QUIET)
        await aggregator.recover()
        started = clock.now()
        for name in map(identity_of, back):
            with pytest.raises(ServiceError):  # the task does not run here
                await aggregator.answer(name, GetOffer(TASK_ID, after_session=0))
        await aggregator.settle(at_most_seconds=15.0)
        return clock.now() - started

    return manual_clock.run(main)


def test_a_restarted_server_waits_for_no_client_that_knows_the_outcome(disk):
    run(disk)
    assert seconds_of_settling(disk) == pytest.approx(QUIET)


def test_a_restarted_server_waits_until_all_clients_know_the_outcome(disk):
    sums = []
    # All are cut off when there is a sum: the process that released it waits.
    run(
        disk,
        sums=sums,
        fault_of=lambda *_: Fault.LOSE_REQUEST if sums else Fault.NONE,
        settings=SessionSettings(watch=False, offer_seconds=60.0),
    )
    assert len(sums) == 1
    assert seconds_of_settling(disk, back=(0, 1, 2)) == pytest.approx(15.0)
    assert seconds_of_settling(disk) == pytest.approx(15.0)  # all over again
    assert seconds_of_settling(disk, back=range(4)) == pytest.approx(QUIET)
    assert seconds_of_settling(disk) == pytest.approx(QUIET)


def test_only_the_latest_sums_but_all_receipts_are_kept(disk):
    run(
        disk,
        sessions=4,
        limits=AggregatorLimits(kept_sums=2, keep_seconds=0.0, idle_timeout=30.0),
    )
    store, spool = disk
    assert len(spool.session_ids()) == 2
    assert (
        len(
            answer_of(
                store.read(ListSessions(role=Side.SERVER, state=SessionState.ENDED))
            )
        )
        == 4
    )


def test_files_of_sessions_that_never_began_are_removed(disk):
    _, spool = disk
    spool.put(bytes(32), "payload", b"written just before a crash")

    async def main(clock):
        await aggregator_on(disk, clock).recover()

    manual_clock.run(main)
    assert spool.session_ids() == ()


def test_a_session_under_a_changed_configuration_is_ended_not_resumed(disk):
    """The process dies in round 3; the operator changes the task and restarts."""
    store, _ = disk

    async def begin(clock):
        deployment = Deployment(clock, PARAMETERS, 4, server_store=store, spool=disk[1])
        serving = asyncio.ensure_future(deployment.serve())
        joining = asyncio.ensure_future(deployment.take_part(0))
        await clock.sleep_until(clock.now() + 5)
        for task in (serving, joining):
            task.cancel()
        await asyncio.wait({serving, joining})
        link = deployment.links[0]
        ((session_id, _),) = link.distinct_messages()
        return session_id

    session_id = manual_clock.run(begin)
    assert len(answer_of(store.read(ListSessions(role=Side.SERVER)))) == 1

    async def restart(clock):
        aggregator = aggregator_on(disk, clock)
        await aggregator.recover()
        changed = parameters_for(4, dimension=10, threshold=3)
        task = TaskDefinition(task_id=TASK_ID, parameters=changed)

        async def no_payload(_count):
            return None

        async def no_sum(_sum):
            raise AssertionError

        await aggregator.run_task(task, next_payload=no_payload, on_sum=no_sum)
        update = await aggregator.answer(
            identity_of(0), GetUpdate(session_id, after=None)
        )
        assert update.kind is Aborted
        assert update.open().code is ErrorCode.CANCELLED

    manual_clock.run(restart)
    assert answer_of(store.read(ListSessions(role=Side.SERVER))) == ()


def test_session_numbers_continue_after_a_restart(disk):
    first, _ = run(disk)
    numbers = [first.sums[0].descriptor.session_number]
    second, _ = run(disk, sessions=2, client_stores=first.client_stores)
    numbers += [released.descriptor.session_number for released in second.sums]
    assert numbers == [1, 2]


def test_a_damaged_journal_is_reported_as_a_storage_error(disk):
    nonsense = NewSession(
        role=Side.SERVER, task=TASK_ID, number=1, header=b"\x00\x01 nonsense"
    )
    answer_of(disk[0].commit(Change(key="server/" + "00" * 32, create=nonsense)))

    async def main(clock):
        with pytest.raises(ServiceError) as caught:
            await aggregator_on(disk, clock).recover()
        assert caught.value.code is ErrorCode.STORAGE_FAILED
        assert caught.value.next_step

    manual_clock.run(main)


class RecordingStore(CrashingStore):
    """Remembers every record, as an attacker with the disk would."""

    def __init__(self):
        super().__init__(inline_store(), CrashSwitch())
        self.headers = []
        self.records = []

    async def commit(self, command):
        if isinstance(command, Change):
            if command.create is not None:
                self.headers.append(command.create.header)
            self.records.extend(command.records)
        return await super().commit(command)


class RecordingClientStore(LastingStore):
    """The same of a client."""

    def __init__(self, *words):
        super().__init__(*words)
        self.headers = []

    async def commit(self, command):
        if isinstance(command, Change) and command.create is not None:
            self.headers.append(command.create.header)
        return await super().commit(command)


def test_a_full_run_at_debug_level_logs_no_secret(disk, caplog):
    """Seeds, shares and masked vectors reach no log line and no error."""
    caplog.set_level(logging.DEBUG)
    stores = {number: RecordingClientStore.make() for number in range(4)}
    server_store = RecordingStore()
    deployment, endings = run(
        (server_store, disk[1]),
        client_stores=stores,
        fault_of=lambda who, method, _n: (
            Fault.LOSE_REQUEST if (who, method) == (3, RevealShares) else Fault.NONE
        ),
    )
    secrets = [
        decode_offer(store.headers[0]).offered.seed.reveal()
        for store in stores.values()
    ]
    for record in server_store.records:
        event = decode_server_event(record)
        if isinstance(event, Received) and event.envelope.kind in (Bundles, Shares):
            secrets.append(event.envelope.data)
    assert len(secrets) == 4 + 4 + 3
    text = caplog.text + repr(endings) + repr(deployment.sums)
    text += "".join(map(JSONLines().format, caplog.records))
    assert "session_completed" in text
    assert "client_dropped" in text
    for secret in secrets:
        for start in range(0, len(secret), 16):
            piece = secret[start : start + 16]
            assert piece.hex() not in text
            assert repr(piece)[2:-1] not in text
            assert base64.b64encode(piece).decode()[:20] not in text
