"""Clients that end attempts: each costs itself its place, and at most one other.

A task of c corrupt clients ends at most c attempts by complaints, without an
operator, and all other clients get the exact sum (PROTOCOL §5.7).
"""

import logging
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for, signing_parameters_for
from secagg_testing.crash_points import CrashSwitch
from secagg_testing.deployment import Deployment
from secagg_testing.inline_store import answer_of

from secagg.client.contribution import SessionOutcome
from secagg.client.session_driver import SessionSettings
from secagg.crypto.shamir import SHARE_SIZE
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.agreement import sign_bundles
from secagg.protocol.context import roster_context, session_context
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import (
    BUNDLE_BYTES,
    Bundles,
    Complaint,
    Envelope,
    Fate,
    Roster,
    RosterFrame,
)
from secagg.runtime import log_events as telemetry
from secagg.server.session.report import SessionReceipt
from secagg.simulation import identity_of
from secagg.simulation.driver import identity_in_simulation
from secagg.storage.change import Side
from secagg.storage.queries import ListSessions, LoadSession
from secagg.storage.rows import SessionState
from secagg.wire.calls import ReportViolation, RevealShares, ShareKeys, UploadChunk
from tests.cases import recorded_points

COLLUDERS, LEFT = 2, 7
CLIENTS = LEFT + 2 * COLLUDERS
CORRUPT = range(COLLUDERS)
# While they are missing, eight are there and seven needed: complaints count.
LATE = frozenset(range(CLIENTS - 3, CLIENTS))
PARAMETERS = parameters_for(
    CLIENTS, dimension=CLIENTS + 2, threshold=LEFT, colluders=COLLUDERS
)
# The least threshold of profile malicious-server is the same.
SIGNED = signing_parameters_for(CLIENTS, dimension=CLIENTS + 2, colluders=COLLUDERS)
BOTH = pytest.mark.parametrize(
    "parameters", [PARAMETERS, SIGNED], ids=lambda p: p.profile.label
)
POLLING = SessionSettings(offer_seconds=1000.0, watch=False)


@dataclass
class Seen:
    """Messages that the corrupt clients received, by session.

    Attributes:
        offers: The offer.
        frames: The roster.
        rosters: Its names.
    """

    offers: dict = field(default_factory=dict)
    frames: dict = field(default_factory=dict)
    rosters: dict = field(default_factory=dict)


class Corrupt:
    """A connection of a client that follows the protocol but for one thing."""

    def __init__(self, inner, number, seen):
        self.inner, self.number, self.seen = inner, number, seen
        self.identity = inner.identity

    @property
    def aggregator(self):
        return self.inner.aggregator

    @property
    def trust_domain(self):
        return self.inner.trust_domain

    @property
    def is_direct(self):
        return self.inner.is_direct

    async def call(self, request):
        answer = await self.inner.call(await self.changed(request))
        match answer:
            case SessionDescriptor():
                self.seen.offers[answer.session_id] = answer
            case Envelope(kind, data) if kind is Roster:
                self.seen.frames[request.session_id] = RosterFrame.decode(data)
                names = [advert.identity for advert in answer.open().adverts]
                self.seen.rosters[request.session_id] = names
        return answer

    async def changed(self, request):
        return request


class Garbage(Corrupt):
    """Sends all clients bundles that no client can open."""

    async def changed(self, request):
        if isinstance(request, ShareKeys):
            count = len(request.message) // BUNDLE_BYTES
            garbage = self.signed(request.session_id, bytes(count * BUNDLE_BYTES))
            return replace(request, message=garbage.encode())
        return request

    def signed(self, session_id, sealed):
        """Sign what is sent, if the profile asks for that."""
        offer = self.seen.offers[session_id]
        suite = offer.parameters.suite
        if not offer.parameters.profile.has_identities:
            return Bundles(sealed)
        frame = self.seen.frames[session_id]
        signature = sign_bundles(
            identity_in_simulation(self.identity, self.number + 1).key,
            sealed,
            ctx1=roster_context(session_context(offer), frame, suite),
            index=self.seen.rosters[session_id].index(self.identity),
            suite=suite,
        )
        return Bundles(sealed, signature)


class GarbageInTurn(Garbage):
    """Behaves until it is this one's turn: one of them in each attempt."""

    async def changed(self, request):
        is_next = len(self.seen.rosters) == self.number + 1
        return await super().changed(request) if is_next else request


class Accuser(Corrupt):
    """Complains about honest clients that have done nothing."""

    def victims(self):
        """Accuse the same client as all other accusers do."""
        return (CLIENTS - 4,)

    async def changed(self, request):
        if isinstance(request, UploadChunk):
            roster = self.seen.rosters[request.session_id]
            for name in map(identity_of, self.victims()):
                if name in roster:
                    said = Complaint(ErrorCode.SHARE_CONFUSION, roster.index(name))
                    report = ReportViolation(request.session_id, said.encode())
                    await self.inner.call(report)
        return request


class LoneAccuser(Accuser):
    """Picks a victim of its own."""

    def victims(self):
        return (COLLUDERS + self.number,)


class Slanderer(Accuser):
    """Accuses all clients, which is more than there are colluders."""

    def victims(self):
        return range(COLLUDERS, CLIENTS)


class WrongShareClient(Corrupt):
    """Reveals a wrong share of one victim, in the first session that it answers in."""

    VICTIM = CLIENTS - 1

    async def changed(self, request):
        first = next(iter(self.seen.rosters), None)
        if isinstance(request, RevealShares) and request.session_id == first:
            names = sorted(self.seen.rosters[request.session_id])
            wrong = bytearray(request.message)
            place = names.index(identity_of(self.VICTIM)) * SHARE_SIZE
            wrong[(len(names) + 7) // 8 + place] ^= 1
            return replace(request, message=bytes(wrong))
        return request


class Disputes(Deployment):
    """A deployment some of whose clients start later than the others."""

    late = frozenset()

    async def take_part(self, number):
        if number in self.late:
            await self.clock.sleep_until(self.clock.now() + 90)
        return await super().take_part(number)


def run(kind, late=frozenset(), corrupt=CORRUPT, parameters=PARAMETERS, **options):
    seen = Seen()

    def tamper(number, connection):
        return kind(connection, number, seen) if number in corrupt else connection

    async def main(clock):
        fields = {"max_attempts": 1, "settings": POLLING} | options
        deployment = Disputes(clock, parameters, CLIENTS, tamper=tamper, **fields)
        deployment.late = late
        return deployment, await deployment.run()

    return manual_clock.run(main)


def receipts(deployment):
    """Return the receipts of a task, the oldest first."""
    store = deployment.server_store
    rows = answer_of(
        store.read(ListSessions(role=Side.SERVER, state=SessionState.ENDED))
    )
    return [
        SessionReceipt.decode(answer_of(store.read(LoadSession(row.key))).receipt)
        for row in reversed(rows)
    ]


def assert_sum_of_the_rest(deployment, endings, *, honest_lost):
    """All clients but the excluded ones have the sum over exactly them."""
    out = {n for n, ending in endings.items() if not isinstance(ending, SessionOutcome)}
    assert len(out - set(CORRUPT)) == honest_lost <= COLLUDERS
    for number in out:
        assert isinstance(endings[number], RemoteProtocolError)
        assert endings[number].code is ErrorCode.NOT_INVITED
    (released,) = deployment.sums
    rest = set(range(CLIENTS)) - out
    np.testing.assert_array_equal(released.residues, deployment.expected_sum(rest))
    assert set(released.receipt.members) == {identity_of(n) for n in rest}
    failed = [r for r in receipts(deployment) if r.members][:-1]
    assert len(failed) <= COLLUDERS
    assert {r.outcome.code for r in failed} <= {ErrorCode.DISPUTED}
    assert {r.outcome.fate for r in failed} <= {Fate.NEVER_FIXED}  # it cost no client
    return failed


@BOTH
def test_only_dealers_of_invalid_bundles_are_excluded(parameters, caplog):
    caplog.set_level(logging.INFO, telemetry.SERVER_LOGGER)
    deployment, endings = run(Garbage, parameters=parameters)
    (failed,) = assert_sum_of_the_rest(deployment, endings, honest_lost=0)
    corrupt = {identity_of(n) for n in CORRUPT}
    accused = {b for a, b, _ in failed.disputes if a not in corrupt}
    assert accused == corrupt
    told = [
        record.facts["sender"]
        for record in caplog.records
        if record.event == telemetry.CLIENT_EXCLUDED
    ]
    assert told == sorted(corrupt)


@BOTH
def test_colluders_cost_at_most_one_attempt_each(parameters):
    deployment, endings = run(GarbageInTurn, parameters=parameters)
    failed = assert_sum_of_the_rest(deployment, endings, honest_lost=0)
    assert len(failed) == COLLUDERS


@BOTH
def test_several_accusers_of_one_client_cost_one_attempt_and_that_client(
    parameters,
):
    deployment, endings = run(Accuser, late=LATE, parameters=parameters)
    failed = assert_sum_of_the_rest(deployment, endings, honest_lost=1)
    assert len(failed) == 1


@BOTH
def test_accusers_of_different_victims_cost_one_honest_client_each(
    parameters,
):
    deployment, endings = run(
        LoneAccuser, late=LATE | {CLIENTS - 4}, parameters=parameters
    )
    failed = assert_sum_of_the_rest(deployment, endings, honest_lost=2)
    (first, *_) = failed
    assert {pair[:2] for pair in first.disputes} == {
        (identity_of(n), identity_of(COLLUDERS + n)) for n in CORRUPT
    }


@BOTH
def test_only_the_client_that_accuses_more_peers_than_colluders_exist_is_excluded(
    parameters,
):
    deployment, endings = run(Slanderer, late=LATE, parameters=parameters)
    assert_sum_of_the_rest(deployment, endings, honest_lost=0)


def points_before_the_second_session():
    points = recorded_points("server-of-garbage")
    first = points.index("before end")
    second = points.index("after create", first)
    assert second < len(points) - 3
    return [pytest.param(at, id=points[at]) for at in range(first - 2, second + 1)]


def test_the_points_of_a_server_with_disputes_are_those_recorded(golden):
    switch = CrashSwitch()
    run(Garbage, server_crash=switch)
    golden("points/server-of-garbage.txt", "\n".join(switch.points) + "\n")


@pytest.mark.parametrize("at", points_before_the_second_session())
def test_excluded_clients_stay_excluded_after_a_restart_between_attempts(at):
    deployment, endings = run(Garbage, server_crash=CrashSwitch(at))
    assert deployment.server_restarts == 1
    assert len(assert_sum_of_the_rest(deployment, endings, honest_lost=0)) == 1


def test_excluded_clients_stay_excluded_from_later_sums():
    deployment, _ = run(Garbage, sessions=2, server_crash=CrashSwitch(70))
    assert deployment.server_restarts == 1
    assert len(deployment.sums) == 2
    out = {identity_of(n) for n in CORRUPT}
    for released in deployment.sums:
        assert out.isdisjoint(released.receipt.members)
    assert len([r for r in receipts(deployment) if r.members]) == 3


def test_a_corrected_wrong_share_excludes_both_parties_from_the_next_sum():
    deployment, endings = run(WrongShareClient, corrupt={0}, sessions=2)
    first, second = (released.receipt for released in deployment.sums)
    pair = (identity_of(WrongShareClient.VICTIM), identity_of(0))
    assert first.disputes == ((*pair, ErrorCode.RECONSTRUCTION_FAILED),)
    assert set(first.members) - set(second.members) == set(pair)
    assert endings.keys() - {0, WrongShareClient.VICTIM} == {
        n for n, ending in endings.items() if isinstance(ending, SessionOutcome)
    }


def test_a_possibly_framed_client_is_excluded_from_one_attempt_only():
    # Eleven answers, nine needed: one wrong share is corrected, two liars are allowed.
    parameters = replace(
        PARAMETERS,
        threshold=9,
        min_survivors=9,
        min_clients=9,
        max_dropouts=2,
        max_losses=2,
    )
    deployment, _ = run(
        WrongShareClient, parameters=parameters, sessions=2, max_attempts=2
    )
    failed, first, second = receipts(deployment)
    assert failed.outcome.code is ErrorCode.RECONSTRUCTION_FAILED
    victim = identity_of(WrongShareClient.VICTIM)
    assert (failed.failed_dealer, failed.is_failure_proven) == (victim, False)
    assert failed.disputes == ()
    assert set(failed.members) - set(first.members) == {victim}
    assert second.members == failed.members
