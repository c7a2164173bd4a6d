import numpy as np
import pytest

from secagg.crypto import shamir
from secagg.crypto.shamir import (
    MAX_ABSCISSA,
    PRIME,
    check_abscissae,
    evaluate,
    lagrange_at_zero,
    lagrange_at_zero_batch,
    locate_roots,
    parity_check,
    weigh_bytes,
)


def some_points(count, step=7919):
    """Return distinct points, the largest among them."""
    return np.array(
        [MAX_ABSCISSA - place * step % MAX_ABSCISSA for place in range(count)]
    )


def horner(coefficients, x):
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


def lagrange_plainly(points):
    weights = []
    for j, x in enumerate(points):
        top = bottom = 1
        for i, other in enumerate(points):
            if i != j:
                top = top * other % PRIME
                bottom = bottom * (other - x) % PRIME
        weights.append(top * pow(bottom, -1, PRIME) % PRIME)
    return weights


@pytest.mark.parametrize("limit", [1 << 22, 64])
def test_evaluation_matches_horners_method_cached_or_in_blocks(monkeypatch, limit):
    monkeypatch.setattr(shamir, "_MAX_ENTRIES", limit)
    points = some_points(40)
    coefficients = np.array([[PRIME - 1, 0, 3], [PRIME - 1, 1, 4], [PRIME - 1, 2, 5]])
    values = evaluate(points, coefficients)
    for row, x in enumerate(points.tolist()):
        for column in range(3):
            assert values[row, column] == horner(coefficients[:, column].tolist(), x)


def test_the_largest_products_are_exact():
    points = some_points(5)
    coefficients = np.full((2000, 1), PRIME - 1)
    for row, x in enumerate(points.tolist()):
        expected = horner([PRIME - 1] * 2000, x)
        assert evaluate(points, coefficients)[row, 0] == expected


@pytest.mark.parametrize("count", [1, 2, 3, 17, 60])
@pytest.mark.parametrize("limit", [1 << 17, 64])
def test_interpolation_weights_match_lagranges_formula(monkeypatch, count, limit):
    monkeypatch.setattr(shamir, "_CACHED_ENTRIES", limit)
    shamir._lagrange_cached.cache_clear()
    points = some_points(count)
    expected = lagrange_plainly(points.tolist())
    assert lagrange_at_zero(points).astype(int).tolist() == expected
    both = np.stack([points, points[::-1]])
    batch = lagrange_at_zero_batch(both).astype(int).tolist()
    assert batch == [expected, expected[::-1]]


def test_cached_weights_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        lagrange_at_zero(some_points(3))[0] = 0


@pytest.mark.parametrize("rows", [1, 128, 129, 700])
def test_weighed_bytes_are_exact_at_the_extremes(rows):
    data = np.full((rows, 3000), 255, np.uint8)
    data[:, 0] = 0
    weights = np.full(rows, float(PRIME - 1))
    weights[0] = 1
    sums = weigh_bytes(weights, data)
    total = 255 * (1 + (rows - 1) * (PRIME - 1))
    assert sums[0] == 0
    assert (sums[1:] == total).all()


@pytest.mark.parametrize("limit", [1 << 22, 64])
def test_syndromes_vanish_exactly_for_code_words(monkeypatch, limit):
    monkeypatch.setattr(shamir, "_MAX_ENTRIES", limit)
    points = some_points(30)
    coefficients = np.arange(1, 41).reshape(20, 2)
    values = evaluate(points, coefficients)
    assert not parity_check(points, values, 20).any()
    for row in range(30):
        changed = values.copy()
        changed[row, 1] = (changed[row, 1] + 1) % PRIME
        syndromes = parity_check(points, changed, 20)
        assert syndromes.shape == (10, 2)
        assert not syndromes[:, 0].any()
        assert syndromes[:, 1].all()


def test_roots_of_the_locator_are_found():
    points = some_points(10)
    first, second = int(points[2]), int(points[9])
    locator = np.array([1, -(first + second) % PRIME, first * second % PRIME])
    assert np.flatnonzero(locate_roots(points, locator)).tolist() == [2, 9]


@pytest.mark.parametrize(
    "points",
    [[0, 1], [1, 65537], [-1], [1, 2, 1], np.zeros(0, np.int64), [[1, 2]], [1.0, 2.0]],
)
def test_unusable_points_are_refused(points):
    with pytest.raises(ValueError, match="absciss"):
        check_abscissae(points)


def test_all_points_of_the_field_are_valid():
    assert check_abscissae(np.arange(1, 65537)).size == 65536
