"""A server that shows different sets to different clients: every way to do it.

Profile malicious-server, cohorts of up to seven clients, every number of colluders.
The server shows each honest client one of two or three sets U3, or none; colluders sign
whatever helps it, and it passes on what signatures it has.  It must not get answers for
two sets, nor t shares of both secrets of a client (R5.4-6, R5.5-1 to R5.5-4).

Cases that differ only by renaming are run once.  What a client sends is asked of
the real state machine, each question once.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import combinations_with_replacement, product
from typing import NamedTuple

import pytest
from secagg_testing.cohorts import one_hot, signing_parameters_for
from secagg_testing.knowledge.claims import check
from secagg_testing.knowledge.facts import Facts
from secagg_testing.observed_session import ObservedSession

from secagg.crypto.shamir import SHARE_SIZE
from secagg.crypto.transcript import encode_set
from secagg.errors import ErrorCode
from secagg.protocol.agreement import sign_context
from secagg.protocol.client import checks
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.client.states import Failed, Masked, Signed
from secagg.protocol.context import unmask_context
from secagg.protocol.events import (
    InputBound,
    InputReady,
    Received,
    Send,
    Step,
    input_digest,
)
from secagg.protocol.messages import (
    Consistency,
    Envelope,
    Quorum,
    Round,
    Shares,
    Survivors,
)
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.profiles import Profile
from secagg.simulation import identity_of
from secagg.simulation.driver import accepting, membership_of

DIMENSION = 2
# Clients and colluders: all cohorts in which an honest client has an honest peer.
COHORTS = [(n, c) for n in range(2, 8) for c in range(n - 1)]

View = frozenset[int]


class Seat(NamedTuple):
    """An honest client: its number, the views it is in, and those it receives."""

    stands_in: frozenset[int]
    shown: int | None


class Cohort:
    """Clients that have uploaded and wait for U3, in as many states as are asked for.

    Attributes:
        clients: n.
        colluders: How many; they have the highest roster indices.
        parameters: Of the session.
        masked: The state of each client.
    """

    def __init__(self, clients: int, colluders: int, threshold: int | None = None):
        self.clients, self.colluders = clients, colluders
        given = {} if threshold is None else {"threshold": threshold}
        self.parameters = signing_parameters_for(
            clients, dimension=DIMENSION, colluders=colluders, **given
        )
        session = uploaded(self.parameters)
        self.masked = session.clients
        self.roster_proofs = session.server_state.roster_proofs
        self.journals = session.client_journals
        self.tape = session.facts
        self.session_id = session.session_id
        self.policy = accepting(self.parameters)
        self.signed = cache(self._signed)
        self.reveals = cache(self._reveals)

    @property
    def honest(self) -> range:
        """All clients but the colluders."""
        return range(self.clients - self.colluders)

    def step(self, state, message):
        """Deliver a message to a client; return its state and its messages."""
        event = Received(Envelope.of(message))
        result = client_machine.step(state, event, policy=self.policy)
        sent = [o.envelope.open() for o in result.outputs if isinstance(o, Send)]
        return result.state, sent

    def bitmap(self, view: View) -> bytes:
        """Return a set as text."""
        return encode_set(view, self.clients)

    def _signed(self, number: int, view: View) -> tuple[object, bytes | None]:
        """Show an honest client a set; return what it is then, and its signature."""
        shown = Survivors(self.bitmap(view))
        state, sent = self.step(self.masked[number], shown)
        assert len(sent) == isinstance(state, Signed)
        return state, sent[0].signature if sent else None

    def forged(self, number: int, view: View) -> bytes:
        """Return the signature of a colluder, which signs anything."""
        key = membership_of(identity_of(number), number + 1).key
        ctx2 = self.masked[0].delivered.ctx2
        ctx3 = unmask_context(ctx2, self.bitmap(view), self.parameters.suite)
        return sign_context(key, ctx3, self.parameters.suite).signature

    def quorum(self, view: View, asked: frozenset[int]) -> Quorum:
        """Return all signatures that a server has for a set that it showed to some."""
        found = {n: self.signed(n, view)[1] for n in asked}
        found |= {n: self.forged(n, view) for n in view if n not in self.honest}
        signed = sorted((n, s) for n, s in found.items() if s is not None)
        others = sorted(view - {number for number, _ in signed})
        return Quorum(tuple(signed), tuple(self.roster_proofs[n] for n in others))

    def _reveals(self, number: int, view: View, asked: frozenset[int]) -> bool:
        """Return whether a client that has signed a set answers for it."""
        state, _ = self.signed(number, view)
        if not isinstance(state, Signed):
            return False
        state, sent = self.step(state, self.quorum(view, asked))
        if not sent:
            assert state.code is ErrorCode.NO_QUORUM
        return bool(sent)

    def answers(self, views: list[View], seats: list[Seat]) -> dict[int, View]:
        """Return who answers, and for which set, when each has sat down."""
        answered = {}
        for shown, view in enumerate(views):
            asked = frozenset(n for n, seat in enumerate(seats) if seat.shown == shown)
            answered |= {n: view for n in asked if self.reveals(n, view, asked)}
        return answered

    def knowledge(self, views: list[View], seats: list[Seat]) -> Facts:
        """Return all that the adversary sees when each has sat down."""
        facts = self.tape.copied()

        def note(number, state, message):
            to = (self.session_id, identity_of(number))
            facts.on_update(*to, Envelope.of(message))
            state, sent = self.step(state, message)
            for said in sent:
                facts.on_request(*to, Envelope.of(said))
            return state

        for shown, view in enumerate(views):
            asked = frozenset(n for n, seat in enumerate(seats) if seat.shown == shown)
            signers = {
                n: note(n, self.masked[n], Survivors(self.bitmap(view))) for n in asked
            }
            for number, state in signers.items():
                note(number, state, self.quorum(view, asked))
        return facts

    def both_secrets(self, answered: dict[int, View]) -> set[int]:
        """Return of whom the server has t shares of both secrets."""
        t, found = self.parameters.threshold, set()
        for dealer in self.honest:
            lives = sum(dealer in view for view in answered.values())
            lost = len(answered) - lives
            if min(lives, lost) + self.colluders >= t:
                found.add(dealer)
        return found


class Tape(Facts):
    """Facts that can be replayed to others."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        """Record whatever is called from outside."""
        found = super().__getattribute__(name)
        if name not in {"session", "corrupt", "on_update", "on_request", "on_vector"}:
            return found

        def recorded(*args):
            self.calls.append((name, args))
            return found(*args)

        return recorded

    def copied(self) -> Facts:
        """Replay everything to new facts."""
        facts = Facts()
        for name, args in self.calls:
            getattr(facts, name)(*args)
        return facts


def uploaded(parameters: ProtocolParameters) -> ObservedSession:
    """Return a session whose clients have all uploaded and await U3."""
    clients = parameters.max_clients
    session = ObservedSession(
        parameters,
        [one_hot(n, DIMENSION, 1 << 20) for n in range(clients)],
        facts=Tape(),
        corrupt=frozenset(range(clients - parameters.colluders, clients)),
    )
    for which in (Round.ADVERTISE_KEYS, Round.SHARE_KEYS):
        session.play(which)
        session.close(which)
    session.play(Round.MASKED_INPUT_COLLECTION)
    assert all(isinstance(state, Masked) for state in session.clients.values())
    return session


def seats_among(views: int, *, silent: bool) -> list[Seat]:
    """Return every part that a client can have among some views.

    Args:
        views: How many there are.
        silent: Whether some who stand in a view are shown none.
    """
    found = []
    for stands in product((False, True), repeat=views):
        stands_in = frozenset(view for view, has in enumerate(stands) if has)
        nowhere = [None] if silent or not stands_in else []
        found += [Seat(stands_in, shown) for shown in [*sorted(stands_in), *nowhere]]
    return found


def splits(cohort: Cohort) -> Iterator[tuple[list[View], list[Seat]]]:
    """Yield every split of a cohort, up to who is who.

    Colluders stand in every view: there they sign, and elsewhere they help no client.
    """
    colluders = set(range(len(cohort.honest), cohort.clients))
    for count, silent in ((2, True), (3, cohort.clients < 5)):
        kinds = seats_among(count, silent=silent)
        for seats in combinations_with_replacement(kinds, len(cohort.honest)):
            views = [
                frozenset({n for n, seat in enumerate(seats) if v in seat.stands_in})
                | colluders
                for v in range(count)
            ]
            if len(set(views)) == count:
                yield views, list(seats)


TWO_SETS, BOTH_SECRETS = "two sets are answered for", "both secrets of a client"


def breaches(cohort: Cohort) -> Iterator[str]:
    """Run every split; yield the violations, and the number of runs without any."""
    for views, seats in splits(cohort):
        answered = cohort.answers(views, seats)
        if len(set(answered.values())) > 1:
            yield TWO_SETS
        if cohort.both_secrets(answered):
            yield BOTH_SECRETS


@pytest.mark.parametrize(("clients", "colluders"), COHORTS)
def test_no_split_view_gets_two_answers_or_both_secrets(clients, colluders):
    cohort = Cohort(clients, colluders)
    assert not Counter(breaches(cohort))
    all_clients = frozenset(range(clients))
    seats = [Seat(frozenset({0}), 0)] * len(cohort.honest)
    assert cohort.answers([all_clients], seats).keys() == set(cohort.honest)


@pytest.mark.parametrize(("clients", "colluders"), [(3, 0), (4, 1), (4, 2)])
def test_the_ledger_finds_nothing_in_any_split_of_a_small_cohort(clients, colluders):
    cohort = Cohort(clients, colluders)
    charged = {identity_of(number): 1 for number in range(clients)}
    known = [
        len(check(cohort.knowledge(views, seats), charged=charged))
        for views, seats in splits(cohort)
        if len(views) == 2
    ]
    assert 1 in known  # some splits do give the sum that they may


# One less, and wherever two sets of the least size exist there is a split that wins.
SPLITTABLE = [(n, c) for n, c in COHORTS if c + 2 < n <= 6]


@pytest.mark.parametrize(("clients", "colluders"), SPLITTABLE)
def test_a_quorum_smaller_by_one_is_insufficient(clients, colluders, monkeypatch):
    cohort = Cohort(clients, colluders)  # its rosters were checked by the rules
    smaller = property(lambda parameters: parameters.threshold - 1)
    monkeypatch.setattr(ProtocolParameters, "quorum", smaller)
    assert set(breaches(cohort)) == {TWO_SETS}


@pytest.mark.parametrize(("clients", "colluders"), SPLITTABLE[1:])
def test_a_threshold_smaller_by_one_is_insufficient(clients, colluders, monkeypatch):
    """Neither R3.2-8 nor R5.2-7 is checked; the first cohort has t = 2."""
    monkeypatch.setattr(ProtocolParameters, "_malicious_rules", lambda _: iter(()))
    monkeypatch.setattr(checks, "check_overlap", lambda *_: None)
    threshold = (clients + colluders) // 2
    cohort = Cohort(clients, colluders, threshold)
    assert set(breaches(cohort)) == {TWO_SETS, BOTH_SECRETS}


# --- one client, asked for anything in any order ------------------------------------

# All clients, and two ways to leave one out.
VIEWS = (frozenset(range(4)), frozenset({0, 1, 2}), frozenset({0, 2, 3}))


@pytest.fixture(name="four", scope="module")
def _four():
    return Cohort(4, 0)


def views_with(number: int, clients: int) -> list[View]:
    """Return every set that can contain a client."""
    members = product((False, True), repeat=clients)
    found = [frozenset(n for n, has in enumerate(each) if has) for each in members]
    return [view for view in found if number in view]


@pytest.mark.parametrize("clients", [3, 4, 5])
def test_signatures_for_one_set_form_no_quorum_for_another(clients):
    cohort = Cohort(clients, 0)
    seen = set()
    for own, shown in product(views_with(0, clients), repeat=2):
        state, signature = cohort.signed(0, own)
        assert (signature is None) is (len(own) < cohort.parameters.threshold)
        if signature is None or own == shown or len(shown) < cohort.parameters.quorum:
            continue
        state, sent = cohort.step(state, cohort.quorum(shown, shown))
        assert not sent
        seen.add(state.code)
    assert seen <= {ErrorCode.U3_INVALID, ErrorCode.BAD_SIGNATURE}


@pytest.mark.parametrize("view", VIEWS)
def test_an_answer_covers_exactly_the_signed_set(four, view):
    for number in view:
        state, _ = four.signed(number, view)
        _, (answer,) = four.step(state, four.quorum(view, view))
        shares = [
            pair[SHARE_SIZE:] if dealer in view else pair[:SHARE_SIZE]
            for dealer, pair in zip(state.held.dealers, state.held.pairs, strict=True)
        ]
        assert answer.revealed == b"\0" + b"".join(shares)


def replayed(cohort: Cohort, number: int, said: tuple) -> client.ClientState:
    """Rebuild a client from its journal, as after kill -9."""
    state = client_machine.start()
    for event in (*cohort.journals[number], *said):
        record = (
            InputBound(input_digest(event.vector))
            if isinstance(event, InputReady)
            else event
        )
        state = client_machine.step(state, record, policy=cohort.policy).state
    return state


def histories(cohort: Cohort, length: int) -> Iterator[list[Envelope]]:
    """Ask client 0 for anything, in any order; yield all that it has sent, each time.

    It may die after each request that it has recorded, before or after it has sent
    something: the record says who continues.  A request that it has not
    recorded was not answered either, and is as if it had not been made.
    """
    requests = [Survivors(cohort.bitmap(view)) for view in VIEWS]
    requests += [cohort.quorum(view, view) for view in VIEWS]

    def ask(said: tuple, sent: list[Envelope]) -> Iterator[list[Envelope]]:
        state = replayed(cohort, 0, said)
        if len(said) == length or isinstance(state, Failed):
            yield sent
            return
        for request in requests:
            event = Received(Envelope.of(request))
            result = client_machine.step(state, event, policy=cohort.policy)
            after = replayed(cohort, 0, (*said, event))
            assert after == result.state
            again = client_machine.pending_outputs(after)
            yield from ask((*said, event), sent + sent_in((*result.outputs, *again)))

    yield from ask((), [])


def sent_in(outputs) -> list[Envelope]:
    """Return the messages among outputs."""
    return [output.envelope for output in outputs if isinstance(output, Send)]


def contradictions(said: list[list[Envelope]]) -> set[type]:
    """Return of what kind a client has sent two different messages in any history."""
    return {
        kind
        for sent in said
        for kind in (Consistency, Shares)
        if len({each.data for each in sent if each.kind is kind}) > 1
    }


def test_no_order_of_requests_and_restarts_gives_two_signatures_or_two_answers(four):
    said = list(histories(four, 4))
    assert not contradictions(said)
    # Some orders do give an answer.
    assert {each.kind for sent in said for each in sent} == {Consistency, Shares}


def test_an_unrecorded_signature_allows_two_signatures(four, monkeypatch):
    row = client_machine.TRANSITIONS[Profile.MALICIOUS_SERVER][Masked, Survivors]

    def agree(state, event, policy):
        return Step(state, row.handler(state, event, policy).outputs)

    forgetful = client_machine.Edge(agree, {Masked})
    table = client_machine.TRANSITIONS[Profile.MALICIOUS_SERVER]
    monkeypatch.setitem(table, (Masked, Survivors), forgetful)
    assert contradictions(list(histories(four, 2))) == {Consistency}
