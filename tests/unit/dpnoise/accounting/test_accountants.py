"""The accountant interface, the registry, statements and calibration."""

import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import pytest

from dpnoise import plan
from dpnoise.accounting import (
    Accountant,
    PrivacyStatement,
    Proof,
    Status,
    accountant_names,
    calibrate,
    make_accountant,
)
from dpnoise.accounting.catalogue import accountant_class
from dpnoise.accounting.gaussian import analytic_gaussian_stddev
from dpnoise.accounting.published.ddgauss import (
    DistributedGaussianCurve,
    sum_divergence_term,
)
from dpnoise.accounting.root_search import round_up_to_dyadic
from dpnoise.accounting.statement import least_reviewed, weakest
from dpnoise.errors import (
    CalibrationError,
    ParameterError,
    TheoremNotApplicableError,
    UnknownEventError,
)
from dpnoise.events import (
    Adjacency,
    Adversary,
    BinomialEvent,
    Composed,
    DiscreteGaussianEvent,
    DistributedDiscreteGaussianEvent,
    GaussianEvent,
    PoissonSampled,
    Repeated,
    SecretlySelected,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)

SKELLAM = SkellamEvent(64, Fraction(500), 5.0, 25.0, 2)
MIXTURE = SkellamMixtureEvent(64, Fraction(500), 25.0, 1.0)
CLIPPED = SkellamMixtureClippedEvent(64, Fraction(500), 25.0, 1)
DDGAUSS = DistributedDiscreteGaussianEvent(64, 10, Fraction(50), 5.0)
DISCRETE = DiscreteGaussianEvent(64, Fraction(500), 5.0)
GAUSSIAN = GaussianEvent(64, 500.0, 5.0)
RENYI = {
    "skellam-paper": SKELLAM,
    "skellam-rdp": SKELLAM,
    "skellam-gdp": SKELLAM,
    "mixture-rdp": MIXTURE,
    "smm-paper": CLIPPED,
    "ddgauss-paper": DDGAUSS,
    "zcdp": DISCRETE,
}


def account(name, event=None, **options):
    options.setdefault("adversary", Adversary.SERVER)
    empty = make_accountant(name, **options)
    return empty if event is None else empty.compose(event)


def test_every_name_makes_an_accountant_of_that_name():
    for name in accountant_names():
        made = account(name)
        assert isinstance(made, Accountant)
        assert made.name == name
        assert made.status in Status
        assert made.epsilon(1e-5) == 0.0
        assert made.delta(1.0) == 0.0


def test_an_unknown_name_is_rejected_with_the_nearest_known_one():
    with pytest.raises(ParameterError) as caught:
        account("skellam_gpd")
    assert caught.value.parameter == "accountant"
    assert caught.value.nearest == "skellam-gdp"


@pytest.mark.parametrize("name", sorted(RENYI))
def test_delta_and_epsilon_are_inverse_and_monotone(name):
    made = account(name, Repeated(RENYI[name], 3))
    epsilons = [made.epsilon(delta) for delta in (1e-9, 1e-5, 1e-2)]
    assert epsilons == sorted(epsilons, reverse=True)
    assert 0 < epsilons[1] < 50
    # Orders lie on a ladder, so the inverse is exact up to one rung.
    assert made.delta(epsilons[1]) == pytest.approx(1e-5, rel=2e-2)
    assert made.delta(epsilons[1] + 0.1) < 1e-5


@pytest.mark.parametrize("name", sorted(RENYI))
def test_repeating_equals_composing_again(name):
    repeated = account(name, Repeated(RENYI[name], 3))
    again = account(name)
    for _ in range(3):
        again.compose(RENYI[name])
    assert again.epsilon(1e-5) == repeated.epsilon(1e-5)


@pytest.mark.parametrize("adversary", [Adversary.SERVER, Adversary.PARTICIPANT])
@pytest.mark.parametrize("name", sorted(RENYI))
def test_sampling_is_ignored_against_adversaries_that_observe_it(name, adversary):
    sampled = account(name, PoissonSampled(RENYI[name], 0.1), adversary=adversary)
    plain = account(name, RENYI[name], adversary=adversary)
    assert sampled.epsilon(1e-5) == plain.epsilon(1e-5)
    assert any("not counted" in text for text in sampled.statement(1e-5).assumptions)
    assert not any("not counted" in text for text in plain.statement(1e-5).assumptions)


@pytest.mark.parametrize("release", [DISCRETE, GAUSSIAN])
def test_sampling_with_central_noise_helps_readers_under_stated_conditions(release):
    event = Repeated(PoissonSampled(release, 0.01), 10)
    sampled = account("zcdp", event, adversary=Adversary.MODEL_READER)
    plain = account("zcdp", Repeated(release, 10))
    assert sampled.epsilon(1e-5) < plain.epsilon(1e-5)
    statement = sampled.statement(1e-5)
    assert statement.status is Status.PROVEN
    assert any(
        "independent Bernoulli selection" in text for text in statement.assumptions
    )


@pytest.mark.parametrize("name", sorted(set(RENYI) - {"zcdp"}))
def test_only_hypothetical_accountants_count_sampling_of_noise_shares(name):
    event = Repeated(PoissonSampled(RENYI[name], 0.01), 10)
    plain = account(name, Repeated(RENYI[name], 10))
    honest = account(name, event, adversary=Adversary.MODEL_READER)
    assert honest.epsilon(1e-5) == plain.epsilon(1e-5)
    assert any("not counted" in text for text in honest.statement(1e-5).assumptions)
    published = account(f"hypothetical-{name}", event, adversary=Adversary.MODEL_READER)
    assert published.epsilon(1e-5) < plain.epsilon(1e-5)
    statement = published.statement(1e-5)
    assert statement.status is Status.HYPOTHETICAL
    assert statement.accountant == f"hypothetical-{name}"
    assert any(text.startswith("Hypothetical") for text in statement.assumptions)


SELECTED = RENYI | {
    "mixture-gdp": MIXTURE,
    "mixture-pld": MIXTURE,
    "lattice-pld": SkellamEvent(4, Fraction(50), 2.0, 4.0, 1),
}


@pytest.mark.parametrize("adversary", Adversary)
@pytest.mark.parametrize("name", sorted(set(SELECTED) - {"zcdp"}))
def test_a_secret_selection_is_counted_against_every_adversary(name, adversary):
    """The pair of laws is that of sampling; who may claim it is not."""
    release, tenth = SELECTED[name], Fraction(1, 10)
    plain = account(name, Repeated(release, 10), adversary=adversary)
    event = Repeated(SecretlySelected(release, tenth), 10)
    selected = account(name, event, adversary=adversary)
    assert selected.status is plain.status
    sampled = account(
        f"hypothetical-{name}",
        Repeated(PoissonSampled(release, float(tenth)), 10),
        adversary=Adversary.MODEL_READER,
    )
    found = selected.epsilon(1e-5)
    assert found < plain.epsilon(1e-5)
    assert found == pytest.approx(sampled.epsilon(1e-5), rel=1e-12)
    text = " ".join(selected.statement(1e-5).assumptions)
    assert "own secret Bernoulli selection" in text
    assert "not counted" not in text
    whole = account(name, SecretlySelected(release, Fraction(1)), adversary=adversary)
    once = account(name, release, adversary=adversary)
    assert whole.statement(1e-5) == once.statement(1e-5)


def test_a_selection_is_not_counted_under_replace_one():
    options = {"adversary": Adversary.SERVER, "adjacency": Adjacency.REPLACE_ONE}
    selected = SecretlySelected(SKELLAM, Fraction(1, 10))
    found = account("skellam-gdp", selected, **options)
    assert found.epsilon(1e-5) == account("skellam-gdp", SKELLAM, **options).epsilon(
        1e-5
    )
    assert any("not counted" in text for text in found.statement(1e-5).assumptions)


def test_a_hypothetical_accountant_is_never_listed_and_never_trusted():
    assert not any(name.startswith("hypothetical") for name in accountant_names())
    assert weakest(Status) is Status.HYPOTHETICAL
    with pytest.raises(ParameterError):
        account("hypothetical-nothing")
    with pytest.raises(ParameterError):
        plan(
            clients=10,
            dimension=4,
            l2_clip=1.0,
            epsilon=1.0,
            delta=1e-5,
            accountant="hypothetical-mixture-pld",
        )


def test_sampling_under_replace_one_is_ignored_even_for_model_readers():
    options = {"adversary": Adversary.MODEL_READER, "adjacency": Adjacency.REPLACE_ONE}
    sampled = account("skellam-paper", PoissonSampled(SKELLAM, 0.1), **options)
    plain = account("skellam-paper", SKELLAM, **options)
    assert sampled.epsilon(1e-5) == plain.epsilon(1e-5)


@pytest.mark.parametrize("name", sorted(RENYI))
def test_the_distance_of_the_sampler_is_charged_once_per_release(name):
    far = dataclasses.replace(RENYI[name], sampler_distance=1e-7)
    charged = account(name, Repeated(far, 4)).delta(0.5)
    clean = account(name, Repeated(RENYI[name], 4)).delta(0.5)
    assert charged - clean == pytest.approx(4e-7 * (1 + math.exp(0.5)), rel=1e-6)
    assert account(name, Repeated(far, 4)).epsilon(8e-7) == math.inf
    for delta in (1e-6, 2e-6, 1e-5):
        epsilon = account(name, Repeated(far, 4)).epsilon(delta)
        if math.isfinite(epsilon):
            assert account(name, Repeated(far, 4)).delta(epsilon) <= delta * (1 + 1e-9)


@pytest.mark.parametrize("name", sorted(RENYI))
def test_an_event_without_a_theorem_is_rejected_and_not_composed(name):
    made = account(name)
    with pytest.raises(UnknownEventError, match=name):
        made.compose(BinomialEvent(4, 100, 1.0, 1.0, 1))
    assert made.epsilon(1e-5) == 0.0


@pytest.mark.parametrize(
    ("method", "value", "parameter"),
    [
        ("epsilon", 0.0, "delta"),
        ("epsilon", 1.0, "delta"),
        ("epsilon", math.nan, "delta"),
        ("delta", -0.1, "epsilon"),
        ("delta", math.inf, "epsilon"),
        ("delta", math.nan, "epsilon"),
        ("statement", 2.0, "delta"),
    ],
)
def test_arguments_out_of_range_are_rejected_by_name(method, value, parameter):
    with pytest.raises(ParameterError) as caught:
        getattr(account("zcdp", DISCRETE), method)(value)
    assert caught.value.parameter == parameter


def test_a_statement_is_json_and_names_everything_it_depends_on():
    record = account("zcdp", DISCRETE).statement(1e-5).to_dict()
    assert json.loads(json.dumps(record)) == record
    assert {"epsilon", "delta", "accountant", "status", "adversary"} <= set(record)
    assert record["status"] == "proven"
    assert record["proof"] == "published"
    assert PrivacyStatement.from_dict(record).to_dict() == record
    del record["proof"]
    with pytest.raises(KeyError, match="proof"):
        PrivacyStatement.from_dict(record)
    record = account("zcdp", DISCRETE).statement(1e-5).to_dict()
    assert record["details"]["releases"] == "1"
    hopeless = account("zcdp", GaussianEvent(1, 1e-30, 1.0)).statement(1e-5)
    assert hopeless.to_dict()["epsilon"] == "inf"


def test_the_weakest_status_of_several_is_reported():
    assert weakest([Status.CERTIFIED, Status.NUMERICAL, Status.PROVEN]) == "numerical"
    assert weakest([]) is Status.PROVEN


@pytest.mark.parametrize("name", accountant_names())
def test_every_accountant_states_the_status_of_its_own_proof(name):
    found = accountant_class(name)
    # Not by inheritance: a theorem for other noise has a proof of its own.
    assert isinstance(vars(found)["proof_of_theorem"], Proof)
    is_own = "This project" in (found.__doc__ or "")
    assert (found.proof_of_theorem is Proof.OWN) == is_own
    for derived in (account(f"hypothetical-{name}"), account(name)):
        assert derived.proof is found.proof_of_theorem
    guesser = make_accountant(name, adversary=Adversary.SERVER, estimating=True)
    assert guesser.proof is found.proof_of_theorem


def test_the_status_proven_requires_a_published_proof():
    for name in accountant_names():
        found = accountant_class(name)
        if found.status_of_theorem is Status.PROVEN:
            assert found.proof_of_theorem is Proof.PUBLISHED


def test_a_combination_with_an_own_proof_has_an_own_proof():
    assert least_reviewed([Proof.PUBLISHED, Proof.OWN]) is Proof.OWN
    assert least_reviewed([Proof.PUBLISHED] * 2) is Proof.PUBLISHED
    # A secret coin, even before a published bound; and no coin that is not counted.
    coin = SecretlySelected(GAUSSIAN, Fraction(1, 2))
    published = account("gaussian-pld", GAUSSIAN)
    assert published.proof is Proof.PUBLISHED
    assert published.compose(coin).proof is Proof.OWN
    sampled = PoissonSampled(GAUSSIAN, 0.5)
    reader = account("gaussian-pld", sampled, adversary=Adversary.MODEL_READER)
    assert reader.proof is Proof.PUBLISHED
    alike = account("gaussian-pld", coin, adjacency=Adjacency.REPLACE_ONE)
    assert alike.proof is Proof.PUBLISHED


def test_a_statement_names_status_and_proof_in_words():
    assert account("zcdp", DISCRETE).statement(1e-5).grounds == "proven"
    own = account("mixture-gdp", MIXTURE).statement(1e-5)
    assert (own.status, own.proof) == ("certified", "own")
    assert own.grounds == "certified (own proof)"
    assert own.to_dict()["status"] == "certified"


def test_zcdp_adds_rho_and_is_infinite_under_sampling():
    made = account("zcdp", Composed((Repeated(GAUSSIAN, 3), DISCRETE)))
    assert made.rho == pytest.approx(4 * 25 / 1000)
    sampled = account(
        "zcdp", PoissonSampled(GAUSSIAN, 0.1), adversary=Adversary.MODEL_READER
    )
    assert sampled.rho == math.inf


def test_ddgauss_follows_its_three_expressions():
    orders = np.array([2.0, 10.0])
    for dim, local in ((4, 0.5), (65_536, 0.5), (65_536, 2.0)):
        term = 10 * sum(
            math.exp(-2 * math.pi**2 * local * k / (k + 1)) for k in range(1, 8)
        )
        assert sum_divergence_term(
            num_noise_shares=8, local_noise_variance=local
        ) == pytest.approx(term)
        s2, s1 = 3 / math.sqrt(8 * local), 7 / math.sqrt(8 * local)
        expected = [
            min(
                a * s2**2 / 2 + term * dim,
                a / 2 * (s2**2 + 2 * s1 * term + term**2 * dim),
                a / 2 * (s2 + math.sqrt(dim) * term) ** 2,
            )
            for a in orders
        ]
        curve = DistributedGaussianCurve(dim, 8, local, 3.0, 7.0)
        assert np.allclose(curve.divergences(orders), expected, rtol=1e-9)
    assert sum_divergence_term(num_noise_shares=1, local_noise_variance=1.0) == 0.0
    many = sum_divergence_term(num_noise_shares=10**9, local_noise_variance=1.0)
    assert 10 * 1e9 * math.exp(-2 * math.pi**2) < many < 1e10


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("zcdp", lambda v: DiscreteGaussianEvent(64, v, 5.0)),
        ("skellam-paper", lambda v: SkellamEvent(64, v, 5.0)),
        ("skellam-rdp", lambda v: SkellamEvent(64, v, 5.0, None, 2)),
        ("skellam-gdp", lambda v: SkellamEvent(64, v, 5.0)),
        ("mixture-rdp", lambda v: SkellamMixtureEvent(64, v, 25.0, 1.0)),
        ("smm-paper", lambda v: SkellamMixtureClippedEvent(64, v, 25.0, 1)),
        ("ddgauss-paper", lambda v: DistributedDiscreteGaussianEvent(64, 9, v / 9, 5)),
    ],
)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (4.0, 1e-3)])
def test_calibration_reaches_the_target_with_the_least_noise(
    name, build, epsilon, delta
):
    variance = calibrate(
        build,
        accountant=name,
        epsilon=epsilon,
        delta=delta,
        adversary=Adversary.SERVER,
    )
    denominator = variance.denominator
    assert denominator & (denominator - 1) == 0
    assert account(name, build(variance)).epsilon(delta) <= epsilon
    assert account(name, build(variance * Fraction("0.999"))).epsilon(delta) > epsilon


def test_the_noise_added_for_the_statement_is_minimal():
    """Here a noise whose δ is small enough states an ε a thousandth too large."""
    target = {"accountant": "mixture-gdp", "epsilon": 1.3003, "delta": 3.325e-4}

    def releases(variance):
        one = SkellamMixtureEvent(131_072, variance, 682_538.0, 15.0)
        return Repeated(SecretlySelected(one, Fraction(1, 73)), 5224)

    variance = calibrate(releases, adversary=Adversary.SERVER, **target)
    for share, states in ((1, True), (Fraction("0.999"), False)):
        stated = account("mixture-gdp", releases(share * variance)).epsilon(3.325e-4)
        assert (stated <= 1.3003) is states


def test_calibration_of_a_gaussian_is_close_to_the_analytic_one():
    variance = calibrate(
        lambda v: GaussianEvent(1, float(v), 1.0),
        accountant="skellam-gdp",
        epsilon=1.0,
        delta=1e-5,
        adversary=Adversary.SERVER,
    )
    exact = analytic_gaussian_stddev(1.0, 1e-5, 1.0) ** 2
    assert exact <= variance <= exact * (1 + 2e-5)


def test_calibration_names_the_accountant_without_a_theorem():
    options = {"epsilon": 1.0, "delta": 1e-5, "adversary": Adversary.SERVER}
    for events, said in (
        (
            lambda v: SecretlySelected(
                SkellamMixtureEvent(64, v, 16.0, 1.0), Fraction(1, 10)
            ),
            "counts no selection",
        ),
        (
            lambda v: Composed(
                tuple(SkellamMixtureEvent(64, v, size, 1.0) for size in (16.0, 9.0))
            ),
            "repetitions of one release",
        ),
    ):
        with pytest.raises(TheoremNotApplicableError, match=said):
            calibrate(events, accountant="mixture-simple", **options)


def test_an_impossible_calibration_raises_an_error():
    options = {"epsilon": 1.0, "delta": 1e-5, "adversary": Adversary.SERVER}
    with pytest.raises(CalibrationError, match="relax the target"):
        calibrate(
            lambda v: DiscreteGaussianEvent(64, v, 5.0),
            accountant="zcdp",
            bracket=(Fraction(1), Fraction(10)),
            **options,
        )
    with pytest.raises(CalibrationError):
        # Noise that does not help: the sampler alone exceeds delta.
        calibrate(
            lambda v: SkellamEvent(64, v, 5.0, sampler_distance=0.1),
            accountant="skellam-paper",
            **options,
        )


@pytest.mark.parametrize(
    ("change", "parameter"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"accountant": "magic"}, "accountant"),
        ({"bracket": (Fraction(2), Fraction(1))}, "bracket"),
    ],
)
def test_calibration_refuses_invalid_targets_by_name(change, parameter):
    arguments = {
        "accountant": "zcdp",
        "epsilon": 1.0,
        "delta": 1e-5,
        "adversary": Adversary.SERVER,
        **change,
    }
    with pytest.raises(ParameterError) as caught:
        calibrate(lambda v: DiscreteGaussianEvent(64, v, 5.0), **arguments)
    assert caught.value.parameter == parameter


def test_calibration_returns_the_least_of_the_bracket_when_that_is_enough():
    least = Fraction(10**6)
    assert least == calibrate(
        lambda v: DiscreteGaussianEvent(64, v, 5.0),
        accountant="zcdp",
        epsilon=1.0,
        delta=1e-5,
        adversary=Adversary.SERVER,
        bracket=(least, least * 4),
    )


@pytest.mark.parametrize("number", [Fraction(1, 3), Fraction(10**30, 7), 0.1, 5.0])
def test_dyadic_rounding_increases_by_less_than_one_part_in_four_million(number):
    rounded = round_up_to_dyadic(number)
    assert number <= rounded <= Fraction(number) * (1 + Fraction(1, 1 << 22))
    assert rounded.denominator & (rounded.denominator - 1) == 0
