"""The assumption about numpy's functions, sampled against 40 digits of mpmath.

It is no proof: points are drawn, and another processor or release of numpy may take
other code.  Each array is long enough for vector units, and odd enough for their ends.
"""

import mpmath
import numpy as np
import pytest

from dpnoise.accounting.contour.mixture_contour import (
    ARITHMETIC_ASSUMPTION,
    MixtureContourAccountant,
)
from dpnoise.accounting.contour.mixture_pld import MixturePLDAccountant
from dpnoise.events import Adversary

POINTS = 2003
ALLOWED_ULPS = 4.0


def drawn():
    rng = np.random.default_rng(20_260)  # noqa: TID251 - cases, no noise
    unit = rng.uniform(-1.0, 1.0, POINTS)
    wide = rng.uniform(-700.0, 700.0, POINTS)
    scales = np.exp2(rng.uniform(-60.0, 40.0, POINTS))
    signed = np.where(unit < 0.0, -scales, scales)
    angles = np.concatenate([40.0 * unit, signed, np.pi / 2 * np.arange(1.0, 2000.0)])
    return {
        "exp": np.concatenate([unit, wide, np.clip(signed, -700.0, 700.0)]),
        "expm1": np.concatenate([unit, wide, np.clip(signed, -700.0, 700.0)]),
        "log": np.concatenate([1.0 + unit * 2.0**-20, scales, np.exp(wide)]),
        "log1p": np.concatenate([unit * (1 - 2.0**-40), scales, scales * 2.0**-30]),
        "sin": angles,
        "cos": angles,
    }


POINTS_OF = drawn()


def largest_error(name, points):
    """Return the largest error in units in the last place of the true value."""
    found = getattr(np, name)(points)
    exact_function = getattr(mpmath, name)
    largest = 0.0
    with mpmath.workdps(40):
        for point, value in zip(points.tolist(), found.tolist(), strict=True):
            exact = exact_function(mpmath.mpf(point))
            if exact != 0:
                ulp = abs(float(np.spacing(float(exact))))
                largest = max(largest, float(abs(exact - mpmath.mpf(value)) / ulp))
    return largest


@pytest.mark.parametrize("name", sorted(POINTS_OF))
def test_numpy_functions_err_by_at_most_four_units_in_the_last_place(name):
    assert largest_error(name, POINTS_OF[name]) <= ALLOWED_ULPS
    # In the shortest arrays the ends of vectors are all that there is.
    for length in (1, 2, 3, 5, 7):
        assert largest_error(name, POINTS_OF[name][:length]) <= ALLOWED_ULPS


def test_a_function_with_a_larger_error_is_detected(monkeypatch):
    right = np.exp
    monkeypatch.setattr(np, "exp", lambda points: right(points) * (1 + 2.0**-49))
    assert largest_error("exp", POINTS_OF["exp"]) > ALLOWED_ULPS


@pytest.mark.parametrize("found", [MixtureContourAccountant, MixturePLDAccountant])
def test_the_assumption_names_every_sampled_function(found):
    (said,) = (
        sentence
        for sentence in found(adversary=Adversary.SERVER)._assumptions()
        if "IEEE 754, and numpy" in sentence
    )
    assert said == ARITHMETIC_ASSUMPTION
    for name in POINTS_OF:
        assert name in said
