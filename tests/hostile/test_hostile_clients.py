"""Clients that send anything but what they should, beside a cohort that just works.

Whatever one of them sends, it gets a typed refusal, the process continues, and the
others get the exact sum (rule 6 of `secagg.server.aggregator`).
"""

import asyncio
import hashlib

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for
from secagg_testing.deployment import TASK_ID, Deployment
from secagg_testing.inline_store import answer_of
from secagg_testing.lying_connection import LyingConnection

from secagg.client.contribution import SessionOutcome
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.key_agreement import KeyPair
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import BUNDLE_BYTES, Advert, Round
from secagg.protocol.packing import packed_size
from secagg.protocol.profiles import Profile
from secagg.protocol.rounds import rounds_of
from secagg.simulation import identity_of
from secagg.storage.change import Side
from secagg.storage.queries import ListSessions
from secagg.wire.calls import (
    AdvertiseKeys,
    Blob,
    FetchChunk,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    RevealShares,
    ShareKeys,
    UploadChunk,
    WatchSession,
)

CLIENTS = 4
DIMENSION = 7
SIZE = packed_size(DIMENSION, 20)
STRANGE_NAMES = (
    "x" * 255,
    "\u202egnirts",  # written from right to left
    "\x01\x1b[2J",
    "../../etc/passwd",
    "Ω\u0301" * 60,
    identity_of(0) + "\u200b",  # looks like another client
)
NOISE = SeededEntropy(SecretBytes(bytes(32)), b"garbage")


def keys(label):
    return KeyPair.generate(SeededEntropy(SecretBytes(bytes(32)), label))


def advert_of(identity, label=b"hostile"):
    return Advert(
        identity,
        keys(label + b"1").public_bytes,
        keys(label + b"2").public_bytes,
        bytes(32),
    ).encode()


def calls_of(aggregator, name, session_id):
    """Everything that a client can call, with everything that it should not send."""
    chunk = {"offset": 0, "total_size": SIZE, "digest": bytes(32), "data": b"x" * SIZE}
    for garbage in (b"", b"\x00", NOISE.token(99), NOISE.token(5000)):
        yield aggregator.answer(name, AdvertiseKeys(session_id, garbage))
        yield aggregator.answer(name, ShareKeys(session_id, garbage))
        yield aggregator.answer(name, RevealShares(session_id, garbage))
    yield aggregator.answer(name, AdvertiseKeys(session_id, advert_of(identity_of(1))))
    yield aggregator.answer(
        name, AdvertiseKeys(session_id, advert_of(name, b"another"))
    )
    for size in (1, CLIENTS - 1, CLIENTS + 1):  # its neighbours are CLIENTS
        yield aggregator.answer(
            name, ShareKeys(session_id, NOISE.token(size * BUNDLE_BYTES))
        )
        yield aggregator.answer(name, RevealShares(session_id, NOISE.token(size * 34)))
    for changes in (
        {},
        {"offset": -1},
        {"offset": SIZE},
        {"offset": 1 << 62},
        {"total_size": 0},
        {"total_size": 1 << 62},
        {"digest": b""},
        {"digest": hashlib.sha256(b"x" * SIZE).digest()},
        {"data": bytes(1 << 21)},
    ):
        yield aggregator.answer(name, UploadChunk(session_id, **(chunk | changes)))
    yield aggregator.answer(name, GetUploadStatus(session_id))
    for blob in Blob:
        for offset, max_bytes in ((0, 1 << 62), (1 << 62, 1), (-1, 1)):
            yield aggregator.answer(
                name,
                FetchChunk(session_id, blob=blob, offset=offset, max_bytes=max_bytes),
            )
    for guess in (bytes(32), b"", session_id[:31], session_id + b"\x00"):
        yield aggregator.answer(name, GetUpdate(guess, after=None))
        yield aggregator.answer(name, GetUploadStatus(guess))
    yield aggregator.answer(name, GetOffer("../" + TASK_ID, after_session=-1))


class Siege(Deployment):
    """A deployment whose aggregator is attacked for as long as it lives."""

    def __init__(self, *args, names, **fields):
        super().__init__(*args, **fields)
        self.names, self.refusals, self.accepted = names, [], 0
        self.pause, self.attacked = 0.3, set()

    async def run(self, **fields):
        sieges = [asyncio.ensure_future(self.attack(name)) for name in self.names]
        endings = await super().run(**fields)
        for siege in sieges:
            siege.cancel()
        await asyncio.gather(*sieges, return_exceptions=True)
        return endings

    async def attack(self, name):
        joined = False
        while True:
            await self.clock.sleep_until(self.clock.now() + self.pause)
            self.pause = 7.0
            aggregator = self.aggregator
            if aggregator is None:
                continue
            offered = await self.refused(
                aggregator.answer(name, GetOffer(TASK_ID, after_session=0))
            )
            if isinstance(offered, SessionDescriptor) and not joined:
                joined = True
                advert = advert_of(name, name.encode())
                await self.refused(
                    aggregator.answer(name, AdvertiseKeys(offered.session_id, advert))
                )
            for runner in tuple(aggregator._sessions.running(TASK_ID)):
                self.attacked.add(runner.progress().round)
                for call in calls_of(aggregator, name, runner.session_id):
                    await self.refused(call)

    async def refused(self, call):
        try:
            answer = await call
        except SecAggError as error:
            self.refusals.append(error)
            return None
        self.accepted += 1
        return answer


class Slow(LyingConnection):
    """An honest client's link: slow enough that every round is besieged."""

    def __init__(self, inner, clock):
        super().__init__(inner, {})
        self._clock = clock

    async def call(self, request):
        await self._clock.sleep_until(self._clock.now() + 10.0)
        return await super().call(request)


def besieged(names, kind=Siege, **options):
    async def main(clock):
        siege = kind(
            clock,
            parameters_for(CLIENTS + len(names), dimension=DIMENSION, threshold=3),
            CLIENTS,
            payload=b"a query",
            names=names,
            tamper=lambda _, link: Slow(link, clock),
            **options,
        )
        return siege, await siege.run()

    return manual_clock.run(main)


@pytest.mark.parametrize("name", STRANGE_NAMES, ids=ascii)
def test_a_member_that_sends_garbage_in_every_round_does_not_prevent_the_sum(name):
    siege, endings = besieged([name])
    assert all(isinstance(e, SessionOutcome) for e in endings.values()), endings
    assert len(siege.sums) == 1
    assert siege.attacked >= set(rounds_of(Profile.HONEST_CURIOUS_SERVER))
    codes = {error.code for error in siege.refusals}
    assert ErrorCode.INTERNAL not in codes
    assert {
        ErrorCode.BAD_ENCODING,
        ErrorCode.EQUIVOCATION,
        ErrorCode.UNKNOWN_SESSION,
        ErrorCode.UNEXPECTED_MESSAGE,
    } <= codes
    # Its advert and its bundles may count; no input of it is in the sum.
    assert siege.sums[0].survivors == CLIENTS
    np.testing.assert_array_equal(
        siege.sums[0].residues, siege.expected_sum(set(range(CLIENTS)))
    )
    assert siege.contradictions() == {}


def test_bundles_of_random_bytes_cost_one_session_and_exclude_their_sender():
    """Only its readers can check a sealed bundle, and no server expects a colluder."""

    class Poisoned(Siege):
        async def attack(self, name):
            while self.aggregator is None:
                await self.clock.sleep_until(self.clock.now() + 0.1)
            offered = await self.aggregator.answer(
                name, GetOffer(TASK_ID, after_session=0)
            )
            session_id = offered.session_id
            await self.aggregator.answer(
                name, AdvertiseKeys(session_id, advert_of(name))
            )
            while self.aggregator is not None:
                garbage = NOISE.token(CLIENTS * BUNDLE_BYTES)
                await self.refused(
                    self.aggregator.answer(name, ShareKeys(session_id, garbage))
                )
                await self.clock.sleep_until(self.clock.now() + 1.0)

    siege, endings = besieged(["a poisoner"], Poisoned, max_attempts=1)
    assert siege.server_error is None
    (released,) = siege.sums
    assert released.descriptor.session_number == 2
    np.testing.assert_array_equal(
        released.residues, siege.expected_sum(set(range(CLIENTS)))
    )
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())
    for store in siege.client_stores.values():
        assert answer_of(store.read(ListSessions(role=Side.CLIENT))) == ()


def test_an_identity_of_invalid_length_is_unauthenticated():
    siege, endings = besieged(["x" * 256, "", "ä" * 128])
    assert all(isinstance(e, SessionOutcome) for e in endings.values())
    assert {error.code for error in siege.refusals} == {ErrorCode.UNAUTHENTICATED}


def test_excess_watchers_are_rejected_and_block_no_client():
    async def main(clock):
        deployment = Deployment(
            clock,
            parameters_for(CLIENTS, dimension=DIMENSION, threshold=3),
            CLIENTS,
        )
        streams = []

        async def swarm():
            while deployment.aggregator is None or not streams:
                await clock.sleep_until(clock.now() + 0.1)
                if deployment.aggregator is None:
                    continue
                for runner in deployment.aggregator._sessions.running(TASK_ID):
                    streams.extend(
                        asyncio.ensure_future(
                            anext(
                                deployment.aggregator.watch(
                                    f"w{n % 50}",
                                    WatchSession(
                                        runner.session_id,
                                        after=Round.ADVERTISE_KEYS,
                                    ),
                                )
                            )
                        )
                        for n in range(3000)
                    )

        swarming = asyncio.ensure_future(swarm())
        endings = await deployment.run()
        await swarming
        for stream in streams:
            stream.cancel()
        results = await asyncio.gather(*streams, return_exceptions=True)
        return deployment, endings, results

    deployment, endings, results = manual_clock.run(main)
    assert len(results) == 3000
    refused = [r for r in results if isinstance(r, SecAggError)]
    assert len(refused) == 3000 - 2 * 50
    assert {error.code for error in refused} == {ErrorCode.OVERLOADED}
    assert all(isinstance(e, SessionOutcome) for e in endings.values())
    np.testing.assert_array_equal(
        deployment.sums[0].residues, deployment.expected_sum(set(range(CLIENTS)))
    )
