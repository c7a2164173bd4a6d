"""Each check of the client, broken alone, ends the session with its own code."""

from dataclasses import replace

import numpy as np
import pytest
from secagg_testing.cohorts import LENIENT_POLICY, any_noise, one_hot, parameters_for
from secagg_testing.observed_session import ObservedSession

from secagg.crypto.cipher_suite import CipherSuite, seal
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.transcript import decode_set, encode_set
from secagg.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from secagg.protocol import share_bundles
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import (
    AbortRequested,
    Finish,
    InputReady,
    NoisyVector,
    PlainVector,
    Received,
    SessionOffered,
)
from secagg.protocol.messages import (
    BUNDLE_BYTES,
    KINDS,
    Aborted,
    Complaint,
    Delivery,
    Envelope,
    Roster,
    Round,
    Survivors,
)
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.profiles import MaliciousParameters, Trust
from secagg.protocol.refund import ChargeOutcome
from secagg.simulation import OFFERED_AT, identity_of

CLIENTS = 5


def new_session(**overrides):
    fields = {"dimension": 4, "threshold": 3} | overrides
    return ObservedSession(
        parameters_for(CLIENTS, **fields),
        [one_hot(number, 4, 1 << 20) for number in range(CLIENTS)],
        read_noise=any_noise,
    )


def advertised(**overrides):
    session = new_session(**overrides)
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    return session, session.fetch(0).open()


def shared(**overrides):
    session, _ = advertised(**overrides)
    session.play(Round.SHARE_KEYS)
    session.close(Round.SHARE_KEYS)
    return session, session.fetch(0).open()


def received(message):
    return Received(Envelope.of(message))


def refusal(session, number, event):
    """Return the code with which a client leaves; it must send nothing."""
    outputs = session.to_client(number, event)
    state = session.clients[number]
    assert isinstance(state, client.Failed), state
    assert {type(output) for output in outputs} == {Finish}
    return state.code


def with_advert(roster, index, **changes):
    adverts = list(roster.adverts)
    adverts[index] = replace(adverts[index], **changes)
    return Roster(tuple(adverts), roster.graph_seed)


def send_roster(roster):
    session, honest = advertised()
    changed = roster(honest)
    data = changed if isinstance(changed, bytes) else changed.encode()
    return refusal(session, 0, Received(Envelope(Roster, data)))


LOW_ORDER = b"\0" * 32
NOT_CANONICAL = b"\xff" * 32


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda r: Roster(r.adverts[:2]), ErrorCode.ROSTER_TOO_SMALL),
        (
            lambda r: Roster(
                (*r.adverts, replace(r.adverts[-1], identity="zz")), r.graph_seed
            ),
            ErrorCode.ROSTER_TOO_LARGE,
        ),
        (lambda r: Roster(r.adverts[1:]), ErrorCode.SELF_MISSING),
        (
            lambda r: with_advert(r, 0, self_mask_commitment=b"\1" * 32),
            ErrorCode.SELF_MISSING,
        ),
        (
            lambda r: with_advert(r, 0, masking_key=r.adverts[1].masking_key),
            ErrorCode.SELF_MISSING,
        ),
        (
            lambda r: with_advert(r, 1, masking_key=LOW_ORDER),
            ErrorCode.BAD_PUBLIC_KEY,
        ),
        (
            lambda r: with_advert(r, 1, encryption_key=NOT_CANONICAL),
            ErrorCode.BAD_PUBLIC_KEY,
        ),
        # A3: own key reflected under another identity, and a key used for two things
        (
            lambda r: with_advert(r, 1, masking_key=r.adverts[0].masking_key),
            ErrorCode.DUPLICATE_KEY,
        ),
        (
            lambda r: with_advert(r, 1, masking_key=r.adverts[2].encryption_key),
            ErrorCode.DUPLICATE_KEY,
        ),
        (lambda r: Roster.of(r.adverts, b"\7" * 32), ErrorCode.POLICY_VIOLATION),
        (lambda r: Roster(r.adverts[::-1]), ErrorCode.BAD_ENCODING),
        (
            lambda r: Roster((r.adverts[0], *r.adverts[:4])),
            ErrorCode.BAD_ENCODING,
        ),
        (lambda r: r.encode() + b"\0", ErrorCode.BAD_ENCODING),
        (lambda r: r.encode()[:-1], ErrorCode.BAD_ENCODING),
        (lambda _: b"", ErrorCode.BAD_ENCODING),
        (lambda _: b"\xff" * 64, ErrorCode.BAD_ENCODING),
    ],
)
def test_a_bad_roster_is_refused(change, code):
    assert send_roster(change) is code


def test_a_ring_without_a_seed_is_refused():
    session = ObservedSession(
        parameters_for(8, dimension=4, threshold=3, degree=4, min_clients=6),
        [one_hot(number, 4, 1 << 20) for number in range(8)],
    )
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    seedless = Roster.of(session.server_state.cohort.roster.adverts)
    assert refusal(session, 0, received(seedless)) is ErrorCode.POLICY_VIOLATION


def test_a_second_different_roster_is_equivocation():
    session, roster = advertised()
    session.update(0)
    other = with_advert(roster, 1, self_mask_commitment=b"\2" * 32)
    assert refusal(session, 0, received(other)) is ErrorCode.EQUIVOCATION


def delivery(change):
    session, honest = shared()
    return refusal(session, 0, received(change(honest)))


def swap(bundles, i, j):
    parts = [
        bundles[k : k + BUNDLE_BYTES] for k in range(0, len(bundles), BUNDLE_BYTES)
    ]
    parts[i], parts[j] = parts[j], parts[i]
    return b"".join(parts)


def flip(data, position):
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (
            lambda d: Delivery(encode_set({1, 2, 3, 4}, CLIENTS), d.bundles),
            ErrorCode.SELF_MISSING,
        ),
        (
            lambda d: Delivery(encode_set({0, 1}, CLIENTS), d.bundles[:BUNDLE_BYTES]),
            ErrorCode.U2_TOO_SMALL,
        ),
        (
            lambda d: Delivery(d.share_holders, d.bundles[:-1]),
            ErrorCode.BAD_SHARE_CIPHERTEXT,
        ),
        (
            lambda d: Delivery(d.share_holders, d.bundles + d.bundles[:BUNDLE_BYTES]),
            ErrorCode.BAD_SHARE_CIPHERTEXT,
        ),
        (
            lambda d: Delivery(d.share_holders + b"\0", d.bundles),
            ErrorCode.BAD_ENCODING,
        ),
        (lambda d: Delivery(b"\xff", d.bundles), ErrorCode.BAD_ENCODING),
    ],
)
def test_a_bad_delivery_is_refused(change, code):
    assert delivery(change) is code


def test_u2_below_the_smallest_sum_is_refused_although_the_threshold_is_met():
    session, honest = shared(min_survivors=4, min_clients=4)
    few = Delivery(encode_set({0, 1, 2}, CLIENTS), honest.bundles[: 2 * BUNDLE_BYTES])
    assert refusal(session, 0, received(few)) is ErrorCode.U2_TOO_SMALL


def test_u2_with_too_few_holders_of_its_shares_is_rejected_on_a_ring():
    session = ObservedSession(
        parameters_for(10, dimension=4, threshold=3, degree=4, min_clients=6),
        [one_hot(number, 4, 1 << 20) for number in range(10)],
    )
    for which in (Round.ADVERTISE_KEYS, Round.SHARE_KEYS):
        session.play(which)
        session.close(which)
    honest = session.fetch(0).open()
    near = session.clients[0].roster.graph.mask_peers(session.index_of(0))
    kept = set(range(10)) - set(near[2:])  # two of four neighbours are left
    thin = Delivery(encode_set(kept, 10), honest.bundles[: 2 * BUNDLE_BYTES])
    assert refusal(session, 0, received(thin)) is ErrorCode.U2_TOO_SMALL


def messages_of(outputs):
    return [output.envelope.open() for output in outputs]


@pytest.mark.parametrize(
    ("change", "accused"),
    [
        (lambda bundles: flip(bundles, 3), [1]),
        (lambda bundles: flip(bundles, len(bundles) - 1), [4]),
        (lambda bundles: swap(bundles, 0, 1), [1, 2]),  # A13
        (lambda bundles: bundles[:BUNDLE_BYTES] + bytes(len(bundles) - 96), None),
    ],
)
def test_an_invalid_bundle_raises_a_complaint_and_keeps_the_session(change, accused):
    session, honest = shared()
    event = received(Delivery(honest.share_holders, change(honest.bundles)))
    if accused is None:  # fewer than t are of use: the others saw another roster
        assert refusal(session, 0, event) is ErrorCode.BAD_SHARE_CIPHERTEXT
        assert repr(identity_of(2)) in session.clients[0].reason
        return
    outputs = session.to_client(0, event)
    code = ErrorCode.BAD_SHARE_CIPHERTEXT
    assert messages_of(outputs) == [Complaint(code, index) for index in accused]
    assert (
        client_machine.pending_outputs(session.clients[0]) == outputs
    )  # after a restart
    assert isinstance(session.clients[0], client.ReadyForPlainInput)


def test_a_bundle_reflected_to_its_sender_does_not_authenticate():
    session, _ = advertised()
    outputs = session.update(0)
    for number in range(1, CLIENTS):
        session.send(number, session.update(number))
    session.send(0, outputs)
    session.close(Round.SHARE_KEYS)
    honest = session.fetch(0).open()
    # Client 0's own bundle for client 1, sent back to it in place of client 1's.
    own = outputs[0].envelope.open().sealed[:BUNDLE_BYTES]
    reflected = Delivery(honest.share_holders, own + honest.bundles[BUNDLE_BYTES:])
    (complaint,) = messages_of(session.to_client(0, received(reflected)))
    assert complaint == Complaint(ErrorCode.BAD_SHARE_CIPHERTEXT, 1)


def resealed(position, value):
    """Return a delivery whose first bundle has other bytes inside, sealed validly."""
    session, honest = shared()
    state, peer = session.clients[0], session.clients[1]
    key = share_bundles._channel_key(
        peer.channels[0],
        session_id=state.facts.session_id,
        ctx1=state.roster.ctx1,
        sender=1,
        receiver=0,
        suite=CipherSuite.AES_256_CTR,
    )
    data = share_bundles._associated_data(
        state.roster.ctx1, 1, 0, CipherSuite.AES_256_CTR
    )
    inside = bytearray(12 + 68)
    inside[:12] = (1).to_bytes(4, "big") + (0).to_bytes(4, "big") + b"\0\0\0\1"
    inside[position : position + len(value)] = value
    bundle = seal(key, bytes(inside), data)
    return session, received(
        Delivery(honest.share_holders, bundle + honest.bundles[BUNDLE_BYTES:])
    )


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, b"\0\0\0\2"),  # another sender inside than outside
        (4, b"\0\0\0\3"),  # another receiver
        (8, b"\0\0\0\2"),  # another abscissa
        (12, b"\0\1" + b"\0" * 30 + b"\0\1"),  # flag over a limb that is not zero
    ],
)
def test_a_bundle_with_contradicting_content_raises_share_confusion(position, value):
    session, event = resealed(position, value)
    (complaint,) = messages_of(session.to_client(0, event))
    assert complaint == Complaint(ErrorCode.SHARE_CONFUSION, 1)


def test_a_second_different_delivery_raises_equivocation():
    session, honest = shared()
    session.update(0)
    indices = set(decode_set(honest.share_holders, CLIENTS)) - {4}
    other = Delivery(encode_set(indices, CLIENTS), honest.bundles[: 3 * BUNDLE_BYTES])
    assert refusal(session, 0, received(other)) is ErrorCode.EQUIVOCATION


def test_a_delivery_for_a_roster_shown_to_one_client_only_does_not_authenticate():
    """A6: two rosters in one session; the shares bind ctx1, so they do not open."""
    session, roster = advertised()
    other = with_advert(roster, 4, self_mask_commitment=b"\3" * 32)
    session.send(0, session.to_client(0, received(other)))
    for number in range(1, CLIENTS):
        session.send(number, session.update(number))
    session.close(Round.SHARE_KEYS)
    update = Received(session.fetch(0))
    assert refusal(session, 0, update) is ErrorCode.BAD_SHARE_CIPHERTEXT


STRICT = ClientPolicy(
    min_clients=3,
    max_clients=8,
    min_survivors=3,
    max_dropouts=1,
    min_colluders=1,
    max_dimension=100,
    max_modulus_bits=24,
)
ACCEPTABLE = {
    "dimension": 4,
    "threshold": 3,
    "min_clients": 5,
    "min_survivors": 4,
    "max_dropouts": 1,
    "colluders": 1,
    "noise_block": b"noise",
}


@pytest.mark.parametrize(
    "change",
    [
        {"min_clients": 2, "min_survivors": 2, "threshold": 2, "colluders": 0},
        {"max_clients": 9},
        {"min_survivors": 2, "threshold": 2, "colluders": 0},
        {"max_dropouts": 2},
        {"colluders": 0},
        {"threshold": 2},
        {"dimension": 101},
        {"modulus": 1 << 25},
        {"noise_block": b""},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_limit_of_the_policy_is_enforced_and_named_in_the_error(change):
    # R5.0-4
    acceptable = parameters_for(CLIENTS, **ACCEPTABLE)
    STRICT.check(ObservedSession(acceptable, []).descriptor)
    proposal = parameters_for(CLIENTS, **(ACCEPTABLE | change))
    session = ObservedSession(
        proposal, [one_hot(n, 4, 1 << 20) for n in range(CLIENTS)], policy=STRICT
    )
    session.offer(0)
    state = session.clients[0]
    assert isinstance(state, client.Failed)
    assert state.code is ErrorCode.POLICY_VIOLATION
    reason = state.reason
    assert (
        next(iter(change)).split("_")[0] in reason
        or "modulus" in change
        or ("without noise" in reason or "coordinates" in reason)
    )


def test_profiles_and_suites_outside_the_policy_are_refused():
    parameters = parameters_for(CLIENTS, dimension=4, threshold=3)
    offer = ObservedSession(parameters, []).descriptor
    with pytest.raises(RemoteProtocolError) as profile:
        replace(LENIENT_POLICY, profiles=frozenset()).check(offer)
    with pytest.raises(RemoteProtocolError) as suite:
        replace(LENIENT_POLICY, suites=frozenset()).check(offer)
    assert profile.value.code is suite.value.code is ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize(
    "change",
    [
        {"modulus": 1},
        {"modulus": (1 << 62) + 1},
        {"dimension": 0},
        {"threshold": 1},
        {"threshold": 6},
        {"colluders": 3},
        {"degree": 3},
        {"degree": 4},
        {"max_dropouts": 99},
        {"min_survivors": 1},
        {"tail": MaliciousParameters(Trust("example", bytes(32)))},
        {"noise_block": b"x" * 5000},
    ],
    ids=lambda change: "-".join(map(str, change.items()))[:40],
)
def test_impossible_parameters_raise_bad_config(change):
    fields = {"dimension": 4, "threshold": 3} | change
    parameters = parameters_for(CLIENTS, **fields)
    with pytest.raises(RemoteProtocolError) as caught:
        parameters.validate()
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_the_session_id_is_recomputed_so_every_field_changes_it():
    """A19: any difference in configuration gives another session, hence other keys."""
    base = new_session().descriptor
    ids = {base.session_id}
    for change in (
        {"task_id": "other"},
        {"session_number": 2},
        {"server_nonce": b"\1" * 32},
        {"payload_hash": b"\2" * 32},
        {"parameters": replace(base.parameters, modulus=1 << 21)},
        {"parameters": replace(base.parameters, suite=CipherSuite.AES_128_CTR)},
        {"parameters": replace(base.parameters, noise_block=b"n")},
    ):
        ids.add(replace(base, **change).session_id)
    assert len(ids) == 8
    assert SessionDescriptor.decode(base.encode()) == base


def test_two_views_of_u2_give_a_random_total_instead_of_a_partial_sum():
    """A6: masks are bound to ctx2; a client shown another U2 does not cancel."""
    session, full = shared()
    session.takes_every_view = True
    part = Delivery(encode_set({0, 1, 2, 3}, CLIENTS), full.bundles[: 3 * BUNDLE_BYTES])
    session.to_client(0, received(part))
    session.send(0, session.supply_input(0))
    others = range(1, CLIENTS)
    session.play(Round.MASKED_INPUT_COLLECTION, others)
    session.close(Round.MASKED_INPUT_COLLECTION)
    session.play(Round.UNMASKING, others)
    session.close(Round.UNMASKING)
    clean = sum(np.asarray(v, np.int64) for v in session.inputs) % (1 << 20)
    assert (session.total != clean).mean() > 0.5


def ready(noise_block=b""):
    session, update = shared(noise_block=noise_block)
    session.to_client(0, received(update))
    return session


def test_a_task_with_noise_accepts_no_plain_vector():
    # R5.3-1
    """A31: not a flag but a missing row of the table."""
    session = ready(noise_block=b"noise")
    state = session.clients[0]
    assert type(state) is client.ReadyForNoisedInput
    with pytest.raises(LocalProtocolError):
        session.to_client(0, InputReady(PlainVector(session.inputs[0])))
    ctx2 = state.delivered.ctx2
    for block, context, complaint in (
        (b"other noise", ctx2, "another task"),
        (b"noise", bytes(32), "another session"),
    ):
        given = NoisyVector(session.inputs[0], block, context)
        with pytest.raises(LocalProtocolError, match=complaint):
            session.to_client(0, InputReady(given))
    assert session.clients[0] is state


def test_a_second_different_input_is_rejected_and_the_same_one_gives_the_same_bytes():
    # R5.3-2
    session = ready()
    first = session.supply_input(0)
    second = session.supply_input(0)
    assert session.message(0, first[0]) == session.message(0, second[0])
    session.inputs[0] = one_hot(2, 4, 1 << 20)
    with pytest.raises(LocalProtocolError, match="already bound"):
        session.supply_input(0)


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(5, np.uint32),
        np.zeros(4, np.uint64),
        np.zeros(4, np.int32),
        np.zeros((2, 2), np.uint32),
        np.array([0, 0, 0, 1 << 20], np.uint32),
    ],
    ids=["length", "wide", "signed", "shape", "range"],
)
def test_an_invalid_vector_is_a_local_error_and_keeps_the_state(vector):
    session = ready()
    state = session.clients[0]
    with pytest.raises(LocalProtocolError) as caught:
        session.to_client(0, InputReady(PlainVector(vector)))
    assert caught.value.code is ErrorCode.BAD_INPUT
    assert session.clients[0] is state


def test_an_offer_of_another_aggregator_than_the_connected_one_is_rejected():
    # R5.0-1
    """One operator cannot pass on the session of another one, with its clients."""
    session = new_session()
    seed = SecretBytes(b"s" * 32)
    offered = SessionOffered(
        session.descriptor, identity_of(0), "relay", seed, OFFERED_AT
    )
    assert refusal(session, 0, offered) is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize("seconds", [0, -1, 780 + 3601], ids=str)
def test_an_offer_whose_end_contradicts_the_local_clock_is_rejected(seconds):
    """R5.0-2: before a key is made, and before the policy is asked."""
    session = new_session()
    now = session.descriptor.session_end - seconds
    offered = SessionOffered(
        session.descriptor, identity_of(0), "aggregator", SecretBytes(b"s" * 32), now
    )
    assert refusal(session, 0, offered) is ErrorCode.BAD_CLOCK
    assert "clock" in session.clients[0].reason


def test_losses_are_also_counted_from_the_roster():
    """R5.4-4: who shared no keys is lost as well as who sent no input."""
    session = new_session(max_losses=1, max_dropouts=1)
    session.play(Round.ADVERTISE_KEYS)
    session.close(Round.ADVERTISE_KEYS)
    session.play(Round.SHARE_KEYS, range(1, CLIENTS))
    session.close(Round.SHARE_KEYS)
    session.play(Round.MASKED_INPUT_COLLECTION, range(2, CLIENTS))
    without_two = Survivors(encode_set(range(2, CLIENTS), CLIENTS))
    assert refusal(session, 3, received(without_two)) is ErrorCode.TOO_MANY_DROPOUTS
    session.close(Round.MASKED_INPUT_COLLECTION)
    assert session.server_state.outcome.code is ErrorCode.TOO_MANY_DROPOUTS


def test_a_policy_may_name_the_aggregators():
    offer = new_session().descriptor
    for names in ({"aggregator"}, {"another", "aggregator"}):
        replace(LENIENT_POLICY, aggregators=frozenset(names)).check(offer)
    for names in ({"another"}, {}):
        with pytest.raises(RemoteProtocolError, match="'aggregator'") as caught:
            replace(LENIENT_POLICY, aggregators=frozenset(names)).check(offer)
        assert caught.value.code is ErrorCode.POLICY_VIOLATION


def test_the_session_id_depends_on_the_name_of_the_aggregator():
    offer = new_session().descriptor
    relayed = replace(offer, aggregator="relay")
    assert offer.session_id != relayed.session_id


@pytest.mark.parametrize(
    "change", [{"aggregator": ""}, {"aggregator": "a" * 256}, {"task_id": "a\0b"}]
)
def test_an_offer_with_an_invalid_name_is_rejected(change):
    with pytest.raises(RemoteProtocolError) as caught:
        replace(new_session().descriptor, **change).validate()
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_a_second_offer_is_a_local_error():
    session = new_session()
    session.offer(0)
    with pytest.raises(LocalProtocolError):
        session.to_client(
            0,
            SessionOffered(
                session.descriptor,
                identity_of(0),
                "aggregator",
                SecretBytes(b"s" * 32),
                OFFERED_AT,
            ),
        )


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.__name__)
def test_a_message_of_a_client_or_one_too_early_ends_the_session(
    kind,
):
    session = new_session()
    session.offer(0)
    event = Received(Envelope(kind, b""))
    expected = ErrorCode.UNEXPECTED_MESSAGE
    if kind in {Roster, Aborted}:
        expected = ErrorCode.BAD_ENCODING  # they may come now, but not empty
    assert refusal(session, 0, event) is expected


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.__name__)
def test_an_ended_client_ignores_every_event(kind):
    session = new_session()
    session.offer(0)
    session.to_client(0, AbortRequested(ErrorCode.DEADLINE, "too late"))
    ended = session.clients[0]
    assert ended == client.Failed(ErrorCode.DEADLINE, "too late", ChargeOutcome.NEVER)
    assert session.to_client(0, Received(Envelope(kind, b""))) == ()
    assert session.to_client(0, AbortRequested(ErrorCode.INTERNAL, "")) == ()
    assert session.clients[0] is ended
