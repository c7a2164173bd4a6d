"""Sessions of every kind, disturbed in every way: the exact sum, or a typed end.

Clients are lost, restarted, heard twice and out of order; the server is restarted;
corrupt clients send garbage, complain and answer at will; a server that
is not trusted changes what it says.  Whatever comes of it, a sum is exact over U3,
every honest client ends with a code, the ledger finds nothing that should not be known,
the receipts of the server and of every honest client hold, and say the same of a sum,
and where noise is taken back as much is left as was promised.
"""

import json
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secagg_testing.cohorts import (
    one_hot,
    parameters_for,
    signing_parameters_for,
    sparse_parameters_for,
    with_noise,
)
from secagg_testing.observed_session import ObservedSession

from secagg.client.contribution import completed, extended, offer_receipt
from secagg.crypto.modular import add_into, reduce_in_place, zeros
from secagg.crypto.shamir import SHARE_SIZE
from secagg.distributed_dp import TaskNoiseVerifier, subtract_layers
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.events import (
    ComputeSum,
    InputBound,
    InputReady,
    NoisyVector,
    Received,
    input_digest,
)
from secagg.protocol.messages import (
    Complaint,
    Envelope,
    Quorum,
    Round,
    Shares,
    Survivors,
    Upload,
)
from secagg.protocol.profiles import Profile
from secagg.protocol.receipts.receipt import Outcome
from secagg.protocol.receipts.verifier import Finding, verify_receipt
from secagg.protocol.rounds import rounds_of
from secagg.protocol.server import machine as server_machine
from secagg.protocol.server import states as server
from secagg.server.session.report import SessionFacts
from secagg.simulation.driver import accepting, identity_of

DIMENSION = 7
FAULTS = st.sampled_from([ErrorCode.BAD_SHARE_CIPHERTEXT, ErrorCode.SHARE_CONFUSION])


@st.composite
def complete(draw):
    """Draw a cohort of profile honest-curious-server on the complete graph."""
    clients = draw(st.integers(3, 8), label="clients")
    threshold = draw(st.integers(2, clients), label="threshold")
    corrupt = draw(st.integers(0, threshold - 2), label="corrupt")
    return parameters_for(
        clients, dimension=DIMENSION, threshold=threshold, colluders=corrupt
    )


@st.composite
def ring(draw):
    """Draw a cohort on a ring; so small, it is unmasked only if it could not be cut."""
    clients = draw(st.integers(8, 12), label="clients")
    threshold = draw(st.integers(2, 3), label="threshold")
    corrupt = draw(st.integers(0, threshold - 1), label="corrupt")
    return parameters_for(
        clients,
        dimension=DIMENSION,
        threshold=threshold,
        degree=4,
        min_clients=6,
        min_survivors=max(threshold, corrupt + 2),
        colluders=corrupt,
    )


@st.composite
def agreeing(draw):
    """Draw a cohort of profile malicious-server."""
    clients = draw(st.integers(3, 7), label="clients")
    corrupt = draw(st.integers(0, clients - 2), label="corrupt")
    return signing_parameters_for(clients, dimension=DIMENSION, colluders=corrupt)


@st.composite
def drawing(draw):
    """Draw a cohort of profile malicious-server-sparse."""
    clients = draw(st.integers(5, 7), label="clients")
    degree = draw(st.integers(3, clients - 1), label="degree")
    corrupt, losses = draw(st.sampled_from([(0, 0), (0, 2), (1, 1), (2, 1)]))
    if (clients, degree, corrupt) == (5, 3, 2):
        losses = 0
    return sparse_parameters_for(
        clients, dimension=DIMENSION, degree=degree, colluders=corrupt, losses=losses
    )


@st.composite
def noised(draw):
    """Draw a cohort that takes back layers of its noise, by the losses it has signed.

    The input of a client is one-hot all the same: what counts is what is subtracted.
    """
    cohort = {"dimension": DIMENSION, "colluders": 1}
    if draw(st.booleans(), label="signed"):
        plain = signing_parameters_for(7, **cohort)
    else:
        fewest = {"threshold": 4, "min_survivors": 5, "min_clients": 5}
        plain = parameters_for(7, **cohort, **fewest)
    return with_noise(plain, ladder=2)


@dataclass
class Disturbed(ObservedSession):
    """A session whose server may change a byte of its messages.

    Attributes:
        changes: By client and round, which byte of the update is changed, from the
            start or from the end, and into what.
        server_facts: Of which the server makes its receipt.
        job: What the server has computed, if it did.
        accepted: Of each client, the events that it has accepted.
    """

    changes: dict[tuple[int, Round], tuple[int, int]] = field(default_factory=dict)
    server_facts: SessionFacts = field(init=False)
    job: ComputeSum | None = field(init=False, default=None)
    accepted: dict[int, list] = field(init=False, default_factory=dict)

    def __post_init__(self):
        """Know of the offer."""
        super().__post_init__()
        self.server_facts = SessionFacts(self.descriptor, frozenset())

    def step_server(self, event):
        """Apply an event at the server and record the content of its receipt."""
        before = self.server_state
        outputs = super().step_server(event)
        if type(before) is not type(self.server_state):
            self.server_facts.enter(before, self.server_state, outputs, seconds=1.0)
        return outputs

    def to_client(self, number, event):
        """Apply an event at a client and record what it has accepted."""
        was_over = client_machine.is_over(self.clients[number])
        outputs = super().to_client(number, event)
        if not was_over and not isinstance(self.clients[number], client.Failed):
            self.accepted.setdefault(number, []).append(event)
        return outputs

    def compute_sum(self, job):
        """Add up the uploads and remove the masks."""
        self.job = job
        return super().compute_sum(job)

    def fetch(self, number):
        """Return the message to a client."""
        told = super().fetch(number)
        change = self.changes.get((number, self.server_state.ROUND))
        if told is None or change is None or not told.data:
            return told
        return Envelope(told.kind, changed(told.data, change))


def changed(data, change):
    """Change one byte."""
    place, mask = change
    spoilt = bytearray(data)
    spoilt[place % len(spoilt)] ^= mask
    return bytes(spoilt)


def lied(answer, change):
    """Change the same byte of every share in an answer."""
    place, mask = change
    spoilt = bytearray(answer)
    for at in range(-1 - place % SHARE_SIZE, -len(spoilt), -SHARE_SIZE):
        spoilt[at] ^= mask
    return bytes(spoilt)


ONE_BYTE = st.tuples(st.integers(-1 << 12, 1 << 12), st.integers(1, 255))


class Play:
    """One disturbed session.

    Args:
        data: Where disturbances are drawn from.
        parameters: Of the session.
    """

    def __init__(self, data, parameters):
        self.draw = data.draw
        self.rounds = rounds_of(parameters.profile)
        self.numbers = range(parameters.max_clients)
        number, which = st.sampled_from(self.numbers), st.sampled_from(self.rounds)
        corrupt = self.draw(
            st.frozensets(number, max_size=parameters.colluders), label="corrupt"
        )
        # One round each, mostly the last, or they would seldom get to that.
        spoilt = st.sampled_from([*self.rounds, *[Round.UNMASKING] * 5])
        self.spoils = {n: self.draw(spoilt, label="spoils") for n in sorted(corrupt)}
        told = st.dictionaries(st.tuples(number, which), ONE_BYTE, max_size=2)
        is_trusted = parameters.profile is Profile.HONEST_CURIOUS_SERVER
        # Most stay to the end; of the others, most leave it to them to be unmasked.
        last = [*[Round.FINISHED] * 12, *self.rounds, *[Round.SHARE_KEYS] * 3]
        ends = st.sampled_from(last)
        self.lasts = self.draw(
            st.tuples(*[ends] * parameters.max_clients), label="last word"
        )
        self.restarts = self.draw(
            st.sets(st.tuples(number, which), max_size=3), label="restarts"
        )
        self.session = Disturbed(
            parameters,
            [given_input(parameters, n) for n in self.numbers],
            corrupt=corrupt,
            garbage={
                dealer: self.draw(st.frozensets(number, max_size=4), label="garbage to")
                for dealer in sorted(corrupt)
            },
            changes={} if is_trusted else self.draw(told, label="changes"),
        )

    def run(self):
        """Run all rounds; deliver the outcome to all running clients."""
        session = self.session
        for which in self.rounds:
            if server_machine.is_over(session.server_state):
                break
            self.play(which)
            if self.draw(st.booleans(), label="server restarts"):
                again = replayed_server(session)
                assert again == session.server_state
                session.server_state = again
            session.close(which)
        for number in self.alive(Round.FINISHED):
            session.update(number)

    def alive(self, which):
        """Return who is there in a round."""
        return [n for n in self.numbers if self.lasts[n] >= which]

    def play(self, which):
        """Run all parties, and deliver their messages in any order."""
        session, pending = self.session, []
        for number in self.alive(which):
            if (number, which) in self.restarts:
                again = replayed_client(session, number)
                assert again == session.clients[number]
                session.clients[number] = again
            for output in session.act(number, which):
                event = session.message(number, output)
                if event is not None:
                    pending += self.said(number, event)
        if which is Round.MASKED_INPUT_COLLECTION:
            pending += [e for n in sorted(session.corrupt) for e in self.complaints(n)]
        for number, event in self.draw(st.permutations(pending), label="order"):
            self.deliver(number, event)

    def said(self, number, event):
        """Return what arrives of a message, once or more often."""
        kind = event.envelope.kind
        # What a corrupt client uploads may be anything, hence nothing is changed there.
        if self.spoils.get(number) is kind.ROUND and kind is not Upload:
            change = lied if kind is Shares else changed
            data = change(event.envelope.data, self.draw(ONE_BYTE, label="into"))
            event = Received(Envelope(kind, data), event.sender)
        return [(number, event)] * self.draw(st.integers(1, 2), label="copies")

    def complaints(self, number):
        """Return what a corrupt client makes up about others."""
        accused = self.draw(
            st.frozensets(st.sampled_from(self.numbers), max_size=2), label="accused"
        )
        for index in sorted(accused):
            complaint = Complaint(self.draw(FAULTS), index)
            yield number, Received(Envelope.of(complaint), identity_of(number))

    def deliver(self, number, event):
        """Hand the server a message; it refuses none that it should accept."""
        try:
            self.session.to_server(event)
        except RemoteProtocolError:
            misled = {victim for victim, _ in self.session.changes}
            if number not in self.session.corrupt | misled:
                raise


def replayed_client(session, number):
    """Rebuild a client from its journal, as after kill -9."""
    state = client_machine.start(session.read_noise)
    for event in session.client_journals.get(number, ()):
        record = (
            InputBound(input_digest(event.vector))
            if isinstance(event, InputReady)
            else event
        )
        policy = accepting(session.parameters)
        state = client_machine.step(state, record, policy=policy).state
    return state


def replayed_server(session):
    """Rebuild the server from its journal."""
    state = server_machine.start(
        session.descriptor,
        packed_bytes=session.packed_bytes,
        read_noise=session.read_noise,
    )
    for event in session.journal:
        state = server_machine.step(state, event).state
    return state


def given_input(parameters, number):
    """Return the input of a client, in the form that the task asks for."""
    vector = one_hot(number, parameters.dimension, parameters.modulus)
    if not parameters.noise_block:
        return vector
    return lambda ctx2: NoisyVector(vector, parameters.noise_block, ctx2)


def exact_sum(session, numbers):
    """Return the sum of some clients' inputs, less what was taken back of noise."""
    parameters = session.parameters
    total = zeros(parameters.dimension, parameters.modulus)
    for number in numbers:
        vector = one_hot(number, parameters.dimension, parameters.modulus)
        add_into(total, vector, parameters.modulus)
    subtract_layers(total, session.job.noise)
    return reduce_in_place(total, parameters.modulus).tolist()


def verdict_of(parameters, receipt):
    """Check a receipt as any reader can."""
    tail = parameters.tail
    return verify_receipt(
        receipt.encode(),
        enrolment_key=tail.trust and tail.trust.enrolment_key,
        noise=TaskNoiseVerifier(),
    )


def receipt_of(session, number, ended):
    """Return what a client can show of what it has accepted."""
    accepted = session.accepted.get(number, [])
    kinds = [e.envelope.kind for e in accepted if isinstance(e, Received)]
    asks = Quorum if session.parameters.profile.has_identities else Survivors
    seen = extended(offer_receipt(session.descriptor), session.descriptor, accepted)
    return completed(seen, session.descriptor, ended, has_answered=asks in kinds)


def check_receipts(play, state):
    """Verify the server's receipt and those of honest clients, and compare them."""
    session, parameters = play.session, play.session.parameters
    of_server = verdict_of(parameters, session.server_facts.audit(state))
    is_over = isinstance(state, server.Completed)
    assert (of_server.receipt.outcome is Outcome.RELEASED) == is_over
    is_signed = parameters.profile.has_identities
    if is_over:
        assert of_server.finding is (Finding.AGREED if is_signed else Finding.STATED)
    if is_over and parameters.noise_layers:
        noise = session.server_facts.audit(state).certificate
        stated = {key: json.loads(noise)[key] for key in NOISE}
        present, required = (Fraction(stated[key]) for key in NOISE)
        assert present >= required
    for number in set(play.numbers) - session.corrupt:
        ended = session.clients[number]
        if isinstance(ended, client.Completed | client.Failed):
            shown = verdict_of(parameters, receipt_of(session, number, ended))
            if shown.receipt.outcome is Outcome.RELEASED:
                assert shown.survivors == of_server.survivors
                assert shown.share_holders == of_server.share_holders
                assert shown.receipt.sum_hash == of_server.receipt.sum_hash


NOISE = ("noise_present", "noise_required")
COHORTS = (complete(), ring(), agreeing(), drawing(), noised())


@pytest.mark.parametrize("_part", range(4))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), parameters=st.one_of(*COHORTS))
def test_a_disturbed_session_ends_with_the_exact_sum_or_a_typed_error(
    _part, data, parameters
):
    play = Play(data, parameters)
    session = play.session
    play.run()
    session.check()
    state = session.server_state
    assert isinstance(state, server.Completed | server.Failed)
    if isinstance(state, server.Completed):
        summed = [n for n in play.numbers if identity_of(n) in state.survivors]
        assert session.total.tolist() == exact_sum(session, summed)
        assert len(summed) >= parameters.min_survivors
    else:
        assert session.total is None
        assert isinstance(state.outcome.code, ErrorCode)
    for number in set(play.alive(Round.FINISHED)) - session.corrupt:
        ended = session.clients[number]
        assert isinstance(ended, client.Completed | client.Failed)
        if isinstance(ended, client.Completed):
            assert isinstance(state, server.Completed)
            assert identity_of(number) in state.survivors
    check_receipts(play, state)
