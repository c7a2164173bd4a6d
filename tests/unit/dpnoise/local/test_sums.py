"""How long a sum of randomised vectors gets, against the laws themselves."""

import itertools
import math

import numpy as np
import pytest

from dpnoise.local import LocalParameters, make_randomiser
from dpnoise.local.sum_error import Scatter, largest_sum

DIM = 24
CLIENTS = 40


def made(name="privunit2", dim=DIM, epsilon=4.0):
    return make_randomiser(
        LocalParameters(
            randomiser=name,
            dim=dim,
            bound=1.0,
            epsilon=epsilon,
            magnitude_epsilon=epsilon / 2 if name == "separated" else None,
        )
    )


def log_moment(randomiser, theta):
    """Return log E e^(θ(t − E t)) of the cosine, by quadrature on its density.

    Nodes are dense where the density lies, and the edge of the cap is one of them.
    """
    cap, lie = randomiser.cap, float(randomiser.lie)
    power = (cap.dim - 3) / 2
    reach = min(1.0, 12.0 / math.sqrt(cap.dim))
    parts, logs = [], []
    for low, high, chance in (
        (max(-1.0, -reach), cap.edge, lie),
        (cap.edge, min(1.0, cap.edge + reach), 1.0 - lie),
    ):
        nodes = low + (high - low) * (np.arange(20_000) + 0.5) / 20_000
        density = power * np.log1p(-nodes * nodes)
        weights = np.exp(density - density.max())
        parts.append(chance * weights / weights.sum())
        logs.append(nodes)
    weights, cosines = np.concatenate(parts), np.concatenate(logs)
    centred = theta * (cosines - weights @ cosines)
    peak = centred.max()
    return peak + math.log(weights @ np.exp(centred - peak))


def along(randomiser):
    """Return the bound on the cosine alone."""
    around = Scatter.cap_bound(randomiser.cap, 1.0, 0.0)
    return around.along_one - 1.0 / (randomiser.cap.dim - 1)


THETAS = (-8.0, -2.0, -0.3, 0.3, 2.0, 8.0)


@pytest.mark.parametrize("dim", [4, 12, 200, 20_000])
@pytest.mark.parametrize("epsilon", [0.1, 2.0, 20.0])
def test_the_moments_of_the_cosine_are_below_the_bound(dim, epsilon):
    randomiser = made(dim=dim, epsilon=epsilon)
    scale = 1.0 / math.sqrt(along(randomiser))
    for theta in THETAS:
        theirs = log_moment(randomiser, theta * scale)
        assert theirs <= theta * theta / 2.0 + 1e-9


@pytest.mark.parametrize("epsilon", [0.1, 5.0, 50.0])
def test_a_smaller_bound_on_the_cosine_is_violated(epsilon):
    randomiser = made(dim=20_000, epsilon=epsilon)
    side = 1.0 / (randomiser.cap.dim - 3)
    claimed = {
        0.1: along(randomiser) - side,  # the sides apart, and neither of them wide
        5.0: 0.8 * along(randomiser),
        50.0: side,  # each side wide, and nothing between them
    }[epsilon]
    scale = 1.0 / math.sqrt(along(randomiser))
    assert any(
        log_moment(randomiser, theta * scale)
        > theta * theta * scale * scale * claimed / 2.0
        for theta in THETAS
    )


def agreement_moment(randomiser, theta):
    """Return log E e^(θ(t − E t)) of the mean agreement of signs, term by term."""
    cap, lie = randomiser.cap, float(randomiser.lie)
    weights = np.array([math.comb(cap.dim, k) for k in range(cap.dim + 1)], float)
    weights[: cap.level] *= lie / weights[: cap.level].sum()
    weights[cap.level :] *= (1.0 - lie) / weights[cap.level :].sum()
    means = 2.0 * np.arange(cap.dim + 1) / cap.dim - 1.0
    centred = theta * (means - weights @ means)
    return float(np.log(weights @ np.exp(centred)))


def along_signs(randomiser):
    """Return the bound on the mean agreement alone."""
    around = Scatter.of_signs(randomiser.cap, 1.0)
    dim = randomiser.cap.dim
    return around.along_one - (around.total - around.along_one) / (dim - 1)


@pytest.mark.parametrize("dim", [2, 5, 40, 400])
@pytest.mark.parametrize("epsilon", [0.1, 2.0, 20.0])
def test_the_moments_of_sign_agreements_are_below_the_bound(dim, epsilon):
    randomiser = made("privunit-inf", dim, epsilon)
    stated = along_signs(randomiser)
    for theta in THETAS:
        theirs = agreement_moment(randomiser, theta / math.sqrt(stated))
        assert theirs <= theta * theta / 2.0 + 1e-9


def test_a_smaller_bound_on_sign_agreements_is_violated():
    """Neither the width of a side alone would hold them, nor the sides apart."""
    for epsilon, only in ((50.0, 1.0), (0.1, 0.0)):
        randomiser = made("privunit-inf", 400, epsilon)
        width = only / 400.0
        claimed = width if only else along_signs(randomiser) - 1.0 / 400.0
        scale = 1.0 / math.sqrt(along_signs(randomiser))
        assert any(
            agreement_moment(randomiser, theta * scale)
            > (theta * scale) ** 2 * claimed / 2.0
            for theta in THETAS
        )


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("epsilon", [0.3, 3.0])
def test_the_moments_of_sign_vectors_are_below_the_bound(dim, epsilon):
    """All sign vectors with their probabilities, for inputs of every kind."""
    randomiser = made("privunit-inf", dim, epsilon)
    cap, lie = randomiser.cap, float(randomiser.lie)
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=dim)))
    agreeing = ((signs @ signs.T + dim) / 2.0).round().astype(int)
    inside = sum(math.comb(dim, k) for k in range(cap.level, dim + 1))
    sent = np.where(
        agreeing >= cap.level, (1.0 - lie) / inside, lie / (2**dim - inside)
    )
    draws = np.random.default_rng(dim)  # noqa: TID251 - inputs
    norm = randomiser.output_norm
    stated = Scatter.of_signs(cap, norm)
    rest = (stated.total - stated.along_one) / max(1, dim - 1)
    if dim == 1:
        rest = 1.43 * norm * norm
    for inputs in (np.ones(dim), np.eye(dim)[0], draws.uniform(-1, 1, dim)):
        meant = np.prod((1.0 + signs * inputs) / 2.0, axis=1)
        law = meant @ sent
        outputs = signs * norm / math.sqrt(dim)
        np.testing.assert_allclose(law @ outputs, inputs, atol=1e-9)
        shape = rest * np.eye(dim)
        shape += (stated.along_one - rest) * np.outer(inputs, inputs) / dim
        for _ in range(200):
            theta = draws.normal(size=dim) * draws.choice([0.1, 1.0, 4.0]) / norm
            theta *= draws.choice([0.0, 1.0], size=dim)
            theirs = np.log(law @ np.exp((outputs - inputs) @ theta))
            assert theirs <= theta @ shape @ theta / 2.0 + 1e-9


def test_single_signs_and_permutations_satisfy_the_bounds_of_the_proof():
    means = np.linspace(-0.9999, 0.9999, 4001)
    proxies = means / np.arctanh(means + 1e-300 * (means == 0))
    proxies[means == 0] = 1.0
    assert (proxies + means**2).max() < 1.43
    for slope in (-6.0, -1.0, 0.5, 3.0):
        moments = (1 + means) * np.exp(slope * (1 - means))
        moments += (1 - means) * np.exp(slope * (-1 - means))
        assert (np.log(moments / 2.0) <= slope**2 * proxies / 2.0 + 1e-9).all()
    draws = np.random.default_rng(0)  # noqa: TID251 - slopes
    for dim in range(2, 9):
        grown = 1.0 + sum(1.0 / n for n in range(1, dim)) / (dim - 1)
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=dim)))
        for total in range(-dim, dim + 1, 2):
            here = signs[signs.sum(axis=1) == total]
            for _ in range(40):
                slopes = draws.normal(size=dim) * draws.choice([0.2, 1.0, 3.0])
                moved = (here - total / dim) @ slopes
                moment = np.log(np.exp(moved - moved.max()).mean()) + moved.max()
                assert moment <= grown * (slopes @ slopes) / 2.0 + 1e-9


def sums(randomiser, vector, repeats):
    """Return the norms of sums in which all inputs agree."""
    found = []
    for repeat in range(repeats):
        total = np.zeros(vector.size)
        for each in range(CLIENTS):
            seed = repeat.to_bytes(16, "big") + each.to_bytes(16, "big")
            total += randomiser.randomise(vector, private_seed=seed)
        found.append(float(np.linalg.norm(total)))
    return np.array(found)


@pytest.mark.parametrize(
    ("name", "norm"), [("privunit2", 0.3), ("separated", 1.0), ("privunit-inf", 0.8)]
)
def test_the_norm_of_a_sum_of_equal_vectors_is_below_the_bound(name, norm):
    randomiser = made(name)
    direction = np.eye(DIM)[0] if name != "privunit-inf" else np.ones(DIM)
    vector = direction * norm
    mean = CLIENTS * norm * float(np.linalg.norm(direction))
    found = sums(randomiser, vector, repeats=25)
    stated = randomiser.sum_norm(CLIENTS, failure=0.01, mean_norm=mean)
    # Four of 25 sums with a chance of 0.01 each: once in 10 000 runs of other seeds.
    assert (found > stated).sum() < 4
    assert stated < CLIENTS * randomiser.output_norm
    # Neither the true sum nor the scatter alone would hold them.
    assert (found > mean).mean() > 0.5
    alone = math.sqrt(CLIENTS * randomiser.mse(norm))
    assert (found > alone).mean() > 0.2
    assert stated > found.max() * 0.99


def test_the_norm_of_a_sum_grows_with_the_square_root_of_the_clients():
    randomiser = made(dim=1000, epsilon=10.0)
    for clients in (100, 10_000):
        scatter = math.sqrt(clients) * randomiser.output_norm
        expected = math.hypot(clients, scatter)
        stated = randomiser.sum_norm(clients, failure=1e-5)
        assert expected < stated < 1.6 * expected
    # On the line nothing is gained but by bounded differences.
    line = made("scalar-dp", dim=1, epsilon=0.5)
    assert line.sum_norm(3, failure=1e-5) == 3 * line.output_norm
    assert line.sum_norm(1000, failure=1e-5) < 0.6 * 1000 * line.output_norm


def test_bounds_grow_with_the_number_and_length_of_the_vectors():
    randomiser = made("separated")
    stated = [randomiser.sum_norm(n, failure=1e-6) for n in (10, 20, 40, 80)]
    assert stated == sorted(stated)
    whole = randomiser.sum_norm(80, failure=1e-6)
    assert randomiser.sum_norm(80, failure=1e-3) < whole
    assert randomiser.sum_norm(80, failure=1e-6, mean_norm=9.0) < whole
    assert randomiser.sum_norm(80, failure=1e-6, mean_norm=1e9) == whole


def test_the_bound_follows_the_formula_of_its_theorem():
    scatter = Scatter(total=9.0, along_one=2.0)
    tail = math.sqrt(2 * 50 * 2.0 * math.log(2 / 0.001))
    square = 7.0**2 + 2 * 7.0 * tail + (math.sqrt(450.0) + tail) ** 2
    stated = largest_sum(scatter, vectors=50, mean_norm=7.0, failure=0.001)
    assert stated == pytest.approx(math.sqrt(square), rel=1e-12)
