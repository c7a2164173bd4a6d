"""[DPSA24] as printed, in fractions and by enumeration, against the mechanism."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from dpnoise import Adjacency, Adversary, make_accountant, make_mechanism
from dpnoise.errors import ParameterError
from dpnoise.events import Repeated
from dpnoise.mechanisms import fixed_point_parameters

BITS, CLIENTS, DIM = 5, 7, 6
SEED = bytes(range(32))


def mechanism(**changes):
    asked = {
        "dim": DIM,
        "fixed_point_bits": BITS,
        "rho": Fraction(1, 2),
        "clients": CLIENTS,
        "min_survivors": 3,
    }
    return make_mechanism(fixed_point_parameters(**(asked | changes)))


def published(vector):
    """Steps 1 to 3 in exact arithmetic, for a vector of norm at most 1."""
    scaled = [Fraction(float(x)) * 2 ** (BITS - 1) for x in vector]
    return [
        (math.floor(x) if x > 0 else math.ceil(x)) + 2 ** (BITS - 1) for x in scaled
    ]


def vectors(count):
    drawn = np.random.default_rng(7).normal(size=(count, DIM))  # noqa: TID251 - inputs
    return 0.999 * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def encode(chosen, vector):
    return chosen.encode(
        vector,
        private_seed=SEED,
        public_seed=SEED,
        session_noise=chosen.session(chosen.parameters.noise_rule.min_survivors),
    ).residues


def test_the_encoding_is_the_published_one_except_for_its_offset() -> None:
    chosen = mechanism()
    total = np.zeros(DIM, np.int64)
    offset_total = np.zeros(DIM, np.int64)
    for vector in vectors(CLIENTS):
        offset_total += np.array(published(vector))
        total += encode(chosen, vector).astype(np.int64)
    summed = (total % chosen.modulus).astype(encode(chosen, vectors(1)[0]).dtype)
    ours = chosen.decode(summed, public_seed=SEED)
    theirs = 2.0 ** (1 - BITS) * offset_total - CLIENTS
    np.testing.assert_array_equal(ours, theirs)
    # A planned number of clients instead of the real one shifts every coordinate.
    assert np.all(np.abs(ours - (theirs + 1)) == 1)
    assert np.abs(ours - vectors(CLIENTS).sum(0)).max() < CLIENTS * 2.0 ** (1 - BITS)


def test_truncation_stays_in_the_ball_where_rounding_does_not() -> None:
    chosen, limit = mechanism(), 4 ** (BITS - 1)
    rounded_beyond = 0
    for vector in vectors(200):
        steps = np.array(published(vector)) - 2 ** (BITS - 1)
        assert int((steps**2).sum()) <= limit
        kept = encode(chosen, vector).astype(np.int64)
        kept[kept >= chosen.modulus // 2] -= chosen.modulus
        assert int((kept**2).sum()) <= limit
        rounded_beyond += int((np.rint(vector * 2 ** (BITS - 1)) ** 2).sum()) > limit
    assert rounded_beyond > 0


@pytest.mark.parametrize("rho", [Fraction(1, 2), 0.03, 2])
def test_noise_is_the_published_one_and_costs_rho_per_sum(rho) -> None:
    chosen = mechanism(rho=rho)
    variance = chosen.parameters.noise_rule.counted_variance
    assert float(variance) == pytest.approx(4**BITS / (2 * float(rho)), rel=1e-8)
    spent = make_accountant(
        "zcdp", adversary=Adversary.MODEL_READER, adjacency=Adjacency.REPLACE_ONE
    )
    spent.compose(Repeated(chosen.event(), 3))
    assert 3 * float(rho) * (1 - 1e-8) < spent.rho <= 3 * float(rho)


def test_conversion_gives_the_known_epsilon() -> None:
    chosen = mechanism(rho=Fraction(1, 2))
    spent = make_accountant(
        "zcdp", adversary=Adversary.MODEL_READER, adjacency=Adjacency.REPLACE_ONE
    )
    spent.compose(chosen.event())
    epsilon = spent.statement(1e-5).epsilon
    assert epsilon == pytest.approx(4.73, abs=0.01)
    assert epsilon < 0.5 + 2 * math.sqrt(0.5 * math.log(1e5))  # Bun and Steinke


@pytest.mark.parametrize("modulus", [None, 32, 12])
def test_enumerated_divergence_stays_below_rho(modulus) -> None:
    """Also where the noisy sum wraps around: reduction modulo m takes nothing away."""
    variance = mechanism(dim=1).parameters.noise_rule.counted_variance
    shift, reach = 2**BITS, 400
    weights = {
        k: math.exp(-(k**2) / (2 * float(variance))) for k in range(-reach, reach + 1)
    }
    total = math.fsum(weights.values())

    def law(centre):
        found: dict[int, float] = {}
        for k, weight in weights.items():
            place = k + centre if modulus is None else (k + centre) % modulus
            found[place] = found.get(place, 0.0) + weight / total
        return found

    first, second = law(0), law(shift)
    for order in (1.5, 2.0, 8.0):
        moment = math.fsum(
            p**order * second[place] ** (1 - order)
            for place, p in first.items()
            if second.get(place, 0.0) > 0.0
        )
        divergence = math.log(moment) / (order - 1)
        assert divergence <= order * 0.5 * (1 + 1e-6)
        if modulus is None:
            assert divergence > order * 0.5 * 0.999  # 3 % less noise would show


@pytest.mark.parametrize(
    ("aggregators", "clients", "bits"),
    list(itertools.product((1, 2), (2, 50), (2, 12, 26))),
)
def test_modulus_holds_every_sum_and_all_noise(aggregators, clients, bits) -> None:
    made = fixed_point_parameters(
        dim=3, fixed_point_bits=bits, rho=0.5, clients=clients, aggregators=aggregators
    )
    noise = 20 * math.sqrt(aggregators * made.noise_rule.counted_variance)
    largest = clients * 2 ** (bits - 1) + noise
    assert largest <= made.modulus / 2
    assert largest > made.modulus / 8  # and not more than two bits too many


def test_two_noises_that_dominate_the_sum_need_one_more_bit() -> None:
    one, two = (
        fixed_point_parameters(
            dim=3, fixed_point_bits=8, rho=0.001, clients=2, aggregators=aggregators
        )
        for aggregators in (1, 2)
    )
    assert two.modulus == 2 * one.modulus


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"fixed_point_bits": 1}, "fixed_point_bits"),
        ({"fixed_point_bits": 27}, "fixed_point_bits"),
        ({"rho": 0}, "rho"),
        ({"rho": 1e300}, "rho"),
        ({"rho": 1e-300}, "rho"),
        ({"l2_clip": 0.0}, "l2_clip"),
        ({"l2_clip": 1e-300}, "l2_clip"),
        ({"aggregators": 3}, "aggregators"),
    ],
)
def test_numbers_out_of_range_are_named(wrong, name) -> None:
    with pytest.raises(ParameterError) as refused:
        mechanism(**wrong)
    assert refused.value.parameter == name
