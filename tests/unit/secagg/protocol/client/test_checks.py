"""Each bound of the client, on both sides of it.

Some of these bounds follow from the rules of the offer, which has been checked long
before; here they are tried with parameters that no offer could have.
"""

from dataclasses import replace

import numpy as np
import pytest
from secagg_testing.cohorts import (
    any_noise,
    one_hot,
    parameters_for,
    signing_parameters_for,
)

from secagg.crypto.transcript import encode_set
from secagg.errors import (
    ErrorCode,
    InternalError,
    LocalProtocolError,
    RemoteProtocolError,
)
from secagg.protocol.agreement import Signers
from secagg.protocol.client import checks
from secagg.protocol.client.states import Masked
from secagg.protocol.enrolment import VerifiedCredentials
from secagg.protocol.events import InputReady, NoisyVector, PlainVector, Received
from secagg.protocol.graphs.neighbours import CompleteGraph, sharing_graph
from secagg.protocol.graphs.ring_safety import holder_bits
from secagg.protocol.membership import check_adverts, check_form
from secagg.protocol.messages import BUNDLE_BYTES, Delivery, Envelope, Round
from secagg.protocol.noise_terms import NoiseTerms
from secagg.protocol.profiles import HonestCuriousParameters, Profile
from secagg.protocol.server import machine as server
from secagg.simulation.driver import InProcessSession

CLIENTS = 6
PARAMETERS = parameters_for(CLIENTS, dimension=4, threshold=3)


def code_of(check, *args, **kwargs):
    """Return the code of a refusal; None where the check passes."""
    try:
        check(*args, **kwargs)
    except RemoteProtocolError as error:
        return error.code
    return None


def test_a_roster_whose_quorums_overlap_only_in_colluders_is_rejected():
    # R5.2-7: 2 Q > n + c
    parameters = signing_parameters_for(CLIENTS, dimension=4, colluders=1)
    assert parameters.quorum == 4
    assert code_of(checks.check_overlap, parameters, 6) is None
    assert code_of(checks.check_overlap, parameters, 7) is ErrorCode.POLICY_VIOLATION
    corrupt = replace(parameters, colluders=2)
    assert code_of(checks.check_overlap, corrupt, 6) is ErrorCode.POLICY_VIOLATION


def ring(graph_bits, clients=12, **overrides):
    """Return a session on a ring whose failure probability is about 2^-4."""
    parameters = parameters_for(
        clients,
        dimension=4,
        threshold=3,
        degree=4,
        colluders=3,
        graph_bits=graph_bits,
        min_clients=clients,
        **overrides,
    )
    return parameters, sharing_graph(parameters, clients, bytes(32))


def test_a_ring_with_a_higher_failure_probability_than_promised_is_refused():
    # R5.2-8
    promised = {bits: code_of(checks.check_ring, *ring(bits)) for bits in range(1, 20)}
    refused = [bits for bits, code in promised.items() if code is not None]
    assert refused == list(range(refused[0], 20))
    assert 1 < refused[0] < 10
    assert {promised[bits] for bits in refused} == {ErrorCode.POLICY_VIOLATION}


def test_the_complete_graph_has_no_failure_probability():
    assert code_of(checks.check_ring, PARAMETERS, CompleteGraph(CLIENTS)) is None


@pytest.mark.parametrize(("threshold", "min_survivors"), [(3, 4), (4, 3)])
def test_u2_must_suffice_to_reconstruct_and_for_the_smallest_sum(
    threshold, min_survivors
):
    # R5.3-5
    parameters = replace(PARAMETERS, threshold=threshold, min_survivors=min_survivors)

    def code(count):
        return code_of(
            checks.check_share_holders,
            parameters,
            roster_size=CLIENTS,
            index=0,
            bitmap=encode_set(range(count), CLIENTS),
        )

    assert code(4) is None
    assert code(3) is ErrorCode.U2_TOO_SMALL


@pytest.mark.parametrize(("threshold", "min_survivors"), [(3, 4), (4, 3)])
def test_u3_must_suffice_to_reconstruct_and_for_the_smallest_sum(
    threshold, min_survivors
):
    # R5.4-3
    parameters = replace(
        PARAMETERS,
        threshold=threshold,
        min_survivors=min_survivors,
        max_losses=CLIENTS,
        max_dropouts=CLIENTS,
    )
    assert u3_code(parameters, 4) is None
    assert u3_code(parameters, 3) is ErrorCode.U3_TOO_SMALL


def u3_code(parameters, count, share_holders=CLIENTS):
    return code_of(
        checks.check_survivors,
        parameters,
        roster_size=CLIENTS,
        index=0,
        share_holders=frozenset(range(share_holders)),
        bitmap=encode_set(range(count), CLIENTS),
    )


def test_losses_are_counted_from_the_roster_and_from_u2():
    # R5.4-4
    since_joining = replace(PARAMETERS, max_losses=2, max_dropouts=0)
    assert u3_code(since_joining, 4, share_holders=4) is None
    assert u3_code(since_joining, 3, share_holders=3) is ErrorCode.TOO_MANY_DROPOUTS
    since_sharing = replace(PARAMETERS, max_losses=3, max_dropouts=1)
    assert u3_code(since_sharing, 4, share_holders=5) is None
    assert u3_code(since_sharing, 4, share_holders=6) is ErrorCode.TOO_MANY_DROPOUTS


def test_the_noise_of_the_survivors_must_suffice():
    # R3.5-1
    noise = NoiseTerms(b"c" * 32, tolerated_losses=2)
    assert (
        code_of(checks.check_noise_suffices, noise, share_holders=6, survivors=4)
        is None
    )
    assert (
        code_of(checks.check_noise_suffices, noise, share_holders=6, survivors=3)
        is ErrorCode.TOO_MANY_DROPOUTS
    )


def test_a_client_needs_enough_holders_to_reconstruct_its_secrets():
    # R5.3-10: U2 is large enough, but not around this client
    parameters, graph = ring(1)
    own, far = 0, [i for i in range(12) if i not in graph.holders(0)]
    assert own in far
    near = graph.holders(0)

    def code(neighbours):
        share_holders = frozenset([*far, *near[:neighbours]])
        return code_of(
            checks.check_delivery,
            parameters,
            roster_size=12,
            graph=graph,
            index=own,
            delivery=Delivery(
                encode_set(share_holders, 12), bytes(BUNDLE_BYTES * neighbours)
            ),
        )

    assert code(3) is None
    assert code(2) is ErrorCode.U2_TOO_SMALL


def roster_of(parameters):
    """Return what client 0 was sent, in both forms, and its state."""
    clients = parameters.max_clients
    session = InProcessSession(
        parameters, [one_hot(n, 4, 1 << 20) for n in range(clients)]
    )
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    shown = session.fetch(0).data
    whole = Envelope.of(session.server_state.cohort.roster).data
    return shown, whole, session.clients[0]


def roster_code(parameters, data, state):
    return code_of(
        checks.check_roster,
        parameters,
        data,
        state.advert,
        ctx0=state.facts.ctx0,
        member=state.member,
    )


def test_the_failure_bounds_are_checked_for_both_forms_of_a_roster():
    parameters, _ = ring(1, min_survivors=5)
    shown, whole, state = roster_of(parameters)
    assert shown != whole
    greedy = replace(parameters, tail=HonestCuriousParameters(128))
    for data in (shown, whole):
        assert roster_code(parameters, data, state) is None
        assert roster_code(greedy, data, state) is ErrorCode.POLICY_VIOLATION


def test_the_overlap_of_quorums_is_checked_at_every_signed_roster():
    parameters = signing_parameters_for(CLIENTS, dimension=4, colluders=1)
    _, whole, state = roster_of(parameters)
    corrupt = replace(parameters, colluders=2)
    assert roster_code(parameters, whole, state) is None
    assert roster_code(corrupt, whole, state) is ErrorCode.POLICY_VIOLATION


def test_a_failure_probability_equal_to_the_limit_is_accepted(monkeypatch):
    parameters, graph = ring(1)
    odds = holder_bits(graph, colluders=3, threshold=3)
    monkeypatch.setattr(checks, "client_demand", lambda _: odds)
    assert code_of(checks.check_ring, parameters, graph) is None


@pytest.mark.parametrize("profile", list(Profile))
def test_an_advert_has_both_credential_and_signature_or_neither(profile):
    # R2.1-1
    _, _, state = roster_of(signing_parameters_for(CLIENTS, dimension=4))
    signed = state.advert
    bare = replace(signed, credential=None, signature=b"")
    halves = (replace(signed, credential=None), replace(signed, signature=b""))
    if profile.has_identities:
        right, wrong, code = signed, bare, ErrorCode.BAD_CREDENTIAL
    else:
        right, wrong, code = bare, signed, ErrorCode.BAD_SIGNATURE
    assert code_of(check_form, right, profile) is None
    for advert in (wrong, *halves):
        assert code_of(check_form, advert, profile) is code


def test_a_client_without_a_credential_is_neither_signer_nor_verified():
    _, _, state = roster_of(signing_parameters_for(CLIENTS, dimension=4))
    bare = replace(state.advert, credential=None)
    with pytest.raises(InternalError):
        Signers.of([bare])
    assert (
        code_of(
            check_adverts,
            [bare],
            state.member.rules,
            ctx0=state.facts.ctx0,
            suite=state.facts.parameters.suite,
            verified=None,
        )
        is ErrorCode.BAD_CREDENTIAL
    )


@pytest.mark.parametrize(
    "residues",
    [
        np.zeros(5, np.uint32),
        np.zeros((4, 1), np.uint32),
        np.zeros(4, np.uint64),
        np.full(4, 1 << 20, np.uint32),
    ],
    ids=["longer", "another shape", "another word", "not below the modulus"],
)
@pytest.mark.parametrize("noise_block", [b"", b"block"])
def test_an_invalid_vector_is_not_bound(residues, noise_block):
    def vector(of):
        if not noise_block:
            return PlainVector(of)
        ctx2 = session.clients[0].delivered.ctx2
        return NoisyVector(of, noise_block, ctx2)

    fitting = np.full(4, (1 << 20) - 1, np.uint32)
    session = InProcessSession(
        replace(PARAMETERS, noise_block=noise_block),
        [fitting] * CLIENTS,
        read_noise=any_noise,
    )
    for which in (Round.ADVERTISE_KEYS, Round.SHARE_KEYS):
        session.play(which)
        session.close(which)
    session.to_client(0, Received(session.fetch(0)))
    before = session.clients[0]
    with pytest.raises(LocalProtocolError) as caught:
        session.to_client(0, InputReady(vector(residues)))
    assert caught.value.code is ErrorCode.BAD_INPUT
    assert session.clients[0] is before
    session.to_client(0, InputReady(vector(fitting)))
    assert isinstance(session.clients[0], Masked)


def test_credentials_verified_by_the_server_are_cached_for_the_next_session():
    # R2.1-8: the caller's cache is filled, also when it is empty at first
    parameters = signing_parameters_for(CLIENTS, dimension=4)
    session = InProcessSession(
        parameters, [one_hot(n, 4, 1 << 20) for n in range(CLIENTS)]
    )
    verified = VerifiedCredentials()
    session.server_state = server.start(
        session.descriptor, packed_bytes=session.packed_bytes, verified=verified
    )
    session.play(Round.ADVERTISE_KEYS)
    assert len(verified) == CLIENTS
