"""Tasks as rows: added, paused, stopped, changed, and found again after a restart."""

import asyncio
import errno
import socket
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256

import asyncpg
import numpy as np
import pytest

from secagg.client.client import Client
from secagg.config import load_task_settings
from secagg.config.task import EnrolmentSection
from secagg.crypto.entropy import SystemEntropy
from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
)
from secagg.pki.credential_issuer import Issuer
from secagg.pki.key_files import key_text
from secagg.protocol.parameters import MAX_CLIENTS
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
)
from secagg.runtime import files
from secagg.server import supervisor as task_keeper
from secagg.server import supervisor as task_rows
from secagg.server.admin.channel import (
    MAX_MESSAGE_BYTES,
    NoAdminSocketError,
    call_admin,
    read_message,
    watch_admin,
    write_message,
)
from secagg.server.admin.operations import OPERATIONS
from secagg.server.admin.socket import AdminSocket
from secagg.server.admin.views import StoreViews, find_task
from secagg.server.server import OperatedServer, TaskOptions
from secagg.server.supervisor import TaskSupervisor
from secagg.server.task.setup import prepare_task
from secagg.server.task.stored import decode_settings, encode_settings, folder_of
from secagg.storage.change import Side
from secagg.storage.changes import PutTask
from secagg.storage.directories import STORE_FILE
from secagg.storage.open_store import reading
from secagg.storage.queries import ListSessions
from secagg.storage.rows import SessionState, TaskState
from secagg.testbed.connections import PausingConnection
from secagg.wire.calls import GetOffer, Wait

WAIVER = ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT)
PAIR = ClientPolicy(min_clients=2, min_survivors=2, require_noise=False)
FILE = f"""
[task]
id = "t"
steps = 2
attempts = 1
[vector]
dimension = 2
[cohort]
min_clients = 2
max_clients = 2
min_survivors = 2
[rounds]
masked_input = 1
[noise]
none = "{NO_NOISE_ACKNOWLEDGEMENT}"
"""


class World:
    """One aggregator that can be started again."""

    def __init__(self, directory, **options) -> None:
        self.directory = directory
        self.options = options
        self.said: list[str] = []
        self.finished: list[bool] = []
        self.socket = directory / "state" / "admin.sock"
        self.check_task = lambda _: None

    def settings(self, task="t", **changes):
        path = self.directory / "task.toml"
        path.write_text(FILE)
        loaded = load_task_settings(path)
        return replace(loaded, task=replace(loaded.task, id=task, **changes))

    @asynccontextmanager
    async def running(self, *proposed):
        self.keeper = TaskSupervisor(
            self.directory / "sums",
            self.directory / "state",
            own_task="t",
            notify=self.said.append,
            check_task=self.check_task,
        )
        async with OperatedServer(
            "127.0.0.1:0",
            insecure_for_tests=True,
            state_dir=self.directory / "state",
            on_aborted=self.keeper.write_aborted,
            **self.options,
        ) as self.server:
            async with AdminSocket(
                self.socket,
                self.server,
                self.keeper,
                state_dir=self.directory / "state",
                finish=self.finished.append,
            ) as self.admin:
                await self.keeper.start(self.server, proposed)
                yield self
            self.server.drain()
            await self.keeper.close()

    async def ask(self, verb, **arguments):
        return await call_admin(self.socket, verb, arguments)

    async def contribute_as(self, name, task, *, connection=None, value=(1, 2)):
        async with Client(
            connection or self.server.connection(name),
            task=task,
            privacy_limits=WAIVER,
            cohort=PAIR,
            state_dir=self.directory / name,
            wait_seconds=None,  # a busy machine is no failure
        ) as one:
            return await one.contribute(value)

    async def both_contribute(self, task):
        return await asyncio.gather(*(self.contribute_as(name, task) for name in "ab"))

    async def states(self):
        answer = await self.ask("task.list")
        return {each["task"]: each["state"] for each in answer["tasks"]}

    async def offline(self):
        state = self.directory / "state"
        with reading(state / STORE_FILE) as store:
            return await StoreViews(store, state).tasks()


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr("secagg.server.server.SETTLE_SECONDS", 0.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "marks"))
    return World(tmp_path)


async def refused(call, code, *words):
    with pytest.raises(ServiceError) as caught:
        await call
    assert caught.value.code is code
    assert all(word in str(caught.value) for word in words)
    return caught.value


async def assert_no_session_opens(world, task):
    """Ask for as long as a session would take to open, were one to."""
    for _ in range(20):
        assert (await world.ask("task.show", task=task))["running"] == []


async def until(world, task, **facts):
    """Ask until it is so."""
    shown = {}
    while not facts.items() <= shown.items():
        shown = await world.ask("task.show", task=task)
    return shown


async def test_a_task_survives_its_sums_a_pause_and_a_process_restart(world):
    async with world.running(world.settings()):
        added = await world.ask(
            "task.add",
            file={
                "settings": world.settings("a/b", steps=1).document(),
                "origin": "f",
            },
        )
        assert (added["task"], added["state"], added["version"]) == (
            "a/b",
            "running",
            1,
        )
        await world.both_contribute("t")
        await world.both_contribute("a/b")
        await until(world, "t", sums=1)
        await until(world, "a/b", sums=1)
        paused = await world.ask("task.pause", task="t", reason="lunch")
        assert (paused["state"], paused["version"]) == ("paused", 2)
        while (online := await world.ask("task.list"))["tasks"][1]["running"]:
            pass
    for folder in ("", "a%2Fb"):
        path = world.directory / "sums" / folder / "sum-1.npy"
        np.testing.assert_array_equal(np.load(path), [2, 4])
    assert await world.offline() == online["tasks"]
    async with world.running(world.settings()):
        await assert_no_session_opens(world, "t")
        assert await world.states() == {"a/b": "done", "t": "paused"}
        offered = await world.server.connection("a").call(GetOffer("t", 0))
        assert isinstance(offered, Wait)
        waiting = asyncio.ensure_future(world.both_contribute("t"))
        resumed = await world.ask("task.resume", task="t")
        assert (resumed["state"], resumed["reason"]) == ("running", "")
        await waiting
        await until(world, "t", sums=2)
        assert (await world.states())["t"] == "done"
        error = await refused(world.contribute_as("c", "a/b"), ErrorCode.TASK_OVER)
        assert "ended" in str(error)


async def test_a_paused_task_admits_no_client_to_an_open_cohort(world):
    roomy = world.settings()
    roomy = replace(roomy, cohort=replace(roomy.cohort, max_clients=3))

    async def is_offered():
        offered = await world.server.connection("c").call(GetOffer("t", 0))
        return not isinstance(offered, Wait)

    async with world.running(roomy):
        giving = [
            asyncio.ensure_future(world.contribute_as(name, "t")) for name in "ab"
        ]
        while [live.progress.joined for live in world.server.live()] != [2]:
            await world.states()
        assert await is_offered()
        # Enough have joined: the session continues, and the door is closed.
        await world.ask("task.pause", task="t", reason="lunch")
        assert [live.progress.joined for live in world.server.live()] == [2]
        assert not await is_offered()
        await world.ask("task.resume", task="t")
        assert await is_offered()
        for each in giving:
            each.cancel()
        await asyncio.wait(giving)


async def test_a_stopped_task_stays_stopped_for_clients_and_task_files(world):
    async with world.running(world.settings()):
        stopped = await world.ask("task.stop", task="t", reason="enough")
        assert (stopped["state"], stopped["reason"]) == ("stopped", "enough")
        await refused(world.contribute_as("a", "t"), ErrorCode.TASK_OVER)
        for verb in ("pause", "resume"):
            asked = world.ask(f"task.{verb}", task="t")
            await refused(asked, ErrorCode.TASK_OVER, "enough")
        asked = world.keeper.apply(world.settings(steps=9))
        await refused(asked, ErrorCode.TASK_OVER, "enough")
    async with world.running(world.settings()):
        assert await world.states() == {"t": "stopped"}
        await refused(world.contribute_as("a", "t"), ErrorCode.TASK_OVER)


async def test_a_session_with_a_complete_cohort_survives_stop_and_restart(world):
    uploading = asyncio.Event()

    async def begin(name):
        connection = PausingConnection(
            world.server.connection(name),
            session_number=1,
            before="upload",
            on_pause=uploading.set,
        )
        return await world.contribute_as(name, "t", connection=connection)

    async with world.running(world.settings()):
        giving = [asyncio.ensure_future(begin(name)) for name in "ab"]
        await uploading.wait()
        stopped = await world.ask("task.stop", task="t", reason="enough")
        assert [each["number"] for each in stopped["running"]] == [1]
    for each in giving:
        each.cancel()
    await asyncio.wait(giving)
    async with world.running(world.settings()):
        given, _ = await world.both_contribute("t")
        assert given.values.tolist() == [2, 4]
        await until(world, "t", sums=1)
        assert await world.states() == {"t": "stopped"}
        await refused(world.contribute_as("c", "t"), ErrorCode.TASK_OVER)


async def test_a_changed_task_file_has_no_effect_until_it_is_applied(world, caplog):
    async with world.running(world.settings()):
        pass
    longer = world.settings(steps=5)
    async with world.running(longer):
        assert "task_settings_differ" in caplog.text
        assert any("secagg tasks apply" in said for said in world.said)
        assert (await world.ask("task.show", task="t"))["sums_wanted"] == 2
        wrong = {
            "file": {"settings": longer.document(), "origin": "f"},
            "expect_version": 7,
        }
        await refused(
            world.ask("task.apply", **wrong), ErrorCode.BAD_SETTINGS, "version 1"
        )
        shown = await world.ask(
            "task.apply", file={"settings": longer.document(), "origin": "f"}
        )
        assert (shown["sums_wanted"], shown["version"]) == (5, 2)
        await world.both_contribute("t")


async def test_a_client_excluded_at_one_replica_is_excluded_at_all(world):
    async with world.running(world.settings(invited=("a", "b", "c"))):
        shown_out = []
        world.server.end_clients = lambda is_unwelcome: shown_out.extend(
            filter(is_unwelcome, "abcd")
        )
        store = world.server.storage.store
        row = await find_task(store, "t")
        settings = encode_settings(world.settings(invited=("a", "b")))
        elsewhere = replace(row.task, settings=settings)
        assert await store.commit(PutTask(elsewhere, expect_version=row.version))
        await world.keeper._follow_operators()
        assert shown_out == ["c"]


async def sessions_of(world):
    return await world.server.storage.store.read(
        ListSessions(role=Side.SERVER, task="t", state=SessionState.ALL)
    )


async def test_an_operator_command_precedes_a_session_being_prepared(
    world, monkeypatch
):
    """Its payload is being read while the operator stops the task."""
    is_reading, is_stopped = threading.Event(), threading.Event()

    def read(_):
        is_reading.set()
        is_stopped.wait(60)
        return b""

    monkeypatch.setattr(task_keeper, "_payload_of", lambda _: read)
    async with world.running(world.settings()):
        await asyncio.to_thread(is_reading.wait, 60)
        await world.ask("task.stop", task="t", reason="enough")
        is_stopped.set()
        await asyncio.wait({world.keeper._kept["t"].work})
        assert await sessions_of(world) == ()


async def test_a_task_that_may_not_run_here_is_refused_before_it_is_stored(
    world, monkeypatch
):
    """Its row would stop the task that was there, and keep the next start from it."""

    def refuse(_server, prepared, *_):
        name = prepared.parameters.profile.label  # such as R10.3-4
        raise LocalProtocolError(f"no {name}", code=ErrorCode.LOCAL_MISUSE)

    async with world.running(world.settings()):
        monkeypatch.setattr(OperatedServer, "_check_prepared", refuse)
        for verb, changed in (
            ("task.add", world.settings("u")),
            ("task.apply", world.settings(steps=9)),
        ):
            asked = world.ask(verb, file={"settings": changed.document(), "origin": ""})
            await refused(asked, ErrorCode.BAD_SETTINGS, "honest-curious-server")
        assert await world.states() == {"t": "running"}
        assert (await world.ask("task.show", task="t"))["version"] == 1
        assert not world.keeper._kept["t"].running.is_done
    async with world.running():  # and a stored task alone is paused
        assert await world.states() == {"t": "paused"}


async def test_a_change_made_during_the_start_of_a_server_is_applied(
    world, monkeypatch
):
    settle, settled = task_rows.settle_row, []

    async def settled_meanwhile(row, settings, store, **options):
        prepared = await settle(row, settings, store, **options)
        settled.append(prepared)
        if len(settled) == 2:  # its row is there, and the task is about to run
            row = await find_task(store, "t")
            stopped = replace(row.task, state=TaskState.STOPPED, reason="enough")
            assert await store.commit(PutTask(stopped, expect_version=row.version))
        return prepared

    monkeypatch.setattr(task_rows, "settle_row", settled_meanwhile)
    async with world.running(world.settings()):
        assert await world.states() == {"t": "stopped"}
        assert not world.server.may_open_sessions()
        await refused(world.contribute_as("a", "t"), ErrorCode.TASK_OVER)
        assert await sessions_of(world) == ()


@pytest.mark.parametrize("action", ["start", "apply", "resume"])
async def test_what_was_changed_elsewhere_is_never_put_back(world, action):
    """By a server that has read the row before: at its start, or for its operator."""
    own, foreign = world.settings(), world.settings(steps=7)
    loop, changed = asyncio.get_running_loop(), []

    async def change():
        store = world.server.storage.store
        row = await find_task(store, "t")
        task = replace(row.task, settings=encode_settings(foreign))
        changed.append(await store.commit(PutTask(task, expect_version=row.version)))

    def change_at_another_server(_):
        if not changed:
            asyncio.run_coroutine_threadsafe(change(), loop).result(60)

    def refuse(_):
        raise ServiceError("not now", code=ErrorCode.BAD_SETTINGS)

    async with world.running(own):
        pass
    checks = {"start": change_at_another_server, "resume": refuse}
    world.check_task = checks.get(action, lambda _: None)
    async with world.running():
        world.keeper._rows._check_task = change_at_another_server
        if action == "apply":
            document = {"settings": world.settings(steps=9).document(), "origin": "f"}
            asked = world.ask("task.apply", file=document)
            await refused(asked, ErrorCode.STORAGE_FAILED, "another operator")
        elif action == "resume":
            asked = world.ask("task.resume", task="t")
            await refused(asked, ErrorCode.STORAGE_FAILED, "another operator")
        assert changed == [True]
        row = await find_task(world.server.storage.store, "t")
        assert decode_settings(row.task).task.steps == 7


async def test_adding_a_task_can_be_repeated_after_a_lost_acknowledgement(
    world, monkeypatch
):
    async with world.running():
        store = world.server.storage.store
        commit, unheard = store.commit, []

        async def put_unheard(command):
            stored = await commit(command)
            if isinstance(command, PutTask) and not unheard:
                unheard.append(command)
                raise ServiceError("fsync", code=ErrorCode.STORAGE_FAILED, next_step="")
            return stored

        monkeypatch.setattr(store, "commit", put_unheard)
        document = world.settings("u").document()
        add = {"file": {"settings": document, "origin": "f"}}
        await refused(world.ask("task.add", **add), ErrorCode.STORAGE_FAILED)
        await world.ask("task.add", **add)
        await until(world, "u", state="running")
        assert world.server.may_open_sessions()
        await refused(world.ask("task.add", **add), ErrorCode.BAD_SETTINGS)


async def test_a_newer_revocation_list_is_loaded_without_a_restart(world, caplog):
    issuer, path = world.directory / "issuer", world.directory / "list.bin"
    key = Issuer.create(issuer, trust_domain="example.org", entropy=SystemEntropy())

    def publish():
        with Issuer.open(issuer) as opened:
            path.write_bytes(opened.revoke((), now=int(time.time())).encode())

    def numbers():
        running = world.server._opened().aggregator._sessions.all_running()
        return [each.descriptor.parameters.trust.revocation_number for each in running]

    async def number_is(number):
        async with asyncio.timeout(20):
            while numbers() != [number]:
                await world.states()

    publish()
    settings = world.settings(profile="malicious-server")
    settings = replace(
        settings,
        cohort=replace(settings.cohort, min_clients=4, max_clients=4, min_survivors=4),
        enrolment=EnrolmentSection("example.org", key_text(key), path),
    )
    async with world.running(settings):
        await number_is(1)
        older = path.read_bytes()
        await world.keeper.renew_lists()
        for damage in (b"no list", b""):
            path.write_bytes(damage)
            for _ in "ab":
                await world.keeper.renew_lists()
        publish()
        await world.keeper.renew_lists()
        await number_is(2)
        path.write_bytes(older)  # clients would refuse a server that goes back
        await world.keeper.renew_lists()
        await number_is(2)
        assert await world.states() == {"t": "running"}
    events = [
        r.levelname for r in caplog.records if r.event == "revocation_list_rejected"
    ]
    assert 1 <= len(events) <= 2
    assert set(events) == {"ERROR"}
    assert "task 't': revocation list 2" in world.said


@pytest.mark.parametrize(
    ("before", "after", "out"),
    [((), ("a", "b"), "c"), (("a", "b", "c"), ("a", "b"), "c"), (("a", "b"), (), "")],
)
async def test_a_client_that_is_no_longer_invited_is_disconnected(
    world, before, after, out
):
    async with world.running(world.settings(invited=before)):
        shown_out = []
        world.server.end_clients = lambda is_unwelcome: shown_out.extend(
            filter(is_unwelcome, "abc")
        )
        await world.keeper.apply(world.settings(invited=after))
        assert "".join(shown_out) == out
        if after:
            with pytest.raises(RemoteProtocolError) as caught:
                await world.contribute_as("c", "t")
            assert caught.value.code is ErrorCode.NOT_INVITED


async def test_failed_attempts_pause_a_task_and_do_not_end_the_process(world):
    async with world.running(world.settings()):
        # One joins and is never heard of again: uploads may take a second.
        lost = PausingConnection(
            world.server.connection("b"),
            session_number=1,
            before="upload",
            on_pause=lambda: None,
        )
        giving = [
            asyncio.ensure_future(world.contribute_as("a", "t")),
            asyncio.ensure_future(world.contribute_as("b", "t", connection=lost)),
        ]
        await until(world, "t", state="paused")
        for each in giving:
            each.cancel()
        await asyncio.wait(giving)
        shown = await world.ask("task.show", task="t")
        assert "was aborted" in shown["reason"]
        assert (world.directory / "sums" / "receipt-1.bin").exists()
        await assert_no_session_opens(world, "t")
        await world.ask("task.resume", task="t")
        while not (
            running := world.server._opened().aggregator._sessions.all_running()
        ):
            await world.states()
        assert running[0].record.attempt == 1  # as many as the first time
        given, _ = await world.both_contribute("t")
        assert given.values.tolist() == [2, 4]


async def test_a_missing_payload_pauses_only_its_task(world):
    payload = world.directory / "model.bin"
    payload.write_bytes(b"model")
    with_payload = world.settings(payload=payload)
    async with world.running(with_payload, world.settings("other")):
        while not (await world.ask("task.show", task="t"))["running"]:
            pass
        payload.unlink()  # the first session has it
        await world.both_contribute("t")
        await until(world, "t", state="paused")
        assert "model.bin" in (await world.ask("task.show", task="t"))["reason"]
        await world.both_contribute("other")
        payload.write_bytes(b"model 2")
        await world.ask("task.resume", task="t")
        given, _ = await world.both_contribute("t")
        assert given.values.tolist() == [2, 4]


async def test_a_missing_payload_does_not_stop_other_tasks_from_starting(world):
    payload = world.directory / "model.bin"
    payload.write_bytes(b"model")
    with_payload = world.settings(payload=payload)
    async with world.running(with_payload, world.settings("other")):
        pass
    payload.unlink()
    async with world.running():
        assert await world.states() == {"other": "running", "t": "paused"}
        assert "model.bin" in (await world.ask("task.show", task="t"))["reason"]
        # Its clients come back, as those of any task that is paused.
        await refused(
            world.server.connection("a").call(GetOffer("t", 0)),
            ErrorCode.SHUTTING_DOWN,
        )
        await refused(world.ask("task.resume", task="t"), ErrorCode.BAD_SETTINGS)
        assert (await world.states())["t"] == "paused"
        payload.write_bytes(b"model")
        await world.ask("task.resume", task="t")
        while not (await world.ask("task.show", task="t"))["running"]:
            pass
        payload.unlink()  # before the next session can have read it
        given, _ = await world.both_contribute("t")
        assert given.values.tolist() == [2, 4]
        await until(world, "t", state="paused")
        await world.ask("task.stop", task="t", reason="enough")
    async with world.running():
        await refused(
            world.server.connection("a").call(GetOffer("t", 0)), ErrorCode.TASK_OVER
        )


async def test_task_checks_run_for_files_operators_and_restarts(world):
    """A file, an operator and a restart; such as a payload that is the server's key."""
    unfit = {"t"}

    def check_task(settings):
        if settings.task.id in unfit:
            raise ServiceError("it is a key", code=ErrorCode.BAD_SETTINGS)

    world.check_task = check_task
    with pytest.raises(ServiceError, match="it is a key"):
        async with world.running(world.settings()):
            pass
    unfit.clear()
    async with world.running(world.settings()):
        for verb, task in (("task.add", "u"), ("task.apply", "t")):
            unfit.add(task)
            document = world.settings(task).document()
            answer = world.ask(verb, file={"settings": document, "origin": "f"})
            await refused(answer, ErrorCode.BAD_SETTINGS, "it is a key")
        assert await world.states() == {"t": "running"}
    async with world.running():
        assert await world.states() == {"t": "paused"}
        answer = world.ask("task.resume", task="t")
        await refused(answer, ErrorCode.BAD_SETTINGS, "it is a key")
        assert await world.states() == {"t": "paused"}


async def test_a_pause_withdraws_the_payload_of_a_session_without_clients(world):
    payload = world.directory / "model.bin"
    payload.write_bytes(b"wrong")
    async with world.running(world.settings(payload=payload)):
        while not world.server.live():
            await world.states()
        await world.ask("task.pause", task="t", reason="the model is wrong")
        while world.server.live():
            await world.states()
        payload.write_bytes(b"right")
        await world.ask("task.resume", task="t")
        while not world.server.live():
            await world.states()
        offer = await world.server.connection("a").call(GetOffer("t", 0))
        assert offer.payload_hash == sha256(b"right").digest()


async def test_a_stored_pause_is_completed_by_the_next_process(world):
    async with world.running(world.settings()):
        while not world.server.live():
            await world.states()
        store = world.server.storage.store
        row = await find_task(store, "t")
        paused = replace(row.task, state=TaskState.PAUSED, reason="lunch")
        assert await store.commit(PutTask(paused, expect_version=row.version))
    async with world.running():
        # The session waits for clients that are not admitted.
        shown = await until(world, "t", running=[])
        assert (shown["state"], shown["sessions_opened"]) == ("paused", 1)


@pytest.mark.parametrize("name", ["", "x" * 257, "a\0b", "a\nb", "\ud800"])
async def test_a_task_name_that_no_offer_can_carry_is_rejected(world, name):
    async with world.running():
        document = world.settings(name).document()
        await refused(
            world.ask("task.add", file={"settings": document, "origin": "f"}),
            ErrorCode.BAD_SETTINGS,
            "task.id",
            "from f",
        )
        assert await world.states() == {}


async def test_a_session_that_cannot_be_offered_is_not_stored(world):
    prepared = prepare_task(world.settings())
    async with world.running():
        # What `add_task` would refuse.
        running = await world.server._add_task(
            "", prepared, TaskOptions(payload=b"model")
        )
        await world.server.listen()
        with pytest.raises(RemoteProtocolError) as caught:
            async for _ in running.sums():
                pass
        assert caught.value.code is ErrorCode.BAD_CONFIG
    async with world.running():
        assert world.server.live() == ()


async def test_a_reason_is_stored_as_one_short_line(world):
    async with world.running(world.settings()):
        given = "\x1b[2Jbroken\n" + "x" * 5000
        paused = await world.ask("task.pause", task="t", reason=given)
        assert paused["reason"].startswith(" [2Jbroken xxx")
        assert len(paused["reason"]) == 1000
        shown = await world.ask("task.show", task="t")
        assert shown["reason"] == paused["reason"]


async def test_an_admin_message_holds_every_client_of_a_session():
    pair = [await asyncio.open_connection(sock=each) for each in socket.socketpair()]
    (reader, _), (_, writer) = pair
    told = {"data": ["x" * 255] * MAX_CLIENTS}
    _, heard = await asyncio.gather(write_message(writer, told), read_message(reader))
    assert heard == told
    for _, each in pair:
        each.close()


@pytest.fixture
def full_disk(world, monkeypatch):
    """The disk of sums takes no file of these folders."""
    monkeypatch.setattr("secagg.server.task.outputs.RETRY_SECONDS", 0.02)
    full = {world.directory / "sums"}

    def replace_with(path, save, **options):
        if path.parent in full:
            raise OSError(errno.ENOSPC, "No space left on device")
        files.replace_with(path, save, **options)

    monkeypatch.setattr("secagg.runtime.vector_files.replace_with", replace_with)
    return full


async def unwritten(world, task):
    """Ask until the disk has refused a file of the task."""
    while not (words := (await world.ask("task.show", task=task))["unwritten"]):
        pass
    return words


async def test_a_full_disk_delays_only_the_task_that_writes_to_it(world, full_disk):
    sums = world.directory / "sums"
    async with world.running(world.settings()):
        await world.both_contribute("t")
        assert "receipt-1.bin cannot be written: No space left" in await unwritten(
            world, "t"
        )
        await world.keeper.add(world.settings("u"))
        await world.both_contribute("u")
        await until(world, "u", sums=1, unwritten="")
        shown = await world.ask("task.show", task="t")
        assert (shown["sums"], shown["sessions_opened"]) == (0, 1)
        assert (await world.ask("status"))["tasks"][0]["unwritten"]
    assert not (sums / "sum-1.npy").exists()
    async with world.running():  # the sum is still pending
        await unwritten(world, "t")
        full_disk.clear()
        await until(world, "t", sums=1, unwritten="")
        np.testing.assert_array_equal(np.load(sums / "sum-1.npy"), [2, 4])
        await world.both_contribute("t")
        await until(world, "t", sums=2)


async def test_a_receipt_that_cannot_be_written_is_pending_like_a_sum(world, full_disk):
    async with world.running(world.settings()):
        while not (await world.ask("task.show", task="t"))["running"]:
            pass
        aborting = asyncio.create_task(
            world.keeper.stop("t", reason="the study is over")
        )
        await unwritten(world, "t")
        full_disk.clear()
        await aborting
        await until(world, "t", state="stopped", running=[], unwritten="")
    assert (world.directory / "sums" / "receipt-1.bin").exists()


async def test_an_end_date_stops_a_task(world):
    past = world.settings(ends="2020-01-01T00:00:00Z")
    async with world.running(past):
        await until(world, "t", state="stopped")
        assert "end date" in (await world.ask("task.show", task="t"))["reason"]


async def test_task_names_that_are_taken_unknown_or_invalid_are_rejected(world):
    async with world.running(world.settings()):
        document = world.settings().document()
        asked = world.ask("task.add", file={"settings": document, "origin": "f"})
        await refused(asked, ErrorCode.BAD_SETTINGS, "already")
        asked = world.ask("task.show", task="unknown")
        await refused(asked, ErrorCode.UNKNOWN_SESSION, "unknown")
        wrong = document | {"cohort": {"min_clients": 1}}
        asked = world.ask("task.add", file={"settings": wrong, "origin": "my.toml"})
        await refused(asked, ErrorCode.BAD_SETTINGS, "my.toml")
        asked = world.ask("session.abort", task="t", number=9, reason="")
        await refused(asked, ErrorCode.UNKNOWN_SESSION, "9")
        asked = world.ask("session.show", task="t", number=9)
        await refused(asked, ErrorCode.UNKNOWN_SESSION, "9")


async def test_admin_answers_have_the_documented_keys_and_types(world, json_answer):
    verbs = set()

    async def ask(verb, **arguments):
        verbs.add(verb)
        answer = await world.ask(verb, **arguments)
        json_answer(f"admin {verb}", answer)

    async with world.running(world.settings()):
        while not (await world.ask("task.show", task="t"))["running"]:
            pass
        # A session waits for its clients, and nothing happens before they come.
        for verb in ("status", "task.list", "budget"):
            await ask(verb)
        await ask("task.show", task="t")
        await ask("session.list", task="t")
        await ask("session.abort", task="t", number=1, reason="wrong model")
        await world.ask("task.pause", task="t", reason="lunch")
        await until(world, "t", running=[])
        await ask("task.pause", task="t", reason="longer lunch")
        more = world.settings(steps=5).document()
        await ask("task.apply", file={"settings": more, "origin": "f"})
        await ask("session.show", task="t", number=1)
        await ask("task.stop", task="t", reason="enough")
        # What runs of a task that opens sessions is not the same in each run.
        other = {"file": {"settings": world.settings("u").document(), "origin": "f"}}
        answers = {"task.add": await world.ask("task.add", **other)}
        await world.ask("task.pause", task="u", reason="lunch")
        answers["task.resume"] = await world.ask("task.resume", task="u")
        for verb, answer in answers.items():
            json_answer(f"admin {verb}", {**answer, "running": []})
        await ask("drain", finish=True)
        assert verbs | answers.keys() | {"session.watch"} == OPERATIONS.keys()


async def test_sessions_are_listed_watched_shown_and_aborted(world, json_answer):
    async with world.running(world.settings()):
        seen, ended = [], []
        began, released = asyncio.Event(), asyncio.Event()

        async def follow():
            changes = watch_admin(world.socket, "session.watch", {"task": "t"})
            assert await anext(changes) == {}  # it is heard, before anything changes
            async for each in changes:
                seen.append((each["number"], each["phase"]))
                began.set()
                if each["phase"] == "completed":
                    ended.append(each)
                    released.set()

        following = asyncio.ensure_future(follow())
        await began.wait()
        done = await world.ask(
            "session.abort", task="t", number=1, reason="wrong model"
        )
        assert done["outcome"] == "CANCELLED"
        await world.both_contribute("t")
        await until(world, "t", sums=1)
        await released.wait()
        json_answer("admin session.watch", ended[0])
        assert {(1, "aborted"), (2, "completed")} <= set(seen)
        listed = (await world.ask("session.list", task="t"))["sessions"]
        by_number = {each["number"]: each for each in listed}
        assert by_number[1]["outcome"] == "CANCELLED"
        assert by_number[1]["reason"] == "wrong model"
        assert (by_number[2]["outcome"], by_number[2]["inputs"]) == ("released", 2)
        found = await world.ask("session.list", outcome="released")
        assert [each["number"] for each in found["sessions"]] == [2]
        later = await world.ask("session.list", since=2**40)
        assert later["sessions"] == []
        shown = await world.ask("session.show", task="t", number=2)
        assert shown["receipt"]["survivors"] == ["a", "b"]
    await following  # it ends with the aggregator


async def test_status_and_draining_are_reported(world):
    async with world.running(world.settings()):
        while not (answer := await world.ask("status"))["tasks"][0]["running"]:
            pass
        assert answer["server"]["is_running"]
        assert answer["server"]["address"] == str(world.server.address)
        (task,) = answer["tasks"]
        assert task["running"][0]["live"]["needed"] == 2
        assert (await world.ask("budget"))["budgets"] == []
        await refused(world.contribute_as("c", "nothing"), ErrorCode.UNKNOWN_SESSION)
        answer = await world.ask("status")
        assert answer["server"]["refused_last_hour"] == {"UNKNOWN_SESSION": 1}
        await world.ask("drain", finish=True)
        await world.ask("drain")
        assert world.finished == [True, False]
    with pytest.raises(NoAdminSocketError):
        await world.ask("status")
    assert not world.socket.exists()


async def test_malformed_admin_requests_do_not_end_the_aggregator(world):
    async with world.running(world.settings()):
        assert world.socket.stat().st_mode & 0o777 == 0o600
        for sent, is_answered in (
            (b"", False),
            (b"\0\0\0\1", False),
            (b"\0\0\0\5[1,2]", True),
            (b"\0\0\0\2{]", True),
            (b"\0\0\0\4\xff\xff\xff\xff", True),
            ((MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"), True),
        ):
            reader, writer = await asyncio.open_unix_connection(str(world.socket))
            writer.write(sent)
            writer.write_eof()
            answer = await reader.read()
            assert (b'"ok": false' in answer) == is_answered
            writer.close()
        await refused(world.ask("no.verb"), ErrorCode.BAD_INPUT)
        await refused(world.ask("task.show", task=7), ErrorCode.BAD_INPUT, "task")
        await refused(world.ask("task.add", file=[]), ErrorCode.BAD_INPUT)
        assert (await world.states()) == {"t": "running"}


async def test_an_admin_caller_that_reads_no_answer_is_disconnected(world, monkeypatch):
    taken = 1 << 22  # more than the buffers of a socket hold

    async def much(*_):
        return {"much": "x" * taken}

    monkeypatch.setattr("secagg.server.admin.socket._TAKING_SECONDS", 0.05)
    async with world.running(world.settings()):
        monkeypatch.setattr("secagg.server.admin.snapshot.StatusSnapshot.status", much)
        reader, writer = await asyncio.open_unix_connection(str(world.socket), limit=1)
        await write_message(writer, {"verb": "status", "args": {}})
        assert await reader.read(1)  # the answer has begun
        await asyncio.gather(*world.admin._callers._open)
        assert await world.states() == {"t": "running"}
        writer.close()


async def test_a_task_can_be_stopped_while_another_is_planned(world, monkeypatch):
    begun, may_end = threading.Event(), threading.Event()

    def prepare(settings, **options):
        if settings.task.id == "slow":
            begun.set()
            assert may_end.wait(60)
        return prepare_task(settings, **options)

    monkeypatch.setattr("secagg.server.task.setup.prepare_task", prepare)
    async with world.running(world.settings()):
        slow = world.settings("slow").document()
        adding = asyncio.ensure_future(
            world.ask("task.add", file={"settings": slow, "origin": "f"})
        )
        await asyncio.to_thread(begun.wait, 60)
        stopped = await world.ask("task.stop", task="t", reason="enough")
        assert stopped["state"] == "stopped"
        assert not adding.done()
        may_end.set()
        assert (await adding)["state"] == "running"


async def test_an_admin_request_of_another_user_is_rejected(world, monkeypatch, caplog):
    async with world.running(world.settings()):
        monkeypatch.setattr("secagg.server.admin.socket.os.geteuid", lambda: 12345)
        monkeypatch.setattr("secagg.server.admin.socket._ROOT", 54321)
        await refused(world.ask("status"), ErrorCode.UNREACHABLE)
        assert "another user" in caplog.text


async def test_a_file_at_the_socket_path_is_replaced_only_if_it_is_a_socket(world):
    state = world.socket.parent
    state.mkdir()
    precious = state / "precious"
    precious.write_text("data")
    for path in (precious, state / "link"):
        if path != precious:
            path.symlink_to(precious)
        world.socket = path
        with pytest.raises(ServiceError, match="not a socket") as caught:
            async with world.running():
                pass
        assert caught.value.code is ErrorCode.BAD_SETTINGS
        assert precious.read_text() == "data"
    # What a killed process leaves behind does not keep the next one from its place.
    world.socket = state / "left.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(world.socket))
    async with world.running():
        assert await world.states() == {}


async def test_no_aggregator_takes_the_commands_of_another(tmp_path, world):
    other = World(tmp_path / "other")
    other.directory.mkdir()
    other.socket = world.socket
    async with world.running(world.settings()):
        with pytest.raises(ServiceError, match="another process listens") as caught:
            async with other.running():
                pass
        assert caught.value.code is ErrorCode.BAD_SETTINGS
        assert await world.states() == {"t": "running"}
    async with other.running():
        assert await world.states() == {}


async def test_clients_are_accepted_only_after_all_tasks_are_loaded(world, monkeypatch):
    seen = []
    opened = OperatedServer.listen

    async def listen(server):
        seen.append(sorted(server._tasks))
        # A watcher is told that it starts.
        assert (await world.ask("status"))["server"]["address"] is None
        await opened(server)

    monkeypatch.setattr(OperatedServer, "listen", listen)
    async with world.running(world.settings(), world.settings("u")):
        assert seen == [["t", "u"]]


async def test_an_admin_socket_with_a_long_path_is_reachable(tmp_path, world):
    deep = tmp_path.joinpath(*(["a-long-name-of-a-folder"] * 6))
    deep.mkdir(parents=True)
    world.socket = deep / "admin.sock"
    async with world.running(world.settings()):
        assert await world.states() == {"t": "running"}


@pytest.mark.parametrize(
    "name",
    ["../../etc", ".", "..", "", "a/b", "x" * 300, "\u00fc" * 60, ".hid", "sum-1.npy"],
)
def test_no_task_name_escapes_its_folder(tmp_path, name):
    path = tmp_path / folder_of(name)
    assert path.parent == tmp_path
    assert 0 < len(path.name.encode()) <= 100
    assert not path.name.startswith(".")
    assert path.name != "sum-1.npy"  # such as lie there for another task


def test_different_tasks_have_different_folders():
    names = ["a", "A", "a/b", "a%2Fb", "x" * 300, "x" * 301]
    names += [folder_of(name) for name in names[4:]]  # no task can take another's
    assert len({folder_of(name) for name in names}) == len(names)


# --- several servers of one store -----------------------------------------------------


@pytest.fixture
async def worlds(tmp_path, monkeypatch, postgres_url):
    """Two aggregators that share a store and blobs, and run."""
    monkeypatch.setattr("secagg.server.server.SETTLE_SECONDS", 0.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "marks"))
    database = await asyncpg.connect(postgres_url)
    await database.execute("DROP SCHEMA IF EXISTS secagg CASCADE")
    await database.close()
    shared = {"store": postgres_url, "blobs": f"file:{tmp_path / 'blobs'}"}
    one, other = (World(tmp_path / name, **shared) for name in ("one", "other"))
    for world in (one, other):
        world.directory.mkdir()
    async with one.running(one.settings()), other.running(other.settings()):
        yield one, other


async def test_operator_commands_at_one_replica_take_effect_at_all(worlds):
    one, other = worlds
    await one.ask(
        "task.add", file={"settings": one.settings("u").document(), "origin": "f"}
    )
    await until(other, "u", state="running", version=1)
    # One client of each, and the session that either of them has opened.
    at_other = other.server.connection("b")
    await asyncio.gather(
        one.contribute_as("a", "u"), other.contribute_as("b", "u", connection=at_other)
    )
    for world in worlds:
        await until(world, "u", sums=1)
    await other.ask("task.pause", task="u", reason="lunch")
    await until(one, "u", state="paused", reason="lunch")
    for world in worlds:
        await until(world, "u", running=[])
        await assert_no_session_opens(world, "u")
        offered = await world.server.connection("a").call(GetOffer("u", 0))
        assert isinstance(offered, Wait)
    await one.ask("task.resume", task="u")
    await until(other, "u", state="running")
    longer = one.settings("u", steps=3)
    await one.ask("task.apply", file={"settings": longer.document(), "origin": "f"})
    await until(other, "u", version=4)
    await asyncio.gather(
        one.contribute_as("a", "u"), other.contribute_as("b", "u", connection=at_other)
    )
    await one.ask("task.stop", task="u", reason="enough")
    await until(other, "u", state="stopped")
    for world in worlds:
        await refused(world.contribute_as("c", "u"), ErrorCode.TASK_OVER)
    found = sorted(
        (world.directory.name, path.name)
        for world in worlds
        for path in world.directory.glob("sums/u/sum-*.npy")
    )
    assert len({name for _, name in found}) == len(found) == 2
    replicas = (await one.ask("status"))["server"]["replicas"]
    assert len(replicas) == 2
    assert all(each["silent_seconds"] < 60 for each in replicas)


async def test_a_replica_that_has_not_received_a_pause_opens_no_session(worlds):
    one, other = worlds
    one.server.aggregator.when_changed(_nothing)  # deaf
    await other.both_contribute("t")
    await until(one, "t", sums=1)
    await other.ask("task.pause", task="t", reason="lunch")
    number = (await find_task(one.server.storage.store, "t")).tally.highest_number
    for _ in range(20):
        await one.server.connection("a").call(GetOffer("t", number))
    row = await find_task(one.server.storage.store, "t")
    assert (row.task.state, row.tally.highest_number) == (TaskState.PAUSED, number)


async def _nothing() -> None:
    pass


async def test_a_replica_with_another_blob_directory_is_rejected(worlds, tmp_path):
    third = World(tmp_path / "third", **worlds[0].options)
    third.directory.mkdir()
    third.options["blobs"] = f"file:{tmp_path / 'elsewhere'}"
    with pytest.raises(ServiceError, match=r"server\.blobs") as caught:
        async with third.running():
            pass
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    third.options["blobs"] = worlds[0].options["blobs"]
    async with third.running():
        assert len((await third.ask("status"))["server"]["replicas"]) == 3


async def test_a_task_added_while_the_keeper_closes_ends_with_the_others(
    world, monkeypatch
):
    async with world.running(world.settings("t"), world.settings("u")):
        keeper, came = world.keeper, []
        end_work = keeper._end_work

        async def ends_while_another_comes(kept):
            if not came:
                came.append(await keeper.add(world.settings("late")))
            await end_work(kept)

        monkeypatch.setattr(keeper, "_end_work", ends_while_another_comes)
    assert sorted(keeper._kept) == ["late", "t", "u"]
    assert all(kept.work.done() for kept in keeper._kept.values())
