"""One client against aggregators that lie, lose state, stall or disconnect."""

import asyncio
import dataclasses
import itertools
from types import SimpleNamespace

import pytest
from secagg_testing import manual_clock
from secagg_testing.client_state import LastingStore, client_over
from secagg_testing.cohorts import LENIENT_POLICY, offer_of, parameters_for, with_noise
from secagg_testing.crash_points import CrashSwitch
from secagg_testing.deployment import TASK_ID, Deployment, one_hot_input
from secagg_testing.inline_store import answer_of
from secagg_testing.lying_connection import LyingConnection, instead
from secagg_testing.scripted_service import ScriptedService

from secagg.client.open_client import StoredPart
from secagg.client.retry_policy import Backoff
from secagg.client.session_driver import (
    ClientPhase,
    SessionDriver,
    SessionOutcome,
    SessionSettings,
)
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
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import PlainVector
from secagg.protocol.messages import (
    Aborted,
    Delivery,
    Envelope,
    Fate,
    Released,
    Roster,
    Round,
    Survivors,
)
from secagg.runtime.clock import finish_before
from secagg.simulation import identity_of
from secagg.storage.budget_ledger import ChargeState
from secagg.storage.change import Side
from secagg.storage.queries import ListCharges, ListSessions
from secagg.storage.rows import SessionState
from secagg.transport.connection import InMemoryConnection
from secagg.transport.handshake import UnexpectedPeerError
from secagg.wire.calls import (
    AdvertiseKeys,
    Blob,
    BlobChunk,
    FetchChunk,
    GetOffer,
    GetUpdate,
    RevealShares,
    UploadChunk,
    UploadStatus,
    Wait,
    WatchSession,
)

CLIENTS = 4
VICTIM = 1


def both(change):
    """Change the messages to a client, whether it polls or streams."""
    return {GetUpdate: change, WatchSession: change}


def run(changes=None, *, absent=(), **options):
    parameters = parameters_for(CLIENTS, dimension=9, threshold=3)

    def tamper(number, connection):
        tampered = changes and number == VICTIM
        return LyingConnection(connection, changes) if tampered else connection

    async def main(clock):
        deployment = Deployment(
            clock, parameters, CLIENTS, tamper=tamper, max_attempts=1, **options
        )
        endings = await deployment.run(absent=frozenset(absent))
        return deployment, endings

    return manual_clock.run(main)


def assert_left(deployment, endings, code, *, kind=RemoteProtocolError):
    """The victim left with this code and kept nothing; the others have their sum."""
    assert isinstance(endings[VICTIM], kind)
    assert endings[VICTIM].code is code
    store = deployment.client_stores[VICTIM]
    assert answer_of(store.read(ListSessions(role=Side.CLIENT))) == ()
    (released,) = deployment.sums
    assert released.survivors in {CLIENTS - 1, CLIENTS}


# --- lies -----------------------------------------------------------------------------


def test_a_replayed_session_number_is_rejected():
    first = []

    def replay(answer):
        if isinstance(answer, SessionDescriptor):
            first.append(answer)
            return first[0]
        return first[0] if first else answer

    deployment, endings = run({GetOffer: replay}, sessions=2)
    assert endings[VICTIM].code is ErrorCode.REPLAYED_SESSION
    assert [released.survivors for released in deployment.sums] == [4, 3]


def test_an_offer_of_another_task_is_refused():
    def other_task(answer):
        if isinstance(answer, SessionDescriptor):
            return dataclasses.replace(answer, task_id="another")
        return answer

    parameters = parameters_for(CLIENTS, dimension=9, threshold=3)

    async def main(clock):
        deployment = Deployment(clock, parameters, CLIENTS)
        serving = asyncio.ensure_future(deployment.serve())
        await clock.sleep_until(clock.now() + 1)
        runner = client_over(
            identity_of(VICTIM),
            LyingConnection(deployment._link(VICTIM), {GetOffer: other_task}),
            make_input=deployment._input(VICTIM),
            clock=clock,
        )
        with pytest.raises(RemoteProtocolError, match="another") as caught:
            await runner.run_session(TASK_ID)
        assert caught.value.code is ErrorCode.BAD_CONFIG
        serving.cancel()
        await asyncio.wait({serving})

    manual_clock.run(main)


def test_an_offer_against_the_policy_is_rejected_and_not_stored():
    policy = dataclasses.replace(LENIENT_POLICY, min_clients=1000)

    async def main(clock):
        parameters = parameters_for(CLIENTS, dimension=9, threshold=3)
        deployment = Deployment(clock, parameters, CLIENTS)
        serving = asyncio.ensure_future(deployment.serve())
        await clock.sleep_until(clock.now() + 1)
        store = LastingStore.make()
        runner = client_over(
            identity_of(VICTIM),
            deployment._link(VICTIM),
            store,
            policy=policy,
            make_input=deployment._input(VICTIM),
            clock=clock,
        )
        with pytest.raises(RemoteProtocolError, match="min_clients") as caught:
            await runner.run_session(TASK_ID)
        assert caught.value.code is ErrorCode.POLICY_VIOLATION
        assert (
            await store.read(ListSessions(role=Side.CLIENT, state=SessionState.ALL))
            == ()
        )
        serving.cancel()
        await asyncio.wait({serving})

    manual_clock.run(main)


def test_a_wrong_payload_is_rejected_before_joining():
    deployment, endings = run(
        {FetchChunk: lambda _: BlobChunk(b"another model", 13)},
        payload=b"the real model",
    )
    assert_left(deployment, endings, ErrorCode.PAYLOAD_MISMATCH)
    assert not any(
        method is AdvertiseKeys
        for _, method in deployment.links[VICTIM].distinct_messages()
    )


def test_a_payload_beyond_the_limit_is_not_fetched():
    fetched = []

    def endless(chunk):
        fetched.append(chunk)
        return BlobChunk(bytes(1000), 1 << 40)

    deployment, endings = run({FetchChunk: endless}, payload=b"p")
    assert_left(deployment, endings, ErrorCode.PAYLOAD_MISMATCH)
    assert len(fetched) == 1


def test_a_sum_that_differs_from_the_announced_hash_is_rejected():
    def change(chunk):
        return BlobChunk(bytes(len(chunk.data)), chunk.total_size)

    deployment, endings = run({FetchChunk: change})
    assert_left(deployment, endings, ErrorCode.PAYLOAD_MISMATCH)


def test_an_announced_sum_of_the_wrong_size_is_refused():
    def change(released):
        return dataclasses.replace(released, size=10**12)

    deployment, endings = run(both(instead(Released, change)))
    assert_left(deployment, endings, ErrorCode.BAD_VECTOR)


def test_a_repeated_old_update_ends_the_session():
    rosters = []

    def change(update):
        if isinstance(update, Envelope) and update.kind is Roster:
            rosters.append(update)
        return rosters[0] if rosters and not isinstance(update, Wait) else update

    deployment, endings = run(both(change))
    assert_left(deployment, endings, ErrorCode.UNEXPECTED_MESSAGE)


@pytest.mark.parametrize(
    ("kind", "change", "code"),
    [
        (
            Roster,
            lambda u: Envelope(Roster, u.encode()[:-1]),
            ErrorCode.BAD_ENCODING,
        ),
        (
            Delivery,
            lambda u: Delivery(u.share_holders, u.bundles[:-1]),
            ErrorCode.BAD_SHARE_CIPHERTEXT,
        ),
        (
            Survivors,
            lambda _: Survivors(b"\x0d"),  # without the reader itself
            ErrorCode.U3_INVALID,
        ),
    ],
)
def test_a_violation_in_any_round_ends_the_session_and_erases_its_keys(
    kind, change, code
):
    deployment, endings = run(both(instead(kind, change)))
    assert_left(deployment, endings, code)
    revealed = [m for _, m in deployment.links[VICTIM].distinct_messages()]
    assert RevealShares not in revealed


def test_a_server_that_never_advances_the_upload_is_left():
    deployment, endings = run({UploadChunk: lambda _: UploadStatus(0)})
    assert_left(deployment, endings, ErrorCode.UPLOAD_CORRUPT)


@pytest.mark.parametrize("offset", [-1, 10**9])
def test_a_server_that_requests_an_impossible_offset_is_left(offset):
    deployment, endings = run({UploadChunk: lambda _: UploadStatus(offset)})
    assert_left(deployment, endings, ErrorCode.UPLOAD_CORRUPT)


def test_excessive_waits_are_capped():
    waits = []

    def patience(answer):
        if isinstance(answer, Wait):
            waits.append(answer)
            return Wait(1e9)
        return answer

    fault = {GetUpdate: patience, WatchSession: lambda update: update}
    _, endings = run(fault, absent={3})
    assert isinstance(endings[VICTIM], SessionOutcome)


def test_a_stricter_policy_ends_an_interrupted_session():
    undisturbed = CrashSwitch()
    run(client_crash={VICTIM: undisturbed})
    crash_before_upload = CrashSwitch(undisturbed.points.index("before UploadChunk"))

    async def main(clock):
        parameters = parameters_for(CLIENTS, dimension=9, threshold=3)
        deployment = Deployment(
            clock, parameters, CLIENTS, client_crash={VICTIM: crash_before_upload}
        )
        crash_before_upload.on_death(
            lambda: setattr(
                deployment,
                "policy",
                dataclasses.replace(LENIENT_POLICY, min_clients=1000),
            )
        )
        return deployment, await deployment.run()

    deployment, endings = manual_clock.run(main)
    appended = crash_before_upload.points.count("after append")
    assert appended == 3  # roster, shares, digest of the input
    assert_left(deployment, endings, ErrorCode.POLICY_VIOLATION)


# --- no answer ----------------------------------------------------------------------


def test_an_aggregator_without_the_session_ends_it():
    def forget(_update):
        raise ServiceError("no such session", code=ErrorCode.UNKNOWN_SESSION)

    deployment, endings = run(both(forget))
    assert_left(deployment, endings, ErrorCode.UNKNOWN_SESSION, kind=ServiceError)


def test_an_aggregator_that_disappears_causes_a_deadline_error():
    def vanish(_update):
        raise ServiceError("gone", code=ErrorCode.UNREACHABLE)

    deployment, endings = run(both(vanish))
    # The place in it is kept until the server says that it is over.
    assert isinstance(endings[VICTIM], ServiceError)
    assert endings[VICTIM].code is ErrorCode.UNREACHABLE
    assert endings[VICTIM].next_step
    assert all(isinstance(endings[n], SessionOutcome) for n in endings if n != VICTIM)
    (row,) = answer_of(
        deployment.client_stores[VICTIM].read(ListSessions(role=Side.CLIENT))
    )
    assert row.number == 1


def test_a_client_reports_an_unreachable_aggregator_every_few_seconds():
    told = []

    async def main(clock):
        class Unreachable:
            identity = "c1"
            trust_domain = None

            async def call(self, _request):
                raise ServiceError(
                    "nothing listens there",
                    code=ErrorCode.UNREACHABLE,
                    next_step="Start it.",
                    retry_after_seconds=1.0,
                )

        def note(progress):
            if progress.phase is ClientPhase.UNREACHABLE:
                told.append((clock.now() - began, progress.reason))

        began = clock.now()
        runner = client_over(
            "c1",
            Unreachable(),
            settings=SessionSettings(offer_seconds=120.0),
            clock=clock,
            on_progress=note,
        )
        with pytest.raises(SessionAbortedError, match="nothing listens there"):
            await runner.run_session("t")

    manual_clock.run(main)
    instants = [instant for instant, _ in told]
    gaps = [later - one for one, later in itertools.pairwise(instants)]
    assert instants[0] == 0
    # Calls are at most 12.5 s apart, and most are closer than 5 s at first.
    assert all(5.0 <= gap <= 17.5 for gap in gaps)
    assert len(told) >= 120 / 17.5
    assert {reason for _, reason in told} == {"nothing listens there. Start it."}


def test_a_client_without_a_time_limit_logs_an_unreachable_server_every_ten_minutes():
    told = []

    async def main(clock):
        async def refuse(*_):
            raise ServiceError("nothing listens there", code=ErrorCode.UNREACHABLE)

        runner = client_over(
            "c1",
            InMemoryConnection(ScriptedService({GetOffer: refuse}), "c1"),
            settings=SessionSettings(offer_seconds=None),
            clock=clock,
            on_progress=lambda each: told.append(each.phase),
        )
        with pytest.raises(TimeoutError):
            await finish_before(clock, clock.now() + 7200, runner.run_session("t"))

    manual_clock.run(main)
    assert 7 <= told.count(ClientPhase.UNREACHABLE) <= 13


def test_waiting_for_an_offer_is_limited_by_default():
    async def main(clock):
        silent = ScriptedService(script={GetOffer: Wait(1.0)})

        runner = client_over(
            "me",
            InMemoryConnection(silent, "me"),
            make_input=lambda *_: None,
            settings=SessionSettings(offer_seconds=100.0),
            clock=clock,
        )
        started = clock.now()
        with pytest.raises(SessionAbortedError) as caught:
            await runner.run_session("t")
        assert caught.value.code is ErrorCode.DEADLINE
        assert clock.now() - started == pytest.approx(100)

    manual_clock.run(main)


# --- the end of the session (R5-7) ----------------------------------------------------


def at_the_end(script):
    """Run a client whose session ends ten seconds after its offer.

    Returns:
        Its messages and requests from then on, and the error that it ends with.
    """

    async def main(clock):
        asked = []

        async def offered(_, __):
            parameters = parameters_for(CLIENTS, dimension=9, threshold=3)
            return offer_of(parameters, session_end=int(clock.date()) + 10)

        class Timed(InMemoryConnection):
            async def call(self, request):
                asked.append((clock.now() - begun, request))
                return await super().call(request)

        service = ScriptedService({GetOffer: offered, **script(clock)})
        runner = client_over(
            "me",
            Timed(service, "me"),
            make_input=lambda *_: None,
            settings=SessionSettings(watch=False),
            clock=clock,
        )
        begun = clock.now()
        with pytest.raises(SecAggError) as caught:
            await runner.run_session("t")
        return [each for instant, each in asked if instant >= 10], caught.value

    return manual_clock.run(main)


def test_after_the_session_end_a_client_only_asks_for_the_outcome():
    unreachable = ServiceError("no way there", code=ErrorCode.UNREACHABLE)
    over = Envelope.of(Aborted(Fate.NEVER_FIXED, ErrorCode.ROSTER_TOO_SMALL, "over"))
    asked, error = at_the_end(
        lambda _: {AdvertiseKeys: unreachable, GetUpdate: over},
    )
    assert [type(each) for each in asked] == [GetUpdate]
    assert (type(error), error.code) == (
        SessionAbortedError,
        ErrorCode.ROSTER_TOO_SMALL,
    )


def test_no_message_is_accepted_after_the_session_end():
    def late(clock):
        begun = clock.now()

        async def update(_, __):
            late = clock.now() - begun >= 10
            return Envelope(Roster, b"unreadable") if late else Wait(1.0)

        return {GetUpdate: update}

    asked, error = at_the_end(late)
    assert {type(each) for each in asked} == {GetUpdate}
    assert (type(error), error.code) == (SessionAbortedError, ErrorCode.DEADLINE)


def test_no_upload_is_requested_or_sent_after_the_session_end():
    """R5-7, where the aggregator answers again only then."""

    async def main(clock):
        asked = []

        class Calls:
            async def send(self, request, _until):
                asked.append(request)
                return UploadStatus(0)

        parameters = parameters_for(CLIENTS, dimension=9, threshold=3)
        offer = offer_of(parameters, session_end=int(clock.date()) + 10)
        stored = StoredPart(offer, "hub", Round.MASKED_INPUT_COLLECTION, has_bound=True)
        parts = SimpleNamespace(clock=clock, calls=Calls(), settings=SessionSettings())
        conductor = SessionDriver(parts, offer, stored)
        await clock.sleep_until(clock.now() + 10)
        await conductor._upload_again()
        return asked

    assert not manual_clock.run(main)


class Barred(InMemoryConnection):
    """Leads to an aggregator of another name than the one that the settings name."""

    async def probe(self):
        raise UnexpectedPeerError("the aggregator there is 'b'", "Check client.server.")


@pytest.mark.parametrize("way", [InMemoryConnection, Barred], ids=["", "named"])
def test_an_ended_session_of_another_aggregator_is_left_without_notice(way):
    """R5.0-6: until then it waits, since its own aggregator may reconnect."""
    parameters = with_noise(parameters_for(CLIENTS, dimension=9, threshold=3))
    unknown = ServiceError("no such task", code=ErrorCode.TASK_OVER)
    store, service = LastingStore.make(), ScriptedService({GetOffer: unknown})

    async def main(clock):
        deployment = Deployment(clock, parameters, CLIENTS, max_attempts=1)

        def runner(connection):
            return client_over(
                identity_of(VICTIM),
                connection,
                store,
                make_input=deployment._input(VICTIM),
                clock=clock,
            )

        class Dying(LyingConnection):
            async def call(self, request):
                if isinstance(request, UploadChunk):
                    raise asyncio.CancelledError
                return await super().call(request)

        serving = asyncio.ensure_future(deployment.serve())
        others = [
            asyncio.ensure_future(deployment.take_part(number))
            for number in range(CLIENTS)
            if number != VICTIM
        ]
        with pytest.raises(asyncio.CancelledError):
            await runner(Dying(deployment._link(VICTIM), {})).run_session(TASK_ID)
        elsewhere = runner(way(service, identity_of(VICTIM), aggregator="b"))
        for _ in range(2):
            with pytest.raises(ServiceError, match=r"'b'.* answers") as caught:
                await elsewhere.run_session(TASK_ID)
            assert caught.value.code is ErrorCode.UNREACHABLE
            assert not service.calls
            await clock.sleep_until(clock.now() + 60)
        await clock.sleep_until(clock.now() + 7200)
        with pytest.raises(ServiceError) as caught:
            await elsewhere.run_session(TASK_ID)
        assert caught.value.code is ErrorCode.TASK_OVER
        (charge,) = await store.read(ListCharges(TASK_ID))
        assert charge.state is ChargeState.KEPT
        serving.cancel()
        await asyncio.wait({serving, *others})

    manual_clock.run(main)


# --- the application ------------------------------------------------------------------


def scripted_input(*attempts):
    """Return a `make_input` that does these things one after the other."""
    calls = []

    def factory(number):
        def make(descriptor, _payload, seed):
            good = PlainVector(one_hot_input(number, descriptor.parameters))
            if number != VICTIM:
                return good
            calls.append(seed)
            attempt = attempts[min(len(calls), len(attempts)) - 1]
            return attempt(good)

        return make

    return factory, calls


def too_short(good):
    return PlainVector(good.residues[:-1])


def out_of_range(good):
    wrong = good.residues.copy()
    wrong[0] = 1 << 20
    return PlainVector(wrong)


@pytest.mark.parametrize("bad", [too_short, out_of_range])
def test_an_invalid_input_is_reported_and_can_be_corrected(bad):
    factory, calls = scripted_input(bad, lambda good: good)

    async def main(clock):
        parameters = parameters_for(CLIENTS, dimension=9, threshold=3)
        deployment = Deployment(clock, parameters, CLIENTS, make_input=factory)
        serving = asyncio.ensure_future(deployment.serve())
        others = [
            asyncio.ensure_future(deployment.take_part(n))
            for n in range(CLIENTS)
            if n != VICTIM
        ]
        store = LastingStore.make()
        runner = client_over(
            identity_of(VICTIM),
            deployment._link(VICTIM),
            store,
            make_input=factory(VICTIM),
            clock=clock,
        )
        with pytest.raises(LocalProtocolError) as caught:
            await runner.run_session(TASK_ID)
        assert caught.value.code is ErrorCode.BAD_INPUT
        assert len(await store.read(ListSessions(role=Side.CLIENT))) == 1
        outcome = await runner.run_session(TASK_ID)
        assert outcome.survivors == CLIENTS
        await asyncio.gather(serving, *others)

    manual_clock.run(main)
    assert len(calls) == 2
    assert calls[0] == calls[1]  # the noise would have been the same


def test_an_exception_of_the_application_is_raised_unchanged():
    def explode(_good):
        raise KeyError("no data today")

    factory, _ = scripted_input(explode)

    async def main(clock):
        parameters = parameters_for(CLIENTS, dimension=9, threshold=3)
        deployment = Deployment(clock, parameters, CLIENTS, make_input=factory)
        serving = asyncio.ensure_future(deployment.serve())
        others = [
            asyncio.ensure_future(deployment.take_part(n))
            for n in range(CLIENTS)
            if n != VICTIM
        ]
        with pytest.raises(KeyError, match="no data today"):
            await deployment.take_part(VICTIM)
        await asyncio.gather(serving, *others)
        assert deployment.sums[0].survivors == CLIENTS - 1

    manual_clock.run(main)


def test_progress_reports_every_phase_in_order():
    seen = []

    async def main(clock):
        parameters = parameters_for(CLIENTS, dimension=9, threshold=3)
        deployment = Deployment(clock, parameters, CLIENTS)
        serving = asyncio.ensure_future(deployment.serve())
        others = [
            asyncio.ensure_future(deployment.take_part(n))
            for n in range(CLIENTS)
            if n != VICTIM
        ]
        runner = client_over(
            identity_of(VICTIM),
            deployment._link(VICTIM),
            make_input=deployment._input(VICTIM),
            clock=clock,
            on_progress=seen.append,
        )
        await runner.run_session(TASK_ID)
        await asyncio.gather(serving, *others)

    manual_clock.run(main)
    phases = list(dict.fromkeys(progress.phase for progress in seen))
    assert phases == [
        ClientPhase.WAITING,
        ClientPhase.UNREACHABLE,  # the aggregator does not listen yet
        ClientPhase.JOINING,
        ClientPhase.SHARING,
        ClientPhase.PREPARING,
        ClientPhase.UPLOADING,
        ClientPhase.UPLOADED,
        ClientPhase.UNMASKING,
        ClientPhase.COMPLETED,
    ]
    uploaded = [p for p in seen if p.phase is ClientPhase.UPLOADED]
    assert uploaded[0].sent_bytes == uploaded[0].total_bytes > 0


def test_a_client_with_fetch_sum_disabled_does_not_fetch_it():
    _, endings = run(settings=SessionSettings(fetch_sum=False, offer_seconds=600.0))
    assert all(ending.residues is None for ending in endings.values())


# --- the client's own disk ------------------------------------------------------------


def test_a_message_is_sent_only_after_it_is_durable():
    async def main(clock):
        parameters = parameters_for(CLIENTS, dimension=9, threshold=3)
        deployment = Deployment(clock, parameters, CLIENTS)
        serving = asyncio.ensure_future(deployment.serve())
        link, disk = deployment._link(VICTIM), FailingStore.make()

        def runner():
            return client_over(
                identity_of(VICTIM),
                link,
                disk,
                make_input=deployment._input(VICTIM),
                settings=SessionSettings(offer_seconds=600.0),
                clock=clock,
            )

        running = asyncio.ensure_future(runner().run_session(TASK_ID))
        await clock.sleep_until(clock.now() + 0.5)
        assert [m for _, m in link.distinct_messages()] == [AdvertiseKeys]
        disk.is_full = True
        others = [
            asyncio.ensure_future(deployment.take_part(n))
            for n in range(CLIENTS)
            if n != VICTIM
        ]
        with pytest.raises(ServiceError) as caught:
            await running
        assert caught.value.code is ErrorCode.STORAGE_FAILED
        assert [m for _, m in link.distinct_messages()] == [AdvertiseKeys]
        disk.is_full = False
        outcome = await runner().run_session(TASK_ID)
        assert outcome.survivors == CLIENTS
        assert set(link.distinct_messages().values()) == {1}
        await asyncio.gather(serving, *others)

    manual_clock.run(main)


class FailingStore(LastingStore):
    """A disk that may be full."""

    is_full = False

    async def commit(self, command):
        if self.is_full:
            raise ServiceError("full", code=ErrorCode.STORAGE_FAILED)
        return await super().commit(command)


# --- waits ----------------------------------------------------------------------------


def test_waits_grow_with_jitter_up_to_a_limit():
    backoff = Backoff(SeededEntropy(SecretBytes(bytes(32)), b"jitter"))
    waits = [backoff.next_wait() for _ in range(40)]
    assert 0.15 <= waits[0] <= 0.25
    assert all(7.5 <= wait <= 12.5 for wait in waits[10:])
    assert len(set(waits)) == len(waits)
    assert backoff.next_wait(1e9) <= 75
    assert backoff.next_wait(-5.0) <= 12.5
    assert 0 < backoff.poll_wait(0.0) <= 0.03
    assert backoff.poll_wait(1e9) <= 75
    assert backoff.next_wait() <= 0.25  # news reset the growth
    assert Blob.SUM != Blob.PAYLOAD
