"""Disks that are full at any write, and disks that change unobserved.

What must hold: an exact sum or a typed error, never a wrong sum; no client sends two
different messages for the same round; and when the disk is well again, so is the task.
"""

import contextlib

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.client_state import LastingStore
from secagg_testing.cohorts import parameters_for
from secagg_testing.crash_points import CrashSwitch
from secagg_testing.damage import damaged_copies
from secagg_testing.deployment import RESTART_SECONDS, Deployment
from secagg_testing.inline_store import answer_of, inline_store

from secagg.client.contribution import SessionOutcome
from secagg.errors import ErrorCode, SecAggError, ServiceError
from secagg.runtime.workers import Workers
from secagg.server.aggregator import Aggregator
from secagg.storage.blobs import FileBlobs
from secagg.storage.change import Side
from secagg.storage.queries import ListSessions
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite.executor import InlineExecutor
from tests.cases import recorded_points

CLIENTS = 4
VICTIM = 2
STORE_WRITES = frozenset({"create", "append", "deadline", "reseal", "end"})
SPOOL_WRITES = frozenset({"chunk", "commit", "put payload", "put sum", "drop uploads"})

TRY_AGAIN = frozenset({ErrorCode.STORAGE_FAILED, ErrorCode.DEADLINE})


class FullDisk(CrashSwitch):
    """Refuses some writes of a process that otherwise lives on.

    With `loses_answers` they are refused when they are on the disk already: the
    writer cannot know.
    """

    def __init__(self, at=None, *, times=1, loses_answers=False):
        super().__init__()
        self._loses_answers = loses_answers
        self._refused = range(0) if at is None else range(at, at + times)
        self.writes = []

    @contextlib.contextmanager
    def around(self, what):
        if what in STORE_WRITES | SPOOL_WRITES:
            self.writes.append(what)
            if len(self.writes) - 1 in self._refused:
                if self._loses_answers:
                    yield
                raise ServiceError(
                    "the disk is full",
                    code=ErrorCode.STORAGE_FAILED,
                    retry_after_seconds=1.0,
                )
        yield


class Persevering(Deployment):
    """Starts every process again that stopped because of its disk."""

    is_over = False

    async def serve(self):
        while True:
            self.server_error = None
            await super().serve()
            if not is_storage_failure(self.server_error):
                self.is_over = True
                return
            await self.clock.sleep_until(self.clock.now() + RESTART_SECONDS)

    async def take_part(self, number):
        for _ in range(40):
            ending = await super().take_part(number)
            if not isinstance(ending, SecAggError) or ending.code not in TRY_AGAIN:
                return ending
            if self.is_over and ending.code is ErrorCode.DEADLINE:
                return ending  # no process of the aggregator will start any more
            await self.clock.sleep_until(self.clock.now() + RESTART_SECONDS)
        return ending


def is_storage_failure(ending):
    return isinstance(ending, SecAggError) and ending.code is ErrorCode.STORAGE_FAILED


def run(kind=Deployment, **options):
    async def main(clock):
        deployment = kind(
            clock,
            parameters_for(CLIENTS, dimension=7, threshold=3),
            CLIENTS,
            payload=b"a query",
            ends_at=1e5,
            **options,
        )
        return deployment, await deployment.run()

    return manual_clock.run(main)


def assert_exact(deployment):
    """Every released sum adds up exactly the inputs that its receipt counts."""
    for released in deployment.sums:
        counted = {n for n in range(CLIENTS) if released.residues[n] == (1 << 20) - 1}
        assert len(counted) == released.survivors
        np.testing.assert_array_equal(
            released.residues, deployment.expected_sum(counted)
        )
    assert deployment.contradictions() == {}


def writes_of(**which):
    disk = FullDisk()
    run(**{name: wrap(disk) for name, wrap in which.items()})
    return disk.writes


SERVER_WRITES = recorded_points("writes-of-a-server")
CLIENT_WRITES = recorded_points("writes-of-a-client")


def test_the_writes_are_those_of_a_session(golden):
    server = writes_of(server_crash=lambda disk: disk)
    client = writes_of(client_crash=lambda disk: {VICTIM: disk})
    golden("points/writes-of-a-server.txt", "\n".join(server) + "\n")
    golden("points/writes-of-a-client.txt", "\n".join(client) + "\n")


def test_every_kind_of_write_is_refused_once():
    assert set(SERVER_WRITES) == {"create", "append", "end"} | SPOOL_WRITES
    assert set(CLIENT_WRITES) == {"create", "append", "reseal", "end"}
    assert CLIENT_WRITES.count("append") == 3  # roster, shares, input


@pytest.mark.parametrize("loses_answers", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("times", [1, 14], ids=["one write", "many writes"])
@pytest.mark.parametrize("at", range(len(SERVER_WRITES)))
def test_a_full_disk_of_the_server_delays_but_does_not_change_the_sum(
    at, times, loses_answers
):
    disk = FullDisk(at, times=times, loses_answers=loses_answers)
    deployment, endings = run(Persevering, server_crash=disk)
    assert len(deployment.sums) == 1
    assert_exact(deployment)
    for ending in endings.values():
        assert isinstance(ending, SessionOutcome | SecAggError)
    if times == 1:
        assert deployment.sums[0].survivors == CLIENTS


@pytest.mark.parametrize("loses_answers", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("times", [1, 14], ids=["one write", "many writes"])
@pytest.mark.parametrize("at", range(len(CLIENT_WRITES)))
def test_a_full_disk_of_a_client_costs_at_most_its_own_contribution(
    at, times, loses_answers
):
    disk = FullDisk(at, times=times, loses_answers=loses_answers)
    deployment, endings = run(Persevering, client_crash={VICTIM: disk})
    assert len(deployment.sums) == 1
    assert_exact(deployment)
    others = [endings[n] for n in range(CLIENTS) if n != VICTIM]
    assert all(isinstance(ending, SessionOutcome) for ending in others)
    assert (
        answer_of(deployment.client_stores[VICTIM].read(ListSessions(role=Side.CLIENT)))
        == ()
    )


# --- disks that change --------------------------------------------------------------


def truncated(path):
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path):
    path.write_bytes(b"")


def bit_flipped(path):
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def out_of_range(path):
    path.write_bytes(b"\xff" * path.stat().st_size)


def removed(path):
    path.unlink()


DAMAGES = [truncated, emptied, bit_flipped, out_of_range, removed]


def crash_then(at, directory, pattern, damage, **options):
    """Kill the aggregator at a crash point, and change a file before it is back."""
    switch = CrashSwitch(at)
    spool = UploadSpool(FileBlobs(directory), min_free_bytes=0)
    hit = []

    def strike():
        path = min(directory.glob(pattern))
        damage(path)
        hit.append(path)

    switch.on_death(strike)
    deployment, endings = run(server_crash=switch, spool=spool, **options)
    assert hit
    return deployment, endings


def test_the_points_are_those_of_a_session(golden):
    switch = CrashSwitch()
    run(server_crash=switch)
    golden("points/server-with-a-spool.txt", "\n".join(switch.points) + "\n")


POINTS = recorded_points("server-with-a-spool")
SUMMING = POINTS.index("before put sum")
SUMMED = POINTS.index("before end")


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_upload_changed_during_a_crash_ends_the_session_and_never_the_task(
    damage, tmp_path
):
    deployment, endings = crash_then(SUMMING, tmp_path, "*/uploads/*.whole", damage)
    assert len(deployment.sums) == 1
    assert_exact(deployment)
    # The damaged session was aborted; the sum is that of the next attempt.
    assert deployment.sums[0].descriptor.session_number == 2
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_sum_damaged_during_a_crash_is_never_delivered(damage, tmp_path):
    deployment, _ = crash_then(SUMMED, tmp_path, "*/sum", damage)
    # It was handed out once, before the crash, or not at all.
    assert_exact(deployment)
    assert deployment.server_error.code is ErrorCode.STORAGE_FAILED


def half_finished_states(tmp_path):
    """Return the database files of an aggregator and a client in mid-session."""
    at = POINTS.index("before put sum")
    switch = CrashSwitch(at)
    paths = {"server": tmp_path / "server.db", "client": tmp_path / "client.db"}
    server, client = inline_store(paths["server"]), LastingStore.make(paths["client"])
    files = {"server": server.engine.transactions.file, "client": client.file}
    copies = {}

    def take_copies():
        for role, path in paths.items():
            files[role].erase()  # folds the log into the file
            copies[role] = path.read_bytes()

    switch.on_death(take_copies)
    run(
        server_crash=switch,
        server_store=server,
        client_stores={VICTIM: client},
    )
    answer_of(server.close())
    client.end()
    return copies


def test_a_damaged_store_is_reported_as_a_storage_error_only(tmp_path):
    states = half_finished_states(tmp_path)
    outcomes = set()
    for role, data in states.items():
        for number, changed in enumerate(damaged_copies(data, 60)):
            path = tmp_path / f"{role} {number}.db"
            path.write_bytes(changed)
            outcomes.add(opened(role, path))
    assert ErrorCode.STATE_DAMAGED in outcomes  # most damage is noticed as such,
    # none is taken for a state, and none is blamed on a peer
    assert outcomes <= {ErrorCode.STATE_DAMAGED, ErrorCode.STORAGE_FAILED, "read"}


def opened(role, path):
    inline = InlineExecutor()
    workers = Workers(general=inline)

    async def server(clock, store):
        spool = UploadSpool(FileBlobs(path.with_suffix(".spool")), min_free_bytes=0)
        await Aggregator(store, spool, clock=clock, workers=workers).recover()

    async def client(clock, store):
        deployment = Deployment(
            clock,
            parameters_for(CLIENTS, dimension=7, threshold=3),
            CLIENTS,
            client_stores={VICTIM: store},
        )
        runner = deployment._client(VICTIM, CrashSwitch())
        # No server listens: what can be read continues until it has to call.
        with pytest.raises(SecAggError) as caught:
            await runner.run_session("a-task")
        if isinstance(caught.value, ServiceError):
            raise caught.value
        assert caught.value.code is ErrorCode.DEADLINE

    with contextlib.ExitStack() as stack:
        try:
            if role == "server":
                store, start = inline_store(path), server
                stack.callback(lambda: answer_of(store.close()))
            else:
                store, start = LastingStore.make(path), client
                stack.callback(store.end)
            manual_clock.run(lambda clock: start(clock, store))
        except ServiceError as error:
            return error.code
    return "read"
