"""The rule for small clients: vectors of a slow reference, and exact divergences."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy

from dpnoise.accounting import calibrate, make_accountant
from dpnoise.accounting.tradeoff.mixture_simple import (
    MOMENT_ORDERS,
    moments_of_unit_shift,
    worst_quotients,
)
from dpnoise.accounting.tradeoff.unit_shift import skellam_shift_closed_form
from dpnoise.errors import TheoremNotApplicableError, UnknownEventError
from dpnoise.events import (
    Adversary,
    Composed,
    PoissonSampled,
    Repeated,
    SkellamEvent,
    SkellamMixtureEvent,
)
from secagg.conformance import read_vectors

VECTORS = read_vectors("accounting")


def account(event, name="mixture-simple", adversary=Adversary.SERVER):
    return make_accountant(name, adversary=adversary).compose(event)


@pytest.mark.parametrize("row", VECTORS["rules"], ids=lambda row: row["name"])
def test_the_accountant_matches_the_reference_rows(row):
    release = SkellamMixtureEvent(
        row["dim"],
        Fraction(row["counted_variance"]),
        float(Fraction(row["l2_clip_squared_steps"])),
        float(Fraction(row["linf_bound"])),
    )
    event = Repeated(release, row["releases"])
    delta = float(Fraction(row["delta"]))
    stated = account(event).epsilon(delta)
    if row["epsilon"] is None:
        assert stated == math.inf
        return
    # Rounded up by 10^-9, and the statements themselves agree far better.
    assert stated == pytest.approx(float(row["epsilon"]) * (1 + 1e-9), rel=5e-11)
    assert account(event).delta(stated) == pytest.approx(delta, rel=1e-5)
    if row["a"] is not None:
        shifted = account(event, "mixture-gdp").epsilon(delta)
        assert shifted == pytest.approx(float(row["a"]), rel=5e-11)


@pytest.mark.parametrize("row", VECTORS["quotients"])
def test_the_quotients_of_single_orders_match_the_reference(row):
    unit = skellam_shift_closed_form(Fraction(row["counted_variance"]))
    orders, found = worst_quotients(unit, float(Fraction(row["linf_bound"])))
    assert found[orders.index(row["order"])] == pytest.approx(
        float(row["quotient"]), rel=1e-11
    )


def test_moments_are_those_of_a_gaussian():
    with mpmath.workdps(40):
        square = mpmath.mpf("0.3") ** 2
        for index, found in enumerate(moments_of_unit_shift(0.3, 40)):
            exact = mpmath.fsum(
                (-1) ** (index - k)
                * mpmath.binomial(index, k)
                * mpmath.exp(k * (k - 1) * square / 2)
                for k in range(index + 1)
            )
            assert found == pytest.approx(float(exact), rel=1e-12)


def log_laws(variance, x):
    """Logarithms of the laws of a rounded coordinate with noise and of the noise."""
    reach = int(14 * math.sqrt(variance) + 60)
    y = np.arange(-reach, reach + 1)
    noise, moved = (
        np.log(scipy.special.ive(np.abs(y - by), variance)) for by in (0, 1)
    )
    return np.logaddexp(math.log1p(-x) + noise, math.log(x) + moved), noise


def renyi(first, second, order):
    return scipy.special.logsumexp(order * first - (order - 1) * second) / (order - 1)


def test_a_tiny_coordinate_keeps_all_its_digits():
    # Where A − 1 is taken as a difference this comes out an eighth too high.
    unit, largest = skellam_shift_closed_form(Fraction(225)), 2.0**-12
    orders, found = worst_quotients(unit, largest)
    assert found[orders.index(2)] == pytest.approx(0.004469312494, rel=1e-9)
    # At order 2 it is E(L − 1)², whatever the coordinate, but for the logarithm.
    with mpmath.workdps(40):
        exact = mpmath.expm1(mpmath.mpf(unit) ** 2)
    assert float(exact) == pytest.approx(0.004469312494, rel=1e-9)


@pytest.mark.parametrize("variance", [4.0, 14.0, 60.0, 200.0])
@pytest.mark.parametrize("largest", [1 / 32, 0.3, 0.999])
def test_quotients_bound_exact_divergences_in_both_directions(variance, largest):
    orders, quotients = worst_quotients(
        skellam_shift_closed_form(Fraction(variance)), largest
    )
    bound = dict(zip(orders, quotients, strict=True))
    nearest = 0.0
    for share in (0.05, 0.3, 0.6, 0.9, 0.99, 1.0):
        x = share * largest
        world, noise = log_laws(variance, x)
        for order in (2, 4, 9, 16):
            if order not in bound:
                continue
            for pair in ((world, noise), (noise, world)):
                ratio = renyi(*pair, order) / (bound[order] * x * x)
                nearest = max(nearest, ratio)
    # Not above, and so near that a bound of three percent less would be false; at
    # small variances the closed form for M is that much too large.
    assert nearest <= 1.0
    if variance >= 60.0:
        assert nearest > 0.972


def test_delta_is_never_below_that_of_short_vectors():
    for variance, x, copies in ((20.0, 0.5, 2), (60.0, 0.9, 2), (6.0, 0.25, 1)):
        made = account(
            SkellamMixtureEvent(copies, Fraction(variance), copies * x * x, x)
        )
        log_world, log_noise = log_laws(variance, x)
        world, noise = np.exp(log_world), np.exp(log_noise)
        if copies == 2:
            world, noise = np.outer(world, world), np.outer(noise, noise)
        for epsilon in (0.05, 0.3, 1.0):
            for first, second in ((world, noise), (noise, world)):
                exact = np.sum(np.maximum(first - math.exp(epsilon) * second, 0.0))
                assert exact <= made.delta(epsilon) * (1 + 1e-9)


def test_it_needs_little_more_noise_than_the_tightest_accountant():
    def needed(name):
        return calibrate(
            lambda v: SkellamMixtureEvent(65536, v, 16.0, 0.125),
            accountant=name,
            epsilon=1.0,
            delta=1e-5,
            adversary=Adversary.SERVER,
            bracket=(Fraction(4), Fraction(1 << 20)),
        )

    assert 1.0 < needed("mixture-simple") / 224.5 < 1.2


def test_the_simple_accountant_is_certified_and_rejects_other_events():
    event = SkellamMixtureEvent(16, Fraction(100), 1.0, 0.5)
    statement = account(Repeated(event, 3)).statement(1e-5)
    assert statement.status.value == "certified"
    with pytest.raises(UnknownEventError):
        account(SkellamEvent(16, Fraction(100), 4.0))
    other = SkellamMixtureEvent(16, Fraction(101), 1.0, 0.5)
    with pytest.raises(TheoremNotApplicableError, match="one release"):
        account(Composed((event, other)))
    with pytest.raises(TheoremNotApplicableError, match="selection"):
        account(
            PoissonSampled(event, 0.5),
            "hypothetical-mixture-simple",
            Adversary.MODEL_READER,
        )
    assert worst_quotients(13.0, 0.5) == ((), ())
    assert len(MOMENT_ORDERS) == 50
