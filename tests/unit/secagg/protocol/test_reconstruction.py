"""Rebuilding secrets: what wrong shares change, and what absent ones do not."""

from itertools import combinations

import numpy as np
import pytest
from secagg_testing.cohorts import parameters_for

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.key_agreement import public_key_of
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.shamir import (
    PRIME,
    decode_shares,
    encode_shares,
    lagrange_at_zero,
    share_secrets,
)
from secagg.crypto.transcript import encode_set
from secagg.protocol.context import self_mask_commitment
from secagg.protocol.graphs.neighbours import CompleteGraph, sharing_graph
from secagg.protocol.messages import Advert, Roster
from secagg.protocol.server import unmasking
from secagg.protocol.server.unmasking import rebuild
from secagg.protocol.share_bundles import SharesAnswer

CLIENTS, THRESHOLD = 8, 3
PARAMETERS = parameters_for(CLIENTS, dimension=1, threshold=THRESHOLD)
SESSION, ALL_CLIENTS = b"s" * 16, frozenset(range(CLIENTS))
SEEDS = [SecretBytes(bytes([number + 1]) * 32) for number in range(CLIENTS)]


def advert_of(number):
    name = f"client-{number}"
    commitment = self_mask_commitment(SESSION, name, SEEDS[number], PARAMETERS.suite)
    return Advert(name, bytes(32), public_key_of(SEEDS[number]), commitment)


ROSTER = Roster(tuple(advert_of(number) for number in ALL_CLIENTS))


class Dealt:
    """The shares of all clients' self-mask seed, and how to lose or spoil them."""

    def __init__(self, graph):
        self.graph = graph
        self.absent, self.silent = set(), set()
        self.shares = {}
        for dealer in ALL_CLIENTS:
            holders = graph.holders(dealer)
            points = range(1, len(holders) + 1)
            entropy = SeededEntropy(SEEDS[dealer], b"polynomials")
            (dealt,) = share_secrets([SEEDS[dealer]], THRESHOLD, points, entropy)
            for holder, share in zip(holders, dealt, strict=True):
                self.shares[dealer, holder] = share

    def add(self, dealer, holder, amount, limb=0):
        """Add to one limb of one share."""
        values = decode_shares(self.shares[dealer, holder])
        values[limb] = (values[limb] + amount) % PRIME
        self.shares[dealer, holder] = encode_shares(values)

    def answers(self):
        return {holder: self._answer(holder) for holder in ALL_CLIENTS - self.silent}

    def _answer(self, holder):
        dealers = self.graph.dealers(holder)
        lacking = [d for d in dealers if (d, holder) in self.absent]
        rows = [
            bytes(34) if dealer in lacking else self.shares[dealer, holder].tobytes()
            for dealer in dealers
        ]
        places = map(dealers.index, lacking)
        head = encode_set(places, len(dealers))
        return SharesAnswer.parse(head + b"".join(rows), dealers)

    def table(self):
        return unmasking._ShareTable(self.graph, self.answers())

    def rebuilt(self):
        rebuilt = rebuild(
            PARAMETERS,
            session_id=SESSION,
            roster=ROSTER,
            graph=self.graph,
            share_holders=ALL_CLIENTS,
            survivors=ALL_CLIENTS,
            answers=self.answers(),
        )
        found = {each.index: each.seed for each in rebuilt.survivor_seeds}
        assert found == dict(enumerate(SEEDS))
        return rebuilt


@pytest.fixture
def complete():
    return Dealt(CompleteGraph(CLIENTS))


@pytest.fixture
def no_correction(monkeypatch):
    """Correcting wrong shares takes long, and is for wrong shares."""

    def unwanted(*_):
        raise AssertionError("no share is wrong")

    monkeypatch.setattr(unmasking, "decode_with_errors", unwanted)


def test_shares_of_an_invalid_secret_are_corrected_like_wrong_ones(complete):
    # One limb of the first dealer's comes out as 65536, which 16 bits do not hold.
    weight = int(lagrange_at_zero(np.arange(1, THRESHOLD + 1))[0])
    limb = int.from_bytes(SEEDS[0].reveal()[:2], "big")
    complete.add(0, 0, (PRIME - 1 - limb) * pow(weight, -1, PRIME))
    rebuilt = complete.rebuilt()
    assert rebuilt.liars == {0}
    assert rebuilt.disputes == {(0, 0)}


@pytest.mark.usefixtures("no_correction")
def test_absent_shares_are_not_counted_as_wrong(complete):
    complete.absent = {(1, 0), (2, 0), (5, 1)}
    assert complete.rebuilt().liars == frozenset()


def uses_other_points(dealt):
    """Whether two dealers are rebuilt from the same holders, at other points."""
    table = dealt.table()
    chosen = [table._choose(dealer, THRESHOLD, set()) for dealer in ALL_CLIENTS]
    placed = {
        (*holders, *table.abscissae(dealer, holders).tolist())
        for dealer, holders in enumerate(chosen)
    }
    return len(placed) > len(set(map(tuple, chosen)))


@pytest.mark.usefixtures("no_correction")
def test_on_a_ring_a_holder_has_a_different_point_for_each_dealer():
    parameters = parameters_for(CLIENTS, dimension=1, threshold=THRESHOLD, degree=6)
    dealt = Dealt(sharing_graph(parameters, CLIENTS, bytes(32)))
    for silent in combinations(ALL_CLIENTS, 3):
        dealt.silent = set(silent)
        if uses_other_points(dealt):
            break
    else:
        raise AssertionError("the case that is meant does not occur")
    assert dealt.rebuilt().liars == frozenset()


# --- what a liar has done to other dealers --------------------------------------------


def further(dealt, secrets, *, colluders=1):
    return unmasking._further_disputes(
        dealt.table(), secrets, threshold=THRESHOLD, colluders=colluders
    )


def test_a_dispute_counts_only_if_the_answers_tolerate_that_many_liars(complete):
    # Two of eight shares can be wrong beside three: no dispute where three collude.
    complete.add(4, 7, 1)
    assert further(complete, {4: SEEDS[4]}, colluders=2) == {(4, 7)}
    assert further(complete, {4: SEEDS[4]}, colluders=3) == set()


def test_a_dealer_that_cannot_be_decoded_causes_no_disputes(complete):
    for holder in (3, 4, 5, 6, 7):
        complete.add(4, holder, holder + 1, limb=holder)
    assert further(complete, {4: SEEDS[4], 5: SEEDS[5]}) == set()


def test_a_dealer_that_decodes_to_another_secret_causes_no_disputes(complete):
    complete.add(4, 7, 1)
    assert further(complete, {4: SEEDS[5]}) == set()
