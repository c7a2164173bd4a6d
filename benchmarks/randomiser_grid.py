"""Checks every local randomiser from 1 to 10^6 dimensions and from ε = 0.1 to 1000.

    python benchmarks/randomiser_grid.py [--tiny] [--draws 2000]

For each cell mpmath, which shares no code with the randomisers, computes from the
parameters of the draws

* the level: the logarithm of the largest ratio of probabilities that two inputs give
  one output. It is at most ε, and at most 10^-8 below it for each part. The exception
  is a lie of the least probability that a Bernoulli draw supports, 2^-1000;
* the bias: the mean output over the input, less one;

and vectors are drawn. They must be finite and within `output_norm`. Their mean is
compared with the input in standard errors. It prints one line of JSON for each cell and
ends with status 1 if a cell fails. It takes about a minute of one core.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import Final

import mpmath
import numpy as np

from dpnoise.local import LocalParameters, LocalRandomiser, make_randomiser
from dpnoise.local.magnitude import ScalarDP
from dpnoise.local.separated import Separated
from dpnoise.local.unit_vector import PrivUnit2, PrivUnitInf

EPSILONS: Final = (0.1, 1.0, 10.0, 100.0, 1000.0)
DIMENSIONS: Final = (1, 2, 10, 1000, 1_000_000)
MOST_BELOW: Final = 2e-8  # of the level: two parts of 10^-8 for `separated`
MOST_BIAS: Final = 1e-8
MOST_DEVIATIONS: Final = 5.5  # both sides: 4e-8 per cell, 4e-6 for the grid
LEAST_LIE: Final = Fraction(1, 1 << 1000)
_FEW: Final = 20  # rare outcomes that a mean of draws must hold to be compared
_BY_SERIES: Final = 10_000  # dimensions up to which Gauss's series is quick

Found = tuple[mpmath.mpf, mpmath.mpf]


def ratio(number: Fraction) -> mpmath.mpf:
    """Return a rational as an mpmath number."""
    return mpmath.mpf(number.numerator) / number.denominator


def of_two_sides(lie: Fraction, q: mpmath.mpf, moment: mpmath.mpf) -> Found:
    """Return the level and the mean agreement of a cap that is missed at times."""
    missed = ratio(lie)
    level = mpmath.log((1 - missed) / q) - mpmath.log(missed / (1 - q))
    return level, moment * ((1 - missed) / q - missed / (1 - q))


def sphere(made: PrivUnit2) -> Found:
    """The cap of the sphere: Gauss's series, or quadrature in many dimensions."""
    dim, height = made.cap.dim, mpmath.mpf(made.cap.height)
    half, square = mpmath.mpf(dim - 1) / 2, height * (2 - height)
    moment = square**half / (2 * half * mpmath.beta(half, 0.5))
    if dim <= _BY_SERIES:
        series = mpmath.hyp2f1(1, half + 0.5, half + 1, square)
        return of_two_sides(made.lie, moment * (1 - height) * series, moment)
    edge = 1 - height
    # Forty deviations of a uniform cosine beyond the edge the density vanishes.
    # Densities are relative to that at the edge, or quadrature stops too early.
    reach = min(mpmath.mpf(1), edge + 40 / mpmath.sqrt(dim))
    share = mpmath.quad(
        lambda t: mpmath.exp((half - 1) * mpmath.log((1 - t * t) / square)),
        mpmath.linspace(edge, reach, 33),
    )
    return of_two_sides(made.lie, moment * share * 2 * half / square, moment)


def cube(made: PrivUnitInf) -> Found:
    """The cap of the sign vectors: binomial coefficients, added up from its edge."""
    dim, level = made.cap.dim, made.cap.level
    first = mpmath.exp(
        mpmath.loggamma(dim + 1)
        - mpmath.loggamma(level + 1)
        - mpmath.loggamma(dim - level + 1)
        - dim * mpmath.log(2)
    )
    term, total = mpmath.mpf(1), mpmath.mpf(0)
    for agreeing in range(level, dim + 1):
        total += term
        term *= mpmath.mpf(dim - agreeing) / (agreeing + 1)
        if term < mpmath.mpf(10) ** -40 * total:
            break
    # E[(agreements − disagreements)/d; cap] = 2^-d·C(d − 1, L − 1).
    return of_two_sides(made.lie, first * total, first * level / dim)


def grid(made: ScalarDP) -> Found:
    """Randomised response on k + 1 points; the mean is linear in the value."""
    levels, missed = made.levels, ratio(made.lie)
    level = mpmath.log((1 - missed) * levels / missed)
    return level, 1 - missed - missed / levels


def exact(made: LocalRandomiser) -> tuple[mpmath.mpf, float]:
    """Return level and bias."""
    if isinstance(made, Separated):
        levels, biases = zip(exact(made.direction), exact(made.magnitude), strict=True)
        return levels[0] + levels[1], biases[0] + biases[1]
    if isinstance(made, ScalarDP):
        level, slope = grid(made)
        return level, float(slope / made.slope - 1)
    if not isinstance(made, PrivUnit2 | PrivUnitInf):
        raise TypeError(made.name)
    level, agreement = sphere(made) if isinstance(made, PrivUnit2) else cube(made)
    return level, float(agreement / made.mean_agreement - 1)


def deviations(made: LocalRandomiser, draws: int) -> float:
    """Draw, require finite vectors in their ball, and compare their mean."""
    dim = made.parameters.dim
    vector = np.full(
        dim, 1.0 if made.name in {"privunit-inf", "scalar-dp"} else dim**-0.5
    )
    seen = np.empty(draws)
    for number in range(draws):
        drawn = made.randomise(vector, private_seed=number.to_bytes(32, "big"))
        if not np.all(np.isfinite(drawn)):
            return math.inf
        if float(np.linalg.norm(drawn)) > made.output_norm:
            return math.inf
        seen[number] = float(drawn @ vector) / float(vector @ vector)
    away = abs(float(seen.mean()) - 1.0)
    missed = float(sum(lies(made)))
    if missed * draws < _FEW:  # too few lies, which remove the bias of the mean
        away = max(0.0, away - missed * (1.0 + made.output_norm))
    spread = float(seen.std()) / math.sqrt(draws)
    return 0.0 if away < MOST_BIAS else away / max(spread, MOST_BIAS)


def largest_norm(made: LocalRandomiser) -> float:
    """Return the L2 norm of the longest vector that is not shortened, bound 1."""
    return math.sqrt(made.parameters.dim) if isinstance(made, PrivUnitInf) else 1.0


def lies(made: LocalRandomiser) -> list[Fraction]:
    """Return the probabilities to miss a cap or to send another point."""
    if isinstance(made, Separated):
        return [*lies(made.direction), *lies(made.magnitude)]
    if isinstance(made, ScalarDP | PrivUnit2 | PrivUnitInf):
        return [made.lie]
    raise TypeError(made.name)


def cells(dimensions: tuple[int, ...]) -> Iterator[LocalParameters]:
    """Yield the parameters of all cells that a randomiser takes."""
    for dim in dimensions:
        for epsilon in EPSILONS:
            if dim == 1:
                yield LocalParameters(
                    randomiser="scalar-dp", dim=1, bound=1.0, epsilon=epsilon
                )
            yield LocalParameters(
                randomiser="privunit-inf", dim=dim, bound=1.0, epsilon=epsilon
            )
            if dim > 1:
                yield LocalParameters(
                    randomiser="privunit2", dim=dim, bound=1.0, epsilon=epsilon
                )
                yield LocalParameters(
                    randomiser="separated",
                    dim=dim,
                    bound=1.0,
                    epsilon=epsilon,
                    magnitude_epsilon=min(epsilon / 5, 10.0),
                )


def main() -> int:
    """Check all cells; return the status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tiny", action="store_true", help="few dimensions and draws")
    parser.add_argument("--draws", type=int, default=2000, help="of small vectors")
    given = parser.parse_args()
    mpmath.mp.dps = 50
    failed = 0
    for parameters in cells(DIMENSIONS[:3] if given.tiny else DIMENSIONS):
        made = make_randomiser(parameters)
        level, bias = exact(made)
        below = float(parameters.epsilon - level)
        away = deviations(
            made,
            10 if given.tiny else min(given.draws, max(5, 10**7 // parameters.dim)),
        )
        mse = made.mse(
            1.0 if made.name != "privunit-inf" else math.sqrt(parameters.dim)
        )
        tight = below < MOST_BELOW or LEAST_LIE in lies(made)
        unbiased = abs(bias) < MOST_BIAS and away < MOST_DEVIATIONS
        holds = below >= 0.0 and tight and unbiased and 0.0 <= mse < math.inf
        failed += not holds
        line: dict[str, object] = {
            "randomiser": parameters.randomiser,
            "dim": parameters.dim,
            "epsilon": parameters.epsilon,
            "level_below_epsilon": below,
            "bias": bias,
            "standard_errors": round(away, 2),
            "mse": mse,
            "holds": holds,
        }
        print(json.dumps(line), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
