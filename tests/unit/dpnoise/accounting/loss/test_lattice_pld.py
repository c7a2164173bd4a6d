"""Exact loss distributions of few coordinates, against enumeration in plain sums.

The oracles list every output of small releases with scipy's Bessel functions or exact
binomial coefficients, or invert the loss's Fourier transform by summation. They share
no line with the accountant, which takes its weights from the samplers' recurrences.
"""

import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy

from dpnoise.accounting import make_accountant
from dpnoise.accounting.gaussian import analytic_gaussian_stddev
from dpnoise.accounting.loss.lattice_pld import (
    IntegerLaw,
    ShiftBounds,
    envelope_pair,
    power_pair,
    shift_pair,
)
from dpnoise.errors import ParameterError, TheoremNotApplicableError, UnknownEventError
from dpnoise.events import (
    Adjacency,
    Adversary,
    BinomialEvent,
    DiscreteGaussianEvent,
    PoissonSampled,
    Repeated,
    SecretlySelected,
    SkellamEvent,
    SkellamMixtureEvent,
)

DELTA = 1e-5


def account(event, **options):
    options.setdefault("adversary", Adversary.SERVER)
    name = options.pop("name", "lattice-pld")
    return make_accountant(name, **options).compose(event)


def ones(count, variance, **fields):
    """A release that may differ in `count` entries by one each."""
    root = math.nextafter(math.sqrt(count), math.inf)
    given = {"l1_sensitivity": float(count), "linf_sensitivity": 1} | fields
    return SkellamEvent(64, Fraction(variance), root, l2_squared=count, **given)


def skellam_law(variance, reach):
    outcomes = np.arange(-reach, reach + 1)
    return scipy.special.ive(np.abs(outcomes), variance)


def divergence(law, shifts, epsilon, *, rate=1.0):
    """Sum (A − e^ε·B)₊ and its reverse over all outputs of a few coordinates."""
    upper = functools.reduce(np.multiply.outer, (_moved(law, s) for s in shifts))
    lower = functools.reduce(np.multiply.outer, (_moved(law, 0) for _ in shifts))
    upper = (1.0 - rate) * lower + rate * upper
    factor = math.exp(epsilon)
    forward = np.maximum(upper - factor * lower, 0.0).sum()
    return max(forward, np.maximum(lower - factor * upper, 0.0).sum())


def _moved(law, shift, room=6):
    padded = np.zeros(law.size + 2 * room)
    padded[room + shift : room + shift + law.size] = law
    return padded


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("variance", [0.05, 0.8, 4.0])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_vectors_of_ones_have_the_loss_found_by_enumeration(count, variance, epsilon):
    law = skellam_law(variance, 24)
    exact = divergence(law, (1,) * count, epsilon)
    stated = account(ones(count, Fraction(variance))).delta(epsilon)
    assert exact <= stated * (1 + 1e-9) + 1e-15
    # The grid may round a loss up by a thousandth of its deviation.
    assert stated <= max(exact * (1 + 2e-3), 1e-12)


def inverted(variance, copies, epsilon):
    """δ from the characteristic function of the loss, by summation on a fine grid."""
    reach = math.ceil(12 * math.sqrt(variance)) + 12
    law = skellam_law(variance, reach)
    losses = np.log(law[:-1]) - np.log(law[1:])
    period, terms = 80.0, 1 << 13
    # Tilted by 1.5, so that far tails are not lost.
    z = 1.5 + 2j * np.pi * np.arange(-terms, terms) / period
    moment = sum(
        mass * np.exp(z * loss) for mass, loss in zip(law[:-1], losses, strict=True)
    )
    # The transform of (1 − e^(ε − loss))₊.
    kernel = np.exp(-z * epsilon) / (z * (z + 1))
    return float((moment**copies * kernel).sum().real / period)


@pytest.mark.parametrize(
    ("variance", "copies", "epsilon"),
    [(110.94, 8, 1.0), (138.854, 10, 1.0), (15.02, 8, 3.0)],
)
def test_vectors_of_many_ones_have_the_loss_found_by_fourier_inversion(
    variance, copies, epsilon
):
    exact = inverted(variance, copies, epsilon)
    stated = account(ones(copies, Fraction(variance))).delta(epsilon)
    repeated = account(Repeated(ones(1, Fraction(variance)), copies)).delta(epsilon)
    assert exact == pytest.approx(DELTA, rel=2e-3)
    assert stated == pytest.approx(exact, rel=1e-3)
    assert repeated == pytest.approx(stated, rel=1e-9)


REQUIRED = [
    (1, 1, 0.5, 46.776),
    (1, 1, 1.0, 11.076),
    (1, 1, 3.0, 0.3989),
    (2, 1, 0.5, 97.452),
    (2, 1, 1.0, 26.288),
    (2, 1, 3.0, 2.4750),
    (2, 1, 8.0, 0.0823),
    (8, 1, 1.0, 110.94),
    (8, 1, 8.0, 2.4399),
    (32, 1, 3.0, 61.758),
    (1, 10, 0.5, 494.18),
    (1, 10, 8.0, 3.2357),
]
"""Ones, releases, ε and the least variance for δ = 10⁻⁵, by another program whose
transform splits atoms between neighbours; within a part in ten thousand or a digit."""


@pytest.mark.parametrize(("count", "releases", "epsilon", "variance"), REQUIRED)
def test_the_required_noise_equals_that_of_an_independent_program(
    count, releases, epsilon, variance
):
    def spent(factor):
        noise = Fraction(variance) * Fraction(factor)
        return account(Repeated(ones(count, noise), releases)).epsilon(DELTA)

    assert spent(1.001) <= epsilon
    assert spent(0.97) > epsilon


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_few_ones_need_no_more_than_the_central_gaussian(count, epsilon):
    central = count * analytic_gaussian_stddev(epsilon, DELTA, 1.0) ** 2
    assert (
        account(ones(count, Fraction(central) * 1001 / 1000)).epsilon(DELTA) <= epsilon
    )


@pytest.mark.parametrize("count", [3, 6, 12, 13])
def test_a_norm_rounded_down_still_admits_all_ones(count):
    # ⌊(√3)²⌋ is 2 in floats, and two ones lose far less than three.
    event = SkellamEvent(64, Fraction(26.288), math.sqrt(count), linf_sensitivity=1)
    exact = account(ones(count, Fraction(26.288)))
    assert account(event).delta(1.0) == exact.delta(1.0)
    assert account(event).delta(1.0) >= 2e-4


def test_unsigned_vectors_differ_less_than_signed_ones_under_replace_one():
    counted = ones(1, Fraction(26.288), unsigned=True)
    signed = ones(1, Fraction(26.288))
    law = skellam_law(26.288, 90)
    apart, doubled = divergence(law, (1, -1), 1.0), divergence(law, (2,), 1.0)
    assert apart == pytest.approx(1e-5, rel=1e-3)
    assert doubled == pytest.approx(8.2e-4, rel=1e-2)
    replaced = functools.partial(account, adjacency=Adjacency.REPLACE_ONE)
    assert apart <= replaced(counted).delta(1.0) <= apart * 1.001
    assert doubled <= replaced(signed).delta(1.0) <= doubled * 1.2


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0, 3.0])
def test_entries_above_one_have_the_loss_of_the_worst_vector(epsilon):
    event = SkellamEvent(
        3, Fraction(1), 3.0, linf_sensitivity=2, l1_sensitivity=4.0, l2_squared=6
    )
    law = skellam_law(1.0, 20)
    admitted = [
        shift
        for shift in itertools.combinations_with_replacement((0, 1, 2), 3)
        if sum(shift) <= 4 and sum(entry**2 for entry in shift) <= 6
    ]
    exact = max(divergence(law, shift, epsilon) for shift in admitted)
    stated = account(event).delta(epsilon)
    assert exact <= stated <= exact * 1.01


def test_the_worst_vector_can_differ_between_releases():
    event = SkellamEvent(8, Fraction(4), 2.0, l2_squared=4)
    # First a two, then four ones: no single vector twice reaches it.
    assert account(Repeated(event, 2)).delta(0.5) >= 0.40489


def test_shapes_are_the_maximal_vectors_within_the_bounds():
    bounds = ShiftBounds(dim=3, squared_norm=9, total=5, largest=3)
    assert set(bounds.shapes()) == {(1, 1, 1), (2, 1, 1), (2, 2, 1), (3,)}


@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_a_sampled_release_depends_on_a_single_selection(epsilon):
    rate, law = 0.1, skellam_law(4.0, 24)
    exact = divergence(law, (1, 1, 1), epsilon, rate=rate)
    stated = account(
        PoissonSampled(ones(3, 4), rate),
        name="hypothetical-lattice-pld",
        adversary=Adversary.MODEL_READER,
    ).delta(epsilon)
    # Three coins, one for each coordinate, would state 8·10⁻⁷ at ε = 0.5.
    assert exact <= stated <= exact * 1.001
    if epsilon == 0.5:
        assert exact == pytest.approx(5.67e-4, rel=2e-3)


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_binomial_noise_has_the_exact_loss_at_its_ends(epsilon):
    trials = 16
    law = np.array([math.comb(trials, k) / 2**trials for k in range(trials + 1)])
    exact = divergence(law, (1, 1), epsilon)
    event = BinomialEvent(2, trials, math.sqrt(2.0), 2.0, 1)
    assert exact <= account(event).delta(epsilon) <= exact * 1.002
    # One coin more makes half steps, and may not be counted.
    odd = BinomialEvent(2, trials + 1, math.sqrt(2.0), 2.0, 1)
    assert account(odd).delta(epsilon) == account(event).delta(epsilon)


@pytest.mark.parametrize("epsilon", [0.3, 1.5])
def test_discrete_gaussian_noise_loss_matches_enumeration(epsilon):
    outcomes = np.arange(-30, 31)
    law = np.exp(-(outcomes**2) / (2 * 3.0))
    exact = divergence(law / law.sum(), (1, 1, 1), epsilon)
    event = DiscreteGaussianEvent(3, Fraction(3), math.sqrt(3.0))
    assert exact <= account(event).delta(epsilon) <= max(exact * 1.2, exact + 1e-9)


def test_negligible_noise_gives_no_privacy():
    event = BinomialEvent(1, 1, 1.0, 1.0, 1)
    assert account(event).delta(3.0) == 1.0
    assert account(event).epsilon(DELTA) == math.inf


@pytest.mark.parametrize("variance", ["7/65536", "1/100", "1", "200"])
def test_grids_stay_short_for_long_and_rare_losses(variance):
    """Products take the square of a grid's length, and any caller may ask for them."""
    law = IntegerLaw("skellam", Fraction(variance))
    longest = 2 * (1 << 14) + 1
    assert power_pair(shift_pair(law, 1), 27).losses.size <= longest
    assert envelope_pair(law, ShiftBounds(38, 14, 14, 3)).losses.size <= longest


def test_noise_too_small_for_the_lattice_gives_no_privacy():
    law = IntegerLaw("skellam", Fraction(13, 1 << 20))
    assert envelope_pair(law, ShiftBounds(38, 14, 14, 3)).delta(60.0) == 1.0


def test_a_vector_of_zeros_has_no_loss():
    event = SkellamEvent(4, Fraction(1), 0.9)
    assert account(event).epsilon(DELTA) == 0.0
    assert account(event).delta(0.0) == 0.0


def test_events_whose_norm_does_not_cover_the_square_are_rejected():
    with pytest.raises(ParameterError, match="l2_squared") as caught:
        SkellamEvent(4, Fraction(1), math.sqrt(3.0), l2_squared=3)
    nearest = float(caught.value.nearest)
    SkellamEvent(4, Fraction(1), nearest, l2_squared=3)


@pytest.mark.parametrize(
    "event",
    [
        SkellamEvent(4, Fraction((1 << 20) + 1), 1.0),
        SkellamEvent(64, Fraction(100), 6.0),
    ],
)
def test_events_that_are_not_tabulated_are_rejected(event):
    with pytest.raises(TheoremNotApplicableError, match="name no accountant"):
        account(event).epsilon(DELTA)


def test_a_sample_of_too_many_entries_is_refused():
    event = PoissonSampled(DiscreteGaussianEvent(400, Fraction(9), 14.0), 0.1)
    with pytest.raises(TheoremNotApplicableError):
        account(event, adversary=Adversary.MODEL_READER).delta(1.0)


def test_mixtures_are_refused():
    with pytest.raises(UnknownEventError):
        account(SkellamMixtureEvent(4, Fraction(9), 1.0, 1.0))


@pytest.mark.parametrize("adversary", [Adversary.SERVER, Adversary.MODEL_READER])
def test_a_secretly_selected_release_depends_on_a_single_selection(
    adversary,
):
    exact = divergence(skellam_law(4.0, 24), (1, 1, 1), 0.5, rate=0.1)
    event = SecretlySelected(ones(3, 4), Fraction(1, 10))
    stated = account(event, adversary=adversary).delta(0.5)
    assert exact <= stated <= exact * 1.001
    # Two releases have two coins: more is lost, and less than by two sure ones.
    twice = account(Repeated(event, 2), adversary=adversary).delta(0.5)
    assert stated < twice < account(Repeated(ones(3, 4), 2)).delta(0.5)
