"""Builds that break one rule of the product each: the ledger finds every one.

Each run is played twice: by the product, of which the ledger has nothing to say, and by
a build in which one place is patched.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pytest
from secagg_testing.knowledge.claims import Claim, ForbiddenKnowledgeError
from secagg_testing.observed_session import ObservedSession

from secagg.crypto.transcript import decode_set
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol import agreement, parameters
from secagg.protocol.client import checks
from secagg.protocol.client import handlers as client_rounds
from secagg.protocol.client import machine as client
from secagg.protocol.client import machine as client_endings
from secagg.protocol.client.states import Failed, Masked, Shared, Signed
from secagg.protocol.events import Finish, Send, Step
from secagg.protocol.graphs import ring_safety
from secagg.protocol.messages import (
    Delivery,
    Envelope,
    Quorum,
    Roster,
    RosterProof,
    Round,
    Shares,
    Survivors,
)
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.profiles import Profile
from secagg.protocol.refund import ChargeOutcome

CURIOUS = Profile.HONEST_CURIOUS_SERVER


@dataclass(frozen=True)
class Build:
    """A build with one fault.

    Attributes:
        cripple: Patches the product.
        run: Plays a session in which the fault matters, or returns None if the
            product does not even begin it.
        broken: The claims that do not hold then.
    """

    cripple: Callable[[pytest.MonkeyPatch], None]
    run: Callable[[Callable[..., ObservedSession]], ObservedSession | None]
    broken: frozenset[Claim]


# --- charges ------------------------------------------------------------------------


def colluder_is_silent_in_the_last_round(observe):
    session = observe(5, threshold=5, corrupt={4}, min_survivors=5)
    assert session.run({4: Round.UNMASKING}).code is ErrorCode.TOO_FEW_ANSWERS
    return session


def refund_by_code(patch):
    def leave(_, code, reason, *, fate=None):
        del fate
        aborted = {ErrorCode.TOO_FEW_ANSWERS, ErrorCode.CANCELLED}
        charge = ChargeOutcome.GIVEN_BACK if code in aborted else ChargeOutcome.KEPT
        return Step(Failed(code, reason, charge), (Finish(code, reason),))

    patch.setattr(client_endings, "leave", leave)


# --- shares -------------------------------------------------------------------------


def server_requests_two_sets(observe):
    session = observe(6, threshold=4)
    session.reach(Round.MASKED_INPUT_COLLECTION)
    session.ask(range(6), range(6))
    session.ask(range(6), range(1, 6))
    return session


def an_answer_is_forgotten(patch):
    def reveal(state, event, _):
        asked = decode_set(event.envelope.data, state.delivered.roster_size)
        answer = Shares(state.delivered.held.answer(frozenset(asked)))
        return Step(state, (Send(Envelope.of(answer)),))

    forgetful = client.Edge(reveal, {Masked})
    patch.setitem(client.TRANSITIONS[CURIOUS], (Masked, Survivors), forgetful)


def a_client_deals_under_two_rosters(observe):
    """Its state is restored in between; the colluders change places."""
    session = observe(9, threshold=5, corrupt={6, 7, 8}, min_clients=6)
    session.reach(Round.ADVERTISE_KEYS)
    adverts = [session.clients[number].advert for number in range(9)]
    before = session.clients[0]
    for members in (range(9), (0, 1, 2, 6, 7, 8)):
        session.clients[0] = before
        session.tell(0, Roster(tuple(adverts[n] for n in members)))
    assert len(session.facts.bundles) == 2
    return session


def one_polynomial_for_all_rosters(patch):
    stream = client_rounds._stream
    patch.setattr(
        client_rounds,
        "_stream",
        lambda facts, seed, label, _context=b"": stream(facts, seed, label),
    )


# --- rings --------------------------------------------------------------------------

TWO_PARTS = frozenset({Claim.ONE_SUM, Claim.HONEST_PART, Claim.SIZE})


def ring_of(observe, clients):
    """Return the clients of a ring of degree four, in its order."""
    probe = observe(clients, threshold=2, degree=4)
    probe.reach(Round.SHARE_KEYS)
    return probe.roster


def dropouts_and_a_colluder_cut_the_ring(observe):
    ring = ring_of(observe, 12)
    session = observe(12, threshold=2, degree=4, corrupt={ring[7]}, min_survivors=8)
    lost = (ring[0], ring[1], ring[6])
    session.run(dict.fromkeys(lost, Round.MASKED_INPUT_COLLECTION))
    return session


def every_cut_is_accepted(patch):
    patch.setattr(ring_safety.RingRisk, "shortcoming", lambda _self, _bits: None)


def as_many_colluders_as_shares_stand_together(observe):
    ring = ring_of(observe, 12)
    try:
        session = observe(12, threshold=2, degree=4, corrupt=set(ring[:2]))
    except RemoteProtocolError:
        return None  # its parameters are refused
    session.run()
    return session


def colluders_are_assumed_separated(patch):
    """A threshold made for the colluders that a neighbourhood has on the average."""
    for module in (parameters, ring_safety):
        patch.setattr(module, "log_corrupt_holders", lambda **_: -math.inf)


def colluders_exclude_clients_by_garbage(observe):
    """One colluder in each of two windows, garbage for the other client in each."""
    ring = ring_of(observe, 16)
    session = observe(
        16,
        threshold=3,
        degree=4,
        corrupt={ring[0], ring[8]},
        garbage={ring[0]: {ring[1]}, ring[8]: {ring[9]}},
        min_clients=12,
        min_survivors=12,
        graph_bits=3,  # this cut has a chance of 2^-4.5, had it come by itself
    )
    session.run()
    return session


def receivers_of_garbage_leave(patch):
    row = client.TRANSITIONS[CURIOUS][Shared, Delivery]

    def open_bundles(state, event, policy):
        step = row.handler(state, event, policy)
        if step.outputs:  # complaints
            return client_endings.leave(
                state, ErrorCode.BAD_SHARE_CIPHERTEXT, "garbage"
            )
        return step

    leaving = client.Edge(open_bundles, row.may_enter)
    patch.setitem(client.TRANSITIONS[CURIOUS], (Shared, Delivery), leaving)


# --- servers that are not trusted ---------------------------------------------------

MALICIOUS = Profile.MALICIOUS_SERVER


def a_key_is_substituted(observe):
    """In what the server shows to all but the client whose key it is."""
    session = observe(5, corrupt={4}, is_signed=True)
    session.reach(Round.ADVERTISE_KEYS)
    adverts = [session.clients[number].advert for number in range(5)]
    known = session.clients[4].advert.self_mask_commitment  # any bytes will do
    adverts[1] = replace(adverts[1], self_mask_commitment=known)
    for number in (0, 2, 3):
        session.tell(number, Roster(tuple(adverts)))
    return session


def adverts_are_not_checked(patch):
    patch.setattr(checks, "check_adverts", lambda *_, **__: None)


def server_sends_two_sets(observe):
    """To two halves, which overlap."""
    session = observe(4, is_signed=True)
    session.reach(Round.MASKED_INPUT_COLLECTION)
    session.sign((0, 1), (0, 1, 2))
    session.sign((2, 3), (1, 2, 3))
    return session


def a_quorum_of_one_less(patch):
    patch.setattr(ProtocolParameters, "quorum", property(lambda p: p.threshold - 1))
    patch.setattr(checks, "check_overlap", lambda *_: None)


def server_sends_two_halves(observe):
    try:
        session = observe(4, threshold=2, is_signed=True)
    except RemoteProtocolError:
        return None  # its parameters are refused
    session.reach(Round.MASKED_INPUT_COLLECTION)
    session.sign((0, 1), (0, 1))
    session.sign((2, 3), (2, 3))
    return session


def a_threshold_of_one_less(patch):
    patch.setattr(ProtocolParameters, "_malicious_rules", lambda _: iter(()))
    patch.setattr(checks, "check_overlap", lambda *_: None)


def server_restarts_clients_and_sends_another_set(observe):
    session = observe(4, is_signed=True)
    session.reach(Round.MASKED_INPUT_COLLECTION)
    session.sign((0, 1, 2), (0, 1, 2))
    session.sign((1, 2, 3), (1, 2, 3))
    return session


def signatures_are_not_recorded(patch):
    """After a restart a client has seen no U3, signs it, and answers it."""
    table, signed = client.TRANSITIONS[MALICIOUS], {}
    sign, answer = table[Masked, Survivors], table[Signed, Quorum]

    def forget(state, event, policy):
        step = sign.handler(state, event, policy)
        signed[state.facts.identity] = step.state
        return Step(state, step.outputs)

    def reveal(state, event, policy):
        step = answer.handler(signed[state.facts.identity], event, policy)
        return Step(state, step.outputs)

    patch.setitem(table, (Masked, Survivors), client.Edge(forget, {Masked}))
    patch.setitem(table, (Masked, Quorum), client.Edge(reveal, {Masked}))


def server_names_a_member_that_received_nothing(observe):
    """It is in U2 and U3, with garbage for bundles."""
    session = observe(5, is_signed=True, min_clients=4)
    session.reach(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    members = range(4)
    session.play(Round.SHARE_KEYS, members)
    named = session.server_state
    session.close(Round.SHARE_KEYS)
    for number in members:
        session.tell_share_holders(number, range(5), dealt=named.bundles)
    session.server_state = replace(
        session.server_state,
        roster_proofs={
            **named.roster_proofs,
            4: RosterProof(4, bytes(32), bytes(64)),
        },
    )
    session.sign(members, range(5))
    return session


def roster_proofs_are_not_checked(patch):
    patch.setattr(agreement, "check_bundle_signature", lambda *_, **__: None)


BUILDS: Final[Mapping[str, Build]] = {
    "refund by code": Build(
        refund_by_code,
        colluder_is_silent_in_the_last_round,
        frozenset({Claim.BUDGET}),
    ),
    "both shares": Build(
        an_answer_is_forgotten,
        server_requests_two_sets,
        frozenset({Claim.ONE_SECRET, Claim.ONE_SUM, Claim.HONEST_PART, Claim.SIZE}),
    ),
    "one polynomial for all rosters": Build(
        one_polynomial_for_all_rosters,
        a_client_deals_under_two_rosters,
        frozenset({Claim.ONE_SECRET}),
    ),
    "a ring without a bound on cuts": Build(
        every_cut_is_accepted, dropouts_and_a_colluder_cut_the_ring, TWO_PARTS
    ),
    "a threshold for the average neighbourhood": Build(
        colluders_are_assumed_separated,
        as_many_colluders_as_shares_stand_together,
        TWO_PARTS | {Claim.ONE_SECRET},
    ),
    "a ring that continues without the receivers of garbage": Build(
        receivers_of_garbage_leave, colluders_exclude_clients_by_garbage, TWO_PARTS
    ),
    "adverts without a check": Build(
        adverts_are_not_checked, a_key_is_substituted, frozenset({Claim.AUTHENTIC})
    ),
    "a quorum of one less": Build(
        a_quorum_of_one_less, server_sends_two_sets, frozenset({Claim.AGREED})
    ),
    "a threshold of one less, and with it a quorum": Build(
        a_threshold_of_one_less,
        server_sends_two_halves,
        frozenset({Claim.AGREED, Claim.ONE_SECRET}) | TWO_PARTS,
    ),
    "roster proofs that no client checks": Build(
        roster_proofs_are_not_checked,
        server_names_a_member_that_received_nothing,
        frozenset({Claim.ONE_ROSTER}),
    ),
    "a signature that is not recorded": Build(
        signatures_are_not_recorded,
        server_restarts_clients_and_sends_another_set,
        frozenset({Claim.ONE_SIGNATURE, Claim.AGREED, Claim.ONE_SECRET}) | TWO_PARTS,
    ),
}


@pytest.fixture(name="build", params=BUILDS.values(), ids=BUILDS)
def _build(request):
    return request.param


def test_the_product_reveals_no_forbidden_knowledge(build, observe):
    session = build.run(observe)
    if session is not None:
        session.check()


def test_a_build_that_breaks_a_rule_is_detected(build, observe, monkeypatch):
    build.cripple(monkeypatch)
    session = build.run(observe)
    with pytest.raises(ForbiddenKnowledgeError) as caught:
        session.check()
    assert {found.claim for found in caught.value.violations} == build.broken
