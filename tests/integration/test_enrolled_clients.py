"""Profile `malicious-server`, end to end in one process: enrolled clients, six rounds.

What the state machines check is tested beside them; here it is what stands around
them: who checks the offer, which list is read, what is stored and sent again.
"""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import signing_parameters_for, with_noise
from secagg_testing.crash_points import CrashSwitch
from secagg_testing.deployment import TASK_ID, Deployment
from secagg_testing.inline_store import answer_of, inline_store
from secagg_testing.lossy_connection import Fault
from secagg_testing.lying_connection import LyingConnection, instead
from secagg_testing.replicas import Replicas

from secagg.client.contribution import SessionOutcome, receipt_of
from secagg.client.retry_policy import ErrorStage, NextAction, after_error
from secagg.client.session_driver import SessionSettings
from secagg.errors import ErrorCode, ServiceError, SessionAbortedError
from secagg.protocol.messages import Envelope, Quorum, Roster, Survivors
from secagg.protocol.profiles import MaliciousParameters
from secagg.protocol.receipts.receipt import AuditReceipt
from secagg.protocol.receipts.verifier import Finding, verify_receipt
from secagg.server.session.report import SessionReceipt
from secagg.simulation import identity_of
from secagg.simulation.driver import (
    TRUST_DOMAIN,
    identity_in_simulation,
    issued_to,
    published_in_simulation,
)
from secagg.storage.budget_ledger import ChargeState
from secagg.storage.change import Side
from secagg.storage.queries import ListCharges, ListSessions, ReadRevocations, ReadTally
from secagg.wire.calls import (
    BlobChunk,
    FetchChunk,
    GetOffer,
    GetUpdate,
    RevealShares,
    SignConsistency,
    UploadChunk,
    WatchSession,
)

CLIENTS = 5


def deploy(kind=Deployment, *, published=None, parameters=None, **options):
    published = published or published_in_simulation()
    parameters = parameters or signing_parameters_for(
        CLIENTS, dimension=7, colluders=1, tail=MaliciousParameters(published.trust)
    )

    async def main(clock):
        deployment = kind(
            clock,
            parameters,
            CLIENTS,
            revocations=published.revocations,
            **options,
        )
        return deployment, await deployment.run()

    return manual_clock.run(main)


def assert_exact(deployment, numbers):
    assert deployment.contradictions() == {}
    assert len(deployment.sums) == 1
    np.testing.assert_array_equal(
        deployment.sums[0].residues, deployment.expected_sum(set(numbers))
    )


def test_enrolled_clients_get_their_sum():
    deployment, endings = deploy(payload=b"a query")
    assert_exact(deployment, range(CLIENTS))
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())
    for ending in endings.values():
        share_holders = AuditReceipt.decode(ending.audit).share_holders
        assert sum(byte.bit_count() for byte in share_holders) == CLIENTS


def test_a_list_is_read_and_remembered_by_every_client():
    published = published_in_simulation(3, 99, 100)
    deployment, _ = deploy(published=published)
    assert_exact(deployment, range(CLIENTS))
    for store in deployment.client_stores.values():
        seen = answer_of(
            store.read(ReadRevocations(published.enrolment_key, TRUST_DOMAIN))
        )
        assert seen == published.trust


# --- who may take part ----------------------------------------------------------------


def own_identity(number):
    return identity_in_simulation(identity_of(number), number + 1)


def of_another_issuer(number):
    own = own_identity(number)
    signed = own.issued.credential.signed_by(own.key, TRUST_DOMAIN)
    return replace(own, issued=replace(own.issued, credential=signed))


def expired(number):
    own = own_identity(number)
    soon = manual_clock.ManualClock().date() + 60
    issued = issued_to(identity_of(number), number + 1, not_after=int(soon))
    return replace(own, issued=replace(own.issued, credential=issued))


@pytest.mark.parametrize(
    ("identity", "published"),
    [
        (of_another_issuer, published_in_simulation()),
        (expired, published_in_simulation()),
        (own_identity, published_in_simulation(1, 3)),  # client 2 has serial 3
    ],
    ids=["foreign", "expired", "revoked"],
)
def test_a_client_with_an_invalid_credential_is_excluded(identity, published):
    deployment, endings = deploy(
        published=published,
        identity_files=lambda n: identity(n) if n == 2 else own_identity(n),
    )
    assert_exact(deployment, set(range(CLIENTS)) - {2})
    assert endings[2].code is ErrorCode.BAD_CREDENTIAL
    # It is found before the advert leaves.
    assert not deployment.links[2].distinct_messages()


def test_a_client_without_identity_is_excluded():
    deployment, endings = deploy(
        identity_files=lambda n: None if n == 2 else own_identity(n)
    )
    assert_exact(deployment, set(range(CLIENTS)) - {2})
    assert endings[2].code is ErrorCode.POLICY_VIOLATION
    assert "needs a credential" in str(endings[2])


def test_a_forged_credential_in_the_roster_ends_the_session_for_every_client():
    def forge(roster):
        first, *others = roster.adverts
        forged = replace(first.credential, signature=bytes(64))
        return replace(roster, adverts=(replace(first, credential=forged), *others))

    lie = instead(Roster, forge)
    _, endings = deploy(
        tamper=lambda _, link: LyingConnection(
            link, {GetUpdate: lie, WatchSession: lie}
        ),
        max_attempts=1,
    )
    codes = {ending.code for number, ending in endings.items() if number}
    assert codes == {ErrorCode.BAD_CREDENTIAL}


# --- which list counts ----------------------------------------------------------------


def test_another_list_than_the_offer_names_ends_it():
    other = published_in_simulation(3, 99, 101).revocations
    lie = instead(BlobChunk, lambda _: BlobChunk(other, len(other)))
    _, endings = deploy(
        published=published_in_simulation(3, 99, 100),
        tamper=lambda n, link: (
            LyingConnection(link, {FetchChunk: lie}) if n == 1 else link
        ),
    )
    assert endings[1].code is ErrorCode.BAD_CREDENTIAL
    assert isinstance(endings[0], SessionOutcome)


class Withholding(LyingConnection):
    """Always answers that the list will be sent later."""

    def __init__(self, inner, asked):
        super().__init__(inner, {})
        self.asked = asked

    async def call(self, request):
        if isinstance(request, FetchChunk):
            self.asked.append(request)
            raise ServiceError("not now", code=ErrorCode.OVERLOADED)
        if self.asked and isinstance(request, GetOffer):
            raise ServiceError("it has left", code=ErrorCode.TASK_OVER)
        return await super().call(request)


def test_a_client_stops_waiting_for_a_revocation_list_that_is_withheld():
    asked = []
    deployment, endings = deploy(
        published=published_in_simulation(3, 99, 100),
        tamper=lambda n, link: Withholding(link, asked) if n == 1 else link,
        settings=SessionSettings(offer_seconds=5000.0),
        sessions=2,
    )
    assert [released.survivors for released in deployment.sums] == [CLIENTS - 1] * 2
    error = endings[1]
    assert isinstance(error, SessionAbortedError)
    assert error.code is ErrorCode.BAD_CREDENTIAL
    assert "revocation list 3" in str(error)
    assert "not now" in str(error)
    # It costs an attempt, so that no client asks for ever.
    assert after_error(error, ErrorStage.JOINED) is NextAction.NEXT_ATTEMPT


@pytest.mark.parametrize(
    "later", [published_in_simulation(), published_in_simulation(2, 99)]
)
def test_a_server_with_an_older_revocation_list_gets_no_client(later):
    first, _ = deploy(published=published_in_simulation(3, 98, 99))
    deployment, endings = deploy(
        published=later,
        client_stores=first.client_stores,
        server_store=first.server_store,
        spool=first.spool,
        sessions=2,
        ends_at=2000.0,
    )
    assert not deployment.sums
    assert {ending.code for ending in endings.values()} == {ErrorCode.POLICY_VIOLATION}


OLDER, NEWER = published_in_simulation(3, 98), published_in_simulation(4, 98, 99)


class Republished(Deployment):
    """Its aggregator finds a newer list when it starts again."""

    async def _serve_once(self, switch):
        if self.server_restarts:
            self.parameters = self.parameters.under(NEWER.trust)
            self.revocations = NEWER.revocations
        await super()._serve_once(switch)


def test_a_newer_list_ends_a_session_that_waits_and_no_other():
    switch = CrashSwitch()
    deploy(published=OLDER, server_crash=switch)
    lists = []
    appended = [at for at, name in enumerate(switch.points) if name == "after append"]
    for at in appended[::2]:  # of every round one message at least
        deployment, endings = deploy(
            Republished, published=OLDER, server_crash=CrashSwitch(at)
        )
        assert_exact(deployment, range(CLIENTS))
        assert all(isinstance(ending, SessionOutcome) for ending in endings.values())
        descriptor = deployment.sums[0].descriptor
        number = descriptor.parameters.trust.revocation_number
        lists.append((descriptor.session_number, number))
    assert lists == sorted(lists, reverse=True)
    assert set(lists) == {(2, 4), (1, 3)}


# --- what is signed, and when ---------------------------------------------------------


@cache
def points_of_client(number=2):
    switch = CrashSwitch()
    deploy(client_crash={number: switch})
    return switch.points


def test_a_different_u3_after_a_restart_raises_equivocation():
    """R5.4-5: what was signed before the crash is compared first."""
    signed = points_of_client().index("after SignConsistency")

    def lie(answer):
        # In place of the quorum: U3 once more, and it is another one.
        if isinstance(answer, Envelope) and answer.kind is Quorum:
            return Envelope.of(Survivors(bytes([0b11110000])))
        return answer

    deployment, endings = deploy(
        client_crash={2: CrashSwitch(signed)},
        tamper=lambda number, link: (
            LyingConnection(link, {GetUpdate: lie, WatchSession: lie})
            if number == 2
            else link
        ),
    )
    assert endings[2].code is ErrorCode.EQUIVOCATION
    assert deployment.contradictions() == {}
    sent = {call for _, call in deployment.links[2].distinct_messages()}
    assert SignConsistency in sent
    assert RevealShares not in sent


def test_a_repeated_u3_in_place_of_the_quorum_is_unexpected():
    shown = []

    def lie(answer):
        if isinstance(answer, Envelope) and answer.kind is Survivors:
            shown.append(answer)
        if isinstance(answer, Envelope) and answer.kind is Quorum:
            return shown[0]
        return answer

    _, endings = deploy(
        tamper=lambda number, link: (
            LyingConnection(link, {GetUpdate: lie, WatchSession: lie})
            if number == 2
            else link
        ),
    )
    assert endings[2].code is ErrorCode.UNEXPECTED_MESSAGE


def test_a_client_does_not_sign_with_another_key_than_its_advert_states():
    points = points_of_client()
    for point in ("after AdvertiseKeys", "after UploadChunk", "after SignConsistency"):
        starts = []

        def changed(number, starts=starts):
            if number == 2:
                starts.append(number)
            if len(starts) == 2 and number == 2:
                return identity_in_simulation("another", 3)
            return own_identity(number)

        deployment, endings = deploy(
            client_crash={2: CrashSwitch(points.index(point))}, identity_files=changed
        )
        assert len(starts) == 2
        assert isinstance(endings[2], ServiceError)
        assert endings[2].code is ErrorCode.BAD_CREDENTIAL
        assert "another identity" in str(endings[2])
        assert deployment.contradictions() == {}
        # Its session waits for the right key.
        assert (
            len(
                answer_of(
                    deployment.client_stores[2].read(ListSessions(role=Side.CLIENT))
                )
            )
            == 1
        )


def test_a_client_that_signs_too_late_still_answers():
    def slow(number, call, count):
        late = number == 2 and call is SignConsistency and count < 12
        return Fault.LOSE_REQUEST if late else Fault.NONE

    deployment, endings = deploy(fault_of=slow)
    assert_exact(deployment, range(CLIENTS))
    assert all(isinstance(ending, SessionOutcome) for ending in endings.values())
    receipt = deployment.sums[0].receipt
    assert receipt.revealed == CLIENTS
    assert receipt.signed == CLIENTS - 1
    assert SessionReceipt.decode(receipt.encode()) == receipt


# Whose upload has left.
UPLOADED = Counter()


def lost_after_its_upload(number, call, _count):
    """Client 2 is disconnected in both directions."""
    says_more = call in {SignConsistency, RevealShares, GetUpdate, WatchSession}
    is_lost = number == 2 and says_more and UPLOADED[number]
    UPLOADED[number] |= call is UploadChunk
    return Fault.LOSE_REQUEST if is_lost else Fault.NONE


def deploy_with_one_lost(**options):
    """Deploy with a client that drops out after its upload; check the result."""
    UPLOADED.clear()
    deployment, endings = deploy(fault_of=lost_after_its_upload, **options)
    assert_exact(deployment, range(CLIENTS))  # its input is in the sum
    others = [endings[number] for number in range(CLIENTS) if number != 2]
    assert all(isinstance(ending, SessionOutcome) for ending in others)
    receipt = deployment.sums[0].receipt
    assert (receipt.signed, receipt.revealed) == (CLIENTS - 1, CLIENTS - 1)
    key = published_in_simulation().enrolment_key
    for audit in (deployment.sums[0].audit, *(ending.audit for ending in others)):
        verdict = verify_receipt(audit, enrolment_key=key)
        assert verdict.finding is Finding.AGREED
        assert len(verdict.survivors) == CLIENTS
        (proof,) = Quorum.decode(verdict.receipt.quorum).roster_proofs
        assert proof.index == 2
    return deployment


def test_a_client_dropped_after_its_upload_is_proven_by_its_signed_bundles():
    """R5.3-13: and no session ends by that."""
    deploy_with_one_lost()


LIES = {
    "no proof": (lambda _: (), ErrorCode.U3_INVALID),
    "two of one member": (lambda p: (p, p), ErrorCode.BAD_ENCODING),
    "one of a signer": (lambda p: (replace(p, index=0), p), ErrorCode.U3_INVALID),
    "another member": (lambda p: (replace(p, index=4),), ErrorCode.U3_INVALID),
    "other bundles": (
        lambda p: (replace(p, digest=bytes(32)),),
        ErrorCode.BAD_SIGNATURE,
    ),
}


@pytest.mark.parametrize(("lie", "code"), LIES.values(), ids=LIES)
def test_no_false_roster_proof_is_answered_even_after_a_restart(lie, code):
    """R5.3-13: a client leaves, and reveals no share before or after it has died."""

    def told(quorum):
        (proof,) = quorum.roster_proofs
        return replace(quorum, roster_proofs=lie(proof))

    lies = instead(Quorum, told)
    signed = points_of_client(1).index("after SignConsistency")
    for crash in (None, signed, signed + 1):  # between signing and leaving
        UPLOADED.clear()
        deployment, endings = deploy(
            fault_of=lost_after_its_upload,
            client_crash={1: CrashSwitch(crash)},
            max_attempts=1,
            tamper=lambda number, link: (
                LyingConnection(link, {GetUpdate: lies, WatchSession: lies})
                if number == 1
                else link
            ),
        )
        assert endings[1].code is code
        sent = {call for _, call in deployment.links[1].distinct_messages()}
        assert SignConsistency in sent
        assert RevealShares not in sent
        # Its receipt shows what it has signed, and nothing that it has refused.
        audit = answer_of(receipt_of(deployment.client_stores[1], TASK_ID, 1))
        key = published_in_simulation().enrolment_key
        verdict = verify_receipt(audit, enrolment_key=key)
        assert (verdict.finding, verdict.receipt.code) == (Finding.STATED, code)


@pytest.mark.parametrize("first", range(3))
def test_a_crashed_server_still_proves_the_roster_of_a_dropped_client(first):
    switch = CrashSwitch()
    deploy_with_one_lost(server_crash=switch)
    points = range(len(switch.points) // 3 + first, len(switch.points), 9)
    restarts = [
        deploy_with_one_lost(server_crash=CrashSwitch(at)).server_restarts
        for at in points
    ]
    assert sum(restarts) > len(points) // 2


def replicas(clock, *args, **options):
    return Replicas(clock, *args, server_store=inline_store(now=clock.date), **options)


def test_every_replica_proves_the_roster_of_a_dropped_client():
    switch = CrashSwitch()
    deploy_with_one_lost(kind=replicas, crashes={0: switch})
    for at in range(len(switch.points) // 2, len(switch.points), 6):
        deploy_with_one_lost(kind=replicas, crashes={0: CrashSwitch(at)})


def test_no_client_answers_without_a_quorum_and_every_charge_is_kept():
    parameters = with_noise(
        signing_parameters_for(CLIENTS, dimension=8, colluders=1), spare=1
    )

    def silent(number, call, _count):
        mute = call is SignConsistency and number < 2  # Q = 4 of 5
        return Fault.LOSE_REQUEST if mute else Fault.NONE

    deployment, endings = deploy(
        parameters=parameters, fault_of=silent, max_attempts=1, allowed=2
    )
    assert not deployment.sums
    assert deployment.server_error.code is ErrorCode.NO_QUORUM
    assert {endings[n].code for n in range(2, CLIENTS)} == {ErrorCode.NO_QUORUM}
    for link in deployment.links.values():
        sent = {call for _, call in link.distinct_messages()}
        assert RevealShares not in sent
    for store in deployment.client_stores.values():
        (charge,) = answer_of(store.read(ListCharges(TASK_ID)))
        assert charge.state is ChargeState.KEPT
    tally = answer_of(deployment.server_store.read(ReadTally(Side.SERVER, TASK_ID)))
    assert tally.spent == 1
