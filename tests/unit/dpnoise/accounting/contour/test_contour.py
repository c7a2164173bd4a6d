"""The contour accountant against exact losses of concrete vectors."""
# ruff: noqa: TID251 - numpy.random makes test data here, never noise

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy

from dpnoise.accounting import make_accountant
from dpnoise.accounting.calibration import calibrate
from dpnoise.accounting.contour.integral import (
    COARSE,
    ContourBound,
    ContourResolution,
    Direction,
)
from dpnoise.accounting.contour.mixture_contour import contour_bound
from dpnoise.accounting.contour.moment_table import CoordinateNorm
from dpnoise.accounting.gaussian import analytic_gaussian_stddev, gaussian_epsilon
from dpnoise.accounting.statement import Status
from dpnoise.errors import ParameterError, TheoremNotApplicableError, UnknownEventError
from dpnoise.events import (
    Adjacency,
    Adversary,
    Composed,
    GaussianEvent,
    PoissonSampled,
    Repeated,
    SecretlySelected,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)

DIM = 65536
TARGET_DELTA = 1e-5
CALIBRATED = Fraction(226412, 1000)  # at C = 16 the accountant states ε = 1 here


def laws(variance, x, reach=None):
    """The laws of one coordinate, from another library: (rounded + noise, noise)."""
    reach = reach or int(15 * variance**0.5 + 60 + abs(x))
    y = np.arange(-reach, reach + 1)
    whole = np.floor(x)
    noise = scipy.special.ive(np.abs(y), variance)
    share = x - whole
    mixed = (1 - share) * scipy.special.ive(np.abs(y - whole), variance)
    mixed += share * scipy.special.ive(np.abs(y - whole - 1), variance)
    keep = (noise > 1e-290) & (mixed > 1e-290)
    return mixed[keep], noise[keep]


def fourier_delta(variance, x, copies, epsilon, *, forward=True):
    """Delta of `copies` equal coordinates by inverting the Laplace transform."""
    first, second = laws(variance, x)
    if not forward:
        first, second = second, first
    loss = np.log(first / second)
    # Any contour gives the same integral; this one keeps the integrand small.
    c = epsilon * variance / (copies * x * x)
    width = math.sqrt(variance / (copies * x * x))
    # Four times as many points change no sum by more than 10^-12 of it.
    w = np.linspace(0.0, 40.0 * width, 2_001)
    total = np.empty(w.size, dtype=np.complex128)
    weight = first * np.exp(c * loss)
    for part in np.array_split(np.arange(w.size), 5):
        total[part] = np.exp(1j * np.outer(w[part], loss)) @ weight
    s = c + 1j * w
    integrand = (total**copies * np.exp(-s * epsilon) / (s * (s + 1.0))).real
    return float(np.trapezoid(integrand, w) / math.pi)


def mixture(variance=CALIBRATED, norm=16.0, largest=1.0, dim=DIM):
    return SkellamMixtureEvent(
        dim=dim,
        aggregate_noise_variance=Fraction(variance),
        l2_clip_squared_steps=norm,
        linf_bound=largest,
    )


def account(*events, adversary=Adversary.SERVER):
    made = make_accountant("mixture-contour", adversary=adversary)
    for event in events:
        made.compose(event)
    return made


def bound_of(variance, norm, largest=1.0, dim=DIM, kind=CoordinateNorm.SQUARE):
    return ContourBound(
        noise_variance=variance,
        norm=kind,
        norm_bound=norm,
        largest_coordinate=largest,
        dim=dim,
    )


def test_needs_at_most_two_percent_more_noise_than_a_central_gaussian():
    variance = calibrate(
        mixture,
        accountant="mixture-contour",
        epsilon=1.0,
        delta=TARGET_DELTA,
        adversary=Adversary.SERVER,
    )
    central = 16.0 * analytic_gaussian_stddev(1.0, TARGET_DELTA, 1.0) ** 2
    assert 1.0 < variance / central <= 1.02
    assert float(variance) / 16.0 == pytest.approx(14.15, rel=2e-3)
    assert account(mixture(variance)).epsilon(TARGET_DELTA) <= 1.0


@pytest.mark.parametrize(
    ("epsilon", "scale", "variance"),
    # On the coarsest grid that code, less precise far out, asked for 4.1973.
    [(1.0, 0.5, 4.0136), (1.0, 1.0, 14.672), (0.1, 1.0, 949.78), (1.0, 4.0, 224.50)],
)
def test_a_cap_below_one_step_needs_the_noise_computed_independently(
    epsilon, scale, variance
):
    cap = math.ceil(6.0 * scale / 256.0 * 4096.0) / 4096.0
    enough, less = (
        account(mixture(variance * (1.0 + change), scale**2, cap))
        for change in (3e-4, -2e-3)
    )
    assert enough.epsilon(TARGET_DELTA) <= epsilon < less.epsilon(TARGET_DELTA)
    # Every coordinate at the cap: the exact loss of one vector, by another transform.
    copies = round(scale**2 / cap**2)
    for forward in (True, False):
        exact = fourier_delta(variance, cap, copies, epsilon, forward=forward)
        assert exact <= enough.delta(epsilon)


@pytest.mark.parametrize(
    ("x", "copies", "published"),
    [(0.5, 64, 9.985e-6), (1.0, 16, 8.73e-6), (1 / 64, 65536, 9.03e-6)],
)
def test_exact_losses_of_known_vectors_stay_below_the_bound(x, copies, published):
    variance = float(CALIBRATED)
    claimed = account(mixture()).delta(1.0)
    assert claimed == pytest.approx(TARGET_DELTA, rel=1e-3)
    for forward in (True, False):
        exact = fourier_delta(variance, x, copies, 1.0, forward=forward)
        assert exact <= claimed
    exact = fourier_delta(variance, x, copies, 1.0)
    # The published figures are for a bound of exactly 1e-5 without slack terms.
    assert exact == pytest.approx(published, rel=0.025)


def test_one_coordinate_that_takes_the_whole_norm_stays_below_the_bound():
    variance = float(CALIBRATED)
    bound = bound_of(variance, 16.0, largest=4.0, dim=1)
    mixed, noise = laws(variance, 4.0)
    for epsilon in (0.3, 1.0, 1.4):
        exact = np.maximum(0.0, mixed - math.exp(epsilon) * noise).sum()
        assert exact <= bound.delta(epsilon)
    exact = np.maximum(0.0, mixed - math.e * noise).sum()
    assert exact == pytest.approx(7.78e-6, rel=0.025)


def test_claiming_three_percent_less_noise_is_refuted_by_a_vector():
    less = 0.97 * float(CALIBRATED)
    exact = fourier_delta(less, 0.5, 64, 1.0)
    assert exact > 1.15 * TARGET_DELTA
    # So the accountant must not state the target there, and it does not.
    assert account(mixture(Fraction(less))).delta(1.0) >= exact


@pytest.mark.parametrize("seed", range(6))
def test_exact_delta_of_random_pairs_of_coordinates_is_below_the_bound(seed):
    generator = np.random.default_rng(seed)
    variance = float(generator.choice([0.3, 1.0, 4.0, 20.0]))
    x = generator.uniform(0.0, 2.5, size=2)
    first = [laws(variance, value, reach=90) for value in x]
    norm = float((x**2).sum())
    bound = bound_of(variance, norm, largest=2.5, dim=2)
    joint = np.outer(first[0][0], first[1][0]), np.outer(first[0][1], first[1][1])
    for epsilon in (0.0, 0.5, 2.0, 4.0):
        for one, other in itertools.permutations(joint):
            exact = np.maximum(0.0, one - math.exp(epsilon) * other).sum()
            assert exact <= bound.delta(epsilon) * (1 + 1e-9)


def test_monte_carlo_agrees_at_a_large_delta():
    # 10^5 losses of 64 coordinates of one half; C = 16, v = 16: δ is about 0.13.
    variance, copies, epsilon, draws = 16.0, 64, 1.0, 100_000
    mixed, noise = laws(variance, 0.5)
    generator = np.random.default_rng(7)
    counts = generator.multinomial(copies, mixed / mixed.sum(), size=draws)
    losses = counts @ np.log(mixed / noise)
    gains = np.maximum(0.0, -np.expm1(epsilon - losses))
    error = gains.std() / math.sqrt(draws)
    claimed = bound_of(variance, 16.0).delta(epsilon)
    # Five standard errors: one false alarm in more than a million per side.
    assert gains.mean() - 5 * error <= claimed
    assert claimed <= 1.05 * gains.mean() + 5 * error


@pytest.mark.parametrize("shift", [1, 2])
def test_integer_vectors_are_accounted_for_exactly_in_one_dimension(shift):
    variance = 9.0
    event = SkellamEvent(1, Fraction(9), l2_sensitivity=float(shift))
    mixed, noise = laws(variance, float(shift))
    for epsilon in (0.2, 0.8):
        exact = np.maximum(0.0, mixed - math.exp(epsilon) * noise).sum()
        claimed = account(event).delta(epsilon)
        # The loss of one integer coordinate is nearly on a lattice, and a bound on
        # absolute values pays for its resonances.
        assert exact <= claimed <= exact * 1.2


def test_integer_vectors_too_short_for_the_dimension_are_bounded_at_both_ends():
    # One coordinate of at most 2 under norm 7: no integer vector has norm 7.
    bound = bound_of(9.0, 7.0, largest=2.0, dim=1, kind=CoordinateNorm.INTEGER)
    mixed, noise = laws(9.0, 2.0)
    exact = np.maximum(0.0, mixed - math.e * noise).sum()
    assert exact <= bound.delta(1.0)


def test_a_zero_norm_vector_is_counted_only_where_the_bound_is_unreachable():
    integer = CoordinateNorm.INTEGER
    lone = bound_of(9.0, 11.0, largest=2.0, dim=1, kind=integer)
    many = bound_of(9.0, 11.0, largest=2.0, dim=11, kind=integer)
    c = 0.4
    nothing = -0.5 * math.log(4.0 * c * (c + 1.0))
    assert many.log_constant(c, Direction.FORWARD) < nothing
    assert lone.log_constant(c, Direction.FORWARD) >= nothing


def test_published_clip_counts_the_rounding_so_half_steps_cost_twice():
    # x = 1/2 counts 1/4 + 1/4: 32 such coordinates use up a mixture norm of 16.
    event = SkellamMixtureClippedEvent(DIM, CALIBRATED, 16.0, 1)
    claimed = account(event).delta(1.0)
    for x, copies in ((0.5, 32), (1.0, 16)):
        assert fourier_delta(float(CALIBRATED), x, copies, 1.0) <= claimed
    assert claimed == pytest.approx(8.73e-6, rel=0.03)  # integers are its worst case


def test_fine_grids_approach_the_analytic_gaussian():
    multiplier = math.sqrt(14.0)
    variance = Fraction(14 * 4096)
    found = account(mixture(variance, norm=4096.0, largest=2.0)).epsilon(TARGET_DELTA)
    central = gaussian_epsilon(TARGET_DELTA, noise_multiplier=multiplier)
    assert central < found < 1.002 * central


def test_epsilon_and_delta_are_inverse_and_fall_with_noise():
    previous = math.inf
    for variance in (20, 60, 227, 900):
        made = account(mixture(variance))
        epsilon = made.epsilon(TARGET_DELTA)
        assert made.delta(epsilon) == pytest.approx(TARGET_DELTA, rel=2e-3)
        assert epsilon < previous
        previous = epsilon


def test_short_vectors_are_capped_by_the_dimension():
    full = bound_of(60.0, 4.0, largest=1.0, dim=4)
    capped = bound_of(60.0, 99.0, largest=1.0, dim=4)
    assert capped.norm_bound == 4.0
    assert capped.delta(0.5) == full.delta(0.5)


def test_a_coarser_resolution_is_looser_and_never_tighter():
    fine = bound_of(60.0, 16.0)
    rough = ContourBound(
        noise_variance=60.0,
        norm=CoordinateNorm.SQUARE,
        norm_bound=16.0,
        largest_coordinate=1.0,
        dim=DIM,
        resolution=COARSE,
    )
    for direction in Direction:
        c = fine.best_contour(direction, epsilon=1.0)
        low, high = fine.log_constant(c, direction), rough.log_constant(c, direction)
        assert low < high < low + 0.15


def test_vectors_that_cannot_differ_cost_nothing():
    for event in (mixture(norm=0.0), SkellamEvent(3, Fraction(1), l2_sensitivity=0.9)):
        made = account(event)
        assert made.epsilon(1e-9) == 0.0
        assert made.delta(0.0) == 0.0


def test_noise_below_the_tables_is_refused_and_above_them_rounded_down():
    with pytest.raises(TheoremNotApplicableError) as caught:
        account(mixture(Fraction(1, 1 << 20)))
    assert caught.value.parameter == "aggregate_noise_variance"
    used = bound_of(2.0**90, 2.0**80).details()["noise_variance_used"]
    assert used == (2.0**26).hex()


def test_a_second_release_is_refused():
    for events in ((Repeated(mixture(), 2),), (Composed((mixture(), mixture())),)):
        with pytest.raises(TheoremNotApplicableError, match="a single release"):
            account(*events)


def test_sampling_with_noise_shares_is_stated_as_not_counted():
    sampled = PoissonSampled(mixture(), 0.1)
    statement = account(sampled).statement(TARGET_DELTA)
    assert statement.epsilon == account(mixture()).epsilon(TARGET_DELTA)
    assert any("not counted" in sentence for sentence in statement.assumptions)


def test_a_single_selection_before_the_release_is_a_closed_form():
    rate = Fraction(1, 20)
    made = account(SecretlySelected(mixture(), rate))
    composed = make_accountant("mixture-pld", adversary=Adversary.SERVER)
    composed.compose(SecretlySelected(mixture(), rate))
    for epsilon in (0.005, 0.03, 0.08):
        # The whole curve is bounded on wider cells, hence a little looser.
        found = made.delta(epsilon)
        assert (
            0.95 * composed.delta(epsilon) <= found <= 1.001 * composed.delta(epsilon)
        )
    assert made.delta(made.epsilon(TARGET_DELTA)) == pytest.approx(
        TARGET_DELTA, rel=1e-3
    )
    assert made.epsilon(0.051) == 0.0  # more likely than the vector itself


def test_other_events_and_replace_one_are_refused():
    with pytest.raises(UnknownEventError, match="default_accountants"):
        account(GaussianEvent(1, 1.0, 1.0))
    with pytest.raises(ParameterError, match="zero-out"):
        make_accountant(
            "mixture-contour",
            adversary=Adversary.SERVER,
            adjacency=Adjacency.REPLACE_ONE,
        )


def test_the_statement_names_status_assumptions_and_the_verifiable_figures():
    statement = account(mixture()).statement(TARGET_DELTA)
    assert statement.status == "certified"
    assert any("IEEE 754" in sentence for sentence in statement.assumptions)
    details = statement.details
    c = float(details["contour_forward"])
    log_constant = float(details["log_constant_forward"])
    restated = (log_constant - math.log(TARGET_DELTA)) / c
    assert restated == pytest.approx(statement.epsilon, rel=1e-3)


def test_sampler_distance_is_charged_to_delta():
    plain = account(mixture()).delta(1.0)
    charged = SkellamMixtureEvent(DIM, CALIBRATED, 16.0, 1.0, sampler_distance=1e-6)
    expected = plain + (1 + math.e) * 1e-6
    assert account(charged).delta(1.0) == pytest.approx(expected, rel=1e-9)


def test_resonances_beyond_the_main_lobe_are_not_capped_by_its_edge():
    # Integer coordinates make the loss nearly a lattice: |M| comes back to its peak
    # beyond the main lobe. Capped by the bound at their own beginning, the outer cells
    # would lose a seventh of the integral; a longer main lobe shows what is there.
    event = {
        "noise_variance": 0.5,
        "norm": CoordinateNorm.INTEGER,
        "norm_bound": 1.0,
        "largest_coordinate": 1.0,
        "dim": 4,
    }
    usual = ContourBound(**event)
    c = usual.best_contour(Direction.FORWARD, epsilon=2.0)
    longer = ContourBound(
        **event, resolution=ContourResolution(main_lobe=24.0, main_cells=576)
    )
    expected = longer.log_constant(c, Direction.FORWARD)
    assert usual.log_constant(c, Direction.FORWARD) >= expected - 0.02


@pytest.mark.parametrize(
    ("variance", "norm", "largest", "dim"),
    [(28.4, 0.0184, 0.01, 1), (64.0, 0.1, 1.0, 64)],
)
def test_hardly_any_sensitivity_gives_hardly_any_loss_without_overflow(
    variance, norm, largest, dim
):
    bound = ContourBound(
        noise_variance=variance,
        norm=CoordinateNorm.SQUARE,
        norm_bound=norm,
        largest_coordinate=largest,
        dim=dim,
        resolution=COARSE,
    )
    assert bound.delta(6.0) < 1e-100
    assert bound.epsilon(1e-6) < 0.3


def test_delta_is_the_larger_of_both_directions():
    bound = ContourBound(
        noise_variance=16.0,
        norm=CoordinateNorm.SQUARE,
        norm_bound=16.0,
        largest_coordinate=4.0,
        dim=64,
    )
    claimed = bound.delta(0.3)
    for direction in Direction:
        c = bound.best_contour(direction, epsilon=0.3)
        apart = math.exp(bound.log_constant(c, direction) - 0.3 * c)
        assert claimed >= apart > 0.9 * claimed


@pytest.mark.parametrize(
    ("variance", "norm", "largest", "target"),
    [(0.5, 0.02068, 0.1438, 1e-9), (4.8, 0.02068, 0.1438, 1e-9), (3.1, 1.0, 1.0, 1e-5)],
)
def test_a_direction_with_bounded_losses_does_not_affect_the_other(
    variance, norm, largest, target
):
    # Leaving out a vector shorter than a step loses at most log(1/(1 − x)) for each
    # coordinate, the smallest most for their norm. A contour that is chosen by others
    # is far too steep, and its bound on delta is then above the one for less epsilon.
    bound = bound_of(variance, norm, largest=largest)
    epsilon = bound.epsilon(target)
    assert bound.delta(epsilon) == pytest.approx(target, rel=0.03)
    assert bound.delta(1.01 * epsilon) < target


def coarse_grid(dim=1092, variance=147.66):
    """Steps so coarse that one direction is clearly the worse one."""
    return SkellamMixtureEvent(dim, Fraction(variance), 20.763, 5.0)


def test_a_search_evaluates_only_the_dominating_direction():
    event = coarse_grid()
    stated = make_accountant("mixture-contour", adversary=Adversary.SERVER)
    guess = make_accountant(
        "mixture-contour", adversary=Adversary.SERVER, estimating=True
    )
    assert guess.compose(event).delta(1.7) == stated.compose(event).delta(1.7)
    assert guess.statement(1e-5).status is Status.HYPOTHETICAL

    bound = contour_bound.__wrapped__(event, whole_curve=False)
    likely = bound.likely_delta(1.7)
    assert bound.contours_bounded == 1
    assert bound.delta(1.7) == likely
    assert bound.contours_bounded == 2

    # Where all of the norm may be one coordinate's, the norm is unknown beforehand.
    even = contour_bound.__wrapped__(
        SkellamMixtureEvent(1, Fraction(495), 2280.0, 47.7), whole_curve=False
    )
    assert even.likely_delta(8.6) == even.delta(8.6)
    worse = even.best_contour(Direction.REVERSE, epsilon=8.6)
    log_delta = even.log_constant(worse, Direction.REVERSE) - worse * 8.6
    assert math.log(even.delta(8.6)) == pytest.approx(log_delta, rel=1e-12)


def test_epsilon_is_searched_only_in_the_dominating_direction():
    bound = contour_bound.__wrapped__(coarse_grid(), whole_curve=False)
    epsilon = bound.epsilon(1e-6)
    assert bound.contours_bounded <= 3
    assert bound.delta(epsilon) == pytest.approx(1e-6, rel=5e-3)
    forward = bound.best_contour(Direction.FORWARD, log_delta=math.log(1e-6))
    constant = bound.log_constant(forward, Direction.FORWARD)
    assert epsilon == pytest.approx((constant - math.log(1e-6)) / forward, rel=1e-3)
