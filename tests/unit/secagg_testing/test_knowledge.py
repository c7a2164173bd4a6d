"""What the knowledge ledger concludes, from sessions of the real cores.

Sums that it claims to be known are computed from the recorded bytes and compared with
the inputs, so that no conclusion is one on paper only.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secagg_testing.knowledge.claims import Claim, ForbiddenKnowledgeError, check
from secagg_testing.knowledge.closure import close
from secagg_testing.knowledge.facts import Facts, PairMask
from secagg_testing.knowledge.sums import expanded, recover, revealed_sums

from secagg.crypto.entropy import SeededEntropy, SystemEntropy
from secagg.crypto.key_agreement import KeyPair
from secagg.crypto.transcript import encode_set
from secagg.distributed_dp import read_noise_terms
from secagg.errors import ErrorCode
from secagg.protocol.client import handlers as client_rounds
from secagg.protocol.client import states as client_states
from secagg.protocol.membership import signed_advert
from secagg.protocol.messages import Roster, Round, Survivors
from secagg.protocol.profiles import Profile
from secagg.protocol.rounds import rounds_of
from secagg.simulation.driver import identity_of

MODULUS = 1 << 20


def sums_of(session):
    """Return the sums that show, as (members, numbers), after computing them."""
    closure = close(session.facts)
    return [
        (each.members, recover(closure, each).tolist())
        for each in revealed_sums(closure)
    ]


def claims_broken(session, charged=None):
    """Return the claims that do not hold."""
    try:
        check(session.facts, charged=session.charged if charged is None else charged)
    except ForbiddenKnowledgeError as error:
        return {violation.claim for violation in error.violations}
    return set()


def test_an_honest_session_with_dropouts_reveals_only_the_sum_over_u3(observe):
    session = observe(8, threshold=4)
    result = session.run(
        {0: Round.SHARE_KEYS, 3: Round.MASKED_INPUT_COLLECTION, 5: Round.UNMASKING}
    )
    survivors = (1, 2, 4, 5, 6, 7)
    assert result.survivors == survivors
    assert sums_of(session) == [(session.names(survivors), result.total.tolist())]
    (known,) = check(session.facts, charged=session.charged)
    assert known.members == session.names(survivors)


def test_nothing_is_revealed_before_any_answer(observe):
    session = observe(5, threshold=3, corrupt={4})
    session.reach(Round.MASKED_INPUT_COLLECTION)
    assert check(session.facts, charged={}) == ()


def test_the_inputs_of_colluders_are_excluded_from_the_revealed_sum(observe):
    session = observe(6, threshold=4, corrupt={1, 4})
    session.run({2: Round.MASKED_INPUT_COLLECTION})
    honest = (0, 3, 5)
    assert sums_of(session) == [(session.names(honest), session.sum_of(honest))]
    assert claims_broken(session) == set()


def test_a_colluder_that_withholds_its_answer_learns_a_sum_from_an_aborted_session(
    observe,
):
    session = observe(5, threshold=5, corrupt={4}, min_survivors=5)
    result = session.run({4: Round.UNMASKING})
    assert result.code is ErrorCode.TOO_FEW_ANSWERS
    honest = (0, 1, 2, 3)
    assert sums_of(session) == [(session.names(honest), session.sum_of(honest))]
    assert claims_broken(session) == set()
    # A store that gives the session back because it was aborted.
    assert claims_broken(session, charged={}) == {Claim.BUDGET}


def test_a_colluder_that_answers_garbage_still_contributes_its_shares(observe):
    session = observe(5, threshold=5, corrupt={4})
    session.run({4: Round.UNMASKING})
    size = len(session.facts.answers[0].data)
    bitmap = encode_set(range(5), 5)
    to = (session.session_id, identity_of(4))
    session.facts.on_survivors(*to, bitmap)
    session.facts.on_answer(*to, bytes(size))
    assert sums_of(session) == [(session.names(range(4)), session.sum_of(range(4)))]


def test_a_wrong_share_among_many_does_not_prevent_reconstruction(observe):
    session = observe(7, threshold=3)
    session.run()
    first = session.facts.answers[0]
    session.facts.answers[0] = replace(first, data=bytes(len(first.data)))
    assert sums_of(session) == [(session.names(range(7)), session.sum_of(range(7)))]


def test_the_input_of_a_client_declared_dropped_stays_masked(observe):
    session = observe(5, threshold=3, corrupt={4})
    session.reach(Round.MASKED_INPUT_COLLECTION)
    session.ask(range(1, 5), range(1, 5))  # although the input of 0 is there
    honest = (1, 2, 3)
    assert sums_of(session) == [(session.names(honest), session.sum_of(honest))]
    assert claims_broken(session) == set()


def test_the_budget_counts_the_sums_of_all_sessions(observe):
    first = observe(4, threshold=3)
    second = observe(4, threshold=3, facts=first.facts, number=2)
    first.run()
    second.run({1: Round.MASKED_INPUT_COLLECTION})
    names = sorted(first.names(range(4)))
    exact = dict(zip(names, (2, 1, 2, 2), strict=True))
    assert claims_broken(first, charged=exact) == set()
    for name in names:
        too_little = exact | {name: exact[name] - 1}
        assert claims_broken(first, charged=too_little) == {Claim.BUDGET}


def test_a_restored_client_that_answers_two_sets_reveals_both_secrets(observe):
    session = observe(6, threshold=4)
    session.reach(Round.MASKED_INPUT_COLLECTION)
    before = dict(session.clients)
    session.ask(range(6), range(6))
    assert claims_broken(session) == set()
    session.clients = before
    session.ask(range(1, 6), range(1, 6))
    assert claims_broken(session) == {Claim.ONE_SECRET, *TWO_PARTS}
    expected = [(session.names({0}), session.inputs[0].tolist())]
    expected.append((session.names(range(1, 6)), session.sum_of(range(1, 6))))
    assert sums_of(session) == expected


# Parts of the honest clients: more than one sum, not all of U3, and too small.
TWO_PARTS = {Claim.ONE_SUM, Claim.HONEST_PART, Claim.SIZE}


@pytest.fixture(name="ring", scope="module")
def _ring(observe):
    """Return the clients of a ring of twelve, degree four, in its order."""
    probe = observe(12, threshold=2, degree=4)
    probe.reach(Round.SHARE_KEYS)
    return probe.roster


def arcs_of(session, ring):
    """Return the sums over the two arcs between places 0, 1 and 6, 7 of the ring."""
    arcs = [set(ring[2:6]), set(ring[8:12])]
    return sorted(
        [(session.names(arc), session.sum_of(arc)) for arc in arcs], key=sum_in
    )


def sum_in(found):
    """Order sums by their numbers: sets of names have no order."""
    return found[1]


@pytest.mark.parametrize("is_judged", [True, False])
def test_a_ring_cut_by_dropouts_and_a_colluder_reveals_two_sums_unless_checked(
    observe, ring, monkeypatch, is_judged
):
    if not is_judged:
        monkeypatch.setattr(client_rounds, "check_ring_survivors", lambda *_: None)
    lost, colluder = {ring[0], ring[1], ring[6]}, ring[7]
    session = observe(12, threshold=2, degree=4, corrupt={colluder}, min_survivors=8)
    session.reach(
        Round.MASKED_INPUT_COLLECTION,
        dict.fromkeys(lost, Round.MASKED_INPUT_COLLECTION),
    )
    survivors = set(range(12)) - lost
    session.ask(survivors, survivors)
    parts = [] if is_judged else arcs_of(session, ring)
    assert sorted(sums_of(session), key=sum_in) == parts
    assert claims_broken(session) == (set() if is_judged else TWO_PARTS)


def test_clients_silent_after_the_inputs_do_not_cut_a_ring(observe, ring):
    silent, colluder = {ring[0], ring[1], ring[6]}, ring[7]
    session = observe(12, threshold=2, degree=4, corrupt={colluder}, min_survivors=8)
    session.reach(Round.MASKED_INPUT_COLLECTION)
    session.ask(set(range(12)) - silent, range(12))
    honest = set(range(12)) - {colluder}
    assert sums_of(session) == [(session.names(honest), session.sum_of(honest))]
    assert claims_broken(session) == set()


def test_colluders_that_reach_the_threshold_learn_both_secrets(observe, ring):
    session = observe(
        12, threshold=2, degree=4, corrupt={ring[0], ring[1]}, colluders=1
    )
    session.reach(Round.SHARE_KEYS)
    with pytest.raises(ForbiddenKnowledgeError) as caught:
        check(session.facts, charged={})
    # A client that has both colluders among its neighbours.
    harmed = {v.who[0] for v in caught.value.violations}
    assert harmed == session.names({ring[11], ring[2]})
    assert {v.claim for v in caught.value.violations} == {Claim.ONE_SECRET}


# --- what stays known, and what is used twice ----------------------------------------


@pytest.mark.parametrize("bound", [False, True], ids=["reused", "bound to its roster"])
def test_a_polynomial_used_under_two_rosters_reveals_its_secrets(observe, bound):
    session = observe(9, threshold=5, corrupt={6, 7, 8})
    session.reach(Round.ADVERTISE_KEYS)
    adverts = [session.clients[number].advert for number in range(9)]
    # Three colluders, at other places in the second roster: six points in all.
    rosters = [
        Roster(tuple(adverts[n] for n in c)) for c in (range(9), (0, 1, 6, 7, 8))
    ]
    for roster in rosters:
        label = b"polynomials" + (roster.encode() if bound else b"")
        session.deal(0, roster, SeededEntropy(session.seed(0), label))
    if bound:
        assert check(session.facts, charged={}) == ()
        return
    with pytest.raises(
        ForbiddenKnowledgeError, match=r"6 shares .*, over 2 rosters"
    ) as caught:
        check(session.facts, charged={})
    assert [v.claim for v in caught.value.violations] == [Claim.ONE_SECRET]
    assert caught.value.violations[0].who == (identity_of(0),)


def test_a_self_mask_seed_also_unmasks_inputs_masked_for_another_u2(observe):
    session = observe(5, threshold=3, corrupt={4})
    session.reach(Round.SHARE_KEYS)
    session.close(Round.SHARE_KEYS)
    before = dict(session.clients)
    for u2 in (range(5), range(4)):
        session.clients = dict(before)
        for number in range(4):
            session.tell_share_holders(number, u2)
    session.ask(range(4), range(4))  # unmasks the second one only
    assert sums_of(session) == [(session.names(range(4)), session.sum_of(range(4)))] * 2
    assert claims_broken(session) == {Claim.ONE_SUM, Claim.HONEST_PART, Claim.BUDGET}


def test_two_inputs_under_one_mask_reveal_their_difference(observe):
    session = observe(4, threshold=3)
    session.reach(Round.MASKED_INPUT_COLLECTION)
    masked = session.facts.vectors[2]
    other = (masked.residues + np.array([5, 0, 0, 1], "u4")) % MODULUS
    session.facts.on_vector(session.session_id, masked.sender, other)
    assert sums_of(session) == [(session.names({2}), [MODULUS - 5, 0, 0, MODULUS - 1])]
    assert Claim.HONEST_PART in claims_broken(session)


def test_repeated_messages_count_as_one_fact(observe):
    session = observe(4, threshold=4)
    session.reach(Round.MASKED_INPUT_COLLECTION)
    bitmap = encode_set(range(4), 4)
    for number, vector in enumerate(list(session.facts.vectors)):
        to = (session.session_id, vector.sender)
        roster = session.server_state.cohort.roster
        session.facts.on_roster(*to, roster.encode())
        (answer,) = session.tell(number, Survivors(bitmap))
        session.facts.on_share_holders(*to, bitmap)
        session.facts.on_vector(*to, vector.residues)
        session.facts.on_request(*to, answer.envelope)
        # Read under the set that came with it, not under a later one.
        session.facts.on_survivors(*to, encode_set(range(3), 4))
        session.facts.on_request(*to, answer.envelope)
    assert (len(session.facts.vectors), len(session.facts.answers)) == (4, 4)
    assert sums_of(session) == [(session.names(range(4)), session.sum_of(range(4)))]
    assert claims_broken(session) == set()


# --- what a thief finds -------------------------------------------------------------


@pytest.mark.parametrize(
    "write", [bytes, lambda b: b.hex().encode()], ids=["raw", "hex"]
)
def test_a_seed_left_on_a_disk_reveals_both_secrets(observe, write):
    session = observe(5, threshold=3)
    session.run()
    seed = session.seed(2)
    found = b"header" + write(session.seed_of(2)) + b"rest"
    session.facts.disk(identity_of(2), "after the answer", found, seed=seed)
    with pytest.raises(ForbiddenKnowledgeError, match="after the answer") as caught:
        check(session.facts, charged=session.charged)
    assert {v.who for v in caught.value.violations if v.claim is Claim.ONE_SECRET} == {
        (identity_of(2),)
    }


def test_an_encryption_key_also_decrypts_what_its_owner_sent(observe):
    session = observe(5, threshold=4)
    session.reach(Round.MASKED_INPUT_COLLECTION)
    seed = session.seed(2)
    stream = SeededEntropy(seed, b"encryption key/" + session.session_id)
    session.facts.disk(identity_of(2), "in round 4", stream.token(32), seed=seed)
    with pytest.raises(ForbiddenKnowledgeError, match="4 shares") as caught:
        check(session.facts, charged=session.charged)
    assert caught.value.violations[0].claim is Claim.HONEST_PART
    harmed = {v.who for v in caught.value.violations if v.claim is Claim.ONE_SECRET}
    assert harmed == {(identity_of(2),)}


def test_an_answer_and_public_records_on_a_disk_reveal_nothing(observe):
    session = observe(6, threshold=3, corrupt={4, 5})
    session.run()
    found = b"".join(a.data for a in session.facts.answers)
    found += b"".join(b.data for b in session.facts.bundles)
    session.facts.disk(identity_of(2), "later", found, seed=session.seed(2))
    assert claims_broken(session) == set()


def test_shares_left_on_a_disk_count_with_those_of_colluders(observe):
    session = observe(6, threshold=3, corrupt={4, 5})
    session.reach(Round.MASKED_INPUT_COLLECTION)
    assert claims_broken(session) == set()
    held = session.held_shares(0)
    session.facts.disk(identity_of(0), "in round 4", held, seed=session.seed(0))
    assert Claim.ONE_SECRET in claims_broken(session)


# --- views and masks that do not fit ------------------------------------------------


@pytest.mark.parametrize("corrupt", [(), (3, 4, 5)], ids=["all honest", "half corrupt"])
def test_differing_views_of_u2_leave_masks_that_only_a_colluder_removes(
    observe, corrupt
):
    session = observe(6, threshold=4, corrupt=corrupt, min_survivors=5)
    session.reach(Round.SHARE_KEYS)
    session.close(Round.SHARE_KEYS)
    for number in range(6):
        session.tell_share_holders(number, range(6) if number < 3 else range(1, 6))
    session.ask(range(3), range(6))
    session.ask(range(3, 6), range(1, 6))
    # Those who are told all of U2 share masks with 3, 4 and 5, who add other ones.
    part = [(session.names(range(3)), session.sum_of(range(3)))]
    assert sums_of(session) == (part if corrupt else [])
    assert claims_broken(session) == set()


def test_a_wrong_sign_reveals_the_parity_of_the_sum(observe):
    session = observe(3, threshold=2)
    session.reach(Round.MASKED_INPUT_COLLECTION)
    name, pair = identity_of(0), PairMask(0, 1)
    # The mask that 0 and 1 share, which 1 should subtract and adds.
    session.facts.corrupt(name, session.seed(0))
    (right,) = [v for v in session.facts.vectors if v.sender == identity_of(1)]
    mask = expanded(close(session.facts), right.view, pair)
    del session.facts.seeds[name]
    session.facts.vectors.remove(right)
    session.facts.on_vector(
        session.session_id,
        right.sender,
        (right.residues + 2 * mask) % MODULUS,
        masks={**right.masks, pair: 1},
    )
    assert sums_of(session) == []
    session.ask(range(3), range(3))
    closure = close(session.facts)
    (revealed,) = revealed_sums(closure)
    assert revealed.is_parity
    assert revealed.members == session.names(range(3))
    parity = [entry % 2 * (MODULUS // 2) for entry in session.sum_of(range(3))]
    assert recover(closure, revealed).tolist() == parity
    assert claims_broken(session) == {Claim.HONEST_PART}


def test_a_wrong_sign_between_two_honest_clients_reveals_their_difference(observe):
    session = observe(3, threshold=2, corrupt={2}, min_survivors=3)
    session.reach(Round.MASKED_INPUT_COLLECTION)
    wrong = dict(session.facts.vectors[1].masks) | {PairMask(0, 1): 1}
    session.facts.vectors[1] = replace(session.facts.vectors[1], masks=wrong)
    session.ask(range(3), range(3))
    (revealed,) = revealed_sums(close(session.facts))
    assert [factor for _, factor in revealed.terms] == [1, -1]
    assert claims_broken(session) == {Claim.HONEST_PART}


def test_an_odd_modulus_reveals_no_parity(observe):
    session = observe(3, threshold=2, modulus=MODULUS + 1)
    session.reach(Round.MASKED_INPUT_COLLECTION)
    wrong = dict(session.facts.vectors[1].masks) | {PairMask(0, 1): 1}
    session.facts.vectors[1] = replace(session.facts.vectors[1], masks=wrong)
    session.ask(range(3), range(3))
    assert sums_of(session) == []


# --- the other claims, and what the recorder refuses --------------------------------


@pytest.mark.parametrize(("counted", "holds"), [(None, True), (3, True), (4, False)])
def test_a_sum_contains_the_noise_shares_that_the_report_counts(
    observe, counted, holds
):
    session = observe(6, threshold=4, corrupt={5}, min_survivors=5, ladder=0)
    session.run({4: Round.MASKED_INPUT_COLLECTION})
    broken = set()
    try:
        check(session.facts, charged=session.charged, counted_noise_shares=counted)
    except ForbiddenKnowledgeError as error:
        broken = {violation.claim for violation in error.violations}
    assert broken == (set() if holds else {Claim.NOISE})


@pytest.mark.parametrize("lost", [(), (4,), (3, 4)])
@pytest.mark.parametrize("gives_all", [False, True])
def test_revealed_layers_do_not_count_as_noise(observe, lost, gives_all):
    def read(parameters, share_holders):
        terms = read_noise_terms(parameters, share_holders)
        everything = tuple(range(parameters.noise_layers))
        reveals = tuple(everything for _ in terms.reveals) if gives_all else None
        return replace(terms, reveals=reveals or terms.reveals)

    session = observe(
        7, threshold=4, corrupt={6}, min_survivors=5, ladder=3, read_noise=read
    )
    session.run(dict.fromkeys(lost, Round.MASKED_INPUT_COLLECTION))
    # Where no client is lost, all of it is to be given away.
    assert claims_broken(session) == ({Claim.NOISE} if gives_all and lost else set())


@pytest.mark.parametrize("noise", [None, 0], ids=["plain", "noise"])
def test_undeclared_colluders_make_the_sum_too_small(observe, noise):
    session = observe(
        5,
        threshold=4,
        corrupt={3, 4},
        colluders=1,
        min_survivors=5,
        ladder=noise,
    )
    session.run()
    assert claims_broken(session) == (
        {Claim.SIZE} if noise is None else {Claim.SIZE, Claim.NOISE}
    )


def test_a_violation_states_party_session_and_derivation(observe):
    session = observe(5, threshold=5, corrupt={4}, min_survivors=5)
    session.run({4: Round.UNMASKING})
    with pytest.raises(ForbiddenKnowledgeError) as caught:
        check(session.facts, charged={identity_of(n): 1 for n in (0, 1, 2)})
    (violation,) = caught.value.violations
    assert violation.who == (identity_of(3),)
    text = str(caught.value)
    names = [identity_of(n) for n in range(5)]
    four, where = ", ".join(names[:4]), f"({session.session_id[:4].hex()})"
    for line in (
        "not so: no client is in more sums than it was charged for",
        f"  {names[3]}: charged 0, in 1 sums",
        f"sum 1: 4 inputs of session 1 of task 'test-task' {where}: {four}",
        (
            f"  b of {names[0]}: 5 shares where 5 are enough "
            f"(answer of {four}; bundle to {names[4]})"
        ),
        "  b of 2 more in the same way",
        f"  s^SK of {names[4]}: corrupt, by its seed",
    ):
        assert line in text.splitlines()


def test_ledger_output_contains_no_secrets(observe):
    session = observe(3, threshold=2, corrupt={0}, min_survivors=3)
    session.run()
    closure = close(session.facts)
    printed = repr(
        [
            closure.secrets,
            session.facts.vectors,
            session.facts.bundles,
            session.facts.answers,
            session.facts.seeds,
        ]
    )
    for known in closure.secrets.values():
        assert repr(known.secret.reveal()) not in printed
    assert "residues" not in printed


def test_facts_about_an_unknown_session_are_rejected():
    with pytest.raises(ValueError, match="never offered"):
        Facts().on_roster(bytes(32), "a", b"")


def test_a_vector_of_a_client_without_u2_is_rejected(observe):
    session = observe(3, threshold=2)
    session.reach(Round.SHARE_KEYS)
    with pytest.raises(ValueError, match="told no usable U2"):
        session.facts.on_vector(session.session_id, identity_of(0), session.inputs[0])


def test_a_corrupt_client_with_a_mismatched_seed_is_rejected(observe):
    session = observe(3, threshold=2)
    session.run()
    session.facts.corrupt(identity_of(1), session.seed(0))
    with pytest.raises(ValueError, match="no seed that was recorded"):
        close(session.facts)


def test_a_corrupt_client_may_send_anything(observe):
    session = observe(3, threshold=2, corrupt={0}, min_survivors=3)
    session.reach(Round.SHARE_KEYS)
    to = (session.session_id, identity_of(0))
    session.facts.on_bundles(*to, b"garbage")
    session.facts.on_vector(*to, session.inputs[0])
    session.facts.on_answer(*to, b"garbage")
    assert check(session.facts, charged={}) == ()


def test_undecodable_messages_are_ignored(observe):
    session = observe(3, threshold=3, corrupt={2}, min_survivors=3)
    session.reach(Round.MASKED_INPUT_COLLECTION)
    to = (session.session_id, identity_of(0))
    for roster in (b"noise", Roster(()).encode()):
        session.facts.on_roster(*to, roster)
    session.facts.on_share_holders(*to, b"too long")
    session.facts.on_survivors(*to, b"too long")
    session.facts.on_answer(*to, b"no survivors were named")
    session.facts.on_survivors(*to, encode_set(range(3), 3))
    session.facts.on_answer(*to, b"not a multiple of a share")
    session.facts.on_bundles(*to, b"no client can open this")
    session.ask(range(3), range(3))
    assert sums_of(session) == [(session.names(range(2)), session.sum_of(range(2)))]


# --- any losses, any colluders ------------------------------------------------------

LOSSES = st.sampled_from([*rounds_of(Profile.HONEST_CURIOUS_SERVER), Round.FINISHED])


@pytest.mark.parametrize("_part", range(3))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), modulus=st.sampled_from([2, MODULUS, 1 << 32, 1_000_003]))
def test_dropouts_and_colluders_reveal_at_most_the_honest_part_of_u3(
    _part, observe, data, modulus
):
    clients = data.draw(st.integers(3, 8), label="clients")
    corrupt = data.draw(
        st.sets(st.integers(0, clients - 1), max_size=clients - 2), label="corrupt"
    )
    threshold = data.draw(
        st.integers(max(2, len(corrupt) + 1), clients), label="threshold"
    )
    needed = max(threshold, len(corrupt) + 2)
    lost = data.draw(
        st.dictionaries(st.integers(0, clients - 1), LOSSES, max_size=4), label="lost"
    )
    session = observe(
        clients,
        threshold=threshold,
        corrupt=corrupt,
        min_clients=needed,
        min_survivors=needed,
        modulus=modulus,
    )
    result = session.run(lost)
    honest = {
        n
        for n in set(range(clients)) - corrupt
        if lost.get(n, Round.FINISHED) > Round.MASKED_INPUT_COLLECTION
    }
    found = sums_of(session)
    assert found in ([], [(session.names(honest), session.sum_of(honest))])
    if result.total is not None:
        assert found
    assert len(check(session.facts, charged=session.charged)) == len(found)


# --- what is signed -------------------------------------------------------------------


def substituted(observe, *victims, clients=7, **parameters):
    """A session in which the server signs adverts of its own in others' names."""
    session = observe(clients, is_signed=True, colluders=1, **parameters)
    session.reach(Round.ADVERTISE_KEYS)
    adverts = [session.clients[number].advert for number in range(clients)]
    for victim in victims:
        state = session.clients[victim]
        keys = [KeyPair.generate(SystemEntropy()).public_bytes for _ in range(2)]
        adverts[victim] = signed_advert(
            replace(adverts[victim], encryption_key=keys[0], masking_key=keys[1]),
            state.member,
            ctx0=state.facts.ctx0,
            suite=session.parameters.suite,
        )
    honest = [number for number in range(clients) if number not in victims]
    for number in honest:
        for output in session.tell(number, Roster(tuple(adverts))):
            session.message(number, output)
    assert all(isinstance(session.clients[n], client_states.Shared) for n in honest)
    return session


def test_a_stolen_identity_key_counts_as_its_client(observe):
    """PROTOCOL §2.1: its owner is a colluder as far as signatures go."""
    session = substituted(observe, 2)
    with pytest.raises(ForbiddenKnowledgeError) as caught:
        session.check()
    assert {found.claim for found in caught.value.violations} == {Claim.AUTHENTIC}
    session.facts.identity_key(identity_of(2))
    assert session.check() == ()
    # The key of one is not the key of another.
    more = substituted(observe, 2, 3)
    more.facts.identity_key(identity_of(2))
    with pytest.raises(ForbiddenKnowledgeError):
        more.check()


def test_stolen_keys_beyond_the_colluders_break_agreement(observe):
    session = observe(7, is_signed=True, colluders=1)
    session.reach(Round.MASKED_INPUT_COLLECTION)
    session.sign(range(5), range(5))  # 2Q > 7 + 1
    session.check()
    session.facts.identity_key(identity_of(0))  # the one that is counted on
    session.check()
    session.facts.identity_key(identity_of(1))
    with pytest.raises(ForbiddenKnowledgeError) as caught:
        session.check()
    assert {found.claim for found in caught.value.violations} == {Claim.AGREED}
