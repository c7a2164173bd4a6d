"""Student's quantile against another implementation."""

import pytest
import scipy

from dpnoise.errors import ParameterError
from dpnoise.student_t import student_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 10, 99, 1000])
@pytest.mark.parametrize("tail", [0.5, 0.4, 0.025, 1e-4, 1e-8, 0.9])
def test_the_quantile_matches_that_of_scipy(tail, freedom):
    expected = scipy.stats.t.isf(tail, freedom)
    assert student_quantile(tail, freedom) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(("tail", "freedom"), [(0.0, 5), (1.0, 5), (0.1, 0)])
def test_invalid_arguments_of_the_quantile_are_rejected(tail, freedom):
    with pytest.raises(ParameterError):
        student_quantile(tail, freedom)
