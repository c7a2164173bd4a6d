import numpy as np
import pytest

from secagg.crypto.shamir import (
    PRIME,
    UncorrectableError,
    evaluate,
    find_faulty,
    parity_check,
)

POINTS = np.arange(3, 33)


def code_words(columns=2, threshold=12):
    coefficients = np.arange(5, 5 + threshold * columns).reshape(threshold, columns)
    return evaluate(POINTS, coefficients)


@pytest.mark.parametrize("wrong", range(10))
def test_as_many_errors_as_half_the_surplus_are_found(wrong):
    values = code_words()
    places = np.arange(wrong) * 3
    values[places, 1] = (values[places, 1] + 1 + places) % PRIME
    faulty = find_faulty(POINTS, values, 12)
    assert np.flatnonzero(faulty).tolist() == places.tolist()


def test_errors_of_equal_size_and_of_size_minus_one_are_found():
    for error in (1, PRIME - 1):
        values = code_words()
        values[4:13, 0] = (values[4:13, 0] + error) % PRIME
        faulty = find_faulty(POINTS, values, 12)
        assert np.flatnonzero(faulty).tolist() == list(range(4, 13))


def test_more_errors_are_refused():
    values = code_words()
    values[:10, 0] = (values[:10, 0] + np.arange(1, 11)) % PRIME
    with pytest.raises(UncorrectableError):
        find_faulty(POINTS, values, 12)


def test_random_words_are_refused():
    values = np.arange(60).reshape(30, 2) ** 3 % 1009
    with pytest.raises(UncorrectableError):
        find_faulty(POINTS, values, 12)


def test_the_remaining_rows_agree_even_beyond_the_correction_radius():
    # Whatever comes back, the rows that are kept lie on one polynomial per column.
    values = code_words(columns=3)
    values[:6, 0] = 1
    values[3:9, 2] = 2
    kept = ~find_faulty(POINTS, values, 12)
    assert kept.sum() == 21
    assert (values[kept] == code_words(columns=3)[kept]).all()


def test_one_surplus_share_detects_an_error_without_naming_a_holder():
    # The error is chosen so that the only syndrome happens to be a holder's point.
    values = code_words(columns=1, threshold=29)
    probe = values.copy()
    probe[7, 0] = (probe[7, 0] + 1) % PRIME
    multiplier = int(parity_check(POINTS, probe, 29)[0, 0])
    error = int(POINTS[20]) * pow(multiplier, -1, PRIME) % PRIME
    values[7, 0] = (values[7, 0] + error) % PRIME
    assert parity_check(POINTS, values, 29)[0, 0] == POINTS[20]
    with pytest.raises(UncorrectableError):
        find_faulty(POINTS, values, 29)
