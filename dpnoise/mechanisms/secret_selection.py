"""The secret selection between a client's vector and zeros.

* A selected release has the noise of all clients, and the vectors of the selected ones
  only (`SecretlySelected`). The selection is as private as the vector. It is drawn from
  the seed of the noise, under a label of its own, and is never shown.
* One seed gives one selection: a replay repeats it. Another session, or another roster
  of the same session, has another seed.
* The rate is an exact rational, compared in integers, so that all builds agree on a
  selection.

It encodes nothing: mechanisms do.
"""

import math
from fractions import Fraction
from typing import Final

from dpnoise.errors import ParameterError
from dpnoise.samplers import BitSource

ALL_CLIENTS: Final = Fraction(1)
"""The rate of a task without secret selection."""

SELECTION_LABEL: Final = b"dpnoise/v1/selection"
"""Label of the stream that the selection is drawn from."""

MAX_SELECTION_DENOMINATOR: Final = 1_000_000
"""Six digits suffice for any planned rate, and keep comparisons short."""

_WORD_BYTES: Final = 32
_DEVIATIONS: Final = 6.0


def check_selection_rate(rate: object) -> Fraction:
    """Return a selection rate.

    Args:
        rate: What the caller passed.

    Returns:
        The rate q, in (0, 1], with a denominator of at most a million.

    Raises:
        ParameterError: The rate is invalid.
    """
    if not isinstance(rate, Fraction):
        raise ParameterError(
            f"selection_rate must be a Fraction, got {type(rate).__name__}",
            parameter="selection_rate",
            value=rate,
            nearest="Fraction(1)",
        )
    if not 0 < rate <= 1:
        raise ParameterError(
            f"selection_rate must be above 0 and at most 1, got {rate}",
            parameter="selection_rate",
            value=rate,
            nearest="1" if rate > 1 else "any number above 0, such as 1/10",
        )
    if rate.denominator > MAX_SELECTION_DENOMINATOR:
        near = rate.limit_denominator(MAX_SELECTION_DENOMINATOR)
        raise ParameterError(
            "selection_rate has a denominator above a million",
            parameter="selection_rate",
            value=rate,
            nearest=str(near or Fraction(1, MAX_SELECTION_DENOMINATOR)),
        )
    return rate


def is_selected(private_seed: bytes, rate: Fraction) -> bool:
    """Draw the Bernoulli selection of one encoding.

    The result reveals whether the sum holds the vector: keep it equally secret.

    Args:
        private_seed: The 32 secret bytes that the encoding draws its noise from.
        rate: Probability q of the vector, in (0, 1].

    Returns:
        Whether the vector counts. True with probability ⌈q·2^256⌉/2^256, and always
        at rate 1.

    Raises:
        ParameterError: The rate or the seed is invalid.
    """
    check_selection_rate(rate)
    word = BitSource(private_seed, SELECTION_LABEL).bytes_at(0, _WORD_BYTES)
    numerator, denominator = rate.as_integer_ratio()
    return int.from_bytes(word, "big") * denominator < numerator << (8 * _WORD_BYTES)


def most_selected(clients: int, rate: Fraction) -> float:
    """Return how many vectors count at most: six deviations more than are expected.

    More count once in 10^9 sessions, and some entries may then wrap around.

    Args:
        clients: Of a session, at least 1.
        rate: Probability that the vector of one counts, in (0, 1].

    Returns:
        A number of vectors, at most `clients`.
    """
    chance = float(rate)
    spread = math.sqrt(chance * (1.0 - chance) * clients)
    return min(float(clients), chance * clients + _DEVIATIONS * spread)
