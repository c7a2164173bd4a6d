"""A server that sends two rosters in one session, with clients that are in both.

Profile malicious-server.  A client has one advert, hence one mask key, in all rosters
of a session, and accepts one of them.  The server says of it in the other whatever it
likes: that it is a member, that it has dealt, that its input is in.  If answers rebuild
the key in its own roster, the masks that clients of the other share with it come off.
R5.3-13 keeps it out of every U3 that is answered for.

The clients are the real state machines.  The server is written here, and checks
nothing.  What it can read is computed twice: by linear algebra over the masks that were
made and the shares that were given, and by the knowledge ledger from the bytes.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations_with_replacement, product

import pytest
from secagg_testing.cohorts import offer_of, signing_parameters_for
from secagg_testing.knowledge.claims import Claim, ForbiddenKnowledgeError, check
from secagg_testing.knowledge.closure import close
from secagg_testing.knowledge.facts import Facts
from secagg_testing.knowledge.sums import recover, revealed_sums

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.modular import word_dtype
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.transcript import encode_set
from secagg.errors import ErrorCode
from secagg.protocol import agreement, packing
from secagg.protocol.agreement import sign_context
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.client.states import Failed, ReadyForInput, Signed
from secagg.protocol.context import mask_context, unmask_context
from secagg.protocol.events import (
    InputReady,
    MaskAndUpload,
    PlainVector,
    Received,
    Send,
    SessionOffered,
)
from secagg.protocol.messages import (
    BUNDLE_BYTES,
    Bundles,
    Complaint,
    Consistency,
    Delivery,
    Envelope,
    Quorum,
    Roster,
    RosterProof,
    Shares,
    Survivors,
)
from secagg.protocol.packing import packed_size
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.receipts.receipt import AuditReceipt, Outcome, WrittenBy
from secagg.protocol.receipts.verifier import (
    Finding,
    ReceiptError,
    VerificationStep,
    verify_receipt,
)
from secagg.protocol.refund import ChargeOutcome
from secagg.simulation.driver import (
    OFFERED_AT,
    accepting,
    membership_of,
    simulated_trust,
)

DIMENSION = 2
WEST, EAST = "west", "east"
OTHER = {WEST: EAST, EAST: WEST}


@dataclass(frozen=True)
class Sets:
    """What one roster's clients are shown, by name."""

    roster: frozenset[str]
    share_holders: frozenset[str]
    survivors: frozenset[str]


@dataclass
class Schedule:
    """What a server does in one session.

    Attributes:
        parameters: Of the session.
        home: The roster that each honest client is shown.
        sets: By roster.
        others: By roster, what some of its clients are shown instead.
        misled: Who is shown that.
        corrupt: Clients whose secrets the server has; they play their part in both.
        lost_late: Clients that have uploaded and sign nothing.
        inputs: Every entry of each client's vector, by name; 1 by default.
    """

    parameters: ProtocolParameters
    home: dict[str, str]
    sets: dict[str, Sets]
    others: dict[str, Sets] = field(default_factory=dict)
    misled: frozenset[str] = frozenset()
    corrupt: frozenset[str] = frozenset()
    lost_late: frozenset[str] = frozenset()
    inputs: dict[str, int] = field(default_factory=dict)

    def shown(self, name: str, which: str) -> Sets:
        """Return what a client is shown of a roster."""
        source = self.others if name in self.misled else self.sets
        return source.get(which, self.sets[which])

    def views(self, which: str) -> list[Sets]:
        """Return all that clients are shown of a roster."""
        found = [self.sets[which], self.others.get(which, self.sets[which])]
        return found[: 1 + (found[0] != found[1])]


class LyingServer:
    """Runs a schedule against real clients; records all their messages.

    Attributes:
        facts: The same, for the ledger.
        states: Of each client in each roster that it was shown.
        masked: Who has masked an input in which roster.
        answered: Who has answered in which roster.
        quorums: What was shown last in each roster.
        complaints: How many there were in each roster.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.plan = schedule
        self.parameters = schedule.parameters
        self.descriptor = offer_of(
            self.parameters,
            session_end=OFFERED_AT + self.parameters.deadlines.longest_session,
        )
        self.session_id = self.descriptor.session_id
        self.policy = accepting(self.parameters)
        self.facts = Facts()
        self.facts.session(self.descriptor)
        self.states: dict[tuple[str, str], client.ClientState] = {}
        self.adverts = {}
        self.rosters: dict[str, Roster] = {}
        self.contexts: dict[str, bytes] = {}  # ctx1
        self.dealt: dict[tuple[str, str], Bundles] = {}
        self.signatures: dict[tuple[str, str], bytes] = {}
        self.masked: set[tuple[str, str]] = set()
        self.answered: set[tuple[str, str]] = set()
        self.quorums: dict[str, Quorum] = {}
        self.complaints = dict.fromkeys((WEST, EAST), 0)

    def run(self) -> "LyingServer":
        """Play one roster after the other, each to its end."""
        names = sorted(set().union(*(each.roster for each in self.plan.sets.values())))
        self.serials = {name: 1 + serial for serial, name in enumerate(names)}
        for which in self.plan.sets:
            for name in names:
                if self.plan.home.get(name, which) == which:
                    self.offer(name, which)
        for which in self.plan.sets:
            self.show_roster(which)
            self.deliver(which)
            self.show_survivors(which)
            self.show_quorum(which)
        return self

    # --- the rounds -----------------------------------------------------------------

    def offer(self, name: str, which: str) -> None:
        """Offer the session; the advert is the same in every roster."""
        seed = hashlib.sha256(name.encode()).digest()
        if name in self.plan.corrupt:
            self.facts.corrupt(name, SecretBytes(seed))
        offered = SessionOffered(
            self.descriptor,
            name,
            self.descriptor.aggregator,
            SecretBytes(seed),
            OFFERED_AT,
            membership_of(name, self.serials[name]),
        )
        result = client_machine.step(
            client_machine.start(), offered, policy=self.policy
        )
        self.states[name, which] = result.state
        (sent,) = result.outputs
        self.facts.on_request(self.session_id, name, sent.envelope)
        assert self.adverts.setdefault(name, sent.envelope.open()) == (
            sent.envelope.open()
        )

    def show_roster(self, which: str) -> None:
        """Collect bundles of those who accept the roster."""
        members = self.plan.sets[which].roster
        self.rosters[which] = Roster.of([self.adverts[name] for name in members], b"")
        for name in self.readers(which, members):
            for said in self.tell(name, which, self.rosters[which]):
                self.dealt[name, which] = said
                self.contexts[which] = self.states[name, which].agreement.ctx1

    def deliver(self, which: str) -> None:
        """Open uploads; of who has not dealt there is garbage."""
        order = self.names(which)
        for name in self.readers(which, self.plan.sets[which].roster):
            share_holders = self.plan.shown(name, which).share_holders
            bundles = b""
            for dealer in order:
                if dealer in share_holders and dealer != name:
                    place = [each for each in order if each != dealer].index(name)
                    dealt = self.dealt.get((dealer, which))
                    sealed = bytes(BUNDLE_BYTES * len(order))
                    sealed = sealed if dealt is None else dealt.sealed
                    bundles += sealed[place * BUNDLE_BYTES :][:BUNDLE_BYTES]
            said = self.tell(
                name, which, Delivery(self.bitmap(which, share_holders), bundles)
            )
            self.complaints[which] += sum(isinstance(each, Complaint) for each in said)
            if isinstance(self.states[name, which], ReadyForInput):
                self.collect(name, which)

    def collect(self, name: str, which: str) -> None:
        """Make a client mask its vector."""
        modulus = self.parameters.modulus
        entry = self.plan.inputs.get(name, 1)
        vector = PlainVector(word_dtype(modulus).type([entry] * DIMENSION))
        state = self.states[name, which]
        result = client_machine.step(state, InputReady(vector), policy=self.policy)
        self.states[name, which] = result.state
        (output,) = result.outputs
        assert isinstance(output, MaskAndUpload)
        masked = packing.mask_input(vector.residues, output.job)
        self.facts.on_vector(self.session_id, name, masked)
        self.masked.add((name, which))

    def show_survivors(self, which: str) -> None:
        """Collect signatures of U3."""
        members = self.plan.sets[which].roster - self.plan.lost_late
        for name in self.readers(which, members):
            survivors = self.plan.shown(name, which).survivors
            if (name, which) not in self.masked or name not in survivors:
                continue
            for said in self.tell(
                name, which, Survivors(self.bitmap(which, survivors))
            ):
                assert isinstance(said, Consistency)
                self.signatures[name, which] = said.signature

    def show_quorum(self, which: str) -> None:
        """Ask for answers, with the best proofs that this server has."""
        if which not in self.contexts:
            return  # no client has accepted this roster
        for view in reversed(self.plan.views(which)):
            self.show_quorum_for(view, which)

    def show_quorum_for(self, view: Sets, which: str) -> None:
        """Ask those who were shown one view of the sets."""
        survivors, order = view.survivors, self.names(which)
        signed, proofs = [], []
        for index, name in enumerate(order):
            is_asked = self.plan.shown(name, which) == view
            if name in self.plan.corrupt & survivors:
                signed.append((index, self.forged(name, view, which)))
            elif is_asked and (name, which) in self.signatures:
                signed.append((index, self.signatures[name, which]))
            elif name in survivors:
                proofs.append(self.proof(name, which, index))
        self.quorums[which] = Quorum(tuple(signed), tuple(proofs))
        for name in self.readers(which, survivors - self.plan.lost_late):
            if self.plan.shown(name, which) != view:
                continue
            if isinstance(self.states[name, which], Signed):
                for said in self.tell(name, which, self.quorums[which]):
                    assert isinstance(said, Shares)
                    self.answered.add((name, which))

    def forged(self, name: str, view: Sets, which: str) -> bytes:
        """Return what a colluder signs: anything."""
        suite = self.parameters.suite
        ctx2 = mask_context(
            self.contexts[which],
            self.bitmap(which, view.share_holders),
            suite,
            edge_root=b"",
            noise_context=b"",
        )
        ctx3 = unmask_context(ctx2, self.bitmap(which, view.survivors), suite)
        key = membership_of(name, self.serials[name]).key
        return sign_context(key, ctx3, suite).signature

    def proof(self, name: str, which: str, index: int) -> RosterProof:
        """Return what a client has signed of this roster, or else of the other."""
        dealt = self.dealt.get((name, which)) or self.dealt.get((name, OTHER[which]))
        if dealt is None:
            return RosterProof(index, bytes(32), bytes(64))
        digest = hashlib.sha256(dealt.sealed).digest()
        return RosterProof(index, digest, dealt.signature)

    # --- what all rounds need -------------------------------------------------------

    def tell(self, name, which, message) -> list:
        """Deliver a message to a client; return its messages."""
        envelope = Envelope.of(message)
        self.facts.on_update(self.session_id, name, envelope)
        event = Received(envelope)
        result = client_machine.step(
            self.states[name, which], event, policy=self.policy
        )
        self.states[name, which] = result.state
        sent = [each.envelope for each in result.outputs if isinstance(each, Send)]
        for each in sent:
            self.facts.on_request(self.session_id, name, each)
        return [each.open() for each in sent]

    def readers(self, which: str, members: frozenset[str]) -> list[str]:
        """Return those of some members who still take part in a roster."""
        return [
            name
            for name in sorted(members)
            if not isinstance(self.states.get((name, which), None), Failed | None)
        ]

    def names(self, which: str) -> list[str]:
        """Return the members of a roster in its order."""
        return [advert.identity for advert in self.rosters[which].adverts]

    def bitmap(self, which: str, members: frozenset[str]) -> bytes:
        """Return a set as text."""
        order = self.names(which)
        return encode_set({order.index(name) for name in members}, len(order))

    def codes(self, which: str) -> set[ErrorCode]:
        """Return why clients have left a roster."""
        return {
            state.code
            for (_, where), state in self.states.items()
            if where == which and isinstance(state, Failed)
        }

    def of_other_roster(self, which: str, reader: str = "") -> set[str]:
        """Return the clients of a roster's U3 that received the other."""
        honest = self.plan.shown(reader, which).survivors - self.plan.corrupt
        return {name for name in honest if self.plan.home[name] != which}

    def charged(self) -> dict[str, int]:
        """Return the content of the clients' stores."""
        return {name: 1 for name, _ in self.masked}

    def receipt(self, which: str, quorum: Quorum | None = None) -> bytes:
        """Return a receipt of one roster, with a sum that no verifier can check."""
        sets, parameters = self.plan.sets[which], self.parameters
        return AuditReceipt(
            writer=WrittenBy.SERVER,
            offer=self.descriptor.encode(),
            view=self.rosters[which].encode(),
            share_holders=self.bitmap(which, sets.share_holders),
            survivors=self.bitmap(which, sets.survivors),
            quorum=(quorum or self.quorums[which]).encode(),
            outcome=Outcome.RELEASED,
            sum_hash=bytes(32),
            size=packed_size(parameters.dimension, parameters.bits),
        ).encode()


# --- what can be read, by linear algebra -------------------------------------------


def null_combinations(rows: list[dict]) -> list[list[Fraction]]:
    """Return a basis of the combinations of rows in which every unknown cancels."""
    names = sorted({name for row in rows for name in row}, key=repr)
    table = [
        [Fraction(row.get(name, 0)) for name in names]
        + [Fraction(place == other) for other in range(len(rows))]
        for place, row in enumerate(rows)
    ]
    for column in range(len(names)):
        pivot = next((row for row in table if row[column]), None)
        if pivot is None:
            continue
        table.remove(pivot)
        for row in table:
            factor = row[column] / pivot[column]
            row[:] = [a - factor * b for a, b in zip(row, pivot, strict=True)]
    return [row[len(names) :] for row in table]


def rank(rows: list[list[Fraction]]) -> int:
    """Return the rank of a matrix: rows less the combinations that vanish."""
    return len(rows) - len(null_combinations([dict(enumerate(row)) for row in rows]))


def read_by(server: LyingServer) -> tuple[int, bool]:
    """Return how many combinations can be read, and whether they are agreed sums.

    A client deals in its home only.  An answer gives of each dealer of U2 one share:
    of its seed b if it is in U3, else of its mask key.
    """
    plan, threshold = server.plan, server.parameters.threshold

    def is_known(name: str, *, lives: bool) -> bool:
        given = 0
        for who, which in server.answered:
            sets = plan.shown(who, which)
            is_asked = which == plan.home[name] and name in sets.share_holders
            if who not in plan.corrupt and is_asked:
                given += (name in sets.survivors) is lives
        return len(plan.corrupt) + given >= threshold

    key_known = {
        name: name in plan.corrupt or is_known(name, lives=False)
        for name in {*plan.home, *plan.corrupt}
    }
    vectors = [each for each in sorted(server.masked) if each[0] not in plan.corrupt]
    rows = []
    for name, which in vectors:
        row = {} if is_known(name, lives=True) else {("self", name): 1}
        share_holders = plan.shown(name, which).share_holders
        for other in share_holders - {name}:
            if not key_known[name] and not key_known[other]:
                pair = tuple(sorted((name, other)))
                mask = ("pair", which, tuple(sorted(share_holders)), pair)
                row[mask] = 1 if name == pair[0] else -1
        rows.append(row)
    found, agreed = null_combinations(rows), agreed_sums(server, vectors)
    return len(found), rank([*agreed, *found]) == len(agreed)


def agreed_sums(server: LyingServer, vectors) -> list[list[Fraction]]:
    """Return what answers may give: the whole honest part of a U3, or nothing."""
    plan, sums = server.plan, []
    for which, view in [(w, view) for w in (WEST, EAST) for view in plan.views(w)]:
        answers = [name for name, where in server.answered if where == which]
        honest = view.survivors - plan.corrupt
        if any(plan.shown(name, which) == view for name in answers) and all(
            (name, which) in vectors
            and plan.shown(name, which).share_holders == view.share_holders
            for name in honest
        ):
            sums.append([Fraction(w == which and n in honest) for n, w in vectors])
    return sums


# --- schedules ----------------------------------------------------------------------

PARAMETERS = signing_parameters_for(5, dimension=DIMENSION)
WITH_COLLUDER = signing_parameters_for(5, dimension=DIMENSION, colluders=1)
# How far a client gets in the roster that it was not shown.
ABSENT, LISTED, LOST, PRESENT = range(4)


@dataclass(frozen=True, order=True)
class Shared:
    """A client that may be in both rosters."""

    home: str
    is_lost: bool  # at home, after it has dealt
    abroad: int


def schedule(parameters, own: dict[str, int], shared, colluders: int = 0) -> Schedule:
    """Return the schedule for some clients of one roster, and some of both."""
    corrupt = frozenset(f"colluder-{number}" for number in range(colluders))
    home = {f"{which}-{n}": which for which in own for n in range(own[which])}
    home |= {f"both-{number}": each.home for number, each in enumerate(shared)}
    sets = {}
    for which in (WEST, EAST):
        reached = {name: PRESENT for name in home if home[name] == which}
        reached |= dict.fromkeys(corrupt, PRESENT)
        for number, each in enumerate(shared):
            at_home = LOST if each.is_lost else PRESENT
            name = f"both-{number}"
            reached[name] = at_home if each.home == which else each.abroad
        sets[which] = Sets(
            *(
                frozenset(name for name in reached if reached[name] >= least)
                for least in (LISTED, LOST, PRESENT)
            )
        )
    return Schedule(parameters, home, sets, corrupt=corrupt)


EVERY_SHARED = [
    Shared(home, is_lost, abroad)
    for home, is_lost, abroad in product(
        (WEST, EAST), (False, True), (ABSENT, LISTED, LOST, PRESENT)
    )
]


def schedules(shared: int, colluders: int) -> Iterator[Schedule]:
    """Yield every schedule with so many clients that may be in both rosters.

    Those that differ by the names of clients or of rosters alone are played once.
    """
    parameters = WITH_COLLUDER if colluders else PARAMETERS
    room = parameters.max_clients - shared - colluders
    least = max(0, parameters.threshold - shared - colluders)
    for west, east in product(range(least, room + 1), repeat=2):
        own = {WEST: west, EAST: east}
        for each in combinations_with_replacement(EVERY_SHARED, shared):
            if west < east or (west == east and mirrored(each) < each):
                continue
            made = schedule(parameters, own, each, colluders)
            if all(is_possible(made, which) for which in (WEST, EAST)):
                yield made


def mirrored(shared: tuple[Shared, ...]) -> tuple[Shared, ...]:
    """Return the same with the rosters exchanged."""
    return tuple(sorted(replace(each, home=OTHER[each.home]) for each in shared))


def is_possible(made: Schedule, which: str) -> bool:
    """Whether clients of a roster would sign its U3, and are enough for a quorum."""
    sets, parameters = made.sets[which], made.parameters
    signers = {
        name
        for name in sets.survivors
        if name in made.corrupt or made.home[name] == which
    }
    return (
        parameters.min_clients <= len(sets.roster) <= parameters.max_clients
        and len(sets.survivors) >= parameters.min_survivors
        and len(signers) >= parameters.threshold
    )


CASES = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]


@pytest.fixture(name="without_the_rule")
def _without_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept every roster proof."""
    monkeypatch.setattr(agreement, "check_bundle_signature", lambda *_, **__: None)


def outcome(server: LyingServer) -> tuple[int, bool]:
    """Return the sums read, after the ledger has confirmed them."""
    count, is_agreed = read_by(server)
    known = revealed_sums(close(server.facts))
    assert len([each for each in known if not each.is_parity]) == count
    broken = broken_claims(server)
    assert bool(broken - {Claim.ONE_ROSTER}) is not is_agreed
    broke_in = [
        which
        for name, which in server.answered
        if name not in server.plan.corrupt and server.of_other_roster(which, name)
    ]
    assert (Claim.ONE_ROSTER in broken) is bool(broke_in)
    return count, is_agreed


def broken_claims(server: LyingServer) -> set[Claim]:
    """Return what the ledger finds."""
    try:
        check(server.facts, charged=server.charged())
    except ForbiddenKnowledgeError as error:
        return {violation.claim for violation in error.violations}
    return set()


@pytest.mark.parametrize(("shared", "colluders"), CASES)
def test_two_rosters_release_only_agreed_sums(shared, colluders):
    played = [LyingServer(each).run() for each in schedules(shared, colluders)]
    found = [outcome(each) for each in played]
    assert all(is_agreed for _, is_agreed in found)
    # Two sums over two rosters are read where no client stands in for another.
    assert max(count for count, _ in found) == 2
    for each in played:
        answered = {which for _, which in each.answered}
        for which in (WEST, EAST):
            is_refused = bool(each.of_other_roster(which))
            assert (which in answered) is not is_refused
            refused = {ErrorCode.BAD_SIGNATURE} if is_refused else set()
            assert each.codes(which) == refused


@pytest.mark.usefixtures("without_the_rule")
@pytest.mark.parametrize(("shared", "colluders"), [(1, 0), (1, 1)])
def test_without_the_roster_proof_some_schedules_release_more(shared, colluders):
    found = [outcome(LyingServer(each).run()) for each in schedules(shared, colluders)]
    assert not all(is_agreed for _, is_agreed in found)


# --- more than one U2 and U3 --------------------------------------------------------

SCHEDULES = 40


class Chance:
    """The same choices in every run."""

    def __init__(self) -> None:
        self._entropy = SeededEntropy(SecretBytes(bytes(32)), b"schedules")

    def below(self, most: int) -> int:
        """Return a number from 0 to `most` - 1."""
        return int.from_bytes(self._entropy.token(8), "big") % most

    def part_of(self, members, percent=85, kept=frozenset()) -> frozenset[str]:
        """Return some of these clients, and certainly those that are kept."""
        found = {name for name in sorted(members) if self.below(100) < percent}
        return frozenset(found | (members & kept))


def split_schedule(chance: Chance) -> Schedule:
    """Return a schedule with two rosters, in each of which two views may be shown."""
    colluders = chance.below(3) // 2
    parameters = WITH_COLLUDER if colluders else PARAMETERS
    count = 1 + chance.below(2 - colluders)
    room = parameters.max_clients - count - colluders
    own = {which: 2 + chance.below(room - 1) for which in (WEST, EAST)}
    shared = [EVERY_SHARED[chance.below(len(EVERY_SHARED))] for _ in range(count)]
    made = schedule(parameters, own, shared, colluders)
    for which, sets in made.sets.items():
        share_holders = chance.part_of(sets.share_holders, kept=made.corrupt)
        survivors = chance.part_of(sets.survivors & share_holders, kept=made.corrupt)
        made.others[which] = Sets(sets.roster, share_holders, survivors)
    made.misled = chance.part_of(frozenset(made.home), percent=35)
    return made


def split_schedules() -> Iterator[Schedule]:
    """Yield schedules of chance."""
    chance = Chance()
    for _ in range(SCHEDULES):
        yield split_schedule(chance)


def test_no_mixture_of_rosters_and_sets_releases_more_than_agreed_sums():
    found = [outcome(LyingServer(each).run()) for each in split_schedules()]
    assert all(is_agreed for _, is_agreed in found)
    assert {count for count, _ in found} >= {0, 1}


@pytest.mark.usefixtures("without_the_rule")
def test_without_the_roster_proof_some_mixture_releases_more():
    played = (LyingServer(each).run() for each in split_schedules())
    assert not all(is_agreed for _, is_agreed in map(outcome, played))


# --- one schedule each --------------------------------------------------------------

FOUR_IN_A_SUM = signing_parameters_for(
    5, dimension=DIMENSION, min_survivors=4, min_clients=4
)
LOST_THERE = Shared(WEST, is_lost=True, abroad=PRESENT)


def with_eight_clients() -> Schedule:
    """Four of West and three of East; the eighth is lost in West, present in East."""
    made = schedule(FOUR_IN_A_SUM, {WEST: 4, EAST: 3}, [LOST_THERE])
    made.inputs = {f"{EAST}-{number}": 1 << number for number in range(3)}
    return made


def with_seven_clients() -> Schedule:
    """The least number: one of East stands in West, to make up for one."""
    stand_in = Shared(EAST, is_lost=False, abroad=PRESENT)
    made = schedule(FOUR_IN_A_SUM, {WEST: 3, EAST: 2}, [LOST_THERE, stand_in])
    made.inputs = {f"{EAST}-0": 1, f"{EAST}-1": 2, "both-1": 4}
    return made


SMALLER_SUMS = [with_eight_clients, with_seven_clients]


@pytest.mark.usefixtures("without_the_rule")
@pytest.mark.parametrize("make", SMALLER_SUMS)
def test_without_the_roster_proof_a_rebuilt_key_opens_part_of_another_roster(make):
    """Three inputs, where four are promised: what the rule is for."""
    server = LyingServer(make()).run()
    assert outcome(server) == (2, False) if make is with_eight_clients else (1, False)
    expected = {Claim.HONEST_PART, Claim.SIZE, Claim.ONE_ROSTER}
    assert broken_claims(server) == expected
    closure = close(server.facts)
    smallest = min(revealed_sums(closure), key=lambda each: len(each.members))
    assert len(smallest.members) == 3
    assert recover(closure, smallest).tolist() == [7] * DIMENSION


@pytest.mark.parametrize("make", SMALLER_SUMS)
def test_clients_do_not_answer_for_a_member_of_another_roster(make):
    """R5.3-13: clients leave, and keep the charge."""
    server = LyingServer(make()).run()
    assert server.complaints[EAST] == 3  # each tells the server, which does not care
    assert EAST not in {which for _, which in server.answered}
    assert server.codes(EAST) == {ErrorCode.BAD_SIGNATURE}
    left = [each for each in server.states.values() if isinstance(each, Failed)]
    assert {state.charge for state in left} == {ChargeOutcome.KEPT}
    count, is_agreed = outcome(server)
    assert is_agreed
    assert count == (make is with_eight_clients)  # West's own sum


def test_a_member_that_drops_out_after_its_upload_is_included():
    """It signs nothing more: what it has signed of the roster is shown."""
    plan = schedule(PARAMETERS, {WEST: 4, EAST: 3}, [])
    plan.lost_late = frozenset({"west-0"})
    server = LyingServer(plan).run()
    (proof,) = server.quorums[WEST].roster_proofs
    assert server.names(WEST)[proof.index] == "west-0"
    assert not server.quorums[EAST].roster_proofs
    assert outcome(server) == (2, True)
    west = [name for name, which in server.answered if which == WEST]
    assert sorted(west) == ["west-1", "west-2", "west-3"]


# --- receipts -----------------------------------------------------------------------


def verified(receipt: bytes):
    return verify_receipt(receipt, enrolment_key=simulated_trust().enrolment_key)


# In U2 of a roster that it was not shown, it leaves masks that nothing takes off.
@pytest.mark.parametrize(("abroad", "sums"), [(ABSENT, 2), (LISTED, 2), (LOST, 1)])
def test_two_cohorts_in_one_session_have_two_agreed_sets(abroad, sums):
    """Each over its own roster; the member of both is in one of them."""
    shared = [Shared(WEST, is_lost=False, abroad=abroad)]
    server = LyingServer(schedule(PARAMETERS, {WEST: 3, EAST: 4}, shared)).run()
    assert outcome(server) == (sums, True)
    verdicts = [verified(server.receipt(which)) for which in (WEST, EAST)]
    assert {verdict.finding for verdict in verdicts} == {Finding.AGREED}
    sids = {verdict.descriptor.session_id for verdict in verdicts}
    assert sids == {server.session_id}
    views = {verdict.receipt.view for verdict in verdicts}
    assert len(views) == 2


def test_no_receipt_includes_a_member_of_another_roster():
    """The server writes the best that it can of what clients have refused."""
    server = LyingServer(with_eight_clients()).run()
    assert verified(server.receipt(WEST)).finding is Finding.AGREED
    quorum = server.quorums[EAST]
    (proof,) = quorum.roster_proofs
    for proofs, code in {
        (proof,): ErrorCode.BAD_SIGNATURE,
        (): ErrorCode.U3_INVALID,
        (proof, replace(proof, index=proof.index + 1)): ErrorCode.U3_INVALID,
        (proof, proof): ErrorCode.BAD_ENCODING,
    }.items():
        with pytest.raises(ReceiptError) as refused:
            verified(server.receipt(EAST, replace(quorum, roster_proofs=proofs)))
        assert refused.value.step is VerificationStep.QUORUM
        assert refused.value.code is code
