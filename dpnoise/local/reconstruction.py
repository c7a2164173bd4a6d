"""Bounds on the reconstruction of a person's data under pure local privacy.

Under ε-differential privacy the posterior of every event is at most e^ε times its
prior, for every output and without exception ([Bho18] Lemma 2.1). Let an adversary seek
the direction of a feature of k dimensions to within a cosine a. If its prior is nowhere
denser than e^ρ times uniform, it succeeds with probability at most

    exp(ε + ρ)·q_k(a),

q_k the probability of a cap of the sphere (Lemma 2.2; Proposition 1 there bounds q_k by
a concentration inequality, here it is computed).

Limits: the bound does not cover questions with few answers, such as whether a person
took part, or has an illness. A prior of one half becomes a certainty at a few nats.
Levels of several releases add up. The bound needs pure privacy: (ε, δ) and Rényi
figures are not valid inputs.
"""

import math

from dpnoise.checks import check_integer, check_number
from dpnoise.errors import ParameterError
from dpnoise.local.parameters import MAX_LOCAL_DIM
from dpnoise.local.sphere_cap import LOG_TAIL_ERROR, MIN_EPSILON, SphereCap


def reconstruction_probability(
    epsilon: float, *, features: int, cosine: float, prior_excess: float = 0.0
) -> float:
    """Bound the probability of recovering a feature from private releases.

    Args:
        epsilon: Pure local privacy of all releases together, nats, at least 0.
        features: Dimension k of the feature, at least 2.
        cosine: Similarity a that counts as recovered, in [0, 1).
        prior_excess: ρ: log of the largest density of the prior over the uniform one.

    Returns:
        A probability, at most 1.

    Raises:
        ParameterError: A number is out of range.

    Source:
        [Bho18] Lemmas 2.1 and 2.2.
    """
    level = check_number("epsilon", epsilon)
    return math.exp(min(0.0, level + _log_prior(features, cosine, prior_excess)))


def epsilon_against_reconstruction(
    *, features: int, cosine: float, probability: float, prior_excess: float = 0.0
) -> float:
    """Return the largest level that keeps that probability within a bound.

    Args:
        features: As for `reconstruction_probability`.
        cosine: As there.
        probability: The largest probability that is accepted, in (0, 1).
        prior_excess: As for `reconstruction_probability`.

    Returns:
        Epsilon in nats, of all releases together.

    Raises:
        ParameterError: A number is out of range, or no level suffices because guessing
            alone succeeds more often.
    """
    wanted = check_number("probability", probability)
    if not 0.0 < wanted < 1.0:
        raise ParameterError.of("probability", wanted, "must lie in (0, 1)")
    level = math.log(wanted) - _log_prior(features, cosine, prior_excess)
    if level < MIN_EPSILON:
        raise ParameterError(
            f"guessing alone recovers {features} dimensions to a cosine of {cosine:g} "
            f"with a probability of up to {wanted * math.exp(-level):.3g}; ask for a "
            "larger cosine or more dimensions",
            parameter="probability",
            value=wanted,
        )
    return level


def _log_prior(features: int, cosine: float, prior_excess: float) -> float:
    """Bound the prior probability of a guess this close, as a logarithm."""
    check_integer("features", features, 2, MAX_LOCAL_DIM)
    edge = check_number("cosine", cosine)
    if not 0.0 <= edge < 1.0:
        raise ParameterError.of("cosine", edge, "must lie in [0, 1)")
    excess = check_number("prior_excess", prior_excess)
    if excess < 0.0:
        raise ParameterError(
            "no prior is everywhere less dense than the uniform one",
            parameter="prior_excess",
            value=excess,
            nearest="0.0",
        )
    cap = SphereCap.of_height(features, 1.0 - edge)
    return min(0.0, excess + cap.log_tail + LOG_TAIL_ERROR)
