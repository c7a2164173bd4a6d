"""A server that lies, seen from the whole client: calls, journal, state and disk.

The aggregator is the real one; what stands between it and one client answers what a
liar would.  Whatever it answers, the client ends in a typed error or with a sum, sends
one message per round, and keeps no secret of a session that it has left.
"""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest

from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError, ServiceError
from secagg.messages import (
    Roster,
    RosterPublished,
    SessionAborted,
    SharesDelivered,
    SumReleased,
    UnmaskRequested,
)
from secagg.parameters import SessionDescriptor
from secagg.policy import ClientPolicy
from secagg.primitives.transcript import decode_set, encode_set
from secagg.protocol.rounds import Round
from secagg.runtime.connection import BlobChunk, UploadStatus, Wait
from secagg.runtime.participation import ClientSettings, SessionOutcome
from secagg.storage.base import Role
from secagg.storage.sqlite import SQLiteSessionStore
from secagg.testing import manual_clock
from secagg.testing.crash_points import CrashSwitch
from secagg.testing.deployment import TASK_ID, Deployment
from secagg.testing.in_process import LENIENT_POLICY, parameters_for
from secagg.testing.relayed_connection import RelayedConnection

CLIENTS = 4
VICTIM = 2
POLLING = ClientSettings(offer_seconds=600.0, watch=False)


class LyingConnection(RelayedConnection):
    """Replaces answers: `lies` maps a method to what becomes of its answer."""

    def __init__(self, inner, lies):
        super().__init__(lambda: inner)
        self._lies = lies

    async def relay(self, method, call):
        answer = await call()
        return self._lies[method](answer) if method in self._lies else answer


class UselessConnection(LyingConnection):
    """Answers some calls without ever passing them on."""

    async def relay(self, method, call):
        return self._lies[method]() if method in self._lies else await call()


def run(lies, kind=LyingConnection, **options):
    def tamper(number, connection):
        return kind(connection, lies) if number == VICTIM else connection

    async def main(clock):
        fields = {"payload": b"a query", "settings": POLLING} | options
        deployment = Deployment(
            clock,
            parameters_for(CLIENTS, dimension=7, threshold=3),
            CLIENTS,
            tamper=tamper,
            **fields,
        )
        return deployment, await deployment.run()

    return manual_clock.run(main)


def instead(kind, lie):
    """Lie about answers of one kind only."""
    return lambda answer: lie(answer) if isinstance(answer, kind) else answer


def flipped(data, place=-1):
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


def without(bitmap, *lost, size=CLIENTS):
    return encode_set(set(decode_set(bitmap, size)) - set(lost), size)


def only_me(bitmap):
    return without(bitmap, *(n for n in range(CLIENTS) if n != VICTIM))


def second_identity(update):
    roster = Roster.decode(update.roster)
    twice = replace(roster.adverts[0], identity="zz")
    return RosterPublished(Roster((*roster.adverts, twice)).encode())


def exchanged_key(update):
    adverts = list(Roster.decode(update.roster).adverts)
    own = adverts[VICTIM]
    adverts[VICTIM] = replace(own, masking_key=flipped(own.masking_key, 0))
    return RosterPublished(Roster(tuple(adverts)).encode())


def assert_left_cleanly(deployment, ending):
    assert isinstance(ending, SecAggError)
    assert deployment.contradictions() == {}
    store = deployment.client_stores[VICTIM]
    assert store.sessions(Role.CLIENT) == ()


LIES = {
    # offers
    "another task": (
        {"offer": instead(SessionDescriptor, lambda d: replace(d, task_id="other"))},
        ErrorCode.BAD_CONFIG,
    ),
    "a session number beyond all databases": (
        {
            "offer": instead(
                SessionDescriptor, lambda d: replace(d, session_number=(1 << 64) - 1)
            )
        },
        ErrorCode.BAD_CONFIG,
    ),
    "an old session number": (
        {"offer": instead(SessionDescriptor, lambda d: replace(d, session_number=0))},
        ErrorCode.REPLAYED_SESSION,
    ),
    "a sum of two": (
        {
            "offer": instead(
                SessionDescriptor,
                lambda d: replace(
                    d,
                    parameters=replace(
                        d.parameters, min_survivors=2, threshold=2, min_clients=2
                    ),
                ),
            )
        },
        ErrorCode.POLICY_VIOLATION,
    ),
    "a vector that fills the memory": (
        {
            "offer": instead(
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
        {"fetch": lambda _: BlobChunk(b"A query", 7)},
        ErrorCode.PAYLOAD_MISMATCH,
    ),
    "a payload without end": (
        {"fetch": lambda _: BlobChunk(bytes(1 << 10), 1 << 62)},
        ErrorCode.PAYLOAD_MISMATCH,
    ),
    "a payload that grows": (
        {"fetch": lambda _: BlobChunk(bytes(1 << 20), 1 << 30)},
        ErrorCode.PAYLOAD_MISMATCH,
    ),
    "a payload that ends before its end": (
        {"fetch": lambda _: BlobChunk(b"", 7)},
        ErrorCode.PAYLOAD_MISMATCH,
    ),
    "a payload of negative size": (
        {"fetch": lambda _: BlobChunk(b"x", -1)},
        ErrorCode.PAYLOAD_MISMATCH,
    ),
    # rosters
    "a roster of garbage": (
        {"update": instead(RosterPublished, lambda _: RosterPublished(b"\xff" * 99))},
        ErrorCode.BAD_ENCODING,
    ),
    "a roster with the same keys twice": (
        {"update": instead(RosterPublished, second_identity)},
        ErrorCode.ROSTER_TOO_LARGE,
    ),
    "a roster with another own key": (
        {"update": instead(RosterPublished, exchanged_key)},
        ErrorCode.SELF_MISSING,
    ),
    # U2
    "shares of nobody": (
        {"update": instead(SharesDelivered, lambda _: SharesDelivered(b"", b""))},
        ErrorCode.BAD_ENCODING,
    ),
    "U2 without this client": (
        {
            "update": instead(
                SharesDelivered,
                lambda u: SharesDelivered(without(u.sharers, VICTIM), u.bundles),
            )
        },
        ErrorCode.SELF_MISSING,
    ),
    "U2 with this client alone": (
        {
            "update": instead(
                SharesDelivered, lambda u: SharesDelivered(only_me(u.sharers), b"")
            )
        },
        ErrorCode.U2_TOO_SMALL,
    ),
    "a changed bundle": (
        {
            "update": instead(
                SharesDelivered,
                lambda u: SharesDelivered(u.sharers, flipped(u.bundles)),
            )
        },
        ErrorCode.BAD_SHARE_CIPHERTEXT,
    ),
    "bundles in another order": (
        {
            "update": instead(
                SharesDelivered,
                lambda u: SharesDelivered(u.sharers, u.bundles[96:] + u.bundles[:96]),
            )
        },
        ErrorCode.BAD_SHARE_CIPHERTEXT,
    ),
    "padding bits in U2": (
        {
            "update": instead(
                SharesDelivered,
                lambda u: SharesDelivered(bytes([u.sharers[0] | 0x80]), u.bundles),
            )
        },
        ErrorCode.BAD_ENCODING,
    ),
    # uploads
    "an upload that starts before its beginning": (
        {"upload_status": lambda _: UploadStatus(-1)},
        ErrorCode.UPLOAD_CORRUPT,
    ),
    "an upload that goes on behind its end": (
        {"upload_status": lambda _: UploadStatus(1 << 63)},
        ErrorCode.UPLOAD_CORRUPT,
    ),
    "an upload that never moves on": (
        {"upload_chunk": lambda _: UploadStatus(0)},
        ErrorCode.UPLOAD_CORRUPT,
    ),
    # U3
    "U3 without this client": (
        {
            "update": instead(
                UnmaskRequested, lambda u: UnmaskRequested(without(u.survivors, VICTIM))
            )
        },
        ErrorCode.U3_INVALID,
    ),
    "U3 with this client alone": (
        {
            "update": instead(
                UnmaskRequested, lambda u: UnmaskRequested(only_me(u.survivors))
            )
        },
        ErrorCode.U3_TOO_SMALL,
    ),
    "padding bits in U3": (
        {
            "update": instead(
                UnmaskRequested, lambda u: UnmaskRequested(bytes([u.survivors[0] | 16]))
            )
        },
        ErrorCode.BAD_ENCODING,
    ),
    # the order of rounds
    "U3 before the roster": (
        {"update": instead(RosterPublished, lambda _: UnmaskRequested(b"\x0f"))},
        ErrorCode.UNEXPECTED_MESSAGE,
    ),
    "U3 instead of U2": (
        {"update": instead(SharesDelivered, lambda _: UnmaskRequested(b"\x0f"))},
        ErrorCode.UNEXPECTED_MESSAGE,
    ),
    "the past instead of the future": (
        {"update": instead(UnmaskRequested, lambda _: SharesDelivered(b"\x0f", b""))},
        ErrorCode.UNEXPECTED_MESSAGE,
    ),
    # the sum
    "a sum of another size": (
        {
            "update": instead(
                SumReleased, lambda u: SumReleased(u.sum_hash, u.size + 1, u.survivors)
            )
        },
        ErrorCode.BAD_VECTOR,
    ),
    "a sum with another hash": (
        {
            "update": instead(
                SumReleased,
                lambda u: SumReleased(flipped(u.sum_hash), u.size, u.survivors),
            )
        },
        ErrorCode.PAYLOAD_MISMATCH,
    ),
}


@pytest.mark.parametrize(("lies", "code"), LIES.values(), ids=LIES)
def test_whatever_the_server_says_the_client_leaves_with_a_code(lies, code):
    policy = replace(LENIENT_POLICY, min_survivors=3, min_clients=3)
    deployment, endings = run(
        lies, policy=policy, settings=replace(POLLING, max_payload_bytes=1 << 22)
    )
    assert_left_cleanly(deployment, endings[VICTIM])
    if code is not None:
        assert endings[VICTIM].code is code, endings[VICTIM]
    # The liar tells the others the truth: their session is none of its victims.
    others = {endings[n] for n in range(CLIENTS) if n != VICTIM}
    assert all(isinstance(ending, SessionOutcome) for ending in others)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("method", ["offer", "update"])
def test_a_server_that_only_ever_says_wait_costs_time_and_nothing_else(method, seconds):
    deployment, endings = run({method: lambda: Wait(seconds)}, UselessConnection)
    assert endings[VICTIM].code is ErrorCode.DEADLINE
    assert_left_cleanly(deployment, endings[VICTIM])


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_a_server_that_is_always_overloaded_costs_time_and_nothing_else(seconds):
    def refuse():
        raise ServiceError(
            "later", code=ErrorCode.OVERLOADED, retry_after_seconds=seconds
        )

    deployment, endings = run({"advertise": refuse}, UselessConnection)
    assert endings[VICTIM].code is ErrorCode.DEADLINE
    assert_left_cleanly(deployment, endings[VICTIM])


def test_a_stream_that_never_speaks_is_given_up_and_polled():
    class Silent(LyingConnection):
        async def relay_stream(self, method, open_stream):
            del method, open_stream
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


def client_points():
    switch = CrashSwitch()
    run({}, client_crash={VICTIM: switch})
    return switch.points


POINTS = client_points()


class TwoFacedServer:
    """Tells the truth to the victim's first process and lies to its second."""

    def __init__(self, switch, kind, lie):
        self.switch, self.kind, self.lie = switch, kind, lie
        self.told = 0

    def __call__(self, answer):
        if isinstance(answer, self.kind):
            self.told += 1
            if self.switch.is_dead:
                return self.lie(answer)
        return answer


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(at, id=f"{at} {name}")
        for at, name in enumerate(POINTS)
        if at >= POINTS.index("after upload_chunk")
    ],
)
def test_two_unmask_requests_around_a_restart_get_one_answer_at_most(at):
    switch = CrashSwitch(at)
    lie = TwoFacedServer(
        switch, UnmaskRequested, lambda u: UnmaskRequested(without(u.survivors, 0))
    )
    deployment, endings = run({"update": lie}, client_crash={VICTIM: switch})
    assert switch.is_dead
    assert deployment.contradictions() == {}
    if isinstance(endings[VICTIM], SessionOutcome):
        return
    assert_left_cleanly(deployment, endings[VICTIM])


def test_a_third_unmask_request_is_refused_after_the_first_was_answered():
    """The answer is out; the server comes back with another U3, again and again."""
    answered = []

    def again(answer):
        if isinstance(answer, UnmaskRequested):
            answered.append(answer)
        return (
            UnmaskRequested(without(answered[0].survivors, 1))
            if answered and isinstance(answer, Wait | SumReleased)
            else answer
        )

    deployment, endings = run({"update": again})
    assert endings[VICTIM].code is ErrorCode.UNEXPECTED_MESSAGE
    assert_left_cleanly(deployment, endings[VICTIM])


@pytest.mark.parametrize("kind", [RosterPublished, SharesDelivered])
def test_another_view_after_a_restart_is_refused_or_never_seen(kind):
    def other(update):
        if isinstance(update, RosterPublished):
            roster = Roster.decode(update.roster)
            fewer = tuple(a for a in roster.adverts if a.identity != "client-0")
            return RosterPublished(Roster(fewer[:VICTIM] + fewer[VICTIM:]).encode())
        return SharesDelivered(without(update.sharers, 0), update.bundles[96:])

    for at in range(POINTS.index("after advertise"), len(POINTS), 2):
        switch = CrashSwitch(at)
        deployment, _ = run(
            {"update": TwoFacedServer(switch, kind, other)},
            client_crash={VICTIM: switch},
        )
        assert switch.is_dead
        assert deployment.contradictions() == {}


def test_a_session_that_was_left_is_not_joined_again():
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
            "offer": replay,
            "update": instead(
                RosterPublished, lambda _: SessionAborted(ErrorCode.CANCELLED, "later")
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
    assert store.sessions(Role.CLIENT) == ()
    assert deployment.contradictions() == {}


def test_no_session_number_breaks_the_database(tmp_path):
    store = SQLiteSessionStore(tmp_path / "state")
    lies, code = LIES["a session number beyond all databases"]
    deployment, endings = run(lies, client_stores={VICTIM: store})
    assert endings[VICTIM].code is code
    largest = replace(
        deployment.sums[0].descriptor, session_number=(1 << 63) - 1
    ).validate()
    assert SessionDescriptor.decode(largest.encode()) == largest
    assert store.highest_session_number(f"client/client-2/{TASK_ID}") == 0
    store.close()


def test_the_lies_are_told():
    """The tests above can fail: without lies the client gets the sum."""
    deployment, endings = run({})
    assert isinstance(endings[VICTIM], SessionOutcome)
    assert {r for r in Round if deployment.sums[0].receipt} == set(Round)
