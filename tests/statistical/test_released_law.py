"""What is released, from the clients' coins to the sum, loses no more than is claimed.

Every entry of the vectors below is a session of its own with one coordinate, so that a
few encodings are a million sessions: the product's own mechanism clips,
rounds, lets coins decide, adds shares of noise and takes layers back. Who looks is a
participant: it knows all other vectors and takes its own noise out of the sum.

Rule 1: a set S of outcomes is chosen beforehand by the loss of a Gaussian. Whatever S,
        P(S) − e^ε·Q(S) is at most delta, P and Q being the worlds with u's vector and
        with zeros.
Rule 2: a difference of five standard errors is an alarm, one-sided: 2.9e-7 per
        comparison if the claim is exact. Seeds are fixed, so alarms repeat.
"""

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest

from dpnoise.accounting import make_accountant
from dpnoise.encoding import centre
from dpnoise.events import (
    Adversary,
    DiscreteGaussianEvent,
    PoissonSampled,
    SecretlySelected,
    SkellamEvent,
    SkellamMixtureEvent,
)
from dpnoise.mechanisms import (
    MechanismParameters,
    NoiseRule,
    is_selected,
    make_mechanism,
)
from dpnoise.samplers import discrete_gaussian_table

SESSIONS = 1 << 20
COINS = 1 << 16  # flipped one by one: as many sessions are looked at with them
SHIFT = 8  # steps: u's vector in every session
VARIANCE = Fraction(64)
EPSILON = 0.5
RATE = Fraction(1, 4)
STANDARD_ERRORS = 5.0
PUBLIC = bytes(32)
RELEASE = SkellamEvent(
    dim=1,
    aggregate_noise_variance=VARIANCE,
    l2_sensitivity=float(SHIFT),
    linf_sensitivity=SHIFT,
)


def seed(*parts):
    return hashlib.sha256(repr(parts).encode()).digest()


def made(variance, largest, clients=5, **rule):
    usual = {"min_survivors": 4, "loss_fraction": Fraction(1, 5), "ladder": 4}
    return make_mechanism(
        MechanismParameters(
            mechanism="skellam-mixture",
            dim=SESSIONS,
            l2_clip=float(largest) * math.sqrt(SESSIONS),
            scale_factor=1.0,
            modulus=1 << 16,
            noise_rule=NoiseRule(counted_variance=variance, **(usual | rule)),
            num_clients=clients,
            rotation="none",
            linf_bound=Fraction(largest),
        )
    )


@pytest.fixture(scope="module")
def mechanism():
    return made(VARIANCE, SHIFT)


@pytest.fixture(scope="module")
def coins():
    return np.array([is_selected(seed("coin", i), RATE) for i in range(COINS)])


def encoded(mechanism, who, noise, vector, rate):
    """One client's uploads in all sessions, and its layers."""
    layers = [seed("layer", who, i) for i in range(len(noise.layers))]
    return mechanism.encode(
        vector,
        private_seed=seed("noise", who, rate),
        public_seed=PUBLIC,
        session_noise=noise,
        layer_seeds=layers,
        selection_rate=rate,
    ).residues.astype(np.int64), [
        (noise.layers[i], layers[i]) for i in range(len(layers))
    ]


def noise_of(mechanism, roster, losses, clients, rate=Fraction(1)):
    """What is left of these clients' noise after layers were taken back."""
    removed = mechanism.session(roster).removed_layers(losses)
    return left_of(mechanism, sent_by(mechanism, roster, clients, rate), removed)


def sent_by(mechanism, roster, clients, rate=Fraction(1)):
    """The sum of these clients' uploads, and the layers of each.

    Their vectors are zeros, and their coins fall as they fall: that changes nothing.
    """
    noise, nothing = mechanism.session(roster), np.zeros(SESSIONS)
    total, given = np.zeros(SESSIONS, np.int64), []
    for who in clients:
        upload, layers = encoded(mechanism, who, noise, nothing, rate)
        total += upload
        given.append(layers)
    return total, given


def left_of(mechanism, sent, removed):
    """What is left of uploads after these layers of all clients were taken back."""
    total, given = sent
    layers = [each[i] for each in given for i in removed]
    total = total - mechanism.layer_noise(layers, start=0, count=SESSIONS)
    return centre((total % mechanism.modulus).astype(np.uint16), mechanism.modulus)


def threshold(rate):
    """Where the loss of the selected Gaussian is EPSILON."""
    plain = math.log1p(math.expm1(EPSILON) / float(rate))
    return plain * float(VARIANCE) / SHIFT + SHIFT / 2


def found(with_vector, with_zeros):
    """Return P(S) − e^ε·Q(S) and its standard error; both worlds have one noise."""
    each = with_vector - math.exp(EPSILON) * with_zeros
    return float(each.mean()), float(each.std()) / math.sqrt(each.size)


def assert_no_more_than(claim, measured):
    delta, deviation = measured
    assert delta - STANDARD_ERRORS * deviation <= claim


def claimed(event, name="skellam-gdp", adversary=Adversary.SERVER):
    account = make_accountant(name, adversary=adversary).compose(event)
    return account.delta(EPSILON)


@pytest.mark.parametrize(("roster", "losses"), [(4, 0), (5, 0), (5, 1)])
@pytest.mark.parametrize("rate", [Fraction(1), RATE])
def test_the_released_sum_has_the_claimed_privacy_loss(
    mechanism, coins, roster, losses, rate
):
    others = range(roster - losses - 1)
    noise, shift = noise_of(mechanism, roster, losses, others, rate), SHIFT
    if rate < 1:
        noise, shift = noise[:COINS], SHIFT * coins
    seen = threshold(rate)
    measured = found(noise + shift > seen, noise > seen)
    claim = claimed(SecretlySelected(RELEASE, rate))
    assert_no_more_than(claim, measured)
    # Nor much less: a claim that nothing could break would pass as well.
    assert measured[0] + STANDARD_ERRORS * measured[1] >= claim
    if rate < 1:
        assert claim < 0.3 * claimed(RELEASE)


def test_an_unselected_client_sends_the_same_as_a_client_with_a_zero_vector(mechanism):
    """So that one upload stands for u in every session whose coin it has lost."""
    noise, vector = mechanism.session(5), np.full(SESSIONS, float(SHIFT))
    lost = next(
        q
        for q in (Fraction(1, 2**k) for k in range(1, 19))
        if not is_selected(seed("noise", "u", q), q)
    )
    upload, _ = encoded(mechanism, "u", noise, vector, lost)
    silent, _ = encoded(mechanism, "u", noise, 0.0 * vector, lost)
    assert np.array_equal(upload, silent)


def test_three_percent_less_noise_in_a_sum_is_detected(mechanism):
    noise = noise_of(mechanism, 5, 1, range(3))
    more = SkellamEvent(
        dim=1,
        aggregate_noise_variance=VARIANCE / Fraction(97, 100),
        l2_sensitivity=float(SHIFT),
        linf_sensitivity=SHIFT,
    )
    seen = threshold(1)
    measured = found(noise + SHIFT > seen, noise > seen)
    with pytest.raises(AssertionError):
        assert_no_more_than(claimed(more), measured)


def test_sampled_participation_does_not_satisfy_the_claim_of_secret_selection(
    mechanism, coins
):
    """The number of inputs tells u's coin, so u hides behind its coin no more.

    All others take part; u does by its coin, and brings its vector and its noise.
    """
    without_u = noise_of(mechanism, 4, 0, range(3))[:COINS]
    with_u = noise_of(mechanism, 5, 0, range(4))[:COINS]
    inputs = np.where(coins, 5, 4)
    seen = threshold(1)

    def outcome(shift):
        total = np.where(coins, with_u + shift, without_u)
        return (inputs == 5) & (total > seen)

    measured = found(outcome(SHIFT), outcome(0))
    sampled = PoissonSampled(RELEASE, float(RATE))
    withdrawn = claimed(sampled, "hypothetical-skellam-gdp", Adversary.MODEL_READER)
    with pytest.raises(AssertionError):
        assert_no_more_than(withdrawn, measured)
    assert_no_more_than(claimed(sampled, adversary=Adversary.MODEL_READER), measured)


def test_noise_layers_remain_for_every_client_that_dropped_out():
    """Of ten three are lost; six are left beside u, and know what they take back."""
    rule = {"min_survivors": 6, "loss_fraction": Fraction(2, 5)}
    mechanism = made(VARIANCE, SHIFT, clients=10, **rule)
    noise, seen = mechanism.session(10), threshold(1)
    # Layers are worth 1, 1, 2, 4 and 8 units: these six, and one unit more.
    assert noise.removed_layers(3) == (0, 1, 3)
    sent = sent_by(mechanism, 10, range(6))
    for removed, holds in (
        (noise.removed_layers(3), True),
        ((0, 2, 3), False),
        (noise.removed_layers(2), False),
        (noise.removed_layers(0), False),
    ):
        left = left_of(mechanism, sent, removed)
        measured = found(left + SHIFT > seen, left > seen)
        if holds:
            assert_no_more_than(claimed(RELEASE), measured)
            continue
        with pytest.raises(AssertionError):
            assert_no_more_than(claimed(RELEASE), measured)


def test_clients_invented_by_the_server_are_not_counted():
    """Of ten that a server names two are its own, and two it declares lost."""
    rule = {"clients": 10, "ladder": 0}
    careful = made(VARIANCE, SHIFT, colluder_fraction=Fraction(1, 5), **rule)
    trusting = made(VARIANCE, SHIFT, **rule)
    others, seen = range(10 - 2 - 2 - 1), threshold(1)
    for mechanism, holds in ((careful, True), (trusting, False)):
        noise = noise_of(mechanism, 10, 2, others)
        measured = found(noise + SHIFT > seen, noise > seen)
        if holds:
            assert_no_more_than(claimed(RELEASE), measured)
            continue
        with pytest.raises(AssertionError):
            assert_no_more_than(claimed(RELEASE), measured)


def test_sampled_participation_gives_no_privacy_against_an_observer_of_the_roster(
    coins,
):
    """Even where one party adds all noise, and the number of inputs is kept back."""
    event = DiscreteGaussianEvent(1, VARIANCE, float(SHIFT))
    noise = np.zeros(COINS, np.int64)
    discrete_gaussian_table(VARIANCE).add_to(noise, seed("central"), b"noise")
    seen = threshold(1)
    measured = found(coins & (noise + SHIFT > seen), coins & (noise > seen))
    sampled = PoissonSampled(event, float(RATE))
    reader = claimed(sampled, adversary=Adversary.MODEL_READER)
    with pytest.raises(AssertionError):
        assert_no_more_than(reader, measured)
    assert_no_more_than(claimed(sampled), measured)
    # Who sees the sum alone learns no more than is claimed.
    hidden = threshold(RATE)
    assert_no_more_than(reader, found(noise + SHIFT * coins > hidden, noise > hidden))


def test_rounding_has_the_claimed_loss_and_more_than_the_vector_itself():
    """Half a step is a whole one every other time, which tells more than a half."""
    variance = Fraction(4)
    coarse = made(variance, Fraction(1, 2))
    noise = noise_of(coarse, 5, 1, range(3))
    halves = np.full(SESSIONS, 0.5)
    rounded = coarse.quantise(halves, private_seed=seed("u"), public_seed=PUBLIC)
    assert set(np.unique(rounded)) == {0, 1}
    # The loss rises with the sum: (1 + I_3/I_4)/2 at 4 is the first above e^EPSILON.
    measured = found(noise + rounded > 3, noise > 3)
    release = SkellamMixtureEvent(
        dim=1,
        aggregate_noise_variance=variance,
        l2_clip_squared_steps=0.25,
        linf_bound=0.5,
    )
    for name in ("mixture-contour", "mixture-rdp", "mixture-gdp"):
        assert_no_more_than(claimed(release, name), measured)
    # Counted as half a step that needs no rounding, it would lose less than it does.
    unrounded = SkellamEvent(
        dim=1, aggregate_noise_variance=variance, l2_sensitivity=0.5
    )
    with pytest.raises(AssertionError):
        assert_no_more_than(claimed(unrounded), measured)
    # One rounding under two noises is not two releases, each rounded by itself.
    again = noise_of(coarse, 4, 0, range(3))
    fresh = coarse.quantise(halves, private_seed=seed("v"), public_seed=PUBLIC)
    silent = (noise > 3) & (again > 3)
    kept = found((noise + rounded > 3) & (again + rounded > 3), silent)
    apart = found((noise + rounded > 3) & (again + fresh > 3), silent)
    assert kept[0] > apart[0] + STANDARD_ERRORS * (kept[1] + apart[1])
