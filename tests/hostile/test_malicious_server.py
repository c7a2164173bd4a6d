"""Profile malicious-server: every message of the server ends in a named code.

Each lie is told to every honest client.  All of them leave with the code that PROTOCOL
gives it and send nothing more, and the ledger (conftest) finds no client's secret at
the server and its colluder, whose keys and credential it uses.  Attacks are numbered
as in docs/attacks.md.
"""

from dataclasses import replace

import pytest
from secagg_testing.cohorts import one_hot, signing_parameters_for
from secagg_testing.observed_session import ObservedSession

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.key_agreement import KeyPair
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.transcript import decode_set, encode_set
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol import agreement
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.client.states import Answered, Masked, Signed
from secagg.protocol.enrolment import Credential
from secagg.protocol.events import (
    Finish,
    InputBound,
    InputReady,
    Received,
    Send,
    SessionOffered,
    input_digest,
)
from secagg.protocol.membership import Member, signed_advert
from secagg.protocol.messages import (
    BUNDLE_BYTES,
    Aborted,
    Bundles,
    Complaint,
    Consistency,
    Delivery,
    Envelope,
    Fate,
    Quorum,
    Released,
    Roster,
    RosterFrame,
    RosterProof,
    Round,
    Survivors,
    Upload,
)
from secagg.protocol.profiles import MaliciousParameters
from secagg.protocol.refund import ChargeOutcome
from secagg.protocol.rounds import rounds_of
from secagg.protocol.server import machine as server
from secagg.simulation import OFFERED_AT, driver, identity_of
from secagg.simulation.driver import accepting

CLIENTS, COLLUDER = 6, 5
HONEST = range(COLLUDER)
MODULUS = 1 << 20
ISSUER = driver._issuer()


def session_of(number=1, **overrides):
    """Return a session in which six clients can lose two, and one is corrupt."""
    parameters = signing_parameters_for(
        CLIENTS, dimension=CLIENTS, colluders=1, **overrides
    )
    return ObservedSession(
        parameters,
        [one_hot(n, CLIENTS, MODULUS) for n in range(CLIENTS)],
        session_number=number,
        corrupt=frozenset({COLLUDER}),
    )


def played(last, **overrides):
    """Return a session after a round was closed."""
    session = session_of(**overrides)
    for which in rounds_of(session.parameters.profile):
        session.play(which)
        session.close(which)
        if which is last:
            return session
    raise AssertionError("no such round")


def send_to_client(session, number, message):
    """Deliver a message to a client; return its messages."""
    outputs = session.to_client(number, Received(Envelope.of(message)))
    return [output.envelope.open() for output in outputs if isinstance(output, Send)]


def codes(session, lie, readers=HONEST):
    """Send clients a false message; return the codes with which they leave."""
    found = set()
    is_event = isinstance(lie, Received | SessionOffered)
    event = lie if is_event else Received(Envelope.of(lie))
    for number in readers:
        outputs = session.to_client(number, event)
        state = session.clients[number]
        assert isinstance(state, client.Failed), state
        assert {type(output) for output in outputs} == {Finish}
        found.add(state.code)
    return found


# --- rosters ------------------------------------------------------------------------


def advertised():
    session = played(Round.ADVERTISE_KEYS)
    return session, session.fetch(0).open()


def keys(label):
    """Return a public key whose private key the adversary has."""
    entropy = SeededEntropy(SecretBytes(bytes(32)), label)
    return KeyPair.generate(entropy).public_bytes


def identity(label):
    """Return an identity key that the adversary has."""
    return driver._simulated_key(label)


def resigned(session, advert, *, key=None, credential=None, **changes):
    """Return an advert of the colluder's, changed and signed again."""
    own = session.membership(COLLUDER)
    trust = session.parameters.tail.trust
    member = Member(
        key or own.key,
        credential or own.credential,
        own.rules(trust, session.descriptor.session_end),
    )
    bare = replace(advert, signature=b"", **changes)
    ctx0 = session.clients[0].facts.ctx0
    return signed_advert(bare, member, ctx0=ctx0, suite=session.parameters.suite)


def with_advert(roster, index, advert):
    adverts = list(roster.adverts)
    adverts[index] = advert
    return Roster(tuple(adverts), roster.graph_seed)


VICTIM = 2
OTHERS = [n for n in HONEST if n != VICTIM]


@pytest.mark.parametrize(
    "changes",
    [
        {"masking_key": keys(b"mask")},
        {"encryption_key": keys(b"channel")},
        {"self_mask_commitment": bytes(32)},
        {"signature": bytes(64)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_substituted_keys_are_not_signed_by_their_client(changes):
    """A1: the victim does not find itself, the others find no signature of it."""
    session, roster = advertised()
    lie = with_advert(roster, VICTIM, replace(roster.adverts[VICTIM], **changes))
    assert codes(session, lie, [VICTIM]) == {ErrorCode.SELF_MISSING}
    assert codes(session, lie, OTHERS) == {ErrorCode.BAD_SIGNATURE}
    assert identity_of(VICTIM) in session.clients[0].reason


def test_keys_substituted_under_the_colluders_credential_are_rejected():
    """A1: what the colluder signs does not stand for any other client."""
    session, roster = advertised()
    stolen = resigned(session, roster.adverts[VICTIM], masking_key=keys(b"mask"))
    lie = with_advert(roster, VICTIM, stolen)
    lie = Roster(lie.adverts[:COLLUDER])  # its identity key stands there but once
    assert codes(session, lie, OTHERS) == {ErrorCode.BAD_CREDENTIAL}


def test_a_credential_of_another_client_requires_its_signing_key():
    session, roster = advertised()
    victim = roster.adverts[VICTIM]
    stolen = resigned(
        session, victim, credential=victim.credential, masking_key=keys(b"mask")
    )
    lie = with_advert(roster, VICTIM, stolen)
    assert codes(session, lie, OTHERS) == {ErrorCode.BAD_SIGNATURE}


def test_an_advert_of_another_session_is_not_signed_for_this_one():
    """A2: its keys may be known by now."""
    session, roster = advertised()
    earlier = session_of(number=2)
    earlier.play(Round.ADVERTISE_KEYS)
    replayed = earlier.server_state.adverts[identity_of(VICTIM)]
    lie = with_advert(roster, VICTIM, replayed)
    assert codes(session, lie, OTHERS) == {ErrorCode.BAD_SIGNATURE}


def enrolled_as(name, key, **changes):
    """Return a credential that the issuer has been made to sign."""
    credential = Credential(
        name=name,
        identity_key=key.public_bytes,
        not_before=0,
        not_after=OFFERED_AT * 2,
        serial=99,
    )
    return replace(credential, **changes).signed_by(ISSUER, driver.TRUST_DOMAIN)


def copies():
    """Return, by name, how the colluder makes its own advert of the keys of others."""

    def reflected(session, own, victim):
        return resigned(session, own, masking_key=victim.masking_key)

    def crossed(session, own, victim):
        return resigned(session, own, encryption_key=victim.masking_key)

    def twice(session, own, _):
        return resigned(session, own, masking_key=own.encryption_key)

    def identity_as_mask(session, own, _):
        # Half of all identity keys are canonical keys of X25519, too.
        found = map(identity, (f"key {count}" for count in range(99)))
        key = next(k for k in found if k.public_bytes[31] < 128)
        credential = enrolled_as(own.identity, key)
        return resigned(
            session,
            own,
            key=key,
            credential=credential,
            masking_key=key.public_bytes,
        )

    def one_identity_two_names(session, own, victim):
        key = session.membership(VICTIM).key  # the victim has enrolled twice
        credential = enrolled_as(own.identity, key)
        assert credential.identity_key == victim.credential.identity_key
        return resigned(session, own, key=key, credential=credential)

    return [reflected, crossed, twice, identity_as_mask, one_identity_two_names]


@pytest.mark.parametrize("copy", copies(), ids=lambda copy: copy.__name__)
def test_a_copied_key_is_rejected_even_if_it_is_signed(copy):
    """A3: of all kinds of keys, identity keys included."""
    session, roster = advertised()
    own, victim = roster.adverts[COLLUDER], roster.adverts[VICTIM]
    lie = with_advert(roster, COLLUDER, copy(session, own, victim))
    assert codes(session, lie) == {ErrorCode.DUPLICATE_KEY}


def test_a_client_that_is_not_in_a_valid_roster_leaves():
    """A3."""
    session, roster = advertised()
    lie = Roster(tuple(a for n, a in enumerate(roster.adverts) if n != VICTIM))
    assert codes(session, lie, [VICTIM]) == {ErrorCode.SELF_MISSING}


def test_invented_clients_are_rejected_for_lack_of_an_issuer():
    """A4: the server has a key for each, and no issuer that clients know."""
    session, roster = advertised()
    key, issuer = identity("a new client"), identity("another issuer")
    name = roster.adverts[COLLUDER].identity
    credential = enrolled_as(name, key).signed_by(issuer, driver.TRUST_DOMAIN)
    invented = resigned(
        session, roster.adverts[COLLUDER], key=key, credential=credential
    )
    lie = with_advert(roster, COLLUDER, invented)
    assert codes(session, lie) == {ErrorCode.BAD_CREDENTIAL}
    assert repr(name) in session.clients[0].reason


SESSION_END = session_of().descriptor.session_end
COLLUDERS_KEY = session_of().membership(COLLUDER).key
COLLUDERS_NAME = identity_of(COLLUDER)


@pytest.mark.parametrize(
    "credential",
    [
        enrolled_as(COLLUDERS_NAME, COLLUDERS_KEY, not_after=SESSION_END - 1),
        enrolled_as(COLLUDERS_NAME, COLLUDERS_KEY, not_before=SESSION_END + 1),
        enrolled_as(identity_of(9), COLLUDERS_KEY),
        enrolled_as(COLLUDERS_NAME, COLLUDERS_KEY).signed_by(ISSUER, "elsewhere"),
        replace(enrolled_as(COLLUDERS_NAME, COLLUDERS_KEY), serial=98),
        replace(enrolled_as(COLLUDERS_NAME, COLLUDERS_KEY), not_after=2**63),
        replace(
            enrolled_as(COLLUDERS_NAME, COLLUDERS_KEY),
            identity_key=(b"\1" + bytes(31)),
        ),
    ],
    ids=[
        "expired at the end of the session",
        "not yet valid at the end of the session",
        "of another name",
        "of another trust domain",
        "with another serial",
        "with a longer life",
        "of a key of low order",
    ],
)
def test_invalid_credentials_are_rejected_by_clients_and_the_server(credential):
    """A7: to every client, and to the server before it counts the advert."""
    session, roster = advertised()
    advert = resigned(session, roster.adverts[COLLUDER], credential=credential)
    lie = with_advert(roster, COLLUDER, advert)
    assert codes(session, lie) == {ErrorCode.BAD_CREDENTIAL}
    assert repr(COLLUDERS_NAME) in session.clients[0].reason
    fresh = session_of()
    assert refused(fresh, COLLUDER, advert) is ErrorCode.BAD_CREDENTIAL


def test_a_credential_valid_only_at_the_session_end_is_accepted():
    session, roster = advertised()
    credential = enrolled_as(
        COLLUDERS_NAME, COLLUDERS_KEY, not_before=SESSION_END, not_after=SESSION_END
    )
    advert = resigned(session, roster.adverts[COLLUDER], credential=credential)
    changed = with_advert(roster, COLLUDER, advert)
    assert all(send_to_client(session, number, changed) for number in HONEST)


@pytest.mark.parametrize("kind", ["credential", "signature", "both"])
def test_an_advert_of_another_profile_is_rejected(kind):
    """A7: without a name that the issuer vouches for, no client has signed anything."""
    session, roster = advertised()
    bare = {"credential": {"credential": None}, "signature": {"signature": b""}}
    changes = bare.get(kind, {"credential": None, "signature": b""})
    advert = replace(roster.adverts[COLLUDER], **changes)
    assert codes(session, with_advert(roster, COLLUDER, advert)) == {
        ErrorCode.BAD_CREDENTIAL
    }
    assert refused(session_of(), COLLUDER, advert) is ErrorCode.BAD_CREDENTIAL


def test_a_neighbourhood_is_not_accepted_as_a_signed_roster():
    """A20: a quorum counts names, so all of them must have been seen."""
    session, _ = advertised()
    ring = Roster.of(session.server_state.cohort.roster.adverts, bytes(32))
    names = [advert.identity for advert in ring.adverts]
    for number in HONEST:
        reader = names.index(identity_of(number))
        shown = replace(RosterFrame.decode(ring.encode()), reader=reader)
        lie = Received(Envelope(Roster, shown.encode()))
        assert codes(session, lie, [number]) == {ErrorCode.POLICY_VIOLATION}


# --- offers -------------------------------------------------------------------------


class WithRevocations(ObservedSession):
    """Its clients know the serials that were revoked."""

    revoked = frozenset()

    def membership(self, number):
        return replace(super().membership(number), revoked=self.revoked)


def revoking(serials):
    plain = session_of()
    session = WithRevocations(plain.parameters, plain.inputs, corrupt=plain.corrupt)
    session.revoked = frozenset(serials)
    return session


def test_a_revoked_serial_is_rejected_by_all_clients_that_have_the_list():
    """A7: the server has counted the advert as if there were no list."""
    session = revoking({COLLUDER + 1})
    for number in HONEST:
        session.send(number, session.offer(number))
    (advert,) = played(Round.ADVERTISE_KEYS).fetch(0).open().adverts[COLLUDER:]
    session.to_server(Received(Envelope.of(advert), COLLUDERS_NAME))
    session.close(Round.ADVERTISE_KEYS)
    lie = Received(session.fetch(0))
    assert codes(session, lie) == {ErrorCode.BAD_CREDENTIAL}


def test_a_revoked_client_does_not_even_advertise():
    session = revoking({VICTIM + 1})
    outputs = session.offer(VICTIM)
    assert {type(output) for output in outputs} == {Finish}
    assert session.clients[VICTIM].code is ErrorCode.BAD_CREDENTIAL


def offered(trust):
    """Return the codes with which clients refuse an offer of this trust."""
    session = session_of(tail=MaliciousParameters(trust))
    for number in HONEST:
        assert {type(output) for output in session.offer(number)} == {Finish}
    return {session.clients[number].code for number in HONEST}


def test_another_issuer_or_trust_domain_is_refused_before_a_key_is_made():
    trust = driver.simulated_trust()
    for change in (
        {"enrolment_key": identity("another issuer").public_bytes},
        {"trust_domain": "elsewhere"},
    ):
        assert offered(replace(trust, **change)) == {ErrorCode.POLICY_VIOLATION}


def test_a_client_without_a_credential_rejects_the_offer():
    session = session_of()
    event = SessionOffered(
        session.descriptor,
        identity_of(0),
        session.aggregator,
        SecretBytes(session.seed_of(0)),
        OFFERED_AT,
    )
    assert codes(session, event, [0]) == {ErrorCode.POLICY_VIOLATION}


# --- sets that differ by reader -----------------------------------------------------


def test_bundles_of_two_rosters_do_not_open():
    """A11: three clients are shown a roster without the colluder."""
    session, roster = advertised()
    small = Roster(roster.adverts[:COLLUDER])
    bundles = session.server_state.bundles  # of a server that checks nothing
    for number in session.clients:
        (said,) = send_to_client(session, number, small if number < 3 else roster)
        sealed = said.sealed.ljust(COLLUDER * BUNDLE_BYTES, b"\0")
        bundles[number] = replace(said, sealed=sealed)
    session.close(Round.SHARE_KEYS)
    for number in HONEST:
        told = session.fetch(number).open()
        if number < 3:
            shares = told.bundles[: (COLLUDER - 1) * BUNDLE_BYTES]
            told = Delivery(encode_set(HONEST, COLLUDER), shares)
        assert codes(session, told, [number]) == {ErrorCode.BAD_SHARE_CIPHERTEXT}


def delivered(without=None):
    """Return a session in which some were shown a U2 without one of the others.

    Args:
        without: By client, who is missing from the U2 that it is shown.
    """
    session = played(Round.SHARE_KEYS)
    session.takes_every_view = True
    for number in session.clients:
        told = session.fetch(number).open()
        if number in (without or {}):
            dealers = [n for n in session.clients if n != number]
            place = dealers.index(without[number]) * BUNDLE_BYTES
            shown = set(session.clients) - {without[number]}
            told = Delivery(
                encode_set(shown, CLIENTS),
                told.bundles[:place] + told.bundles[place + BUNDLE_BYTES :],
            )
        session.to_client(number, Received(Envelope.of(told)))
        session.send(number, session.supply_input(number))
        assert isinstance(session.clients[number], Masked)
    return session


ALL_CLIENTS = encode_set(range(CLIENTS), CLIENTS)


def signed(session, views, numbers=range(CLIENTS)):
    """Show clients their sets; return what they sign."""
    return {
        number: send_to_client(session, number, Survivors(views(number)))[0].signature
        for number in numbers
    }


def quorum(signatures):
    return Quorum(tuple(sorted(signatures.items())))


def proven(session, signatures, bitmap):
    """Return the same, with what the others in a set have signed of the roster."""
    others = sorted(set(decode_set(bitmap, CLIENTS)) - set(signatures))
    known = session.server_state.roster_proofs
    return replace(quorum(signatures), roster_proofs=tuple(known[n] for n in others))


def test_swapped_bundles_name_their_dealers_and_keep_the_session():
    """A21: each opens for one pair, in one direction."""
    session = played(Round.SHARE_KEYS)
    for number in HONEST:
        told = session.fetch(number).open()
        first, second = (
            told.bundles[i * BUNDLE_BYTES :][:BUNDLE_BYTES] for i in (0, 1)
        )
        rest = told.bundles[2 * BUNDLE_BYTES :]
        said = send_to_client(
            session, number, Delivery(told.share_holders, second + first + rest)
        )
        code = ErrorCode.BAD_SHARE_CIPHERTEXT
        dealers = [n for n in session.clients if n != number][:2]
        assert said == [Complaint(code, dealer) for dealer in dealers]


# All but client 0 see a U2 without client 1, which is then called lost.
OTHER_U2 = dict.fromkeys(range(2, CLIENTS), 1)
WITHOUT_1 = encode_set({0, 2, 3, 4, 5}, CLIENTS)


def test_signatures_over_two_sets_u2_do_not_combine():
    """A11: a client that saw another U2 has signed another context."""
    session = delivered(OTHER_U2)
    signatures = signed(session, lambda _: WITHOUT_1, [0, 2, 3, 4, 5])
    before = dict(session.clients)
    mixed = quorum(signatures)
    assert codes(session, mixed, [0, 2, 3, 4]) == {ErrorCode.BAD_SIGNATURE}
    session.clients = before
    del signatures[0]
    shown = proven(session, signatures, WITHOUT_1)
    assert all(send_to_client(session, number, shown) for number in (2, 3, 4))
    # One set is answered for.  The masks of client 0 do not cancel against those of the
    # others: the sum is of no use, and the ledger finds that it tells nothing.
    assert codes(session, quorum(signatures), [0]) == {ErrorCode.BAD_SIGNATURE}


def test_the_server_does_not_count_a_signature_for_other_sets():
    session = delivered()
    session.close(Round.MASKED_INPUT_COLLECTION)
    (said,) = send_to_client(session, 0, Survivors(WITHOUT_1))
    assert refused(session, 0, said) is ErrorCode.BAD_SIGNATURE
    session.play(Round.CONSISTENCY_CHECK, range(1, CLIENTS))
    session.close(Round.CONSISTENCY_CHECK)
    session.play(Round.UNMASKING, range(1, CLIENTS))
    session.close(Round.UNMASKING)
    assert session.total.tolist() == honest_sum(range(CLIENTS))
    assert codes(session, Released(Fate.INCLUDED, bytes(32), 1, CLIENTS, 0), [0]) == {
        ErrorCode.U3_INVALID
    }


HALVES = (encode_set({0, 1, 2, 3, 5}, CLIENTS), encode_set({0, 1, 2, 4, 5}, CLIENTS))


def halved(number):
    """Return which of two sets a client is shown: its own place is in it."""
    return HALVES[number in {1, 4}]


@pytest.mark.parametrize("silent", [True, False], ids=["two and two", "three and two"])
def test_two_sets_u3_never_both_reach_a_quorum(silent):
    """A12: with the colluder's signature on either."""
    session = delivered()
    shown = [n for n in HONEST if not (silent and n == 2)]
    signatures = signed(session, halved, shown)
    answered = []
    for half in HALVES:
        own = {n: s for n, s in signatures.items() if halved(n) == half}
        own[COLLUDER] = forged(session, half)
        readers = [n for n in shown if halved(n) == half]
        before = dict(session.clients)
        mixed = quorum(signatures | {COLLUDER: own[COLLUDER]})
        mixed_codes = codes(session, mixed, readers)
        assert mixed_codes <= {ErrorCode.BAD_SIGNATURE, ErrorCode.U3_INVALID}
        session.clients = before
        if len(own) < session.parameters.quorum:
            assert codes(session, quorum(own), readers) == {ErrorCode.NO_QUORUM}
        else:
            full = proven(session, own, half)
            assert all(send_to_client(session, number, full) for number in readers)
            answered.append(half)
    assert answered == ([] if silent else [HALVES[0]])


def forged(session, bitmap):
    """Return the colluder's signature of a set that it was not shown."""
    state = session.clients[COLLUDER]
    step = client_machine.step(
        state, Received(Envelope.of(Survivors(bitmap))), policy=ANY
    )
    return step.outputs[0].envelope.open().signature


ANY = accepting(session_of().parameters)


# --- asked twice --------------------------------------------------------------------


def agreed(bitmap=ALL_CLIENTS):
    """Return a session in which all clients have signed, and what they have."""
    session = delivered()
    return session, signed(session, lambda _: bitmap)


def restarted(session, number):
    """Rebuild a client from its journal, as after kill -9."""
    state = client_machine.start()
    for event in session.client_journals[number]:
        record = (
            InputBound(input_digest(event.vector))
            if isinstance(event, InputReady)
            else event
        )
        state = client_machine.step(state, record, policy=ANY).state
    return state


SECOND = [
    HALVES[0],
    HALVES[1],
    encode_set({0, 1}, CLIENTS),  # too small: compared before it is checked
    b"",
    ALL_CLIENTS + b"\0",
]


@pytest.mark.parametrize("dies", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("bitmap", SECOND, ids=lambda bitmap: bitmap.hex() or "nothing")
def test_a_second_survivor_set_raises_equivocation_before_it_is_decoded(dies, bitmap):
    """A13: also after the answer."""
    for answered in (False, True):
        session, signatures = agreed()
        for number in HONEST if answered else ():
            assert send_to_client(session, number, quorum(signatures))
        if dies:
            session.clients = {n: restarted(session, n) for n in session.clients}
        expected = Answered if answered else Signed
        assert all(isinstance(session.clients[n], expected) for n in HONEST)
        assert codes(session, Survivors(bitmap)) == {ErrorCode.EQUIVOCATION}
        assert {session.clients[n].charge for n in HONEST} == {ChargeOutcome.KEPT}


def test_a_repeated_quorum_gets_the_same_answer():
    session, signatures = agreed()
    first = {}
    for number in HONEST:
        assert send_to_client(session, number, Survivors(ALL_CLIENTS)) == []
        first[number] = send_to_client(session, number, quorum(signatures))
        assert send_to_client(session, number, quorum(signatures)) == []
    for number in HONEST:
        pending = client_machine.pending_outputs(restarted(session, number))
        assert [output.envelope.open() for output in pending] == first[number]
    fewer = dict(list(signatures.items())[1:])
    assert codes(session, quorum(fewer)) == {ErrorCode.EQUIVOCATION}


def test_what_a_client_has_signed_is_the_same_after_a_restart():
    session, signatures = agreed()
    for number in HONEST:
        (output,) = client_machine.pending_outputs(restarted(session, number))
        assert output.envelope.open() == Consistency(signatures[number])


# --- U3 and its quorum --------------------------------------------------------------


@pytest.mark.parametrize(
    ("survivors", "code"),
    [
        ({0, 1, 2}, ErrorCode.U3_TOO_SMALL),
        (set(), ErrorCode.U3_INVALID),
        ({0, 1, 2, 3}, ErrorCode.TOO_MANY_DROPOUTS),
    ],
)
def test_a_client_does_not_sign_a_set_that_is_too_small(survivors, code):
    """A15: nor one of enough clients, when too many are declared lost."""
    session = session_of(min_survivors=4, max_dropouts=1)
    for which in (Round.ADVERTISE_KEYS, Round.SHARE_KEYS):
        session.play(which)
        session.close(which)
    session.play(Round.MASKED_INPUT_COLLECTION)
    shown = Survivors(encode_set(survivors, CLIENTS))
    readers = survivors or HONEST
    assert codes(session, shown, readers) == {code}
    outside = [n for n in HONEST if n not in readers]
    assert codes(session, shown, outside) <= {ErrorCode.U3_INVALID}


def test_a_client_of_another_u2_is_in_no_u3():
    """A14."""
    session = delivered(dict.fromkeys(HONEST, COLLUDER))
    assert codes(session, Survivors(ALL_CLIENTS)) == {ErrorCode.U3_INVALID}


def by_another(signatures):
    return signatures | {1: signatures[0]}


def of_nothing(signatures):
    return signatures | {4: bytes(64)}


def too_few(signatures):
    return dict(list(signatures.items())[:3])


def too_few_and_wrong(signatures):
    return dict.fromkeys(too_few(signatures), bytes(64))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (by_another, ErrorCode.BAD_SIGNATURE),
        (of_nothing, ErrorCode.BAD_SIGNATURE),
        (too_few, ErrorCode.NO_QUORUM),
        # Counted before anything is verified.
        (too_few_and_wrong, ErrorCode.NO_QUORUM),
        (lambda _: {}, ErrorCode.NO_QUORUM),
    ],
)
def test_an_invalid_quorum_is_refused(change, code):
    session, signatures = agreed()
    assert codes(session, quorum(change(signatures))) == {code}


def test_a_signer_outside_u3_is_rejected():
    without_4 = encode_set({0, 1, 2, 3, 5}, CLIENTS)
    session = delivered()
    signatures = signed(session, lambda _: without_4, [0, 1, 2, 3, 5])
    for index in (4, CLIENTS, 2**32 - 1):
        before = dict(session.clients)
        foreign = signatures | {index: signatures[0]}
        assert codes(session, quorum(foreign), range(4)) == {ErrorCode.U3_INVALID}
        session.clients = before


NOT_ASCENDING = tuple(RosterProof(n, bytes(32), bytes(64)) for n in (5, 4))


@pytest.mark.parametrize(
    "encode",
    [
        lambda s: Quorum(tuple(sorted(s.items(), reverse=True))).encode(),
        lambda s: Quorum(((0, s[0]), *sorted(s.items()))).encode(),
        lambda s: quorum(s).encode() + b"\0",
        lambda s: quorum(s).encode()[:-1],
        lambda s: quorum(s).encode()[:-4],
        lambda s: quorum(s).encode()[:-4] + b"\xff" * 4,
        lambda s: Quorum(tuple(sorted(s.items())), NOT_ASCENDING).encode(),
        lambda s: Quorum(tuple(sorted(s.items())), NOT_ASCENDING[:1] * 2).encode(),
        lambda _: b"\xff" * 4,
        lambda _: b"",
    ],
    ids=[
        *("descending", "twice", "longer", "shorter", "one list", "endless proofs"),
        *("proofs descending", "one proof twice", "endless", "nothing"),
    ],
)
def test_signers_are_strictly_ascending(encode):
    """No client is counted twice."""
    session, signatures = agreed()
    lie = Received(Envelope(Quorum, encode(signatures)))
    assert codes(session, lie) == {ErrorCode.BAD_ENCODING}


# --- what members of U3 that have not signed have shown before -----------------------


def unsigned(numbers=(4, 5)):
    """Return a session in which some have signed nothing, and the true quorum."""
    session = delivered()
    others = [n for n in range(CLIENTS) if n not in numbers]
    signatures = signed(session, lambda _: ALL_CLIENTS, others)
    return session, proven(session, signatures, ALL_CLIENTS)


def test_clients_answer_for_a_member_that_stopped_signing():
    """R5.3-13: no member can end a session by that."""
    session, shown = unsigned()
    assert [proof.index for proof in shown.roster_proofs] == [4, 5]
    assert all(send_to_client(session, number, shown) for number in range(4))


def one_short(shown):
    return shown.roster_proofs[1:]


def of_none(_):
    return ()


def of_a_signer(shown):
    proof = shown.roster_proofs[0]
    return (replace(proof, index=0), *shown.roster_proofs)


def of_a_signer_instead(shown):
    first, second = shown.roster_proofs
    return replace(first, index=3), second


def beyond_the_roster(shown):
    return (*shown.roster_proofs, replace(shown.roster_proofs[0], index=2**32 - 1))


def of_another_digest(shown):
    first, second = shown.roster_proofs
    return replace(first, digest=second.digest), second


def of_another_member(shown):
    first, second = shown.roster_proofs
    return first, replace(first, index=second.index)


def of_zeros(shown):
    first, second = shown.roster_proofs
    return first, replace(second, signature=bytes(64))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (one_short, ErrorCode.U3_INVALID),
        (of_none, ErrorCode.U3_INVALID),
        (of_a_signer, ErrorCode.U3_INVALID),
        (of_a_signer_instead, ErrorCode.U3_INVALID),
        (beyond_the_roster, ErrorCode.U3_INVALID),
        (of_another_digest, ErrorCode.BAD_SIGNATURE),
        (of_another_member, ErrorCode.BAD_SIGNATURE),
        (of_zeros, ErrorCode.BAD_SIGNATURE),
    ],
)
def test_clients_do_not_answer_for_a_member_without_a_roster_proof(change, code):
    """R5.3-13: charged, and nothing leaves."""
    session, shown = unsigned()
    lie = replace(shown, roster_proofs=change(shown))
    assert codes(session, lie, range(4)) == {code}
    assert {session.clients[n].charge for n in range(4)} == {ChargeOutcome.KEPT}


def test_an_uncommitted_batch_leaves_no_roster_proof():
    session = played(Round.ADVERTISE_KEYS)
    before = session.server_state
    session.server_state = server.fork(before)
    session.play(Round.SHARE_KEYS)
    assert len(session.server_state.roster_proofs) == CLIENTS
    assert not before.roster_proofs
    assert not before.bundles


def test_the_number_of_proofs_is_checked_before_any_proof_is_verified(monkeypatch):
    session, shown = unsigned()
    verified = []
    monkeypatch.setattr(
        agreement, "check_bundle_signature", lambda *_, **rest: verified.append(rest)
    )
    lie = replace(shown, roster_proofs=one_short(shown))
    assert codes(session, lie, range(4)) == {ErrorCode.U3_INVALID}
    assert not verified


def test_a_client_that_has_not_signed_is_checked_like_the_others():
    """Its signature was late: its own proof is in the list."""
    session, shown = unsigned()
    (own,) = send_to_client(session, 4, Survivors(ALL_CLIENTS))
    assert isinstance(own, Consistency)
    assert send_to_client(session, 4, shown)


@pytest.mark.parametrize("dies", [False, True], ids=["running", "restarted"])
def test_the_proofs_of_another_session_are_not_of_this_one(dies):
    _, earlier = unsigned()
    session = played(Round.MASKED_INPUT_COLLECTION, number=2)
    signatures = signed(session, lambda _: ALL_CLIENTS, range(4))
    if dies:
        session.clients = {n: restarted(session, n) for n in session.clients}
    lie = replace(quorum(signatures), roster_proofs=earlier.roster_proofs)
    assert codes(session, lie, range(4)) == {ErrorCode.BAD_SIGNATURE}


def test_a_quorum_before_signing_is_unexpected():
    """R5.5-10: in every state before it."""
    _, signatures = agreed()
    for last in (Round.ADVERTISE_KEYS, Round.SHARE_KEYS, None):
        session = delivered() if last is None else played(last)
        assert codes(session, quorum(signatures)) == {ErrorCode.UNEXPECTED_MESSAGE}


def test_the_quorum_of_another_session_is_not_of_this_one():
    _, signatures = agreed()
    session = played(Round.MASKED_INPUT_COLLECTION, number=2)
    signed(session, lambda _: ALL_CLIENTS)
    assert codes(session, quorum(signatures)) == {ErrorCode.BAD_SIGNATURE}


# --- endings ------------------------------------------------------------------------


@pytest.mark.parametrize("fate", [Fate.NEVER_FIXED, Fate.NOT_INCLUDED])
@pytest.mark.parametrize("answered", [False, True], ids=["signed", "answered"])
def test_a_client_that_signed_rejects_an_exclusion(fate, answered):
    session, signatures = agreed()
    for number in HONEST if answered else ():
        send_to_client(session, number, quorum(signatures))
    aborted = Aborted(fate, ErrorCode.CANCELLED, "the operator")
    assert codes(session, aborted) == {ErrorCode.U3_INVALID}
    assert {session.clients[n].charge for n in HONEST} == {ChargeOutcome.KEPT}


def test_a_client_that_signed_rejects_a_wrong_number_of_inputs():
    session, _ = agreed()
    wrong = Released(Fate.INCLUDED, bytes(32), 1, CLIENTS - 1, 0)
    assert codes(session, wrong) == {ErrorCode.U3_INVALID}


@pytest.mark.parametrize("fate", Fate)
def test_nothing_is_refunded_after_masking_in_the_malicious_profile(fate):
    """A39: a server gains no session by lying about fates."""
    session = delivered()
    aborted = Aborted(fate, ErrorCode.CANCELLED, "the operator")
    assert codes(session, aborted) == {ErrorCode.CANCELLED}
    assert {session.clients[n].charge for n in HONEST} == {ChargeOutcome.KEPT}


# --- hostile clients ----------------------------------------------------------------


def refused(session, number, message):
    """Return the code with which the server refuses; its state is as before."""
    before = server.fork(session.server_state)
    with pytest.raises(RemoteProtocolError) as caught:
        session.to_server(Received(Envelope.of(message), identity_of(number)))
    assert session.server_state == before
    assert caught.value.sender == identity_of(number)
    return caught.value.code


def test_the_server_accepts_no_bundles_without_a_valid_signature_of_their_dealer():
    session, _ = advertised()
    (said,) = [output.envelope.open() for output in session.update(COLLUDER)]
    other = said.sealed[:-1] + bytes([said.sealed[-1] ^ 1])
    for bundles, code in (
        (Bundles(other, said.signature), ErrorCode.BAD_SIGNATURE),
        (Bundles(said.sealed, bytes(64)), ErrorCode.BAD_SIGNATURE),
        (Bundles(said.sealed), ErrorCode.BAD_ENCODING),
        (Bundles(said.sealed[:-1], said.signature), ErrorCode.BAD_ENCODING),
    ):
        assert refused(session, COLLUDER, bundles) is code


def test_an_upload_is_counted_once_and_cannot_be_replaced():
    session = played(Round.SHARE_KEYS)
    session.play(Round.MASKED_INPUT_COLLECTION)
    session.play(Round.MASKED_INPUT_COLLECTION)
    size = session.packed_bytes
    again = refused(session, COLLUDER, Upload(size, bytes(32)))
    assert again is ErrorCode.EQUIVOCATION
    session.close(Round.MASKED_INPUT_COLLECTION)
    for which in (Round.CONSISTENCY_CHECK, Round.UNMASKING):
        session.play(which)
        session.close(which)
    assert session.total.tolist() == honest_sum(range(CLIENTS))


def test_the_server_counts_one_signature_of_each_client_of_u3():
    session = played(Round.SHARE_KEYS)
    session.play(Round.MASKED_INPUT_COLLECTION, range(1, CLIENTS))
    session.close(Round.MASKED_INPUT_COLLECTION)
    said = {n: session.update(n)[0].envelope.open() for n in range(1, CLIENTS)}
    assert refused(session, 0, said[1]) is ErrorCode.SESSION_OVER
    assert refused(session, 2, said[1]) is ErrorCode.BAD_SIGNATURE
    for number in range(1, 4):
        session.to_server(Received(Envelope.of(said[number]), identity_of(number)))
    assert refused(session, 1, said[2]) is ErrorCode.EQUIVOCATION
    session.close(Round.CONSISTENCY_CHECK)
    assert session.server_state.outcome.code is ErrorCode.NO_QUORUM
    for number in range(1, CLIENTS):
        ending = session.fetch(number).open()
        assert (ending.fate, ending.code) == (Fate.INCLUDED, ErrorCode.NO_QUORUM)


def test_a_client_that_has_not_signed_can_still_answer():
    """The quorum is shown to all of U3, so that a silent signer costs nothing."""
    session = played(Round.MASKED_INPUT_COLLECTION)
    session.play(Round.CONSISTENCY_CHECK, range(4))
    session.close(Round.CONSISTENCY_CHECK)
    assert send_to_client(session, 4, Survivors(ALL_CLIENTS))
    session.play(Round.UNMASKING, [0, 1, 2, 4])
    session.close(Round.UNMASKING)
    assert session.total.tolist() == honest_sum(range(CLIENTS))


def honest_sum(numbers):
    return [MODULUS - 1 if n in numbers else 0 for n in range(CLIENTS)]
