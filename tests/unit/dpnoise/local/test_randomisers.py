"""Local randomisers: private by exact ratios, unbiased by exact sums, and drawn right.

Draws come from fixed seeds, so that a run repeats; the limits of the statistical tests
are those of a false alarm once in 10^6 for each of them under fresh seeds.
"""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy

from dpnoise.errors import InputError, ParameterError
from dpnoise.local import (
    LocalParameters,
    best_magnitude_epsilon,
    make_randomiser,
    randomiser_names,
)
from dpnoise.local.draws import Draws
from dpnoise.local.randomiser import LOCAL_LABEL
from dpnoise.local.sphere_cap import best_sphere_cap

ALARM = 1e-6


def built(name, dim, epsilon, bound=1.0):
    """A randomiser; `separated` gives a fifth of its level to the norm."""
    spent = epsilon / 5 if name == "separated" else None
    return make_randomiser(
        LocalParameters(
            randomiser=name,
            dim=dim,
            bound=bound,
            epsilon=epsilon,
            magnitude_epsilon=spent,
        )
    )


def seed(number):
    return number.to_bytes(32, "big")


def farthest(samples, cdf):
    """The distance of Kolmogorov and Smirnov, and its limit by [Massart 1990]."""
    ordered = np.sort(samples)
    steps = np.arange(ordered.size + 1) / ordered.size
    law = cdf(ordered)
    distance = max(np.max(steps[1:] - law), np.max(law - steps[:-1]))
    return distance, math.sqrt(math.log(2 / ALARM) / (2 * ordered.size))


# --- privacy ----------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0, 100.0, 1000.0])
@pytest.mark.parametrize("dim", [2, 3, 50, 1000])
def test_the_densities_of_privunit2_differ_by_its_level_exactly(dim, epsilon):
    made = built("privunit2", dim, epsilon)
    with mpmath.workdps(60):
        square = mpmath.mpf(made.cap.height) * (2 - mpmath.mpf(made.cap.height))
        half = mpmath.mpf(dim - 1) / 2
        moment = square**half / (2 * half * mpmath.beta(half, 0.5))
        # q by Gauss's series, as mpmath sums it; at this point it always converges.
        q = moment * mpmath.sqrt(1 - square)
        q *= mpmath.hyp2f1(1, half + 0.5, half + 1, square)
        lie = mpmath.mpf(made.lie.numerator) / made.lie.denominator
        level = mpmath.log((1 - lie) / q) - mpmath.log(lie / (1 - q))
        assert epsilon - 1e-8 < level < epsilon
        assert abs(level - made.exact_epsilon) < 1e-9
        # And what divides the point is its mean agreement under these very numbers.
        agreement = moment * ((1 - lie) / q - lie / (1 - q))
        assert abs(agreement / made.mean_agreement - 1) < 1e-9


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 8])
def test_privunit_inf_is_private_and_unbiased_over_all_sign_vectors(dim, epsilon):
    made = built("privunit-inf", dim, epsilon)
    points = list(itertools.product((-1, 1), repeat=dim))
    agreeing = [sum(sign > 0 for sign in point) for point in points]
    inside = [count >= made.cap.level for count in agreeing]
    size = sum(inside)
    chances = [
        (1 - made.lie) / size if hit else made.lie / (len(points) - size)
        for hit in inside
    ]
    assert sum(chances) == 1
    ratio = max(chances) / min(chances)
    level = math.log(ratio.numerator) - math.log(ratio.denominator)
    assert epsilon - 1e-8 < level < epsilon
    # Meant is the vector of ones; every entry of the mean is m.
    mean = sum(c * point[0] for c, point in zip(chances, points, strict=True))
    assert made.step * float(mean) == pytest.approx(1.0, rel=1e-8)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 12.0])
def test_scalar_dp_is_private_and_unbiased_over_its_grid(epsilon):
    made = built("scalar-dp", 1, epsilon, bound=3.0)
    levels = made.levels
    truth, other = 1 - made.lie, made.lie / levels
    ratio = truth / other
    assert epsilon - 1e-8 < float(mpmath.log(mpmath.mpf(ratio.numerator))) - float(
        mpmath.log(mpmath.mpf(ratio.denominator))
    )
    assert ratio <= Fraction(math.nextafter(math.exp(epsilon), math.inf))
    grid = np.array([made._value(point) for point in range(levels + 1)])
    for value in (0.0, 0.4, 1.7, 2.9, 3.0):
        position = value / 3.0 * levels
        low = min(int(position), levels - 1)
        meant = np.zeros(levels + 1)
        meant[low], meant[low + 1] = 1 - (position - low), position - low
        chances = meant * float(truth) + (1 - meant) * float(other)
        assert chances.sum() == pytest.approx(1.0)
        mean = chances @ grid
        assert mean == pytest.approx(value, abs=1e-9)
        error = chances @ (grid - value) ** 2
        assert made.mse(value) == pytest.approx(error, rel=1e-6)
        # [Bho18] Lemma 4.3, with the published bound.
        big, k, r = math.exp(epsilon), levels, value
        published = (k + 1) / (big - 1) * (
            r**2 + 9 / (4 * k**2) + (2 * k + 1) * (big + k) * 9 / (6 * k * (big - 1))
        ) + 9 / (4 * k**2)
        assert error <= published
    assert np.abs(grid).max() <= made.output_norm


class ForcedDraws(Draws):
    """Draws that fall as they are told, and keep the probability that they do so."""

    __slots__ = ("_forced", "open", "probability")

    def __init__(self, forced):
        super().__init__(bytes(32), b"forced")
        self._forced, self.open, self.probability = list(forced), 0, Fraction(1)

    def below(self, bound):
        if not self._forced:  # the first choice that is still open: how many ways?
            self.open = self.open or bound
            return 0
        self.probability /= bound
        return self._forced.pop(0)

    def bernoulli(self, probability):
        if not self._forced:
            self.open = self.open or 2
            return False
        shows = bool(self._forced.pop(0))
        self.probability *= probability if shows else 1 - probability
        return shows


def enumerated(draw, forced=()):
    """Yield every outcome of a draw and its exact probability."""
    draws = ForcedDraws(forced)
    outcome = draw(draws)
    if draws.probability == 0:
        return
    if not draws.open:
        yield outcome, draws.probability
        return
    for way in range(draws.open):
        yield from enumerated(draw, (*forced, way))


@pytest.mark.parametrize("epsilon", [0.3, 2.0, 9.0])
@pytest.mark.parametrize("value", [0.0, 0.37, 1.0])
def test_the_law_of_scalar_dp_is_private_and_unbiased(value, epsilon):
    made = built("scalar-dp", 1, epsilon)
    law = dict.fromkeys((made._value(point) for point in range(made.levels + 1)), 0)
    for sent, chance in enumerated(lambda draws: made.draw(value, draws)):
        law[sent] += chance
    assert sum(law.values()) == 1
    mean = sum(float(chance) * sent for sent, chance in law.items())
    assert mean == pytest.approx(value, abs=1e-12)
    square = sum(float(chance) * (sent - value) ** 2 for sent, chance in law.items())
    assert square == pytest.approx(made.mse(value), rel=1e-9)
    ratio = max(law.values()) / min(law.values())
    assert ratio <= (1 - made.lie) / (made.lie / made.levels)


def test_the_chosen_grid_has_the_smallest_worst_variance():
    def worst(epsilon, levels):
        lie = levels / (math.exp(epsilon) + levels)
        x = np.linspace(0, levels, 200 * levels + 1)
        slope = 1 - lie - lie / levels
        second = x**2 + (x % 1) * (1 - x % 1)
        spread = slope * second + lie * (levels + 1) * (2 * levels + 1) / 6
        spread -= (slope * x + lie * (levels + 1) / 2) ** 2
        return float(np.max(spread)) / (slope * levels) ** 2

    for epsilon in (0.2, 1.0, 4.0, 8.0):
        chosen = built("scalar-dp", 1, epsilon).levels
        best = min(worst(epsilon, levels) for levels in range(1, 60))
        assert worst(epsilon, chosen) <= 1.01 * best


# --- draws ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "epsilon"), [(2, 1.0), (3, 6.0), (4, 2.0), (5, 40.0), (60, 0.3), (60, 90.0)]
)
def test_the_cosine_of_privunit2_has_its_law(dim, epsilon):
    made = built("privunit2", dim, epsilon)
    meant = np.zeros(dim)
    meant[1] = 1.0
    points = [made.randomise(meant, private_seed=seed(each)) for each in range(1000)]
    scale = made.mean_agreement
    cosines = np.array(points)[:, 1] * scale
    edge, lie = made.cap.edge, float(made.lie)
    half = (dim - 1) / 2

    def below(t):  # of a uniform point: (1 + t)/2 has a beta law
        return scipy.stats.beta.cdf((1 + t) / 2, half, half)

    def law(t):
        tail = scipy.stats.beta.sf((1 + edge) / 2, half, half)
        within = 1 - scipy.stats.beta.sf((1 + t) / 2, half, half) / tail
        outside = np.minimum(below(t) / (1 - tail), 1.0)
        return lie * outside + (1 - lie) * np.clip(within, 0.0, 1.0)

    distance, limit = farthest(cosines, law)
    assert distance < limit
    lengths = np.linalg.norm(points, axis=1)
    assert np.allclose(lengths, 1 / scale, rtol=1e-12)
    assert lengths.max() <= made.output_norm
    # Across the direction no side is preferred.
    across = np.array(points)[:, 0] > 0
    assert abs(across.sum() - 500) < 0.5 * math.sqrt(1000) * scipy.stats.norm.isf(
        ALARM / 2
    )


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_the_signs_of_privunit_inf_have_their_law(epsilon):
    made = built("privunit-inf", 4, epsilon)
    counts = dict.fromkeys(itertools.product((-1, 1), repeat=4), 0)
    for each in range(4000):
        drawn = made.randomise([1.0, -1.0, 1.0, 1.0], private_seed=seed(each))
        counts[tuple(np.sign(drawn).astype(int))] += 1
    meant = (1, -1, 1, 1)
    expected = []
    for point in counts:
        agreeing = sum(a == b for a, b in zip(point, meant, strict=True))
        inside = agreeing >= made.cap.level
        size = sum(math.comb(4, k) for k in range(made.cap.level, 5))
        chance = (1 - made.lie) / size if inside else made.lie / (16 - size)
        expected.append(4000 * float(chance))
    statistic = sum(
        (count - mean) ** 2 / mean
        for count, mean in zip(counts.values(), expected, strict=True)
    )
    assert statistic < scipy.stats.chi2.isf(ALARM, 15)


def test_a_narrow_cap_of_the_cube_has_its_law():
    made = built("privunit-inf", 400, 5.0)
    level = made.cap.level
    assert made.cap.log_tail < math.log(1 / 16)  # so that draws start at the edge
    weights = np.array([float(math.comb(400, k)) for k in range(level, 401)])
    counts = np.zeros(401 - level)
    draws = Draws(seed(7), b"test")
    for _ in range(3000):
        heads = made._draw_agreements(draws)
        if heads >= level:
            counts[heads - level] += 1
    expected = counts.sum() * weights / weights.sum()
    # Rare outcomes are counted together.
    many = expected > 10
    seen = np.append(counts[many], counts[~many].sum())
    meant = np.append(expected[many], max(expected[~many].sum(), 1e-9))
    assert np.sum((seen - meant) ** 2 / meant) < scipy.stats.chi2.isf(ALARM, many.sum())


@pytest.mark.parametrize("name", ["privunit2", "separated", "privunit-inf"])
def test_short_vectors_are_estimated_without_bias(name):
    made = built(name, 6, 8.0, bound=2.0)
    vector = np.array([0.9, -0.3, 0.1, 0.0, 0.2, -0.05])
    drawn = np.array(
        [made.randomise(vector, private_seed=seed(each)) for each in range(3000)]
    )
    errors = (drawn.mean(axis=0) - vector) / (drawn.std(axis=0) / math.sqrt(3000))
    # The central limit is close at 3000; 6 entries share the alarm.
    assert np.abs(errors).max() < scipy.stats.norm.isf(ALARM / 12)
    squares = np.sum((drawn - vector) ** 2, axis=1)
    norm = float(np.linalg.norm(vector))
    away = (squares.mean() - made.mse(norm)) / (squares.std() / math.sqrt(3000))
    assert abs(away) < scipy.stats.norm.isf(ALARM / 2)


@pytest.mark.parametrize("name", randomiser_names())
def test_long_vectors_are_clipped_and_outputs_stay_in_their_ball(name):
    dim = 1 if name == "scalar-dp" else 5
    made = built(name, dim, 3.0, bound=0.5)
    for each in range(200):
        drawn = made.randomise(np.full(dim, 1e300), private_seed=seed(each))
        assert np.linalg.norm(drawn) <= made.output_norm


def test_the_clipping_factor_is_reported_to_the_owner():
    assert built("separated", 2, 1.0, bound=2.0).shortened_by([3.0, 4.0]) == 2.5
    assert built("privunit2", 2, 1.0, bound=9.0).shortened_by([3.0, 4.0]) == 1.0
    assert built("privunit-inf", 2, 1.0, bound=2.0).shortened_by([3.0, -4.0]) == 2.0
    scalar = built("scalar-dp", 1, 1.0, bound=2.0)
    assert scalar.shortened_by([3.0]) == 1.5
    assert scalar.shortened_by([-1.0]) > 1e300  # what is left of it is nothing
    assert built("privunit2", 2, 1.0, bound=1e-100).shortened_by([1e300, 0]) > 1e300


@pytest.mark.parametrize("name", ["privunit2", "separated"])
def test_a_zero_vector_is_as_long_as_any_other(name):
    made = built(name, 4, 2.0)
    drawn = [made.randomise(np.zeros(4), private_seed=seed(n)) for n in range(20)]
    other = [made.randomise(np.ones(4), private_seed=seed(n)) for n in range(20)]
    lengths = {round(float(np.linalg.norm(each)), 9) for each in drawn}
    assert lengths & {round(float(np.linalg.norm(each)), 9) for each in other}
    assert np.all(np.isfinite(drawn))


@pytest.mark.parametrize("epsilon", [0.1, 1000.0])
@pytest.mark.parametrize("name", ["privunit2", "privunit-inf"])
def test_a_million_dimensions_are_finite_and_point_the_right_way(name, epsilon):
    made = built(name, 1_000_000, epsilon)
    vector = np.full(1_000_000, 1.0 if name == "privunit-inf" else 1e-3)
    drawn = made.randomise(vector, private_seed=seed(1))
    assert np.all(np.isfinite(drawn))
    # A direction has cosine near m in so many dimensions; in units of its spread.
    cosine = float(drawn @ vector) / np.linalg.norm(drawn) / np.linalg.norm(vector)
    assert abs(cosine - made.mean_agreement) < 6e-3
    assert made.exact_epsilon <= epsilon


def test_draws_are_determined_by_every_bit_of_the_seed():
    made = built("separated", 30, 5.0)
    first = made.randomise(np.ones(30), private_seed=seed(1))
    assert np.array_equal(first, made.randomise(np.ones(30), private_seed=seed(1)))
    assert not np.array_equal(first, made.randomise(np.ones(30), private_seed=seed(3)))


def test_exact_draws_are_exact():
    draws = Draws(seed(5), LOCAL_LABEL)
    assert not any(draws.bernoulli(Fraction(0)) for _ in range(100))
    assert all(draws.bernoulli(Fraction(1)) for _ in range(100))
    third = sum(draws.bernoulli(Fraction(1, 3)) for _ in range(3000))
    assert abs(third - 1000) < math.sqrt(3000 * 2 / 9) * scipy.stats.norm.isf(ALARM / 2)
    pairs = dict.fromkeys(itertools.combinations(range(4), 2), 0)
    for _ in range(1200):
        pairs[tuple(np.flatnonzero(draws.subset(2, 4)))] += 1
    assert sum((n - 200) ** 2 / 200 for n in pairs.values()) < scipy.stats.chi2.isf(
        ALARM, 5
    )
    assert not draws.subset(0, 3).any()
    assert draws.subset(3, 3).all()
    assert "05" not in repr(draws)


def test_the_privacy_budget_is_split_to_minimise_the_error():
    shares = {}
    for norm in (0.1, 1.0):
        spent = best_magnitude_epsilon(
            dim=400, bound=1.0, epsilon=40.0, typical_norm=norm
        )

        def error(share, norm=norm):
            parameters = LocalParameters(
                randomiser="separated",
                dim=400,
                bound=1.0,
                epsilon=40.0,
                magnitude_epsilon=share,
            )
            return make_randomiser(parameters).mse(norm)

        assert error(spent) <= 1.02 * min(error(each / 2) for each in range(2, 60))
        shares[norm] = spent
    assert shares[0.1] > shares[1.0]  # a short norm must not drown in its own noise


def test_sending_the_norm_separately_lowers_the_error_of_short_vectors():
    apart = LocalParameters(
        randomiser="separated",
        dim=1000,
        bound=1.0,
        epsilon=100.0,
        magnitude_epsilon=8.0,
    )
    together = built("privunit2", 1000, 100.0)
    assert 10 * make_randomiser(apart).mse(0.2) < together.mse(0.2)
    assert built("privunit2", 1000, 10.0).mse(1.0) == pytest.approx(93.55, abs=5e-3)


# --- refusals ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "parameter"),
    [
        ({"randomiser": "privunit"}, "randomiser"),
        ({"randomiser": "scalar-dp", "magnitude_epsilon": None}, "dim"),
        ({"dim": 1}, "dim"),
        ({"dim": 1 << 25}, "dim"),
        ({"bound": 0.0}, "bound"),
        ({"bound": 1e200}, "bound"),
        ({"epsilon": 1e4}, "epsilon"),
        ({"magnitude_epsilon": None}, "magnitude_epsilon"),
        ({"randomiser": "privunit2"}, "magnitude_epsilon"),
        ({"magnitude_epsilon": 2.0}, "magnitude_epsilon"),
    ],
)
def test_invalid_local_parameters_are_rejected_by_name(changed, parameter):
    good = {
        "randomiser": "separated",
        "dim": 3,
        "bound": 1.0,
        "epsilon": 2.0,
        "magnitude_epsilon": 0.5,
    }
    assert LocalParameters.from_dict(good).to_dict() == good
    with pytest.raises(ParameterError) as refused:
        LocalParameters.from_dict(good | changed)
    assert refused.value.parameter == parameter


def test_invalid_vectors_are_refused():
    made = built("privunit2", 3, 1.0)
    with pytest.raises(InputError):
        made.randomise([1.0, 2.0], private_seed=seed(1))
    with pytest.raises(InputError):
        made.randomise([1.0, 2.0, math.nan], private_seed=seed(1))
    with pytest.raises(ParameterError, match="seed"):
        made.randomise([1.0, 2.0, 3.0], private_seed=b"short")


def test_the_published_split_is_never_more_accurate():
    # [Bho18] Theorem 1, (16a) and (16b), with 0.99 of the level for the cap.
    dim, epsilon = 1000, 20.0
    first = (math.expm1(19.8) / (math.exp(19.8) + 1)) * math.sqrt(
        math.pi / (2 * (dim - 1))
    )
    admitted = [first]
    for edge in np.linspace(math.sqrt(2 / dim), 0.5, 400):
        needs = 0.5 * math.log(dim) + math.log(6) + math.log(edge)
        needs -= (dim - 1) / 2 * math.log1p(-(edge**2))
        if needs <= 19.8:
            admitted.append(float(edge))
    chance = 1 / (1 + math.exp(-0.2))
    half = (dim - 1) / 2
    agreements = []
    for edge in admitted:
        tail = scipy.stats.beta.sf((1 + edge) / 2, half, half)
        moment = math.exp(
            half * math.log1p(-(edge**2))
            - math.log(2 * half)
            - (math.lgamma(half) + math.lgamma(0.5) - math.lgamma(half + 0.5))
        )
        agreements.append(moment * (chance / tail - (1 - chance) / (1 - tail)))
    ours = built("privunit2", dim, epsilon).mean_agreement
    assert (ours / max(agreements)) ** 2 > 1.5  # of the variance


def test_the_first_published_condition_is_unsound_on_the_circle():
    # (16a) of [Bho18] Theorem 1 admits this edge for 2.5 nats at d = 2.
    epsilon = 2.5
    edge = math.expm1(epsilon) / (math.exp(epsilon) + 1) * math.sqrt(math.pi / 2)
    edge = min(edge, 1 - 1e-9)
    level = math.log((math.pi - math.acos(edge)) / math.acos(edge))
    assert level > 2 * epsilon
    # The exact condition leaves a far wider cap.
    assert best_sphere_cap(2, epsilon).edge < 0.75


def test_three_dimensions_have_a_closed_form():
    for epsilon in (0.5, 2.0, 8.0):
        made = built("privunit2", 3, epsilon)
        assert made.mean_agreement == pytest.approx(math.tanh(epsilon / 4), rel=1e-7)
        assert float(made.lie) == pytest.approx(
            1 / (1 + math.exp(epsilon / 2)), rel=1e-7
        )
    assert built("privunit2", 1000, 10.0).mse(0.0) == pytest.approx(94.55, abs=5e-3)
