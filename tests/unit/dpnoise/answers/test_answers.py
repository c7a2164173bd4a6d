"""Questions, their vectors, and what noisy sums say, against plain counting."""

import functools
import math
import sys
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import scipy

from dpnoise import make_mechanism, plan
from dpnoise.answers import Choice, Histogram, Mean, Quantiles, Votes
from dpnoise.errors import InputError, MissingExtraError, ParameterError
from dpnoise.mechanisms import SumError, noise_quantile
from dpnoise.samplers import skellam_table

AGES = Histogram((0.0, 18.0, 30.0, 65.0, 120.0))
PETS = Choice(("cat", "dog", "none"))
BALLOT = Votes(("bicycles", "buses"))
INCOME = Quantiles(0.0, 16.0, levels=4)
AGE = Mean(lowest=0, highest=120)


@dataclass(frozen=True)
class Released:
    """As much of a released sum as questions read."""

    values: np.ndarray
    inputs: int
    error: SumError


ANSWERED = [
    (AGES, [5, 20, 40, 40]),
    (PETS, ["cat", "dog", "dog", "none"]),
    (BALLOT, [(True, None)] * 4),
    (INCOME, [1.0, 2.0, 3.0, 4.0]),
    (AGE, [30, 40, 50, 60]),
]


@pytest.fixture(name="pyplot")
def _pyplot():
    pytest.importorskip("matplotlib").use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra

    yield plt
    plt.close("all")


def total(question, answers):
    return np.sum([question.encode(answer) for answer in answers], axis=0)


def test_the_intervals_of_a_plan_hold_without_removed_noise():
    made = plan(**AGES.bounds, clients=40, min_survivors=20, epsilon=3.0, delta=1e-6)
    rule = made.parameters.noise_rule
    arriving = max(n * rule.session(n).upload for n in range(20, 41))
    assert made.most_noise_mse == float(arriving)
    assert made.to_dict()["most_noise_mse"] == made.most_noise_mse
    # A full session that loses no client keeps half of that.
    assert made.forecast.noise_mse < 0.51 * made.most_noise_mse
    central = plan(clients=40, dimension=8, epsilon=3.0, delta=1e-6, l2_clip=1.0)
    assert central.most_noise_mse == pytest.approx(central.forecast.noise_mse)


@pytest.mark.parametrize("question", [AGES, PETS, BALLOT, INCOME])
def test_a_plan_for_a_question_uses_the_bounds_of_its_vectors(question):
    made = plan(question, clients=50, epsilon=1.0, delta=1e-5)
    assert made == plan(clients=50, epsilon=1.0, delta=1e-5, **question.bounds)
    chosen = make_mechanism(made.parameters)
    assert chosen.dim == question.dimension
    assert chosen.max_nonzero == question.max_nonzero
    assert chosen.parameters.signed is question.signed


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        (AGES, [0, 17.9, 18, 120, 121, -1]),
        (PETS, PETS.options),
        (BALLOT, [(True, False), (None, None), (False, False)]),
        (INCOME, [-5, 0.0, 3.7, 15.99, 16.0, math.inf]),
    ],
)
def test_no_answer_exceeds_the_bounds(question, answers):
    for answer in answers:
        vector = question.encode(answer)
        assert vector.shape == (question.dimension,)
        assert np.count_nonzero(vector) <= question.max_nonzero
        assert vector.min() >= (-1 if question.signed else 0)
        assert vector.max() <= 1


def test_buckets_include_their_lower_border():
    counted = total(AGES, [0, 17.9, 18, 29, 65, 120, 121])
    assert counted.tolist() == [2, 2, 0, 2]
    found = AGES.decode(counted, noise_variance=4.0)
    assert found.labels == ("0 to 18", "18 to 30", "30 to 65", "65 to 120")
    assert found.standard_error == 2.0
    assert str(found).splitlines()[0] == f"0 to 18           2 ± {found.half_width}"


def test_choices_are_counted_by_name():
    found = PETS.decode(total(PETS, ["dog", "dog", "cat"]), noise_variance=1.0)
    assert found.counts.tolist() == [1, 2, 0]
    assert found.labels == PETS.options


def test_a_majority_within_the_noise_is_undecided():
    votes = [(True, None)] * 40 + [(False, True)] * 5
    found = BALLOT.decode(total(BALLOT, votes), noise_variance=9.0)
    assert found.majorities.tolist() == [35, 5]
    assert found.decided == (True, None)
    lost = BALLOT.decode(-total(BALLOT, votes), noise_variance=9.0)
    assert lost.decided == (False, None)


@pytest.mark.parametrize("variance", [0.05, 1.0, 11.1, 400.0])
@pytest.mark.parametrize(("confidence", "counts"), [(0.95, 1), (0.99, 7)])
def test_the_noise_quantile_follows_the_exact_law(variance, confidence, counts):
    reach = noise_quantile(variance, confidence=confidence, counts=counts)
    law = scipy.stats.skellam(variance / 2, variance / 2)
    beyond = (1 - confidence) / counts
    assert 2 * law.sf(reach) <= beyond
    assert reach == 0 or 2 * law.sf(reach - 1) > beyond


def test_noise_of_large_variance_is_normal():
    variance = float(1 << 16)
    near, far = noise_quantile(variance), noise_quantile(variance * 1.0001)
    assert near <= far <= near * 1.005
    assert far >= 1.96 * math.sqrt(variance)


def test_noiseless_ranks_are_counts():
    values = np.array([0.5, 0.7, 3.2, 3.9, 8.0, 15.5, 99.0])
    found = INCOME.decode(total(INCOME, values), inputs=7, noise_variance=1e-3)
    below = [np.count_nonzero(np.minimum(values, 15.99) < b) for b in found.borders]
    np.testing.assert_allclose(found.ranks, below, atol=1e-9)
    median = found.quantile(0.5)
    assert median.lowest <= 3.9 <= median.highest
    assert median.highest - median.lowest <= 2.0
    assert median.lowest <= median.value <= median.highest
    shown = str(found).splitlines()
    assert [line[:9] for line in shown] == ["25% below", "50% below", "75% below"]
    assert f" {median.value:.6g}, from {median.lowest:g} to" in shown[1]


def least_squares(nodes, inputs, levels):
    """The same fit by a dense solver: cells whose sum is the number of inputs."""
    cells = 1 << levels
    rows = [
        (np.arange(cells) >> (levels - level)) == node
        for level in range(1, levels + 1)
        for node in range(1 << level)
    ]
    design = np.array(rows, float)
    # The last cell is what the others leave.
    reduced = design[:, :-1] - design[:, -1:]
    target = nodes - design[:, -1] * inputs
    first = np.linalg.lstsq(reduced, target, rcond=None)[0]
    return np.append(first, inputs - first.sum())


def drawn(count, number, variance=9):
    """Skellam noise from a seed that never changes."""
    noise = np.zeros(count, np.int64)
    skellam_table(Fraction(variance)).add_to(noise, bytes([number % 256]) * 32, b"test")
    return noise.astype(np.float64)


def test_ranks_are_a_least_squares_fit():
    noisy = drawn(30, 1) + 5.25
    found = INCOME.decode(noisy, inputs=40, noise_variance=9.0)
    np.testing.assert_allclose(
        np.diff(found.ranks), least_squares(noisy, 40.0, 4), atol=1e-9
    )


def test_quantile_intervals_have_their_stated_coverage():
    # 250 draws at 80 percent confidence over all borders together, from seeds that
    # never change. If new seeds are chosen, fewer than 180 that hold are a false alarm
    # once in 800 where they hold exactly as often, and far less often here.
    values = [(number * number) % 17 / 1.1 for number in range(60)]
    exact = total(INCOME, values)
    below = np.array(
        [np.count_nonzero(np.minimum(values, 15.99) < b) for b in range(17)]
    )
    held, sharper = 0, 0.0
    for number in range(250):
        noise = drawn(INCOME.dimension, number)
        found = INCOME.decode(
            exact + noise, inputs=60, noise_variance=9.0, confidence=0.8
        )
        held += bool(np.all((found.lowest <= below) & (below <= found.highest)))
        raw = np.cumsum((exact + noise)[-16:])
        sharper += float(((found.ranks[1:] - below[1:]) ** 2).mean())
        sharper -= float(((raw - below[1:]) ** 2).mean())
    assert held >= 180
    # The tree's ranks are nearer than sums of its cells, whose noise adds up.
    assert sharper < 0


@pytest.mark.parametrize(
    "ask",
    [
        functools.partial(Choice, ()),
        functools.partial(Choice, ("a", "a")),
        functools.partial(Votes, ()),
        functools.partial(Histogram, (1.0,)),
        functools.partial(Histogram, (1.0, 1.0)),
        functools.partial(Histogram, (0.0, math.nan)),
        functools.partial(Histogram, (0.0, math.inf)),
        functools.partial(Mean, 1.0, 1.0),
        functools.partial(Mean, 0.0, math.inf),
        functools.partial(Quantiles, 1.0, 1.0, 3),
        functools.partial(Quantiles, 0.0, math.inf, 3),
        functools.partial(Quantiles, 0.0, 1.0, 0),
        functools.partial(Quantiles, 0.0, 1.0, 21),
        functools.partial(noise_quantile, 0.0),
        functools.partial(noise_quantile, 1.0, confidence=1.0),
    ],
)
def test_an_invalid_question_is_rejected(ask):
    with pytest.raises(ParameterError):
        ask()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (PETS, "parrot"),
        (AGES, math.nan),
        (INCOME, math.nan),
        (AGE, math.nan),
        (AGE, None),
        (AGES, "forty"),
        (BALLOT, (True,)),
        (BALLOT, (True, 1)),
    ],
)
def test_an_invalid_answer_is_rejected_without_showing_it(question, answer):
    with pytest.raises(InputError) as caught:
        question.encode(answer)
    assert "parrot" not in str(caught.value)


def test_a_sum_of_another_question_is_rejected():
    with pytest.raises(InputError, match="4 finite"):
        AGES.decode(np.zeros(3), noise_variance=1.0)
    with pytest.raises(InputError):
        AGES.decode(np.array([0, 1, 2, math.inf]), noise_variance=1.0)
    found = INCOME.decode(np.zeros(30), inputs=4, noise_variance=1.0)
    with pytest.raises(ParameterError):
        found.quantile(1.0)


def test_a_question_as_first_argument_determines_its_bounds():
    asked = {"clients": 50, "epsilon": 1.0, "delta": 1e-5}
    made = plan(AGE, **asked)
    assert (made.request.dimension, made.request.l2_clip) == (1, 60.0)
    with pytest.raises(ParameterError, match="the question decides dimension"):
        plan(AGES, dimension=3, **asked)
    with pytest.raises(ParameterError, match="arguments by name"):
        plan(50, epsilon=1.0, delta=1e-5)


def test_a_mean_is_decoded_from_the_sum_and_the_number_of_answers():
    vectors = [AGE.encode(age) for age in (-5, 0, 30.5, 120, 1e9)]
    assert [float(vector[0]) for vector in vectors] == [-60, -60, -29.5, 60, 60]
    odd = Mean(0.1, 0.7)
    assert all(abs(odd.encode(x)[0]) <= odd.bounds["l2_clip"] for x in (0.1, 0.7))
    noise = SumError(Fraction(100))
    found = AGE.decode(Released(np.array([-1700.0]), 100, noise))
    assert (found.mean, found.standard_error, found.inputs) == (43.0, 0.1, 100)
    assert found.interval == pytest.approx((43 - 0.196, 43 + 0.196), abs=1e-4)
    assert str(found) == "mean 43, 95 % interval 42.804 to 43.196, 100 answers"
    sure = AGE.decode(Released(np.array([0.0]), 9, noise), confidence=1 - 1e-6)
    assert "99.9999 % interval" in str(sure)
    # The range is known: noise does not carry the interval beyond it.
    low = AGE.decode(Released(np.array([-5999.0]), 100, SumError(Fraction(10**6))))
    assert low.interval == (0.0, pytest.approx(19.61, abs=0.01))


@pytest.mark.parametrize(("question", "answers"), ANSWERED)
def test_a_sum_with_its_error_needs_no_further_arguments(question, answers):
    values = total(question, answers).astype(float)
    grid = None if question is AGE else Fraction(1)
    found = question.decode(Released(values, 4, SumError(Fraction(9), grid)))
    same = question.decode(values, inputs=4, noise_variance=9.0)
    assert str(found) == str(same)
    assert found.estimates == same.estimates
    for label, each in found.estimates:
        assert label
        assert each.lowest <= each.value <= each.highest
    # Reals between grid steps reach no less far than they say.
    between = question.decode(Released(values, 4, SumError(Fraction(9))))
    if hasattr(between, "half_width"):
        assert between.half_width == math.ceil(
            SumError(Fraction(9)).half_width(counts=question.dimension)
        )
    # A sum without noise is exact.
    exact = question.decode(Released(values, 4, SumError(Fraction(0), grid)))
    if question is not INCOME:  # whose quantiles lie somewhere in a cell
        assert all(each.lowest == each.highest for _, each in exact.estimates)
    with pytest.raises(InputError, match="leave out noise_variance"):
        question.decode(Released(values, 4, SumError(Fraction(9))), noise_variance=9.0)
    with pytest.raises(InputError, match="do not say how exact"):
        question.decode(values, inputs=4)


@pytest.mark.parametrize(("question", "answers"), ANSWERED)
def test_a_sum_with_a_flawed_error_is_rejected(question, answers):
    error = SumError(Fraction(9)).with_flaw("coins decide").with_flaw("clips moved")
    with pytest.raises(InputError, match="no interval: coins decide; clips moved"):
        question.decode(Released(total(question, answers), 4, error))


@pytest.mark.parametrize("question", [INCOME, AGE])
def test_a_question_about_shares_needs_the_number_of_answers(question):
    with pytest.raises(InputError, match="of how many vectors"):
        question.decode(np.zeros(question.dimension), noise_variance=1.0)


@pytest.mark.parametrize(("question", "answers"), ANSWERED)
def test_every_answer_has_a_plot(question, answers, pyplot):
    found = question.decode(total(question, answers), inputs=4, noise_variance=2.0)
    before = set(pyplot.get_fignums())
    axes = found.plot()
    drawn = len(axes.patches) + len(axes.lines) + len(axes.collections)
    assert drawn >= 2
    assert axes.get_title()
    _, own = pyplot.subplots()
    assert found.plot(own) is own
    assert len(set(pyplot.get_fignums()) - before) == 2


def test_plotting_without_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    found = PETS.decode(np.zeros(3), noise_variance=1.0)
    with pytest.raises(MissingExtraError, match=r"secagg\[viz\]"):
        found.plot()


def test_a_notebook_escapes_labels():
    found = Choice(("<b>", "a & b")).decode(np.array([3.0, 4.0]), noise_variance=1.0)
    shown = found._repr_html_()
    assert "<b>" not in shown
    assert "&lt;b&gt;" in shown
    assert f"{3 - found.half_width} to {3 + found.half_width}" in shown
    assert "95 % intervals" in shown


def test_majorities_are_printed_with_their_decision():
    found = BALLOT.decode(np.array([35.0, 5.0]), noise_variance=9.0)
    assert str(found).splitlines() == [
        f"bicycles        35 ± {found.half_width}  yes",
        f"buses            5 ± {found.half_width}  not decided",
    ]
