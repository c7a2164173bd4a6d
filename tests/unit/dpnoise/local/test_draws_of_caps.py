"""What is drawn for a cap, with uniform numbers that are evenly spread, not random.

A sampler by rejection is a function of a few uniform numbers. Given points that fill
their square evenly it draws its law up to the unevenness of the points, far closer than
random ones would: nothing here can raise a false alarm, and 3 % of a variance or of an
edge are a multiple of what is allowed.
"""

import contextlib

import numpy as np
import pytest
import scipy

from dpnoise.local import LocalParameters, make_randomiser
from dpnoise.local.draws import Draws

BITS = 13
ALLOWED = 1.5e-3  # between cumulative laws; as many random points come as near as 0.01
CAPS = [(2, 1.0), (3, 6.0), (4, 2.0), (10, 1.0), (60, 0.3), (60, 90.0), (1000, 10.0)]


class EvenDraws(Draws):
    """Draws whose numbers are the coordinates of Hammersley's points, one by one."""

    __slots__ = ("_coordinates", "_given", "_number")

    def __init__(self, coordinates):
        super().__init__(bytes(32), b"even")
        self._coordinates, self._number, self._given = coordinates, 0, 0

    def uniform(self):
        if self._number == 1 << BITS:
            raise EOFError
        # The number of the point, and the same with its bits in reverse.
        bits = format(self._number, f"0{BITS}b")[:: 1 - 2 * self._given]
        self._given += 1
        if self._given == self._coordinates:
            self._number, self._given = self._number + 1, 0
        return (int(bits, 2) + 0.5) / (1 << BITS)


class EvenNormals(EvenDraws):
    """The same, and a normal number begins a new point."""

    __slots__ = ()

    def normal(self):
        if self._given:  # the last attempt was over before it needed all of its point
            self._number, self._given = self._number + 1, 0
        return float(scipy.special.ndtri(self.uniform()))


def evenly(draw, draws):
    """Draw until all points are spent."""
    drawn = []
    with contextlib.suppress(EOFError):
        while True:
            drawn.append(draw(draws))
    return np.array(drawn)


def farthest(samples, law):
    """The distance of Kolmogorov and Smirnov."""
    ordered = np.sort(samples)
    steps = np.arange(ordered.size + 1) / ordered.size
    below = law(ordered)
    return max(np.max(steps[1:] - below), np.max(below - steps[:-1]))


def privunit2(dim, epsilon):
    return make_randomiser(
        LocalParameters(randomiser="privunit2", dim=dim, bound=1.0, epsilon=epsilon)
    )


def tail(dim, cosine):
    """P(t ≥ cosine) for a uniform point of the sphere: (1 + t)/2 has a beta law."""
    return scipy.stats.beta.sf((1 + cosine) / 2, (dim - 1) / 2, (dim - 1) / 2)


def draws_of_cosines(dim):
    """Up to three dimensions one number, then a normal one and a coin beside it."""
    return EvenDraws(1) if dim <= 3 else EvenNormals(2)


@pytest.mark.parametrize("dim", [3, 4, 10, 1000])
def test_the_cosine_of_a_uniform_point_has_its_law(dim):
    drawn = evenly(privunit2(dim, 1.0)._draw_cosine, draws_of_cosines(dim))
    assert farthest(drawn, lambda t: 1 - tail(dim, t)) < ALLOWED


@pytest.mark.parametrize(("dim", "epsilon"), CAPS)
def test_points_outside_the_cap_have_their_law(dim, epsilon):
    made = privunit2(dim, epsilon)
    drawn = 1 - evenly(made._draw_outside, draws_of_cosines(dim))
    assert drawn.max() < made.cap.edge
    whole = 1 - tail(dim, made.cap.edge)
    assert farthest(drawn, lambda t: (1 - tail(dim, t)) / whole) < ALLOWED


@pytest.mark.parametrize(("dim", "epsilon"), CAPS)
def test_points_of_the_cap_have_their_law(dim, epsilon):
    made = privunit2(dim, epsilon)
    # Wide caps are drawn by trying again, narrow ones from their edge inwards.
    draws = EvenDraws(2) if epsilon > 2.0 else draws_of_cosines(dim)
    drawn, height = evenly(made._draw_depth, draws), made.cap.height
    assert drawn.min() > 0
    assert drawn.max() <= height
    half = (dim - 1) / 2

    def law(depths):  # from the top: 1 − depth would lose a narrow cap's digits
        whole = scipy.stats.beta.cdf(height / 2, half, half)
        return scipy.stats.beta.cdf(depths / 2, half, half) / whole

    assert farthest(drawn, law) < ALLOWED


def test_normal_numbers_have_their_law():
    assert farthest(evenly(Draws.normal, EvenDraws(2)), scipy.stats.norm.cdf) < ALLOWED
