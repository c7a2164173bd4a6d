"""Sessions of every kind, disturbed in every way: the exact sum, or a typed end.

Clients are lost, restarted, heard twice and out of order; the server is restarted;
corrupt clients send garbage, complain about anybody and answer anything; a server that
is not trusted changes what it says.  Whatever comes of it, a sum is exact over U3,
every honest client ends with a code, and the ledger finds nothing that should not be
known.
"""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.messages import Complaint, Envelope, Round, Shares, Upload
from secagg.primitives.share_encoding import SHARE_SIZE
from secagg.profiles import Profile
from secagg.protocol import client, server
from secagg.protocol.events import InputBound, InputReady, Received
from secagg.protocol.rounds import rounds_of
from secagg.simulation.driver import accepting, identity_of
from secagg.testing.cohorts import one_hot, parameters_for, signing_parameters_for
from secagg.testing.observed_session import ObservedSession

DIMENSION, MODULUS = 7, 1 << 20
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
    """Draw a cohort on a ring; so small, it is unmasked only if nobody could cut it."""
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


@dataclass
class Disturbed(ObservedSession):
    """A session whose server may change a byte of what it says.

    Attributes:
        changes: By client and round, which byte of the update is changed, from the
            start or from the end, and into what.
    """

    changes: dict[tuple[int, Round], tuple[int, int]] = field(default_factory=dict)

    def fetch(self, number):
        """Return what a client is told."""
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
            [one_hot(n, DIMENSION, MODULUS) for n in self.numbers],
            corrupt=corrupt,
            garbage={
                dealer: self.draw(st.frozensets(number, max_size=4), label="garbage to")
                for dealer in sorted(corrupt)
            },
            changes={} if is_trusted else self.draw(told, label="changes"),
        )

    def run(self):
        """Play all rounds; everybody who lives is told how it ended."""
        session = self.session
        for which in self.rounds:
            if server.is_over(session.server_state):
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
        """Let everybody act, and deliver what they say in any order."""
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
        """Hand the server a message; it refuses those of nobody it should hear."""
        try:
            self.session.to_server(event)
        except RemoteProtocolError:
            misled = {victim for victim, _ in self.session.changes}
            if number not in self.session.corrupt | misled:
                raise


def replayed_client(session, number):
    """Rebuild a client from its journal, as after kill -9."""
    state = client.start(session.read_noise)
    for event in session.client_journals.get(number, ()):
        record = (
            InputBound(client.input_digest(event.vector))
            if isinstance(event, InputReady)
            else event
        )
        policy = accepting(session.parameters)
        state = client.step(state, record, policy=policy).state
    return state


def replayed_server(session):
    """Rebuild the server from its journal."""
    state = server.start(
        session.descriptor,
        packed_bytes=session.packed_bytes,
        read_noise=session.read_noise,
    )
    for event in session.journal:
        state = server.step(state, event).state
    return state


def exact_sum(numbers):
    """Return the sum of some clients' inputs."""
    total = np.zeros(DIMENSION, np.uint64)
    for number in numbers:
        total += one_hot(number, DIMENSION, MODULUS)
    return (total % MODULUS).tolist()


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), parameters=st.one_of(complete(), ring(), agreeing()))
def test_a_disturbed_session_gives_the_exact_sum_or_a_typed_end(data, parameters):
    play = Play(data, parameters)
    session = play.session
    play.run()
    session.check()
    state = session.server_state
    assert isinstance(state, server.Completed | server.Failed)
    if isinstance(state, server.Completed):
        summed = [n for n in play.numbers if identity_of(n) in state.survivors]
        assert session.total.tolist() == exact_sum(summed)
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
