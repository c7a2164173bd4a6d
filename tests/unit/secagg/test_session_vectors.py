"""Our client and our server against the recorded sessions of `secagg.conformance`.

The vectors come from an implementation that shares no code with ours and was written
from the specification.  A client's secrets are dictated here, because how they derive
from a session's seed is no part of the wire protocol.
"""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from secagg_testing.cohorts import LENIENT_POLICY, lenient_rules
from secagg_testing.scripted_entropy import ScriptedEntropy

from secagg.client.gate import GateRequest, GateStage, KnownFacts, OwnEnrolment, admit
from secagg.conformance import read_vectors
from secagg.crypto.canonical import Reader
from secagg.crypto.modular import BadVectorError, add_into, word_dtype, zeros
from secagg.crypto.prg import add_masks
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol import context, packing, rounds
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import (
    ClientIdentity,
    Credential,
    IssuedCredential,
    read_revocations,
)
from secagg.protocol.events import (
    ComputeSum,
    DropClient,
    Finish,
    InputReady,
    MaskAndUpload,
    NoisyVector,
    PlainVector,
    Received,
    RoundClosed,
    SessionOffered,
)
from secagg.protocol.membership import Membership
from secagg.protocol.messages import (
    KINDS,
    Advert,
    Delivery,
    EdgesPublished,
    Envelope,
    Quorum,
    Roster,
    Round,
    Survivors,
    Upload,
)
from secagg.protocol.noise_terms import NoiseTerms, no_noise
from secagg.protocol.packing import pack, packed_size, unpack
from secagg.protocol.profiles import HonestCuriousParameters, Profile, Trust
from secagg.protocol.rounds import ROUNDS, DropReason
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.server.engine.mask_removal import check_packed_vector

SESSIONS = {
    session["name"]: session for session in read_vectors("sessions")["sessions"]
}
REFUSALS = read_vectors("refusals")
RESTARTS = read_vectors("restarts")
CLIENTS = [(name, row) for name in SESSIONS for row in SESSIONS[name]["clients"]]
FIELDS = {
    Round.ADVERTISE_KEYS: "advert",
    Round.CHOOSE_EDGES: "edges",
    Round.SHARE_KEYS: "bundles",
    Round.MASKED_INPUT_COLLECTION: "upload",
    Round.CONSISTENCY_CHECK: "signature",
    Round.UNMASKING: "answer",
}

POLICY = replace(LENIENT_POLICY, profiles=frozenset(Profile))

by_name = pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)


def bytes_of(record, name):
    return bytes.fromhex(record[name])


def descriptor_of(session):
    return SessionDescriptor.decode(bytes_of(session, "offer"))


def row_of(session, identity):
    return next(row for row in session["clients"] if row["identity"] == identity)


def coefficients_of(row):
    """Word by word as the client draws them: power by power, first those of s^SK."""
    powers = zip(row["key_coefficients"], row["seed_coefficients"], strict=True)
    drawn = [of_key + of_seed for of_key, of_seed in powers]
    return np.array(drawn, "<u4").tobytes()


def steps_of(session, row):
    """Word by word as the client draws them: places among the others, who skip it."""
    steps, own = row["steps"], row["index"]
    if not steps or own is None:
        return []
    clients = len(session["neighbours"])
    drawn = [(own + step) % clients for step in steps]
    return [(d - (d > own)).to_bytes(4, "big") for d in drawn]


# --- our client ----------------------------------------------------------------------


class VectorClient:
    """Our client with the secrets of one row."""

    def __init__(self, monkeypatch, session, row):
        script = {
            b"encryption key": bytes_of(row, "channel_private_key"),
            b"masking key": bytes_of(row, "mask_private_key"),
            b"self-mask seed": bytes_of(row, "self_mask_seed"),
            b"polynomials": coefficients_of(row),
        } | {
            b"noise layer %d" % layer: bytes.fromhex(seed)
            for layer, seed in enumerate(row["noise_seeds"])
        }
        edges = ScriptedEntropy(*steps_of(session, row))

        def scripted(_, label):
            what = label.split(b"/")[0]
            return edges if what == b"edges" else ScriptedEntropy(script[what])

        monkeypatch.setattr("secagg.protocol.client.handlers.SeededEntropy", scripted)
        self.session, self.row = session, row
        self.parameters = descriptor_of(session).parameters
        self.state = client_machine.start(noise_reader(session))

    def step(self, event):
        result = client_machine.step(self.state, event, policy=POLICY)
        self.state = result.state
        return result.outputs

    def advertise(self):
        seed = SecretBytes(bytes(32))
        descriptor = descriptor_of(self.session)
        offered = SessionOffered(
            descriptor,
            self.row["identity"],
            descriptor.aggregator,
            seed,
            descriptor.session_end - 1,
            membership_of(self.session, self.row),
        )
        return self.sent(Advert, offered)

    def sent(self, kind, event):
        (output,) = self.step(event)
        assert output.envelope.kind is kind
        return output.envelope.data

    def take(self, round_number, *, whole=True):
        """Receive the recorded message that opens a round; return the answer."""
        event = Received(opening(self.session, self.row, round_number, whole=whole))
        if round_number == Round.MASKED_INPUT_COLLECTION:
            self.step(event)
            return self.mask()
        (output,) = self.step(event)
        return output.envelope.data

    def mask(self):
        (output,) = self.supply_input()
        assert isinstance(output, MaskAndUpload)
        assert output.view == bytes_of(self.session, "view")
        masked = packing.mask_input(output.vector.residues, output.job)
        return pack(masked, self.parameters.bits)

    def supply_input(self):
        values = [int(entry) for entry in self.row["input"]]
        residues = np.array(values, word_dtype(self.parameters.modulus))
        block = self.parameters.noise_block
        if not block:
            return self.step(InputReady(PlainVector(residues)))
        ctx2 = self.state.delivered.ctx2
        return self.step(InputReady(NoisyVector(residues, block, ctx2)))


def rounds_of(session):
    return rounds.rounds_of(descriptor_of(session).parameters.profile)


def revoked_in(session):
    """Serials of the revocation list that the offer names."""
    tail = descriptor_of(session).parameters.tail
    if isinstance(tail, HonestCuriousParameters):
        return frozenset()
    listed = read_revocations(bytes_of(session, "revocations"), tail.trust)
    return frozenset(listed.serials)


def noise_reader(session):
    """Input of the core from a noise block, whose samplers are not run here."""
    noise = session["noise"]
    if noise is None:
        return no_noise
    reveals = tuple(tuple(layers) for layers in noise["taken_back"])
    terms = NoiseTerms(bytes_of(noise, "noise_context"), len(reveals) - 1, reveals)
    return lambda _, __: terms


def membership_of(session, row):
    """What a client is handed before it takes part where clients sign."""
    tail = descriptor_of(session).parameters.tail
    if isinstance(tail, HonestCuriousParameters):
        return None
    reader = Reader(bytes_of(row, "credential"), "credential")
    return Membership(
        trust_domain=tail.trust.trust_domain,
        enrolment_key=tail.trust.enrolment_key,
        key=IdentityKey.from_bytes(SecretBytes(bytes_of(row, "identity_seed"))),
        credential=Credential.decode_from(reader, name=row["identity"]),
        revoked=revoked_in(session),
    )


def opening(session, row, round_number, *, whole=True):
    is_drawn = session["edge_root"] is not None
    if is_drawn and round_number == Round.SHARE_KEYS:
        return Envelope(EdgesPublished, bytes_of(row, "published"))
    if round_number in (Round.CHOOSE_EDGES, Round.SHARE_KEYS):
        if whole or row["neighbourhood"] is None:
            return Envelope(Roster, bytes_of(session, "roster"))
        return Envelope(Roster, bytes_of(row, "neighbourhood"))
    if round_number == Round.MASKED_INPUT_COLLECTION:
        return Envelope(Delivery, bytes_of(row, "delivery"))
    if round_number == Round.UNMASKING and session["quorum"] is not None:
        return Envelope(Quorum, bytes_of(session, "quorum"))
    return Envelope(Survivors, bytes_of(session, "u3"))


@pytest.mark.parametrize(
    ("name", "row"), CLIENTS, ids=[f"{n}-{r['identity']}" for n, r in CLIENTS]
)
def test_the_client_sends_the_recorded_bytes(monkeypatch, name, row):
    compare_client(monkeypatch, SESSIONS[name], row)
    if row["neighbourhood"] is not None:
        compare_client(monkeypatch, SESSIONS[name], row, whole=False)


def compare_client(monkeypatch, session, row, *, whole=True):
    contexts = [bytes.fromhex(context) for context in session["contexts"]]
    ours = VectorClient(monkeypatch, session, row)
    advert = ours.advertise()
    assert ours.state.facts.session_id.hex() == session["sid"]
    assert ours.state.facts.ctx0 == contexts[0]
    if row["advert"] is None:
        return
    assert advert.hex() == row["advert"]
    for round_number in rounds_of(session)[1:]:
        sent = row[FIELDS[round_number]]
        if sent is None:
            return
        said = ours.take(round_number, whole=whole).hex()
        lies = round_number == Round.UNMASKING and row["index"] == session["lying"]
        assert (said == sent) != lies
        if round_number == Round.SHARE_KEYS:
            assert ours.state.roster.ctx1 == contexts[1]
            assert ours.state.roster.index == row["index"]
        if round_number == Round.MASKED_INPUT_COLLECTION:
            assert ours.state.delivered.ctx2 == contexts[2]


@by_name
def test_contexts_match_the_vectors(session):
    # R4-1
    descriptor = descriptor_of(session)
    assert descriptor.encode() == bytes_of(session, "offer")
    assert descriptor.configuration_hash.hex() == session["cfg_hash"]
    assert descriptor.session_id.hex() == session["sid"]
    assert context.session_context(descriptor).hex() == session["contexts"][0]


@pytest.mark.parametrize(
    "case", REFUSALS["client"], ids=lambda case: f"{case['round']}: {case['name']}"
)
def test_the_client_fails_with_the_recorded_code(monkeypatch, case):
    session = SESSIONS[case["session"]]
    ours = VectorClient(monkeypatch, session, row_of(session, case["client"]))
    ours.advertise()
    for round_number in rounds_of(session)[1:]:
        if round_number <= case["after"]:
            ours.take(round_number)
    kind = type_of(session, case["round"])
    outputs = ours.step(Received(Envelope(kind, bytes_of(case, "message"))))
    assert isinstance(ours.state, client.Failed), ours.state
    assert ours.state.code == case["code"]
    assert {type(output) for output in outputs} == {Finish}


@pytest.mark.parametrize(
    "case", REFUSALS["endings"], ids=lambda case: f"{case['after']}: {case['name']}"
)
def test_the_client_rejects_an_end_that_contradicts_its_state(monkeypatch, case):
    # R5.6-1, R5.6-2
    ours = restarted(monkeypatch, case)
    outputs = ours.step(
        Received(Envelope(KINDS[case["kind"]], bytes_of(case, "message")))
    )
    assert ours.state.code == case["code"]
    assert {type(output) for output in outputs} == {Finish}


@pytest.mark.parametrize("case", REFUSALS["setups"], ids=lambda case: case["name"])
def test_the_client_checks_an_offer_before_it_creates_keys(case):
    # R5.0-1 to R5.0-3
    session = SESSIONS[case["session"]]
    descriptor, row = descriptor_of(session), session["clients"][0]
    if code := gate_code(session, descriptor, row, case):
        assert code == case["code"]
        return
    offered = SessionOffered(
        descriptor,
        row["identity"],
        case["aggregator"],
        SecretBytes(bytes(32)),
        case["now"],
        membership_of(session, row),
    )
    state = client_machine.step(
        client_machine.start(no_noise), offered, policy=POLICY
    ).state
    assert getattr(state, "code", 0) == case["code"]


def gate_code(session, descriptor, row, case):
    """The code with which the gate refuses an offer; 0 if it does not."""
    seen, enrolment = None, None
    if case["seen"] is not None:
        seen = Trust.decode_from(Reader(bytes_of(case, "seen"), "trust"))
    if descriptor.parameters.trust is not None:
        place = membership_of(session, row)
        issued = IssuedCredential(case["trust_domain"], place.credential)
        enrolment = OwnEnrolment(
            identity=ClientIdentity(place.key, issued, bytes_of(case, "enrolment_key"))
        )
    request = GateRequest(
        offer=descriptor,
        stage=GateStage.OFFER,
        aggregator=case["aggregator"],
        trust_domain=None,
        now=case["now"],
        own=replace(lenient_rules(POLICY), enrolment=enrolment),
        known=KnownFacts(newest_list=seen),
    )
    try:
        admit(request)
    except RemoteProtocolError as refused:
        return refused.code
    return 0


def test_a_client_that_replays_its_journal_signs_the_same_set(monkeypatch):
    # R5.4-6
    session = SESSIONS["signed"]
    row = next(row for row in session["clients"] if row["signature"] is not None)
    for lies in (False, True):
        replayed = VectorClient(monkeypatch, session, row)
        replayed.advertise()
        for round_number in (Round.SHARE_KEYS, Round.MASKED_INPUT_COLLECTION):
            replayed.take(round_number)
        replayed.take(Round.CONSISTENCY_CHECK)
        (pending,) = client_machine.pending_outputs(replayed.state)
        assert pending.envelope.data.hex() == row["signature"]
        shown = bytes_of(session, "u2" if lies else "u3")
        outputs = replayed.step(Received(Envelope(Survivors, shown)))
        if lies:
            assert replayed.state.code == ErrorCode.EQUIVOCATION
        else:
            assert outputs == ()
            assert client_machine.pending_outputs(replayed.state) == (pending,)


def restarted(monkeypatch, case):
    """Our client, rebuilt from the events that it had stored."""
    session = SESSIONS[case["session"]]
    ours = VectorClient(monkeypatch, session, row_of(session, case["client"]))
    ours.advertise()
    for which in rounds_of(session)[1:]:
        if which <= case["after"]:
            ours.take(which)
    return ours


def message_sent_again(ours, which):
    if which == Round.MASKED_INPUT_COLLECTION:
        return ours.mask()  # its input is not stored: the application gives it again
    (output,) = client_machine.pending_outputs(ours.state)
    return output.envelope.data


@pytest.mark.parametrize(
    "case",
    RESTARTS["restarts"],
    ids=lambda case: f"{case['session']} {case['after']}",
)
def test_a_restarted_client_sends_the_same_messages(monkeypatch, case):
    # R5-8, R6.1-1
    ours = restarted(monkeypatch, case)
    assert message_sent_again(ours, case["after"]).hex() == case["sends"]
    if "other" not in case:
        return
    kind = type_of(ours.session, case["after"])
    again = Received(Envelope(kind, bytes.fromhex(case["again"])))
    assert ours.step(again) == ()
    ours.step(Received(Envelope(kind, bytes.fromhex(case["other"]))))
    assert isinstance(ours.state, client.Failed)
    assert ours.state.code == case["code"] == ErrorCode.EQUIVOCATION


@pytest.mark.parametrize("case", REFUSALS["complaints"], ids=lambda case: case["name"])
def test_the_client_complains_and_answers_as_recorded(monkeypatch, case):
    session = SESSIONS[case["session"]]
    ours = VectorClient(monkeypatch, session, row_of(session, case["client"]))
    ours.advertise()
    ours.take(Round.SHARE_KEYS)
    outputs = ours.step(Received(Envelope(Delivery, bytes_of(case, "delivery"))))
    said = [output.envelope.open().encode().hex() for output in outputs]
    assert said == case["complaints"]
    assert client_machine.pending_outputs(ours.state) == outputs
    ours.supply_input()
    assert client_machine.pending_outputs(ours.state) == outputs
    (answer,) = ours.step(Received(Envelope(Survivors, bytes_of(case, "u3"))))
    assert answer.envelope.data.hex() == case["answer"]


def type_of(session, round_number):
    """The class of the message that opens a round in this session's profile."""
    row = next(row for row in session["clients"] if row["answer"] is not None)
    return opening(session, row, round_number).kind


@pytest.mark.parametrize("case", REFUSALS["offers"], ids=lambda case: case["name"])
def test_an_offer_is_rejected_with_the_recorded_code(case):
    with pytest.raises(RemoteProtocolError) as refused:
        SessionDescriptor.decode(bytes_of(case, "offer"))
    assert refused.value.code == case["code"]


# --- our server ----------------------------------------------------------------------


class VectorServer:
    """Our server with the messages of a recorded session."""

    def __init__(self, session):
        self.session = session
        self.parameters = descriptor_of(session).parameters
        size = packed_size(self.parameters.dimension, self.parameters.bits)
        self.state = server_machine.start(
            descriptor_of(session),
            packed_bytes=size,
            revoked=revoked_in(session),
            read_noise=noise_reader(session),
        )

    def step(self, event):
        result = server_machine.step(self.state, event)
        self.state = result.state
        return result.outputs

    def receive(self, round_number, identity, message, view=None):
        if view is None and self.session["view"] is not None:
            view = bytes_of(self.session, "view")
        self.step(server_event(round_number, identity, message, view))

    def receive_all(self, round_number, senders=None):
        name = FIELDS[round_number]
        for row in self.session["clients"]:
            if row[name] is None:
                continue
            if senders is None or row["identity"] in senders:
                self.receive(round_number, row["identity"], bytes_of(row, name))

    def close(self, round_number):
        first = round_number == Round.ADVERTISE_KEYS
        seed = bytes_of(self.session, "graph_seed") if first else b""
        return self.step(RoundClosed(Round(round_number), graph_seed=seed))

    def play_before(self, round_number):
        for earlier in rounds_of(self.session):
            if earlier < round_number:
                self.receive_all(earlier)
                self.close(earlier)
        return self

    def update(self, identity):
        return server_machine.update_for(self.state, identity)


def server_event(round_number, identity, message, view=b""):
    if round_number == Round.MASKED_INPUT_COLLECTION:
        upload = Upload(len(message), hashlib.sha256(message).digest(), view)
        return Received(Envelope.of(upload), identity)
    return Received(Envelope(ROUNDS[round_number].message, message), identity)


def clean_sum(session, job):
    total = zeros(job.dimension, job.modulus)
    uploads = {
        hashlib.sha256(bytes_of(row, "upload")).digest(): bytes_of(row, "upload")
        for row in session["clients"]
        if row["upload"] is not None
    }
    bits = (job.modulus - 1).bit_length()
    for _, digest in job.uploads:
        upload = unpack(uploads[digest], job.dimension, bits, job.modulus)
        add_into(total, upload, job.modulus)
    add_masks(total, packing.removal_masks(job), job.modulus)
    return total


@by_name
def test_the_server_fixes_the_recorded_sets_and_computes_the_recorded_sum(session):
    liars = compare_server(session)
    assert [row["index"] for row in liars] == [
        index for index in [session["lying"]] if index is not None
    ]


def compare_update(ours, row, round_number):
    update, session = ours.update(row["identity"]), ours.session
    is_member = {
        Round.CHOOSE_EDGES: True,
        Round.SHARE_KEYS: session["edge_root"] is None or row["edges"] is not None,
        Round.MASKED_INPUT_COLLECTION: row["delivery"] is not None,
    }.get(round_number, row["upload"] is not None)
    if not is_member:
        assert update.open().code == ErrorCode.SESSION_OVER
    else:
        # On a ring the server shows each client its neighbourhood.
        assert update == opening(session, row, round_number, whole=False)


def test_a_client_absent_from_signing_receives_the_set_before_the_quorum():
    # R5-2
    session = SESSIONS["signed"]
    ours = VectorServer(session).play_before(Round.UNMASKING)
    (late,) = [r for r in session["clients"] if r["upload"] and not r["signature"]]
    for after, name in (
        (Round.MASKED_INPUT_COLLECTION, "u3"),
        (Round.CONSISTENCY_CHECK, "quorum"),
    ):
        update = server_machine.update_for(ours.state, late["identity"], after)
        assert update.data.hex() == session[name]


def compare_server(session):
    """Return the rows of those whom our server found to have revealed wrong shares."""
    ours = VectorServer(session)
    in_roster = [row for row in session["clients"] if row["index"] is not None]
    outputs = ()
    for round_number in rounds_of(session):
        if round_number != Round.ADVERTISE_KEYS:
            for row in in_roster:
                compare_update(ours, row, round_number)
        ours.receive_all(round_number)
        outputs = ours.close(round_number)
    (job,) = [output for output in outputs if isinstance(output, ComputeSum)]
    total = clean_sum(session, job)
    assert [str(entry) for entry in total.tolist()] == session["sum"]
    assert pack(total, ours.parameters.bits).hex() == session["packed_sum"]
    named = {
        output.identity
        for output in outputs
        if isinstance(output, DropClient) and output.reason == DropReason.BAD_SHARES
    }
    return [row for row in in_roster if row["identity"] in named]


@pytest.mark.parametrize(
    "case", REFUSALS["server"], ids=lambda case: f"{case['round']}: {case['name']}"
)
def test_the_server_rejects_with_the_recorded_code_and_continues(case):
    session = SESSIONS[case["session"]]
    ours = VectorServer(session).play_before(case["open"])
    for earlier in case.get("after", []):
        ours.receive_all(case["open"], [earlier])
    before = ours.state
    if case["code"] == ErrorCode.BAD_VECTOR:
        refuse_upload(ours, case)
    else:
        view = bytes_of(case, "view") if "view" in case else None
        message = bytes_of(case, "message")
        with pytest.raises(RemoteProtocolError) as refused:
            ours.receive(case["round"], case["sender"], message, view)
        assert refused.value.code == case["code"]
    assert ours.state is before
    ours.receive_all(case["open"])  # all others, and the sender once more
    ours.close(case["open"])
    assert not isinstance(ours.state, server.Failed)


def refuse_upload(ours, case):
    # The state machine checks the size; what has the right size is then read through
    # before the state machine hears of it.
    message, parameters = bytes_of(case, "message"), ours.parameters
    if len(message) != packed_size(parameters.dimension, parameters.bits):
        with pytest.raises(RemoteProtocolError) as refused:
            ours.receive(case["round"], case["sender"], message)
        assert refused.value.code == ErrorCode.BAD_VECTOR
        return
    with pytest.raises(BadVectorError):
        check_packed_vector(
            lambda offset, size: message[offset : offset + size],
            parameters.dimension,
            parameters.modulus,
        )


@pytest.mark.parametrize("case", REFUSALS["closings"], ids=lambda case: case["name"])
def test_the_server_aborts_with_the_recorded_code(case):
    ours = VectorServer(SESSIONS[case["session"]]).play_before(case["round"])
    ours.receive_all(case["round"], case["senders"])
    ours.close(case["round"])
    assert isinstance(ours.state, server.Failed)
    assert ours.state.outcome.code == case["code"]


@pytest.mark.parametrize("case", RESTARTS["noise_reveals"], ids=lambda c: c["sender"])
def test_a_wrong_noise_seed_is_reported_and_ignored(case):
    # R5.5-11
    assert case["reported"] == ErrorCode.BAD_NOISE_REVEAL
    session = SESSIONS[case["session"]]
    ours = VectorServer(session).play_before(Round.UNMASKING)
    ours.receive(Round.UNMASKING, case["sender"], bytes.fromhex(case["message"]))
    others = {row["identity"] for row in session["clients"]} - {case["sender"]}
    ours.receive_all(Round.UNMASKING, others)
    outputs = ours.close(Round.UNMASKING)
    (job,) = [output for output in outputs if isinstance(output, ComputeSum)]
    total = clean_sum(session, job)
    assert [str(entry) for entry in total.tolist()] == session["sum"]
    reported = [
        output.identity
        for output in outputs
        if isinstance(output, DropClient)
        and output.reason is DropReason.BAD_NOISE_REVEAL
    ]
    assert reported == [case["sender"]]
    honest = len(session["clients"]) - 2  # one is lost
    given = [layer for layer, _ in job.noise.seeds]
    assert given.count(case["layer"]) == honest
    assert all(given.count(layer) == honest + 1 for layer in case["still_given"])
    assert not isinstance(ours.state, server.Failed)


# --- sessions that are in no file ----------------------------------------------------


@st.composite
def plans(draw, session_vectors):
    degree = draw(st.sampled_from([0, 0, 2, 4]))
    count = draw(st.integers(max(3, degree + 2), 8))
    threshold = draw(st.integers(2, min(degree or 4, 4, count)))
    colluders = draw(st.integers(0, min(threshold - 1, count - 2)))
    dropouts = draw(st.integers(0, 4))
    floor = max(threshold, colluders + 2)
    min_survivors = draw(st.integers(floor, min(floor + 1, count)))
    min_clients = draw(st.integers(max(min_survivors, degree + 2), count))
    parameters = session_vectors.parameters(
        suite=draw(st.sampled_from([1, 2])),
        modulus=draw(st.one_of(st.integers(2, 2**62), st.sampled_from([2, 2**62]))),
        dim=draw(st.integers(1, 40)),
        min_clients=min_clients,
        threshold=threshold,
        degree=degree,
        min_survivors=min_survivors,
        max_clients=12,
        max_dropouts=min(dropouts, 12 - threshold),
        max_losses=min(dropouts + draw(st.integers(0, 4)), 12 - threshold),
        colluders=colluders,
        graph_bits=draw(st.integers(1, 3)) if degree else 0,
    )
    names = draw(
        st.permutations([f"c{'-' * (place % 3)}{place}" for place in range(count)])
    )
    lost = st.dictionaries(
        st.sampled_from(names), st.sampled_from(session_vectors.ROUNDS), max_size=4
    )
    seed = draw(st.binary(min_size=32, max_size=32)) if degree else b""
    partial = draw(st.sampled_from(names)) if degree else ""
    return session_vectors.Plan(
        "random", parameters, names, seed, draw(lost), partial=partial
    )


@st.composite
def signed_plans(draw, session_vectors):
    most = draw(st.integers(3, 6))
    colluders = draw(st.integers(0, most - 3))
    threshold = draw(st.integers((most + colluders) // 2 + 1, most))
    min_survivors = draw(st.integers(max(threshold, colluders + 2), most))
    losses = draw(st.integers(0, most - threshold))
    parameters = session_vectors.parameters(
        profile=2,
        modulus=draw(st.integers(2, 2**62)),
        dim=draw(st.integers(1, 9)),
        min_clients=draw(st.integers(min_survivors, most)),
        max_clients=most,
        threshold=threshold,
        min_survivors=min_survivors,
        max_dropouts=draw(st.integers(0, losses)),
        max_losses=losses,
        colluders=colluders,
    )
    names = draw(st.permutations([f"c{place}" for place in range(most)]))
    lost = st.dictionaries(
        st.sampled_from(names), st.sampled_from(session_vectors.ROUNDS), max_size=3
    )
    return session_vectors.Plan("random", parameters, names, b"", draw(lost))


@pytest.mark.parametrize("_part", range(3))
@settings(max_examples=14, deadline=None)
@given(data=st.data())
def test_generated_sessions_match_the_reference(_part, reference_modules, data):
    session_vectors = reference_modules["session_vectors"]
    kind = data.draw(st.sampled_from([plans, plans, signed_plans]))
    session, code = session_vectors.play_to_the_end(data.draw(kind(session_vectors)))
    event(f"code {code}")
    for row in session["clients"]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            compare_client(monkeypatch, session, row)
            compare_client(monkeypatch, session, row, whole=False)
    if code == 0:
        assert compare_server(session) == []
        return
    ours = VectorServer(session)
    for round_number in rounds_of(session):
        if not isinstance(ours.state, server.Failed):
            ours.receive_all(round_number)
            ours.close(round_number)
    assert ours.state.outcome.code == code
