"""Uploads that were accepted and are gone when the aggregator starts again."""

import asyncio
import dataclasses
from dataclasses import dataclass, field

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for, signing_parameters_for, with_noise
from secagg_testing.deployment import TASK_ID, Deployment
from secagg_testing.inline_store import answer_of

from secagg.client.contribution import SessionOutcome
from secagg.client.session_driver import SessionSettings
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.messages import Fate
from secagg.server.rpc.limits import AggregatorLimits
from secagg.server.session.report import SessionReceipt
from secagg.simulation import identity_of
from secagg.storage.blobs import FileBlobs
from secagg.storage.change import Side
from secagg.storage.queries import ListSessions, LoadSession
from secagg.storage.rows import SessionState
from secagg.storage.spool import UploadSpool
from secagg.wire.calls import (
    GetUploadStatus,
    Request,
    RevealShares,
    SignConsistency,
    UploadChunk,
)

CLIENTS = 5
PARAMETERS = parameters_for(CLIENTS, dimension=9, threshold=3)
SIGNED = signing_parameters_for(CLIENTS, dimension=9)


@dataclass(eq=False)
class Losing(Deployment):
    """A deployment whose second aggregator finds no uploads.

    Attributes:
        home: Where they lie.
        kill_at: The first aggregator dies when it has answered so many calls of a kind,
            of as many clients; the others make theirs later.
        gone: Clients that are never heard of again after that.
        losing: Whether uploads are lost.
    """

    home: object = None
    kill_at: tuple[type[Request], int] = (UploadChunk, 3)
    gone: frozenset[int] = frozenset()
    losing: bool = True
    answered: list[Request] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    removed: int = 0

    async def serve(self):
        self.spool = UploadSpool(FileBlobs(self.home), min_free_bytes=0)
        await super().serve()

    async def _serve_once(self, switch):
        if self.server_restarts == 1 and self.losing:
            for path in self.home.glob("*/uploads/*"):
                path.unlink()
                self.removed += 1
        if self.server_restarts:
            self.spool = UploadSpool(FileBlobs(self.home), min_free_bytes=0)
        await super()._serve_once(switch)

    def _link(self, number):
        link = super()._link(number)
        call = link.call

        async def counted(request):
            if number in self.gone and self.server_restarts:
                await asyncio.Event().wait()
            kind, most = self.kill_at
            if isinstance(request, kind) and number >= most:
                while not self.server_restarts:
                    await self.clock.sleep_until(self.clock.now() + 1.0)
            if isinstance(request, GetUploadStatus):
                self.asked.append(number)
            answer = await call(request)
            self.answered.append(request)
            if sum(isinstance(each, kind) for each in self.answered) == most:
                self.server_crash.kill()
            return answer

        link.call = counted
        return link

    async def take_part(self, number):
        if number not in self.gone:
            return await super().take_part(number)
        taking = asyncio.ensure_future(super().take_part(number))
        while not self.server_restarts:
            await self.clock.sleep_until(self.clock.now() + 1.0)
        taking.cancel()
        await asyncio.wait({taking})
        return None

    def receipts(self):
        rows = answer_of(
            self.server_store.read(
                ListSessions(role=Side.SERVER, task=TASK_ID, state=SessionState.ENDED)
            )
        )
        return [
            SessionReceipt.decode(
                answer_of(self.server_store.read(LoadSession(row.key))).receipt
            )
            for row in rows
        ]


def lose(home, **options):
    # Those who poll ask twice a second: they hear of a loss before the round is over.
    chosen = {
        "parameters": PARAMETERS,
        "limits": AggregatorLimits(idle_timeout=30.0),
    } | options

    async def main(clock):
        deployment = Losing(clock, clients=CLIENTS, home=home, **chosen)
        return deployment, await deployment.run()

    deployment, endings = manual_clock.run(main)
    assert deployment.server_restarts == 1
    assert deployment.contradictions() == {}
    return deployment, endings


@pytest.mark.parametrize("watch", [True, False])
@pytest.mark.parametrize("uploads", [1, 3, CLIENTS - 1])
@pytest.mark.parametrize("parameters", [PARAMETERS, SIGNED])
def test_running_clients_upload_again(parameters, uploads, watch, tmp_path):
    deployment, endings = lose(
        tmp_path,
        parameters=parameters,
        kill_at=(UploadChunk, uploads),
        settings=SessionSettings(offer_seconds=600.0, watch=watch),
    )
    assert deployment.removed == uploads
    assert set(deployment.asked) >= set(range(uploads))
    (released,) = deployment.sums
    np.testing.assert_array_equal(
        released.residues, deployment.expected_sum(set(range(CLIENTS)))
    )
    assert all(isinstance(each, SessionOutcome) for each in endings.values())
    assert released.descriptor.session_number == 1


def test_clients_that_do_not_return_are_dropped(tmp_path):
    deployment, endings = lose(
        tmp_path, kill_at=(UploadChunk, 4), gone=frozenset({0, 2})
    )
    (released,) = deployment.sums
    np.testing.assert_array_equal(released.residues, deployment.expected_sum({1, 3, 4}))
    assert released.survivors == 3
    assert {n for n, each in endings.items() if each is None} == {0, 2}
    (receipt,) = deployment.receipts()
    assert receipt.survivors == tuple(map(identity_of, (1, 3, 4)))


def test_too_few_remaining_clients_end_the_session_before_u3_is_fixed(tmp_path):
    """Their charge may be given back: the server could not unmask anything."""
    deployment, _ = lose(
        tmp_path,
        kill_at=(UploadChunk, 4),
        gone=frozenset({0, 1, 2}),
        ends_at=1500.0,
    )
    assert deployment.sums == []
    receipt = deployment.receipts()[-1]
    assert receipt.outcome.code is ErrorCode.U3_TOO_SMALL
    assert receipt.outcome.fate is Fate.NEVER_FIXED
    assert not any(isinstance(each, RevealShares) for each in deployment.answered)


@pytest.mark.parametrize(
    ("parameters", "kind"), [(PARAMETERS, RevealShares), (SIGNED, SignConsistency)]
)
def test_a_fixed_u3_is_not_unmasked_without_the_lost_uploads(
    parameters, kind, tmp_path
):
    deployment, _ = lose(tmp_path, parameters=parameters, kill_at=(kind, 1))
    ended = deployment.receipts()
    assert ended[-1].outcome.code is ErrorCode.STORAGE_FAILED
    of_first = [
        each
        for each in deployment.answered
        if isinstance(each, RevealShares)
        and each.session_id == ended[-1].descriptor.session_id
    ]
    assert len(of_first) <= (kind is RevealShares)
    (released,) = deployment.sums  # of the session that followed
    np.testing.assert_array_equal(
        released.residues, deployment.expected_sum(set(range(CLIENTS)))
    )


def test_only_the_same_bytes_are_accepted_again(tmp_path):
    refused = []

    class Lying(Losing):
        def _link(self, number):
            link = super()._link(number)
            call = link.call

            async def lie(request):
                if (
                    number == 1
                    and isinstance(request, UploadChunk)
                    and self.server_restarts
                    and not refused
                ):
                    other = dataclasses.replace(request, digest=bytes(32))
                    with pytest.raises(RemoteProtocolError) as caught:
                        await call(other)
                    refused.append(caught.value.code)
                return await call(request)

            link.call = lie
            return link

    async def main(clock):
        deployment = Lying(clock, PARAMETERS, CLIENTS, home=tmp_path)
        await deployment.run()
        return deployment

    deployment = manual_clock.run(main)
    assert refused == [ErrorCode.EQUIVOCATION]
    np.testing.assert_array_equal(
        deployment.sums[0].residues, deployment.expected_sum(set(range(CLIENTS)))
    )


def test_a_client_whose_upload_exists_sends_it_once(tmp_path):
    deployment, _ = lose(tmp_path, losing=False)
    chunks = [each for each in deployment.answered if isinstance(each, UploadChunk)]
    assert len(chunks) == CLIENTS
    assert len(deployment.asked) == len(set(deployment.asked))


NOISED = with_noise(PARAMETERS)


class LateLoss(Losing):
    """Client 0 starts again when it has uploaded; long after, its upload is lost."""

    def __init__(self, *words, **more):
        super().__init__(*words, **more)
        self.left = []  # for a vector of client 0, whenever it is asked for one
        self.uploaded = asyncio.Event()
        # Client 2 sends the last upload that is lost after 0.8 of the round.
        self.rest = 0.8 - (self.settings.answer_at or 0.0)

    def _client(self, number, switch):
        runner = super()._client(number, switch)
        if number == 0:
            runner._parts = dataclasses.replace(runner._parts, prepare=self._prepare)
        return runner

    async def _prepare(self, given):
        self.left.append(given.due - self.clock.now())
        return given.session.payload

    def _link(self, number):
        link = super()._link(number)
        call = link.call

        async def slow(request):
            if number == 2 and isinstance(request, UploadChunk) and not self.removed:
                await self.clock.sleep_until(self.clock.now() + self.rest * ROUND)
            answer = await call(request)
            if number == 0 and isinstance(request, UploadChunk):
                self.uploaded.set()
            return answer

        link.call = slow
        return link

    async def take_part(self, number):
        if number:
            return await super().take_part(number)
        first = asyncio.ensure_future(super().take_part(number))
        await self.uploaded.wait()
        first.cancel()
        await asyncio.wait({first})
        return await super().take_part(number)


ROUND = NOISED.deadlines.masked_input


@pytest.mark.parametrize("answer_at", [None, 0.5])
def test_a_lost_vector_is_uploaded_again(answer_at, tmp_path):
    """Zeros cannot take its place any more: its digest is bound."""

    async def main(clock):
        deployment = LateLoss(
            clock,
            NOISED,
            CLIENTS,
            home=tmp_path,
            settings=SessionSettings(offer_seconds=600.0, answer_at=answer_at),
        )
        return deployment, await deployment.run()

    deployment, endings = manual_clock.run(main)
    assert deployment.removed == 3
    assert deployment.left == pytest.approx([(answer_at or 0.7) * ROUND] * 2)
    (released,) = deployment.sums
    np.testing.assert_array_equal(
        released.residues, deployment.expected_sum(set(range(CLIENTS)))
    )
    assert isinstance(endings[0], SessionOutcome)
