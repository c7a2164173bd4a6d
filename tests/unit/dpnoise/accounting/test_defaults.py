"""The default is the least statement among those that are proven or certified."""

import math
from fractions import Fraction

import pytest

from dpnoise.accounting import (
    Status,
    accountant_names,
    calibrate,
    calibrate_least,
    default_accountant,
    default_accountants,
    make_accountant,
)
from dpnoise.accounting.gaussian import analytic_gaussian_stddev
from dpnoise.errors import CalibrationError, ParameterError, UnknownEventError
from dpnoise.events import (
    Adjacency,
    Adversary,
    BinomialEvent,
    Composed,
    DiscreteGaussianEvent,
    DistributedDiscreteGaussianEvent,
    GaussianEvent,
    Repeated,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)

DELTA = 1e-5
COUNTER = SkellamEvent(1, Fraction(12), 1.0, 1.0, 1)
SKELLAM = SkellamEvent(4096, Fraction(5000), 20.0)
MIXTURE = SkellamMixtureEvent(64, Fraction(200), 4.0, 0.5)
SMALL = SkellamEvent(64, Fraction(200), 2.0)
CLIPPED = SkellamMixtureClippedEvent(64, Fraction(200), 4.0, 1)
DISCRETE = DiscreteGaussianEvent(4096, Fraction(5000), 20.0)
COINS = BinomialEvent(4096, 20_000, 20.0, 400.0, 20)
GAUSSIAN = GaussianEvent(64, 500.0, 5.0)
SHARES = DistributedDiscreteGaussianEvent(64, 10, Fraction(50), 5.0)
EVENTS = {
    "counter": COUNTER,
    "skellam": SKELLAM,
    "rounded": MIXTURE,
    "rounded, many": Repeated(MIXTURE, 3),
    "rounded and integer": Composed((MIXTURE, SMALL)),
    "rounded, integer and Gaussian": Composed((MIXTURE, SMALL, GAUSSIAN)),
    "clipped": CLIPPED,
    "discrete": DISCRETE,
    "Gaussian": GAUSSIAN,
    "shares": SHARES,
    "coins": COINS,
}


def epsilon(name, event, adjacency=Adjacency.ZERO_OUT):
    made = make_accountant(name, adversary=Adversary.SERVER, adjacency=adjacency)
    return made.compose(event).epsilon(DELTA)


@pytest.mark.parametrize("kind", EVENTS)
def test_the_default_states_the_least_epsilon_of_all_that_are_trusted(kind):
    event = EVENTS[kind]
    names = default_accountants(event)
    chosen = default_accountant(event, delta=DELTA, adversary=Adversary.SERVER)
    assert chosen in names
    stated = {name: epsilon(name, event) for name in names}
    assert stated[chosen] == min(stated.values()) < math.inf
    for name in names:
        made = make_accountant(name, adversary=Adversary.SERVER)
        assert made.compose(event).status in {Status.PROVEN, Status.CERTIFIED}
        assert name in accountant_names()


def test_the_default_accountant_depends_on_the_release():
    def choice(event):
        return default_accountant(event, delta=DELTA, adversary=Adversary.SERVER)

    assert choice(COUNTER) == "lattice-pld"
    assert choice(SKELLAM) == choice(DISCRETE) == choice(GAUSSIAN) == "skellam-gdp"
    assert choice(SHARES) == choice(COINS) == "log-concave-gdp"
    assert choice(MIXTURE) == "mixture-contour"
    fine = SkellamMixtureEvent(64, Fraction(10**12), 1e11, 1e5)
    assert default_accountants(fine)[0] == "mixture-gdp"


def test_a_discrete_gaussian_needs_as_much_noise_as_a_gaussian():
    found = calibrate_least(
        lambda v: DiscreteGaussianEvent(65536, v, 256.0),
        accountants=default_accountants(DISCRETE),
        epsilon=1.0,
        delta=DELTA,
        adversary=Adversary.SERVER,
    )
    assert found.accountant == "skellam-gdp"
    assert float(found.variance) / 256.0**2 == pytest.approx(13.918, rel=1e-4)


def test_an_event_without_a_trusted_theorem_is_rejected():
    with pytest.raises(UnknownEventError, match="name an accountant"):
        default_accountants(Composed((SHARES, CLIPPED)))
    with pytest.raises(UnknownEventError):
        default_accountants(Composed((SHARES, MIXTURE)))
    with pytest.raises(UnknownEventError, match="replace-one"):
        default_accountants(MIXTURE, adjacency=Adjacency.REPLACE_ONE)
    assert default_accountants(SKELLAM, adjacency=Adjacency.REPLACE_ONE) == (
        "skellam-gdp",
        "skellam-rdp",
    )


def calibrated(build, names, **options):
    options.setdefault("bracket", (Fraction(1, 1 << 10), Fraction(1 << 40)))
    return calibrate_least(
        build,
        accountants=names,
        epsilon=1.0,
        delta=DELTA,
        adversary=Adversary.SERVER,
        **options,
    )


def test_calibration_returns_the_least_noise_and_lists_all_attempts():
    def build(variance):
        return SkellamMixtureEvent(256, variance, 4.0, 0.5)

    found = calibrated(build, ("mixture-gdp", "mixture-rdp"))
    asked = {each.accountant: each.variance for each in found.tried}
    assert list(asked) == ["mixture-gdp", "mixture-rdp"]
    assert found.variance == min(asked.values()) == asked[found.accountant]
    alone = calibrate(
        build,
        accountant="mixture-rdp",
        epsilon=1.0,
        delta=DELTA,
        adversary=Adversary.SERVER,
        bracket=(Fraction(1, 1 << 10), Fraction(1 << 40)),
    )
    # The second one starts at what the first one accepts, and a search ends within
    # 1e-5 of the least wherever it starts.
    assert float(asked["mixture-rdp"]) == pytest.approx(float(alone), rel=1e-5)
    for each in found.tried:
        assert epsilon(each.accountant, build(each.variance)) <= 1.0
        less = each.variance * (1 - Fraction(2, 100_000))
        assert epsilon(each.accountant, build(less)) > 1.0
    assert all(each.cpu_seconds >= 0.0 for each in found.tried)


def test_calibration_stops_once_it_is_within_half_a_percent_of_a_gaussian():
    ideal = analytic_gaussian_stddev(1.0, DELTA, 1.0) ** 2
    for scale, asked in ((1024.0, 1), (64.0, 2)):
        found = calibrated(
            lambda v, scale=scale: SkellamMixtureEvent(65536, v, scale**2, scale / 40),
            ("mixture-gdp", "mixture-rdp"),
        )
        assert len(found.tried) == asked
        assert (found.variance <= 1.005 * ideal * Fraction(scale) ** 2) == (asked == 1)
    # One counter needs less than a Gaussian: the exact accountant is still asked.
    counter = calibrated(
        lambda v: SkellamEvent(1, v, 1.0, 1.0, 1), ("skellam-gdp", "lattice-pld")
    )
    assert counter.accountant == "lattice-pld"
    assert float(counter.variance) == pytest.approx(11.076, rel=1e-3)


def test_a_fallback_is_tried_last_and_only_if_others_exceed_one_percent():
    assert default_accountants(DISCRETE) == ("skellam-gdp",)
    assert default_accountants(GAUSSIAN) == ("skellam-gdp", "gaussian-pld")
    assert default_accountants(SHARES) == ("log-concave-gdp", "ddgauss-paper")
    assert default_accountants(Repeated(MIXTURE, 3))[-1] == "mixture-rdp"
    # On this grid the closed form wastes between half a percent and a percent.
    ideal = 256.0**2 * analytic_gaussian_stddev(1.0, DELTA, 1.0) ** 2
    for others, asked in (("mixture-rdp", 1), ("mixture-contour", 2)):
        found = calibrated(
            lambda v: SkellamMixtureEvent(65536, v, 256.0**2, 6.0),
            ("mixture-gdp", others),
            is_rough=True,
        )
        assert 1.005 * ideal < found.tried[0].variance < 1.01 * ideal
        assert len(found.tried) == asked


def test_an_accountant_that_cannot_reach_the_target_is_skipped():
    def tiny(variance):
        return SkellamMixtureEvent(16, variance, 0.01, 0.05)

    narrow = (Fraction(1, 1 << 10), Fraction(7, 2))
    found = calibrated(tiny, ("mixture-gdp", "mixture-contour"), bracket=narrow)
    assert found.accountant == "mixture-contour"
    assert found.tried[0].variance is None
    with pytest.raises(CalibrationError, match="mixture-gdp"):
        calibrated(tiny, ("mixture-gdp",), bracket=narrow)
    with pytest.raises(ParameterError, match="at least one"):
        calibrated(tiny, ())


def test_a_coarse_calibration_is_within_a_thousandth_of_the_exact_one():
    def release(variance):
        return SkellamMixtureEvent(65536, variance, 1.0, 96 / 4096)

    asked = {
        "accountants": ("mixture-gdp", "mixture-contour", "mixture-rdp"),
        "epsilon": 1.0,
        "delta": 1e-5,
        "adversary": Adversary.SERVER,
    }
    rough = calibrate_least(release, **asked, is_rough=True)
    exact = calibrate_least(release, **asked)
    assert rough.accountant == exact.accountant == "mixture-contour"
    assert abs(rough.variance / exact.variance - 1) <= Fraction(1, 1000)
    # The others are asked whether they accept less, and not how much more they want.
    assert [each.variance for each in exact.tried][2:] == [None]
