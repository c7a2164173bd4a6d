"""Exact Rényi sums against mpmath, and the searches over coordinates around them."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpnoise.accounting import calibrate, make_accountant
from dpnoise.accounting.renyi import mixture_rdp as mixture_module
from dpnoise.accounting.renyi.mixture_rdp import mixture_divergence_per_square
from dpnoise.accounting.renyi.skellam_rdp import (
    MAX_LATTICE_VARIANCE,
    integer_shift_divergence,
    lattice_for,
    published_shift_bound,
)
from dpnoise.errors import ParameterError
from dpnoise.events import (
    Adjacency,
    Adversary,
    Composed,
    GaussianEvent,
    PoissonSampled,
    Repeated,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)


def exact_moments(order, coordinate, variance):
    """E[L^α] − 1 and E[L^(1−α)] − 1 of a rounded coordinate, in 40 digits."""
    with mpmath.workdps(40):
        v, alpha = mpmath.mpf(variance), mpmath.mpf(order)
        low = int(coordinate)
        share = mpmath.mpf(coordinate) - low
        reach = int(60 + 14 * variance**0.5 + 3 * order * (low + 1))
        bessel = [mpmath.besseli(k, v) for k in range(reach + low + 2)]
        forward = reverse = mpmath.mpf(0)
        for y in range(-reach, reach + 1):
            base = bessel[abs(y)]
            mixture = (1 - share) * bessel[abs(y - low)]
            mixture += share * bessel[abs(y - low - 1)]
            forward += mixture**alpha * base ** (1 - alpha)
            reverse += base**alpha * mixture ** (1 - alpha)
        return [total * mpmath.exp(-v) - 1 for total in (forward, reverse)]


def exact_divergence(order, coordinate, variance):
    with mpmath.workdps(40):
        return float(
            max(
                mpmath.log1p(moment) / (mpmath.mpf(order) - 1)
                for moment in exact_moments(order, coordinate, variance)
            )
        )


@pytest.mark.parametrize(
    ("variance", "order", "shift"),
    [
        (0.05, 1.5, 1),
        (0.5, 2.5, 1),
        (0.5, 3.0, 2),
        (1.0, 20.0, 1),
        (4.0, 4.0, 1),
        (16.0, 16.0, 1),
        (16.0, 4.0, 3),
        (100.0, 1.01, 1),
        (300.0, 60.0, 2),
    ],
)
def test_integer_shifts_match_the_exact_divergence_from_above(variance, order, shift):
    exact = exact_divergence(order, shift, variance)
    found = integer_shift_divergence(order, shift=shift, noise_variance=variance)
    assert exact <= found <= exact * (1 + 3e-6)


@pytest.mark.parametrize(
    ("variance", "order", "ratio"),
    [
        (4, 4, 0.9025),
        (16, 4, 0.990),
        (16, 16, 0.868),
        (64, 8, 0.997),
        (1024, 16, 0.9999),
    ],
)
def test_unit_shifts_are_below_the_gaussian_by_known_factors(variance, order, ratio):
    found = integer_shift_divergence(
        float(order), shift=1, noise_variance=float(variance)
    )
    assert found / (order / (2 * variance)) == pytest.approx(ratio, abs=5e-4)


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize(
    ("variance", "order", "coordinates"),
    [
        (0.5, 3.0, [0.1, 0.5, 1.0]),
        (16.0, 12.0, [0.03, 0.3, 0.9]),
        (16.0, 2.5, [1.1, 1.5, 2.0]),
        (250.0, 30.0, [2.2, 2.5, 3.0]),
    ],
)
def test_mixture_moments_match_the_exact_ones_from_above(
    variance, order, coordinates, forward
):
    cell = math.ceil(coordinates[-1]) - 1
    lattice = lattice_for(variance, order=order, shift=cell + 1)
    found = mixture_module._excess(
        lattice, order, cell, np.array(coordinates), forward=forward
    )
    for coordinate, excess in zip(coordinates, found, strict=True):
        exact = exact_moments(order, coordinate, variance)[0 if forward else 1]
        assert exact <= excess <= float(exact) * (1 + 3e-6)


@pytest.mark.parametrize(
    ("variance", "order", "linf_bound"),
    [
        (0.5, 3.0, 1.0),
        (4.0, 2.3, 2.0),
        (16.0, 4.0, 1.0),
        (16.0, 12.0, 3.0),
        (60.0, 9.0, 2.0),
    ],
)
def test_bound_per_square_holds_for_every_coordinate_and_is_tight(
    variance, order, linf_bound
):
    bound = mixture_divergence_per_square(
        order, linf_bound=linf_bound, noise_variance=variance
    )
    grid = np.concatenate(
        (np.geomspace(0.01, 1.0, 25), np.linspace(1.0, linf_bound, 9))
    )
    exact = [exact_divergence(order, float(x), variance) / x**2 for x in grid]
    assert max(exact) <= bound
    # Three percent less than this bound would be exceeded on the grid.
    assert max(exact) > 0.97 * bound


@pytest.mark.parametrize(
    ("variance", "order"), [(0.1, 433.0), (0.1, 150.5), (1.0, 2e3)]
)
def test_bound_holds_where_powers_overflow_and_weights_underflow(variance, order):
    coordinate = 9 / 4096
    bound = mixture_divergence_per_square(
        order, linf_bound=coordinate, noise_variance=variance
    )
    with mpmath.workdps(40):
        v, x = mpmath.mpf(variance), mpmath.mpf(coordinate)
        noise = [mpmath.besseli(y, v) * mpmath.exp(-v) for y in range(200)]
        part = sum(
            noise[y] * (1 + x * (noise[y - 1] / noise[y] - 1)) ** order
            for y in range(1, 200)
        )
        least = mpmath.log(part) / (order - 1)
    assert least > 2 * order * x**2 / (2 * v)  # what a Gaussian would lose, twice
    assert bound * coordinate**2 >= least


@pytest.mark.parametrize(
    ("variance", "order", "ratio"), [(16, 4, 1.053), (16, 12, 1.162)]
)
def test_rounding_costs_the_known_ratio_over_the_gaussian(variance, order, ratio):
    bound = mixture_divergence_per_square(
        float(order), linf_bound=1.0, noise_variance=float(variance)
    )
    assert bound * 2 * variance / order == pytest.approx(ratio, rel=0.01)


@pytest.mark.parametrize("linf_bound", [1.0, 2.0, 4.0])
def test_closed_form_bounds_the_exact_sums_where_both_are_available(
    monkeypatch, linf_bound
):
    monkeypatch.setattr(mixture_module, "_SPLIT_FROM", 1e9)
    exact = mixture_divergence_per_square.__wrapped__(
        11.0, linf_bound=linf_bound, noise_variance=12_000.0
    )
    monkeypatch.setattr(mixture_module, "MAX_LATTICE_VARIANCE", 1.0)
    closed = mixture_divergence_per_square.__wrapped__(
        11.0, linf_bound=linf_bound, noise_variance=12_000.0
    )
    # The exact search itself may exceed the supremum by 0.3 %.
    assert 0.997 * exact <= closed <= 1.01 * exact


def test_published_bound_is_interpolated_above_the_exact_divergence():
    for order in (1.5, 2.3, 7.9):
        exact = integer_shift_divergence(order, shift=2, noise_variance=30.0)
        assert exact <= published_shift_bound(order, shift=2, noise_variance=30.0)
    beyond = 2 * MAX_LATTICE_VARIANCE
    assert integer_shift_divergence(
        3.5, shift=1, noise_variance=beyond
    ) == published_shift_bound(3.5, shift=1, noise_variance=beyond)


def test_both_tail_bounds_cover_what_a_short_table_omits():
    lattice = lattice_for(9.0, order=3.0, shift=1)
    with mpmath.workdps(40):
        v = mpmath.mpf(9)
        pmf = [
            mpmath.exp(-v) * mpmath.besseli(k, v) for k in range(lattice.reach + 200)
        ]
        tail = mpmath.fsum(pmf[lattice.reach + 1 :])
        moment = mpmath.fsum(
            pmf[y - 1] ** 3 / pmf[y] ** 2
            for y in range(lattice.reach + 1, lattice.reach + 199)
        )
    assert tail <= lattice.plain_tail(lattice.reach)
    assert moment <= lattice.moment_tail(3.0, 1) < 1e-9


def test_the_stated_loss_of_a_vector_is_a_tight_upper_bound():
    # Thirty equal coordinates of a sixteenth: short ones lose most for their square.
    variance, length = Fraction(30), 1 / 16
    loss = 30 * exact_divergence(2, length, float(variance))
    account = make_accountant("mixture-rdp", adversary=Adversary.SERVER).compose(
        SkellamMixtureEvent(30, variance, 30 * length**2, 1.0)
    )
    stated = float(account.divergences(np.array([2.0]))[0])
    assert loss <= stated < 1.02 * loss


def calibrated(event, *, accountant="mixture-rdp", adversary=Adversary.SERVER):
    return calibrate(
        event, accountant=accountant, epsilon=1.0, delta=1e-5, adversary=adversary
    )


def test_reference_setting_needs_at_most_1_22_of_the_central_gaussian():
    # n = 100, d = 65 536, clip 1, scale 4: coordinates after rotation up to one step.
    variance = calibrated(lambda v: SkellamMixtureEvent(65_536, v, 16.0, 1.0))
    assert 1.0 <= variance / 16 / Fraction("13.92") <= Fraction("1.22")


def test_federated_setting_needs_the_recorded_noise():
    variance = calibrated(
        lambda v: Repeated(
            PoissonSampled(SkellamMixtureEvent(65_536, v, 64.0, 1.0), 0.004), 1000
        ),
        accountant="hypothetical-mixture-rdp",
        adversary=Adversary.MODEL_READER,
    )
    assert variance / 64 == pytest.approx(1.085, rel=0.01)


def test_integer_shifts_need_the_noise_of_the_gaussian_curve():
    variance = calibrated(
        lambda v: SkellamEvent(4096, v, 64.0), accountant="skellam-rdp"
    )
    assert variance / 64**2 == pytest.approx(16.3634, rel=2e-3)


def test_the_mixture_clip_costs_the_same_as_a_plain_one():
    clipped = make_accountant("mixture-rdp", adversary=Adversary.SERVER).compose(
        SkellamMixtureClippedEvent(256, Fraction(300), 16.0, 1)
    )
    plain = make_accountant("mixture-rdp", adversary=Adversary.SERVER).compose(
        SkellamMixtureEvent(256, Fraction(300), 16.0, 1.0)
    )
    assert clipped.epsilon(1e-5) == plain.epsilon(1e-5)


def test_a_cube_smaller_than_the_ball_limits_the_norm():
    small = make_accountant("mixture-rdp", adversary=Adversary.SERVER).compose(
        SkellamMixtureEvent(4, Fraction(300), 1e6, 1.0)
    )
    four = make_accountant("mixture-rdp", adversary=Adversary.SERVER).compose(
        SkellamMixtureEvent(4, Fraction(300), 4.0, 1.0)
    )
    assert small.epsilon(1e-5) == pytest.approx(four.epsilon(1e-5), rel=1e-9)


def test_heterogeneous_releases_add_their_curves():
    parts = (
        SkellamMixtureEvent(256, Fraction(900), 16.0, 1.0),
        SkellamEvent(256, Fraction(900), 4.0),
        GaussianEvent(3, 10.0, 1.0),
    )
    orders = np.array([2.0, 5.0, 9.0])

    def curve(event):
        account = make_accountant("mixture-rdp", adversary=Adversary.SERVER)
        return account.compose(event).divergences(orders)

    assert np.allclose(
        curve(Composed(parts)), sum(curve(part) for part in parts), rtol=1e-12
    )


def test_replace_one_is_rejected_for_mixtures():
    with pytest.raises(ParameterError) as caught:
        make_accountant(
            "mixture-rdp",
            adversary=Adversary.SERVER,
            adjacency=Adjacency.REPLACE_ONE,
        )
    assert (caught.value.parameter, caught.value.nearest) == ("adjacency", "zero-out")


def test_a_zero_vector_costs_nothing_and_extreme_sensitivities_are_infinite():
    free = make_accountant("mixture-rdp", adversary=Adversary.SERVER).compose(
        SkellamMixtureEvent(4, Fraction(1), 0.0, 1.0)
    )
    assert free.epsilon(1e-12) < 1e-3
    absurd = make_accountant("mixture-rdp", adversary=Adversary.SERVER).compose(
        SkellamMixtureEvent(1 << 20, Fraction(1, 100), 1e12, 3.0)
    )
    assert absurd.epsilon(1e-5) == math.inf


@pytest.mark.parametrize("variance", [9.0, 20_000.0])
@pytest.mark.parametrize("linf_bound", [1e-6, 0.01, 0.3])
def test_a_fractional_cap_costs_at_most_a_whole_step(variance, linf_bound):
    small = mixture_divergence_per_square(
        5.0, linf_bound=linf_bound, noise_variance=variance
    )
    whole = mixture_divergence_per_square(5.0, linf_bound=1.0, noise_variance=variance)
    assert 5.0 / (2 * variance) < small <= whole * (1 + 1e-3)


@pytest.mark.parametrize("variance", [0.02, 0.03, 0.05])
def test_the_search_leaves_orders_without_a_finite_delta(variance):
    # So little noise that delta is one at every order near a Gaussian's best.
    made = make_accountant("mixture-rdp", adversary=Adversary.SERVER).compose(
        SkellamMixtureEvent(65536, Fraction(variance), 0.0625, 0.25)
    )
    assert made.delta(20.0) <= 1e-7
    assert made.delta(1.01 * made.epsilon(1e-7)) <= 1e-7


def test_the_best_order_is_found_even_if_bounds_diverge_beyond_it():
    made = make_accountant("mixture-rdp", adversary=Adversary.SERVER).compose(
        SkellamMixtureEvent(5106, Fraction(4496), 0.03978, 13 / 4096)
    )
    assert made.epsilon(7.2e-6) < 0.01


def test_a_best_order_far_from_the_first_finite_one_is_found_in_few_steps():
    # An epsilon so small that a Gaussian's best order is beyond all that are bounded.
    made = make_accountant("mixture-rdp", adversary=Adversary.SERVER).compose(
        Repeated(SkellamMixtureEvent(41109, Fraction(20_000), 7.6e-8, 1 / 4096), 10_000)
    )
    mixture_divergence_per_square.cache_clear()
    assert made.delta(0.01) < 1e-24
    assert mixture_divergence_per_square.cache_info().misses <= 24  # 60 rung by rung


def test_a_local_minimum_between_two_integers_does_not_end_the_search():
    def stated(variance):
        event = SkellamMixtureEvent(32, Fraction(variance), 4096.0, 64.0)
        account = make_accountant("mixture-rdp", adversary=Adversary.SERVER)
        return account.compose(event).epsilon(1e-5)

    # At order 2.99, below the next whole one, 848 would state 13.81.
    assert stated(856) < stated(848) < stated(836) < 13.0
