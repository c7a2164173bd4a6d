"""Gaussian shifts of rounded vectors against enumeration and another library."""
# ruff: noqa: TID251 - numpy.random makes test data here, never noise

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy

from dpnoise.accounting import calibrate, make_accountant
from dpnoise.accounting.gaussian import gaussian_epsilon
from dpnoise.accounting.tradeoff.rounded_shift import (
    REACHES,
    largest_rounded,
    rounded_shift,
)
from dpnoise.errors import ParameterError, UnknownEventError
from dpnoise.events import (
    Adjacency,
    Adversary,
    Composed,
    DistributedDiscreteGaussianEvent,
    GaussianEvent,
    PoissonSampled,
    Repeated,
    SecretlySelected,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)


def account(event, name="mixture-gdp", adversary=Adversary.SERVER):
    return make_accountant(name, adversary=adversary).compose(event)


def noise_law(variance, reach):
    y = np.arange(-reach, reach + 1)
    if variance < 1e5:
        return scipy.special.ive(np.abs(y), variance)
    # Beyond the other library's range: invert the characteristic function.
    size = 1 << math.ceil(math.log2(4 * reach))
    angles = 2 * np.pi * np.arange(size) / size
    law = np.fft.fft(np.exp(variance * (np.cos(angles) - 1))).real / size
    return np.maximum(law[np.abs(y)], 0.0)


def laws(variance, x):
    """The law of one rounded coordinate with noise, and that of the noise alone."""
    reach = int(12 * math.sqrt(variance) + 40 + x)
    padded = noise_law(variance, reach + math.floor(x) + 1)
    whole, share = math.floor(x), x - math.floor(x)

    def shifted(by):
        start = whole + 1 - by
        return padded[start : start + 2 * reach + 1]

    return (1 - share) * shifted(whole) + share * shifted(whole + 1), shifted(0)


def normal_quantiles(law):
    """Φ^(−1)(P(Y ≤ t)) for all t but the last, from the side where nothing cancels."""
    below = np.cumsum(law)[:-1]
    above = np.cumsum(law[:0:-1])[::-1]
    return np.where(
        below < 0.5, scipy.stats.norm.ppf(below), -scipy.stats.norm.ppf(above)
    )


def exact_delta(variance, xs, epsilon, *, forward=True):
    """Delta of a short vector by enumerating the outputs of all coordinates."""
    first, second = np.ones(1), np.ones(1)
    for x in xs:
        world, base = laws(variance, x)
        if not forward:
            world, base = base, world
        first, second = np.outer(first, world).ravel(), np.outer(second, base).ravel()
    return float(np.sum(np.maximum(first - math.exp(epsilon) * second, 0.0)))


@pytest.mark.parametrize("variance", [4, 9, 40, 1000, 20000])
def test_the_shift_at_every_threshold_is_below_the_bound(variance):
    rng = np.random.default_rng(variance)
    for x in [*rng.uniform(0, 1, 8), *rng.uniform(1, 5, 8), 0.5, 1.0]:
        mixed, base = laws(variance, x)
        needed = normal_quantiles(base) - normal_quantiles(mixed)
        centre = len(base) // 2
        for reach in (2.0, 5.0, 9.0):
            event = SkellamMixtureEvent(1, Fraction(variance), float(x * x), float(x))
            bound = rounded_shift(event, reach)
            last = math.ceil(reach * math.sqrt(variance))
            if last <= largest_rounded(x * x, x):
                assert math.isinf(bound.gaussian_shift)
                continue
            inside = needed[centre - last : centre + last]
            assert np.max(inside) <= bound.gaussian_shift * (1 + 1e-9)


@pytest.mark.parametrize(
    ("variance", "xs"),
    [
        (4.0, (0.3,)),
        (6.0, (1.0,)),
        (25.0, (0.5, 0.9)),
        (60.0, (1.7, 0.2)),
        (300.0, (4.5, 3.0)),
        (5000.0, (40.3,)),
    ],
)
@pytest.mark.parametrize("forward", [True, False])
def test_delta_is_never_below_the_exact_one(variance, xs, forward):
    made = account(
        SkellamMixtureEvent(
            len(xs), Fraction(variance), sum(x * x for x in xs), max(xs)
        )
    )
    for epsilon in (0.0, 0.1, 0.5, 1.0, 3.0):
        assert exact_delta(variance, xs, epsilon, forward=forward) <= made.delta(
            epsilon
        ) * (1 + 1e-9)


def test_a_huge_coordinate_bound_does_not_hide_the_tail():
    # Chernoff's bound is even in W − S: clamping inside S would be charged nothing.
    hostile = SkellamMixtureEvent(1, Fraction(100), 0.01, 1e6)
    assert account(hostile).epsilon(1e-7) >= 0.0462
    xs = (0.1,)
    for delta in (1e-6, 1e-8, 1e-12):
        assert exact_delta(100.0, xs, account(hostile).epsilon(delta)) <= delta
    with_large_norm = SkellamMixtureEvent(1, Fraction(100), 1e6, 1e6)
    assert account(with_large_norm).epsilon(1e-7) == math.inf


@pytest.mark.parametrize(
    ("variance", "scale", "largest", "steps", "epsilon"),
    [
        ("14.76", 1.0, 1 / 32, 1, 5.564466),
        ("57", 2.0, 1 / 16, 1, 1.891350),
        ("225", 4.0, 1 / 8, 1, 1.337449),
        ("3600", 16.0, 1 / 2, 1, 1.067447),
        ("57600", 64.0, 2.0, 1, 1.012301),
        ("921600", 256.0, 8.0, 1, 0.998881),
        ("225", 4.0, 1 / 8, 10, 5.067157),
        ("233", 1.28, 165 / 4096, 10, 1.338561),
    ],
)
def test_values_computed_independently(variance, scale, largest, steps, epsilon):
    event = SkellamMixtureEvent(65536, Fraction(variance), scale**2, largest)
    stated = account(Repeated(event, steps)).epsilon(1e-5)
    assert stated == pytest.approx(epsilon, abs=6e-7)


def test_three_percent_less_noise_than_calibrated_breaks_the_promise():
    variance = calibrate(
        lambda v: SkellamMixtureEvent(65536, v, 512.0**2, 512.0),
        accountant="mixture-gdp",
        epsilon=1.0,
        delta=1e-5,
        adversary=Adversary.SERVER,
    )
    assert exact_delta(float(variance), (512.0,), 1.0) <= 1e-5
    assert exact_delta(0.97 * float(variance), (512.0,), 1.0) > 1e-5


def test_the_loss_on_fine_grids_matches_the_documentation():
    for scale, excess in ((64.0, 0.033), (256.0, 0.0084), (2048.0, 0.0011)):
        variance = calibrate(
            lambda v, scale=scale: SkellamMixtureEvent(
                65536, v, scale**2, scale * 6 / 256
            ),
            accountant="mixture-gdp",
            epsilon=1.0,
            delta=1e-5,
            adversary=Adversary.SERVER,
        )
        assert float(variance) / scale**2 / 13.9176 - 1 == pytest.approx(
            excess, rel=0.05
        )


def test_extreme_sizes_give_a_finite_result():
    # 2^28 coordinates, 10^4 steps and δ = 10^−12 still find a place to clamp.
    wide = SkellamMixtureEvent(1 << 28, Fraction(1 << 40), 2.0**26, 256.0)
    for steps in (1, 10_000):
        exact = gaussian_epsilon(1e-12, noise_multiplier=2.0**7 / math.sqrt(steps))
        assert exact < account(Repeated(wide, steps)).epsilon(1e-12) < 1.01 * exact


def test_different_releases_add_by_squares():
    rounded = SkellamMixtureEvent(16, Fraction(10**8), 1e6, 100.0)
    parts = (
        rounded,
        SkellamEvent(16, Fraction(10**6), 500.0),
        GaussianEvent(16, 4.0, 1.0),
        SkellamMixtureClippedEvent(16, Fraction(10**8), 1e6, 100),
    )
    both = account(Composed(parts)).epsilon(1e-5)
    shift = math.sqrt(2 * 0.01 + 0.25 + 0.25)
    assert both == pytest.approx(
        gaussian_epsilon(1e-5, noise_multiplier=1 / shift), rel=2e-3
    )
    assert account(Repeated(rounded, 4)).delta(0.3) == pytest.approx(
        account(Composed((rounded,) * 4)).delta(0.3), rel=1e-9
    )


def test_sampling_uses_the_loss_distribution_and_keeps_the_charge_to_delta():
    variance, x, rate = 40000.0, 196.3, 0.1
    event = PoissonSampled(SkellamMixtureEvent(1, Fraction(variance), x * x, x), rate)
    reader = Adversary.MODEL_READER
    made = account(event, "hypothetical-mixture-gdp", reader)
    mixed, base = laws(variance, x)
    mixed = (1 - rate) * base + rate * mixed
    for epsilon in (0.1, 0.5, 1.0):
        exact = max(
            np.sum(np.maximum(mixed - math.exp(epsilon) * base, 0.0)),
            np.sum(np.maximum(base - math.exp(epsilon) * mixed, 0.0)),
        )
        assert exact <= made.delta(epsilon) <= 1.3 * exact
    stated = made.epsilon(1e-4)
    assert made.delta(stated) <= 1.1e-4
    # Noise in shares tells who took part: the rate then counts as 1.
    unsampled = account(event.event)
    assert account(event, "mixture-gdp", reader).epsilon(1e-4) == unsampled.epsilon(
        1e-4
    )


def test_events_outside_the_theorem_are_rejected_or_infinite():
    small = SkellamMixtureEvent(4, Fraction(399, 100), 1.0, 0.5)
    assert account(small).epsilon(1e-5) == math.inf
    assert account(small).delta(1.0) == 1.0
    assert account(SkellamMixtureEvent(4, Fraction(1), 0.0, 1.0)).epsilon(1e-9) == 0.0
    with pytest.raises(UnknownEventError):
        account(DistributedDiscreteGaussianEvent(4, 10, Fraction(5), 1.0))
    with pytest.raises(ParameterError, match="zero-out"):
        make_accountant(
            "mixture-gdp", adversary=Adversary.SERVER, adjacency=Adjacency.REPLACE_ONE
        )


@pytest.mark.parametrize(
    "release", [SkellamEvent(3, Fraction(100), 1.0), GaussianEvent(3, 4.0, 1.0)]
)
def test_releases_without_clamping_equal_the_plain_skellam_bound(release):
    alone = make_accountant("skellam-gdp", adversary=Adversary.SERVER)
    expected = alone.compose(release).epsilon(1e-6)
    assert account(release).epsilon(1e-6) == pytest.approx(expected, rel=1e-12)


def test_noise_too_small_to_clamp_gives_no_privacy_with_selection_either():
    """No place to clamp bounds the loss of coordinates so long beside such noise."""
    faint = SkellamMixtureEvent(1 << 20, Fraction(2), 3.0, 15041 / 1024)
    for event in (faint, SecretlySelected(faint, Fraction(1, 600))):
        promised = account(event)
        assert promised.delta(1.4) == 1.0
        assert promised.epsilon(1e-10) == math.inf


@pytest.mark.parametrize(
    ("release", "rate", "delta"),
    [
        ((4096, Fraction("1601.6135"), 1133.5531, 3.1564), 600, 1.2356e-9),
        ((365, Fraction("2644.2632"), 1721.5674, 9.3396), 74, 2.33e-8),
        ((42533, Fraction("3639.9366"), 3195.1672, 1.506), 163, 2.7524e-12),
    ],
)
def test_delta_and_epsilon_with_selection_use_equally_good_clamping_points(
    release, rate, delta
):
    # δ is some forty times as steep as the noise that either would ask for.
    event = SecretlySelected(SkellamMixtureEvent(*release), Fraction(1, rate))
    stated = account(event).epsilon(delta)
    assert account(event).delta(stated) == pytest.approx(delta, rel=3e-3)


def test_a_coordinate_of_many_deviations_is_bounded_at_a_large_epsilon():
    # Eight deviations and e^40 times a tail: outputs must count beyond seventeen.
    variance, x, epsilon = 40_000, 1600.0, 40.0
    event = SkellamMixtureEvent(1, Fraction(variance), x * x, x)
    stated = account(event).delta(epsilon)
    world, base = laws(variance, x)
    exact = float(np.sum(np.maximum(world - math.exp(epsilon) * base, 0.0)))
    assert 0.1 < exact <= stated < 3.0 * exact
    assert account(event).epsilon(stated) == pytest.approx(epsilon, rel=1e-3)


def test_the_largest_rounded_integer_is_exact():
    assert [largest_rounded(c, 100.0) for c in (0.0, 0.3, 1.0, 1.1, 4.0, 25.0)] == [
        *(0, 1, 1, 2, 2, 5)
    ]
    assert largest_rounded(25.0, 0.01) == 1
    assert largest_rounded(25.0, 2.5) == 3
    assert (REACHES[0], REACHES[224], REACHES[-1]) == (2.0, 16.0, 64.0)
    assert list(REACHES) == sorted(set(REACHES))


@pytest.mark.parametrize(
    ("release", "rate", "steps", "epsilon"),
    [
        (SkellamMixtureEvent(1, Fraction(66), 2.098, 1.4485), Fraction(1, 49), 33, 0.3),
        (SkellamMixtureEvent(14, Fraction(63), 0.0111, 0.11), Fraction(1, 8), 9999, 2),
    ],
)
def test_epsilon_with_selection_is_tight_on_coarse_grids(release, rate, steps, epsilon):
    """A percent of δ for clamping, wherever it takes more, made it 2 and 5 % larger."""
    made = account(Repeated(SecretlySelected(release, rate), steps))
    worlds = 1.0 + math.exp(epsilon)
    charged = {
        place: worlds * each.distance for place, each in enumerate(made._ladder())
    }
    needed = {
        place: charge + made._selected(place).delta(epsilon)
        for place, charge in charged.items()
        if 0.05 < charge / made.delta(epsilon) < 1.0
    }
    least = min(needed.values())
    # No place needs less of δ at that epsilon: nothing less can be stated for it.
    assert 0.9995 * epsilon < made.epsilon(least) <= 1.006 * epsilon


def test_vectors_of_zero_length_have_no_loss_with_selection():
    nothing = SkellamMixtureEvent(4, Fraction(9), 0.0, 1.0)
    made = account(Repeated(SecretlySelected(nothing, Fraction(1, 8)), 9))
    assert made.delta(1.0) < 1e-12
    assert made.epsilon(1e-6) == 0.0
