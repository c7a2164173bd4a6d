"""Whatever the server sends, a client reveals one kind of share per peer (A8 to A11).

The attack: learn both the self-mask seed and the mask key of a victim, and thereby
its input.  Each test tries to obtain both kinds from honest clients.
"""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secagg_testing.cohorts import one_hot, parameters_for
from secagg_testing.observed_session import ObservedSession

from secagg.crypto.shamir import SHARE_SIZE
from secagg.crypto.transcript import encode_set
from secagg.errors import ErrorCode
from secagg.protocol.client import machine as client
from secagg.protocol.client.states import Answered, Failed, Masked
from secagg.protocol.events import InputBound, InputReady, Received, Send, input_digest
from secagg.protocol.messages import Envelope, Round, Shares, Survivors, sort_key
from secagg.simulation.driver import accepting, identity_of

CLIENTS = 6


@pytest.fixture(name="session", params=[0, 4], ids=["complete", "ring"])
def _session(request):
    return masked_session(request.param)


def seed_in_order():
    """Return a seed that lines the clients of a ring up by number."""
    names = [identity_of(number) for number in range(CLIENTS)]
    seeds = (attempt.to_bytes(32, "big") for attempt in itertools.count())
    return next(
        seed
        for seed in seeds
        if names == sorted(names, key=lambda name, seed=seed: sort_key(name, seed))
    )


def masked_session(degree=0, **overrides):
    """Return a session whose clients have all uploaded and await U3."""
    session = ObservedSession(
        parameters_for(
            CLIENTS, dimension=6, threshold=3, degree=degree, min_clients=CLIENTS
        )
        if not overrides
        else parameters_for(CLIENTS, dimension=6, threshold=3, **overrides),
        [one_hot(number, 6, 1 << 20) for number in range(CLIENTS)],
        graph_seed=seed_in_order(),
    )
    for which in (
        Round.ADVERTISE_KEYS,
        Round.SHARE_KEYS,
        Round.MASKED_INPUT_COLLECTION,
    ):
        session.play(which)
        if which is not Round.MASKED_INPUT_COLLECTION:
            session.close(which)
    assert all(isinstance(state, Masked) for state in session.clients.values())
    return session


def request(bitmap):
    return Received(Envelope(Survivors, bitmap))


def request_for(survivors):
    return request(encode_set(survivors, CLIENTS))


def revealed_by(outputs):
    """Return all shares among the outputs of a client."""
    return b"".join(
        each.envelope.data
        for each in outputs
        if isinstance(each, Send) and each.envelope.kind is Shares
    )


def ask(session, number, survivors):
    """Send an unmask request; return the shares that came back, by dealer."""
    delivered = getattr(session.clients[number], "delivered", None)
    held = delivered and delivered.held
    revealed = revealed_by(session.to_client(number, request_for(survivors)))
    if held is None or not revealed:
        return {}
    head = -(-len(held.dealers) // 8)
    assert not any(revealed[:head])  # no client is absent
    parts = [
        revealed[low : low + SHARE_SIZE]
        for low in range(head, len(revealed), SHARE_SIZE)
    ]
    kinds = {}
    for dealer, pair, part in zip(held.dealers, held.pairs, parts, strict=True):
        kinds[dealer] = {
            kind
            for kind, share in (("key", pair[:SHARE_SIZE]), ("seed", pair[SHARE_SIZE:]))
            if share == part
        }
    return kinds


def test_an_answer_contains_seed_shares_of_survivors_and_key_shares_of_dropouts(
    session,
):
    # R5.5-9
    kinds = ask(session, 0, {0, 1, 2, 3})
    assert kinds
    for dealer, kind in kinds.items():
        assert kind == ({"seed"} if dealer in {0, 1, 2, 3} else {"key"})


def test_a_second_different_request_ends_the_session_without_an_answer(session):
    assert ask(session, 0, {0, 1, 2, 3})
    outputs = session.to_client(0, request_for({0, 1, 2}))
    assert not revealed_by(outputs)
    assert isinstance(session.clients[0], Failed)
    assert session.clients[0].code is ErrorCode.EQUIVOCATION
    assert not hasattr(session.clients[0], "answer")


def test_a_repeated_request_has_no_effect(session):
    survivors = request_for({0, 1, 2, 3})
    (first,) = session.to_client(0, survivors)
    state = session.clients[0]
    assert session.to_client(0, survivors) == ()
    assert session.clients[0] == state
    assert client.pending_outputs(state) == (first,)


def test_the_state_after_the_answer_suffices_for_a_restart_and_holds_no_secret(session):
    # R5.5-5
    (first,) = session.to_client(0, request_for({0, 1, 2, 3}))
    state = session.clients[0]
    kept = client.resume_answered(
        session.descriptor,
        state.facts.identity,
        accepted=state.accepted,
        share_holders=state.share_holders,
        survivors=state.survivors,
        answer=state.answer,
    )
    assert kept == state
    assert client.pending_outputs(kept) == (first,)
    assert "SecretBytes" not in repr(kept)


def replay(session, number):
    """Rebuild a client from its journal, as after kill -9."""
    state = client.start()
    for event in session.client_journals[number]:
        record = (
            InputBound(input_digest(event.vector))
            if isinstance(event, InputReady)
            else event
        )
        state = client.step(state, record, policy=accepting(session.parameters)).state
    return state


def test_a_restart_between_two_different_requests_does_not_help_the_server(session):
    assert ask(session, 0, {0, 1, 2, 3})
    session.clients[0] = replay(session, 0)
    assert isinstance(session.clients[0], Answered)
    outputs = session.to_client(0, request_for({0, 1, 2}))
    assert not revealed_by(outputs)
    assert session.clients[0].code is ErrorCode.EQUIVOCATION


def test_a_restart_before_the_request_does_not_change_the_answer(
    session,
):
    survivors = request_for({0, 1, 2, 3})
    policy = accepting(session.parameters)
    restarted = client.step(replay(session, 0), survivors, policy=policy)
    undisturbed = client.step(session.clients[0], survivors, policy=policy)
    assert restarted.outputs == undisturbed.outputs


@pytest.mark.parametrize("_part", range(3))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    bitmaps=st.lists(st.binary(min_size=0, max_size=3), min_size=1, max_size=6),
    restart_at=st.sets(st.integers(0, 5)),
)
def test_no_sequence_of_requests_and_restarts_reveals_both_kinds_of_share(
    _part, bitmaps, restart_at
):
    session = masked_session()
    held = session.clients[0].delivered.held
    both = {dealer: set() for dealer in held.dealers}
    for count, bitmap in enumerate(bitmaps):
        if count in restart_at:
            session.clients[0] = replay(session, 0)
        revealed = revealed_by(session.to_client(0, request(bitmap)))
        for dealer, pair in zip(held.dealers, held.pairs, strict=True):
            for kind, share in (("k", pair[:SHARE_SIZE]), ("s", pair[SHARE_SIZE:])):
                if share in revealed:
                    both[dealer].add(kind)
    assert all(len(kinds) <= 1 for kinds in both.values())


@pytest.mark.parametrize(
    ("survivors", "code"),
    [
        ({0, 1}, ErrorCode.U3_TOO_SMALL),
        ({1, 2, 3, 4}, ErrorCode.U3_INVALID),
        (set(), ErrorCode.U3_INVALID),
    ],
)
def test_an_impossible_set_of_survivors_is_refused(session, survivors, code):
    assert ask(session, 0, survivors) == {}
    assert session.clients[0].code is code


def test_survivors_outside_u2_are_refused():
    session = ObservedSession(
        parameters_for(CLIENTS, dimension=6, threshold=3),
        [one_hot(number, 6, 1 << 20) for number in range(CLIENTS)],
    )
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    session.play(Round.SHARE_KEYS, range(CLIENTS - 1))  # the last one never shares
    session.close(Round.SHARE_KEYS)
    session.play(Round.MASKED_INPUT_COLLECTION, range(CLIENTS - 1))
    outputs = session.to_client(0, request_for(range(CLIENTS)))
    assert not revealed_by(outputs)
    assert session.clients[0].code is ErrorCode.U3_INVALID


@pytest.mark.parametrize("bitmap", [b"", b"\xff", b"\x3f\x00", b"\x4f"])
def test_a_malformed_bitmap_is_refused(bitmap):
    session = masked_session()
    outputs = session.to_client(0, request(bitmap))
    assert not revealed_by(outputs)
    assert session.clients[0].code is ErrorCode.BAD_ENCODING


def test_more_dropouts_than_allowed_are_not_unmasked():
    session = masked_session(max_dropouts=1, min_clients=3)
    assert ask(session, 0, {0, 1, 2, 3}) == {}
    assert session.clients[0].code is ErrorCode.TOO_MANY_DROPOUTS


def test_requests_before_an_input_is_in_are_refused():
    session = ObservedSession(
        parameters_for(3, dimension=2, threshold=2),
        [one_hot(number, 2, 1 << 20) for number in range(3)],
    )
    session.play(Round.ADVERTISE_KEYS)
    outputs = session.to_client(0, request(encode_set({0, 1, 2}, 3)))
    assert not revealed_by(outputs)
    assert session.clients[0].code is ErrorCode.UNEXPECTED_MESSAGE


def test_split_views_never_reveal_both_secrets_of_a_client():
    """A server that shows half the clients another U3 stays below one threshold."""
    session = masked_session()
    kinds = {"seed": set(), "key": set()}
    for number in session.clients:
        lied_to = number % 2 and number != CLIENTS - 1
        all_clients = set(range(CLIENTS))
        shown = all_clients - {CLIENTS - 1} if lied_to else all_clients
        answer = ask(session, number, shown)
        for kind in answer.get(CLIENTS - 1, set()):
            kinds[kind].add(number)
    # Honest-curious profile: both sets are non-empty, which is why a malicious server
    # needs the other profiles; yet no client is in both.
    assert not kinds["seed"] & kinds["key"]
    assert all(a != b for a, b in itertools.product(kinds["seed"], kinds["key"]))
