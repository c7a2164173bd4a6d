"""What a client on a ring reads of the roster, and what it does not believe of it.

Each case breaks one rule of PROTOCOL §5.2 and expects its code; the last ones forge
what no rule can see, and expect another context, under which nothing opens.
"""

from dataclasses import replace

import pytest
from secagg_testing.cohorts import one_hot, parameters_for

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.key_agreement import KeyPair
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode
from secagg.protocol.client import states as client_states
from secagg.protocol.context import roster_context
from secagg.protocol.events import Received
from secagg.protocol.messages import (
    Envelope,
    Neighbourhood,
    Roster,
    RosterFrame,
    Round,
    is_neighbourhood,
)
from secagg.protocol.policy import ClientPolicy
from secagg.simulation import InProcessSession, run_session
from secagg.simulation.driver import accepting, identity_of

CLIENTS, DEGREE, MODULUS = 12, 4, 1 << 20
LOW_ORDER = bytes(32)


def ring(**overrides):
    fields = {"dimension": CLIENTS, "threshold": 3, "degree": DEGREE, "min_clients": 10}
    return InProcessSession(
        parameters_for(CLIENTS, **(fields | overrides)),
        [one_hot(number, CLIENTS, MODULUS) for number in range(CLIENTS)],
    )


def sharing(**overrides):
    session = ring(**overrides)
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    return session


def after_roster(session, number, data):
    """Tell a client a roster; return its state."""
    session.to_client(number, Received(Envelope(Roster, data)))
    return session.clients[number]


def shown(session, number) -> Neighbourhood:
    return session.fetch(number).open()


def neighbour_of(roster):
    return next(index for index in roster.adverts if index != roster.reader)


def with_advert(roster, index, **changes):
    adverts = {**roster.adverts, index: replace(roster.adverts[index], **changes)}
    return replace(roster, adverts=adverts)


def without(roster, index):
    adverts = {i: advert for i, advert in roster.adverts.items() if i != index}
    return replace(roster, adverts=adverts)


def moved(roster, index):
    """Show a neighbour at another place of the roster."""
    adverts = dict(roster.adverts)
    free = next(i for i in range(roster.size) if i not in adverts)
    adverts[free] = adverts.pop(index)
    return replace(roster, adverts=dict(sorted(adverts.items())))


def test_a_ring_session_yields_the_sum_and_sends_no_client_the_whole_roster():
    session = ring()
    seen = []

    def fetch(number, inner=session.fetch):
        update = inner(number)
        if update is not None and update.kind is Roster:
            seen.append(update)
        return update

    session.fetch = fetch
    result = run_session(session, {3: Round.MASKED_INPUT_COLLECTION})
    assert result.code is None
    assert len(result.survivors) == CLIENTS - 1
    assert len(seen) == CLIENTS
    assert all(map(is_neighbourhood, seen))
    assert {len(update.open().adverts) for update in seen} == {DEGREE + 1}


def test_both_forms_of_a_roster_give_the_same_context_and_bytes():
    """The same context, and the same bytes of every later message."""
    partly, whole = sharing(), sharing()
    partly.update(5)
    state = after_roster(whole, 5, whole.server_state.opening.data)
    assert partly.clients[5].roster.ctx1 == state.roster.ctx1
    assert state.roster.ctx1 == whole.server_state.cohort.ctx1
    assert partly.clients[5].bundles == state.bundles
    assert partly.clients[5].roster.adverts == state.roster.adverts


def test_a_client_stores_only_the_adverts_of_its_neighbours():
    session = sharing()
    state = after_roster(session, 0, session.server_state.opening.data)
    own = session.index_of(0)
    near = session.server_state.cohort.graph.mask_peers(own)
    assert set(state.roster.adverts) == {own, *near}


BROKEN = {
    "R5.2-20 an index beyond n": (
        lambda r: replace(r, size=max(r.adverts)),
        ErrorCode.BAD_ENCODING,
    ),
    "R5.2-20 layers of noise that the session has not": (
        lambda r: with_advert(r, neighbour_of(r), noise_commitments=(bytes(32),) * 2),
        ErrorCode.BAD_ENCODING,
    ),
    "R5.2-21 fewer clients than promised": (
        lambda r: replace(
            r, size=9, adverts={i: a for i, a in r.adverts.items() if i < 9}
        ),
        ErrorCode.ROSTER_TOO_SMALL,
    ),
    "R5.2-21 more clients than promised": (
        lambda r: replace(r, size=13),
        ErrorCode.ROSTER_TOO_LARGE,
    ),
    "R5.2-22 without the reader": (
        lambda r: without(r, r.reader),
        ErrorCode.SELF_MISSING,
    ),
    "R5.2-22 the reader with another key": (
        lambda r: with_advert(r, r.reader, masking_key=b"\2" * 32),
        ErrorCode.SELF_MISSING,
    ),
    "R5.2-22 the reader at another index": (
        lambda r: replace(r, reader=neighbour_of(r)),
        ErrorCode.SELF_MISSING,
    ),
    "R5.2-23 without a neighbour": (
        lambda r: without(r, neighbour_of(r)),
        ErrorCode.BAD_PROOF,
    ),
    "R5.2-23 a neighbour at another index": (
        lambda r: moved(r, neighbour_of(r)),
        ErrorCode.BAD_PROOF,
    ),
    "R5.2-20 the order of another ring": (
        lambda r: replace(r, graph_seed=b"\5" * 32),
        ErrorCode.BAD_ENCODING,
    ),
    "R5.2-24 a hash too few": (
        lambda r: replace(r, proof=r.proof[1:]),
        ErrorCode.BAD_PROOF,
    ),
    "R5.2-24 a hash too many": (
        lambda r: replace(r, proof=(*r.proof, bytes(32))),
        ErrorCode.BAD_PROOF,
    ),
    "R5.2-9 a signature in an unsigned profile": (
        lambda r: with_advert(r, neighbour_of(r), signature=bytes(64)),
        ErrorCode.BAD_SIGNATURE,
    ),
    "R5.2-4 a key of low order": (
        lambda r: with_advert(r, neighbour_of(r), masking_key=LOW_ORDER),
        ErrorCode.BAD_PUBLIC_KEY,
    ),
    "R5.2-5 a key of the reader's": (
        lambda r: with_advert(
            r, neighbour_of(r), masking_key=r.adverts[r.reader].masking_key
        ),
        ErrorCode.DUPLICATE_KEY,
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_neighbourhood_is_refused(case):
    change, code = BROKEN[case]
    session = sharing()
    state = after_roster(session, 4, change(shown(session, 4)).encode())
    assert isinstance(state, client_states.Failed)
    assert state.code is code


def test_on_the_complete_graph_a_neighbourhood_is_refused():
    """R5.2-25"""
    session = sharing(degree=0, min_clients=3)
    seed = b"\5" * 32
    whole = Roster.of(session.fetch(0).open().adverts, seed)
    names = [advert.identity for advert in whole.adverts]
    part = Neighbourhood(
        CLIENTS, names.index(identity_of(0)), dict(enumerate(whole.adverts)), seed, ()
    ).encode()
    state = after_roster(session, 0, part)
    assert isinstance(state, client_states.Failed)
    assert state.code is ErrorCode.POLICY_VIOLATION
    assert "reads the whole roster" in state.reason


def test_a_client_can_demand_the_whole_roster():
    session = sharing()
    session.policy = replace(accepting(session.parameters), whole_roster=True)
    state = after_roster(session, 0, session.fetch(0).data)
    assert isinstance(state, client_states.Failed)
    assert state.code is ErrorCode.POLICY_VIOLATION
    assert "whole" in state.reason
    state = after_roster(session, 1, session.server_state.opening.data)
    assert isinstance(state, client_states.Shared)
    assert not ClientPolicy().whole_roster


def forged_key(session, number):
    keys = KeyPair.generate(SeededEntropy(SecretBytes(bytes(32)), b"forged"))
    roster = shown(session, number)
    return with_advert(roster, neighbour_of(roster), encryption_key=keys.public_bytes)


@pytest.mark.parametrize(
    "forge",
    [
        forged_key,
        lambda session, number: replace(
            shown(session, number),
            proof=(bytes(32), *shown(session, number).proof[1:]),
        ),
    ],
    ids=["the key of a neighbour", "a hash of the proof"],
)
def test_an_undetectable_change_gives_another_context_and_opens_no_bundle(forge):
    """The top is computed, not compared: another view is another session."""
    session = sharing()
    honest = session.server_state.cohort.ctx1
    data = forge(session, 4).encode()
    session.send(4, session.to_client(4, Received(Envelope(Roster, data))))
    assert session.clients[4].roster.ctx1 != honest
    session.play(Round.SHARE_KEYS, [n for n in range(CLIENTS) if n != 4])
    session.close(Round.SHARE_KEYS)
    session.update(4)
    state = session.clients[4]
    assert isinstance(state, client_states.Failed)
    assert state.code is ErrorCode.BAD_SHARE_CIPHERTEXT


def test_another_number_of_clients_is_another_context():
    """The tree alone does not bind n: a proof may fit both."""
    session = sharing(min_clients=8)
    ctx0, suite = session.clients[0].facts.ctx0, session.parameters.suite
    # All leaves known: whatever n is, no hash is missing.
    whole = RosterFrame.decode(session.server_state.opening.data)
    frame = replace(whole, reader=0)
    honest = roster_context(ctx0, frame, suite)
    assert honest == session.server_state.cohort.ctx1
    # 12 leaves are cut after 8; so are 13 to 16, of which the last is not known.
    known = {i: advert for i, advert in whole.adverts.items() if i < 8}
    for_twelve = replace(frame, adverts=known, proof=(b"p" * 32,))
    for_sixteen = replace(for_twelve, size=16)
    assert roster_context(ctx0, for_twelve, suite) != roster_context(
        ctx0, for_sixteen, suite
    )
