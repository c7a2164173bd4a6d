"""A malicious server against a whole client: calls, journal, state and disk.

The aggregator is the real one; what stands between it and one client answers what a
liar would.  Whatever it answers, the client ends in a typed error or with a sum, sends
one message per round, and keeps no secret of a session that it has left.  Liar and
colluder together know at most the sum (`Deployment.run` checks it).
"""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.client_state import LastingStore
from secagg_testing.cohorts import LENIENT_POLICY, parameters_for
from secagg_testing.crash_points import CrashSwitch
from secagg_testing.deployment import TASK_ID, Deployment
from secagg_testing.inline_store import answer_of
from secagg_testing.lying_connection import LyingConnection, instead

from secagg.client.contribution import SessionOutcome
from secagg.client.session_driver import SessionSettings
from secagg.crypto.transcript import decode_set, encode_set
from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError, ServiceError
from secagg.protocol.descriptor import SessionDescriptor
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
from secagg.protocol.policy import ClientPolicy
from secagg.simulation.driver import identity_of
from secagg.storage.change import Side
from secagg.storage.queries import ListSessions, ReadTally
from secagg.transport.connection import UNCERTIFIED_AGGREGATOR
from secagg.wire.calls import (
    AdvertiseKeys,
    Blob,
    BlobChunk,
    FetchChunk,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    Reference,
    UploadChunk,
    UploadStatus,
    Wait,
)
from tests.cases import recorded_points

CLIENTS = 4
VICTIM = 2
COLLUDER = 3
POLLING = SessionSettings(offer_seconds=600.0, watch=False)


class UselessConnection(LyingConnection):
    """Answers some calls without ever passing them on."""

    async def call(self, request):
        lie = self._lies.get(type(request))
        return await self._inner.call(request) if lie is None else lie()


def reference(blob, size=2 << 20):
    """Refer to an object that no client has."""
    kind = Delivery if blob is Blob.DELIVERY else Roster
    return Reference(kind, bytes(32), size, blob)


def run(lies, kind=LyingConnection, **options):
    def tamper(number, connection):
        return kind(connection, lies) if number == VICTIM else connection

    async def main(clock):
        fields = {
            "payload": b"a query",
            "settings": POLLING,
            "max_attempts": 1,
        } | options
        deployment = Deployment(
            clock,
            parameters_for(CLIENTS, dimension=7, threshold=3, colluders=1),
            CLIENTS,
            tamper=tamper,
            corrupt={COLLUDER},
            **fields,
        )
        return deployment, await deployment.run()

    return manual_clock.run(main)


def flipped(data, place=-1):
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


def without(bitmap, *lost, size=CLIENTS):
    return encode_set(set(decode_set(bitmap, size)) - set(lost), size)


def only_me(bitmap):
    return without(bitmap, *(n for n in range(CLIENTS) if n != VICTIM))


def second_identity(roster):
    twice = replace(roster.adverts[0], identity="zz")
    return Roster((*roster.adverts, twice))


def exchanged_key(roster):
    adverts = list(roster.adverts)
    own = adverts[VICTIM]
    adverts[VICTIM] = replace(own, masking_key=flipped(own.masking_key, 0))
    return Roster(tuple(adverts))


def assert_left_cleanly(deployment, ending):
    assert isinstance(ending, SecAggError)
    assert deployment.contradictions() == {}
    store = deployment.client_stores[VICTIM]
    assert answer_of(store.read(ListSessions(role=Side.CLIENT))) == ()


def assert_may_come_back(deployment, ending):
    """The session waits for those that have joined; nothing of an input has left."""
    assert ending.code is ErrorCode.UNREACHABLE
    assert deployment.contradictions() == {}
    (kept,) = answer_of(
        deployment.client_stores[VICTIM].read(ListSessions(role=Side.CLIENT))
    )
    assert kept.round < Round.SHARE_KEYS
    assert not kept.spent


LIES = {
    # offers
    "another task": (
        {GetOffer: instead(SessionDescriptor, lambda d: replace(d, task_id="other"))},
        ErrorCode.BAD_CONFIG,
    ),
    "a session number beyond all databases": (
        {
            GetOffer: instead(
                SessionDescriptor, lambda d: replace(d, session_number=(1 << 64) - 1)
            )
        },
        ErrorCode.BAD_CONFIG,
    ),
    "an old session number": (
        {GetOffer: instead(SessionDescriptor, lambda d: replace(d, session_number=0))},
        ErrorCode.REPLAYED_SESSION,
    ),
    "a sum of two": (
        {
            GetOffer: instead(
                SessionDescriptor,
                lambda d: replace(
                    d,
                    parameters=replace(
                        d.parameters,
                        min_survivors=2,
                        threshold=2,
                        min_clients=2,
                        colluders=0,
                    ),
                ),
            )
        },
        ErrorCode.POLICY_VIOLATION,
    ),
    "a vector that fills the memory": (
        {
            GetOffer: instead(
                SessionDescriptor,
                lambda d: replace(
                    d, parameters=replace(d.parameters, dimension=1 << 30)
                ),
            )
        },
        ErrorCode.POLICY_VIOLATION,
    ),
    # payloads
    "another payload": (
        {FetchChunk: lambda _: BlobChunk(b"A query", 7)},
        ErrorCode.PAYLOAD_MISMATCH,
    ),
    "a payload without end": (
        {FetchChunk: lambda _: BlobChunk(bytes(1 << 10), 1 << 62)},
        ErrorCode.PAYLOAD_MISMATCH,
    ),
    "a payload that grows": (
        {FetchChunk: lambda _: BlobChunk(bytes(1 << 20), 1 << 30)},
        ErrorCode.PAYLOAD_MISMATCH,
    ),
    "a payload that ends before its end": (
        {FetchChunk: lambda _: BlobChunk(b"", 7)},
        ErrorCode.PAYLOAD_MISMATCH,
    ),
    "a payload of negative size": (
        {FetchChunk: lambda _: BlobChunk(b"x", -1)},
        ErrorCode.PAYLOAD_MISMATCH,
    ),
    # rosters
    "a roster of garbage": (
        {GetUpdate: instead(Roster, lambda _: Envelope(Roster, b"\xff" * 99))},
        ErrorCode.BAD_ENCODING,
    ),
    "a roster elsewhere, under another digest": (
        {
            GetUpdate: instead(
                Roster, lambda roster: reference(Blob.ROSTER, size=len(roster.encode()))
            )
        },
        ErrorCode.PAYLOAD_MISMATCH,
    ),
    "a roster elsewhere that is larger than announced": (
        {GetUpdate: instead(Roster, lambda _: reference(Blob.ROSTER, size=5))},
        ErrorCode.PAYLOAD_MISMATCH,
    ),
    "a delivery elsewhere that does not exist": (
        {GetUpdate: instead(Roster, lambda _: reference(Blob.DELIVERY, size=99))},
        ErrorCode.UNEXPECTED_MESSAGE,
    ),
    "a roster with the same keys twice": (
        {GetUpdate: instead(Roster, second_identity)},
        ErrorCode.ROSTER_TOO_LARGE,
    ),
    "a roster with another own key": (
        {GetUpdate: instead(Roster, exchanged_key)},
        ErrorCode.SELF_MISSING,
    ),
    # U2
    "a delivery without shares": (
        {GetUpdate: instead(Delivery, lambda _: Delivery(b"", b""))},
        ErrorCode.BAD_ENCODING,
    ),
    "U2 without this client": (
        {
            GetUpdate: instead(
                Delivery,
                lambda u: Delivery(without(u.share_holders, VICTIM), u.bundles),
            )
        },
        ErrorCode.SELF_MISSING,
    ),
    "U2 with this client alone": (
        {
            GetUpdate: instead(
                Delivery, lambda u: Delivery(only_me(u.share_holders), b"")
            )
        },
        ErrorCode.U2_TOO_SMALL,
    ),
    "bundles of which none opens": (
        {
            GetUpdate: instead(
                Delivery,
                lambda u: Delivery(u.share_holders, bytes(len(u.bundles))),
            )
        },
        ErrorCode.BAD_SHARE_CIPHERTEXT,
    ),
    "bundles in another order": (
        {
            GetUpdate: instead(
                Delivery,
                lambda u: Delivery(u.share_holders, u.bundles[96:] + u.bundles[:96]),
            )
        },
        ErrorCode.BAD_SHARE_CIPHERTEXT,
    ),
    "padding bits in U2": (
        {
            GetUpdate: instead(
                Delivery,
                lambda u: Delivery(bytes([u.share_holders[0] | 0x80]), u.bundles),
            )
        },
        ErrorCode.BAD_ENCODING,
    ),
    # uploads
    "an upload that starts before its beginning": (
        {UploadChunk: lambda _: UploadStatus(-1)},
        ErrorCode.UPLOAD_CORRUPT,
    ),
    "an upload that continues past its end": (
        {UploadChunk: lambda _: UploadStatus(1 << 63)},
        ErrorCode.UPLOAD_CORRUPT,
    ),
    "an upload that never advances": (
        {UploadChunk: lambda _: UploadStatus(0)},
        ErrorCode.UPLOAD_CORRUPT,
    ),
    # U3
    "U3 without this client": (
        {GetUpdate: instead(Survivors, lambda u: Survivors(without(u.bitmap, VICTIM)))},
        ErrorCode.U3_INVALID,
    ),
    "U3 with this client alone": (
        {GetUpdate: instead(Survivors, lambda u: Survivors(only_me(u.bitmap)))},
        ErrorCode.U3_TOO_SMALL,
    ),
    "padding bits in U3": (
        {GetUpdate: instead(Survivors, lambda u: Survivors(bytes([u.bitmap[0] | 16])))},
        ErrorCode.BAD_ENCODING,
    ),
    # the order of rounds
    "U3 before the roster": (
        {GetUpdate: instead(Roster, lambda _: Survivors(b"\x0f"))},
        ErrorCode.UNEXPECTED_MESSAGE,
    ),
    "U3 instead of U2": (
        {GetUpdate: instead(Delivery, lambda _: Survivors(b"\x0f"))},
        ErrorCode.UNEXPECTED_MESSAGE,
    ),
    "another past instead of the future": (
        {GetUpdate: instead(Survivors, lambda _: Delivery(b"\x0f", b""))},
        ErrorCode.EQUIVOCATION,
    ),
    # the sum
    "a sum of another size": (
        {GetUpdate: instead(Released, lambda u: replace(u, size=u.size + 1))},
        ErrorCode.BAD_VECTOR,
    ),
    "a sum with another hash": (
        {
            GetUpdate: instead(
                Released,
                lambda u: replace(u, sum_hash=flipped(u.sum_hash)),
            )
        },
        ErrorCode.PAYLOAD_MISMATCH,
    ),
}


@pytest.mark.parametrize(("lies", "code"), LIES.values(), ids=LIES)
def test_a_client_leaves_with_an_error_code_whatever_the_server_answers(lies, code):
    policy = replace(LENIENT_POLICY, min_survivors=3, min_clients=3)
    deployment, endings = run(
        lies, policy=policy, settings=replace(POLLING, max_payload_bytes=1 << 22)
    )
    assert_left_cleanly(deployment, endings[VICTIM])
    if code is not None:
        assert endings[VICTIM].code is code, endings[VICTIM]
    # The server is honest to the other clients, so their session must succeed.
    others = {endings[n] for n in range(CLIENTS) if n != VICTIM}
    assert all(isinstance(ending, SessionOutcome) for ending in others)


def test_a_changed_bundle_is_complained_about_and_the_sum_is_released():
    def change(delivery):
        return Delivery(delivery.share_holders, flipped(delivery.bundles))

    deployment, endings = run({GetUpdate: instead(Delivery, change)})
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())
    assert deployment.contradictions() == {}
    (complaint,) = deployment.sums[0].receipt.disputes
    assert complaint[0] == identity_of(VICTIM)


def test_an_oversized_roster_by_reference_is_not_fetched():
    fetched = []

    def endless(_):
        fetched.append(len(fetched))
        return BlobChunk(bytes(1 << 20), 1 << 30)

    lies = {
        GetUpdate: instead(Roster, lambda _: reference(Blob.ROSTER)),
        FetchChunk: endless,
    }
    deployment, endings = run(lies, payload=b"")
    assert endings[VICTIM].code is ErrorCode.BAD_ENCODING
    assert not fetched  # no roster of this session is so large
    assert_left_cleanly(deployment, endings[VICTIM])


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_a_server_that_always_answers_wait_causes_a_deadline_error(seconds):
    deployment, endings = run({GetOffer: lambda: Wait(seconds)}, UselessConnection)
    assert endings[VICTIM].code is ErrorCode.DEADLINE
    assert_left_cleanly(deployment, endings[VICTIM])


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_a_server_without_an_update_costs_time_and_keeps_the_session(seconds):
    deployment, endings = run({GetUpdate: lambda: Wait(seconds)}, UselessConnection)
    assert_may_come_back(deployment, endings[VICTIM])


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_an_overloaded_server_costs_time_and_keeps_the_session(seconds):
    def refuse():
        raise ServiceError(
            "later", code=ErrorCode.OVERLOADED, retry_after_seconds=seconds
        )

    deployment, endings = run({AdvertiseKeys: refuse}, UselessConnection)
    assert_may_come_back(deployment, endings[VICTIM])


def test_a_silent_stream_is_closed_and_replaced_by_polling():
    class Silent(LyingConnection):
        async def watch(self, request):
            del request
            await asyncio.Event().wait()
            yield

    async def main(clock):
        deployment = Deployment(
            clock,
            parameters_for(CLIENTS, dimension=7, threshold=3),
            CLIENTS,
            tamper=lambda n, c: Silent(c, {}) if n == VICTIM else c,
        )
        return deployment, await deployment.run()

    deployment, endings = manual_clock.run(main)
    assert isinstance(endings[VICTIM], SessionOutcome)
    np.testing.assert_array_equal(
        endings[VICTIM].residues, deployment.expected_sum(set(range(CLIENTS)))
    )


# --- before and after a restart -----------------------------------------------------


POINTS = recorded_points("client-of-a-liar")


def test_the_points_are_those_of_a_session(golden):
    switch = CrashSwitch()
    run({}, client_crash={VICTIM: switch})
    golden("points/client-of-a-liar.txt", "\n".join(switch.points) + "\n")


class TwoFacedServer:
    """Sends true messages to the victim's first process, false ones to its second."""

    def __init__(self, switch, kind, lie):
        self.switch, self.kind, self.lie = switch, kind, lie
        self.told = 0

    def __call__(self, answer):
        return instead(self.kind, self.tell)(answer)

    def tell(self, message):
        self.told += 1
        return self.lie(message) if self.switch.is_dead else message


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(at, id=f"{at} {name}")
        for at, name in enumerate(POINTS)
        if at >= POINTS.index("after UploadChunk")
    ],
)
def test_two_unmask_requests_around_a_restart_get_one_answer_at_most(at):
    switch = CrashSwitch(at)
    lie = TwoFacedServer(switch, Survivors, lambda u: Survivors(without(u.bitmap, 0)))
    deployment, endings = run({GetUpdate: lie}, client_crash={VICTIM: switch})
    assert switch.is_dead
    assert deployment.contradictions() == {}
    if isinstance(endings[VICTIM], SessionOutcome):
        return
    assert_left_cleanly(deployment, endings[VICTIM])


def test_a_third_unmask_request_raises_equivocation():
    """After the answer, the server repeatedly sends another U3."""
    answered = []

    def again(answer):
        kind = getattr(answer, "kind", type(answer))
        if kind is Survivors:
            answered.append(answer.open())
        if answered and kind in (Wait, Released):
            return Envelope.of(Survivors(without(answered[0].bitmap, 1)))
        return answer

    deployment, endings = run({GetUpdate: again})
    assert endings[VICTIM].code is ErrorCode.EQUIVOCATION
    assert_left_cleanly(deployment, endings[VICTIM])


@pytest.mark.parametrize("offset", [-1, 1 << 63])
@pytest.mark.parametrize("point", ["before UploadChunk", "after UploadChunk"])
def test_an_upload_offset_outside_the_vector_ends_the_session(point, offset):
    """A restarted client receives the lie; its first process received the truth."""
    switch = CrashSwitch(POINTS.index(point))

    def lie(status):
        return UploadStatus(offset) if switch.is_dead else status

    deployment, endings = run(
        {GetUploadStatus: lie},
        client_crash={VICTIM: switch},
    )
    assert switch.is_dead
    assert endings[VICTIM].code is ErrorCode.UPLOAD_CORRUPT
    assert_left_cleanly(deployment, endings[VICTIM])


@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("kind", [Roster, Delivery])
def test_a_different_view_after_a_restart_is_rejected_or_never_received(kind, first):
    def other(update):
        if isinstance(update, Roster):
            fewer = tuple(a for a in update.adverts if a.identity != "client-0")
            return Roster(fewer[:VICTIM] + fewer[VICTIM:])
        return Delivery(without(update.share_holders, 0), update.bundles[96:])

    begin = POINTS.index("after AdvertiseKeys") + 2 * first
    for at in range(begin, len(POINTS), 6):
        switch = CrashSwitch(at)
        deployment, _ = run(
            {GetUpdate: TwoFacedServer(switch, kind, other)},
            client_crash={VICTIM: switch},
        )
        assert switch.is_dead
        assert deployment.contradictions() == {}


def test_a_client_does_not_rejoin_a_session_it_left():
    """The server offers the number once more, with another nonce."""
    offers = []

    def replay(answer):
        if offers:
            return replace(offers[0], server_nonce=bytes(32))
        if isinstance(answer, SessionDescriptor):
            offers.append(answer)
        return answer

    deployment, endings = run(
        {
            GetOffer: replay,
            GetUpdate: instead(
                Roster,
                lambda _: Aborted(Fate.NOT_INCLUDED, ErrorCode.CANCELLED, "later"),
            ),
        }
    )
    assert isinstance(endings[VICTIM], RemoteProtocolError)
    assert endings[VICTIM].code is ErrorCode.REPLAYED_SESSION
    assert_left_cleanly(deployment, endings[VICTIM])


@pytest.mark.parametrize("at", range(1, len(POINTS), 4))
def test_a_stricter_policy_after_a_restart_ends_the_session(at):
    """The owner raises a floor while the client is down, at any point."""
    switch = CrashSwitch(at)

    async def main(clock):
        deployment = Deployment(
            clock,
            parameters_for(CLIENTS, dimension=7, threshold=3),
            CLIENTS,
            payload=b"a query",
            settings=POLLING,
            client_crash={VICTIM: switch},
        )
        stricter = ClientPolicy(min_clients=100, require_noise=False)
        switch.on_death(lambda: setattr(deployment, "policy", stricter))
        return deployment, await deployment.run()

    deployment, endings = manual_clock.run(main)
    ending = endings[VICTIM]
    if isinstance(ending, RemoteProtocolError):
        assert ending.code is ErrorCode.POLICY_VIOLATION
    store = deployment.client_stores[VICTIM]
    assert answer_of(store.read(ListSessions(role=Side.CLIENT))) == ()
    assert deployment.contradictions() == {}


def test_a_session_number_beyond_the_range_of_the_database_is_rejected(tmp_path):
    store = LastingStore.make(tmp_path / "state")
    lies, code = LIES["a session number beyond all databases"]
    deployment, endings = run(lies, client_stores={VICTIM: store})
    assert endings[VICTIM].code is code
    largest = replace(
        deployment.sums[0].descriptor, session_number=(1 << 63) - 1
    ).validate()
    assert SessionDescriptor.decode(largest.encode()) == largest
    assert (
        answer_of(
            store.read(ReadTally(Side.CLIENT, TASK_ID, peer=UNCERTIFIED_AGGREGATOR))
        ).highest_number
        == 0
    )
    store.end()


def test_without_lies_the_client_receives_the_sum():
    """The tests above can fail: without lies the client receives the sum."""
    deployment, endings = run({})
    assert isinstance(endings[VICTIM], SessionOutcome)
    assert {r for r in Round if deployment.sums[0].receipt} == set(Round)
