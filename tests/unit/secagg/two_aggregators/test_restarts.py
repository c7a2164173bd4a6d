"""Aggregators that end at any point and resume from their stores."""

import asyncio
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from secagg_testing import two_aggregators
from secagg_testing.inline_store import inline_store
from secagg_testing.lying_connection import LyingConnection
from secagg_testing.manual_clock import run
from secagg_testing.two_aggregators import (
    HELPER_KEY,
    LEADER_KEY,
    TASK,
    Between,
    TwoAggregators,
    noise_for,
)

from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    SecAggError,
    ServiceError,
    SessionAbortedError,
)
from secagg.server.storage import ServerStorage
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.change import Side
from secagg.storage.queries import ListCharges, ListSessions, LoadSession, ReadTally
from secagg.storage.spool import SUM, UploadSpool
from secagg.transport.connection import InMemoryConnection
from secagg.two_aggregators.messages import HelperShare, NoisyShare
from secagg.two_aggregators.party import UNAVAILABLE_CODES
from secagg.two_aggregators.receipt import verify_shared_receipt
from secagg.wire.calls import (
    Blob,
    BlobChunk,
    FetchChunk,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    UploadChunk,
    UploadStatus,
)

VECTORS = [np.linspace(-0.3, 0.1 * k, 5) for k in range(1, 5)]


class CrashError(BaseException):
    """The process ends here."""


class CrashingSpool(UploadSpool):
    """A spool under which the process ends before it stores a sum."""

    def __init__(self, blobs):
        super().__init__(blobs)
        self.crashes = 1

    def put(self, session_id, name, data):
        if self.crashes:
            self.crashes -= 1
            raise CrashError
        super().put(session_id, name, data)


def storage(clock, *, crashes=False):
    store = inline_store(now=clock.date)
    spool = CrashingSpool if crashes else UploadSpool
    return ServerStorage(store, spool(MemoryBlobs()))


@pytest.mark.parametrize("place", [0, 1], ids=["leader", "helper"])
def test_an_aggregator_that_crashes_before_its_sum_draws_the_same_noise_again(
    monkeypatch, place
) -> None:
    """The set and the noise seed were in the store before the noise was in a sum."""
    drawn = []
    mechanism = type(noise_for().mechanism)
    add_noise = mechanism.add_noise

    def watched(self, share, *, private_seed):
        drawn.append(private_seed)
        return add_noise(self, share, private_seed=private_seed)

    monkeypatch.setattr(mechanism, "add_noise", watched)

    async def main(clock):
        storages = [storage(clock, crashes=place == each) for each in (0, 1)]
        deployment = TwoAggregators(clock, noise_for(), storages=tuple(storages))
        clients = [deployment.client(f"client-{k}") for k in range(4)]
        giving = [
            asyncio.ensure_future(one.contribute(vector))
            for one, vector in zip(clients, VECTORS, strict=True)
        ]
        with pytest.raises(CrashError):
            await deployment.leader.next_sum()
        for each in giving:
            each.cancel()
        again = deployment.restarted(noise_for())
        await again.helper.recover()
        await again.leader.recover()
        released = await again.leader.next_sum()
        return (
            released,
            *await again.leader.last_receipt(),
            await again.leader.last_sum(),
        )

    released, offer, receipt, kept = run(main)
    verdict = verify_shared_receipt(
        receipt,
        leader_key=LEADER_KEY.public_bytes,
        helper_key=HELPER_KEY.public_bytes,
    )
    assert verdict.receipt.sum_hash == released.sum_hash
    assert offer.session_number == released.session_number
    assert released.inputs == 4
    # Helper, helper again, leader; or helper, leader, leader again.
    assert len(drawn) == 3
    assert drawn[1] == drawn[0 if place else 2]
    assert len(set(drawn)) == 2
    np.testing.assert_array_equal(released.residues, kept.residues)


def test_a_restarted_leader_continues_collecting() -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        early = asyncio.ensure_future(deployment.client("early").contribute(VECTORS[0]))
        await clock.sleep_until(clock.now() + 5.0)
        for each in (summing, early):
            each.cancel()
        again = deployment.restarted(noise_for())
        await again.helper.recover()
        await again.leader.recover()
        found = await again.give(VECTORS[:3])
        return found[0].inputs

    assert run(main) == 4


@pytest.mark.parametrize("comes_again", [True, False])
def test_a_lost_share_is_named_only_if_it_is_sent_again(comes_again) -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        chunks = []

        class Noting(LyingConnection):
            async def call(self, request):
                if isinstance(request, UploadChunk):
                    chunks.append(request)
                return await super().call(request)

        summing = asyncio.ensure_future(deployment.leader.next_sum())
        way = Noting(deployment.way_to(two_aggregators._LEADER, "early"), {})
        client = deployment.client("early", leader=way)
        early = asyncio.ensure_future(client.contribute(VECTORS[0]))
        await clock.sleep_until(clock.now() + 5.0)
        for each in (summing, early):
            each.cancel()
        (chunk,) = chunks
        spool = deployment.storages[0].spool
        spool.drop_uploads(chunk.session_id)
        again = deployment.restarted(noise_for())
        await again.helper.recover()
        await again.leader.recover()
        giving = asyncio.ensure_future(again.give(VECTORS[:3]))
        await clock.sleep_until(clock.now() + 1.0)
        way = InMemoryConnection(again.leader, "early")
        assert await way.call(GetUploadStatus(chunk.session_id)) == UploadStatus(0)
        with pytest.raises(RemoteProtocolError) as caught:
            await way.call(replace(chunk, digest=bytes(32)))
        assert caught.value.code is ErrorCode.EQUIVOCATION
        if comes_again:
            assert (await way.call(chunk)).complete
        return (await giving)[0].inputs

    assert run(main) == 3 + comes_again


def test_a_restarted_helper_offers_its_next_session() -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        first, _ = await deployment.give(VECTORS)
        again = deployment.restarted(noise_for())
        await again.helper.recover()
        await again.leader.recover()
        second, _ = await again.give(VECTORS[:3])
        return first, second

    first, second = run(main)
    assert (first.session_number, second.session_number) == (1, 2)
    assert (first.inputs, second.inputs) == (4, 3)


@pytest.mark.parametrize("place", [0, 1], ids=["leader", "helper"])
def test_a_restored_session_is_ended(place) -> None:
    """It is unknown for whom it was answered since."""

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        await clock.sleep_until(clock.now() + 1.0)
        summing.cancel()
        store = deployment.storages[place].store
        read = store.read

        async def put_back(query):
            found = await read(query)
            is_one = isinstance(query, LoadSession)
            return replace(found, restored=True) if is_one else found

        store.read = put_back
        again = deployment.restarted(noise_for())
        party = (again.leader, again.helper)[place]
        await party.recover()
        assert not await store.read(ListSessions(role=Side.SERVER, task=TASK))

    run(main)


def test_a_restarted_client_contributes_no_second_vector_to_a_session() -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        one = deployment.client("client-0")
        giving = asyncio.ensure_future(one.contribute(VECTORS[0]))
        await clock.sleep_until(clock.now() + 5.0)
        giving.cancel()
        await asyncio.wait({giving})
        second = asyncio.ensure_future(one.contribute(VECTORS[1]))
        with pytest.raises(SessionAbortedError):
            await summing
        with pytest.raises(SecAggError) as none:
            await second
        assert none.value.code is ErrorCode.DEADLINE
        charges = await one._state.open_store().read(ListCharges(TASK))
        assert len(charges) == 1

    run(main)


def test_a_client_that_lost_its_seed_does_not_corrupt_the_sum(drawn) -> None:
    """A share of one seed and a share without another add up to a random vector."""

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())

        class Killed(Between):
            """A way to the leader on which the process ends before its share is out."""

            async def call(self, request):
                if isinstance(request, UploadChunk):
                    raise CrashError
                return await super().call(request)

        summing = asyncio.ensure_future(deployment.leader.next_sum())
        with pytest.raises(CrashError):
            await deployment.client(
                "c3", leader=Killed(deployment.way_to("leader", "c3"))
            ).contribute(VECTORS[3])
        found = await asyncio.gather(
            deployment.client("c3").contribute(VECTORS[3]),  # its state is lost as well
            *(deployment.client(f"c{k}").contribute(VECTORS[k]) for k in range(3)),
            return_exceptions=True,
        )
        return found, await summing

    found, released = run(main)
    assert found[0].code is ErrorCode.EQUIVOCATION
    assert released.inputs == 3
    modulus = noise_for().parameters.modulus
    expected = sum(np.trunc(each * 2**7).astype(np.int64) for each in VECTORS[:3])
    np.testing.assert_array_equal(released.residues, (expected + sum(drawn)) % modulus)


@pytest.mark.parametrize("slow", ["leader", "helper"])
def test_two_processes_under_one_name_count_as_one_client(drawn, slow) -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())

        class Slow(Between):
            async def call(self, request):
                if isinstance(request, UploadChunk):
                    await clock.sleep_until(clock.now() + 5.0)
                return await super().call(request)

        ways = {slow: Slow(deployment.way_to(slow, "c3"))}
        released, *given = await asyncio.gather(
            deployment.leader.next_sum(),
            deployment.client("c3", **ways).contribute(VECTORS[3]),
            deployment.client("c3").contribute(-VECTORS[3]),
            *(deployment.client(f"c{k}").contribute(VECTORS[k]) for k in range(2)),
            return_exceptions=True,
        )
        return released, given

    released, given = run(main)
    assert released.inputs == 3
    refused = [each for each in given[:2] if isinstance(each, Exception)]
    assert ErrorCode.EQUIVOCATION in {each.code for each in refused}
    # A client that was told of a sum is in it with its own vector.
    told = VECTORS[:2]
    told += [
        vector
        for vector, each in zip((VECTORS[3], -VECTORS[3]), given[:2], strict=True)
        if not isinstance(each, Exception)
    ]
    assert len(told) == released.inputs
    modulus = noise_for().parameters.modulus
    expected = sum(np.trunc(each * 2**7).astype(np.int64) for each in told)
    np.testing.assert_array_equal(released.residues, (expected + sum(drawn)) % modulus)


def test_a_client_that_lost_the_last_acknowledgement_receives_the_sum() -> None:
    """The leader has it in its store, and may be done when it is asked again."""

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())

        class Lossy(Between):
            """Loses the first answer to an upload, until the sum is out."""

            is_lost = False

            async def call(self, request):
                answer = await super().call(request)
                if isinstance(request, UploadChunk) and not self.is_lost:
                    self.is_lost = True
                    await asyncio.wait({summing})
                    raise ServiceError("lost", code=ErrorCode.UNREACHABLE)
                return answer

        summing = asyncio.ensure_future(deployment.leader.next_sum())
        lossy = deployment.client("c3", leader=Lossy(deployment.way_to("leader", "c3")))
        given = await asyncio.gather(
            *(deployment.client(f"c{k}").contribute(VECTORS[k]) for k in range(3)),
            lossy.contribute(VECTORS[3]),
        )
        return given, await summing

    given, released = run(main)
    assert released.inputs == 4
    for each in given:
        assert each.is_included
        np.testing.assert_array_equal(each.values, released.values)


def test_an_unreachable_helper_spends_no_session() -> None:
    async def main(clock):
        def broken(way):
            class Gone:
                identity, aggregator = way.identity, way.aggregator
                trust_domain = way.trust_domain

                async def call(self, request):
                    if isinstance(request, GetOffer):
                        raise ServiceError("gone", code=ErrorCode.UNREACHABLE)
                    return await way.call(request)

            return Gone()

        deployment = TwoAggregators(clock, noise_for(), helper_way=broken)
        with pytest.raises(SessionAbortedError) as late:
            await deployment.leader.next_sum()
        assert late.value.code is ErrorCode.DEADLINE
        assert (
            await deployment.storages[0].store.read(ReadTally(Side.SERVER, TASK))
        ).spent == 0

    run(main)


def test_an_interrupted_leader_resumes_its_session_from_the_store() -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        early = asyncio.ensure_future(deployment.client("early").contribute(VECTORS[0]))
        await clock.sleep_until(clock.now() + 5.0)
        summing.cancel()
        await asyncio.wait({summing})
        released, _ = await deployment.give(VECTORS[:3])
        await early
        return released.session_number, released.inputs

    assert run(main) == (1, 4)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_leader_that_lost_a_commit_acknowledgement_reads_the_store(
    is_written,
) -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        giving = [
            asyncio.ensure_future(deployment.client(f"c{k}").contribute(VECTORS[k]))
            for k in range(4)
        ]
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        await clock.sleep_until(clock.now() + 0.1)
        log = deployment.leader._live.log
        append = log.append

        async def lost(record, **options):
            if record.kind == 1:
                return await append(record, **options)
            if is_written:
                await append(record, **options)
            raise ServiceError("lost", code=ErrorCode.STORAGE_FAILED)

        log.append = lost
        with pytest.raises(ServiceError, match="lost"):
            await summing
        began = clock.now()
        released = await deployment.leader.next_sum()
        await asyncio.gather(*giving)
        return released.inputs, clock.now() - began

    inputs, seconds = run(main)
    assert inputs == 4
    assert seconds < 60  # it had all shares and waits for none


def test_a_helper_whose_answer_changes_is_rejected() -> None:
    async def main(clock):
        def changed(piece):
            part = NoisyShare.decode(piece.data)
            other = bytes([part.packed[0] ^ 1]) + part.packed[1:]
            signed = again.signed(replace(part, packed=other))
            return BlobChunk(signed.encode(), piece.total_size)

        storages = (storage(clock, crashes=True), storage(clock))
        deployment = TwoAggregators(clock, noise_for(), storages=storages)
        giving = [
            asyncio.ensure_future(deployment.client(f"c{k}").contribute(VECTORS[k]))
            for k in range(4)
        ]
        with pytest.raises(CrashError):
            await deployment.leader.next_sum()
        for each in giving:
            each.cancel()
        again = TwoAggregators(
            clock,
            noise_for(),
            storages=storages,
            helper_way=lambda way: LyingConnection(way, {FetchChunk: changed}),
        )
        await again.leader.recover()
        with pytest.raises(RemoteProtocolError) as refused:
            await again.leader.next_sum()
        assert refused.value.code is ErrorCode.EQUIVOCATION
        assert await again.leader.last_sum() is None

    run(main)


def test_a_failed_session_is_followed_by_a_new_helper_session() -> None:
    """Its clients could not send the helper another seed in the old one."""

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        early = [deployment.client(f"client-{k}") for k in range(2)]
        found = await asyncio.gather(
            deployment.leader.next_sum(),
            *(one.contribute(VECTORS[0]) for one in early),
            return_exceptions=True,
        )
        assert {error.code for error in found} == {ErrorCode.U3_TOO_SMALL}
        released, _ = await deployment.give(VECTORS)
        return released.inputs

    assert run(main) == 4


def test_a_share_uploaded_at_once_is_in_the_sum() -> None:
    """Old sums are removed while the store is slow: not the shares of the new one."""

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        store = deployment.storages[0].store
        read = store.read

        async def slow(query):
            found = await read(query)
            if isinstance(query, ListSessions):
                await clock.sleep_until(clock.now() + 30.0)
            return found

        store.read = slow
        await deployment.give(VECTORS)
        released, _ = await deployment.give(VECTORS)
        return released.inputs

    assert run(main) == 4


@pytest.mark.parametrize("is_restarted", [True, False])
def test_permanently_lost_shares_end_only_one_session(is_restarted) -> None:
    async def main(clock):
        storages = (storage(clock, crashes=is_restarted), storage(clock))

        class Losing(Between):
            """A way to the helper; once it has answered, the shares are gone."""

            is_done = is_restarted

            async def call(self, request):
                answer = await super().call(request)
                if isinstance(request, FetchChunk) and not self.is_done:
                    self.is_done = True
                    end(deployment)
                return answer

        def end(deployment):
            live = deployment.leader._live
            storages[0].spool.drop_uploads(live.offer.session_id)
            clock.advance(live.offer.session_end - clock.date())

        deployment = TwoAggregators(
            clock, noise_for(), storages=storages, helper_way=Losing
        )
        giving = [
            asyncio.ensure_future(deployment.client(f"c{k}").contribute(VECTORS[k]))
            for k in range(4)
        ]
        if is_restarted:
            with pytest.raises(CrashError):
                await deployment.leader.next_sum()
            deployment = deployment.restarted(noise_for())
            await deployment.helper.recover()
            await deployment.leader.recover()
            live = deployment.leader._live
            storages[0].spool.drop_uploads(live.offer.session_id)
            # The disk may be mended while the clients still wait.
            with pytest.raises(ServiceError) as lost:
                await deployment.leader.next_sum()
            assert lost.value.code is ErrorCode.STORAGE_FAILED
            end(deployment)
        with pytest.raises(SessionAbortedError) as ended:
            await deployment.leader.next_sum()
        for each in giving:
            each.cancel()
        assert ended.value.code is ErrorCode.STORAGE_FAILED
        released, _ = await deployment.give(VECTORS)
        return released

    released = run(main)
    assert (released.session_number, released.inputs) == (2, 4)


def test_the_sum_of_an_aborted_session_cannot_be_fetched() -> None:
    """It lay on the disk already when the process ended; the receipt says no sum."""

    class StoringSpool(UploadSpool):
        def put(self, session_id, name, data):
            super().put(session_id, name, data)
            raise CrashError

    async def main(clock):
        def away(_):
            raise ServiceError("away", code=ErrorCode.UNREACHABLE)

        spool = StoringSpool(MemoryBlobs())
        storages = (ServerStorage(inline_store(now=clock.date), spool), storage(clock))
        deployment = TwoAggregators(clock, noise_for(), storages=storages)
        giving = [
            asyncio.ensure_future(deployment.client(f"c{k}").contribute(VECTORS[k]))
            for k in range(4)
        ]
        with pytest.raises(CrashError):
            await deployment.leader.next_sum()
        session_id = deployment.leader._live.offer.session_id
        for each in giving:
            each.cancel()
        again = TwoAggregators(
            clock,
            noise_for(),
            storages=storages,
            helper_way=lambda way: LyingConnection(way, {FetchChunk: away}),
        )
        await again.leader.recover()
        with pytest.raises(SessionAbortedError):
            await again.leader.next_sum()
        assert spool.read(session_id, SUM, 0, None) is not None
        receipt, kept = (
            FetchChunk(session_id, blob, 0) for blob in (Blob.QUORUM, Blob.SUM)
        )
        assert (await again.leader.answer("c0", receipt)).data
        with pytest.raises(ServiceError) as refused:
            await again.leader.answer("c0", kept)
        assert refused.value.code is ErrorCode.UNKNOWN_SESSION

    run(main)


def test_a_helper_that_could_not_store_its_answer_accepts_no_more_seeds() -> None:
    async def main(clock):
        storages = (storage(clock), storage(clock, crashes=True))
        deployment = TwoAggregators(clock, noise_for(), storages=storages)
        giving = [
            asyncio.ensure_future(deployment.client(f"c{k}").contribute(VECTORS[k]))
            for k in range(4)
        ]
        with pytest.raises(CrashError):
            await deployment.leader.next_sum()
        for each in giving:
            each.cancel()
        offer = deployment.helper._live.offer
        late = HelperShare.decode(bytes(64)).encode()
        upload = UploadChunk(offer.session_id, 0, 64, sha256(late).digest(), late)
        with pytest.raises(ServiceError) as refused:
            await deployment.helper.answer("late", upload)
        assert refused.value.code is ErrorCode.UNKNOWN_SESSION

    run(main)


@pytest.mark.parametrize("turns", range(8))
def test_a_cancelled_upload_leaves_no_partial_share(turns) -> None:
    """A cancelled call is completed: store and memory agree."""

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        helper = await deployment.helper.answer("leader", GetOffer(TASK))
        share = HelperShare.decode(bytes(64)).encode()
        upload = UploadChunk(
            helper.session_id, 0, len(share), sha256(share).digest(), share
        )
        giving_up = asyncio.ensure_future(deployment.helper.answer("c0", upload))
        for _ in range(turns):
            await asyncio.sleep(0)
        giving_up.cancel()
        await asyncio.wait({giving_up})
        assert (await deployment.helper.answer("c0", upload)).complete
        assert (await deployment.helper.answer("c1", upload)).complete
        stored = await deployment.storages[1].store.read(
            LoadSession(helper.session_id.hex())
        )
        assert [record.sender for record in stored.records] == ["c0", "c1"]

    run(main)


def test_sessions_of_another_task_in_the_same_state_are_not_served(monkeypatch) -> None:
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for())
        released, _ = await deployment.give(VECTORS)
        asked = GetUpdate(released.session_id, None)
        await deployment.restarted(noise_for()).leader.answer("client-0", asked)
        monkeypatch.setattr(two_aggregators, "TASK", "another")
        with pytest.raises(ServiceError) as caught:
            await deployment.restarted(noise_for()).leader.answer("client-0", asked)
        assert caught.value.code is ErrorCode.UNKNOWN_SESSION

    run(main)


@pytest.mark.parametrize("shares", [3, 4], ids=["in the session", "behind it"])
def test_a_session_keeps_its_noise_when_the_settings_change(
    monkeypatch, shares
) -> None:
    """Clients have given their shares for the noise of the offer, and for no other."""
    promised, weaker = noise_for(), noise_for(rho=50, epsilon=200.0, bits=10)
    variances, mechanism = set(), type(promised.mechanism)
    add_noise = mechanism.add_noise

    def watched(self, share, *, private_seed):
        variances.add(self.counted_noise_variance)
        return add_noise(self, share, private_seed=private_seed)

    monkeypatch.setattr(mechanism, "add_noise", watched)

    async def main(clock):
        deployment = TwoAggregators(clock, promised)
        summing = asyncio.ensure_future(deployment.leader.next_sum())
        giving = [
            asyncio.ensure_future(deployment.client(f"c{k}").contribute(VECTORS[k]))
            for k in range(shares)
        ]
        await clock.sleep_until(clock.now() + 10.0)
        for each in (summing, *giving):
            each.cancel()
        again = deployment.restarted(weaker)
        await again.helper.recover()
        await again.leader.recover()
        released = await again.leader.last_sum() or await again.leader.next_sum()
        return released, await again.leader.describe(released)

    released, report = run(main)
    assert released.inputs == shares
    assert variances == {promised.mechanism.counted_noise_variance}
    values = promised.decode(released.residues, session_id=released.session_id)
    np.testing.assert_array_equal(released.values, values)
    assert report["privacy"] == promised.report().to_dict()


def test_a_helper_with_corrected_settings_is_accepted() -> None:
    """Its open session is of the wrong ones, and it will never be used."""

    async def main(clock):
        wrong, right = noise_for(rho=0.25), noise_for()
        deployment = TwoAggregators(clock, wrong)
        await deployment.helper.answer("leader", GetOffer(TASK))
        again = deployment.restarted(right)
        await again.helper.recover()
        released, _ = await again.give(VECTORS)
        return released, right

    released, right = run(main)
    assert released.inputs == 4
    assert released.noise.parameters == right.parameters


class _LostAnswer:
    """A disk that writes one change of a kind, and reports a failure."""

    def __init__(self, store, is_it):
        self._commit, self._is_it = store.commit, is_it
        self.has_lost = False
        store.commit = self

    async def __call__(self, command):
        done = await self._commit(command)
        if not self.has_lost and self._is_it(command):
            self.has_lost = True
            raise ServiceError("lost", code=ErrorCode.STORAGE_FAILED)
        return done


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "is_it",
    [
        lambda change: getattr(change, "create", None) is not None,
        lambda change: bool(getattr(change, "records", ())) and not change.spend,
        lambda change: getattr(change, "spend", False),
        lambda change: getattr(change, "end", None) is not None,
    ],
    ids=["opened", "share", "agreed", "ended"],
)
def test_one_lost_commit_acknowledgement_delays_no_further_sum(place, is_it) -> None:
    """No process has to be started again: each reads what the commit has done."""

    async def main(clock):
        deployment = TwoAggregators(clock, noise_for(participations=5))
        lossy, codes = _LostAnswer(deployment.storages[place].store, is_it), []

        async def lead():
            while True:
                try:
                    await deployment.leader.next_sum()
                except (SessionAbortedError, ServiceError) as error:
                    codes.append(error.code)
                    await clock.sleep_until(clock.now() + 1.0)

        def give():
            return asyncio.gather(
                *(
                    deployment.client(f"c{k}").contribute(vector)
                    for k, vector in enumerate(VECTORS)
                ),
                return_exceptions=True,
            )

        leading = asyncio.ensure_future(lead())
        await give()
        assert lossy.has_lost
        assert [each.is_included for each in await give()] == [True] * 4
        leading.cancel()
        assert {ErrorCode.U3_TOO_SMALL, *UNAVAILABLE_CODES} >= set(codes)

    run(main)
