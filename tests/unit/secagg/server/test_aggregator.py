"""The aggregator: what clients may ask, and what hostile ones get."""

import asyncio
import hashlib
from dataclasses import replace

import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import LENIENT_POLICY, parameters_for
from secagg_testing.held_executor import HeldExecutor
from secagg_testing.inline_store import inline_store

from secagg.config.task import Schedule
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import Received, SessionOffered
from secagg.protocol.messages import (
    NO_VIEW,
    Aborted,
    Advert,
    Envelope,
    Fate,
    Roster,
    Round,
    Survivors,
)
from secagg.protocol.packing import packed_size
from secagg.runtime.workers import Workers
from secagg.server import aggregator as client_desk
from secagg.server.aggregator import Aggregator
from secagg.server.rpc.limits import AggregatorLimits
from secagg.server.session.events import SessionPhase
from secagg.server.task.definition import TaskDefinition
from secagg.server.task.schedule import TaskSchedule
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.change import Side
from secagg.storage.changes import PurgeReceipts
from secagg.storage.queries import ListSessions
from secagg.storage.rows import Retention
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.wire.calls import (
    AdvertiseKeys,
    Blob,
    FetchChunk,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    Reference,
    RevealShares,
    ShareKeys,
    UploadChunk,
    UploadStatus,
    Wait,
    WatchSession,
)
from secagg.wire.errors import as_seen_by_peer

PARAMETERS = parameters_for(3, dimension=9, threshold=2, modulus=1 << 20)
NAMES = ("a", "b", "c")


class World:
    """An aggregator in the hands of a test, and hand-driven clients."""

    def __init__(self, clock, *, parameters=PARAMETERS, invited=None, **options):
        self.clock = clock
        self.disk = HeldExecutor()
        self.store = inline_store(thread=self.disk)
        self.spool = UploadSpool(MemoryBlobs())
        inline = InlineExecutor()
        self.workers = workers = Workers(general=inline)
        self.aggregator = Aggregator(
            self.store,
            self.spool,
            clock=clock,
            entropy=SeededEntropy(SecretBytes(bytes(32)), b"test"),
            workers=workers,
            limits=AggregatorLimits(**options),
        )
        self.task = TaskDefinition(
            task_id="t", parameters=parameters, invited=invited, max_attempts=1
        )
        self.sums = []
        self.payload = b""
        self.states = {}
        self.descriptor = None

    def start(self):
        async def next_payload(_):
            return self.payload

        async def on_sum(released):
            self.sums.append(released)

        return asyncio.ensure_future(
            self.aggregator.run_task(
                self.task, next_payload=next_payload, on_sum=on_sum
            )
        )

    async def settle(self):
        for _ in range(30):
            await asyncio.sleep(0)

    async def join(self, name, *, send=True):
        self.descriptor = await self.aggregator.answer(
            name, GetOffer("t", after_session=0)
        )
        assert isinstance(self.descriptor, SessionDescriptor)
        seed = SecretBytes(hashlib.sha256(name.encode()).digest())
        result = client_machine.step(
            client_machine.start(),
            SessionOffered(
                self.descriptor, name, "aggregator", seed, int(self.clock.date())
            ),
            policy=LENIENT_POLICY,
        )
        self.states[name] = result.state
        (output,) = result.outputs
        if send:
            await self.aggregator.answer(
                name, AdvertiseKeys(self.id, output.envelope.data)
            )
        return output.envelope.data

    @property
    def id(self):
        return self.descriptor.session_id

    async def update(self, name, after):
        answer = await self.aggregator.answer(name, GetUpdate(self.id, after))
        return answer.open() if isinstance(answer, Envelope) else answer

    async def referred(self, name, after):
        """Fetch an update in pieces, as a client would that is only referred to it."""
        request = GetUpdate(self.id, after)
        reference = await self.aggregator.answer(name, request)
        stream = self.aggregator.watch(name, WatchSession(self.id, after))
        assert await anext(stream) == reference
        await stream.aclose()
        whole, size = b"", None
        while len(whole) != size:
            chunk = await self.aggregator.answer(
                name, FetchChunk(self.id, reference.blob, len(whole), 70)
            )
            assert len(chunk.data) <= 70
            whole, size = whole + chunk.data, chunk.total_size
        assert reference == Reference.for_message(Envelope(reference.kind, whole))
        return Envelope(reference.kind, whole)

    def step(self, name, event):
        result = client_machine.step(self.states[name], event, policy=LENIENT_POLICY)
        self.states[name] = result.state
        return result.outputs

    async def share(self, name):
        update = await self.update(name, Round.ADVERTISE_KEYS)
        (output,) = self.step(name, Received(Envelope.of(update)))
        await self.aggregator.answer(name, ShareKeys(self.id, output.envelope.data))

    async def open_round_two(self):
        task = self.start()
        await self.settle()
        for name in NAMES:
            await self.join(name)
        await self.settle()
        for name in NAMES:
            await self.share(name)
        await self.settle()
        for name in NAMES:
            update = await self.update(name, Round.SHARE_KEYS)
            self.step(name, Received(Envelope.of(update)))
        return task

    def view(self, name):
        state = self.states.get(name)
        return (
            client_machine.view(state)
            if isinstance(state, client.ReadyForInput)
            else b""
        )

    def asking(self, name):
        return GetUploadStatus(self.id, self.view(name) or NO_VIEW)

    async def upload(self, name, packed, **changes):
        fields = {
            "offset": 0,
            "total_size": len(packed),
            "digest": hashlib.sha256(packed).digest(),
            "data": packed,
            "view": self.view(name) or NO_VIEW,
        }
        return await self.aggregator.answer(
            name, UploadChunk(self.id, **(fields | changes))
        )


SIZE = packed_size(9, 20)
VECTOR = bytes(range(SIZE - 1)) + b"\x05"


def scenario(test, **options):
    async def main(clock):
        world = World(clock, **options)
        try:
            await test(world)
        finally:
            await world.aggregator.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
                await asyncio.wait({task})

    manual_clock.run(main)


# --- who may ask for what -------------------------------------------------------------


def test_an_unknown_task_and_an_unknown_session_are_named():
    async def test(world):
        with pytest.raises(ServiceError) as caught:
            await world.aggregator.answer("a", GetOffer("nothing", after_session=0))
        assert caught.value.code is ErrorCode.UNKNOWN_SESSION
        for call in (
            world.aggregator.answer("a", AdvertiseKeys(bytes(32), b"")),
            world.aggregator.answer("a", ShareKeys(bytes(32), b"")),
            world.aggregator.answer("a", RevealShares(bytes(32), b"")),
            world.aggregator.answer("a", GetUploadStatus(bytes(32))),
            world.aggregator.answer("a", GetUpdate(bytes(32), after=None)),
            anext(world.aggregator.watch("a", WatchSession(bytes(32), after=None))),
            world.aggregator.answer(
                "a", FetchChunk(bytes(32), blob=Blob.SUM, offset=0, max_bytes=1)
            ),
            world.aggregator.abort(bytes(32), "why"),
        ):
            with pytest.raises(ServiceError) as caught:
                await call
            assert caught.value.code is ErrorCode.UNKNOWN_SESSION

    scenario(test)


def test_only_invited_clients_get_offers_payloads_and_sessions():
    async def test(world):
        world.payload = b"the query"
        world.start()
        await world.settle()
        with pytest.raises(RemoteProtocolError) as caught:
            await world.aggregator.answer("mallory", GetOffer("t", after_session=0))
        assert caught.value.code is ErrorCode.NOT_INVITED
        await world.join("a")
        advert = Advert("mallory", *[bytes(32)] * 3).encode()
        with pytest.raises(RemoteProtocolError) as caught:
            await world.aggregator.answer("mallory", AdvertiseKeys(world.id, advert))
        assert caught.value.code is ErrorCode.NOT_INVITED
        with pytest.raises(RemoteProtocolError) as caught:
            await world.aggregator.answer(
                "mallory",
                FetchChunk(world.id, blob=Blob.PAYLOAD, offset=0, max_bytes=9),
            )
        assert caught.value.code is ErrorCode.NOT_INVITED
        chunk = await world.aggregator.answer(
            "a", FetchChunk(world.id, blob=Blob.PAYLOAD, offset=4, max_bytes=3)
        )
        assert (chunk.data, chunk.total_size) == (b"que", 9)

    scenario(test, invited=frozenset({"a", "b"}))


def test_a_client_cannot_send_messages_of_another():
    async def test(world):
        world.start()
        await world.settle()
        advert = await world.join("a", send=False)
        with pytest.raises(RemoteProtocolError) as caught:
            await world.aggregator.answer("b", AdvertiseKeys(world.id, advert))
        assert caught.value.code is ErrorCode.UNAUTHENTICATED

    scenario(test)


@pytest.mark.parametrize("identity", ["", "x" * 256])
def test_an_invalid_identity_is_rejected(identity):
    async def test(world):
        with pytest.raises(RemoteProtocolError) as caught:
            await world.aggregator.answer(identity, GetOffer("t", after_session=0))
        assert caught.value.code is ErrorCode.UNAUTHENTICATED

    scenario(test)


def test_a_session_already_seen_is_not_offered_again():
    async def test(world):
        world.start()
        await world.settle()
        offered = await world.aggregator.answer("a", GetOffer("t", after_session=0))
        assert offered.session_number == 1
        assert isinstance(
            await world.aggregator.answer("a", GetOffer("t", after_session=1)), Wait
        )

    scenario(test)


def test_a_full_session_is_offered_only_to_its_members():
    async def test(world):
        world.disk.is_holding = False
        world.start()
        await world.settle()
        await world.join("a")
        await world.join("b")
        again = await world.aggregator.answer("a", GetOffer("t", after_session=0))
        assert again == world.descriptor
        await world.join("c")  # full: round 1 closes
        assert isinstance(
            await world.aggregator.answer("d", GetOffer("t", after_session=0)), Wait
        )

    scenario(test)


def test_while_draining_no_session_is_offered_and_open_ones_continue():
    async def test(world):
        world.start()
        await world.settle()
        for name in NAMES:
            await world.join(name)
        world.aggregator.drain()
        with pytest.raises(ServiceError) as caught:
            await world.aggregator.answer("a", GetOffer("t", after_session=0))
        assert caught.value.code is ErrorCode.SHUTTING_DOWN
        assert caught.value.retry_after_seconds
        await world.settle()
        assert isinstance(await world.update("a", Round.ADVERTISE_KEYS), Roster)

    scenario(test)


def test_a_task_cannot_run_twice_concurrently():
    async def test(world):
        world.start()
        await world.settle()
        with pytest.raises(LocalProtocolError):
            await world.start()

    scenario(test)


# --- rounds ---------------------------------------------------------------------------


def test_an_advert_is_acknowledged_only_after_it_is_durable():
    async def test(world):
        world.start()
        await world.settle()
        advert = await world.join("a", send=False)
        world.disk.is_holding = True
        sending = asyncio.ensure_future(
            world.aggregator.answer("a", AdvertiseKeys(world.id, advert))
        )
        await world.settle()
        assert not sending.done()
        repeated = asyncio.ensure_future(
            world.aggregator.answer("a", AdvertiseKeys(world.id, advert))
        )
        await world.settle()
        assert not repeated.done()  # a retry waits for the same write
        world.disk.release()
        await asyncio.gather(sending, repeated)

    scenario(test)


def test_no_client_sees_a_round_before_it_is_durable():
    async def test(world):
        world.start()
        await world.settle()
        for name in ("a", "b"):
            await world.join(name)
        advert = await world.join("c", send=False)
        watcher = world.aggregator.watch(
            "a", WatchSession(world.id, after=Round.ADVERTISE_KEYS)
        )
        assert isinstance(await anext(watcher), Wait)
        streamed = asyncio.ensure_future(anext(watcher))
        world.disk.is_holding = True
        last = asyncio.ensure_future(
            world.aggregator.answer("c", AdvertiseKeys(world.id, advert))
        )
        await world.settle()
        world.disk.release()  # the advert is durable, the round closes
        world.disk.is_holding = True
        await world.settle()
        assert world.disk.held == 1  # the closing waits for the disk
        assert isinstance(await world.update("a", Round.ADVERTISE_KEYS), Wait)
        assert not streamed.done()
        world.disk.release()
        await world.settle()
        assert isinstance(await world.update("a", Round.ADVERTISE_KEYS), Roster)
        assert (await streamed).kind is Roster
        await last

    scenario(test)


def test_a_full_disk_only_delays_a_session():
    async def test(world):
        world.start()
        await world.settle()
        advert = await world.join("a", send=False)
        world.disk.failure = ServiceError("full", code=ErrorCode.STORAGE_FAILED)
        with pytest.raises(ServiceError) as caught:
            await world.aggregator.answer("a", AdvertiseKeys(world.id, advert))
        assert caught.value.code is ErrorCode.STORAGE_FAILED
        world.disk.failure = None
        await world.aggregator.answer("a", AdvertiseKeys(world.id, advert))
        for name in ("b", "c"):
            await world.join(name)
        await world.settle()
        (row,) = await world.store.read(ListSessions(role=Side.SERVER))
        assert row.sequence == 4  # three adverts, one closing

    scenario(test)


def test_round_zero_has_no_deadline_before_the_first_advert():
    async def test(world):
        world.start()
        await world.settle()
        await world.clock.sleep_until(world.clock.now() + 10_000)
        await world.join("a")
        await world.join("b")
        started = world.clock.now()
        while isinstance(await world.update("a", Round.ADVERTISE_KEYS), Wait):
            await world.clock.sleep_until(world.clock.now() + 1)
        waited = world.clock.now() - started
        assert 59 <= waited <= 62

    scenario(test)


def test_round_zero_waits_beyond_its_deadline_and_reports_the_missing_clients():
    async def test(world):
        world.start()
        await world.settle()
        await world.join("a")
        (stored,) = await world.store.read(ListSessions(role=Side.SERVER))
        for _ in range(10):
            await world.clock.sleep_until(world.clock.now() + 60)
            waiting = await world.update("a", Round.ADVERTISE_KEYS)
            assert (waiting.joined, waiting.needed) == (1, 2)
            assert 0 <= waiting.closes_in_seconds <= 60
        stranger = await world.update("mallory", Round.ADVERTISE_KEYS)
        assert (stranger.joined, stranger.needed) == (0, 0)
        # No record, no new number: what was stored is what is stored.
        assert await world.store.read(ListSessions(role=Side.SERVER)) == (stored,)
        await world.join("b")
        await world.join("c")
        await world.settle()
        assert isinstance(await world.update("a", Round.ADVERTISE_KEYS), Roster)

    scenario(test)


def test_a_session_that_waits_too_long_is_replaced_by_another():
    """Its end is part of its name and cannot be moved; no party is to blame."""

    async def test(world):
        running = world.start()
        await world.settle()
        await world.join("a")
        first = world.descriptor
        rounds = PARAMETERS.deadlines
        last_start = first.session_end - rounds.longest_session + rounds.advertise_keys
        await world.clock.sleep_until(
            world.clock.now() + last_start - world.clock.date() - 1
        )
        assert isinstance(await world.update("a", Round.ADVERTISE_KEYS), Wait)
        await world.clock.sleep_until(world.clock.now() + 2)
        ended = await world.update("a", Round.ADVERTISE_KEYS)
        assert ended.code is ErrorCode.ROSTER_TOO_SMALL
        await world.settle()
        for name in NAMES:
            await world.join(name)
        assert world.descriptor.session_number == first.session_number + 1
        await world.settle()
        assert isinstance(await world.update("a", Round.ADVERTISE_KEYS), Roster)
        assert not running.done()  # one attempt is all that this task has

    scenario(test)


def test_no_round_lasts_beyond_the_session_end():
    # R5-7
    """An aggregator that restarts after it asks no client for another input."""

    async def test(world):
        running = world.start()
        await world.settle()
        for name in NAMES:
            await world.join(name)
        await world.settle()
        (runner,) = world.aggregator._sessions.running("t")
        late = world.descriptor.session_end - world.clock.date() + 1
        world.clock.advance(late)
        with pytest.raises(SessionAbortedError, match="reached its end") as caught:
            await running
        assert caught.value.code is ErrorCode.DEADLINE
        assert runner.outcome().fate is Fate.NEVER_FIXED

    scenario(test)


def test_ending_a_waiting_task_ends_its_session_for_all_clients():
    async def test(world):
        running = world.start()
        await world.settle()
        await world.join("a")
        await world.aggregator.end_task("t", "its operator has ended the task")
        with pytest.raises(SessionAbortedError, match="operator has ended") as caught:
            await running
        assert caught.value.code is ErrorCode.ROSTER_TOO_SMALL
        with pytest.raises(ServiceError) as caught:
            await world.aggregator.answer("a", GetOffer("t", 1))
        assert caught.value.code is ErrorCode.TASK_OVER
        update = await world.update("a", Round.ADVERTISE_KEYS)
        assert isinstance(update, Aborted)
        assert update.code is ErrorCode.ROSTER_TOO_SMALL

    scenario(test)


def test_scheduled_sessions_open_in_their_slots_and_stop_admitting():
    async def test(world):
        hour, window = 3600, 600
        world.task = replace(
            world.task,
            gate=TaskSchedule(Schedule(hour, window), opened=world.clock.date()),
        )
        running = world.start()

        async def offer_after(seconds):
            world.clock.advance(seconds)
            await world.settle()
            return await world.aggregator.answer("a", GetOffer("t", 0))

        # An earlier process has used this slot; manual clocks start at a full hour.
        assert isinstance(await offer_after(0), Wait)
        assert isinstance(await offer_after(hour - 1), Wait)

        def closes_in():
            (live,) = world.aggregator.live()
            return live.seconds_left

        first = await offer_after(1)
        assert first.session_number == 1
        assert closes_in() == window
        await world.join("a")
        # The round's deadline comes first, and begins again while clients are missing.
        assert first.parameters.deadlines.advertise_keys < window == closes_in()
        assert (await offer_after(window - 1)).session_number == 1
        assert closes_in() == 1
        assert isinstance(await offer_after(1), Wait)
        update = await world.update("a", Round.ADVERTISE_KEYS)
        assert update.code is ErrorCode.ROSTER_TOO_SMALL
        assert "may join is over" in update.reason
        # The rest of the hour nothing opens; nothing was an attempt either.
        assert isinstance(await offer_after(hour - window - 1), Wait)
        assert (await offer_after(1)).session_number == 2
        await world.aggregator.end_task("t", "enough")
        with pytest.raises(SessionAbortedError, match="enough"):
            await running

    scenario(test)


def test_the_end_of_a_round_is_reported_only_if_it_is_final():
    """With fewer clients than are needed a deadline begins again."""

    async def test(world):
        running = world.start()
        await world.settle()
        told = []
        for name in ("a", "b"):
            await world.join(name)
            (live,) = world.aggregator.live()
            told.append(live.seconds_left)
        assert told == [None, PARAMETERS.deadlines.advertise_keys]
        await world.aggregator.abort(world.id, "enough")
        await world.settle()
        await world.aggregator.end_task("t", "enough")
        with pytest.raises(SessionAbortedError, match="enough"):
            await running

    scenario(test)


def test_a_task_ended_between_slots_ends_at_once():
    async def test(world):
        gate = TaskSchedule(Schedule(3600, 600), opened=world.clock.date())
        world.task = replace(world.task, gate=gate)
        running = world.start()
        await world.settle()
        await world.aggregator.end_task("t", "enough")
        with pytest.raises(SessionAbortedError, match="enough") as caught:
            await running
        assert caught.value.code is ErrorCode.TASK_OVER

    scenario(test)


def test_draining_between_slots_ends_tasks_without_a_session():
    async def test(world):
        gate = TaskSchedule(Schedule(3600, 600), opened=world.clock.date())
        world.task = replace(world.task, gate=gate)
        running = world.start()
        await world.settle()
        world.aggregator.drain()
        await running
        assert world.sums == []
        with pytest.raises(ServiceError) as caught:
            await world.aggregator.answer("a", GetOffer("t", 0))
        assert caught.value.code is ErrorCode.SHUTTING_DOWN

    scenario(test)


def test_the_operator_can_abort_a_session():
    async def test(world):
        running = world.start()
        await world.settle()
        for name in ("a", "b"):
            await world.join(name)
        await world.aggregator.abort(world.id, "the operator pulled the plug")
        await world.settle()
        # Its roster was never fixed: no attempt is spent, and the next one is open.
        following = await world.aggregator.answer("a", GetOffer("t", 1))
        assert following.session_number == 2
        await world.aggregator.end_task("t", "enough")
        with pytest.raises(SessionAbortedError, match="enough"):
            await running
        update = await world.update("b", Round.ADVERTISE_KEYS)
        assert update == Aborted(
            Fate.NEVER_FIXED, ErrorCode.CANCELLED, "the operator pulled the plug"
        )
        await world.aggregator.abort(world.id, "again")

    scenario(test)


def test_messages_after_the_end_are_rejected_with_a_code():
    async def test(world):
        running = world.start()
        await world.settle()
        advert = await world.join("a")
        await world.aggregator.end_task("t", "enough")
        with pytest.raises(SessionAbortedError):
            await running
        # Acknowledged once, acknowledged for as long as the session is remembered.
        await world.aggregator.answer("a", AdvertiseKeys(world.id, advert))
        for name, message, code in (
            ("a", advert + b"x", ErrorCode.EQUIVOCATION),
            ("b", advert, ErrorCode.DEADLINE),
        ):
            with pytest.raises(RemoteProtocolError) as caught:
                await world.aggregator.answer(name, AdvertiseKeys(world.id, message))
            assert caught.value.code is code

    scenario(test)


def test_progress_reports_every_round():
    async def test(world):
        seen = []

        async def watch():
            seen.extend([p async for p in world.aggregator.progress()])

        watching = asyncio.ensure_future(watch())
        running = world.start()
        await world.settle()
        await world.join("a")
        await world.settle()
        await world.aggregator.end_task("t", "enough")
        with pytest.raises(SessionAbortedError):
            await running
        await world.aggregator.close()
        await watching
        assert [p.phase for p in seen][-1] is SessionPhase.ABORTED
        assert seen[-1].reason
        assert max(p.joined for p in seen) == 1

    scenario(test)


# --- uploads --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"total_size": SIZE + 1}, ErrorCode.BAD_VECTOR),
        ({"total_size": SIZE - 1, "data": VECTOR[:-1]}, ErrorCode.BAD_VECTOR),
        ({"total_size": SIZE - 1}, ErrorCode.BAD_ENCODING),
        ({"digest": b"short"}, ErrorCode.BAD_ENCODING),
        ({"data": b""}, ErrorCode.BAD_ENCODING),
        ({"data": bytes((1 << 20) + 1)}, ErrorCode.BAD_ENCODING),
        ({"data": VECTOR + b"x"}, ErrorCode.BAD_ENCODING),
        ({"offset": -1}, ErrorCode.BAD_ENCODING),
    ],
)
def test_invalid_chunks_are_rejected_before_they_are_stored(changes, code):
    async def test(world):
        await world.open_round_two()
        with pytest.raises(RemoteProtocolError) as caught:
            await world.upload("a", VECTOR, **changes)
        assert caught.value.code is code
        assert world.spool.received(world.id, "a") == 0
        status = await world.upload("a", VECTOR)
        assert status == UploadStatus(SIZE, complete=True)

    scenario(test)


def test_an_upload_with_nonzero_padding_is_rejected_and_can_be_corrected():
    async def test(world):
        await world.open_round_two()
        bad = VECTOR[:-1] + b"\xff"
        with pytest.raises(RemoteProtocolError) as caught:
            await world.upload("a", bad)
        assert caught.value.code is ErrorCode.BAD_VECTOR
        assert (await world.upload("a", VECTOR)).complete

    scenario(test)


def test_no_bytes_of_a_client_with_another_view_are_stored():
    # R5.3-14
    async def test(world):
        await world.open_round_two()
        other = bytes([world.view("a")[0] ^ 1]) + world.view("a")[1:]
        first = {"data": VECTOR[:5], "total_size": SIZE}
        for view in (other, NO_VIEW, world.id):
            for asked in (
                world.aggregator.answer("a", GetUploadStatus(world.id, view)),
                world.upload("a", VECTOR, view=view),
                world.upload("a", VECTOR, **first, view=view),
            ):
                with pytest.raises(RemoteProtocolError) as caught:
                    await asked
                assert caught.value.code is ErrorCode.VIEW_DIFFERS
        # Also in the middle of an upload that has begun with the right one.
        assert await world.upload("a", VECTOR, **first) == UploadStatus(5)
        rest = {"offset": 5, "data": VECTOR[5:], "total_size": SIZE}
        with pytest.raises(RemoteProtocolError) as caught:
            await world.upload("a", VECTOR, **rest, view=other)
        assert caught.value.code is ErrorCode.VIEW_DIFFERS
        assert await world.aggregator.answer("a", world.asking("a")) == UploadStatus(5)
        assert (await world.upload("a", VECTOR, **rest)).complete
        # An upload that is in is repeated by the same bytes only (R5-1).
        with pytest.raises(RemoteProtocolError) as caught:
            await world.upload("a", VECTOR, view=other)
        assert caught.value.code is ErrorCode.EQUIVOCATION

    scenario(test)


def test_a_corrupt_upload_starts_again():
    async def test(world):
        await world.open_round_two()
        with pytest.raises(ServiceError) as caught:
            await world.upload("a", VECTOR, digest=bytes(32))
        assert caught.value.code is ErrorCode.UPLOAD_CORRUPT
        assert await world.aggregator.answer("a", world.asking("a")) == UploadStatus(0)
        assert (await world.upload("a", VECTOR)).complete

    scenario(test)


def test_a_second_different_upload_raises_equivocation_and_a_repeat_does_not():
    async def test(world):
        await world.open_round_two()
        first = await world.upload("a", VECTOR)
        assert await world.upload("a", VECTOR) == first
        other = b"\x01" + VECTOR[1:]
        with pytest.raises(RemoteProtocolError) as caught:
            await world.upload("a", other)
        assert caught.value.code is ErrorCode.EQUIVOCATION
        assert (await world.aggregator.answer("a", world.asking("a"))).complete

    scenario(test)


def test_equal_uploads_of_colluders_cannot_delete_each_other():
    async def test(world):
        await world.open_round_two()
        held = HeldExecutor()
        world.aggregator._workers._general = held
        await world.upload("a", VECTOR)
        await world.upload("c", b"\x01" + VECTOR[1:])
        held.is_holding = True
        late = asyncio.ensure_future(world.upload("b", VECTOR))
        await world.clock.sleep_until(world.clock.now() + 400)
        held.release()  # first the chunk, then the closing of the round
        with pytest.raises(RemoteProtocolError) as caught:
            await late
        assert caught.value.code is ErrorCode.DEADLINE
        digest = hashlib.sha256(VECTOR).digest()
        stored = world.spool
        assert not stored.missing_uploads(world.id, {digest}, len(VECTOR))

    scenario(test)


def test_uploads_before_their_round_or_of_unknown_clients_are_rejected():
    async def test(world):
        world.start()
        await world.settle()
        await world.join("a")
        with pytest.raises(RemoteProtocolError) as caught:
            await world.upload("a", VECTOR)
        assert caught.value.code is ErrorCode.UNEXPECTED_MESSAGE
        with pytest.raises(RemoteProtocolError):
            await world.aggregator.answer("a", world.asking("a"))
        assert world.spool.session_ids() == ()

    scenario(test)


def test_arriving_bytes_extend_the_round_by_at_most_one_deadline():
    async def test(world):
        await world.open_round_two()
        opened = world.clock.now()
        for name in ("a", "b"):
            await world.upload(name, VECTOR)
        # c sends a byte now and then, and would continue for ever
        for offset in range(SIZE):
            try:
                await world.upload(
                    "c",
                    VECTOR[offset : offset + 1],
                    offset=offset,
                    total_size=SIZE,
                    digest=hashlib.sha256(VECTOR).digest(),
                )
            except RemoteProtocolError:
                break
            await world.clock.sleep_until(world.clock.now() + 40)
        waited = world.clock.now() - opened
        seconds = PARAMETERS.deadlines.masked_input
        assert 1.9 * seconds <= waited <= 2.2 * seconds

    scenario(test)


def test_too_many_concurrent_chunks_are_told_to_retry():
    async def test(world):
        await world.open_round_two()
        held = HeldExecutor()
        held.is_holding = True
        world.aggregator._workers._general = held
        first = asyncio.ensure_future(world.upload("a", VECTOR))
        await world.settle()
        with pytest.raises(ServiceError) as caught:
            await world.upload("b", VECTOR)
        assert caught.value.code is ErrorCode.OVERLOADED
        assert caught.value.retry_after_seconds
        held.release()
        assert (await first).complete
        assert (await world.upload("b", VECTOR)).complete

    scenario(test, concurrent_chunks=1, waiting_bytes=0)


def test_a_queued_chunk_is_received_once():
    async def test(world):
        await world.open_round_two()
        held = HeldExecutor()
        held.is_holding = True
        world.aggregator._workers._general = held
        uploads = [asyncio.ensure_future(world.upload(who, VECTOR)) for who in "abc"]
        await world.settle()
        assert held.held == 1  # the others do not touch the disk meanwhile
        assert not any(upload.done() for upload in uploads)
        held.release()
        assert all([(await upload).complete for upload in uploads])

    scenario(test, concurrent_chunks=1)


def test_queued_chunks_are_limited_in_bytes():
    async def test(world):
        await world.open_round_two()
        held = HeldExecutor()
        held.is_holding = True
        world.aggregator._workers._general = held
        first, second = (
            asyncio.ensure_future(world.upload(who, VECTOR)) for who in "ab"
        )
        await world.settle()
        with pytest.raises(ServiceError) as caught:
            await world.upload("c", VECTOR)
        assert caught.value.code is ErrorCode.OVERLOADED
        held.release()
        assert (await first).complete
        assert (await second).complete
        assert (await world.upload("c", VECTOR)).complete

    scenario(test, concurrent_chunks=1, waiting_bytes=SIZE)


def test_one_client_sends_one_chunk_at_a_time():
    async def test(world):
        await world.open_round_two()
        held = HeldExecutor()
        held.is_holding = True
        world.aggregator._workers._general = held
        first = asyncio.ensure_future(world.upload("a", VECTOR))
        await world.settle()
        with pytest.raises(ServiceError) as caught:
            await world.upload("a", VECTOR)
        assert caught.value.code is ErrorCode.OVERLOADED
        held.release()
        assert (await first).complete

    scenario(test)


def test_a_chunk_of_a_disconnected_sender_is_finished_before_the_next_one():
    async def test(world):
        await world.open_round_two()
        held = HeldExecutor()
        held.is_holding = True
        world.aggregator._workers._general = held
        first = asyncio.ensure_future(world.upload("a", VECTOR))
        await world.settle()
        first.cancel()
        await asyncio.wait({first})
        with pytest.raises(ServiceError) as caught:
            await world.upload("a", VECTOR)  # would write beside the first
        assert caught.value.code is ErrorCode.OVERLOADED
        held.release()
        await world.settle()
        assert (await world.aggregator.answer("a", world.asking("a"))).complete

    scenario(test)


def test_a_task_stopped_by_its_disk_tells_clients_to_retry():
    async def test(world):
        world.disk.failure = ServiceError("full", code=ErrorCode.STORAGE_FAILED)
        with pytest.raises(ServiceError):
            await world.start()
        with pytest.raises(ServiceError) as caught:
            await world.aggregator.answer("a", GetOffer("t", after_session=0))
        assert caught.value.code is ErrorCode.SHUTTING_DOWN
        assert caught.value.retry_after_seconds
        world.disk.failure = None
        world.start()
        await world.settle()
        await world.join("a")

    scenario(test)


# --- streams --------------------------------------------------------------------------


def test_open_streams_are_limited_per_client_and_in_total():
    async def test(world):
        world.start()
        await world.settle()
        for name in ("a", "b"):
            await world.join(name)
        streams = [
            world.aggregator.watch(
                name, WatchSession(world.id, after=Round.ADVERTISE_KEYS)
            )
            for name in ("a", "b")
        ]
        for stream in streams:
            assert isinstance(await anext(stream), Wait)
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await world.settle()
        with pytest.raises(ServiceError) as caught:
            await anext(world.aggregator.watch("a", WatchSession(world.id, after=None)))
        assert caught.value.code is ErrorCode.OVERLOADED
        with pytest.raises(ServiceError) as caught:
            await anext(world.aggregator.watch("c", WatchSession(world.id, after=None)))
        assert caught.value.code is ErrorCode.OVERLOADED
        for task, stream in zip(waiting, streams, strict=True):
            task.cancel()
            await asyncio.wait({task})
            await stream.aclose()
        again = world.aggregator.watch(
            "a", WatchSession(world.id, after=Round.ADVERTISE_KEYS)
        )
        assert isinstance(await anext(again), Wait)

    scenario(test, watches_per_identity=1, watches=2)


def test_a_stream_repeatedly_reports_how_many_have_joined():
    """At once, and again before it was to be missed; to all who watch at one moment."""

    async def test(world):
        world.start()
        await world.settle()
        for name in ("a", "b"):
            await world.join(name)
        begun, told = world.clock.now(), []

        def note(name, said):
            told.append((world.clock.now() - begun, name, said))

        async def follow(name):
            stream = world.aggregator.watch(
                name, WatchSession(world.id, after=Round.ADVERTISE_KEYS)
            )
            async for said in stream:
                note(name, said)

        following = [asyncio.ensure_future(follow(name)) for name in "ab"]
        await world.settle()
        round_seconds = world.descriptor.parameters.deadlines.advertise_keys
        quiet = min(max(20.0, round_seconds / 3), 240.0)
        await world.clock.sleep_until(begun + 3 * 0.75 * quiet + 1)
        for each in following:
            each.cancel()
        assert [(seconds, name) for seconds, name, _ in told] == [
            (0.75 * quiet * part, name) for part in range(4) for name in "ab"
        ]
        assert {said.retry_after_seconds for _, _, said in told} == {quiet}
        assert {said.joined for _, _, said in told} == {2}

    scenario(test)


@pytest.mark.parametrize(("offset", "max_bytes"), [(-1, 5), (0, 0), (0, -1)])
def test_invalid_fetches_are_rejected(offset, max_bytes):
    async def test(world):
        world.payload = b"payload"
        world.start()
        await world.settle()
        await world.join("a")
        with pytest.raises(RemoteProtocolError):
            await world.aggregator.answer(
                "a",
                FetchChunk(
                    world.id, blob=Blob.PAYLOAD, offset=offset, max_bytes=max_bytes
                ),
            )

    scenario(test)


def test_an_invalid_stream_request_is_rejected_like_a_call():
    async def test(world):
        for call in (
            anext(world.aggregator.watch("a", WatchSession(b"short", None))),
            world.aggregator.answer("a", GetUpdate(b"short", None)),
        ):
            with pytest.raises(RemoteProtocolError) as caught:
                await call
            assert caught.value.code is ErrorCode.BAD_ENCODING

    scenario(test)


def test_a_large_update_is_sent_by_reference_and_fetched_by_each_reader(monkeypatch):
    monkeypatch.setattr(client_desk, "MAX_INLINE_BYTES", 100)

    async def test(world):
        world.start()
        await world.settle()
        for name in NAMES:
            await world.join(name)
        await world.settle()
        early = FetchChunk(world.id, Blob.DELIVERY, 0)
        with pytest.raises(RemoteProtocolError) as caught:
            await world.aggregator.answer("a", early)
        assert caught.value.code is ErrorCode.UNEXPECTED_MESSAGE
        roster = await world.referred("a", Round.ADVERTISE_KEYS)
        assert roster == await world.referred("b", Round.ADVERTISE_KEYS)
        assert roster.kind is Roster
        for name in NAMES:
            (output,) = world.step(name, Received(roster))
            await world.aggregator.answer(
                name, ShareKeys(world.id, output.envelope.data)
            )
        await world.settle()
        own = {await world.referred(name, Round.SHARE_KEYS) for name in NAMES}
        assert len(own) == len(NAMES)
        with pytest.raises(RemoteProtocolError):
            await world.aggregator.answer(
                "mallory", FetchChunk(world.id, Blob.DELIVERY, 0)
            )

    scenario(test)


async def read(world, name, blob, *, offset=0):
    chunk = await world.aggregator.answer(name, FetchChunk(world.id, blob, offset))
    return chunk.data


def test_roster_and_own_delivery_stay_readable_until_the_session_ends():
    async def test(world):
        world.payload = b"a model"
        await world.open_round_two()
        roster = await read(world, "a", Blob.ROSTER)
        own = {name: await read(world, name, Blob.DELIVERY) for name in NAMES}
        assert Roster.decode(roster)
        assert len(set(own.values())) == len(NAMES)
        for name in ("a", "b"):
            await world.upload(name, VECTOR if name == "a" else b"\x01" + VECTOR[1:])
        await world.clock.sleep_until(world.clock.now() + 301)
        assert isinstance(await world.update("a", Round.SHARE_KEYS), Survivors)
        for name in NAMES:  # c is lost, and reads what was its own all the same
            assert await read(world, name, Blob.ROSTER) == roster
            assert await read(world, name, Blob.DELIVERY) == own[name]
        await world.aggregator.end_task("t", "enough")
        await world.aggregator.abort(world.id, "enough")
        await world.settle()
        for blob in Blob:
            with pytest.raises(RemoteProtocolError) as caught:
                await read(world, "a", blob)
            assert caught.value.code is ErrorCode.SESSION_OVER

    scenario(test)


def test_a_fetch_at_the_end_is_empty_and_one_beyond_is_rejected():
    async def test(world):
        world.payload = b"a model"
        await world.open_round_two()
        for blob in (Blob.PAYLOAD, Blob.ROSTER, Blob.DELIVERY):
            whole = await read(world, "a", blob)
            assert await read(world, "a", blob, offset=len(whole)) == b""
            with pytest.raises(RemoteProtocolError) as caught:
                await read(world, "a", blob, offset=len(whole) + 1)
            assert caught.value.code is ErrorCode.BAD_ENCODING

    scenario(test)


def test_a_gap_in_an_upload_is_reported_with_the_next_offset():
    async def test(world):
        await world.open_round_two()
        part = {"total_size": SIZE, "digest": hashlib.sha256(VECTOR).digest()}
        await world.upload("a", VECTOR[:2], **part)
        with pytest.raises(ServiceError) as caught:
            await world.upload("a", VECTOR[3:], offset=3, **part)
        assert caught.value.code is ErrorCode.UPLOAD_CORRUPT
        assert as_seen_by_peer(caught.value).next_offset == 2

    scenario(test)


def test_a_sum_that_is_not_released_cannot_be_fetched():
    async def test(world):
        await world.open_round_two()
        with pytest.raises(RemoteProtocolError, match="not released"):
            await world.aggregator.answer(
                "a", FetchChunk(world.id, blob=Blob.SUM, offset=0, max_bytes=5)
            )

    scenario(test)


# --- the end --------------------------------------------------------------------------


async def end_for_lack_of_inputs(world):
    await world.open_round_two()
    await world.clock.sleep_until(world.clock.now() + 400)


def test_settling_waits_until_all_clients_know_the_outcome_or_a_timeout():
    async def test(world):
        await end_for_lack_of_inputs(world)
        started = world.clock.now()
        for name in ("a", "b"):
            update = await world.update(name, Round.SHARE_KEYS)
            assert update.code is ErrorCode.U3_TOO_SMALL
        await world.aggregator.settle(at_most_seconds=50.0)
        assert world.clock.now() - started == pytest.approx(50.0)  # c never asked

    scenario(test)


def test_settling_continues_while_clients_call_if_replicas_exist():
    async def test(world):
        await end_for_lack_of_inputs(world)
        started = world.clock.now()
        settled = asyncio.ensure_future(
            world.aggregator.settle(at_most_seconds=300.0, silent_seconds=15.0)
        )
        for name in ("a", "b", "a"):  # c is told by another aggregator
            await world.clock.sleep_until(world.clock.now() + 14.0)
            await world.update(name, Round.SHARE_KEYS)
        await settled
        assert world.clock.now() - started == pytest.approx(3 * 14.0 + 15.0)
        began = world.clock.now()  # long after the last call
        await world.clock.sleep_until(began + 100.0)
        await world.aggregator.settle(at_most_seconds=300.0, silent_seconds=15.0)
        assert world.clock.now() - began == pytest.approx(115.0)

    scenario(test)


def test_settling_ends_early_if_all_clients_know_the_outcome():
    async def test(world):
        await end_for_lack_of_inputs(world)
        started = world.clock.now()
        for name in NAMES:
            await world.update(name, Round.SHARE_KEYS)
        await world.aggregator.settle(at_most_seconds=50.0)
        assert world.clock.now() - started == pytest.approx(2.0)

    scenario(test, idle_timeout=2.0)


def test_unknown_callers_asking_for_the_outcome_use_no_memory():
    async def test(world):
        await end_for_lack_of_inputs(world)
        for number in range(100):
            update = await world.update(f"stranger {number}", None)
            assert isinstance(update, Aborted)
        session = world.aggregator._sessions.find(world.id)
        assert session.unacknowledged() == frozenset(NAMES)
        assert not session._facts._notified

    scenario(test)


def test_ending_a_task_waits_for_clients_told_to_retry_for_a_session():
    async def test(world):
        running = world.start()
        await world.settle()
        for name in ("late", "gone"):  # in the session that runs they were already
            answer = await world.aggregator.answer(name, GetOffer("t", 1))
            assert isinstance(answer, Wait)
        await world.aggregator.end_task("t", "enough")
        with pytest.raises(SessionAbortedError):
            await running
        settled = asyncio.ensure_future(world.aggregator.settle(at_most_seconds=60.0))
        begun = world.clock.now()
        await world.clock.sleep_until(begun + 1.2)
        assert not settled.done()
        with pytest.raises(ServiceError) as caught:
            await world.aggregator.answer("late", GetOffer("t", 1))
        assert caught.value.code is ErrorCode.TASK_OVER
        await settled
        # Who never comes back is not waited for much longer than a poll takes.
        assert world.clock.now() - begun < 4.0

    scenario(test)


# --- after the end (R5-1) -------------------------------------------------------------


def test_a_repeated_message_is_acknowledged_while_it_is_recorded():
    async def test(world):
        async def code_of(aggregator, request):
            try:
                await aggregator.answer("a", request)
            except SecAggError as error:
                return error.code
            return None

        async def next_process():
            again = Aggregator(
                world.store, world.spool, clock=world.clock, workers=world.workers
            )
            await again.recover()
            return again

        world.start()
        await world.settle()
        sent = await world.join("a")
        advert = AdvertiseKeys(world.id, sent)
        other = AdvertiseKeys(advert.session_id, b"another")
        ending = GetUpdate(advert.session_id, after=None)
        await world.aggregator.abort(advert.session_id, "enough")
        await world.settle()
        # The record is gone from the disk, and this process remembers.
        assert await code_of(world.aggregator, advert) is None
        assert await code_of(world.aggregator, other) is ErrorCode.EQUIVOCATION
        # The next process has the receipt: it tells the end, and takes nothing.
        second = await next_process()
        assert await code_of(second, advert) is ErrorCode.SESSION_OVER
        assert await code_of(second, other) is ErrorCode.SESSION_OVER
        assert await code_of(second, ending) is None
        # When that is gone as well, no replica knows the session.
        await world.store.commit(PurgeReceipts(Retention(keep_receipts=0)))
        third = await next_process()
        for request in (advert, other, ending):
            assert await code_of(third, request) is ErrorCode.UNKNOWN_SESSION

    scenario(test)


# --- questions for a session that wait ------------------------------------------------


def asking(world, name, *, wait_ms=30_000, after_session=0):
    request = GetOffer("t", after_session, wait_ms)

    async def answered():
        return await world.aggregator.answer(name, request), world.clock.now()

    return asyncio.ensure_future(answered())


def test_a_held_request_for_an_offer_is_answered_when_a_session_opens():
    async def test(world):
        world.task = replace(world.task, gate=TaskSchedule(paused=True))
        world.start()
        await world.settle()
        begun = world.clock.now()
        questions = [asking(world, name) for name in NAMES]
        await world.clock.sleep_until(begun + 17.5)
        assert not any(each.done() for each in questions)
        world.aggregator.resume_task("t")
        for question in questions:
            offer, instant = await question
            assert isinstance(offer, SessionDescriptor)
            assert instant == begun + 17.5

    scenario(test)


@pytest.mark.parametrize(
    ("wait_ms", "answered"), [(0, 0), (4_000, 0), (12_000, 10), (30_000, 30)]
)
def test_a_request_is_held_no_longer_than_asked(wait_ms, answered):
    async def test(world):
        world.task = replace(world.task, gate=TaskSchedule(paused=True))
        world.start()
        await world.settle()
        begun = world.clock.now()
        told, instant = await asking(world, "a", wait_ms=wait_ms)
        assert isinstance(told, Wait)
        assert instant == begun + answered
        # A client that has waited asks again at once.
        assert (told.retry_after_seconds < 0.1) == (answered > 0)

    scenario(test)


def test_held_requests_are_limited_per_client_and_in_total():
    async def test(world):
        world.task = replace(world.task, gate=TaskSchedule(paused=True))
        world.start()
        await world.settle()
        begun = world.clock.now()
        held = [asking(world, name) for name in ("a", "b")]
        await world.settle()
        for name in ("a", "c"):  # one too many of its own; one too many of all
            told, instant = await asking(world, name)
            assert isinstance(told, Wait)
            assert instant == begun
        held[0].cancel()  # a caller that goes away leaves its place
        await asyncio.wait({held[0]})
        assert (await asking(world, "c"))[1] == begun + 30

    scenario(test, held_per_identity=1, held=2)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda world: world.aggregator.drain(), ErrorCode.SHUTTING_DOWN),
        (lambda world: world.running.cancel(), ErrorCode.SHUTTING_DOWN),
    ],
)
def test_held_requests_are_answered_at_once_when_no_session_will_open(end, code):
    async def test(world):
        world.task = replace(world.task, gate=TaskSchedule(paused=True))
        world.running = world.start()
        await world.settle()
        begun = world.clock.now()
        question = asking(world, "a")
        await world.clock.sleep_until(begun + 3)
        end(world)
        with pytest.raises(ServiceError) as caught:
            await question
        assert caught.value.code is code
        assert world.clock.now() == begun + 3

    scenario(test)


def asking_for_update(world, name, *, wait_ms=30_000):
    request = GetUpdate(world.id, Round.ADVERTISE_KEYS, wait_ms)

    async def answered():
        return await world.aggregator.answer(name, request), world.clock.now()

    return asyncio.ensure_future(answered())


def test_a_held_request_for_an_update_is_answered_when_the_round_opens():
    async def test(world):
        world.start()
        await world.settle()
        for name in NAMES[:-1]:
            await world.join(name)
        await world.settle()
        begun = world.clock.now()
        questions = [asking_for_update(world, name) for name in NAMES[:-1]]
        await world.clock.sleep_until(begun + 3.5)
        assert not any(each.done() for each in questions)
        await world.join(NAMES[-1])
        for question in questions:
            update, instant = await question
            assert update.kind is Roster
            assert instant == begun + 3.5

    scenario(test)


@pytest.mark.parametrize(
    ("wait_ms", "answered"), [(0, 0), (4_000, 0), (12_000, 10), (30_000, 30)]
)
def test_a_request_for_an_update_is_held_no_longer_than_asked(wait_ms, answered):
    async def test(world):
        world.start()
        await world.settle()
        await world.join("a")
        begun = world.clock.now()
        told, instant = await asking_for_update(world, "a", wait_ms=wait_ms)
        assert isinstance(told, Wait)
        assert instant == begun + answered
        # A caller that was held asks again at once, another one does not.
        assert (told.retry_after_seconds < 0.1) == (answered > 0)

    scenario(test)


def test_held_requests_for_updates_and_for_offers_share_their_limit():
    async def test(world):
        world.start()
        await world.settle()
        await world.join("a")
        begun = world.clock.now()
        held = asking_for_update(world, "a")
        await world.settle()
        told, instant = await asking_for_update(world, "a")
        assert isinstance(told, Wait)
        assert instant == begun
        held.cancel()  # its place is free again
        await asyncio.wait({held})
        assert (await asking_for_update(world, "a"))[1] == begun + 30

    scenario(test, held_per_identity=1)
