"""Clients that visit an aggregator now and then, and die between two visits."""

import ast
import asyncio
import re
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.carrier import memory_directory, step_client
from secagg_testing.cohorts import parameters_for, signing_parameters_for, with_noise
from secagg_testing.crash_points import (
    CrashingConnection,
    CrashSwitch,
    SimulatedCrashError,
)
from secagg_testing.inline_store import inline_store
from secagg_testing.lossy_connection import Fault, LossyConnection

from secagg import advanced
from secagg.client.visit import visit
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Envelope, Roster
from secagg.protocol.profiles import Profile, RoundDeadlines
from secagg.protocol.rounds import ROUNDS, rounds_of
from secagg.runtime.workers import Workers
from secagg.server.aggregator import Aggregator
from secagg.server.engine.mask_removal import MaskExecutor
from secagg.server.rpc.limits import AggregatorLimits
from secagg.server.task.definition import TaskDefinition
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.testbed.connections import ConnectionAround
from secagg.transport.connection import InMemoryConnection
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
    SignConsistency,
    UploadChunk,
    Wait,
)
from tests.cases import cells_from, on_every_graph

DAY = 86_400
NAMES = ("ann", "bob", "cleo", "dan")
MORE_NAMES = (*NAMES, "eve", "fay")
LONG = {
    "advertise_keys": DAY,
    "share_keys": 2 * DAY,
    "masked_input": 2 * DAY,
    "consistency": 2 * DAY,
    "unmasking": 2 * DAY,
}
PROFILES = {
    "honest": parameters_for(
        4,
        dimension=5,
        threshold=3,
        deadlines=RoundDeadlines.of(Profile.HONEST_CURIOUS_SERVER, **LONG),
    ),
    "malicious": signing_parameters_for(
        4,
        dimension=5,
        deadlines=RoundDeadlines.of(Profile.MALICIOUS_SERVER, **LONG),
    ),
}


@dataclass
class Phones:
    """An aggregator in memory, and clients whose every visit is a new process."""

    clock: manual_clock.ManualClock
    parameters: object
    home: object
    options: dict = field(default_factory=dict)
    fault_of: object = staticmethod(lambda _name, _call, _number: Fault.NONE)
    payload: bytes = b""
    task: str = "sums"

    def __post_init__(self):
        workers = Workers(general=InlineExecutor())
        self.aggregator = Aggregator(
            inline_store(),
            UploadSpool(MemoryBlobs()),
            clock=self.clock,
            entropy=SeededEntropy(SecretBytes(bytes(32)), b"test"),
            workers=workers,
            masks=MaskExecutor(
                workers, manual_clock.inline_engine(1), min_work_per_part=1
            ),
            limits=AggregatorLimits(poll_seconds=60.0),
        )
        self.sums = []
        self.links = {}
        self.vectors = Counter()

    def start(self, *, attempts=1):
        async def next_payload(_):
            return self.payload

        async def on_sum(released):
            self.sums.append(released)

        task = TaskDefinition(
            task_id=self.task, parameters=self.parameters, max_attempts=attempts
        )
        return asyncio.ensure_future(
            self.aggregator.run_task(task, next_payload=next_payload, on_sum=on_sum)
        )

    def link(self, name):
        if name not in self.links:
            there = InMemoryConnection(self.aggregator, name, aggregator="aggregator")
            self.links[name] = LossyConnection(
                name,
                lambda: there,
                lambda call, number: self.fault_of(name, call, number),
            )
        return self.links[name]

    def make_vector(self, name):
        def make(info, payload):
            assert info.descriptor.task_id == self.task
            assert payload == self.payload
            self.vectors[name] += 1
            return np.full(5, 1 + MORE_NAMES.index(name))

        return make

    def client(self, name, **changes):
        options = {"aggregator": "aggregator", "clock": self.clock.date}
        return step_client(
            name, self.parameters, self.home, **(options | self.options | changes)
        )

    async def visit(self, name, connection=None, **changes):
        arguments = {"task": "sums", "vector": self.make_vector(name)} | changes
        with self.client(name) as client:
            return await visit(
                client,
                connection or self.link(name),
                clock=self.clock,
                **({"threads": InlineExecutor()} | arguments),
            )

    async def sleep(self, seconds):
        await self.clock.sleep_until(self.clock.now() + seconds)


def scenario(test, parameters=PROFILES["honest"], **options):
    async def main(clock):
        with memory_directory() as home:
            phones = Phones(clock, parameters, home, **options)
            try:
                await test(phones)
            finally:
                await phones.aggregator.close()
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                    await asyncio.wait({task})

    manual_clock.run(main)


async def visit_until_the_sum(phones, name, *, most=30, crash=None):
    """Visit at the instants that visits return; return contribution and instants."""
    instants = []
    for _ in range(most):
        instants.append(phones.clock.now())
        link = phones.link(name)
        if crash is not None and not crash.is_dead:
            link = CrashingConnection(link, crash)
        try:
            found = await phones.visit(name, link)
        except SimulatedCrashError:
            await phones.sleep(60)
            continue
        except ServiceError as error:
            if error.code is not ErrorCode.UNREACHABLE:
                raise
            await phones.sleep(3600)
            continue
        if found.contribution is not None:
            return found.contribution, instants
        await phones.sleep(found.come_back_seconds)
    raise AssertionError(f"{name} has visited {most} times without a sum")


# --- the whole of a session -----------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_phones_that_return_when_told_get_an_exact_sum_over_days(profile):
    async def test(phones):
        phones.start()
        given = await asyncio.gather(
            *(visit_until_the_sum(phones, name) for name in NAMES)
        )
        for contribution, instants in given:
            np.testing.assert_array_equal(contribution.values, np.full(5, 10))
            assert contribution.inputs == 4
            # One visit for each round, one that finds the next one open, and the sum.
            assert len(instants) <= 3 * len(rounds_of(phones.parameters.profile))
        assert phones.vectors == Counter(NAMES)

    scenario(test, PROFILES[profile])


def test_a_phone_in_a_task_with_noise_is_charged_once():
    async def test(phones):
        phones.start()
        given = await asyncio.gather(
            *(visit_until_the_sum(phones, name) for name in NAMES)
        )
        assert [each.inputs for each, _ in given] == [4] * 4
        assert [each.sessions_left for each, _ in given] == [0] * 4

    parameters = replace(
        with_noise(parameters_for(4, dimension=5, threshold=3)),
        deadlines=PROFILES["honest"].deadlines,
    )
    scenario(test, parameters)


@pytest.mark.parametrize("first", range(5))
@cells_from(on_every_graph(5), "signed")
def test_a_phone_is_killed_at_each_of_its_calls_and_the_sum_is_exact(parameters, first):
    """At every fifth point from the `first`, in runs that follow one another."""
    points, profile = first, parameters.profile
    names = MORE_NAMES[: parameters.max_clients]
    rounds = {ROUNDS[each].deadline for each in rounds_of(profile)} - {""}
    deadlines = RoundDeadlines.of(profile, **dict.fromkeys(rounds, 2 * DAY))
    parameters = replace(parameters, deadlines=deadlines)

    async def test(phones):
        nonlocal points
        switch = CrashSwitch(at=points)
        phones.start()
        given = await asyncio.gather(
            visit_until_the_sum(phones, "ann", crash=switch),
            *(visit_until_the_sum(phones, name) for name in names[1:]),
        )
        points = points + 5 if switch.is_dead else -1
        total = sum(range(1, len(names) + 1))
        for contribution, _ in given:
            np.testing.assert_array_equal(contribution.values, np.full(5, total))

    while points >= 0:
        scenario(test, parameters)


def test_messages_are_repeated_with_the_same_bytes():
    """Requests and answers are lost in every round."""

    async def test(phones):
        phones.start()
        given = await asyncio.gather(
            *(visit_until_the_sum(phones, name) for name in NAMES)
        )
        for contribution, _ in given:
            np.testing.assert_array_equal(contribution.values, np.full(5, 10))
        for link in phones.links.values():
            assert set(link.distinct_messages().values()) == {1}

    lost = (AdvertiseKeys, ShareKeys, UploadChunk, SignConsistency, RevealShares)

    def fault_of(name, call, number):
        if call not in lost or number >= 2:
            return Fault.NONE
        return (Fault.LOSE_ANSWER, Fault.LOSE_REQUEST)[(number + len(name)) % 2]

    scenario(test, PROFILES["malicious"], fault_of=fault_of)


def test_without_a_kept_upload_one_visit_makes_and_sends_the_vector_once():
    async def test(phones):
        phones.start()
        await asyncio.gather(*(visit_until_the_sum(phones, name) for name in NAMES))
        assert phones.vectors == Counter(NAMES)

    scenario(test, options={"keep_upload": False}, payload=b"what all of them read")


# --- one visit ------------------------------------------------------------------------


def test_a_visit_makes_one_request_and_sends_nothing_after_the_answer():
    async def test(phones):
        phones.start()
        await phones.sleep(1)
        asked = []

        class Watched:
            def __init__(self, inner):
                self.inner = inner

            def __getattr__(self, name):
                return getattr(self.inner, name)

            async def call(self, request):
                asked.append(type(request))
                return await self.inner.call(request)

        link = Watched(phones.link("ann"))
        first = await phones.visit("ann", link)
        assert (asked, first.has_sent) == ([GetOffer, AdvertiseKeys], True)
        asked.clear()
        second = await phones.visit("ann", link)
        assert (asked, second.has_sent) == ([GetUpdate], False)

    scenario(test)


def test_a_phone_returns_after_the_round_closes_and_before_the_next_one_ends():
    async def test(phones):
        phones.start()
        await phones.sleep(1)
        await phones.visit("ann")
        await phones.sleep(DAY / 4)
        found = await phones.visit("ann")
        closes = 3 / 4 * DAY
        assert closes <= found.come_back_seconds <= 1.05 * closes
        for name in NAMES[1:]:
            await phones.visit(name)
        await phones.sleep(found.come_back_seconds)
        # The next round opened at once, and lasts two days: ann is in time.
        shared = await phones.visit("ann")
        assert shared.has_sent
        # MaskedInputCollection may open at once, too, and be over after two days.
        assert shared.come_back_seconds <= 0.9 * 2 * DAY

    scenario(test)


def test_a_visit_can_hold_its_request_until_an_answer_exists():
    async def test(phones):
        phones.start()
        await phones.sleep(1)
        for name in NAMES[:3]:
            await phones.visit(name)
        waiting = asyncio.ensure_future(phones.visit("ann", held_seconds=25.0))
        await phones.sleep(10)
        assert not waiting.done()
        await phones.visit("dan")
        assert (await waiting).has_sent

    scenario(test)


def test_without_a_session_a_visit_returns_the_time_of_the_next_one():
    async def test(phones):
        phones.start()
        await phones.sleep(1)
        for name in NAMES:
            await phones.visit(name)
        found = await phones.visit("eve", vector=None)
        assert (found.come_back_seconds, found.session_number) == (1.0, 0)

    scenario(test)


def test_a_phone_that_missed_a_round_is_told_that_it_is_excluded():
    async def test(phones):
        phones.start()
        await phones.sleep(1)
        for name in NAMES:
            await phones.visit(name)
        await phones.sleep(1)
        for name in NAMES[:3]:
            await phones.visit(name)
        await phones.sleep(2 * DAY + 1)
        with pytest.raises((SessionAbortedError, RemoteProtocolError)):
            await phones.visit("dan")
        with phones.client("dan") as client:
            assert client.place("sums").offer == b""
        await asyncio.gather(*(visit_until_the_sum(phones, name) for name in NAMES[:3]))
        (released,) = phones.sums
        np.testing.assert_array_equal(released.residues, np.full(5, 6))

    scenario(test)


async def visit_until_the_upload(phones):
    """Start a session; have each phone send its keys and its shares."""
    phones.start()
    await phones.sleep(1)
    for _ in range(2):
        for name in NAMES:
            await phones.visit(name)
        await phones.sleep(1)


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_a_failing_function_gives_zeros_with_noise_and_an_error_without(kind):
    def fail(*_):
        raise kind("the sensor is broken")

    async def noised(phones):
        phones.start()
        given = await asyncio.gather(
            *(visit_until_the_sum(phones, name) for name in NAMES)
        )
        assert [each.inputs for each, _ in given] == [4] * 4

    async def exact(phones):
        await visit_until_the_upload(phones)
        phones.make_vector = lambda _: fail
        with pytest.raises(kind, match="sensor"):
            await phones.visit("ann")
        del phones.make_vector
        assert (await phones.visit("ann")).has_sent  # the session continues

    parameters = with_noise(parameters_for(4, dimension=5, threshold=3))
    make = Phones.make_vector
    try:
        Phones.make_vector = lambda self, name: (
            fail if name == "ann" else make(self, name)
        )
        scenario(noised, parameters)
    finally:
        Phones.make_vector = make
    scenario(exact)


def test_another_aggregator_receives_nothing_of_the_session():
    async def test(phones):
        phones.start()
        await phones.sleep(1)
        await phones.visit("ann")
        other = InMemoryConnection(phones.aggregator, "ann", aggregator="other")
        with pytest.raises(ServiceError, match="other") as refused:
            await phones.visit("ann", other)
        assert refused.value.code is ErrorCode.UNREACHABLE
        assert (await phones.visit("ann")).session_number == 1

    scenario(test)


def test_a_vector_that_is_not_ready_in_time_is_replaced_by_zeros():
    # R3.5-5: a server that chooses the payload would else learn who is slow.
    go_on = threading.Event()

    async def test(phones):
        await visit_until_the_upload(phones)
        before = phones.clock.now()
        found = await phones.visit("ann", vector=lambda *_: go_on.wait(), threads=None)
        assert found.has_sent
        assert phones.clock.now() - before == 0.7 * LONG["masked_input"]
        given = await asyncio.gather(
            *(visit_until_the_sum(phones, name) for name in NAMES)
        )
        assert [each.inputs for each, _ in given] == [4] * 4

    try:
        scenario(
            test,
            with_noise(
                parameters_for(
                    4, dimension=5, threshold=3, deadlines=PROFILES["honest"].deadlines
                )
            ),
        )
    finally:
        go_on.set()


def test_a_phone_rejected_for_its_view_binds_no_input_and_is_not_charged():
    # R5.3-14.
    class Refusing(ConnectionAround):
        async def call(self, request):
            if isinstance(request, GetUploadStatus):
                raise ErrorCode.VIEW_DIFFERS.error("it has another view")
            assert not isinstance(request, UploadChunk)
            return await super().call(request)

    async def test(phones):
        await visit_until_the_upload(phones)
        with pytest.raises(RemoteProtocolError) as refused:
            await phones.visit("ann", Refusing(phones.link("ann")))
        assert refused.value.code is ErrorCode.VIEW_DIFFERS
        assert phones.vectors["ann"] == 0
        with phones.client("ann") as client:
            assert client.place("sums").offer == b""
            assert client.sessions_left("sums") is None  # nothing was ever charged

    scenario(test, with_noise(parameters_for(4, dimension=5, threshold=3)))


def test_a_wrong_payload_creates_no_vector():
    class Exchanging(ConnectionAround):
        async def call(self, request):
            answer = await super().call(request)
            if isinstance(request, FetchChunk):
                return replace(answer, data=answer.data[::-1])
            return answer

    # R10-3.
    async def test(phones):
        await visit_until_the_upload(phones)
        with pytest.raises(RemoteProtocolError) as refused:
            await phones.visit("ann", Exchanging(phones.link("ann")))
        assert refused.value.code is ErrorCode.PAYLOAD_MISMATCH
        assert phones.vectors["ann"] == 0

    scenario(test, payload=b"what all of them read")


def test_an_update_larger_than_its_session_allows_is_not_fetched():
    asked = []

    class Large(ConnectionAround):
        async def call(self, request):
            asked.append(type(request))
            if isinstance(request, GetUpdate):
                return Reference(Roster, bytes(32), 10**9, Blob.ROSTER)
            return await super().call(request)

    async def test(phones):
        phones.start()
        await phones.sleep(1)
        await phones.visit("ann")
        with pytest.raises(RemoteProtocolError, match="bytes") as refused:
            await phones.visit("ann", Large(phones.link("ann")))
        assert refused.value.code is ErrorCode.BAD_ENCODING
        assert asked == [GetUpdate]

    scenario(test)


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "named"])
@pytest.mark.parametrize("is_same", [True, False], ids=["same", "other"])
def test_an_aggregator_that_repeats_an_update_is_left(is_same, is_whole):
    # R10-1.
    heard, asked = [], []

    class Repeating(ConnectionAround):
        async def call(self, request):
            asked.append(type(request))
            if not isinstance(request, GetUpdate) or not heard:
                answer = await super().call(request)
                heard.extend([answer] if isinstance(request, GetUpdate) else [])
                return answer
            data = heard[0].data if is_same else heard[0].data + bytes(5000)
            update = Envelope(heard[0].kind, data)
            return update if is_whole else Reference.for_message(update)

    async def test(phones):
        phones.start()
        await phones.sleep(1)
        for name in NAMES:
            await phones.visit(name)
        await phones.sleep(1)
        repeating = Repeating(phones.link("ann"))
        await phones.visit("ann", repeating)
        assert heard[0].kind is Roster
        asked.clear()
        with pytest.raises((RemoteProtocolError, SessionAbortedError)) as refused:
            await phones.visit("ann", repeating)
        has_compared = is_whole and not is_same
        assert refused.value.code is (
            ErrorCode.EQUIVOCATION if has_compared else ErrorCode.UNEXPECTED_MESSAGE
        )
        assert asked == [GetUpdate]
        with phones.client("ann") as client:
            assert client.place("sums").offer == b""

    scenario(test)


def test_a_session_unknown_to_the_aggregator_is_left():
    async def test(phones):
        phones.start()
        await phones.sleep(1)
        await phones.visit("ann")
        phones.__post_init__()
        phones.start()
        await phones.sleep(1)
        with pytest.raises(ServiceError) as refused:
            await phones.visit("ann")
        assert refused.value.code is ErrorCode.UNKNOWN_SESSION
        with phones.client("ann") as client:
            assert client.place("sums").offer == b""

    scenario(test)


@pytest.mark.parametrize("name", ["held_seconds", "visit_seconds", "max_payload_bytes"])
def test_an_argument_out_of_range_is_named_in_the_error(name):
    async def test(phones):
        with pytest.raises(LocalProtocolError, match=name):
            await phones.visit("ann", **{name: -1})

    scenario(test)


# --- what an aggregator says ----------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_the_duration_of_a_round_is_reported_only_to_clients_that_answered(profile):
    async def test(phones):
        phones.start()
        await phones.sleep(1)
        offers = {name: await phones.visit(name) for name in NAMES}
        assert all(each.has_sent for each in offers.values())
        await phones.sleep(1)
        with phones.client("ann") as client:
            session = SessionDescriptor.decode(client.place("sums").offer)
        for which in rounds_of(phones.parameters.profile)[1:]:
            await phones.visit("ann")
            for name in NAMES:
                told = await phones.aggregator.answer(
                    name, GetUpdate(session.session_id, which)
                )
                assert isinstance(told, Wait)
                assert (told.closes_in_seconds is not None) is (name == "ann")
                if name == "ann":
                    assert 0 < told.closes_in_seconds <= 2 * DAY
            for name in NAMES[1:]:
                await phones.visit(name)
            await phones.sleep(1)

    scenario(test, PROFILES[profile])


# --- the page -------------------------------------------------------------------------

PAGE = Path(__file__).parents[4] / "docs" / "phones.md"


def test_the_program_on_the_page_completes_a_visit(monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    program = compile(block, PAGE.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def test(phones):
        phones.start()
        own = {"clock": phones.clock, "threads": InlineExecutor()}
        monkeypatch.setattr(advanced, "visit", partial(visit, **own))

        async def phone(name):
            slept = []
            names = {
                "connection": phones.link(name),
                "make_vector": phones.make_vector(name),
                "schedule_next_wake_up": slept.append,
            }
            while "done" not in names or names["done"].contribution is None:
                await phones.sleep(sum(slept))
                slept.clear()
                names["client"] = phones.client(name)
                await eval(program, names)
            return names["done"].contribution

        for given in await asyncio.gather(*map(phone, NAMES)):
            np.testing.assert_array_equal(given.values, np.full(5, 10))

    scenario(test, task="steps")
