"""Profile malicious-server-sparse: clients draw who holds their shares.

The ledger (conftest) looks at every session with the masks that follow from what each
client drew and was told.  Attacks on the lists themselves are in
tests/unit/secagg/protocol/graphs/test_edge_selection.py.
"""

from dataclasses import replace

import numpy as np
import pytest
from secagg_testing.cohorts import one_hot, sparse_parameters_for
from secagg_testing.hidden_edges import hiding_trees
from secagg_testing.observed_session import ObservedSession

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.client.checks import check_edge_bounds
from secagg.protocol.events import Finish, Received, RoundClosed, SessionOffered
from secagg.protocol.graphs.edge_selection import EdgeTrees, sign_edges
from secagg.protocol.messages import Edges, Envelope, Fate, Round
from secagg.protocol.noise_terms import NoiseTerms, noise_terms
from secagg.protocol.parameters import Graph
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.profiles import Profile
from secagg.protocol.rounds import rounds_of
from secagg.protocol.server import machine as server
from secagg.simulation import identity_of, run_session
from secagg.simulation.driver import accepting

CLIENTS, DEGREE, COLLUDER, LOSSES = 12, 7, 11, 3
MODULUS = 1 << 20
ROUNDS = rounds_of(Profile.MALICIOUS_SERVER_SPARSE)


def session_of(**overrides):
    """Return a session in which twelve clients can lose three, and one is corrupt."""
    fields = {"degree": DEGREE, "colluders": 1, "losses": LOSSES} | overrides
    return ObservedSession(
        sparse_parameters_for(CLIENTS, dimension=CLIENTS, **fields),
        [one_hot(n, CLIENTS, MODULUS) for n in range(CLIENTS)],
        corrupt=frozenset({COLLUDER}),
    )


def played(last):
    """Return a session after a round was closed."""
    session = session_of()
    for which in ROUNDS:
        session.play(which)
        session.close(which)
        if which is last:
            return session
    raise AssertionError("no such round")


def left_with(session, number, envelope):
    """Show a client something; return the code with which it leaves and is silent."""
    outputs = session.to_client(number, Received(envelope))
    state = session.clients[number]
    assert isinstance(state, client.Failed), state
    assert {type(output) for output in outputs} == {Finish}
    return state.code


# --- sessions -----------------------------------------------------------------------


def test_a_session_with_drawn_edges_has_six_rounds():
    assert [which.value for which in ROUNDS] == [1, 2, 3, 4, 5, 6]
    result = run_session(session_of())
    assert np.array_equal(result.total, [MODULUS - 1] * CLIENTS)


@pytest.mark.parametrize("first", ROUNDS[1:])
@pytest.mark.parametrize("second", ROUNDS[1:])
def test_losses_in_any_round_leave_exactly_one_sum(first, second):
    session = session_of()
    result = run_session(session, {2: first, 5: second, 8: Round.UNMASKING})
    expected = [MODULUS - 1 if n in result.survivors else 0 for n in range(CLIENTS)]
    lost = {n for n, at in {2: first, 5: second}.items() if at <= Round(4)}
    assert result.code is None
    assert np.array_equal(result.total, expected)
    assert set(result.survivors) == set(range(CLIENTS)) - lost
    assert len(session.check()) == 1


def test_more_losses_than_the_roster_may_have_release_nothing():
    # R5.4-4: who drew no client counts, too.
    lost = dict.fromkeys(range(LOSSES + 1), Round.CHOOSE_EDGES)
    session = session_of(min_survivors=4, max_dropouts=0)
    result = run_session(session, lost)
    assert result.code is ErrorCode.TOO_MANY_DROPOUTS
    assert session.check() == ()


def test_too_few_lists_end_the_session():
    # R5.9-11
    session = session_of()
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    session.play(Round.CHOOSE_EDGES, range(4))
    session.close(Round.CHOOSE_EDGES)
    assert session.server_state.outcome.code is ErrorCode.U2_TOO_SMALL
    assert session.server_state.outcome.fate is Fate.NEVER_FIXED


def test_a_client_without_a_list_is_excluded_from_the_session():
    # R5.9-11
    session = played(Round.ADVERTISE_KEYS)
    session.play(Round.CHOOSE_EDGES, range(1, CLIENTS))
    early = session.act(0, Round.CHOOSE_EDGES)
    session.close(Round.CHOOSE_EDGES)
    assert session.dropped == {identity_of(0): "chose no neighbours in time"}
    over = session.fetch(0).open()
    assert (over.code, over.fate) == (ErrorCode.SESSION_OVER, Fate.NOT_INCLUDED)
    with pytest.raises(RemoteProtocolError) as caught:
        session.send(0, early)
    assert caught.value.code is ErrorCode.DEADLINE
    # Even with bundles that it might have made.
    session.play(Round.SHARE_KEYS, [1])
    bundles = session.client_journals[1] and client_machine.pending_outputs(
        session.clients[1]
    )
    with pytest.raises(RemoteProtocolError) as caught:
        session.to_server(Received(bundles[0].envelope, identity_of(0)))
    assert caught.value.code is ErrorCode.SESSION_OVER


def test_a_restarted_client_draws_the_same_neighbours_again():
    # R5.9-1
    session = played(Round.ADVERTISE_KEYS)
    sent = session.act(3, Round.CHOOSE_EDGES)
    state = client_machine.start(session.read_noise)
    for event in session.client_journals[3]:
        again = event
        if isinstance(event, SessionOffered):
            again = replace(event)
        policy = accepting(session.parameters)
        state = client_machine.step(state, again, policy=policy).state
    assert client_machine.pending_outputs(state) == sent
    assert state.edges == session.clients[3].edges


def test_another_roster_makes_a_client_draw_others():
    """One seed, two rosters: shares for one do not add up with shares for the other."""
    one, two = session_of(), session_of()
    one.play(Round.ADVERTISE_KEYS)
    two.seed_of = lambda n: one.seed_of(n) if n == 0 else bytes([n]) * 32
    two.play(Round.ADVERTISE_KEYS)
    for session in (one, two):
        session.close(Round.ADVERTISE_KEYS)
        session.act(0, Round.CHOOSE_EDGES)
    assert one.clients[0].edges.drawn != two.clients[0].edges.drawn


# --- lies of the server -------------------------------------------------------------


def test_an_edge_cannot_be_hidden_from_its_receiver():
    # R5.9-10: the receiver believes it, the drawer does not.
    session = played(Round.CHOOSE_EDGES)
    receiver = session.clients[0].edges.drawn[0]
    trees = hiding_trees(
        session.server_state.cohort, {(0, receiver)}, session.parameters.suite
    )
    session.to_client(receiver, Received(Envelope.of(trees.published(receiver))))
    assert isinstance(session.clients[receiver], client.Shared)
    assert 0 not in session.clients[receiver].roster.graph.dealers(receiver)
    # Whatever place on the list it is shown, and if it is told that no client is there.
    shown = EdgeTrees.published
    honest = session.server_state.cohort.edges
    lists = list(shown(honest, 0).lists)
    of_others = [each for each in session.clients[0].edges.drawn if each != receiver]
    true = [trees._list_proof(each, 0) for each in of_others]
    others = trees.graph.dealers(receiver)
    inner = trees._hashes.in_tree(receiver, others)
    for place in range(len(others)):
        forged = replace(
            lists[0], size=len(others), place=place, proof=inner.proof([place])
        )
        lie = replace(
            shown(honest, 0),
            edge_root=trees.root,
            own_proof=trees._tree.proof([0]),
            lists=(forged, *true),
            leaves_proof=trees._tree.proof(session.clients[0].edges.drawn),
        )
        fresh = session.clients[0]
        assert left_with(session, 0, Envelope.of(lie)) is ErrorCode.BAD_PROOF
        session.clients[0] = fresh
    lie = replace(lie, lists=(None, *true))
    assert left_with(session, 0, Envelope.of(lie)) is ErrorCode.BAD_PROOF


def test_clients_with_different_edge_roots_have_masks_that_do_not_cancel():
    """Who is shown other edges signs other sets: no quorum names both (R5.9-12)."""
    session = played(Round.CHOOSE_EDGES)
    drawer, receiver = 0, session.clients[0].edges.drawn[0]
    trees = hiding_trees(
        session.server_state.cohort, {(drawer, receiver)}, session.parameters.suite
    )
    session.to_client(receiver, Received(Envelope.of(trees.published(receiver))))
    bundles = client_machine.pending_outputs(session.clients[receiver])
    assert session.clients[receiver].roster.edge_root == trees.root
    # Its bundles fit, but from here on it is in another session than all others.
    session.send(receiver, bundles)
    session.play(Round.SHARE_KEYS, [n for n in range(CLIENTS) if n != receiver])
    session.close(Round.SHARE_KEYS)
    for number in range(CLIENTS):
        session.update(number)
    contexts = {
        number: session.clients[number].delivered.ctx2
        for number in range(CLIENTS)
        if isinstance(session.clients[number], client.Masked)
    }
    assert len({contexts[n] for n in contexts if n != receiver}) == 1
    assert contexts.get(receiver) not in {
        contexts[n] for n in contexts if n != receiver
    }


def test_a_second_different_edge_message_raises_equivocation():
    # R5-8
    session = played(Round.CHOOSE_EDGES)
    shown = session.fetch(0)
    session.play(Round.SHARE_KEYS)
    repeated = session.to_client(0, Received(shown))
    assert repeated == ()
    session.close(Round.SHARE_KEYS)
    session.update(0)
    other = replace(shown.open(), edge_root=bytes(32))
    assert left_with(session, 0, Envelope.of(other)) is ErrorCode.EQUIVOCATION


def test_an_edge_message_before_the_client_has_drawn_is_unexpected():
    # R5-9
    session = played(Round.CHOOSE_EDGES)
    shown = session.fetch(0)
    fresh = session_of()
    fresh.play(Round.ADVERTISE_KEYS)
    assert left_with(fresh, 0, shown) is ErrorCode.UNEXPECTED_MESSAGE


def test_malformed_edge_messages_are_rejected():
    # R5.9-5
    session = played(Round.CHOOSE_EDGES)
    shown = session.fetch(0).open()
    twice = replace(shown, drawers=(shown.drawers[0], *shown.drawers))
    fresh = session.clients[0]
    for data in (b"", shown.encode()[:-1], shown.encode() + b"\0", twice.encode()):
        envelope = Envelope(type(shown), data)
        assert left_with(session, 0, envelope) is ErrorCode.BAD_ENCODING
        session.clients[0] = fresh


# --- lies of clients ----------------------------------------------------------------


def refused(session, edges, sender=COLLUDER):
    with pytest.raises(RemoteProtocolError) as caught:
        session.to_server(Received(Envelope.of(edges), identity_of(sender)))
    return caught.value.code


def test_the_server_accepts_only_lists_that_can_have_been_drawn():
    # R5.9-3, R5.9-4, R5-8
    session = played(Round.ADVERTISE_KEYS)
    outputs = session.act(COLLUDER, Round.CHOOSE_EDGES)
    own = outputs[0].envelope.open()
    key = session.membership(COLLUDER).key
    ctx1 = session.server_state.cohort.ctx1

    def signed(drawn):
        return sign_edges(
            key, drawn, ctx1=ctx1, index=COLLUDER, suite=session.parameters.suite
        )

    for drawn in (
        own.drawn[1:],
        (*own.drawn[1:], COLLUDER),
        (*own.drawn[1:], CLIENTS),
        tuple(range(DEGREE + 1)),
    ):
        assert refused(session, signed(drawn)) is ErrorCode.BAD_EDGES
    other = sign_edges(
        key, own.drawn, ctx1=bytes(32), index=COLLUDER, suite=session.parameters.suite
    )
    assert refused(session, other) is ErrorCode.BAD_SIGNATURE
    assert refused(session, Edges(own.drawn, bytes(64))) is ErrorCode.BAD_SIGNATURE
    unordered = Edges(own.drawn[::-1], own.signature)
    assert refused(session, unordered) is ErrorCode.BAD_ENCODING
    session.send(COLLUDER, outputs)
    session.send(COLLUDER, outputs)
    assert refused(session, signed(tuple(range(DEGREE)))) is ErrorCode.EQUIVOCATION


def test_a_discarded_fork_leaves_the_lists_unchanged():
    session = played(Round.ADVERTISE_KEYS)
    before = server.fork(session.server_state)
    session.play(Round.CHOOSE_EDGES)
    assert before.edges == {}
    assert server.progress(session.server_state).answered == CLIENTS
    assert server.is_round_full(session.server_state)
    session.step_server(RoundClosed(Round.CHOOSE_EDGES))
    assert server.progress(session.server_state).expected == CLIENTS


def test_a_client_drawn_by_few_others_stays():
    # R5.3-11: how many draw a client is chance, and says nothing of its roster.
    session = session_of(degree=3, losses=2)
    for which in ROUNDS[:2]:
        session.play(which)
        session.close(which)
    graph = session.server_state.cohort.graph
    threshold = session.parameters.threshold
    lonely = [n for n in range(CLIENTS) if len(graph.dealers(n)) < threshold]
    assert lonely  # seeds are fixed
    again = session_of(degree=3, losses=2)
    result = run_session(again)
    assert set(result.survivors) == set(range(CLIENTS))
    assert all(isinstance(s, client.Completed) for s in again.clients.values())
    assert len(again.check()) == 1


# --- limits -------------------------------------------------------------------------


def test_a_client_takes_part_only_if_profile_and_graph_are_named():
    # R5.0-4
    session = session_of()
    lenient = accepting(session.parameters)
    named = {"profiles": lenient.profiles, "graphs": frozenset({Graph.K_OUT})}
    default = ClientPolicy()
    assert Profile.MALICIOUS_SERVER_SPARSE not in default.profiles
    assert Graph.K_OUT not in default.graphs
    replace(lenient, **named).check(session.descriptor)
    for missing in ("profiles", "graphs"):
        kept = {missing: getattr(default, missing)}
        with pytest.raises(RemoteProtocolError) as caught:
            replace(lenient, **(named | kept)).check(session.descriptor)
        assert caught.value.code is ErrorCode.POLICY_VIOLATION


def test_the_failure_bounds_are_computed_for_the_actual_roster_size():
    # R5.9-2: what the offer promises of the largest roster does not hold of this one.
    parameters = replace(
        session_of().parameters, colluders=4, min_clients=8, max_clients=400
    )
    check_edge_bounds(replace(parameters, threshold=5), 400)
    with pytest.raises(RemoteProtocolError) as caught:
        check_edge_bounds(replace(parameters, threshold=2), 12)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    tail = replace(parameters.tail, quorum=parameters.min_survivors - 1)
    with pytest.raises(RemoteProtocolError, match="quorum"):
        check_edge_bounds(replace(parameters, threshold=7, tail=tail), 12)


def test_noise_counts_clients_the_server_may_omit_as_dropouts():
    # R5.9-13
    parameters = sparse_parameters_for(
        1000,
        dimension=1,
        degree=108,
        colluders=100,
        losses=300,
        noise_block=b"noise",
    )
    apart = parameters.max_omitted(1000)
    assert apart > 0
    whole = NoiseTerms(b"c" * 32, 10, tuple((n,) for n in range(11)))
    terms = noise_terms(parameters, 900, lambda *_: whole, clients=1000)
    assert terms.tolerated_losses == 10 - apart
    assert terms.revealed(0) == whole.revealed(apart)
    assert terms.context == whole.context
