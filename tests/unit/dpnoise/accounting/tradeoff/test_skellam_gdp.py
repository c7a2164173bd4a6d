"""Gaussian shifts of Skellam noise against exact privacy-loss distributions."""

import dataclasses
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpnoise.accounting import calibrate, make_accountant, to_dp_accounting
from dpnoise.accounting.gaussian import gaussian_epsilon
from dpnoise.accounting.tradeoff.skellam_gdp import gaussian_equivalent
from dpnoise.errors import UnknownEventError
from dpnoise.events import (
    Adjacency,
    Adversary,
    Composed,
    DiscreteGaussianEvent,
    GaussianEvent,
    PoissonSampled,
    Repeated,
    SkellamEvent,
    SkellamMixtureEvent,
)

GRID = 2.0**-15


def skellam_pmf(variance):
    reach = int(40 + 12 * math.sqrt(variance))
    with mpmath.workdps(30):
        v = mpmath.mpf(variance)
        half = [float(mpmath.exp(-v) * mpmath.besseli(k, v)) for k in range(reach + 1)]
    return np.array(half[:0:-1] + half)


def delta_from_below(variance, copies, epsilon, *, shift=1):
    """Bound from below the exact delta of `copies` coordinates of one integer shift.

    Losses are rounded down to a grid, so the answer never exceeds the exact delta.
    """
    pmf = skellam_pmf(variance)
    inside = (pmf[shift:] > 0) & (pmf[:-shift] > 0)
    shifted, base = pmf[:-shift][inside], pmf[shift:][inside]
    losses = np.floor(np.log(shifted / base) / GRID).astype(int)
    first = losses.min()
    law = np.bincount(losses - first, weights=shifted)
    length = 1 << math.ceil(math.log2(len(law) * copies + 1))
    total = np.fft.irfft(np.fft.rfft(law, length) ** copies, length)
    grid = (np.arange(length) + copies * first) * GRID
    return float(
        np.sum(np.maximum(total, 0) * -np.expm1(np.minimum(epsilon - grid, 0)))
    )


def account(event, **options):
    options.setdefault("adversary", Adversary.SERVER)
    return make_accountant("skellam-gdp", **options).compose(event)


@pytest.mark.parametrize(
    ("variance", "copies", "shift"),
    [(2.0, 1, 1), (9.0, 1, 3), (40.0, 9, 1), (223.0, 16, 1)],
)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_delta_is_never_below_the_exact_one(variance, copies, shift, epsilon):
    norm = math.sqrt(copies) * shift
    event = SkellamEvent(64, Fraction(variance), norm, None, shift)
    exact = delta_from_below(variance, copies, epsilon, shift=shift)
    assert exact <= account(event).delta(epsilon) + 1e-14


def test_three_percent_less_noise_than_calibrated_breaks_the_promise():
    variance = calibrate(
        lambda v: SkellamEvent(64, v, 4.0, None, 1),
        accountant="skellam-gdp",
        epsilon=1.0,
        delta=1e-5,
        adversary=Adversary.SERVER,
    )
    assert delta_from_below(float(variance), 16, 1.0) <= 1e-5
    assert delta_from_below(0.97 * float(variance), 16, 1.0) > 1e-5


def test_noise_is_within_a_tenth_of_a_percent_of_the_analytic_gaussian():
    for scale in (16.0, 100.0, 1000.0, 1e5):
        variance = calibrate(
            lambda v, scale=scale: SkellamEvent(1 << 20, v, scale),
            accountant="skellam-gdp",
            epsilon=1.0,
            delta=1e-5,
            adversary=Adversary.SERVER,
        )
        assert 13.9176 <= variance / scale**2 <= 13.9176 * 1.001


def test_a_thousand_releases_are_one_of_thirty_two_times_the_shift():
    # Shifts add by squares.
    once = SkellamEvent(1024, Fraction(50_000), 3.0)
    many = account(Repeated(once, 1000))
    single = account(SkellamEvent(1024, Fraction(50_000), 3.0 * math.sqrt(1000)))
    assert many.epsilon(1e-6) == pytest.approx(single.epsilon(1e-6), rel=1e-6)


def test_mixed_gaussian_releases_add_by_squares():
    both = account(Composed((GaussianEvent(1, 4.0, 1.0), GaussianEvent(9, 1.0, 0.5))))
    assert both.noise_multiplier == pytest.approx(1 / math.sqrt(0.5))
    assert both.epsilon(1e-5) == pytest.approx(
        gaussian_epsilon(1e-5, noise_multiplier=math.sqrt(2.0)), rel=1e-9
    )


def test_clamped_tails_and_the_sampler_are_charged_to_delta():
    event = SkellamEvent(1000, Fraction(30), 5.0, None, 2, sampler_distance=1e-9)
    clean = SkellamEvent(1000, Fraction(30), 5.0, None, 2)
    charged = account(event).delta(1.0) - account(clean).delta(1.0)
    assert charged == pytest.approx((1 + math.e) * 1e-9, rel=1e-6)
    assert account(event).epsilon(1e-5) > account(clean).epsilon(1e-5)
    assert account(event).epsilon(2e-9) == math.inf
    tail = gaussian_equivalent(clean).distance
    # At most 25 entries of an integer vector of norm 5 differ from zero.
    assert 0 < tail <= 25 * 2.0**-120


def test_replace_one_doubles_the_shift():
    event = SkellamEvent(16, Fraction(5000), 7.0)
    double = SkellamEvent(16, Fraction(5000), 14.0)
    replaced = account(event, adjacency=Adjacency.REPLACE_ONE)
    assert replaced.epsilon(1e-5) == account(double).epsilon(1e-5)


def test_vectors_without_negative_entries_differ_by_a_root_of_two():
    signed = SkellamEvent(64, Fraction(500), 5.0, 25.0, 2)
    unsigned = dataclasses.replace(signed, unsigned=True)
    longer = SkellamEvent(64, Fraction(500), 5.0 * math.sqrt(2.0), 50.0, 2)
    replaced = account(unsigned, adjacency=Adjacency.REPLACE_ONE)
    assert replaced.epsilon(1e-6) == pytest.approx(account(longer).epsilon(1e-6))
    assert account(unsigned).epsilon(1e-6) == account(signed).epsilon(1e-6)
    # Never below the exact loss of one person who moves: +1 and −1.
    moved = dataclasses.replace(unsigned, l2_sensitivity=1.0, linf_sensitivity=1)
    exact = make_accountant(
        "lattice-pld", adversary=Adversary.SERVER, adjacency=Adjacency.REPLACE_ONE
    ).compose(moved)
    stated = account(moved, adjacency=Adjacency.REPLACE_ONE)
    assert exact.epsilon(1e-6) <= stated.epsilon(1e-6) <= 1.05 * exact.epsilon(1e-6)


def test_short_integer_vectors_are_zero_and_free():
    assert account(SkellamEvent(16, Fraction(1, 4), 0.99)).epsilon(1e-12) == 0.0


def test_very_little_noise_gives_infinite_epsilon_instead_of_an_error():
    for variance in (Fraction(1, 1 << 30), Fraction(1)):
        hopeless = account(SkellamEvent(16, variance, 500.0))
        assert hopeless.epsilon(1e-5) == math.inf
        assert hopeless.delta(10.0) == 1.0


def test_discrete_gaussian_is_covered_and_near_the_continuous_one():
    ours = account(DiscreteGaussianEvent(7, Fraction(100), 10.0)).epsilon(1e-5)
    exact = gaussian_epsilon(1e-5, noise_multiplier=1.0)
    assert exact < ours < 1.003 * exact


def test_mixtures_are_refused():
    with pytest.raises(UnknownEventError, match="default_accountants"):
        account(SkellamMixtureEvent(4, Fraction(9), 4.0, 1.0))


def test_the_statement_names_accountant_status_adversary_and_adjacency():
    statement = account(SkellamEvent(16, Fraction(100), 4.0)).statement(1e-5)
    record = statement.to_dict()
    assert record["accountant"] == "skellam-gdp"
    assert record["status"] == "certified"
    assert record["adversary"] == "server"
    assert record["adjacency"] == "zero-out"
    assert record["details"]["unit_shift_bound"] == "certificate"


def test_sampling_amplifies_only_central_noise_against_model_readers():
    shares = SkellamEvent(64, Fraction(10_000), 30.0)
    central = DiscreteGaussianEvent(64, Fraction(10_000), 30.0)

    def sampled(release, **options):
        event = Repeated(PoissonSampled(release, 0.01), 50)
        return account(event, **options).epsilon(1e-6)

    unsampled = account(Repeated(shares, 50)).epsilon(1e-6)
    reader = {"adversary": Adversary.MODEL_READER}
    assert sampled(shares) == sampled(shares, **reader) == unsampled
    assert sampled(central, **reader) < 0.2 * sampled(central)


def test_export_to_dp_accounting_is_consumed_by_its_accountant():
    from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415 - optional dependency

    shares = SkellamEvent(64, Fraction(10_000), 30.0)
    central = DiscreteGaussianEvent(64, Fraction(10_000), 30.0)
    event = Composed(
        (Repeated(PoissonSampled(central, 0.01), 50), PoissonSampled(shares, 0.01))
    )
    exported, distance = to_dp_accounting(event)
    theirs = RdpAccountant().compose(exported).get_epsilon(1e-6)
    ours = make_accountant("skellam-rdp", adversary=Adversary.MODEL_READER)
    assert theirs == pytest.approx(ours.compose(event).epsilon(1e-6), rel=0.02)
    assert distance == 0.0
    with pytest.raises(UnknownEventError, match="dominated by no Gaussian"):
        to_dp_accounting(SkellamMixtureEvent(4, Fraction(9), 4.0, 1.0))
