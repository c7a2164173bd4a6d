"""Which accountants a plan asks: in time for it, and for the clients who check it."""

from fractions import Fraction

import pytest

from dpnoise.accounting import MAX_ACCOUNTING_COST, calibrate
from dpnoise.errors import ParameterError
from dpnoise.mechanisms import make_mechanism
from dpnoise.planning import plan, planner
from dpnoise.planning.accountant_choice import checking_cost, refuse_expensive

CELL = {
    "clients": 100,
    "dimension": 65536,
    "l2_clip": 1.0,
    "epsilon": 1.0,
    "delta": 1e-5,
}
# A coordinate may hold the whole norm, so that an integral has few and long windows.
SHORT = {
    "clients": 2,
    "dimension": 32,
    "l2_clip": 1.0,
    "epsilon": 5.85,
    "delta": 1e-5,
    "bits": 8,
}


def release_of(made):
    return make_mechanism(made.parameters).event()


@pytest.fixture
def asks_no_accountant(monkeypatch):
    """Let every calibration fail the test."""

    def refuse(*_, **__):
        pytest.fail("an accountant was asked")

    monkeypatch.setattr(planner, "calibrate_least", refuse)


@pytest.mark.usefixtures("asks_no_accountant")
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            {
                "dimension": 32,
                "epsilon": 0.1,
                "scale_factor": 256.0,
                "accountant": "mixture-contour",
            },
            "table cells to check it.* name no accountant",
        ),
        (
            {"dimension": 32, "scale_factor": 8.0, "accountant": "mixture-contour"},
            "table cells for each of some twenty answers.* name no accountant",
        ),
        (
            {
                "epsilon": 0.01,
                "delta": 1e-11,
                "selection_rate": Fraction(1, 300),
                "accountant": "mixture-rdp",
            },
            "no epsilon below 0.0.* behind a selection.* name no accountant",
        ),
    ],
)
def test_an_expensive_named_accountant_is_rejected_before_it_runs(asked, words):
    with pytest.raises(ParameterError, match=words) as caught:
        plan(**CELL | asked)
    assert caught.value.parameter == "accountant"


@pytest.mark.parametrize(
    "asked",
    [
        {"dimension": 32, "epsilon": 0.1, "scale_factor": 256.0},
        {"epsilon": 0.01, "delta": 1e-11, "selection_rate": Fraction(1, 300)},
    ],
)
def test_the_advice_of_that_rejection_gives_a_plan(asked):
    assert plan(**CELL | asked).noise_overhead < 1.05


def test_a_search_that_becomes_too_expensive_is_rejected_on_its_way():
    """At the noise that a Gaussian needs it is quick; it needs twenty times as much."""
    asked = {
        "clients": 2681,
        "dimension": 12,
        "epsilon": 0.118,
        "delta": 1.1e-9,
        "steps": 6,
        "l2_clip": 1.0,
        "scale_factor": 0.197,
        "selection_rate": Fraction(1, 4),
        "clip_flag_amplitude": 0.25,
    }
    with pytest.raises(ParameterError, match="cells to check it") as caught:
        plan(**asked, accountant="mixture-rdp")
    assert caught.value.parameter == "accountant"
    assert plan(**asked).accountant != "mixture-rdp"


def test_an_expensive_accountant_is_chosen_if_clients_accept_its_cost():
    made = plan(**SHORT)
    assert made.accountant == "mixture-contour"
    assert made.noise_overhead < 1.07
    closed = plan(**SHORT, accountant="mixture-gdp")
    assert closed.noise_overhead > 1.3
    assert {each.name for each in made.accountants_tried} >= {
        "mixture-gdp",
        "mixture-contour",
    }
    cost = checking_cost(made.request, release_of(made), made.accountant)
    assert cost <= MAX_ACCOUNTING_COST
    # On a finer grid it would say less still, and no client would wait for it.
    finer = plan(**SHORT | {"epsilon": 12.0, "bits": 10})
    assert finer.accountant == "mixture-gdp"
    dear = checking_cost(finer.request, release_of(finer), "mixture-contour")
    assert dear > MAX_ACCOUNTING_COST


def test_an_accountant_too_expensive_for_clients_is_never_chosen(monkeypatch):
    """Foreseen was another cost: the noise is known once it is found."""
    monkeypatch.setattr(
        planner,
        "is_accepted",
        lambda _, __, name: name == "mixture-gdp",
    )
    made = plan(**CELL, scale_factor=4.0)
    assert made.accountant == "mixture-gdp"


def test_a_spread_clip_flag_is_charged_in_the_plan():
    """Seven bits spread the flag over sixteen coordinates, each within the bound."""
    made = plan(
        clients=124,
        dimension=4,
        epsilon=6.5,
        delta=3.5e-9,
        steps=924,
        l2_clip=1.0,
        linf_bound=Fraction(287, 256),
        bits=7,
        scale_factor=3.02,
        selection_rate=Fraction(1, 123),
        clip_flag_amplitude=0.168,
        accountant="mixture-rdp",
    )
    mechanism = make_mechanism(made.parameters)
    assert mechanism.clip_flag_coordinates > 4
    request = made.request
    least = calibrate(
        lambda variance: request.releases(mechanism.event_with_noise(variance)),
        accountant=made.accountant,
        epsilon=request.epsilon,
        delta=request.delta,
        adversary=request.calibrated_for,
    )
    # Two searches behind a coin end within a part in ten thousand of each other.
    assert 0.9998 * least <= made.noise_variance < 1.001 * least


BOUNDED = {
    "clients": 34,
    "dimension": 13,
    "epsilon": 5.0,
    "delta": 1e-5,
    "l2_clip": 1.0,
    "bits": 29,
}


@pytest.mark.usefixtures("asks_no_accountant")
def test_a_coordinate_bound_far_too_small_is_rejected():
    with pytest.raises(ParameterError, match="without one") as caught:
        plan(**BOUNDED, linf_bound=Fraction(25, 2048))
    assert caught.value.parameter == "linf_bound"
    assert caught.value.nearest.startswith("none, or ")


def test_the_suggested_coordinate_bound_costs_little():
    with pytest.raises(ParameterError, match="without one") as caught:
        plan(**BOUNDED, linf_bound=Fraction(25, 2048))
    named = Fraction(caught.value.nearest.removeprefix("none, or "))
    errors = [
        plan(**BOUNDED, linf_bound=bound).forecast.planning_mse
        for bound in (named, None)
    ]
    assert errors[0] < 1.25 * errors[1]


def test_the_chosen_grid_clips_no_vector_with_equal_entries():
    made = plan(
        clients=100,
        dimension=4096,
        l2_clip=1.0,
        epsilon=1.0,
        delta=1e-6,
        bits=22,
        linf_bound=Fraction(1, 16),
        accountant="mixture-gdp",
    )
    longest = float(made.parameters.linf_bound) * 64.0  # of 4096 equal entries
    assert made.parameters.scale_factor * made.parameters.l2_clip <= longest


# The closed form is all that is quick enough to compare grids with; sums over orders
# need a tenth less noise.
LATE = {
    "clients": 2,
    "dimension": 32,
    "l2_clip": 1.0,
    "epsilon": 12.0,
    "delta": 1e-5,
    "scale_factor": 32.0,
}


def test_bits_are_chosen_by_the_noise_of_a_fallback_accountant():
    made = plan(**LATE, bits=7)
    assert made.accountant == "mixture-rdp"
    named = plan(**LATE, bits=7, accountant="mixture-rdp")
    assert made.noise_variance == pytest.approx(named.noise_variance, rel=1e-6)
    free, least = plan(**LATE), plan(**LATE, accountant="mixture-rdp")
    assert free.parameters.bits == least.parameters.bits
    fits = [each.noise_fit.factor for each in (free, least)]
    assert fits[0] == pytest.approx(fits[1], rel=2e-3)
    with pytest.raises(ParameterError, match="too small for the sum") as caught:
        plan(**LATE, bits=6)
    assert caught.value.nearest == "7"


def test_a_fallback_accountant_that_is_too_expensive_is_discarded(monkeypatch):
    early = plan(**LATE, bits=8, accountant="mixture-gdp")
    least = 0.99 * float(early.noise_variance)

    def is_accepted(_, release, name):
        return name == "mixture-gdp" or release.aggregate_noise_variance > least

    monkeypatch.setattr(planner, "is_accepted", is_accepted)
    made = plan(**LATE, bits=8)
    assert made.accountant == "mixture-gdp"
    assert made.noise_variance == pytest.approx(early.noise_variance, rel=1e-3)


def test_advice_to_drop_the_accountant_requires_a_named_one():
    finer = plan(**SHORT | {"epsilon": 12.0, "bits": 10})
    with pytest.raises(ParameterError, match="take a coarser grid") as caught:
        refuse_expensive(finer.request, release_of(finer), "mixture-contour")
    assert caught.value.parameter == "scale_factor"
    assert "name no accountant" not in str(caught.value)


def test_an_error_among_default_accountants_is_raised_unchanged(monkeypatch):
    def stop(*_, **__):
        raise ParameterError("no such noise", parameter="epsilon", value=1.0)

    monkeypatch.setattr(planner, "calibrate_least", stop)
    with pytest.raises(ParameterError, match="no such noise"):
        plan(**CELL, scale_factor=4.0)
