"""A malicious aggregator against the other, or a malicious client against both."""

import asyncio
import time
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from secagg_testing.lying_connection import LyingConnection, instead
from secagg_testing.manual_clock import run
from secagg_testing.two_aggregators import TASK, TwoAggregators, noise_for

from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Envelope, Released, Round
from secagg.protocol.packing import packed_size
from secagg.storage.change import Side
from secagg.storage.queries import ListSessions, ReadTally
from secagg.storage.rows import Retention, SessionState
from secagg.transport.connection import InMemoryConnection
from secagg.two_aggregators import party
from secagg.two_aggregators.messages import AcceptedShares, HelperShare, NoisyShare
from secagg.wire.calls import (
    Blob,
    BlobChunk,
    FetchChunk,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    UploadChunk,
    WatchSession,
)

VECTORS = [np.linspace(-0.3, 0.1 * k, 5) for k in range(1, 5)]


def chunk(session_id, data):
    return UploadChunk(session_id, 0, len(data), sha256(data).digest(), data)


@pytest.mark.parametrize(("asked", "left"), [(20, 7), (21, 3)])
def test_requests_of_a_leader_do_not_fill_the_store_of_the_helper(
    monkeypatch, asked, left
) -> None:
    """Nor when it steps over numbers that an operator might look at."""
    monkeypatch.setattr(party, "KEPT", Retention(keep_receipts=3))
    monkeypatch.setattr(party, "_PURGED_EVERY", 5)

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        numbers = [number for number in range(1, 40) if number % 5]
        for number in numbers[:asked]:
            offer = await deployment.helper.answer("leader", GetOffer(TASK, number - 1))
        rows = await deployment.storages[1].store.read(
            ListSessions(role=Side.SERVER, task=TASK)
        )
        ended = await deployment.storages[1].store.read(
            ListSessions(
                role=Side.SERVER, task=TASK, state=SessionState.ENDED, limit=100
            )
        )
        tally = await deployment.storages[1].store.read(ReadTally(Side.SERVER, TASK))
        assert tally.highest_number == offer.session_number == numbers[asked - 1]
        assert len(rows) == 1
        assert len(ended) == left

    run(main)


async def opened(clock, **task):
    """Return a deployment whose helper holds four seeds, and the leader's offer."""
    deployment = TwoAggregators(clock, noise_for(**task))
    helper = await deployment.helper.answer("leader", GetOffer(TASK))
    offer = replace(helper, aggregator="leader", server_nonce=helper.session_id)
    for k in range(4):
        share = HelperShare.decode(bytes([k]) * 32 + offer.session_id)
        await deployment.helper.answer(
            f"c{k}", chunk(helper.session_id, share.encode())
        )
    return deployment, helper, offer


def send_accepted(deployment, helper, offer, names):
    accepted = AcceptedShares(offer.encode(), tuple(names)).encode()
    return deployment.helper.answer("leader", chunk(helper.session_id, accepted))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"aggregator": "helper"}, ErrorCode.BAD_CONFIG),
        ({"aggregator": "third"}, ErrorCode.BAD_CONFIG),
        ({"server_nonce": bytes(32)}, ErrorCode.BAD_CONFIG),
        ({"task_id": "other"}, ErrorCode.BAD_CONFIG),
        ({"parameters": noise_for(rho=50).parameters}, ErrorCode.BAD_CONFIG),
        # Bound to another session of the leader's, no seed here is meant.
        ({"session_number": 7}, ErrorCode.U3_TOO_SMALL),
        ({"session_end": 1}, ErrorCode.SESSION_OVER),
    ],
)
def test_the_helper_answers_only_for_its_own_session(change, code) -> None:
    async def main(clock):
        deployment, helper, offer = await opened(clock)
        with pytest.raises(RemoteProtocolError) as refused:
            await send_accepted(
                deployment, helper, replace(offer, **change), ["c0", "c1", "c2"]
            )
        assert refused.value.code is code
        # What was refused has fixed nothing.
        assert (
            await send_accepted(deployment, helper, offer, ["c0", "c1", "c2"])
        ).complete

    run(main)


@pytest.mark.parametrize(
    "names",
    [["c1", "c0", "c2"], ["c0", "c0", "c1", "c2"], ["", "c0", "c1", "c2"]],
)
def test_a_list_of_names_must_be_a_sorted_set(names) -> None:
    async def main(clock):
        deployment, helper, offer = await opened(clock)
        with pytest.raises(RemoteProtocolError) as refused:
            await send_accepted(deployment, helper, offer, names)
        assert refused.value.code is ErrorCode.BAD_ENCODING

    run(main)


def test_a_session_past_its_end_is_not_answered() -> None:
    async def main(clock):
        deployment, helper, offer = await opened(clock)
        clock.advance(helper.session_end - clock.date())
        with pytest.raises(RemoteProtocolError) as refused:
            await send_accepted(deployment, helper, offer, ["c0", "c1", "c2"])
        assert refused.value.code is ErrorCode.SESSION_OVER

    run(main)


def test_a_leader_cannot_exhaust_the_session_numbers() -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        with pytest.raises(RemoteProtocolError) as refused:
            await deployment.helper.answer("leader", GetOffer(TASK, (1 << 63) - 1))
        assert refused.value.code is ErrorCode.BAD_CONFIG
        # One that is ahead, because this helper has lost its store, is caught up with.
        offer = await deployment.helper.answer("leader", GetOffer(TASK, 41))
        assert offer.session_number == 42
        # So is one whose store was restored before, and numbered by the clock.
        offer = await deployment.helper.answer(
            "leader", GetOffer(TASK, int(time.time()))
        )
        assert offer.session_number > 1_700_000_000

    run(main)


@pytest.mark.parametrize("lie", [(1 << 63) - 1, 1 << 40, 1, 0])
def test_a_helper_cannot_exhaust_the_session_numbers(lie) -> None:
    """Nor have a session stood upon twice."""

    async def main(clock):
        lies = []

        def numbered(offer):
            return replace(offer, session_number=lies.pop()) if lies else offer

        deployment = TwoAggregators(
            clock,
            noise_for(),
            helper_way=lambda way: LyingConnection(way, {GetOffer: numbered}),
        )
        await deployment.give(VECTORS)
        lies.append(lie)
        with pytest.raises(RemoteProtocolError, match="offers session") as refused:
            await deployment.leader.next_sum()
        assert refused.value.code is ErrorCode.BAD_CONFIG
        assert refused.value.sender == "helper"
        # What was refused is not remembered: an honest helper is stood upon.
        released, _ = await deployment.give(VECTORS)
        assert released.session_number == 2

    run(main)


def test_a_leader_accepts_a_helper_that_numbers_by_the_clock() -> None:
    """Its store was restored; so it does for one with no store."""

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        later = int(time.time())
        await deployment.helper.answer("leader", GetOffer(TASK, later))
        await deployment.give(VECTORS)
        fresh = TwoAggregators(clock, noise_for())
        fresh.leader._storage = deployment.leader._storage
        released, _ = await fresh.give(VECTORS)
        assert released.session_number == 2

    run(main)


def test_a_leader_naming_clients_without_seeds_receives_nothing() -> None:
    async def main(clock):
        deployment, helper, offer = await opened(clock)
        names = ["c0", "c1", "c3", "invented-1", "invented-2"]
        assert (await send_accepted(deployment, helper, offer, names)).complete
        piece = await deployment.helper.answer(
            "leader", FetchChunk(helper.session_id, Blob.SUM, 0)
        )
        assert NoisyShare.decode(piece.data).names == ("c0", "c1", "c3")

    run(main)


def test_a_client_has_one_share_at_each_aggregator() -> None:
    async def main(clock):
        deployment, helper, offer = await opened(clock)
        first = HelperShare.decode(bytes(32) + offer.session_id).encode()
        # The same again is answered like the first time.
        assert (
            await deployment.helper.answer("c0", chunk(helper.session_id, first))
        ).complete
        other = HelperShare.decode(bytes([9]) * 32 + offer.session_id).encode()
        with pytest.raises(RemoteProtocolError) as refused:
            await deployment.helper.answer("c0", chunk(helper.session_id, other))
        assert refused.value.code is ErrorCode.EQUIVOCATION
        for bad in (other[:-1], other + b"x"):
            with pytest.raises(RemoteProtocolError) as misshapen:
                await deployment.helper.answer("c9", chunk(helper.session_id, bad))
            assert misshapen.value.code is ErrorCode.BAD_ENCODING
        broken = replace(chunk(helper.session_id, other), digest=bytes(32))
        with pytest.raises(ServiceError) as corrupt:
            await deployment.helper.answer("c9", broken)
        assert corrupt.value.code is ErrorCode.UPLOAD_CORRUPT

    run(main)


def test_a_late_seed_has_no_effect() -> None:
    async def main(clock):
        deployment, helper, offer = await opened(clock)
        await send_accepted(deployment, helper, offer, ["c0", "c1", "c2"])
        late = HelperShare.decode(bytes(32) + offer.session_id).encode()
        with pytest.raises(ServiceError) as refused:
            await deployment.helper.answer("late", chunk(helper.session_id, late))
        assert refused.value.code is ErrorCode.UNKNOWN_SESSION

    run(main)


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (
            lambda part: replace(part, names=(*part.names[:-1], "zed")),
            "the leader did not name",
        ),
        (lambda part: replace(part, names=part.names[:2]), "adds up only 2 shares"),
        (lambda part: replace(part, session_id=bytes(32)), "another session"),
        (lambda part: replace(part, packed=part.packed[:-1]), "another size"),
        # Five entries of 14 bits leave two bits over, which have to be zero.
        (
            lambda part: replace(part, packed=part.packed[:-1] + b"\xff"),
            "padding behind the last entry",
        ),
    ],
)
def test_a_malicious_helper_ends_the_session_without_a_sum(lie, words) -> None:
    def changed(piece):
        data = lie(NoisyShare.decode(piece.data)).encode()
        return BlobChunk(data, len(data))

    async def main(clock):
        deployment = TwoAggregators(
            clock,
            noise_for(),
            helper_way=lambda way: LyingConnection(way, {FetchChunk: changed}),
        )
        clients = [deployment.client(f"client-{k}") for k in range(4)]
        released, *others = await asyncio.gather(
            deployment.leader.next_sum(),
            *(one.contribute(VECTORS[0]) for one in clients),
            return_exceptions=True,
        )
        assert isinstance(released, RemoteProtocolError)
        assert words in str(released)
        assert {other.code for other in others} == {ErrorCode.U3_INVALID}
        assert await deployment.leader.last_sum() is None

    run(main)


def test_a_client_that_uploads_no_vector_is_rejected() -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        await clock.sleep_until(clock.now() + 1.0)
        offer = await deployment.leader.answer("client-0", GetOffer(TASK))
        with pytest.raises(RemoteProtocolError) as refused:
            await deployment.leader.answer(
                "client-0", chunk(offer.session_id, b"short")
            )
        assert refused.value.code is ErrorCode.BAD_VECTOR
        summing.cancel()

    run(main)


def test_calls_without_meaning_between_two_aggregators_are_rejected() -> None:
    async def main(clock):
        deployment, helper, offer = await opened(clock)
        update = GetUpdate(offer.session_id, Round.MASKED_INPUT_COLLECTION)
        watch = WatchSession(offer.session_id, None)
        for service, request in (
            (deployment.helper, update),
            (deployment.helper, FetchChunk(helper.session_id, Blob.PAYLOAD, 0)),
            (deployment.leader, FetchChunk(helper.session_id, Blob.ROSTER, 0)),
        ):
            with pytest.raises(RemoteProtocolError) as refused:
                await service.answer("c0", request)
            assert refused.value.code is ErrorCode.UNEXPECTED_MESSAGE
        for service in (deployment.helper, deployment.leader):
            with pytest.raises(RemoteProtocolError):
                service.watch("c0", watch)
            with pytest.raises(ServiceError) as unknown:
                await service.answer("c0", GetOffer("other"))
            assert unknown.value.code is ErrorCode.TASK_OVER
            with pytest.raises(SecAggError) as nowhere:
                await service.answer("c0", GetUploadStatus(bytes(32)))
            assert nowhere.value.code is ErrorCode.UNKNOWN_SESSION

    run(main)


def test_an_unauthenticated_peer_reads_no_sum() -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        released, _ = await deployment.give(VECTORS)
        for request in (
            FetchChunk(released.session_id, Blob.SUM, 0),
            GetUpdate(released.session_id, None),
        ):
            assert await deployment.leader.answer("client-0", request)
            with pytest.raises(ServiceError) as refused:
                await deployment.leader.answer("stranger", request)
            assert refused.value.code is ErrorCode.UNKNOWN_SESSION

    run(main)


@pytest.mark.parametrize(
    ("lie", "code"),
    [
        ({"aggregator": "third"}, ErrorCode.UNAUTHENTICATED),
        ({"session_end": 1}, ErrorCode.BAD_CLOCK),  # the next one may be right
        ({"parameters": noise_for(rho=50).parameters}, ErrorCode.BAD_CONFIG),
    ],
)
def test_a_leader_rejects_a_helper_session_that_it_cannot_accept(lie, code) -> None:
    async def main(clock):
        deployment = TwoAggregators(
            clock,
            noise_for(),
            helper_way=lambda way: LyingConnection(
                way, {GetOffer: lambda offer: replace(offer, **lie)}
            ),
        )
        kind = RemoteProtocolError
        if code is ErrorCode.BAD_CLOCK:
            kind = SessionAbortedError  # ends no program
        with pytest.raises(kind) as refused:
            await deployment.leader.next_sum()
        assert refused.value.code is code
        assert deployment.leader.may_serve

    run(main)


def test_a_client_contributes_to_no_session_number_twice() -> None:
    """That the leader repeats one is no fault of the client's disk."""

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        client = deployment.client("c0")
        await asyncio.gather(
            deployment.leader.next_sum(),
            client.contribute(VECTORS[0]),
            *(deployment.client(f"c{k}").contribute(VECTORS[k]) for k in (1, 2, 3)),
        )
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        way = LyingConnection(
            deployment.way_to("leader", "c0"),
            {
                GetOffer: instead(
                    SessionDescriptor, lambda offer: replace(offer, session_number=1)
                )
            },
        )
        client._leader = deployment.client("c0", leader=way)._leader
        with pytest.raises(RemoteProtocolError) as refused:
            await client.contribute(VECTORS[0])
        assert refused.value.code is ErrorCode.REPLAYED_SESSION
        assert refused.value.sender == "leader"
        summing.cancel()

    run(main)


def forged_offers(deployment, change):
    """Return ways to both on which each offer is changed, and they still fit."""
    shown = {}

    def helper(offer):
        shown["helper"] = replace(offer, **change)
        return shown["helper"]

    def leader(offer):
        nonce = replace(deployment.helper._live.offer, **change).session_id
        return replace(offer, **change, server_nonce=nonce)

    return {
        "helper": LyingConnection(deployment.way_to("helper", "c"), {GetOffer: helper}),
        "leader": LyingConnection(deployment.way_to("leader", "c"), {GetOffer: leader}),
    }


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"session_end": 1}, ErrorCode.BAD_CLOCK),
        ({"task_id": "other"}, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_a_client_rejects_matching_false_offers_of_both_aggregators(
    change, code
) -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        await clock.sleep_until(clock.now() + 1.0)
        client = deployment.client("c", **forged_offers(deployment, change))
        with pytest.raises(RemoteProtocolError) as refused:
            await client.contribute(VECTORS[0])
        assert refused.value.code is code
        summing.cancel()

    run(main)


def test_the_connected_and_the_named_aggregator_must_both_match() -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        await clock.sleep_until(clock.now() + 1.0)
        named = LyingConnection(
            deployment.way_to("leader", "c"),
            {GetOffer: lambda offer: replace(offer, aggregator="third")},
        )
        proven = InMemoryConnection(deployment.leader, "c", aggregator="third")
        for way, words, code in (
            (named, "a session of 'third'", ErrorCode.UNAUTHENTICATED),
            (proven, "a session of 'leader'", ErrorCode.UNAUTHENTICATED),
        ):
            with pytest.raises(RemoteProtocolError, match=words) as refused:
                await deployment.client("c", leader=way).contribute(VECTORS[0])
            assert refused.value.code is code
        honest = deployment.client(
            "c", leader_name="third", leader=deployment.way_to("leader", "c")
        )
        with pytest.raises(RemoteProtocolError, match="'third' is expected") as refused:
            await honest.contribute(VECTORS[0])
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        summing.cancel()

    run(main)


@pytest.mark.parametrize(
    ("request_class", "lie", "code"),
    [
        (
            GetUpdate,
            lambda news: (
                Envelope.of(replace(Released.decode(news.data), survivors=1))
                if isinstance(news, Envelope)
                else news
            ),
            ErrorCode.U3_INVALID,
        ),
        (
            FetchChunk,
            lambda piece: BlobChunk(bytes(len(piece.data)), piece.total_size),
            ErrorCode.PAYLOAD_MISMATCH,
        ),
    ],
)
def test_a_false_sum_of_the_leader_is_detected_by_its_hash(
    request_class, lie, code
) -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        way = LyingConnection(deployment.way_to("leader", "c"), {request_class: lie})
        found = await asyncio.gather(
            deployment.leader.next_sum(),
            deployment.client("c", leader=way).contribute(VECTORS[0]),
            *(deployment.client(f"c{k}").contribute(VECTORS[1]) for k in range(3)),
            return_exceptions=True,
        )
        assert isinstance(found[1], RemoteProtocolError)
        assert found[1].code is code

    run(main)


def test_a_second_vector_for_the_leader_is_rejected() -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        await clock.sleep_until(clock.now() + 1.0)
        offer = await deployment.leader.answer("c", GetOffer(TASK))
        size = packed_size(offer.parameters.dimension, offer.parameters.bits)
        first, second = (chunk(offer.session_id, bytes([k] * size)) for k in (0, 1))
        for _ in range(2):
            assert (await deployment.leader.answer("c", first)).complete
        with pytest.raises(RemoteProtocolError) as refused:
            await deployment.leader.answer("c", second)
        assert refused.value.code is ErrorCode.EQUIVOCATION
        summing.cancel()

    run(main)


@pytest.mark.parametrize("message", [AcceptedShares, NoisyShare, HelperShare])
@pytest.mark.parametrize("data", [b"", bytes(3), b"\xff" * 40, bytes(7) + b"\1\0"])
def test_decoders_are_total(message, data) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        message.decode(data)
    assert refused.value.code is ErrorCode.BAD_ENCODING
