"""Every cell of the refund table, against everything a server can say, in any order.

One client hears each script of up to four different messages (test_repeats.py has those
that are said twice).  Meanwhile the server does one of three things with the others: it
stops, it unmasks without this client's input, or with it.  The knowledge ledger says
what server and colluder can compute in the end.

What must hold: as long as the server tells the truth, no client is in more sums than it
has paid for, and one that is in none has paid for none.  A server that lies gains a sum
in two cells only, which profile 1 states: it tells a client whose input it unmasks that
it does not.  In the other profiles it gains nothing in any cell.
"""

from collections import defaultdict
from typing import NamedTuple

import pytest
from secagg_testing.cohorts import one_hot, parameters_for
from secagg_testing.knowledge.claims import Claim, violations
from secagg_testing.knowledge.closure import close
from secagg_testing.knowledge.sums import revealed_sums
from secagg_testing.observed_session import ObservedSession

from secagg.crypto.transcript import encode_set
from secagg.errors import ErrorCode
from secagg.protocol.client import machine as client_machine
from secagg.protocol.client import states as client
from secagg.protocol.events import AbortRequested, MaskAndUpload, Received
from secagg.protocol.messages import (
    Aborted,
    Delivery,
    Envelope,
    Fate,
    Released,
    Round,
    Survivors,
)
from secagg.protocol.parameters import Profile
from secagg.protocol.refund import ChargeOutcome, ReachedStage, charge_after
from secagg.simulation import identity_of

CLIENTS, THRESHOLD, MODULUS = 4, 3, 1 << 20
READER, COLLUDER = 0, 3
OTHERS = [number for number in range(CLIENTS) if number != READER]
LONGEST = 4


def survivors(*numbers):
    return Survivors(encode_set(set(numbers), CLIENTS))


def released(fate, count):
    return Released(fate, bytes(32), 12, count, 0)


def aborted(fate):
    return Aborted(fate, ErrorCode.CANCELLED, "why")


# What the server can say.  Roster and delivery are those of the session, whenever they
# come; None is the client's own deadline.
ROSTER, DELIVERY, DEADLINE = "roster", "delivery", None
SAYINGS = {
    ROSTER: ROSTER,
    DELIVERY: DELIVERY,
    "U3 with me": survivors(0, 1, 2, 3),
    "smaller U3 with me": survivors(0, 1, 2),
    "U3 without me": survivors(1, 2, 3),
    "sum with me": released(Fate.INCLUDED, 4),
    "sum of another number": released(Fate.INCLUDED, 3),
    "sum without me": released(Fate.NOT_INCLUDED, 3),
    "abort, never fixed": aborted(Fate.NEVER_FIXED),
    "abort, without me": aborted(Fate.NOT_INCLUDED),
    "abort, with me": aborted(Fate.INCLUDED),
    "my deadline": DEADLINE,
}
# What the server does with the others, and what it then says if it tells the truth.
WORLDS = {
    "stops": None,
    "unmasks without me": survivors(1, 2, 3),
    "unmasks with me": survivors(0, 1, 2, 3),
}
TRUE_FATE = {
    "stops": Fate.NEVER_FIXED,
    "unmasks without me": Fate.NOT_INCLUDED,
    "unmasks with me": Fate.INCLUDED,
}


class Run:
    """One script in one world."""

    def __init__(self, script, world):
        self.script, self.world = script, world
        self.session = ObservedSession(
            parameters_for(
                CLIENTS, dimension=CLIENTS, threshold=THRESHOLD, colluders=1
            ),
            [one_hot(number, CLIENTS, MODULUS) for number in range(CLIENTS)],
            corrupt=frozenset({COLLUDER}),
        )
        self.session.play(Round.ADVERTISE_KEYS)
        self.session.close(Round.ADVERTISE_KEYS)
        self.roster = self.session.fetch(READER)
        self.session.play(Round.SHARE_KEYS, OTHERS)
        self.standing, self.told, self.has_uploaded = ReachedStage.UNBOUND, None, False
        self.is_closed = self.is_over = False
        for name in script:
            self.deliver_update(SAYINGS[name])
        self.go_on()

    @property
    def state(self):
        return self.session.clients[READER]

    def deliver_update(self, saying):
        if saying is DEADLINE:
            event = AbortRequested(ErrorCode.DEADLINE, "late")
        elif isinstance(saying, str):
            event = Received(self.message(saying))
        else:
            event = Received(Envelope.of(saying))
        before = self.standing
        outputs = self.session.to_client(READER, event)
        is_asked = isinstance(self.state, client.ReadyForPlainInput)
        if is_asked and not self.has_uploaded:
            outputs += self.session.supply_input(READER)
        for output in outputs:
            self.has_uploaded |= isinstance(output, MaskAndUpload)
            message = self.session.message(READER, output)
            if message is not None and message.envelope.kind.ROUND is Round.SHARE_KEYS:
                self.session.to_server(message)
        if isinstance(self.state, client.Masked):
            self.standing = ReachedStage.MASKED
        elif isinstance(self.state, client.Answered):
            self.standing = ReachedStage.ANSWERED
        self.is_over = client_machine.is_over(self.state)
        if self.is_over and isinstance(saying, Released | Aborted):
            self.told = saying.fate  # also one that this client cannot believe
            if isinstance(saying, Released) and saying.fate is Fate.NOT_INCLUDED:
                self.told = None  # no release says that: a violation (R5.6-4)
        assert self.standing is before or not self.is_over

    def message(self, which):
        if which is ROSTER:
            return self.roster
        if isinstance(self.state, client.Advertised):  # too early, whatever it says
            return Envelope.of(Delivery(encode_set({0, 1, 2, 3}, CLIENTS), b""))
        self.close_sharing()
        return self.session.fetch(READER)

    def close_sharing(self):
        if not self.is_closed:
            self.is_closed = True
            self.session.close(Round.SHARE_KEYS)

    @property
    def has_shared(self):
        return READER in self.session.server_state.share_holders

    def go_on(self):
        """Let the others upload, and answer what this world asks."""
        self.close_sharing()
        for number in OTHERS:
            for output in self.session.update(number):
                self.session.message(number, output)
        asked = WORLDS[self.world]
        if asked is not None:
            for number in OTHERS:
                self.session.to_client(number, Received(Envelope.of(asked)))

    @property
    def is_possible(self):
        """Whether the others believe it: U3 lies in the U2 that they were told."""
        return self.world != "unmasks with me" or self.has_shared

    @property
    def is_truthful(self):
        """Whether the server follows the protocol, towards this client as well."""
        said = [SAYINGS[name] for name in self.script]
        asked = [each for each in said if isinstance(each, Survivors)]
        ends = [each for each in said if isinstance(each, Released | Aborted)]
        order = [each for each in said if each is not DEADLINE]
        follows = order == sorted(order, key=_place)
        return (
            follows
            and (self.world != "unmasks with me" or self.has_uploaded)
            and all(each == WORLDS[self.world] for each in asked)
            and (not asked or self.world == "unmasks with me")
            and all(each.fate is TRUE_FATE[self.world] for each in ends)
            and all(isinstance(end, Aborted) or self.has_sum(end) for end in ends)
            and released(Fate.NOT_INCLUDED, 3) not in ends
        )

    def has_sum(self, end):
        size = 4 if self.world == "unmasks with me" else 3
        return self.world != "stops" and end.survivors == size

    @property
    def cell(self):
        return self.standing, self.told


def _place(saying):
    """In which order a server says things."""
    order = (ROSTER, DELIVERY, Survivors, (Released, Aborted))
    for place, kind in enumerate(order):
        if saying == kind if isinstance(kind, str) else isinstance(saying, kind):
            return place
    raise AssertionError(saying)


class Finding(NamedTuple):
    """What became of one run."""

    script: tuple[str, ...]
    world: str
    cell: tuple[ReachedStage, Fate | None]
    charge: ChargeOutcome | None  # None while the session continues
    sums: int  # known ones with the client in them
    is_truthful: bool
    broken: tuple[Claim, ...]


def judged(run):
    closure = close(run.session.facts)
    sums = revealed_sums(closure)
    name = identity_of(READER)
    broken = violations(closure, sums, charged=run.session.charged)
    return Finding(
        script=run.script,
        world=run.world,
        cell=run.cell,
        charge=run.state.charge if run.is_over else None,
        sums=sum(name in each.members for each in sums),
        is_truthful=run.is_truthful,
        broken=tuple(each.claim for each in broken),
    )


@pytest.fixture(scope="module")  # made before the sessions of each test are watched
def findings():
    """Run every script in every world; what is said after the end changes nothing."""
    found, open_scripts = [], [()]
    while open_scripts:
        script = open_scripts.pop()
        runs = [Run(script, world) for world in WORLDS]
        found += [judged(run) for run in runs if run.is_possible]
        if not runs[0].is_over and len(script) < LONGEST:
            new = [name for name in SAYINGS if name not in script]
            open_scripts += [(*script, name) for name in new]
    return found


def test_the_scripts_reach_every_cell_of_the_refund_table(findings):
    assert len({found.script for found in findings}) > 50
    cells = defaultdict(set)
    for found in findings:
        if found.charge is not None:
            cells[found.cell].add(found.charge)
    fates = (*Fate, None)
    standings = set(ReachedStage) - {
        ReachedStage.SIGNED
    }  # no client signs in this profile
    assert set(cells) == {(standing, fate) for standing in standings for fate in fates}
    for (standing, fate), charges in cells.items():
        expected = charge_after(Profile.HONEST_CURIOUS_SERVER, standing, fate)
        assert charges == {expected}, (standing, fate)


def test_with_a_truthful_server_no_client_pays_too_little(findings):
    truthful = [found for found in findings if found.is_truthful]
    assert len(truthful) > 20
    assert {found.world for found in truthful} == set(WORLDS)
    assert [found for found in truthful if found.broken] == []


def test_with_a_truthful_server_no_informed_client_pays_for_nothing(
    findings,
):
    told = [f for f in findings if f.is_truthful and f.cell[1] is not None]
    assert {found.sums for found in told} == {0, 1}
    for found in told:
        assert (found.charge is ChargeOutcome.KEPT) == (found.sums == 1), found


def test_a_lie_gains_a_sum_in_exactly_two_cells(findings):
    gained = {
        (found.world, *found.cell) for found in findings if Claim.BUDGET in found.broken
    }
    assert gained == {
        ("unmasks with me", ReachedStage.MASKED, Fate.NEVER_FIXED),
        ("unmasks with me", ReachedStage.MASKED, Fate.NOT_INCLUDED),
    }


@pytest.mark.parametrize(
    "profile", [Profile.MALICIOUS_SERVER, Profile.MALICIOUS_SERVER_SPARSE]
)
def test_in_malicious_profiles_no_cell_pays_too_little(profile, findings):
    for found in findings:
        charge = charge_after(profile, *found.cell)
        assert found.sums <= (charge is ChargeOutcome.KEPT), found
